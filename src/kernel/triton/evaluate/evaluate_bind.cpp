// What the parameters are when a program starts: the numbers, tensors and descriptors that the arguments
// give, checked to fit, or their default values.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernel/triton/analyse/item_name.hpp"
#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/evaluate/operators.hpp"
#include "syncopate/at.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::kernel::triton {
namespace {

/// Whether a name that begins with `start` is among the keys.
template <typename Map>
bool any_begins(const Map& map, const std::string& start) {
    const auto found = map.lower_bound(start);
    return found != map.end() && found->first.starts_with(start);
}

/// Of a whole number that a launch gives: 1 is a constant, and others take 32 or 64 bits.
IntegerType type_of_argument(std::int64_t number, const Parameter& declared) {
    if (declared.constant) return IntegerType::python;
    if (!declared.type.empty()) return integer_type(declared.type);
    if (number == 1) return IntegerType::python;
    return number >= INT32_MIN && number <= INT32_MAX ? IntegerType::int32 : IntegerType::int64;
}

/// Of a real number that a launch gives: fp32, unless annotated otherwise.
Value real_argument(double number, const Parameter& declared) {
    if (!declared.constant) return real_value(declared.narrow ? Interval{NAN, NAN} : as_fp32(number));
    Value made;
    made.kind = ValueKind::real;
    made.real = number;
    return made;
}

/// Whether an address does not tell which element it is: some stride does not step over the axes of smaller
/// ones. Axes that are expanded do not count: each of their elements is the same one.
bool is_interleaved(const TensorView& view) {
    Wide within = 0;  // from the first to the last element of the smaller axes
    for (auto axis = view.by_stride.rbegin(); axis != view.by_stride.rend(); ++axis) {
        const auto d = static_cast<std::size_t>(*axis);
        if (view.shape[d] <= 1 || view.strides[d] == 0) continue;
        if (view.strides[d] <= within) return true;
        within += static_cast<Wide>(view.shape[d] - 1) * view.strides[d];
    }
    return false;
}

/// The least and the largest whole number of a type, as far as 64 signed bits hold them; nothing for others.
std::optional<std::pair<std::int64_t, std::int64_t>> integer_range(plan::DType dtype) {
    const std::string_view name = plan::name_of(dtype);
    const bool is_signed = name.starts_with("int");
    if (!is_signed && !name.starts_with("uint")) return std::nullopt;
    const std::size_t bits = 8 * plan::size_of(dtype);
    const std::int64_t most = bits == 64  ? INT64_MAX
                              : is_signed ? (std::int64_t{1} << (bits - 1)) - 1
                                          : (std::int64_t{1} << bits) - 1;
    return std::pair(is_signed ? -most - 1 : std::int64_t{0}, most);
}

}  // namespace

Error Evaluator::unknown_parameter(const std::string& name) const {
    std::vector<std::string> names;
    std::string list;
    for (const Parameter& parameter : kernel_.parameters) {
        names.push_back(parameter.name);
        list += (list.empty() ? "" : ", ") + parameter.name;
    }
    return module_.error(kernel_.name_range, "kernel `" + kernel_.name + "` has no parameter `" + name + "`" +
                                                 did_you_mean(name, names) + "; it has " +
                                                 (list.empty() ? "none" : list));
}

/// What must hold of a tensor whose elements a launch gives.
Status Evaluator::check_values(const std::string& name, const TensorArgument& tensor,
                               const SourceRange& where) const {
    const std::string type(plan::name_of(tensor.dtype));
    const auto range = integer_range(tensor.dtype);
    if (!range)
        return module_.error(where, "the values of `" + name + "` are given, but it is of " + type +
                                        ": only those of whole numbers can be, such as int32");
    std::int64_t size = 1;
    for (const std::int64_t extent : tensor.shape) size = wrap_multiply(size, extent);
    if (size != static_cast<std::int64_t>(tensor.values.size()))
        return module_.error(where, "`" + name + "` has " + std::to_string(size) + " elements, but " +
                                        std::to_string(tensor.values.size()) +
                                        " values are given: give one for each, in row-major order");
    for (const std::int64_t value : tensor.values) {
        if (value < range->first || value > range->second)
            return module_.error(where, "the value " + std::to_string(value) + " of `" + name +
                                            "` does not fit " + type + ": give its dtype with --tensor");
    }
    return Done{};
}

/// Whether the launch might give the elements of a tensor, and does not: integers that are only loaded.
bool Evaluator::may_have_values(std::int32_t memory) const {
    const auto m = static_cast<std::size_t>(memory);
    if (!param_read[m] || param_written[m] || table_of(memory) != nullptr) return false;
    const auto given = arguments_.tensors.find(name_of(memory));
    return given == arguments_.tensors.end() || integer_range(given->second.dtype).has_value();
}

/// What must hold of any tensor that a launch gives.
Status Evaluator::check_tensor(const std::string& name, const TensorArgument& tensor,
                               const SourceRange& where) const {
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
            where,
            "tensor `" + name + "` spans more than 2^40 elements: give the shape and strides of a launch");
    }
    if (std::any_of(tensor.block.begin(), tensor.block.end(),
                    [](std::int64_t x) { return x > (std::int64_t{1} << 24); })) {
        return module_.error(where, "the block of descriptor `" + name +
                                        "` is larger than any shared memory: give a block of at "
                                        "most 2^24 elements an axis");
    }
    if (!tensor.values.empty()) {
        SYNCOPATE_TRY(check_values(name, tensor, where));
    }
    const auto negative = [](std::int64_t x) { return x < 0; };
    if (std::any_of(tensor.shape.begin(), tensor.shape.end(), negative) ||
        std::any_of(tensor.strides.begin(), tensor.strides.end(), negative)) {
        return module_.error(
            where, "tensor `" + name +
                       "` has a negative extent or stride: give those of the memory that it lies in");
    }
    if (tensor.block.empty() && is_interleaved(view))
        return module_.error(where, "elements of `" + name +
                                        "` share an address, or rows lie between each other's elements: pass "
                                        "a tensor each of whose strides steps over all that lies within");
    if (std::any_of(tensor.block.begin(), tensor.block.end(), [](std::int64_t x) { return x < 1; })) {
        return module_.error(where, "the block of descriptor `" + name +
                                        "` has an extent below 1: give at least 1 for each axis");
    }
    return Done{};
}

/// Whether the kernel assigns to a parameter, as where it makes a descriptor of what may be one already.
bool Evaluator::is_replaced(std::int32_t parameter) const {
    return std::ranges::any_of(flattened(kernel_.body), [&](const Stmt* s) {
        return std::ranges::any_of(flattened(s->target), [&](const Expr* e) {
            return e->kind == ExprKind::name && e->slot == parameter;
        });
    });
}

/// A tensor, as the parameter or the item of one that `name` is.
Result<Value> Evaluator::given_tensor(const std::string& name, const TensorArgument& tensor,
                                      std::int32_t parameter, std::int32_t memory) {
    const Parameter& declared = kernel_.parameters[at(parameter)];
    const auto m = static_cast<std::size_t>(memory);
    tensors[m] = TensorView(tensor);
    tables_[m] = tensor.values.empty() ? nullptr : &tensor.values;
    Value value;
    if (tensor.block.empty() && declared.descriptor && !is_replaced(parameter)) {
        return module_.error(declared.where,
                             "`" + name + "` is a tensor descriptor: give its block too, as in --tensor " +
                                 name + "=512x256:bf16@128x64");
    }
    if (tensor.block.empty()) {
        Block* block = arena_.make<Block>();
        block->param = memory;
        value.kind = ValueKind::pointer;
        value.block = block;
        param_pointer[m] = true;
        return value;
    }
    Descriptor* descriptor = arena_.make<Descriptor>();
    descriptor->param = memory;
    descriptor->rank = static_cast<std::int32_t>(tensor.shape.size());
    descriptor->host = true;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
        descriptor->shape[d] = tensors[m].shape[d];
        descriptor->strides[d] = tensors[m].strides[d];
        descriptor->block[d] = tensor.block[d];
    }
    value.kind = ValueKind::descriptor;
    value.descriptor = descriptor;
    param_descriptor[m] = true;
    return value;
}

/// What the launch gives as `name`, a parameter or an item of one; `undefined` where it gives nothing.
Result<Value> Evaluator::given(const std::string& name, std::int32_t parameter) {
    const Parameter& declared = kernel_.parameters[at(parameter)];
    const auto scalar = arguments_.scalars.find(name);
    const auto tensor = arguments_.tensors.find(name);
    const bool is_scalar = scalar != arguments_.scalars.end(), is_tensor = tensor != arguments_.tensors.end();
    const bool is_item = name != declared.name;
    const bool has_items =
        any_begins(arguments_.scalars, name + "[") || any_begins(arguments_.tensors, name + "[");
    if (is_scalar && is_tensor) {
        return module_.error(declared.where, "parameter `" + name +
                                                 "` is given both a value and a tensor: leave one of --args "
                                                 "and --tensor out");
    }
    if ((is_scalar || is_tensor) && has_items) {
        return module_.error(
            declared.where,
            "parameter `" + name + "` is given both as one and by its items: " + "leave one out");
    }
    if (has_items) return given_items(name, parameter);
    if (is_tensor) {
        std::int32_t memory = parameter;
        if (is_item) {
            memory = static_cast<std::int32_t>(memory_names.size());
            memory_names.push_back(name);
            for (std::vector<bool>* list : {&read_outside, &param_read, &param_written, &param_descriptor,
                                            &param_pointer, &override_read_, &override_write_})
                list->push_back(false);
            param_read_taint.push_back(0);
            param_store_taint.push_back(0);
            tensors.emplace_back();
            tables_.push_back(nullptr);
            tuple_items.push_back({name, parameter, memory});
        }
        return given_tensor(name, tensor->second, parameter, memory);
    }
    Value value;
    if (!is_scalar) return value;
    if (is_item) tuple_items.push_back({name, parameter, -1});
    const Scalar& s = scalar->second;
    if (const auto* b = std::get_if<bool>(&s))
        value.kind = ValueKind::boolean, value.boolean = *b;
    else if (const auto* i = std::get_if<std::int64_t>(&s))
        value = make_integer(*i, false, 0, type_of_argument(*i, declared));
    else if (const auto* r = std::get_if<double>(&s))
        value = real_argument(*r, declared);
    else if (const auto* text = std::get_if<std::string>(&s))
        value.kind = ValueKind::text, value.text = text;
    else
        value.kind = ValueKind::none;
    value.runtime = !declared.constant;
    const IntegerRange limits = limits_of(value.type);
    if (value.kind == ValueKind::integer && (value.integer < limits.least || value.integer > limits.most))
        return module_.error(declared.where, "`" + name + "` is " + std::to_string(value.integer) +
                                                 ", which does not fit " + std::string(text_of(value.type)) +
                                                 " as it is annotated: annotate it as tl.int64");
    return value;
}

/// A tuple of what the launch gives as `name[0]`, `name[1]`, ….
Result<Value> Evaluator::given_items(const std::string& name, std::int32_t parameter) {
    std::vector<Value> values;
    for (;;) {
        Result<Value> value = given(item_of(name, static_cast<std::int64_t>(values.size())), parameter);
        if (!value) return value;
        if (value->kind == ValueKind::undefined) break;
        values.push_back(*value);
    }
    std::size_t most = 0;
    const std::size_t depth = item_name(name)->path.size();
    const auto look = [&](const auto& map) {
        for (auto entry = map.lower_bound(name + "["); entry != map.end(); ++entry) {
            if (!entry->first.starts_with(name + "[")) break;
            most = std::max(most, static_cast<std::size_t>(item_name(entry->first)->path[depth]) + 1);
        }
    };
    look(arguments_.scalars);
    look(arguments_.tensors);
    if (most > values.size()) {
        const std::string absent = item_of(name, static_cast<std::int64_t>(values.size()));
        return module_.error(kernel_.parameters[at(parameter)].where,
                             "`" + name + "` is given an item " + std::to_string(most - 1) + " but no `" +
                                 absent + "`: give --args " + absent + "=… or --tensor " + absent + "=…");
    }
    return make_tuple(values);
}

Status Evaluator::bind() {
    const auto parameter_of = [&](const std::string& name) {
        const auto item = item_name(name);
        const std::int32_t slot = item ? kernel_.slot(item->parameter) : -1;
        return static_cast<std::size_t>(slot) < kernel_.parameters.size() ? slot : -1;
    };
    for (const auto& [name, value] : arguments_.scalars) {
        if (parameter_of(name) < 0) return unknown_parameter(name);
    }
    for (const auto& [name, tensor] : arguments_.tensors) {
        const std::int32_t parameter = parameter_of(name);
        if (parameter < 0) return unknown_parameter(name);
        const Status status = check_tensor(name, tensor, kernel_.parameters[at(parameter)].where);
        if (!status) return status;
    }
    Frame frame;
    frame.function = &kernel_;
    frame.slots = stack_.data();
    frame.is_kernel = true;
    for (std::size_t p = 0; p < kernel_.parameters.size(); ++p) {
        const Parameter& parameter = kernel_.parameters[p];
        const auto index = static_cast<std::int32_t>(p);
        SYNCOPATE_TAKE(const Value found_value, given(parameter.name, index));
        Value value = found_value;
        if (value.kind != ValueKind::undefined) {
            // Given.
        } else if (parameter.fallback != nullptr) {
            value = evaluate(*parameter.fallback, frame);
            if (value.kind == ValueKind::real) value = real_argument(value.real, parameter);
            value.runtime = !parameter.constant;
            if (value.kind == ValueKind::integer) value.type = type_of_argument(value.integer, parameter);
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
    for (const Directive& directive : directives_) {
        stated_.push_back(-1);
        const bool reads = directive.kind == DirectiveKind::reads;
        if (!reads && directive.kind != DirectiveKind::writes) continue;
        const std::string name = kernel_.parameters[at(directive.param)].name + directive.item;
        const auto place = std::find(memory_names.begin(), memory_names.end(), name);
        if (place == memory_names.end()) {
            return module_.error(directive.where, "the launch gives no tensor `" + name +
                                                      "`: state footprints of those that it gives");
        }
        const auto memory = place - memory_names.begin();
        stated_.back() = static_cast<std::int32_t>(memory);
        (reads ? override_read_ : override_write_)[at(memory)] = true;
    }
    bound_mark_ = arena_.mark();
    guesses_.resize(static_cast<std::size_t>(module_.num_loops));
    loops.resize(static_cast<std::size_t>(module_.num_loops));
    return Done{};
}

}  // namespace syncopate::kernel::triton
