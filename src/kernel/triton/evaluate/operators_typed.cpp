// Results in the types that the device computes them in. The operators themselves know no type: what they
// make is held against that of the result, the extreme values of a block and of all programs of a line. What
// leaves an unsigned type wraps around, element by element, as hashes mean it to. What leaves a signed one is
// a mistake wherever an address depends on it: it is unknown from then on, and told where an access needs it.
//
//      row * stride                 int32 * int32: at most 2^31 - 1, or the offset is not known
//      row.to(tl.int64) * stride    int64
#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/evaluate/operators.hpp"

namespace syncopate::kernel::triton {
namespace {

/// Whether the low bits of the result follow from those of the operands alone.
bool keeps_low_bits(Operator op) {
    return op != Operator::floor_divide && op != Operator::modulo && op != Operator::shift_right &&
           op != Operator::divide && op != Operator::power;
}

/// Whether some symbol from the first-th on moves the block.
bool moves_with(const Block& block, std::size_t first) {
    const auto moves = [&](const Affine& a) {
        return std::any_of(a.slope.begin() + static_cast<std::ptrdiff_t>(first), a.slope.end(),
                           [](std::int64_t slope) { return slope != 0; });
    };
    if (moves(block.base)) return true;
    for (std::int32_t j = 0; j < block.rank; ++j) {
        for (std::int32_t p = 0; p < block.axes[j].count; ++p)
            if (moves(block.axes[j].pieces[p].base)) return true;
    }
    return false;
}

}  // namespace

/// The type of a result of both; that of two constants is Python's.
IntegerType Evaluator::type_of_both(const Value& a, const Value& b) const {
    const IntegerType x = type_of(a), y = type_of(b);
    if (x == y || mathematical_) return mathematical_ ? IntegerType::python : x;
    // A condition takes the type of a constant that it meets, which is of a higher kind.
    if (x == IntegerType::int1 && y == IntegerType::python && b.kind == ValueKind::integer)
        return promoted(x, type_of_constant(b.integer));
    if (y == IntegerType::int1 && x == IntegerType::python && a.kind == ValueKind::integer)
        return promoted(y, type_of_constant(a.integer));
    return promoted(x, y);
}

/// A constant as it is once it is assigned to a variable, or given back.
Value Evaluator::as_variable(const Value& value) {
    Value made = value;
    if (value.kind == ValueKind::integer && value.type == IntegerType::python)
        made.type = type_of_constant(value.integer);
    if (value.kind == ValueKind::real && !value.runtime) {
        made = real_value(as_fp32(value.real));
        made.element = triton::element_of(plan::DType::fp32);
        made.taint = value.taint;
    }
    if (value.kind != ValueKind::tuple) return made;
    const auto is_constant = [](const Value& item) {
        return item.kind == ValueKind::tuple || (item.kind == ValueKind::real && !item.runtime) ||
               (item.kind == ValueKind::integer && item.type == IntegerType::python);
    };
    const std::span<const Value> items(value.tuple->items, static_cast<std::size_t>(value.tuple->size));
    if (std::none_of(items.begin(), items.end(), is_constant)) return made;
    Tuple* tuple = arena_.make<Tuple>();
    tuple->size = value.tuple->size;
    tuple->items = arena_.make<Value>(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) tuple->items[i] = as_variable(items[i]);
    made.tuple = tuple;
    return made;
}

Value Evaluator::binary(const Expr& e, Operator op, const Value& a, const Value& b) {
    return of_operator(typed_binary(e, op, a, b), op, a, b);
}

Value Evaluator::typed_binary(const Expr& e, Operator op, const Value& a, const Value& b) {
    const IntegerType type = type_of_both(a, b);
    // ptr - x is ptr + -x, and that an unsigned number again.
    const bool is_address = a.kind == ValueKind::pointer || (a.kind == ValueKind::lazy && a.lazy->param >= 0);
    if (op == Operator::subtract && is_address && is_unsigned(type) && bits_of(type) < 64 && has_type(b)) {
        const Value zero = make_integer(0, false, 0);
        const Value back = of_type(e, of_both(unbounded(e, op, zero, b), b, b), type);
        return stopped() ? Value{} : unbounded(e, Operator::add, a, back);
    }
    if (type == IntegerType::python || !has_type(a) || !has_type(b)) return unbounded(e, op, a, b);
    if (!keeps_low_bits(op)) {
        const Value x = in_type(e, a, type), y = in_type(e, b, type);
        return stopped() ? Value{} : of_type(e, unbounded(e, op, x, y), type);
    }
    // Products of 32 unsigned bits each may leave 64 signed ones.
    if (op == Operator::multiply && type == IntegerType::uint32) {
        if (a.kind == ValueKind::integer && b.kind == ValueKind::integer)
            return in_type(e, of_both(make_integer(wrap_multiply(a.integer, b.integer), true, 0), a, b),
                           type);
        if (is_known(a) && is_known(b) && !is_product_small(a, b))
            return of_type(e, of_both(lazily(e, Lazy::What::arithmetic, op, {a, b}), a, b), type);
    }
    return of_type(e, unbounded(e, op, a, b), type);
}

Value Evaluator::unary(const Expr& e, const Value& a) {
    const IntegerType type = type_of(a);
    const Value made = described(unbounded(e, a), element_of_value(a), known_shape(a));
    return type == IntegerType::python || mathematical_ || !has_type(a) ? made : of_type(e, made, type);
}

/// What an operation has made, whose result is of this type.
Value Evaluator::of_type(const Expr& e, const Value& made, IntegerType type) {
    if (stopped()) return {};
    if (made.kind == ValueKind::integer) {  // most are, and most fit
        const IntegerRange limits = limits_of(type);
        if (made.integer < limits.least || made.integer > limits.most) return left_type(e, made, type);
        Value fits = made;
        fits.type = type;
        return fits;
    }
    if (!has_type(made) || made.kind == ValueKind::boolean || made.kind == ValueKind::mask) return made;
    if (made.kind == ValueKind::block && !fits_type(*made.block, type)) return left_type(e, made, type);
    Value fits = made;
    fits.type = type;
    if (made.kind == ValueKind::lazy) made.lazy->type = type;
    return fits;
}

/// The same elements in another type: what is left of their bits.
Value Evaluator::in_type(const Expr& e, const Value& value, IntegerType type) {
    if (!has_type(value) || type == IntegerType::python) return value;
    const IntegerRange limits = limits_of(type);
    bool keeps = true;
    if (is_number(value)) keeps = number_of(value) >= limits.least && number_of(value) <= limits.most;
    if (value.kind == ValueKind::block) keeps = fits_type(*value.block, type);
    if (value.kind == ValueKind::lazy) {
        const IntegerRange own = limits_of(value.type);
        keeps = own.least >= limits.least && own.most <= limits.most;
    }
    if (!keeps) return wrapped(e, value, type);
    Value made = value;
    made.type = type;
    return made;
}

/// … which do not fit it.
Value Evaluator::wrapped(const Expr& e, const Value& value, IntegerType type) {
    if (bits_of(type) == 64) {  // no 64 signed bits hold it
        if (value.kind == ValueKind::block && moves_with(*value.block, 0)) return not_affine(e);
        std::int64_t low = is_number(value) ? number_of(value) : limits_of(value.type).least;
        if (value.kind == ValueKind::block) low = range_of(*value.block).first;
        note_overflow(e, type, low);
        return opaque(e, value.taint);
    }
    const IntegerRange limits = limits_of(type);
    const auto number = [](std::int64_t n) { return make_integer(n, true, 0); };
    Value made = unbounded(e, Operator::subtract, value, number(limits.least));
    if (!stopped()) made = unbounded(e, Operator::bit_and, made, number(limits.most - limits.least));
    if (!stopped()) made = unbounded(e, Operator::add, made, number(limits.least));
    if (stopped()) return {};
    made.type = type;
    return made;
}

/// An operation's result that does not fit the type that it is of.
Value Evaluator::left_type(const Expr& e, const Value& made, IntegerType type) {
    const IntegerRange limits = limits_of(type);
    std::int64_t low = made.integer, high = made.integer;
    if (made.kind == ValueKind::block) {
        const Block& block = *made.block;
        std::tie(low, high) = range_of(block);
        if (moves_with(block, 0)) {  // it may fit in some programs, or iterations
            Affine highest = block.base, lowest = block.base * -1;
            highest.constant =
                wrap_add(high, wrap_add(block.base.constant, -lowest_highest(block.base, true).constant));
            lowest.constant =
                wrap_add(-low, wrap_add(lowest_highest(block.base, false).constant, -block.base.constant));
            if (high > limits.most) fits_while_below(highest, limits.most + 1);
            if (low < limits.least) fits_while_below(lowest, 1 - limits.least);
            // On a line it is only unknown, as most that overflows is data; what needs it ends the line.
            if (!on_line() || moves_with(block, 1) || is_unsigned(type)) return not_affine(e);
        }
    }
    if (is_unsigned(type) && bits_of(type) < 64) return wrapped(e, made, type);
    note_overflow(e, type, low < limits.least ? low : high);
    return opaque(e, made.taint);
}

/// Whether a value is unknown since it overflows in some program of the line: in others, alone, it may be
/// known.
bool Evaluator::is_lost_on_line(const Value& value) const {
    return value.kind == ValueKind::opaque && on_line() && !overflows_.empty() &&
           overflows_.contains(value.why);
}

void Evaluator::note_overflow(const Expr& e, IntegerType type, std::int64_t value) {
    overflows_.insert_or_assign(&e, Overflow{e.where, type, value, program_text()});
}

/// "`row * stride` leaves int32 in program 3, where it comes to 4294967296: …"
std::string Evaluator::overflow_text(const Overflow& overflow) const {
    const bool cast_helps = bits_of(overflow.type) < 64;
    return quoted(module_, overflow.where) + " leaves " + std::string(text_of(overflow.type)) + " in " +
           overflow.program + ", where it comes to " + std::to_string(overflow.value) +
           (cast_helps ? ": cast an operand first, as in `.to(tl.int64)`"
                       : ": compute addresses in int64, from less than 2^63");
}

/// Whether all elements fit, in all iterations of the loops around.
bool Evaluator::fits_type(const Block& block, IntegerType type) const {
    if (type == IntegerType::int64) return true;
    const auto [low, high] = range_of(block);
    const IntegerRange limits = limits_of(type);
    return low >= limits.least && high <= limits.most;
}

/// Whether no product of their elements leaves 64 bits.
bool Evaluator::is_product_small(const Value& a, const Value& b) const {
    Wide product = 1;
    for (const Value* v : {&a, &b}) {
        IntegerRange range = limits_of(type_of(*v));
        if (is_number(*v)) range = {number_of(*v), number_of(*v)};
        if (v->kind == ValueKind::block) std::tie(range.least, range.most) = range_of(*v->block);
        product *= std::max(static_cast<Wide>(range.most), -static_cast<Wide>(range.least));
    }
    return product <= INT64_MAX;
}

/// Elements that have been worked out, in the type that they are of. False: one leaves it that may not.
bool Evaluator::keep_in_type(const Lazy& lazy, std::vector<std::int64_t>& elements) {
    if (lazy.type == IntegerType::python || lazy.type == IntegerType::int64) return true;
    const IntegerRange limits = limits_of(lazy.type);
    const bool wraps = is_unsigned(lazy.type) && bits_of(lazy.type) < 64;
    for (std::int64_t& element : elements) {
        if (element >= limits.least && element <= limits.most) continue;
        if (!wraps) {
            note_overflow(*lazy.e, lazy.type, element);
            overflowed_ = lazy.e;
            return false;
        }
        element &= limits.most;
    }
    return true;
}

}  // namespace syncopate::kernel::triton
