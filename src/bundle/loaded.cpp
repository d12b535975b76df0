#include "syncopate/bundle/loaded.hpp"

#include <fmt/format.h>

#include <array>
#include <span>
#include <utility>

#include "bundle/host_mixture.hpp"
#include "syncopate/at.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

/// Memory of this rank's device alone.
Result<std::shared_ptr<runtime::SymmetricHeap>> own_memory(runtime::Device device, std::uint64_t bytes) {
    auto alone = std::make_shared<runtime::CallbackRendezvous>(
        0, 1, [](const std::string&, const runtime::Bytes&) {},
        [](const std::string&, runtime::Milliseconds) { return runtime::Bytes(); });
    return runtime::SymmetricHeap::create(device, std::move(alone), bytes);
}

}  // namespace

using runtime::Bytes;
using runtime::Device;

std::string prepare_label(std::int64_t rows) { return fmt::format("prepare {} rows", rows); }

Prepared::~Prepared() = default;

Status Prepared::run(std::span<const runtime::CallTensor> tensors, runtime::CudaStream stream) {
    SYNCOPATE_TRY(executable_->run(tensors, stream));
    return bundle_->on_host() ? judge() : Status(Done{});
}

Status Prepared::check() {
    SYNCOPATE_TRY(op().synchronize());
    SYNCOPATE_TRY(op().check());
    return judge();
}

Status Prepared::judge() {
    const auto seen = scratch_.offsets.find(ops::kSeen);
    if (seen == scratch_.offsets.end()) return Done{};
    const std::uint64_t place = memory_->local(seen->second);
    std::array<std::int32_t, 2> told{};
    SYNCOPATE_TRY(memory_->read(place, told.data(), sizeof(told)));
    const auto [over, bad] = told;
    if (over == 0 && bad == 0) return Done{};
    SYNCOPATE_TRY(memory_->zero(place, sizeof(told)));
    const auto refused = [](const std::string& what) { return Error{what, {}, ErrorClass::usage}; };
    if (bad != 0)
        return refused(fmt::format("topk_ids: {} of all ranks' ids name no expert; there are experts 0 to {}",
                                   bad, planned_->problem.extent("E") - 1));
    if (bundle_->op->drops) return Done{};
    return refused(fmt::format(
        "bound: as many as {} rows more than {} come to a rank: compile it with bound={}, or --drop", over,
        planned_->problem.extent("bound"), planned_->problem.extent("bound") + over));
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

Status Loaded::make_executable(Prepared& made, std::shared_ptr<runtime::FusedOp> op,
                               const PrepareOptions& options) {
    const std::vector<runtime::Operand> operands = operands_of(*made.planned_, rendezvous_->rank());
    made.scratch_ = scratch_of(*made.planned_);
    if (made.scratch_.bytes > 0) {
        SYNCOPATE_TAKE(auto memory, own_memory(device_, made.scratch_.bytes));
        made.memory_ = std::move(memory);
    }
    const std::uint64_t scratch = made.memory_ == nullptr ? 0 : made.memory_->local(0);
    runtime::Executable::HostKernels host;
    if (bundle_->on_host() && made.planned_->problem.op == "moe") {
        SYNCOPATE_TAKE(auto kernels, host_mixture(made.planned_, operands, *op, scratch));
        host = std::move(kernels);
    } else if (bundle_->on_host()) {
        if (bundle_->folder && !options.tiles)
            return Error{"a user's program on host needs a function that makes its tiles",
                         {.file = bundle_->file},
                         ErrorClass::usage};
        SYNCOPATE_TAKE(auto kernels, host_kernels(made.planned_, operands, *op,
                                                  bundle_->folder ? options.tiles : TileKernel()));
        host = std::move(kernels);
    }
    SYNCOPATE_TAKE(auto executable, runtime::Executable::make(op, {.operands = operands}, std::move(host)));
    made.executable_ = std::move(executable);
    if (bundle_->on_host()) return Done{};
    if (options.graphs) made.executable_->use_graphs(runtime::GraphUse::of_many);
    SYNCOPATE_TAKE(runtime::Form form, form_of(*bundle_, *made.planned_, rendezvous_->rank(), operands,
                                               op->flat_view().bytes, scratch));
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
