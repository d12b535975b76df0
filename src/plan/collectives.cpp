#include "collectives.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace syncopate::plan {
namespace {

bool well_formed(const Plan& plan, std::int32_t owner, const Op& op) {
    std::vector<std::int32_t> ranks = op.ranks;
    std::sort(ranks.begin(), ranks.end());
    return std::binary_search(ranks.begin(), ranks.end(), owner) && ranks.front() >= 0 &&
           ranks.back() < plan.num_ranks() && std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end();
}

bool same_extents(const Region& a, const Region& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Interval& x, const Interval& y) { return x.size() == y.size(); });
}

/// The axis along which `whole` is `parts` times `part`, all others being equal.
std::optional<std::size_t> concatenation_axis(const Region& whole, const Region& part, std::int64_t parts) {
    if (whole.size() != part.size()) return std::nullopt;
    if (same_extents(whole, part)) return parts == 1 ? std::optional<std::size_t>(0) : std::nullopt;
    std::optional<std::size_t> axis;
    for (std::size_t i = 0; i < whole.size(); ++i) {
        if (whole[i].size() == part[i].size()) continue;
        if (axis || whole[i].size() % parts != 0 || whole[i].size() / parts != part[i].size())
            return std::nullopt;
        axis = i;
    }
    return axis;
}

Region nth_part(Region whole, std::size_t axis, std::int64_t n, std::int64_t parts) {
    const std::int64_t size = whole[axis].size() / parts;
    whole[axis].begin += n * size;
    whole[axis].end = whole[axis].begin + size;
    return whole;
}

/// The pieces of one collective, pair by pair.
class Mover {
public:
    Mover(const Plan& plan, const CollectiveGroup& members)
        : plan_(plan), members_(members), kind_(plan.op(members.front()).collective) {}

    Result<std::vector<Move>> moves() {
        if (kind_ == CollectiveKind::permute) {
            return Error{"a permute has no pairs of ranks in this schema; write one push per pair instead"};
        }
        for (std::size_t to = 0; to < members_.size(); ++to) {
            bool first = true;
            for (std::size_t from = 0; from < members_.size(); ++from) {
                if (kind_ == CollectiveKind::broadcast && from != 0) break;
                std::optional<std::string> problem = add(from, to, first);
                if (problem) {
                    return Error{std::move(*problem), {"", 0, 0, members_[to].rank, members_[to].index}};
                }
                first = false;
            }
        }
        return std::move(moves_);
    }

private:
    bool reduces() const {
        return kind_ == CollectiveKind::all_reduce || kind_ == CollectiveKind::reduce_scatter;
    }

    /// Adds what goes from one participant to another; or says why that cannot be.
    std::optional<std::string> add(std::size_t from, std::size_t to, bool first) {
        const Op& source = plan_.op(members_[from]);
        const Op& target = plan_.op(members_[to]);
        Move move{members_[to], members_[from].rank, source.src, members_[to].rank, target.dst, Reduce::none};
        if (reduces() && !first) move.reduce = target.reduce == Reduce::none ? Reduce::sum : target.reduce;
        const bool in_place = source.src.tensor == target.dst.tensor;
        const auto parts = static_cast<std::int64_t>(members_.size());
        const Region& src = source.src.region;
        const Region& dst = target.dst.region;
        const auto misfit = [&](std::string_view expected) {
            return fmt::format(
                "{}: source {} of rank {} and destination {} of rank {} do not fit; expected {}",
                name_of(kind_), to_string(src), move.src_rank, to_string(dst), move.dst_rank, expected);
        };
        switch (kind_) {
            case CollectiveKind::all_reduce:
            case CollectiveKind::broadcast:
                if (in_place ? src != dst : !same_extents(src, dst)) {
                    return misfit(in_place ? "the same region" : "equal sizes");
                }
                break;
            case CollectiveKind::all_gather:
                if (in_place) {
                    if (!contains(dst, src)) return misfit("the source inside the destination");
                    move.dst.region = src;
                } else {
                    const auto axis = concatenation_axis(dst, src, parts);
                    if (!axis)
                        return misfit(fmt::format("one axis {} times the source's, the others equal", parts));
                    move.dst.region = nth_part(dst, *axis, static_cast<std::int64_t>(from), parts);
                }
                break;
            case CollectiveKind::reduce_scatter:
                if (in_place) {
                    if (!contains(src, dst)) return misfit("the destination inside the source");
                    move.src.region = dst;
                } else {
                    const auto axis = concatenation_axis(src, dst, parts);
                    if (!axis)
                        return misfit(
                            fmt::format("one axis {} times the destination's, the others equal", parts));
                    move.src.region = nth_part(src, *axis, static_cast<std::int64_t>(to), parts);
                }
                break;
            case CollectiveKind::all_to_all:
                if (in_place) {
                    const std::optional<Region> common = intersect(src, dst);
                    if (!common) return std::nullopt;
                    move.src.region = *common;
                    move.dst.region = *common;
                } else {
                    if (!same_extents(src, dst) || src[0].size() % parts != 0) {
                        return misfit(fmt::format("equal sizes, axis 0 divisible by {}", parts));
                    }
                    move.src.region = nth_part(src, 0, static_cast<std::int64_t>(to), parts);
                    move.dst.region = nth_part(dst, 0, static_cast<std::int64_t>(from), parts);
                }
                break;
            case CollectiveKind::permute: break;
        }
        moves_.push_back(std::move(move));
        return std::nullopt;
    }

    const Plan& plan_;
    const CollectiveGroup& members_;
    CollectiveKind kind_;
    std::vector<Move> moves_;
};

}  // namespace

CollectiveMatch match_collectives(const Plan& plan) {
    using Key = std::pair<CollectiveKind, std::vector<std::int32_t>>;
    // For each kind and list of ranks: per participant, its ops in order.
    std::map<Key, std::map<std::int32_t, std::vector<std::int32_t>>> calls;
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const std::vector<Op>& ops = plan.ranks[static_cast<std::size_t>(rank)];
        for (std::size_t i = 0; i < ops.size(); ++i) {
            if (ops[i].kind == OpKind::collective && well_formed(plan, rank, ops[i])) {
                calls[{ops[i].collective, ops[i].ranks}][rank].push_back(static_cast<std::int32_t>(i));
            }
        }
    }
    CollectiveMatch match;
    for (const auto& [key, by_rank] : calls) {
        std::size_t complete = by_rank.begin()->second.size();
        std::int32_t shortest = by_rank.begin()->first;
        for (const std::int32_t rank : key.second) {
            const auto found = by_rank.find(rank);
            const std::size_t count = found == by_rank.end() ? 0 : found->second.size();
            if (count < complete) {
                complete = count;
                shortest = rank;
            }
        }
        for (std::size_t n = 0; n < complete; ++n) {
            CollectiveGroup& group = match.groups.emplace_back();
            for (const std::int32_t rank : key.second) group.push_back({rank, by_rank.at(rank)[n]});
        }
        for (const auto& [rank, ops] : by_rank) {
            for (std::size_t n = complete; n < ops.size(); ++n) {
                match.unmatched.push_back(
                    {Finding::Kind::malformed, rank, ops[n],
                     fmt::format(
                         "is {} number {} over these ranks, but rank {} takes part in only {}: it would wait "
                         "forever",
                         name_of(key.first), n + 1, shortest, complete)});
            }
        }
    }
    return match;
}

Result<std::vector<Move>> moves_of(const Plan& plan, const CollectiveGroup& members) {
    const OpRef ref = members.front();
    const Op& op = plan.op(ref);
    if (op.kind == OpKind::collective) return Mover(plan, members).moves();
    return std::vector<Move>{
        {ref, op.source_rank(ref.rank), op.src, op.destination_rank(ref.rank), op.dst, op.reduce}};
}

}  // namespace syncopate::plan
