// Gluon tiles: which tiles of the library's Gluon GEMM (kernels/gluon_matmul.py) make a product soonest, for
// bf16, fp16 and fp8e4m3.
//
// A tile takes the longer of its arithmetic and of loading its operands, on one multiprocessor while all
// work, plus its begin and end. Where K is split, programs share a tile, and hand over their partial sums. No
// product takes less than reading its operands from memory, at the rate that the multiprocessors which work
// reach with the bytes of w that they have on their way; a split adds to that, too.
//
//     rows        16, 32: a wgmma multiplies 64 all the same, but only these are loaded, summed and stored
//     columns     192: two wgmmas, of 128 and of 64, which read the rows of a twice
//     192 x 192   fills a round where 128 x 256 just begins another one
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tune {

/// Workspace for partial sums is for so many tiles at most (kernels/gluon_launch.py, MAX_SPLIT_TILES).
inline constexpr std::int64_t kMostGluonSplitTiles = 1024;

/// Whether the kernel multiplies elements of this type.
[[nodiscard]] bool gluon_multiplies(plan::DType dtype);

/// Why the kernel cannot make a product of such operands with such tiles; "" where it can.
[[nodiscard]] std::string gluon_objection(const Operands& operands, const ProductShape& shape,
                                          const TileConfig& tile);

/// µs of one tile over `k` of the reduction, with its share of the partial sums where K is split.
[[nodiscard]] double gluon_tile_us(const Machine& machine, const Operands& operands, const TileConfig& tile,
                                   std::int64_t k);

/// The same of a tile that no neighbours run beside, as where tiles follow arrivals: the L2 cache answers
/// each by itself, no faster than the plain kernel's loads.
[[nodiscard]] double gluon_lone_tile_us(const Machine& machine, const Operands& operands,
                                        const TileConfig& tile, std::int64_t k);

/// The same of a tile in one of several rounds in which tiles of all chunks take turns (fuse/passes/order.hpp):
/// those of fewer than 128 rows have neighbours that load the same blocks at once, but tiles of 64 rows and
/// more than 128 columns half of the time only; larger ones are on their own.
[[nodiscard]] double gluon_turns_tile_us(const Machine& machine, const Operands& operands,
                                         const TileConfig& tile, std::int64_t k);

/// µs of a product by so many programs, without its launch.
[[nodiscard]] double gluon_product_us(const Machine& machine, const Operands& operands,
                                      const ProductShape& shape, const TileConfig& tile,
                                      std::int32_t programs);

/// Those worth a look: K is split where less than a third of the programs would have a tile, and into no more
/// parts than there are programs, and blocks of K.
[[nodiscard]] std::vector<TileConfig> gluon_tile_configs(const Operands& operands, const ProductShape& shape,
                                                         std::int32_t programs);

/// What tiles are ranked by: µs of the product, and among equals what all programs load, over the share of
/// them that load it.
[[nodiscard]] std::pair<double, double> gluon_rank(const Machine& machine, const Operands& operands,
                                                   const ProductShape& shape, const TileConfig& tile,
                                                   std::int32_t programs);

/// The quickest of some by the estimate.
[[nodiscard]] TileConfig quickest_of(const std::vector<TileConfig>& configs, const Machine& machine,
                                     const Operands& operands, const ProductShape& shape,
                                     std::int32_t programs);

/// What the tiles of a product have to do with other ranks.
enum class ProductPlace : std::uint8_t {
    apart,     ///< nothing
    awaits,    ///< rows arrive
    departs,   ///< rows leave
    in_turns,  ///< the same, a tile of each chunk after the other
};

/// The same of all that are worth a look. In the order of chunks, tiles of several rounds load without
/// neighbours, or as gluon_turns_tile_us says. Where rows arrive, K is split only where a tile has all rows:
/// else the programs that share a tile of late rows are those that the early ones leave, and the split gains
/// nothing.
[[nodiscard]] TileConfig quickest_gluon_tiles(const Machine& machine, const Operands& operands,
                                              const ProductShape& shape, std::int32_t programs,
                                              ProductPlace place = ProductPlace::apart);

}  // namespace syncopate::tune
