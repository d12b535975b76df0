#include "runtime/executable/call_graphs.hpp"

#include <algorithm>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {

#if SYNCOPATE_HAS_CUDA

namespace {

constexpr std::size_t kMostGraphs = 128;     ///< of an executable: a model's layers may share one
constexpr std::size_t kManyDriverCalls = 4;  ///< below, a call enqueued singly is as quick
constexpr std::uint32_t kFewLaunches = 8;    ///< after as many a graph has paid for its making, about
constexpr std::uint32_t kMostOften = 64;

std::uint64_t hash_of(std::span<const std::uint64_t> key) {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const std::uint64_t word : key) hash = (hash ^ word ^ (word >> 29)) * 0x100000001b3;
    return hash;
}

/// What this thread asks of the driver is allowed also while another one, or it itself elsewhere, captures.
class AllowedWhileCapturing {
public:
    explicit AllowedWhileCapturing(const CudaApi& api) : api_(api) {
        api_.cuThreadExchangeStreamCaptureMode(&mode_);
    }
    ~AllowedWhileCapturing() { api_.cuThreadExchangeStreamCaptureMode(&mode_); }
    AllowedWhileCapturing(const AllowedWhileCapturing&) = delete;
    AllowedWhileCapturing& operator=(const AllowedWhileCapturing&) = delete;

private:
    const CudaApi& api_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace

struct CallGraphs::Graph {
    std::vector<std::uint64_t> key;
    std::uint64_t hash;
    std::shared_ptr<CudaContext> context;
    CUgraphExec exec = nullptr;  ///< null: there is none yet
    std::uint32_t came = 1;      ///< times that these addresses did, before
    std::uint32_t launches = 0;

    Graph(std::vector<std::uint64_t> of, std::shared_ptr<CudaContext> on)
        : key(std::move(of)), hash(hash_of(key)), context(std::move(on)) {}
    ~Graph() {
        if (exec == nullptr) return;
        const CurrentContext current(*context);
        const AllowedWhileCapturing allowed(context->api());
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

void CallGraphs::add() {
    if (graphs_.size() == kMostGraphs) {
        const Graph& last = graphs_.back();
        // It was not worth its making: more addresses go round than are kept.
        if (last.exec != nullptr && last.launches < kFewLaunches) often_ = std::min(2 * often_, kMostOften);
        graphs_.pop_back();
    }
    graphs_.emplace_front(key_, op_.heap()->cuda_context());
}

Result<bool> CallGraphs::singly(std::span<const FusedOp::StageLaunch> launches, CudaStream stream) {
    SYNCOPATE_TRY(op_.call(launches, stream, Capture::off));
    return false;
}

Result<bool> CallGraphs::call(std::span<const CallTensor> tensors, std::size_t form,
                              std::span<const FusedOp::StageLaunch> launches, CudaStream stream) {
    const std::shared_ptr<CudaContext>& context = op_.heap()->cuda_context();
    int priority = 0;
    {
        const CurrentContext current(*context);
        SYNCOPATE_CUDA(context->api(), cuStreamGetPriority, reinterpret_cast<CUstream>(stream), &priority);
    }
    key_.assign({form, static_cast<std::uint64_t>(priority)});
    for (const CallTensor& tensor : tensors) {
        key_.push_back(tensor.address);
        for (const std::int64_t stride : tensor.strides) key_.push_back(static_cast<std::uint64_t>(stride));
    }
    Graph* const graph = find();
    if (graph == nullptr) {
        add();
        return singly(launches, stream);
    }
    if (graph->exec == nullptr && graph->came < often_) {
        ++graph->came;
        return singly(launches, stream);
    }
    if (graph->exec != nullptr || capture(*graph, launches, priority < 0)) {
        SYNCOPATE_TAKE(const bool launched, launch(*graph, stream));
        if (launched) return true;
    }
    refused_ = true;
    return singly(launches, stream);  // which says what is wrong, if it is so of that, too
}

Result<bool> CallGraphs::launch(Graph& graph, CudaStream stream) {
    const CudaApi& api = graph.context->api();
    bool refused = false;
    const Status launched = op_.call_graph(stream, [&]() -> Status {
        const AllowedWhileCapturing allowed(api);
        const CUresult result = api.cuGraphLaunch(graph.exec, reinterpret_cast<CUstream>(stream));
        refused = result != CUDA_SUCCESS;
        return refused ? Status(api.error("cuGraphLaunch", result)) : Status(Done{});
    });
    if (refused) return false;
    if (!launched) return launched.error();
    ++graph.launches;
    return true;
}

bool CallGraphs::capture(Graph& graph, std::span<const FusedOp::StageLaunch> launches, bool high_priority) {
    const CudaApi& api = graph.context->api();
    const CurrentContext current(*graph.context);
    const AllowedWhileCapturing allowed(api);
    std::unique_ptr<OwnedStream>& stream = streams_[high_priority ? 1 : 0];
    if (stream == nullptr) {
        auto made = OwnedStream::create(graph.context, high_priority);
        if (!made) return false;
        stream = std::move(made).value();
    }
    const CUstream from = stream->get();
    if (api.cuStreamBeginCapture(from, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS) return false;
    const Status called = op_.capture_call(launches, reinterpret_cast<CudaStream>(from));
    CUgraph made = nullptr;
    const CUresult ended = api.cuStreamEndCapture(from, &made);
    const bool ready = called && ended == CUDA_SUCCESS &&
                       api.cuGraphInstantiateWithFlags(&graph.exec, made, 0) == CUDA_SUCCESS;
    if (made != nullptr) api.cuGraphDestroy(made);
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
