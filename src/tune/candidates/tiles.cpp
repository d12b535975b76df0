#include "syncopate/tune/candidates/tiles.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "syncopate/round_up.hpp"
namespace syncopate::tune {
namespace {

double raw_tile_us(double tflops, double load_gbps, double overhead, std::int64_t rows, std::int64_t columns,
                   std::int64_t k, std::size_t bytes) {
    const auto r = static_cast<double>(rows);
    const auto c = static_cast<double>(columns);
    const auto depth = static_cast<double>(k);
    const double multiply = 2 * r * c * depth / (tflops * kFlopsPerUs);
    const double load = (r + c) * depth * static_cast<double>(bytes) / (load_gbps * kBytesPerUs);
    return std::max(multiply, load) + overhead;
}

double memory_us(const Machine& machine, plan::DType dtype, const ProductShape& shape) {
    const auto m = static_cast<double>(shape.m);
    const auto n = static_cast<double>(shape.n);
    const auto k = static_cast<double>(shape.k);
    const double elements = m * k + k * n + m * n;
    return elements * static_cast<double>(plan::size_of(dtype)) / (machine.rates.memory_gbps * kBytesPerUs);
}

/// Of so many tiles of each of two lengths on as many programs, the long ones first.
double makespan(std::int64_t wide, double wide_us, std::int64_t narrow, double narrow_us,
                std::int32_t programs) {
    const std::int64_t rounds = wide / programs;
    const std::int64_t left = wide % programs;
    if (narrow == 0) return static_cast<double>(rounds + (left != 0 ? 1 : 0)) * wide_us;
    if (wide == 0) return static_cast<double>(ceil_div(narrow, programs)) * narrow_us;
    // After the full rounds `left` programs have one wide tile more; narrow tiles fill up from below.
    double lowest = std::numeric_limits<double>::infinity();
    const double base = static_cast<double>(rounds) * wide_us;
    const std::int64_t free = programs - left;
    if (left == 0) return base + static_cast<double>(ceil_div(narrow, free)) * narrow_us;
    const auto end_of = [&](std::int64_t on_free) {
        const std::int64_t rest = std::max<std::int64_t>(0, narrow - on_free * free);
        return std::pair(static_cast<double>(on_free) * narrow_us,
                         wide_us + static_cast<double>(ceil_div(rest, left)) * narrow_us);
    };
    // With more narrow rounds the free programs end later, and the others sooner: the least is where they
    // meet.
    std::int64_t fewest = 0;
    std::int64_t most = ceil_div(narrow, free);
    while (fewest < most) {
        const std::int64_t middle = fewest + (most - fewest) / 2;
        const auto [free_us, left_us] = end_of(middle);
        if (free_us < left_us)
            fewest = middle + 1;
        else
            most = middle;
    }
    for (const std::int64_t on_free : {fewest - 1, fewest}) {
        if (on_free < 0) continue;
        const auto [free_us, left_us] = end_of(on_free);
        lowest = std::min(lowest, base + std::max(free_us, left_us));
    }
    return lowest;
}

constexpr TileConfig shaped(std::int32_t m, std::int32_t n, std::int32_t k, std::int32_t stages) {
    return TileConfig{.block_m = m, .block_n = n, .block_k = k, .stages = stages};
}

}  // namespace

double faster(plan::DType dtype, std::string_view precision) {
    if (plan::size_of(dtype) <= 2) return plan::size_of(dtype) == 1 ? 2 : 1;
    return precision == "ieee" ? 1.0 / 16 : 1.0 / 2;
}

TileGrid tile_grid(std::int64_t m, std::int64_t n, const TileConfig& tile) {
    TileGrid grid{.rows = ceil_div(m, tile.block_m), .block_m = tile.block_m, .block_n = tile.block_n};
    if (tile.num_wide < 0) {
        grid.wide = ceil_div(n, tile.block_n);
        return grid;
    }
    grid.wide = tile.num_wide;
    const std::int64_t rest = n - grid.wide * tile.block_n;
    grid.narrow = rest > 0 ? ceil_div(rest, tile.block_n / 2) : 0;
    return grid;
}

double tile_us(const Machine& machine, plan::DType dtype, const TileConfig& tile, std::int64_t width,
               std::int64_t k) {
    const Rates& rates = machine.rates;
    const double us = raw_tile_us(rates.sm_tflops * faster(dtype, tile.precision), rates.sm_load_gbps, 0,
                                  tile.block_m, width, k, plan::size_of(dtype));
    return us + rates.tile_us;
}

double product_us(const Machine& machine, plan::DType dtype, const ProductShape& shape,
                  const TileConfig& tile, std::int32_t programs) {
    const TileGrid grid = tile_grid(shape.m, shape.n, tile);
    const double wide = tile_us(machine, dtype, tile, tile.block_n, shape.k);
    const double narrow = grid.narrow == 0 ? 0 : tile_us(machine, dtype, tile, tile.block_n / 2, shape.k);
    const double tiles =
        makespan(grid.rows * grid.wide, wide, grid.rows * grid.narrow, narrow, std::max(1, programs));
    return std::max(tiles, memory_us(machine, dtype, shape));
}

double uncached_weight_bytes(const Machine& machine, plan::DType dtype, const ProductShape& shape) {
    const double bytes = static_cast<double>(shape.k) * static_cast<double>(shape.n) *
                         static_cast<double>(plan::size_of(dtype));
    return bytes <= machine.rates.cache_mib * fuse::kMib ? 0 : bytes;
}

double library_product_us(const Machine& machine, plan::DType dtype, const ProductShape& shape) {
    const Rates& rates = machine.rates;
    static constexpr std::array<std::array<std::int64_t, 2>, 9> kShapes{{{64, 64},
                                                                         {64, 128},
                                                                         {128, 64},
                                                                         {128, 128},
                                                                         {128, 192},
                                                                         {192, 128},
                                                                         {128, 256},
                                                                         {256, 128},
                                                                         {64, 256}}};
    constexpr std::int64_t kLeastDepth = 512;  // of a share of a reduction
    const double tflops = rates.sm_tflops * faster(dtype);
    double best = std::numeric_limits<double>::infinity();
    for (const auto& [rows, columns] : kShapes) {
        for (const std::int64_t share : {1, 2, 4, 8}) {
            if (share > 1 && shape.k / share < kLeastDepth) break;
            const std::int64_t tiles = ceil_div(shape.m, rows) * ceil_div(shape.n, columns) * share;
            const double tile = raw_tile_us(tflops, rates.gluon_load_gbps, rates.gluon_tile_us, rows, columns,
                                            shape.k / share, plan::size_of(dtype));
            const double partial =
                share == 1 ? 0
                           : 2 * rates.gluon_tile_us + static_cast<double>(shape.m * shape.n * 8 * share) /
                                                           (rates.memory_gbps * kBytesPerUs);
            best = std::min(best, static_cast<double>(ceil_div(tiles, machine.num_sms)) * tile + partial);
        }
    }
    return std::max(best, memory_us(machine, dtype, shape));
}

std::vector<TileConfig> tile_configs(plan::DType dtype, const ProductShape& shape) {
    if (plan::size_of(dtype) > 2) return {shaped(128, 128, 32, 4)};
    std::vector<TileConfig> made{shaped(64, 64, 128, 6), shaped(64, 128, 128, 4)};
    if (shape.m <= 64) {
        made.push_back(shaped(64, 128, 64, 5));
    } else {
        made.push_back(shaped(128, 256, 64, 4));
        made.push_back(shaped(128, 128, 64, 6));
    }
    return made;
}

std::int32_t usual_warps(const TileConfig& tile) {
    // One warpgroup makes 128 x 128 of 16-bit inputs in 0.9 of two's time; fp32 comes in shorter blocks of K,
    // and would spill.
    const std::int32_t most = tile.block_k >= 64 && tile.num_wide < 0 ? 128 * 128 : 64 * 128;
    return tile.block_m * tile.block_n <= most ? 4 : 8;
}

std::vector<TileConfig> neighbours_of(plan::DType dtype, const TileConfig& tile) {
    // Sums that a thread holds: more leave no registers for anything else, fewer are no work for its warps.
    constexpr std::int32_t kMostSums = 128;
    constexpr std::int32_t kLeastSums = 32;
    constexpr std::int32_t kThreadsOfAWarp = 32;
    std::vector<TileConfig> made;
    if (tile.num_wide >= 0) return made;  // a kernel of two tile shapes has stages of its own
    const std::int64_t bytes = static_cast<std::int64_t>(plan::size_of(dtype));
    const std::int64_t stored = tile.block_n == 256 ? tile.block_n / 2 : tile.block_n;  // columns, at once
    for (const std::int32_t stages : {tile.stages - 1, tile.stages + 1}) {
        const std::int64_t ring = std::int64_t{stages} * tile.block_k * (tile.block_m + tile.block_n) * bytes;
        if (stages < 2 || ring + tile.block_m * stored * bytes > kBlockSharedBytes) continue;
        made.push_back(tile);
        made.back().stages = stages;
    }
    const std::int32_t usual = tile.warps > 0 ? tile.warps : usual_warps(tile);
    for (const std::int32_t warps : {4, 8}) {
        const std::int32_t sums = tile.block_m * tile.block_n / (warps * kThreadsOfAWarp);
        if (warps == usual || sums > kMostSums || sums < kLeastSums) continue;
        made.push_back(tile);
        made.back().warps = warps;
    }
    return made;
}

TileConfig quickest_tiles(const Machine& machine, plan::DType dtype, const ProductShape& shape,
                          std::int32_t programs, bool exact) {
    if (plan::size_of(dtype) > 2) {
        // Without tensor cores a tile lives in registers: small, or it spills.
        TileConfig tile = exact ? shaped(64, 64, 32, 2) : shaped(128, 128, 32, 4);
        if (exact) tile.precision = "ieee";
        return tile;
    }
    // Few tiles are best made by many multiprocessors: the smallest that do in one round.
    const std::vector<TileConfig> configs = tile_configs(dtype, shape);
    for (std::size_t i = 0; i < 2; ++i) {
        if (tile_grid(shape.m, shape.n, configs[i]).tiles() <= programs) return configs[i];
    }
    if (shape.m <= 64) return configs[2];
    const TileConfig& wide = configs[2];
    const TileConfig& narrow = configs[3];
    // Of so many rounds the last one does not matter.
    constexpr std::int64_t kMostMixedColumns = 4096;
    const std::int64_t columns = ceil_div(shape.n, wide.block_n);
    TileConfig best = wide;
    double best_us = product_us(machine, dtype, shape, wide, programs);
    if (plan::size_of(dtype) == 1)
        return product_us(machine, dtype, shape, narrow, programs) < best_us ? narrow : wide;
    constexpr double kEqual = 0.999;
    for (auto count = static_cast<std::int32_t>(columns <= kMostMixedColumns ? columns - 1 : 0); count >= 0;
         --count) {
        TileConfig tile = count == 0 ? narrow : wide;
        if (count > 0) tile.num_wide = count;
        const double us = product_us(machine, dtype, shape, tile, programs);
        if (us < best_us * kEqual) {
            best_us = us;
            best = tile;
        }
    }
    return best;
}

}  // namespace syncopate::tune
