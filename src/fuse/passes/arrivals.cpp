#include "syncopate/fuse/passes/arrivals.hpp"

#include <algorithm>
#include <cmath>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/cost.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/try.hpp"

namespace syncopate::fuse {
namespace {

Arrivals on_equal_links(const Graph& graph, const Lowered& lowered, const Placement& placement) {
    // Found in the order of lists: in that of `sorted` each op is somewhere else in memory.
    Arrivals takes;
    takes.reserve(placement.lanes.size());
    for (const std::vector<plan::Op>& list : lowered.plan.ranks) {
        for (const plan::Op& op : list) takes.push_back(lowered.plan.bytes(op.dst));
    }
    for (const auto& [ref, side] : lowered.channel) {
        if (!side.sends) takes[at(graph.op(ref))] = 0;  // it is there
    }
    std::vector<bool> is_direct(takes.size(), false);  // a sum whose pulls are all that it moves
    for (const auto& [ref, pulls] : lowered.direct) {
        is_direct[at(graph.op(ref))] = true;
        takes[at(graph.op(ref))] = 0;
    }
    Arrivals arrivals(placement.lanes.size(), 0);
    for (const NodeId op : graph.sorted) {
        const NodeId previous = is_direct[at(op)] ? kNoNode : placement.started_before[op];
        std::int64_t start = previous == kNoNode ? 0 : arrivals[previous];
        for (const NodeId other : placement.before[op]) start = std::max(start, arrivals[other]);
        arrivals[op] = start + takes[at(op)];
    }
    return arrivals;
}

Result<Arrivals> on_topology(const Graph& graph, const Lowered& lowered, const Backends& backends,
                             const plan::Topology& topology, const Costs& costs) {
    SYNCOPATE_TAKE(const plan::Simulation simulation,
                   plan::simulate(transfers_of(lowered, backends), topology));
    Arrivals arrivals;
    for (NodeId op = 0; op < graph.num_ops(); ++op) {
        arrivals.push_back(
            std::llround(simulation.ops[graph[op].rank][graph[op].index].end_us * bytes_per_us(costs)));
    }
    return arrivals;
}

}  // namespace

double bytes_per_us(const Costs& costs) { return costs.copy_stream_gbps * 1e3; }

std::string topology_objection(const plan::Plan& plan) {
    if (plan.mesh.num_nodes() > 1) return "it goes over nodes, which a topology says nothing of";
    const auto ragged =
        std::ranges::find_if(plan.tensors, [](const plan::Tensor& t) { return t.ragged.has_value(); });
    if (ragged != plan.tensors.end()) return "only a call knows how many rows of " + ragged->name + " move";
    return {};
}

Result<Arrivals> expect_arrivals(const Graph& graph, const Lowered& lowered, const Backends& backends,
                                 const Placement& placement, const Options& options) {
    const bool simulated = options.topology && topology_objection(lowered.plan).empty();
    Result<Arrivals> arrivals = simulated
                                    ? on_topology(graph, lowered, backends, *options.topology, options.costs)
                                    : on_equal_links(graph, lowered, placement);
    if (!arrivals) return arrivals;
    // What a rank's tiles load from its own memory is there.
    for (NodeId op = 0; op < graph.num_ops(); ++op) {
        if (graph.carrier(op) == Carrier::tile_loads &&
            lowered.plan.op(graph.ref(op)).kind == plan::OpKind::local)
            (*arrivals)[op] = 0;
    }
    return arrivals;
}

}  // namespace syncopate::fuse
