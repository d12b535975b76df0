#include "syncopate/runtime/call/op.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <variant>

#include "runtime/call/call_executor.hpp"
#include "runtime/call/call_plan.hpp"
#include "runtime/call/call_watch.hpp"
#include "runtime/call/check_schedule.hpp"
#include "runtime/call/op_content.hpp"
#include "runtime/call/op_memory.hpp"
#include "runtime/call/user_buffers.hpp"
#include "syncopate/at.hpp"
#include "syncopate/digest.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

constexpr Milliseconds kToCloseAfterAll{2'000};
constexpr std::uint64_t kMostRows = std::uint64_t{1} << 31;  // a coordinate has 32 bits

std::string text_of(const kernel::Scalar& value) {
    struct Text {
        std::string operator()(const kernel::NoneValue&) const { return "None"; }
        std::string operator()(bool one) const { return one ? "True" : "False"; }
        std::string operator()(std::int64_t one) const { return fmt::format("{}", one); }
        std::string operator()(double one) const { return fmt::format("{}", one); }
        std::string operator()(const std::string& one) const { return fmt::format("'{}'", one); }
    };
    return std::visit(Text{}, value);
}

/// What is compiled into the kernel. Numbers and strides may be a rank's own.
std::string constants_of(const emit::KernelLaunch& stage) {
    std::string text;
    for (const auto& [parameter, kind] : stage.parameters) {
        const auto found = stage.arguments.scalars.find(parameter);
        if (kind == kernel::ParamKind::constant && found != stage.arguments.scalars.end())
            text += fmt::format("{}{}={}", text.empty() ? "" : ", ", parameter, text_of(found->second));
    }
    for (const auto& [parameter, tensor] : stage.bindings) text += fmt::format("; {}: {}", parameter, tensor);
    return text;
}

/// "op 'NAME'" with what tells variants apart: "op 'op' matmul(M=64, …); A bf16[64, 128], …".
std::string what_is_called(const std::string& name, const std::vector<emit::KernelLaunch>& stages,
                           const fuse::Schedule& schedule) {
    std::string text = fmt::format("op '{}'", name);
    for (const emit::KernelLaunch& stage : stages) {
        text += fmt::format(" {}(", stage.kernel);
        bool first = true;
        for (const auto& [parameter, value] : stage.arguments.scalars) {
            text += fmt::format("{}{}={}", first ? "" : ", ", parameter, text_of(value));
            first = false;
        }
        text += ")";
    }
    for (const plan::Tensor& tensor : schedule.tensors) {
        text += fmt::format("{}{} {}[", &tensor == schedule.tensors.data() ? "; " : ", ", tensor.name,
                            plan::name_of(tensor.dtype));
        for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis)
            text += fmt::format("{}{}", axis == 0 ? "" : ", ", tensor.shape[axis]);
        text += "]";
    }
    return text;
}

std::string list_of(const std::vector<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
    return text;
}

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

Status FusedOp::allocate() {
    const fuse::Heap& heap = schedule_.heap;
    const std::uint64_t row = fuse::bytes_of_row(schedule_);
    if (row > 1 && (heap_->stride() % row != 0 ||
                    heap_->stride() / row * static_cast<std::uint64_t>(heap_->num_mapped()) > kMostRows)) {
        return Error{fmt::format("op '{}': its kernel addresses rows of {} bytes in all ranks' heaps, which "
                                 "are {} bytes apart; "
                                 "create the heap with a multiple of {} bytes, and at most {} rows in all",
                                 options_.name, row, heap_->stride(), std::lcm(row, std::uint64_t{2} << 20),
                                 kMostRows),
                     {.rank = rank()},
                     ErrorClass::usage};
    }
    Result<std::uint64_t> first = heap_->allocate(heap.bytes, heap.alignment);
    if (!first) {
        Error error = first.error();
        error.message = fmt::format("op '{}': {}", options_.name, error.message);
        return error;
    }
    memory_->first = *first;
    for (const std::uint64_t offset : heap.tensors) memory_->tensor_offsets.push_back(*first + offset);
    memory_->control_offset = *first + heap.control;
    memory_->control_words = heap.control_words;

    heap_->keep(memory_->control_offset, control_bytes());
    return write_control();
}

Status FusedOp::write_control() {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(memory_->control_words), 0);
    words[emit::control::deadline_ms] = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(options_.deadline_ms, 0, std::numeric_limits<std::int32_t>::max()));
    words[emit::control::rank] = static_cast<std::uint32_t>(rank());
    words[emit::control::epoch] = heap_->device().kind == Device::Kind::cuda ? 1 : 0;
    heap_->keep(memory_->control_offset, words.size() * 4);
    return heap_->write(control_address(), words.data(), words.size() * 4);
}

void FusedOp::make_tables() {
    constexpr std::size_t kAlignment = 64;  // words: a table begins at a multiple of 256 bytes
    std::vector<std::uint64_t> offsets = memory_->tensor_offsets;
    offsets.push_back(memory_->control_offset);
    for (std::size_t stage = 0; stage < schedule_.stages.size(); ++stage) {
        const auto make_table = [&](const std::vector<std::uint64_t>& at) {
            return emit::make_table(schedule_, rank(), static_cast<std::int64_t>(heap_->stride()),
                                    options_.num_programs, at, stage);
        };
        const auto align = [&] {
            table_.resize((table_.size() + kAlignment - 1) / kAlignment * kAlignment, 0);
        };
        std::vector<std::int32_t> table = make_table(offsets);
        const std::size_t begin = table_.size();
        stage_begin_.push_back(begin);
        table_.insert(table_.end(), table.begin(), table.end());
        if (fuse::kernel_summands(schedule_) > 0) {
            align();
            table_[begin + emit::table::other] = static_cast<std::int32_t>(table_.size() - begin);
            table = make_table(fuse::in_turn(schedule_, offsets));
            table_.insert(table_.end(), table.begin(), table.end());
        }
        if (stage + 1 < schedule_.stages.size()) align();
    }
    stage_begin_.push_back(table_.size());
}

Status FusedOp::make_executor(CallPlan plan) {
    SYNCOPATE_TAKE(std::unique_ptr<CallExecutor> executor,
                   heap_->device().kind == Device::Kind::host
                       ? make_host_calls(std::move(plan), table_, *heap_, schedule_, options_)
                       : make_cuda_calls(std::move(plan), table_, *heap_, schedule_, options_));
    executor_ = std::move(executor);
    buffers_ = std::make_unique<UserBuffers>(*heap_, schedule_, options_, *memory_, *executor_);
    waits_for_channel_.clear();
    for (std::size_t stage = 0; stage < schedule_.stages.size(); ++stage)
        waits_for_channel_.push_back(fuse::waits_for_channel(schedule_, rank(), stage));
    return Done{};
}

Status FusedOp::watch() {
    Rendezvous& rendezvous = heap_->rendezvous().within();
    if (heap_->size() == 1) return Done{};  // of a node of one rank it sees to what other nodes do not join
    watch_ = std::dynamic_pointer_cast<CallWatch>(rendezvous.watch());
    if (watch_ == nullptr) {
        SYNCOPATE_TAKE(CallEvents events, CallEvents::create(rendezvous, kOfGroup));
        watch_ = std::make_shared<CallWatch>(std::move(events));
    }
    SYNCOPATE_TAKE(CallBoard board, CallBoard::create(rendezvous, kOfGroup));
    watched_ = std::make_unique<WatchedOp>(
        options_.what.empty() ? what_is_called(options_.name, {}, schedule_) : options_.what,
        std::move(board));
    return Done{};
}

void FusedOp::free_memory() {
    if (memory_->first) heap_->free(*memory_->first);
}

Result<std::unique_ptr<FusedOp>> FusedOp::create(std::shared_ptr<SymmetricHeap> heap,
                                                 const emit::ScheduleFile& launch, Options options) {
    if (heap == nullptr) return Error{"an op needs a heap", {}, ErrorClass::usage};
    const auto name_of = [&](const plan::Chunk& chunk) -> const std::string& {
        return launch.plan.tensors[at(chunk.tensor)].name;
    };
    if (options.what.empty()) {
        options.what = what_is_called(options.name, launch.stages, launch.schedule);
        for (const emit::KernelLaunch& stage : launch.stages)
            options.content.emplace_back("arguments of " + stage.kernel, constants_of(stage));
    } else {
        options.content.emplace_back("call", options.what);  // who says this knows what ranks have alike
    }
    if (!launch.schedule.part)  // which says of what plan it was made
        options.content.emplace(options.content.begin(), "plan", plan::to_json(launch.plan));
    options.num_programs = launch.programs_of(heap->rank());
    options.kept_tensors.emplace();
    for (const emit::KernelLaunch& stage : launch.stages) {
        for (const auto& [parameter, tensor] : stage.bindings) {
            if (std::ranges::find(options.read_in_place, tensor) == options.read_in_place.end())
                options.kept_tensors->push_back(tensor);
        }
    }
    for (const plan::Holding& holding : launch.plan.final) {
        if (holding.rank == heap->rank()) options.kept_tensors->push_back(name_of(holding.chunk));
    }
    options.initial.emplace();
    for (const plan::Holding& holding : launch.plan.initial) {
        if (holding.rank != heap->rank()) continue;
        const auto same = [&](const plan::Tensor& tensor) { return tensor.name == name_of(holding.chunk); };
        const auto found = std::ranges::find_if(launch.schedule.tensors, same);
        const auto index = static_cast<std::int32_t>(found - launch.schedule.tensors.begin());
        options.initial->push_back({index, holding.chunk.region});
    }
    return create(std::move(heap), launch.schedule, options);
}

Result<std::unique_ptr<FusedOp>> FusedOp::create(std::shared_ptr<SymmetricHeap> heap,
                                                 const fuse::Schedule& schedule, const Options& options) {
    if (heap == nullptr) return Error{"an op needs a heap", {}, ErrorClass::usage};
    const int rank = heap->rank();
    std::unique_ptr<FusedOp> op(new FusedOp(heap, schedule, options));
    // From here on a failure is shared: every rank goes through the same exchanges.
    Status made = check_schedule(schedule, rank, heap->size());
    const int together = schedule.mesh.num_nodes() > 1 ? schedule.mesh.ranks_of_node() : heap->size();
    if (made && together != heap->num_mapped()) {
        made = Error{fmt::format("the schedule is for nodes of {} ranks, those of this run have {}", together,
                                 heap->num_mapped()),
                     {.rank = rank},
                     ErrorClass::usage};
    }
    if (made) made = op->allocate();
    CallPlan plan;
    if (made) {
        Result<CallPlan> planned = make_call_plan(*heap, schedule, *op->memory_);
        if (planned)
            plan = std::move(planned).value();
        else
            made = planned.error();
    }
    const auto make_ready = [&] { return op->make_executor(std::move(plan)); };
    if (Status joined = op->join(made, make_ready); !joined) {
        op->watched_.reset();
        op->executor_.reset();
        op->free_memory();
        return joined.error();
    }
    heap->add_user(*op);
    return op;
}

Status FusedOp::join(const Status& made, const std::function<Status()>& make_ready) {
    using Content = Result<std::vector<ContentPart>>;
    Rendezvous& rendezvous = heap_->rendezvous();
    if (Status alike = agree_on_content(
            rendezvous, options_.name,
            made ? Content(content_of(schedule_, *memory_, options_)) : Content(made.error()), kOfGroup);
        !alike) {
        return alike;
    }
    if (table_.empty()) make_tables();
    Status ready = watch();
    if (ready) ready = make_ready();
    // All control blocks are set up before anyone begins a call.
    SYNCOPATE_TAKE(const std::vector<Bytes> done,
                   agree(rendezvous, fmt::format("op-{}-ready", options_.name),
                         ready ? Result<Bytes>("") : Result<Bytes>(ready.error())));
    if (watched_) {
        watched_->executor = executor_.get();
        watched_->on_host = heap_->device().kind == Device::Kind::host;
        watched_->first_rank = heap_->first_mapped();
        rendezvous.within().set_watch(watch_);
        watch_->add(*watched_);
    }
    return Done{};
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
    return buffers_->set_input(name, region, address, strides);
}

Status FusedOp::set_input(std::string_view name, std::uint64_t address,
                          std::span<const std::int64_t> strides) {
    return buffers_->set_input(name, address, strides);
}

void FusedOp::clear_inputs() { buffers_->clear_inputs(); }

Status FusedOp::set_output(std::string_view name, const plan::Region& region, std::uint64_t address,
                           std::span<const std::int64_t> strides) {
    return buffers_->set_output(name, region, address, strides);
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
    return join(write_control(), [this] { return executor_->renew(heap_->rendezvous()); });
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
    if (destroyed_)
        return Error{fmt::format("op '{}' has been destroyed", options_.name), {}, ErrorClass::usage};
    interrupt();
    const Status drained = drain();
    SYNCOPATE_TAKE(const std::vector<Bytes> all,
                   agree(heap_->rendezvous(), fmt::format("op-{}-reset", options_.name),
                         drained ? Result<Bytes>("") : Result<Bytes>(drained.error())));
    return renew();
}

void FusedOp::give_up() {
    if (require_own()) executor_->raise(emit::control::fault_of_peer | static_cast<std::uint32_t>(rank()));
}

bool FusedOp::calls_differ() const { return watched_ != nullptr && watched_->board.ended_by() != 0; }

bool FusedOp::is_told() const { return watched_ != nullptr && watch_->has_told(*watched_); }

Error FusedOp::described(const FaultRecord& record, int of_rank) const {
    Error error = fault_error(schedule_, of_rank, called(), record, options_.deadline_ms);
    if (watched_ == nullptr || record.of_peer()) return error;
    std::vector<int> absent;
    std::vector<int> ended;
    for (int near = 0; near < heap_->num_mapped(); ++near) {
        const int other = heap_->first_mapped() + near;
        std::uint32_t begun = watched_->board.begun(near);
        const std::uint64_t epoch = control_address(other) + 4 * emit::control::epoch;
        if (heap_->device().kind == Device::Kind::host && !heap_->read(epoch, &begun, sizeof(begun)))
            continue;
        if (static_cast<std::int32_t>(begun - record.epoch) >= 0) continue;
        (watch_->has_ended(near) ? ended : absent).push_back(other);
    }
    const auto missing = [&](const std::vector<int>& ranks, const char* one, const char* several) {
        if (ranks.empty()) return;
        error.message += fmt::format("; {} {}", list_of(ranks), ranks.size() == 1 ? one : several);
    };
    missing(absent, "has not begun this call", "have not begun this call");
    missing(ended, "has not begun this call, as its process has ended",
            "have not begun this call, as their processes have ended");
    return error;
}

std::string FusedOp::called() const {
    const std::string name = fmt::format("op '{}'", options_.name);
    if (!options_.what.starts_with(name)) return options_.what.empty() ? name : options_.what;
    return options_.what.substr(0, options_.what.find_first_of("(;", name.size()));
}

std::string FusedOp::of_ended(int peer, const std::string& message) const {
    if (watched_ == nullptr || !heap_->maps(peer) || !watch_->has_ended(peer - heap_->first_mapped()))
        return message;
    return fmt::format("{}: given up, as the process of rank {} has ended", called(), peer);
}

Error FusedOp::error_of(const FaultRecord& record) const {
    if (watched_ != nullptr) {
        if (std::optional<Error> differs = watch_->tell(*watched_)) return *differs;
    }
    if (!record.of_peer() || record.peer() >= heap_->size() || !heap_->maps(record.peer()))
        return described(record, rank());
    // The other rank's control block says what it waited for.
    Error error = described(record, rank());
    std::uint32_t words[emit::control::header_words] = {};
    if (heap_->read(control_address(record.peer()), words, sizeof(words))) {
        FaultRecord theirs = FaultRecord::from_words(words);
        if (theirs.of_peer())
            theirs.epoch = record.epoch;  // it gave up, and may not have come to the call since
        if (theirs.any() && (!theirs.of_peer() || theirs.peer() == record.peer())) {
            const Error cause = described(theirs, record.peer());
            error.message = cause.message + fmt::format("; so found on rank {}", record.peer());
            error.location = cause.location;
        }
        const bool gave_up = theirs.of_peer() && theirs.peer() == record.peer();
        if (!theirs.any() || (theirs.of_peer() && !gave_up))
            error.message = of_ended(record.peer(), error.message);
    }
    return error;
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

Status FusedOp::begin_call(CudaStream stream) {
    SYNCOPATE_TRY(require_own());
    if (destroyed_)
        return Error{fmt::format("op '{}' has been destroyed", options_.name), {}, ErrorClass::usage};
    SYNCOPATE_TRY(require_not_retired());
    SYNCOPATE_TRY(heap_->require_there());
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
    const Status begun = executor_->begin(stream, copies.all());
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

Status FusedOp::call(std::span<const StageLaunch> stages, CudaStream stream) {
    if (stages.size() != schedule_.stages.size()) {
        return Error{fmt::format("op '{}': it has {} stages, {} kernels were given", options_.name,
                                 schedule_.stages.size(), stages.size()),
                     {.rank = rank()},
                     ErrorClass::usage};
    }
    SYNCOPATE_TRY(require_own());
    for (const StageLaunch& stage : stages) {  // what may fail does so before the call begins
        SYNCOPATE_TRY(stage.kernel->prepare(stage.grid));
        SYNCOPATE_TRY(
            require_room(static_cast<std::size_t>(&stage - stages.data()), *stage.kernel, stage.grid));
    }
    SYNCOPATE_TRY(begin_call(stream));
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
    const Status captured = call(stages, stream);
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
    SYNCOPATE_TRY(heap_->require_there());
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

Status FusedOp::check() const {
    SYNCOPATE_TRY(require_not_retired());
    if (calls_differ()) return error_of({});
    SYNCOPATE_TAKE(FaultRecord record, executor_->read_fault());
    return record.any() ? Status(error_of(record)) : Status(Done{});
}

Status FusedOp::poll() const {
    SYNCOPATE_TRY(require_not_retired());
    if (calls_differ()) return error_of({});
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
