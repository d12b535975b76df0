#include "plan/lower/lower_collective.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "plan/templates/algorithms.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/templates/templates.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

/// The n-th of `parts` equal parts along an axis.
Chunk nth_part(Chunk whole, std::size_t axis, std::int32_t n, std::int32_t parts) {
    Interval& range = whole.region[axis];
    const std::int64_t size = range.size() / parts;
    range = {range.begin + n * size, range.begin + (n + 1) * size};
    return whole;
}

/// A collective as the algorithms want to see it: members by position, and what goes from each to each, as
/// check.hpp describes it.
class Collective {
public:
    Collective(Builder& builder, const Plan& plan, const CollectiveGroup& members,
               const LowerOptions& options)
        : builder_(builder),
          plan_(plan),
          members_(members),
          options_(options),
          synthesised_(lowering_for(plan, members, options) == Lowering::synthesised),
          algorithm_(synthesised_ ? Algorithm::automatic
                                  : algorithm_for(plan.op(members.front()).collective, options)) {
        for (const OpRef member : members) team_.ranks.push_back(member.rank);
        for (std::int32_t member = 0; member < n(); ++member) {
            in_place_ = in_place_ && op(member).src.tensor == op(0).src.tensor &&
                        op(member).dst.tensor == op(0).src.tensor;
        }
        for (std::size_t axis = 0; axis < op(0).src.region.size(); ++axis) {
            if (op(0).src.region[axis].size() != op(0).dst.region[axis].size()) part_axis_ = axis;
        }
    }

    Status expand() {
        if (has_two_levels(algorithm_)) {
            std::vector<Team> teams{team_};
            SYNCOPATE_TRY(set_levels(teams, plan_.mesh, options_.inner));
            team_ = std::move(teams.front());
        }
        SYNCOPATE_TRY(judge());
        Status moved = move();
        if (moved) return moved;
        const OpRef first = members_.front();  // the search names no op
        return Error{fmt::format("{}: {}", name_of(kind()), moved.error().message),
                     {"", 0, 0, first.rank, first.index},
                     moved.error().error_class};
    }

private:
    Status move() {
        switch (kind()) {
            case CollectiveKind::all_gather: return all_gather();
            case CollectiveKind::broadcast: return broadcast();
            case CollectiveKind::all_to_all: return all_to_all();
            case CollectiveKind::reduce_scatter: return reduce_scatter();
            case CollectiveKind::all_reduce: return all_reduce();
            case CollectiveKind::permute: break;  // check() refuses it
        }
        return Done{};
    }

    SynthesisSearch search() const { return {*options_.topology, team_.ranks, options_.seed}; }

    std::int32_t n() const { return team_.size(); }
    CollectiveKind kind() const { return op(0).collective; }
    const Op& op(std::int32_t member) const { return plan_.op(members_[at(member)]); }
    Reduce reduction(std::int32_t member) const {
        return op(member).reduce == Reduce::none ? Reduce::sum : op(member).reduce;
    }

    /// Refuses what the algorithms could not keep. A collective reads everything before it writes anything;
    /// transfers do not. So no piece may come in over another one, or over what its member sends.
    Status judge() const {
        const auto refuse = [&](std::int32_t member, const std::string& what) {
            const OpRef ref = members_[at(member)];
            return Error{what + "; leave it direct", {"", 0, 0, ref.rank, ref.index}};
        };
        const bool reduces = kind() == CollectiveKind::all_reduce || kind() == CollectiveKind::reduce_scatter;
        for (std::int32_t member = 0; member < n(); ++member) {
            const Op& mine = op(member);
            if (reduces && reduction(member) != reduction(0)) {
                return refuse(member,
                              fmt::format("reduces by {}, and rank {} by {}", name_of(reduction(member)),
                                          team_.rank(0), name_of(reduction(0))));
            }
            if (!in_place_ && !(same_extents(mine.src, op(0).src) && same_extents(mine.dst, op(0).dst)))
                return refuse(member, "is not of the same size as on the other ranks");
            if (!in_place_ && overlaps(mine.src, mine.dst))
                return refuse(member, fmt::format("its destination {} lies over its source {}",
                                                  to_string(mine.dst.region), to_string(mine.src.region)));
            for (std::int32_t other = 0; other < member && in_place_; ++other) {
                const bool gathers =
                    kind() == CollectiveKind::all_gather || kind() == CollectiveKind::all_to_all;
                if (gathers && overlaps(mine.src, op(other).src)) {
                    return refuse(member, fmt::format("its source {} lies over that of rank {}",
                                                      to_string(mine.src.region), team_.rank(other)));
                }
                if (kind() == CollectiveKind::reduce_scatter && overlaps(mine.dst, op(other).dst)) {
                    return refuse(member, fmt::format("its destination {} lies over that of rank {}",
                                                      to_string(mine.dst.region), team_.rank(other)));
                }
            }
        }
        return Done{};
    }
    static bool same_extents(const Chunk& a, const Chunk& b) {
        return std::equal(a.region.begin(), a.region.end(), b.region.begin(), b.region.end(),
                          [](const Interval& x, const Interval& y) { return x.size() == y.size(); });
    }

    /// Cut along the first axis that is long enough for all chunks, or the longest.
    Script script(const Region& piece, std::int64_t parts) const {
        std::size_t axis = 0;
        for (std::size_t i = 0; i < piece.size(); ++i) {
            if (piece[i].size() > piece[axis].size()) axis = i;
        }
        for (std::size_t i = piece.size(); i-- > 0;) {
            if (piece[i].size() >= parts * options_.split) axis = i;
        }
        return {builder_, team_, {static_cast<std::int32_t>(axis), options_.split}, 1};
    }

    /// Staging space for `count` pieces as large as the largest of `pieces`.
    Slots slots(const Script& script, const std::vector<Region>& pieces, std::int64_t count) const {
        Tensor model = plan_.tensors[at(op(0).src.tensor)];
        model.name += ".staging";
        model.shape.assign(pieces.front().size(), 0);
        for (const Region& piece : pieces) {
            for (std::size_t axis = 0; axis < piece.size(); ++axis)
                model.shape[axis] = std::max(model.shape[axis], piece[axis].size());
        }
        return {builder_, std::move(model), script.cut.axis, count};
    }

    Status all_gather() {
        const Gather data{[&](std::int32_t member) { return op(member).src; },
                          [&](std::int32_t member, std::int32_t piece) {
                              return in_place_ ? op(piece).src
                                               : nth_part(op(member).dst, part_axis_, piece, n());
                          }};
        const Script script = this->script(op(0).src.region, 1);
        if (synthesised_) return gather_synthesised(script, data, search());
        switch (algorithm_) {
            case Algorithm::ring: gather_ring(script, data, n() - 1, 0); break;
            case Algorithm::bidirectional: gather_ring(script, data, n() / 2, (n() - 1) / 2); break;
            case Algorithm::double_ring: gather_double_ring(script, data); break;
            case Algorithm::hierarchical: gather_hierarchical(script, data); break;
            default: gather_direct(script, data); break;
        }
        return Done{};
    }

    Status broadcast() {
        const Gather data{[&](std::int32_t member) { return op(member).src; },
                          [&](std::int32_t member, std::int32_t) { return op(member).dst; }};
        const Script script = this->script(op(0).src.region, 1);
        if (synthesised_) return broadcast_synthesised(script, data, 0, search());
        switch (algorithm_) {
            case Algorithm::chain: broadcast_chain(script, data, 0); break;
            case Algorithm::tree: broadcast_tree(script, data, 0); break;
            default: broadcast_direct(script, data, 0); break;
        }
        return Done{};
    }

    Status all_to_all() {
        const auto common = [&](std::int32_t from, std::int32_t to) -> std::optional<Chunk> {
            std::optional<Region> region = intersect(op(from).src.region, op(to).dst.region);
            return region ? std::optional(Chunk{op(0).src.tensor, *std::move(region)}) : std::nullopt;
        };
        const Exchange::Chunks source = [&](std::int32_t from, std::int32_t to) {
            return in_place_ ? common(from, to) : nth_part(op(from).src, 0, to, n());
        };
        const Exchange::Chunks target = [&](std::int32_t from, std::int32_t to) {
            return in_place_ ? common(from, to) : nth_part(op(to).dst, 0, from, n());
        };
        std::vector<Region> pieces;
        for (std::int32_t from = 0; from < n(); ++from) {
            for (std::int32_t to = 0; to < n(); ++to) {
                if (const std::optional<Chunk> piece = source(from, to)) pieces.push_back(piece->region);
            }
        }
        if (pieces.empty()) return Done{};
        const Script script = this->script(pieces.front(), 1);
        Slots relays = slots(script, pieces, n());
        const Exchange data{source, target, [&](std::int32_t from, std::int32_t to) {
                                const std::int32_t slot =
                                    team_.position(to / team_.inner, from % team_.inner);
                                return relays.at(slot, source(from, to)->region);
                            }};
        if (synthesised_) {
            return exchange_synthesised(
                script, data, [&](std::int64_t count) { return slots(script, pieces, count); }, search());
        }
        if (algorithm_ == Algorithm::hierarchical) {
            exchange_hierarchical(script, data);
        } else {
            exchange_direct(script, data);
        }
        return Done{};
    }

    Status reduce_scatter() {
        std::vector<Region> pieces;
        for (std::int32_t piece = 0; piece < n(); ++piece) pieces.push_back(op(piece).dst.region);
        const Script script = this->script(pieces.front(), 1);
        Slots partial = slots(script, pieces, n());  // contributions stay whole where they are
        const auto part = [&](std::int32_t member, std::int32_t piece) {
            return in_place_ ? op(piece).dst : nth_part(op(member).src, part_axis_, piece, n());
        };
        const Reduction data{part,
                             [&](std::int32_t member, std::int32_t piece) {
                                 return member == piece ? op(member).dst
                                                        : partial.at(piece, pieces[at(piece)]);
                             },
                             reduction(0)};
        return reduce(script, data, pieces);
    }

    Status all_reduce() {
        const Region& whole = op(0).src.region;
        const bool one_shot = algorithm_ == Algorithm::one_shot;
        Script script = this->script(whole, one_shot ? 1 : n());
        script.paced = true;
        const auto part = [&](const Chunk& chunk, std::int32_t piece) {
            if (one_shot) return chunk;
            const Interval range = chunk.region[at(script.cut.axis)];
            const std::vector<Interval> parts = split_evenly(range.begin, range.end, n());
            return Chunk{chunk.tensor, with_axis(chunk.region, script.cut.axis, parts[at(piece)])};
        };
        const Reduction data{
            [&](std::int32_t member, std::int32_t piece) { return part(op(member).src, piece); },
            [&](std::int32_t member, std::int32_t piece) { return part(op(member).dst, piece); },
            reduction(0)};
        const Gather result{[&](std::int32_t member) { return data.work(member, member); }, data.work};
        SYNCOPATE_TRY(reduce(script, data, {part(op(0).src, 0).region}));
        if (synthesised_) return gather_synthesised(script, result, search());
        switch (algorithm_) {
            case Algorithm::one_shot: break;
            case Algorithm::ring: gather_ring(script, result, n() - 1, 0); break;
            case Algorithm::hierarchical: gather_hierarchical(script, result); break;
            default: gather_direct(script, result); break;
        }
        return Done{};
    }

    Status reduce(const Script& script, const Reduction& data, const std::vector<Region>& pieces) {
        if (synthesised_) return reduce_synthesised(script, data, search());
        if (algorithm_ == Algorithm::ring) {
            reduce_ring(script, data);
        } else if (algorithm_ == Algorithm::hierarchical) {
            Slots inner = slots(script, pieces, std::int64_t{team_.outer()} * (team_.inner - 1));
            Slots outer = slots(script, pieces, team_.outer() - 1);
            reduce_hierarchical(script, data, inner, outer);
        } else {
            Slots staging = slots(script, pieces, n() - 1);
            reduce_direct(script, data, staging);
        }
        return Done{};
    }

    Builder& builder_;
    const Plan& plan_;
    const CollectiveGroup& members_;
    const LowerOptions& options_;
    bool synthesised_;  ///< instead of an algorithm
    Algorithm algorithm_;
    Team team_;
    bool in_place_ = true;  ///< all sources and destinations are in one tensor, where each keeps its place
    std::size_t part_axis_ = 0;  ///< otherwise: where parts lie side by side, in the order of members
};

}  // namespace

Status expand(Builder& builder, const Plan& plan, const CollectiveGroup& members,
              const LowerOptions& options) {
    return Collective(builder, plan, members, options).expand();
}

}  // namespace syncopate::plan
