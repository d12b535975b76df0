#include "ops/ragged_order.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <span>

#include "syncopate/at.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"
#include "syncopate/round_up.hpp"

namespace syncopate::ops {
namespace {

/// From the first row of a tile's boxes to the last one; 0: they have none.
std::int64_t rows_of(std::span<const plan::Region> boxes) {
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = 0;
    for (const plan::Region& box : boxes) {
        if (plan::is_empty(box)) continue;
        first = std::min(first, box[0].begin);
        last = std::max(last, box[0].end);
    }
    return std::max<std::int64_t>(0, last - first);
}

std::int64_t rows_read(const kernel::Tile& tile, const Reads& reads) {
    std::int64_t rows = 0;
    for (const auto& [param, tensor] : reads) rows = std::max(rows, rows_of(kernel::boxes_read(tile, param)));
    return rows;
}

std::int64_t tiles_of(const RaggedOrder& order, std::int64_t rows) {
    return ceil_div(rows, order.rows) * order.columns;
}

}  // namespace

std::int64_t most_rows_read(const kernel::Kernel& all, const Reads& reads) {
    std::int64_t rows = 0;
    for (const kernel::Tile& tile : all.tiles) rows = std::max(rows, rows_read(tile, reads));
    return rows;
}

std::vector<std::int64_t> blocks_of(const kernel::Kernel& all, const Reads& reads,
                                    const std::string& stores) {
    std::vector<std::int64_t> blocks{most_rows_read(all, reads), 0};
    for (const kernel::Tile& tile : all.tiles)
        blocks.back() = std::max(blocks.back(), rows_of(kernel::boxes_written(tile, stores)));
    for (const kernel::TileAxis& axis : all.axes) blocks.push_back(axis.block);
    std::erase_if(blocks, [](std::int64_t rows) { return rows < 1; });
    return blocks;
}

std::vector<RaggedOrder> orders_of(const kernel::Kernel& all, const kernel::Kernel& one, const Reads& reads) {
    const std::int64_t rows = most_rows_read(all, reads);
    if (rows == 0) return {};
    std::vector<RaggedOrder> made;
    const auto add = [&](std::int64_t apart, std::int64_t count) {
        if (std::ranges::any_of(
                made, [&](const RaggedOrder& known) { return known.apart == apart && known.count == count; }))
            return;
        std::set<std::int64_t> numbers;
        for (const kernel::Tile& tile : one.tiles)
            if (rows_read(tile, reads) > 0) numbers.insert(tile.id / apart % count);
        if (numbers.empty()) return;
        made.push_back({.rows = rows,
                        .columns = static_cast<std::int64_t>(numbers.size()),
                        .apart = apart,
                        .count = count});
    };
    if (all.persistent) {
        add(1, std::numeric_limits<std::int32_t>::max());
        return made;
    }
    const auto [x, y, z] = all.grid;
    add(1, x * y * z);
    add(1, x);
    add(x, y);
    add(x * y, z);
    add(1, x * y);
    add(x, y * z);
    return made;
}

std::int32_t expert_in(const RaggedOrder& order, std::int64_t tile, const Offsets& offsets) {
    std::int64_t left = tile / order.apart % order.count;
    for (std::size_t expert = 0; expert + 1 < offsets.size(); ++expert) {
        left -= tiles_of(order, offsets[expert + 1] - offsets[expert]);
        if (left < 0) return static_cast<std::int32_t>(expert);
    }
    return -1;
}

std::int64_t tiles_in(const RaggedOrder& order, const Offsets& offsets) {
    std::int64_t total = 0;
    for (std::size_t expert = 0; expert + 1 < offsets.size(); ++expert)
        total += tiles_of(order, offsets[expert + 1] - offsets[expert]);
    return total;
}

}  // namespace syncopate::ops
