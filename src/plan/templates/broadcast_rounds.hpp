// A broadcast in rounds among 2^q participants, all of whom reach each other through switches: c chunks in
// c + q - 1 rounds, which is the fewest that any order of sends can do, since the last chunk leaves the root
// in round c at the earliest and then has q - 1 more doublings to go.
//
// In round t each participant v has v ^ 2^(t mod q) as its partner. Chunk j leaves the root in round j; who
// has it passes it on in each of the q rounds after that. So it spreads along a binomial tree rooted at the
// root's neighbour 2^(j mod q), and the trees of q chunks in a row together use each connection of a round
// once (S. L. Johnsson and C.-T. Ho, "Optimum Broadcasting and Personalized Communication in Hypercubes",
// IEEE Trans. Computers 38(9), 1989, §4). When the root has sent all chunks, it sends the last one again.
//
//     8 participants                round j   j + 1       j + 2        j + 3
//     chunk j, j mod 3 = 0          0 → 1     1 → 3       1 → 5        3 → 2   5 → 4   7 → 6
//                                                         3 → 7
//     meanwhile                     chunk j - 1 in its second round, j - 2 in its third, j - 3 in its last
#pragma once

#include <cstdint>
#include <vector>

#include "plan/synthesise/hop_network.hpp"
#include "plan/synthesise/synthesis_steps.hpp"

namespace syncopate::plan {

/// Whether broadcast_rounds fits: the participants are 4 or more, a power of two, of one node, and have a
/// connection each way between any two.
[[nodiscard]] bool fits_rounds(const HopNetwork& network);

/// The steps, round by round, start_us counting rounds. A step yields to the one before it into the same
/// participant, so that ranks stay in step.
[[nodiscard]] std::vector<SynthesisStep> broadcast_rounds(std::int32_t participants, std::int32_t root,
                                                          std::int32_t chunks);

}  // namespace syncopate::plan
