// Ready times: when the tiles of a stage can run, by the arrivals of what they need.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/passes/order.hpp"

namespace syncopate::fuse {

/// When the tiles of one class can run, in the unit of Arrivals.
struct ReadyTimes {
    std::int64_t first = 0;   ///< iteration 0
    std::int64_t last = 0;    ///< the last iteration
    std::int64_t needed = 0;  ///< `last`, but for what they load from its source
};

/// Of one stage, behind the orders of the `earlier` ones. Holds what it is made of by reference.
class Readiness {
public:
    Readiness(const Graph& graph, const Arrivals& arrivals, const std::vector<StageOrder>& earlier,
              std::size_t stage)
        : graph_(graph), arrivals_(arrivals), earlier_(earlier), stage_(stage), nodes_(graph.stages[stage]) {}

    /// By class of `rank`. `phases`: tiles may start before all that they need has come.
    [[nodiscard]] std::vector<ReadyTimes> of(std::size_t rank, bool phases) const;

private:
    [[nodiscard]] std::int64_t made_at(std::size_t rank, const Made& made) const;
    [[nodiscard]] std::int64_t first_range(NodeId node, std::int32_t c) const;

    const Graph& graph_;
    const Arrivals& arrivals_;
    const std::vector<StageOrder>& earlier_;
    std::size_t stage_;
    const Graph::StageNodes& nodes_;
};

/// Iterations of all loops of a tile of the class.
[[nodiscard]] std::int64_t length_of(const Graph::StageNodes& nodes, std::int32_t c);
/// Whether they differ between classes. Then the longest tiles go first among those that can start alike, as short
/// ones fill the gaps.
[[nodiscard]] bool lengths_differ(const Graph::StageNodes& nodes);

}  // namespace syncopate::fuse
