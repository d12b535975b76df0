// What a call on cuda owns beside memory of the GPU: pinned words, events, streams with an event.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {

/// Pinned host memory that the GPU writes too.
class PinnedWords {
public:
    static Result<std::unique_ptr<PinnedWords>> create(std::shared_ptr<CudaContext> context,
                                                       std::size_t count) {
        const CudaApi& api = context->api();
        std::unique_ptr<PinnedWords> made(new PinnedWords(context));
        void* host = nullptr;
        SYNCOPATE_CUDA(api, cuMemHostAlloc, &host, count * sizeof(std::uint32_t),
                       CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
        made->host_ = static_cast<std::uint32_t*>(host);
        std::fill_n(made->host_, count, 0u);
        SYNCOPATE_CUDA(api, cuMemHostGetDevicePointer, &made->device_, host, 0);
        return made;
    }
    ~PinnedWords() {
        const CurrentContext current(*context_);
        if (host_ != nullptr) context_->api().cuMemFreeHost(host_);
    }
    PinnedWords(const PinnedWords&) = delete;
    PinnedWords& operator=(const PinnedWords&) = delete;

    [[nodiscard]] const volatile std::uint32_t* words() const { return host_; }
    [[nodiscard]] std::uint32_t* host() const { return host_; }
    [[nodiscard]] CUdeviceptr device() const { return device_; }

private:
    explicit PinnedWords(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
    std::shared_ptr<CudaContext> context_;
    std::uint32_t* host_ = nullptr;
    CUdeviceptr device_ = 0;
};

/// An event without timing.
class OwnedEvent {
public:
    static Result<std::unique_ptr<OwnedEvent>> create(std::shared_ptr<CudaContext> context) {
        const CurrentContext current(*context);
        std::unique_ptr<OwnedEvent> made(new OwnedEvent(context));
        SYNCOPATE_CUDA(context->api(), cuEventCreate, &made->event_, CU_EVENT_DISABLE_TIMING);
        return made;
    }
    ~OwnedEvent() {
        const CurrentContext current(*context_);
        if (event_ != nullptr) context_->api().cuEventDestroy(event_);
    }
    OwnedEvent(const OwnedEvent&) = delete;
    OwnedEvent& operator=(const OwnedEvent&) = delete;
    [[nodiscard]] CUevent get() const { return event_; }

private:
    explicit OwnedEvent(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
    std::shared_ptr<CudaContext> context_;
    CUevent event_ = nullptr;
};

/// A stream beside the caller's, and the event that ends its part of a call.
class Lane {
public:
    static Result<Lane> create(const std::shared_ptr<CudaContext>& context) {
        Lane lane;
        SYNCOPATE_TAKE(std::unique_ptr<OwnedStream> stream, OwnedStream::create(context, true));
        lane.stream_ = std::move(stream);
        SYNCOPATE_TAKE(std::unique_ptr<OwnedEvent> join, OwnedEvent::create(context));
        lane.join_ = std::move(join);
        return lane;
    }
    [[nodiscard]] CUstream stream() const { return stream_->get(); }
    [[nodiscard]] CUevent join() const { return join_->get(); }

private:
    std::unique_ptr<OwnedStream> stream_;
    std::unique_ptr<OwnedEvent> join_;
};

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
