#include "syncopate/tune/candidates/program.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "syncopate/fuse/model/backend.hpp"

namespace syncopate::tune {
namespace {

constexpr std::size_t kMostWidened = 2;  // configurations that are tried by every strategy

/// What two strategies have in common that fuse makes the same of.
std::string shape_of(const fuse::Decisions& work, const Strategy& strategy) {
    std::string text;
    bool engine = false;
    for (const auto& list : work.backends) {
        for (const plan::Backend backend : list) {
            text += plan::name_of(backend);
            text += ' ';
            engine |= fuse::is_engine(backend);
        }
    }
    for (const fuse::StageOrder& order : work.orders) {
        text += order.phased ? "phased " : "whole ";
        for (const std::vector<std::int64_t>& tiles : order.tiles) {
            for (const std::int64_t tile : tiles) text += fmt::format("{},", tile);
        }
    }
    text +=
        fmt::format("|{} ops", work.lowered.plan.ranks.empty() ? 0 : work.lowered.plan.ranks.front().size());
    if (engine) text += fmt::format("|{} blocks", strategy.engine_blocks.value_or(0));
    return text;
}

std::string name_of_candidate(std::size_t configuration, std::size_t count, const Strategy& strategy) {
    const std::string name = name_of(strategy);
    return count < 2 ? name : fmt::format("configuration {}/{}", configuration, name);
}

}  // namespace

fuse::Options options_of(const Strategy& strategy, fuse::Device device, const Machine& machine) {
    fuse::Options options = ops::fuse_options(strategy, device);
    if (device == fuse::Device::cuda) options.costs = machine.rates;
    return options;
}

std::vector<Strategy> program_strategies(const Machine& machine, fuse::Device device) {
    std::vector<Strategy> made{Strategy{}};
    for (const fuse::BackendTraits& row : fuse::backend_rows()) {
        if (!row.on(device) || row.lane == fuse::LaneKind::channel) continue;
        Strategy strategy{.backend = row.backend};
        if (row.lane != fuse::LaneKind::engine) {
            made.push_back(strategy);
            continue;
        }
        for (const auto& [blocks, gbps] : machine.rates.engine_gbps.points) {
            strategy.engine_blocks = static_cast<std::int32_t>(blocks);
            made.push_back(strategy);
            if (device == fuse::Device::host) break;  // where a block is a thread's turn
        }
    }
    return made;
}

std::vector<ProgramCandidate> rank_program(std::span<const fuse::StagedProgram> configurations,
                                           const Machine& machine, fuse::Device device) {
    std::vector<ProgramCandidate> made;
    std::vector<std::set<std::string>> seen(configurations.size());
    const auto look = [&](std::size_t at, const Strategy& strategy) {
        const fuse::StagedProgram& program = configurations[at];
        ProgramCandidate candidate{.configuration = at,
                                   .strategy = strategy,
                                   .name = name_of_candidate(at, configurations.size(), strategy)};
        const Result<fuse::Decisions> work = fuse::decide(program, options_of(strategy, device, machine));
        if (!work) {
            candidate.pruned = work.error().message;
        } else if (!seen[at].insert(shape_of(*work, strategy)).second) {
            return;
        } else {
            candidate.estimate = estimate_program(program, *work, machine, strategy);
        }
        made.push_back(std::move(candidate));
    };
    const auto quicker = [&](const ProgramCandidate& a, const ProgramCandidate& b) {
        if (a.pruned.empty() != b.pruned.empty()) return a.pruned.empty();
        return device == fuse::Device::cuda && a.pruned.empty() && a.estimate.us < b.estimate.us;
    };
    for (std::size_t at = 0; at < configurations.size(); ++at) look(at, Strategy{});
    std::ranges::stable_sort(made, quicker);
    std::vector<std::size_t> widened;
    for (const ProgramCandidate& candidate : made) {
        if (widened.size() < kMostWidened) widened.push_back(candidate.configuration);
    }
    for (const std::size_t at : widened) {
        for (const Strategy& strategy : program_strategies(machine, device)) {
            if (!(strategy == Strategy{})) look(at, strategy);
        }
    }
    std::ranges::stable_sort(made, quicker);
    return made;
}

}  // namespace syncopate::tune
