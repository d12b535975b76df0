#include "syncopate/fuse/passes/place.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fuse/passes/memory_index.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/inline/sum_stores.hpp"
#include "syncopate/fuse/passes/collective.hpp"
#include "syncopate/plan/model/chunk_key.hpp"
#include "syncopate/try.hpp"

namespace syncopate::fuse {
namespace {

/// Streams for what is summed; with more peers than this some share one.
constexpr std::int32_t kSummedStreams = kMostCopyStreams - 2;

class Placing {
public:
    Placing(const Graph& graph, const Lowered& lowered, const Backends& backends, const Costs& costs)
        : graph_(graph),
          costs_(costs),
          plan_(lowered.plan),
          backends_(backends),
          count_(static_cast<std::size_t>(graph.num_ops())) {
        std::vector<std::vector<MemoryIndex::Entry>> made(plan_.ranks.size());
        for (const plan::Holding& held : plan_.produced)
            made[at(held.rank)].push_back({held.chunk.tensor, kNoNode, &held.chunk.region});
        for (std::vector<MemoryIndex::Entry>& of_rank : made) made_.emplace_back(std::move(of_rank));
    }

    Placement run() {
        result_.previous.assign(count_, kNoNode);
        result_.started_before.assign(count_, kNoNode);
        result_.awaits.resize(count_);
        result_.position.resize(count_);
        result_.lanes.reserve(count_);
        std::size_t edges = 0;
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            result_.lanes.push_back({kind_of(op)});
            for (const Edge& edge : graph_.in[op]) {
                if (!graph_.is_op(edge.from)) result_.awaits[op].push_back(edge.from);
            }
            edges += graph_.in[op].size() + 1;
        }
        for (const std::vector<NodeId>& order : graph_.start_order) {
            choose_streams(order);
            line_up(order);
        }
        result_.before.reserve(count_, edges);
        for (NodeId op = 0; op < graph_.num_ops(); ++op) add_before(op);
        for (std::size_t at = 0; at < graph_.sorted.size(); ++at)
            result_.position[graph_.sorted[at]] = static_cast<std::int32_t>(at);
        return std::move(result_);
    }

private:
    [[nodiscard]] plan::Backend backend_of(NodeId op) const {
        return backends_[graph_[op].rank][graph_[op].index];
    }
    [[nodiscard]] const plan::Op& op_of(NodeId op) const { return plan_.op(graph_.ref(op)); }

    [[nodiscard]] LaneKind kind_of(NodeId op) const {
        const LaneKind lane = traits_of(backend_of(op)).lane;
        if (graph_[op].kind == Node::Kind::collective) return LaneKind::library;
        const bool kernels = lane == LaneKind::copies || lane == LaneKind::host;
        return kernels && graph_[op].kind == Node::Kind::sum ? LaneKind::sums : lane;
    }

    /// Whether the op's lane ends it before it begins the next one.
    [[nodiscard]] bool in_order(NodeId op) const {
        return graph_[op].kind == Node::Kind::collective || traits_of(backend_of(op)).in_order;
    }

    /// Which copy streams the pushes of one rank go by, in the order `ops`: of the small chunks that its
    /// kernel makes every other one by the second, of the sums each peer's by another.
    void choose_streams(const std::vector<NodeId>& ops) {
        std::vector<MemoryIndex::Entry> sums;
        for (const NodeId op : ops) {
            const plan::Chunk& sum = op_of(op).dst;
            if (graph_[op].kind == Node::Kind::sum) sums.push_back({sum.tensor, op, &sum.region});
        }
        const MemoryIndex summed(std::move(sums));
        std::map<plan::ChunkKey, std::int32_t> stream_of;  // by source
        for (const NodeId id : ops) {
            const plan::Op& op = op_of(id);
            Lane& lane = result_.lanes[id];
            if (op.kind != plan::OpKind::push || lane.kind != LaneKind::copies) continue;
            const std::int32_t rank = graph_[id].rank;
            if (summed.any_overlap(op.src)) {
                const std::int32_t distance = (op.peer - rank + plan_.num_ranks()) % plan_.num_ranks();
                lane.stream = 2 + (distance - 1) % kSummedStreams;
                continue;
            }
            if (static_cast<double>(plan_.bytes(op.dst)) > kMib * costs_.two_streams_mib ||
                !made_[at(rank)].any_overlap(op.src))
                continue;
            const auto next = static_cast<std::int32_t>(stream_of.size() % 2);
            lane.stream = stream_of.try_emplace(key_of(op.src), next).first->second;
        }
    }

    void add_before(NodeId op) {
        for (const Edge& edge : graph_.in[op]) {
            if (graph_.is_op(edge.from)) result_.before.add({&edge.from, 1});
        }
        if (const NodeId previous = result_.previous[op]; previous != kNoNode)
            result_.before.add({&previous, 1});
        if (const auto rounds = before_sides_.find(op); rounds != before_sides_.end())
            result_.before.add(rounds->second);
        result_.before.end_list();
    }

    /// A side begins when all of its rank's round before have ended (channel.hpp).
    void follow_round(NodeId op) {
        if (in_round_.empty() || graph_.round(in_round_.front()) != graph_.round(op) ||
            graph_[in_round_.front()].rank != graph_[op].rank) {
            before_round_ = std::exchange(in_round_, {});
            if (!before_round_.empty() && graph_[before_round_.front()].rank != graph_[op].rank)
                before_round_.clear();
        }
        in_round_.push_back(op);
        if (!before_round_.empty()) before_sides_[op] = before_round_;
    }

    /// Which op of the rank comes before which: in starting, and where a lane ends one before the next.
    void line_up(const std::vector<NodeId>& ops) {
        NodeId last_sent = kNoNode;  // of what follows no sum, by anything
        std::map<LaneKind, NodeId> last_started;
        std::map<Lane, NodeId> last_in_order;
        for (const NodeId op : ops) {
            const bool sent = graph_[op].kind != Node::Kind::sum && !follows_sums(plan_, graph_.ref(op));
            const NodeId before = sent ? std::exchange(last_sent, op) : kNoNode;
            const Lane lane = result_.lanes[op];
            if (lane.kind == LaneKind::channel) {
                follow_round(op);
                continue;
            }
            if (lane.kind == LaneKind::inlined) {
                // By tiles, in no order, but best in the list's (order.cpp): else the tiles of all ranks
                // would begin with the same peer, or before those of chunks that take longer on their way; or
                // by a sum.
                result_.started_before[op] = before;
                continue;
            }
            if (const auto [found, first] = last_started.try_emplace(lane.kind, op); !first)
                result_.started_before[op] = std::exchange(found->second, op);
            if (!in_order(op) || graph_.carrier(op) == Carrier::sum_loads) continue;
            const auto [found, first] = last_in_order.try_emplace(lane, op);
            if (first) continue;
            result_.previous[op] = std::exchange(found->second, op);
        }
    }

    const Graph& graph_;
    const Costs& costs_;
    const plan::Plan& plan_;
    const Backends& backends_;
    std::size_t count_;
    std::vector<NodeId> in_round_;                                  ///< sides of the last rank and round
    std::vector<NodeId> before_round_;                              ///< those of the rank's round before
    std::unordered_map<NodeId, std::vector<NodeId>> before_sides_;  ///< by side
    std::vector<MemoryIndex> made_;                                 ///< by rank: what its kernels make
    Placement result_;
};

/// Whether each op that overwrites what the destination's kernel makes comes after something that waited for it.
class OverwriteCheck {
public:
    OverwriteCheck(const Graph& graph, const plan::Plan& plan, const Placement& placement)
        : graph_(graph), plan_(plan), placement_(placement), met_(at(graph.num_ops()), kNoNode) {
        for (const plan::Holding& made : plan.produced)
            produced_[{made.rank, made.chunk.tensor}].push_back(&made.chunk.region);
    }

    Status check(NodeId id) {
        if (graph_.carrier(id) == Carrier::sum_loads) return Done{};  // it is its sum that writes
        const plan::OpRef ref = graph_.ref(id);
        const plan::Op& op = plan_.op(ref);
        if (!graph_.written[at(op.dst.tensor)]) return Done{};
        const std::int32_t rank = op.destination_rank(ref.rank);
        const auto produced = produced_.find({rank, op.dst.tensor});
        if (produced == produced_.end()) return Done{};
        std::vector<plan::Region> missing;
        for (const plan::Region* region : produced->second) {
            if (auto part = intersect(*region, op.dst.region)) missing.push_back(std::move(*part));
        }
        if (known_from_near(id, rank, missing)) return Done{};
        return error_at(
            ref, "the op writes " + plan_.tensors[at(op.dst.tensor)].name + to_string(missing.front()) +
                     " on rank " + std::to_string(rank) +
                     ", where that rank's kernel writes too, and waits for nothing that would tell "
                     "when it has: write elsewhere, or after an op that reads it");
    }

private:
    /// Takes out of `missing` what ops have waited for of the rank's kernel, of those that op `id` comes after: the
    /// nearest first, until nothing is left.
    bool known_from_near(NodeId id, std::int32_t rank, std::vector<plan::Region>& missing) {
        if (missing.empty()) return true;
        const std::int32_t tensor = plan_.op(graph_.ref(id)).dst.tensor;
        std::vector<NodeId> open;
        const auto visit = [&](NodeId op) {
            if (std::exchange(met_[at(op)], id) != id) open.push_back(op);
        };
        visit(id);
        for (std::size_t next = 0; next < open.size(); ++next) {
            const NodeId op = open[next];
            for (const Edge& edge : graph_.in[at(op)]) {
                if (graph_.is_op(edge.from) || graph_[edge.from].rank != rank) continue;
                const plan::Chunk& chunk = graph_.made_at(edge.from).chunk;
                if (chunk.tensor != tensor) continue;
                take(missing, chunk.region);
                if (missing.empty()) return true;
            }
            for (const NodeId before : placement_.before[at(op)]) visit(before);
        }
        return false;
    }

    const Graph& graph_;
    const plan::Plan& plan_;
    const Placement& placement_;
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<const plan::Region*>>
        produced_;             ///< by rank and tensor
    std::vector<NodeId> met_;  ///< by op: the last one that was checked and comes after it
};

/// An op need not wait for tiles that one of the same rank before it has waited for.
class KnownTiles {
public:
    KnownTiles(const Graph& graph, Placement& placement)
        : graph_(graph), placement_(placement), stages_(graph.stages.size()) {}

    /// `ops`: of one rank, each after those before it. Tables are of one rank at a time: they are its ops by its tiles.
    void drop(const std::vector<NodeId>& ops) {
        if (std::ranges::all_of(ops, [&](NodeId op) { return placement_.awaits[at(op)].empty(); })) return;
        const std::int32_t rank = graph_[ops.front()].rank;
        const NodeId first = graph_.first_op[at(rank)];
        known_.assign(at(graph_.first_op[at(rank) + 1] - first) * stages_, {});
        for (const NodeId op : ops) {
            for (const NodeId before : placement_.before[at(op)]) {
                if (graph_[before].rank != rank) continue;
                for (std::size_t stage = 0; stage < stages_; ++stage)
                    add(known_[at(before - first) * stages_ + stage],
                        known_[at(op - first) * stages_ + stage]);
            }
            std::erase_if(placement_.awaits[at(op)], [&](NodeId chunk) {
                if (graph_[chunk].rank != rank) return false;
                const Made& made = graph_.made_at(chunk);
                const auto stage = at(made.stage);
                return !add_makers(made, stage, known_[at(op - first) * stages_ + stage]);
            });
        }
    }

private:
    using Tiles = std::vector<std::uint64_t>;  ///< as bits; empty: none
    static constexpr std::size_t kBits = 64;

    static void add(const Tiles& theirs, Tiles& tiles) {
        if (tiles.empty()) tiles.resize(theirs.size(), 0);
        for (std::size_t word = 0; word < theirs.size(); ++word) tiles[word] |= theirs[word];
    }
    /// Whether some of the chunk's were not known.
    [[nodiscard]] bool add_makers(const Made& made, std::size_t stage, Tiles& tiles) const {
        if (tiles.empty()) tiles.resize((graph_.stages[stage].class_of.size() + kBits - 1) / kBits, 0);
        bool some = false;
        for (const std::int64_t tile : made.makers) {
            std::uint64_t& word = tiles[at(tile) / kBits];
            const std::uint64_t bit = std::uint64_t{1} << (at(tile) % kBits);
            some = some || (word & bit) == 0;
            word |= bit;
        }
        return some;
    }

    const Graph& graph_;
    Placement& placement_;
    std::size_t stages_;
    std::vector<Tiles> known_;  ///< by op of the rank and stage: tiles of the rank
};

void drop_what_is_known(const Graph& graph, Placement& placement) {
    std::vector<std::vector<NodeId>> of_rank(graph.start_order.size());
    for (const NodeId op : graph.sorted) of_rank[at(graph[op].rank)].push_back(op);
    KnownTiles known(graph, placement);
    for (const std::vector<NodeId>& ops : of_rank) known.drop(ops);
}

}  // namespace

Result<Placement> place(const Graph& graph, const Lowered& lowered, const Backends& backends,
                        const Costs& costs, Scope scope) {
    scope = scope.within(lowered.plan.num_ranks());
    Placement placement = Placing(graph, lowered, backends, costs).run();
    OverwriteCheck overwrites(graph, lowered.plan, placement);
    // An op writes in its own node.
    for (NodeId op = graph.first_op[at(scope.first)]; op < graph.first_op[at(scope.end)]; ++op) {
        SYNCOPATE_TRY(overwrites.check(op));
    }
    SYNCOPATE_TRY(check_collective_order(lowered.plan, graph, placement));
    drop_what_is_known(graph, placement);
    return placement;
}

std::vector<bool> completed_with(const Placement& placement, const std::vector<NodeId>& ops) {
    std::vector<bool> completed(placement.before.size(), false);
    std::vector<NodeId> open;
    const auto visit = [&](NodeId op) {
        if (!completed[op]) {
            completed[op] = true;
            open.push_back(op);
        }
    };
    for (const NodeId op : ops) visit(op);
    while (!open.empty()) {
        const NodeId op = open.back();
        open.pop_back();
        for (const NodeId other : placement.before[op]) visit(other);
    }
    return completed;
}

}  // namespace syncopate::fuse
