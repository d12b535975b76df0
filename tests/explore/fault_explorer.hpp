// Every order in which ranks go on around one fault: a wait gives up, whichever it is, or a rank stops for good after any of
// its steps, or goes on at once when its own calls have ended. A model that was recorded with faults (model.hpp) says what
// its executors then do: what a rank leaves out, whom it tells, how all reset or recover, and the call after that.
//
// Wrong is, in any of these orders:
//   a rank without a fault finds what is not of its call, or its user does after a call that reported success;
//   words are cleared while a call of before still moves data, waits or has still to post, or one of after has begun;
//   somebody waits for ever: who is not told of another rank's fault (where ranks live), or has no deadline (where one died);
//   the call after the reset is not made right on all ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "explore/explorer.hpp"
#include "explore/model.hpp"

namespace syncopate::explore {

struct Fault {
    /// Agent and step of the wait that gives up when its agent comes to it.
    std::optional<std::pair<std::uint32_t, std::uint32_t>> late{};
    int stopped = -1;     ///< or the rank that stops
    int leaves = -1;      ///< or the rank that resets, or recovers, without a fault
    bool goes_on = true;  ///< of a wait: all ranks then reset, or recover; where a rank stops none does
};

struct Looked {
    std::uint64_t most_states = 200'000;  ///< in all orders; if there are more, then
    std::uint64_t of_walks = 0;           ///< at least so many in orders that are drawn, each to its end
    std::uint64_t seed = 1;
};

/// `complete`: all orders were gone through, or one that is wrong was found.
[[nodiscard]] Explored explore_fault(const Model& model, const Fault& fault, const Looked& looked = {});

}  // namespace syncopate::explore
