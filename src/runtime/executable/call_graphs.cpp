#include "runtime/executable/call_graphs.hpp"

#include <algorithm>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {

#if SYNCOPATE_HAS_CUDA

namespace {

constexpr std::size_t kMostGraphs = 128;     ///< of an executable: a model's layers may share one
constexpr std::size_t kManyDriverCalls = 8;  ///< below, a call enqueued singly is as quick

std::uint64_t hash_of(std::span<const std::uint64_t> key) {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const std::uint64_t word : key) hash = (hash ^ word ^ (word >> 29)) * 0x100000001b3;
    return hash;
}

}  // namespace

struct CallGraphs::Graph {
    std::vector<std::uint64_t> key;
    std::uint64_t hash;
    std::shared_ptr<CudaContext> context;
    CUgraphExec exec = nullptr;  ///< null: these addresses have come once

    Graph(std::vector<std::uint64_t> of, std::shared_ptr<CudaContext> on)
        : key(std::move(of)), hash(hash_of(key)), context(std::move(on)) {}
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
    return !refused_ && calls > 0 && (use == GraphUse::always || calls >= kManyDriverCalls);
}

CallGraphs::Graph* CallGraphs::find() {
    const auto found = std::ranges::find_if(graphs_, [this, hash = hash_of(key_)](const Graph& graph) {
        return graph.hash == hash && graph.key == key_;
    });
    if (found == graphs_.end()) return nullptr;
    graphs_.splice(graphs_.begin(), graphs_, found);
    return &graphs_.front();
}

Result<bool> CallGraphs::singly(std::span<const FusedOp::StageLaunch> launches, CudaStream stream) {
    const Status called = op_.call(launches, stream);
    return called ? Result<bool>(false) : called.error();
}

Result<bool> CallGraphs::call(std::span<const CallTensor> tensors, std::size_t form,
                              std::span<const FusedOp::StageLaunch> launches, CudaStream stream) {
    key_.assign(1, form);
    for (const CallTensor& tensor : tensors) {
        key_.push_back(tensor.address);
        for (const std::int64_t stride : tensor.strides) key_.push_back(static_cast<std::uint64_t>(stride));
    }
    Graph* const graph = find();
    if (graph == nullptr) {
        if (graphs_.size() == kMostGraphs) graphs_.pop_back();
        graphs_.emplace_front(key_, op_.heap()->cuda_context());
        return singly(launches, stream);
    }
    const bool is_new = graph->exec == nullptr;
    if (!is_new) return launch(*graph, false, stream);
    SYNCOPATE_TAKE(const bool captured, capture(*graph, launches));
    if (captured) return launch(*graph, true, stream);
    refused_ = true;
    // Nothing has been enqueued for the call that was counted.
    (void)op_.call_graph(stream, true, [] { return Error{"the driver has made no graph of a call"}; });
    return singly(launches, stream);
}

Result<bool> CallGraphs::launch(Graph& graph, bool counted, CudaStream stream) {
    const CudaApi& api = graph.context->api();
    const Status launched = op_.call_graph(stream, counted, [&]() -> Status {
        SYNCOPATE_CUDA(api, cuGraphLaunch, graph.exec, reinterpret_cast<CUstream>(stream));
        return Done{};
    });
    return launched ? Result<bool>(true) : launched.error();
}

Result<bool> CallGraphs::capture(Graph& graph, std::span<const FusedOp::StageLaunch> launches) {
    const CudaApi& api = graph.context->api();
    const CurrentContext current(*graph.context);
    if (stream_ == nullptr) {
        SYNCOPATE_TAKE(std::unique_ptr<OwnedStream> made, OwnedStream::create(graph.context, false));
        stream_ = std::move(made);
    }
    const CUstream from = stream_->get();
    SYNCOPATE_CUDA(api, cuStreamBeginCapture, from, CU_STREAM_CAPTURE_MODE_RELAXED);
    const Status called = op_.call(launches, reinterpret_cast<CudaStream>(from));
    CUgraph made = nullptr;
    const CUresult ended = api.cuStreamEndCapture(from, &made);
    const bool ready = called && ended == CUDA_SUCCESS &&
                       api.cuGraphInstantiateWithFlags(&graph.exec, made, 0) == CUDA_SUCCESS;
    if (made != nullptr) api.cuGraphDestroy(made);
    if (!called) return called.error();
    if (!ready) graph.exec = nullptr;
    return ready;
}

#else

class OwnedStream {};
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
