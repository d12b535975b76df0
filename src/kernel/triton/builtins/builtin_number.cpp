// Builtins that make numbers: counts, extremes, loop ranges, conversions; and assertions.
#include <algorithm>
#include <array>
#include <bit>
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
        const IntegerType type = ev_.type_of_both(a, b);
        const Value held = ev_.of_type(e_, make_integer(up, runtime_, taint_), type);
        if (held.kind != ValueKind::integer) return held;
        const Value made = tainted(make_integer(held.integer / b.integer, runtime_, taint_, type));
        const bool stays =
            ev_.module_.text(e_.where).starts_with("triton.");  // triton.cdiv of constants is one
        return ev_.count(e_, a, b, stays ? made : ev_.as_variable(made), frame_);
    }
    if (a.kind == ValueKind::opaque || b.kind == ValueKind::opaque)
        return ev_.opaque(a.kind == ValueKind::opaque ? *a.why : *b.why, taint_);
    const Value less = ev_.binary(e_, Operator::subtract, b, make_integer(1, false, 0));
    const Value up = ev_.stopped() ? Value{} : ev_.binary(e_, Operator::add, a, less);
    return ev_.stopped() ? Value{} : ev_.binary(e_, Operator::floor_divide, up, b);
}

/// triton.next_power_of_2 of a constant; of what only a program knows Triton does not compile it.
BuiltinCall::Made BuiltinCall::next_power() {
    if (arguments_.size() != 1 || arguments_[0].kind != ValueKind::integer || runtime_) return unknown();
    const std::int64_t n = arguments_[0].integer;
    if (n < 0 || n > std::int64_t{1} << 62) return unknown();
    return make_integer(n == 0 ? 0 : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n))),
                        false, taint_);
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
    std::vector<Value> values(arguments_.begin(), arguments_.end());
    const bool constants = std::all_of(values.begin(), values.end(),
                                       [](const Value& v) { return type_of(v) == IntegerType::python; });
    if (!(may_reduce && constants) && !made_alike(values)) return Value{};
    Value made = values[0];
    for (std::size_t i = 1; i < values.size() && !ev_.stopped(); ++i) {
        const IntegerType type = type_of(made);
        made = ev_.extreme(e_, builtin_ == Builtin::maximum, made, values[i]);
        if (has_type(made)) made.type = type;
    }
    return ev_.stopped() ? Value{} : made;
}

/// Gives numbers and blocks that meet the type that they have in common; false where that failed.
bool BuiltinCall::made_alike(std::span<Value> values) {
    for (Value& value : values) value = ev_.as_variable(value);
    Value common = values[0];
    for (const Value& value : values) common.type = ev_.type_of_both(common, value);
    for (Value& value : values) {
        value = ev_.in_type(e_, value, common.type);
        if (ev_.stopped()) return false;
    }
    return true;
}

BuiltinCall::Made BuiltinCall::where() {
    const Value condition = argument(0, "condition");
    std::array<Value, 2> ways{argument(1, "x"), argument(2, "y")};
    if (ev_.stopped()) return Value{};
    if (condition.kind == ValueKind::undefined || ways[0].kind == ValueKind::undefined ||
        ways[1].kind == ValueKind::undefined)
        return unknown();
    if (!made_alike(ways)) return Value{};
    Value made = ev_.where(e_, condition, ways[0], ways[1]);
    if (has_type(made)) made.type = type_of(ways[0]);
    return made;
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
    IntegerType type = IntegerType::python;
    for (std::size_t k = 0; k < 5; ++k) type = promoted(type, type_of(arguments_[k]));
    const std::int64_t ij = i * size_j + j, size_gj = size_g * size_j;
    for (const std::int64_t product : {ij, size_gj}) {
        const Value held = ev_.of_type(e_, make_integer(product, true, taint_), type);
        if (held.kind != ValueKind::integer || held.integer != product) return unknown();
    }
    const std::int64_t off_i = ij / size_gj * size_g;
    const std::int64_t rows = std::min(size_i - off_i, size_g);
    if (rows <= 0) return ev_.division_by_zero(e_);
    const std::int64_t within = ij % size_gj;
    Tuple* tuple = ev_.arena_.make<Tuple>();
    tuple->size = 2;
    tuple->items = ev_.arena_.make<Value>(2);
    tuple->items[0] = make_integer(off_i + within % rows, true, taint_, type);
    tuple->items[1] = make_integer(within / rows, true, taint_, type);
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
    const std::array<std::string_view, 3> names{"arg1", "arg2", "step"};
    for (std::size_t i = 0; i < 3; ++i) {
        const Expr* named = ev_.keyword(e_, names[i]);
        if (i < arguments_.size())
            given[i] = arguments_[i];
        else if (named != nullptr)
            given[i] = ev_.evaluate(*named, frame_);
        if (ev_.stopped()) return Value{};
        if (given[i].kind == ValueKind::none) given[i] = Value{};  // as where it is not given
    }
    if (given[1].kind == ValueKind::undefined) std::swap(given[0], given[1]);  // the end alone
    for (std::size_t i = 0; i < 3; ++i) {
        std::array<Affine, kRank> number{};
        std::int32_t count = 0;
        if (given[i].kind == ValueKind::undefined) continue;
        if (given[i].kind == ValueKind::tuple || !ev_.numbers(given[i], number, count)) range->known = false;
        if (given[i].kind == ValueKind::opaque) range->why = given[i].why;
        if (ev_.is_lost_on_line(given[i])) return ev_.not_affine(e_);
        parts[i] = number[0];
        if (!range->unrolled) range->type = promoted(range->type, type_of(ev_.as_variable(given[i])));
        taint_ |= given[i].taint;
    }
    if (!range->unrolled && range->type == IntegerType::python) range->type = IntegerType::int32;
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
        return ev_.of_type(e_, tainted(make_integer(number, runtime_, taint_)), type_of(value));
    }
    if (!Evaluator::is_known(value)) return std::nullopt;
    return ev_.of_type(e_, tainted(ev_.lazily(e_, What::absolute, Operator::add, {value})), type_of(value));
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
