#include "syncopate/plan/synthesise/synthesise.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "plan/synthesise/hop_network.hpp"
#include "plan/synthesise/synthesis_steps.hpp"
#include "plan/synthesise/synthesised_plan.hpp"
#include "plan/templates/broadcast_nodes.hpp"
#include "plan/templates/broadcast_rounds.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/templates/templates.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

constexpr std::int32_t kMostRanks = 512;  ///< with which a search ends in seconds
constexpr std::int32_t kMostGroups = 16;
constexpr std::int32_t kMostChunksGrouped = 64;

/// Done, or what is wrong with the arguments.
Status validate(const Mesh& mesh, const Tensor& tensor, const Topology& topology,
                const SynthesiseOptions& options) {
    const std::int32_t ranks = mesh.num_ranks();
    const auto axes = static_cast<std::int32_t>(tensor.shape.size());
    if (options.kind == CollectiveKind::permute)
        return synthesis_error(options, "a permute moves each chunk once, so there is nothing to synthesise");
    if (ranks < 1 || ranks > kMaxRanks)
        return synthesis_error(options,
                               fmt::format("the mesh has {} ranks; expected 1 to {}", ranks, kMaxRanks));
    if (ranks > kMostRanks || topology.num_devices() > kMostRanks) {
        return synthesis_error(
            options,
            fmt::format("{} ranks on {} devices are too many to search for; at most {}: take a template "
                        "(plan make), or find a plan for a part of them",
                        ranks, topology.num_devices(), kMostRanks));
    }
    if (ranks > topology.num_devices()) {
        return synthesis_error(options, fmt::format("the mesh has {} ranks, but topology {} has {} devices",
                                                    ranks, topology.name, topology.num_devices()));
    }
    if (axes < 1 || axes > kMaxAxes)
        return synthesis_error(options,
                               fmt::format("the tensor has {} axes; expected 1 to {}", axes, kMaxAxes));
    for (const std::int64_t size : tensor.shape) {
        if (size < 1)
            return synthesis_error(
                options,
                fmt::format("tensor {} has an axis of size {}; expected at least 1", tensor.name, size));
    }
    const auto has_axis = [&](std::int32_t axis) { return axis >= 0 && axis < axes; };
    if (!has_axis(options.axis)) {
        return synthesis_error(options, fmt::format("axis {} is not an axis of tensor {}; expected 0 to {}",
                                                    options.axis, tensor.name, axes - 1));
    }
    if (options.kind == CollectiveKind::all_to_all &&
        (!has_axis(options.to_axis) || options.to_axis == options.axis)) {
        return synthesis_error(
            options, fmt::format("to_axis {} must be another axis of tensor {} than {}: shards along the one "
                                 "become shards along the other",
                                 options.to_axis, tensor.name, options.axis));
    }
    if (options.chunks < 0 || options.chunks > kMaxOps)
        return synthesis_error(options,
                               fmt::format("chunks is {}; expected 0 to {}", options.chunks, kMaxOps));
    if (options.attempts < 0 || options.attempts > 1000)
        return synthesis_error(options, fmt::format("attempts is {}; expected 0 to 1000", options.attempts));
    std::vector<std::int32_t> seen = options.ranks;
    std::sort(seen.begin(), seen.end());
    if (std::adjacent_find(seen.begin(), seen.end()) != seen.end())
        return synthesis_error(options, "ranks names a rank twice");
    if (!seen.empty() && (seen.front() < 0 || seen.back() >= ranks))
        return synthesis_error(options,
                               fmt::format("ranks names a rank that is not one of 0 to {}", ranks - 1));
    if (options.kind == CollectiveKind::broadcast &&
        (seen.empty() ? options.root < 0 || options.root >= ranks
                      : !std::binary_search(seen.begin(), seen.end(), options.root))) {
        return synthesis_error(options, fmt::format("root {} does not take part", options.root));
    }
    return Done{};
}

/// A broadcast's chunks fill a pipeline as long as the machine is wide, so there may be more of them.
std::int32_t most_chunks(const SynthesiseOptions& options) {
    return options.kind == CollectiveKind::broadcast ? 4 * kMostChunksTried : kMostChunksTried;
}

/// `open`: the number of chunks is one of several that are tried; `network`: the ways of a broadcast.
std::vector<SynthesisWay> ways(const Topology& topology, const SynthesiseOptions& options, bool open,
                               const HopNetwork* network) {
    const bool rounds = network != nullptr && fits_rounds(*network);
    const bool two = network != nullptr && two_nodes(*network, 0).has_value();
    std::vector<SynthesisWay> all{{}};
    const bool both = open && options.sms;
    if (options.kind == CollectiveKind::all_to_all && both) all.push_back({.both_engines = true});
    if (options.kind == CollectiveKind::broadcast) {
        if (both) all.push_back({.both_engines = true});
        if (rounds) all.push_back({.rounds = true});
        if (rounds && both) all.push_back({.both_engines = true, .rounds = true});
        if (two && both) all.push_back({.both_engines = true, .nodes = true});
    }
    if (options.kind != CollectiveKind::all_reduce) return all;
    const bool grouped = options.chunks <= kMostChunksGrouped;
    const bool nodes = topology.num_nodes() > 1;
    for (std::int32_t groups = 2; grouped && groups <= std::min(options.chunks, kMostGroups); groups *= 2) {
        all.push_back({groups});
        if (nodes) all.push_back({groups, SecondCrossings::eager});
    }
    if (grouped || open) all.push_back({kAlongTrees});
    return all;
}

}  // namespace

Result<Plan> synthesise(const Mesh& mesh, const Tensor& tensor, const Topology& topology,
                        const SynthesiseOptions& options) {
    SYNCOPATE_TRY(validate(mesh, tensor, topology, options));
    // A plan with each number of chunks, and for each way to search, that may be the fastest; the simulation
    // tells.
    std::optional<Plan> best;
    double shortest = 0;
    SynthesiseOptions cut = options;
    const bool open = options.chunks == 0;
    std::optional<HopNetwork> network;
    if (options.kind == CollectiveKind::broadcast)
        network = hop_network(topology, participants(mesh, options), false);
    for (cut.chunks = open ? 1 : options.chunks; cut.chunks <= (open ? most_chunks(options) : options.chunks);
         cut.chunks *= 2) {
        const std::vector<SynthesisWay> tried = ways(topology, cut, open, network ? &*network : nullptr);
        double fastest = kUnlimited;
        for (const SynthesisWay& way : tried) {
            Result<Plan> plan = synthesised_plan(mesh, tensor, topology, cut, way);
            if (!plan && (way.groups == kAlongTrees || way.both_engines)) continue;  // does not fit
            if (!plan && !best) return plan.error();
            if (!plan) return *std::move(best);
            if (!open && tried.size() == 1) return plan;
            SYNCOPATE_TAKE(const Simulation run, simulate(*plan, topology));
            fastest = std::min(fastest, run.makespan_us);
            if (best && run.makespan_us >= shortest) continue;
            best = *std::move(plan);
            shortest = run.makespan_us;
        }
        if (!open || fastest > kClearlySlower * shortest) break;
    }
    return *std::move(best);
}

}  // namespace syncopate::plan
