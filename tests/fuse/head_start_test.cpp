#include "syncopate/fuse/passes/head_start.hpp"

#include <gtest/gtest.h>

namespace syncopate::fuse {
namespace {

constexpr std::int64_t kAll = 1'000'000;

TEST(HeadStart, GivesEarlyProgramsWhatFitsInBeforeTheOthersBegin) {
    // 144 tiles of two units by 132 programs: 120 are free from 2 on, the others from 4 on.
    const Rounds before{144, 132, 2};
    const Rounds stage{288, 132, 1};
    const HeadStart head = head_start(before, stage, kAll);
    EXPECT_EQ(head, (HeadStart{120, 1}));
    EXPECT_EQ(head.slots(), 120);
    EXPECT_EQ(end_us(before, stage, {}), 6);
    EXPECT_EQ(end_us(before, stage, head), 5);
}

TEST(HeadStart, TakesNoMoreTilesThanAreReady) {
    const Rounds before{20, 12, 3};  // four programs are free from 3 on, eight from 6 on
    const Rounds stage{60, 12, 1};
    EXPECT_EQ(head_start(before, stage, kAll), (HeadStart{4, 2}));
    EXPECT_EQ(head_start(before, stage, 8), (HeadStart{4, 2}));
    EXPECT_EQ(head_start(before, stage, 7), HeadStart()) << "one round of them gains nothing";
    EXPECT_EQ(end_us(before, stage, {4, 1}), end_us(before, stage, {}));
}

TEST(HeadStart, IsNoneWhereItGainsNothing) {
    const Rounds stage{288, 132, 1};
    EXPECT_EQ(head_start({264, 132, 2}, stage, kAll), HeadStart()) << "all programs are free at once";
    EXPECT_EQ(end_us({264, 132, 2}, stage, {}), 7);
    EXPECT_EQ(head_start({144, 100, 2}, stage, kAll), HeadStart()) << "nobody knows which are free";
    EXPECT_EQ(head_start({144, 132, 2}, {132, 132, 1}, kAll), HeadStart()) << "a tile each";
    EXPECT_EQ(head_start({140, 132, 0.1}, {264, 132, 1}, kAll), HeadStart()) << "a lead of a tenth of a tile";
}

}  // namespace
}  // namespace syncopate::fuse
