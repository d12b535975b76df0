#include "syncopate/runtime/call/op.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <tuple>

#include "runtime/call/call_executor.hpp"
#include "runtime/call/call_watch.hpp"
#include "runtime/call/op_memory.hpp"
#include "runtime/call/user_buffers.hpp"
#include "syncopate/digest.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

constexpr Milliseconds kToCloseAfterAll{2'000};

}  // namespace

FusedOp::FusedOp(std::shared_ptr<SymmetricHeap> heap, const fuse::Schedule& schedule, const Options& options)
    : heap_(std::move(heap)), schedule_(schedule), options_(options), memory_(std::make_unique<OpMemory>()) {}

FusedOp::~FusedOp() {
    if (heap_->rendezvous().is_a_parents()) {
        // Its threads are the parent's, as is the call that it may be in.
        std::ignore = buffers_.release();
        std::ignore = executor_.release();
        std::ignore = watched_.release();
        return;
    }
    heap_->remove_user(*this);
    leave_call();
    if (!watched_) return;
    if (executor_ != nullptr) (void)executor_->synchronize();  // the watch ends what would not
    watch_->remove(*watched_);
}

void FusedOp::leave_call() {
    if (calling_) (void)end_call(stream_, false);
}

Result<std::uint64_t> FusedOp::tensor_offset(std::string_view name) const {
    for (std::size_t i = 0; i < schedule_.tensors.size(); ++i) {
        if (schedule_.tensors[i].name == name) return memory_->tensor_offsets[i];
    }
    return Error{fmt::format("op '{}' has no tensor {}", options_.name, name)};
}

Result<std::uint64_t> FusedOp::tensor_address(std::string_view name, int of_rank) const {
    Result<std::uint64_t> offset = tensor_offset(name);
    if (!offset) return offset;
    if (of_rank < 0 || of_rank >= heap_->size()) return Error{fmt::format("there is no rank {}", of_rank)};
    if (!heap_->maps(of_rank))
        return Error{fmt::format("rank {} is of another node: its memory is not mapped", of_rank)};
    return heap_->address(of_rank, *offset);
}

FusedOp::FlatView FusedOp::flat_view() const {
    return FlatView{heap_->address(heap_->first_mapped(), 0),
                    static_cast<std::uint64_t>(heap_->num_mapped()) * heap_->stride()};
}

Result<std::uint64_t> FusedOp::tensor_address(std::string_view name) const {
    return tensor_address(name, rank());
}

Result<std::uint64_t> FusedOp::tensor_bytes(std::string_view name) const {
    for (const plan::Tensor& tensor : schedule_.tensors) {
        if (tensor.name == name) return tensor.bytes();
    }
    return Error{fmt::format("op '{}' has no tensor {}", options_.name, name)};
}

std::uint64_t FusedOp::control_bytes() const {
    return static_cast<std::uint64_t>(memory_->control_words) * 4;
}

std::uint64_t FusedOp::control_address() const { return control_address(rank()); }
std::uint64_t FusedOp::control_address(int of_rank) const {
    return heap_->address(of_rank, memory_->control_offset);
}
std::uint64_t FusedOp::table_address(std::size_t stage) const {
    return executor_->table_address() + 4 * stage_begin_[stage];
}

std::span<const std::int32_t> FusedOp::table(std::size_t stage) const {
    return std::span(table_).subspan(stage_begin_[stage], stage_begin_[stage + 1] - stage_begin_[stage]);
}

Status FusedOp::set_input(std::string_view name, const plan::Region& region, std::uint64_t address,
                          std::span<const std::int64_t> strides) {
    SYNCOPATE_TAKE(const std::size_t place, buffers_->place_of(name, region));
    return buffers_->set_input(place, address, strides);
}

Status FusedOp::set_input(std::string_view name, std::uint64_t address,
                          std::span<const std::int64_t> strides) {
    SYNCOPATE_TAKE(const std::optional<std::size_t> place, buffers_->initial_place_of(name));
    return place ? buffers_->set_input(*place, address, strides) : Status(Done{});
}

void FusedOp::clear_inputs() { buffers_->clear_inputs(); }

Status FusedOp::set_output(std::string_view name, const plan::Region& region, std::uint64_t address,
                           std::span<const std::int64_t> strides) {
    SYNCOPATE_TAKE(const std::size_t place, buffers_->place_of(name, region));
    return buffers_->set_output(place, address, strides);
}

Result<std::size_t> FusedOp::buffer_place(std::string_view tensor, const plan::Region& region) {
    return buffers_->place_of(tensor, region);
}

Result<std::optional<std::size_t>> FusedOp::initial_place(std::string_view tensor) {
    return buffers_->initial_place_of(tensor);
}

Status FusedOp::set_input(std::size_t place, std::uint64_t address, std::span<const std::int64_t> strides) {
    return buffers_->set_input(place, address, strides);
}

Status FusedOp::set_output(std::size_t place, std::uint64_t address, std::span<const std::int64_t> strides) {
    return buffers_->set_output(place, address, strides);
}

bool FusedOp::was_captured() const { return executor_->was_captured(); }

Status FusedOp::require_idle() const {
    if (!calling_) return Done{};
    return Error{fmt::format("op '{}' is in the middle of a call", options_.name),
                 {.rank = rank()},
                 ErrorClass::usage};
}

std::optional<FusedOp::OwnPlace> FusedOp::own_place() const { return buffers_->own_place(); }
std::optional<std::uint64_t> FusedOp::sum_place() const { return buffers_->sum_place(); }

std::string FusedOp::identity() const { return digest(fmt::format("{} {}", options_.name, options_.what)); }

// [P35]
void FusedOp::interrupt() {
    if (destroyed_ || executor_ == nullptr) return;
    give_up();
    if (calling_) (void)end_call(stream_, false);
    executor_->interrupt();
}

Status FusedOp::drain() {
    if (destroyed_ || executor_ == nullptr) return Done{};
    Status drained = executor_->drain();
    // The watch of those who go on is another one.
    if (watched_) watch_->remove(*watched_);
    return drained;
}

// [P36]
Status FusedOp::renew() {
    retired_.clear();
    watched_.reset();
    watch_.reset();
    const auto write = [this]() -> Status {
        if (when_renewed_) SYNCOPATE_TRY(when_renewed_());
        return write_control();
    };
    return join(write(), [this] { return executor_->renew(heap_->rendezvous()); });
}

void FusedOp::retire(const std::string& why) {
    retired_ = why;
    if (!heap_->is_released() && write_control()) give_up();
}

Status FusedOp::require_not_retired() const {
    if (retired_.empty()) return Done{};
    return Error{fmt::format("op '{}' {}", options_.name, retired_), {.rank = rank()}, ErrorClass::usage};
}

// [P38]
Status FusedOp::reset() {
    SYNCOPATE_TRY(require_own());
    SYNCOPATE_TRY(require_not_retired());
    if (destroyed_) return usage_error(fmt::format("op '{}' has been destroyed", options_.name));
    interrupt();
    const Status drained = drain();
    SYNCOPATE_TAKE(const std::vector<Bytes> all,
                   agree(heap_->rendezvous(), fmt::format("op-{}-reset", options_.name),
                         drained ? Result<Bytes>("") : Result<Bytes>(drained.error())));
    return renew();
}

Status FusedOp::require_own() const {
    if (!heap_->rendezvous().is_a_parents()) return Done{};
    return Error{
        fmt::format("op '{}' was made by the process from which this one was forked, which is rank {} of "
                    "its group: a forked child cannot call it; make a group and an op of the children, or "
                    "start them instead (spawn)",
                    options_.name, rank()),
        {.rank = rank()},
        ErrorClass::usage};
}

Status FusedOp::begin_call(CudaStream stream, Capture capture) {
    SYNCOPATE_TRY(require_own());
    if (destroyed_) return usage_error(fmt::format("op '{}' has been destroyed", options_.name));
    SYNCOPATE_TRY(require_not_retired());
    SYNCOPATE_TRY(require_memory());
    if (calling_) {
        return Error{fmt::format("op '{}': begin_call twice without end_call", options_.name),
                     {.rank = rank()},
                     ErrorClass::usage};
    }
    if (watched_ != nullptr && !captures_) {
        had_been_told_ = watch_->has_told(*watched_);
        SYNCOPATE_TRY(watch_->count_call(*watched_));
    }
    calling_ = true;
    const UserBuffers::CopyList copies = buffers_->copies_in();
    const Status begun = executor_->begin(stream, copies.all(), capture);
    if (begun) {
        stream_ = stream;
        return begun;
    }
    calling_ = false;
    const FaultRecord record = executor_->poll_fault();
    if (record.any()) return error_of(record);
    if (watched_ != nullptr && !captures_) watched_->board.take_back_call();
    return begun;
}

Status FusedOp::require_room(std::size_t stage, const CudaKernel& kernel, Grid grid) const {
    const auto usage = [&](std::string why) {
        return Error{fmt::format("op '{}': {}", options_.name, why), {.rank = rank()}, ErrorClass::usage};
    };
    if (executor_->programs_wait_for_each_other() && !kernel.runs_at_once(grid)) {
        return usage(
            fmt::format("its programs sum, which takes all of them to run at once; "
                        "{} x {} x {} do not fit on the GPU",
                        grid.x, grid.y, grid.z));
    }
    const auto waiting = static_cast<std::uint64_t>(waits_for_channel_.at(stage));
    const std::uint64_t beyond = kernel.beyond(grid, waiting, fuse::kChannelBlocks);
    if (beyond == 0) return Done{};
    return usage(fmt::format(
        "its tiles wait for what NCCL brings from other nodes, on {} multiprocessors that programs which "
        "wait must leave free; of {} x {} x {} these are {} too many: launch fewer, each with several tiles",
        fuse::kChannelBlocks, grid.x, grid.y, grid.z, beyond));
}

Status FusedOp::call(CudaKernel& kernel, Grid grid, CudaStream stream, const KernelArguments& arguments) {
    const StageLaunch only{&kernel, grid, &arguments};
    return call(std::span(&only, 1), stream);
}

Status FusedOp::call(std::span<const StageLaunch> stages, CudaStream stream, Capture capture) {
    if (stages.size() != schedule_.stages.size()) {
        return Error{fmt::format("op '{}': it has {} stages, {} kernels were given", options_.name,
                                 schedule_.stages.size(), stages.size()),
                     {.rank = rank()},
                     ErrorClass::usage};
    }
    SYNCOPATE_TRY(require_own());
    for (const StageLaunch& stage : stages) {  // what may fail does so before the call begins
        SYNCOPATE_TRY(stage.kernel->prepare(stage.grid));
        const auto number = static_cast<std::size_t>(&stage - stages.data());
        SYNCOPATE_TRY(require_room(number, *stage.kernel, stage.grid));
        if (number + 1 < stages.size() && schedule_.stages[number + 1].overlaps)
            SYNCOPATE_TRY(stage.kernel->run_beside());
    }
    SYNCOPATE_TRY(begin_call(stream, capture));
    Status launched = Done{};
    for (const StageLaunch& stage : stages) {
        // A later stage reads what the one before it wrote, so it starts when that one has ended, unless it
        // waits for that one's tiles itself.
        const auto number = static_cast<std::size_t>(&stage - stages.data());
        const bool early =
            number == 0 ? executor_->kernel_may_start_early() : schedule_.stages[number].overlaps;
        launched = stage.kernel->launch(stage.grid, stream, *stage.arguments, early);
        if (!launched) break;
    }
    const Status ended = end_call(stream, static_cast<bool>(launched));
    return launched ? ended : launched;
}

Status FusedOp::capture_call(std::span<const StageLaunch> stages, CudaStream stream) {
    captures_ = true;
    executor_->set_capturing(true);
    const Status captured = call(stages, stream, Capture::on);
    executor_->set_capturing(false);
    captures_ = false;
    return captured;
}

Status FusedOp::call_graph(CudaStream stream, const std::function<Status()>& launch) {
    SYNCOPATE_TRY(require_own());
    if (destroyed_ || calling_)
        return Error{fmt::format("op '{}' {}", options_.name,
                                 destroyed_ ? "has been destroyed" : "is in the middle of a call"),
                     {.rank = rank()},
                     ErrorClass::usage};
    SYNCOPATE_TRY(require_not_retired());
    SYNCOPATE_TRY(require_memory());
    if (watched_ != nullptr) {
        had_been_told_ = watch_->has_told(*watched_);
        SYNCOPATE_TRY(watch_->count_call(*watched_));
    }
    const Status launched = executor_->around_graph(stream, launch);
    if (launched) return launched;
    const FaultRecord record = executor_->poll_fault();
    if (record.any()) return error_of(record);
    if (watched_ != nullptr) watched_->board.take_back_call();
    return launched;
}

std::size_t FusedOp::driver_calls() const { return executor_->driver_calls(); }

Status FusedOp::end_call(CudaStream stream, bool ran) {
    SYNCOPATE_TRY(require_own());
    if (!calling_) {
        return Error{fmt::format("op '{}': end_call without begin_call", options_.name),
                     {.rank = rank()},
                     ErrorClass::usage};
    }
    const UserBuffers::CopyList copies = buffers_->copies_out();
    const Status ended = executor_->end(stream, copies.all(), ran);
    calling_ = false;
    if (ended) return alongside();
    const FaultRecord record = executor_->poll_fault();
    return record.any() ? Status(error_of(record)) : ended;
}

Status FusedOp::alongside() {
    if (watched_ == nullptr || heap_->device().kind != Device::Kind::host) return Done{};
    if (Status all = watch_->await_others(*watched_, Milliseconds(options_.deadline_ms)); !all) {
        if (all.error().error_class == ErrorClass::machine) give_up();
        return all;
    }
    const FaultRecord record = executor_->poll_fault();
    return record.any() ? Status(error_of(record)) : Status(Done{});
}

Status FusedOp::synchronize() {
    SYNCOPATE_TRY(require_own());
    if (calling_)
        return Error{fmt::format("op '{}': its call has not ended", options_.name),
                     {.rank = rank()},
                     ErrorClass::usage};
    return executor_->synchronize();
}

Status FusedOp::destroy() {
    if (destroyed_) return Done{};
    SYNCOPATE_TRY(require_own());
    destroyed_ = true;
    heap_->remove_user(*this);
    if (!retired_.empty()) {  // its ranks are no longer together
        free_memory();
        return Done{};
    }
    leave_call();
    Status idle = executor_->synchronize();
    const auto meet = [&](Milliseconds timeout) {
        Rendezvous& rendezvous = heap_->rendezvous();
        const std::string caller = rendezvous.caller();
        if (watched_) rendezvous.set_caller("close of " + watched_->what);
        Result<std::vector<Bytes>> met =
            agree(rendezvous, fmt::format("op-{}-destroy", options_.name),
                  idle ? Result<Bytes>("") : Result<Bytes>(idle.error()), timeout);
        rendezvous.set_caller(caller);
        return met;
    };
    Result<std::vector<Bytes>> all =
        meet(options_.deadline_ms > 0 ? Milliseconds(options_.deadline_ms) : kOfGroup);
    if (!all && heap_->rendezvous().calls_differ()) {
        // The others learn it in their calls, and may then close, too.
        const Error& differ = all.error();
        if (meet(kToCloseAfterAll)) free_memory();
        return differ;
    }
    if (!all) return all.error();
    if (watched_) watch_->remove(*watched_);
    watched_.reset();
    free_memory();
    return Done{};
}

}  // namespace syncopate::runtime
