// Streams: how a rank's transfers by copy_engine, its sums and its collectives by nccl run on streams of a
// GPU, and what each waits for there.
//
// A stream does its steps one after another. It cannot compare a signal with the number of the call, nor give
// up; it can wait until a word of its own rank's control block, a gate, has been opened, and close it again.
// So each wait of a step is covered in one of these ways:
//
//   in order   the call's begin implies it, or an earlier step of the same stream; or, of another stream,
//              an event
//   gate       this rank's kernel makes the chunk, or sends it inline: each of its tiles adds to a gate
//   await      of a sum, which is a kernel anyway: another kernel, of one warp, polls the signals
//   relay      anything else, whoever does it (this rank's chunk engine, another rank): an op of no bytes
//              in the chunk engine's table waits for the signals, with the deadline, and opens a gate
//
//   chunk engine  | op 0 | op 2 ……| relay: op 2, rank 1's op 4 |
//   copies        | op 1 |                                     └ op 3: wait, close the gate, copy, post |
//
// Collectives that wait for nothing but the begin and each other come before the kernel, in its own stream:
// they need multiprocessors, which a kernel that waits for them would hold. The others are done among the
// copies.
//
// Copies that wait for nothing but the begin and each other are early: they start before the kernel is
// launched. From the first one on that waits for more, all are late: enqueued after the kernel, in the same
// order.
//
// No deadlock: a step waits only for ops that come before it in the order that fuse/precedence.hpp sorts all
// ops in, and for chunks. No hang: the kernel and the chunk engine open their gates also after a fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "syncopate/fuse/schedule.hpp"

namespace syncopate::fuse {

enum class Lane : std::uint8_t {
    none,    ///< not on a stream: the chunk engine's, or device host's
    before,  ///< a collective before the kernel, in the kernel's stream
    early,   ///< a copy before the kernel's launch
    late,    ///< a copy or a collective after it
    sums,    ///< a sum, in a stream of its own
};

/// The streams beside the caller's, by number: one of copies, before whose late ones come what runs before
/// the kernel and early copies; one of sums; the other copy streams.
inline constexpr std::size_t kCopies = 0;
inline constexpr std::size_t kSums = 1;
[[nodiscard]] constexpr std::size_t stream_of_copies(std::int32_t copy_stream) {
    return copy_stream == 0 ? kCopies : kSums + static_cast<std::size_t>(copy_stream);
}

/// One transfer as its stream does it.
struct StreamStep {
    Lane lane = Lane::none;
    std::size_t stream = kCopies;     ///< its number
    std::vector<std::int32_t> gates;  ///< made chunks of this rank; one that the lane has passed is left out
    std::vector<std::size_t> after;   ///< transfers of other streams that a copy follows
    std::vector<Wait> awaited;        ///< of a sum: polled before it
    std::vector<Wait> relayed;        ///< of a copy: by the relay
    std::int32_t relay = -1;          ///< its number, rising with the transfers; -1: none
};

struct StreamPlan {
    std::vector<StreamStep> steps;  ///< by index in RankSchedule::transfers
    std::size_t num_streams = 2;
    std::int32_t num_relays = 0;
};

/// For the transfers of `schedule`, which is rank `rank`'s.
[[nodiscard]] StreamPlan plan_streams(const RankSchedule& schedule, std::int32_t rank);

/// By made chunk of `rank`: whether somebody polls a signal that it posts. If not, its gates are enough.
[[nodiscard]] std::vector<bool> polled_chunks(const RankSchedule& schedule, std::int32_t rank,
                                              const StreamPlan& streams);

}  // namespace syncopate::fuse
