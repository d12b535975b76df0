#include "fuse/passes/start_order.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "syncopate/at.hpp"
#include "syncopate/topological_order.hpp"

namespace syncopate::fuse {
namespace {

/// A topological order, taking ops of small index first; shorter than `before` if there is a cycle. `by_list`: each also
/// after the one before it in its rank's list.
std::vector<NodeId> sort_topologically(const Graph& graph, const OpsBefore& before, bool by_list) {
    const Followers followers(before.size(), [&](auto&& edge) {
        for (std::size_t op = 0; op < before.size(); ++op) {
            const auto node = static_cast<NodeId>(op);
            for (const NodeId other : before[op]) edge(other, node);
            if (by_list && graph[node].index > 0) edge(node - 1, node);
        }
    });
    return topological_order_in(followers, in_lists(graph));
}

/// An op itself; of a chunk, the ops that its tiles need.
void add_ops_before(const Graph& graph, NodeId node, std::vector<NodeId>& ops) {
    if (graph.is_op(node)) {
        ops.push_back(node);
        return;
    }
    for (const Edge& edge : graph.in[node]) add_ops_before(graph, edge.from, ops);
}

}  // namespace

std::vector<NodeId> in_lists(const Graph& graph) {
    // Ops are numbered rank by rank: in that order each goes behind those of its own index.
    return in_order_of(at(graph.num_ops()), [&](NodeId op) { return at(graph[op].index); });
}

OpsBefore::OpsBefore(const Graph& graph) : begin_{0} {
    const auto count = static_cast<std::size_t>(graph.num_ops());
    begin_.reserve(count + 1);
    ops_.reserve(count);
    std::vector<NodeId> before;
    for (std::size_t op = 0; op < count; ++op) {
        before.clear();
        for (const Edge& edge : graph.in[op]) add_ops_before(graph, edge.from, before);
        std::ranges::sort(before);
        ops_.insert(ops_.end(), before.begin(), std::unique(before.begin(), before.end()));
        begin_.push_back(ops_.size());
    }
}

bool tiles_order_ops(const Graph& graph) {
    if (std::ranges::none_of(graph.makers(), std::identity{})) return false;
    return std::ranges::any_of(graph.stages, [&](const Graph::StageNodes& stage) {
        return std::ranges::any_of(stage.first, [&](NodeId first) {
            return std::any_of(graph.in.begin() + first, graph.in.begin() + first + stage.num_classes,
                               [](const Edges& edges) { return !edges.empty(); });
        });
    });
}

Status order_starts(Graph& graph) {
    const auto count = static_cast<std::size_t>(graph.num_ops());
    const OpsBefore after(graph);
    graph.start_order.assign(graph.first_op.size() - 1, {});
    for (std::size_t op = 0; op < count; ++op)
        graph.start_order[graph.nodes[op].rank].push_back(static_cast<NodeId>(op));
    graph.sorted = sort_topologically(graph, after, true);
    if (graph.sorted.size() == count) return Done{};
    graph.sorted = sort_topologically(graph, after, false);  // the lists' own order would block
    if (graph.sorted.size() < count)
        return Error{"ops wait for each other in a circle: `syncopate plan check` prints it"};
    for (std::vector<NodeId>& order : graph.start_order) order.clear();
    for (const NodeId op : graph.sorted) graph.start_order[graph[op].rank].push_back(op);
    return Done{};
}

}  // namespace syncopate::fuse
