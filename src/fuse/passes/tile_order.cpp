#include "syncopate/fuse/passes/tile_order.hpp"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "syncopate/plan/model/region.hpp"

namespace syncopate::fuse {
namespace {

/// Where a tile stands: the begins of the first and the last axis of the largest box that it writes.
std::pair<std::int64_t, std::int64_t> place_of(const kernel::Tile& tile) {
    std::pair<std::int64_t, std::int64_t> place{0, 0};
    std::int64_t largest = 0;
    for (const auto& [param, box] : tile.writes) {
        if (box.empty() || plan::is_empty(box) || plan::num_elements(box) <= largest) continue;
        largest = plan::num_elements(box);
        place = {box.front().begin, box.size() > 1 ? box.back().begin : 0};
    }
    return place;
}

}  // namespace

std::string_view name_of(TileOrder order) {
    static constexpr std::array<std::string_view, kNumTileOrders> kNames{"kernel", "rows", "columns", "snake",
                                                                         "grouped"};
    return kNames[static_cast<std::size_t>(order)];
}

std::vector<std::int64_t> tiles_in(const kernel::Kernel& kernel, TileOrder order) {
    std::vector<std::int64_t> tiles;
    tiles.reserve(kernel.tiles.size());
    for (std::size_t position = 0; position < kernel.tiles.size(); ++position)
        tiles.push_back(kernel.tile_at(position));
    if (order == TileOrder::kernel) return tiles;
    std::vector<std::pair<std::int64_t, std::int64_t>> places;
    std::vector<std::int64_t> rows;
    for (const kernel::Tile& tile : kernel.tiles) {
        places.push_back(place_of(tile));
        rows.push_back(places.back().first);
    }
    std::ranges::sort(rows);
    rows.erase(std::ranges::unique(rows).begin(), rows.end());
    const auto key = [&](std::int64_t tile) {
        const auto [begin, column] = places[static_cast<std::size_t>(tile)];
        const std::int64_t row = std::ranges::lower_bound(rows, begin) - rows.begin();
        switch (order) {
            case TileOrder::columns: return std::tuple(column, row, std::int64_t{0});
            case TileOrder::snake: return std::tuple(row, row % 2 == 0 ? column : -column, std::int64_t{0});
            case TileOrder::grouped: return std::tuple(row / kRowsOfAGroup, column, row);
            case TileOrder::kernel:
            case TileOrder::rows: break;
        }
        return std::tuple(row, column, std::int64_t{0});
    };
    std::ranges::stable_sort(tiles, {}, key);
    return tiles;
}

}  // namespace syncopate::fuse
