// Arithmetic on blocks of indices and addresses, each axis a piecewise affine function: sums and multiples
// stay affine, other operations are done element by element where a block is small and varies along one axis.
// Also how axes are added and exchanged.
#include "kernel/triton/evaluate/operators.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {
namespace {

/// Of an axis, times `factor`.
const Piece* scaled_pieces(Arena& arena, const BlockAxis& axis, std::int64_t factor) {
    Piece* pieces = arena.make<Piece>(static_cast<std::size_t>(axis.count));
    for (std::int32_t p = 0; p < axis.count; ++p) {
        pieces[p] = axis.pieces[p];
        pieces[p].base = pieces[p].base * factor;
        pieces[p].step = wrap_multiply(pieces[p].step, factor);
    }
    return pieces;
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

/// Whether the block has no more elements than one can have; fails otherwise.
bool Evaluator::fits_a_block(const Expr& e, const Block& block) {
    Wide size = 1;
    for (std::int32_t j = 0; j < block.rank; ++j) size *= block.axes[j].extent;  // each at most kLargestBlock
    if (size <= kLargestBlock) return true;
    std::string shape;
    for (std::int32_t j = 0; j < block.rank; ++j)
        shape += (j > 0 ? " x " : "") + std::to_string(block.axes[j].extent);
    fail(e.where, quoted(module_, e.where) + " is a block of " + shape +
                      " elements: make it smaller, a block has at most 2^24");
    return false;
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

/// Whether a number of each program of a line, a + b * factor, fits 64 bits in all of them. Where it does
/// not, the programs are run alone, and say so.
bool Evaluator::fits_a_number(const Affine& a, const Affine& b, std::int64_t factor) {
    if (!on_line()) return true;
    Wide low = a.constant + static_cast<Wide>(b.constant) * factor, high = low;
    for (std::size_t s = 0; s < trips_.size(); ++s) {
        const Wide slope = a.slope[s] + static_cast<Wide>(b.slope[s]) * factor;
        if (slope < INT64_MIN || slope > INT64_MAX) return !(not_affine_ = true);
        const Wide reach = slope * (trips_[s] - 1);
        (reach < 0 ? low : high) += reach;
    }
    return (low >= INT64_MIN && high <= INT64_MAX) || !(not_affine_ = true);
}

Value Evaluator::add(const Expr& e, const Value& left, const Value& right, std::int64_t factor) {
    const Block* a = as_block(left);
    const Block* b = as_block(right);
    Block* sum = arena_.make<Block>();
    sum->rank = std::max(a->rank, b->rank);
    sum->param = std::max(a->param, b->param);
    if (sum->rank == 0 && !fits_a_number(a->base, b->base, factor)) return {};
    sum->base = a->base + b->base * factor;
    const std::int32_t shift_a = sum->rank - a->rank, shift_b = sum->rank - b->rank;
    for (std::int32_t j = 0; j < sum->rank; ++j) {
        const BlockAxis x = j < shift_a ? BlockAxis{} : a->axes[j - shift_a];
        BlockAxis y = j < shift_b ? BlockAxis{} : b->axes[j - shift_b];
        if (x.extent != y.extent && x.extent != 1 && y.extent != 1) {
            return fail(e.where, "blocks of " + std::to_string(x.extent) + " and " +
                                     std::to_string(y.extent) + " elements cannot be combined in " +
                                     quoted(module_, e.where) + ": make them equal, or one of them 1");
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
            axis.pieces = scaled_pieces(arena_, y, factor), axis.count = y.count;
        } else if (x.count == 1 && y.count == 1) {
            Piece* piece = arena_.make<Piece>();
            *piece = {0, axis.extent, x.pieces[0].base + y.pieces[0].base * factor,
                      wrap_add(x.pieces[0].step, wrap_multiply(y.pieces[0].step, factor))};
            axis.pieces = piece, axis.count = 1;
        } else {
            if (!step(e.where, std::min(axis.extent, kLargestExpanded) / 4)) return {};
            if (axis.extent > kLargestExpanded || !expand(x, scratch_a_) || !expand(y, scratch_b_))
                return lazily(e, Lazy::What::arithmetic, factor == 1 ? Operator::add : Operator::subtract,
                              {left, right});
            for (std::size_t i = 0; i < scratch_a_.size(); ++i) {
                scratch_a_[i] = wrap_add(scratch_a_[i], wrap_multiply(scratch_b_[i], factor));
            }
            const BlockAxis joined = compress(arena_, scratch_a_);
            axis.pieces = joined.pieces, axis.count = joined.count;
        }
    }
    if (!fits_a_block(e, *sum)) return {};
    return from_block(sum);
}

Value Evaluator::scaled(const Expr& e, const Block& block, std::int64_t factor) {
    if (block.param >= 0) return opaque(e, 0);
    if (block.rank == 0 && !fits_a_number({}, block.base, factor)) return {};
    Block* made = arena_.make<Block>();
    *made = block;
    made->base = block.base * factor;
    for (std::int32_t j = 0; j < block.rank; ++j) {
        BlockAxis& axis = made->axes[j];
        if (axis.count == 0) continue;
        axis.pieces = scaled_pieces(arena_, axis, factor);
    }
    return from_block(made);
}

/// What programs of a line have in common when divided by `by`, where each is a multiple of it further than
/// the one before: (7 + 4 p + i) // 4 = (7 + i) // 4 + p for all p, if what is divided is never negative.
std::optional<Affine> Evaluator::whole_steps(const Block& block, std::int64_t by) {
    Affine whole;
    if (by <= 0 || block.base.is_constant()) return std::nullopt;
    for (std::size_t s = 0; s < kSymbols; ++s) {
        if (s > 0 && block.base.slope[s] != 0) return std::nullopt;
        if (block.base.slope[s] % by != 0) return std::nullopt;
        whole.slope[s] = block.base.slope[s] / by;
    }
    for (std::int32_t j = 0; j < block.rank; ++j) {
        for (std::int32_t p = 0; p < block.axes[j].count; ++p)
            if (!block.axes[j].pieces[p].base.is_constant()) return std::nullopt;
    }
    return whole;
}

/// The lowest and the highest element, over all iterations of the loops around.
std::pair<std::int64_t, std::int64_t> Evaluator::range_of(const Block& block) const {
    std::int64_t low = lowest_highest(block.base, false).constant,
                 high = lowest_highest(block.base, true).constant;
    for (std::int32_t j = 0; j < block.rank; ++j) {
        if (block.axes[j].count == 0) continue;
        std::int64_t axis_low = INT64_MAX, axis_high = INT64_MIN;
        for (std::int32_t p = 0; p < block.axes[j].count; ++p) {
            const Piece& piece = block.axes[j].pieces[p];
            for (const std::int64_t i : {piece.begin, piece.end - 1}) {
                const Affine at = piece.base + wrap_multiply(piece.step, i);
                axis_low = std::min(axis_low, lowest_highest(at, false).constant);
                axis_high = std::max(axis_high, lowest_highest(at, true).constant);
            }
        }
        low = wrap_add(low, axis_low);
        high = wrap_add(high, axis_high);
    }
    return {low, high};
}

/// The quotient or the rest by a number other than zero, `right`, where it is affine, or is on a line of
/// programs; nullopt where it has to be worked out element by element.
std::optional<Value> Evaluator::divided(const Expr& e, Operator op, const Block& first, const Value& right,
                                        std::int64_t by) {
    const auto [low, high] = range_of(first);
    if (low >= 0 && high < by) {
        if (op == Operator::modulo) return from_block(&first);
        Block* zero = arena_.make<Block>();
        zero->rank = first.rank;
        for (std::int32_t j = 0; j < zero->rank; ++j) zero->axes[j].extent = first.axes[j].extent;
        return from_block(zero);
    }
    const std::optional<Affine> whole = on_line() && low >= 0 ? whole_steps(first, by) : std::nullopt;
    if (whole) {
        Block* rest = arena_.make<Block>();
        *rest = first;
        rest->base.slope = {};
        const Value made = elementwise(e, op, from_block(rest), right);
        if (stopped() || op == Operator::modulo) return made;
        Value steps;
        steps.kind = ValueKind::block;
        Block* moving = arena_.make<Block>();
        moving->base = *whole;
        steps.block = moving;
        return is_number(made) || is_block(made) ? add(e, made, steps, 1) : (not_affine_ = true, Value{});
    }
    if (on_line() && low >= 0) {
        // The id may stay within one block of `by`, or before the row that wraps around.
        if (first.rank == 0 && by > 0 && low / by == high / by) {
            Block* part = arena_.make<Block>();
            part->base.constant = low / by;
            if (op == Operator::modulo) part->base = first.base + -(low / by) * by;
            return from_block(part);
        }
        Affine at = first.base;
        at.constant = wrap_add(at.constant, wrap_add(high, -lowest_highest(first.base, true).constant));
        if (first.rank == 0) {
            const std::int64_t start = first.base.constant / std::max<std::int64_t>(by, 1) * by;
            fits_while_below(first.base, wrap_add(start, by));
            fits_while_below(first.base * -1, wrap_add(-start, 1));
        } else {
            fits_while_below(at, by);
        }
        divides_when_every(first.base, by);
        if (first.base.slope[0] != 0) return not_affine_ = true, Value{};
    }
    const bool divisible = by > 0 && first.rank == 0 && first.base.constant % by == 0 &&
                           std::all_of(first.base.slope.begin(), first.base.slope.end(),
                                       [&](std::int64_t s) { return s % by == 0; });
    if (divisible) {
        Block* quotient = arena_.make<Block>();
        if (op == Operator::floor_divide) {
            quotient->base.constant = first.base.constant / by;
            for (int s = 0; s < kSymbols; ++s) quotient->base.slope[s] = first.base.slope[s] / by;
        }
        return from_block(quotient);
    }
    return std::nullopt;
}

/// An operation that is not affine: exact where it is the identity over the whole range, otherwise element by
/// element along the one axis on which the operands vary.
Value Evaluator::elementwise(const Expr& e, Operator op, const Value& left, const Value& right) {
    const Block* first = as_block(left);
    const Block* second = as_block(right);
    const std::int32_t rank = std::max(first->rank, second->rank);
    const bool by_constant = second->rank == 0 && second->base.is_constant();
    if (by_constant && (op == Operator::modulo || op == Operator::floor_divide)) {
        if (second->base.constant == 0) return division_by_zero(e);
        if (const auto made = divided(e, op, *first, right, second->base.constant)) return *made;
    }
    const Block a = aligned(*first, rank), b = aligned(*second, rank);
    const std::int32_t axis = varying_axis(a, b);
    const auto lazy = [&] {
        return op == Operator::power ? opaque(e, 0) : lazily(e, Lazy::What::arithmetic, op, {left, right});
    };
    if (axis == -2) return lazy();
    if (!a.base.is_constant() || !b.base.is_constant()) return rank > 0 ? lazy() : not_affine(e);
    Block* made = arena_.make<Block>();
    made->rank = rank;
    std::int64_t extent = 1;
    for (std::int32_t j = 0; j < rank; ++j) {
        if (a.axes[j].extent != b.axes[j].extent && a.axes[j].extent != 1 && b.axes[j].extent != 1) {
            return fail(e.where, "blocks of " + std::to_string(a.axes[j].extent) + " and " +
                                     std::to_string(b.axes[j].extent) + " elements cannot be combined in " +
                                     quoted(module_, e.where) + ": make them equal, or one of them 1");
        }
        made->axes[j].extent = std::max(a.axes[j].extent, b.axes[j].extent);
        if (j == axis) extent = made->axes[j].extent;
    }
    if (!fits_a_block(e, *made)) return {};
    scratch_a_.assign(1, 0);
    scratch_b_.assign(1, 0);
    if (axis >= 0) {
        if (extent > kLargestExpanded) return lazy();
        if (!step(e.where, extent / 4)) return {};
        if (!expand(a.axes[axis], scratch_a_) || !expand(b.axes[axis], scratch_b_)) return lazy();
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

Value Evaluator::expanded(const Expr& e, const Value& value, std::span<const bool> is_new) {
    std::array<std::int32_t, kRank> axes{};
    if (is_new.size() > kRank)
        return fail(e.where, "blocks of more than 5 axes are not supported: write fewer indices");
    const std::int32_t rank = known_rank(value);
    std::int32_t next = 0;
    for (std::size_t j = 0; j < is_new.size(); ++j) axes[j] = is_new[j] || next >= rank ? -1 : next++;
    return permuted(e, value, {axes.data(), is_new.size()});
}

/// x.T: the axes the other way round.
Value Evaluator::transposed(const Expr& e, const Value& value) {
    std::array<std::int32_t, kRank> axes{};
    const std::int32_t rank = known_rank(value);
    for (std::int32_t j = 0; j < rank; ++j) axes[at(j)] = rank - 1 - j;
    return permuted(e, value, {axes.data(), static_cast<std::size_t>(rank)});
}

}  // namespace syncopate::kernel::triton
