#include "tune/play/play.hpp"

#include <algorithm>
#include <limits>
#include <queue>

#include "syncopate/at.hpp"

namespace syncopate::tune {
namespace {

/// The programs' free times, soonest first.
class Free {
public:
    explicit Free(const Programs& programs) {
        for (std::int32_t i = 0; i < std::max(1, programs.count); ++i) times_.push(programs.start_us);
    }
    [[nodiscard]] double soonest() const { return times_.top(); }
    void replace_soonest(double time) {
        times_.pop();
        times_.push(time);
        last_ = std::max(last_, time);
    }
    [[nodiscard]] double last() const { return last_; }

private:
    std::priority_queue<double, std::vector<double>, std::greater<>> times_;
    double last_ = 0;
};

bool overlap(std::int64_t begin, std::int64_t end, const Rows& range) {
    return begin < range.end && range.begin < end;
}

double us_of(const TileGrid& grid, const Programs& programs, std::int64_t column) {
    return column < grid.wide ? programs.wide_us : programs.narrow_us;
}

/// What is played: of more tiles than it takes to see the order of events, neighbours as one.
struct Played {
    TileGrid grid;
    Programs programs;
};

Played coarse(const TileGrid& grid, const Programs& programs) {
    constexpr std::int64_t kMostTiles = std::int64_t{1} << 16;
    constexpr std::int64_t kEnoughRows = 256;
    if (grid.tiles() <= kMostTiles) return {grid, programs};
    const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const std::int64_t rows = ceil_div(grid.rows, std::max(kEnoughRows, kMostTiles / grid.columns()));
    TileGrid made{.rows = ceil_div(grid.rows, rows)};
    const std::int64_t columns = ceil_div(grid.columns(), kMostTiles / made.rows);
    made.wide = ceil_div(grid.wide, columns);
    made.narrow = ceil_div(grid.narrow, columns);
    made.block_m = static_cast<std::int32_t>(grid.block_m * rows);
    made.block_n = static_cast<std::int32_t>(grid.block_n * columns);
    const double tiles = static_cast<double>(grid.tiles()) / static_cast<double>(made.tiles());
    Programs slower = programs;
    for (double* us : {&slower.wide_us, &slower.narrow_us, &slower.phase_us}) *us *= tiles;
    return {made, slower};
}

/// What fuse makes of tiles of two lengths (fuse/passes/pack.hpp): whoever is free takes the longest tile that can
/// begin, or waits for the next rows. `ready` is sorted; nothing is sliced.
double play_packed(const TileGrid& grid, const Programs& programs,
                   const std::vector<std::vector<double>>& ready) {
    struct Row {
        double ready = 0;
        std::int64_t wide = 0;
        std::int64_t narrow = 0;
    };
    std::vector<Row> rows;
    rows.reserve(ready.size());
    for (const std::vector<double>& times : ready) rows.push_back({times.front(), grid.wide, grid.narrow});
    Free free(programs);
    std::size_t done = 0;  // rows before it have no tiles left
    for (std::int64_t left = grid.tiles(); left > 0; --left) {
        while (rows[done].wide + rows[done].narrow == 0) ++done;
        const double now = std::max(free.soonest(), rows[done].ready);
        std::size_t take = done;
        for (std::size_t row = done; row < rows.size() && rows[row].ready <= now; ++row) {
            if (rows[row].wide == 0) continue;
            take = row;
            break;
        }
        const bool wide = rows[take].wide > 0;
        --(wide ? rows[take].wide : rows[take].narrow);
        free.replace_soonest(now + (wide ? programs.wide_us : programs.narrow_us));
    }
    return free.last();
}

}  // namespace

double play_reads(const TileGrid& all_tiles, const Programs& all_programs,
                  const std::vector<Arriving>& arriving, const std::vector<double>& shares) {
    const auto& [grid, programs] = coarse(all_tiles, all_programs);
    std::vector<std::vector<double>> ready(static_cast<std::size_t>(grid.rows),
                                           std::vector<double>(shares.size(), 0));
    for (const Arriving& chunk : arriving) {
        const std::int64_t first = chunk.rows.begin / grid.block_m;
        const std::int64_t last = std::min(grid.rows, (chunk.rows.end + grid.block_m - 1) / grid.block_m);
        for (std::int64_t row = first; row < last; ++row) {
            std::vector<double>& times = ready[at(row)];
            for (std::size_t s = 0; s < shares.size(); ++s) times[s] = std::max(times[s], chunk.slices[s]);
        }
    }
    std::ranges::stable_sort(ready);
    const auto play = [&](const std::vector<Rows>& passes) {
        Free free(programs);
        for (const Rows& pass : passes) {
            for (const std::vector<double>& times : ready) {
                for (std::int64_t column = pass.begin; column < pass.end; ++column) {
                    const double us = us_of(grid, programs, column);
                    double now = free.soonest();
                    for (std::size_t s = 0; s < shares.size(); ++s)
                        now = std::max(now, times[s]) + us * shares[s] + (s == 0 ? 0 : programs.phase_us);
                    free.replace_soonest(now);
                }
            }
        }
        return free.last();
    };
    const double by_rows = play({{0, grid.columns()}});
    if (grid.narrow == 0 || grid.wide == 0) return by_rows;
    // Tiles of two lengths are packed: the long ones first, where that ends sooner.
    const double long_first = play({{0, grid.wide}, {grid.wide, grid.columns()}});
    const double packed = shares.size() == 1 ? play_packed(grid, programs, ready) : by_rows;
    return std::min({by_rows, long_first, packed});
}

std::vector<double> play_makes(const TileGrid& all_tiles, const Programs& all_programs,
                               const std::vector<Made>& chunks) {
    const auto& [grid, programs] = coarse(all_tiles, all_programs);
    struct Tile {
        std::size_t due = 0;
        std::int64_t row = 0;
        std::int64_t column = 0;
    };
    // Chunks are rows by columns of a grid themselves; which rows and columns of tiles touch which of them.
    std::vector<Tile> tiles;
    tiles.reserve(static_cast<std::size_t>(grid.tiles()));
    std::vector<std::vector<std::size_t>> of_row(static_cast<std::size_t>(grid.rows));
    for (std::size_t c = 0; c < chunks.size(); ++c) {
        const std::int64_t first = chunks[c].rows.begin / grid.block_m;
        const std::int64_t last = std::min(grid.rows, (chunks[c].rows.end + grid.block_m - 1) / grid.block_m);
        for (std::int64_t row = first; row < last; ++row) of_row[at(row)].push_back(c);
    }
    const auto touches = [&](std::size_t chunk, std::int64_t column) {
        const std::int64_t begin = grid.first_column(column);
        return overlap(begin, begin + grid.width(column), chunks[chunk].columns);
    };
    for (std::int64_t row = 0; row < grid.rows; ++row) {
        for (std::int64_t column = 0; column < grid.columns(); ++column) {
            std::size_t due = chunks.size();
            for (const std::size_t c : of_row[at(row)]) {
                if (c < due && touches(c, column)) due = c;
            }
            tiles.push_back({due, row, column});
        }
    }
    // Of tiles of two lengths the long ones come first within a chunk, so that the last round is short.
    std::ranges::stable_sort(tiles, {},
                             [&](const Tile& tile) { return std::pair(tile.due, tile.column >= grid.wide); });
    Free free(programs);
    std::vector<double> ends(chunks.size() + 1, programs.start_us);
    for (const Tile& tile : tiles) {
        const double end = free.soonest() + us_of(grid, programs, tile.column);
        free.replace_soonest(end);
        for (const std::size_t c : of_row[at(tile.row)]) {
            if (touches(c, tile.column)) ends[c] = std::max(ends[c], end);
        }
    }
    ends.back() = free.last();
    return ends;
}

}  // namespace syncopate::tune
