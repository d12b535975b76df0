#include "tune/play/phases.hpp"

#include <algorithm>

#include "syncopate/at.hpp"

namespace syncopate::tune {
namespace {

using fuse::Carrier;
using fuse::Edge;
using fuse::NodeId;

std::vector<Phase> by_ranges(const fuse::Graph& graph, std::size_t stage, NodeId tile,
                             std::span<const double> done) {
    const fuse::Graph::StageNodes& of = graph.stages[stage];
    double start = 0;
    for (const Edge& edge : graph.in[at(tile)]) {
        if (edge.lag == 0 && edge.iteration == 0) start = std::max(start, done[at(edge.from)]);
    }
    double all = 0, left = 1;
    for (const std::int64_t count : of.trips[at(graph[tile].index)]) all += static_cast<double>(count);
    std::vector<Phase> phases;
    if (all > 0) {
        for (const fuse::Use& use : graph.uses_of(stage, tile)) {
            const double share = static_cast<double>(use.end - use.begin) / all;
            phases.push_back({done[at(use.op)], {static_cast<double>(use.begin) / all, share}});
            left -= share;
        }
    }
    std::ranges::sort(phases, {}, &Phase::ready);
    if (left > 0 || phases.empty()) phases.insert(phases.begin(), {start, {0, std::max(0.0, left)}});
    return phases;
}

}  // namespace

std::vector<Phase> phases_of(const fuse::Graph& graph, const fuse::StageOrder& order, std::size_t stage,
                             NodeId tile, std::span<const double> done) {
    if (graph.stages[stage].ranged) return by_ranges(graph, stage, tile, done);
    std::vector<Phase> phases(1);
    for (const Edge& edge : graph.in[at(tile)]) {  // sorted by iteration
        if (edge.lag != 0) continue;
        if (graph.is_op(edge.from) && graph.carrier(edge.from) == Carrier::tile_loads) continue;
        const bool whole = !order.phased || order.trips == 0;
        const double from =
            whole ? 0 : static_cast<double>(edge.iteration) / static_cast<double>(order.trips);
        if (from > phases.back().part.from) {
            phases.back().part.share = from - phases.back().part.from;
            phases.push_back({0, {from, 1 - from}});
        }
        phases.back().ready = std::max(phases.back().ready, done[at(edge.from)]);
    }
    if (!graph.stages[stage].awaits.empty()) {
        for (const NodeId chunk : graph.awaited_by(stage, tile))
            phases.front().ready = std::max(phases.front().ready, done[at(chunk)]);
    }
    return phases;
}

}  // namespace syncopate::tune
