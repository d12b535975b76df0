// The box that one load or store of the library's Gluon GEMM moves (kernels/gluon_launch.py).
#pragma once

#include <cstddef>
#include <cstdint>

#include "syncopate/ops/strategy.hpp"

namespace syncopate::ops {

/// Rows of a, columns of b and c, and elements along K.
struct GluonBox {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::int64_t depth = 0;
    bool operator==(const GluonBox&) const = default;
};

/// For a product of m rows, of elements of `item` bytes. `cut`: rows of a tile of fewer than 64 may be cut,
/// which Gluon's views of before Triton 3.7 do not allow.
[[nodiscard]] GluonBox gluon_box(const TileConfig& tile, std::int64_t m, std::size_t item, bool cut = true);

}  // namespace syncopate::ops
