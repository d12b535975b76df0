#include "syncopate/tune/candidates/attention.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "syncopate/ops/attention.hpp"
#include "syncopate/try.hpp"

namespace syncopate::tune {
namespace {

/// A kind and how its plan is made.
struct Kind {
    std::string name;
    plan::Circulation circulation = plan::Circulation::all_gather;
    std::int32_t ulysses = 1;
    std::int32_t inner = 0;
};

std::vector<Kind> kinds(const AttentionProblem& problem) {
    using enum plan::Circulation;
    const auto ranks = static_cast<std::int32_t>(problem.rows.size());
    const std::int32_t inner = problem.inner;
    std::vector<Kind> all{{"all_gather"}, {"ring", ring}, {"double_ring", double_ring, 1, inner}};
    all.push_back({"ulysses", all_gather, ranks});
    if (inner > 0) {
        all.push_back({"ulysses_ring", ring, inner});
    } else {
        for (std::int32_t group = 2; group < ranks; ++group)
            if (ranks % group == 0) all.push_back({"ulysses_ring", ring, group});
    }
    return all;
}

std::string objection(const Kind& kind, const AttentionProblem& problem) {
    const auto ranks = static_cast<std::int32_t>(problem.rows.size());
    if (kind.name == "ulysses_ring" &&
        (kind.ulysses < 2 || kind.ulysses >= ranks || ranks % kind.ulysses != 0))
        return fmt::format("it needs inner, a number of ranks between 1 and {} that divides them, not {}",
                           ranks, kind.ulysses);
    if (problem.shape.heads % kind.ulysses != 0)
        return fmt::format("{} heads cannot be shared out over {} ranks", problem.shape.heads, kind.ulysses);
    const std::int64_t block = std::max(1, problem.kernel.tile.block_m);
    if (kind.ulysses > 1 && kind.ulysses < ranks &&
        !plan::cut_at_tiles(problem.rows, problem.shape.length, block, kind.ulysses))
        return fmt::format("groups of {} ranks hold no whole tiles of {} rows of these {}", kind.ulysses,
                           block, problem.shape.length);
    if (kind.inner > 0 && ranks % kind.inner != 0)
        return fmt::format("{} ranks are no multiple of the inner ring's {}", ranks, kind.inner);
    if (kind.name == "double_ring" && kind.inner == 0 && (ranks % 2 != 0 || ranks < 4))
        return fmt::format("{} ranks make no two rings of more than one", ranks);
    return {};
}

Strategy strategy_of(const Kind& kind) {
    return {.kind = kind.name, .inner = kind.name == "ulysses_ring" ? kind.ulysses : kind.inner};
}

Result<Estimate> estimate_kind(const AttentionProblem& problem, const Machine& machine, const Kind& kind) {
    const plan::Mesh mesh{{{"gpu", static_cast<std::int32_t>(problem.rows.size())}}};
    plan::AttentionOptions options{.circulation = kind.circulation,
                                   .ulysses = kind.ulysses,
                                   .inner = kind.inner,
                                   .rows = problem.rows,
                                   .attended = {}};
    for (const plan::Rows& rows : problem.rows)
        options.attended.push_back(plan::attended_by(problem.sequence, rows, problem.kernel.tile.block_n));
    options.parts = problem.parts > 0 ? problem.parts
                    : problem.sequence.causal && problem.kernel.name != AttentionKernelName::gluon
                        ? 1
                        : ops::attention_parts(problem.shape, problem.sequence, problem.rows, kind.ulysses);
    SYNCOPATE_TAKE(const plan::Plan plan, plan::attention(mesh, problem.shape, options));
    return play_attention(problem, machine, plan, options, ops::relays_of(kind.name, mesh.num_ranks()));
}

}  // namespace

std::vector<Candidate> rank_attention(const AttentionProblem& problem, const Machine& machine) {
    std::vector<Candidate> all;
    for (const Kind& kind : kinds(problem)) {
        Candidate& candidate = all.emplace_back(candidate_of(strategy_of(kind)));
        candidate.pruned = objection(kind, problem);
        if (candidate.pruned.empty()) candidate.take(estimate_kind(problem, machine, kind));
    }
    all.push_back(candidate_of({.placement = Placement::unfused}));
    all.back().estimate = unfused_attention(problem, machine);
    if (ops::comes_in_passes({.shape = problem.shape,
                              .rows = problem.rows,
                              .kind = "all_gather",
                              .tile = problem.kernel.tile,
                              .bounded = problem.bounded}))
        all.back().pruned = "it gathers all of K and V, for rows of whole tiles";
    best_first(all);
    return all;
}

Estimate estimate_attention(const AttentionProblem& problem, const Machine& machine,
                            const Strategy& strategy) {
    if (strategy.placement == Placement::unfused) return unfused_attention(problem, machine);
    AttentionProblem asked = problem;
    const bool open = problem.kind.empty() || problem.kind == "auto";
    const std::string kind = !open ? problem.kind : strategy.kind.empty() ? "all_gather" : strategy.kind;
    if (strategy.inner > 0) asked.inner = strategy.inner;
    if (strategy.head_parts > 0) asked.parts = strategy.head_parts;
    for (const Kind& one : kinds(asked)) {
        if (one.name != kind || !objection(one, asked).empty()) continue;
        const Result<Estimate> made = estimate_kind(asked, machine, one);
        return made ? *made : Estimate{.us = kUnknownUs};
    }
    return {.us = kUnknownUs};
}

}  // namespace syncopate::tune
