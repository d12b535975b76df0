// The layout of what an emitted kernel reads: the schedule of one rank as a table of int32 words, and the
// control block beside it (fuse/model/control_block.hpp). It is declared here and nowhere else: C++ and CUDA take
// these names, and Python gets the numbers as _syncopate.layout (python/bindings/layout.cpp). Plain C++17:
// nvcc reads it too.
//
// schedule table (int32 words)                        control block (uint32 words, in the symmetric heap)
//   0  num_slots                                        0  epoch: the number of the call whose kernel runs,
//                                                           or is the next to; from 1
//   1  num_kernel_posts                                 1  finished: programs that have ended, over all calls
//   2  kernel_posts (offset in words)                   2  deadline of one wait, milliseconds; 0: none
//   3  num_programs of all grids                        3  fault: 0, or 1 + the signal that did not come, or
//   4  trace: low and high half of the address of the       fault_of_peer and the rank whose fault ended this
//        times; 0 in calls that are not recorded            call too
//   6  trace_ends: programs' end times (offset in       4  fault_seen: the value last read there
//        the trace)                                     5  fault_epoch: the value awaited
//   7  loops of the kernel that phases are of           6  fault_where: the slot, or a value below 0
//   8  grid: x and y of the kernel's own grid, where    7  rank
//        a program is launched for each slot only
//   10 loads (offset in words; 0: none is fetched
//        inline)
//   11 sum (offset in words; 0: the kernel sums
//        nothing)
//   12 other: words from here to the table for
//        calls of odd numbers (0: there is none)
//   13 head_programs, head_rounds: of its first
//        programs (fuse/passes/head_start.hpp)
//   15 groups (offset in words; 0: slots are as they
//        stand here)
//   16 slot records, 8 words each:                      8  published: the last call that began without a
//        tile, wait_begin, wait_end, phase_begin,           fault
//        makes_begin, makes_end, store_lo, store_hi     9  loaded: the same as finished, of programs that
//   …  waits, 2 words each: control-block word, lag         have loaded all that they will
//                                                     10 mirror, first_block, next_block, num_ranks:
//                                                         a kernel that sums tells them of a fault
//                                                     17 fault_call: the call's number then
//                                                     18 fault_claim: who writes 4 to 6 and 17
//   …  phases, 4 words each: iteration_begin,          32  signals, 8 words (32 bytes) apart
//        iteration_end, wait_begin, wait_end            …  counters of made chunks, gates of relays, words of
//   …  posts, 2 words each: low and high half of the        collectives, 8 words each (table.hpp)
//        byte distance from this rank's control block
//        to the word that is set
//
// A wait's lag [P4] is below 2^wait_count_shift; above that stands the number of posts of a call, less 1 [P5].
// A call posts a word several times in three cases. Each tile of a chunk adds to the chunk's gate of copies, and
// tiles of a later stage of the same rank await that gate; nobody sets such a gate back. Each block of another
// rank's chunk engine adds to the signal of what the blocks carry together. Each program of a kernel that sums
// adds to the signal of the sum.
//
// makes_begin and makes_end: the records of the chunks that count this slot's tile, from the first one to past
// the last one. A program counts in a chunk once, at the last tile that it stores into the chunk. makes_end has
// the bit at_once where one of the chunks is to be counted at once. A record, aligned to 16 bytes, has 8 words:
// the word of the chunk's counter in the control block, tiles that count in it, offsets of its first post and
// past the last one, what a tile adds to each of its two gates (copies, sums; 0 or 1), whether posts are made
// (0: only the gates are awaited; recorded calls post all the same). A counter: {tiles counted in this call, 0,
// gate of copies, gate of sums, …}, 8 words. The tile that counts last sets the count to 0 and the posts' words
// to the epoch. A stream waits until its gate has reached the number of tiles, and sets the gate to 0.
//
// store: what is to be added where the slot's tile is stored (fuse/inline/inline.hpp), a number of 64 bits: rows of
// a descriptor that begins with rank 0's heap, or elements from the kernel's own tensor. With several
// copies, store_lo is the offset of as many such numbers.
//
// loads: for each slot such a number of 64 bits, of what its tile loads inline (fuse/inline/inline_reads.hpp); where
// that is only what the rank itself was given, 1 if the tile loads it, else 0.
//
// sum: what the kernel's programs add up when they have made their tiles (fuse/inline/kernel_sums.hpp), each an even
// share: wait_begin, wait_end, how many elements, how many summands; then where each summand is, in the order
// of adding: numbers of 64 bits, in bytes from this rank's control block. Where the sums go the kernel is
// told.
//
// wait_begin and wait_end are offsets in words of the first wait and past the last one. The phases of a slot
// follow each other from phase_begin (0: none), those of the kernel's first loop, then those of the next.
// Before them stands a pair for each loop, the first loop's last: its first phase and past its last one,
// counted from phase_begin.
//
//      … {first, end of loop 1} {0, end of loop 0} | phase phase phase phase …
//                                                    ^ phase_begin
//
// A loop's phases together are all of its iterations, in the order in which they run. All offsets are even: a
// pair is one aligned 8-byte load and, as phases and records begin at multiples of 4 words, four words of
// them are one 16-byte load if the table is aligned to 16 bytes.
//
// groups: of a stage whose slots a call makes on the device (python/syncopate/kernels/moe.py does). Words there: how
// many groups; room for slots; 0; 0; then a slot's record for each group, with its waits and what it makes. The call's
// slots are such records, each group's as often as its rows make tiles but once at least, with slot_tile of the
// call's own, slot_group the group's number, and slot_rows how many rows the tile has (0: it only waits and
// posts). The call also sets num_slots, and made_tiles to the slots of the groups that make the chunk: of one
// group (made_groups 1) or of all of them (0). Of one group the table already has all slots that there is room
// for, slot_tile their number: a stage that does the same in all calls has no others.
//
// The trace, which only a traced kernel writes (python/syncopate/device/traced.py), has the table's shape,
// 64 bits for each of its words: times in nanoseconds.
//
//      at a slot's record       wait began, wait over (the tile starts), 0, program | multiprocessor << 32
//      at a phase               wait began, wait over
//      at trace_ends + program  when the program ended
#pragma once

#include <cstdint>

#include "syncopate/fuse/model/control_block.hpp"

namespace syncopate::emit {

namespace control = fuse::control;

/// Words of the schedule table.
namespace table {
inline constexpr std::int32_t num_slots = 0;
inline constexpr std::int32_t num_kernel_posts = 1;
inline constexpr std::int32_t kernel_posts = 2;
inline constexpr std::int32_t num_programs = 3;
inline constexpr std::int32_t trace = 4;
inline constexpr std::int32_t trace_ends = 6;
inline constexpr std::int32_t loops = 7;
inline constexpr std::int32_t grid = 8;
inline constexpr std::int32_t loads = 10;
inline constexpr std::int32_t sum = 11;
inline constexpr std::int32_t other = 12;
inline constexpr std::int32_t head_start = 13;  ///< its programs; its rounds follow
inline constexpr std::int32_t groups = 15;
inline constexpr std::int32_t first_slot = 16;
inline constexpr std::int32_t pair_words = 2;  ///< of a wait, a post, a loop's phases, a number of 64 bits

// Words of a slot's record.
inline constexpr std::int32_t slot_words = 8;
inline constexpr std::int32_t slot_tile = 0;
inline constexpr std::int32_t slot_waits = 1;  ///< wait_begin; wait_end follows
inline constexpr std::int32_t slot_phases = 3;
inline constexpr std::int32_t slot_makes = 4;  ///< makes_begin; makes_end follows
inline constexpr std::int32_t slot_store = 6;
inline constexpr std::int32_t slot_group = 6;  ///< in a table that a call makes; slot_rows follows
inline constexpr std::int32_t slot_rows = 7;

// Words of a phase.
inline constexpr std::int32_t phase_words = 4;
inline constexpr std::int32_t phase_begin = 0;  ///< iteration_begin; iteration_end follows
inline constexpr std::int32_t phase_waits = 2;  ///< wait_begin; wait_end follows

// Words of the sum's record.
inline constexpr std::int32_t sum_waits = 0;  ///< wait_begin; wait_end follows
inline constexpr std::int32_t sum_elements = 2;
inline constexpr std::int32_t sum_summands = 3;
inline constexpr std::int32_t sum_places = 4;  ///< of the first summand; the others follow

// Words of a made chunk's record.
inline constexpr std::int32_t made_words = 8;
inline constexpr std::int32_t wait_count_shift = 8;
inline constexpr std::int32_t made_counter = 0;
inline constexpr std::int32_t made_tiles = 1;
inline constexpr std::int32_t made_posts = 2;  ///< the first post; past the last one follows
inline constexpr std::int32_t made_gates = 4;  ///< of copies; of sums follows
inline constexpr std::int32_t made_told = 6;
inline constexpr std::int32_t made_groups = 7;    ///< of a table that a call makes: groups that make it
inline constexpr std::int32_t at_once = 1 << 30;  ///< of makes_end

// Words of the trace of a slot's record, and of a phase.
inline constexpr std::int32_t trace_wait = 0;   ///< when it began to wait
inline constexpr std::int32_t trace_start = 1;  ///< when the wait was over
inline constexpr std::int32_t trace_place = 3;

/// Added to the distance that a kernel takes as sy_own, so that this is an int64, and a multiple of 16, to
/// Triton whatever it is.
inline constexpr std::int64_t own_base = std::int64_t{1} << 62;

// What device/ptx.py loads at once must lie side by side, and be aligned.
static_assert(slot_tile % 4 == 0 && slot_waits == slot_tile + 1 && slot_phases == slot_waits + 2);
static_assert(num_slots == 0 && num_kernel_posts == 1 && kernel_posts == 2 && num_programs == 3);
static_assert(made_counter % 4 == 0 && made_tiles == made_counter + 1 && made_posts == made_tiles + 1);
static_assert(made_gates % 4 == 0 && made_told == made_gates + 2);
static_assert(first_slot % 4 == 0 && slot_words % 4 == 0 && made_words % 4 == 0);
static_assert(slot_makes % pair_words == 0 && slot_store % pair_words == 0 && trace % pair_words == 0);
static_assert(phase_words == 4 && phase_waits == phase_begin + 2 && grid % pair_words == 0);
}  // namespace table

}  // namespace syncopate::emit
