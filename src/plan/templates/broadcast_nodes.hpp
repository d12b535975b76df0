// A broadcast over two nodes of 2^q participants each, both engines of every participant at work. Chunks come
// in pairs, one half for the copy engines and one for the SMs.
//
//     root's node    in rounds (broadcast_rounds.hpp), so that each participant gets a pair a round
//     across         every participant has a card, and a twin in the other node. It sends its twin every n-th
//                    pair, which takes about n rounds; so all cards are busy all the time. The root has
//                    everything from the start, so its card takes the last pairs, beginning with the very
//                    last; the other cards need not wait for the end of the rounds
//     other node     who has got a pair passes it on to all others there, to p ^ 1, p ^ 2, … in rounds in
//                    which everyone has the same partner number, so that no two meet at one receiver
//
//     n = 4, 8 pairs     pair   0 1 2 3 4 5 | 6 7        the root's card: 7, then 6
//                        card   1 2 3 1 2 3 | 0 0
//
// Pairs are small at first, so that cards start soon, and those that cross last are small, so that the last
// of them are soon passed on.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/synthesise/hop_network.hpp"

namespace syncopate::plan {

/// The two nodes: participants of the root's and of the other one, such that inside[0] is the root and
/// outside[i] the twin of inside[i].
struct TwoNodes {
    std::vector<std::int32_t> inside;
    std::vector<std::int32_t> outside;
};

/// nullopt unless there are two nodes of 2^q >= 4 participants, who reach each other within a node, and their
/// twins.
[[nodiscard]] std::optional<TwoNodes> two_nodes(const HopNetwork& network, std::int32_t root);

enum class Half : std::uint8_t { copy_engine, sms, both };

struct NodeStep {
    std::int32_t pair = 0;
    Half half = Half::copy_engine;  ///< both: across
    std::int32_t from = 0;          ///< participants
    std::int32_t to = 0;
    std::int32_t yields_to = -1;  ///< an earlier step into the same participant by another one
};

/// The steps, each after what brought its pair, in an order in which each engine can start them. `pairs` is a
/// multiple of the participants of a node.
[[nodiscard]] std::vector<NodeStep> broadcast_nodes(const TwoNodes& nodes, std::int32_t pairs);

/// How large pairs are, as shares of the whole, which they sum up to.
[[nodiscard]] std::vector<double> shares_of_pairs(std::int32_t participants_of_a_node, std::int32_t pairs);

}  // namespace syncopate::plan
