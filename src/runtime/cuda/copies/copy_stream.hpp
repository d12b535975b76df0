// Strided copies as a stream takes them: by the copy engine or, inside one GPU, its multiprocessors.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <vector>

#include "syncopate/runtime/call/strided_copy.hpp"
#include "syncopate/runtime/cuda/driver/cuda_api.hpp"

namespace syncopate::runtime {

/// The same copies, each such as enqueue_copy takes: cuMemcpy3D takes planes that are whole rows apart; other
/// copies go plane by plane.
[[nodiscard]] std::vector<StridedCopy> for_copy_engine(const std::vector<StridedCopy>& copies);

/// One asynchronous copy between device addresses.
Status enqueue_copy(const CudaApi& api, const StridedCopy& copy, CUstream stream);

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
