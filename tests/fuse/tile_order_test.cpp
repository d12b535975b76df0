#include "syncopate/fuse/passes/tile_order.hpp"

#include <gtest/gtest.h>

namespace syncopate::fuse {
namespace {

/// Tiles of 16 x 16, row by row, whose own traversal runs backwards.
kernel::Kernel grid(std::int64_t rows, std::int64_t columns) {
    kernel::Kernel made;
    for (std::int64_t id = 0; id < rows * columns; ++id) {
        kernel::Tile tile;
        tile.id = id;
        const std::int64_t row = id / columns * 16;
        const std::int64_t column = id % columns * 16;
        tile.writes["c_ptr"] = {{row, row + 16}, {column, column + 16}};
        made.tiles.push_back(tile);
        made.traversal.insert(made.traversal.begin(), id);
    }
    return made;
}

using Ids = std::vector<std::int64_t>;

TEST(TileOrder, IsTheKernelsOwnUnlessAnotherIsAskedFor) {
    EXPECT_EQ(tiles_in(grid(2, 2), TileOrder::kernel), (Ids{3, 2, 1, 0}));
}

TEST(TileOrder, GoesByWhereTilesWrite) {
    EXPECT_EQ(tiles_in(grid(3, 3), TileOrder::rows), (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8}));
    EXPECT_EQ(tiles_in(grid(3, 3), TileOrder::columns), (Ids{0, 3, 6, 1, 4, 7, 2, 5, 8}));
    EXPECT_EQ(tiles_in(grid(3, 3), TileOrder::snake), (Ids{0, 1, 2, 5, 4, 3, 6, 7, 8}));
}

TEST(TileOrder, GroupsEightRows) {
    const Ids grouped = tiles_in(grid(10, 2), TileOrder::grouped);
    EXPECT_EQ(grouped, (Ids{0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 16, 18, 17, 19}));
}

TEST(TileOrder, OfTilesThatWriteNothingIsTheKernelsOwn) {
    kernel::Kernel none = grid(2, 2);
    for (kernel::Tile& tile : none.tiles) tile.writes = {};
    EXPECT_EQ(tiles_in(none, TileOrder::snake), (Ids{3, 2, 1, 0}));
}

TEST(TileOrder, HasAName) {
    EXPECT_EQ(name_of(TileOrder::snake), "snake");
    EXPECT_EQ(name_of(TileOrder::grouped), "grouped");
}

}  // namespace
}  // namespace syncopate::fuse
