#include "syncopate/tune/play/estimate.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "syncopate/tune/candidates/attention.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "syncopate/tune/play/mixture.hpp"
#include "tune/play/memory.hpp"
#include "tune/play/operator_play.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

using Kind = OperatorRow::Kind;
using fuse::kMib;

/// µs between nodes of a collective of so many bytes in all, told in its favour: it crosses in as many steps as halving
/// the nodes takes.
double across_us(const Problem& problem, const Rates& rates, double bytes, Kind kind) {
    if (problem.nodes == 1) return 0;
    const bool shares = kind == Kind::gathers || kind == Kind::scatters || kind == Kind::reduces;
    const double places = shares ? static_cast<double>(problem.ranks) / problem.nodes : 1;
    const double steps = std::bit_width(static_cast<std::uint32_t>(problem.nodes - 1));
    const double far = bytes * (problem.nodes - 1) / problem.nodes;
    return (kind == Kind::reduces ? 2 : 1) *
           (steps * rates.network_us + over(far / places, rates.network_collective_gbps));
}

/// µs that the pair takes more to leave a sum of so many bytes in a tensor of the caller's and not where the library adds
/// it up, which all ranks map: they wait for each other once more, and a rank copies its own share, too.
double left_elsewhere_us(const Problem& problem, const Machine& machine, double bytes, Kind kind) {
    if (kind != Kind::reduces || problem.nodes > 1) return 0;
    return machine.rates.kernel_us + over(bytes / problem.ranks, machine.topology.local_gbps);
}

/// A product of the library's, and its collective before or behind it, which is as fast as the slower of its two levels.
Estimate unfused(const Problem& problem, const Machine& machine, const ProductShape& shape, Kind kind) {
    const bool before = kind == Kind::gathers || kind == Kind::exchanges;
    const double row = before ? static_cast<double>(shape.k) * problem.item()
                              : static_cast<double>(shape.n) * problem.out_item();
    const double bytes = static_cast<double>(shape.m) * row;
    const double mib = bytes * (problem.ranks - 1) / problem.ranks / kMib;
    Estimate made;
    made.compute = library_product_us(machine, problem.dtype, shape);
    made.communicate = made.exposed = std::max(library_collective_us(machine.rates, kind, mib),
                                               across_us(problem, machine.rates, bytes, kind));
    made.copied = left_elsewhere_us(problem, machine, bytes, kind);
    made.exposed += made.copied;
    made.fixed = machine.rates.kernel_us;
    made.us = made.fixed + made.compute + made.exposed;
    return made;
}

/// Two in a row. `shared`: of their fixed costs, what they have once.
Estimate one_after_another(const Estimate& first, const Estimate& second, double shared) {
    return {.us = first.us + second.us - shared,
            .compute = first.compute + second.compute,
            .communicate = first.communicate + second.communicate,
            .exposed = first.exposed + second.exposed,
            .fixed = first.fixed + second.fixed - shared,
            .copied = second.copied};
}

/// A block as operators that are apart: what two events of the device take is there once.
Estimate in_parts(const Problem& problem, const Machine& machine, const Strategy& strategy) {
    const std::vector<Problem> operators = problem.parts();
    if (operators.size() != strategy.parts.size()) return {};
    Estimate made = estimate(operators.front(), machine, strategy.parts.front());
    for (std::size_t i = 1; i < operators.size(); ++i)
        made = one_after_another(made, estimate(operators[i], machine, strategy.parts[i]),
                                 machine.rates.call_us);
    return made;
}

}  // namespace

void Candidate::take(const Result<Estimate>& made) {
    if (made)
        estimate = *made;
    else
        pruned = made.error().message;
}

Candidate candidate_of(Strategy strategy) {
    std::string name = name_of(strategy);
    return {.name = std::move(name), .strategy = std::move(strategy), .estimate = {}, .pruned = {}};
}

void best_first(std::vector<Candidate>& candidates) {
    std::ranges::stable_sort(candidates, {}, [](const Candidate& candidate) {
        return std::pair(!candidate.pruned.empty(), candidate.pruned.empty() ? candidate.estimate.us : 0.0);
    });
}

std::string estimate_objection(const Problem& problem, const Machine& machine) {
    constexpr std::int32_t kMostRanks = 64;
    if (problem.nodes > 1) {
        if (problem.products().empty()) return fmt::format("estimates of {} are of one node", problem.op);
        if (machine.rates.network_gbps > 0) return {};
        return fmt::format("{} says nothing of a network between {} nodes: its file has no \"network\"",
                           machine.name, problem.nodes);
    }
    if (problem.ranks <= kMostRanks) return {};
    return fmt::format("estimates are of at most {} ranks, got {}", kMostRanks, problem.ranks);
}

Estimate estimate(const Problem& problem, const Machine& machine, const Strategy& strategy) {
    const Estimate unknown{.us = kUnknownUs};
    if (problem.nodes > 1 && !estimate_objection(problem, machine).empty()) return unknown;
    if (problem.is_mixture()) return estimate_mixture(problem, machine, strategy);
    if (const Result<AttentionProblem> attention = attention_problem(problem, machine); attention)
        return estimate_attention(*attention, machine, strategy);
    const OperatorRow* row = operator_row(problem.op);
    const std::vector<ProductShape> shapes = problem.products();
    if (row == nullptr || shapes.empty() || strategy.tiles.empty()) return {};
    if (strategy.placement == Placement::apart) return in_parts(problem, machine, strategy);
    if (row->kind == Kind::other && strategy.placement == Placement::unfused) {  // a chain: two launches
        Estimate made{.fixed = machine.rates.call_us + machine.rates.kernel_us};
        for (const ProductShape& shape : shapes)
            made.compute += library_product_us(machine, problem.dtype, shape);
        made.us = made.fixed + made.compute;
        return made;
    }
    if (problem.ranks > 1 && strategy.placement == Placement::unfused) {
        const bool block = row->kind == Kind::block;
        Estimate made = unfused(problem, machine, shapes.front(), block ? Kind::gathers : row->kind);
        if (block)
            made =
                one_after_another(made, unfused(problem, machine, shapes.back(), Kind::scatters), made.fixed);
        return made;
    }
    const Result<Estimate> made = play_operator(problem, machine, strategy);
    return made ? *made : unknown;
}

}  // namespace syncopate::tune
