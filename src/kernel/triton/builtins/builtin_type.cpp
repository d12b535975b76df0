// The element type and the shape of what a builtin makes of data, of which nothing else is known. What is not
// listed here makes something that has neither.
#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "kernel/triton/builtins/builtin_call.hpp"
#include "kernel/triton/evaluate/operators.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr Element kFp32 = element_of(plan::DType::fp32), kInt32 = element_of(plan::DType::int32);

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
}

/// Functions of one element each that give back its type.
bool is_elementwise(std::string_view name) {
    return is_one_of(name, {"exp",     "exp2", "log",  "log2", "sqrt",   "sqrt_rn", "rsqrt",
                            "sin",     "cos",  "abs",  "erf",  "floor",  "ceil",    "sigmoid",
                            "softmax", "tanh", "flip", "sort", "cumsum", "cumprod"});
}

std::int64_t bits(Element element) {
    return 8 * static_cast<std::int64_t>(plan::size_of(*dtype_of(element)));
}

}  // namespace

/// The element type that an argument names; none where it names none.
Element BuiltinCall::element_argument(std::size_t index, std::string_view name) {
    const Value type = argument(index, name);
    const Element* known = type.kind == ValueKind::text ? element_named(*type.text) : nullptr;
    return known == nullptr ? kNoElement : *known;
}

/// Of what a load, or an atomic operation, gives back.
Value BuiltinCall::described_access(const Value& made) {
    const Value pointer = argument(0, "pointer");
    const std::int32_t memory =
        pointer.kind == ValueKind::lazy ? pointer.lazy->param : Evaluator::param_of(pointer);
    if (memory < 0) return made;
    std::optional<Shape> shape = ev_.known_shape(pointer);
    if (pointer.kind == ValueKind::block_pointer) {
        shape = Shape{.rank = pointer.descriptor->rank};
        shape->extents = pointer.descriptor->block;
    }
    return ev_.described(made, ev_.element_of_tensor(memory), shape);
}

/// tl.dot(a, b, acc): fp32, or what is asked for.
Value BuiltinCall::described_dot(const Value& made) {
    if (arguments_.size() < 2) return made;
    const Value acc = argument(2, "acc");
    const Value asked = argument(6, "out_dtype");
    Element element = asked.kind == ValueKind::undefined ? kFp32 : element_argument(6, "out_dtype");
    if (Evaluator::element_of_value(acc) != kNoElement) element = Evaluator::element_of_value(acc);
    const Element a = Evaluator::element_of_value(arguments_[0]);
    if (a == kNoElement || a == element_of(plan::DType::fp64)) element = kNoElement;
    if (a == element_of(plan::DType::int8) || a == element_of(plan::DType::uint8)) element = kInt32;
    const auto x = ev_.known_shape(arguments_[0]), y = ev_.known_shape(arguments_[1]);
    std::optional<Shape> shape;
    if (x && y && x->rank == y->rank && x->rank >= 2) {
        shape = x;
        shape->extents[static_cast<std::size_t>(x->rank) - 1] =
            y->extents[static_cast<std::size_t>(x->rank) - 1];
    }
    return ev_.described(made, element, shape);
}

/// sum, max, min and their like along an axis, or of all.
Value BuiltinCall::described_reduction(const Value& made) {
    const Value& x = arguments_[0];
    Element element = Evaluator::element_of_value(x);
    const bool sums = e_.text == "sum", picks = e_.text == "max" || e_.text == "min";
    if (e_.text.starts_with("arg")) {
        element = kInt32;
    } else if (sums && element_argument(3, "dtype") != kNoElement) {
        element = element_argument(3, "dtype");
    } else if (element != kNoElement && bits(element) < 32) {
        const bool whole = integer_type(name_of(element)) != IntegerType::python;
        const bool is_signed = name_of(element).starts_with("int");
        if (whole) element = sums && !is_signed ? element_of(plan::DType::uint32) : kInt32;
        if (!whole && picks) element = kFp32;
        if (!whole && !picks && element == element_of(plan::DType::bf16)) element = kNoElement;
    }
    if (picks && !is_off(SIZE_MAX, "return_indices")) return made;  // a tuple
    std::optional<Shape> shape = ev_.known_shape(x);
    const Value axis = argument(1, "axis");
    const bool keeps = !is_off(SIZE_MAX, "keep_dims");
    if (shape && (axis.kind == ValueKind::undefined || axis.kind == ValueKind::none) && !keeps) {
        shape = Shape{};
    } else if (shape && axis.kind == ValueKind::integer) {
        const auto at =
            static_cast<std::int32_t>(axis.integer < 0 ? axis.integer + shape->rank : axis.integer);
        if (at < 0 || at >= shape->rank) return made;
        auto* extent = shape->extents.begin() + at;
        if (keeps) {
            *extent = 1;
        } else {
            std::copy(extent + 1, shape->extents.begin() + shape->rank, extent);
            shape->extents[static_cast<std::size_t>(--shape->rank)] = 0;
        }
    } else {
        shape.reset();
    }
    return ev_.described(made, element, shape);
}

/// reshape, broadcast_to and the like: the same elements in another shape.
Value BuiltinCall::described_shape(const Value& made) {
    const Value& x = arguments_[0];
    std::optional<Shape> shape;
    const auto own = ev_.known_shape(x);
    const bool permutes = builtin_ == Builtin::transpose || e_.text == "trans" || e_.text == "permute";
    if (const auto extents = permutes ? std::nullopt : listed(1, "shape"); extents && !extents->empty()) {
        shape = Shape{.rank = static_cast<std::int32_t>(extents->size())};
        std::ranges::copy(*extents, shape->extents.begin());
    } else if (own && e_.text == "ravel") {
        shape = Shape{.rank = 1, .extents = {own->size()}};
    } else if (const auto order = permutes && own ? listed(1, "dims") : std::nullopt; order) {
        shape = own;
        const auto rank = static_cast<std::size_t>(own->rank);
        if (order->empty() && rank > 1) std::swap(shape->extents[rank - 1], shape->extents[rank - 2]);
        if (!order->empty() && order->size() != rank) return made;
        for (std::size_t j = 0; j < order->size(); ++j) {
            const std::int64_t from = (*order)[j] < 0 ? (*order)[j] + own->rank : (*order)[j];
            if (from < 0 || from >= own->rank) return made;
            shape->extents[j] = own->extents[static_cast<std::size_t>(from)];
        }
    }
    return ev_.described(made, Evaluator::element_of_value(x), shape);
}

/// What is unknown of a result, with what is known of it.
Value BuiltinCall::with_type(const Value& made) {
    if (made.kind != ValueKind::opaque || e_.callee != Callee::known || ev_.stopped()) return made;
    if (builtin_ == Builtin::load || builtin_ == Builtin::atomic) return described_access(made);
    if (arguments_.empty()) return made;
    const Value& x = arguments_[0];
    if (builtin_ == Builtin::cast)
        return ev_.described(made, element_argument(1, "dtype"), ev_.known_shape(x));
    if (builtin_ == Builtin::where && arguments_.size() == 3) {
        const auto shape = ev_.shape_of_both(arguments_[1], arguments_[2]), first = ev_.known_shape(x);
        return ev_.described(made, ev_.element_of_both(arguments_[1], arguments_[2], false),
                             shape && first ? Evaluator::broadcast(*shape, *first) : std::nullopt);
    }
    if (e_.text == "dot") return described_dot(made);
    if (is_one_of(e_.text, {"sum", "argmax", "argmin", "xor_sum"})) return described_reduction(made);
    if (is_one_of(e_.text, {"max", "min"}) &&
        (arguments_.size() < 2 || arguments_[1].kind == ValueKind::integer))
        return described_reduction(made);
    if ((builtin_ == Builtin::maximum || builtin_ == Builtin::minimum) && arguments_.size() == 2)
        return ev_.described(made, ev_.element_of_both(x, arguments_[1], false),
                             ev_.shape_of_both(x, arguments_[1]));
    if (is_one_of(e_.text, {"reshape", "view", "ravel", "trans", "permute", "broadcast_to"}))
        return described_shape(made);
    if (is_elementwise(e_.text) || builtin_ == Builtin::same)
        return ev_.described(made, Evaluator::element_of_value(x), ev_.known_shape(x));
    return made;
}

}  // namespace syncopate::kernel::triton
