#include "sync/orders.hpp"

#include <algorithm>
#include <numeric>

#include "syncopate/at.hpp"

namespace syncopate::sync {

std::vector<std::int32_t> tiles_in_order(const ChainStage& stage, const Order& order) {
    if (order.kind == OrderKind::custom) return order.tiles;
    const auto [nx, ny, nz] = stage.grid;
    std::vector<std::int32_t> tiles;
    tiles.reserve(static_cast<std::size_t>(stage.num_blocks()));
    if (order.kind == OrderKind::identity || order.kind == OrderKind::automatic) {
        tiles.resize(static_cast<std::size_t>(stage.num_blocks()));
        std::iota(tiles.begin(), tiles.end(), 0);
        return tiles;
    }
    const std::int64_t rows = order.kind == OrderKind::transposed ? ny : std::min(order.rows, ny);
    for (std::int64_t z = 0; z < nz; ++z) {
        for (std::int64_t first = 0; first < ny; first += rows) {
            for (std::int64_t x = 0; x < nx; ++x) {
                for (std::int64_t y = first; y < std::min(first + rows, ny); ++y)
                    tiles.push_back(static_cast<std::int32_t>((z * ny + y) * nx + x));
            }
        }
    }
    return tiles;
}

std::vector<std::int32_t> places_in(const std::vector<std::int32_t>& order) {
    std::vector<std::int32_t> places(order.size());
    for (std::size_t place = 0; place < order.size(); ++place)
        places[at(order[place])] = static_cast<std::int32_t>(place);
    return places;
}

}  // namespace syncopate::sync
