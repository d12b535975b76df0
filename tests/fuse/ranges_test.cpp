// Loops of a tile that run range by range: causal attention, by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::fuse {
namespace {

constexpr std::int64_t kBlockM = 8, kBlockN = 4, kRows = 64;

/// A tile is 8 rows; it reads the blocks of K below the diagonal in one loop, those on it in another.
kernel::Kernel causal(bool any_order) {
    kernel::Kernel kernel;
    kernel.name = "attention";
    kernel.file = "sample.py";
    kernel.params = {{"k", kernel::ParamKind::pointer, true, false, {}},
                     {"o", kernel::ParamKind::pointer, false, true, {}}};
    const std::int64_t tiles = kRows / kBlockM;
    kernel.axes = {{"M", tiles, kBlockM}};
    kernel.grid = {tiles, 1, 1};
    kernel.tiles_differ = true;
    for (const std::int64_t trips : {(tiles - 1) * kBlockM / kBlockN, kBlockM / kBlockN}) {
        kernel::Loop loop;
        loop.trips = trips;
        loop.divisible = true;
        loop.any_order = any_order;
        kernel.loops.push_back(loop);
    }
    for (std::int64_t m = 0; m < tiles; ++m) {
        const std::int64_t first = m * kBlockM;
        kernel::Tile tile;
        tile.coord = {m};
        tile.id = tile.program = m;
        tile.reads["k"] = {{0, first + kBlockM}, {0, 4}};
        tile.writes["o"] = {{first, first + kBlockM}, {0, 4}};
        std::vector<kernel::LoopRead> reads;
        if (m > 0) reads.push_back({0, 0, 0, kBlockN, kBlockN, {{{0, first}, {0, 4}}}});
        reads.push_back({1, 0, first, kBlockN, kBlockN, {{{first, first + kBlockM}, {0, 4}}}});
        tile.loop_reads["k"] = std::make_shared<const std::vector<kernel::LoopRead>>(std::move(reads));
        tile.trips = std::make_shared<const std::vector<std::int64_t>>(
            std::vector<std::int64_t>{first / kBlockN, kBlockM / kBlockN});
        kernel.tiles.push_back(std::move(tile));
    }
    kernel.arguments.tensors["k"] = {{kRows, 4}, {}, plan::DType::bf16, {}};
    kernel.arguments.tensors["o"] = {{kRows, 4}, {}, plan::DType::bf16, {}};
    return kernel;
}

/// K is gathered; rank r makes the r-th part of O.
Program program(bool any_order, std::int32_t num_ranks, bool shared_out = true) {
    const plan::Tensor k{"K", {kRows, 4}, plan::DType::bf16};
    Program made{causal(any_order), plan::all_gather(sample::ranks(num_ranks), k).value(), {{"k", "K"}}};
    if (!shared_out) return made;
    made.bindings["o"] = "O";
    made.plan.tensors.push_back({"O", {kRows, 4}, plan::DType::bf16});
    const std::int64_t part = kRows / num_ranks;
    for (std::int32_t rank = 0; rank < num_ranks; ++rank)
        made.plan.produced.push_back(
            {.rank = rank, .chunk = {1, {{rank * part, (rank + 1) * part}, {0, 4}}}});
    return made;
}

/// Rows of K that iteration `iteration` of loop `loop` of `tile` reads.
plan::Interval rows_read(const kernel::Kernel& kernel, std::int64_t tile, std::int32_t loop,
                         std::int64_t iteration) {
    for (const kernel::LoopRead& read : *kernel.tiles[static_cast<std::size_t>(tile)].loop_reads.at("k")) {
        if (read.loop == loop)
            return {read.base + iteration * read.step, read.base + iteration * read.step + read.extent};
    }
    return {};
}

/// Plays the slots of every rank: each iteration of each loop runs once, and reads only what is held, or what
/// its program has waited for.
void play(const Program& made, const Schedule& schedule) {
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
        const RankSchedule& own = schedule.ranks[rank];
        for (const Slot& slot : own.slots) {
            std::vector<plan::Interval> here;
            for (const plan::Holding& held : made.plan.initial) {
                if (held.rank == static_cast<std::int32_t>(rank)) here.push_back(held.chunk.region[0]);
            }
            const auto wait = [&](const std::vector<Wait>& waits) {
                for (const Wait& one : waits) {
                    const plan::OpRef op = own.signals[static_cast<std::size_t>(one.signal)].op;
                    here.push_back(made.plan.op(op).dst.region[0]);
                }
            };
            wait(slot.waits);
            std::set<std::pair<std::int32_t, std::int64_t>> ran;
            for (const Phase& phase : slot.phases) {
                wait(phase.waits);
                for (std::int64_t i = phase.iteration_begin; i < phase.iteration_end; ++i) {
                    EXPECT_TRUE(ran.insert({phase.loop, i}).second) << "an iteration runs twice";
                    const plan::Interval rows = rows_read(made.kernel, slot.tile, phase.loop, i);
                    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
                        EXPECT_TRUE(std::ranges::any_of(
                            here,
                            [&](const plan::Interval& part) { return part.begin <= row && row < part.end; }))
                            << "rank " << rank << ", tile " << slot.tile << ", row " << row;
                    }
                }
            }
            std::int64_t all = 0;
            for (std::size_t loop = 0; loop < 2; ++loop)
                all += made.kernel.trips_of(made.kernel.tiles[static_cast<std::size_t>(slot.tile)], loop);
            EXPECT_EQ(static_cast<std::int64_t>(ran.size()), all) << "tile " << slot.tile;
        }
    }
}

Schedule fused(const Program& made) {
    Result<Schedule> schedule = fuse(made);
    EXPECT_TRUE(schedule.ok()) << (schedule.ok() ? "" : schedule.error().to_string());
    return schedule.ok() ? *std::move(schedule) : Schedule{};
}

TEST(Ranges, EachIterationRunsOnceAndAfterWhatItReads) {
    for (const bool any_order : {false, true}) {
        for (const std::int32_t num_ranks : {1, 2, 4}) {
            for (const bool shared_out : {false, true}) {
                const Program made = program(any_order, num_ranks, shared_out);
                const Schedule schedule = fused(made);
                const bool waits_in_loops = num_ranks > 1 && (any_order || num_ranks > 2 || !shared_out);
                EXPECT_EQ(schedule.stages[0].phased, waits_in_loops);
                if (waits_in_loops) play(made, schedule);
            }
        }
    }
}

TEST(Ranges, InAnyOrderATileBeginsWithWhatItsRankHolds) {
    const Program made = program(true, 4);
    const Schedule schedule = fused(made);
    for (std::int32_t rank = 1; rank < 4; ++rank) {
        for (const Slot& slot : schedule.ranks[static_cast<std::size_t>(rank)].slots) {
            EXPECT_TRUE(slot.waits.empty());
            const Phase& last = slot.phases.back();
            EXPECT_EQ(last.loop, 1);
            EXPECT_TRUE(last.waits.empty()) << "the diagonal is this rank's own";
        }
    }
    // Rank 3's first tile: rows 48 to 56 of its own are on the diagonal; below it, rank 2's come first.
    const Slot& first = schedule.ranks[3].slots.back();
    EXPECT_EQ(first.tile, 6);
    EXPECT_EQ(first.phases.front().iteration_begin, 8);
    EXPECT_EQ(first.phases.front().iteration_end, 12);
}

TEST(Ranges, RisingOnesWaitWhereTheNextIsNeeded) {
    const Schedule schedule = fused(program(false, 4));
    const Slot& slot = schedule.ranks[3].slots.front();
    ASSERT_EQ(slot.tile, 7);
    EXPECT_EQ(slot.waits.size(), 1U) << "rows 0 to 16 come first, and they are rank 0's";
    ASSERT_EQ(slot.phases.size(), 4U);
    const std::vector<std::int64_t> ends{4, 8, 14, 2};
    for (std::size_t n = 0; n < 4; ++n) {
        EXPECT_EQ(slot.phases[n].iteration_end, ends[n]);
        EXPECT_EQ(slot.phases[n].waits.size(), n == 1 || n == 2 ? 1U : 0U);
    }
}

TEST(Ranges, ACausalTileWaitsForNothingBehindTheDiagonal) {
    const Schedule schedule = fused(program(true, 2));
    for (const Slot& slot : schedule.ranks[0].slots) {
        EXPECT_TRUE(slot.waits.empty());
        for (const Phase& phase : slot.phases) EXPECT_TRUE(phase.waits.empty());
    }
}

TEST(Ranges, ATileWhoseLoopsDoNotRunHasAPhaseOfNoIterations) {
    for (const bool any_order : {false, true}) {
        Program made = program(any_order, 2, false);
        kernel::Tile& idle = made.kernel.tiles[5];
        idle.loop_reads = {};
        idle.reads = {};
        idle.trips = std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{0, 0});
        const Schedule schedule = fused(made);
        ASSERT_TRUE(schedule.stages[0].phased);
        for (const RankSchedule& rank : schedule.ranks) {
            const auto slot = std::ranges::find(rank.slots, 5, &Slot::tile);
            ASSERT_NE(slot, rank.slots.end());
            ASSERT_EQ(slot->phases.size(), 1U) << "a kernel with phases reads where a slot's begin";
            EXPECT_EQ(slot->phases[0].iteration_end, 0);
            EXPECT_TRUE(slot->waits.empty());
        }
    }
}

TEST(Ranges, RanksRunTheTilesThatTheyMakeTheLongestFirst) {
    const Schedule schedule = fused(program(true, 2));
    EXPECT_EQ(schedule.stages[0].tiles, 8);
    EXPECT_EQ(schedule.stages[0].count, 4);
    EXPECT_EQ(schedule.stages[0].own_grid, (std::vector<std::int64_t>{8, 1}));
    std::vector<std::int64_t> tiles;
    for (const Slot& slot : schedule.ranks[1].slots) tiles.push_back(slot.tile);
    EXPECT_EQ(tiles, (std::vector<std::int64_t>{7, 6, 5, 4}));
}

constexpr std::int64_t kMakers = 6;

/// Ten tiles on two programs of each rank, in this order. The first six make what each rank sends to the other, the last four wait
/// for it.
StagedProgram makers_and_waiters() {
    const std::vector<std::int64_t> trips{1, 12, 2, 7, 7, 10, 8, 2, 8, 12};
    const std::int64_t count = 10;
    kernel::Kernel kernel;
    kernel.name = "user";
    kernel.file = "user.py";
    kernel.persistent = kernel.tiles_differ = true;
    kernel.params = {{"k", kernel::ParamKind::pointer, true, false, {}},
                     {"o", kernel::ParamKind::pointer, false, true, {}}};
    kernel.axes = {{"M", count, 1}};
    kernel.grid = {2, 1, 1};
    kernel::Loop loop;
    loop.trips = 12;
    loop.divisible = loop.any_order = true;
    kernel.loops.push_back(loop);
    for (std::int64_t m = 0; m < count; ++m) {
        const std::int64_t own = trips[static_cast<std::size_t>(m)], base = m < kMakers ? 0 : 22 - own;
        kernel::Tile tile;
        tile.coord = {m};
        tile.id = m;
        tile.program = m % 2;
        tile.reads["k"] = {{base, base + own}, {0, 4}};
        tile.writes["o"] = {{m, m + 1}, {0, 4}};
        tile.loop_reads["k"] = std::make_shared<const std::vector<kernel::LoopRead>>(
            std::vector<kernel::LoopRead>{{0, 0, base, 1, 1, {{{base, base + own}, {0, 4}}}}});
        tile.trips = std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{own});
        kernel.tiles.push_back(std::move(tile));
        kernel.traversal.push_back(m);
    }
    kernel.arguments.tensors["k"] = {{22, 4}, {}, plan::DType::bf16, {}};
    kernel.arguments.tensors["o"] = {{count, 4}, {}, plan::DType::bf16, {}};
    plan::Plan plan;
    plan.mesh = sample::ranks(2);
    plan.tensors = {{"K", {22, 4}, plan::DType::bf16}, {"O", {count, 4}, plan::DType::bf16}};
    plan.ranks.resize(2);
    for (std::int32_t rank = 0; rank < 2; ++rank) {
        plan.initial.push_back({.rank = rank, .chunk = {0, {{0, 16}, {0, 4}}}});
        plan.produced.push_back({.rank = rank, .chunk = {1, {{0, count}, {0, 4}}}});
        plan::Op push;
        push.kind = plan::OpKind::push;
        push.peer = 1 - rank;
        push.src = {1, {{0, kMakers}, {0, 4}}};
        push.dst = {0, {{16, 22}, {0, 4}}};
        plan.ranks[static_cast<std::size_t>(rank)].push_back(push);
    }
    return {{{std::move(kernel), {{"k", "K"}, {"o", "O"}}}}, std::move(plan)};
}

TEST(Ranges, TilesOfUnequalLoopsAreDealtOutAndNoneThatWaitsKeepsOneThatMakes) {
    const StagedProgram made = makers_and_waiters();
    const Result<Schedule> schedule = fuse(made, {});
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    for (const RankSchedule& rank : schedule->ranks) {
        std::array<std::int64_t, 2> loads{};
        for (std::size_t slot = 0; slot < rank.slots.size(); ++slot) {
            const std::int64_t tile = rank.slots[slot].tile;
            loads[slot % 2] += 1 + made.stages[0].kernel.trips_of(
                                       made.stages[0].kernel.tiles[static_cast<std::size_t>(tile)], 0);
            if (slot >= 2) {
                EXPECT_FALSE(rank.slots[slot - 2].tile >= kMakers && tile < kMakers);
            }
        }
        EXPECT_LE(std::abs(loads[0] - loads[1]), 5) << "in order 44 and 35";
    }
}

TEST(Ranges, ATileThatTwoRanksMakeInPartsIsRefused) {
    Program made = program(true, 2);
    made.plan.produced[0].chunk.region[0].end = 36;
    made.plan.produced[1].chunk.region[0].begin = 36;
    const Result<Schedule> schedule = fuse(made);
    ASSERT_FALSE(schedule.ok());
    EXPECT_NE(schedule.error().message.find("which the plan does not list as produced on rank 0"),
              std::string::npos)
        << schedule.error().message;
}

}  // namespace
}  // namespace syncopate::fuse
