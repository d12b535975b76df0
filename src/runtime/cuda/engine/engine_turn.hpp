// Whose turn it is to use a GPU for a call in which ranks' kernels wait for each other.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/cuda/driver/cuda_handles.hpp"

namespace syncopate::runtime {

/// Calls that use the chunk engine of one GPU, or whose kernels sum, take turns [P24]: the engine's blocks and the
/// kernel that waits for other ranks' engines fill the GPU, so of two calls that ranks took up in different
/// order neither would end. Threads make them one at a time.
class EngineTurn {
public:
    /// The turn of `context`'s GPU, shared by all ops of this process.
    static Result<std::shared_ptr<EngineTurn>> of(const std::shared_ptr<CudaContext>& context);
    EngineTurn(std::shared_ptr<CudaContext> context, std::unique_ptr<OwnedEvent> event)
        : context_(std::move(context)), event_(std::move(event)) {}

    using Held = std::unique_lock<std::recursive_timed_mutex>;  ///< by the thread that makes a call
    /// Makes `stream` wait for the call before, if it was made on another stream. Until the turn is given
    /// back no other thread takes it; fails where one has had it for longer than `most` (0: any time).
    /// `captured`: the call goes into a graph, here and in pass(): then it takes no part.
    Result<Held> take(CUstream stream, bool captured, std::chrono::milliseconds most);
    /// What is now enqueued on `stream` goes before the next call.
    Status pass(CUstream stream, bool captured);

private:
    std::shared_ptr<CudaContext> context_;
    std::unique_ptr<OwnedEvent> event_;
    std::recursive_timed_mutex making_;
    std::optional<CUstream> last_;  ///< of the call before; nullptr is the default stream
};

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
