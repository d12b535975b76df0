// Executes a rank's transfers on device host: one thread copies boxes between the heaps and posts. With
// delays on, it takes the transfers whose waits are over in random order.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/runtime/host/host_mover.hpp"
#include "syncopate/runtime/host/host_workers.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::runtime {

class HostExecutor {
public:
    /// Of `transfers` it leaves out those of the chunk engine and of streams. `control` is the executing
    /// rank's. `max_delay_us` 0: no delays, and the first transfer that may run
    /// goes first.
    HostExecutor(std::vector<PreparedTransfer> transfers, HostControl control, std::int64_t max_delay_us,
                 std::uint64_t seed);

    /// Starts the transfers of call `epoch`; the previous call's must have been joined.
    void start(std::uint32_t epoch) { workers_.start(epoch); }
    /// Returns when they are done, or given up because of a fault in the control block.
    void join() { workers_.join(); }
    /// What transfer `index` sums, to redirect it; null when it sums nothing. Only between calls.
    [[nodiscard]] PreparedSum* sum_of(std::size_t index);
    /// Gives transfer `index` other copies; false when it is not done here. Only between calls.
    bool set_copies(std::size_t index, std::vector<StridedCopy> copies);

private:
    void execute(std::uint32_t epoch);

    std::vector<PreparedTransfer> transfers_;
    HostControl control_;
    HostMover mover_;
    HostWorkers workers_;  ///< one, or none when there is nothing to transfer
};

}  // namespace syncopate::runtime
