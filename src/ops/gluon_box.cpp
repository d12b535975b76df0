#include "syncopate/ops/gluon_box.hpp"

#include <algorithm>

namespace syncopate::ops {
namespace {

/// Rows beyond a's last one that a load may ask for: more of them make it slow, and a tile up to twice as
/// long. Of more rows of a than kMany the last tiles are few, and smaller loads cost all of them 1 to 2 %.
constexpr std::int64_t kMostBeyond = 16;
constexpr std::int64_t kMany = 2048;
constexpr std::int64_t kMostRows = 64;
constexpr std::int64_t kLineBytes = 128;

/// Columns that one load or store moves of tiles of 96 or 192; 0 where it moves all of a tile's.
std::int64_t slab_columns(std::int64_t block_n) { return block_n % 3 == 0 ? block_n / 3 : 0; }

}  // namespace

GluonBox gluon_box(const TileConfig& tile, std::int64_t m, std::size_t item, bool cut) {
    std::int64_t rows = std::min<std::int64_t>(tile.block_m, kMostRows);
    const bool whole = tile.block_m < kMostRows && !cut;
    const auto beyond = [&] { return (rows - m % rows) % rows; };
    while (rows > 16 && m <= kMany && beyond() > kMostBeyond && !whole) rows /= 2;
    const std::int64_t slab = slab_columns(tile.block_n);
    const std::int64_t line = kLineBytes / static_cast<std::int64_t>(item);
    return {rows, slab > 0 ? slab : tile.block_n,
            rows < kMostRows ? std::min<std::int64_t>(line, tile.block_k) : tile.block_k};
}

}  // namespace syncopate::ops
