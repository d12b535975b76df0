// Inline: pushes that the fused kernel carries out itself. What it fetches: inline_reads.hpp.
//
// A push of what a tile makes needs no copy where the tile can be stored at its destination in the first
// place. The flat heap puts every rank's memory at a constant distance, so the same store goes there when a
// constant is added to its address:
//
//      C of rank 1      | rows for rank 0 | own rows | rows for rank 2 |
//                               |                           |            + rows from here to there
//                               v                           v
//      staging, rank 0  | … slot of rank 1 … |   staging, rank 2  | … slot of rank 1 … |
//
//   tma_inline    the store of a descriptor, made on the host or in the kernel: it spans the heaps of all
//                 ranks, and the store's first coordinate grows by rows of it
//   ldst_inline   tl.store: its pointers grow by elements
//
// A tile whose value several ranks need is stored several times; where the rank itself reads it too, one of
// these is its own place. What a chunk's transfer would have posted, the tile posts that completes the chunk.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/fuse/passes/lower.hpp"

namespace syncopate::fuse {

/// Why the kernel of `program` (its plan lowered) cannot carry out op `ref` by `backend`, tma_inline or
/// ldst_inline, as it stores; empty if it can. It can if the op is a push or a local copy, after no other op,
/// of what the kernel makes; if every store of that tensor is written out in the kernel itself; if no tile
/// writes on both sides of the source's edge; and if source and destination have rows of the same length.
[[nodiscard]] std::string store_objection(const BoundKernel& program, plan::OpRef ref, plan::Backend backend);

struct InlineStores {
    std::optional<Reach> by;                          ///< nullopt: no transfer is inline
    std::vector<std::vector<std::vector<Place>>> at;  ///< by rank and made chunk; empty: its own place only
    /// By rank and made chunk, the ranks at which a kernel stores it that finds the places itself.
    std::vector<std::vector<std::vector<std::int32_t>>> sent{};
};

/// The parameter through which some stage's kernel stores what the op sends, finding the places itself; null
/// where none does.
[[nodiscard]] const kernel::Param* sender_of(const StagedProgram& program, const plan::Op& op);

/// Why that kernel cannot carry out op `ref` of the lowered plan; empty if it can.
[[nodiscard]] std::string send_objection(const StagedProgram& program, const plan::Plan& plan,
                                         plan::OpRef ref);

/// Where the tiles of each made chunk are stored, for the ops that tiles carry out as they store. Fails, with
/// rank and op, when the kernel makes two tensors that are sent inline, in two ways, or to too many places.
[[nodiscard]] Result<InlineStores> store_inline(const StagedProgram& program, const Lowered& lowered,
                                                const Graph& graph, const Backends& backends);

}  // namespace syncopate::fuse
