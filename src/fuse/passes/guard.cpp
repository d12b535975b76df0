#include "syncopate/fuse/passes/guard.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "syncopate/fuse/passes/precedence.hpp"

namespace syncopate::fuse {
namespace {

using Pair = std::pair<std::int32_t, std::int32_t>;  ///< to, from

/// Ops that touch one rank's memory.
struct Touching {
    std::vector<NodeId> reading;
    std::vector<NodeId> writing;
};

class Guarding {
public:
    Guarding(const Graph& graph, const plan::Plan& plan)
        : graph_(graph), plan_(plan), num_ranks_(plan.num_ranks()) {
        touching_.resize(num_ranks_);
        initial_ = by_rank(plan.initial);
        final_ = by_rank(plan.final);
        for (NodeId op = 0; op < graph.num_ops(); ++op) {
            if (graph.carrier(op) == Carrier::programs) alternating_.insert(op_of(op).src.tensor);
            touching_[source_of(op)].reading.push_back(op);
            touching_[destination_of(op)].writing.push_back(op);
        }
        read_by_kernel_.resize(num_ranks_);
        for (const Graph::StageNodes& stage : graph.stages) {
            for (std::int32_t rank = 0; rank < num_ranks_; ++rank) {
                for (std::int32_t c = 0; c < stage.num_classes; ++c) {
                    for (const Edge& edge : graph.in[stage.first[rank] + c])
                        read_by_kernel_[rank].insert(edge.from);
                }
            }
        }
    }

    [[nodiscard]] std::vector<std::vector<Edge>> before_start() const {
        std::set<Pair> ready;
        std::map<Pair, bool> consumed;  // at the end of the call, not of the kernel
        for (NodeId id = 0; id < graph_.num_ops(); ++id) {
            const plan::Op& op = op_of(id);
            const std::int32_t executor = graph_[id].rank;
            const std::int32_t source = source_of(id);
            const std::int32_t destination = destination_of(id);
            if (source != executor && holds(initial_[source], op.src)) ready.insert({executor, source});
            if (destination == executor || alternating_.contains(op.dst.tensor)) continue;
            if (holds(initial_[destination], op.dst)) ready.insert({executor, destination});
            const bool read_by_kernel = read_by_kernel_[destination].contains(id);
            // What the call leaves there is the user's until the next call, whoever else reads it.
            if (holds(final_[destination], op.dst)) ready.insert({executor, destination});
            consumed[{executor, destination}] |= !read_by_kernel || is_touched_by_others(id);
        }
        std::vector<std::vector<Edge>> edges(num_ranks_);
        for (const auto& [to, from] : ready) edges[to].push_back({0, graph_.begin[from]});
        for (const auto& [pair, at_end] : consumed) {
            if (ready.contains(pair)) continue;
            const auto& [to, from] = pair;
            edges[to].push_back({0, (at_end ? graph_.end : graph_.kernel)[from], 1});
        }
        return edges;
    }

    [[nodiscard]] std::vector<NodeId> before_end(std::int32_t rank, Precedence& precedence,
                                                 std::vector<NodeId> seen) const {
        for (NodeId op = graph_.first_op[rank]; op < graph_.first_op[rank + 1]; ++op) seen.push_back(op);
        std::vector<NodeId> open = touching_[rank].reading;
        open.insert(open.end(), touching_[rank].writing.begin(), touching_[rank].writing.end());
        open = precedence.last_of(precedence.not_seen(std::move(open), seen));
        // What one rank's tiles load here they have all loaded when its kernel ends.
        std::set<std::int32_t> loading;
        std::erase_if(open, [&](NodeId op) {
            return graph_.carrier(op) == Carrier::tile_loads && !loading.insert(graph_[op].rank).second;
        });
        return open;
    }

private:
    [[nodiscard]] const plan::Op& op_of(NodeId op) const { return plan_.op(graph_.ref(op)); }
    [[nodiscard]] std::int32_t source_of(NodeId op) const { return op_of(op).source_rank(graph_[op].rank); }
    [[nodiscard]] std::int32_t destination_of(NodeId op) const {
        return op_of(op).destination_rank(graph_[op].rank);
    }

    using Chunks = std::vector<const plan::Chunk*>;
    [[nodiscard]] std::vector<Chunks> by_rank(const std::vector<plan::Holding>& holdings) const {
        std::vector<Chunks> chunks(num_ranks_);
        for (const plan::Holding& held : holdings) chunks[held.rank].push_back(&held.chunk);
        return chunks;
    }
    [[nodiscard]] static bool holds(const Chunks& held, const plan::Chunk& chunk) {
        return std::ranges::any_of(held, [&](const plan::Chunk* one) { return overlaps(*one, chunk); });
    }

    /// Whether an op reads at its rank what op `id` writes there, or an op of another rank writes there, too.
    [[nodiscard]] bool is_touched_by_others(NodeId id) const {
        const plan::Chunk& written = op_of(id).dst;
        const Touching& there = touching_[destination_of(id)];
        return std::ranges::any_of(there.reading,
                                   [&](NodeId other) { return overlaps(op_of(other).src, written); }) ||
               std::ranges::any_of(there.writing, [&](NodeId other) {
                   return graph_[other].rank != graph_[id].rank && overlaps(op_of(other).dst, written);
               });
    }

    const Graph& graph_;
    const plan::Plan& plan_;
    std::int32_t num_ranks_;
    std::set<std::int32_t> alternating_;            ///< tensors that need no guard (kernel_sums.hpp)
    std::vector<Touching> touching_;                ///< by rank
    std::vector<Chunks> initial_;                   ///< by rank
    std::vector<Chunks> final_;                     ///< by rank
    std::vector<std::set<NodeId>> read_by_kernel_;  ///< by rank
};

}  // namespace

Guards guard(const Graph& graph, const plan::Plan& plan, const Placement& placement,
             const Synchronization& synchronization) {
    const Guarding guarding(graph, plan);
    Guards guards{guarding.before_start(), {}};
    Precedence precedence(graph, placement);
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank)
        guards.end.push_back(guarding.before_end(rank, precedence, synchronization.seen_by_kernel[rank]));
    return guards;
}

}  // namespace syncopate::fuse
