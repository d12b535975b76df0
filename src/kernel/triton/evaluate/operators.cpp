// Arithmetic on abstract values: exact on numbers, and for the rest which rule applies to the operands.
#include "kernel/triton/evaluate/operators.hpp"

#include "kernel/triton/evaluate/evaluate.hpp"

namespace syncopate::kernel::triton {

/// As if numbers were of any size, as what follows is.
Value Evaluator::unbounded(const Expr& e, const Value& a) {
    Value made = with(a.kind, a, a);
    if (a.kind == ValueKind::opaque || e.op == Operator::positive) return a;
    if (e.op == Operator::negative) {
        if (a.kind == ValueKind::real) return made.real = -a.real, made;
        if (a.kind == ValueKind::between) return made.between = {-a.between.most, -a.between.least}, made;
        if (is_number(a))
            return made.kind = ValueKind::integer, made.integer = wrap_multiply(number_of(a), -1), made;
        if (a.kind == ValueKind::block) {
            made = scaled(e, *a.block, -1);
            made.taint = a.taint;
            return made;
        }
        if (a.kind == ValueKind::lazy || a.kind == ValueKind::mask)
            return lazily(e, Lazy::What::arithmetic, Operator::subtract, {make_integer(0, false, 0), a});
    } else {
        if (is_number(a)) return made.kind = ValueKind::integer, made.integer = ~number_of(a), made;
        if (a.kind == ValueKind::mask) return mask_inverted(e, a);
        if (is_block(a) || a.kind == ValueKind::lazy)  // -x - 1
            return lazily(e, Lazy::What::arithmetic, Operator::subtract, {make_integer(-1, false, 0), a});
    }
    return opaque(e, a.taint);
}

Value Evaluator::integer_binary(const Expr& e, Operator op, std::int64_t a, std::int64_t b, bool runtime) {
    Value made;
    made.kind = ValueKind::integer;
    bool overflow = false;
    switch (op) {
        case Operator::add: overflow = __builtin_add_overflow(a, b, &made.integer); break;
        case Operator::subtract: overflow = __builtin_sub_overflow(a, b, &made.integer); break;
        case Operator::multiply: overflow = __builtin_mul_overflow(a, b, &made.integer); break;
        case Operator::floor_divide:
        case Operator::modulo: {
            if (b == 0 || (b == -1 && a == INT64_MIN)) {
                overflow = b != 0;
                break;
            }
            const std::int64_t quotient = a / b - (!runtime && a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
            made.integer = op == Operator::modulo ? a - quotient * b : quotient;
            break;
        }
        case Operator::power: {
            if (b < 0) return opaque(e, 0);
            made.integer = 1;
            if (a == 0 || a == 1 || a == -1)
                made.integer = b == 0 || a == 1 ? 1 : a == 0 ? 0 : b % 2 == 0 ? 1 : -1;
            else  // ends after 63 rounds at the latest
                for (std::int64_t i = 0; i < b && !overflow; ++i)
                    overflow = __builtin_mul_overflow(made.integer, a, &made.integer);
            break;
        }
        case Operator::shift_left:
            if (b < 0 || b > 63) return opaque(e, 0);
            if (b == 63) {
                overflow = a != 0;
                made.integer = 0;
                break;
            }
            overflow = __builtin_mul_overflow(a, std::int64_t{1} << b, &made.integer);
            break;
        case Operator::shift_right:
            if (b < 0 || b > 63) return opaque(e, 0);
            made.integer = a >> b;
            break;
        case Operator::bit_and: made.integer = a & b; break;
        case Operator::bit_or: made.integer = a | b; break;
        case Operator::bit_xor: made.integer = a ^ b; break;
        default: return opaque(e, 0);
    }
    if ((op == Operator::floor_divide || op == Operator::modulo) && b == 0) return division_by_zero(e);
    if (overflow)
        return fail(e.where, quoted(module_, e.where) + " does not fit 64 bits: give smaller --args");
    return made;
}

/// An address in `memory` that is not known, because of `why`.
Value Evaluator::lost_pointer(std::int32_t memory, const Expr* why) {
    LostPointer* lost = arena_.make<LostPointer>();
    lost->param = memory;
    lost->why = why;
    Value made;
    made.kind = ValueKind::lost_pointer;
    made.lost = lost;
    return made;
}

Value Evaluator::unbounded(const Expr& e, Operator op, const Value& a, const Value& b) {
    if (op == Operator::divide && is_number(a) && is_number(b)) return real_binary(e, op, a, b);
    if (a.kind == ValueKind::integer && b.kind == ValueKind::integer) {
        const bool shifts = op == Operator::shift_left || op == Operator::shift_right;
        if (shifts && (b.integer < 0 || b.integer > 63)) {
            return fail(e.where, quoted(module_, e.where) + " shifts by " + std::to_string(b.integer) +
                                     ": give --args for which it shifts by 0 to 63");
        }
        const bool divides = op == Operator::floor_divide || op == Operator::modulo;
        // A constant in a variable is still Python's to the interpreter, and a tensor to the compiler.
        const bool held = !a.runtime && !b.runtime && type_of_both(a, b) != IntegerType::python;
        if (divides && held && b.integer != 0 && b.integer != -1 && a.integer % b.integer != 0 &&
            (a.integer < 0) != (b.integer < 0))
            return opaque(e, a.taint | b.taint, "which the GPU rounds towards 0, and the interpreter down");
        return of_both(integer_binary(e, op, a.integer, b.integer, a.runtime || b.runtime), a, b);
    }
    for (const Value* v : {&a, &b}) {
        if (v->kind == ValueKind::lost_pointer) return of_both(*v, a, b);
    }
    if (a.kind == ValueKind::opaque || b.kind == ValueKind::opaque) return unknown_binary(op, a, b);
    if (a.kind == ValueKind::mask || b.kind == ValueKind::mask ||
        (a.kind == ValueKind::boolean && b.kind == ValueKind::boolean)) {
        if (const auto made = mask_binary(e, op, a, b)) return *made;
    }
    if ((a.kind == ValueKind::lazy || b.kind == ValueKind::lazy) && is_known(a) && is_known(b)) {
        if (op == Operator::divide || op == Operator::power || op == Operator::matmul)
            return opaque(e, a.taint | b.taint);
        return of_both(lazily(e, Lazy::What::arithmetic, op, {a, b}), a, b);
    }
    if (is_real(a) || is_real(b)) return real_binary(e, op, a, b);
    if (is_number(a) && is_number(b)) {
        const bool runtime = a.runtime || b.runtime;
        return of_both(integer_binary(e, op, number_of(a), number_of(b), runtime), a, b);
    }
    if ((is_block(a) || is_number(a)) && (is_block(b) || is_number(b))) return block_binary(e, op, a, b);
    return opaque(e, a.taint | b.taint);
}

/// One of the operands is unknown.
Value Evaluator::unknown_binary(Operator op, const Value& a, const Value& b) {
    const Value& unknown = a.kind == ValueKind::opaque ? a : b;
    const Value& other = a.kind == ValueKind::opaque ? b : a;
    const std::int32_t memory = other.kind == ValueKind::lazy ? other.lazy->param : param_of(other);
    if (memory >= 0) return of_both(lost_pointer(memory, unknown.why), a, b);
    const bool joins = other.kind == ValueKind::mask && (op == Operator::bit_and || op == Operator::bit_or);
    if (joins && constant_of(*other.mask) == (op == Operator::bit_or))  // all | data, none & data
        return of_both(constant_mask(shape_of(other), op == Operator::bit_or), a, b);
    const bool multiplies = other.kind == ValueKind::mask && op == Operator::multiply &&
                            unknown.element == element_of(plan::DType::boolean);
    if ((joins && op == Operator::bit_and) || multiplies) {
        not_affine_ = not_affine_ || is_lost_on_line(unknown);
        Mask* mask = arena_.make<Mask>();
        *mask = *other.mask;
        mask->exact = false;
        mask->form = nullptr;
        Value made;
        made.kind = ValueKind::mask;
        made.mask = mask;
        return of_both(made, a, b);
    }
    return opaque(*unknown.why, a.taint | b.taint);
}

/// One of the operands is a mask, or both are booleans; nullopt: an operation on numbers.
std::optional<Value> Evaluator::mask_binary(const Expr& e, Operator op, const Value& a, const Value& b) {
    const auto is_condition = [](const Value& v) {
        return type_of(v) == IntegerType::int1 || v.kind == ValueKind::boolean || v.kind == ValueKind::mask;
    };
    const bool conditions = is_condition(a) && is_condition(b);
    const bool masks = a.kind == ValueKind::mask || b.kind == ValueKind::mask;
    if (conditions && (op == Operator::bit_and || (op == Operator::multiply && masks)))
        return masks_joined(e, a, b, true);
    if (conditions && op == Operator::bit_or) return masks_joined(e, a, b, false);
    if (conditions && op == Operator::bit_xor && is_known(a) && is_known(b))
        return of_both(compare(e, Operator::not_equal, a, b), a, b);
    if (a.kind != ValueKind::mask && b.kind != ValueKind::mask) return std::nullopt;
    // as 0 and 1
    if (op == Operator::divide || op == Operator::power || op == Operator::matmul)
        return opaque(e, a.taint | b.taint);
    return of_both(lazily(e, Lazy::What::arithmetic, op, {a, b}), a, b);
}

/// One of the operands is a real number, or they are divided. Python computes those of constants, in double.
Value Evaluator::real_binary(const Expr& e, Operator op, const Value& a, const Value& b) {
    if (!is_real_or_number(a) || !is_real_or_number(b)) return opaque(e, a.taint | b.taint);
    if (a.runtime || b.runtime) {
        const auto known = computed(op, interval_of(a), interval_of(b));
        return known ? of_both(real_value(*known), a, b) : opaque(e, a.taint | b.taint, kRounded);
    }
    Value made;
    made.kind = ValueKind::real;
    switch (op) {
        case Operator::add: made.real = real_of(a) + real_of(b); break;
        case Operator::subtract: made.real = real_of(a) - real_of(b); break;
        case Operator::multiply: made.real = real_of(a) * real_of(b); break;
        case Operator::divide:
            if (real_of(b) == 0) return division_by_zero(e);
            made.real = real_of(a) / real_of(b);
            break;
        default: return opaque(e, a.taint | b.taint);
    }
    return of_both(made, a, b);
}

/// The operands are blocks, pointers and numbers, not both numbers.
Value Evaluator::block_binary(const Expr& e, Operator op, const Value& a, const Value& b) {
    const bool pointers = a.kind == ValueKind::pointer || b.kind == ValueKind::pointer;
    if (a.kind == ValueKind::pointer && b.kind == ValueKind::pointer) return opaque(e, a.taint | b.taint);
    switch (op) {
        case Operator::add: return of_both(add(e, a, b, 1), a, b);
        case Operator::subtract:
            if (b.kind == ValueKind::pointer) break;
            return of_both(add(e, a, b, -1), a, b);
        case Operator::multiply:
            if (pointers) break;
            if (is_number(b)) return of_both(scaled(e, *a.block, number_of(b)), a, b);
            if (is_number(a)) return of_both(scaled(e, *b.block, number_of(a)), a, b);
            return of_both(elementwise(e, op, a, b), a, b);
        case Operator::shift_left:
            if (pointers || !is_number(b) || number_of(b) < 0 || number_of(b) > 62) break;
            return of_both(scaled(e, *a.block, std::int64_t{1} << number_of(b)), a, b);
        default:
            if (pointers || op == Operator::divide) break;
            return of_both(elementwise(e, op, a, b), a, b);
    }
    if (!pointers) return opaque(e, a.taint | b.taint);
    return of_both(lost_pointer((a.kind == ValueKind::pointer ? a : b).block->param, &e), a, b);
}

}  // namespace syncopate::kernel::triton
