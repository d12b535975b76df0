#include "syncopate/runtime/call/op.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "runtime/call/call_executor.hpp"
#include "runtime/call/call_plan.hpp"
#include "runtime/call/call_watch.hpp"
#include "runtime/call/check_schedule.hpp"
#include "runtime/call/op_content.hpp"
#include "runtime/call/op_memory.hpp"
#include "runtime/call/user_buffers.hpp"
#include "syncopate/at.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

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

}  // namespace

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
        watch_ = std::make_shared<CallWatch>(std::move(events), heap_->first_mapped());
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
    if (heap == nullptr) return usage_error("an op needs a heap");
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
    if (heap == nullptr) return usage_error("an op needs a heap");
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
        rendezvous.within().set_watch(watch_);
        watch_->add(*watched_);
    }
    return Done{};
}

}  // namespace syncopate::runtime
