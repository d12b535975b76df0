#include "syncopate/fuse/passes/guard.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "fuse/passes/memory_index.hpp"
#include "syncopate/at.hpp"
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
    Guarding(const Graph& graph, const plan::Plan& plan, Scope scope)
        : graph_(graph), plan_(plan), num_ranks_(plan.num_ranks()), scope_(scope.within(num_ranks_)) {
        touching_.resize(num_ranks_);
        initial_ = by_rank(plan.initial);
        final_ = by_rank(plan.final);
        for (NodeId op = first(); op < last(); ++op) {
            if (graph.carrier(op) == Carrier::programs) alternating_.insert(op_of(op).src.tensor);
            touching_[source_of(op)].reading.push_back(op);
            touching_[destination_of(op)].writing.push_back(op);
        }
        read_by_kernel_.resize(graph.num_ops(), false);
        for (const Graph::StageNodes& stage : graph.stages) {
            for (std::int32_t rank = scope_.first; rank < scope_.end; ++rank) {
                for (std::int32_t c = 0; c < stage.num_classes; ++c) {
                    for (const Edge& edge : graph.in[stage.first[rank] + c]) {
                        if (graph.is_op(edge.from) && destination_of(edge.from) == rank)
                            read_by_kernel_[edge.from] = true;
                    }
                }
            }
        }
    }

    [[nodiscard]] std::vector<std::vector<Edge>> before_start() const {
        std::set<Pair> ready;
        std::map<Pair, bool> consumed;  // at the end of the call, not of the kernel
        const std::vector<bool> touched = touched_by_others();
        for (NodeId id = first(); id < last(); ++id) {
            const plan::Op& op = op_of(id);
            const std::int32_t executor = graph_[id].rank;
            const std::int32_t source = source_of(id);
            const std::int32_t destination = destination_of(id);
            if (source != executor && initial_[source].any_overlap(op.src)) ready.insert({executor, source});
            if (destination == executor || alternating_.contains(op.dst.tensor)) continue;
            // What the call leaves there is the user's until the next call, whoever else reads it.
            if (initial_[destination].any_overlap(op.dst) || final_[destination].any_overlap(op.dst))
                ready.insert({executor, destination});
            consumed[{executor, destination}] |= !read_by_kernel_[id] || touched[id];
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
    [[nodiscard]] NodeId first() const { return graph_.first_op[at(scope_.first)]; }
    [[nodiscard]] NodeId last() const { return graph_.first_op[at(scope_.end)]; }
    [[nodiscard]] const plan::Op& op_of(NodeId op) const { return plan_.op(graph_.ref(op)); }
    [[nodiscard]] std::int32_t source_of(NodeId op) const { return op_of(op).source_rank(graph_[op].rank); }
    [[nodiscard]] std::int32_t destination_of(NodeId op) const {
        return op_of(op).destination_rank(graph_[op].rank);
    }

    [[nodiscard]] std::vector<MemoryIndex> by_rank(const std::vector<plan::Holding>& holdings) const {
        std::vector<std::vector<MemoryIndex::Entry>> held(num_ranks_);
        for (const plan::Holding& one : holdings) {
            if (!scope_.contains(one.rank)) continue;
            held[one.rank].push_back({one.chunk.tensor, kNoNode, &one.chunk.region});
        }
        std::vector<MemoryIndex> indices;
        for (std::vector<MemoryIndex::Entry>& of_rank : held) indices.emplace_back(std::move(of_rank));
        return indices;
    }

    /// By op, whether an op reads at its rank what it writes there, or an op of another rank writes there, too.
    [[nodiscard]] std::vector<bool> touched_by_others() const {
        std::vector<bool> touched(graph_.num_ops(), false);
        for (const Touching& there : touching_) {
            std::vector<MemoryIndex::Entry> read, written;
            for (const NodeId op : there.reading)
                read.push_back({op_of(op).src.tensor, op, &op_of(op).src.region});
            for (const NodeId op : there.writing)
                written.push_back({op_of(op).dst.tensor, op, &op_of(op).dst.region});
            const MemoryIndex reads(std::move(read)), writes(std::move(written));
            for (const NodeId op : there.writing) {
                const plan::Chunk& chunk = op_of(op).dst;
                touched[op] = reads.any_overlap(chunk) ||
                              writes.any_overlap(chunk.tensor, chunk.region, [&](const auto& other) {
                                  return graph_[other.op].rank != graph_[op].rank;
                              });
            }
        }
        return touched;
    }

    const Graph& graph_;
    const plan::Plan& plan_;
    std::int32_t num_ranks_;
    Scope scope_;
    std::set<std::int32_t> alternating_;  ///< tensors that need no guard (kernel_sums.hpp)
    std::vector<Touching> touching_;      ///< by rank
    std::vector<MemoryIndex> initial_;    ///< by rank
    std::vector<MemoryIndex> final_;      ///< by rank
    std::vector<bool> read_by_kernel_;    ///< by op: the kernel at its destination waits for it
};

}  // namespace

Guards guard(const Graph& graph, const plan::Plan& plan, const Placement& placement,
             const Synchronization& synchronization, Scope scope) {
    scope = scope.within(plan.num_ranks());
    const Guarding guarding(graph, plan, scope);
    Guards guards{guarding.before_start(), {}};
    Precedence precedence(graph, placement);
    guards.end.resize(plan.ranks.size());
    for (std::int32_t rank = scope.first; rank < scope.end; ++rank)
        guards.end[rank] = guarding.before_end(rank, precedence, synchronization.seen_by_kernel[rank]);
    return guards;
}

}  // namespace syncopate::fuse
