// Builtins that make numbers: counts, extremes, loop ranges, conversions; and assertions.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

#include "kernel/triton/builtins/builtin_call.hpp"
#include "kernel/triton/evaluate/operators.hpp"

namespace syncopate::kernel::triton {

BuiltinCall::Made BuiltinCall::cdiv() {
    if (arguments_.size() != 2) return unknown();
    const Value& a = arguments_[0];
    const Value& b = arguments_[1];
    if (a.kind == ValueKind::integer && b.kind == ValueKind::integer) {
        if (b.integer == 0) return ev_.division_by_zero(e_);
        if (b.integer == -1) return unknown();
        const std::int64_t up = wrap_add(wrap_add(a.integer, b.integer), -1);
        return ev_.count(e_, a, b, tainted(make_integer(up / b.integer, runtime_, taint_)), frame_);
    }
    if (a.kind == ValueKind::opaque || b.kind == ValueKind::opaque)
        return ev_.opaque(a.kind == ValueKind::opaque ? *a.why : *b.why, taint_);
    const Value up =
        ev_.binary(e_, Operator::add, ev_.binary(e_, Operator::add, a, b), make_integer(-1, false, 0));
    return ev_.stopped() ? Value{} : ev_.binary(e_, Operator::floor_divide, up, b);
}

/// minimum and maximum of values; tl.min(x, axis) and tl.max reduce a block, which has one known axis number.
BuiltinCall::Made BuiltinCall::extreme() {
    const bool may_reduce = e_.text == "min" || e_.text == "max";
    if (may_reduce) {
        const Made reduced = by_name();
        if (reduced && (arguments_.size() < 2 || rank_of(arguments_[0]) > 0)) return tainted(*reduced);
    }
    if (arguments_.size() < 2) return unknown();  // tl.max(block): data
    if (arguments_.size() == 2 && arguments_[0].kind == ValueKind::opaque)
        return ev_.opaque(*arguments_[0].why, taint_);
    if (may_reduce && std::any_of(arguments_.begin(), arguments_.end(), [](const Value& v) {
            return (v.kind == ValueKind::block && v.block->rank > 0) || v.kind == ValueKind::lazy;
        }))
        return unknown();
    Value made = arguments_[0];
    for (std::size_t i = 1; i < arguments_.size() && !ev_.stopped(); ++i)
        made = ev_.extreme(e_, builtin_ == Builtin::maximum, made, arguments_[i]);
    return ev_.stopped() ? Value{} : made;
}

BuiltinCall::Made BuiltinCall::where() {
    if (arguments_.size() != 3) return unknown();
    return ev_.where(e_, arguments_[0], arguments_[1], arguments_[2]);
}

/// What only tells the compiler something of a value.
BuiltinCall::Made BuiltinCall::same() { return arguments_.empty() ? unknown() : arguments_[0]; }

BuiltinCall::Made BuiltinCall::ignore() { return Value{}; }

BuiltinCall::Made BuiltinCall::static_assertion() {
    if (arguments_.empty()) return Value{};
    const std::optional<bool> holds = ev_.truth(*e_.kids[0], arguments_[0]);
    if (ev_.stopped() || !holds || *holds) return Value{};
    return fail("the kernel's own assertion fails for these arguments: " +
                triton::quoted(ev_.module_, e_.kids[0]->where) + "; give --args for which it holds");
}

/// tl.swizzle2d(i, j, size_i, size_j, size_g): the coordinates in groups of size_g rows.
BuiltinCall::Made BuiltinCall::swizzle2d() {
    for (std::size_t i = 0; i < 5; ++i) {
        if (i >= arguments_.size() || arguments_[i].kind != ValueKind::integer) return unknown();
    }
    const std::int64_t i = arguments_[0].integer, j = arguments_[1].integer, size_i = arguments_[2].integer;
    const std::int64_t size_j = arguments_[3].integer, size_g = arguments_[4].integer;
    if (size_j <= 0 || size_g <= 0) return unknown();
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    for (const std::int64_t x : {i, j, size_i, size_j, size_g}) {
        if (x < 0 || x > kMost) return unknown();
    }
    const std::int64_t ij = i * size_j + j, size_gj = size_g * size_j;
    const std::int64_t off_i = ij / size_gj * size_g;
    const std::int64_t rows = std::min(size_i - off_i, size_g);
    if (rows <= 0) return ev_.division_by_zero(e_);
    const std::int64_t within = ij % size_gj;
    Tuple* tuple = ev_.arena_.make<Tuple>();
    tuple->size = 2;
    tuple->items = ev_.arena_.make<Value>(2);
    tuple->items[0] = make_integer(off_i + within % rows, true, taint_);
    tuple->items[1] = make_integer(within / rows, true, taint_);
    Value made;
    made.kind = ValueKind::tuple;
    made.tuple = tuple;
    return tainted(made);
}

/// Also of static_range.
BuiltinCall::Made BuiltinCall::range() {
    Iterable* range = ev_.arena_.make<Iterable>();
    range->unrolled = builtin_ == Builtin::static_range;
    std::array<Affine, 3> parts{Affine{0, {}}, Affine{0, {}}, Affine{1, {}}};
    std::array<Value, 3> given{};
    const std::size_t positional = arguments_.size();
    if (positional == 1) given[1] = arguments_[0];
    for (std::size_t i = 0; positional >= 2 && i < std::min<std::size_t>(3, positional); ++i)
        given[i] = arguments_[i];
    const std::array<std::string_view, 3> names{"arg1", "arg2", "step"};
    for (std::size_t i = 0; i < 3; ++i) {
        const Expr* named = ev_.keyword(e_, names[i]);
        if (given[i].kind == ValueKind::undefined && named != nullptr)
            given[i] = ev_.evaluate(*named, frame_);
        if (ev_.stopped()) return Value{};
        std::array<Affine, kRank> number{};
        std::int32_t count = 0;
        if (given[i].kind == ValueKind::undefined) continue;
        if (given[i].kind == ValueKind::tuple || !ev_.numbers(given[i], number, count)) range->known = false;
        if (given[i].kind == ValueKind::opaque) range->why = given[i].why;
        parts[i] = number[0];
        taint_ |= given[i].taint;
    }
    if (range->known && !parts[2].is_constant()) return ev_.not_affine(e_);
    if (range->known && (parts[2].constant == 0 || parts[2].constant == INT64_MIN))
        return fail("the step of " + quoted() + " is zero: write another one");
    range->start = parts[0];
    range->stop = parts[1];
    range->step = parts[2].constant;
    Value made;
    made.kind = ValueKind::iterable;
    made.iterable = range;
    return tainted(made);
}

BuiltinCall::Made BuiltinCall::absolute() {
    if (arguments_.size() != 1) return std::nullopt;
    const Value& value = arguments_[0];
    if (value.kind == ValueKind::integer) {
        const std::int64_t number = value.integer < 0 ? wrap_multiply(value.integer, -1) : value.integer;
        return tainted(make_integer(number, runtime_, taint_));
    }
    if (!Evaluator::is_known(value)) return std::nullopt;
    return tainted(ev_.lazily(e_, What::absolute, Operator::add, {value}));
}

BuiltinCall::Made BuiltinCall::length() {
    if (arguments_.size() != 1 || arguments_[0].kind != ValueKind::tuple) return std::nullopt;
    return make_integer(arguments_[0].tuple->size, false, taint_);
}

BuiltinCall::Made BuiltinCall::to_int() {
    if (arguments_.size() != 1) return std::nullopt;
    if (arguments_[0].kind == ValueKind::integer) return arguments_[0];
    if (arguments_[0].kind != ValueKind::boolean) return std::nullopt;
    return tainted(make_integer(arguments_[0].boolean ? 1 : 0, runtime_, taint_));
}

BuiltinCall::Made BuiltinCall::to_float() {
    if (arguments_.size() != 1 || arguments_[0].kind != ValueKind::text) return std::nullopt;
    Value made;
    made.kind = ValueKind::real;
    made.real = std::strtod(arguments_[0].text->c_str(), nullptr);
    return tainted(made);
}

}  // namespace syncopate::kernel::triton
