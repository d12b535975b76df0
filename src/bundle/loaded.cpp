#include "syncopate/bundle/loaded.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "bundle/host_grouped.hpp"
#include "bundle/host_operators.hpp"
#include "syncopate/at.hpp"
#include "syncopate/ops/ragged.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
using runtime::Bytes;
using runtime::Device;

namespace {

/// By name, what kernels read of the scratch that no call writes.
std::map<std::string_view, std::span<const std::int32_t>> known_of(const Planned& planned) {
    if (planned.grouped == nullptr) return {};
    const ops::RaggedKernel& first = planned.grouped->users.front();
    return {{ops::kRaggedExperts, first.expert_of}, {ops::kRaggedFirstRows, first.row_of}};
}

}  // namespace

std::string prepare_label(std::int64_t rows) { return fmt::format("prepare {} rows", rows); }

Prepared::~Prepared() {
    if (executable_ != nullptr) op().when_renewed({});
}

Status Prepared::run(std::span<const runtime::CallTensor> tensors, runtime::CudaStream stream) {
    SYNCOPATE_TRY(op().require_own());
    const std::lock_guard lock(telling_);  // another thread's check is of calls before it, or waits for it
    const Status ran = executable_->run(tensors, stream);
    if (!bundle_->on_host() || !tells()) return ran;
    return ran ? judge() : failed(ran);
}

Status Prepared::check() {
    SYNCOPATE_TRY(op().require_own());
    const std::lock_guard lock(telling_);
    Status done = op().synchronize();
    if (done) done = op().check();
    return done && tells() ? judge() : failed(done);
}

Status Prepared::failed(const Status& status) {
    if (!status && status.error().error_class == ErrorClass::machine) forget();
    return status;
}

Result<Prepared::Words> Prepared::seen() const {
    Words words(told_.size());
    const auto place = scratch_.places.find(planned_->seen);
    SYNCOPATE_TRY(executable_->op().heap()->read(scratch_at_ + place->second.offset, words.data(),
                                                 place->second.bytes));
    return words;
}

void Prepared::forget() {
    if (!tells()) return;
    if (Result<Words> now = seen()) told_ = *std::move(now);
}

Status Prepared::judge() {
    SYNCOPATE_TAKE(const Words now, seen());
    const Words before = std::exchange(told_, now);
    const std::string wrong = planned_->judge(before, now);
    return wrong.empty() ? Status(Done{}) : Status(Error{wrong, {}, ErrorClass::usage});
}

Status Prepared::destroy() { return executable_->op().destroy(); }

Result<std::unique_ptr<Loaded>> Loaded::open(std::shared_ptr<const Bundle> bundle, Device device,
                                             std::shared_ptr<runtime::Rendezvous> rendezvous) {
    const bool host = device.kind == Device::Kind::host;
    if (bundle->on_host() != host)
        return Error{fmt::format("this bundle is for {}, and the group is on {}: compile it with --arch {}",
                                 bundle->arch, device.to_string(), host ? "host" : "sm_90"),
                     {.file = bundle->file},
                     ErrorClass::usage};
    if (bundle->ranks() != rendezvous->size())
        return Error{fmt::format("this bundle is for {} ranks, and the group has {}", bundle->ranks(),
                                 rendezvous->size()),
                     {.file = bundle->file},
                     ErrorClass::usage};
    return std::unique_ptr<Loaded>(new Loaded(std::move(bundle), device, std::move(rendezvous)));
}

Result<std::shared_ptr<runtime::CudaKernel>> Loaded::kernel(std::int32_t index) {
    if (const auto found = kernels_.find(index); found != kernels_.end()) return found->second;
    const CompiledKernel& compiled = bundle_->kernels[at(index)];
    SYNCOPATE_TAKE(std::shared_ptr<runtime::CudaContext> context,
                   runtime::CudaContext::retain(device_.ordinal));
    const std::string& code = bundle_->sections.at(compiled.section);
    Result<std::unique_ptr<runtime::CudaKernel>> loaded =
        runtime::CudaKernel::load(context, std::as_bytes(std::span(code)), compiled.entry, compiled.options);
    if (!loaded) {
        Error error = loaded.error();
        error.message = fmt::format("{}: section {}: {}", bundle_->file, compiled.section, error.message);
        return error;
    }
    std::shared_ptr<runtime::CudaKernel> made(*std::move(loaded));
    if (compiled.options.global_scratch_size == 0) kernels_.emplace(index, made);
    return made;
}

Status Loaded::write_known(const Prepared& made, runtime::SymmetricHeap& heap) {
    for (const auto& [name, values] : known_of(*made.planned_)) {
        const Scratch::Place& place = made.scratch_.places.find(name)->second;
        SYNCOPATE_TRY(heap.write(made.scratch_at_ + place.offset, values.data(), values.size_bytes()));
    }
    return Done{};
}

/// Behind the op in its heap: so it is counted, and given back, with the rest.
Status Loaded::take_scratch(Prepared& made, runtime::FusedOp& op) {
    made.scratch_ = scratch_of(*made.planned_);
    if (made.scratch_.bytes == 0) return Done{};
    runtime::SymmetricHeap& heap = *op.heap();
    SYNCOPATE_TAKE(const std::uint64_t offset, heap.allocate(made.scratch_.bytes));
    made.scratch_at_ = heap.local(offset);
    SYNCOPATE_TRY(write_known(made, heap));
    for (const auto& [name, values] : known_of(*made.planned_)) {
        const Scratch::Place& place = made.scratch_.places.find(name)->second;
        heap.keep(offset + place.offset, values.size() * sizeof(std::int32_t));
    }
    const auto seen = made.scratch_.places.find(made.planned_->seen);
    if (seen != made.scratch_.places.end()) {
        heap.keep(offset + seen->second.offset, seen->second.bytes);
        made.told_.assign(seen->second.bytes / sizeof(std::uint32_t), 0);
    }
    return Done{};
}

Status Loaded::make_executable(Prepared& made, std::shared_ptr<runtime::FusedOp> op,
                               const PrepareOptions& options) {
    std::vector<runtime::Operand> operands = operands_of(*made.planned_, rendezvous_->rank());
    SYNCOPATE_TRY(take_scratch(made, *op));
    runtime::Executable::HostKernels host;
    runtime::Form form;
    if (!bundle_->on_host()) {
        SYNCOPATE_TAKE(form, form_of(*bundle_, *made.planned_, rendezvous_->rank(), operands,
                                     op->flat_view().bytes, made.scratch_at_));
        for (std::size_t i = 0; i < operands.size(); ++i)
            operands[i].alignment = std::max(operands[i].alignment, form.alignment[i]);
    } else if (bundle_->is_users() && !options.tiles) {
        return Error{"a user's program on host needs a function that makes its tiles",
                     {.file = bundle_->file},
                     ErrorClass::usage};
    } else if (bundle_->grouped) {
        host = host_grouped(made.planned_, operands, *op, made.scratch_at_, options.tiles);
    } else if (const HostOperator* const own = host_operator(made.planned_->problem.op); own != nullptr) {
        SYNCOPATE_TAKE(host, own->make(made.planned_, operands, *op, made.scratch_at_));
    } else {
        SYNCOPATE_TAKE(
            host, host_kernels(made.planned_, operands, *op, bundle_->folder ? options.tiles : TileKernel()));
    }
    SYNCOPATE_TAKE(auto executable, runtime::Executable::make(op, {.operands = operands}, std::move(host)));
    made.executable_ = std::move(executable);
    op->when_renewed([of = &made, heap = op->heap()]() -> Status {
        const std::lock_guard lock(of->telling_);
        of->forget();
        return write_known(*of, *heap);  // a renewed heap is zero
    });
    if (bundle_->on_host()) return Done{};
    if (options.graphs) made.executable_->use_graphs(runtime::GraphUse::of_many);
    std::vector<std::shared_ptr<runtime::CudaKernel>> loaded;
    for (const runtime::StageCode& stage : form.stages) {
        SYNCOPATE_TAKE(std::shared_ptr<runtime::CudaKernel> code, kernel(stage.code));
        SYNCOPATE_TRY(code->prepare(stage.grid));
        SYNCOPATE_TRY(op->require_room(loaded.size(), *code, stage.grid));
        loaded.push_back(std::move(code));
    }
    return made.executable_->add(form, std::move(loaded));
}

Result<std::unique_ptr<Prepared>> Loaded::prepare(std::int64_t rows, const PrepareOptions& options) {
    if (rendezvous_ == nullptr)
        return Error{"its group has gone on with another number of ranks: open it for these",
                     {.file = bundle_->file},
                     ErrorClass::usage};
    std::unique_ptr<Prepared> made(new Prepared);
    made->bundle_ = bundle_;
    Result<Planned> planned = plan_rows(*bundle_, rows, rendezvous_->rank());
    const Result<Bytes> mine = planned ? Result<Bytes>(Bytes()) : Result<Bytes>(planned.error());
    SYNCOPATE_TRY(agree(*rendezvous_, prepare_label(rows), mine));
    made->planned_ = std::make_shared<const Planned>(*std::move(planned));
    made->needs_ = needs_of(*bundle_, *made->planned_, rendezvous_->rank());
    SYNCOPATE_TAKE(auto heap, runtime::SymmetricHeap::create(device_, rendezvous_, made->needs_.heap));
    runtime::OpOptions of_op = op_options(*bundle_, *made->planned_);
    of_op.deadline_ms = options.deadline_ms;
    of_op.max_delay_us = options.max_delay_us;
    of_op.seed = options.seed;
    SYNCOPATE_TAKE(auto op, runtime::FusedOp::create(heap, made->planned_->launch, std::move(of_op)));
    const std::shared_ptr<runtime::FusedOp> shared = std::move(op);
    const Status ready = make_executable(*made, shared, options);
    if (auto all =
            agree(*rendezvous_, "prepared", ready ? Result<Bytes>(Bytes()) : Result<Bytes>(ready.error()));
        !all) {
        made.reset();
        (void)shared->destroy();
        return all.error();
    }
    return made;
}

}  // namespace syncopate::bundle
