// Assign: the backend that carries out each transfer, and each sum. The only place that decides it; what a
// backend may carry is its row's (backend.hpp).
//
// An op goes by the backend that the plan names; where it names none, by the preferred one if that is legal,
// else by copy_engine on cuda and by host on host. Further:
//
//   contributions      are staged, each in a slot of its own. The sum reads in place those that its rank
//                      pulls by ldst_inline, or all of them if the chunk engine pulls.
//   what a sum makes   is stored at the peers by the sum (ldst_inline) where it is small: starting a copy
//                      takes longer than moving it.
//   local copies       cost nothing where the tile that makes the data can store it there in the first place,
//                      or the tiles that read it can read what the rank was given.
//   collectives        go by nccl on cuda and by host on host, where a library could carry them out as one
//                      call (collective.hpp). A plan may say nccl on host, too, where host stands for it.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/fuse/model/cost.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

struct Lowered;
struct Options;
struct StagedProgram;

/// By rank and op index.
using Backends = std::vector<std::vector<plan::Backend>>;

/// How the contributions to one sum reach it.
struct Contributions {
    plan::Backend engine =
        plan::Backend::automatic;     ///< of all of them, if that is the chunk engine, which then sums
    std::vector<plan::OpRef> direct;  ///< those that the sum reads where they are
};

/// Contributions of a sum, other than the chunk engine's, that reads some in other ranks' memory, at most.
inline constexpr std::size_t kMostSumSources = 15;

/// `contributions`: the ops that reduce into `chunk` of rank `rank`, in the order of adding.
[[nodiscard]] Contributions assign_contributions(const plan::Plan& plan, std::int32_t rank,
                                                 const plan::Chunk& chunk,
                                                 const std::vector<plan::OpRef>& contributions,
                                                 plan::Backend preferred);

/// What the plan itself names.
[[nodiscard]] Backends backends_named(const plan::Plan& plan);

/// The backends that the plan of `lowered` names, and those that follow from what lower has made: the channel for sides;
/// for a sum the engine that brings all that it adds, or, with `kernel_sums`, the fused kernel; and for what a sum
/// reads where it is, the sum's.
[[nodiscard]] Backends name_implied(const Lowered& lowered, bool kernel_sums);

/// A backend for each op of a lowered plan. Fails, with rank and op, on a collective or an explicit backend
/// that is not legal, saying why. `kernel` says why tiles or sums cannot carry out an op; `own` why tiles
/// cannot read what the rank was given (own_load_objection); null: nothing goes inline.
[[nodiscard]] Result<Backends> assign(const plan::Plan& plan, Device device,
                                      plan::Backend preferred = plan::Backend::automatic,
                                      const InlineObjection& kernel = {}, const InlineObjection& own = {},
                                      const Costs& costs = usual_costs());

/// The same for a program, whose kernels and sums are asked. Fails also where one sum would store at too many
/// peers.
[[nodiscard]] Result<Backends> assign(const StagedProgram& program, const Lowered& lowered,
                                      const Options& options);

}  // namespace syncopate::fuse
