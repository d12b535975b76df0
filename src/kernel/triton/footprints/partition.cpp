#include "kernel/triton/footprints/partition.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr std::size_t kMostCells = std::size_t{1} << 26;
constexpr std::size_t kMostOwnedCells = std::size_t{1} << 22;
constexpr std::size_t kFewCuts = 1024;

/// The tensor cut wherever a box begins or ends: along each axis the places, in order.
using Cuts = std::vector<std::vector<std::int64_t>>;

std::size_t place(const std::vector<std::int64_t>& cuts, std::int64_t at) {
    return static_cast<std::size_t>(std::lower_bound(cuts.begin(), cuts.end(), at) - cuts.begin());
}

plan::Region cell(const Cuts& cuts, std::size_t index) {
    plan::Region region(cuts.size());
    for (std::size_t d = cuts.size(); d-- > 0;) {
        const std::size_t count = cuts[d].size() - 1;
        region[d] = {cuts[d][index % count], cuts[d][index % count + 1]};
        index /= count;
    }
    return region;
}

/// The cuts of a tensor of this shape at the ends of all boxes that `each_box` visits, and how many cells they
/// make: `most` + 1 where there are more than that.
template <typename EachBox>
std::pair<Cuts, std::size_t> cut(const std::vector<std::int64_t>& shape, const EachBox& each_box,
                                 std::size_t most) {
    Cuts cuts(shape.size());
    for (std::size_t d = 0; d < shape.size(); ++d) cuts[d] = {0, shape[d]};
    const auto sort = [](std::vector<std::int64_t>& along) {
        std::sort(along.begin(), along.end());
        along.erase(std::unique(along.begin(), along.end()), along.end());
    };
    std::vector<std::size_t> full(shape.size(), kFewCuts);  // most boxes begin where others do
    each_box([&](const plan::Region& box) {
        for (std::size_t d = 0; d < shape.size(); ++d) {
            cuts[d].push_back(box[d].begin);
            cuts[d].push_back(box[d].end);
            if (cuts[d].size() < full[d]) continue;
            sort(cuts[d]);
            full[d] = std::max(kFewCuts, 2 * cuts[d].size());
        }
    });
    std::size_t cells = 1;
    for (std::vector<std::int64_t>& along : cuts) {
        sort(along);
        cells = cells > most ? most + 1 : cells * (along.size() - 1);
    }
    return {std::move(cuts), std::min(cells, most + 1)};
}

/// Calls `visit` with the index of each cell inside the box.
template <typename Visit>
void each_cell(const Cuts& cuts, const plan::Region& box, const Visit& visit) {
    const std::size_t rank = cuts.size();
    std::vector<std::size_t> begin(rank), end(rank), at(rank);
    for (std::size_t d = 0; d < rank; ++d) {
        begin[d] = at[d] = place(cuts[d], box[d].begin);
        end[d] = place(cuts[d], box[d].end);
        if (begin[d] >= end[d]) return;
    }
    while (true) {
        std::size_t index = 0;
        for (std::size_t d = 0; d < rank; ++d) index = index * (cuts[d].size() - 1) + at[d];
        visit(index);
        std::size_t d = rank;
        while (d-- > 0 && ++at[d] >= end[d]) at[d] = begin[d];
        if (d == std::numeric_limits<std::size_t>::max()) return;
    }
}

}  // namespace

Partition partition_of(const std::vector<std::int64_t>& shape, const std::vector<Tile>& tiles,
                       const std::string& param) {
    if (std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 1; }))
        return {};  // nothing to store
    const auto each_box = [&](const auto& visit) {
        for (const Tile& tile : tiles) {
            const auto boxes = tile.write_boxes.find(param);
            if (boxes == tile.write_boxes.end()) continue;
            for (const plan::Region& box : boxes->second) visit(box);
        }
    };
    const auto made_cuts = cut(shape, each_box, kMostCells);
    const Cuts& cuts = made_cuts.first;
    const std::size_t cells = made_cuts.second;
    Partition made;
    if (cells > kMostCells) {
        made.known = false;
        return made;
    }
    std::vector<bool> stored(cells);
    each_box([&](const plan::Region& box) {
        each_cell(cuts, box, [&](std::size_t index) {
            if (stored[index] && !made.twice) made.twice = cell(cuts, index);
            stored[index] = true;
        });
    });
    const auto gap = std::find(stored.begin(), stored.end(), false);
    if (gap != stored.end()) made.gap = cell(cuts, static_cast<std::size_t>(gap - stored.begin()));
    return made;
}

std::optional<SharedStore> find_shared_store(const std::vector<std::int64_t>& shape,
                                             const std::vector<StoredBox>& boxes) {
    const auto each_box = [&](const auto& visit) {
        for (const StoredBox& stored : boxes) visit(stored.box);
    };
    const auto made_cuts = cut(shape, each_box, kMostOwnedCells);
    const Cuts& cuts = made_cuts.first;
    const std::size_t cells = made_cuts.second;
    if (cells > kMostOwnedCells) return std::nullopt;
    constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();
    std::vector<std::uint32_t> owner(cells, kNobody);
    for (const bool adds : {false, true}) {
        for (const StoredBox& stored : boxes) {
            if (stored.adds != adds) continue;
            std::optional<SharedStore> found;
            const auto tile = static_cast<std::uint32_t>(stored.tile);
            each_cell(cuts, stored.box, [&](std::size_t index) {
                if (!found && owner[index] != kNobody && owner[index] != tile)
                    found = SharedStore{owner[index], stored.tile, cell(cuts, index)};
                if (!adds) owner[index] = tile;
            });
            if (found) return found;
        }
    }
    return std::nullopt;
}

}  // namespace syncopate::kernel::triton
