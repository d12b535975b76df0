#include "plan/simulate/start_order.hpp"

#include <functional>
#include <map>
#include <queue>
#include <utility>

namespace syncopate::plan {
namespace {

/// The events in a topological order of their waits and, with `in_line`, of each engine's list; those whose
/// first participant has a small index come first. Shorter than the graph if there is a circle.
std::vector<std::int32_t> sorted_events(const Plan& plan, const Topology& topology, const EventGraph& graph,
                                        bool in_line) {
    const auto count = static_cast<std::size_t>(graph.num_events());
    std::vector<std::pair<std::int32_t, std::int32_t>> edges;  // earlier, later
    for (std::int32_t event = 0; event < graph.num_events(); ++event) {
        for (const std::int32_t earlier : graph.waits(event)) edges.emplace_back(earlier, event);
    }
    for (std::int32_t rank = 0; in_line && rank < plan.num_ranks(); ++rank) {
        std::map<std::int64_t, std::int32_t> last;
        const auto ops = static_cast<std::int32_t>(plan.ranks[static_cast<std::size_t>(rank)].size());
        for (std::int32_t index = 0; index < ops; ++index) {
            const OpRef ref{rank, index};
            const std::int32_t event = graph.event(ref);
            const auto [previous, first] = last.try_emplace(line_key(plan, topology, ref), event);
            if (!first) edges.emplace_back(std::exchange(previous->second, event), event);
        }
    }
    std::vector<std::int32_t> open(count, 0);
    std::vector<std::size_t> begin(count + 1, 0);
    for (const auto& [earlier, later] : edges) {
        ++begin[static_cast<std::size_t>(earlier) + 1];
        ++open[static_cast<std::size_t>(later)];
    }
    for (std::size_t i = 0; i < count; ++i) begin[i + 1] += begin[i];
    std::vector<std::int32_t> followers(edges.size());
    std::vector<std::size_t> fill(begin.begin(), begin.end() - 1);
    for (const auto& [earlier, later] : edges) followers[fill[static_cast<std::size_t>(earlier)]++] = later;

    using Key = std::pair<OpRef, std::int32_t>;  // (index, rank), event
    std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
    const auto push = [&](std::int32_t event) {
        const OpRef first = graph.members(event).front();
        ready.emplace(OpRef{first.index, first.rank}, event);
    };
    for (std::int32_t event = 0; event < graph.num_events(); ++event) {
        if (open[static_cast<std::size_t>(event)] == 0) push(event);
    }
    std::vector<std::int32_t> sorted;
    sorted.reserve(count);
    while (!ready.empty()) {
        const auto event = static_cast<std::size_t>(ready.top().second);
        ready.pop();
        sorted.push_back(static_cast<std::int32_t>(event));
        for (std::size_t i = begin[event]; i < begin[event + 1]; ++i) {
            if (--open[static_cast<std::size_t>(followers[i])] == 0) push(followers[i]);
        }
    }
    return sorted;
}

}  // namespace

EngineKind engine_of(const Plan& plan, const Topology& topology, OpRef ref) {
    const Op& op = plan.op(ref);
    if (op.kind == OpKind::collective) return EngineKind::library;
    if (topology.network && op.kind != OpKind::local &&
        topology.devices[static_cast<std::size_t>(ref.rank)].node !=
            topology.devices[static_cast<std::size_t>(op.peer)].node) {
        return EngineKind::network;
    }
    switch (op.backend) {
        case Backend::tma_dedicated:
        case Backend::tma_inline:
        case Backend::ldst_dedicated:
        case Backend::ldst_inline:
        case Backend::nccl: return EngineKind::sm;
        case Backend::automatic:
        case Backend::copy_engine:
        case Backend::host: break;
    }
    return op.reduce == Reduce::none ? EngineKind::copy_engine : EngineKind::sm;
}

std::int64_t line_key(const Plan& plan, const Topology& topology, OpRef ref) {
    const EngineKind kind = engine_of(plan, topology, ref);
    const Op& op = plan.op(ref);
    const bool per_peer = engine_figures(topology, kind).per_peer && kind != EngineKind::library;
    const std::int64_t peer = per_peer && op.kind != OpKind::local ? op.peer + 1 : 0;
    return peer * static_cast<std::int64_t>(kNumEngineKinds) + static_cast<std::int64_t>(kind);
}

const Engine& engine_figures(const Topology& topology, EngineKind kind) {
    if (kind == EngineKind::network) return *topology.network;
    return kind == EngineKind::sm ? topology.sm : topology.copy_engine;
}

Result<StartOrder> start_order(const Plan& plan, const Topology& topology, const EventGraph& graph) {
    StartOrder order;
    order.ranks.resize(plan.ranks.size());
    const auto count = static_cast<std::size_t>(graph.num_events());
    if (sorted_events(plan, topology, graph, true).size() == count) {
        for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
            const auto ops = static_cast<std::int32_t>(plan.ranks[static_cast<std::size_t>(rank)].size());
            for (std::int32_t index = 0; index < ops; ++index)
                order.ranks[static_cast<std::size_t>(rank)].push_back({rank, index});
        }
        return order;
    }
    const std::vector<std::int32_t> sorted = sorted_events(plan, topology, graph, false);
    if (sorted.size() < count) {
        return Error{"ops wait for each other in a circle: `syncopate plan check` prints it"};
    }
    for (const std::int32_t event : sorted) {
        for (const OpRef ref : graph.members(event))
            order.ranks[static_cast<std::size_t>(ref.rank)].push_back(ref);
    }
    return order;
}

}  // namespace syncopate::plan
