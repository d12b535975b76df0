// The CUDA driver, opened at run time: a program linked with this library also starts where there is no
// driver. Nothing here names a type of cuda.h; handles are opaque.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/heap.hpp"

namespace syncopate::runtime {

struct CudaApi;  // cuda_api.hpp: the driver's functions

/// A stream as CUDA and torch give it (CUstream as an integer); 0 is the default stream.
using CudaStream = std::uint64_t;

/// Number of GPUs. Error (machine): no driver, a driver that is too old, a build without CUDA.
Result<int> cuda_device_count();

/// "NVIDIA H200". Error (machine): as above, or there is no such GPU.
Result<std::string> cuda_device_name(int ordinal);

/// The primary context of one GPU, the one that torch and the CUDA runtime use, kept alive while this object
/// lives.
class CudaContext {
public:
    static Result<std::shared_ptr<CudaContext>> retain(int ordinal);
    /// Of the GPU that is current in this thread; of the first one when none is.
    static Result<std::shared_ptr<CudaContext>> current();
    ~CudaContext();
    CudaContext(const CudaContext&) = delete;
    CudaContext& operator=(const CudaContext&) = delete;

    [[nodiscard]] int ordinal() const { return ordinal_; }
    [[nodiscard]] const std::string& name() const { return name_; }  ///< "NVIDIA H200"
    [[nodiscard]] const std::string& uuid() const { return uuid_; }  ///< 32 hexadecimal digits
    [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
    [[nodiscard]] Result<MemoryInfo> memory() const;
    [[nodiscard]] Status synchronize() const;  ///< waits for all work of the GPU's context

    [[nodiscard]] const CudaApi& api() const { return *api_; }
    [[nodiscard]] void* handle() const { return handle_; }  ///< CUcontext

private:
    CudaContext() = default;
    const CudaApi* api_ = nullptr;
    void* handle_ = nullptr;
    int ordinal_ = -1;
    int device_ = -1;  ///< CUdevice
    int multiprocessors_ = 0;
    std::string name_;
    std::string uuid_;
};

}  // namespace syncopate::runtime
