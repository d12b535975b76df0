// Builtins that change the axes, the order or the number of a block's elements, and those that make numbers
// of known elements: exact where the elements are known, unknown for data.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "kernel/triton/builtins/builtin_call.hpp"
#include "kernel/triton/evaluate/operators.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {
namespace {

using What = Lazy::What;

}  // namespace

/// Axis j of the result is axis axes[j] of the value; -1: a new one of extent 1.
Value Evaluator::permuted(const Expr& e, const Value& value, std::span<const std::int32_t> axes) {
    if (axes.size() > kRank) return fail(e.where, "blocks of more than 5 axes are not supported");
    Value made = value;
    const auto rank = static_cast<std::int32_t>(axes.size());
    Lazy* lazy = nullptr;
    const bool needs_form =
        value.kind == ValueKind::lazy || (value.kind == ValueKind::mask && value.mask->form != nullptr);
    if (needs_form) {
        const Shape from = shape_of(value);
        Shape shape;
        shape.rank = rank;
        for (std::int32_t j = 0; j < rank; ++j)
            shape.extents[j] = axes[at(j)] < 0 ? 1 : from.extents[axes[at(j)]];
        lazy = new_lazy(e, What::permute, {&value, 1}, shape);
        for (std::int32_t j = 0; j < rank; ++j) lazy->axes[j] = axes[at(j)];
        if (value.kind == ValueKind::lazy) lazy->param = value.lazy->param;
    }
    if (value.kind == ValueKind::lazy) {
        made.lazy = lazy;
        return made;
    }
    if (value.kind == ValueKind::mask) {
        Mask* mask = arena_.make<Mask>();
        *mask = *value.mask;
        for (std::int32_t j = 0; j < rank; ++j) {
            const std::int32_t from = axes[at(j)];
            mask->axes[j] = from < 0 ? MaskAxis{} : value.mask->axes[from];
        }
        mask->rank = rank;
        mask->form = lazy;
        made.mask = mask;
        return made;
    }
    const Block* from = as_block(value);
    if (from == nullptr) {
        std::optional<Shape> shape = known_shape(value);
        for (std::int32_t j = 0; shape && j < rank; ++j) {
            const std::int32_t axis = axes[at(j)];
            if (axis >= shape->rank) return opaque(e, value.taint);
        }
        if (shape) {
            const Shape own = *shape;
            shape = Shape{.rank = rank};
            for (std::int32_t j = 0; j < rank; ++j) {
                const std::int32_t axis = axes[at(j)];
                shape->extents[at(j)] = axis < 0 ? 1 : own.extents[at(axis)];
            }
        }
        return described(opaque(value.kind == ValueKind::opaque ? *value.why : e, value.taint),
                         element_of_value(value), shape);
    }
    Block* block = arena_.make<Block>();
    block->param = from->param;
    block->base = from->base;
    block->rank = rank;
    for (std::int32_t j = 0; j < rank; ++j) {
        const std::int32_t axis = axes[at(j)];
        if (axis >= 0) block->axes[j] = from->axes[axis];
    }
    made.kind = from->param >= 0 ? ValueKind::pointer : ValueKind::block;
    made.type = type_of(value);
    made.element = value.element;
    made.block = block;
    return made;
}

Value Evaluator::reshaped(const Expr& e, const Value& value, const Shape& shape) {
    if (!is_known(value)) return opaque(value.kind == ValueKind::opaque ? *value.why : e, value.taint);
    const Shape from = shape_of(value);
    if (from == shape) return value;
    if (from.size() != shape.size())
        return fail(e.where, quoted(module_, e.where) + " changes the number of elements");
    // Axes of extent 1 come and go; all others stay as they are.
    std::vector<std::int32_t> axes;
    std::int32_t next = 0;
    const auto skip = [&] {
        while (next < from.rank && from.extents[next] == 1) ++next;
    };
    bool same = true;
    for (std::int32_t j = 0; j < shape.rank && same; ++j) {
        skip();
        if (shape.extents[j] == 1) {
            axes.push_back(-1);
        } else if (next < from.rank && from.extents[next] == shape.extents[j]) {
            axes.push_back(next++);
        } else {
            same = false;
        }
    }
    const bool drops = is_block(value) && [&] {  // an axis of extent 1 may hold an element that is not zero
        for (std::int32_t j = 0; j < from.rank; ++j)
            if (from.extents[j] == 1 && value.block->axes[j].count > 0) return true;
        return false;
    }();
    const bool bounds =
        value.kind == ValueKind::mask && std::any_of(from.extents.begin(), from.extents.begin() + from.rank,
                                                     [](std::int64_t x) { return x == 1; });
    if (same && !drops && !bounds) return permuted(e, value, axes);
    Lazy* lazy = new_lazy(e, What::reshape, {&value, 1}, shape);
    if (value.kind == ValueKind::lazy) lazy->param = value.lazy->param;
    if (value.kind == ValueKind::pointer) lazy->param = value.block->param;
    Value made = from_lazy(lazy);
    if (value.kind != ValueKind::mask) return made;
    const Value zero = make_integer(0, false, 0);
    return lazily(e, What::comparison, Operator::not_equal, {made, zero});
}

const BuiltinCall::ShapeRule* BuiltinCall::shape_rule_of(std::string_view name) {
    static const std::unordered_map<std::string_view, ShapeRule> table{
        {"reshape", {&BuiltinCall::reshape}},
        {"view", {&BuiltinCall::reshape}},
        {"ravel", {&BuiltinCall::ravel}},
        {"trans", {&BuiltinCall::permute}},
        {"permute", {&BuiltinCall::permute}},
        {"flip", {&BuiltinCall::flip}},
        {"join", {&BuiltinCall::join}},
        {"split", {&BuiltinCall::split}},
        {"cat", {&BuiltinCall::lengthened, What::cat}},
        {"interleave", {&BuiltinCall::lengthened, What::interleave}},
        {"gather", {&BuiltinCall::gather}},
        {"sum", {&BuiltinCall::reduced, What::sum}},
        {"min", {&BuiltinCall::reduced, What::lowest}},
        {"max", {&BuiltinCall::reduced, What::highest}},
        {"cumsum", {&BuiltinCall::running}},
        {"broadcast", {&BuiltinCall::broadcast}},
        {"clamp", {&BuiltinCall::clamp}}};
    const auto found = table.find(name);
    return found == table.end() ? nullptr : &found->second;
}

/// nullopt: the call is none of these, or its operands are data.
BuiltinCall::Made BuiltinCall::by_name() {
    if (arguments_.empty() || e_.callee != Callee::known) return std::nullopt;
    const ShapeRule* const found = shape_rule_of(e_.text);
    if (found == nullptr) return std::nullopt;
    const Value& x = arguments_[0];
    const bool is_clamp = found->rule == &BuiltinCall::clamp;  // which is of numbers, too
    if ((!Evaluator::is_known(x) || is_number(x)) && !is_clamp) return std::nullopt;
    return (this->*found->rule)(Evaluator::shape_of(x), found->what);
}

/// Numbers that follow, as one tuple or one by one.
std::optional<std::vector<std::int64_t>> BuiltinCall::listed(std::size_t from, std::string_view keyword) {
    std::vector<std::int64_t> all;
    std::vector<Value> items(
        arguments_.begin() + static_cast<std::ptrdiff_t>(std::min(from, arguments_.size())),
        arguments_.end());
    if (items.empty()) {
        const Value named = ev_.argument(e_, {}, 0, keyword, frame_);
        if (named.kind != ValueKind::undefined) items.push_back(named);
    }
    if (items.size() == 1 && items[0].kind == ValueKind::tuple)
        items.assign(items[0].tuple->items, items[0].tuple->items + items[0].tuple->size);
    for (const Value& item : items) {
        if (item.kind == ValueKind::boolean && !item.boolean) continue;  // can_reorder
        if (item.kind != ValueKind::integer) return std::nullopt;
        all.push_back(item.integer);
    }
    if (all.size() > kRank) return std::nullopt;
    return all;
}

std::optional<std::int32_t> BuiltinCall::axis_argument(const Shape& shape, std::size_t index,
                                                       std::string_view name, std::int32_t otherwise) {
    const Value v = argument(index, name);
    if (v.kind == ValueKind::undefined || v.kind == ValueKind::none) return otherwise;
    if (v.kind != ValueKind::integer) return std::nullopt;
    const std::int64_t axis = v.integer < 0 ? v.integer + shape.rank : v.integer;
    if (axis < 0 || axis >= shape.rank) return std::nullopt;
    return static_cast<std::int32_t>(axis);
}

Value BuiltinCall::lazy(What what, std::span<const Value> from, const Shape& shape, std::int32_t axis) {
    Lazy* made = ev_.new_lazy(e_, what, from, shape);
    made->axis = axis;
    const bool adds = what == What::sum || what == What::running;
    if (adds) {
        const Value dtype = argument(3, "dtype");
        if (ev_.stopped()) return {};
        made->type =
            dtype.kind == ValueKind::text ? integer_type(*dtype.text) : type_of_sum(type_of(from[0]));
    }
    Value value = ev_.from_lazy(made);
    if (what == What::lowest || what == What::highest) value.type = type_of_sum(type_of(from[0]));
    return value;
}

/// Whether the elements of the second argument are known, too, and it has the shape of the first one.
bool BuiltinCall::takes_two_alike(const Shape& shape) {
    return arguments_.size() >= 2 && Evaluator::is_known(arguments_[1]) &&
           Evaluator::shape_of(arguments_[1]) == shape;
}

BuiltinCall::Made BuiltinCall::reshape(const Shape& /*shape*/, What /*what*/) {
    // Triton lowers tl.view as a reshape that may reorder its elements.
    if (e_.text == "view" || !is_off(SIZE_MAX, "can_reorder")) return std::nullopt;
    const auto extents = listed(1, "shape");
    if (!extents || extents->empty()) return std::nullopt;
    Shape wanted;
    wanted.rank = static_cast<std::int32_t>(extents->size());
    std::copy(extents->begin(), extents->end(), wanted.extents.begin());
    return ev_.reshaped(e_, arguments_[0], wanted);
}

BuiltinCall::Made BuiltinCall::ravel(const Shape& shape, What /*what*/) {
    if (!is_off(1, "can_reorder")) return std::nullopt;
    Shape wanted;
    wanted.rank = 1;
    wanted.extents[0] = shape.size();
    return ev_.reshaped(e_, arguments_[0], wanted);
}

BuiltinCall::Made BuiltinCall::permute(const Shape& shape, What /*what*/) {
    const auto axes = listed(1, "dims");
    if (!axes) return std::nullopt;
    std::vector<std::int32_t> order;
    for (const std::int64_t axis : *axes) {
        const std::int64_t at = axis < 0 ? axis + shape.rank : axis;
        if (at < 0 || at >= shape.rank || std::count(order.begin(), order.end(), at) > 0) return std::nullopt;
        order.push_back(static_cast<std::int32_t>(at));
    }
    if (order.empty()) {  // the last two axes exchanged
        for (std::int32_t j = 0; j < shape.rank; ++j) order.push_back(j);
        if (shape.rank > 1) std::swap(order[order.size() - 1], order[order.size() - 2]);
    }
    if (static_cast<std::int32_t>(order.size()) != shape.rank) return std::nullopt;
    return ev_.permuted(e_, arguments_[0], order);
}

BuiltinCall::Made BuiltinCall::flip(const Shape& shape, What /*what*/) {
    const auto axis = axis_argument(shape, 1, "dim", shape.rank - 1);
    if (!axis) return std::nullopt;
    return lazy(What::flip, arguments_.first(1), shape, *axis);
}

BuiltinCall::Made BuiltinCall::running(const Shape& shape, What /*what*/) {
    const auto axis = axis_argument(shape, 1, "axis", 0);
    if (!axis || !is_off(2, "reverse")) return std::nullopt;
    return lazy(What::running, arguments_.first(1), shape, *axis);
}

BuiltinCall::Made BuiltinCall::split(const Shape& shape, What /*what*/) {
    if (shape.rank < 1 || shape.extents[shape.rank - 1] != 2) return std::nullopt;
    Shape half = shape;
    --half.rank;
    half.extents[half.rank] = 0;
    const std::array<Value, 2> parts{lazy(What::split, arguments_.first(1), half, 0),
                                     lazy(What::split, arguments_.first(1), half, 1)};
    return ev_.make_tuple(parts);
}

BuiltinCall::Made BuiltinCall::join(const Shape& shape, What /*what*/) {
    if (!takes_two_alike(shape) || shape.rank >= kRank) return std::nullopt;
    Shape wanted = shape;
    wanted.extents[wanted.rank++] = 2;
    return lazy(What::join, arguments_.first(2), wanted, -1);
}

/// cat and interleave: twice as many along the last axis.
BuiltinCall::Made BuiltinCall::lengthened(const Shape& shape, What what) {
    if (!takes_two_alike(shape) || shape.rank < 1) return std::nullopt;
    if (what == What::cat && (shape.rank != 1 || !is_off(2, "can_reorder"))) return std::nullopt;
    Shape wanted = shape;
    wanted.extents[wanted.rank - 1] *= 2;
    return lazy(what, arguments_.first(2), wanted, -1);
}

BuiltinCall::Made BuiltinCall::gather(const Shape& shape, What /*what*/) {
    const std::array<Value, 2> from{arguments_[0], argument(1, "index")};
    if (ev_.stopped() || !Evaluator::is_known(from[1])) return std::nullopt;
    const auto axis = axis_argument(shape, 2, "axis", 0);
    const Shape wanted = Evaluator::shape_of(from[1]);
    if (!axis || wanted.rank != shape.rank) return std::nullopt;
    return lazy(What::gather, from, wanted, *axis);
}

/// sum, min and max along an axis, or of all elements.
BuiltinCall::Made BuiltinCall::reduced(const Shape& shape, What what) {
    if (arguments_.size() > 1 && arguments_[1].kind != ValueKind::integer &&
        arguments_[1].kind != ValueKind::none)
        return std::nullopt;
    const auto axis = axis_argument(shape, 1, "axis", -1);
    const bool sums = what == What::sum;
    if (!axis || (!sums && !is_off(2, "return_indices")) || !is_off(sums ? 2 : 4, "keep_dims"))
        return std::nullopt;
    Shape left;
    for (std::int32_t j = 0; j < shape.rank; ++j) {
        if (*axis >= 0 && j != *axis) left.extents[left.rank++] = shape.extents[j];
    }
    return lazy(what, arguments_.first(1), left, *axis);
}

BuiltinCall::Made BuiltinCall::broadcast(const Shape& shape, What /*what*/) {
    if (arguments_.size() != 2 || !Evaluator::is_known(arguments_[1])) return std::nullopt;
    const auto both = Evaluator::broadcast(shape, Evaluator::shape_of(arguments_[1]));
    if (!both) return std::nullopt;
    std::array<Value, 2> stretched{};
    for (std::size_t i = 0; i < 2; ++i) {
        if (!is_block(arguments_[i])) return std::nullopt;
        Block* zero = ev_.arena_.make<Block>();
        zero->rank = both->rank;
        for (std::int32_t j = 0; j < both->rank; ++j) zero->axes[j].extent = both->extents[j];
        stretched[i] = ev_.add(e_, arguments_[i], block_value(zero), 1);
        stretched[i].type = type_of(arguments_[i]);
    }
    return ev_.make_tuple(stretched);
}

BuiltinCall::Made BuiltinCall::clamp(const Shape& /*shape*/, What /*what*/) {
    if (arguments_.size() < 3) return std::nullopt;
    for (const Value& value : arguments_.first(3)) {
        if (!Evaluator::is_known(value)) return std::nullopt;
    }
    std::array<Value, 3> values{arguments_[0], arguments_[1], arguments_[2]};
    if (!made_alike(values)) return Value{};
    const Value high = ev_.extreme(e_, false, values[0], values[2]);
    Value made = ev_.stopped() ? Value{} : ev_.extreme(e_, true, high, values[1]);
    if (has_type(made)) made.type = type_of(values[0]);
    return made;
}

}  // namespace syncopate::kernel::triton
