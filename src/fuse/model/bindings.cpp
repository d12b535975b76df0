// What a binding says must hold: fuse.hpp declares it.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/bindings.hpp"
#include "syncopate/names.hpp"

namespace syncopate::fuse {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape, plan::DType dtype) {
    std::string text;
    for (const std::int64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
    return text + ":" + std::string(name_of(dtype));
}

bool is_row_major(const kernel::TensorArgument& tensor) {
    if (tensor.strides.empty()) return true;
    if (tensor.strides.size() != tensor.shape.size()) return false;
    std::int64_t stride = 1;
    for (std::size_t axis = tensor.shape.size(); axis-- > 0; stride *= tensor.shape[axis]) {
        if (tensor.shape[axis] != 1 && tensor.strides[axis] != stride) return false;
    }
    return true;
}

std::string names_of(const std::vector<kernel::Param>& params) {
    std::string text;
    for (const kernel::Param& param : params) text += (text.empty() ? "" : ", ") + param.name;
    return text;
}

}  // namespace

Error no_tensor_to_bind(const plan::Plan& plan, const std::string& tensor, const std::string& param) {
    std::string names;
    std::vector<std::string_view> known;
    for (const plan::Tensor& one : plan.tensors) {
        names += (names.empty() ? "" : ", ") + one.name;
        known.push_back(one.name);
    }
    return Error{"the plan has no tensor " + tensor + " to bind " + param + " to" +
                     did_you_mean(tensor, known) + "; it has " + (names.empty() ? "none" : names),
                 {.of_plan = true}};
}

Status check_bindings(const BoundKernel& program) {
    const kernel::Kernel& kernel = program.kernel;
    for (const auto& [name, tensor_name] : program.bindings) {
        const kernel::Param* param = kernel.find_param(name);
        if (param == nullptr) {
            std::vector<std::string_view> known;
            for (const kernel::Param& one : kernel.params) known.push_back(one.name);
            return Error{"kernel " + kernel.name + " has no parameter " + name + " to bind" +
                         did_you_mean(name, known) + "; it has " + names_of(kernel.params)};
        }
        const auto here = [&](std::string message) { return kernel::error_at(*param, std::move(message)); };
        if (param->kind != kernel::ParamKind::pointer && param->kind != kernel::ParamKind::descriptor) {
            return here("parameter " + name + " is not a tensor, so it cannot be bound to " + tensor_name +
                        ": bind a pointer or descriptor parameter");
        }
        const auto index = program.plan.find_tensor(tensor_name);
        if (!index) {
            return no_tensor_to_bind(program.plan, tensor_name, name);
        }
        const plan::Tensor& tensor = program.plan.tensors[*index];
        const auto argument = kernel.arguments.tensors.find(name);
        if (argument == kernel.arguments.tensors.end()) {
            return here("parameter " + name + " is bound to " + tensor_name +
                        " but the kernel was read without its shape: give --tensor " + name + "=" +
                        shape_text(tensor.shape, tensor.dtype));
        }
        if (argument->second.shape != tensor.shape || argument->second.dtype != tensor.dtype) {
            return here("parameter " + name + " is " +
                        shape_text(argument->second.shape, argument->second.dtype) + " but tensor " +
                        tensor_name + " of the plan is " + shape_text(tensor.shape, tensor.dtype) +
                        ": leave --tensor " + name + " out, or make the plan for this shape");
        }
        if (!argument->second.values.empty()) {
            return here("parameter " + name + " is bound to " + tensor_name +
                        ", which the ranks fill, so that its values cannot be given: leave --values " + name +
                        " out, or do not bind it");
        }
        if (!is_row_major(argument->second)) {
            return here("parameter " + name + " is bound to " + tensor_name +
                        ", which lies contiguous in row-major order, so its strides cannot be others: leave "
                        "them out");
        }
    }
    return Done{};
}

}  // namespace syncopate::fuse
