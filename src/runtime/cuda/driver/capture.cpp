#include "syncopate/runtime/cuda/driver/capture.hpp"

#include "runtime/cuda/driver/cuda_api.hpp"

namespace syncopate::runtime {

#if SYNCOPATE_HAS_CUDA

Capture capture_of(const CudaContext& context, CudaStream stream) {
    const CurrentContext current(context);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (context.api().cuStreamIsCapturing(reinterpret_cast<CUstream>(stream), &status) != CUDA_SUCCESS)
        return Capture::unknown;
    return status == CU_STREAM_CAPTURE_STATUS_NONE ? Capture::off : Capture::on;
}

bool is_capturing(int ordinal, CudaStream stream) {
    const Result<std::shared_ptr<CudaContext>> context = CudaContext::retain(ordinal);
    return context && capture_of(**context, stream) == Capture::on;
}

#else

Capture capture_of(const CudaContext&, CudaStream) { return Capture::off; }
bool is_capturing(int, CudaStream) { return false; }

#endif

}  // namespace syncopate::runtime
