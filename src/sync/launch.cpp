#include "syncopate/sync/launch.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "syncopate/sync/check.hpp"
#include "syncopate/sync/tables.hpp"
#include "syncopate/try.hpp"

#if SYNCOPATE_HAS_CUDA

#include "runtime/cuda/driver/cuda_api.hpp"
#include "runtime/cuda/driver/cuda_handles.hpp"

namespace syncopate::sync {

using runtime::CudaApi;
using runtime::CurrentContext;
using runtime::DeviceBuffer;
using runtime::OwnedEvent;
using runtime::OwnedStream;

struct DeviceChain::State {
    std::shared_ptr<runtime::CudaContext> context;
    Chain chain;
    Tables tables;
    bool overlaps = false;
    Way way = Way::tiles;
    std::unique_ptr<DeviceBuffer> memory;  ///< fault words, tickets, semaphores, tables
    /// Tickets: a counter for each stage, and for each another one of calls in stream order. Those post
    /// nothing, so their epochs must not count where tiles wait.
    std::uint64_t fault = 0, tickets = 0, semaphores = 0;
    std::vector<std::uint64_t> table;  ///< by stage

    // Of start_events: stages take the caller's stream and the lane in turn.
    std::unique_ptr<OwnedStream> lane;
    std::vector<std::unique_ptr<OwnedEvent>> started;  ///< by stage
    std::unique_ptr<OwnedEvent> joined;

    Status make_events();
    /// Whether a stage's blocks take the tiles of their own places: nothing draws tickets then.
    [[nodiscard]] bool in_place(const ChainStage& stage, Blocks blocks) const;
    [[nodiscard]] Status objection(std::size_t stage, Blocks blocks) const;
    /// Launches a stage by `enqueue(grid, stream, early, started)`.
    template <typename Enqueue>
    Status launch(std::size_t stage, runtime::CudaStream stream, Blocks blocks, Enqueue enqueue) const;
    /// The stream of a stage, once what it waits for is enqueued there.
    Result<CUstream> enter(std::size_t stage, CUstream caller) const;
    /// After the last stage: the caller's stream comes after the lane.
    Status join(CUstream caller) const;
};

namespace {

constexpr std::uint64_t kSector = 32;
constexpr int kRounds = 9;                   // of a measurement
constexpr std::int64_t kShortAxis = 65'535;  // the most blocks along y and z

/// Addresses of what follows each other in one allocation.
class Layout {
public:
    std::uint64_t add(std::uint64_t bytes) {
        const std::uint64_t at = used_;
        used_ = (used_ + bytes + kSector - 1) / kSector * kSector;
        return at;
    }
    [[nodiscard]] std::uint64_t bytes() const { return used_; }

private:
    std::uint64_t used_ = 0;
};

Error refused(const Finding& finding) { return Error{"the chain is refused: " + finding.to_string()}; }

}  // namespace

Status DeviceChain::State::make_events() {
    SYNCOPATE_TAKE(std::unique_ptr<OwnedStream> stream, OwnedStream::create(context, false));
    lane = std::move(stream);
    for (std::size_t i = 0; i <= chain.stages.size(); ++i) {
        SYNCOPATE_TAKE(std::unique_ptr<OwnedEvent> event, OwnedEvent::create(context));
        if (i == chain.stages.size()) {
            joined = std::move(event);
        } else {
            started.push_back(std::move(event));
        }
    }
    return Done{};
}

Result<CUstream> DeviceChain::State::enter(std::size_t stage, CUstream caller) const {
    const CUstream stream = stage % 2 == 0 ? caller : lane->get();
    if (stage > 0) SYNCOPATE_CUDA(context->api(), cuStreamWaitEvent, stream, started[stage - 1]->get(), 0);
    return stream;
}

Status DeviceChain::State::join(CUstream caller) const {
    SYNCOPATE_CUDA(context->api(), cuEventRecord, joined->get(), lane->get());
    SYNCOPATE_CUDA(context->api(), cuStreamWaitEvent, caller, joined->get(), 0);
    return Done{};
}

Result<std::unique_ptr<DeviceChain>> DeviceChain::make(std::shared_ptr<runtime::CudaContext> context,
                                                       const Chain& chain, std::uint32_t deadline_ms,
                                                       Launching launching) {
    const Verdict verdict = sync::check(chain);
    if (!verdict.ok()) return refused(verdict.findings.front());
    if (launching == Launching::start_events && chain.calls == Chain::Calls::overlapped)
        return Error{"calls overlap only by programmatic launch, not by start events"};
    const CudaApi& api = context->api();
    auto state = std::make_unique<State>();
    state->context = context;
    state->chain = chain;
    state->tables = make_tables(chain, verdict.synchronization);
    CUdevice device = 0;
    int major = 0;
    SYNCOPATE_CUDA(api, cuDeviceGet, &device, context->ordinal());
    SYNCOPATE_CUDA(api, cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    state->overlaps = major >= 9 && chain.launch == Chain::Start::after_start;
    state->way = state->overlaps ? Way::tiles : Way::stream;

    if (state->overlaps && launching == Launching::start_events && chain.stages.size() > 1) {
        SYNCOPATE_TRY(state->make_events());
    }
    Layout layout;
    state->fault = layout.add(kFaultWords * sizeof(std::uint32_t));
    state->tickets = layout.add(2 * chain.stages.size() * kSector);
    state->semaphores =
        layout.add(std::uint64_t{state->tables.num_semaphores} * kSemaphoreWords * sizeof(std::uint32_t));
    for (const StageTable& table : state->tables.stages)
        state->table.push_back(layout.add(table.words.size() * sizeof(std::uint32_t)));
    SYNCOPATE_TAKE(std::unique_ptr<DeviceBuffer> memory, DeviceBuffer::create(context, layout.bytes()));
    state->memory = std::move(memory);
    const std::uint64_t base = state->memory->address();
    for (std::uint64_t* address : {&state->fault, &state->tickets, &state->semaphores}) *address += base;
    for (std::uint64_t& address : state->table) address += base;

    const CurrentContext current(*context);
    SYNCOPATE_CUDA(api, cuMemsetD8Async, base, 0, layout.bytes(), nullptr);
    const std::uint64_t deadline_at = state->fault + kDeadlineMs * sizeof(std::uint32_t);
    SYNCOPATE_CUDA(api, cuMemcpyHtoDAsync, deadline_at, &deadline_ms, sizeof(deadline_ms), nullptr);
    for (std::size_t stage = 0; stage < state->table.size(); ++stage) {
        const std::vector<std::uint32_t>& words = state->tables.stages[stage].words;
        SYNCOPATE_CUDA(api, cuMemcpyHtoDAsync, state->table[stage], words.data(),
                       words.size() * sizeof(words[0]), nullptr);
    }
    SYNCOPATE_TRY(context->synchronize());
    return std::unique_ptr<DeviceChain>(new DeviceChain(std::move(state)));
}

StageArguments DeviceChain::arguments(std::size_t stage, Blocks blocks) const {
    if (!state_->objection(stage, blocks)) return {};  // launch() refuses it
    const std::size_t counter = state_->way == Way::tiles ? stage : state_->chain.stages.size() + stage;
    StageArguments made = state_->tables.stages[stage].arguments;
    made.table = reinterpret_cast<const std::uint32_t*>(state_->table[stage]);
    made.semaphores = reinterpret_cast<std::uint32_t*>(state_->semaphores);
    made.ticket = reinterpret_cast<unsigned long long*>(state_->tickets + counter * kSector);
    made.fault = reinterpret_cast<std::uint32_t*>(state_->fault);
    made.draws += blocks.persistent;
    made.awaits = state_->way == Way::tiles ? 1 : 0;
    if (state_->in_place(state_->chain.stages[stage], blocks)) made.ordered = 0;
    return made;
}

Result<std::uint32_t> DeviceChain::input(std::size_t stage, const std::string& tensor) const {
    SYNCOPATE_TRY(state_->objection(stage, {}));
    const std::vector<std::string>& inputs = state_->tables.stages[stage].inputs;
    const auto found = std::ranges::find(inputs, tensor);
    if (found == inputs.end())
        return Error{fmt::format("stage {} awaits no {}", state_->chain.stages[stage].name, tensor)};
    return static_cast<std::uint32_t>(found - inputs.begin());
}

Result<std::uint32_t> DeviceChain::guard(std::size_t stage, const std::string& tensor) const {
    SYNCOPATE_TRY(state_->objection(stage, {}));
    const std::vector<std::string>& inputs = state_->tables.stages[stage].inputs;
    const auto found = std::ranges::find(inputs.rbegin(), inputs.rend(), guard_of(tensor));
    if (found == inputs.rend())
        return Error{fmt::format("stage {} guards no {}", state_->chain.stages[stage].name, tensor)};
    return static_cast<std::uint32_t>(inputs.rend() - found - 1);
}

bool DeviceChain::State::in_place(const ChainStage& stage, Blocks blocks) const {
    if (!stage.tickets) return true;
    // Calls that overlap may tell their buffers apart by the epoch, which tickets count.
    return way == Way::stream && chain.calls == Chain::Calls::ordered && blocks.persistent == 0 &&
           blocks.cluster == 1 && stage.grid[1] <= kShortAxis && stage.grid[2] <= kShortAxis;
}

Status DeviceChain::State::objection(std::size_t number, Blocks blocks) const {
    if (number >= chain.stages.size())
        return Error{fmt::format("there is no stage {}: the chain has {}", number, chain.stages.size())};
    const ChainStage& stage = chain.stages[number];
    const bool overlapped = chain.calls == Chain::Calls::overlapped;
    if (blocks.persistent != 0 && (!stage.tickets || overlapped)) {
        return Error{fmt::format("stage {} cannot be persistent: {}", stage.name,
                                 overlapped ? "calls overlap" : "its tiles are not taken by tickets")};
    }
    if (blocks.cluster == 0)
        return Error{fmt::format("stage {}: a cluster has at least one block", stage.name)};
    if (blocks.cluster == 1) return Done{};
    if (!stage.tickets)
        return Error{fmt::format("stage {} has no clusters: its tiles are not taken by tickets", stage.name)};
    const std::int64_t all = blocks.persistent != 0 ? blocks.persistent : stage.num_blocks();
    if (stage.num_blocks() % blocks.cluster != 0 || all % blocks.cluster != 0)
        return Error{fmt::format("stage {} has {} tiles and {} blocks, no multiple of a cluster's {} blocks",
                                 stage.name, stage.num_blocks(), all, blocks.cluster)};
    return Done{};
}

template <typename Enqueue>
Status DeviceChain::State::launch(std::size_t stage, runtime::CudaStream stream, Blocks blocks,
                                  Enqueue enqueue) const {
    SYNCOPATE_TRY(objection(stage, blocks));
    const ChainStage& of = chain.stages[stage];
    const auto extent = [&](std::size_t axis) { return static_cast<std::uint32_t>(of.grid[axis]); };
    // Tickets say which tile a block runs, so the shape of the grid does not matter, and y and z are short.
    const auto tiles = static_cast<std::uint32_t>(of.num_blocks());
    runtime::Grid grid{blocks.persistent != 0 ? blocks.persistent : tiles, 1, 1};
    if (in_place(of, blocks)) grid = {extent(0), extent(1), extent(2)};
    const bool early = stage > 0 || chain.calls == Chain::Calls::overlapped;
    if (!lane || way == Way::stream) return enqueue(grid, stream, early && way == Way::tiles, 0);
    const CurrentContext current(*context);
    const auto caller = reinterpret_cast<CUstream>(stream);
    const bool last = stage + 1 == chain.stages.size();
    SYNCOPATE_TAKE(const CUstream own, enter(stage, caller));
    const auto event = last ? 0 : reinterpret_cast<std::uint64_t>(started[stage]->get());
    Status launched = enqueue(grid, reinterpret_cast<runtime::CudaStream>(own), false, event);
    return launched && last ? join(caller) : launched;
}

Status DeviceChain::launch(std::size_t stage, runtime::CudaKernel& kernel,
                           const runtime::KernelArguments& arguments, runtime::CudaStream stream,
                           Blocks blocks) {
    if (blocks.cluster != 1)
        return Error{"a loaded kernel has the clusters of its options (num_ctas); launch it by its handle"};
    return state_->launch(stage, stream, blocks,
                          [&](runtime::Grid grid, runtime::CudaStream on, bool early, std::uint64_t started) {
                              return kernel.launch(grid, on, arguments, early, started);
                          });
}

Status DeviceChain::launch(std::size_t stage, const Function& function, std::span<void* const> parameters,
                           runtime::CudaStream stream, Blocks blocks) {
    const CudaApi& api = state_->context->api();
    return state_->launch(
        stage, stream, blocks,
        [&](runtime::Grid grid, runtime::CudaStream on, bool early, std::uint64_t started) -> Status {
            std::array<CUlaunchAttribute, 3> attributes{};
            unsigned count = 0;
            if (early) {
                attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
                attributes[count++].value.programmaticStreamSerializationAllowed = 1;
            }
            if (started != 0) {
                attributes[count].id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
                attributes[count++].value.launchCompletionEvent.event = reinterpret_cast<CUevent>(started);
            }
            if (blocks.cluster != 1) {
                attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
                attributes[count].value.clusterDim.x = blocks.cluster;
                attributes[count].value.clusterDim.y = attributes[count].value.clusterDim.z = 1;
                ++count;
            }
            CUlaunchConfig config{};
            config.gridDimX = grid.x;
            config.gridDimY = grid.y;
            config.gridDimZ = grid.z;
            config.blockDimX = function.threads[0];
            config.blockDimY = function.threads[1];
            config.blockDimZ = function.threads[2];
            config.sharedMemBytes = function.shared_bytes;
            config.hStream = reinterpret_cast<CUstream>(on);
            config.attrs = attributes.data();
            config.numAttrs = count;
            const CurrentContext current(*state_->context);
            SYNCOPATE_CUDA(api, cuLaunchKernelEx, &config, static_cast<CUfunction>(function.handle),
                           const_cast<void**>(parameters.data()), nullptr);
            return Done{};
        });
}

Result<WayTimes> DeviceChain::choose(const std::function<Status(runtime::CudaStream)>& call) {
    WayTimes times;
    if (!overlaps()) return times;
    SYNCOPATE_TRY(check());  // calls of a chain do not overlap, also not with these
    const Way before = way();
    const auto failed = [&](const Error& error) {
        use(before);
        return error;
    };
    use(Way::stream);
    const Result<std::unique_ptr<ReplayedCall>> stream = ReplayedCall::make(state_->context, call);
    if (!stream) return failed(stream.error());
    use(Way::tiles);
    const Result<std::unique_ptr<ReplayedCall>> tiles = ReplayedCall::make(state_->context, call);
    if (!tiles) return failed(tiles.error());
    for (int round = 0; round < kRounds; ++round) {
        for (const bool tile_by_tile : {round % 2 == 0, round % 2 != 0}) {
            const Result<double> taken = (tile_by_tile ? *tiles : *stream)->microseconds();
            if (!taken) return failed(taken.error());
            (tile_by_tile ? times.tiles : times.stream).push_back(*taken);
        }
    }
    if (Status done = check(); !done) return failed(done.error());
    use(faster(times));
    return times;
}

void DeviceChain::use(Way way) { state_->way = overlaps() ? way : Way::stream; }

Way DeviceChain::way() const { return state_->way; }

bool DeviceChain::overlaps() const { return state_->overlaps; }

std::string DeviceChain::message() const {
    if (state_->overlaps) return {};
    if (state_->chain.launch == Chain::Start::any)
        return "nothing orders the starts of this chain's stages (launch: any): they run in stream order, "
               "without overlap";
    return state_->context->name() +
           " has no programmatic launch (it comes with sm_90): stages run in stream order, without overlap";
}

Status DeviceChain::check() const {
    SYNCOPATE_TRY(state_->context->synchronize());
    const CudaApi& api = state_->context->api();
    const CurrentContext current(*state_->context);
    std::array<std::uint32_t, kFaultWords> words{};
    SYNCOPATE_CUDA(api, cuMemcpyDtoHAsync, words.data(), state_->fault, sizeof(words), nullptr);
    SYNCOPATE_TRY(state_->context->synchronize());
    if (words[kFault] == 0) return Done{};
    const ChainStage& stage = state_->chain.stages[words[kFault] - 1];
    const auto [x, y, z] = stage.block(words[kFaultTile]);
    return machine_error(fmt::format(
        "stage {}, tile ({}, {}, {}) waited in vain for {} for {} ms: semaphore {} had {} posts, of {}",
        stage.name, x, y, z, state_->tables.stages[words[kFault] - 1].inputs[words[kFaultInput]],
        words[kDeadlineMs], words[kFaultSemaphore], words[kFaultSeen], words[kFaultAwaited]));
}

}  // namespace syncopate::sync

#else

namespace syncopate::sync {

struct DeviceChain::State {};

namespace {
Error not_built() {
    return machine_error("this is a build without CUDA: build where the CUDA toolkit is installed");
}
}  // namespace

Result<std::unique_ptr<DeviceChain>> DeviceChain::make(std::shared_ptr<runtime::CudaContext>,
                                                       const Chain& chain, std::uint32_t, Launching) {
    const Verdict verdict = sync::check(chain);
    if (!verdict.ok()) return Error{"the chain is refused: " + verdict.findings.front().to_string()};
    return not_built();
}
StageArguments DeviceChain::arguments(std::size_t, Blocks) const { return {}; }
Result<std::uint32_t> DeviceChain::input(std::size_t, const std::string&) const { return not_built(); }
Result<std::uint32_t> DeviceChain::guard(std::size_t, const std::string&) const { return not_built(); }
Status DeviceChain::launch(std::size_t, const Function&, std::span<void* const>, runtime::CudaStream,
                           Blocks) {
    return not_built();
}
Status DeviceChain::launch(std::size_t, runtime::CudaKernel&, const runtime::KernelArguments&,
                           runtime::CudaStream, Blocks) {
    return not_built();
}
Result<WayTimes> DeviceChain::choose(const std::function<Status(runtime::CudaStream)>&) {
    return not_built();
}
void DeviceChain::use(Way) {}
Way DeviceChain::way() const { return Way::stream; }
bool DeviceChain::overlaps() const { return false; }
std::string DeviceChain::message() const { return not_built().message; }
Status DeviceChain::check() const { return not_built(); }

}  // namespace syncopate::sync

#endif

namespace syncopate::sync {

DeviceChain::DeviceChain(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceChain::~DeviceChain() = default;

}  // namespace syncopate::sync
