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

    void run() {
        collect();
        if (sides_.empty() && !crosses_after()) return;
        for (const auto& [ref, sides] : sides_) add_pair(sides, given_.op(ref).src, given_.op(ref).dst);
        for (const OpRef ref : in_order()) set_after(ref);
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
    void collect() {
        for (std::int32_t rank = 0; rank < given_.num_ranks(); ++rank)
            next_.push_back(std::ssize(list_of(rank)));
        for (std::int32_t rank = 0; rank < given_.num_ranks(); ++rank) {
            for (std::int32_t index = 0; index < std::ssize(list_of(rank)); ++index) {
                const OpRef ref{rank, index};
                const plan::Op& op = given_.op(ref);
                if (op.kind != plan::OpKind::push && op.kind != plan::OpKind::pull) continue;
                if (node_of(rank) == node_of(op.peer)) continue;
                const OpRef other{op.peer,
                                  static_cast<std::int32_t>(next_[static_cast<std::size_t>(op.peer)]++)};
                sides_[ref] = op.kind == plan::OpKind::push ? Sides{ref, other} : Sides{other, ref};
            }
        }
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

    /// What of `ref` is in `node`: the op, or the side that is there.
    [[nodiscard]] std::optional<OpRef> part_in(OpRef ref, std::int32_t node) const {
        const Sides* sides = sides_of(ref);
        if (sides == nullptr) return node_of(ref.rank) == node ? std::optional(ref) : std::nullopt;
        if (node_of(sides->send.rank) == node) return sides->send;
        if (node_of(sides->receive.rank) == node) return sides->receive;
        return std::nullopt;
    }

    /// Ops in `node` after which all is complete there that `ref` is, or comes after by way of whatever nodes.
    [[nodiscard]] std::vector<OpRef> last_in(OpRef ref, std::int32_t node) const {
        if (const auto part = part_in(ref, node)) return {*part};
        const auto found = last_.find({ref, node});
        return found == last_.end() ? std::vector<OpRef>{} : found->second;
    }
    [[nodiscard]] std::vector<OpRef> last_before(OpRef ref, std::int32_t node) const {
        std::vector<OpRef> last;
        for (const OpRef before : given_.op(ref).after) {
            for (const OpRef op : last_in(before, node))
                if (std::ranges::find(last, op) == last.end()) last.push_back(op);
        }
        return last;
    }

    /// Each op, or side, awaits all that it comes after in its own node; a word tells of what has no part there
    /// that would.
    void set_after(OpRef ref) {
        const plan::Op& given = given_.op(ref);
        for (std::int32_t node = 0; node < given_.mesh.num_nodes(); ++node) {
            if (part_in(ref, node)) continue;
            if (std::vector<OpRef> last = last_before(ref, node); !last.empty())
                last_[{ref, node}] = std::move(last);
        }
        const Sides* const sides = sides_of(ref);
        const OpRef first = sides != nullptr ? sides->send : ref;
        std::vector<OpRef> after = last_before(ref, node_of(first.rank));
        for (const OpRef before : given.after) {
            if (part_in(before, node_of(first.rank))) continue;
            // A receive need not be told what its send is, nor a send what its receive awaits.
            if (sides != nullptr && part_in(before, node_of(sides->receive.rank))) continue;
            // A library meets over nodes, and its ranks are told.
            const bool meets = given.kind == plan::OpKind::collective && sides_of(before) == nullptr;
            after.push_back(meets ? before : told(before, first.rank));
        }
        op_of(first).after = std::move(after);
        if (sides == nullptr) return;
        std::vector<OpRef> received = last_before(ref, node_of(sides->receive.rank));
        received.insert(received.begin(), sides->send);
        op_of(sides->receive).after = std::move(received);
    }

    /// The receive, in the node of `rank`, of a word that is sent once `ref` is complete.
    OpRef told(OpRef ref, std::int32_t rank) {
        const auto [found, is_new] = told_.try_emplace({ref, node_of(rank)});
        if (!is_new) return found->second;
        const Sides* crossed = sides_of(ref);
        const OpRef seen = crossed != nullptr ? crossed->receive : ref;
        if (!words_) {
            words_ = static_cast<std::int32_t>(plan_.tensors.size());
            plan_.tensors.push_back({words_name(), {kWordElements}, plan::DType::int32});
        }
        const Sides sides{
            {seen.rank, static_cast<std::int32_t>(next_[static_cast<std::size_t>(seen.rank)]++)},
            {rank, static_cast<std::int32_t>(next_[static_cast<std::size_t>(rank)]++)}};
        const plan::Chunk word{*words_, {{0, kWordElements}}};
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
    std::map<std::pair<OpRef, std::int32_t>, std::vector<OpRef>>
        last_;                                              ///< by op and node without a part of it
    std::map<std::pair<OpRef, std::int32_t>, OpRef> told_;  ///< by op and node
    std::optional<std::int32_t> words_;                     ///< the tensor
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
void split_between_nodes(Lowered& lowered) {
    if (lowered.plan.mesh.num_nodes() > 1) Splitting(lowered).run();
    lowered.num_tensors = lowered.plan.tensors.size();
    add_carried(lowered);
}

}  // namespace syncopate::fuse
