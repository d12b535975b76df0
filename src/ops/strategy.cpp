#include "syncopate/ops/strategy.hpp"

#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/at.hpp"

namespace syncopate::ops {
namespace {

std::string words_of(const TileConfig& tile) {
    const TileConfig usual;
    std::string text = fmt::format("{}x{}x{}s{}", tile.block_m, tile.block_n, tile.block_k, tile.stages);
    if (tile.warps != usual.warps) text += fmt::format("w{}", tile.warps);
    if (tile.split_k != usual.split_k) text += fmt::format("k{}", tile.split_k);
    if (tile.num_wide != usual.num_wide) text += fmt::format("+{}wide", tile.num_wide);
    if (tile.group_m != usual.group_m) text += fmt::format("g{}", tile.group_m);
    if (tile.precision != usual.precision) text += "-" + tile.precision;
    return text;
}

/// What transfers go by, with the multiprocessors of those that have some.
std::string words_of(plan::Backend backend, std::optional<std::int32_t> blocks) {
    const std::string name(plan::name_of(backend));
    return blocks ? fmt::format("{}:{}", name, *blocks) : name;
}

}  // namespace

std::string_view name_of(Placement placement) {
    static constexpr std::array<std::string_view, kNumPlacements> kNames{"fused", "unfused", "apart"};
    return kNames[at(placement)];
}

std::string_view name_of(ProductKernel kernel) {
    static constexpr std::array<std::string_view, 2> kNames{"plain", "gluon"};
    return kNames[at(kernel)];
}

std::string name_of(const Strategy& strategy) {
    if (strategy.placement == Placement::unfused) return std::string(name_of(strategy.placement));
    if (strategy.placement == Placement::apart) {
        std::vector<std::string> parts;
        for (const Strategy& part : strategy.parts) parts.push_back(name_of(part));
        return fmt::format("{}[{}]", name_of(strategy.placement), fmt::join(parts, " + "));
    }
    const Strategy usual;
    std::vector<std::string> words;
    std::string kind = strategy.kind;
    if (strategy.inner > 0) kind += fmt::format("{}inner={}", kind.empty() ? "" : ",", strategy.inner);
    if (!kind.empty()) words.push_back(std::move(kind));
    if (strategy.head_parts != 0) words.push_back(fmt::format("head_parts={}", strategy.head_parts));
    if (strategy.backend != usual.backend || strategy.engine_blocks)
        words.push_back(words_of(strategy.backend, strategy.engine_blocks));
    if (strategy.pull) words.emplace_back("pull");
    if (strategy.stored != 0) words.push_back(fmt::format("stored={}", strategy.stored));
    if (strategy.one_step) words.emplace_back("one_step");
    if (strategy.kernel_sums) words.emplace_back("kernel_sums");
    if (strategy.together) words.emplace_back("together");
    const Chunking& cut = strategy.chunking;
    if (cut.rows != 1) words.push_back(fmt::format("rows={}", cut.rows));
    if (!cut.slices.empty()) words.push_back(fmt::format("slices=[{}]", fmt::join(cut.slices, "+")));
    if (cut.num_slices != 1) words.push_back(fmt::format("slices={}", cut.num_slices));
    if (cut.peer_by_peer) words.emplace_back("peer_by_peer");
    if (strategy.split) words.push_back(fmt::format("split={}", *strategy.split));
    if (strategy.split_axis) words.push_back(fmt::format("axis={}", *strategy.split_axis));
    if (strategy.kernel && strategy.kernel != usual.kernel) words.emplace_back(name_of(*strategy.kernel));
    for (const TileConfig& tile : strategy.tiles) words.push_back(words_of(tile));
    if (strategy.programs) words.push_back(fmt::format("programs={}", *strategy.programs));
    return words.empty() ? std::string(name_of(strategy.placement))
                         : fmt::format("{}", fmt::join(words, "/"));
}

}  // namespace syncopate::ops
