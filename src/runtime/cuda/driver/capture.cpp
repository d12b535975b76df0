#include "syncopate/runtime/cuda/driver/capture.hpp"

#include "runtime/cuda/driver/cuda_api.hpp"

namespace syncopate::runtime {

#if SYNCOPATE_HAS_CUDA

bool is_capturing(const CudaContext* context, CudaStream stream) {
    if (context == nullptr) return false;
    const CurrentContext current(*context);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return context->api().cuStreamIsCapturing(reinterpret_cast<CUstream>(stream), &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool is_capturing(int ordinal, CudaStream stream) {
    const Result<std::shared_ptr<CudaContext>> context = CudaContext::retain(ordinal);
    return context && is_capturing(context->get(), stream);
}

#else

bool is_capturing(const CudaContext*, CudaStream) { return false; }
bool is_capturing(int, CudaStream) { return false; }

#endif

}  // namespace syncopate::runtime
