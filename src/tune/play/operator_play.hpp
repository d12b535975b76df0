// A call of one of the library's operators around products: its program, as fuse arranges it, played. Tiles of one row
// of the product that make the same chunk go as one through the graph, and are played one by one; and all ranks of
// a node do alike, so that of one node one of them is played for all.
#pragma once

#include "syncopate/result.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {

/// Of a complete strategy that is fused. Fails where it makes no program, or nothing can carry it out.
[[nodiscard]] Result<Estimate> play_operator(const Problem& problem, const Machine& machine,
                                             const Strategy& strategy);

/// µs in which a fused call copies its result into a tensor of the caller's. Sums that nobody else reads are stored there
/// as they are made, and products where nothing of them moves; what comes from peers is in the heap.
[[nodiscard]] double result_copied_us(const Problem& problem, const Machine& machine,
                                      const Strategy& strategy);

/// No strategy takes less than its product alone, nor than its bytes on the links and one tile; told without
/// a graph. 0 where nothing is known.
[[nodiscard]] double least_us(const Problem& problem, const Machine& machine, const Strategy& strategy);

}  // namespace syncopate::tune
