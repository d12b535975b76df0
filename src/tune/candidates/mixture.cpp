#include "syncopate/tune/candidates/mixture.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "syncopate/ops/mixture.hpp"

namespace syncopate::tune {
namespace {

constexpr std::int32_t kFewest = 16;  // rows of a tensor core's product
constexpr std::int32_t kMost = 128;

/// Products of fp8: a tile's columns, and the block of K that shares a scale, are a block of scales. With scales
/// of blocks, kMost rows are Gluon's (kernels/gluon_moe_scaled.py), whose ring has room for 4.
TileConfig scaled_tile_of_rows(std::int32_t block_m, ops::Scales scales) {
    return {.block_m = block_m,
            .block_n = static_cast<std::int32_t>(ops::kScaled),
            .block_k = static_cast<std::int32_t>(ops::kScaled),
            .stages = block_m < kMost || scales == ops::Scales::block ? 4 : 3,
            .warps = block_m < 64 ? 4 : 8};
}

/// Few rows: as many loads on the way as there is room for (bench/results/moe_tiles_1xH200.csv).
TileConfig tile_of_rows(std::int32_t block_m, const Problem& problem) {
    const plan::DType dtype = problem.dtype;
    if (plan::size_of(dtype) == 1) return scaled_tile_of_rows(block_m, problem.scales);
    const std::int32_t block_k = plan::size_of(dtype) == 2 ? 64 : 32;
    if (block_m == kMost)
        return {.block_m = block_m, .block_n = 128, .block_k = block_k, .stages = 3, .warps = 8};
    const std::int32_t block_n = block_m < 64 ? 128 : 64;
    return {.block_m = block_m, .block_n = block_n, .block_k = block_k, .stages = 4, .warps = 4};
}

/// Of a tile: with scales of blocks Triton has registers for half as many; Gluon's takes rows that TMA can load.
std::int32_t most_rows(const Problem& problem) {
    const std::int64_t inner =
        problem.extent("F") / (problem.word("parallel") == "tensor" ? problem.ranks : 1);
    const bool loads = problem.extent("H") % kFewest == 0 && inner % kFewest == 0;
    return problem.scales == ops::Scales::block && !loads ? kMost / 2 : kMost;
}

}  // namespace

TileConfig mixture_host_tile(const Problem& problem, std::int32_t rows) {
    const std::int32_t width =
        plan::size_of(problem.dtype) == 1 ? static_cast<std::int32_t>(ops::kScaled) : 32;
    return {.block_m = rows, .block_n = width, .block_k = width, .stages = 1, .precision = "ieee"};
}

TileConfig mixture_tile(const Problem& problem, fuse::Device device) {
    if (device == fuse::Device::host) return mixture_host_tile(problem, kFewest);
    const std::int64_t routes = problem.extent("T") * problem.ranks * problem.extent("topk");
    // Routings are uneven, and an expert with a row more than a tile has reads its weights once more.
    const std::int64_t rows = routes * 3 / (2 * std::max<std::int64_t>(1, problem.extent("E")));
    // Of scales of blocks, two tiles of few rows are quicker than one of 64 (bench/results/moe_fp8_1xH200.csv).
    const bool halves = problem.scales == ops::Scales::block && rows <= kMost / 2;
    const std::int64_t most = halves ? kMost / 4 : most_rows(problem);
    const auto whole = static_cast<std::uint64_t>(std::clamp<std::int64_t>(rows, kFewest, most));
    return tile_of_rows(static_cast<std::int32_t>(std::bit_ceil(whole)), problem);
}

std::vector<Strategy> mixture_candidates(const Problem& problem, const Machine& machine) {
    const std::int32_t programs = problem.num_sms > 0 ? problem.num_sms : machine.num_sms;
    std::vector<TileConfig> tiles{mixture_tile(problem, fuse::Device::cuda)};
    const auto add = [&](const TileConfig& tile) {
        if (std::ranges::find(tiles, tile) == tiles.end()) tiles.push_back(tile);
    };
    for (std::int32_t rows = most_rows(problem); rows >= kFewest; rows /= 2) {
        const TileConfig usual = tile_of_rows(rows, problem);
        add(usual);
        for (const std::int32_t stages : {3, 4}) {
            TileConfig other = usual;
            other.stages = stages;
            add(other);
        }
        // Columns of fp8 are a block of scales.
        if (plan::size_of(problem.dtype) == 1) continue;
        TileConfig other = usual;
        other.block_n = rows == kMost ? usual.block_n : 192 - usual.block_n;
        add(other);
    }
    std::vector<Strategy> made{{.placement = Placement::unfused,
                                .kernel = ProductKernel::plain,
                                .tiles = {tiles.front()},
                                .programs = programs}};
    for (const TileConfig& tile : tiles)
        made.push_back({.kernel = ProductKernel::plain, .tiles = {tile}, .programs = programs});
    const TileConfig of_gluon = mixture_gluon_tile();
    if (ops::mixture_gluon_objection(problem, of_gluon).empty())
        made.push_back({.kernel = ProductKernel::gluon, .tiles = {of_gluon}, .programs = programs});
    return made;
}

TileConfig mixture_gluon_tile() {
    return {.block_m = kMost, .block_n = kMost, .block_k = 64, .stages = 4, .warps = 8};
}

std::string mixture_objection(const Problem& problem, const Strategy& strategy) {
    if (strategy.placement == Placement::unfused) {
        const std::string_view part = problem.word("part");
        if (!part.empty() && part != "whole") return "unfused: of whole mixtures alone";
        if (problem.word("parallel") == "tensor") return "unfused: of ranks that have whole experts alone";
        if (problem.scales != ops::Scales::none) return "unfused: its products take no scales";
        if (problem.extent("bound") != 0) return "unfused: it keeps no bound: memory is taken by what comes";
        return {};
    }
    Strategy whole = strategy;
    if (whole.tiles.empty())
        whole.tiles = {strategy.kernel == ProductKernel::gluon ? mixture_gluon_tile()
                                                               : mixture_tile(problem, fuse::Device::cuda)};
    return ops::mixture_strategy_objection(problem, whole);
}

}  // namespace syncopate::tune
