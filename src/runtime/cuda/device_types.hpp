// What the host gives to the kernels of device.cu. Plain C++17: nvcc reads it too.
#pragma once

#include <cstdint>

#include "syncopate/emit/layout.hpp"
#include "syncopate/runtime/cuda/engine/engine_format.hpp"

namespace syncopate::runtime::device {

namespace word = emit::control;  ///< of the control block

/// Words of the mirror in host memory, written by the kernels, read by the host without a call of the driver.
enum MirrorWord : std::int32_t {
    kMirrorPublished = 0,
    kMirrorFault = 1,
    kMirrorSeen = 2,
    kMirrorAwaited = 3,
    kMirrorWhere = 4,
    kMirrorEpoch = 5,
    kMirrorWords = 16,
};

constexpr std::int32_t kMostSumCopies = 15;   ///< fuse::kMostSumStores
constexpr std::int32_t kMostSumSources = 15;  ///< fuse::kMostSumSources

/// The parameter of sy_reduce: rows of `num_slots` boxes a fixed distance apart, and of the own content, are
/// summed in order. Addresses and pitches in bytes.
/// Where a contribution is, and its bytes from row to row.
struct Addend {
    std::uint64_t base;
    std::uint64_t pitch;
};

struct ReduceArguments {
    const std::uint32_t* control;  ///< this rank's control block
    const std::uint64_t* posts;    ///< addresses of the words to set
    std::uint32_t* finished;       ///< blocks that have done their part, over all calls
    std::uint64_t slots;
    std::uint64_t slot_distance;
    std::uint64_t slot_pitch;
    std::uint64_t own;
    std::uint64_t own_pitch;
    std::uint64_t out;
    std::uint64_t out_pitch;
    std::uint32_t rows;
    std::uint32_t row_units;  ///< of 16 bytes, or elements where not aligned
    std::int32_t num_slots;
    std::int32_t own_place;  ///< slots before the own content; -1: there is none
    std::int32_t type;       ///< SumType
    std::int32_t largest;    ///< 1: the maximum, not the sum
    std::int32_t aligned;    ///< 1: every address and pitch is a multiple of 16 bytes
    std::int32_t num_posts;
    std::int32_t num_copies;
    std::uint64_t copies[kMostSumCopies];  ///< from `own` to where the sum is stored as well
    Addend sources[kMostSumSources];       ///< where slots lie that are no fixed distance apart
    std::int32_t in_places;                ///< 1: they are in `sources`
};

/// The parameter of sy_begin and sy_end. All pointers are device addresses; posts and waits are arrays there.
struct BoundaryArguments {
    std::uint32_t* control;  ///< this rank's control block
    std::uint32_t* mirror;
    const std::uint64_t* posts;  ///< addresses of the words to set
    const WaitEntry* waits;
    std::uint64_t first_control;  ///< rank 0's control block
    std::uint64_t heap_stride;    ///< from one rank's to the next one's
    std::int32_t num_posts;
    std::int32_t num_waits;
    std::int32_t rank;
    std::int32_t num_ranks;
    std::int32_t advances;  ///< 1: sy_end advances the epoch, since the kernel is plain and does not
};

/// The parameter of sy_await.
struct AwaitArguments {
    std::uint32_t* control;  ///< this rank's control block
    const WaitEntry* waits;
    std::uint32_t* gate;  ///< awaited and set back, too; null: none
    std::uint32_t gate_value;
    std::int32_t num_waits;
    std::int32_t where;          ///< for the fault words
    std::int32_t reports;        ///< 1: it tells of a fault, since no sy_end comes after it
    BoundaryArguments boundary;  ///< then: who is told
};

/// The parameter of sy_engine: a table (engine_format.hpp) in device memory.
struct EngineArguments {
    BoundaryArguments begin;
    const EngineOp* ops;
    const EngineSource* sources;
    const std::uint64_t* copies;
    const std::uint64_t* posts;
    const WaitEntry* waits;
    std::uint32_t* finished;  ///< the counters
    std::uint32_t count;      ///< of ops
    std::uint32_t begins;     ///< 1: the engine also does what sy_begin does
    std::uint32_t follows;    ///< 1: it comes after the kernel, which is plain
    std::uint32_t ends;       ///< 1: the sum engine also does what sy_end does
    BoundaryArguments end;
    std::uint32_t* left;  ///< blocks of the sum engine that have done all their ops, over all calls
    /// Where each block of the sum engine signals for itself: bytes from a block's words to the next one's;
    /// 0: the blocks have words in common.
    std::uint64_t own_words;
    std::uint32_t* epochs;       ///< then: the next call's number, a word a block
    std::uint64_t source_shift;  ///< source_row's, of ops that are shifted
};

}  // namespace syncopate::runtime::device
