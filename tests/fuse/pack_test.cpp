#include "syncopate/fuse/passes/pack.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace syncopate::fuse {
namespace {

using Tiles = std::vector<std::int64_t>;

double makespan(const Tiles& slots, const std::vector<double>& times, const std::vector<double>& ready,
                std::size_t programs) {
    double end = 0;
    for (std::size_t program = 0; program < programs; ++program) {
        double now = 0;
        for (std::size_t slot = program; slot < slots.size(); slot += programs) {
            now = std::max(now, ready[slots[slot]]) + times[slots[slot]];
        }
        end = std::max(end, now);
    }
    return end;
}

TEST(Pack, KeepsTheShortTilesForTheEnd) {
    EXPECT_EQ(pack_tiles({1, 2, 1, 2}, {0, 0, 0, 0}, 2), (Tiles{1, 3, 0, 2}));
}

TEST(Pack, TakesAShortTileWhileNoLongOneHasArrived) {
    EXPECT_EQ(pack_tiles({2, 2, 1, 1}, {0, 5, 0, 5}, 2), (Tiles{0, 2, 3, 1}));
}

TEST(Pack, WaitsForWhatArrivesFirst) { EXPECT_EQ(pack_tiles({2, 2}, {9, 4}, 1), (Tiles{1, 0})); }

TEST(Pack, RunsEveryTileOnceWhateverTheTimes) {
    std::mt19937 random(1);
    for (int round = 0; round < 200; ++round) {
        const std::size_t count = 1 + random() % 60;
        const auto programs = static_cast<std::int64_t>(1 + random() % 9);
        std::vector<double> times(count);
        std::vector<double> ready(count);
        for (double& time : times) time = 1 + random() % 8;
        for (double& time : ready) time = random() % 30;
        Tiles deadlines(count);
        for (std::int64_t& deadline : deadlines) deadline = static_cast<std::int64_t>(random() % 5);
        Tiles all(count);
        std::iota(all.begin(), all.end(), 0);
        for (Tiles slots :
             {pack_tiles(times, ready, programs), pack_by_deadline(times, deadlines, programs)}) {
            std::sort(slots.begin(), slots.end());
            EXPECT_EQ(slots, all);
        }
    }
}

// A GEMM of 4096 x 3584 in 384 wide and 128 narrow tiles on 132 programs: dealt out in order of arrival, some
// program gets four wide tiles.
TEST(Pack, BeatsDealingOutByArrival) {
    std::vector<double> times;
    std::vector<double> ready;
    Tiles by_arrival;
    for (int shard = 0; shard < 4; ++shard) {
        for (int tile = 0; tile < 128; ++tile) {
            by_arrival.push_back(static_cast<std::int64_t>(times.size()));
            times.push_back(tile < 96 ? 1.0 : 0.62);
            ready.push_back(0.5 * shard);
        }
    }
    const double packed = makespan(pack_tiles(times, ready, 132), times, ready, 132);
    EXPECT_LT(packed, 3.75);
    EXPECT_GT(makespan(by_arrival, times, ready, 132), packed);
}

// A GEMM of 768 x 6144 in 132 wide and 24 narrow tiles on 132 programs, of which half the rows arrive:
// whoever takes a narrow tile rather than wait has no slot after it.
TEST(Pack, GivesNoProgramTwoLongTilesWhereEachHasRoomForOne) {
    std::vector<double> times;
    std::vector<double> ready;
    for (int column = 0; column < 26; ++column) {
        for (int row = 0; row < 6; ++row) {
            times.push_back(column < 22 ? 130 : 65);
            ready.push_back(row < 3 ? 0 : 41);
        }
    }
    EXPECT_EQ(makespan(pack_tiles(times, ready, 132), times, ready, 132), 195);
}

// A GEMM of 3072 x 10240 in 912 wide and 96 narrow tiles on 132 programs, four chunks: 84 programs have eight
// slots, and each needs a narrow tile to end with those that have seven.
TEST(Pack, GivesShortTilesToProgramsWithMoreSlotsAndDelaysNoChunk) {
    std::vector<double> times;
    std::vector<std::int64_t> deadlines;
    for (int column = 0; column < 42; ++column) {
        for (int row = 0; row < 24; ++row) {
            times.push_back(column < 38 ? 2 : 1);
            deadlines.push_back(row / 6);
        }
    }
    const Tiles slots = pack_by_deadline(times, deadlines, 132);
    const std::vector<double> there(times.size(), 0.0);
    EXPECT_EQ(makespan(slots, times, there, 132), 15) << "dealt out by deadline and length it is 16";
    std::vector<double> done(4, 0);
    for (std::size_t program = 0; program < 132; ++program) {
        double now = 0;
        for (std::size_t slot = program; slot < slots.size(); slot += 132) {
            now += times[slots[slot]];
            done[deadlines[slots[slot]]] = std::max(done[deadlines[slots[slot]]], now);
        }
    }
    EXPECT_EQ(done, (std::vector<double>{4, 8, 12, 15}));
}

// A GEMM of 512 x 12288 in 132 wide and 120 narrow tiles on 132 programs, half of the rows due first: one of
// each for every program, or a wide one alone.
TEST(Pack, GivesAProgramWithOneTileLessALongOne) {
    std::vector<double> times;
    Tiles deadlines;
    for (int tile = 0; tile < 252; ++tile) {
        times.push_back(tile < 132 ? 1.0 : 0.62);
        deadlines.push_back(tile % 4 < 2 ? 1 : 2);
    }
    const std::vector<double> ready(times.size(), 0.0);
    EXPECT_NEAR(makespan(pack_by_deadline(times, deadlines, 132), times, ready, 132), 1.62, 1e-9);
    EXPECT_NEAR(makespan(pack_tiles(times, ready, 132), times, ready, 132), 1.62, 1e-9);
    const Tiles slots = pack_by_deadline(times, deadlines, 132);
    const auto due = std::count_if(slots.begin(), slots.begin() + 132, [&](std::int64_t tile) {
        return deadlines[static_cast<std::size_t>(tile)] == 1;
    });
    EXPECT_EQ(due, 126) << "what is due comes first all the same";
}

}  // namespace
}  // namespace syncopate::fuse
