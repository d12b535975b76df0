// The search behind synthesise(), apart from where chunks lie: who passes which chunk to whom, in the order
// in which the search starts it. synthesise() makes a plan of it, lower_collectives() puts it in the place of
// a collective.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/synthesise/match_chunks.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

// Finer chunks fill pipelines and cost start-ups: where their number is left open it is doubled as long as
// that pays.
inline constexpr std::int32_t kMostChunksTried = 256;
inline constexpr double kClearlySlower = 1.1;  ///< twice as many chunks will not make up for that

struct SynthesisStep {
    std::int32_t chunk = 0;
    std::int32_t from = 0;  ///< participants
    std::int32_t to = 0;
    /// An earlier step of another sender that leaves a link as this one comes to it; -1: none. In a run that
    /// does not keep the time of the search to the dot this one could start earlier, and the two would share
    /// the link, at a loss; so it is also to wait for that one.
    std::int32_t yields_to = -1;
    double start_us = 0;  ///< by the search's own clock
};

struct SynthesisSteps {
    std::vector<SynthesisStep> steps;  ///< each after what brought its chunk to `from`
    double makespan_us = 0;            ///< by the search's own clock
};

enum class SynthesisPattern : std::uint8_t {
    spread,  ///< every chunk from its origin to all
    send,    ///< every chunk from its origin to its destination
    sum,     ///< every chunk from all to its origin, summed up on the way: who passes one on has received its
             ///< last
};

struct SynthesisSearch {
    const Topology& topology;
    const std::vector<std::int32_t>& members;  ///< by participant: its device
    std::uint64_t seed = 0;
    std::int32_t attempts = 0;  ///< of which the fastest is kept; 0: as many as a second or so allows
    SecondCrossings second_crossings = SecondCrossings::sparing;  ///< where spreading and summing
    bool by_sms = false;  ///< the SMs move chunks, not the copy engines; sums are theirs in any case
};

/// Fails (ErrorClass::usage) where some chunk has no way, naming the ranks.
[[nodiscard]] Result<SynthesisSteps> synthesis_steps(const SynthesisSearch& search, SynthesisPattern pattern,
                                                     const std::vector<MovingChunk>& chunks);

}  // namespace syncopate::plan
