// Carries out one transfer on a stream, then posts: what HostMover is to a thread. Data go by enqueue_copy or by NCCL; the
// copy engine posts [P21].
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <cstdint>

#include "runtime/call/call_plan.hpp"
#include "runtime/cuda/driver/cuda_api.hpp"
#include "runtime/cuda/streams/nccl.hpp"

namespace syncopate::runtime {

class StreamMover {
public:
    /// `published`: the epoch in pinned host memory, from which this rank's own words are posted; `nccl`: for
    /// collectives, or null. These, `api` and `plan` must outlive it.
    StreamMover(const CudaApi& api, const CallPlan& plan, const std::uint32_t* published, const Nccl* nccl)
        : api_(api), plan_(plan), published_(published), nccl_(nccl) {}

    /// The transfer's data, of copies or a collective, and its posts.
    Status enqueue(const PreparedTransfer& transfer, CUstream stream) const;
    Status post(const PreparedTransfer& transfer, CUstream stream) const;
    /// The same of another rank's call: its `published`, in this GPU's memory and in pinned memory.
    Status post(const PreparedTransfer& transfer, CUstream stream, CUdeviceptr published,
                const std::uint32_t* mirrored) const;

private:
    const CudaApi& api_;
    const CallPlan& plan_;
    const std::uint32_t* published_;
    const Nccl* nccl_;
};

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
