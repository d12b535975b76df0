#include "runtime/cuda/engine/engine_turn.hpp"
#include "syncopate/try.hpp"

#if SYNCOPATE_HAS_CUDA

#include <map>
#include <mutex>

#include <fmt/format.h>

namespace syncopate::runtime {

Result<std::shared_ptr<EngineTurn>> EngineTurn::of(const std::shared_ptr<CudaContext>& context) {
    static std::mutex mutex;
    static std::map<int, std::weak_ptr<EngineTurn>> turns;
    const std::lock_guard lock(mutex);
    if (std::shared_ptr<EngineTurn> existing = turns[context->ordinal()].lock()) return existing;
    SYNCOPATE_TAKE(std::unique_ptr<OwnedEvent> event, OwnedEvent::create(context));
    auto made = std::make_shared<EngineTurn>(context, std::move(event));
    turns[context->ordinal()] = made;
    return made;
}

Result<EngineTurn::Held> EngineTurn::take(CUstream stream, bool captured, std::chrono::milliseconds most) {
    Held held = most.count() == 0 ? Held(making_) : Held(making_, most);
    if (!held)
        return machine_error(
            fmt::format("another thread has been making a call on this GPU for {} ms", most.count()));
    // CU_STREAM_PER_THREAD is another stream for each thread.
    const bool same = last_ && *last_ == stream && stream != CU_STREAM_PER_THREAD;
    if (last_ && !same && !captured)
        SYNCOPATE_CUDA(context_->api(), cuStreamWaitEvent, stream, event_->get(), 0);
    return held;
}

Status EngineTurn::pass(CUstream stream, bool captured) {
    if (captured) return Done{};
    SYNCOPATE_CUDA(context_->api(), cuEventRecord, event_->get(), stream);
    last_ = stream;
    return Done{};
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
