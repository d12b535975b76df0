#include "runtime/executable/call_graphs.hpp"

#include <algorithm>

#include "runtime/cuda/driver/cuda_api.hpp"

namespace syncopate::runtime {

#if SYNCOPATE_HAS_CUDA

namespace {

constexpr std::size_t kMostGraphs = 8;       ///< of an executable
constexpr std::size_t kManyDriverCalls = 8;  ///< below, a call enqueued singly is as quick

}  // namespace

struct CallGraphs::Graph {
    std::vector<std::uint64_t> key;
    std::shared_ptr<CudaContext> context;
    std::unique_ptr<OwnedStream> stream;  ///< that it was captured from
    CUgraphExec exec = nullptr;           ///< null: these addresses have come once

    Graph(std::vector<std::uint64_t> of, std::shared_ptr<CudaContext> on)
        : key(std::move(of)), context(std::move(on)) {}
    ~Graph() {
        if (exec == nullptr) return;
        const CurrentContext current(*context);
        context->api().cuGraphExecDestroy(exec);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
};

CallGraphs::CallGraphs(FusedOp& op) : op_(op) {}
CallGraphs::~CallGraphs() = default;

bool CallGraphs::worth(GraphUse use) const {
    const std::size_t calls = op_.driver_calls();
    return calls > 0 && (use == GraphUse::always || calls >= kManyDriverCalls);
}

Result<bool> CallGraphs::call(std::span<const CallTensor> tensors, std::size_t form,
                              std::span<const FusedOp::StageLaunch> launches, CudaStream stream) {
    key_.assign(1, form);
    for (const CallTensor& tensor : tensors) {
        key_.push_back(tensor.address);
        for (const std::int64_t stride : tensor.strides) key_.push_back(static_cast<std::uint64_t>(stride));
    }
    const auto found = std::ranges::find(graphs_, key_, &Graph::key);
    if (found == graphs_.end()) {
        if (graphs_.size() == kMostGraphs) graphs_.pop_back();
        graphs_.emplace_front(key_, op_.heap()->cuda_context());
        const Status called = op_.call(launches, stream);
        return called ? Result<bool>(false) : called.error();
    }
    graphs_.splice(graphs_.begin(), graphs_, found);
    const bool is_new = found->exec == nullptr;
    if (is_new) {
        if (Status captured = capture(*found, launches); !captured) return captured.error();
    }
    return launch(*found, is_new, stream);
}

Result<bool> CallGraphs::launch(Graph& graph, bool counted, CudaStream stream) {
    const CudaApi& api = graph.context->api();
    const Status launched = op_.call_graph(stream, counted, [&]() -> Status {
        SYNCOPATE_CUDA(api, cuGraphLaunch, graph.exec, reinterpret_cast<CUstream>(stream));
        return Done{};
    });
    return launched ? Result<bool>(true) : launched.error();
}

Status CallGraphs::capture(Graph& graph, std::span<const FusedOp::StageLaunch> launches) {
    const CudaApi& api = graph.context->api();
    const CurrentContext current(*graph.context);
    Result<std::unique_ptr<OwnedStream>> stream = OwnedStream::create(graph.context, false);
    if (!stream) return stream.error();
    graph.stream = std::move(stream).value();
    const CUstream from = graph.stream->get();
    SYNCOPATE_CUDA(api, cuStreamBeginCapture, from, CU_STREAM_CAPTURE_MODE_RELAXED);
    const Status called = op_.call(launches, reinterpret_cast<CudaStream>(from));
    CUgraph made = nullptr;
    const CUresult ended = api.cuStreamEndCapture(from, &made);
    CUresult ready = ended;
    if (called && ended == CUDA_SUCCESS) ready = api.cuGraphInstantiateWithFlags(&graph.exec, made, 0);
    if (made != nullptr) api.cuGraphDestroy(made);
    if (!called) return called;
    if (ended != CUDA_SUCCESS) return api.error("cuStreamEndCapture", ended);
    return ready == CUDA_SUCCESS ? Status(Done{}) : api.error("cuGraphInstantiate", ready);
}

#else

struct CallGraphs::Graph {};
CallGraphs::CallGraphs(FusedOp& op) : op_(op) {}
CallGraphs::~CallGraphs() = default;
bool CallGraphs::worth(GraphUse) const { return false; }
Result<bool> CallGraphs::call(std::span<const CallTensor>, std::size_t, std::span<const FusedOp::StageLaunch>,
                              CudaStream) {
    return false;
}

#endif

}  // namespace syncopate::runtime
