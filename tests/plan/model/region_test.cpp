#include "syncopate/plan/model/region.hpp"

#include <limits>

#include <gtest/gtest.h>

namespace syncopate::plan {
namespace {

TEST(Region, TouchingBoxesDoNotOverlap) {
    EXPECT_FALSE(overlaps({{0, 4}, {0, 4}}, {{4, 8}, {0, 4}}));
    EXPECT_TRUE(overlaps({{0, 4}, {0, 4}}, {{3, 8}, {3, 4}}));
    EXPECT_EQ(intersect({{0, 4}, {0, 4}}, {{4, 8}, {0, 4}}), std::nullopt);
}

TEST(Region, AnEmptyBoxIsInsideEveryBoxAndOverlapsNone) {
    EXPECT_TRUE(contains({{0, 4}}, {{9, 9}}));
    EXPECT_FALSE(overlaps({{0, 4}}, {{2, 2}}));
    EXPECT_EQ(num_elements({{2, 2}, {0, 5}}), 0);
}

TEST(Region, AHugeBoxCountsAsTheLargestNumber) {
    const std::int64_t huge = std::int64_t{1} << 40;
    EXPECT_EQ(num_elements({{0, huge}, {0, huge}}), std::numeric_limits<std::int64_t>::max());
}

TEST(Region, SubtractingAHoleLeavesDisjointBoxesThatCoverTheRest) {
    const Region whole{{0, 6}, {0, 6}, {0, 6}};
    const Region hole{{2, 4}, {1, 7}, {3, 4}};
    const std::vector<Region> parts = subtract(whole, hole);
    std::int64_t left = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        EXPECT_TRUE(contains(whole, parts[i]));
        EXPECT_FALSE(overlaps(parts[i], hole));
        for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(overlaps(parts[i], parts[j]));
        left += num_elements(parts[i]);
    }
    EXPECT_EQ(left, 6 * 6 * 6 - 2 * 5 * 1);
}

TEST(Region, SubtractingACoverLeavesNothingAndADistantBoxEverything) {
    EXPECT_TRUE(subtract({{1, 2}}, {{0, 4}}).empty());
    EXPECT_EQ(subtract({{1, 2}}, {{3, 4}}), std::vector<Region>{Region({{1, 2}})});
}

TEST(Region, TheBoundingBoxIgnoresEmptyBoxes) {
    EXPECT_EQ(bounding_box({{0, 2}}, {{5, 6}}), Region({{0, 6}}));
    EXPECT_EQ(bounding_box({{3, 3}}, {{5, 6}}), Region({{5, 6}}));
}

TEST(Region, PrintsAsSlices) { EXPECT_EQ(to_string(Region{{0, 128}, {0, 256}}), "[0:128, 0:256]"); }

}  // namespace
}  // namespace syncopate::plan
