#include "plan/templates/broadcast_nodes.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>

#include "plan/templates/broadcast_rounds.hpp"
#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

// By simulation on h200x8x2, 4 GiB: shares from 0.2 to 0.5 and ramps of 4 to 32 pairs are alike to 1 %.
constexpr std::int32_t kFirstRamp = 24;  ///< pairs until they have their full size
constexpr double kFirstShare = 0.3;      ///< of the full size: the first one
constexpr std::int32_t kLastRamp = 10;   ///< the same for each card's last pairs
constexpr double kLastShare = 0.5;

double ramp(std::int32_t place, std::int32_t length, double begin) {
    return begin + (1 - begin) * std::min(1.0, static_cast<double>(place) / length);
}

/// The pair that a card sends as its k-th.
std::int32_t pair_of(std::int32_t card, std::int32_t k, std::int32_t cards, std::int32_t pairs) {
    return card == 0 ? pairs - 1 - k : (cards - 1) * k + card - 1;
}

}  // namespace

std::optional<TwoNodes> two_nodes(const HopNetwork& network, std::int32_t root) {
    const std::int32_t node = network.node_of[at(root)];
    std::array<std::vector<std::int32_t>, 2> members;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(network.node_of.size()); ++i) {
        if (network.node_of[at(i)] > 1) return std::nullopt;
        members[network.node_of[at(i)] == node ? 0 : 1].push_back(i);
    }
    const std::size_t count = members[0].size();
    if (count < 4 || !std::has_single_bit(count) || members[1].size() != count) return std::nullopt;
    const auto place =
        static_cast<std::size_t>(std::find(members[0].begin(), members[0].end(), root) - members[0].begin());
    TwoNodes nodes;
    for (std::size_t i = 0; i < count; ++i) {
        nodes.inside.push_back(members[0][i ^ place]);
        nodes.outside.push_back(members[1][i ^ place]);
    }
    std::set<std::pair<std::int32_t, std::int32_t>> hops;
    for (const Hop& hop : network.hops) hops.emplace(hop.from, hop.to);
    for (std::size_t i = 0; i < count; ++i) {
        if (!hops.contains({nodes.inside[i], nodes.outside[i]})) return std::nullopt;
        for (std::size_t j = 0; j < count; ++j) {
            for (const auto* side : {&nodes.inside, &nodes.outside}) {
                if (i != j && !hops.contains({(*side)[i], (*side)[j]})) return std::nullopt;
            }
        }
    }
    return nodes;
}

std::vector<NodeStep> broadcast_nodes(const TwoNodes& nodes, std::int32_t pairs) {
    const auto cards = static_cast<std::int32_t>(nodes.inside.size());
    constexpr std::array kHalves{Half::copy_engine, Half::sms};
    std::vector<NodeStep> steps;
    std::vector<std::array<std::int32_t, 2>> last(2 * at(cards), {-1, -1});  ///< by receiver and half
    const auto add = [&](std::int32_t pair, Half half, std::int32_t from, std::int32_t to) {
        std::int32_t& before = last[at(to)][at(half)];
        const bool yields = before >= 0 && steps[at(before)].from != from;
        steps.push_back({pair, half, from, to, yields ? before : -1});
        before = static_cast<std::int32_t>(steps.size()) - 1;
    };
    const std::vector<SynthesisStep> rounds = broadcast_rounds(cards, 0, pairs);
    std::size_t next = 0;
    std::vector<std::int32_t> crossed(at(cards), 0);  ///< by card: pairs whose crossing stands in the list
    std::vector<char> has(at(cards) * at(pairs), 0);
    std::fill_n(has.begin(), pairs, 1);  // the root
    while (next < rounds.size()) {
        const double round = rounds[next].start_us;
        const std::size_t begin = next;
        for (const Half half : kHalves) {
            for (next = begin; next < rounds.size() && rounds[next].start_us == round; ++next) {
                const SynthesisStep& step = rounds[next];
                add(step.chunk, half, nodes.inside[at(step.from)], nodes.inside[at(step.to)]);
                has[at(step.to) * at(pairs) + at(step.chunk)] = 1;
            }
        }
        for (std::int32_t card = 0; card < cards; ++card) {
            std::int32_t& k = crossed[at(card)];
            // No more than what the card can have done by then, so that lists are in order of time.
            if (k == pairs / cards || k > static_cast<std::int32_t>(round) / cards) continue;
            const std::int32_t pair = pair_of(card, k, cards, pairs);
            if (has[at(card) * at(pairs) + at(pair)] == 0) continue;
            steps.push_back({pair, Half::both, nodes.inside[at(card)], nodes.outside[at(card)], -1});
            ++k;
        }
    }
    for (std::int32_t card = 0; card < cards; ++card) {
        for (std::int32_t k = crossed[at(card)]; k < pairs / cards; ++k) {
            steps.push_back({pair_of(card, k, cards, pairs), Half::both, nodes.inside[at(card)],
                             nodes.outside[at(card)], -1});
        }
    }
    for (std::int32_t k = 0; k < pairs / cards; ++k) {
        for (std::int32_t other = 1; other < cards; ++other) {
            for (const Half half : kHalves) {
                for (std::int32_t card = 0; card < cards; ++card) {
                    add(pair_of(card, k, cards, pairs), half, nodes.outside[at(card)],
                        nodes.outside[at(card ^ other)]);
                }
            }
        }
    }
    return steps;
}

std::vector<double> shares_of_pairs(std::int32_t participants_of_a_node, std::int32_t pairs) {
    const std::int32_t cards = participants_of_a_node;
    const std::int32_t per_card = pairs / cards;
    std::vector<double> shares(at(pairs));
    for (std::int32_t card = 0; card < cards; ++card) {
        for (std::int32_t k = 0; k < per_card; ++k) {
            const std::int32_t pair = pair_of(card, k, cards, pairs);
            shares[at(pair)] =
                std::min(ramp(pair, kFirstRamp, kFirstShare), ramp(per_card - 1 - k, kLastRamp, kLastShare));
        }
    }
    const double whole = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& share : shares) share /= whole;
    return shares;
}

}  // namespace syncopate::plan
