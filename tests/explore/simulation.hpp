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
    left,          ///< a rank goes on when it has ended a call, which others may be in
};
inline constexpr int kNumHarms = 7;

/// What ranks do after a fault.
enum class AfterFault : std::uint8_t {
    end,
    recover,  ///< as one group [P34], maybe with a kill while they do; all calls follow again
    reset,    ///< [P38], unless a rank was killed
};

struct SimulationResult {
    std::string story;        ///< which program, and what befell it
    std::string wrong;        ///< "" if all is as it should be
    std::uint64_t calls = 0;  ///< that ended well, on all ranks together
    std::uint64_t failed = 0;
    std::uint64_t recoveries = 0;  ///< of all ranks together
    std::uint64_t trace = 0;       ///< of all that happened: the same for the same seed
};

/// `calls` of each rank. `harmless`: nothing but delays and short stops.
[[nodiscard]] SimulationResult simulate(std::uint64_t seed, int calls, bool harmless,
                                        AfterFault after = AfterFault::end);
/// Of one program.
[[nodiscard]] SimulationResult simulate(const Case& played, std::uint64_t seed, int calls, bool harmless,
                                        AfterFault after = AfterFault::end);

}  // namespace syncopate::explore
