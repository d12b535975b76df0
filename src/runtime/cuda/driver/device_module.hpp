// The library's own kernels (src/runtime/**/*.cu), loaded into one context, and their launch.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <memory>
#include <string>
#include <utility>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "syncopate/runtime/cuda/engine/engine_format.hpp"

namespace syncopate::runtime {

/// Dynamic shared memory of sy_engine.
inline constexpr unsigned kEngineSharedBytes =
    device::kEngineWarps * device::kEngineStages * device::kEnginePieceBytes;

/// The library's own kernels, loaded into one context.
class DeviceModule {
public:
    /// Fails where the build holds no device code or the driver refuses it.
    static Result<std::unique_ptr<DeviceModule>> load(std::shared_ptr<CudaContext> context);
    ~DeviceModule();
    DeviceModule(const DeviceModule&) = delete;
    DeviceModule& operator=(const DeviceModule&) = delete;

    /// Enqueues `function` with its one parameter, a structure of the header beside its .cu.
    template <typename Arguments>
    Status launch(CUfunction function, Arguments& arguments, CUstream stream, unsigned blocks = 1,
                  unsigned threads = 32, unsigned shared_bytes = 0) const {
        return launch_raw(function, &arguments, stream, blocks, threads, shared_bytes);
    }

    /// One of the kernels that only some ops need, loaded as a block that has a multiprocessor for itself.
    [[nodiscard]] Result<CUfunction> engine_named(const std::string& name) const;

    CUfunction begin = nullptr;
    CUfunction end = nullptr;
    CUfunction engine = nullptr;
    CUfunction engine_bulk = nullptr;  ///< for tables of which all goes in bulk
    CUfunction await = nullptr;
    CUfunction reduce = nullptr;
    CUfunction copy_boxes = nullptr;

private:
    explicit DeviceModule(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
    Status launch_raw(CUfunction function, void* arguments, CUstream stream, unsigned blocks,
                      unsigned threads, unsigned shared_bytes) const;

    std::shared_ptr<CudaContext> context_;
    CUmodule module_ = nullptr;
};

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
