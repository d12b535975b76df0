// What the host gives to the kernels at a call's begin and end (boundary.cu), and reads of what they say.
// Plain C++17: nvcc reads it too.
#pragma once

#include <cstdint>

#include "syncopate/emit/layout.hpp"
#include "syncopate/runtime/cuda/engine/engine_format.hpp"

namespace syncopate::runtime::device {

namespace word = emit::control;  ///< of the control block

/// Words of the mirror in host memory [P9].
enum MirrorWord : std::int32_t {
    kMirrorPublished = 0,
    kMirrorFault = word::mirror_fault,
    kMirrorSeen = word::mirror_seen,
    kMirrorAwaited = 3,
    kMirrorWhere = 4,
    kMirrorEpoch = 5,
    kMirrorBegun = word::mirror_begun,  ///< the last call that has begun
    kMirrorEnded = 7,                   ///< the last one that has ended, of calls with collectives
    kMirrorWords = 16,
};

/// The parameter of sy_begin and sy_end. All pointers are device addresses; posts and waits are arrays there.
struct BoundaryArguments {
    std::uint32_t* control;  ///< this rank's control block
    std::uint32_t* mirror;
    const std::uint64_t* posts;  ///< addresses of the words to set
    const WaitEntry* waits;
    std::uint64_t first_control;  ///< of the first rank whose memory is mapped: its control block
    std::uint64_t heap_stride;    ///< from one rank's to the next one's
    std::int32_t num_posts;
    std::int32_t num_waits;
    std::int32_t rank;
    std::int32_t num_ranks;
    std::int32_t tells_end;  ///< 1: sy_end writes kMirrorEnded
};

}  // namespace syncopate::runtime::device
