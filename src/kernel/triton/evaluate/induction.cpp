// Induction over the iterations of a loop: whether two values are equal, how one that is carried around the
// loop advances, and what it is at an iteration that is unknown or, after the loop, the last.
#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/evaluate/operators.hpp"

namespace syncopate::kernel::triton {

bool Evaluator::equal(const Value& a, const Value& b) const {
    if (a.kind != b.kind) return false;
    switch (a.kind) {
        case ValueKind::undefined:
        case ValueKind::none: return true;
        case ValueKind::boolean: return a.boolean == b.boolean;
        case ValueKind::integer:
        case ValueKind::function:
        case ValueKind::missing: return a.integer == b.integer;
        case ValueKind::real: return a.real == b.real;
        case ValueKind::between:
            return a.between.least == b.between.least && a.between.most == b.between.most;
        case ValueKind::text: return *a.text == *b.text;
        case ValueKind::block:
        case ValueKind::pointer: {
            const Block &x = *a.block, &y = *b.block;
            if (&x == &y) return true;
            if (x.param != y.param || x.rank != y.rank || !(x.base == y.base)) return false;
            for (std::int32_t j = 0; j < x.rank; ++j) {
                if (x.axes[j].extent != y.axes[j].extent || x.axes[j].count != y.axes[j].count) return false;
                if (x.axes[j].pieces == y.axes[j].pieces) continue;
                for (std::int32_t p = 0; p < x.axes[j].count; ++p) {
                    const Piece &u = x.axes[j].pieces[p], &v = y.axes[j].pieces[p];
                    if (u.begin != v.begin || u.end != v.end || u.step != v.step || !(u.base == v.base))
                        return false;
                }
            }
            return true;
        }
        case ValueKind::descriptor:
        case ValueKind::block_pointer: {
            const Descriptor &x = *a.descriptor, &y = *b.descriptor;
            return &x == &y || (x.param == y.param && x.rank == y.rank && x.host == y.host &&
                                x.base == y.base && x.shape == y.shape && x.strides == y.strides &&
                                x.block == y.block && x.offsets == y.offsets);
        }
        case ValueKind::tuple:
            if (a.tuple->size != b.tuple->size) return false;
            for (std::int32_t i = 0; i < a.tuple->size; ++i) {
                if (!equal(a.tuple->items[i], b.tuple->items[i])) return false;
            }
            return true;
        case ValueKind::lost_pointer: return a.lost->param == b.lost->param;
        case ValueKind::opaque: return true;  // unknown before, unknown after
        case ValueKind::mask: {
            const Mask &x = *a.mask, &y = *b.mask;
            if (&x == &y) return true;
            if (x.rank != y.rank || x.never != y.never || x.exact != y.exact) return false;
            for (std::int32_t j = 0; j < x.rank; ++j) {
                const MaskAxis &u = x.axes[j], &v = y.axes[j];
                if (u.extent != v.extent || u.lower_count != v.lower_count ||
                    u.upper_count != v.upper_count ||
                    !std::equal(u.lower.begin(), u.lower.begin() + u.lower_count, v.lower.begin()) ||
                    !std::equal(u.upper.begin(), u.upper.begin() + u.upper_count, v.upper.begin()))
                    return false;
            }
            if (x.exact) return true;
            return x.form != nullptr && y.form != nullptr && equal(*x.form, *y.form, 0);
        }
        case ValueKind::lazy: return equal(*a.lazy, *b.lazy, 0);
        case ValueKind::iterable: return a.iterable == b.iterable;
    }
    return false;
}

bool Evaluator::equal(const Lazy& a, const Lazy& b, int depth) const {
    if (&a == &b) return true;
    if (depth > 8 || a.what != b.what || a.op != b.op || a.param != b.param || a.rank != b.rank ||
        a.extents != b.extents || a.axes != b.axes || a.axis != b.axis || a.count != b.count)
        return false;
    for (std::int32_t i = 0; i < a.count; ++i) {
        const Value &x = a.from[i], &y = b.from[i];
        const bool deeper = x.kind == ValueKind::lazy && y.kind == ValueKind::lazy;
        if (deeper ? !equal(*x.lazy, *y.lazy, depth + 1) : !equal(x, y)) return false;
    }
    return true;
}

std::optional<Evaluator::Guess> Evaluator::guess(const Value& before, const Value& after) const {
    Guess made;
    if (before.kind == ValueKind::undefined) return made;
    made.kind = Guess::Kind::same;
    if (equal(before, after)) return made;
    made.kind = Guess::Kind::advance;
    if (before.kind == ValueKind::integer && after.kind == ValueKind::integer) {
        made.delta[0] = wrap_add(after.integer, wrap_multiply(before.integer, -1));
        return made;
    }
    if ((before.kind == ValueKind::block || before.kind == ValueKind::pointer) && after.kind == before.kind) {
        const Affine delta = after.block->base - before.block->base;
        if (!delta.is_constant()) return std::nullopt;
        made.delta[0] = delta.constant;
        return made;
    }
    if (before.kind == ValueKind::block_pointer && after.kind == before.kind) {
        for (int d = 0; d < kRank; ++d) {
            const Affine delta = after.descriptor->offsets[d] - before.descriptor->offsets[d];
            if (!delta.is_constant()) return std::nullopt;
            made.delta[d] = delta.constant;
        }
        return made;
    }
    made.kind = Guess::Kind::lost;
    const bool data = after.kind == ValueKind::opaque || is_real(after) ||
                      (after.kind == ValueKind::mask && !is_known(after));
    const bool was_data = param_of(before) < 0 && before.kind != ValueKind::lazy;
    if (data && was_data) return made;
    return std::nullopt;
}

/// The carried value at iteration symbol + rounds, when it was `start` at iteration 0.
Value Evaluator::advance(const Value& start, const Guess& guess, int symbol, std::int64_t rounds) {
    Value result = start;
    if (guess.kind != Guess::Kind::advance) return result;
    const auto move = [&](Affine a, std::int64_t delta) {
        a.constant = wrap_add(a.constant, wrap_multiply(delta, rounds));
        a.slope[symbol] = wrap_add(a.slope[symbol], delta);
        return a;
    };
    if (start.kind == ValueKind::integer) {
        Block* block = arena_.make<Block>();
        block->base = move({start.integer, {}}, guess.delta[0]);
        result.kind = ValueKind::block;
        result.block = block;
    } else if (start.kind == ValueKind::block || start.kind == ValueKind::pointer) {
        Block* block = arena_.make<Block>();
        *block = *start.block;
        block->base = move(block->base, guess.delta[0]);
        result.block = block;
    } else if (start.kind == ValueKind::block_pointer) {
        Descriptor* descriptor = arena_.make<Descriptor>();
        *descriptor = *start.descriptor;
        for (int d = 0; d < kRank; ++d) descriptor->offsets[d] = move(descriptor->offsets[d], guess.delta[d]);
        result.descriptor = descriptor;
    }
    return result;
}

Lazy* Evaluator::substitute(const Lazy& lazy, int symbol, std::int64_t round) {
    Lazy* made = arena_.make<Lazy>();
    *made = lazy;
    made->round = -1;
    Value* from = arena_.make<Value>(static_cast<std::size_t>(lazy.count));
    for (std::int32_t i = 0; i < lazy.count; ++i) from[i] = substitute(lazy.from[i], symbol, round);
    made->from = from;
    return made;
}

Value Evaluator::substitute(const Value& value, int symbol, std::int64_t round) {
    Value result = value;
    const auto fix = [&](Affine a) {
        a.constant = wrap_add(a.constant, wrap_multiply(a.slope[symbol], round));
        a.slope[symbol] = 0;
        return a;
    };
    switch (value.kind) {
        case ValueKind::block:
        case ValueKind::pointer: {
            bool moves = value.block->base.slope[symbol] != 0;
            for (std::int32_t j = 0; j < value.block->rank; ++j) {
                for (std::int32_t p = 0; p < value.block->axes[j].count; ++p) {
                    moves = moves || value.block->axes[j].pieces[p].base.slope[symbol] != 0;
                }
            }
            if (!moves) return result;
            Block* block = arena_.make<Block>();
            *block = *value.block;
            block->base = fix(block->base);
            for (std::int32_t j = 0; j < block->rank; ++j) {
                BlockAxis& axis = block->axes[j];
                Piece* pieces = arena_.make<Piece>(static_cast<std::size_t>(axis.count));
                for (std::int32_t p = 0; p < axis.count; ++p) {
                    pieces[p] = axis.pieces[p];
                    pieces[p].base = fix(pieces[p].base);
                }
                axis.pieces = pieces;
            }
            if (value.kind == ValueKind::pointer) {
                result.block = block;
                return result;
            }
            const Value plain = from_block(block);
            result.kind = plain.kind;
            if (plain.kind == ValueKind::integer)
                result.integer = plain.integer;
            else
                result.block = plain.block;
            return result;
        }
        case ValueKind::mask: {
            Mask* mask = arena_.make<Mask>();
            *mask = *value.mask;
            for (MaskAxis& axis : mask->axes) {
                for (Affine& a : axis.lower) a = fix(a);
                for (Affine& a : axis.upper) a = fix(a);
            }
            if (mask->form != nullptr) mask->form = substitute(*mask->form, symbol, round);
            result.mask = mask;
            return result;
        }
        case ValueKind::lazy: result.lazy = substitute(*value.lazy, symbol, round); return result;
        case ValueKind::descriptor:
        case ValueKind::block_pointer: {
            Descriptor* descriptor = arena_.make<Descriptor>();
            *descriptor = *value.descriptor;
            descriptor->base = fix(descriptor->base);
            for (Affine& a : descriptor->offsets) a = fix(a);
            result.descriptor = descriptor;
            return result;
        }
        case ValueKind::tuple: {
            Tuple* tuple = arena_.make<Tuple>();
            tuple->size = value.tuple->size;
            tuple->items = arena_.make<Value>(static_cast<std::size_t>(tuple->size));
            for (std::int32_t i = 0; i < tuple->size; ++i)
                tuple->items[i] = substitute(value.tuple->items[i], symbol, round);
            result.tuple = tuple;
            return result;
        }
        default: return result;
    }
}

}  // namespace syncopate::kernel::triton
