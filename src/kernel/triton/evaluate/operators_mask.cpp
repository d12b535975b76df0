// Conditions on blocks: comparisons become masks, boxes of indices that contain all for which the condition
// holds; masks are joined, and choose between blocks (tl.where, minimum and maximum).
#include "kernel/triton/evaluate/operators.hpp"

#include <algorithm>
#include <cstdlib>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "syncopate/round_up.hpp"

namespace syncopate::kernel::triton {
namespace {

/// x OP y; nullopt where OP is no comparison.
template <typename T>
std::optional<bool> holds(Operator op, const T& x, const T& y) {
    switch (op) {
        case Operator::less: return x < y;
        case Operator::less_equal: return x <= y;
        case Operator::greater: return x > y;
        case Operator::greater_equal: return x >= y;
        case Operator::equal:
        case Operator::is: return x == y;
        case Operator::not_equal:
        case Operator::is_not: return x != y;
        default: return std::nullopt;
    }
}

bool is_equality(Operator op) {
    return op == Operator::equal || op == Operator::is || op == Operator::not_equal || op == Operator::is_not;
}

/// Adds the bound on i that base + step * i < 0 is; false where it is none of whole numbers.
bool bound_below_zero(const Affine& base, std::int64_t step, MaskAxis& bounds) {
    if (step == INT64_MIN) return false;
    const std::int64_t size = std::llabs(step);
    for (const std::int64_t s : base.slope) {
        if (s % size != 0) return false;
    }
    Affine bound;
    for (int s = 0; s < kSymbols; ++s)
        bound.slope[s] = (step > 0 ? wrap_multiply(base.slope[s], -1) : base.slope[s]) / size;
    bound.constant = step > 0 ? ceil_div(wrap_multiply(base.constant, -1), size)
                              : wrap_add(floor_div(base.constant, size), 1);
    if (bound.is_constant()) bound.constant = std::clamp<std::int64_t>(bound.constant, 0, bounds.extent);
    if (step > 0)
        bounds.upper[bounds.upper_count++] = bound;
    else
        bounds.lower[bounds.lower_count++] = bound;
    return true;
}

/// The same of base + step * i OP 0: <= as base - 1, and > and >= by negation.
bool solve(Operator op, const Affine& base, std::int64_t step, MaskAxis& bounds) {
    const std::int64_t back = wrap_multiply(step, -1);
    bool solved = true;
    if (op == Operator::less) solved = bound_below_zero(base, step, bounds);
    if (op == Operator::less_equal || op == Operator::equal)
        solved = bound_below_zero(base + -1, step, bounds);
    if (op == Operator::greater) solved = bound_below_zero(base * -1, back, bounds);
    if (op == Operator::greater_equal || op == Operator::equal)
        solved = solved && bound_below_zero(base * -1 + -1, back, bounds);
    return solved;
}

/// One with the extents of a block, which lets everything through.
Mask mask_of(const Block& block) {
    Mask mask;
    mask.rank = block.rank;
    for (std::int32_t j = 0; j < block.rank; ++j) mask.axes[j].extent = block.axes[j].extent;
    return mask;
}

}  // namespace

Value Evaluator::compare(const Expr& e, Operator op, const Value& left, const Value& right) {
    // Of a signed and an unsigned number what is below 0 is large; a constant is made a variable first.
    Value a = left, b = right;
    if (is_unsigned(type_of_both(a, b)) && type_of(a) != type_of(b)) {
        const IntegerType type = type_of_both(as_variable(a), as_variable(b));
        if (is_unsigned(type)) a = in_type(e, a, type), b = in_type(e, b, type);
        if (stopped()) return {};
    }
    if (is_lost_on_line(a) || is_lost_on_line(b)) return not_affine(e);
    if (const auto known = compare_scalars(e, op, a, b)) return *known;
    if (const auto same = compare_with_constant(e, op, a, b)) return *same;
    const std::uint64_t taint = a.taint | b.taint;
    if ((a.kind == ValueKind::lazy || b.kind == ValueKind::lazy || a.kind == ValueKind::mask ||
         b.kind == ValueKind::mask) &&
        is_known(a) && is_known(b))
        return lazily(e, Lazy::What::comparison, op, {a, b});
    if (!((is_block(a) || is_number(a)) && (is_block(b) || is_number(b))) || a.kind == ValueKind::pointer ||
        b.kind == ValueKind::pointer) {
        const Value& unknown = a.kind == ValueKind::opaque ? a : b;
        return opaque(unknown.kind == ValueKind::opaque ? *unknown.why : e, taint);
    }
    // difference OP 0, then a bound on the index of the one axis along which the difference varies.
    const Value difference = add(e, a, b, -1);
    if (stopped()) return {};
    if (difference.kind != ValueKind::lazy) {
        const Block* d = as_block(difference);
        if (d->rank == 0) return compare_number(e, op, *d, with(ValueKind::boolean, a, b));
        Mask* mask = arena_.make<Mask>();
        *mask = mask_of(*d);
        Value made = with(ValueKind::mask, a, b);
        made.mask = mask;
        if (set_mask(e, op, *d, *mask)) {
            if (on_line() && moves(*mask) && lets_all_through(*mask)) *mask = mask_of(*d);
            return made;
        }
        if (stopped()) return {};
        if (const std::optional<bool> known = decided_by_range(op, *d)) {
            *mask = mask_of(*d);
            mask->never = !*known;
            return made;
        }
    }
    return lazily(e, Lazy::What::comparison, op, {a, b});
}

/// A condition == True, != 0 and the like: itself, or where it does not hold. Nullopt: it is none of these.
std::optional<Value> Evaluator::compare_with_constant(const Expr& e, Operator op, const Value& a,
                                                      const Value& b) {
    if (op != Operator::equal && op != Operator::not_equal) return std::nullopt;
    const auto constant = [](const Value& v) -> std::optional<bool> {
        if (v.kind == ValueKind::mask) return constant_of(*v.mask);
        return is_number(v) && (number_of(v) == 0 || number_of(v) == 1) ? std::optional(number_of(v) == 1)
                                                                        : std::nullopt;
    };
    const bool turned = b.kind != ValueKind::mask || constant(b).has_value();
    const Value &mask = turned ? a : b, &other = turned ? b : a;
    const std::optional<bool> holds = constant(other);
    if (mask.kind != ValueKind::mask || type_of(mask) != IntegerType::int1 || !holds) return std::nullopt;
    if (other.kind == ValueKind::mask && !(shape_of(other) == shape_of(mask))) return std::nullopt;
    return of_both(*holds == (op == Operator::equal) ? mask : mask_inverted(e, mask), a, b);
}

/// What is no block: numbers, text, tuples, None; nullopt for others.
std::optional<Value> Evaluator::compare_scalars(const Expr& e, Operator op, const Value& a, const Value& b) {
    Value made = with(ValueKind::boolean, a, b);
    const auto given = [&](std::optional<bool> known, std::string_view reason = {}) {
        if (!known) return opaque(e, made.taint, reason);
        made.boolean = *known;
        return made;
    };
    const bool wants_equal = op == Operator::equal || op == Operator::is;
    if (is_number(a) && is_number(b)) return given(holds(op, number_of(a), number_of(b)));
    if (op == Operator::in || op == Operator::not_in) {
        if (b.kind != ValueKind::tuple) return given(std::nullopt);
        bool any = false;
        for (std::int32_t i = 0; i < b.tuple->size; ++i) {
            const Value& item = b.tuple->items[i];
            if (a.kind == ValueKind::opaque || item.kind == ValueKind::opaque) return given(std::nullopt);
            const bool texts = a.kind == ValueKind::text && item.kind == ValueKind::text;
            const std::optional<bool> same = texts ? same_type(*a.text, *item.text) : equal(a, item);
            if (!same) return given(std::nullopt);
            any = any || *same;
        }
        return given(any == (op == Operator::in));
    }
    if (a.kind == ValueKind::text && b.kind == ValueKind::text) {
        // "float16" and tl.float16 are one element type: an argument may name it either way.
        if (is_equality(op)) {
            const std::optional<bool> same = same_type(*a.text, *b.text);
            return given(same ? std::optional(*same == wants_equal) : std::nullopt);
        }
        return given(holds(op, *a.text, *b.text));
    }
    if (a.kind == ValueKind::tuple && b.kind == ValueKind::tuple && is_equality(op)) {
        std::optional<bool> same = a.tuple->size == b.tuple->size;
        for (std::int32_t i = 0; same == true && i < a.tuple->size; ++i) {
            const auto item = compare_scalars(e, Operator::equal, a.tuple->items[i], b.tuple->items[i]);
            same = item && item->kind == ValueKind::boolean ? std::optional(item->boolean) : std::nullopt;
        }
        return given(same ? std::optional(*same == wants_equal) : std::nullopt);
    }
    const bool unknown = a.kind == ValueKind::opaque || b.kind == ValueKind::opaque;
    if (is_equality(op) && (a.kind == ValueKind::none || b.kind == ValueKind::none))
        return given((a.kind == b.kind) == wants_equal);
    if (is_equality(op) && (a.kind == ValueKind::text || b.kind == ValueKind::text) && !unknown)
        return given(!wants_equal);  // text and something else
    if (is_real_or_number(a) && is_real_or_number(b)) {
        if (a.runtime || b.runtime) return given(compared(op, interval_of(a), interval_of(b)), kRounded);
        return given(holds(op, real_of(a), real_of(b)));
    }
    return std::nullopt;
}

/// difference OP 0, of one number that moves with the loops around. `made`: a boolean.
Value Evaluator::compare_number(const Expr& e, Operator op, const Block& difference, Value made) {
    const std::int64_t low = lowest_highest(difference.base, false).constant,
                       high = lowest_highest(difference.base, true).constant;
    const auto at_low = holds(op, low, std::int64_t{0}), at_high = holds(op, high, std::int64_t{0});
    const bool monotone = !is_equality(op) || low == high || low > 0 || high < 0;
    if (!at_low || !monotone || *at_low != *at_high) {
        fits_while_same_sign(difference.base);
        return not_affine(e);
    }
    made.boolean = *at_low;
    return made;
}

/// Bounds `mask`, which has its extents, by difference OP 0. False where that has no such form, or the
/// evaluation has failed.
bool Evaluator::set_mask(const Expr& e, Operator op, const Block& d, Mask& mask) {
    const std::int32_t axis = varying_axis(d, d);
    if (axis == -2 || (axis >= 0 && op == Operator::not_equal)) return false;
    if (axis == -1) {
        const auto at_low = holds(op, lowest_highest(d.base, false).constant, std::int64_t{0});
        const auto at_high = holds(op, lowest_highest(d.base, true).constant, std::int64_t{0});
        if (d.base.is_constant() && at_low)
            mask.never = !*at_low;
        else if (at_low && at_high && !is_equality(op) && !*at_low && !*at_high)
            mask.never = true;
        else
            return false;
        return true;
    }
    MaskAxis& bounds = mask.axes[axis];
    if (d.axes[axis].count == 1 && d.axes[axis].pieces[0].step != 0) {
        const Piece& piece = d.axes[axis].pieces[0];
        return solve(op, d.base + piece.base, piece.step, bounds);
    }
    if (d.axes[axis].extent > kLargestExpanded) return false;
    if (!step(e.where, d.axes[axis].extent / 4)) return false;
    if (!d.base.is_constant() || !expand(d.axes[axis], scratch_a_)) return false;
    std::int64_t low = -1, high = -1, holding = 0;
    for (std::size_t i = 0; i < scratch_a_.size(); ++i) {
        const auto here = holds(op, wrap_add(d.base.constant, scratch_a_[i]), std::int64_t{0});
        if (!here || !*here) continue;
        if (low < 0) low = static_cast<std::int64_t>(i);
        high = static_cast<std::int64_t>(i) + 1;
        ++holding;
    }
    if (low < 0) {
        mask.never = true;
    } else if (holding < static_cast<std::int64_t>(scratch_a_.size())) {
        bounds.lower[bounds.lower_count++] = {low, {}};
        bounds.upper[bounds.upper_count++] = {high, {}};
        if (holding != high - low) return false;
    }
    return true;
}

/// A condition that is the same for all indices.
Value Evaluator::constant_mask(const Shape& shape, bool holds) {
    Mask* mask = arena_.make<Mask>();
    mask->rank = shape.rank;
    mask->never = !holds;
    for (std::int32_t j = 0; j < shape.rank; ++j) mask->axes[j].extent = shape.extents[j];
    Value made;
    made.kind = ValueKind::mask;
    made.runtime = true;
    made.mask = mask;
    return made;
}

/// Where `mask` does not hold. Of data: everything, to be safe.
Value Evaluator::mask_inverted(const Expr& e, const Value& mask) {
    const std::optional<bool> constant = constant_of(*mask.mask);
    if (!constant && is_known(mask)) return lazily(e, Lazy::What::invert, Operator::add, {mask});
    Value made = constant_mask(shape_of(mask), !constant.value_or(false));
    if (!constant) {
        Mask* unsure = arena_.make<Mask>();
        *unsure = *made.mask;
        unsure->exact = false;
        made.mask = unsure;
    }
    made.taint = mask.taint;
    return made;
}

Value Evaluator::masks_joined(const Expr& e, const Value& a, const Value& b, bool both) {
    Value made = mask_box(e, a, b, both);
    if (made.kind != ValueKind::mask || made.mask->exact || stopped()) return made;
    Mask* mask = arena_.make<Mask>();
    *mask = *made.mask;
    mask->form = nullptr;
    if (is_known(a) && is_known(b)) {
        const Value form = lazily(e, both ? Lazy::What::both : Lazy::What::either, Operator::add, {a, b});
        if (form.kind == ValueKind::mask) mask->form = form.mask->form;
    }
    made.mask = mask;
    return made;
}

/// The box of masks_joined, without its form.
Value Evaluator::mask_box(const Expr& e, const Value& a, const Value& b, bool both) {
    Value made = with(ValueKind::mask, a, b);
    if (a.kind == ValueKind::boolean && b.kind == ValueKind::boolean) {
        made.kind = ValueKind::boolean;
        made.boolean = both ? a.boolean && b.boolean : a.boolean || b.boolean;
        return made;
    }
    if (a.kind != ValueKind::mask || b.kind != ValueKind::mask) {
        const Value& mask = a.kind == ValueKind::mask ? a : b;
        const Value& other = a.kind == ValueKind::mask ? b : a;
        Mask* copy = arena_.make<Mask>();
        *copy = *mask.mask;
        const std::optional<bool> flag = truth(e, other);
        if (stopped()) return {};
        if (flag && *flag == both) return made.mask = copy, made;  // true & m, false | m
        if (flag) {                                                // false & m, true | m
            made.mask = constant_mask(shape_of(mask), *flag).mask;
            return made;
        }
        copy->form = nullptr;
        if (!both) {  // unknown | m
            for (MaskAxis& axis : copy->axes) axis.lower_count = axis.upper_count = 0;
            copy->never = false;
        }
        copy->exact = false;
        made.mask = copy;
        return made;
    }
    const std::int32_t rank = std::max(a.mask->rank, b.mask->rank);
    Mask* joined = arena_.make<Mask>();
    *joined = aligned(*a.mask, rank);
    const Mask other = aligned(*b.mask, rank);
    const std::optional<bool> first = constant_of(*a.mask), second = constant_of(*b.mask);
    if (first == !both || second == !both) {  // false & m, true | m
        const std::optional<Shape> shape = broadcast(shape_of(a), shape_of(b));
        if (shape) return made.mask = constant_mask(*shape, !both).mask, made;
    }
    if (!both && (first || second)) {  // false | m: all & m, in the shape of both
        const Value all = constant_mask(shape_of(first ? a : b), true);
        return mask_box(e, all, first ? b : a, true);
    }
    joined->form = nullptr;
    if (!both) {  // a union of boxes is no box: let everything through
        joined->exact = false;
        for (std::int32_t j = 0; j < rank; ++j)
            joined->axes[j] = {std::max(joined->axes[j].extent, other.axes[j].extent), 0, 0, {}, {}};
        made.mask = joined;
        return made;
    }
    joined->never = a.mask->never || b.mask->never;
    joined->exact = a.mask->exact && b.mask->exact;
    for (std::int32_t j = 0; j < rank; ++j) {
        MaskAxis& axis = joined->axes[j];
        MaskAxis more = other.axes[j];
        // A single element stretched along the axis lets all through or none: its bounds are no bounds on the
        // index.
        if (axis.extent != more.extent) {
            MaskAxis& single = axis.extent == 1 ? axis : more;
            if (single.lower_count + single.upper_count > 0) joined->exact = false;
            single.lower_count = single.upper_count = 0;
        }
        axis.extent = std::max(axis.extent, more.extent);
        const auto merge = [&](std::array<Affine, MaskAxis::kBounds>& bounds, std::int32_t& count,
                               const std::array<Affine, MaskAxis::kBounds>& added, std::int32_t added_count,
                               bool lower) {
            for (std::int32_t i = 0; i < added_count; ++i) {
                bool merged = false;
                for (std::int32_t k = 0; k < count && !merged; ++k) {
                    if (bounds[k].slope != added[i].slope) continue;
                    bounds[k].constant = lower ? std::max(bounds[k].constant, added[i].constant)
                                               : std::min(bounds[k].constant, added[i].constant);
                    merged = true;
                }
                if (merged) continue;
                if (count < MaskAxis::kBounds)
                    bounds[count++] = added[i];
                else
                    joined->exact = false;  // one bound fewer lets more through
            }
        };
        merge(axis.lower, axis.lower_count, more.lower, more.lower_count, true);
        merge(axis.upper, axis.upper_count, more.upper, more.upper_count, false);
    }
    made.mask = joined;
    return made;
}

/// Whether a condition holds for all elements in all programs of the line; if only in the first ones, notes
/// how long the line may be.
bool Evaluator::lets_all_through(const Mask& mask) {
    if (mask.never || !mask.exact) return false;
    bool all = true;
    const auto below = [&](const Affine& value, std::int64_t limit) {
        if (lowest_highest(value, true).constant < limit) return;
        all = false;
        fits_while_below(value, limit);
    };
    for (std::int32_t j = 0; j < mask.rank; ++j) {
        const MaskAxis& axis = mask.axes[j];
        for (std::int32_t b = 0; b < axis.lower_count; ++b) below(axis.lower[b], 1);
        for (std::int32_t b = 0; b < axis.upper_count; ++b) below(axis.upper[b] * -1, -axis.extent + 1);
    }
    return all;
}

Value Evaluator::where(const Expr& e, const Value& condition, const Value& a, const Value& b) {
    const std::uint64_t taint = condition.taint | a.taint | b.taint;
    if (condition.kind != ValueKind::mask && condition.kind != ValueKind::lazy) {
        const std::optional<bool> known = truth(e, condition);
        if (stopped()) return {};
        if (!known) return opaque(condition.kind == ValueKind::opaque ? *condition.why : e, taint);
        Value made = *known ? a : b;
        made.taint = taint;
        return made;
    }
    const bool conditions = type_of(a) == IntegerType::int1 && type_of(b) == IntegerType::int1 &&
                            (a.kind == ValueKind::mask || b.kind == ValueKind::mask);
    if (condition.kind == ValueKind::mask && conditions) {  // c & a | ~c & b
        const Value first = masks_joined(e, condition, a, true);
        const Value not_c = stopped() ? Value{} : mask_inverted(e, condition);
        const Value second = stopped() ? Value{} : masks_joined(e, not_c, b, true);
        Value made = stopped() ? Value{} : masks_joined(e, first, second, false);
        made.taint = taint;
        return made;
    }
    const auto lazy = [&] {
        return is_known(condition) && is_known(a) && is_known(b)
                   ? lazily(e, Lazy::What::where, Operator::add, {condition, a, b})
                   : opaque(condition.kind == ValueKind::opaque ? *condition.why
                            : a.kind == ValueKind::opaque       ? *a.why
                            : b.kind == ValueKind::opaque       ? *b.why
                                                                : e,
                            taint);
    };
    const Block* first = as_block(a);
    const Block* second = as_block(b);
    if (condition.kind == ValueKind::lazy || first == nullptr || second == nullptr || first->param >= 0 ||
        second->param >= 0)
        return lazy();
    const Mask& given = *condition.mask;
    const std::int32_t rank = std::max({given.rank, first->rank, second->rank});
    const Block x = aligned(*first, rank), y = aligned(*second, rank);
    const Mask mask = aligned(given, rank);
    std::int32_t axis = varying_axis(x, y);
    std::int64_t extent = 1;
    Block* made = arena_.make<Block>();
    made->rank = rank;
    for (std::int32_t j = 0; j < rank; ++j) {
        made->axes[j].extent = std::max({x.axes[j].extent, y.axes[j].extent, mask.axes[j].extent});
        if (mask.axes[j].lower_count + mask.axes[j].upper_count == 0) continue;
        if (mask.axes[j].extent != made->axes[j].extent) return lazy();
        if (axis == j) continue;
        axis = axis == -1 ? j : -2;
    }
    if (!fits_a_block(e, *made)) return {};
    if (!mask.exact || axis == -2) return lazy();
    if (on_line() && lets_all_through(mask)) {
        bool same = true;
        for (std::int32_t j = 0; j < rank; ++j)
            same = same && (x.axes[j].count == 0 || x.axes[j].extent == made->axes[j].extent);
        if (same) {
            made->base = x.base;
            for (std::int32_t j = 0; j < rank; ++j)
                made->axes[j].pieces = x.axes[j].pieces, made->axes[j].count = x.axes[j].count;
            Value value = from_block(made);
            value.taint = taint;
            return value;
        }
    }
    if (!x.base.is_constant() || !y.base.is_constant()) return lazy();
    std::int64_t low = 0, high = INT64_MAX;
    if (axis >= 0) {
        extent = made->axes[axis].extent;
        if (extent > kLargestExpanded) return lazy();
        if (!step(e.where, extent / 4)) return {};
        if (!expand(x.axes[axis], scratch_a_) || !expand(y.axes[axis], scratch_b_)) return lazy();
        const MaskAxis& bounds = mask.axes[axis];
        for (std::int32_t i = 0; i < bounds.lower_count + bounds.upper_count; ++i) {
            const bool lower = i < bounds.lower_count;
            const Affine& bound = lower ? bounds.lower[i] : bounds.upper[i - bounds.lower_count];
            if (!bound.is_constant()) return lazy();
            (lower ? low : high) = lower ? std::max(low, bound.constant) : std::min(high, bound.constant);
        }
    } else {
        scratch_a_.assign(1, 0);
        scratch_b_.assign(1, 0);
    }
    std::vector<std::int64_t> results(static_cast<std::size_t>(extent));
    for (std::size_t i = 0; i < results.size(); ++i) {
        const auto index = static_cast<std::int64_t>(i);
        const bool holds = !mask.never && index >= low && index < high;
        results[i] = holds ? wrap_add(x.base.constant, scratch_a_[scratch_a_.size() == 1 ? 0 : i])
                           : wrap_add(y.base.constant, scratch_b_[scratch_b_.size() == 1 ? 0 : i]);
    }
    if (axis >= 0)
        made->axes[axis] = compress(arena_, results);
    else
        made->base.constant = results[0];
    Value value = from_block(made);
    value.taint = taint;
    return value;
}

Value Evaluator::extreme(const Expr& e, bool most, const Value& a, const Value& b) {
    Value made = with(ValueKind::integer, a, b);
    if (is_number(a) && is_number(b)) {
        made.integer = most ? std::max(number_of(a), number_of(b)) : std::min(number_of(a), number_of(b));
        return made;
    }
    if (a.kind == ValueKind::opaque) return opaque(*a.why, made.taint);
    if (b.kind == ValueKind::opaque) return opaque(*b.why, made.taint);
    if ((a.kind == ValueKind::lazy || b.kind == ValueKind::lazy || a.kind == ValueKind::mask ||
         b.kind == ValueKind::mask) &&
        is_known(a) && is_known(b))
        return lazily(e, most ? Lazy::What::most : Lazy::What::least, Operator::add, {a, b});
    const Block* first = as_block(a);
    const Block* second = as_block(b);
    if (first == nullptr || second == nullptr || first->param >= 0 || second->param >= 0)
        return opaque(e, made.taint);
    if (first->rank == 0 && second->rank == 0) {
        const Affine difference = first->base - second->base;
        const bool less = lowest_highest(difference, true).constant <= 0,
                   more = lowest_highest(difference, false).constant >= 0;
        if (!less && !more) {
            fits_while_same_sign(difference);
            return not_affine(e);
        }
        made = from_block(less == most ? second : first);
        if (less && more) made = from_block(first);
        made.taint = a.taint | b.taint;
        return made;
    }
    const Value condition = compare(e, most ? Operator::greater : Operator::less, a, b);
    return stopped() ? Value{} : where(e, condition, a, b);
}

}  // namespace syncopate::kernel::triton
