#include "plan/simulate/start_order.hpp"

#include <map>
#include <utility>

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

/// Whether the ops can start if each starts after what it waits for and after the op before it in its line.
bool starts_in_line(const Plan& plan, const Topology& topology, const EventGraph& graph) {
    const auto count = static_cast<std::size_t>(graph.num_events());
    const Followers followers(count, [&](auto&& edge) {
        for (std::int32_t event = 0; event < graph.num_events(); ++event) {
            for (const std::int32_t earlier : graph.waits(event)) edge(earlier, event);
        }
        for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
            std::map<std::int64_t, std::int32_t> last;
            const auto ops = static_cast<std::int32_t>(plan.ranks[at(rank)].size());
            for (std::int32_t index = 0; index < ops; ++index) {
                const OpRef ref{rank, index};
                const std::int32_t event = graph.event(ref);
                const auto [previous, first] = last.try_emplace(line_key(plan, topology, ref), event);
                if (!first) edge(std::exchange(previous->second, event), event);
            }
        }
    });
    return topological_order(followers).size() == count;
}

}  // namespace

EngineKind engine_of(const Plan& plan, const Topology& topology, OpRef ref) {
    const Op& op = plan.op(ref);
    if (op.kind == OpKind::collective) return EngineKind::library;
    if (topology.network && op.kind != OpKind::local &&
        topology.devices[at(ref.rank)].node != topology.devices[at(op.peer)].node) {
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
        case Backend::channel:
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
    if (starts_in_line(plan, topology, graph)) {
        for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
            const auto ops = static_cast<std::int32_t>(plan.ranks[at(rank)].size());
            for (std::int32_t index = 0; index < ops; ++index) order.ranks[at(rank)].push_back({rank, index});
        }
        return order;
    }
    const std::vector<std::int32_t> sorted = program_order(graph);
    if (sorted.size() < count) {
        return Error{"ops wait for each other in a circle: `syncopate plan check` prints it"};
    }
    for (const std::int32_t event : sorted) {
        for (const OpRef ref : graph.members(event)) order.ranks[at(ref.rank)].push_back(ref);
    }
    return order;
}

}  // namespace syncopate::plan
