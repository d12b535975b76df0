// Play: a product's tiles on its programs, one after another as programs become free. Tiles that read wait
// for what they read; of tiles that make, one is told when each chunk is complete.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "syncopate/tune/candidates/tiles.hpp"

namespace syncopate::tune {

/// Half-open, in elements of the product.
struct Rows {
    std::int64_t begin = 0;
    std::int64_t end = 0;
};

/// What a kernel's programs are, and what a tile costs them.
struct Programs {
    std::int32_t count = 1;
    double start_us = 0;  ///< when the first tile can begin
    double wide_us = 0;   ///< of a tile of the grid's wide columns
    double narrow_us = 0;
    double phase_us = 0;  ///< of each further slice of a tile
};

/// Rows of the input that arrive together, slice by slice of K.
struct Arriving {
    Rows rows;
    std::vector<double> slices;  ///< µs, of each slice; as many everywhere
};

/// When the last tile has ended. Rows that nobody lists are there from the start. `shares`: of the reduction,
/// that each slice is.
[[nodiscard]] double play_reads(const TileGrid& grid, const Programs& programs,
                                const std::vector<Arriving>& arriving, const std::vector<double>& shares);

/// A chunk of the product: rows and columns.
struct Made {
    Rows rows;
    Rows columns;
};

/// When each chunk is complete; tiles run in the order of the first chunk that they touch. The last entry is
/// when the last tile has ended.
[[nodiscard]] std::vector<double> play_makes(const TileGrid& grid, const Programs& programs,
                                             const std::vector<Made>& chunks);

}  // namespace syncopate::tune
