// What the host gives to the kernels of reduce.cu. Plain C++17: nvcc reads it too.
#pragma once

#include <cstdint>

#include "runtime/cuda/boundary/boundary.hpp"
#include "syncopate/runtime/cuda/engine/engine_format.hpp"

namespace syncopate::runtime::device {

constexpr std::int32_t kMostSumSources = 15;  ///< fuse::kMostSumSources

/// Where a contribution is, and its bytes from row to row.
struct Addend {
    std::uint64_t base;
    std::uint64_t pitch;
};

/// The parameter of sy_reduce: rows of `num_slots` boxes a fixed distance apart, and of the own content, are
/// summed in order. Addresses and pitches in bytes.
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

}  // namespace syncopate::runtime::device
