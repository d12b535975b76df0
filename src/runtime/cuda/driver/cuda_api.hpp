// The functions of the CUDA driver that the runtime calls, each in the version that its types here are of.
// Who includes this where SYNCOPATE_HAS_CUDA is set needs the toolkit's headers.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>
#include <string_view>

#include "syncopate/result.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"

// (name, version of the interface: the CUDA version that brought it, as in cudaTypedefs.h)
#define SYNCOPATE_CUDA_FUNCTIONS(F)                      \
    F(cuInit, 2000)                                      \
    F(cuDriverGetVersion, 2020)                          \
    F(cuGetErrorName, 6000)                              \
    F(cuGetErrorString, 6000)                            \
    F(cuDeviceGetCount, 2000)                            \
    F(cuDeviceGet, 2000)                                 \
    F(cuDeviceGetName, 2000)                             \
    F(cuDeviceGetUuid, 11040)                            \
    F(cuDeviceGetAttribute, 2000)                        \
    F(cuDeviceCanAccessPeer, 4000)                       \
    F(cuDevicePrimaryCtxRetain, 7000)                    \
    F(cuDevicePrimaryCtxRelease, 11000)                  \
    F(cuCtxGetCurrent, 4000)                             \
    F(cuCtxSetCurrent, 4000)                             \
    F(cuCtxGetDevice, 2000)                              \
    F(cuCtxSynchronize, 2000)                            \
    F(cuCtxGetStreamPriorityRange, 5050)                 \
    F(cuMemGetInfo, 3020)                                \
    F(cuMemAddressReserve, 10020)                        \
    F(cuMemAddressFree, 10020)                           \
    F(cuMemCreate, 10020)                                \
    F(cuMemRelease, 10020)                               \
    F(cuMemMap, 10020)                                   \
    F(cuMemUnmap, 10020)                                 \
    F(cuMemSetAccess, 10020)                             \
    F(cuMemGetAllocationGranularity, 10020)              \
    F(cuMemExportToShareableHandle, 10020)               \
    F(cuMemImportFromShareableHandle, 10020)             \
    F(cuMemAlloc, 3020)                                  \
    F(cuMemFree, 3020)                                   \
    F(cuMemHostAlloc, 2020)                              \
    F(cuMemHostGetDevicePointer, 3020)                   \
    F(cuMemFreeHost, 2000)                               \
    F(cuMemcpyHtoDAsync, 3020)                           \
    F(cuMemcpyDtoHAsync, 3020)                           \
    F(cuMemcpyDtoDAsync, 3020)                           \
    F(cuMemcpy2DAsync, 3020)                             \
    F(cuMemcpy3DAsync, 3020)                             \
    F(cuMemsetD8Async, 3020)                             \
    F(cuStreamCreateWithPriority, 5050)                  \
    F(cuStreamDestroy, 4000)                             \
    F(cuStreamSynchronize, 2000)                         \
    F(cuStreamWaitEvent, 3020)                           \
    F(cuStreamIsCapturing, 10000)                        \
    F(cuStreamBatchMemOp, 11070)                         \
    F(cuEventCreate, 2000)                               \
    F(cuEventDestroy, 4000)                              \
    F(cuEventRecord, 2000)                               \
    F(cuEventQuery, 2000)                                \
    F(cuEventElapsedTime, 2000)                          \
    F(cuStreamGetPriority, 5050)                         \
    F(cuStreamBeginCapture, 10010)                       \
    F(cuThreadExchangeStreamCaptureMode, 10010)          \
    F(cuStreamEndCapture, 10000)                         \
    F(cuGraphInstantiateWithFlags, 11040)                \
    F(cuGraphLaunch, 10000)                              \
    F(cuGraphDestroy, 10000)                             \
    F(cuGraphExecDestroy, 10000)                         \
    F(cuModuleLoadData, 2000)                            \
    F(cuModuleUnload, 2000)                              \
    F(cuModuleGetFunction, 2000)                         \
    F(cuFuncGetAttribute, 2020)                          \
    F(cuFuncSetAttribute, 9000)                          \
    F(cuFuncSetCacheConfig, 3000)                        \
    F(cuLaunchKernelEx, 11060)                           \
    F(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050) \
    F(cuTensorMapEncodeTiled, 12000)

// Present from CUDA 12.4 on; null before.
#define SYNCOPATE_CUDA_OPTIONAL_FUNCTIONS(F) F(cuFuncLoad, 12040)

namespace syncopate::runtime {

struct CudaApi {
// cuda.h renames some of these by macros (cuMemAlloc is cuMemAlloc_v2); a member is renamed alike wherever it
// is named.
#define SYNCOPATE_DECLARE(name, version) PFN_##name##_v##version name = nullptr;
    SYNCOPATE_CUDA_FUNCTIONS(SYNCOPATE_DECLARE)
    SYNCOPATE_CUDA_OPTIONAL_FUNCTIONS(SYNCOPATE_DECLARE)
#undef SYNCOPATE_DECLARE

    /// "cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY (out of memory)", and `about` after it.
    [[nodiscard]] Error error(std::string_view call, CUresult code, std::string_view about = {}) const;
};

/// The table, filled on the first call; the same error on every call where there is no usable driver.
Result<const CudaApi*> cuda_api();

/// Calls api.NAME(…) and leaves the enclosing function with its error if it fails.
#define SYNCOPATE_CUDA(api, name, ...)                                             \
    do {                                                                           \
        if (const CUresult code_ = (api).name(__VA_ARGS__); code_ != CUDA_SUCCESS) \
            return (api).error(#name, code_);                                      \
    } while (false)

/// Makes a context current in this thread for a while, and puts back what was there. Inside another one of the same context
/// the driver is not asked: one around a whole call spares its parts.
class CurrentContext {
public:
    explicit CurrentContext(const CudaContext& context) : api_(context.api()), around_(made_) {
        const CUcontext wanted = static_cast<CUcontext>(context.handle());
        if (around_ == wanted) return;
        if (api_.cuCtxGetCurrent(&before_) != CUDA_SUCCESS) return;
        changed_ = before_ != wanted && api_.cuCtxSetCurrent(wanted) == CUDA_SUCCESS;
        made_ = before_ == wanted || changed_ ? wanted : nullptr;
    }
    ~CurrentContext() {
        made_ = around_;
        if (changed_) api_.cuCtxSetCurrent(before_);
    }
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

private:
    static inline thread_local CUcontext made_ = nullptr;  ///< current by the innermost one; null: none
    const CudaApi& api_;
    CUcontext around_;
    CUcontext before_ = nullptr;
    bool changed_ = false;
};

/// A non-blocking stream of `context` with an owner.
class OwnedStream {
public:
    static Result<std::unique_ptr<OwnedStream>> create(std::shared_ptr<CudaContext> context,
                                                       bool high_priority);
    ~OwnedStream();
    OwnedStream(const OwnedStream&) = delete;
    OwnedStream& operator=(const OwnedStream&) = delete;
    [[nodiscard]] CUstream get() const { return stream_; }

private:
    explicit OwnedStream(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
    std::shared_ptr<CudaContext> context_;
    CUstream stream_ = nullptr;
};

/// Device memory of `context` (cuMemAlloc: aligned to 256 bytes) with an owner.
class DeviceBuffer {
public:
    static Result<std::unique_ptr<DeviceBuffer>> create(std::shared_ptr<CudaContext> context,
                                                        std::size_t bytes);
    ~DeviceBuffer();
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;
    [[nodiscard]] CUdeviceptr address() const { return address_; }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

private:
    explicit DeviceBuffer(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
    std::shared_ptr<CudaContext> context_;
    CUdeviceptr address_ = 0;
    std::size_t bytes_ = 0;
};

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
