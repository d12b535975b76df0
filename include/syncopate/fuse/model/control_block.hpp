// The control block of an op: the words of the symmetric heap that ranks write to each other. Signals follow
// the header, then counters of made chunks, gates of relays, and words of collectives. It is declared here
// and nowhere else (emit/layout.hpp draws it beside the schedule table). The words keep [P1, P2, P3, P7, P8] of
// docs/protocol.md, and those of faults and of the mirror [P9, P28, P29, P31]. Plain C++17: nvcc reads it too.
#pragma once

#include <cstdint>

namespace syncopate::fuse::control {

inline constexpr std::int32_t epoch = 0;
inline constexpr std::int32_t finished = 1;
inline constexpr std::int32_t deadline_ms = 2;
inline constexpr std::int32_t fault = 3;
inline constexpr std::int32_t fault_seen = 4;
inline constexpr std::int32_t fault_epoch = 5;
inline constexpr std::int32_t fault_where = 6;
inline constexpr std::int32_t rank = 7;
inline constexpr std::int32_t published = 8;
inline constexpr std::int32_t loaded = 9;  ///< as `finished`: programs that have loaded all that they will
// What a kernel that sums needs to tell of a fault by itself; numbers of 64 bits, low half first.
inline constexpr std::int32_t mirror = 10;       ///< the device's address of the host's mirror; 0: none
inline constexpr std::int32_t first_block = 12;  ///< bytes from here to rank 0's control block
inline constexpr std::int32_t next_block = 14;   ///< bytes from one rank's control block to the next one's
inline constexpr std::int32_t num_ranks = 16;
inline constexpr std::int32_t fault_call = 17;   ///< the first call of which a wait failed; 0: `epoch`
inline constexpr std::int32_t fault_claim = 18;  ///< 0, `claiming`, or the own fault that was the first [P29]
inline constexpr std::int32_t header_words = 19;  ///< so many come before what is free

// Words of the mirror in host memory (runtime/cuda/boundary/boundary.hpp).
inline constexpr std::int32_t mirror_fault = 1;
inline constexpr std::int32_t mirror_seen = 2;   ///< then what was awaited, where, and the call's number
inline constexpr std::int32_t mirror_begun = 6;  ///< the last call that has begun
inline constexpr std::int32_t first_signal = 32;
inline constexpr std::int32_t signal_stride = 8;  ///< a power of 2
inline constexpr std::int32_t gate = 2;           ///< of a chunk's counter: the first of its two gates

/// The bit of `fault` that says so of another rank.
inline constexpr std::uint32_t fault_of_peer = 0x80000000U;
/// Of `fault_claim`: somebody writes the words of a fault.
inline constexpr std::uint32_t claiming = fault_of_peer;

/// Of the time between two looks at what a wait is for, no more than this counts for its deadline: that of a machine
/// that stood still in between is nobody's fault.
inline constexpr std::uint64_t most_between_ns = 500'000'000;

/// Values of `fault_where` that are no slot: the begin and the end of a call, and the first transfer, from
/// which the others count down by their index in RankSchedule::transfers.
inline constexpr std::int32_t at_begin = -1;
inline constexpr std::int32_t at_end = -2;
inline constexpr std::int32_t first_transfer = -16;
[[nodiscard]] constexpr std::int32_t at_transfer(std::int64_t index) {
    return first_transfer - static_cast<std::int32_t>(index);
}

/// The word of signal `signal`.
[[nodiscard]] constexpr std::int32_t word_of(std::int32_t signal) {
    return first_signal + signal_stride * signal;
}

static_assert(gate % 2 == 0 && first_signal % 2 == 0, "both gates are one 64-bit addition");
static_assert((signal_stride & (signal_stride - 1)) == 0);
static_assert(fault_claim < header_words && header_words <= first_signal && mirror % 2 == 0);

}  // namespace syncopate::fuse::control
