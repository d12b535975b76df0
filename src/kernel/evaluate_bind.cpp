// What the parameters are when a program starts: the numbers, tensors and descriptors that the arguments
// give, checked to fit, or their default values.
#include <algorithm>
#include <string>
#include <utility>

#include "kernel/evaluate.hpp"
#include "plan/did_you_mean.hpp"

namespace syncopate::kernel {

Error Evaluator::unknown_parameter(const std::string& name) const {
    std::vector<std::string> names;
    std::string list;
    for (const Parameter& parameter : kernel_.parameters) {
        names.push_back(parameter.name);
        list += (list.empty() ? "" : ", ") + parameter.name;
    }
    return module_.error(kernel_.name_range, "kernel `" + kernel_.name + "` has no parameter `" + name + "`" +
                                                 plan::did_you_mean(name, names) + "; it has " +
                                                 (list.empty() ? "none" : list));
}

Status Evaluator::bind() {
    for (const auto& [name, value] : arguments_.scalars) {
        if (kernel_.slot(name) < 0 ||
            static_cast<std::size_t>(kernel_.slot(name)) >= kernel_.parameters.size()) {
            return unknown_parameter(name);
        }
    }
    for (const auto& [name, tensor] : arguments_.tensors) {
        const std::int32_t slot = kernel_.slot(name);
        if (slot < 0 || static_cast<std::size_t>(slot) >= kernel_.parameters.size()) {
            return unknown_parameter(name);
        }
        const SourceRange& where = kernel_.parameters[static_cast<std::size_t>(slot)].where;
        if (tensor.shape.empty() || tensor.shape.size() > kRank) {
            return module_.error(where, "tensor `" + name + "` needs 1 to 5 axes, not " +
                                            std::to_string(tensor.shape.size()) + ": give --tensor " + name +
                                            "=512x256:bf16");
        }
        if ((!tensor.strides.empty() && tensor.strides.size() != tensor.shape.size()) ||
            (!tensor.block.empty() && tensor.block.size() != tensor.shape.size())) {
            return module_.error(where, "tensor `" + name +
                                            "` needs one stride and one block size per axis: give --tensor " +
                                            name + "=512x256:bf16:256,1@128x64");
        }
        constexpr std::int64_t kLargest = std::int64_t{1} << 40;
        const TensorView view(tensor);
        Wide last = 0;
        for (std::size_t d = 0; d < view.shape.size(); ++d)
            last += static_cast<Wide>(view.shape[d]) * view.strides[d];
        const auto large = [](std::int64_t x) { return x > kLargest; };
        if (last > kLargest || std::any_of(view.shape.begin(), view.shape.end(), large) ||
            std::any_of(view.strides.begin(), view.strides.end(), large)) {
            return module_.error(
                where, "tensor `" + name +
                           "` spans more than 2^40 elements: give the shape and strides of a launch");
        }
        if (std::any_of(tensor.block.begin(), tensor.block.end(),
                        [](std::int64_t x) { return x > (std::int64_t{1} << 24); })) {
            return module_.error(where, "the block of descriptor `" + name +
                                            "` is larger than any shared memory: give a block of at "
                                            "most 2^24 elements an axis");
        }
        const auto negative = [](std::int64_t x) { return x < 0; };
        if (std::any_of(tensor.shape.begin(), tensor.shape.end(), negative) ||
            std::any_of(tensor.strides.begin(), tensor.strides.end(), negative)) {
            return module_.error(
                where, "tensor `" + name +
                           "` has a negative extent or stride: give those of the memory that it lies in");
        }
        if (std::any_of(tensor.block.begin(), tensor.block.end(), [](std::int64_t x) { return x < 1; })) {
            return module_.error(where, "the block of descriptor `" + name +
                                            "` has an extent below 1: give at least 1 for each axis");
        }
    }
    Frame frame;
    frame.function = &kernel_;
    frame.slots = stack_.data();
    frame.is_kernel = true;
    for (std::size_t p = 0; p < kernel_.parameters.size(); ++p) {
        const Parameter& parameter = kernel_.parameters[p];
        const auto index = static_cast<std::int32_t>(p);
        Value value;
        const auto scalar = arguments_.scalars.find(parameter.name);
        const auto tensor = arguments_.tensors.find(parameter.name);
        const bool given = scalar != arguments_.scalars.end();
        if (given && tensor != arguments_.tensors.end()) {
            return module_.error(parameter.where,
                                 "parameter `" + parameter.name +
                                     "` is given both a value and a tensor: leave one of --args and "
                                     "--tensor out");
        }
        if (tensor != arguments_.tensors.end()) {
            const TensorArgument& t = tensor->second;
            tensors[p] = TensorView(t);
            const auto rank = static_cast<std::int32_t>(t.shape.size());
            if (!t.block.empty() || parameter.descriptor) {
                if (t.block.empty()) {
                    return module_.error(parameter.where, "`" + parameter.name +
                                                              "` is a tensor descriptor: give its block "
                                                              "too, as in --tensor " +
                                                              parameter.name + "=512x256:bf16@128x64");
                }
                Descriptor* descriptor = arena_.make<Descriptor>();
                descriptor->param = index;
                descriptor->rank = rank;
                descriptor->host = true;
                for (std::int32_t d = 0; d < rank; ++d) {
                    descriptor->shape[d] = tensors[p].shape[static_cast<std::size_t>(d)];
                    descriptor->strides[d] = tensors[p].strides[static_cast<std::size_t>(d)];
                    descriptor->block[d] = t.block[static_cast<std::size_t>(d)];
                }
                value.kind = ValueKind::descriptor;
                value.descriptor = descriptor;
                param_descriptor[p] = true;
            } else {
                Block* block = arena_.make<Block>();
                block->param = index;
                value.kind = ValueKind::pointer;
                value.block = block;
                param_pointer[p] = true;
            }
        } else if (given || parameter.fallback != nullptr) {
            if (given) {
                const Scalar& s = scalar->second;
                if (const auto* b = std::get_if<bool>(&s))
                    value.kind = ValueKind::boolean, value.boolean = *b;
                else if (const auto* i = std::get_if<std::int64_t>(&s))
                    value = make_integer(*i, false, 0);
                else if (const auto* r = std::get_if<double>(&s))
                    value.kind = ValueKind::real, value.real = *r;
                else if (const auto* text = std::get_if<std::string>(&s))
                    value.kind = ValueKind::text, value.text = text;
                else
                    value.kind = ValueKind::none;
            } else {
                value = evaluate(*parameter.fallback, frame);
            }
            value.runtime = !parameter.constant;
        } else if (parameter.descriptor) {
            Descriptor* descriptor = arena_.make<Descriptor>();
            descriptor->param = index;
            descriptor->host = true;
            descriptor->known = false;
            value.kind = ValueKind::descriptor;
            value.descriptor = descriptor;
            param_descriptor[p] = true;
        } else if (!parameter.constant && parameter.name.find("ptr") != std::string::npos) {
            Block* block = arena_.make<Block>();
            block->param = index;
            value.kind = ValueKind::pointer;
            value.block = block;
            param_pointer[p] = true;
        } else {
            value.kind = ValueKind::missing;
            value.integer = index;
        }
        bound_.push_back(value);
        if (error_) return *error_;
    }
    bound_mark_ = arena_.mark();
    guesses_.resize(static_cast<std::size_t>(module_.num_loops));
    loops.resize(static_cast<std::size_t>(module_.num_loops));
    return Done{};
}

}  // namespace syncopate::kernel
