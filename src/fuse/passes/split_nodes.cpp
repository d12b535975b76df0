// Splits what goes between nodes: channel.hpp declares it.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/topological_order.hpp"
#include "syncopate/try.hpp"

namespace syncopate::fuse {
namespace {

using plan::OpRef;

constexpr std::int64_t kWordElements = 4;  ///< of int32: what a channel carries at least

class Splitting {
public:
    explicit Splitting(Lowered& lowered) : lowered_(lowered), plan_(lowered.plan) {}

    Status run() {
        collect();
        if (pairs_.empty() && !crosses_after()) return Done{};
        after_.reserve(refs_.size());
        for (const OpRef ref : refs_) after_.push_back(std::move(op_of(ref).after));
        for (const OpRef ref : refs_) {
            const Sides* const sides = sides_of(ref);
            if (sides == nullptr) continue;
            const plan::Chunk src = op_of(ref).src, dst = op_of(ref).dst;
            add_pair(*sides, src, dst);
        }
        for (const std::vector<plan::Op>& list : plan_.ranks) seen_.emplace_back(list.size(), 0);
        const Followers followers(refs_.size(), [&](auto&& edge) {
            for (const OpRef ref : refs_) {
                for (const OpRef before : given_after(ref)) edge(number(before), number(ref));
            }
        });
        const std::vector<std::int32_t> order = topological_order(followers);
        // Of a plan without one: sums at places of their own may wait for what waited for them.
        if (order.size() != refs_.size())
            return Error{"ops wait for each other in a circle, once sums are ops of their own"};
        last_.resize(refs_.size());
        for (const std::int32_t op : order) {
            find_wanted(followers, op);
            set_after(refs_[at(op)], !followers(op).empty());
        }
        return Done{};
    }

private:
    struct Sides {
        OpRef send;
        OpRef receive;
    };
    /// Ops, each with its node.
    using InNodes = std::vector<std::pair<std::int32_t, OpRef>>;

    [[nodiscard]] std::int32_t node_of(std::int32_t rank) const { return plan_.mesh.node_of(rank); }
    [[nodiscard]] const plan::OpRefs& given_after(OpRef ref) const { return after_[at(number(ref))]; }
    [[nodiscard]] plan::Op& op_of(OpRef ref) { return plan_.ranks[at(ref.rank)][at(ref.index)]; }
    [[nodiscard]] std::int32_t number(OpRef ref) const { return first_[at(ref.rank)] + ref.index; }
    [[nodiscard]] const Sides* sides_of(OpRef ref) const {
        const std::int32_t pair = pair_of_[at(number(ref))];
        return pair < 0 ? nullptr : &pairs_[at(pair)];
    }

    /// All ops, and of those between nodes the place of each side in its rank's list: one keeps the op's own.
    void collect() {
        std::size_t ops = 0;
        for (const std::vector<plan::Op>& list : plan_.ranks) ops += list.size();
        refs_.reserve(ops);
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            const std::ptrdiff_t count = std::ssize(list_of(rank));
            first_.push_back(static_cast<std::int32_t>(refs_.size()));
            next_.push_back(count);
            for (std::int32_t index = 0; index < count; ++index) refs_.push_back({rank, index});
        }
        pair_of_.reserve(refs_.size());
        for (const OpRef ref : refs_) {
            const plan::Op& op = op_of(ref);
            pair_of_.push_back(-1);
            if (op.kind != plan::OpKind::push && op.kind != plan::OpKind::pull) continue;
            if (node_of(ref.rank) == node_of(op.peer)) continue;
            const OpRef other = next_of(op.peer);
            pair_of_.back() = static_cast<std::int32_t>(pairs_.size());
            pairs_.push_back(op.kind == plan::OpKind::push ? Sides{ref, other} : Sides{other, ref});
        }
    }

    [[nodiscard]] const std::vector<plan::Op>& list_of(std::int32_t rank) const {
        return plan_.ranks[at(rank)];
    }
    /// A place behind all that a rank's list has.
    OpRef next_of(std::int32_t rank) { return {rank, static_cast<std::int32_t>(next_[at(rank)]++)}; }

    /// Whether an op is after one of another node.
    [[nodiscard]] bool crosses_after() const {
        return std::ranges::any_of(refs_, [&](OpRef ref) {
            const plan::Op& op = plan_.op(ref);
            return op.kind != plan::OpKind::collective && std::ranges::any_of(op.after, [&](OpRef before) {
                       return node_of(before.rank) != node_of(ref.rank);
                   });
        });
    }

    void add_pair(const Sides& sides, const plan::Chunk& src, const plan::Chunk& dst) {
        for (const OpRef side : {sides.send, sides.receive}) {
            auto& list = plan_.ranks[at(side.rank)];
            if (std::ssize(list) <= side.index) list.resize(static_cast<std::size_t>(side.index) + 1);
            plan::Op& op = op_of(side);
            op = plan::Op{};
            op.kind = plan::OpKind::local;
        }
        op_of(sides.send).src = src;
        op_of(sides.receive).dst = dst;
        op_of(sides.receive).after = {sides.send};
        lowered_.channel[sides.send] = {true, sides.receive, dst};
        lowered_.channel[sides.receive] = {false, sides.send, src};
    }

    /// Whether the op, or a side of it, is in `node`.
    [[nodiscard]] bool is_in(OpRef ref, std::int32_t node) const {
        const Sides* sides = sides_of(ref);
        if (sides == nullptr) return node_of(ref.rank) == node;
        return node_of(sides->send.rank) == node || node_of(sides->receive.rank) == node;
    }

    /// Of each node, the ops there after which all is complete that the op's `after` are, or come after by way of
    /// whatever nodes: of one that has a part there that part.
    [[nodiscard]] const InNodes& last_before(OpRef ref) {
        InNodes& all = met_;
        all.clear();
        ++search_;
        const auto add = [&](std::int32_t node, OpRef op) {
            if (std::exchange(seen_[at(op.rank)][at(op.index)], search_) != search_)
                all.emplace_back(node, op);
        };
        for (const OpRef before : given_after(ref)) {
            const Sides* const sides = sides_of(before);
            add(node_of(sides != nullptr ? sides->send.rank : before.rank),
                sides != nullptr ? sides->send : before);
            if (sides != nullptr) add(node_of(sides->receive.rank), sides->receive);
            for (const auto& [node, op] : last_[at(number(before))]) add(node, op);
        }
        return all;
    }

    /// In which nodes it matters what is before the op: where those that follow it are, if none follows these.
    void find_wanted(const Followers& followers, std::int32_t op) {
        wanted_.clear();
        all_wanted_ = false;
        for (const std::int32_t next : followers(op)) {
            all_wanted_ = all_wanted_ || !followers(next).empty();
            const Sides* const sides = sides_of(refs_[at(next)]);
            const OpRef first = sides != nullptr ? sides->send : refs_[at(next)];
            for (const OpRef part : {first, sides != nullptr ? sides->receive : first}) {
                if (std::ranges::find(wanted_, node_of(part.rank)) == wanted_.end())
                    wanted_.push_back(node_of(part.rank));
            }
            if (all_wanted_) return;
        }
    }
    [[nodiscard]] bool is_wanted(std::int32_t node) const {
        return all_wanted_ || std::ranges::find(wanted_, node) != wanted_.end();
    }

    /// Whether the op, which is no side, is after one op of its node at most, and through that after none of another: most are.
    [[nodiscard]] bool stays(OpRef ref) const {
        const plan::OpRefs& after = given_after(ref);
        if (after.empty()) return true;
        const OpRef before = after.front();
        return after.size() == 1 && sides_of(before) == nullptr &&
               node_of(before.rank) == node_of(ref.rank) && last_[at(number(before))].empty();
    }

    /// Each op, or side, awaits all that it comes after in its own node; a word tells of what has no part there
    /// that would. `is_followed`: some op is after it.
    void set_after(OpRef ref, bool is_followed) {
        const Sides* const sides = sides_of(ref);
        if (sides == nullptr && stays(ref)) {
            op_of(ref).after = std::move(after_[at(number(ref))]);
            return;
        }
        const OpRef first = sides != nullptr ? sides->send : ref;
        plan::OpRefs after, received;
        InNodes& last = last_[at(number(ref))];
        if (sides != nullptr) received.push_back(sides->send);
        for (const auto& [node, op] : last_before(ref)) {
            if (node == node_of(first.rank))
                after.push_back(op);
            else if (sides != nullptr && node == node_of(sides->receive.rank))
                received.push_back(op);
            else if (is_followed && is_wanted(node))
                last.emplace_back(node, op);
        }
        for (const OpRef before : given_after(ref)) {
            if (is_in(before, node_of(first.rank))) continue;
            // A receive need not be told what its send is, nor a send what its receive awaits.
            if (sides != nullptr && is_in(before, node_of(sides->receive.rank))) continue;
            // A library meets over nodes, and its ranks are told.
            const bool meets = op_of(ref).kind == plan::OpKind::collective && sides_of(before) == nullptr;
            after.push_back(meets ? before : told(before, first.rank));
        }
        op_of(first).after = std::move(after);
        if (sides != nullptr) op_of(sides->receive).after = std::move(received);
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
        const OpRef send = next_of(seen.rank);
        const Sides sides{send, next_of(rank)};
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
    std::vector<OpRef> refs_;                       ///< all ops of the given plan
    std::vector<plan::OpRefs> after_;               ///< by op: what the given plan has it come after
    std::vector<std::vector<std::uint32_t>> seen_;  ///< by rank and index: the last search that met it
    std::uint32_t search_ = 0;
    InNodes met_;                       ///< in that search
    std::vector<std::int32_t> wanted_;  ///< nodes
    bool all_wanted_ = true;
    std::vector<std::int32_t> first_;    ///< by rank: its first op in refs_
    std::vector<std::int32_t> pair_of_;  ///< by op: in pairs_; -1
    std::vector<Sides> pairs_;
    std::vector<std::ptrdiff_t> next_;  ///< by rank: where its list goes on
    std::vector<InNodes> last_;         ///< by op that others are after: in nodes without a part of it
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
            plan::Tensor tensor = plan.tensors[at(chunk.tensor)];
            tensor.name += ".channel";
            while (plan.find_tensor(tensor.name)) tensor.name += "'";
            plan.tensors.push_back(std::move(tensor));
        }
        return plan::Chunk{found->second, chunk.region};
    };
    for (const auto& [ref, side] : lowered.channel) {
        plan::Op& op = plan.ranks[at(ref.rank)][at(ref.index)];
        (side.sends ? op.dst : op.src) = of(side.sends ? op.src : op.dst);
    }
}

}  // namespace

// [P39, P41]
Status split_between_nodes(Lowered& lowered) {
    if (lowered.plan.mesh.num_nodes() > 1) {
        SYNCOPATE_TRY(Splitting(lowered).run());
    }
    lowered.num_tensors = lowered.plan.tensors.size();
    add_carried(lowered);
    return Done{};
}

}  // namespace syncopate::fuse
