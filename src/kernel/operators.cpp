// Arithmetic on abstract values.
#include <algorithm>
#include <cstdlib>

#include "kernel/evaluate.hpp"

namespace syncopate::kernel {
namespace {

constexpr std::int64_t kLargestExpanded = 1 << 16;  // indices of an axis looked at one by one

// b > 0
std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

Value with(ValueKind kind, const Value& a, const Value& b) {
    Value made;
    made.kind = kind;
    made.runtime = a.runtime || b.runtime;
    made.taint = a.taint | b.taint;
    return made;
}

bool is_block(const Value& v) { return v.kind == ValueKind::block || v.kind == ValueKind::pointer; }
bool is_number(const Value& v) { return v.kind == ValueKind::integer || v.kind == ValueKind::boolean; }
std::int64_t number_of(const Value& v) {
    return v.kind == ValueKind::boolean ? (v.boolean ? 1 : 0) : v.integer;
}

Block aligned(const Block& block, std::int32_t rank) {
    Block made = block;
    const std::int32_t shift = rank - block.rank;
    for (std::int32_t j = 0; j < rank; ++j) made.axes[j] = j < shift ? BlockAxis{} : block.axes[j - shift];
    made.rank = rank;
    return made;
}

Mask aligned(const Mask& mask, std::int32_t rank) {
    Mask made = mask;
    const std::int32_t shift = rank - mask.rank;
    for (std::int32_t j = 0; j < rank; ++j) made.axes[j] = j < shift ? MaskAxis{} : mask.axes[j - shift];
    made.rank = rank;
    return made;
}

/// The one axis along which a and b vary; -1 for none, -2 for several.
std::int32_t varying_axis(const Block& a, const Block& b) {
    std::int32_t found = -1;
    for (std::int32_t j = 0; j < a.rank; ++j) {
        if (a.axes[j].count == 0 && b.axes[j].count == 0) continue;
        if (found >= 0) return -2;
        found = j;
    }
    return found;
}

}  // namespace

Affine Evaluator::lowest_highest(const Affine& a, bool highest) const {
    Affine result{a.constant, {}};
    for (std::size_t s = 0; s < trips_.size(); ++s) {
        if ((a.slope[s] > 0) == highest)
            result.constant = wrap_add(result.constant, wrap_multiply(a.slope[s], trips_[s] - 1));
    }
    return result;
}

const Block* Evaluator::as_block(const Value& value) {
    if (is_block(value)) return value.block;
    if (!is_number(value)) return nullptr;
    Block* block = arena_.make<Block>();
    block->base.constant = number_of(value);
    return block;
}

Value Evaluator::from_block(const Block* block) {
    Value made;
    made.runtime = true;
    if (block->rank == 0 && block->param < 0 && block->base.is_constant()) {
        made.kind = ValueKind::integer;
        made.integer = block->base.constant;
        return made;
    }
    made.kind = block->param >= 0 ? ValueKind::pointer : ValueKind::block;
    made.block = block;
    return made;
}

Value Evaluator::name(const Expr& e, Frame& frame) {
    if (e.slot < 0) {
        Value made = opaque(e, 0);
        if (module_.find(e.text) < 0 && !module_.imports.contains(e.text)) {
            return fail(e.where,
                        "`" + e.text + "` is neither a variable of the kernel nor a constant of the file");
        }
        return made;
    }
    const Value& value = frame.slots[e.slot];
    if (value.kind == ValueKind::undefined)
        return fail(e.where, "`" + e.text + "` is used before it has a value");
    if (value.kind == ValueKind::missing) {
        const std::string& parameter = kernel_.parameters[static_cast<std::size_t>(value.integer)].name;
        return fail(e.where, "parameter `" + parameter + "` has no value: give --args " + parameter +
                                 "=… (or --tensor " + parameter + "=… if it is a tensor)");
    }
    if (e.source >= 0 && sources[static_cast<std::size_t>(e.source)].kind == TaintSource::Kind::carried_id) {
        Value made = value;
        TaintSource& source = sources[static_cast<std::size_t>(e.source)];
        if (value.kind != ValueKind::integer || value.integer != tile_id_) source.is_tile_id = false;
        made.taint = (value.taint & ~program_bits_) | std::uint64_t{1} << std::min(e.source, 63);
        return made;
    }
    return value;
}

Value Evaluator::evaluate(const Expr& e, Frame& frame) {
    if (error_ || !step(e.where)) return {};
    switch (e.kind) {
        case ExprKind::name: return name(e, frame);
        case ExprKind::literal: {
            Value made;
            if (const auto* i = std::get_if<std::int64_t>(&e.literal))
                made.kind = ValueKind::integer, made.integer = *i;
            else if (const auto* b = std::get_if<bool>(&e.literal))
                made.kind = ValueKind::boolean, made.boolean = *b;
            else if (const auto* r = std::get_if<double>(&e.literal))
                made.kind = ValueKind::real, made.real = *r;
            else if (const auto* t = std::get_if<std::string>(&e.literal))
                made.kind = ValueKind::text, made.text = t;
            else
                made.kind = ValueKind::none;
            return made;
        }
        case ExprKind::tuple: {
            Tuple* tuple = arena_.make<Tuple>();
            tuple->size = static_cast<std::int32_t>(e.kids.size());
            tuple->items = arena_.make<Value>(e.kids.size());
            for (std::size_t i = 0; i < e.kids.size(); ++i) {
                tuple->items[i] = evaluate(*e.kids[i], frame);
                if (stopped()) return {};
            }
            Value made;
            made.kind = ValueKind::tuple;
            made.tuple = tuple;
            return made;
        }
        case ExprKind::attribute: return attribute(e, frame);
        case ExprKind::call: return call(e, frame);
        case ExprKind::method: return method(e, frame);
        case ExprKind::subscript: return subscript(e, frame);
        case ExprKind::unary: {
            const Value a = evaluate(*e.kids[0], frame);
            return stopped() ? Value{} : unary(e, a);
        }
        case ExprKind::binary: {
            const Value a = evaluate(*e.kids[0], frame);
            if (stopped()) return {};
            const Value b = evaluate(*e.kids[1], frame);
            if (stopped()) return {};
            if (e.axis >= 0 && silent_ == 0) {
                const Value& side = e.axis_side == 0 ? a : b;
                std::int64_t& coord = coord_[static_cast<std::size_t>(e.axis)];
                if (side.kind == ValueKind::integer && coord < 0) coord = side.integer;
            }
            const Value made = binary(e, e.op, a, b);
            return e.is_count && !stopped() ? count(e, Value{}, b, made, frame) : made;
        }
        case ExprKind::compare: {
            const Value a = evaluate(*e.kids[0], frame);
            if (stopped()) return {};
            const Value b = evaluate(*e.kids[1], frame);
            return stopped() ? Value{} : compare(e, e.op, a, b);
        }
        case ExprKind::both:
        case ExprKind::either: {
            const Value a = evaluate(*e.kids[0], frame);
            if (stopped()) return {};
            if (a.kind == ValueKind::mask) {
                const Value b = evaluate(*e.kids[1], frame);
                return stopped() ? Value{} : masks_joined(e, a, b, e.kind == ExprKind::both);
            }
            const std::optional<bool> left = truth(*e.kids[0], a);
            if (stopped()) return {};
            if (left && *left == (e.kind == ExprKind::either)) return a;
            Value b = evaluate(*e.kids[1], frame);
            if (stopped()) return {};
            if (!left) {
                const std::optional<bool> right = truth(*e.kids[1], b);
                if (right && *right == (e.kind == ExprKind::either)) return b;
                return stopped() ? Value{} : opaque(e, a.taint | b.taint);
            }
            b.taint |= a.taint;
            b.runtime = b.runtime || a.runtime;
            return b;
        }
        case ExprKind::invert: {
            const Value a = evaluate(*e.kids[0], frame);
            if (stopped()) return {};
            const std::optional<bool> known = truth(*e.kids[0], a);
            if (stopped()) return {};
            if (!known) return opaque(e, a.taint);
            Value made = with(ValueKind::boolean, a, a);
            made.boolean = !*known;
            return made;
        }
        case ExprKind::conditional: {
            const Value condition = evaluate(*e.kids[1], frame);
            if (stopped()) return {};
            const std::optional<bool> known = truth(*e.kids[1], condition);
            if (stopped()) return {};
            if (known) {
                Value made = evaluate(*e.kids[*known ? 0 : 2], frame);
                made.taint |= condition.taint;
                return made;
            }
            const Value a = evaluate(*e.kids[0], frame);
            const Value b = evaluate(*e.kids[2], frame);
            if (stopped()) return {};
            return equal(a, b) && a.kind != ValueKind::opaque
                       ? a
                       : opaque(e, a.taint | b.taint | condition.taint);
        }
        case ExprKind::bind: {
            const Value a = evaluate(*e.kids[0], frame);
            if (!stopped() && e.slot >= 0) frame.slots[e.slot] = a;
            return a;
        }
        case ExprKind::slice:
        case ExprKind::unsupported: return opaque(e, 0);
    }
    return {};
}

std::optional<bool> Evaluator::truth(const Expr& e, const Value& value) {
    switch (value.kind) {
        case ValueKind::boolean: return value.boolean;
        case ValueKind::integer: return value.integer != 0;
        case ValueKind::real: return value.real != 0;
        case ValueKind::none: return false;
        case ValueKind::text: return !value.text->empty();
        case ValueKind::tuple: return value.tuple->size != 0;
        case ValueKind::descriptor:
        case ValueKind::block_pointer: return true;
        case ValueKind::pointer: return true;
        case ValueKind::block:
            if (value.block->rank == 0) {
                const std::int64_t low = lowest_highest(value.block->base, false).constant;
                const std::int64_t high = lowest_highest(value.block->base, true).constant;
                if (low > 0 || high < 0) return true;
            }
            (void)not_affine(e);
            return std::nullopt;
        default: return std::nullopt;
    }
}

Value Evaluator::unary(const Expr& e, const Value& a) {
    Value made = with(a.kind, a, a);
    if (a.kind == ValueKind::opaque || e.op == Operator::positive) return a;
    if (e.op == Operator::negative) {
        if (a.kind == ValueKind::real) return made.real = -a.real, made;
        if (is_number(a))
            return made.kind = ValueKind::integer, made.integer = wrap_multiply(number_of(a), -1), made;
        if (a.kind == ValueKind::block) {
            made = scaled(e, *a.block, -1);
            made.taint = a.taint;
            return made;
        }
    } else {
        if (is_number(a)) return made.kind = ValueKind::integer, made.integer = ~number_of(a), made;
        if (a.kind == ValueKind::mask) {  // everything, to be safe
            Mask* mask = arena_.make<Mask>();
            mask->rank = a.mask->rank;
            for (std::int32_t j = 0; j < mask->rank; ++j) mask->axes[j].extent = a.mask->axes[j].extent;
            mask->exact = false;
            return made.mask = mask, made;
        }
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
        case Operator::divide:
            if (b == 0) break;
            made.kind = ValueKind::real;
            made.real = static_cast<double>(a) / static_cast<double>(b);
            return made;
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
            if (b < 0 || b > 63) return opaque(e, 0);
            made.integer = 1;
            for (std::int64_t i = 0; i < b && !overflow; ++i)
                overflow = __builtin_mul_overflow(made.integer, a, &made.integer);
            break;
        }
        case Operator::shift_left:
            if (b < 0 || b > 62) return opaque(e, 0);
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
    if ((op == Operator::divide || op == Operator::floor_divide || op == Operator::modulo) && b == 0) {
        arithmetic_error = true;
        return fail(e.where, "division by zero in " + quoted(module_, e.where));
    }
    if (overflow) return fail(e.where, quoted(module_, e.where) + " does not fit 64 bits");
    return made;
}

Value Evaluator::binary(const Expr& e, Operator op, const Value& a, const Value& b) {
    if (a.kind == ValueKind::integer && b.kind == ValueKind::integer) {
        Value made = integer_binary(e, op, a.integer, b.integer, a.runtime || b.runtime);
        made.runtime = a.runtime || b.runtime;
        made.taint = a.taint | b.taint;
        return made;
    }
    const std::uint64_t taint = a.taint | b.taint;
    const auto tainted = [&](Value made) {
        made.taint = taint;
        made.runtime = a.runtime || b.runtime;
        return made;
    };
    for (const Value* v : {&a, &b}) {
        if (v->kind == ValueKind::lost_pointer) return tainted(*v);
    }
    if (a.kind == ValueKind::opaque || b.kind == ValueKind::opaque) {
        const Value& unknown = a.kind == ValueKind::opaque ? a : b;
        const Value& other = a.kind == ValueKind::opaque ? b : a;
        if (other.kind == ValueKind::pointer) {
            LostPointer* lost = arena_.make<LostPointer>();
            lost->param = other.block->param;
            lost->why = unknown.why;
            Value made;
            made.kind = ValueKind::lost_pointer;
            made.lost = lost;
            return tainted(made);
        }
        if (other.kind == ValueKind::mask && op == Operator::bit_and) {
            Mask* mask = arena_.make<Mask>();
            *mask = *other.mask;
            mask->exact = false;
            Value made;
            made.kind = ValueKind::mask;
            made.mask = mask;
            return tainted(made);
        }
        return opaque(*unknown.why, taint);
    }
    if (a.kind == ValueKind::mask || b.kind == ValueKind::mask ||
        (a.kind == ValueKind::boolean && b.kind == ValueKind::boolean)) {
        if (op == Operator::bit_and || op == Operator::bit_or)
            return masks_joined(e, a, b, op == Operator::bit_and);
        if (a.kind == ValueKind::mask || b.kind == ValueKind::mask) return opaque(e, taint);
    }
    if (a.kind == ValueKind::real || b.kind == ValueKind::real) {
        const auto real = [](const Value& v) {
            return v.kind == ValueKind::real ? v.real : static_cast<double>(number_of(v));
        };
        const bool plain =
            (a.kind == ValueKind::real || is_number(a)) && (b.kind == ValueKind::real || is_number(b));
        if (!plain) return opaque(e, taint);
        Value made;
        made.kind = ValueKind::real;
        switch (op) {
            case Operator::add: made.real = real(a) + real(b); break;
            case Operator::subtract: made.real = real(a) - real(b); break;
            case Operator::multiply: made.real = real(a) * real(b); break;
            case Operator::divide: made.real = real(b) == 0 ? 0 : real(a) / real(b); break;
            default: return opaque(e, taint);
        }
        return tainted(made);
    }
    if (is_number(a) && is_number(b))
        return tainted(integer_binary(e, op, number_of(a), number_of(b), a.runtime || b.runtime));
    if ((is_block(a) || is_number(a)) && (is_block(b) || is_number(b))) {
        const bool pointers = a.kind == ValueKind::pointer || b.kind == ValueKind::pointer;
        if (a.kind == ValueKind::pointer && b.kind == ValueKind::pointer) return opaque(e, taint);
        switch (op) {
            case Operator::add: return tainted(add(e, a, b, 1));
            case Operator::subtract:
                if (b.kind == ValueKind::pointer) break;
                return tainted(add(e, a, b, -1));
            case Operator::multiply:
                if (pointers) break;
                if (is_number(b)) return tainted(scaled(e, *a.block, number_of(b)));
                if (is_number(a)) return tainted(scaled(e, *b.block, number_of(a)));
                return tainted(elementwise(e, op, a, b));
            case Operator::shift_left:
                if (pointers || !is_number(b) || number_of(b) < 0 || number_of(b) > 62) break;
                return tainted(scaled(e, *a.block, std::int64_t{1} << number_of(b)));
            default:
                if (pointers || op == Operator::divide) break;
                return tainted(elementwise(e, op, a, b));
        }
        if (pointers) {
            LostPointer* lost = arena_.make<LostPointer>();
            lost->param = (a.kind == ValueKind::pointer ? a : b).block->param;
            lost->why = &e;
            Value made;
            made.kind = ValueKind::lost_pointer;
            made.lost = lost;
            return tainted(made);
        }
    }
    return opaque(e, taint);
}

Value Evaluator::add(const Expr& e, const Value& left, const Value& right, std::int64_t factor) {
    const Block* a = as_block(left);
    const Block* b = as_block(right);
    Block* sum = arena_.make<Block>();
    sum->rank = std::max(a->rank, b->rank);
    sum->param = std::max(a->param, b->param);
    sum->base = a->base + b->base * factor;
    const std::int32_t shift_a = sum->rank - a->rank, shift_b = sum->rank - b->rank;
    for (std::int32_t j = 0; j < sum->rank; ++j) {
        const BlockAxis x = j < shift_a ? BlockAxis{} : a->axes[j - shift_a];
        BlockAxis y = j < shift_b ? BlockAxis{} : b->axes[j - shift_b];
        if (x.extent != y.extent && x.extent != 1 && y.extent != 1) {
            return fail(e.where, "blocks of " + std::to_string(x.extent) + " and " +
                                     std::to_string(y.extent) + " elements cannot be combined in " +
                                     quoted(module_, e.where));
        }
        // An axis of extent 1 that is stretched contributes its only element.
        BlockAxis& axis = sum->axes[j];
        axis.extent = std::max(x.extent, y.extent);
        const auto stretch = [&](const BlockAxis& part, std::int64_t times) {
            if (part.count == 0 || part.extent == axis.extent) return false;
            sum->base =
                sum->base + (part.pieces[0].base + part.pieces[0].step * part.pieces[0].begin) * times;
            return true;
        };
        const bool skip_x = stretch(x, 1) || x.count == 0;
        const bool skip_y = stretch(y, factor) || y.count == 0;
        if (skip_x && skip_y) continue;
        if (skip_y) {
            axis.pieces = x.pieces, axis.count = x.count;
        } else if (skip_x && factor == 1) {
            axis.pieces = y.pieces, axis.count = y.count;
        } else if (skip_x) {
            Piece* pieces = arena_.make<Piece>(static_cast<std::size_t>(y.count));
            for (std::int32_t p = 0; p < y.count; ++p) {
                pieces[p] = y.pieces[p];
                pieces[p].base = pieces[p].base * factor;
                pieces[p].step = wrap_multiply(pieces[p].step, factor);
            }
            axis.pieces = pieces, axis.count = y.count;
        } else if (x.count == 1 && y.count == 1) {
            Piece* piece = arena_.make<Piece>();
            *piece = {0, axis.extent, x.pieces[0].base + y.pieces[0].base * factor,
                      wrap_add(x.pieces[0].step, wrap_multiply(y.pieces[0].step, factor))};
            axis.pieces = piece, axis.count = 1;
        } else {
            if (axis.extent > kLargestExpanded || !expand(x, scratch_a_) || !expand(y, scratch_b_))
                return not_affine(e);
            for (std::size_t i = 0; i < scratch_a_.size(); ++i) {
                scratch_a_[i] = wrap_add(scratch_a_[i], wrap_multiply(scratch_b_[i], factor));
            }
            const BlockAxis joined = compress(arena_, scratch_a_);
            axis.pieces = joined.pieces, axis.count = joined.count;
        }
    }
    return from_block(sum);
}

Value Evaluator::scaled(const Expr& e, const Block& block, std::int64_t factor) {
    if (block.param >= 0) return opaque(e, 0);
    Block* made = arena_.make<Block>();
    *made = block;
    made->base = block.base * factor;
    for (std::int32_t j = 0; j < block.rank; ++j) {
        BlockAxis& axis = made->axes[j];
        if (axis.count == 0) continue;
        Piece* pieces = arena_.make<Piece>(static_cast<std::size_t>(axis.count));
        for (std::int32_t p = 0; p < axis.count; ++p) {
            pieces[p] = axis.pieces[p];
            pieces[p].base = pieces[p].base * factor;
            pieces[p].step = wrap_multiply(pieces[p].step, factor);
        }
        axis.pieces = pieces;
    }
    return from_block(made);
}

/// An operation that is not affine: exact where it is the identity over the whole range, otherwise element by
/// element along the one axis on which the operands vary.
Value Evaluator::elementwise(const Expr& e, Operator op, const Value& left, const Value& right) {
    const Block* first = as_block(left);
    const Block* second = as_block(right);
    const std::int32_t rank = std::max(first->rank, second->rank);
    const bool by_constant = second->rank == 0 && second->base.is_constant();
    if (by_constant && (op == Operator::modulo || op == Operator::floor_divide)) {
        const std::int64_t by = second->base.constant;
        if (by == 0) {
            arithmetic_error = true;
            return fail(e.where, "division by zero in " + quoted(module_, e.where));
        }
        std::int64_t low = lowest_highest(first->base, false).constant,
                     high = lowest_highest(first->base, true).constant;
        for (std::int32_t j = 0; j < first->rank; ++j) {
            if (first->axes[j].count == 0) continue;
            std::int64_t axis_low = INT64_MAX, axis_high = INT64_MIN;
            for (std::int32_t p = 0; p < first->axes[j].count; ++p) {
                const Piece& piece = first->axes[j].pieces[p];
                for (const std::int64_t i : {piece.begin, piece.end - 1}) {
                    const Affine at = piece.base + wrap_multiply(piece.step, i);
                    axis_low = std::min(axis_low, lowest_highest(at, false).constant);
                    axis_high = std::max(axis_high, lowest_highest(at, true).constant);
                }
            }
            low = wrap_add(low, axis_low);
            high = wrap_add(high, axis_high);
        }
        if (low >= 0 && high < by) {
            if (op == Operator::modulo) return from_block(first);
            Block* zero = arena_.make<Block>();
            zero->rank = first->rank;
            for (std::int32_t j = 0; j < zero->rank; ++j) zero->axes[j].extent = first->axes[j].extent;
            return from_block(zero);
        }
        const bool divisible = by > 0 && first->rank == 0 && first->base.constant % by == 0 &&
                               std::all_of(first->base.slope.begin(), first->base.slope.end(),
                                           [&](std::int64_t s) { return s % by == 0; });
        if (divisible) {
            Block* quotient = arena_.make<Block>();
            if (op == Operator::floor_divide) {
                quotient->base.constant = first->base.constant / by;
                for (int s = 0; s < kSymbols; ++s) quotient->base.slope[s] = first->base.slope[s] / by;
            }
            return from_block(quotient);
        }
    }
    const Block a = aligned(*first, rank), b = aligned(*second, rank);
    const std::int32_t axis = varying_axis(a, b);
    if (axis == -2) return opaque(e, 0);
    if (!a.base.is_constant() || !b.base.is_constant()) return not_affine(e);
    Block* made = arena_.make<Block>();
    made->rank = rank;
    std::int64_t extent = 1;
    for (std::int32_t j = 0; j < rank; ++j) {
        if (a.axes[j].extent != b.axes[j].extent && a.axes[j].extent != 1 && b.axes[j].extent != 1) {
            return fail(e.where, "blocks of " + std::to_string(a.axes[j].extent) + " and " +
                                     std::to_string(b.axes[j].extent) + " elements cannot be combined in " +
                                     quoted(module_, e.where));
        }
        made->axes[j].extent = std::max(a.axes[j].extent, b.axes[j].extent);
        if (j == axis) extent = made->axes[j].extent;
    }
    scratch_a_.assign(1, 0);
    scratch_b_.assign(1, 0);
    if (axis >= 0) {
        if (extent > kLargestExpanded) return opaque(e, 0);
        if (!expand(a.axes[axis], scratch_a_) || !expand(b.axes[axis], scratch_b_)) return not_affine(e);
    }
    std::vector<std::int64_t> results(static_cast<std::size_t>(extent));
    for (std::size_t i = 0; i < results.size(); ++i) {
        const std::int64_t x = wrap_add(a.base.constant, scratch_a_[scratch_a_.size() == 1 ? 0 : i]);
        const std::int64_t y = wrap_add(b.base.constant, scratch_b_[scratch_b_.size() == 1 ? 0 : i]);
        const Value one = integer_binary(e, op, x, y, true);
        if (stopped()) return {};
        if (one.kind != ValueKind::integer) return opaque(e, 0);
        results[i] = one.integer;
    }
    if (axis >= 0) {
        made->axes[axis] = compress(arena_, results);
    } else {
        made->base.constant = results[0];
    }
    return from_block(made);
}

Value Evaluator::extreme(const Expr& e, bool most, const Value& a, const Value& b) {
    Value made = with(ValueKind::integer, a, b);
    if (is_number(a) && is_number(b)) {
        made.integer = most ? std::max(number_of(a), number_of(b)) : std::min(number_of(a), number_of(b));
        return made;
    }
    if (a.kind == ValueKind::opaque) return opaque(*a.why, made.taint);
    if (b.kind == ValueKind::opaque) return opaque(*b.why, made.taint);
    const Block* first = as_block(a);
    const Block* second = as_block(b);
    if (first == nullptr || second == nullptr || first->param >= 0 || second->param >= 0)
        return opaque(e, made.taint);
    if (first->rank == 0 && second->rank == 0) {
        const Affine difference = first->base - second->base;
        const bool less = lowest_highest(difference, true).constant <= 0,
                   more = lowest_highest(difference, false).constant >= 0;
        if (!less && !more) return not_affine(e);
        made = from_block(less == most ? second : first);
        if (less && more) made = from_block(first);
        made.taint = a.taint | b.taint;
        return made;
    }
    const Value condition = compare(e, most ? Operator::greater : Operator::less, a, b);
    return stopped() ? Value{} : where(e, condition, a, b);
}

Value Evaluator::where(const Expr& e, const Value& condition, const Value& a, const Value& b) {
    const std::uint64_t taint = condition.taint | a.taint | b.taint;
    if (condition.kind != ValueKind::mask) {
        const std::optional<bool> known = truth(e, condition);
        if (stopped()) return {};
        if (!known) return opaque(condition.kind == ValueKind::opaque ? *condition.why : e, taint);
        Value made = *known ? a : b;
        made.taint = taint;
        return made;
    }
    const Block* first = as_block(a);
    const Block* second = as_block(b);
    if (first == nullptr || second == nullptr || first->param >= 0 || second->param >= 0)
        return opaque(e, taint);
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
        if (mask.axes[j].extent != made->axes[j].extent) return opaque(e, taint);
        if (axis == j) continue;
        axis = axis == -1 ? j : -2;
    }
    if (!mask.exact || axis == -2) return opaque(e, taint);
    if (!x.base.is_constant() || !y.base.is_constant()) return not_affine(e);
    std::int64_t low = 0, high = INT64_MAX;
    if (axis >= 0) {
        extent = made->axes[axis].extent;
        if (extent > kLargestExpanded) return opaque(e, taint);
        if (!expand(x.axes[axis], scratch_a_) || !expand(y.axes[axis], scratch_b_)) return not_affine(e);
        const MaskAxis& bounds = mask.axes[axis];
        for (std::int32_t i = 0; i < bounds.lower_count + bounds.upper_count; ++i) {
            const bool lower = i < bounds.lower_count;
            const Affine& bound = lower ? bounds.lower[i] : bounds.upper[i - bounds.lower_count];
            if (!bound.is_constant()) return not_affine(e);
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

Value Evaluator::masks_joined(const Expr& e, const Value& a, const Value& b, bool both) {
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
        if (flag && both) copy->never = true;                      // false & m
        if (!both) {                                               // true | m, unknown | m
            for (MaskAxis& axis : copy->axes) axis.lower_count = axis.upper_count = 0;
            copy->never = false;
        }
        copy->exact = copy->exact && flag.has_value();
        made.mask = copy;
        return made;
    }
    const std::int32_t rank = std::max(a.mask->rank, b.mask->rank);
    Mask* joined = arena_.make<Mask>();
    *joined = aligned(*a.mask, rank);
    const Mask other = aligned(*b.mask, rank);
    if (!both) {  // a union of boxes is no box: let everything through, unless one side is empty
        if (a.mask->never)
            *joined = other;
        else if (!b.mask->never) {
            for (std::int32_t j = 0; j < rank; ++j)
                joined->axes[j] = {std::max(joined->axes[j].extent, other.axes[j].extent), 0, 0, {}, {}};
            joined->exact = false;
        }
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

Value Evaluator::compare(const Expr& e, Operator op, const Value& a, const Value& b) {
    Value made = with(ValueKind::boolean, a, b);
    const auto decide = [&](auto x, auto y) -> std::optional<bool> {
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
    };
    if (is_number(a) && is_number(b)) {
        const auto known = decide(number_of(a), number_of(b));
        return known ? (made.boolean = *known, made) : opaque(e, made.taint);
    }
    if (op == Operator::in || op == Operator::not_in) {
        if (b.kind != ValueKind::tuple) return opaque(e, made.taint);
        bool any = false;
        for (std::int32_t i = 0; i < b.tuple->size; ++i) any = any || equal(a, b.tuple->items[i]);
        return made.boolean = any == (op == Operator::in), made;
    }
    if (a.kind == ValueKind::text && b.kind == ValueKind::text) {
        const auto known = decide(*a.text, *b.text);
        return known ? (made.boolean = *known, made) : opaque(e, made.taint);
    }
    const bool is_equality =
        op == Operator::equal || op == Operator::is || op == Operator::not_equal || op == Operator::is_not;
    const bool wants_equal = op == Operator::equal || op == Operator::is;
    if (is_equality && (a.kind == ValueKind::none || b.kind == ValueKind::none)) {
        const bool same = a.kind == b.kind;
        if (!same && (a.kind == ValueKind::opaque || b.kind == ValueKind::opaque))
            return made.boolean = !wants_equal, made;
        return made.boolean = same == wants_equal, made;
    }
    if (is_equality && (a.kind == ValueKind::text || b.kind == ValueKind::text) &&
        a.kind != ValueKind::opaque && b.kind != ValueKind::opaque) {
        return made.boolean = !wants_equal, made;  // text and something else
    }
    if ((a.kind == ValueKind::real || is_number(a)) && (b.kind == ValueKind::real || is_number(b))) {
        const auto real = [](const Value& v) {
            return v.kind == ValueKind::real ? v.real : static_cast<double>(number_of(v));
        };
        const auto known = decide(real(a), real(b));
        return known ? (made.boolean = *known, made) : opaque(e, made.taint);
    }
    if (!((is_block(a) || is_number(a)) && (is_block(b) || is_number(b))) || a.kind == ValueKind::pointer ||
        b.kind == ValueKind::pointer) {
        const Value& unknown = a.kind == ValueKind::opaque ? a : b;
        return opaque(unknown.kind == ValueKind::opaque ? *unknown.why : e, made.taint);
    }

    // difference OP 0, then a bound on the index of the one axis along which the difference varies.
    Value difference = add(e, a, b, -1);
    if (stopped()) return {};
    const Block* d = as_block(difference);
    if (d->rank == 0) {
        const std::int64_t low = lowest_highest(d->base, false).constant,
                           high = lowest_highest(d->base, true).constant;
        const auto at_low = decide(low, std::int64_t{0}), at_high = decide(high, std::int64_t{0});
        const bool monotone = !is_equality || low == high || low > 0 || high < 0;
        if (!at_low || !monotone || *at_low != *at_high) return not_affine(e);
        return made.boolean = *at_low, made;
    }
    Mask* mask = arena_.make<Mask>();
    mask->rank = d->rank;
    made.kind = ValueKind::mask;
    made.mask = mask;
    for (std::int32_t j = 0; j < d->rank; ++j) mask->axes[j].extent = d->axes[j].extent;
    const std::int32_t axis = varying_axis(*d, *d);
    if (axis == -2 || op == Operator::not_equal) {
        mask->exact = false;
        return made;
    }
    if (axis == -1) {
        const auto at_low = decide(lowest_highest(d->base, false).constant, std::int64_t{0});
        const auto at_high = decide(lowest_highest(d->base, true).constant, std::int64_t{0});
        if (d->base.is_constant() && at_low)
            mask->never = !*at_low;
        else if (at_low && at_high && !is_equality && !*at_low && !*at_high)
            mask->never = true;
        else
            mask->exact = false;
        return made;
    }
    MaskAxis& bounds = mask->axes[axis];
    if (d->axes[axis].count == 1 && d->axes[axis].pieces[0].step != 0) {
        // base + step * i  <  0, with <= as base - 1, and > and >= by negation
        const Piece& piece = d->axes[axis].pieces[0];
        const auto below_zero = [&](Affine base, std::int64_t step) {
            if (step == INT64_MIN) return false;
            const std::int64_t size = std::llabs(step);
            for (const std::int64_t s : base.slope) {
                if (s % size != 0) return false;
            }
            Affine bound;
            for (int s = 0; s < kSymbols; ++s)
                bound.slope[s] = (step > 0 ? wrap_multiply(base.slope[s], -1) : base.slope[s]) / size;
            if (step > 0) {
                bound.constant = ceil_div(wrap_multiply(base.constant, -1), size);
                if (bound.is_constant())
                    bound.constant = std::clamp<std::int64_t>(bound.constant, 0, bounds.extent);
                bounds.upper[bounds.upper_count++] = bound;
            } else {
                bound.constant = wrap_add(floor_div(base.constant, size), 1);
                if (bound.is_constant())
                    bound.constant = std::clamp<std::int64_t>(bound.constant, 0, bounds.extent);
                bounds.lower[bounds.lower_count++] = bound;
            }
            return true;
        };
        const Affine base = d->base + piece.base;
        bool solved = true;
        if (op == Operator::less) solved = below_zero(base, piece.step);
        if (op == Operator::less_equal || op == Operator::equal) solved = below_zero(base + -1, piece.step);
        if (op == Operator::greater) solved = below_zero(base * -1, wrap_multiply(piece.step, -1));
        if (op == Operator::greater_equal || op == Operator::equal)
            solved = solved && below_zero(base * -1 + -1, wrap_multiply(piece.step, -1));
        if (!solved) return not_affine(e);
        return made;
    }
    if (d->axes[axis].extent > kLargestExpanded) return mask->exact = false, made;
    if (!d->base.is_constant() || !expand(d->axes[axis], scratch_a_)) return not_affine(e);
    std::int64_t low = -1, high = -1, holding = 0;
    for (std::size_t i = 0; i < scratch_a_.size(); ++i) {
        const auto holds = decide(wrap_add(d->base.constant, scratch_a_[i]), std::int64_t{0});
        if (!holds || !*holds) continue;
        if (low < 0) low = static_cast<std::int64_t>(i);
        high = static_cast<std::int64_t>(i) + 1;
        ++holding;
    }
    if (low < 0) {
        mask->never = true;
    } else if (holding < static_cast<std::int64_t>(scratch_a_.size())) {
        bounds.lower[bounds.lower_count++] = {low, {}};
        bounds.upper[bounds.upper_count++] = {high, {}};
        mask->exact = holding == high - low;
    }
    return made;
}

Value Evaluator::expanded(const Expr& e, const Value& value, std::span<const bool> is_new) {
    Value made = value;
    const auto rank = static_cast<std::int32_t>(is_new.size());
    if (rank > kRank) return fail(e.where, "blocks of more than 5 axes are not supported");
    if (value.kind == ValueKind::mask) {
        Mask* mask = arena_.make<Mask>();
        *mask = *value.mask;
        std::int32_t next = 0;
        for (std::int32_t j = 0; j < rank; ++j) {
            mask->axes[j] = is_new[static_cast<std::size_t>(j)] || next >= value.mask->rank
                                ? MaskAxis{}
                                : value.mask->axes[next++];
        }
        mask->rank = rank;
        made.mask = mask;
        return made;
    }
    const Block* from = as_block(value);
    if (from == nullptr) return opaque(e, value.taint);
    Block* block = arena_.make<Block>();
    block->param = from->param;
    block->base = from->base;
    block->rank = rank;
    std::int32_t next = 0;
    for (std::int32_t j = 0; j < rank; ++j) {
        if (!is_new[static_cast<std::size_t>(j)] && next < from->rank) block->axes[j] = from->axes[next++];
    }
    made.kind = from->param >= 0 ? ValueKind::pointer : ValueKind::block;
    made.block = block;
    return made;
}

Value Evaluator::transposed(const Expr& e, const Value& value) {
    Value made = value;
    if (value.kind == ValueKind::mask && value.mask->rank == 2) {
        Mask* mask = arena_.make<Mask>();
        *mask = *value.mask;
        std::swap(mask->axes[0], mask->axes[1]);
        return made.mask = mask, made;
    }
    if (is_block(value) && value.block->rank == 2) {
        Block* block = arena_.make<Block>();
        *block = *value.block;
        std::swap(block->axes[0], block->axes[1]);
        return made.block = block, made;
    }
    return opaque(value.kind == ValueKind::opaque ? *value.why : e, value.taint);
}

Value Evaluator::attribute(const Expr& e, Frame& frame) {
    const Value object = evaluate(*e.kids[0], frame);
    if (stopped()) return {};
    const auto tuple_of = [&](std::span<const std::int64_t> items) {
        Tuple* tuple = arena_.make<Tuple>();
        tuple->size = static_cast<std::int32_t>(items.size());
        tuple->items = arena_.make<Value>(items.size());
        for (std::size_t i = 0; i < items.size(); ++i) {
            tuple->items[i].kind = ValueKind::integer;
            tuple->items[i].integer = items[i];
        }
        Value made;
        made.kind = ValueKind::tuple;
        made.tuple = tuple;
        return made;
    };
    if (e.text == "value") return object;
    if (e.text == "T") return transposed(e, object);
    if (e.text == "dtype" || e.text == "element_ty" || e.text == "type" || e.text == "scalar") {
        if (object.kind == ValueKind::text) return object;
        std::int32_t param = -1;
        if (object.kind == ValueKind::pointer) param = object.block->param;
        if (object.kind == ValueKind::descriptor) param = object.descriptor->param;
        if (param >= 0) {
            const auto tensor =
                arguments_.tensors.find(kernel_.parameters[static_cast<std::size_t>(param)].name);
            if (tensor != arguments_.tensors.end()) {
                static const std::map<plan::DType, std::string> names = [] {
                    std::map<plan::DType, std::string> all;
                    for (int i = 0; i <= static_cast<int>(plan::DType::uint8); ++i) {
                        all[static_cast<plan::DType>(i)] = plan::name_of(static_cast<plan::DType>(i));
                    }
                    return all;
                }();
                Value made;
                made.kind = ValueKind::text;
                made.text = &names.at(tensor->second.dtype);
                return made;
            }
        }
        return opaque(e, object.taint);
    }
    if (object.kind == ValueKind::descriptor && object.descriptor->known) {
        const auto rank = static_cast<std::size_t>(object.descriptor->rank);
        if (e.text == "shape") return tuple_of({object.descriptor->shape.data(), rank});
        if (e.text == "strides") return tuple_of({object.descriptor->strides.data(), rank});
        if (e.text == "block_shape") return tuple_of({object.descriptor->block.data(), rank});
    }
    if (is_block(object) && e.text == "shape") {
        std::array<std::int64_t, kRank> extents{};
        for (std::int32_t j = 0; j < object.block->rank; ++j)
            extents[static_cast<std::size_t>(j)] = object.block->axes[j].extent;
        return tuple_of({extents.data(), static_cast<std::size_t>(object.block->rank)});
    }
    return opaque(object.kind == ValueKind::opaque ? *object.why : e, object.taint);
}

Value Evaluator::subscript(const Expr& e, Frame& frame) {
    const Value object = evaluate(*e.kids[0], frame);
    if (stopped()) return {};
    if (object.kind == ValueKind::tuple) {
        if (e.kids.size() != 2 || e.kids[1]->kind == ExprKind::slice) return opaque(e, object.taint);
        const Value index = evaluate(*e.kids[1], frame);
        if (stopped()) return {};
        if (index.kind != ValueKind::integer) return opaque(e, object.taint | index.taint);
        const std::int64_t size = object.tuple->size;
        const std::int64_t at = index.integer < 0 ? index.integer + size : index.integer;
        if (at < 0 || at >= size) return fail(e.where, quoted(module_, e.where) + " is out of range");
        Value made = object.tuple->items[at];
        made.taint |= object.taint;
        return made;
    }
    if (object.kind == ValueKind::block || object.kind == ValueKind::pointer ||
        object.kind == ValueKind::mask || object.kind == ValueKind::integer) {
        std::array<bool, kRank> is_new{};
        if (e.kids.size() - 1 > kRank) return fail(e.where, "blocks of more than 5 axes are not supported");
        for (std::size_t i = 1; i < e.kids.size(); ++i) {
            const Expr& index = *e.kids[i];
            const bool whole = index.kind == ExprKind::slice && index.kids[0] == nullptr &&
                               index.kids[1] == nullptr && index.kids[2] == nullptr;
            const bool none =
                index.kind == ExprKind::literal && std::holds_alternative<NoneValue>(index.literal);
            if (!whole && !none) return opaque(e, object.taint);
            is_new[i - 1] = none;
        }
        return expanded(e, object, {is_new.data(), e.kids.size() - 1});
    }
    if (object.kind == ValueKind::lost_pointer) return object;
    return opaque(object.kind == ValueKind::opaque ? *object.why : e, object.taint);
}

}  // namespace syncopate::kernel
