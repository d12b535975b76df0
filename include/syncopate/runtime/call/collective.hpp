// A collective that a plan leaves direct, as one rank takes part in it: a library's call on a GPU (nccl.hpp),
// the ranks together on device host (host_collective.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/schedule.hpp"

namespace syncopate::runtime {

/// One rank's part in a collective, with its addresses. All regions are contiguous (fuse/passes/collective.hpp).
struct PreparedCollective {
    plan::CollectiveKind kind = plan::CollectiveKind::all_gather;
    plan::Reduce reduce = plan::Reduce::none;
    plan::DType dtype = plan::DType::bf16;
    std::vector<std::int32_t> ranks;  ///< the participants
    std::size_t position = 0;         ///< this rank's among them
    std::uint64_t count = 0;          ///< elements of a shard: of what one participant gives to one other
    std::vector<std::uint64_t> src;   ///< by participant
    std::uint64_t dst = 0;            ///< this rank's
    // Of device host (emit::joined_word), by participant:
    std::vector<std::uint64_t> joined;  ///< the word of its control block by which this rank says so
    /// The word of this rank's by which it does; the next: has read.
    std::vector<std::int32_t> joined_signal;
};

/// For rank `rank`. `schedules`: of all ranks; `tensors`: addresses of the tensors in rank 0's heap,
/// `control`: of rank 0's control block; both `stride` bytes on for each further rank.
[[nodiscard]] PreparedCollective prepare_collective(const fuse::Collective& collective,
                                                    const fuse::Schedule& schedule, int rank,
                                                    const std::vector<std::uint64_t>& tensors,
                                                    std::uint64_t control, std::uint64_t stride);

}  // namespace syncopate::runtime
