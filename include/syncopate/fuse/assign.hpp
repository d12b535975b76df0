// Assign: the backend that carries out each transfer.
//
// Legal choices, best first:
//   host   `host`: any transfer, and any sum (lower.hpp); `tma_dedicated` and `ldst_dedicated`: what the
//   chunk
//          engine takes, by its table, which the CPU interprets.
//   cuda   `copy_engine`: a transfer whose two regions are strided boxes of at most three levels (a run of
//          contiguous elements, repeated along up to two strides): what one 3D copy can express; a sum: a
//          kernel of its own in a stream beside the copies. `tma_dedicated` and `ldst_dedicated`, the chunk
//          engine: the same, where every row of both regions begins and ends at a multiple of 16 bytes.
//   both   `tma_inline`, `ldst_inline`: what the kernel of the program can send (inline.hpp) or fetch
//          (inline_reads.hpp) itself, on request: which is faster depends on what else the kernel waits for.
//   A collective goes by `nccl` on cuda and by `host` on host, where a library could carry it out as one call
//   (collective.hpp); a plan may say `nccl` on host, too, where it then stands for it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

enum class Device : std::uint8_t { host, cuda };

[[nodiscard]] std::string_view name_of(Device device);

/// By rank and op index.
using Backends = std::vector<std::vector<plan::Backend>>;

/// The backend whose lane (its queue on a rank: one after another) `backend` shares; the chunk engine's two
/// methods are one lane.
[[nodiscard]] constexpr plan::Backend lane_of(plan::Backend backend) {
    return backend == plan::Backend::ldst_dedicated ? plan::Backend::tma_dedicated : backend;
}

/// Whether a kernel carries it out: the fused one that makes it (inline.hpp) or reads it (inline_reads.hpp),
/// or a sum (sum_stores.hpp).
[[nodiscard]] constexpr bool is_inline(plan::Backend backend) {
    return backend == plan::Backend::tma_inline || backend == plan::Backend::ldst_inline;
}

/// Why the kernel cannot carry out an op by an inline backend; empty if it can.
using InlineObjection = std::function<std::string(plan::OpRef, plan::Backend)>;

/// Nested loops that a copy between the two regions needs, the contiguous run included (1: contiguous on both
/// sides); 0 if the two are not boxes of the same extents and not both contiguous.
[[nodiscard]] std::int32_t strided_levels(const plan::Plan& plan, const plan::Chunk& src,
                                          const plan::Chunk& dst);

/// The backends that can carry out the op on `device`, best first. Fails, with rank and op, if there is none.
[[nodiscard]] Result<std::vector<plan::Backend>> legal_backends(const plan::Plan& plan, plan::OpRef op,
                                                                Device device,
                                                                const InlineObjection& kernel = {});

/// Why the chunk engine cannot move `src` to `dst` (for a sum: one slot of it to `dst`) by `backend`; empty
/// if it can. Tensors begin at a multiple of 16 bytes.
[[nodiscard]] std::string engine_objection(const plan::Plan& plan, const plan::Chunk& src,
                                           const plan::Chunk& dst, plan::Backend backend);

/// A backend for each op: the plan's own choice where it names one, else `preferred` where that is legal,
/// else the best legal one. Fails, with rank and op, on a collective or an explicit backend that is not
/// legal, saying why. Local copies that cost nothing go inline: of what the kernel makes, as `kernel` allows,
/// and of what the rank was given, where tiles can read that (`own`: why not, as own_load_objection).
[[nodiscard]] Result<Backends> assign(const plan::Plan& plan, Device device,
                                      plan::Backend preferred = plan::Backend::automatic,
                                      const InlineObjection& kernel = {}, const InlineObjection& own = {});

}  // namespace syncopate::fuse
