// Inline reads: pulls that the fused kernel carries out itself.
//
// What a tile reads need not be copied to its rank first: the flat heap puts every rank's memory at a
// constant distance, so the same load reads it where it is when a constant is added to its address:
//
//      A of rank 0   | own rows |          |          |          |
//                                   tile of rank 0 │ that reads these rows
//                                                  ▼ + rows from here to there
//      A of rank 1   |          | own rows |          |          |
//
//   tma_inline    the load of a descriptor, made on the host or in the kernel: it spans the heaps of all
//                 ranks, and the load's first coordinate grows by rows of it
//   ldst_inline   tl.load: its pointers grow by elements
//
// Tiles read this rank's own shard from the user's tensor, through one more parameter of the kernel, sy_own:
// a descriptor like the kernel's own, or the distance from the heap.
//
// Of a gathered tensor, too, tiles read this rank's own part there, if the end of the call does not ask for it:
// that part then needs no copy in the heap.
//
// The tile waits for what the pull would have waited for, and reads; when the kernel ends it tells the source's
// rank that this was fetched. Nothing is left in this rank's memory. So a pull goes inline only where neither
// another op of the rank nor the end of the call asks for its data. Each tile fetches for itself: what many
// tiles read travels as often as they read it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// Whether op `ref` of the lowered plan goes inline, if it does, by the loads of its destination's tiles: a
/// pull, or a local copy of what the rank's kernel does not make.
[[nodiscard]] bool is_fetched(const plan::Plan& plan, plan::OpRef ref);

/// Who has to do with each rank's memory, by rank: found once, as it is asked of every op that could be fetched.
struct MemoryUses {
    /// The plan outlives it.
    explicit MemoryUses(const plan::Plan& plan);

    std::vector<std::vector<plan::OpRef>> reading, writing;  ///< ops, rising
    std::vector<std::vector<std::optional<plan::OpRef>>>
        first_after;                                     ///< by index: the first op after that one
    std::vector<std::vector<const plan::Chunk*>> given;  ///< what the rank holds from the start
    std::vector<std::vector<const plan::Chunk*>> asked;  ///< what it is to hold at the end
};

/// Why the tiles of `program` (its plan lowered, and `uses` of that) cannot carry out op `ref` by `backend`, tma_inline or
/// ldst_inline, as they load; empty if they can. They can if the kernel reads the destination through one
/// parameter, every load of which is written out in the kernel itself; if no kernel makes the source; if
/// nothing else touches the destination, nor asks for it at the end; if source and destination have rows of
/// the same length; and if every tile that reads there reads all of that parameter from one place.
[[nodiscard]] std::string load_objection(const BoundKernel& program, const MemoryUses& uses, plan::OpRef ref,
                                         plan::Backend backend);

/// Why a kernel could not read what local op `ref` would copy through a parameter for what the rank itself
/// was given, as `backend` does; empty if it can. As load_objection, if the rank held the source from the
/// start, nobody overwrites it, and the kernel is given the descriptor, of two axes, that it loads through.
[[nodiscard]] std::string own_load_objection(const BoundKernel& program, const MemoryUses& uses,
                                             plan::OpRef ref, plan::Backend backend);

struct Options;

struct InlineLoads {
    std::optional<Reach> by;                            ///< nullopt: no transfer is fetched inline
    std::vector<std::vector<std::optional<Place>>> at;  ///< by rank and tile; nullopt: the kernel's own place
    std::vector<std::vector<plan::Chunk>> borders{};    ///< by rank (RankSchedule::borders); may be empty
};

/// Where each tile loads, for the ops that tiles carry out as they load. Fails, with rank and op, when the
/// kernel would fetch two tensors inline, or one in two ways, or a tile reads from several places.
///
/// Where tiles carry out no op so, they may still read what their rank holds from the start where the user
/// has it, by sy_own: of the first tensor of which they can as by own_load_objection, if no rank's end asks
/// for its part. A tile at the border of its rank's part, which also reads beside it, reads all from the
/// heap, and what it reads of the part has to be there. That is for programs of one stage.
[[nodiscard]] Result<InlineLoads> load_inline(const StagedProgram& program, const Lowered& lowered,
                                              const Graph& graph, const Backends& backends);

}  // namespace syncopate::fuse
