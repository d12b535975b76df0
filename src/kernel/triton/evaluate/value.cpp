#include "kernel/triton/evaluate/value.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {

void* Arena::allocate(std::size_t bytes) {
    bytes = (bytes + 15) & ~std::size_t{15};
    if (used_ + bytes > kBlock || blocks_.empty()) {
        if (!blocks_.empty() && used_ > 0) ++block_;
        if (block_ >= blocks_.size() || bytes > kBlock) {
            block_ = blocks_.size();
            blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes > kBlock ? bytes : kBlock));
        }
        used_ = 0;
    }
    void* result = blocks_[block_].get() + used_;
    used_ += bytes;
    return result;
}

BlockAxis compress(Arena& arena, std::span<const std::int64_t> values) {
    std::vector<Piece> pieces;
    const auto size = static_cast<std::int64_t>(values.size());
    for (std::int64_t i = 0; i < size;) {
        Piece piece{i, i + 1, {values[at(i)], {}}, 0};
        if (i + 1 < size) {
            piece.step = wrap_add(values[at(i + 1)], wrap_multiply(values[at(i)], -1));
            while (piece.end < size &&
                   values[at(piece.end)] == wrap_add(values[at(piece.end - 1)], piece.step)) {
                ++piece.end;
            }
            // A jump is not a stride: keep 128, 0, 1, 2, … as 128 and 0, 1, 2, …
            if (piece.end == i + 2 && piece.step != 1) piece.end = i + 1, piece.step = 0;
        }
        piece.base.constant = wrap_add(piece.base.constant, wrap_multiply(piece.step, wrap_multiply(i, -1)));
        pieces.push_back(piece);
        i = piece.end;
    }
    Piece* kept = arena.make<Piece>(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) kept[i] = pieces[i];
    return {size, kept, static_cast<std::int32_t>(pieces.size())};
}

bool expand(const BlockAxis& axis, std::vector<std::int64_t>& values) {
    values.assign(static_cast<std::size_t>(axis.extent), 0);
    for (std::int32_t p = 0; p < axis.count; ++p) {
        const Piece& piece = axis.pieces[p];
        if (!piece.base.is_constant()) return false;
        for (std::int64_t i = piece.begin; i < piece.end; ++i) {
            values[at(i)] = wrap_add(piece.base.constant, wrap_multiply(piece.step, i));
        }
    }
    return true;
}

}  // namespace syncopate::kernel::triton
