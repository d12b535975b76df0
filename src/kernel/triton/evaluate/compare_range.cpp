// Comparisons of blocks that are decided by how far their difference reaches, without a look at elements:
//
//      causal mask, columns <= rows       tile left of the diagonal     on it       right of it
//      columns - rows                     all below 0                   both        all above 0
//      the condition                      holds                         by element  does not
//
// Along a line of programs the reach moves on, so that a condition may be decided for the first ones only.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernel/triton/evaluate/evaluate.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr std::size_t kLine = 0;  // the symbol

/// x OP 0 of all x from low to high; nullopt: of some only.
std::optional<bool> decided(Operator op, std::int64_t low, std::int64_t high) {
    const auto either = [](bool all, bool none) -> std::optional<bool> {
        return all || none ? std::optional(all) : std::nullopt;
    };
    const bool zero = low == 0 && high == 0, apart = low > 0 || high < 0;
    switch (op) {
        case Operator::less: return either(high < 0, low >= 0);
        case Operator::less_equal: return either(high <= 0, low > 0);
        case Operator::greater: return either(low > 0, high <= 0);
        case Operator::greater_equal: return either(low >= 0, high < 0);
        case Operator::equal: return either(zero, apart);
        case Operator::not_equal: return either(apart, zero);
        default: return std::nullopt;
    }
}

}  // namespace

/// Whether difference OP 0 in all iterations of the loops around, in all programs of the line; nullopt where
/// that depends on the element. What is decided for the first programs alone says how long the line may be.
std::optional<bool> Evaluator::decided_by_range(Operator op, const Block& difference) {
    const auto [low, high] = range_of(difference);
    constexpr std::int64_t kFar = std::int64_t{1}
                                  << 62;  // beyond it the sum of parts may have wrapped around
    if (low < -kFar || high > kFar || low > high) return std::nullopt;
    const std::optional<bool> known = decided(op, low, high);
    if (known || !on_line()) return known;
    // The reach in the first program, and how fast its ends move.
    Block first = difference;
    Affine least{0, {}}, most{0, {}};
    const auto take = [&](const Affine& base, bool is_first, Affine& slowest, Affine& fastest) {
        slowest.slope[kLine] =
            is_first ? base.slope[kLine] : std::min(slowest.slope[kLine], base.slope[kLine]);
        fastest.slope[kLine] =
            is_first ? base.slope[kLine] : std::max(fastest.slope[kLine], base.slope[kLine]);
    };
    take(difference.base, true, least, most);
    first.base.slope[kLine] = 0;
    for (std::int32_t j = 0; j < difference.rank; ++j) {
        const BlockAxis& axis = difference.axes[j];
        if (axis.count == 0) continue;
        Affine slowest, fastest;
        Piece* pieces = arena_.make<Piece>(static_cast<std::size_t>(axis.count));
        for (std::int32_t p = 0; p < axis.count; ++p) {
            take(axis.pieces[p].base, p == 0, slowest, fastest);
            pieces[p] = axis.pieces[p];
            pieces[p].base.slope[kLine] = 0;
        }
        first.axes[j].pieces = pieces;
        least.slope[kLine] = wrap_add(least.slope[kLine], slowest.slope[kLine]);
        most.slope[kLine] = wrap_add(most.slope[kLine], fastest.slope[kLine]);
    }
    const auto [lowest, highest] = range_of(first);
    if (!decided(op, lowest, highest)) return std::nullopt;
    least.constant = lowest;
    most.constant = highest;
    fits_while_same_sign(least);
    fits_while_same_sign(most);
    return std::nullopt;
}

}  // namespace syncopate::kernel::triton
