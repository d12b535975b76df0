#include "syncopate/fuse/passes/deal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace syncopate::fuse {
namespace {

/// When the last program ends, of the mean.
double imbalance(const std::vector<std::size_t>& slots, const std::vector<double>& times,
                 std::size_t programs) {
    std::vector<double> loads(programs, 0);
    for (std::size_t slot = 0; slot < slots.size(); ++slot) loads[slot % programs] += times[slots[slot]];
    return *std::ranges::max_element(loads) * static_cast<double>(programs) /
           std::accumulate(loads.begin(), loads.end(), 0.0);
}

std::vector<std::size_t> in_order(std::size_t count) {
    std::vector<std::size_t> slots(count);
    std::iota(slots.begin(), slots.end(), std::size_t{0});
    return slots;
}

/// Tiles of causal attention on the first of two ranks with zigzag rows, in the order in which they begin: parts of the heads
/// one after another, in each the longest first.
std::vector<double> causal_tiles(std::int64_t heads, std::int64_t tiles, std::int64_t parts) {
    std::vector<double> times;
    for (std::int64_t part = 0; part < parts; ++part) {
        for (std::int64_t m = 2 * tiles; m > 0; --m) {
            if (m > tiles / 2 && m <= 2 * tiles - tiles / 2) continue;  // the other rank's
            for (std::int64_t head = 0; head < heads / parts; ++head)
                times.push_back(1.0 + static_cast<double>(m));
        }
    }
    return times;
}

TEST(Deal, GivesWhoGotTheLongestOfOneRoundTheShortestOfTheNext) {
    EXPECT_EQ(deal_tiles(std::vector<double>{4, 3, 2, 1}, 2), (std::vector<std::size_t>{0, 1, 3, 2}));
}

TEST(Deal, KeepsTheOrderOfTilesThatAreAlike) {
    EXPECT_EQ(deal_tiles(std::vector<double>(7, 3.0), 3), in_order(7));
}

TEST(Deal, KeepsTheOrderWhereEachProgramHasOneTile) {
    EXPECT_EQ(deal_tiles(std::vector<double>{1, 5, 2}, 4), in_order(3));
}

TEST(Deal, RunsEveryTileOnceAndEndsNoLaterThanInOrder) {
    std::mt19937 random(1);
    for (int round = 0; round < 300; ++round) {
        const std::size_t programs = 1 + random() % 9;
        std::vector<double> times(1 + random() % 80);
        for (double& time : times) time = 1 + random() % 40;
        std::vector<std::size_t> slots = deal_tiles(times, programs);
        EXPECT_LE(imbalance(slots, times, programs),
                  imbalance(in_order(times.size()), times, programs) + 1e-9);
        std::ranges::sort(slots);
        EXPECT_EQ(slots, in_order(times.size()));
    }
}

TEST(Deal, LeavesNoProgramTwiceTheMeanWhereHeadsComeInParts) {
    const std::vector<double> times = causal_tiles(16, 16, 2);
    EXPECT_GT(imbalance(in_order(times.size()), times, 132), 1.9);
    EXPECT_LT(imbalance(deal_tiles(times, 132), times, 132), 1.05);
}

TEST(Deal, EvensOutCausalTilesThatComeAtOnce) {
    const std::vector<double> times = causal_tiles(24, 24, 1);
    EXPECT_GT(imbalance(in_order(times.size()), times, 132), 1.28);
    EXPECT_LT(imbalance(deal_tiles(times, 132), times, 132), 1.18);
}

// Else a tile that waits may keep from its program the one that makes what it waits for.
TEST(Deal, LetsEachProgramRunItsTilesInTheOrderStated) {
    std::mt19937 random(2);
    for (int round = 0; round < 300; ++round) {
        const std::size_t programs = 1 + random() % 9;
        std::vector<double> times(1 + random() % 80);
        for (double& time : times) time = 1 + random() % 40;
        const std::vector<std::size_t> slots = deal_tiles(times, programs);
        for (std::size_t slot = programs; slot < slots.size(); ++slot)
            EXPECT_LT(slots[slot - programs], slots[slot]);
    }
}

// What arrives first is worked on first: no tile of the second part begins long before the last one of the first part.
TEST(Deal, LetsTilesBeginInTheirOrderAboutWhenTheyWould) {
    for (const std::size_t programs : {124, 132}) {
        for (const std::int64_t heads : {16, 24, 32}) {
            for (const std::int64_t tiles : {16, 24, 64}) {
                const std::vector<double> times = causal_tiles(heads, tiles, 2);
                const std::vector<std::size_t> slots = deal_tiles(times, programs);
                std::vector<double> now(programs, 0);
                double latest_of_first = 0, earliest_of_second = 1e9;
                for (std::size_t slot = 0; slot < slots.size(); ++slot) {
                    const bool second = slots[slot] >= times.size() / 2;
                    double& end = now[slot % programs];
                    if (second)
                        earliest_of_second = std::min(earliest_of_second, end);
                    else
                        latest_of_first = std::max(latest_of_first, end);
                    end += times[slots[slot]];
                }
                EXPECT_LT(latest_of_first - earliest_of_second, 2 * *std::ranges::max_element(times))
                    << programs << " programs, " << heads << " heads, " << tiles << " tiles";
            }
        }
    }
}

}  // namespace
}  // namespace syncopate::fuse
