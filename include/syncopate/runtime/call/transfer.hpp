// A transfer of the schedule with addresses instead of ranks, signals and regions: what its executor goes by.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "syncopate/fuse/schedule.hpp"
#include "syncopate/runtime/call/collective.hpp"
#include "syncopate/runtime/call/executors.hpp"
#include "syncopate/runtime/call/reduction.hpp"
#include "syncopate/runtime/call/strided_copy.hpp"

namespace syncopate::runtime {

struct PreparedTransfer {
    std::vector<StridedCopy> copies;
    std::optional<PreparedSum> sum;         ///< instead of copies
    std::vector<fuse::Wait> waits;          ///< on the executing rank's control block
    std::vector<std::uint64_t> post_words;  ///< addresses of the words to set to the epoch
    Executor executor = Executor::cpu;
    std::optional<PreparedCollective> collective{};  ///< instead of copies
};

}  // namespace syncopate::runtime
