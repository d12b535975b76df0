#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "plan/check/check_passes.hpp"
#include "plan/model/box_index.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/model/ragged.hpp"

namespace syncopate::plan {
namespace {

/// Judges ops and holdings one at a time; `rank` and `op` name the one being judged.
class Judge {
public:
    explicit Judge(const Plan& plan) : plan_(plan) {}

    std::vector<Finding> take() { return std::move(findings_); }

    void judge_op(std::int32_t rank, std::int32_t index, const Op& op) {
        rank_ = rank;
        op_ = index;
        const bool source = judge_chunk("src", op.src);
        const bool target = judge_chunk("dst", op.dst);
        if (op.kind == OpKind::push || op.kind == OpKind::pull) judge_peer(op);
        if (op.kind == OpKind::collective) judge_participants(op);
        for (const OpRef ref : op.after) judge_after(ref);
        judge_backend(op);
        if (source && target) judge_fit(op);
    }

    void judge_holding(std::string_view list, std::size_t index, const Holding& holding, bool is_final) {
        op_ = -1;
        const bool known = is_rank(holding.rank);
        rank_ = known ? holding.rank : -1;
        const std::string where = fmt::format("{}[{}]", list, index);
        if (!known)
            add("{}.rank is {}; the plan has ranks 0 to {}", where, holding.rank, plan_.num_ranks() - 1);
        judge_chunk(where, holding.chunk);
        if (is_final && holding.partial)
            add("{} has \"partial\", which only initial and produced may have", where);
        if (!is_final && (holding.of_all || !holding.of.empty()))
            add("{} has \"of\", which only final may have", where);
        if (holding.of_all && !holding.of.empty())
            add("{} asks for \"of\" all and for a list; choose one", where);
        judge_rank_list(where + ".of", holding.of);
    }

private:
    template <typename... Args>
    void add(fmt::format_string<Args...> format, Args&&... args) {
        findings_.push_back(
            {Finding::Kind::malformed, rank_, op_, fmt::format(format, std::forward<Args>(args)...)});
    }

    bool is_rank(std::int32_t rank) const { return rank >= 0 && rank < plan_.num_ranks(); }

    bool judge_chunk(std::string_view what, const Chunk& chunk) {
        if (chunk.tensor < 0 || static_cast<std::size_t>(chunk.tensor) >= plan_.tensors.size()) {
            add("{} names tensor number {}; the plan has {}", what, chunk.tensor, plan_.tensors.size());
            return false;
        }
        const Tensor& tensor = plan_.tensors[at(chunk.tensor)];
        if (chunk.region.size() != tensor.shape.size()) {
            add("{} region {} has {} axes; tensor {} has {}", what, to_string(chunk.region),
                chunk.region.size(), tensor.name, tensor.shape.size());
            return false;
        }
        for (std::size_t axis = 0; axis < chunk.region.size(); ++axis) {
            const Interval& range = chunk.region[axis];
            if (range.begin < 0 || range.end > tensor.shape[axis]) {
                add("{} region {} leaves tensor {}: axis {} goes from 0 to {}", what, to_string(chunk.region),
                    tensor.name, axis, tensor.shape[axis]);
                return false;
            }
            if (range.empty()) {
                add("{} region {} is empty along axis {}; its begin must be below its end", what,
                    to_string(chunk.region), axis);
                return false;
            }
        }
        return true;
    }

    void judge_peer(const Op& op) {
        if (!is_rank(op.peer)) {
            add("peer is {}; the plan has ranks 0 to {}", op.peer, plan_.num_ranks() - 1);
        } else if (op.peer == rank_) {
            add("a {} whose peer is its own rank; use a local op", name_of(op.kind));
        }
    }

    void judge_participants(const Op& op) {
        if (std::ranges::find(*op.ranks, rank_) == op.ranks->end()) {
            add("a collective on rank {} whose ranks do not include it", rank_);
        }
        judge_rank_list("ranks", *op.ranks);
    }

    void judge_rank_list(std::string_view what, const std::vector<std::int32_t>& ranks) {
        std::unordered_set<std::int32_t> seen;
        for (const std::int32_t rank : ranks) {
            if (!is_rank(rank))
                add("{} names rank {}; the plan has ranks 0 to {}", what, rank, plan_.num_ranks() - 1);
            if (!seen.insert(rank).second) add("{} names rank {} twice", what, rank);
        }
    }

    void judge_after(OpRef ref) {
        if (!is_rank(ref.rank)) {
            add("after names rank {}; the plan has ranks 0 to {}", ref.rank, plan_.num_ranks() - 1);
            return;
        }
        const std::size_t ops = plan_.ranks[at(ref.rank)].size();
        if (ref.index < 0 || static_cast<std::size_t>(ref.index) >= ops) {
            add("after names op {} of rank {}, which has {}", ref.index, ref.rank, ops);
        }
    }

    /// Only what no machine could do: which backend reaches which peer of a node is known to fuse, not to a plan.
    /// Any backend may bring a contribution to a reduction: fuse stages it, and sums.
    void judge_backend(const Op& op) {
        const bool moves = (op.kind == OpKind::push || op.kind == OpKind::pull) && is_rank(op.peer);
        const std::int32_t from = moves ? plan_.mesh.node_of(op.source_rank(rank_)) : 0;
        const std::int32_t to = moves ? plan_.mesh.node_of(op.destination_rank(rank_)) : 0;
        if (from != to && op.backend != Backend::automatic && op.backend != Backend::channel) {
            add("goes from node {} to node {}, and {} reaches only what ranks of one node map: use channel "
                "or auto",
                from, to, name_of(op.backend));
        }
        if (from == to && op.backend == Backend::channel && (moves || op.kind == OpKind::local))
            add("channel carries what goes from node to node, this op stays within one: use auto");
        if (op.kind == OpKind::collective && op.backend != Backend::automatic &&
            op.backend != Backend::nccl && op.backend != Backend::host) {
            add("backend {} moves between two ranks and cannot run a collective; use nccl, host or auto",
                name_of(op.backend));
        }
        if (op.kind == OpKind::local && op.backend == Backend::nccl) {
            add("backend nccl cannot reach a rank's own memory for a local op; use copy_engine or auto");
        }
    }

    /// Sizes and dtypes of source and destination. Collectives change sizes: layout_of judges them.
    void judge_fit(const Op& op) {
        const Tensor& source = plan_.tensors[at(op.src.tensor)];
        const Tensor& target = plan_.tensors[at(op.dst.tensor)];
        if (source.dtype != target.dtype) {
            add("src is {} and dst is {}; a transfer does not convert", name_of(source.dtype),
                name_of(target.dtype));
        }
        if (source.ragged || target.ragged) judge_groups(op, source, target);
        if (op.kind == OpKind::collective) return;
        const auto same_size = [](const Interval& a, const Interval& b) { return a.size() == b.size(); };
        if (!std::equal(op.src.region.begin(), op.src.region.end(), op.dst.region.begin(),
                        op.dst.region.end(), same_size)) {
            add("src {} and dst {} differ in size; each axis must have the same extent",
                to_string(plan_, op.src), to_string(plan_, op.dst));
        } else if (op.kind == OpKind::local && op.src.tensor == op.dst.tensor &&
                   overlaps(op.src.region, op.dst.region)) {
            add("src {} and dst {} overlap in one memory", to_string(plan_, op.src),
                to_string(plan_, op.dst));
        }
    }

    /// Only a call knows how many rows a group has, so a group can go nowhere but to itself.
    void judge_groups(const Op& op, const Tensor& source, const Tensor& target) {
        if (op.kind == OpKind::collective || op.reduce != Reduce::none) {
            add("{} moves groups of rows: only a push, a pull or a local copy that does not reduce does",
                op.kind == OpKind::collective ? name_of(op.collective) : name_of(op.reduce));
            return;
        }
        if (!source.ragged || !target.ragged || source.ragged->axis != target.ragged->axis ||
            source.ragged->groups != target.ragged->groups) {
            add("src {} and dst {} are not grouped alike: how many rows they have may differ",
                to_string(plan_, op.src), to_string(plan_, op.dst));
            return;
        }
        if (target.ragged->bound < source.ragged->bound) {
            add("dst {} has at most {} rows and src up to {}", to_string(plan_, op.dst), target.ragged->bound,
                source.ragged->bound);
        }
        const auto first = static_cast<std::size_t>(source.ragged->axis);
        for (std::size_t axis = first; axis < first + source.ragged->groups.size(); ++axis) {
            if (op.src.region[axis] == op.dst.region[axis]) continue;
            add("src {} and dst {} are different groups: how many rows they have may differ",
                to_string(plan_, op.src), to_string(plan_, op.dst));
            return;
        }
    }

    const Plan& plan_;
    std::int32_t rank_ = -1;
    std::int32_t op_ = -1;
    std::vector<Finding> findings_;
};

/// Entries of one list must not say of an element both that a rank holds its value and that it holds a
/// contribution.
void check_holdings(const Plan& plan, std::string_view list, const std::vector<Holding>& holdings,
                    Budget& budget, const std::vector<std::size_t>& axes, std::vector<Finding>& findings) {
    struct Both {  // of one rank and tensor
        BoxIndex<std::size_t> values;
        BoxIndex<std::size_t> partials;
    };
    std::unordered_map<std::int64_t, Both> seen;
    for (std::size_t i = 0; i < holdings.size() && !budget.exhausted(); ++i) {
        const Holding& holding = holdings[i];
        const Chunk& chunk = holding.chunk;
        const std::int64_t key = holding.rank * static_cast<std::int64_t>(axes.size()) + chunk.tensor;
        const std::size_t axis = axes[at(chunk.tensor)];
        auto& [values, partials] = seen.try_emplace(key, Both{BoxIndex<std::size_t>(axis, budget),
                                                              BoxIndex<std::size_t>(axis, budget)})
                                       .first->second;
        (holding.partial ? values : partials).visit_overlapping(chunk.region, [&](const auto& other) {
            findings.push_back(
                {Finding::Kind::malformed, holding.rank, -1,
                 fmt::format("{0}[{1}] says {2} of {3}, and {0}[{4}] says {5} of {6}: they overlap", list, i,
                             holding.partial ? "partial" : "the value", to_string(plan, chunk), other.value,
                             holding.partial ? "the value" : "partial",
                             to_string(plan, {chunk.tensor, other.box}))});
            return false;
        });
        (holding.partial ? partials : values).insert(chunk.region, i);
    }
}

}  // namespace

std::vector<Finding> check_outline(const Plan& plan) {
    std::vector<Finding> findings;
    const auto add = [&](std::string message) {
        findings.push_back({Finding::Kind::malformed, -1, -1, std::move(message)});
    };
    const std::int32_t mesh_ranks = plan.mesh.num_ranks();
    if (mesh_ranks < 1 || mesh_ranks > kMaxRanks) {
        add(fmt::format("the mesh has {} ranks; expected 1 to {}", mesh_ranks, kMaxRanks));
    }
    if (plan.ranks.size() != static_cast<std::size_t>(mesh_ranks)) {
        add(fmt::format("the plan lists {} ranks and its mesh has {}", plan.ranks.size(), mesh_ranks));
    }
    std::size_t ops = 0;
    for (const std::vector<Op>& list : plan.ranks) ops += list.size();
    if (ops > static_cast<std::size_t>(kMaxOps))
        add(fmt::format("the plan has {} ops; at most {} are allowed", ops, kMaxOps));

    std::unordered_set<std::string_view> names;
    for (const Tensor& tensor : plan.tensors) {
        if (!names.insert(tensor.name).second) add(fmt::format("two tensors are called {}", tensor.name));
        if (tensor.shape.empty() || tensor.shape.size() > static_cast<std::size_t>(kMaxAxes)) {
            add(fmt::format("tensor {} has {} axes; expected 1 to {}", tensor.name, tensor.shape.size(),
                            kMaxAxes));
        }
        if (const std::string why = ragged_objection(tensor); !why.empty())
            add(fmt::format("tensor {}: {}", tensor.name, why));
        auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
        for (const std::int64_t size : tensor.shape) {
            if (size < 1 || __builtin_mul_overflow(bytes, size, &bytes)) {
                add(fmt::format(
                    "tensor {} has an axis of size {}; sizes must be at least 1 and the bytes fit 64 bits",
                    tensor.name, size));
                break;
            }
        }
    }
    return findings;
}

std::vector<Finding> check_malformed(const Plan& plan, const CollectiveMatch& collectives, Budget& budget) {
    Judge judge(plan);
    for (std::size_t i = 0; i < plan.initial.size(); ++i)
        judge.judge_holding("initial", i, plan.initial[i], false);
    for (std::size_t i = 0; i < plan.produced.size(); ++i)
        judge.judge_holding("produced", i, plan.produced[i], false);
    for (std::size_t i = 0; i < plan.final.size(); ++i) judge.judge_holding("final", i, plan.final[i], true);
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const std::vector<Op>& ops = plan.ranks[at(rank)];
        for (std::size_t i = 0; i < ops.size(); ++i)
            judge.judge_op(rank, static_cast<std::int32_t>(i), ops[i]);
    }
    std::vector<Finding> findings = judge.take();
    const bool sound = findings.empty();
    findings.insert(findings.end(), collectives.unmatched.begin(), collectives.unmatched.end());
    if (!sound) return findings;  // what follows needs regions that fit their tensors
    const std::vector<std::size_t> axes = key_axes(plan);
    check_holdings(plan, "initial", plan.initial, budget, axes, findings);
    check_holdings(plan, "produced", plan.produced, budget, axes, findings);
    for (const CollectiveGroup& group : collectives.groups) {
        const Result<CollectiveLayout> layout = layout_of(plan, group);
        if (layout) continue;
        const Error& error = layout.error();
        const OpRef first = group.front();
        findings.push_back({Finding::Kind::malformed,
                            error.location.rank < 0 ? first.rank : error.location.rank,
                            error.location.op < 0 ? first.index : error.location.op, error.message});
    }
    return findings;
}

}  // namespace syncopate::plan
