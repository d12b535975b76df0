// A sum in a stream: sy_await, then sy_reduce for each of its boxes (reduce.cu), on all multiprocessors that
// are free.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/cuda/driver/device_module.hpp"
#include "runtime/cuda/streams/reduce.hpp"
#include "syncopate/runtime/call/reduction.hpp"

namespace syncopate::runtime {

struct StreamSum {
    std::size_t index = 0;  ///< in the schedule; for the fault words
    PreparedSum sum;
    std::vector<device::WaitEntry> waits;  ///< empty: all is there when its turn in the stream comes
    std::vector<std::uint64_t> posts;      ///< addresses
    CUdeviceptr awaited_gate = 0;          ///< of the own part, that sy_await passes; 0: none
    std::uint32_t awaited_tiles = 0;       ///< what it reaches
    // Where these two lists, and a word for counting that is 0 at first, are in device memory.
    CUdeviceptr device_waits = 0;
    CUdeviceptr device_posts = 0;
    CUdeviceptr finished = 0;
};

/// sy_await, if it has something to wait for. `control`: this rank's control block. `reports`: whom it tells
/// of a fault; null where sy_end does.
Status enqueue_await(const DeviceModule& module, const StreamSum& step, CUdeviceptr control, CUstream stream,
                     const device::BoundaryArguments* reports);

/// The sum, once all that it waits for is there. `processors`: of the GPU.
Status enqueue_sum(const DeviceModule& module, const StreamSum& step, CUdeviceptr control,
                   unsigned processors, CUstream stream);

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
