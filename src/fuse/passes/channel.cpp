#include "syncopate/fuse/passes/channel.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fuse/passes/circle.hpp"
#include "fuse/passes/start_order.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/check/taken_rounds.hpp"
#include "syncopate/topological_order.hpp"

namespace syncopate::fuse {
namespace {

class Ordering {
public:
    Ordering(const Lowered& lowered, Graph& graph)
        : lowered_(lowered), graph_(graph), count_(graph.num_ops()), before_(graph) {
        find_stages();
    }

    Status run() {
        one_.resize(static_cast<std::size_t>(count_));
        receive_of_.resize(static_cast<std::size_t>(count_), kNoNode);
        for (NodeId op = 0; op < count_; ++op) one_[at(op)] = op;
        for (const auto& [ref, side] : lowered_.channel) {
            if (side.sends)
                receive_of_[at(graph_.op(ref))] = graph_.op(side.other);
            else
                one_[at(graph_.op(ref))] = graph_.op(side.other);
        }
        const Followers followers(static_cast<std::size_t>(count_) + ended_.size(),
                                  [&](auto&& edge) { edges(edge, false); });
        const std::vector<NodeId> pairs = sorted(followers);
        if (pairs.size() < followers.num_nodes()) return would_wait(circle_of(followers, pairs));
        set_rounds(pairs);
        if (!set_order(true)) (void)set_order(false);
        return Done{};
    }

private:
    /// That a stage of a rank has ended: all that its tiles wait for has come. The next one begins then.
    struct Ended {
        std::vector<NodeId> ops;
        std::int32_t stage_before = -1;  ///< in ended_
    };

    void find_stages() {
        if (graph_.stages.size() < 2) return;
        stages_before_.resize(static_cast<std::size_t>(count_));
        const std::size_t ranks = graph_.start_order.size();
        for (std::size_t stage = 0; stage + 1 < graph_.stages.size(); ++stage) {
            const Graph::StageNodes& nodes = graph_.stages[stage];
            for (std::size_t rank = 0; rank < ranks; ++rank) {
                const auto before = static_cast<std::int32_t>(ended_.size() - ranks);
                Ended& ended = ended_.emplace_back();
                if (stage > 0) ended.stage_before = before;
                for (std::int32_t c = 0; c < nodes.num_classes; ++c) {
                    for (const Edge& edge : graph_.in[at(nodes.first[rank] + c)]) {
                        if (graph_.is_op(edge.from)) ended.ops.push_back(edge.from);
                    }
                }
            }
        }
        for (NodeId op = 0; op < count_; ++op) {
            std::set<std::int32_t> before;
            for (const Edge& edge : graph_.in[at(op)]) {
                if (graph_.is_op(edge.from)) continue;
                const Node& chunk = graph_[edge.from];
                if (chunk.stage > 0)
                    before.insert((chunk.stage - 1) * static_cast<std::int32_t>(ranks) + chunk.rank);
            }
            stages_before_[at(op)].assign(before.begin(), before.end());
        }
        for (const Graph::Elsewhere& made : graph_.elsewhere) {
            if (made.stage == 0) continue;
            const std::int32_t stage = (made.stage - 1) * static_cast<std::int32_t>(ranks) + made.rank;
            std::vector<std::int32_t>& before = stages_before_[at(made.op)];
            const auto place = std::ranges::lower_bound(before, stage);
            if (place == before.end() || *place != stage) before.insert(place, stage);
        }
    }

    /// In the order of lists, and first of all rounds, and ends of stages.
    [[nodiscard]] std::vector<std::int32_t> sorted(const Followers& followers) const {
        std::vector<std::int32_t> sequence(followers.num_nodes() - at(count_));
        std::iota(sequence.begin(), sequence.end(), count_);
        std::ranges::copy(in_lists(graph_), std::back_inserter(sequence));
        return topological_order_in(followers, sequence);
    }

    /// Of pairs; `by_list`: and of what else each rank starts one after another.
    template <typename EdgeFunction>
    void edges(const EdgeFunction& edge, bool by_list) const {
        const auto link = [&](NodeId from, NodeId to) {
            if (node_of(from) != node_of(to)) edge(node_of(from), node_of(to));
        };
        for (NodeId op = 0; op < count_; ++op) {
            for (const NodeId other : before_[at(op)]) link(other, op);
            for (const std::int32_t stage : stages_before(op)) edge(end_of(stage), node_of(op));
        }
        for (std::size_t stage = 0; stage < ended_.size(); ++stage) {
            const std::int32_t end = end_of(static_cast<std::int32_t>(stage));
            for (const NodeId op : ended_[stage].ops) edge(node_of(op), end);
            if (ended_[stage].stage_before >= 0) edge(end_of(ended_[stage].stage_before), end);
        }
        for (std::int32_t round = 0; round + 1 < num_rounds_; ++round)
            edge(count_ + round, count_ + round + 1);
        if (!by_list) return;
        for (const std::vector<NodeId>& order : graph_.start_order) {
            const std::vector<NodeId> list = by_round(order);
            for (std::size_t next = 1; next < list.size(); ++next) link(list[next - 1], list[next]);
        }
    }

    /// What a rank starts beside sides: in its order, but what follows an earlier round first, as it can begin sooner.
    [[nodiscard]] std::vector<NodeId> by_round(const std::vector<NodeId>& order) const {
        std::vector<NodeId> list;
        std::ranges::copy_if(order, std::back_inserter(list),
                             [&](NodeId op) { return graph_.round(op) < 0; });
        std::ranges::stable_sort(list, {}, [&](NodeId op) { return graph_.follows[at(op)]; });
        return list;
    }
    /// A pair is one node, and once rounds are known a round is.
    [[nodiscard]] std::int32_t node_of(NodeId op) const {
        const std::int32_t round = graph_.round(op);
        return round < 0 ? one_[at(op)] : count_ + round;
    }

    [[nodiscard]] std::span<const std::int32_t> stages_before(NodeId op) const {
        if (stages_before_.empty()) return {};
        return stages_before_[at(op)];
    }
    [[nodiscard]] std::int32_t end_of(std::int32_t stage) const { return count_ + num_rounds_ + stage; }

    Status would_wait(const std::vector<NodeId>& circle) const {
        std::string text;
        NodeId first = kNoNode;
        for (const NodeId node : circle) {
            if (node >= count_) {
                text += "a later stage -> ";
                continue;
            }
            if (first == kNoNode) first = node;
            text += fmt::format("{}:{} -> ", graph_[node].rank, graph_[node].index);
        }
        if (first == kNoNode) return Error{"sends between nodes wait for each other"};
        return error_at(graph_.ref(first),
                        fmt::format("no rank can send first: {}{}:{} (rank:op, what is sent between nodes "
                                    "waits, with its receive, for the next)",
                                    text, graph_[first].rank, graph_[first].index));
    }

    void set_rounds(const std::vector<NodeId>& pairs) {
        // The latest round that an op follows, or is in; and the end of a stage.
        std::vector<std::int32_t> last(static_cast<std::size_t>(count_) + ended_.size(), -1);
        const std::size_t ranks = graph_.start_order.size();
        std::vector<plan::TakenRounds> sends(ranks), receives(ranks);
        std::vector<std::int32_t> rounds(static_cast<std::size_t>(count_), -1);
        const auto after = [&](NodeId op) {
            std::int32_t round = -1;
            for (const NodeId other : before_[at(op)])
                round = std::max(round, last[at(one_[static_cast<std::size_t>(other)])]);
            for (const std::int32_t stage : stages_before(op))
                round = std::max(round, last[at(count_ + stage)]);
            return round;
        };
        for (const NodeId op : pairs) {
            if (op >= count_) {
                const Ended& ended = ended_[at(op - count_)];
                std::int32_t& round = last[at(op)];
                for (const NodeId other : ended.ops)
                    round = std::max(round, last[at(one_[static_cast<std::size_t>(other)])]);
                if (ended.stage_before >= 0) round = std::max(round, last[at(count_ + ended.stage_before)]);
                continue;
            }
            if (one_[at(op)] != op) continue;
            std::int32_t& round = last[at(op)];
            round = after(op);
            const NodeId receive = receive_of_[at(op)];
            if (receive == kNoNode) continue;
            round = 1 + std::max(round, after(receive));
            round = plan::take_first(sends[at(graph_[op].rank)], receives[at(graph_[receive].rank)], round);
            rounds[at(op)] = rounds[at(receive)] = round;
        }
        graph_.rounds = std::move(rounds);
        for (NodeId op = 0; op < count_; ++op)
            graph_.follows.push_back(last[at(one_[static_cast<std::size_t>(op)])]);
    }

    /// False where lists would block rounds.
    bool set_order(bool by_list) {
        const std::int32_t rounds = num_rounds_ = 1 + std::ranges::max(graph_.rounds);
        const Followers followers(static_cast<std::size_t>(count_ + rounds) + ended_.size(),
                                  [&](auto&& edge) { edges(edge, by_list); });
        std::vector<std::vector<NodeId>> members(static_cast<std::size_t>(rounds));
        for (const bool sends : {true, false}) {
            for (const auto& [ref, side] : lowered_.channel) {
                const NodeId op = graph_.op(ref);
                if (side.sends == sends) members[at(graph_.round(op))].push_back(op);
            }
        }
        const std::vector<std::int32_t> order = sorted(followers);
        if (order.size() < followers.num_nodes()) return false;
        graph_.sorted.clear();
        for (const std::int32_t node : order) {
            if (node >= count_ + rounds) continue;
            if (node >= count_) {
                const std::vector<NodeId>& round = members[at(node - count_)];
                graph_.sorted.insert(graph_.sorted.end(), round.begin(), round.end());
            } else if (graph_.round(node) < 0) {
                graph_.sorted.push_back(node);
            }
        }
        for (std::vector<NodeId>& list : graph_.start_order) list.clear();
        for (const NodeId op : graph_.sorted) graph_.start_order[at(graph_[op].rank)].push_back(op);
        return true;
    }

    const Lowered& lowered_;
    Graph& graph_;
    NodeId count_;
    OpsBefore before_;
    std::vector<NodeId> one_;         ///< by op: of a receive its send, else itself
    std::vector<NodeId> receive_of_;  ///< by op, of a send
    std::vector<Ended> ended_;        ///< by stage, but the last one, and rank
    /// By op that sends what stages make, each rank's its own: the ones before these, in ended_.
    std::vector<std::vector<std::int32_t>> stages_before_;
    std::int32_t num_rounds_ = 0;
};

}  // namespace

// [P40]
Status order_channel(const Lowered& lowered, Graph& graph) {
    if (lowered.channel.empty()) return Done{};
    return Ordering(lowered, graph).run();
}

}  // namespace syncopate::fuse
