#include "syncopate/tune/search/contenders.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/ops/varied.hpp"
#include "syncopate/try.hpp"
#include "syncopate/tune/candidates/mixture.hpp"
#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {
namespace {

struct Named {
    std::string name;
    Strategy strategy;
    double us = 0;
};

/// Of attention what the estimate does not tell apart: parts of the heads, chunks of rows, and the chunk engine, each of
/// every kind.
std::vector<Named> varied_kinds(const Problem& problem, const Machine& machine,
                                const ChooseOptions& options) {
    std::vector<Named> made;
    const std::string_view asked = problem.word("kind");
    for (const Candidate& one : rank_candidates(problem, machine)) {
        const bool other = !asked.empty() && asked != "auto" && one.strategy.kind != asked;
        const bool pair = one.strategy.placement == Placement::unfused;
        if (pair) made.push_back({one.name, one.strategy, one.estimate.us});
        if (!one.pruned.empty() || other || pair) continue;
        std::vector<Strategy> all(1, one.strategy);
        for (const std::int32_t parts : {1, 2, 4}) all.emplace_back(one.strategy).head_parts = parts;
        all.emplace_back(one.strategy).split = 2;
        for (const plan::Backend backend : {plan::Backend::tma_dedicated, plan::Backend::ldst_dedicated}) {
            Strategy& by_engine = all.emplace_back(one.strategy);
            by_engine.backend = backend;
            by_engine.engine_blocks = fuse::Options{}.engine_blocks;
        }
        for (const Strategy& strategy : all) {
            Strategy whole = complete(problem, machine, strategy, options);
            if (strategy_objection(problem, whole).empty())
                made.push_back({name_of(strategy), std::move(whole), one.estimate.us});
        }
    }
    return made;
}

}  // namespace

Result<std::vector<Contender>> contenders(const Problem& problem, const Machine& machine,
                                          const ChooseOptions& options, std::span<const std::string> vary) {
    const bool attention = problem.op == "attention";
    const bool on_host = options.device == fuse::Device::host;
    const auto whole = [&](Strategy strategy) {
        if (on_host && problem.is_mixture()) {  // of which rows are all that is tried
            strategy.programs.reset();
            if (!strategy.tiles.empty())
                strategy.tiles = {mixture_host_tile(problem, strategy.tiles.front().block_m)};
        } else if (on_host && !attention) {
            strategy.tiles = {ops::small_tile()};
            if (!strategy.kernel) strategy.kernel = ProductKernel::plain;
        }
        return complete(problem, machine, strategy, options);
    };
    const Strategy usual =
        on_host && !attention ? whole({}) : choose(problem, machine, nullptr, options).strategy;
    std::vector<Named> others;
    if (const auto texts = ops::variations(vary); !texts) {
        return texts.error();
    } else if (!texts->empty()) {
        const Strategy fused =
            usual.placement == Placement::unfused ? whole({.kernel = std::nullopt}) : usual;
        for (const ops::Variation& one : *texts) {
            SYNCOPATE_TAKE(const Strategy made, ops::varied(fused, one.values));
            if (!problem.is_mixture()) {
                others.push_back({one.name, whole(made), 1});
                continue;
            }
            if (const std::string objection = mixture_objection(problem, made); !objection.empty())
                return usage_error(fmt::format("--vary {}: {}", one.name, objection));
            others.push_back({one.name, complete(problem, machine, made, options), 1});
        }
    } else {
        const std::string objection = estimate_objection(problem, machine);
        if (!objection.empty() && problem.nodes == 1) return usage_error(objection);
        if (attention) others = varied_kinds(problem, machine, options);
        for (Candidate& one : attention ? std::vector<Candidate>{} : rank_candidates(problem, machine)) {
            if (!one.pruned.empty()) continue;
            Strategy made = whole(std::move(one.strategy));          // on the host by other tiles
            const bool pair = made.placement == Placement::unfused;  // whose estimate is told in any case
            if (pair || strategy_objection(problem, made).empty())
                others.push_back({std::move(one.name), std::move(made), one.estimate.us});
        }
    }
    const auto estimated = [&](const auto& is_it) {
        const auto found = std::ranges::find_if(others, is_it);
        return found == others.end() || !vary.empty() ? 0 : found->us;
    };
    const auto is_pair = [](const Named& one) { return one.strategy.placement == Placement::unfused; };
    Strategy pair{.placement = Placement::unfused, .kernel = std::nullopt};
    if (attention) pair = complete(problem, machine, pair, options);  // its rows are whole tiles
    std::vector<Strategy> seen{usual, pair};
    std::vector<Contender> made{
        {.name = "default",
         .strategy = to_json(usual),
         .estimate_us = estimated([&](const Named& one) { return one.strategy == usual; }),
         .baseline = true},
        {.name = "unfused", .strategy = to_json(pair), .estimate_us = estimated(is_pair), .baseline = true}};
    for (Named& one : others) {
        if (is_pair(one) || std::ranges::find(seen, one.strategy) != seen.end()) continue;
        made.push_back(
            {.name = std::move(one.name), .strategy = to_json(one.strategy), .estimate_us = one.us});
        seen.push_back(std::move(one.strategy));
    }
    return made;
}

}  // namespace syncopate::tune
