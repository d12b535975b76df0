#include "syncopate/tune/candidates/tiles.hpp"

#include <gtest/gtest.h>

#include "tune/play/tiles_play.hpp"

namespace syncopate::tune {
namespace {

Machine machine() { return *find_machine("h200x1"); }

TEST(Tiles, CoverAProduct) {
    const TileGrid one = tile_grid(1000, 500, {.block_m = 128, .block_n = 256});
    EXPECT_EQ(one.tiles(), 8 * 2);
    const TileGrid mixed = tile_grid(1000, 1000, {.block_m = 128, .block_n = 256, .num_wide = 2});
    EXPECT_EQ(mixed.wide, 2);
    EXPECT_EQ(mixed.narrow, 4);
    EXPECT_EQ(mixed.first_column(3), 512 + 128);
    EXPECT_EQ(mixed.width(3), 128);
}

TEST(Tiles, OfAProductTakeAsLongAsItsRoundsAndItsMemory) {
    const TileConfig wide;
    const double one = product_us(machine(), plan::DType::bf16, {1024, 256 * 132, 8192}, wide, 132);
    const double two = product_us(machine(), plan::DType::bf16, {2048, 256 * 132, 8192}, wide, 132);
    EXPECT_NEAR(two / one, 2, 0.01);
    const double weights = 8192.0 * 256 * 132 * 2 / (machine().rates.memory_gbps * 1e3);
    EXPECT_GE(product_us(machine(), plan::DType::bf16, {64, 256 * 132, 8192}, wide, 132), weights);
}

TEST(Tiles, AreSmallForAProductOfFewAndPackedForOneThatLeavesARest) {
    EXPECT_EQ(quickest_tiles(machine(), plan::DType::bf16, {128, 1792, 4096}, 132, false).block_m, 64);
    const TileConfig mixed = quickest_tiles(machine(), plan::DType::bf16, {4096, 3584, 8192}, 132, false);
    EXPECT_GT(mixed.num_wide, 0);
    EXPECT_EQ(quickest_tiles(machine(), plan::DType::fp32, {4096, 3584, 8192}, 132, true).precision, "ieee");
}

TEST(Tiles, HaveNeighboursThatABlockHasSharedMemoryAndRegistersFor) {
    const auto words = [](const TileConfig& tile) {
        std::string text;
        for (const TileConfig& one : neighbours_of(plan::DType::bf16, tile))
            text += (text.empty() ? "" : " ") + std::to_string(one.stages) + "/" + std::to_string(one.warps);
        return text;
    };
    EXPECT_EQ(words({.block_m = 128, .block_n = 256, .block_k = 64, .stages = 4}), "3/0")
        << "five stages take 272 KiB, and a thread of four warps would hold 256 sums";
    EXPECT_EQ(words({.block_m = 128, .block_n = 128, .block_k = 64, .stages = 6}), "5/0 6/8");
    EXPECT_EQ(words({.block_m = 64, .block_n = 128, .block_k = 64, .stages = 5}), "4/0 6/0 5/8");
    EXPECT_EQ(words({.block_m = 128, .block_n = 256, .block_k = 64, .stages = 4, .num_wide = 3}), "")
        << "the kernel of two shapes has its own";
}

/// When slots of one tile each have ended, on two programs.
std::vector<double> ends_of(const std::vector<Slot>& slots) {
    Memory memory(1, 1e3, 1e6, false);
    return play_tiles(slots, {.count = 2, .phase_us = 1, .reads = false}, memory).ends;
}

TEST(Play, WaitsForRowsThatArriveLate) {
    const auto slot = [](std::vector<Phase> phases) { return Slot{.phases = std::move(phases), .us = 10}; };
    EXPECT_EQ(ends_of({slot({{0}}), slot({{0}}), slot({{0}})}), (std::vector<double>{10, 10, 20}));
    EXPECT_EQ(ends_of({slot({{0}}), slot({{20}})}), (std::vector<double>{10, 30}));
    // In two slices: the first half runs while the second one is on its way.
    EXPECT_EQ(ends_of({slot({{4, {0, 0.5}}, {20, {0.5, 0.5}}})}), (std::vector<double>{26}));
}

TEST(Play, MakesLongTilesOfAChunkBeforeShortOnes) {
    const auto row = [](std::int64_t chunk) {
        return Slot{
            .phases = {{}}, .us = 10, .run = {.wide = 1, .narrow = 1}, .narrow_us = 5, .group = chunk};
    };
    EXPECT_EQ(ends_of({row(1), row(1)}), (std::vector<double>{15, 15}));
    EXPECT_EQ(ends_of({row(1), row(2)}), (std::vector<double>{10, 15})) << "but not of a later one";
}

}  // namespace
}  // namespace syncopate::tune
