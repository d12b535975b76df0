// Synchronize: the smallest set of waits that covers every edge, given lanes and the order of tiles.
//
// A wait for op X also covers every op that precedes X. So a slot waits only for
//   - the last ones of the ops that it needs (no wait for what precedes another of them), and
//   - not for what its program has seen before: programs run their slots in order, and a wait acquires for
//     all threads of its program [P19].
// With phases the same holds along the iterations of a tile: a phase ends where the next op is needed that
// nothing before covers, and neighbouring phases without a wait between them are one.
//
// Where tiles differ in their loops, or a loop's ranges may come in any order, each loop's iterations are cut
// where what they need changes (Graph::Use):
//
//      needs         A A A A|A B B|B B|. . .|C C        five ranges
//      rising        as above: a phase ends where the next wait is
//      in any order  what is known to be there first, in as few ranges as it takes; then, again and again,
//                    the range that is expected next, and all that its wait shows to be there
//
// An op waits for the last ones of those that precede it, except what its own lane already orders.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/passes/order.hpp"
#include "syncopate/fuse/passes/place.hpp"

namespace syncopate::fuse {

/// What one slot waits for.
struct SlotWaits {
    struct Phase {
        std::int32_t loop = 0;
        std::int64_t iteration_begin = 0;
        std::int64_t iteration_end = 0;
        std::vector<NodeId> ops;
    };
    std::vector<NodeId> ops;     ///< before the tile starts
    std::vector<NodeId> chunks;  ///< of earlier stages, before the tile starts
    std::vector<Phase> phases;   ///< empty without phases; else those of each loop together cover it
};

/// By rank of the scope and slot of one stage.
using StageWaits = std::vector<std::vector<SlotWaits>>;

/// Whether some tile of the stage waits inside a loop, on whichever rank, each in the order that `tiles_of` says.
[[nodiscard]] bool waits_in_loops(const Graph& graph, const Placement& placement, std::size_t stage,
                                  const StageOrder& order, const Arrivals& arrivals,
                                  const std::function<std::vector<std::int64_t>(std::int32_t)>& tiles_of);

struct Synchronization {
    std::vector<StageWaits> stages;
    /// By op of the scope's ranks: the ops that it waits for before it starts.
    std::vector<std::vector<NodeId>> transfers;
    NodeId first = 0;  ///< whose `transfers` come first: of a part, those of other nodes' ranks have none

    [[nodiscard]] const std::vector<NodeId>& before(NodeId op) const { return transfers[at(op - first)]; }
    std::vector<std::vector<NodeId>> seen_by_kernel;  ///< by rank: the ops that some slot waits for, sorted
};

/// `orders`: of the ranks of `scope`, and so is what it says.
[[nodiscard]] Synchronization synchronize(const Graph& graph, const Placement& placement,
                                          const std::vector<StageOrder>& orders, const Arrivals& arrivals,
                                          Scope scope = {});

}  // namespace syncopate::fuse
