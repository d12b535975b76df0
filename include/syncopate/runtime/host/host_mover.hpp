// Carries out one transfer with the CPU, then posts. With delays on it pauses before, inside and after
// copies, and so shows schedules that hold only by luck of timing.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "syncopate/fuse/schedule.hpp"
#include "syncopate/runtime/call/reduction.hpp"
#include "syncopate/runtime/call/strided_copy.hpp"
#include "syncopate/runtime/host/host_collective.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::runtime {

/// A transfer with its addresses worked out.
struct PreparedTransfer {
    std::vector<StridedCopy> copies;
    std::optional<PreparedSum> sum;         ///< instead of copies
    std::vector<fuse::Wait> waits;          ///< on the executing rank's control block
    std::vector<std::uint64_t> post_words;  ///< addresses of the words to set to the epoch
    bool by_engine = false;                 ///< the chunk engine carries it out (engine_table.hpp)
    bool by_stream = false;  ///< a stream does, or on host what stands for one (host_streams.hpp)
    std::optional<PreparedCollective> collective{};  ///< instead of copies; also by what host_streams.hpp has
};

class HostMover {
public:
    /// `control`: of the rank that moves; `max_delay_us` 0: no pauses. Not for two threads at once.
    HostMover(HostControl control, std::int64_t max_delay_us, std::uint64_t seed)
        : control_(control), max_delay_us_(max_delay_us), random_(seed) {}

    /// After a fault nothing is posted. `where`: for a fault of a collective.
    void perform(const PreparedTransfer& transfer, std::uint32_t epoch, std::int32_t where);
    [[nodiscard]] bool delays() const { return max_delay_us_ > 0; }
    [[nodiscard]] std::uint64_t draw() { return random_(); }

private:
    void delay();

    HostControl control_;
    std::int64_t max_delay_us_;
    std::mt19937_64 random_;
};

}  // namespace syncopate::runtime
