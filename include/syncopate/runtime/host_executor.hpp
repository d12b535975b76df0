// Executes a rank's transfers on device host: one thread copies boxes between the heaps and posts. With
// delays on, it takes the transfers whose waits are over in random order, pauses before and inside copies,
// and so shows schedules that hold only by luck of timing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "syncopate/fuse/schedule.hpp"
#include "syncopate/runtime/control.hpp"
#include "syncopate/runtime/reduction.hpp"
#include "syncopate/runtime/strided_copy.hpp"

namespace syncopate::runtime {

/// A transfer with its addresses worked out.
struct PreparedTransfer {
    std::vector<StridedCopy> copies;
    std::optional<PreparedSum> sum;         ///< instead of copies
    std::vector<fuse::Wait> waits;          ///< on the executing rank's control block
    std::vector<std::uint64_t> post_words;  ///< addresses of the words to set to the epoch
    bool by_engine = false;  ///< the chunk engine carries it out (engine_table.hpp), not this executor
    bool in_order = false;   ///< starts after those in_order before it have ended, as in a copy stream
};

class HostExecutor {
public:
    /// `control` is the executing rank's. `max_delay_us` 0: no delays, and the first transfer that may run
    /// goes first.
    HostExecutor(std::vector<PreparedTransfer> transfers, HostControl control, std::int64_t max_delay_us,
                 std::uint64_t seed);
    ~HostExecutor();  ///< waits for the call in progress, if any
    HostExecutor(const HostExecutor&) = delete;
    HostExecutor& operator=(const HostExecutor&) = delete;

    /// Starts the transfers of call `epoch`; the previous call's must have been joined.
    void start(std::uint32_t epoch);
    /// Returns when they are done, or given up because of a fault in the control block.
    void join();
    /// What transfer `index` sums, to redirect it; null when it sums nothing. Only between calls.
    [[nodiscard]] PreparedSum* sum_of(std::size_t index);

private:
    void run();
    void execute(std::uint32_t epoch);
    void perform(const PreparedTransfer& transfer, std::uint32_t epoch);
    void delay();

    std::vector<PreparedTransfer> transfers_;
    HostControl control_;
    std::int64_t max_delay_us_;
    std::mt19937_64 random_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint32_t epoch_ = 0;
    bool working_ = false;
    bool leaving_ = false;
    std::thread thread_;  ///< none when there is nothing to transfer
};

}  // namespace syncopate::runtime
