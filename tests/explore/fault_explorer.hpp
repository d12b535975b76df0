// Every order in which ranks go on around one fault: a wait gives up, whichever it is, or a rank stops for good after any of
// its steps. A model that was recorded with faults (model.hpp) says what its executors then do: what a rank leaves out,
// whom it tells, how all reset or recover, and the call after that.
//
// Wrong is, in any of these orders:
//   a rank without a fault finds what is not of its call, or its user does after a call that reported success;
//   words are cleared while a call of before still moves data or waits somewhere, or one of after has begun (a post
//   follows the look before it at once here, so a late one behind a clear is not seen);
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
    bool goes_on = true;  ///< of a wait: all ranks then reset, or recover; where a rank stops none does
};

[[nodiscard]] Explored explore_fault(const Model& model, const Fault& fault,
                                     std::uint64_t most_states = 200'000);

}  // namespace syncopate::explore
