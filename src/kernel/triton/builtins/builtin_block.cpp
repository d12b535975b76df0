// Builtins that make blocks, give them axes, or another type.
#include "kernel/triton/builtins/builtin_call.hpp"
#include "kernel/triton/evaluate/operators.hpp"

namespace syncopate::kernel::triton {

Value BuiltinCall::block_value(const Block* block) const {
    Value made;
    made.kind = ValueKind::block;
    made.block = block;
    return made;
}

/// Gives `block` the extents that `shape` lists. False where they are not known, or the call has failed.
bool BuiltinCall::set_extents(const Value& shape, Block& block) {
    std::array<Affine, kRank> extents{};
    std::int32_t count = 0;
    if (!ev_.numbers(shape, extents, count)) return false;
    std::int64_t size = 1;
    for (std::int32_t j = 0; j < count; ++j) {
        const Affine& extent = extents[static_cast<std::size_t>(j)];
        if (!extent.is_constant()) return false;
        if (extent.constant < 1 || extent.constant > kLargestBlock ||
            (size *= extent.constant) > kLargestBlock) {
            fail(quoted() + " has an extent of " + std::to_string(extent.constant) +
                 ": write 1 or more, with at most 2^24 elements in all");
            return false;
        }
        block.axes[static_cast<std::size_t>(j)].extent = extent.constant;
    }
    block.rank = count;
    return true;
}

BuiltinCall::Made BuiltinCall::arange() {
    const auto start = integer_argument(0, "start", 0), end = integer_argument(1, "end", 0);
    if (!start || !end) return Value{};
    if (*end <= *start)
        return fail(quoted() + " is empty: write an end above its start, here " + std::to_string(*start));
    if (*start < -kLargestBlock || *end > kLargestBlock)
        return fail(quoted() + " goes up to " + std::to_string(*end) +
                    ": make it smaller, a block has at most 2^24 elements");
    Block* block = ev_.arena_.make<Block>();
    Piece* piece = ev_.arena_.make<Piece>();
    *piece = {0, *end - *start, {*start, {}}, 1};
    block->rank = 1;
    block->axes[0] = {*end - *start, piece, 1};
    Value made = tainted(block_value(block));
    made.runtime = true;
    made.type = IntegerType::int32;
    return made;
}

/// Also of zeros. A block of conditions is a mask, as comparisons are.
BuiltinCall::Made BuiltinCall::full() {
    const Value shape = argument(0, "shape");
    const bool zeros = builtin_ == Builtin::zeros;
    const Value value = zeros ? make_integer(0, false, 0) : argument(1, "value");
    const Value dtype = argument(zeros ? 1 : 2, "dtype");
    if (ev_.stopped()) return Value{};
    taint_ |= Evaluator::taint_of(shape) | value.taint;
    Block* block = ev_.arena_.make<Block>();
    if (!set_extents(shape, *block)) return ev_.stopped() ? Value{} : unknown();
    const bool named = dtype.kind == ValueKind::text;
    const IntegerType type = named ? integer_type(dtype_name(*dtype.text)) : type_of(value);
    const Value blank = block_value(block);
    const bool is_condition = type == IntegerType::int1 || (value.kind == ValueKind::boolean && !named);
    if (is_condition) {
        const Value holds = ev_.compare(e_, Operator::not_equal, value, make_integer(0, false, 0));
        if (ev_.stopped() || holds.kind != ValueKind::boolean) return ev_.stopped() ? Value{} : unknown();
        return tainted(ev_.constant_mask(Evaluator::shape_of(blank), holds.boolean));
    }
    const bool is_scalar = is_number(value) || (value.kind == ValueKind::block && rank_of(value) == 0);
    const Element* asked = named ? element_named(*dtype.text) : nullptr;
    const Element element = asked != nullptr ? *asked : Evaluator::element_of_value(ev_.as_variable(value));
    const auto shape_made = Evaluator::shape_of(blank);
    if (!is_scalar) return ev_.described(unknown(), element, shape_made);
    const Value made = ev_.add(e_, value, blank, 1);
    if (ev_.stopped()) return Value{};
    return ev_.described(ev_.in_type(e_, tainted(made), type), element, shape_made);
}

BuiltinCall::Made BuiltinCall::zeros_like() {
    if (arguments_.empty()) return unknown();
    const Value& like = arguments_[0];
    if (like.kind == ValueKind::mask) return tainted(ev_.constant_mask(Evaluator::shape_of(like), false));
    if (like.kind != ValueKind::block && like.kind != ValueKind::lazy)
        return ev_.described(unknown(), Evaluator::element_of_value(like), ev_.known_shape(like));
    const Evaluator::Shape shape = Evaluator::shape_of(like);
    Block* block = ev_.arena_.make<Block>();
    block->rank = shape.rank;
    for (std::int32_t j = 0; j < block->rank; ++j) block->axes[j].extent = shape.extents[j];
    Value made = tainted(block_value(block));
    made.type = type_of(like);
    made.element = like.element;
    return made;
}

BuiltinCall::Made BuiltinCall::cast() {
    if (arguments_.empty()) return unknown();
    const Value type = argument(1, "dtype");
    if (ev_.stopped()) return Value{};
    const bool named = type.kind == ValueKind::text;
    const std::string name = named ? dtype_name(*type.text) : std::string();
    const bool is_integer = name.starts_with("int") || name.starts_with("uint");
    const Value& value = arguments_[0];
    const bool is_whole = is_number(value) || value.kind == ValueKind::block ||
                          (value.kind == ValueKind::lazy && value.lazy->param < 0);
    const bool same_bits =
        is_integer && is_whole && bits_of(type_of(ev_.as_variable(value))) == bits_of(integer_type(name));
    if (!is_off(3, "bitcast") && !same_bits && Evaluator::param_of(value) < 0)
        return ev_.stopped() ? Value{} : ev_.opaque(e_, taint_, "which takes the bits of another type");
    if (is_integer && name != "int1" &&
        (value.kind == ValueKind::integer || value.kind == ValueKind::block || value.kind == ValueKind::lazy))
        return ev_.in_type(e_, value, integer_type(name));
    if (is_integer && value.kind == ValueKind::mask) return ev_.in_type(e_, value, integer_type(name));
    if (named && name == "int1" && Evaluator::is_known(value)) {
        const Value holds = ev_.compare(e_, Operator::not_equal, value, make_integer(0, false, 0));
        return ev_.stopped() ? Value{} : tainted(holds);
    }
    if (is_integer && value.kind == ValueKind::boolean)
        return tainted(make_integer(value.boolean ? 1 : 0, runtime_, taint_, integer_type(name)));
    if (is_integer && is_real(value)) {
        const IntegerRange limits = limits_of(integer_type(name));
        const auto whole = truncated(interval_of(value));
        if (!whole || *whole < limits.least || *whole > limits.most) return ev_.opaque(e_, taint_, kRounded);
        return tainted(make_integer(*whole, true, taint_, integer_type(name)));
    }
    // What is computed in fewer bits than fp32 is not followed.
    const bool is_wide = named && (name == "fp32" || name == "fp64");
    if (is_wide && is_real_or_number(value)) {
        Interval interval = interval_of(value);
        if (is_number(value) && name == "fp32")
            interval.least = interval.most = static_cast<float>(number_of(value));
        Value made = real_value(interval);
        made.element = *element_named(name);
        made.taint = taint_;
        return made;
    }
    if (value.kind == ValueKind::pointer || value.kind == ValueKind::lost_pointer) {
        const bool known = value.kind == ValueKind::pointer;
        const auto own = known && named ? ev_.type_of_value(value, false) : std::nullopt;
        if (own && *own->text == *type.text) return value;
        return tainted(ev_.lost_pointer(known ? value.block->param : value.lost->param, &e_));
    }
    if (value.kind == ValueKind::opaque) return ev_.opaque(*value.why, taint_);
    return ev_.opaque(e_, taint_, named && is_real_or_number(value) ? kRounded : std::string_view());
}

/// tl.pointer_type(tl.float32), of a type that is known.
BuiltinCall::Made BuiltinCall::pointer_type() {
    const Element element = element_argument(0, "element_ty");
    if (element == kNoElement) return std::nullopt;
    return ev_.type_text("*" + name_of(element));
}

BuiltinCall::Made BuiltinCall::expand_dims() {
    const auto axes = listed(1, "axis");
    if (ev_.stopped()) return Value{};
    if (!axes || axes->empty())
        return fail("the axis of " + quoted() + " must be a known whole number, or a tuple of them");
    if (arguments_.empty()) return unknown();
    const Value& value = arguments_[0];
    const std::int32_t rank = ev_.known_rank(value);
    if (value.kind == ValueKind::opaque && value.extents == 0)
        return ev_.described(ev_.opaque(*value.why, taint_), value.element, std::nullopt);
    const std::int64_t made = rank + static_cast<std::int64_t>(axes->size());
    if (made > kRank) return unknown();
    std::array<bool, kRank> is_new{};
    for (const std::int64_t axis : *axes) {
        const std::int64_t at = axis < 0 ? axis + made : axis;
        if (at < 0 || at >= made || is_new[static_cast<std::size_t>(at)]) return unknown();
        is_new[static_cast<std::size_t>(at)] = true;
    }
    return ev_.expanded(e_, value, {is_new.data(), static_cast<std::size_t>(made)});
}

BuiltinCall::Made BuiltinCall::broadcast_to() {
    Block* block = ev_.arena_.make<Block>();
    const Value shape = argument(1, "shape");
    if (ev_.stopped()) return Value{};
    if (arguments_.empty() || !Evaluator::is_known(arguments_[0])) return std::nullopt;
    const Value sizes = arguments_.size() > 2 ? ev_.make_tuple(arguments_.subspan(1)) : shape;
    if (!set_extents(sizes, *block)) return std::nullopt;
    const Value zero = block_value(block);
    if (arguments_[0].kind == ValueKind::mask || arguments_[0].kind == ValueKind::boolean) {
        const Value all = ev_.constant_mask(Evaluator::shape_of(zero), true);
        return tainted(ev_.masks_joined(e_, arguments_[0], all, true));
    }
    const Value stretched = ev_.binary(e_, Operator::add, arguments_[0], zero);
    return ev_.stopped() ? Value{} : tainted(stretched);
}

}  // namespace syncopate::kernel::triton
