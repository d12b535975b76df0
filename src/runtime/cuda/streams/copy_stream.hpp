// Strided copies as a stream takes them: by the copy engine or, inside one GPU, its multiprocessors.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include "runtime/cuda/driver/cuda_api.hpp"
#include "syncopate/runtime/call/strided_copy.hpp"

namespace syncopate::runtime {

/// One copy between device addresses, enqueued: at once, or plane by plane where cuMemcpy3D does not take it.
Status enqueue_copy(const CudaApi& api, const StridedCopy& copy, CUstream stream);

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
