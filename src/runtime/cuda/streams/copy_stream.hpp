// Strided copies as a stream takes them: by the copy engine or, inside one GPU, its multiprocessors.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <span>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "runtime/cuda/driver/device_module.hpp"
#include "syncopate/runtime/call/strided_copy.hpp"

namespace syncopate::runtime {

/// One copy between device addresses, enqueued: at once, or plane by plane where cuMemcpy3D does not take it.
Status enqueue_copy(const CudaApi& api, const StridedCopy& copy, CUstream stream);

/// Several, within the memory of `context`'s GPU: by one kernel where they are many or large (copy_boxes.cu), those that it does not
/// take, as their rows are no multiples of 16 bytes, one by one. No two may write the same. Where one may read what another writes,
/// they go in the order given.
Status enqueue_local_copies(const CudaContext& context, const DeviceModule& module,
                            std::span<const StridedCopy* const> copies, CUstream stream);

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
