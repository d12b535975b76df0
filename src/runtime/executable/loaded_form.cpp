#include "runtime/executable/loaded_form.hpp"

#include <fmt/format.h>

#include <cstring>

#include <utility>
#include <variant>

#include "runtime/cuda/driver/cuda_api.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

Error no_such(const char* what, std::int64_t number) {
    return usage_error(fmt::format("an argument names {} {}, which there is not", what, number));
}

/// Whether a call may find it elsewhere than the one before.
bool changes(const Memory& memory) {
    return memory.of == Memory::Of::operand || memory.of == Memory::Of::sums || memory.of == Memory::Of::own;
}

}  // namespace

#if SYNCOPATE_HAS_CUDA

Result<TensorMap> LoadedForm::encoded(const TensorMapRequest& request) const {
    const std::shared_ptr<CudaContext>& context = op_.heap()->cuda_context();
    if (context == nullptr) return make_tensor_map(request);
    const CurrentContext current(*context);  // a thread of a process without Python may have none
    return make_tensor_map(request);
}

Status LoadedForm::allocate_workspaces() {
    for (const std::uint64_t bytes : form_.workspaces) {
        SYNCOPATE_TAKE(std::unique_ptr<DeviceBuffer> made,
                       DeviceBuffer::create(op_.heap()->cuda_context(), bytes));
        const std::vector<std::byte> zeroes(bytes);
        SYNCOPATE_TRY(op_.heap()->write(made->address(), zeroes.data(), bytes));
        const std::uint64_t address = made->address();
        workspaces_.emplace_back(address, std::shared_ptr<DeviceBuffer>(std::move(made)));
    }
    return Done{};
}

#else

Result<TensorMap> LoadedForm::encoded(const TensorMapRequest& request) const {
    return make_tensor_map(request);
}
Status LoadedForm::allocate_workspaces() { return Done{}; }

#endif

LoadedForm::~LoadedForm() = default;

Result<std::unique_ptr<LoadedForm>> LoadedForm::load(FusedOp& op, std::span<const Operand> operands,
                                                     Form form,
                                                     std::vector<std::shared_ptr<CudaKernel>> kernels) {
    std::unique_ptr<LoadedForm> made(new LoadedForm(op, std::move(form)));
    made->kernels_ = std::move(kernels);
    SYNCOPATE_TRY(made->allocate_workspaces());
    SYNCOPATE_TRY(made->lay_out(operands));
    return made;
}

Status LoadedForm::lay_out(std::span<const Operand> operands) {
    arguments_.resize(form_.stages.size());
    for (std::size_t stage = 0; stage < form_.stages.size(); ++stage) {
        if (kernels_[stage] == nullptr) return usage_error("a stage without a kernel");
        for (const Argument& argument : form_.stages[stage].arguments) {
            SYNCOPATE_TRY(add(stage, argument, operands));
        }
        SYNCOPATE_TRY(kernels_[stage]->prepare(form_.stages[stage].grid));
    }
    for (std::size_t stage = 0; stage < form_.stages.size(); ++stage)
        launches_.push_back({kernels_[stage].get(), form_.stages[stage].grid, &arguments_[stage]});
    return Done{};
}

Status LoadedForm::add(std::size_t stage, const Argument& argument, std::span<const Operand> operands) {
    KernelArguments& arguments = arguments_[stage];
    if (const auto* number = std::get_if<NumberArgument>(&argument)) {
        const auto as = [&]<typename T>(T value) {
            std::memcpy(&value, number->value.data(), sizeof(T));
            arguments.add(value);
        };
        switch (number->bytes) {
            case 1: as(std::uint8_t{}); return Done{};
            case 2: as(std::uint16_t{}); return Done{};
            case 4: as(std::uint32_t{}); return Done{};
            case 8: as(std::uint64_t{}); return Done{};
            default: return no_such("a number of bytes:", number->bytes);
        }
    }
    if (std::holds_alternative<OwnDistanceArgument>(argument)) {
        if (!op_.own_place()) return no_such("what the rank was given, its own part,", 0);
        changing_.push_back({stage, arguments.add(std::int64_t{0}), &argument});
        return Done{};
    }
    const auto* pointer = std::get_if<PointerArgument>(&argument);
    const Memory& memory = pointer != nullptr ? pointer->at : std::get<DescriptorArgument>(argument).at;
    const bool fixed = !changes(memory);
    if (memory.of == Memory::Of::operand &&
        (memory.index < 0 || static_cast<std::size_t>(memory.index) >= operands.size()))
        return no_such("operand", memory.index);
    SYNCOPATE_TAKE(std::uint64_t address, fixed ? address_of(memory, stage, {}) : Result<std::uint64_t>(0));
    if (pointer != nullptr) {
        const std::size_t index = arguments.add_pointer(address);
        if (!fixed) changing_.push_back({stage, index, &argument});
        return Done{};
    }
    const auto& descriptor = std::get<DescriptorArgument>(argument);
    const std::size_t index =
        descriptor.map_alone ? arguments.add_tensor_map({})
                             : arguments.add_descriptor({}, descriptor.map.shape, descriptor.map.strides);
    Changing changing{.stage = stage, .argument = index, .what = &argument, .map = descriptor.map};
    if (!fixed) {
        changing_.push_back(std::move(changing));
        return Done{};
    }
    return change_map(changing, address, 0);
}

Result<std::uint64_t> LoadedForm::address_of(const Memory& memory, std::size_t stage,
                                             std::span<const CallTensor> tensors) const {
    const auto index = static_cast<std::size_t>(memory.index);
    std::uint64_t base = 0;
    switch (memory.of) {
        case Memory::Of::operand:
            if (tensors[index].address == 0) return std::uint64_t{0};
            base = tensors[index].address;
            break;
        case Memory::Of::tensor: {
            const std::vector<plan::Tensor>& all = op_.schedule().tensors;
            if (memory.index < 0 || index >= all.size()) return no_such("tensor", memory.index);
            Result<std::uint64_t> address = op_.tensor_address(all[index].name);
            if (!address) return address;
            base = *address;
            break;
        }
        case Memory::Of::heaps: base = op_.flat_view().address; break;
        case Memory::Of::table: base = op_.table_address(stage); break;
        case Memory::Of::control: base = op_.control_address(); break;
        case Memory::Of::sums: {
            const std::optional<std::uint64_t> place = op_.sum_place();
            if (!place) return no_such("a place of sums", 0);
            base = *place;
            break;
        }
        case Memory::Of::own: {
            const std::optional<FusedOp::OwnPlace> place = op_.own_place();
            if (!place) return no_such("what the rank was given, its own part,", 0);
            base = place->address;
            break;
        }
        case Memory::Of::workspace:
            if (memory.index < 0 || index >= workspaces_.size()) return no_such("workspace", memory.index);
            base = workspaces_[index].first;
            break;
        case Memory::Of::fixed: break;
        case Memory::Of::table_of:
            if (memory.index < 0 || index >= op_.schedule().stages.size())
                return no_such("the table of stage", memory.index);
            base = op_.table_address(index);
            break;
    }
    return base + static_cast<std::uint64_t>(memory.offset);
}

Status LoadedForm::take(std::span<const CallTensor> tensors) {
    for (Changing& changing : changing_) {
        SYNCOPATE_TRY(change(changing, tensors));
    }
    return Done{};
}

Status LoadedForm::change(Changing& changing, std::span<const CallTensor> tensors) {
    KernelArguments& arguments = arguments_[changing.stage];
    if (std::holds_alternative<OwnDistanceArgument>(*changing.what)) {
        arguments.set(changing.argument, op_.own_place()->elements + std::int64_t{emit::table::own_base});
        return Done{};
    }
    const auto* pointer = std::get_if<PointerArgument>(changing.what);
    const auto* descriptor = std::get_if<DescriptorArgument>(changing.what);
    const Memory& memory = pointer != nullptr ? pointer->at : descriptor->at;
    SYNCOPATE_TAKE(std::uint64_t address, address_of(memory, changing.stage, tensors));
    if (pointer != nullptr) {
        arguments.set(changing.argument, address);
        return Done{};
    }
    const std::uint64_t pitch = memory.of == Memory::Of::own ? op_.own_place()->pitch : 0;
    if (address == changing.address && pitch == changing.pitch) return Done{};
    return change_map(changing, address, pitch);
}

Status LoadedForm::change_map(Changing& changing, std::uint64_t address, std::uint64_t pitch) {
    KernelArguments& arguments = arguments_[changing.stage];
    TensorMapRequest& request = changing.map;
    request.address = address;
    if (pitch != 0) {
        request.strides.front() =
            static_cast<std::int64_t>(pitch) / static_cast<std::int64_t>(request.element_bytes);
        if (!std::get<DescriptorArgument>(*changing.what).map_alone)
            arguments.set(changing.argument + 1 + request.shape.size(), request.strides.front());
    }
    SYNCOPATE_TAKE(TensorMap map, encoded(request));
    arguments.set(changing.argument, map);
    changing.address = address;
    changing.pitch = pitch;
    return Done{};
}

}  // namespace syncopate::runtime
