#include "syncopate/runtime/executable/executable.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "runtime/executable/call_graphs.hpp"
#include "runtime/executable/loaded_form.hpp"
#include "syncopate/at.hpp"
#include "syncopate/runtime/cuda/driver/capture.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

#if SYNCOPATE_HAS_CUDA
using AroundCall = CurrentContext;
#else
struct AroundCall {
    explicit AroundCall(const CudaContext&) {}
};
#endif

/// Whether an array of this shape lies as `wanted` says, which means nothing for axes of one element.
bool same_strides(std::span<const std::int64_t> shape, std::span<const std::int64_t> given,
                  std::span<const std::int64_t> wanted) {
    for (std::size_t axis = 0; axis < wanted.size(); ++axis) {
        if (shape[axis] > 1 && given[axis] != wanted[axis]) return false;
    }
    return true;
}

bool is_empty(std::span<const std::int64_t> shape) {
    return std::ranges::any_of(shape, [](std::int64_t extent) { return extent == 0; });
}

/// Whether axis by axis, from the one with the least stride on, each step passes all that lies before it.
bool are_apart(const CallTensor& given) {
    std::int64_t passed = 0;  // the last element's place, of the axes so far
    std::uint32_t seen = 0;
    for (std::size_t turn = 0; turn < given.shape.size(); ++turn) {
        std::size_t least = given.shape.size();
        for (std::size_t axis = 0; axis < given.shape.size(); ++axis) {
            const bool is_less = least == given.shape.size() || given.strides[axis] < given.strides[least];
            if ((seen >> axis & 1U) == 0 && is_less) least = axis;
        }
        seen |= 1U << least;
        if (given.shape[least] < 2) continue;
        if (given.strides[least] <= passed) return false;
        passed += (given.shape[least] - 1) * given.strides[least];
    }
    return true;
}

/// Whether an array that has elements lies as `layout` says.
bool lies_as(Operand::Layout layout, const CallTensor& given, std::int64_t element) {
    using Layout = Operand::Layout;
    if (layout == Layout::any || given.shape.empty()) return true;
    const std::size_t last = given.shape.size() - 1;
    if (layout == Layout::contiguous) {
        std::int64_t apart = 1;
        for (std::size_t axis = given.shape.size(); axis-- > 0; apart *= given.shape[axis]) {
            if (given.shape[axis] > 1 && given.strides[axis] != apart) return false;
        }
        return true;
    }
    if (given.strides[last] != 1) return false;
    if (layout == Layout::rows) return true;
    if (layout == Layout::apart) return are_apart(given);
    bool aligned = given.address % 16 == 0 && are_apart(given);
    for (std::size_t axis = 0; axis < last; ++axis)
        aligned = aligned && (given.shape[axis] < 2 || given.strides[axis] * element % 16 == 0);
    return aligned;
}

const char* text_of(Operand::Layout layout) {
    switch (layout) {
        case Operand::Layout::any: return "any layout";
        case Operand::Layout::rows: return "a contiguous last axis";
        case Operand::Layout::aligned_rows:
            return "contiguous rows that begin at multiples of 16 bytes, and do not overlap";
        case Operand::Layout::contiguous: return "a contiguous array";
        case Operand::Layout::apart: return "contiguous rows that do not overlap";
    }
    return "";
}

/// An address behind `tensor`'s, in elements along each axis.
std::uint64_t address_at(const CallTensor& tensor, const std::vector<std::int64_t>& at, plan::DType dtype) {
    std::int64_t skipped = 0;
    for (std::size_t axis = 0; axis < at.size(); ++axis) skipped += at[axis] * tensor.strides[axis];
    return tensor.address + static_cast<std::uint64_t>(skipped) * plan::size_of(dtype);
}

}  // namespace

Executable::Executable() = default;
Executable::~Executable() = default;

Result<std::unique_ptr<Executable>> Executable::make(std::shared_ptr<SymmetricHeap> heap,
                                                     const emit::ScheduleFile& launch, const Program& program,
                                                     OpOptions options, HostKernels host) {
    SYNCOPATE_TAKE(std::unique_ptr<FusedOp> op, FusedOp::create(std::move(heap), launch, std::move(options)));
    return make(std::shared_ptr<FusedOp>(std::move(op)), program, std::move(host));
}

Result<std::unique_ptr<Executable>> Executable::make(std::shared_ptr<FusedOp> op, const Program& program,
                                                     HostKernels host) {
    if (op == nullptr) return usage_error("an executable needs an op");
    const bool on_host = op->heap()->device().kind == Device::Kind::host;
    if (on_host && !host) return usage_error("on host an executable needs what runs its kernels");
    for (const Operand& operand : program.operands) {
        for (const auto* parts : {&operand.inputs, &operand.outputs}) {
            for (const Operand::Part& part : *parts) {
                if (Result<std::uint64_t> known = op->tensor_offset(part.tensor); !known)
                    return known.error();
                const std::size_t axes = operand.shape.size();
                if ((part.at.empty() || part.at.size() == axes) &&
                    (!part.region || part.region->size() == axes) &&
                    (part.region || parts == &operand.inputs))
                    continue;
                return usage_error(fmt::format("operand {}: what is said of tensor {} does not fit {} axes",
                                               operand.name, part.tensor, axes));
            }
        }
    }
    std::unique_ptr<Executable> made(new Executable);
    made->op_ = std::move(op);
    made->operands_ = program.operands;
    made->host_ = std::move(host);
    if (on_host) return made;
    std::vector<std::shared_ptr<CudaKernel>> loaded(program.codes.size());
    for (std::size_t i = 0; i < program.codes.size(); ++i) {
        const Code& code = program.codes[i];
        SYNCOPATE_TAKE(
            std::unique_ptr<CudaKernel> kernel,
            CudaKernel::load(made->op_->heap()->cuda_context(), code.image, code.entry, code.options));
        loaded[i] = std::move(kernel);
    }
    for (const Form& form : program.forms) {
        std::vector<std::shared_ptr<CudaKernel>> kernels;
        for (const StageCode& stage : form.stages) {
            if (stage.code < 0 || static_cast<std::size_t>(stage.code) >= loaded.size())
                return usage_error(fmt::format("a stage names code {} of {}", stage.code, loaded.size()));
            kernels.push_back(loaded[at(stage.code)]);
        }
        SYNCOPATE_TRY(made->add(form, std::move(kernels)));
    }
    return made;
}

Status Executable::add(const Form& form, std::vector<std::shared_ptr<CudaKernel>> kernels) {
    const auto refused = [&](const std::string& why) {
        return usage_error(fmt::format("a form of kernels: {}", why));
    };
    if (form.stages.size() != op_->schedule().stages.size() || kernels.size() != form.stages.size())
        return refused(fmt::format("{} stages and {} kernels, where the program has {}", form.stages.size(),
                                   kernels.size(), op_->schedule().stages.size()));
    if (form.strides.size() > operands_.size() || form.alignment.size() > operands_.size())
        return refused("it speaks of more operands than there are");
    for (std::size_t i = 0; i < form.strides.size(); ++i) {
        if (!form.strides[i].empty() && form.strides[i].size() != operands_[i].shape.size())
            return refused(fmt::format("operand {} has {} axes, not {}", operands_[i].name,
                                       operands_[i].shape.size(), form.strides[i].size()));
    }
    SYNCOPATE_TAKE(std::unique_ptr<LoadedForm> loaded,
                   LoadedForm::load(*op_, operands_, form, std::move(kernels)));
    const std::lock_guard lock(calling_);
    const std::lock_guard adding(adding_);
    forms_.push_back(std::move(loaded));
    return Done{};
}

std::optional<std::size_t> Executable::form_of(std::span<const CallTensor> tensors) const {
    if (host_) return 0;
    const std::lock_guard adding(adding_);  // by another thread
    for (std::size_t number = 0; number < forms_.size(); ++number) {
        const Form& form = forms_[number]->form();
        bool fits = true;
        for (std::size_t i = 0; fits && i < form.strides.size(); ++i)
            fits = tensors[i].address == 0 ||
                   same_strides(tensors[i].shape, tensors[i].strides, form.strides[i]);
        for (std::size_t i = 0; fits && i < form.alignment.size(); ++i)
            fits = form.alignment[i] < 2 ||
                   tensors[i].address % static_cast<std::uint64_t>(form.alignment[i]) == 0;
        if (fits) return number;
    }
    return std::nullopt;
}

Status Executable::check(std::span<const CallTensor> tensors) const {
    if (tensors.size() != operands_.size())
        return usage_error(fmt::format("expected {} tensors, got {}", operands_.size(), tensors.size()));
    for (std::size_t i = 0; i < operands_.size(); ++i) {
        const Operand& operand = operands_[i];
        const CallTensor& given = tensors[i];
        if (given.address == 0 && (operand.optional || is_empty(operand.shape))) continue;
        if (given.address % static_cast<std::uint64_t>(std::max<std::int64_t>(operand.alignment, 1)) != 0)
            return usage_error(
                fmt::format("{}: its address is no multiple of {} bytes", operand.name, operand.alignment));
        if (!std::ranges::equal(given.shape, operand.shape))
            return usage_error(fmt::format("{}: expected shape [{}], got [{}]", operand.name,
                                           fmt::join(operand.shape, ", "), fmt::join(given.shape, ", ")));
        if (is_empty(operand.shape)) continue;
        if (given.strides.size() != given.shape.size() || given.address == 0)
            return usage_error(
                fmt::format("{}: expected a tensor with a stride for each axis", operand.name));
        if (!lies_as(operand.layout, given, static_cast<std::int64_t>(plan::size_of(operand.dtype))))
            return usage_error(fmt::format("{}: expected {}, its strides are [{}]", operand.name,
                                           text_of(operand.layout), fmt::join(given.strides, ", ")));
    }
    return Done{};
}

std::optional<std::size_t> Executable::takes(std::span<const CallTensor> tensors) const {
    if (!op_->require_own()) return 0;  // run_taken says it
    return check(tensors) ? form_of(tensors) : std::nullopt;
}

Status Executable::look_up_places() {
    std::vector<Moved> moved;
    for (std::size_t i = 0; i < operands_.size(); ++i) {
        for (const Operand::Part& part : operands_[i].inputs) {
            std::optional<std::size_t> place;
            if (part.region) {
                SYNCOPATE_TAKE(place, op_->buffer_place(part.tensor, *part.region));
            } else {
                SYNCOPATE_TAKE(place, op_->initial_place(part.tensor));
            }
            if (place) moved.push_back({.operand = i, .part = &part, .is_input = true, .place = *place});
        }
        for (const Operand::Part& part : operands_[i].outputs) {
            SYNCOPATE_TAKE(const std::size_t place, op_->buffer_place(part.tensor, *part.region));
            moved.push_back({.operand = i, .part = &part, .is_input = false, .place = place});
        }
    }
    moved_ = std::move(moved);
    return Done{};
}

Status Executable::place(std::span<const CallTensor> tensors) {
    if (!moved_) SYNCOPATE_TRY(look_up_places());
    for (const Moved& moved : *moved_) {
        const CallTensor& given = tensors[moved.operand];
        const std::uint64_t address = address_at(given, moved.part->at, operands_[moved.operand].dtype);
        SYNCOPATE_TRY(moved.is_input ? op_->set_input(moved.place, address, given.strides)
                                     : op_->set_output(moved.place, address, given.strides));
    }
    return Done{};
}

Status Executable::run(std::span<const CallTensor> tensors, CudaStream stream) {
    SYNCOPATE_TRY(op_->require_own());
    SYNCOPATE_TRY(check(tensors));
    const std::optional<std::size_t> form = form_of(tensors);
    if (!form)
        return Error{
            fmt::format(
                "there are {} forms of its kernels, and none for tensors of these strides and addresses",
                forms_.size()),
            {.rank = op_->rank()},
            ErrorClass::usage};
    return run_taken(tensors, *form, stream);
}

Status Executable::run_taken(std::span<const CallTensor> tensors, std::size_t form, CudaStream stream) {
    SYNCOPATE_TRY(op_->require_own());  // a child's locks may be held by threads that it does not have
    const std::lock_guard lock(calling_);
    SYNCOPATE_TRY(place(tensors));
    Status ran = host_ ? run_on_host(tensors) : run_on_cuda(tensors, form, stream);
    if (ran) calls_.fetch_add(1, std::memory_order_relaxed);
    return ran;
}

Status Executable::run_on_cuda(std::span<const CallTensor> tensors, std::size_t number, CudaStream stream) {
    const CudaContext& context = *op_->heap()->cuda_context();
    const AroundCall around(context);
    LoadedForm& form = *forms_[number];
    SYNCOPATE_TRY(form.take(tensors));
    const Capture capture = capture_of(context, stream);
    if (capture == Capture::on) captured_.store(true, std::memory_order_relaxed);
    if (graph_use_ == GraphUse::never || capture != Capture::off)
        return op_->call(form.launches(), stream, capture);
    if (graphs_ == nullptr) graphs_ = std::make_unique<CallGraphs>(*op_);
    if (!graphs_->worth(graph_use_)) return op_->call(form.launches(), stream, capture);
    SYNCOPATE_TAKE(bool launched, graphs_->call(tensors, number, form.launches(), stream));
    if (launched) graph_launches_.fetch_add(1, std::memory_order_relaxed);
    return Done{};
}

Status Executable::run_on_host(std::span<const CallTensor> tensors) {
    SYNCOPATE_TRY(op_->begin_call());
    Status ran = Done{};
    try {
        ran = host_(tensors);
    } catch (...) {
        (void)op_->end_call(0, false);  // what it says is that this rank gave up
        throw;
    }
    const bool faulty = !ran && !op_->poll();  // then the op knows more than the kernel whose wait has ended
    const Status ended = op_->end_call(0, static_cast<bool>(ran));
    return ran || faulty ? ended : ran;
}

}  // namespace syncopate::runtime
