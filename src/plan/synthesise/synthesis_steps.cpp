#include "plan/synthesise/synthesis_steps.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "plan/synthesise/hop_network.hpp"

#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

Topology reversed(Topology topology) {
    for (Link& link : topology.links) std::swap(link.from, link.to);
    for (Device& device : topology.devices) std::swap(device.egress_gbps, device.ingress_gbps);
    return topology;
}

/// The fastest of some searches.
template <typename Match>
Result<Matching> best_of(const SynthesisSearch& search, const HopNetwork& network,
                         const std::vector<MovingChunk>& chunks, Match match) {
    const auto count = static_cast<double>(search.members.size());
    const double work =
        static_cast<double>(chunks.size()) * count * (static_cast<double>(network.hops.size()) / count + 8);
    const std::int32_t attempts = search.attempts > 0 ? search.attempts
                                  : work < 2e5        ? 16
                                  : work < 2e6        ? 4
                                                      : 1;
    Matching best;
    for (std::int32_t attempt = 0; attempt < attempts; ++attempt) {
        const std::uint64_t seed = attempt == 0 && search.seed == 0
                                       ? 0
                                       : 1 + search.seed * 1000 + static_cast<std::uint64_t>(attempt);
        Matching found = match(network, chunks, seed);
        if (!found.unreachable.empty()) {
            const auto [chunk, participant] = found.unreachable.front();
            const auto rank = [&](std::int32_t member) { return search.members[at(member)]; };
            return usage_error(
                fmt::format("there is no way from rank {} to rank {} through the ranks that take "
                            "part, on topology {}",
                            rank(chunks[at(chunk)].origin), rank(participant), search.topology.name));
        }
        if (attempt == 0 || found.makespan_us < best.makespan_us) best = std::move(found);
    }
    return best;
}

/// Runs a spread over reversed links backwards.
void turn_round(Matching& matching) {
    for (Movement& movement : matching.movements) {
        const double start_us = matching.makespan_us - movement.end_us;
        movement.end_us = matching.makespan_us - movement.start_us;
        movement.start_us = start_us;
    }
    std::stable_sort(matching.movements.begin(), matching.movements.end(),
                     [](const Movement& a, const Movement& b) { return a.start_us < b.start_us; });
}

/// Movements, given in order of start, as steps.
SynthesisSteps to_steps(const HopNetwork& network, const Matching& matching, bool backwards,
                        std::size_t num_chunks) {
    struct Last {
        std::int32_t step = -1;
        std::int32_t sender = -1;
        double end_us = 0;
    };
    const std::size_t members = network.leaving.size();
    std::vector<Last> on_link(network.capacity.size());  // by resource
    std::vector<double> lane_end(network.capacity.size() + 2 * members, 0);
    std::vector<double> arrival(num_chunks * members, 0);
    constexpr double kGap = 1e-3;  // µs
    SynthesisSteps result;
    result.makespan_us = matching.makespan_us;
    result.steps.reserve(matching.movements.size());
    for (const Movement& movement : matching.movements) {
        const Hop& hop = network.hops[at(movement.hop)];
        const std::int32_t from = backwards ? hop.to : hop.from;
        const std::int32_t to = backwards ? hop.from : hop.to;
        const auto resources = network.resources_of(hop);
        // Backwards, the lane is the receiver's; the sender's are told apart by whether they lead out of its
        // node.
        const std::size_t lane =
            backwards ? network.capacity.size() + 2 * static_cast<std::size_t>(from) + (hop.crosses ? 1 : 0)
                      : static_cast<std::size_t>(resources.front());
        const auto arrived = [&](std::int32_t member) -> double& {
            return arrival[static_cast<std::size_t>(movement.chunk) * members +
                           static_cast<std::size_t>(member)];
        };
        const Last* latest = nullptr;
        // Run backwards, movements start as late as they can: a pause before one does not tell what it is
        // for.
        if (backwards || movement.start_us > std::max(lane_end[lane], arrived(from)) + kGap) {
            for (const std::int32_t link : resources.subspan(1)) {
                const Last& last = on_link[at(link)];
                if (last.step < 0 || last.sender == from) continue;
                if (latest == nullptr || last.end_us > latest->end_us) latest = &last;
            }
        }
        const auto self = static_cast<std::int32_t>(result.steps.size());
        result.steps.push_back(
            {movement.chunk, from, to, latest == nullptr ? -1 : latest->step, movement.start_us});
        for (const std::int32_t link : resources.subspan(1))
            on_link[at(link)] = {self, from, movement.end_us};
        lane_end[lane] = std::max(lane_end[lane], movement.end_us - hop.latency_us);
        arrived(to) = std::max(arrived(to), movement.end_us);
    }
    return result;
}

}  // namespace

Result<SynthesisSteps> synthesis_steps(const SynthesisSearch& search, SynthesisPattern pattern,
                                       const std::vector<MovingChunk>& chunks) {
    const bool sums = pattern == SynthesisPattern::sum;
    const HopNetwork network = hop_network(sums ? reversed(search.topology) : search.topology, search.members,
                                           sums || search.by_sms);
    const auto match = [&](const HopNetwork& on, const std::vector<MovingChunk>& moving, std::uint64_t seed) {
        return pattern == SynthesisPattern::send ? send_chunks(on, moving, seed)
                                                 : spread_chunks(on, moving, seed, search.second_crossings);
    };
    SYNCOPATE_TAKE(Matching matching, best_of(search, network, chunks, match));
    if (sums) turn_round(matching);
    return to_steps(network, matching, sums, chunks.size());
}

}  // namespace syncopate::plan
