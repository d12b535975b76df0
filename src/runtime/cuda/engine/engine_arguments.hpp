// What the host gives to the chunk engine's kernels (engine.cu, sum_engine.cu, at_once.cu). Plain C++17: nvcc
// reads it too.
#pragma once

#include <cstdint>

#include "runtime/cuda/boundary/boundary.hpp"
#include "syncopate/runtime/cuda/engine/engine_format.hpp"

namespace syncopate::runtime::device {

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
    std::uint32_t
        counts;  ///< 1: each block of sy_engine_at_once adds to its op's signals (fuse/passes/engine.hpp)
    std::uint64_t source_shift;  ///< source_row's, of ops that are shifted
    /// From where the heap has what the sum engine's sums make to where they go instead, in bytes modulo
    /// 2^64; 0 where they are stored at other ranks, too.
    std::uint64_t sum_shift;
};

}  // namespace syncopate::runtime::device
