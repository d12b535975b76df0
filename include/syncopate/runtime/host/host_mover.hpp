// Carries out one transfer with the CPU, then posts. With delays on it pauses before, inside and after
// copies, and so shows schedules that hold only by luck of timing.
#pragma once

#include <cstdint>
#include <random>

#include "syncopate/runtime/call/transfer.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::runtime {

class HostMover {
public:
    /// `control`: of the rank that moves; `max_delay_us` 0: no pauses. Not for two threads at once.
    HostMover(HostControl control, std::int64_t max_delay_us, std::uint64_t seed)
        : control_(control), max_delay_us_(max_delay_us), random_(seed) {}

    /// After a fault nothing is posted. `where`: for a fault of a collective.
    void perform(const PreparedTransfer& transfer, std::uint32_t epoch, std::int32_t where);
    void delay();  ///< maybe pauses
    [[nodiscard]] bool delays() const { return max_delay_us_ > 0; }
    [[nodiscard]] std::uint64_t draw() { return random_(); }

private:
    void copy(const PreparedTransfer::Copies& copies);

    HostControl control_;
    std::int64_t max_delay_us_;
    std::mt19937_64 random_;
};

}  // namespace syncopate::runtime
