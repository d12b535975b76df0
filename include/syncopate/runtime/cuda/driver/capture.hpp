// Whether a stream is being captured into a graph: then nothing may be allocated.
#pragma once

#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"

namespace syncopate::runtime {

class CudaContext;

/// False of no context, as that of a heap on the host.
[[nodiscard]] bool is_capturing(const CudaContext* context, CudaStream stream);
/// False where there is no such GPU, or no driver.
[[nodiscard]] bool is_capturing(int ordinal, CudaStream stream);

}  // namespace syncopate::runtime
