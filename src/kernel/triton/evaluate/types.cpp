// What a kernel asks values for: their type, their shape, and what follows from these. Of data nothing else is
// known; a value carries both from where it is loaded, as far as the operations in between say what they make.
//
//      x.dtype                 fp16
//      x_ptr.dtype             *fp16       .element_ty is fp16
//      x.type                  <8,16>fp16  .element_ty and .scalar are fp16, .shape is (8, 16)
//
// A type is a text in this notation; `?` stands for a shape that is not known.
#include "kernel/triton/evaluate/types.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/evaluate/operators.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {
namespace {

Element element_of_integer(IntegerType type) {
    if (type == IntegerType::python) return kNoElement;
    return element_of(type == IntegerType::int1 ? plan::DType::boolean : *plan::dtype_from(text_of(type)));
}

bool is_floating(Element element) {
    return element != kNoElement && integer_type(name_of(element)) == IntegerType::python;
}

/// Bits of an element type by its name; nullopt: it is none.
std::optional<std::int64_t> bits_of(std::string_view type) {
    if (!is_dtype(type)) return std::nullopt;
    const std::size_t first = type.find_first_of("0123456789");
    std::int64_t bits = 0;
    for (std::size_t i = first; i < type.size() && type[i] >= '0' && type[i] <= '9'; ++i)
        bits = 10 * bits + (type[i] - '0');
    return bits;
}

/// Where the extents of a block's type end, after the `>`; 0: it is no block's.
std::size_t end_of_shape(std::string_view type) { return type.starts_with('<') ? type.find('>') + 1 : 0; }

bool is_type(std::string_view text) {
    text.remove_prefix(end_of_shape(text));
    return text.starts_with('*') || is_dtype(text);
}

/// Triton's questions `type.is_…()`; nullopt: it is none of them.
std::optional<bool> answer(std::string_view question, std::string_view type) {
    const std::size_t shape = end_of_shape(type);
    if (question == "is_block") return shape > 0;
    if (question == "is_ptr") return shape == 0 && type.starts_with('*');
    const std::string name = dtype_name(type);
    const IntegerType integer = integer_type(name);
    const bool is_integer = integer != IntegerType::python;
    if (question == "is_int") return is_integer;
    if (question == "is_int_signed") return is_integer && !is_unsigned(integer);
    if (question == "is_int_unsigned") return is_integer && is_unsigned(integer);
    if (question == "is_bool") return integer == IntegerType::int1;
    if (question == "is_fp8") return name.starts_with("fp8");
    if (question == "is_floating") return !is_integer && (name.starts_with("fp") || name.starts_with("bf"));
    if (question == "is_standard_floating")
        return name == "fp16" || name == "bf16" || name == "fp32" || name == "fp64";
    if (question == "is_void") return name == "void";
    if (question == "is_const") return false;
    if (!question.starts_with("is_")) return std::nullopt;
    question.remove_prefix(3);
    static const std::map<std::string_view, std::string_view> fp8{{"fp8e4nv", "fp8e4m3"},
                                                                  {"fp8e5", "fp8e5m2"},
                                                                  {"fp8e4b8", "fp8e4m3fnuz"},
                                                                  {"fp8e5b16", "fp8e5m2fnuz"},
                                                                  {"fp8e4b15", "fp8e4b15"}};
    if (const auto known = fp8.find(question); known != fp8.end()) return name == known->second;
    if (!is_dtype(question)) return std::nullopt;
    return name == question;
}

}  // namespace

const std::string& name_of(Element element) {
    static const std::array<std::string, plan::kNumDTypes> names = [] {
        std::array<std::string, plan::kNumDTypes> all;
        for (std::size_t i = 0; i < all.size(); ++i)
            all[i] = dtype_name(plan::name_of(static_cast<plan::DType>(i)));
        return all;
    }();
    return names[at(*dtype_of(element))];
}

const Element* element_named(std::string_view name) {
    static const std::map<std::string, Element, std::less<>> all = [] {
        std::map<std::string, Element, std::less<>> made;
        for (std::size_t i = 0; i < plan::kNumDTypes; ++i) {
            const Element element = element_of(static_cast<plan::DType>(i));
            made[name_of(element)] = element;
        }
        return made;
    }();
    const auto found = all.find(dtype_name(name));
    return found == all.end() ? nullptr : &found->second;
}

Element Evaluator::element_of_value(const Value& value) {
    const bool is_whole = has_type(value) && type_of(value) != IntegerType::python;
    return is_whole ? element_of_integer(type_of(value)) : value.element;
}

Element Evaluator::element_of_tensor(std::int32_t memory) const {
    const auto tensor = arguments_.tensors.find(name_of(memory));
    return tensor == arguments_.tensors.end() ? kNoElement : element_of(tensor->second.dtype);
}

/// Notes a parameter `e` that is given as what counts nothing, as 24.0 or None, and meets a whole number that no program
/// may know.
void Evaluator::note_whole(const Expr& e, const Value& other) {
    if (e.kind != ExprKind::name || e.slot < 0 || !has_type(other)) return;
    if (type_of(other) != IntegerType::python) note_count(e.text);
}

/// The same of all parameters that make up an expression that has to be a whole number: a bound, an extent, an offset.
/// What is compared, and what a condition tests, may be anything.
void Evaluator::note_counts(const Expr& e) {
    switch (e.kind) {
        case ExprKind::name:
            if (e.slot >= 0) note_count(e.text);
            return;
        case ExprKind::conditional:
            note_counts(*e.kids[0]);
            note_counts(*e.kids[2]);
            return;
        case ExprKind::call:
            if (e.builtin != Builtin::minimum && e.builtin != Builtin::maximum) return;
            break;
        case ExprKind::tuple:
        case ExprKind::unary:
        case ExprKind::binary:
        case ExprKind::splat: break;
        default: return;
    }
    for (const Expr* kid : e.kids) note_counts(*kid);
}

void Evaluator::note_count(const std::string& name) {
    const auto given = arguments_.scalars.find(name);
    if (given == arguments_.scalars.end()) return;
    const auto* real = std::get_if<double>(&given->second);
    const bool other = std::holds_alternative<std::string>(given->second) ||
                       std::holds_alternative<NoneValue>(given->second);
    if (other || (real != nullptr && *real == std::floor(*real))) counted_.insert(name);
}

/// The parameters that are given as what counts nothing where whole numbers are computed, as a hint: "; `M` is given
/// as …".
std::string Evaluator::hint_of_reals() const {
    std::string hint;
    for (const Parameter& parameter : kernel_.parameters) {
        const auto given = arguments_.scalars.find(parameter.name);
        if (given == arguments_.scalars.end()) continue;
        const auto* real = std::get_if<double>(&given->second);
        if (real == nullptr && counted_.contains(parameter.name)) {
            const auto* text = std::get_if<std::string>(&given->second);
            hint += "; `" + parameter.name + "` is given as " +
                    (text == nullptr ? "None" : "the text \"" + *text + "\"") +
                    ", where a whole number is needed";
        }
        if (real == nullptr || *real != std::floor(*real) || std::abs(*real) > 1e15) continue;
        if (!parameter.constant && !counted_.contains(parameter.name)) continue;
        const std::string whole = std::to_string(static_cast<std::int64_t>(*real));
        hint += "; `" + parameter.name + "` is given as the real number " + whole + ".0: give --args " +
                parameter.name + "=" + whole + " if it counts something";
    }
    return hint;
}

/// The shape of a value, as far as it is known.
std::optional<Evaluator::Shape> Evaluator::known_shape(const Value& value) const {
    if (value.kind == ValueKind::opaque) {
        if (value.extents == 0) return std::nullopt;
        return shapes_[value.extents - 1];
    }
    const bool has_shape = is_real_or_number(value) || is_block(value) || value.kind == ValueKind::mask ||
                           value.kind == ValueKind::lazy;
    return has_shape ? std::optional(shape_of(value)) : std::nullopt;
}

std::int32_t Evaluator::known_rank(const Value& value) const {
    const std::optional<Shape> shape = known_shape(value);
    return shape ? shape->rank : 0;
}

/// `made`, which is known to have elements of this type and this shape where it does not say so itself.
Value Evaluator::described(Value made, Element element, const std::optional<Shape>& shape) {
    const bool untyped = made.kind == ValueKind::opaque || is_real(made) ||
                         (made.kind == ValueKind::block && made.type == IntegerType::python);
    if (untyped) made.element = element;
    if (made.kind != ValueKind::opaque) return made;
    made.extents = 0;
    if (!shape) return made;
    const auto known = std::ranges::find(shapes_, *shape);
    made.extents = static_cast<std::uint32_t>(known - shapes_.begin()) + 1;
    if (known == shapes_.end()) shapes_.push_back(*shape);
    return made;
}

/// The shape of what is made of two values, element by element.
std::optional<Evaluator::Shape> Evaluator::shape_of_both(const Value& a, const Value& b) const {
    const std::optional<Shape> x = known_shape(a), y = known_shape(b);
    return x && y ? broadcast(*x, *y) : std::nullopt;
}

/// The element type that an operation is done in (semantic.py: computation_type_impl).
Element Evaluator::element_of_both(const Value& a, const Value& b, bool divides) const {
    const Element x = element_of_value(a), y = element_of_value(b);
    const auto is_constant = [](const Value& v, Element element) {
        return element == kNoElement && !v.runtime && is_real_or_number(v);
    };
    const auto widened = [&](Element e) {
        const bool narrow = e == element_of(plan::DType::fp16) || e == element_of(plan::DType::bf16);
        return divides && narrow ? element_of(plan::DType::fp32) : e;
    };
    if (is_constant(a, x) || is_constant(b, y)) {  // a constant of no higher kind takes the other's type
        const Value& constant = is_constant(a, x) ? a : b;
        const Element other = is_constant(a, x) ? y : x;
        return is_floating(other) || is_number(constant) ? widened(other) : kNoElement;
    }
    if (x == kNoElement || y == kNoElement) return kNoElement;
    for (const plan::DType wide : {plan::DType::fp64, plan::DType::fp32, plan::DType::fp16}) {
        if (x == element_of(wide) || y == element_of(wide)) return widened(element_of(wide));
    }
    if (x == y) return widened(x);
    for (const Element one : {x, y}) {
        if (one == element_of(plan::DType::bf16)) return element_of(plan::DType::fp32);
    }
    if (is_floating(x) || is_floating(y)) return kNoElement;
    return element_of_integer(promoted(integer_type(triton::name_of(x)), integer_type(triton::name_of(y))));
}

/// The result of an operator whose value is not known.
Value Evaluator::of_operator(const Value& made, Operator op, const Value& a, const Value& b) {
    const bool untyped = made.kind == ValueKind::block && made.type == IntegerType::python;
    if (made.kind != ValueKind::opaque && !is_real(made) && !untyped) return made;
    if (op == Operator::matmul || op == Operator::power) return made;
    const bool divides = op == Operator::divide || op == Operator::modulo || op == Operator::floor_divide;
    Element element = element_of_both(a, b, divides);
    if (op == Operator::divide && !is_floating(element))
        element = element == kNoElement ? element : element_of(plan::DType::fp32);
    return described(made, element, shape_of_both(a, b));
}

Value Evaluator::type_text(std::string text) {
    Value made;
    made.kind = ValueKind::text;
    made.text = &*type_texts_.insert(std::move(text)).first;
    return made;
}

/// value.dtype, or with its shape value.type; nullopt: it is not known.
std::optional<Value> Evaluator::type_of_value(const Value& value, bool whole) {
    const bool is_constant = !value.runtime && value.type == IntegerType::python && is_real_or_number(value);
    const Value typed = is_constant ? as_variable(value) : value;
    Element element = element_of_value(typed);
    std::int32_t memory = value.kind == ValueKind::lazy ? value.lazy->param : param_of(value);
    const std::string star = memory >= 0 && value.kind != ValueKind::descriptor ? "*" : "";
    if (memory >= 0) element = element_of_tensor(memory);
    if (element == kNoElement) return std::nullopt;
    const std::string name = star + triton::name_of(element);
    if (!whole) return type_text(name);
    const std::optional<Shape> shape = known_shape(value);
    if (!shape) return type_text("<?>" + name);
    if (shape->rank == 0) return type_text(name);
    std::string extents;
    for (std::int32_t j = 0; j < shape->rank; ++j)
        extents += (j > 0 ? "," : "") + std::to_string(shape->extents[at(j)]);
    return type_text("<" + extents + ">" + name);
}

Value Evaluator::tuple_of(std::span<const std::int64_t> items, IntegerType type) {
    std::vector<Value> values;
    for (const std::int64_t item : items) values.push_back(make_integer(item, false, 0, type));
    return make_tuple(values);
}

/// type.element_ty and the like; nullopt: it is none of these.
std::optional<Value> Evaluator::attribute_of_type(const Expr& e, const std::string& type) {
    if (!is_type(type)) return std::nullopt;
    const std::size_t shape = end_of_shape(type);
    if (e.text == "shape" && shape > 0 && type[1] != '?') {
        std::vector<std::int64_t> extents(1, 0);
        for (const char c : std::string_view(type).substr(1, shape - 2)) {
            if (c == ',')
                extents.push_back(0);
            else
                extents.back() = 10 * extents.back() + (c - '0');
        }
        return tuple_of(extents, IntegerType::python);
    }
    if (e.text == "scalar" || e.text == "dtype" || e.text == "name") return type_text(type.substr(shape));
    const std::string element = type.substr(type[shape] == '*' ? shape + 1 : shape);
    if (e.text == "element_ty") return type_text(shape > 0 ? type.substr(shape) : element);
    const std::optional<std::int64_t> bits = bits_of(element);
    if (bits && (e.text == "primitive_bitwidth" || e.text == "int_bitwidth"))
        return make_integer(*bits, false, 0);
    if (bits && e.text == "itemsize") return make_integer(std::max<std::int64_t>(1, *bits / 8), false, 0);
    return std::nullopt;
}

/// type.is_floating() and the like; nullopt: it is none of these.
std::optional<Value> Evaluator::asked_of_type(const Expr& e, const std::string& type) {
    if (!is_type(type) || e.kids.size() != 1) return std::nullopt;
    const std::optional<bool> known = answer(e.text, type);
    if (!known) return std::nullopt;
    if (end_of_shape(type) > 0 && type[1] == '?') return opaque(e, 0);
    Value made;
    made.kind = ValueKind::boolean;
    made.boolean = *known;
    return made;
}

/// Whether two texts name one type; nullopt: one of them is no type, or not all of it is known.
std::optional<bool> same_type(std::string_view a, std::string_view b) {
    if (!is_type(a) || !is_type(b)) return a == b;
    const auto split = [](std::string_view type) {
        const std::size_t shape = end_of_shape(type);
        const bool pointer = type.substr(shape).starts_with('*');
        return std::pair(type.substr(0, shape),
                         (pointer ? "*" : "") + dtype_name(type.substr(shape + (pointer ? 1 : 0))));
    };
    const auto [shape_a, element_a] = split(a);
    const auto [shape_b, element_b] = split(b);
    if (element_a != element_b) return false;
    if (shape_a == "<?>" || shape_b == "<?>") return std::nullopt;
    return shape_a == shape_b;
}

/// x.dtype, x.type, x.shape and the like; nullopt: it is none of these.
std::optional<Value> Evaluator::type_attribute(const Expr& e, const Value& object) {
    if (object.kind == ValueKind::text) {
        auto made = attribute_of_type(e, *object.text);
        if (made) made->taint = object.taint;
        return made;
    }
    const bool asks_type =
        e.text == "dtype" || e.text == "element_ty" || e.text == "type" || e.text == "scalar";
    if (asks_type) {
        auto made = type_of_value(object, e.text == "type");
        if (!made) return opaque(object.kind == ValueKind::opaque ? *object.why : e, object.taint);
        if (e.text != "element_ty" && e.text != "scalar") return made;
        return attribute_of_type(e, *made->text);
    }
    if (object.kind == ValueKind::descriptor && object.descriptor->known) {
        const auto rank = static_cast<std::size_t>(object.descriptor->rank);
        if (e.text == "shape") return tuple_of({object.descriptor->shape.data(), rank}, IntegerType::int32);
        if (e.text == "strides")
            return tuple_of({object.descriptor->strides.data(), rank}, IntegerType::int64);
        if (e.text == "block_shape")
            return tuple_of({object.descriptor->block.data(), rank}, IntegerType::python);
    }
    if (e.text != "shape" && e.text != "numel") return std::nullopt;
    const std::optional<Shape> shape = known_shape(object);
    if (!shape) return std::nullopt;
    if (e.text == "numel") return make_integer(shape->size(), false, 0);
    return tuple_of({shape->extents.data(), static_cast<std::size_t>(shape->rank)}, IntegerType::python);
}

}  // namespace syncopate::kernel::triton
