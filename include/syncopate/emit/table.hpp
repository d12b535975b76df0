// The schedule of one rank as the int32 table that the emitted kernel reads, and the control block beside it.
//
// schedule table (int32 words)                        control block (uint32 words, in the symmetric heap)
//   0  num_slots                                        0  epoch: the number of the call whose kernel runs,
//   or
//                                                           is the next to; from 1
//   1  num_kernel_posts                                 1  finished: programs that have ended, over all calls
//   2  kernel_posts (offset in words)                   2  deadline of one wait, milliseconds; 0: none
//   3  num_programs of all grids                        3  fault: 0, or 1 + the signal that did not come
//   4  trace: low and high half of the address of the   4  fault_seen: the value last read there
//        times; 0 in calls that are not recorded        5  fault_epoch: the value awaited
//   6  programs' end times (offset in the trace)        6  fault_where: the slot (-1: begin, -2: end)
//   10 loads (offset in words; 0: none is fetched inline)
//   16 slot records, 8 words each:                      7  rank
//        tile, wait_begin, wait_end, phase_begin,
//        makes_begin, makes_end, store_lo, store_hi     8  published: the epoch, unless the call began with a
//   …  waits, 2 words each: control-block word, lag        fault; what the copy engine posts is a copy of it
//   …  phases, 2 words each: iteration_end, wait_end  32  signals, 8 words (32 bytes) apart
//   …  posts, 2 words each: low and high half of the
//        byte distance from this rank's control block
//        to the word that is set
//
// makes_begin and makes_end: the first record and past the last one of the chunks of which the slot's tile is
// its program's last; makes_end has the bit at_once where one of them wants that at once. A record, aligned
// to 16 bytes, has 8 words: word of the chunk's counter in the control block, tiles that count in it, offsets
// of its first post and past the last one, what each tile adds to its two gates (copies, sums; 0 or 1), and
// whether posts are to be made (0: only those gates are waited for; calls that are recorded post all the
// same). The counters follow the signals in the control block, 8 words each: {tiles counted in this call, 0,
// gate of copies, gate of sums, …}, and after them the gates of relays (fuse/launch.hpp) follow. Whoever
// counts last sets the count back to 0 and the posts' words to the epoch; a stream waits until its gate has
// reached that number of tiles, and sets it back to 0.
//
// store: what is to be added where the slot's tile is stored (fuse/inline.hpp), a number of 64 bits: rows of
// a descriptor that begins with rank 0's heap, or elements from the kernel's own tensor. With several
// copies, store_lo is the offset of as many such numbers.
//
// loads: for each slot such a number of 64 bits, of what its tile loads inline (fuse/inline_reads.hpp); where
// that is only what the rank itself was given, 1 if the tile loads it, else 0.
//
// The trace, which only a traced kernel writes (python/syncopate/language_traced.py), has the table's shape.
//
// wait_begin and wait_end are offsets in words of the first wait and past the last one. The phases of a slot
// follow each other from phase_begin (0: none). Two more pairs stand before them, so that every phase begins
// where the pair before it ends:
//
//      {number of phases, 0} {0, wait_end of the slot} | {iteration_end, wait_end} {iteration_end, wait_end}
//      …
//                                                      ^ phase_begin
//
// The iteration_end of a slot's last phase is the loop's trip count. All offsets are even: a pair is one
// aligned 8-byte load and, if the table is aligned to 16 bytes, a record is one 16-byte load.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "syncopate/fuse/schedule.hpp"

namespace syncopate::emit {

/// Word indices of the control block. Shared with the device code and with language_ptx.py and
/// language_host.py of python/syncopate.
namespace control {
inline constexpr std::int32_t epoch = 0;
inline constexpr std::int32_t finished = 1;
inline constexpr std::int32_t deadline_ms = 2;
inline constexpr std::int32_t fault = 3;
inline constexpr std::int32_t fault_seen = 4;
inline constexpr std::int32_t fault_epoch = 5;
inline constexpr std::int32_t fault_where = 6;
inline constexpr std::int32_t rank = 7;
inline constexpr std::int32_t first_signal = 32;
inline constexpr std::int32_t signal_stride = 8;
inline constexpr std::int32_t gate = 2;  ///< of a chunk's counter: the first of its two gates

/// The word of signal `signal`.
[[nodiscard]] constexpr std::int32_t word_of(std::int32_t signal) {
    return first_signal + signal_stride * signal;
}
/// Words of a control block with `num_signals` signals and counters.
[[nodiscard]] constexpr std::int32_t size_in_words(std::int32_t num_signals) { return word_of(num_signals); }
}  // namespace control

namespace table {
inline constexpr std::int32_t num_slots = 0;
inline constexpr std::int32_t num_kernel_posts = 1;
inline constexpr std::int32_t kernel_posts = 2;
inline constexpr std::int32_t num_programs = 3;
inline constexpr std::int32_t loads = 10;
inline constexpr std::int32_t first_slot = 16;
inline constexpr std::int32_t slot_words = 8;
inline constexpr std::int32_t makes = 4;  ///< of a slot record
inline constexpr std::int32_t store = 6;  ///< of a slot record
inline constexpr std::int32_t made_words = 8;
inline constexpr std::int32_t at_once = 1 << 30;  ///< of makes_end
/// Added to the distance that a kernel takes as sy_own, so that this is an int64, and a multiple of 16, to
/// Triton whatever it is.
inline constexpr std::int64_t own_base = std::int64_t{1} << 62;
}  // namespace table

/// The word of the counter of made chunk `chunk`.
[[nodiscard]] inline std::int32_t counter_of(const fuse::RankSchedule& schedule, std::int32_t chunk) {
    return control::word_of(static_cast<std::int32_t>(schedule.signals.size()) + chunk);
}

/// The word of the gate that relay `relay` opens (fuse/launch.hpp): they follow the counters.
[[nodiscard]] inline std::int32_t relay_gate_of(const fuse::RankSchedule& schedule, std::int32_t relay) {
    return counter_of(schedule, static_cast<std::int32_t>(schedule.chunks.size()) + relay);
}

/// Words by which the ranks of device host carry out collectives together (runtime/host_collective.hpp),
/// after the gates of relays: of collective `number`, whether rank `from` has joined, and has read. A control
/// block that a schedule with collectives needs has room for 2 words for each of `num_ranks` and each
/// collective.
[[nodiscard]] inline std::int32_t joined_word(const fuse::RankSchedule& schedule, std::int32_t number,
                                              std::int32_t num_ranks, std::int32_t from) {
    return relay_gate_of(schedule, schedule.num_relays + 2 * (number * num_ranks + from));
}

/// What inline transfers ask of memory: bytes of which the heap's stride and the offsets of all tensors must
/// be multiples, so that whole rows of the tensor that is stored, or loaded, lie between two places. 1
/// without any, and for those by pointers.
[[nodiscard]] std::int64_t bytes_of_row(const fuse::Schedule& schedule);

/// The table of `rank` for the schedule's stage `stage`. Kernel posts are in the last stage's only, as the
/// last program of all stages makes them; so `num_programs` is of all grids. The table may be rebuilt for
/// another schedule of the same kernel between calls, not during one. `heap_stride`: bytes from one rank's
/// heap to the next one's; a control block is at the same offset in every heap, so rank q's block is (q -
/// rank) * heap_stride bytes away. `offsets`: of the tensors in every heap, then of the control block; needed
/// where something goes inline.
[[nodiscard]] std::vector<std::int32_t> make_table(const fuse::Schedule& schedule, std::int32_t rank,
                                                   std::int64_t heap_stride, std::int64_t num_programs,
                                                   std::span<const std::uint64_t> offsets = {},
                                                   std::size_t stage = 0);

}  // namespace syncopate::emit
