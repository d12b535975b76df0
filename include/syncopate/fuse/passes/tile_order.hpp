// Tile order: among tiles that may run alike, which comes first. The kernel's own traversal keeps the
// locality that its author had in mind; others may suit chunks better than the whole product.
//
//     rows     0 1 2    columns  0 3 6    snake  0 1 2    grouped (of two rows)  0 2 4
//              3 4 5             1 4 7           5 4 3                           1 3 5
//              6 7 8             2 5 8           6 7 8                           6 7 8
//
// Rows and columns are those of what a tile writes: its first and its last axis.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"

namespace syncopate::fuse {

enum class TileOrder : std::uint8_t {
    kernel,   ///< the kernel's own
    rows,     ///< row by row
    columns,  ///< column by column
    snake,    ///< row by row, every other one backwards
    grouped,  ///< in groups of rows, column by column within a group
};
inline constexpr std::size_t kNumTileOrders = 5;
inline constexpr std::int64_t kRowsOfAGroup = 8;
[[nodiscard]] std::string_view name_of(TileOrder order);

/// All tiles by id, in that order. Tiles that write nothing keep the kernel's own.
[[nodiscard]] std::vector<std::int64_t> tiles_in(const kernel::Kernel& kernel, TileOrder order);

}  // namespace syncopate::fuse
