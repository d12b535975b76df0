#include "syncopate/fuse/order.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>

#include "syncopate/fuse/cost.hpp"
#include "syncopate/plan/simulate/simulate.hpp"

namespace syncopate::fuse {

std::vector<std::int64_t> expect_arrivals(const Lowered& lowered, const Precedence& precedence) {
    const plan::Plan& plan = lowered.plan;
    std::vector<std::int64_t> arrivals(precedence.ops.size(), 0);
    for (const std::int32_t id : precedence.sorted) {
        const bool direct = lowered.direct.contains(precedence.ops[id]);  // its pulls are all that it moves
        const std::int32_t previous = direct ? -1 : precedence.started_before[id];
        std::int64_t start = previous >= 0 ? arrivals[previous] : 0;
        for (const std::int32_t other : precedence.before[id]) start = std::max(start, arrivals[other]);
        arrivals[id] = start + (direct ? 0 : plan.bytes(plan.op(precedence.ops[id]).dst));
    }
    return arrivals;
}

Result<std::vector<std::int64_t>> expect_arrivals(const plan::Plan& plan, const Precedence& precedence,
                                                  const Backends& backends, const plan::Topology& topology) {
    plan::Plan assigned = plan;
    for (std::size_t rank = 0; rank < assigned.ranks.size(); ++rank) {
        for (std::size_t index = 0; index < assigned.ranks[rank].size(); ++index)
            assigned.ranks[rank][index].backend = backends[rank][index];
    }
    const Result<plan::Simulation> simulation = plan::simulate(assigned, topology);
    if (!simulation) return simulation.error();
    std::vector<std::int64_t> arrivals;
    arrivals.reserve(precedence.ops.size());
    for (const plan::OpRef ref : precedence.ops) {
        arrivals.push_back(
            std::llround(simulation->ops[ref.rank][ref.index].end_us * kLinkBytesPerMicrosecond));
    }
    return arrivals;
}

std::vector<std::vector<std::int64_t>> deadlines_of(const Lowered& lowered, const Precedence& precedence,
                                                    const Production& production,
                                                    const std::vector<std::int64_t>& arrivals,
                                                    std::size_t num_tiles) {
    if (!production.any()) return {};
    const plan::Plan& plan = lowered.plan;
    constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
    std::vector<std::vector<std::int64_t>> of_chunk;
    for (const auto& chunks : production.chunks) of_chunk.emplace_back(chunks.size(), kNever);
    std::set<plan::OpRef> awaited;
    for (const std::vector<plan::Op>& list : plan.ranks) {
        for (const plan::Op& op : list) awaited.insert(op.after.begin(), op.after.end());
    }
    for (std::int32_t id = 0; id < precedence.num_ops(); ++id) {
        const plan::OpRef ref = precedence.ops[id];
        const plan::Op& op = plan.op(ref);
        // What stays on the rank and is for nobody else is never due.
        if (op.kind == plan::OpKind::local && op.reduce == plan::Reduce::none && !awaited.contains(ref))
            continue;
        const std::int64_t bytes = plan.bytes(op.dst);
        // What a sum adds to is due when contributions have come, and one more is under way by then; but a
        // sum that reads all of them where they are begins with all.
        const auto direct = lowered.direct.find(ref);
        const bool staged =
            op.reduce != plan::Reduce::none &&
            (direct == lowered.direct.end() || direct->second.size() < lowered.sources.at(ref).size());
        const std::int64_t start = arrivals[id] - (staged ? 0 : bytes);
        for (const MadeRef& need : production.needs[id]) {
            std::int64_t& deadline = of_chunk[need.rank][need.index];
            deadline = std::min(deadline, start);
        }
    }
    std::vector<std::vector<std::int64_t>> deadlines(production.chunks.size(),
                                                     std::vector<std::int64_t>(num_tiles, kNever));
    for (std::size_t rank = 0; rank < deadlines.size(); ++rank) {
        for (std::size_t chunk = 0; chunk < of_chunk[rank].size(); ++chunk) {
            for (const std::int64_t tile : production.makers[rank][chunk]) {
                std::int64_t& deadline = deadlines[rank][tile];
                deadline = std::min(deadline, of_chunk[rank][chunk]);
            }
        }
    }
    return deadlines;
}

std::vector<std::vector<std::int64_t>> order_tiles(const Dependence& dependence,
                                                   const std::vector<std::int64_t>& arrivals, bool phases,
                                                   const std::vector<std::vector<std::int64_t>>& deadlines) {
    std::vector<std::vector<std::int64_t>> tiles(dependence.needs.size());
    for (std::size_t rank = 0; rank < tiles.size(); ++rank) {
        struct Times {
            std::int64_t first = 0;  ///< when iteration 0 can run
            std::int64_t last = 0;
        };
        std::vector<Times> times;
        for (const std::vector<Need>& needs : dependence.needs[rank]) {
            Times& time = times.emplace_back();
            for (const Need& need : needs) {
                time.last = std::max(time.last, arrivals[need.op]);
                if (need.iteration == 0) time.first = std::max(time.first, arrivals[need.op]);
            }
            // What tiles fetch is there from the start, but in the plan's order no source is asked by all at
            // once.
            for (const std::int32_t op : dependence.fetches[rank][times.size() - 1])
                time.first = time.last = std::max(time.last, arrivals[op]);
            if (!phases) time.first = time.last;
        }
        tiles[rank].resize(dependence.class_of.size());
        std::iota(tiles[rank].begin(), tiles[rank].end(), 0);
        std::stable_sort(tiles[rank].begin(), tiles[rank].end(), [&](std::int64_t a, std::int64_t b) {
            const Times& left = times[dependence.class_of[a]];
            const Times& right = times[dependence.class_of[b]];
            const auto due = [&](std::int64_t tile) { return deadlines.empty() ? 0 : deadlines[rank][tile]; };
            return std::tuple(left.first, left.last, due(a), a) <
                   std::tuple(right.first, right.last, due(b), b);
        });
    }
    return tiles;
}

}  // namespace syncopate::fuse
