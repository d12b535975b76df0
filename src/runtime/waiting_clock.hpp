// How long a thread has waited, for deadlines. It is asked at each look at what is awaited; of the time since the look
// before, at most kMostBetween counts: that of a host that was frozen in between, with all ranks (suspended, stopped,
// its virtual machine paused), is nobody's fault.
#pragma once

#include <algorithm>
#include <chrono>

#include "runtime/signals/turns.hpp"
#include "syncopate/emit/layout.hpp"

namespace syncopate::runtime {

class WaitingClock {
public:
    using Duration = std::chrono::steady_clock::duration;
    /// Looks are closer to each other than this where threads run at all.
    static constexpr std::chrono::milliseconds kMostBetween{emit::control::most_between_ns / 1'000'000};

    Duration waited() {
        const auto now = now_on_host();
        waited_ += std::min<Duration>(now - last_, kMostBetween);
        last_ = now;
        return waited_;
    }

private:
    std::chrono::steady_clock::time_point last_ = now_on_host();
    Duration waited_{};
};

}  // namespace syncopate::runtime
