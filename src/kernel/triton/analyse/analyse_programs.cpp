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
    if (effort_.lines && persistent_) {
        SYNCOPATE_TAKE(const bool done, run_rounds());
        if (done) return Done{};
    }
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

/// The tiles of a persistent kernel by lines; false, having found nothing, where that cannot be.
Result<bool> Analysis::run_rounds() {
    std::vector<Evaluator::Round>& rounds = evaluator_.tile_rounds;
    rounds.clear();
    const auto start_over = [&] {
        forget();
        rounds.clear();
        evaluator_.restart();
        return false;
    };
    const std::int64_t programs = grid_[0] * grid_[1] * grid_[2];
    const auto place = [&](std::int64_t program) -> std::array<std::int64_t, 3> {
        return {program % grid_[0], program / grid_[0] % grid_[1], program / grid_[0] / grid_[1]};
    };
    for (std::int64_t program = 0; program < programs; ++program) {
        if (!evaluator_.note_rounds(place(program), grid_)) return start_over();
    }
    std::sort(rounds.begin(), rounds.end(), [](const Evaluator::Round& a, const Evaluator::Round& b) {
        return std::pair(a.group, a.id) < std::pair(b.group, b.id);
    });
    // Where it can be told from the ids alone that they are none of tiles, the rounds need not be run.
    if (!evaluator_.found.strided) {
        std::vector<std::int64_t> ids;
        ids.reserve(rounds.size());
        for (const Evaluator::Round& round : rounds) ids.push_back(round.id);
        std::sort(ids.begin(), ids.end());
        SYNCOPATE_TRY(check_ids(ids));
    }
    std::vector<Evaluator::Round> line;
    for (std::size_t begin = 0, end = 0; begin < rounds.size(); begin = end) {
        // Tiles as far apart from each other.
        const auto apart = [&](std::size_t i) { return rounds[i].id - rounds[i - 1].id; };
        const auto joins = [&](std::size_t i) {
            return i < rounds.size() && rounds[i].group == rounds[begin].group &&
                   (i == begin + 1 || apart(i) == apart(begin + 1));
        };
        for (end = begin + 1; joins(end); ++end) {
        }
        const std::int64_t step = end > begin + 1 ? apart(begin + 1) : 1;
        if (step < 1) return start_over();  // the same tile twice
        const auto run = [&](std::int64_t first, std::int64_t stride, std::int64_t count, LineHint& hint) {
            line.clear();
            for (std::int64_t i = 0; i < count; ++i)
                line.push_back(rounds[begin + static_cast<std::size_t>(first + i * stride)]);
            return evaluator_.run_rounds(place(line[0].program), grid_, line, step * stride, hint);
        };
        const auto alone = [&](std::int64_t i) -> Status {
            LineHint hint;
            if (run(i, 1, 1, hint)) return Done{};
            return module_.error(function_.name_range, "not by lines");
        };
        Cover cover(run, alone);
        if (!cover.all(static_cast<std::int64_t>(end - begin))) return start_over();
    }
    return true;
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
