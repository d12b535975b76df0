// Ordinary kernels as stages of a chain, launched by name, from a .cu file (C++20, the CUDA runtime):
//
//     template <int kBlock>
//     __global__ void down(const __grid_constant__ StageArguments stage, Input<float> y, float* z, int n);
//     …
//     launch(*chain, 1, {.threads = {128, 1, 1}}, stream, down<64>, y, z, n);
//
// The chain adds the first argument and the grid. The other arguments are converted to the kernel's parameters, as
// in a call.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "syncopate/sync/launch.hpp"

namespace syncopate::sync {

/// An array that an earlier stage writes. nvcc reads what it takes for constant, such as a parameter
/// `const T* __restrict__`, by ld.global.nc, which may miss what a running kernel has stored, wait or no wait.
/// This pointer's loads are plain ones. An array that no stage writes is one, too: it costs nothing.
template <typename T>
class Input {
public:
    static_assert(!std::is_const_v<T>, "Input<T> reads only: write Input<float>, not Input<const float>");
    __host__ __device__ Input(const T* data) : data_(data) {}  // implicit: arguments are plain pointers
    __host__ __device__ const T* get() const { return data_; }
    __device__ const T& operator[](std::size_t i) const { return data_[i]; }

private:
    const T* data_;
};

/// The shape of a stage's blocks.
struct StageShape {
    dim3 threads{1, 1, 1};
    std::uint32_t shared_bytes = 0;  ///< dynamic; above 48 KiB after cudaFuncSetAttribute, as with <<<…>>>
    Blocks blocks{};
};

template <typename T>
inline constexpr bool kReadsOnly = std::is_pointer_v<T> && std::is_const_v<std::remove_pointer_t<T>>;

/// Enqueues stage `stage` of `chain` (DeviceChain::launch). Fails as that does, and where the kernel is not on this
/// GPU.
template <typename... Parameters, typename... Given>
Status launch(DeviceChain& chain, std::size_t stage, const StageShape& shape, cudaStream_t stream,
              void (*kernel)(StageArguments, Parameters...), Given&&... given) {
    static_assert(
        (!kReadsOnly<Parameters> && ...),
        "a kernel of a chain takes what it reads as Input<T> or T*, not const T*: with __restrict__ that "
        "is read by ld.global.nc, which may miss what a running kernel has stored");
    static_assert(sizeof...(Parameters) == sizeof...(Given),
                  "the arguments are those of the kernel without the first one, which the chain adds");
    cudaFunction_t function = nullptr;
    const cudaError_t found = cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(kernel));
    if (found != cudaSuccess) {
        Error error;
        error.message = std::string("cudaGetFuncBySymbol failed: ") + cudaGetErrorString(found);
        error.error_class = ErrorClass::machine;
        return error;
    }
    StageArguments first = chain.arguments(stage, shape.blocks);
    const auto enqueue = [&](Parameters... arguments) {
        const std::array<void*, sizeof...(Parameters) + 1> addresses{
            &first, const_cast<void*>(static_cast<const void*>(&arguments))...};
        return chain.launch(
            stage,
            Function{function, {shape.threads.x, shape.threads.y, shape.threads.z}, shape.shared_bytes},
            addresses, reinterpret_cast<runtime::CudaStream>(stream), shape.blocks);
    };
    return enqueue(std::forward<Given>(given)...);
}

}  // namespace syncopate::sync
