#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/ops/ragged.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/model/ragged.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

using plan::Holding;
using plan::Interval;
using plan::OpRef;
using plan::Region;
using plan::Tensor;

/// Groups, by source rank and expert.
using Groups = std::vector<std::vector<bool>>;
using GroupsOf = std::map<std::int32_t, Groups>;  // by tensor

class Reading {
public:
    explicit Reading(const plan::Plan& plan) : plan_(plan) {}

    Result<RaggedRows> read() {
        if (const auto findings = plan::check(plan_); !findings.empty())
            return plan::error_at({findings.front().rank, findings.front().op}, findings.front().message);
        SYNCOPATE_TRY(find_rows());
        SYNCOPATE_TRY(find_counts());
        for (const Holding& one : plan_.initial) SYNCOPATE_TRY(read_initial(one));
        for (const Holding& one : plan_.produced) SYNCOPATE_TRY(read_produced(one));
        for (const Holding& one : plan_.final) SYNCOPATE_TRY(read_final(one));
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            for (std::size_t index = 0; index < plan_.ranks[at(rank)].size(); ++index)
                SYNCOPATE_TRY(read_op({rank, static_cast<std::int32_t>(index)}));
        }
        SYNCOPATE_TRY(require_all());
        return std::move(of_);
    }

private:
    template <typename... Args>
    static Error refused(fmt::format_string<Args...> format, Args&&... args) {
        return Error{fmt::format(format, std::forward<Args>(args)...), {.of_plan = true}};
    }
    template <typename... Args>
    static Error refused_at(OpRef ref, fmt::format_string<Args...> format, Args&&... args) {
        return plan::error_at(ref, fmt::format(format, std::forward<Args>(args)...));
    }

    [[nodiscard]] const Tensor& tensor(std::int32_t index) const { return plan_.tensors[at(index)]; }

    /// The rows that ranks begin with, and those that are made of them.
    Status find_rows() {
        for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
            if (!plan_.tensors[i].ragged) continue;
            const auto index = static_cast<std::int32_t>(i);
            const bool made = produces(index);
            std::int32_t& place = made ? back_ : rows_ < 0 ? rows_ : more_;
            if (place >= 0)
                return refused(
                    "{} and {} have rows in groups: to kernels that read such rows one tensor comes, or two "
                    "of "
                    "the same rows, and one goes back",
                    tensor(place).name, plan_.tensors[i].name);
            place = index;
        }
        if (rows_ < 0) return refused("no tensor whose rows come in groups is there from the start");
        of_.ranks = plan_.num_ranks();
        if (plan_.mesh.num_nodes() > 1)
            return refused("{}: groups of rows go to ranks of one node", tensor(rows_).name);
        for (const std::int32_t index : {rows_, more_, back_}) {
            if (index < 0) continue;
            const Tensor& one = tensor(index);
            if (one.ragged->axis != 0 || one.ragged->groups.size() != 2 || one.shape.size() != 3 ||
                one.shape[0] != of_.ranks)
                return refused("{}: expected rows, of {} ranks for each expert, by columns", one.name,
                               of_.ranks);
            const Tensor& rows = tensor(rows_);
            if (one.shape[1] != rows.shape[1] || one.ragged->bound != rows.ragged->bound ||
                (index == more_ && one.ragged->rows != rows.ragged->rows))
                return refused("{} and {} have other groups, or other bounds", tensor(rows_).name, one.name);
        }
        of_.experts = tensor(rows_).shape[1];
        if (of_.experts % of_.ranks != 0)
            return refused("{}: {} experts are no multiple of {} ranks", tensor(rows_).name, of_.experts,
                           of_.ranks);
        of_.own = of_.experts / of_.ranks;
        of_.bound = tensor(rows_).ragged->bound;
        of_.rows = part_of(rows_);
        if (more_ >= 0) of_.more = part_of(more_);
        if (back_ >= 0) of_.back = part_of(back_);
        return Done{};
    }

    [[nodiscard]] RaggedTensor part_of(std::int32_t index) const {
        const Tensor& one = tensor(index);
        return {one.name, one.shape[2], one.ragged->rows, one.dtype};
    }

    [[nodiscard]] bool produces(std::int32_t index) const {
        return std::ranges::any_of(plan_.produced,
                                   [&](const Holding& one) { return one.chunk.tensor == index; });
    }

    Status find_counts() {
        const std::vector<std::int64_t> shape{of_.ranks, of_.experts};
        const auto counts = std::ranges::find_if(plan_.tensors, [&](const Tensor& one) {
            return one.dtype == plan::DType::int32 && one.shape == shape && !one.ragged;
        });
        if (counts == plan_.tensors.end())
            return refused(
                "{}: how many rows its groups have no tensor says: the plan needs one, int32 [{}, {}], of "
                "which each "
                "rank begins with its row; where the host knows, fuse plan.counted(counts)",
                of_.rows.name, of_.ranks, of_.experts);
        counts_ = static_cast<std::int32_t>(counts - plan_.tensors.begin());
        of_.counts = counts->name;
        if (plan_.tensors.size() != 2U + (back_ < 0 ? 0 : 1) + (more_ < 0 ? 0 : 1))
            return refused(
                "beside rows in groups and {} the plan has other tensors: rows in groups travel alone",
                of_.counts);
        return Done{};
    }

    [[nodiscard]] Interval experts_of(std::int64_t rank) const {
        return {rank * of_.own, (rank + 1) * of_.own};
    }

    static Interval self(std::int64_t rank) { return {rank, rank + 1}; }

    /// Whether these are whole rows of the groups of sources and experts that are within.
    [[nodiscard]] bool lies(const plan::Chunk& chunk, const Interval& sources,
                            const Interval& experts) const {
        const auto within = [](const Interval& one, const Interval& all) {
            return one.begin >= all.begin && one.end <= all.end;
        };
        return within(chunk.region[0], sources) && within(chunk.region[1], experts) &&
               chunk.region[2].size() == tensor(chunk.tensor).shape[2];
    }

    [[nodiscard]] bool comes(std::int32_t index) const {
        return index == rows_ || (index == more_ && more_ >= 0);
    }

    void note(const plan::Chunk& chunk, GroupsOf& of) const {
        Groups& groups =
            of.try_emplace(chunk.tensor, at(of_.ranks), std::vector<bool>(at(of_.experts), false))
                .first->second;
        for (std::int64_t source = chunk.region[0].begin; source < chunk.region[0].end; ++source) {
            for (std::int64_t expert = chunk.region[1].begin; expert < chunk.region[1].end; ++expert)
                groups[at(source)][at(expert)] = true;
        }
    }

    Status read_initial(const Holding& one) {
        const Interval all{0, of_.experts};
        if (one.chunk.tensor == counts_) {
            if (one.chunk.region[0] != self(one.rank) || one.chunk.region[1] != all)
                return refused_at({one.rank, -1}, "it begins with other {} than its own row", of_.counts);
            counted_.insert(one.rank);
            return Done{};
        }
        if (!comes(one.chunk.tensor) || one.partial || !lies(one.chunk, self(one.rank), all))
            return refused_at({one.rank, -1}, "it begins with other rows of {} than its own, whole",
                              comes(one.chunk.tensor) ? tensor(one.chunk.tensor).name : of_.rows.name);
        note(one.chunk, begins_);
        return Done{};
    }

    Status read_produced(const Holding& one) {
        if (one.chunk.tensor != back_ || one.partial ||
            !lies(one.chunk, {0, of_.ranks}, experts_of(one.rank)))
            return refused_at({one.rank, -1}, "it makes other rows than those of its experts, {} to {}",
                              experts_of(one.rank).begin, experts_of(one.rank).end - 1);
        note(one.chunk, made_);
        return Done{};
    }

    Status read_final(const Holding& one) {
        if (comes(one.chunk.tensor) && lies(one.chunk, {0, of_.ranks}, experts_of(one.rank))) {
            (one.chunk.tensor == rows_ ? of_.rows : *of_.more).kept = true;
            return Done{};
        }
        if (one.chunk.tensor != back_ || back_ < 0 || !lies(one.chunk, self(one.rank), {0, of_.experts}))
            return refused_at(
                {one.rank, -1},
                "at the end it is to hold {}, which is neither rows of its experts nor what is made of "
                "its own rows",
                plan::region_text(tensor(one.chunk.tensor), one.chunk.region));
        note(one.chunk, ends_);
        return Done{};
    }

    Status read_op(OpRef ref) {
        const plan::Op& op = plan_.op(ref);
        if (op.src.tensor == counts_)
            return refused_at(ref, "{} goes to all ranks by itself: leave this op out", of_.counts);
        if (op.kind != plan::OpKind::push || op.src != op.dst || op.reduce != plan::Reduce::none)
            return refused_at(ref, "it is no push of groups of rows to the same groups");
        if (!op.after.empty())
            return refused_at(ref, "it waits for another op: groups of rows leave as soon as they are there");
        const bool brings = comes(op.src.tensor);
        const std::int64_t source = brings ? ref.rank : op.peer, owner = brings ? op.peer : ref.rank;
        if (!lies(op.src, self(source), experts_of(owner)))
            return refused_at(ref, "{} is not whole rows of rank {} for experts of rank {}, {} to {}",
                              plan::region_text(tensor(op.src.tensor), op.src.region), source, owner,
                              experts_of(owner).begin, experts_of(owner).end - 1);
        note(op.src, brings ? brought_ : returned_);
        return Done{};
    }

    Status require_all() {
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            if (!counted_.contains(rank))
                return refused_at({rank, -1}, "it does not begin with its row of {}", of_.counts);
            for (std::int64_t expert = 0; expert < of_.experts; ++expert) {
                const auto owner = static_cast<std::int32_t>(expert / of_.own);
                const auto has = [&](const GroupsOf& of, std::int32_t index) {
                    const auto found = of.find(index);
                    return found != of.end() && found->second[at(rank)][at(expert)];
                };
                for (const std::int32_t index : {rows_, more_}) {
                    if (index < 0) continue;
                    if (!has(begins_, index))
                        return refused_at({rank, -1}, "it does not begin with its rows of {} for expert {}",
                                          tensor(index).name, expert);
                    if (rank != owner && !has(brought_, index))
                        return refused_at({rank, -1},
                                          "its rows of {} for expert {} do not go to rank {}, which has the "
                                          "expert: push them",
                                          tensor(index).name, expert, owner);
                }
                if (back_ < 0) continue;
                if (!has(made_, back_))
                    return refused_at({owner, -1},
                                      "it does not make the rows of {} for expert {}, which it has",
                                      of_.back->name, expert);
                if (!has(ends_, back_))
                    return refused_at(
                        {rank, -1},
                        "at the end it is not to hold its rows of {} of expert {}: ask for them by \"final\"",
                        of_.back->name, expert);
                if (rank != owner && !has(returned_, back_))
                    return refused_at(
                        {owner, -1}, "what it makes of {} for expert {} does not go back to rank {}: push it",
                        of_.back->name, expert, rank);
            }
        }
        return Done{};
    }

    const plan::Plan& plan_;
    RaggedRows of_;
    std::int32_t rows_ = -1;
    std::int32_t more_ = -1;  ///< a second tensor of the same rows
    std::int32_t back_ = -1;
    std::int32_t counts_ = -1;
    std::set<std::int32_t> counted_;
    GroupsOf begins_, made_, brought_, returned_, ends_;
};

}  // namespace

Result<RaggedRows> ragged_rows(const plan::Plan& plan) { return Reading(plan).read(); }

}  // namespace syncopate::ops
