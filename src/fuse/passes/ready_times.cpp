#include "fuse/passes/ready_times.hpp"

#include <algorithm>
#include <numeric>

#include "fuse/passes/deadlines.hpp"
#include "fuse/passes/handover.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/passes/synchronize.hpp"

namespace syncopate::fuse {

std::vector<ReadyTimes> Readiness::of(std::size_t rank, bool phases) const {
    std::vector<ReadyTimes> times;
    for (std::int32_t c = 0; c < nodes_.num_classes; ++c) {
        const NodeId node = nodes_.first[rank] + c;
        ReadyTimes& time = times.emplace_back();
        for (const Edge& edge : graph_.in[node]) {
            time.last = std::max(time.last, arrivals_[edge.from]);
            if (edge.iteration == 0) time.first = std::max(time.first, arrivals_[edge.from]);
        }
        time.needed = time.last;
        // What tiles load is there from the start, but in the plan's order no source is asked by all at
        // once.
        for (const NodeId op : graph_.loads_of(stage_, node))
            time.first = time.last = std::max(time.last, arrivals_[op]);
        for (const NodeId chunk : graph_.awaited_by(stage_, node))
            time.last = time.needed = std::max(time.last, made_at(rank, graph_.made_at(chunk)));
        time.first = std::max(time.first, first_range(node, c));
        if (!phases) time.first = time.last;
    }
    return times;
}

/// When an earlier stage has made a chunk: its stages follow each other in the estimate. What is complete
/// before the last round of its tiles is there when the first program of a later stage finds a place.
std::int64_t Readiness::made_at(std::size_t rank, const Made& made) const {
    const StageOrder& order = earlier_[at(made.stage)];
    return 2 * made.stage + (is_complete_early(made, order.tiles[rank], order.round) ? 1 : 2);
}

/// When some range of the first loop can run whose ranges come in any order; 0 where that is no such one.
std::int64_t Readiness::first_range(NodeId node, std::int32_t c) const {
    if (!nodes_.ranged) return 0;
    const std::vector<std::int64_t>& trips = nodes_.trips[at(c)];
    const auto loop = std::ranges::find_if(trips, [](std::int64_t n) { return n > 0; }) - trips.begin();
    std::int64_t covered = 0, earliest = kNever;
    for (const Use& use : graph_.uses_of(stage_, node)) {
        if (use.loop != loop) continue;
        if (use.begin > covered) return 0;  // what is there from the start
        covered = std::max(covered, use.end);
        earliest = std::min(earliest, arrivals_[use.op]);
    }
    return covered < (trips.empty() ? 0 : trips[at(loop)]) ? 0 : earliest;
}

std::int64_t length_of(const Graph::StageNodes& nodes, std::int32_t c) {
    const std::vector<std::int64_t>& trips = nodes.trips[at(c)];
    return std::accumulate(trips.begin(), trips.end(), std::int64_t{0});
}

bool lengths_differ(const Graph::StageNodes& nodes) {
    if (!nodes.ranged) return false;
    for (std::int32_t c = 1; c < nodes.num_classes; ++c)
        if (length_of(nodes, c) != length_of(nodes, 0)) return true;
    return false;
}

}  // namespace syncopate::fuse
