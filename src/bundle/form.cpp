// The arguments of a rank's launches.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

using runtime::Argument;
using runtime::Memory;

/// A tensor as a kernel is given it.
struct Seen {
    Memory at;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
};

template <typename Value>
Argument number(Value value, std::uint8_t bytes) {
    runtime::NumberArgument made;
    made.bytes = bytes;
    std::memcpy(made.value.data(), &value, std::min(sizeof(value), made.value.size()));
    return made;
}

class FormMaker {
public:
    FormMaker(const Bundle& bundle, const Planned& planned, const std::vector<runtime::Operand>& operands,
              std::uint64_t heaps_bytes, std::uint64_t scratch)
        : bundle_(bundle),
          planned_(planned),
          operands_(operands),
          heaps_bytes_(heaps_bytes),
          scratch_(scratch_of(planned)),
          scratch_at_(scratch) {}

    Result<runtime::Form> make(std::int32_t rank) {
        rank_ = rank;
        form_.strides.resize(operands_.size());
        form_.alignment.assign(operands_.size(), 1);
        for (std::size_t stage = 0; stage < planned_.kernels.size(); ++stage) {
            const CompiledKernel& kernel = kernel_of(stage);
            const auto grid = planned_.launch.grid_of(stage, rank);
            runtime::StageCode code{
                .code = planned_.kernels[stage],
                .grid = {static_cast<std::uint32_t>(grid[0]), static_cast<std::uint32_t>(grid[1]),
                         static_cast<std::uint32_t>(grid[2])}};
            for (const CompiledParameter& parameter : kernel.parameters) {
                SYNCOPATE_TAKE(Argument argument, argument_of(stage, parameter));
                code.arguments.push_back(std::move(argument));
            }
            form_.stages.push_back(std::move(code));
        }
        return std::move(form_);
    }

private:
    [[nodiscard]] const CompiledKernel& kernel_of(std::size_t stage) const {
        return bundle_.kernels[at(planned_.kernels[stage])];
    }
    [[nodiscard]] const fuse::Schedule& schedule() const { return planned_.launch.schedule; }

    [[nodiscard]] Error unknown(std::size_t stage, const CompiledParameter& parameter,
                                const char* what) const {
        return Error{fmt::format("section manifest.json: parameter {} of kernel {} {}",
                                 escaped(parameter.name), escaped(kernel_of(stage).entry), what),
                     {.file = bundle_.file}};
    }

    Result<Argument> argument_of(std::size_t stage, const CompiledParameter& parameter) {
        if (parameter.name == "sy_schedule") return pointer({Memory::Of::table});
        if (parameter.name == "sy_control") return pointer({Memory::Of::control});
        if (parameter.name == "sy_sums") return pointer({Memory::Of::sums});
        if (parameter.name == "sy_workspace") {
            form_.workspaces.push_back(kernel_of(stage).workspace);
            return pointer({Memory::Of::workspace, static_cast<std::int32_t>(form_.workspaces.size()) - 1});
        }
        if (parameter.name == "sy_own") return own_of(stage, parameter);
        if (!planned_.parameters.empty()) {
            const ops::Parameters& known = planned_.parameters[stage];
            const auto found = known.find(parameter.name);
            if (found != known.end()) return given_of(stage, parameter, found->second);
        }
        const kernel::Arguments& arguments = planned_.launch.stages[stage].arguments;
        if (arguments.tensors.contains(parameter.name)) return tensor_of(stage, parameter);
        const auto scalar = arguments.scalars.find(parameter.name);
        if (scalar == arguments.scalars.end())
            return unknown(stage, parameter, "is nothing that its program has");
        return number_of(stage, parameter, scalar->second);
    }

    /// What the operator says of it.
    Result<Argument> given_of(std::size_t stage, const CompiledParameter& parameter,
                              const ops::Parameter& of) {
        using Of = ops::Parameter::Of;
        switch (of.of) {
            case Of::operand: return operand_of(stage, parameter, of);
            case Of::scratch:
                return pointer(
                    {Memory::Of::fixed, 0,
                     static_cast<std::int64_t>(scratch_at_ + scratch_.places.find(of.name)->second.offset)});
            case Of::tensor: return pointer({Memory::Of::tensor, number_of_tensor(of.name)});
            case Of::table: return pointer({Memory::Of::table_of, of.stage});
            case Of::constant: return number_of(stage, parameter, of.value);
            case Of::rank: return number_of(stage, parameter, std::int64_t{rank_});
            case Of::stride: break;
        }
        const plan::Tensor& tensor = schedule().tensors[at(number_of_tensor(of.name))];
        const std::uint64_t apart = heaps_bytes_ / static_cast<std::uint64_t>(std::max(bundle_.ranks(), 1));
        return number_of(stage, parameter, static_cast<std::int64_t>(apart / plan::size_of(tensor.dtype)));
    }

    /// Of one of the plan.
    [[nodiscard]] std::int32_t number_of_tensor(const std::string& name) const {
        const auto found = std::ranges::find(schedule().tensors, name, &plan::Tensor::name);
        return static_cast<std::int32_t>(found - schedule().tensors.begin());
    }

    Result<Argument> operand_of(std::size_t stage, const CompiledParameter& parameter,
                                const ops::Parameter& of) {
        const auto operand = std::ranges::find(operands_, of.name, &runtime::Operand::name);
        const auto index = static_cast<std::size_t>(operand - operands_.begin());
        form_.alignment[index] = 16;
        const Memory at{Memory::Of::operand, static_cast<std::int32_t>(index)};
        if (!parameter.kind.starts_with("tensordesc")) return pointer(at);
        // A descriptor may have all rows of a matrix for each expert in one axis.
        std::vector<std::int64_t> shape = of.shape;
        while (shape.size() > std::max<std::size_t>(parameter.block.size(), 1)) {
            shape[1] *= shape[0];
            shape.erase(shape.begin());
        }
        return descriptor(stage, parameter, {at, shape, row_major(shape)});
    }

    static Argument pointer(Memory at) { return runtime::PointerArgument{at}; }

    Result<Argument> number_of(std::size_t stage, const CompiledParameter& parameter,
                               const kernel::Scalar& scalar) const {
        const std::string& kind = parameter.kind;
        const auto* whole = std::get_if<std::int64_t>(&scalar);
        const auto* flag = std::get_if<bool>(&scalar);
        const auto* fraction = std::get_if<double>(&scalar);
        if (whole != nullptr || flag != nullptr) {
            const std::int64_t value = whole != nullptr ? *whole : static_cast<std::int64_t>(*flag);
            for (const auto& [width, bytes] :
                 {std::pair{"1", 1}, {"8", 1}, {"16", 2}, {"32", 4}, {"64", 8}}) {
                if (kind == std::string("i") + width || kind == std::string("u") + width) {
                    const bool fits = bytes == 8 || (value >= -(std::int64_t{1} << (8 * bytes - 1)) &&
                                                     value < (std::int64_t{1} << (8 * bytes)));
                    if (!fits) return unknown(stage, parameter, "is too small for its number");
                    return number(value, static_cast<std::uint8_t>(bytes));
                }
            }
        }
        if (whole != nullptr || fraction != nullptr) {
            const double value = fraction != nullptr ? *fraction : static_cast<double>(*whole);
            if (kind == "fp32" || kind == "f32") return number(static_cast<float>(value), 4);
            if (kind == "fp64" || kind == "f64") return number(value, 8);
        }
        return unknown(stage, parameter, "is no number of its kind");
    }

    /// What a stage sees of a tensor: its place in the heap, or the call's own.
    Result<Seen> seen(std::size_t stage, const CompiledParameter& parameter) {
        const emit::KernelLaunch& launch = planned_.launch.stages[stage];
        const kernel::TensorArgument& given = launch.arguments.tensors.at(parameter.name);
        const auto bound = launch.bindings.find(parameter.name);
        if (bound != launch.bindings.end()) return in_heap(bound->second, given);
        const auto named = planned_.names[stage].find(parameter.name);
        const std::string& name = named == planned_.names[stage].end() ? parameter.name : named->second;
        const auto operand = std::ranges::find(operands_, name, &runtime::Operand::name);
        if (operand == operands_.end()) return unknown(stage, parameter, "is no tensor of a call");
        const auto index = static_cast<std::size_t>(operand - operands_.begin());
        Seen made{{Memory::Of::operand, static_cast<std::int32_t>(index)},
                  given.shape,
                  given.strides.empty() ? row_major(given.shape) : given.strides};
        form_.strides[index] = made.strides;
        const auto& multiples = kernel_of(stage).multiples_of_16;
        if (parameter.kind.starts_with("tensordesc") ||
            std::ranges::find(multiples, parameter.name) != multiples.end())
            form_.alignment[index] = 16;
        return made;
    }

    [[nodiscard]] Seen in_heap(const std::string& tensor, const kernel::TensorArgument& given) const {
        const std::int32_t index = number_of_tensor(tensor);
        const std::vector<std::int32_t> by_row = fuse::tensors_by_row(schedule());
        // Of a tensor with groups a kernel sees the rows.
        const plan::Tensor& held = schedule().tensors[at(index)];
        const std::vector<std::int64_t> shape = held.ragged ? held.memory_shape() : given.shape;
        Seen made{{Memory::Of::tensor, index}, shape, row_major(shape)};
        if (std::ranges::find(by_row, index) != by_row.end()) {  // rows of all ranks' heaps
            const std::uint64_t row =
                static_cast<std::uint64_t>(made.strides.front()) * plan::size_of(given.dtype);
            made.at = {Memory::Of::heaps};
            made.shape.front() = static_cast<std::int64_t>(heaps_bytes_ / std::max<std::uint64_t>(row, 1));
        }
        return made;
    }

    Result<Argument> tensor_of(std::size_t stage, const CompiledParameter& parameter) {
        SYNCOPATE_TAKE(const Seen found, seen(stage, parameter));
        if (!parameter.kind.starts_with("tensordesc")) return pointer(found.at);
        return descriptor(stage, parameter, found);
    }

    Result<Argument> descriptor(std::size_t stage, const CompiledParameter& parameter, const Seen& of) const {
        if (parameter.block.size() != of.shape.size() || parameter.element_bytes == 0)
            return unknown(stage, parameter, "is a descriptor without its block");
        runtime::DescriptorArgument made{.at = of.at, .map_alone = parameter.map_alone};
        made.map = {.shape = of.shape,
                    .strides = of.strides,
                    .block = parameter.block,
                    .element_bytes = parameter.element_bytes,
                    .element_type = parameter.element_type,
                    .swizzle = parameter.swizzle,
                    .pad_with_nan = parameter.pad_with_nan};
        // A descriptor cannot be empty: of what a rank has none of, it is given what it does not read.
        for (std::int64_t& extent : made.map.shape) extent = std::max<std::int64_t>(extent, 1);
        return Argument(std::move(made));
    }

    Result<Argument> own_of(std::size_t stage, const CompiledParameter& parameter) {
        if (!schedule().loads())
            return unknown(stage, parameter, "reads what its rank has, and no tile does");
        if (!parameter.kind.starts_with("tensordesc")) return Argument(runtime::OwnDistanceArgument{});
        const plan::Tensor& tensor = schedule().tensors[at(schedule().loads()->tensor)];
        return descriptor(stage, parameter, {{Memory::Of::own}, tensor.shape, row_major(tensor.shape)});
    }

    const Bundle& bundle_;
    const Planned& planned_;
    const std::vector<runtime::Operand>& operands_;
    std::uint64_t heaps_bytes_;
    Scratch scratch_;
    std::uint64_t scratch_at_;
    std::int32_t rank_ = 0;
    runtime::Form form_;
};

}  // namespace

Result<runtime::Form> form_of(const Bundle& bundle, const Planned& planned, std::int32_t rank,
                              const std::vector<runtime::Operand>& operands, std::uint64_t heaps_bytes,
                              std::uint64_t scratch) {
    return FormMaker(bundle, planned, operands, heaps_bytes, scratch).make(rank);
}

}  // namespace syncopate::bundle
