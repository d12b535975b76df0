#include "syncopate/tune/candidates/gluon_tiles.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "syncopate/round_up.hpp"
#include "syncopate/tune/candidates/tiles.hpp"

namespace syncopate::tune {
namespace {

constexpr double kOutItem = 2;                 // bytes of a result
constexpr double kSum = 4;                     // bytes of a partial sum
constexpr std::int32_t kRowBytes = 128;        // that one load moves of a row, at most
constexpr std::int32_t kScaled = 128;          // elements along N and along K that share a scale
constexpr std::int32_t kWgmmaRows = 64;        // what one multiplies, whatever a tile has
constexpr std::int32_t kWideColumns = 128;     // from so many on wgmma reaches its rate
constexpr std::int32_t kInStepRows = 128;      // and more: tiles that take turns are on their own
constexpr std::int32_t kThreeConsumers = 192;  // rows, and as many columns
constexpr std::int32_t kFewRows = 32;          // and fewer: tiles of 64 rows always lose
constexpr std::int32_t kFewTiles = 4;          // rows of small tiles, each of which loads the weights again
constexpr double kRowsReadTwice = 0.98;        // of the rate: by two wgmmas
constexpr double kNarrowTwice = 0.85;          // of the rate: by wgmmas of 64 and 32 columns
constexpr double kFewStages = 0.95;            // of the rate: three stages of 192 x 192
constexpr double kHalfLines = 0.95;            // of memory's rate: 32 columns of w are 64 bytes a row
// Of shared memory, besides tiles (tests/python/gluon_resources.csv): a waiter's words and mbarriers, a
// stage's mbarriers, and a split's verdict.
constexpr std::int64_t kWordBytes = 2560;
constexpr std::int64_t kStageBytes = 16;
constexpr std::int64_t kVerdictBytes = 640;

/// Tiles, with the stages that fit into a multiprocessor's shared memory.
TileConfig shaped(std::int32_t m, std::int32_t n, std::int32_t k, std::int32_t stages) {
    return TileConfig{.block_m = m, .block_n = n, .block_k = k, .stages = stages};
}

std::int64_t tiles_of(const ProductShape& shape, const TileConfig& tile) {
    return ceil_div(shape.m, tile.block_m) * ceil_div(shape.n, tile.block_n);
}

bool power_between(std::int32_t value, std::int32_t least, std::int32_t most) {
    return value >= least && value <= most && std::has_single_bit(static_cast<std::uint32_t>(value));
}

/// Whether so many columns are multiplied by two wgmmas: of 64 and 32, or of 128 and 64.
bool takes_two_wgmmas(std::int32_t columns) { return columns == 96 || columns == 192; }

std::string size_objection(const TileConfig& tile) {
    if (!power_between(tile.block_m, 16, 128) && tile.block_m != kThreeConsumers)
        return fmt::format("the Gluon kernel's tiles have 16, 32, 64, 128 or 192 rows, not {}", tile.block_m);
    if (!power_between(tile.block_n, 32, 256) && !takes_two_wgmmas(tile.block_n))
        return fmt::format("the Gluon kernel's tiles have 32, 64, 96, 128, 192 or 256 columns, not {}",
                           tile.block_n);
    if (tile.block_m >= kWgmmaRows && tile.block_n == 32) return "tiles of 32 columns have 16 or 32 rows";
    if (tile.block_m == kThreeConsumers && tile.block_n != kThreeConsumers)
        return fmt::format("tiles of {0} rows have {0} columns, not {1}", tile.block_m, tile.block_n);
    if (tile.block_m < kWgmmaRows && tile.block_n > 64)
        return fmt::format("tiles of {} rows have 32 or 64 columns, not {}", tile.block_m, tile.block_n);
    if (!power_between(tile.block_k, 64, 128) || (takes_two_wgmmas(tile.block_n) && tile.block_k != 64))
        return fmt::format("the Gluon kernel takes 64 or 128 of K at a time, for {} columns 64, not {}",
                           tile.block_n, tile.block_k);
    return {};
}

/// Of the rate of a wide wgmma.
double rate_of(const TileConfig& tile) {
    if (tile.block_m == kThreeConsumers) return kRowsReadTwice * kFewStages;
    if (!takes_two_wgmmas(tile.block_n)) return 1;
    return tile.block_n >= kWideColumns ? kRowsReadTwice : kNarrowTwice;
}

/// µs of arithmetic, or of loading what it takes, for so much of K of a tile.
double depth_us(const Rates& rates, const Operands& operands, const TileConfig& tile, double depth) {
    const double rate = rates.gluon_tflops * rate_of(tile) * faster(operands.dtype);
    const double multiply =
        2.0 * std::max(tile.block_m, kWgmmaRows) * tile.block_n * depth / (rate * kFlopsPerUs);
    const double load =
        operands.item() * (tile.block_m + tile.block_n) * depth / (rates.gluon_load_gbps * kBytesPerUs);
    return std::max(multiply, load);
}

/// µs that a tile whose K is split takes more: it ends and begins once more, and reads the partial sums while all other
/// multiprocessors read theirs.
double split_us(const Machine& machine, const TileConfig& tile) {
    if (tile.split_k == 1) return 0;
    const double gbps = machine.rates.memory_gbps / machine.num_sms;
    return 2 * machine.rates.gluon_tile_us +
           kSum * tile.split_k * tile.block_m * tile.block_n / (gbps * kBytesPerUs);
}

/// µs of reading the operands from memory.
double memory_us(const Rates& rates, const Operands& operands, const ProductShape& shape,
                 const TileConfig& tile) {
    const double bytes = operands.item() * static_cast<double>(shape.n * shape.k + shape.m * shape.k) +
                         kOutItem * static_cast<double>(shape.m * shape.n);
    const double lines = tile.block_n < 64 ? kHalfLines : 1;
    return bytes / (rates.memory_gbps * kBytesPerUs * lines);
}

}  // namespace

bool gluon_multiplies(plan::DType dtype) {
    using plan::DType;
    return dtype == DType::bf16 || dtype == DType::fp16 || dtype == DType::fp8e4m3;
}

std::string gluon_objection(const Operands& operands, const ProductShape& shape, const TileConfig& tile) {
    if (!gluon_multiplies(operands.dtype)) return "the Gluon kernel makes products of bf16, fp16 and fp8e4m3";
    const auto item = static_cast<std::int64_t>(plan::size_of(operands.dtype));
    if (item == 1 && takes_two_wgmmas(tile.block_n))
        return fmt::format("tiles of {} columns are for 16-bit products", tile.block_n);
    if (operands.scales == Scales::block && kScaled % tile.block_n != 0)
        return fmt::format("scales of {0} x {0} take tiles of at most {0} columns", kScaled);
    if (tile.num_wide >= 0) return "the Gluon kernel has one tile shape";
    if (std::string text = size_objection(tile); !text.empty()) return text;
    const std::int64_t rows = std::max(tile.block_m, kWgmmaRows);
    const std::int64_t ring = std::int64_t{tile.stages} * tile.block_k * (tile.block_m + tile.block_n) * item;
    const std::int64_t behind = (rows - tile.block_m) * kRowBytes;  // what the last rows' wgmma reads
    const std::int64_t words =
        kWordBytes + tile.stages * kStageBytes + (tile.split_k > 1 ? kVerdictBytes : 0);
    const std::int64_t bytes = ring + behind + rows * tile.block_n * 2 + words;
    if (tile.stages < 2 || bytes > kBlockSharedBytes)
        return fmt::format("{} stages take {} bytes of the {} of shared memory", tile.stages, bytes,
                           kBlockSharedBytes);
    if (tile.split_k > ceil_div(shape.k, tile.block_k)) return "a program would have nothing of K";
    if (tile.split_k > 1 && tiles_of(shape, tile) > kMostGluonSplitTiles)
        return fmt::format("K is split for at most {} tiles", kMostGluonSplitTiles);
    return {};
}

double gluon_tile_us(const Machine& machine, const Operands& operands, const TileConfig& tile,
                     std::int64_t k) {
    const Rates& rates = machine.rates;
    const auto depth = static_cast<double>(ceil_div(ceil_div(k, tile.block_k), tile.split_k) * tile.block_k);
    return depth_us(rates, operands, tile, depth) + rates.gluon_tile_us + split_us(machine, tile);
}

double gluon_lone_tile_us(const Machine& machine, const Operands& operands, const TileConfig& tile,
                          std::int64_t k) {
    const double bytes =
        operands.item() * (tile.block_m + tile.block_n) * static_cast<double>(k) / tile.split_k;
    return std::max(gluon_tile_us(machine, operands, tile, k),
                    bytes / (machine.rates.sm_load_gbps * kBytesPerUs) + machine.rates.gluon_tile_us);
}

double gluon_turns_tile_us(const Machine& machine, const Operands& operands, const TileConfig& tile,
                           std::int64_t k) {
    const double beside = gluon_tile_us(machine, operands, tile, k);
    const double lone = gluon_lone_tile_us(machine, operands, tile, k);
    if (tile.block_m >= kInStepRows) return lone;
    return tile.block_m < kWgmmaRows || tile.block_n <= kWideColumns ? beside : std::midpoint(beside, lone);
}

double gluon_product_us(const Machine& machine, const Operands& operands, const ProductShape& shape,
                        const TileConfig& tile, std::int32_t programs) {
    const Rates& rates = machine.rates;
    const std::int64_t tiles = tiles_of(shape, tile);
    const std::int64_t at_once =
        std::min(tiles, std::max<std::int64_t>(programs / std::max(1, tile.split_k), 1));
    const double memory = memory_us(rates, operands, shape, tile) + split_us(machine, tile);
    const auto rounds = static_cast<double>(ceil_div(tiles, at_once));
    return std::max(rounds * gluon_tile_us(machine, operands, tile, shape.k), memory);
}

std::vector<TileConfig> gluon_tile_configs(const Operands& operands, const ProductShape& shape,
                                           std::int32_t programs) {
    static const std::array kShapes{shaped(32, 64, 128, 8),  shaped(32, 32, 128, 12), shaped(16, 64, 128, 10),
                                    shaped(16, 32, 128, 16), shaped(64, 64, 128, 6),  shaped(64, 128, 64, 8),
                                    shaped(64, 192, 64, 6),  shaped(64, 256, 64, 4),  shaped(128, 64, 64, 7),
                                    shaped(128, 128, 64, 5), shaped(128, 192, 64, 4), shaped(128, 256, 64, 3),
                                    shaped(192, 192, 64, 3)};
    static constexpr std::array<std::int32_t, 6> kSplits{1, 2, 3, 4, 6, 8};
    constexpr double kAlmost = 1.05;  // so many times the programs still count as one each
    std::vector<TileConfig> found;
    for (TileConfig shaped_tile : kShapes) {
        if (operands.item() == 1) {  // as many bytes on their way
            if (shaped_tile.block_k == kRowBytes) shaped_tile.stages *= 2;
            shaped_tile.block_k = kRowBytes;
        }
        if (!gluon_objection(operands, shape, shaped_tile).empty()) continue;
        const std::int64_t tiles = tiles_of(shape, shaped_tile);
        if (shaped_tile.block_m > kWgmmaRows && shape.m <= kWgmmaRows) continue;
        if (shaped_tile.block_m >= kWgmmaRows && shape.m <= kFewRows) continue;
        if (shaped_tile.block_m < kWgmmaRows && shape.m > kFewTiles * shaped_tile.block_m) continue;
        for (const std::int32_t split : kSplits) {
            const bool fits =
                static_cast<double>(tiles * split) <= programs * kAlmost && tiles <= kMostGluonSplitTiles;
            if (split > 1 && !(fits && split <= ceil_div(shape.k, shaped_tile.block_k))) continue;
            TileConfig made = shaped_tile;
            made.split_k = split;
            found.push_back(made);
        }
    }
    return found;
}

TileConfig quickest_gluon_tiles(const Machine& machine, const Operands& operands, const ProductShape& shape,
                                std::int32_t programs, ProductPlace place) {
    std::vector<TileConfig> configs = gluon_tile_configs(operands, shape, programs);
    for (TileConfig& tile : configs) {
        if (place == ProductPlace::awaits && tile.block_m < shape.m) tile.split_k = 1;
    }
    return *std::ranges::min_element(configs, {}, [&](const TileConfig& tile) {
        auto rank = gluon_rank(machine, operands, shape, tile, programs);
        const std::int64_t rounds = ceil_div(tiles_of(shape, tile), std::max(programs / tile.split_k, 1));
        if (place != ProductPlace::apart && rounds > 1) {
            const auto& us = place == ProductPlace::in_turns ? gluon_turns_tile_us : gluon_lone_tile_us;
            const double tile_us = us(machine, operands, tile, shape.k);
            rank.first = std::max(rank.first, static_cast<double>(rounds) * tile_us);
        }
        return rank;
    });
}

std::pair<double, double> gluon_rank(const Machine& machine, const Operands& operands,
                                     const ProductShape& shape, const TileConfig& tile,
                                     std::int32_t programs) {
    // Where memory takes as long for several tiles, those are the quickest that ask the L2 cache for least.
    const auto tiles = static_cast<double>(tiles_of(shape, tile));
    const double loaded =
        tiles * (tile.block_m + tile.block_n) / std::min(1.0, tiles * tile.split_k / programs);
    return {gluon_product_us(machine, operands, shape, tile, programs), loaded};
}

TileConfig quickest_of(const std::vector<TileConfig>& configs, const Machine& machine,
                       const Operands& operands, const ProductShape& shape, std::int32_t programs) {
    return *std::ranges::min_element(configs, {}, [&](const TileConfig& tile) {
        return gluon_rank(machine, operands, shape, tile, programs);
    });
}

}  // namespace syncopate::tune
