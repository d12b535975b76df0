#include "plan/check/check_final.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "syncopate/at.hpp"

namespace syncopate::plan {

FinalCheck::FinalCheck(const Plan& plan, Memory& memory, const ContentPool& pool,
                       const std::vector<std::size_t>& key_axes, Budget& budget)
    : plan_(plan), memory_(memory), pool_(pool), budget_(budget) {
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) all_.insert(rank);
    for (const std::size_t axis : key_axes) {
        held_at_start_.emplace_back(axis, budget);
        brought_.emplace_back(axis, budget);
    }
    for (const auto* holdings : {&plan.initial, &plan.produced}) {
        for (const Holding& holding : *holdings) {
            BoxIndex<bool>& boxes = held_at_start_[at(holding.chunk.tensor)];
            if (boxes.find(holding.chunk.region) == nullptr) boxes.insert(holding.chunk.region, true);
        }
    }
}

void FinalCheck::judge(std::size_t index) {
    const Holding& wanted = plan_.final[index];
    const std::vector<Piece> held = memory_.finish(wanted.rank, wanted.chunk);
    judge_arrival(index, wanted, held);
    const Contributors listed(wanted.of);
    const bool reduced = wanted.of_all || !wanted.of.empty();
    const Contributors* const reduction = !reduced ? nullptr : wanted.of_all ? &all_ : &listed;
    for (const Piece& piece : held) {
        if (judge_content(index, wanted, reduction, piece)) break;  // one finding tells enough
    }
}

void FinalCheck::judge_arrival(std::size_t index, const Holding& wanted, const std::vector<Piece>& held) {
    std::int64_t elements = 0;  // the pieces are disjoint, so their sizes add up
    for (const Piece& piece : held) elements += num_elements(piece.box);
    if (elements == num_elements(wanted.chunk.region)) return;
    std::vector<Region> missing{wanted.chunk.region};
    for (const Piece& piece : held) {
        budget_.spend(static_cast<std::int64_t>(missing.size()));
        if (budget_.exhausted()) return;
        plan::take(missing, piece.box);
    }
    add(Finding::Kind::final_not_reached, wanted.rank,
        fmt::format("final[{}]: {} never arrives{}", index,
                    to_string(plan_, {wanted.chunk.tensor, missing.front()}),
                    missing.size() > 1 ? fmt::format(", nor do {} more boxes", missing.size() - 1) : ""));
}

/// True if the piece is not what was asked for, which it then reports.
bool FinalCheck::judge_content(std::size_t index, const Holding& wanted, const Contributors* reduction,
                               const Piece& piece) {
    const std::string where =
        fmt::format("final[{}]: {}", index, to_string(plan_, {wanted.chunk.tensor, piece.box}));
    const Terms& terms = *piece.value;
    if (terms.form == Form::mixed || terms.origins.size() > 1) {
        add(Finding::Kind::final_not_reached, wanted.rank,
            where + (terms.form == Form::mixed
                         ? " holds a reduction by sum and by max at once"
                         : fmt::format(" holds a reduction of different things: {} and {}",
                                       place_of(terms.origins[0], piece.box),
                                       place_of(terms.origins[1], piece.box))));
        return true;
    }
    const Origin& origin = terms.origins.front();
    if (!judge_origin(wanted, piece, where)) return true;
    if (origin.value != (reduction == nullptr)) {
        add(Finding::Kind::final_not_reached, wanted.rank,
            origin.value
                ? where + " holds the value itself, not the reduction asked for with \"of\""
                : fmt::format("{} holds the reduction over {}, not the value; ask for it with \"of\"", where,
                              describe_ranks(origin.ranks.ranks())));
        return true;
    }
    if (origin.value || origin.ranks == *reduction) return false;
    const std::vector<std::int32_t> missing = reduction->select(origin.ranks, false);
    if (!missing.empty()) {
        add(Finding::Kind::missing_contribution, wanted.rank,
            fmt::format("{} lacks the contribution of {}", where, describe_ranks(missing)));
    } else {
        add(Finding::Kind::final_not_reached, wanted.rank,
            fmt::format("{} also has the contribution of {}, which \"of\" does not list", where,
                        describe_ranks(origin.ranks.select(*reduction, false))));
    }
    return true;
}

/// True if what the piece holds may stand there; otherwise it has said what is wrong.
bool FinalCheck::judge_origin(const Holding& wanted, const Piece& piece, const std::string& where) {
    const Origin& origin = piece.value->origins.front();
    const std::int32_t tensor = wanted.chunk.tensor;
    if (origin.tensor == tensor && origin.shift == 0) return true;
    const auto at = static_cast<std::size_t>(tensor);
    bool has_own = false;
    held_at_start_[at].visit_overlapping(piece.box, [&](const auto&) {
        has_own = true;
        return false;
    });
    if (has_own) {
        add(Finding::Kind::final_not_reached, wanted.rank,
            fmt::format("{} holds {} instead of its own", where, place_of(origin, piece.box)));
        return false;
    }
    if (wanted.of.size() == 1) return true;  // one rank's contribution is its own, not the tensor's value
    bool covered = false;
    std::string conflict;
    brought_[at].visit_overlapping(piece.box, [&](const BoxIndex<Source>::Entry& other) {
        covered |= contains(other.box, piece.box);
        if (other.value.tensor != origin.tensor || other.value.shift != origin.shift) {
            const Region common = *intersect(other.box, piece.box);
            conflict = fmt::format(
                "{} holds {}, and on rank {} {}: a tensor has one value; give each rank's part a place of "
                "its own in the tensor",
                where, place_of(origin, common), other.value.rank,
                place_of({other.value.tensor, other.value.shift, origin.value, {}}, common));
        }
        return conflict.empty() && !covered;
    });
    if (!conflict.empty()) {
        add(Finding::Kind::final_not_reached, wanted.rank, std::move(conflict));
        return false;
    }
    if (!covered) brought_[at].insert(piece.box, {origin.tensor, origin.shift, wanted.rank});
    return true;
}

/// "the value of A[0:4]", "contributions to C[0:4]": where what lies in `box` comes from.
std::string FinalCheck::place_of(const Origin& origin, const Region& box) const {
    Region source = box;
    const std::vector<std::int64_t>& shift = pool_.shift(origin);
    for (std::size_t axis = 0; axis < shift.size(); ++axis) {
        source[axis].begin -= shift[axis];
        source[axis].end -= shift[axis];
    }
    return fmt::format("{} {}", origin.value ? "the value of" : "contributions to",
                       to_string(plan_, {origin.tensor, source}));
}

}  // namespace syncopate::plan
