// What a stage's kernel is given, for C++ and CUDA alike: one structure as a kernel parameter, and tables of
// 32-bit words in device memory. All of it is constant between calls but tickets, semaphores and fault words,
// and those only count: nothing is reset, so a captured graph can be replayed.
//
//   table of a stage   | order                tiles words     the n-th tile to run
//                      | waits, by input      tiles + 1 each  where a tile's entries begin
//                      | posts                tiles + 1       where a tile's posts begin
//                      | entries              4 words each    WaitEntry
//                      | posted               1 word each     a semaphore
//
// A ticket counts draws since the chain was made. A launch draws `draws` of them, so ticket / draws is the
// number of the call, its epoch. Semaphores count posts since the chain was made; a wait of epoch e is over
// at (e - lag) · posts + count, modulo 2^32.
#pragma once

#include <cstdint>

namespace syncopate::sync {

struct WaitEntry {
    std::uint32_t semaphore;
    std::uint32_t count;
    std::uint32_t posts;  ///< of one call
    std::uint32_t lag;
};

/// Semaphores lie this many words apart, each in a sector of its own.
constexpr std::uint32_t kSemaphoreWords = 8;

/// Words of the fault block.
enum FaultWord : std::uint32_t {
    kFault,  ///< 0: none; else the stage that waited in vain, plus 1
    kFaultTile,
    kFaultInput,
    kFaultSemaphore,
    kFaultSeen,
    kFaultAwaited,
    kDeadlineMs,  ///< set by the host; 0: none
    kFaultWords,
};

struct StageArguments {
    const std::uint32_t* table;
    std::uint32_t* semaphores;
    unsigned long long* ticket;
    std::uint32_t* fault;
    std::uint32_t tiles;
    /// Tickets that one launch draws: tiles, and of a persistent kernel its blocks more.
    std::uint32_t draws;
    std::uint32_t grid[3];
    std::uint32_t stage;
    std::uint32_t ordered;  ///< 1: tiles by tickets; 0: each block runs the tile of its own place
    std::uint32_t awaits;   ///< 0: in stream order nothing is awaited, posted or, without tickets, counted
    std::uint32_t waits_at, posts_at, entries_at, posted_at;  ///< words from the begin of the table
};

}  // namespace syncopate::sync
