#include "syncopate/fuse/passes/sum_parts.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/passes/launch.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::fuse {
namespace {

using Regions = std::vector<plan::Region>;

const Stage kRows{sample::gemm({16, 16, 4, 2, 2, 2}), {{"c_ptr", "C"}}};  // 8 x 8 tiles, row by row

/// The same tiles, numbered down each group of `group` rows first, as kernels do it for the L2 cache.
Stage grouped(std::int64_t group) {
    Stage stage = kRows;
    std::vector<kernel::Tile>& tiles = stage.kernel.tiles;
    std::stable_sort(tiles.begin(), tiles.end(), [&](const kernel::Tile& a, const kernel::Tile& b) {
        return std::tuple(a.coord[0] / group, a.coord[1], a.coord[0]) <
               std::tuple(b.coord[0] / group, b.coord[1], b.coord[0]);
    });
    for (std::size_t id = 0; id < tiles.size(); ++id) tiles[id].id = static_cast<std::int64_t>(id);
    return stage;
}

TEST(SumParts, AreOneForEveryTwoRoundsOfThePrograms) {
    EXPECT_EQ(sum_parts(kRows, "C", {{0, 8}, {0, 16}}, 16).size(), 1U) << "32 tiles in two rounds";
    EXPECT_EQ(sum_parts(kRows, "C", {{0, 8}, {0, 16}}, 8), (Regions{{{0, 4}, {0, 16}}, {{4, 8}, {0, 16}}}));
    EXPECT_EQ(sum_parts(kRows, "C", {{0, 8}, {0, 16}}, 2).size(), 8U);
    EXPECT_EQ(sum_parts(kRows, "C", {{0, 8}, {0, 16}}, 2, false, {.part_rounds = 4}).size(), 4U)
        << "where launching a sum takes twice as long";
}

TEST(SumParts, AreCutAcrossTheColumnsWhereTilesAreNumberedDownTheRows) {
    EXPECT_EQ(sum_parts(grouped(8), "C", {{0, 16}, {0, 16}}, 16),
              (Regions{{{0, 16}, {0, 8}}, {{0, 16}, {8, 16}}}));
    EXPECT_EQ(sum_parts(grouped(4), "C", {{0, 16}, {0, 16}}, 8),
              (Regions{{{0, 8}, {0, 8}}, {{0, 8}, {8, 16}}, {{8, 16}, {0, 8}}, {{8, 16}, {8, 16}}}));
}

TEST(SumParts, AreCutWhereTilesEndAndCoverTheChunk) {
    const Regions parts = sum_parts(kRows, "C", {{2, 15}, {0, 16}}, 10);  // 7 rows of tiles, the last cut
    ASSERT_EQ(parts.size(), 3U);
    std::int64_t begin = 2;
    for (const plan::Region& part : parts) {
        EXPECT_EQ(part[0].begin, begin);
        EXPECT_EQ(part[1], (plan::Interval{0, 16}));
        EXPECT_TRUE(part[0].end % 2 == 0 || part[0].end == 15);
        begin = part[0].end;
    }
    EXPECT_EQ(begin, 15);
}

TEST(SumParts, AreOneWhereEveryCutWouldMixUpTheKernelsOrder) {
    Stage stage = kRows;
    for (std::size_t id = 0; id < 64; ++id) stage.kernel.tiles[id] = kRows.kernel.tiles[id * 29 % 64];
    EXPECT_EQ(sum_parts(stage, "C", {{0, 16}, {0, 16}}, 8).size(), 1U);
    EXPECT_EQ(sum_parts(kRows, "D", {{0, 16}, {0, 16}}, 8).size(), 1U) << "the kernel does not write it";
}

TEST(SumParts, TheLastRoundOfTilesIsAPartOfItsOwn) {
    const Regions parts = sum_parts(grouped(8), "C", {{0, 16}, {0, 16}}, 16, true);
    EXPECT_EQ(parts, (Regions{{{0, 16}, {0, 8}}, {{0, 16}, {8, 12}}, {{0, 16}, {12, 16}}}));
    EXPECT_EQ(sum_parts(kRows, "C", {{0, 8}, {0, 16}}, 16, true),
              (Regions{{{0, 4}, {0, 16}}, {{4, 8}, {0, 16}}}));
    EXPECT_EQ(sum_parts(kRows, "C", {{0, 8}, {0, 16}}, 20, true),
              (Regions{{{0, 4}, {0, 16}}, {{4, 8}, {0, 16}}}))
        << "as much of it as whole rows of tiles make";
    EXPECT_EQ(sum_parts(kRows, "C", {{0, 8}, {0, 16}}, 32, true).size(), 1U) << "a round is all";
    Stage stage = kRows;
    for (std::size_t id = 0; id < 64; ++id) stage.kernel.tiles[id] = kRows.kernel.tiles[id * 29 % 64];
    EXPECT_EQ(sum_parts(stage, "C", {{0, 16}, {0, 16}}, 32, true).size(), 1U)
        << "a cut would mix up the order";
}

TEST(SumParts, OfWhatIsSentOnHaveNoLastRound) {
    const auto sums = [](bool all) {
        const plan::Plan plan =
            plan::push_reduce(sample::ranks(2), {"C", {16, 16}, plan::DType::bf16}, {.all = all}).value();
        const Program program{sample::gemm({16, 16, 4, 2, 2, 2, 16}), plan, {{"c_ptr", "C"}}};
        const Schedule schedule = fuse(program, {.device = Device::cuda}).value();
        return std::ranges::count_if(schedule.ranks[0].transfers,
                                     [](const Transfer& transfer) { return transfer.sum() != nullptr; });
    };
    EXPECT_EQ(sums(false), 2) << "32 tiles are two rounds";
    EXPECT_EQ(sums(true), 1) << "which one sum stores at the peers";
}

TEST(SumParts, OfAReduceScatterEachWaitForTheirOwnTilesAndOnceForTheContributions) {
    const plan::Plan plan = plan::push_reduce(sample::ranks(2), {"C", {16, 16}, plan::DType::bf16}).value();
    const Program program{sample::gemm({16, 16, 4, 2, 2, 2, 4}), plan, {{"c_ptr", "C"}}};
    const Schedule schedule = fuse(program, {.device = Device::cuda}).value();
    const RankSchedule& rank = schedule.ranks[1];
    std::vector<std::size_t> awaited;
    std::vector<std::size_t> programs;
    for (std::size_t i = 0; i < rank.transfers.size(); ++i) {
        if (rank.transfers[i].sum() == nullptr) continue;
        awaited.push_back(rank.transfers[i].step.awaited.size());
        ASSERT_EQ(rank.transfers[i].step.gates.size(), 1U);
        programs.push_back(
            rank.chunks[static_cast<std::size_t>(rank.transfers[i].step.gates[0])].counting.size());
    }
    EXPECT_EQ(awaited, (std::vector<std::size_t>{1, 0, 0, 0, 0}))
        << "32 tiles are eight rounds of 4 programs";
    EXPECT_EQ(programs, std::vector<std::size_t>(5, 4))
        << "each of which makes two tiles of a part, or the last one";
}

}  // namespace
}  // namespace syncopate::fuse
