// Engine: how the chunk engine carries out what `assign` has given it, and by which protocol its signals and those
// of kernels that sum are posted. The runtime follows it
// [P6].
//
//     none       it has nothing to do
//     relays     it only waits, and opens the gates of streams
//     bulk       its warps walk the table; all of it goes by bulk copies
//     pieces     the same, by loads and stores, too
//     sums       nothing but sums of one type by loads and stores: a block does an op's share together
//     at_once    a few copies by loads and stores that wait for nothing but the call's begin, each of no more bytes
//                than its blocks' threads load before they store; its last block posts
//     counted    the same on every rank, and only tiles wait for what comes: each block adds to the signals [P5],
//                and nobody waits for the last one
//
// A rank's calls take turns on its GPU [P24] with an engine, and where the fused kernel sums.
#pragma once

#include <cstdint>
#include <string>

#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/fuse/model/schedule.hpp"

namespace syncopate::fuse {

inline constexpr std::int32_t kMostEngineBlocks = 1024;
/// What a block has on its way at once: 1024 threads with 8 loads of 16 bytes each.
inline constexpr std::int64_t kBytesAtOnce = 1024 * 8 * 16;

/// The schedule with its engines, of so many blocks each (1 to kMostEngineBlocks), its turns and its counted signals.
[[nodiscard]] Schedule decide_engine(Schedule schedule, Device device, std::int32_t blocks);

/// Why a rank's engine cannot be what the schedule says; empty if it can.
[[nodiscard]] std::string engine_objection(const Schedule& schedule, const RankSchedule& rank);

}  // namespace syncopate::fuse
