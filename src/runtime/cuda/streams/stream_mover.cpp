#include "runtime/cuda/streams/stream_mover.hpp"

#if SYNCOPATE_HAS_CUDA

#include "runtime/cuda/streams/copy_stream.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {

Status StreamMover::enqueue(const PreparedTransfer& transfer, CUstream stream) const {
    if (const PreparedTransfer::Copies* copies = transfer.copies()) {
        for (const StridedCopy& copy : *copies) {
            SYNCOPATE_TRY(enqueue_copy(api_, copy, stream));
        }
    }
    if (const PreparedCollective* collective = transfer.collective()) {
        SYNCOPATE_TRY(nccl_->enqueue(*collective, stream));
    }
    return post(transfer, stream);
}

Status StreamMover::post(const PreparedTransfer& transfer, CUstream stream) const {
    return post(transfer, stream, plan_.control() + 4 * emit::control::published, published_);
}

Status StreamMover::post(const PreparedTransfer& transfer, CUstream stream, CUdeviceptr published,
                         const std::uint32_t* mirrored) const {
    for (const std::uint64_t word : transfer.post_words) {
        if (!plan_.is_own(word)) SYNCOPATE_CUDA(api_, cuMemcpyDtoDAsync, word, published, 4, stream);
    }
    // From the mirror [P21].
    for (const std::uint64_t word : transfer.post_words) {
        if (plan_.is_own(word)) SYNCOPATE_CUDA(api_, cuMemcpyHtoDAsync, word, mirrored, 4, stream);
    }
    return Done{};
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
