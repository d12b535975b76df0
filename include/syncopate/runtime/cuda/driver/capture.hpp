// Whether a stream is being captured into a graph: then nothing may be allocated.
#pragma once

#include <cstdint>

#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"

namespace syncopate::runtime {

/// What is known of a stream: a call asks the driver once.
enum class Capture : std::uint8_t { unknown, off, on };

/// `unknown`: the driver does not say.
[[nodiscard]] Capture capture_of(const CudaContext& context, CudaStream stream);
/// False where there is no such GPU, or no driver.
[[nodiscard]] bool is_capturing(int ordinal, CudaStream stream);

}  // namespace syncopate::runtime
