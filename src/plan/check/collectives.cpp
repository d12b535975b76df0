#include "syncopate/plan/check/collectives.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

bool well_formed(const Plan& plan, std::int32_t owner, const Op& op) {
    std::vector<std::int32_t> ranks = *op.ranks;
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

/// Lays one collective out.
class Layouter {
public:
    Layouter(const Plan& plan, const CollectiveGroup& members)
        : plan_(plan),
          members_(members),
          kind_(plan.op(members.front()).collective),
          parts_(static_cast<std::int64_t>(members.size())) {}

    Result<CollectiveLayout> layout() {
        if (kind_ == CollectiveKind::permute)
            return Error{"a permute has no pairs of ranks in this schema; write one push per pair instead"};
        SYNCOPATE_TRY(agree());
        const Status fits = in_place() ? fit_in_place() : fit_between_tensors();
        if (!fits) return fits.error();
        return std::move(layout_);
    }

private:
    bool reduces() const {
        return kind_ == CollectiveKind::all_reduce || kind_ == CollectiveKind::reduce_scatter;
    }
    const Chunk& src(OpRef member) const { return plan_.op(member).src; }
    const Chunk& dst(OpRef member) const { return plan_.op(member).dst; }
    DType dtype(OpRef member) const { return plan_.tensors[at(src(member).tensor)].dtype; }
    static Error error(OpRef member, std::string message) {
        return Error{std::move(message), {"", 0, 0, member.rank, member.index}};
    }
    Error misfit(OpRef from, OpRef to, std::string_view expected) const {
        return error(
            to, fmt::format("{}: source {} of rank {} and destination {} of rank {} do not fit; expected {}",
                            name_of(kind_), to_string(src(from).region), from.rank, to_string(dst(to).region),
                            to.rank, expected));
    }

    /// Participants name one dtype and one reduction.
    Status agree() {
        const OpRef first = members_.front();
        const Reduce reduce = plan_.op(first).reduce;
        for (const OpRef member : members_) {
            if (dtype(member) != dtype(first)) {
                return error(member,
                             fmt::format("{}: is of {} and rank {} takes part with {}", name_of(kind_),
                                         name_of(dtype(member)), first.rank, name_of(dtype(first))));
            }
            if (plan_.op(member).reduce != reduce) {
                return error(member,
                             fmt::format("{}: asks for reduce {} and rank {} for {}", name_of(kind_),
                                         name_of(plan_.op(member).reduce), first.rank, name_of(reduce)));
            }
        }
        if (reduces()) {
            layout_.reduce = reduce == Reduce::none ? Reduce::sum : reduce;
        } else if (reduce != Reduce::none) {
            return error(first, fmt::format("{} does not reduce; leave out reduce {}", name_of(kind_),
                                            name_of(reduce)));
        }
        return Done{};
    }

    bool in_place() const {
        const std::int32_t tensor = src(members_.front()).tensor;
        return std::all_of(members_.begin(), members_.end(), [&](OpRef member) {
            return src(member).tensor == tensor && dst(member).tensor == tensor;
        });
    }

    void add_source(OpRef member, Region region, Region at) {
        layout_.sources.push_back({member, {src(member).tensor, std::move(region)}, std::move(at)});
    }
    void add_target(OpRef member, Region region, Region at) {
        layout_.targets.push_back({member, {dst(member).tensor, std::move(region)}, std::move(at)});
    }

    /// Every box of `inner` lies inside every box of `outer`, or it returns a pair that does not: the places
    /// in members_ of the inner and the outer one.
    template <typename Inner, typename Outer>
    std::optional<std::pair<std::size_t, std::size_t>> not_inside(Inner inner, Outer outer) const {
        Region common = outer(members_.front());  // of all outer boxes
        for (const OpRef member : members_) {
            std::optional<Region> narrowed = intersect(common, outer(member));
            common = narrowed ? std::move(*narrowed) : Region(common.size());
        }
        for (std::size_t i = 0; i < members_.size(); ++i) {
            if (contains(common, inner(members_[i]))) continue;
            for (std::size_t j = 0; j < members_.size(); ++j) {
                if (!contains(outer(members_[j]), inner(members_[i]))) return std::pair{i, j};
            }
        }
        return std::nullopt;
    }

    Status fit_in_place() {
        const auto source = [&](OpRef member) -> const Region& { return src(member).region; };
        const auto target = [&](OpRef member) -> const Region& { return dst(member).region; };
        const OpRef first = members_.front();
        if (kind_ == CollectiveKind::all_reduce || kind_ == CollectiveKind::broadcast) {
            for (const OpRef member : members_) {
                if (target(member) != source(first)) return misfit(first, member, "the same region");
                if (kind_ == CollectiveKind::all_reduce && source(member) != target(first))
                    return misfit(member, first, "the same region");
            }
        } else if (kind_ == CollectiveKind::all_gather) {
            if (const auto pair = not_inside(source, target)) {
                return misfit(members_[pair->first], members_[pair->second],
                              "the source inside the destination");
            }
        } else if (kind_ == CollectiveKind::reduce_scatter) {
            if (const auto pair = not_inside(target, source)) {
                return misfit(members_[pair->second], members_[pair->first],
                              "the destination inside the source");
            }
        }
        for (const OpRef member : members_) {
            if (kind_ != CollectiveKind::broadcast || member == first)
                add_source(member, source(member), source(member));
            add_target(member, target(member), target(member));
        }
        return Done{};
    }

    Status fit_between_tensors() {
        const OpRef first = members_.front();
        const bool gathers = kind_ == CollectiveKind::all_gather;
        const bool scatters = kind_ == CollectiveKind::reduce_scatter;
        const Region& source = src(first).region;
        const Region& target = dst(first).region;
        std::optional<std::size_t> axis = 0;
        if (gathers) axis = concatenation_axis(target, source, parts_);
        if (scatters) axis = concatenation_axis(source, target, parts_);
        if (!axis) {
            return misfit(first, first,
                          fmt::format("one axis {} times the {}'s, the others equal", parts_,
                                      gathers ? "source" : "destination"));
        }
        const bool exchanges = kind_ == CollectiveKind::all_to_all;
        const std::string expected =
            exchanges ? fmt::format("equal sizes, axis 0 divisible by {}", parts_) : "equal sizes";
        if (!gathers && !scatters && !same_extents(source, target)) return misfit(first, first, expected);
        if (exchanges && source[0].size() % parts_ != 0) return misfit(first, first, expected);
        for (const OpRef member : members_) {
            if (!same_extents(src(member).region, source))
                return misfit(member, first, "sources of one size on all ranks");
            if (!same_extents(dst(member).region, target))
                return misfit(first, member, "destinations of one size on all ranks");
        }
        // The frame begins at 0. Of an exchange it has, for each destination in turn, what it gets from each
        // source in turn: `parts_` times as long as a source.
        Region whole = gathers ? target : source;
        for (Interval& range : whole) range = {0, range.size()};
        std::int64_t length = 0;
        if (exchanges && __builtin_mul_overflow(whole[0].size(), parts_, &length))
            return error(first, "all_to_all: axis 0 times the ranks does not fit 64 bits");
        for (std::size_t i = 0; i < members_.size(); ++i) {
            const auto n = static_cast<std::int64_t>(i);
            const OpRef member = members_[i];
            if (exchanges) {
                const std::int64_t size = whole[0].size() / parts_;
                for (std::int64_t to = 0; to < parts_; ++to) {
                    Region at = whole;
                    at[0] = {(to * parts_ + n) * size, (to * parts_ + n + 1) * size};
                    add_source(member, nth_part(src(member).region, 0, to, parts_), std::move(at));
                }
                Region at = whole;
                at[0] = {n * whole[0].size(), (n + 1) * whole[0].size()};
                add_target(member, dst(member).region, std::move(at));
                continue;
            }
            if (kind_ != CollectiveKind::broadcast || i == 0)
                add_source(member, src(member).region, gathers ? nth_part(whole, *axis, n, parts_) : whole);
            add_target(member, dst(member).region, scatters ? nth_part(whole, *axis, n, parts_) : whole);
        }
        return Done{};
    }

    const Plan& plan_;
    const CollectiveGroup& members_;
    CollectiveKind kind_;
    std::int64_t parts_;
    CollectiveLayout layout_;
};

}  // namespace

CollectiveMatch match_collectives(const Plan& plan) {
    using Key = std::pair<CollectiveKind, std::vector<std::int32_t>>;
    // For each kind and list of ranks: per participant, its ops in order.
    std::map<Key, std::map<std::int32_t, std::vector<std::int32_t>>> calls;
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const std::vector<Op>& ops = plan.ranks[at(rank)];
        for (std::size_t i = 0; i < ops.size(); ++i) {
            if (ops[i].kind == OpKind::collective && well_formed(plan, rank, ops[i])) {
                calls[{ops[i].collective, *ops[i].ranks}][rank].push_back(static_cast<std::int32_t>(i));
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

Result<CollectiveLayout> layout_of(const Plan& plan, const CollectiveGroup& members) {
    return Layouter(plan, members).layout();
}

}  // namespace syncopate::plan
