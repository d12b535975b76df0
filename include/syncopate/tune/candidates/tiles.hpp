// Tiles: which ones cover a product, how long one takes on one multiprocessor, and which configuration is
// the quickest.
//
// A tile's time is the longer of its arithmetic and of loading its operands, at the rates that one
// multiprocessor has while all work, plus what its begin and end cost. So a 128 x 128 tile takes 0.55 of a
// 128 x 256 one: it loads more for each product.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tune {

/// Columns of tiles: `wide` of block_n, then `narrow` ones, as wide or half so.
struct TileGrid {
    std::int64_t rows = 0;
    std::int64_t wide = 0;
    std::int64_t narrow = 0;
    std::int32_t block_m = 0;
    std::int32_t block_n = 0;
    [[nodiscard]] std::int64_t columns() const { return wide + narrow; }
    [[nodiscard]] std::int64_t tiles() const { return rows * columns(); }
    [[nodiscard]] std::int64_t width(std::int64_t column) const {
        return column < wide ? block_n : block_n / 2;
    }
    [[nodiscard]] std::int64_t first_column(std::int64_t column) const {
        return column < wide ? column * block_n : wide * block_n + (column - wide) * (block_n / 2);
    }
};
[[nodiscard]] TileGrid tile_grid(std::int64_t m, std::int64_t n, const TileConfig& tile);

/// Shared memory that a block may have on Hopper, in bytes.
inline constexpr std::int64_t kBlockSharedBytes = 232448;

/// The rate of products of elements of this type over that of 16-bit ones: of the peak rates, as no other product
/// was measured. Those of fp32 are by tf32, or exact ("ieee").
[[nodiscard]] double faster(plan::DType dtype, std::string_view precision = {});

/// µs of one tile of the given width over `k` of the reduction.
[[nodiscard]] double tile_us(const Machine& machine, plan::DType dtype, const TileConfig& tile,
                             std::int64_t width, std::int64_t k);

/// µs of all tiles of a product by so many programs, without launch; never less than reading its operands
/// from memory.
[[nodiscard]] double product_us(const Machine& machine, plan::DType dtype, const ProductShape& shape,
                                const TileConfig& tile, std::int32_t programs);

/// The same by the vendor's library.
[[nodiscard]] double library_product_us(const Machine& machine, plan::DType dtype, const ProductShape& shape);

/// Of a product's weights; 0 where the cache holds them.
[[nodiscard]] double uncached_weight_bytes(const Machine& machine, plan::DType dtype,
                                           const ProductShape& shape);

/// The configurations that the library's kernels take for such a product, without mixed ones.
[[nodiscard]] std::vector<TileConfig> tile_configs(plan::DType dtype, const ProductShape& shape);

/// Warps by which the library's plain kernel makes such a tile where its strategy says none.
[[nodiscard]] std::int32_t usual_warps(const TileConfig& tile);

/// `tile` of the plain kernel with one stage more or less, or by another number of warps, as far as a block
/// has shared memory and registers for it. The estimate takes them for equal: only measuring orders them.
[[nodiscard]] std::vector<TileConfig> neighbours_of(plan::DType dtype, const TileConfig& tile);

/// The quickest of them, mixtures of wide and narrow tiles included; among equals the one with most wide
/// tiles. `exact`: fp32 products without tf32.
[[nodiscard]] TileConfig quickest_tiles(const Machine& machine, plan::DType dtype, const ProductShape& shape,
                                        std::int32_t programs, bool exact);

}  // namespace syncopate::tune
