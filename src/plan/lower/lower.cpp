#include "syncopate/plan/lower/lower.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plan/check/event_graph.hpp"
#include "plan/lower/lower_collective.hpp"
#include "plan/model/data_order.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

constexpr std::int32_t kNone = -1;

using Refs = std::vector<OpRef>;

/// One value for each op of a plan.
template <typename T>
using PerOp = std::vector<std::vector<T>>;

template <typename T>
T& at(PerOp<T>& values, OpRef ref) {
    return values[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
}

/// Runs through the plan in an order that `after` allows, writes it down as a program with transfers in the
/// place of collectives, and puts edges and lists right afterwards.
class Lowerer {
public:
    Lowerer(const Plan& plan, const LowerOptions& options)
        : plan_(plan), options_(options), builder_(plan.mesh, options.pull), ends_(plan.ranks.size()) {
        for (const Tensor& tensor : plan.tensors) builder_.tensor(tensor);
        for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
            ends_[rank].resize(plan.ranks[rank].size());
    }

    Result<Plan> lower(const EventGraph& graph) {
        for (const std::int32_t event : program_order(graph)) {
            const auto members = graph.members(event);
            const Op& op = plan_.op(members.front());
            if (op.kind != OpKind::collective) {
                copy(members.front());
                continue;
            }
            const CollectiveGroup group(members.begin(), members.end());
            if (lowering_for(plan_, group, options_) == Lowering::direct) {
                keep(group);
                continue;
            }
            SYNCOPATE_TRY(splice(group));
        }
        const Refs program = builder_.program();
        std::vector<OpRef> joins = builder_.joins();
        Result<Plan> lowered = builder_.take_unordered();
        if (!lowered) return lowered;
        Plan plan = with_data_order(*std::move(lowered), program, std::move(joins));
        add_entries(plan, program);
        plan = listed(std::move(plan));
        plan.initial = plan_.initial;
        plan.produced = plan_.produced;
        plan.final = plan_.final;
        return plan;
    }

private:
    /// Where a new op comes from.
    struct Origin {
        std::int32_t index = 0;           ///< of the op in whose place it stands, in its owner's list
        std::int32_t collective = kNone;  ///< number of the collective that it is part of
    };

    /// What `after` of an op has become: ends instead of collectives.
    Refs waits(const Op& op) {
        Refs refs;
        for (const OpRef ref : op.after) {
            const Refs& ends = at(ends_, ref);
            refs.insert(refs.end(), ends.begin(), ends.end());
        }
        std::sort(refs.begin(), refs.end());
        refs.erase(std::unique(refs.begin(), refs.end()), refs.end());
        return refs;
    }

    void note(OpRef ref, Origin origin) {
        origins_.resize(std::max(origins_.size(), static_cast<std::size_t>(ref.rank) + 1));
        origins_[static_cast<std::size_t>(ref.rank)].push_back(origin);
    }

    void copy(OpRef ref) {
        Op op = plan_.op(ref);
        op.after = waits(op);
        // Where contributions to one place have an order, they wait for each other by `after`.
        const OpRef copied = builder_.append(ref.rank, std::move(op), true);
        if (copied.index < 0) return;  // too many ops: the builder says so at the end
        at(ends_, ref) = {copied};
        note(copied, {ref.index, kNone});
    }

    /// Copies a collective that stays one.
    void keep(const CollectiveGroup& group) {
        std::vector<std::pair<std::int32_t, Op>> members;
        for (const OpRef member : group) {
            members.emplace_back(member.rank, plan_.op(member));
            members.back().second.after = waits(members.back().second);
        }
        const Refs copied = builder_.collective(std::move(members));
        for (std::size_t i = 0; i < group.size(); ++i) {
            if (copied[i].index < 0) return;
            at(ends_, group[i]) = {copied[i]};
            note(copied[i], {group[i].index, kNone});
        }
    }

    Status splice(const CollectiveGroup& group) {
        const auto number = static_cast<std::int32_t>(entries_.size());
        auto& entries = entries_.emplace_back();
        std::vector<std::pair<std::int32_t, std::int32_t>> index_of;  // by rank
        for (const OpRef member : group) {
            entries.emplace_back(member.rank, waits(plan_.op(member)));
            index_of.emplace_back(member.rank, member.index);
        }
        std::sort(entries.begin(), entries.end());
        std::sort(index_of.begin(), index_of.end());
        const std::size_t first = builder_.program().size();
        SYNCOPATE_TRY(expand(builder_, plan_, group, options_));
        const Refs& program = builder_.program();
        std::vector<Refs> deliveries(plan_.ranks.size());  // by destination
        for (std::size_t i = first; i < program.size(); ++i) {
            const OpRef ref = program[i];
            const auto found = std::lower_bound(index_of.begin(), index_of.end(), std::pair{ref.rank, kNone});
            note(ref, {found->second, number});
            deliveries[static_cast<std::size_t>(builder_.op(ref).destination_rank(ref.rank))].push_back(ref);
        }
        for (const OpRef member : group) {
            Refs last =
                last_deliveries(plan_.op(member).dst, deliveries[static_cast<std::size_t>(member.rank)]);
            if (last.empty()) last = waits(plan_.op(member));
            at(ends_, member) = std::move(last);
        }
        return Done{};
    }

    /// Those that bring what the chunk holds in the end.
    Refs last_deliveries(const Chunk& chunk, const Refs& deliveries) const {
        Refs last;
        std::vector<Region> open{chunk.region};
        for (auto ref = deliveries.rbegin(); ref != deliveries.rend() && !open.empty(); ++ref) {
            const Chunk& written = builder_.op(*ref).dst;
            if (written.tensor != chunk.tensor) continue;
            if (std::ranges::any_of(open, [&](const Region& box) { return overlaps(box, written.region); }))
                last.push_back(*ref);
            take(open, written.region);
        }
        return last;
    }

    /// Each transfer of a collective waits for what the ops of both its ranks waited for, unless one that it
    /// waits for has done so.
    void add_entries(Plan& plan, const Refs& program) {
        for (const OpRef ref : program) {
            const Origin origin = at(origins_, ref);
            if (origin.collective == kNone) continue;
            Op& op = plan.ranks[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
            const OpRefs before = op.after;
            for (const std::int32_t rank : {op.source_rank(ref.rank), op.destination_rank(ref.rank)}) {
                const bool covered = std::any_of(before.begin(), before.end(), [&](OpRef earlier) {
                    const Op& other = plan.op(earlier);
                    return at(origins_, earlier).collective == origin.collective &&
                           (other.source_rank(earlier.rank) == rank ||
                            other.destination_rank(earlier.rank) == rank);
                });
                if (covered) continue;
                const auto& entries = entries_[static_cast<std::size_t>(origin.collective)];
                const auto found = std::lower_bound(entries.begin(), entries.end(), std::pair{rank, Refs{}});
                op.after.insert(op.after.end(), found->second.begin(), found->second.end());
            }
            std::sort(op.after.begin(), op.after.end());
            op.after.erase(std::unique(op.after.begin(), op.after.end()), op.after.end());
        }
    }

    /// The lists in the order of the original ones.
    Plan listed(Plan plan) {
        origins_.resize(plan.ranks.size());
        PerOp<std::int32_t> place(plan.ranks.size());  // by old index: the new one
        for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
            std::vector<std::size_t> order(plan.ranks[rank].size());
            for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
            std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
                return origins_[rank][a].index < origins_[rank][b].index;
            });
            place[rank].resize(order.size());
            std::vector<Op> list;
            list.reserve(order.size());
            for (std::size_t i = 0; i < order.size(); ++i) {
                place[rank][order[i]] = static_cast<std::int32_t>(i);
                list.push_back(std::move(plan.ranks[rank][order[i]]));
            }
            plan.ranks[rank] = std::move(list);
        }
        for (std::vector<Op>& list : plan.ranks) {
            for (Op& op : list) {
                for (OpRef& ref : op.after) ref.index = at(place, ref);
                std::sort(op.after.begin(), op.after.end());
            }
        }
        return plan;
    }

    const Plan& plan_;
    const LowerOptions& options_;
    Builder builder_;
    PerOp<Refs> ends_;       ///< by op of the plan: what to wait for instead of it
    PerOp<Origin> origins_;  ///< by new op
    /// By number of the collective, then by rank: what its op there waited for.
    std::vector<std::vector<std::pair<std::int32_t, Refs>>> entries_;
};

}  // namespace

Result<Plan> lower_collectives(const Plan& plan, const LowerOptions& asked) {
    LowerOptions options = asked;
    options.rules.clear();
    for (const LowerRule& rule : asked.rules) {
        options.rules.push_back(rule);
        if (rule.kind || rule.op) continue;
        options.with = rule.with;  // it fits all
        options.rules.clear();
    }
    if (options.with == Lowering::direct && options.rules.empty()) return plan;
    const std::vector<Finding> findings = check(plan);
    if (!findings.empty()) {
        const Finding& first = findings.front();
        return Error{fmt::format("{}: {}", name_of(first.kind), first.message),
                     {"", 0, 0, first.rank, first.op}};
    }
    const CollectiveMatch collectives = match_collectives(plan);
    SYNCOPATE_TRY(judge(options, collectives.groups, plan));
    if (collectives.groups.empty()) return plan;
    return Lowerer(plan, options).lower(EventGraph(plan, collectives.groups));
}

}  // namespace syncopate::plan
