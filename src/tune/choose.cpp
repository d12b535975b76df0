#include "syncopate/tune/choose.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "syncopate/ops/attention.hpp"
#include "syncopate/tune/candidates/attention.hpp"
#include "syncopate/tune/candidates/candidates.hpp"
#include "syncopate/tune/play/estimate.hpp"
#include "syncopate/tune/play/mixture.hpp"
#include "tune/play/memory.hpp"
#include "tune/play/operator_play.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {

namespace {

/// All strategies, those that are legal not yet estimated.
std::vector<Candidate> list_candidates(const Problem& problem, const Machine& machine) {
    std::vector<Candidate> listed;
    for (Strategy& strategy : candidates(problem, machine)) {
        Candidate& made = listed.emplace_back(candidate_of(std::move(strategy)));
        made.pruned = strategy_objection(problem, made.strategy);
    }
    return listed;
}

void estimate_candidate(const Problem& problem, const Machine& machine, Candidate& candidate,
                        const Routing& routing = {}) {
    candidate.estimate = problem.is_mixture()
                             ? estimate_mixture(problem, machine, candidate.strategy, routing)
                             : estimate(problem, machine, candidate.strategy);
    if (candidate.estimate.us >= kUnknownUs)
        candidate.pruned = fmt::format("{} has no figure, or no link, for what it moves", machine.name);
}

}  // namespace

std::vector<Candidate> rank_candidates(const Problem& problem, const Machine& machine,
                                       const Routing& routing) {
    if (const Result<AttentionProblem> attention = attention_problem(problem, machine); attention)
        return rank_attention(*attention, machine);
    std::vector<Candidate> ranked = list_candidates(problem, machine);
    const bool estimated = problem.nodes == 1 || estimate_objection(problem, machine).empty();
    for (Candidate& candidate : ranked) {
        if (candidate.pruned.empty() && estimated) estimate_candidate(problem, machine, candidate, routing);
    }
    best_first(ranked);
    return ranked;
}

namespace {

/// With tiles whose products are exact, where fp32 ones have to be.
Strategy exact(const Problem& problem, const Machine& machine, Strategy strategy,
               const ChooseOptions& options) {
    if (!options.exact_fp32 || plan::size_of(problem.dtype) <= 2) return strategy;
    strategy.tiles.clear();
    strategy.parts.clear();
    return complete(problem, machine, strategy, options);
}

/// Whether the caller can run a strategy, or all of its parts.
bool runs_for(const ChooseOptions& options, const Strategy& strategy) {
    return (options.unfused || strategy.placement != Placement::unfused) &&
           (options.gluon || strategy.kernel != ProductKernel::gluon) &&
           !(options.kept && fuse::is_inline(strategy.backend)) &&
           std::ranges::all_of(strategy.parts, [&](const Strategy& part) { return runs_for(options, part); });
}

/// µs that a strategy takes more to leave what is gathered, [M, K], in a tensor of the caller's: the pair
/// gathers it there, tiles of the Gluon kernel store it, and what a plain one gathers is copied by one more
/// kernel.
double copy_us(const Problem& problem, const Machine& machine, const Strategy& strategy) {
    if (strategy.placement == Placement::unfused) return 0;
    const double bytes =
        static_cast<double>(problem.extent("M")) * static_cast<double>(problem.extent("K")) * problem.item();
    return strategy.kernel == ProductKernel::gluon ? over(bytes, machine.rates.memory_gbps)
                                                   : local_copy_us(machine, bytes);
}

/// Whether the winner of other rows is the better one for the problem's, too. The estimate of both is off by
/// some factor where both were measured; the further away the rows are, the less of it holds: half of its
/// logarithm at twice the rows or half of them, a third at four times.
bool carries_over(const Problem& problem, const Machine& machine, const Stored& stored,
                  const Strategy& strategy, const ChooseOptions& options) {
    const bool estimated =
        options.device == fuse::Device::cuda && estimate_objection(problem, machine).empty();
    if (stored.rows == 0 || stored.us <= 0 || stored.usual_us <= 0 || !estimated) return true;
    const Problem measured = problem.with_rows(stored.rows);
    const auto us = [&](const Problem& of, const Strategy& taken) { return estimate(of, machine, taken).us; };
    const auto usual_us = [&](const Problem& of) {
        return us(of, choose(of, machine, nullptr, options).strategy);
    };
    const double off = stored.us / us(measured, complete(measured, machine, stored.strategy, options));
    const double usual_off = stored.usual_us / usual_us(measured);
    const double times =
        static_cast<double>(problem.extent(problem.rows_name())) / static_cast<double>(stored.rows);
    const double holds = 1 / (1 + std::abs(std::log2(times)));
    return us(problem, strategy) * std::pow(off / usual_off, holds) <= usual_us(problem);
}

bool can_run(const Problem& problem, const Strategy& strategy, const ChooseOptions& options) {
    return strategy_objection(problem, strategy).empty() && runs_for(options, strategy);
}

/// What tuning has found, where this caller can carry it out; else `warning` says what there is to say.
std::optional<Choice> stored(const Problem& problem, const Machine& machine, const Store* store,
                             const ChooseOptions& options, std::string& warning) {
    const std::optional<Stored> known = store == nullptr ? std::nullopt : store->find(problem);
    if (!known) return std::nullopt;
    const Strategy strategy =
        exact(problem, machine, complete(problem, machine, known->strategy, options), options);
    if (can_run(problem, strategy, options) && carries_over(problem, machine, *known, strategy, options))
        return Choice{.strategy = strategy,
                      .us = known->rows == 0 ? known->us : 0,
                      .measured = true,
                      .note = known->note,
                      .warning = {}};
    // What this caller cannot do, another one can: that needs no word.
    if (const std::string objection = strategy_objection(problem, strategy); !objection.empty())
        warning = fmt::format("what tuning found for {}, {}, is not taken: {}", problem.key(),
                              name_of(strategy), objection);
    return std::nullopt;
}

/// Why the estimate does not choose: it is not there, or would take longer than calls gain by it.
std::string choice_objection(const Problem& problem, const Machine& machine) {
    constexpr std::int32_t kMostRanks = 64;
    if (problem.nodes > 1 && problem.ranks > kMostRanks)
        return fmt::format("over nodes the estimate chooses for at most {} ranks", kMostRanks);
    return estimate_objection(problem, machine);
}

Choice by_estimate(const Machine& machine, Strategy strategy, double us) {
    return {.strategy = std::move(strategy),
            .us = us,
            .note = fmt::format("by the estimate on {}", machine.name),
            .warning = {}};
}

/// Unfused, attention and mixtures take the host longer, for which machine files have no figure: nobody but a search takes
/// that for the faster way.
void tell_of_pair(Choice& choice, double pair_us, std::string_view why) {
    if (pair_us < choice.us) choice.note += fmt::format("; unfused, {}, would take {:.1f} us", why, pair_us);
}

Choice choose_mixture(const Problem& problem, const Machine& machine, const Strategy& usual,
                      const ChooseOptions& options) {
    const Strategy pair = complete(problem, machine, {.placement = Placement::unfused}, options);
    Choice made = by_estimate(machine, usual, estimate_mixture(problem, machine, usual).us);
    if (strategy_objection(problem, pair).empty())
        tell_of_pair(made, estimate_mixture(problem, machine, pair).us, "for which the host reads counts");
    return made;
}

Choice choose_kind(const AttentionProblem& problem, const Machine& machine, const ChooseOptions& options) {
    const auto ranks = static_cast<std::int32_t>(problem.rows.size());
    const bool open = problem.kind.empty() || problem.kind == "auto";
    if (!open) return {.strategy = {.kind = problem.kind, .inner = problem.inner}, .note = "as asked for"};
    if (problem.nodes > 1) {
        const ops::KindOverNodes made = ops::kind_over_nodes(ranks, problem.nodes);
        return {.strategy = {.kind = made.kind, .inner = made.inner},
                .note = "the default: estimates of attention are of one node"};
    }
    const bool passes = ops::comes_in_passes({.shape = problem.shape,
                                              .rows = problem.rows,
                                              .kind = "auto",
                                              .inner = problem.inner,
                                              .tile = problem.kernel.tile,
                                              .bounded = problem.bounded});
    const bool by_pair = options.unfused && options.device == fuse::Device::cuda;
    const Candidate* best = nullptr;
    const Candidate* pair = nullptr;
    const std::vector<Candidate> ranked = rank_attention(problem, machine);
    for (const Candidate& one : ranked) {
        if (!one.pruned.empty() || (passes && !ops::circulates(one.strategy.kind))) continue;
        const Candidate*& place = one.strategy.placement == Placement::unfused ? pair : best;
        if (place == nullptr) place = &one;
    }
    if (best == nullptr)
        return {.strategy = {.kind = "all_gather"}, .note = "the default: no other is legal"};
    Choice made = by_estimate(machine, best->strategy, best->estimate.us);
    if (by_pair && pair != nullptr) tell_of_pair(made, pair->estimate.us, "which `tune` tries");
    return made;
}

}  // namespace

Choice choose(const AttentionProblem& problem, const Machine& machine, const Store* store,
              const ChooseOptions& options) {
    std::string warning;
    if (problem.spec) {
        if (std::optional<Choice> found = stored(*problem.spec, machine, store, options, warning))
            return *found;
    }
    Choice made = choose_kind(problem, machine, options);
    made.warning = warning;
    return made;
}

Choice choose(const Problem& problem, const Machine& machine, const Store* store,
              const ChooseOptions& options) {
    if (const Result<AttentionProblem> attention = attention_problem(problem, machine); attention) {
        Choice made = choose(*attention, machine, store, options);
        made.strategy = complete(problem, machine, made.strategy, options);
        return made;
    }
    Strategy usual = complete(problem, machine, {}, options);
    if (options.kept && fuse::is_inline(usual.backend))
        usual = complete(problem, machine, {.backend = plan::Backend::copy_engine}, options);
    std::string warning;
    if (std::optional<Choice> found = stored(problem, machine, store, options, warning)) return *found;
    const auto runnable = [&](const Strategy& strategy) { return can_run(problem, strategy, options); };
    if (problem.op == "mlp_chain")
        return {.strategy = usual, .note = "the default: a first call measures its ways", .warning = warning};
    const bool estimated = !problem.products().empty() || problem.is_mixture();
    if (options.device == fuse::Device::host || !estimated)
        return {.strategy = usual, .note = "the default", .warning = warning};
    if (const std::string objection = choice_objection(problem, machine); !objection.empty()) {
        // Whatever the network is like, the pair is what callers have without us.
        const Strategy pair = complete(problem, machine, {.placement = Placement::unfused}, options);
        const bool takes_pair = problem.nodes > 1 && runnable(pair);
        return {.strategy = takes_pair ? pair : usual,
                .note = fmt::format("{}: {}", takes_pair ? "the unfused pair" : "the default", objection),
                .warning = warning};
    }
    if (problem.is_mixture()) {
        Choice made = choose_mixture(problem, machine, usual, options);
        made.warning = warning;
        return made;
    }
    const auto us_of = [&](const Candidate& candidate) {
        return candidate.estimate.us + (options.copied ? copy_us(problem, machine, candidate.strategy) : 0);
    };
    Machine known = machine;
    if (!options.gluon) known.rates.gluon_tflops = 0;  // nothing is to be made for that kernel
    std::vector<Candidate> listed = list_candidates(problem, known);
    const Candidate* best = nullptr;
    std::vector<std::pair<double, Candidate*>> by_least;  // by what each takes at least
    for (Candidate& candidate : listed) {
        if (candidate.strategy.placement == Placement::apart)  // each operator as this caller can run it
            candidate.strategy = complete(problem, known, {.placement = Placement::apart}, options);
        if (candidate.pruned.empty() && runnable(candidate.strategy))
            by_least.emplace_back(least_us(problem, known, candidate.strategy), &candidate);
    }
    // None of those that are left is better once one takes longer at least than the best takes.
    std::ranges::stable_sort(by_least, {}, &std::pair<double, Candidate*>::first);
    for (const auto& [least, candidate] : by_least) {
        if (best != nullptr && least > us_of(*best)) break;
        estimate_candidate(problem, known, *candidate);
        if (!candidate->pruned.empty()) continue;
        // Among equals the first one that is listed.
        const bool better = best == nullptr || us_of(*candidate) < us_of(*best) ||
                            (us_of(*candidate) == us_of(*best) && candidate < best);
        if (better) best = candidate;
    }
    if (best == nullptr)
        return {.strategy = usual, .note = "the default: no other is legal", .warning = warning};
    Choice made = by_estimate(machine, exact(problem, machine, best->strategy, options), us_of(*best));
    made.warning = warning;
    return made;
}

}  // namespace syncopate::tune
