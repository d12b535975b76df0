// A rank's schedule with addresses instead of ranks, signals and regions: what an executor goes by.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/call/op_memory.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/call/transfer.hpp"
#include "syncopate/runtime/heap/heap.hpp"

namespace syncopate::runtime {

struct CallPlan {
    int rank = 0;
    int first_rank = 0;               ///< of those whose memory is mapped
    int num_ranks = 0;                ///< so many from there on
    std::uint64_t first_control = 0;  ///< address of rank 0's control block, or where it would be
    std::uint64_t heap_stride = 0;
    std::vector<std::uint64_t> begin_posts;  ///< addresses of the words
    std::vector<fuse::Wait> begin_waits;
    std::vector<std::uint64_t> end_posts;
    unsigned engine_blocks = 8;
    std::vector<fuse::Wait> end_waits;
    std::vector<PreparedTransfer> transfers;

    [[nodiscard]] std::uint64_t control_of(int r) const {
        return first_control + static_cast<std::uint64_t>(r) * heap_stride;
    }
    [[nodiscard]] std::uint64_t control() const { return control_of(rank); }
    /// Whether the address is in this rank's control block; it is in some rank's.
    [[nodiscard]] bool is_own(std::uint64_t word) const { return word - control() < heap_stride; }
};

/// Of the heap's own rank, for a schedule that check_schedule has accepted. Errors, at the op: boxes that
/// cannot be copied or summed.
Result<CallPlan> make_call_plan(const SymmetricHeap& heap, const fuse::Schedule& schedule,
                                const OpMemory& memory);

}  // namespace syncopate::runtime
