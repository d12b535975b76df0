#include <algorithm>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/ops/ragged.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

using plan::Interval;
using plan::OpRef;
using plan::Region;

class Reading {
public:
    explicit Reading(const plan::Plan& plan) : plan_(plan) {}

    Result<RaggedRows> read() {
        SYNCOPATE_TRY(find_tensors());
        SYNCOPATE_TRY(read_holdings());
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            for (std::size_t index = 0; index < plan_.ranks[at(rank)].size(); ++index)
                SYNCOPATE_TRY(read_op({rank, static_cast<std::int32_t>(index)}));
        }
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) SYNCOPATE_TRY(check_rank(rank));
        return std::move(made_);
    }

private:
    [[nodiscard]] static Error refused(std::string message) {
        return Error{std::move(message), {.of_plan = true}};
    }

    Status find_tensors() {
        for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
            if (!plan_.tensors[i].ragged) continue;
            if (rows_ >= 0)
                return refused(
                    fmt::format("{} and {} have rows in groups: a kernel of yours reads one such tensor. "
                                "Where the host knows the counts, fuse plan.counted(counts)",
                                plan_.tensors[at(rows_)].name, plan_.tensors[i].name));
            rows_ = static_cast<std::int32_t>(i);
        }
        if (rows_ < 0) return refused("no tensor has rows in groups");
        const plan::Tensor& rows = plan_.tensors[at(rows_)];
        const plan::Ragged& ragged = *rows.ragged;
        made_ = {.tensor = rows.name, .ranks = plan_.num_ranks()};
        const std::int64_t ranks = made_.ranks;
        if (plan_.mesh.num_nodes() > 1)
            return refused(fmt::format("{}: groups of rows go to ranks of one node", rows.name));
        if (ragged.axis != 0 || ragged.groups.size() != 2 || rows.shape.size() != 3 || rows.shape[0] != ranks)
            return refused(
                fmt::format("{}: expected rows, of {} ranks for each expert, by columns", rows.name, ranks));
        made_.experts = rows.shape[1];
        if (made_.experts % ranks != 0)
            return refused(
                fmt::format("{}: {} experts are no multiple of {} ranks", rows.name, made_.experts, ranks));
        const std::vector<std::int64_t> shape{ranks, made_.experts};
        const auto counts = std::ranges::find_if(plan_.tensors, [&](const plan::Tensor& tensor) {
            return tensor.dtype == plan::DType::int32 && tensor.shape == shape;
        });
        if (counts == plan_.tensors.end())
            return refused(
                fmt::format("{}: how many rows its groups have no tensor says: the plan needs one, int32 "
                            "[{}, {}], of which each rank begins with its row; where the host knows, "
                            "fuse plan.counted(counts)",
                            rows.name, ranks, made_.experts));
        counts_ = static_cast<std::int32_t>(counts - plan_.tensors.begin());
        made_.counts = counts->name;
        if (plan_.tensors.size() != 2)
            return refused(
                fmt::format("beside {} and {} the plan has other tensors: rows in groups travel alone",
                            rows.name, made_.counts));
        made_.own = made_.experts / ranks;
        made_.columns = rows.shape[2];
        made_.rows = ragged.rows;
        made_.bound = ragged.bound;
        made_.dtype = rows.dtype;
        return Done{};
    }

    /// Rank r begins with its own rows for all experts, and with how many they are.
    Status read_holdings() {
        held_.assign(at(made_.ranks), std::vector<bool>(at(made_.experts), false));
        std::vector<bool> counted(at(made_.ranks), false);
        if (!plan_.produced.empty())
            return plan::error_at(
                {plan_.produced.front().rank, -1},
                "it produces something: a plan of rows in groups brings them, and sends nothing back");
        for (const plan::Holding& one : plan_.initial) {
            const OpRef where{one.rank, -1};
            const Region& region = one.chunk.region;
            const Interval self{one.rank, one.rank + 1};
            if (one.partial || region[0] != self)
                return plan::error_at(
                    where, fmt::format("it begins with {}: expected its own rows, and its own counts",
                                       plan_.tensors[at(one.chunk.tensor)].name));
            if (one.chunk.tensor == counts_) {
                if (region[1] != Interval{0, made_.experts})
                    return plan::error_at(
                        where, fmt::format("it begins with some of its {}: expected all", made_.counts));
                counted[at(one.rank)] = true;
                continue;
            }
            if (region[2] != Interval{0, made_.columns})
                return plan::error_at(
                    where,
                    fmt::format("it begins with some columns of {}: expected whole rows", made_.tensor));
            for (std::int64_t e = region[1].begin; e < region[1].end; ++e) held_[at(one.rank)][at(e)] = true;
        }
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            if (!counted[at(rank)])
                return plan::error_at({rank, -1},
                                      fmt::format("it does not begin with its row of {}", made_.counts));
            if (!std::ranges::all_of(held_[at(rank)], [](bool held) { return held; }))
                return plan::error_at(
                    {rank, -1},
                    fmt::format("it does not begin with its rows of {} for all experts", made_.tensor));
        }
        for (const plan::Holding& one : plan_.final) {
            if (one.chunk.tensor == rows_) made_.kept = true;
        }
        arrives_.assign(at(made_.ranks), std::vector<std::vector<bool>>(
                                             at(made_.ranks), std::vector<bool>(at(made_.own), false)));
        return Done{};
    }

    Status read_op(OpRef ref) {
        const plan::Op& op = plan_.op(ref);
        if (op.src.tensor == counts_)
            return plan::error_at(
                ref, fmt::format("{} goes to all ranks by itself: leave this op out", made_.counts));
        if (op.kind != plan::OpKind::push || op.src.tensor != rows_ || op.src != op.dst ||
            op.reduce != plan::Reduce::none)
            return plan::error_at(
                ref, fmt::format("it is no push of groups of {} to the same groups", made_.tensor));
        if (!op.after.empty())
            return plan::error_at(
                ref, "it waits for another op: groups of rows leave as soon as they are counted");
        const Region& region = op.src.region;
        const Interval self{ref.rank, ref.rank + 1};
        const Interval theirs{op.peer * made_.own, (op.peer + 1) * made_.own};
        if (region[0] != self || region[2] != Interval{0, made_.columns})
            return plan::error_at(
                ref, fmt::format("expected a push of this rank's own rows of {}, whole", made_.tensor));
        if (region[1].begin < theirs.begin || region[1].end > theirs.end)
            return plan::error_at(
                ref, fmt::format("it sends rows of experts {} to {} to rank {}, which has experts {} to {}",
                                 region[1].begin, region[1].end - 1, op.peer, theirs.begin, theirs.end - 1));
        for (std::int64_t e = region[1].begin; e < region[1].end; ++e)
            arrives_[at(op.peer)][at(ref.rank)][at(e - theirs.begin)] = true;
        return Done{};
    }

    Status check_rank(std::int32_t rank) {
        for (std::int32_t source = 0; source < plan_.num_ranks(); ++source) {
            if (source == rank) continue;
            const std::vector<bool>& comes = arrives_[at(rank)][at(source)];
            const auto missing = std::ranges::find(comes, false);
            if (missing == comes.end()) continue;
            return plan::error_at(
                {source, -1},
                fmt::format(
                    "its rows of {} for expert {} do not go to rank {}, which has the expert: push them",
                    made_.tensor, rank * made_.own + (missing - comes.begin()), rank));
        }
        return Done{};
    }

    const plan::Plan& plan_;
    RaggedRows made_;
    std::int32_t rows_ = -1;
    std::int32_t counts_ = -1;
    std::vector<std::vector<bool>> held_;                  ///< by rank and expert
    std::vector<std::vector<std::vector<bool>>> arrives_;  ///< by rank, source and expert of the rank
};

}  // namespace

Result<RaggedRows> ragged_rows(const plan::Plan& plan) { return Reading(plan).read(); }

}  // namespace syncopate::ops
