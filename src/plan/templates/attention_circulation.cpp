#include "plan/templates/attention_circulation.hpp"

#include <set>
#include <string>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/plan/templates/template_options.hpp"

namespace syncopate::plan {
namespace {

Error refused(std::string why) { return usage_error("attention: " + std::move(why)); }

}  // namespace

std::vector<std::int64_t> first_rows(const std::vector<Rows>& rows) {
    std::vector<std::int64_t> first;
    std::int64_t held = 0;
    for (const Rows& own : rows) {
        first.push_back(held);
        held += num_rows(own);
    }
    return first;
}

HeadPair head_pair(Builder& plan, const std::string& name, const std::array<std::int64_t, 3>& extents,
                   std::int32_t ranks, std::int64_t of_share, std::int64_t width, DType dtype) {
    const auto [batch, heads, rows] = extents;
    const auto tensor = [&](const std::string& called, std::int64_t of, std::int64_t number) {
        std::vector<std::int64_t> shape{batch, of, number};
        if (width > 0) shape.push_back(width);
        return plan.tensor({called, std::move(shape), dtype});
    };
    HeadPair made{.share = heads / ranks};
    made.rows = tensor(name, heads, rows);
    made.heads = tensor(name + ".heads", made.share, of_share);
    return made;
}

Interval place_among(const Rows& runs, const Interval& part, std::int64_t first) {
    for (const Interval& run : runs) {
        if (run.begin <= part.begin && part.end <= run.end) {
            first += part.begin - run.begin;
            break;
        }
        first += run.size();
    }
    return {first, first + part.size()};
}

Rows intersect(const Rows& a, const Rows& b) {
    Rows made;
    for (const Interval& x : a) {
        for (const Interval& y : b) {
            const Interval both{std::max(x.begin, y.begin), std::min(x.end, y.end)};
            if (!both.empty()) made.push_back(both);
        }
    }
    std::ranges::sort(made, {}, &Interval::begin);
    return made;
}

std::vector<Segment> AttentionCirculation::segments_of(std::int32_t owner) const {
    std::set<std::int64_t> cuts;
    for (const Interval& run : rows_of(owner)) {
        for (const Interval& part : split_evenly(run.begin, run.end, options_.split)) cuts.insert(part.begin);
    }
    for (std::int32_t group = 0; group < groups_; ++group) {
        for (const Interval& run : attended(group)) cuts.insert({run.begin, run.end});
    }
    std::vector<Segment> made;
    for (const Interval& run : rows_of(owner)) {
        std::int64_t begin = run.begin;
        for (auto cut = cuts.upper_bound(run.begin); begin < run.end; ++cut) {
            const std::int64_t end = cut == cuts.end() ? run.end : std::min(*cut, run.end);
            Segment& segment = made.emplace_back(Segment{owner, {begin, end}, {}});
            for (std::int32_t group = 0; group < groups_; ++group) {
                if (!intersect({segment.rows}, attended(group)).empty()) segment.groups.push_back(group);
            }
            begin = end;
        }
    }
    return made;
}

Status check_attention(const Mesh& mesh, const AttentionShape& shape, const AttentionOptions& options) {
    const auto ranks = static_cast<std::size_t>(mesh.num_ranks());
    const auto text = [](std::int64_t number) { return std::to_string(number); };
    if (ranks < 1) return refused("the mesh has no ranks");
    if (options.rows.size() != ranks)
        return refused("rows are given for " + std::to_string(options.rows.size()) + " ranks, not " +
                       std::to_string(ranks));
    if (!options.attended.empty() && options.attended.size() != ranks)
        return refused("what rows attend to is given for " + std::to_string(options.attended.size()) +
                       " ranks, not " + std::to_string(ranks));
    if (options.split < 1) return refused("a run of rows is cut into " + text(options.split) + " chunks");
    if (shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0)
        return refused(text(shape.heads) + " heads of Q are no multiple of " + text(shape.kv_heads) +
                       " heads of K and V");
    if (options.ulysses < 1 || mesh.num_ranks() % options.ulysses != 0)
        return refused(text(mesh.num_ranks()) + " ranks are no multiple of the " + text(options.ulysses) +
                       " that exchange heads");
    const std::int64_t members = std::max<std::int64_t>(options.ulysses, 1);
    if (options.parts < 1 || (options.parts > 1 && shape.kv_heads % (members * options.parts) != 0))
        return refused(text(shape.kv_heads) + " heads of K and V are not shared out over " + text(members) +
                       " ranks in " + text(options.parts) + " parts");
    if (shape.heads % options.ulysses != 0)
        return refused(text(shape.heads) + " heads cannot be shared out over " + text(options.ulysses) +
                       " ranks: take a number of ranks that divides them, or no Ulysses");
    if ((options.only_kv || options.q_o_stay) && options.ulysses > 1)
        return refused("ranks that exchange heads move Q and O, too: a plan without these has no Ulysses");
    const std::int32_t groups = mesh.num_ranks() / options.ulysses;
    if (options.inner < 0 || (options.inner > 0 && groups % options.inner != 0))
        return refused(text(groups) + " ranks are no multiple of the inner ring's " + text(options.inner));
    Rows all;
    for (const Rows& rows : options.rows) all.insert(all.end(), rows.begin(), rows.end());
    std::ranges::sort(all, {}, &Interval::begin);
    std::int64_t end = 0;
    for (const Interval& run : all) {
        if (run.empty() || run.begin != end)
            return refused("row " + text(std::min(run.begin, end)) +
                           " is not held by one rank: a run begins at " + text(run.begin) +
                           " where the one before ends at " + text(end));
        end = run.end;
    }
    if (end != shape.length) return refused("ranks hold " + text(end) + " rows of " + text(shape.length));
    return Done{};
}

Rows AttentionCirculation::rows_of_group(std::int32_t group) const {
    Rows all;
    for (std::int32_t member = 0; member < group_; ++member) {
        const Rows& own = rows_of(rank_of(group, member));
        all.insert(all.end(), own.begin(), own.end());
    }
    std::ranges::sort(all, {}, &Interval::begin);
    return all;
}

Rows AttentionCirculation::attended(std::int32_t group) const {
    if (options_.attended.empty()) return {{0, shape_.length}};
    Rows all;
    for (std::int32_t member = 0; member < group_; ++member) {
        const Rows& own = options_.attended[at(rank_of(group, member))];
        all.insert(all.end(), own.begin(), own.end());
    }
    std::ranges::sort(all, {}, &Interval::begin);
    Rows joined;
    for (const Interval& run : all) {
        if (!joined.empty() && run.begin <= joined.back().end)
            joined.back().end = std::max(joined.back().end, run.end);
        else
            joined.push_back(run);
    }
    return joined;
}

Chunk heads_chunk(const Builder& plan, std::int32_t tensor, const Interval& heads, const Interval& rows) {
    const std::vector<std::int64_t>& extents = plan.tensor(tensor).shape;
    Region region{{0, extents.front()}, heads, rows};
    if (extents.size() == 4) region.push_back({0, extents.back()});
    return {tensor, std::move(region)};
}

Chunk AttentionCirculation::chunk(std::int32_t tensor, const Interval& heads, const Interval& rows) const {
    return heads_chunk(plan_, tensor, heads, rows);
}

void AttentionCirculation::move(std::int32_t from, std::int32_t to, std::int32_t tensor,
                                const Interval& heads, const Interval& rows) {
    for (const Interval& part : split_evenly(rows.begin, rows.end, options_.split)) {
        if (part.empty()) continue;
        const Chunk moved = chunk(tensor, heads, part);
        (void)plan_.transfer({from, moved}, {to, moved});
    }
}

void AttentionCirculation::circulate() {
    switch (options_.circulation) {
        case Circulation::all_gather: gather(); break;
        case Circulation::ring: ring(0, groups_, 1); break;
        case Circulation::double_ring: double_ring(); break;
    }
}

std::int32_t AttentionCirculation::inner() const {
    if (options_.inner != 0) return options_.inner;
    return groups_ % 2 == 0 ? groups_ / 2 : groups_;
}

/// K and V of `rows`, of each member's heads, from one group to another.
void AttentionCirculation::pass(std::int32_t from, std::int32_t to, const Rows& rows) {
    for (std::int32_t member = 0; member < group_; ++member) {
        for (const Interval& run : rows) {
            for (const std::int32_t tensor : {k_, v_})
                move(rank_of(from, member), rank_of(to, member), tensor, part_of(kv_heads_of(member)), run);
        }
    }
}

void AttentionCirculation::gather() {
    for (std::int32_t step = 1; step < groups_; ++step) {
        for (std::int32_t group = 0; group < groups_; ++group) {
            const std::int32_t to = (group + step) % groups_;
            pass(group, to, intersect(rows_of_group(group), attended(to)));
        }
    }
}

/// Rows of group `origin` that some of `takers` attend to.
Rows AttentionCirculation::wanted(std::int32_t origin, const std::vector<std::int32_t>& takers) const {
    Rows wanted;
    for (const Interval& run : rows_of_group(origin)) {
        const bool some = std::ranges::any_of(
            takers, [&](std::int32_t group) { return !intersect({run}, attended(group)).empty(); });
        if (some) wanted.push_back(run);
    }
    return wanted;
}

/// Round `count` groups from `first` on, `apart` from each other: in each step each passes on what it got
/// in the one before, as long as somebody behind it attends to it.
void AttentionCirculation::ring(std::int32_t first, std::int32_t count, std::int32_t apart) {
    const auto at = [&](std::int32_t place) { return first + (place % count) * apart; };
    for (std::int32_t step = 0; step + 1 < count; ++step) {
        for (std::int32_t place = 0; place < count; ++place) {
            std::vector<std::int32_t> takers;
            for (std::int32_t far = step + 1; far < count; ++far) takers.push_back(at(place + far));
            pass(at(place + step), at(place + step + 1), wanted(at(place), takers));
        }
    }
}

void AttentionCirculation::double_ring() {
    const std::int32_t inner = this->inner();
    const std::int32_t nodes = groups_ / inner;
    const auto at = [&](std::int32_t node, std::int32_t place) {
        return (node % nodes) * inner + place % inner;
    };
    for (std::int32_t round = 0; round < nodes; ++round) {
        // Outer: what came from `round` nodes before goes on to the next node, while inner rings turn.
        if (round + 1 < nodes) {
            for (std::int32_t group = 0; group < groups_; ++group) {
                const std::int32_t node = group / inner, place = group % inner;
                std::vector<std::int32_t> takers;
                for (std::int32_t far = round + 1; far < nodes; ++far) {
                    for (std::int32_t taker = 0; taker < inner; ++taker)
                        takers.push_back(at(node + far, taker));
                }
                pass(at(node + round, place), at(node + round + 1, place), wanted(group, takers));
            }
        }
        for (std::int32_t step = 0; step + 1 < inner; ++step) {
            for (std::int32_t group = 0; group < groups_; ++group) {
                const std::int32_t node = group / inner, place = group % inner;
                std::vector<std::int32_t> takers;
                for (std::int32_t far = step + 1; far < inner; ++far)
                    takers.push_back(at(node + round, place + far));
                pass(at(node + round, place + step), at(node + round, place + step + 1),
                     wanted(group, takers));
            }
        }
    }
}

}  // namespace syncopate::plan
