#include "syncopate/tune/play/estimate.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "syncopate/tune/candidates/tiles.hpp"
#include "syncopate/tune/play/mixture.hpp"
#include "tune/play/operator_play.hpp"
#include "tune/play/over_nodes.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

using Kind = OperatorRow::Kind;
using fuse::kMib;

/// A product of the library's, and its collective before or behind it.
Estimate unfused(const Problem& problem, const Machine& machine, const ProductShape& shape, Kind kind) {
    const bool before = kind == Kind::gathers || kind == Kind::exchanges;
    const double row = before ? static_cast<double>(shape.k) * problem.item()
                              : static_cast<double>(shape.n) * problem.out_item();
    const double mib = static_cast<double>(shape.m) * row * (problem.ranks - 1) / problem.ranks / kMib;
    Estimate made;
    made.compute = library_product_us(machine, problem.dtype, shape);
    made.communicate = made.exposed = library_collective_us(machine.rates, kind, mib);
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
            .fixed = first.fixed + second.fixed - shared};
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
    if (problem.nodes > 1) return estimate_over_nodes(problem, machine, strategy);
    if (problem.op == "moe") return estimate_mixture(problem, machine, strategy);
    const OperatorRow* row = operator_row(problem.op);
    const std::vector<ProductShape> shapes = problem.products();
    if (row == nullptr || shapes.empty() || strategy.tiles.empty()) return {};
    if (strategy.placement == Placement::apart) return in_parts(problem, machine, strategy);
    if (problem.ranks > 1 && strategy.placement == Placement::unfused) {
        const bool block = row->kind == Kind::block;
        Estimate made = unfused(problem, machine, shapes.front(), block ? Kind::gathers : row->kind);
        if (block)
            made =
                one_after_another(made, unfused(problem, machine, shapes.back(), Kind::scatters), made.fixed);
        return made;
    }
    const Result<Estimate> made = play_operator(problem, machine, strategy);
    return made ? *made : Estimate{.us = kUnknownUs};
}

}  // namespace syncopate::tune
