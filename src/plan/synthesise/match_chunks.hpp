// The greedy matching of chunks to connections on a time-expanded network (synthesise.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "plan/synthesise/hop_network.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

struct MovingChunk {
    std::int32_t origin = 0;        ///< the participant that has it
    std::int32_t destination = -1;  ///< -1: all others want it
    double bytes = 0;
};

/// One chunk over one connection.
struct Movement {
    std::int32_t chunk = 0;
    std::int32_t hop = 0;
    double start_us = 0;  ///< when it takes the sender's lane
    double end_us = 0;    ///< when it has arrived
};

/// When a chunk may come into a node a second time. It has to be clear that what the receiver still lacks
/// would take longer over its connections inside: `sparing`, if nothing else goes on. Where one search
/// follows another on the machine, the crossing may end while the next one is under way: `eager`.
enum class SecondCrossings : std::uint8_t { sparing, eager };

/// Movements in order of start. `seed` 0: ties are broken by number, so that lists rotate; others: at random.
/// Fails if some chunk cannot reach one that wants it, naming both (participants, not ranks).
struct Unreachable {
    std::int32_t chunk = 0;
    std::int32_t participant = 0;
};
struct Matching {
    std::vector<Movement> movements;
    double makespan_us = 0;
    std::vector<Unreachable> unreachable;  ///< the first one, if any
};

/// Every chunk to all participants; into each node once, and again only as `second_crossings` allows.
[[nodiscard]] Matching spread_chunks(const HopNetwork& network, const std::vector<MovingChunk>& chunks,
                                     std::uint64_t seed, SecondCrossings second_crossings);

/// Every chunk to its destination, each step on a shortest way (by time for the mean chunk, start-up
/// included).
[[nodiscard]] Matching send_chunks(const HopNetwork& network, const std::vector<MovingChunk>& chunks,
                                   std::uint64_t seed);

}  // namespace syncopate::plan
