// Splits what goes between nodes: channel.hpp declares it.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/topological_order.hpp"

namespace syncopate::fuse {
namespace {

using plan::OpRef;

constexpr std::int64_t kWordElements = 4;  ///< of int32: what a channel carries at least

class Splitting {
public:
    explicit Splitting(Lowered& lowered) : lowered_(lowered), plan_(lowered.plan), given_(lowered.plan) {}

    Status run() {
        if (Status status = collect(); !status) return status;
        if (sides_.empty() && !crosses_after()) return Done{};
        words_ = static_cast<std::int32_t>(plan_.tensors.size());
        for (const auto& [ref, sides] : sides_) replace(ref, sides);
        for (const OpRef ref : in_order()) set_after(ref);
        return Done{};
    }

private:
    struct Sides {
        OpRef send;
        OpRef receive;
    };

    [[nodiscard]] std::int32_t node_of(std::int32_t rank) const { return plan_.mesh.node_of(rank); }
    [[nodiscard]] plan::Op& op_of(OpRef ref) {
        return plan_.ranks[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
    }
    [[nodiscard]] const Sides* sides_of(OpRef ref) const {
        const auto found = sides_.find(ref);
        return found == sides_.end() ? nullptr : &found->second;
    }

    /// The ops between nodes, with the place of each side in its rank's list: one keeps the op's own.
    Status collect() {
        for (std::int32_t rank = 0; rank < given_.num_ranks(); ++rank)
            next_.push_back(std::ssize(list_of(rank)));
        for (std::int32_t rank = 0; rank < given_.num_ranks(); ++rank) {
            for (std::int32_t index = 0; index < std::ssize(list_of(rank)); ++index) {
                const OpRef ref{rank, index};
                const plan::Op& op = given_.op(ref);
                if (op.kind != plan::OpKind::push && op.kind != plan::OpKind::pull) continue;
                if (node_of(rank) == node_of(op.peer)) continue;
                if (op.backend != plan::Backend::automatic && op.backend != plan::Backend::channel)
                    return plan::error_at(
                        ref, "it goes from node " + std::to_string(node_of(op.source_rank(rank))) +
                                 " to node " + std::to_string(node_of(op.destination_rank(rank))) + ", and " +
                                 std::string(plan::name_of(op.backend)) +
                                 " reaches only what ranks of one node map: use \"channel\" or \"auto\"");
                const OpRef other{op.peer,
                                  static_cast<std::int32_t>(next_[static_cast<std::size_t>(op.peer)]++)};
                sides_[ref] = op.kind == plan::OpKind::push ? Sides{ref, other} : Sides{other, ref};
            }
        }
        return Done{};
    }

    [[nodiscard]] const std::vector<plan::Op>& list_of(std::int32_t rank) const {
        return given_.ranks[static_cast<std::size_t>(rank)];
    }

    /// Whether an op is after one of another node.
    [[nodiscard]] bool crosses_after() const {
        for (std::int32_t rank = 0; rank < given_.num_ranks(); ++rank) {
            for (const plan::Op& op : list_of(rank)) {
                for (const OpRef before : op.after)
                    if (op.kind != plan::OpKind::collective && node_of(before.rank) != node_of(rank))
                        return true;
            }
        }
        return false;
    }

    void replace(OpRef ref, const Sides& sides) {
        const plan::Op op = given_.op(ref);
        add_pair(sides, op.src, op.dst);
    }

    void add_pair(const Sides& sides, const plan::Chunk& src, const plan::Chunk& dst) {
        for (const OpRef side : {sides.send, sides.receive}) {
            auto& list = plan_.ranks[static_cast<std::size_t>(side.rank)];
            if (std::ssize(list) <= side.index) list.resize(static_cast<std::size_t>(side.index) + 1);
            plan::Op& op = op_of(side);
            op = plan::Op{};
            op.kind = plan::OpKind::local;
            op.backend = plan::Backend::channel;
        }
        op_of(sides.send).src = src;
        op_of(sides.receive).dst = dst;
        op_of(sides.receive).after = {sides.send};
        lowered_.channel[sides.send] = {true, sides.receive, dst};
        lowered_.channel[sides.receive] = {false, sides.send, src};
    }

    /// All ops of the given plan, each behind those that it is after.
    [[nodiscard]] std::vector<OpRef> in_order() const {
        std::vector<OpRef> ops;
        std::vector<std::int32_t> first{0};
        for (std::int32_t rank = 0; rank < given_.num_ranks(); ++rank) {
            for (std::int32_t index = 0; index < std::ssize(list_of(rank)); ++index)
                ops.push_back({rank, index});
            first.push_back(static_cast<std::int32_t>(ops.size()));
        }
        const auto number = [&](OpRef ref) { return first[static_cast<std::size_t>(ref.rank)] + ref.index; };
        const Followers followers(ops.size(), [&](auto&& edge) {
            for (const OpRef ref : ops) {
                for (const OpRef before : given_.op(ref).after) edge(number(before), number(ref));
            }
        });
        std::vector<OpRef> sorted;
        for (const std::int32_t op : topological_order(followers))
            sorted.push_back(ops[static_cast<std::size_t>(op)]);
        return sorted;
    }

    /// The op by which ranks of `node` see that `ref` is complete; nullopt: they do not.
    [[nodiscard]] std::optional<OpRef> seen_at(OpRef ref, std::int32_t node) const {
        const Sides* sides = sides_of(ref);
        if (sides == nullptr) return node_of(ref.rank) == node ? std::optional(ref) : std::nullopt;
        if (node_of(sides->send.rank) == node) return sides->send;
        if (node_of(sides->receive.rank) == node) return sides->receive;
        return std::nullopt;
    }

    void set_after(OpRef ref) {
        const plan::Op& given = given_.op(ref);
        const Sides* sides = sides_of(ref);
        if (sides != nullptr) return set_after_both(ref, *sides);
        if (given.kind == plan::OpKind::collective)
            return;  // a library meets over nodes, and its ranks are told
        std::vector<OpRef> after;
        for (const OpRef before : given.after) {
            const auto seen = seen_at(before, node_of(ref.rank));
            const Sides* crossed = sides_of(before);
            const bool all =
                seen && !(crossed != nullptr && *seen == crossed->send && late_.contains(before));
            after.push_back(all ? *seen : told(before, ref.rank));
        }
        op_of(ref).after = std::move(after);
    }

    /// A receive need not be told what its send is. What only it awaits, nobody at the send's node knows of: who
    /// is after this op there is told (`late_`).
    void set_after_both(OpRef ref, const Sides& sides) {
        const std::int32_t from = node_of(sides.send.rank);
        const std::int32_t to = node_of(sides.receive.rank);
        std::vector<OpRef> send, receive{sides.send};
        for (const OpRef before : given_.op(ref).after) {
            const auto near = seen_at(before, from);
            const auto far = seen_at(before, to);
            const Sides* crossed = sides_of(before);
            const bool half = near && crossed != nullptr && *near == crossed->send && late_.contains(before);
            if (far) receive.push_back(*far);
            if (near) send.push_back(*near);
            if ((half || !near) && far) late_[ref] = true;
            if ((half || !near) && !far) send.push_back(told(before, sides.send.rank));
        }
        op_of(sides.send).after = std::move(send);
        op_of(sides.receive).after = std::move(receive);
    }

    /// The receive, in the node of `rank`, of a word that is sent once `ref` is complete.
    OpRef told(OpRef ref, std::int32_t rank) {
        const auto [found, is_new] = told_.try_emplace({ref, node_of(rank)});
        if (!is_new) return found->second;
        const Sides* crossed = sides_of(ref);
        const OpRef seen = crossed != nullptr ? crossed->receive : ref;
        if (!has_words_) plan_.tensors.push_back({words_name(), {kWordElements}, plan::DType::int32});
        has_words_ = true;
        const Sides sides{
            {seen.rank, static_cast<std::int32_t>(next_[static_cast<std::size_t>(seen.rank)]++)},
            {rank, static_cast<std::int32_t>(next_[static_cast<std::size_t>(rank)]++)}};
        const plan::Chunk word{words_, {{0, kWordElements}}};
        add_pair(sides, word, word);
        op_of(sides.send).after = {seen};
        return found->second = sides.receive;
    }

    [[nodiscard]] std::string words_name() const {
        std::string name = "words.channel";
        while (plan_.find_tensor(name)) name += "'";
        return name;
    }

    Lowered& lowered_;
    plan::Plan& plan_;
    const plan::Plan given_;
    std::map<OpRef, Sides> sides_;      ///< by op of the given plan
    std::vector<std::ptrdiff_t> next_;  ///< by rank: where its list goes on
    std::map<OpRef, bool> late_;
    std::map<std::pair<OpRef, std::int32_t>, OpRef> told_;  ///< by op and node
    std::int32_t words_ = 0;
    bool has_words_ = false;
};

/// The channel's own tensors, behind those in memory.
void add_carried(Lowered& lowered) {
    plan::Plan& plan = lowered.plan;
    std::map<std::int32_t, std::int32_t> carried;
    const auto of = [&](const plan::Chunk& chunk) {
        const auto [found, is_new] =
            carried.try_emplace(chunk.tensor, static_cast<std::int32_t>(plan.tensors.size()));
        if (is_new) {
            plan::Tensor tensor = plan.tensors[static_cast<std::size_t>(chunk.tensor)];
            tensor.name += ".channel";
            while (plan.find_tensor(tensor.name)) tensor.name += "'";
            plan.tensors.push_back(std::move(tensor));
        }
        return plan::Chunk{found->second, chunk.region};
    };
    for (const auto& [ref, side] : lowered.channel) {
        plan::Op& op = plan.ranks[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
        (side.sends ? op.dst : op.src) = of(side.sends ? op.src : op.dst);
    }
}

}  // namespace

// [P39, P41]
Status split_between_nodes(Lowered& lowered) {
    for (std::int32_t rank = 0; rank < lowered.plan.num_ranks(); ++rank) {
        for (const plan::Op& op : lowered.plan.ranks[static_cast<std::size_t>(rank)]) {
            if (op.backend != plan::Backend::channel) continue;
            const plan::Mesh& mesh = lowered.plan.mesh;
            const bool crosses = op.kind != plan::OpKind::local && op.kind != plan::OpKind::collective &&
                                 mesh.node_of(rank) != mesh.node_of(op.peer);
            if (crosses) continue;
            const auto& list = lowered.plan.ranks[static_cast<std::size_t>(rank)];
            return plan::error_at(
                {rank, static_cast<std::int32_t>(&op - list.data())},
                "channel carries what goes from node to node, this op stays within one: use "
                "\"auto\"");
        }
    }
    if (lowered.plan.mesh.num_nodes() > 1) {
        if (Status status = Splitting(lowered).run(); !status) return status;
    }
    lowered.num_tensors = lowered.plan.tensors.size();
    add_carried(lowered);
    return Done{};
}

}  // namespace syncopate::fuse
