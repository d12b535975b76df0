#include "syncopate/sync/way.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#if SYNCOPATE_HAS_CUDA
#include "runtime/cuda/driver/cuda_api.hpp"
#include "runtime/cuda/driver/cuda_handles.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"
#endif

namespace syncopate::sync {
namespace {

constexpr double kRounds = 0.75;  // the share of them to win

/// What a way has to win by against stream order.
double margin_of(Way way) { return way == Way::programmatic ? 0 : 0.01; }

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::ranges::nth_element(values, middle);
    return *middle;
}

}  // namespace

std::string_view name_of(Way way) {
    static constexpr std::array<std::string_view, kNumWays> kNames{"tiles", "programmatic", "stream"};
    return kNames[at(way)];
}

Way fastest(const TimesByWay& times) {
    Way best = Way::stream;
    const auto in_order = times.find(Way::stream);
    if (in_order == times.end() || in_order->second.empty()) return best;
    const std::vector<double>& slowest = in_order->second;
    double least = median(slowest);
    const double usual = least;
    for (const auto& [way, taken] : times) {
        const std::size_t rounds = std::min(taken.size(), slowest.size());
        if (way == Way::stream || rounds == 0) continue;
        std::size_t won = 0;
        for (std::size_t i = 0; i < rounds; ++i) won += taken[i] < slowest[i] ? 1 : 0;
        const double us = median(taken);
        const bool wins = static_cast<double>(won) >= kRounds * static_cast<double>(rounds) &&
                          us <= (1 - margin_of(way)) * usual;
        if (wins && (best == Way::stream || us < least)) best = way, least = us;
    }
    return best;
}

#if SYNCOPATE_HAS_CUDA

using runtime::CudaApi;
using runtime::CurrentContext;
using runtime::OwnedStream;

namespace {

constexpr int kCalls = 10;  // of a graph: the host's time for a replay is hidden behind them

}  // namespace

struct ReplayedCall::State {
    std::shared_ptr<runtime::CudaContext> context;
    std::unique_ptr<OwnedStream> stream;
    CUgraph graph = nullptr;
    CUgraphExec ready = nullptr;
    CUevent begin = nullptr, end = nullptr;

    State() = default;
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
        if (context == nullptr) return;
        const CudaApi& api = context->api();
        const CurrentContext current(*context);
        if (ready != nullptr) api.cuGraphExecDestroy(ready);
        if (graph != nullptr) api.cuGraphDestroy(graph);
        for (const CUevent event : {begin, end}) {
            if (event != nullptr) api.cuEventDestroy(event);
        }
    }

    Status capture(const std::function<Status(runtime::CudaStream)>& call) {
        const CudaApi& api = context->api();
        const auto number = reinterpret_cast<runtime::CudaStream>(stream->get());
        SYNCOPATE_TRY(call(number));
        SYNCOPATE_CUDA(api, cuStreamSynchronize, stream->get());
        SYNCOPATE_CUDA(api, cuStreamBeginCapture, stream->get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        Status called = Done{};
        for (int i = 0; i < kCalls && called; ++i) called = call(number);
        const CUresult ended = api.cuStreamEndCapture(stream->get(), &graph);  // also of a call that failed
        if (!called) return called;
        if (ended != CUDA_SUCCESS)
            return api.error("cuStreamEndCapture", ended, "a call of the chain was captured");
        SYNCOPATE_CUDA(api, cuGraphInstantiateWithFlags, &ready, graph, 0);
        SYNCOPATE_CUDA(api, cuEventCreate, &begin, CU_EVENT_DEFAULT);
        SYNCOPATE_CUDA(api, cuEventCreate, &end, CU_EVENT_DEFAULT);
        return Done{};
    }
};

Result<std::unique_ptr<ReplayedCall>> ReplayedCall::make(
    std::shared_ptr<runtime::CudaContext> context, const std::function<Status(runtime::CudaStream)>& call) {
    const CurrentContext current(*context);
    SYNCOPATE_TAKE(std::unique_ptr<OwnedStream> stream, OwnedStream::create(context, false));
    auto state = std::make_unique<State>();
    state->context = std::move(context);
    state->stream = std::move(stream);
    SYNCOPATE_TRY(state->capture(call));
    return std::unique_ptr<ReplayedCall>(new ReplayedCall(std::move(state)));
}

Result<double> ReplayedCall::microseconds() const {
    const CudaApi& api = state_->context->api();
    const CurrentContext current(*state_->context);
    const CUstream stream = state_->stream->get();
    SYNCOPATE_CUDA(api, cuGraphLaunch, state_->ready,
                   stream);  // what is timed begins behind it, without a gap
    SYNCOPATE_CUDA(api, cuEventRecord, state_->begin, stream);
    SYNCOPATE_CUDA(api, cuGraphLaunch, state_->ready, stream);
    SYNCOPATE_CUDA(api, cuEventRecord, state_->end, stream);
    SYNCOPATE_CUDA(api, cuStreamSynchronize, stream);
    float milliseconds = 0;
    SYNCOPATE_CUDA(api, cuEventElapsedTime, &milliseconds, state_->begin, state_->end);
    return 1000.0 * static_cast<double>(milliseconds) / kCalls;
}

#else

struct ReplayedCall::State {};

Result<std::unique_ptr<ReplayedCall>> ReplayedCall::make(std::shared_ptr<runtime::CudaContext>,
                                                         const std::function<Status(runtime::CudaStream)>&) {
    return machine_error("this is a build without CUDA: build where the CUDA toolkit is installed");
}
Result<double> ReplayedCall::microseconds() const { return 0.0; }

#endif

ReplayedCall::ReplayedCall(std::unique_ptr<State> state) : state_(std::move(state)) {}
ReplayedCall::~ReplayedCall() = default;

}  // namespace syncopate::sync
