// Executes a rank's transfers on device host: one thread copies boxes between the heaps and posts. With
// delays on, it takes the transfers whose waits are over in random order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "syncopate/runtime/host/host_mover.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::runtime {

class HostExecutor {
public:
    /// Of `transfers` it leaves out those of the chunk engine and of streams. `control` is the executing
    /// rank's. `max_delay_us` 0: no delays, and the first transfer that may run
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
    /// Gives transfer `index` other copies; false when it is not done here. Only between calls.
    bool set_copies(std::size_t index, std::vector<StridedCopy> copies);

private:
    void run();
    void execute(std::uint32_t epoch);

    std::vector<PreparedTransfer> transfers_;
    HostControl control_;
    HostMover mover_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint32_t epoch_ = 0;
    bool working_ = false;
    bool leaving_ = false;
    std::thread thread_;  ///< none when there is nothing to transfer
};

}  // namespace syncopate::runtime
