// Every program of the launch: along one axis of the grid many at once where they have a common form, else
// one after another. The result is the same (tests/kernel/lines_test.cpp).
#include <algorithm>
#include <array>

#include "kernel/triton/analyse/analysis.hpp"
#include "kernel/triton/footprints/cover.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::kernel::triton {

/// The axis of the grid along which the most programs have a common form, from the first on, or where those
/// have none, as the one tile of a triangle's first row, from the middle on; -1: none.
std::int32_t Analysis::line_axis() {
    if (!effort_.lines || persistent_) return -1;
    std::int32_t best = -1;
    std::int64_t longest = 0;
    for (const bool middle : {false, true}) {
        if (best >= 0) break;
        for (std::int32_t axis = 0; axis < 3; ++axis) {
            const std::int64_t extent = grid_[at(axis)];
            if (extent <= longest) continue;
            const Weave weave = find_weave(middle ? extent / 2 : 0, extent, line_from({0, 0, 0}, axis));
            if (weave.count > longest) best = axis, longest = weave.count;
        }
    }
    forget();
    return best;
}

/// Runs lines along an axis, with the other ids as in `id`.
RunLine Analysis::line_from(const std::array<std::int64_t, 3>& id, std::int32_t axis) {
    return [this, id, axis](std::int64_t first, std::int64_t stride, std::int64_t count, LineHint& hint) {
        Line line{id, axis, count, stride};
        line.first[at(axis)] = first;
        return evaluator_.run_line(line, grid_, hint);
    };
}

Status Analysis::run_programs() {
    forget();
    for (LoopRecord& record : evaluator_.loops) record = LoopRecord{};
    evaluator_.restart();
    if (const std::int32_t axis = line_axis(); axis >= 0) return run_along(axis);
    for (std::int64_t z = 0; z < grid_[2]; ++z) {
        for (std::int64_t y = 0; y < grid_[1]; ++y) {
            for (std::int64_t x = 0; x < grid_[0]; ++x) {
                SYNCOPATE_TRY(evaluator_.run({x, y, z}, grid_));
            }
        }
    }
    return Done{};
}

Status Analysis::run_along(std::int32_t axis) {
    const auto along = static_cast<std::size_t>(axis);
    const std::size_t inner = along == 0 ? 1 : 0, outer = along == 2 ? 1 : 2;
    std::array<std::int64_t, 3> id{};
    Cover cover([&](std::int64_t first, std::int64_t stride, std::int64_t count,
                    LineHint& hint) { return line_from(id, axis)(first, stride, count, hint); },
                [&](std::int64_t at) {
                    std::array<std::int64_t, 3> one = id;
                    one[along] = at;
                    return evaluator_.run(one, grid_);
                });
    for (id[outer] = 0; id[outer] < grid_[outer]; ++id[outer]) {
        for (id[inner] = 0; id[inner] < grid_[inner]; ++id[inner]) {
            SYNCOPATE_TRY(cover.all(grid_[along]));
        }
    }
    std::vector<TileRecord>& tiles = evaluator_.found.tiles;
    std::sort(tiles.begin(), tiles.end(),
              [](const TileRecord& a, const TileRecord& b) { return a.program < b.program; });
    return Done{};
}

}  // namespace syncopate::kernel::triton
