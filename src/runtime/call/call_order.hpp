// Where in a call on cuda each transfer of one rank is carried out, of those that do not follow the kernel.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "syncopate/fuse/schedule.hpp"
#include "syncopate/fuse/streams.hpp"
#include "syncopate/result.hpp"

namespace syncopate::runtime {

/// Transfers by their index in the rank's schedule; the chunk engine's are in none of the lists.
struct CallOrder {
    /// Copies within the GPU, in the caller's stream before the kernel: its multiprocessors may do them, and
    /// the kernel could keep them all.
    std::vector<std::size_t> local;
    std::vector<std::size_t> collectives;  ///< there, too, after the local copies
    std::vector<std::size_t> copies;       ///< one after the other on the copy stream
    /// No other transfer touches what the local copies do: the copy stream need not wait for them.
    bool copies_start_first = false;
};

/// Whether it follows the kernel (late_transfers.hpp).
[[nodiscard]] bool is_late(const fuse::StreamPlan& streams, std::size_t index);

/// Of rank `rank`, whose schedule and streams these are. Fails, at the op, on a backend that cuda does not
/// have; `name`: the operator's, for the message.
[[nodiscard]] Result<CallOrder> order_of(const fuse::RankSchedule& schedule, const fuse::StreamPlan& streams,
                                         int rank, const std::string& name);

}  // namespace syncopate::runtime
