#include "fuse/passes/deadlines.hpp"

#include <algorithm>
#include <map>

#include "syncopate/at.hpp"

namespace syncopate::fuse {

Deadlines::Deadlines(const Graph& graph, const Lowered& lowered, const Placement& placement,
                     const Arrivals& arrivals, std::size_t stage, const std::vector<std::int64_t>& traversal,
                     Scope scope)
    : graph_(graph),
      lowered_(lowered),
      placement_(placement),
      arrivals_(arrivals),
      stage_(stage),
      traversal_(traversal) {
    any_ = graph.makes(stage);
    if (!any_) return;
    find_awaited();
    takes_turns_ = stores_all();
    deadlines_.resize(graph.made.size());
    find(scope);
}

/// When what an op sends of what a kernel makes should be made; kNever: whenever.
std::int64_t Deadlines::due(NodeId node) const {
    const plan::OpRef ref = graph_.ref(node);
    const plan::Op& op = lowered_.plan.op(ref);
    // What stays on the rank and is for nobody else is never due.
    if (op.kind == plan::OpKind::local && op.reduce == plan::Reduce::none && !awaited_[at(node)])
        return kNever;
    // What a sum adds to is due when contributions have come, and one more is under way by then; but a
    // sum that reads all of them where they are begins with all.
    const auto direct = lowered_.direct.find(ref);
    const bool staged =
        op.reduce != plan::Reduce::none &&
        (direct == lowered_.direct.end() || direct->second.size() < lowered_.sources.at(ref).size());
    return arrivals_[node] - (staged ? 0 : lowered_.plan.bytes(op.dst));
}

void Deadlines::find_awaited() {
    awaited_.resize(at(graph_.num_ops()), false);
    for (NodeId op = 0; op < graph_.num_ops(); ++op) {
        for (const Edge& edge : graph_.in[op]) {
            if (graph_.is_op(edge.from)) awaited_[at(edge.from)] = true;
        }
    }
}

const std::vector<std::int64_t>& Deadlines::of(std::int32_t rank) {
    if (deadlines_[at(rank)].empty())
        find(Scope::node_of(lowered_.plan.mesh, rank).within(lowered_.plan.num_ranks()));
    return deadlines_[at(rank)];
}

/// Who sends what a rank makes is of its node.
void Deadlines::find(Scope scope) {
    for (std::int32_t rank = scope.first; rank < scope.end; ++rank)
        deadlines_[at(rank)].assign(graph_.stages[stage_].class_of.size(), kNever);
    for (NodeId op = graph_.first_op[at(scope.first)]; op < graph_.first_op[at(scope.end)]; ++op) {
        if (placement_.awaits[op].empty()) continue;
        const std::int64_t time = due(op);
        for (const NodeId chunk : placement_.awaits[op]) {
            const Made& made = graph_.made_at(chunk);
            if (!is_of_stage(made)) continue;
            for (const std::int64_t tile : made.makers) {
                std::int64_t& deadline = deadlines_[at(graph_[chunk].rank)][tile];
                deadline = std::min(deadline, time);
            }
        }
    }
    if (!takes_turns_) return;
    for (std::int32_t rank = scope.first; rank < scope.end; ++rank) take_turns(deadlines_[at(rank)]);
}

/// Whether tiles store all that leaves, and what comes of it is summed at once, or awaited at the end:
/// nobody then waits for one chunk before another.
bool Deadlines::stores_all() const {
    std::vector<bool> sums(graph_.made.size(), false);  // by rank
    for (std::size_t id = 0; id < graph_.nodes.size(); ++id) {
        const Node& node = graph_.nodes[id];
        if (is_stored(static_cast<NodeId>(id)) || !waits_for_chunk(static_cast<NodeId>(id))) continue;
        if (node.kind != Node::Kind::sum || sums[at(node.rank)]) return false;
        sums[at(node.rank)] = true;
    }
    return true;
}

bool Deadlines::is_stored(NodeId node) const {
    return graph_.is_op(node) && graph_.carrier(node) == Carrier::tile_stores;
}

/// Whether an op or tiles wait for what tiles of the stage make, on this rank or where they store it.
bool Deadlines::waits_for_chunk(NodeId node) const {
    const bool is_op = graph_.is_op(node);
    if (!is_op && graph_[node].kind != Node::Kind::tiles) return false;
    if (std::ranges::any_of(graph_.in[at(node)],
                            [&](const Edge& edge) { return edge.lag == 0 && is_stored(edge.from); }))
        return true;
    return is_op && std::ranges::any_of(placement_.awaits[node],
                                        [&](NodeId chunk) { return is_of_stage(graph_.made_at(chunk)); });
}

/// The first tiles of all of a rank's chunks are due first, in the order of the chunks, then their second ones.
void Deadlines::take_turns(std::vector<std::int64_t>& of_rank) const {
    std::map<std::int64_t, std::int64_t> next;  // by deadline
    for (const std::int64_t deadline : of_rank) next[deadline] = 0;
    std::int64_t place = 0;
    for (auto& [deadline, first] : next) first = place++;
    for (const std::int64_t tile : traversal_) {
        std::int64_t& deadline = of_rank[at(tile)];
        std::int64_t& turn = next[deadline];
        deadline = turn;
        turn += place;
    }
}

}  // namespace syncopate::fuse
