// One run of a few ranks from a seed, with delays, stops, kills and faults: everything that happens in it follows from
// the seed, so that it can be run again.
#pragma once

#include <cstdint>
#include <string>

#include "explore/played_op.hpp"

namespace syncopate::explore {

/// What befalls the ranks of a run.
enum class Harm : std::uint8_t {
    none,
    stopped,       ///< a rank stands still again and again, never as long as the deadline
    stopped_long,  ///< … once for longer: others may give up, or not
    killed,
    not_launched,  ///< a rank's kernel is not launched in one call
    given_up,      ///< a rank cannot make a call
};
inline constexpr int kNumHarms = 6;

struct SimulationResult {
    std::string story;        ///< which program, and what befell it
    std::string wrong;        ///< "" if all is as it should be
    std::uint64_t calls = 0;  ///< that ended well, on all ranks together
    std::uint64_t failed = 0;
    std::uint64_t trace = 0;  ///< of all that happened: the same for the same seed
};

/// `calls` of each rank. `harmless`: nothing but delays and short stops.
[[nodiscard]] SimulationResult simulate(std::uint64_t seed, int calls, bool harmless);
/// Of one program.
[[nodiscard]] SimulationResult simulate(const Case& played, std::uint64_t seed, int calls, bool harmless);

}  // namespace syncopate::explore
