// Every program of the launch: along one axis of the grid many at once where they have a common form, else
// one after another. The result is the same (tests/kernel/memo_test.cpp).
#include <algorithm>
#include <array>

#include "kernel/analysis.hpp"

namespace syncopate::kernel {
namespace {

constexpr std::int64_t kLongestLine = 4096, kShortestLine = 3;
constexpr int kMostCuts = 6;  // of a line that is too long, until it is given up

}  // namespace

/// The axis of the grid along which the most programs, from the first on, have a common form; -1: none.
std::int32_t Analysis::line_axis() {
    const bool states =
        directive(DirectiveKind::reads) != nullptr || directive(DirectiveKind::writes) != nullptr;
    if (!effort_.remember || persistent_ || states) return -1;
    std::int32_t best = -1;
    std::int64_t longest = kShortestLine - 1;
    for (std::int32_t axis = 0; axis < 3; ++axis) {
        std::int64_t count = std::min(grid_[static_cast<std::size_t>(axis)], kLongestLine);
        for (int cut = 0; cut < kMostCuts && count > longest; ++cut) {
            std::int64_t fewer = 0;
            if (evaluator_.run_line({0, 0, 0}, grid_, axis, count, fewer)) {
                best = axis, longest = count;
                break;
            }
            count = fewer;
        }
    }
    forget();
    return best;
}

Status Analysis::run_programs() {
    forget();
    for (LoopRecord& record : evaluator_.loops) record = LoopRecord{};
    evaluator_.restart();
    if (const std::int32_t axis = line_axis(); axis >= 0) return run_along(axis);
    for (std::int64_t z = 0; z < grid_[2]; ++z) {
        for (std::int64_t y = 0; y < grid_[1]; ++y) {
            for (std::int64_t x = 0; x < grid_[0]; ++x) {
                if (const Status status = evaluator_.run({x, y, z}, grid_); !status) return status;
            }
        }
    }
    return Done{};
}

Status Analysis::run_along(std::int32_t axis) {
    const auto along = static_cast<std::size_t>(axis);
    const std::size_t inner = along == 0 ? 1 : 0, outer = along == 2 ? 1 : 2;
    std::int64_t usual = kLongestLine;  // how long the last line was
    std::int64_t alone = 0;             // programs without a line, of late
    bool cut = false;                   // … since it would have gone too far
    std::array<std::int64_t, 3> id{};
    for (id[outer] = 0; id[outer] < grid_[outer]; ++id[outer]) {
        for (id[inner] = 0; id[inner] < grid_[inner]; ++id[inner]) {
            for (id[along] = 0; id[along] < grid_[along];) {
                std::int64_t count = std::min(usual, grid_[along] - id[along]);
                std::int64_t done = 0;
                for (int i = 0; i < kMostCuts && done == 0 && count >= kShortestLine && alone < 1024; ++i) {
                    std::int64_t fewer = 0;
                    if (evaluator_.run_line(id, grid_, axis, count, fewer))
                        done = count;
                    else
                        cut = true;
                    if (done == 0) count = fewer;
                }
                if (done > 0) {
                    alone = 0;
                    // As long again, and longer once that is no longer too long.
                    usual = cut ? done : std::min(2 * std::max(done, usual), kLongestLine);
                    cut = false;
                } else if (const Status status = evaluator_.run(id, grid_); !status) {
                    return status;
                } else {
                    done = 1;
                    ++alone;
                }
                id[along] += done;
            }
        }
    }
    std::vector<TileRecord>& tiles = evaluator_.found.tiles;
    std::sort(tiles.begin(), tiles.end(),
              [](const TileRecord& a, const TileRecord& b) { return a.program < b.program; });
    return Done{};
}

}  // namespace syncopate::kernel
