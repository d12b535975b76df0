// Stages that nothing but tiles works for: they overlap, and each tile waits for those that it reads.
#include <gtest/gtest.h>

#include <span>
#include <utility>
#include <vector>

#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/json.hpp"

namespace syncopate::fuse {
namespace {

constexpr sample::Gemm kUp{16, 8, 4, 4, 4, 4, 0};    // H [16, 8] = X [16, 4] @ …, tiles N fastest
constexpr sample::Gemm kDown{16, 4, 8, 4, 4, 4, 0};  // Y [16, 4] = H @ …

/// X, H and Y of so many rows and columns, on one rank.
StagedProgram unstaged(std::int64_t rows, std::int64_t x, std::int64_t h, std::int64_t y) {
    StagedProgram program;
    program.plan.mesh = sample::ranks(1);
    program.plan.ranks.resize(1);
    for (const auto& [name, columns] : {std::pair("X", x), std::pair("H", h), std::pair("Y", y)}) {
        program.plan.tensors.push_back({name, {rows, columns}, plan::DType::bf16});
        program.plan.initial.push_back({.rank = 0,
                                        .chunk = {static_cast<std::int32_t>(program.plan.tensors.size()) - 1,
                                                  program.plan.tensors.back().whole()}});
    }
    return program;
}

/// Stages of plain tiles of 4 x 4, by so many programs: H [8, 16] = X [8, 32] @ …, column by column; Y [8,
/// 40] = H @ …
StagedProgram chain_of_rounds(std::int64_t programs) {
    StagedProgram program = unstaged(8, 32, 16, 40);
    program.stages = {{sample::gemm({8, 16, 32, 4, 4, 4, programs}), {{"a_ptr", "X"}, {"c_ptr", "H"}}},
                      {sample::gemm({8, 40, 16, 4, 4, 4, programs}), {{"a_ptr", "H"}, {"c_ptr", "Y"}}}};
    program.stages[0].kernel.traversal = {0, 4, 1, 5, 2, 6, 3, 7};
    return program;
}

StagedProgram chain(const char* input_of_down, const char* output_of_down, Stage third = {}) {
    StagedProgram program = unstaged(16, 4, 8, 4);
    program.stages = {{sample::gemm(kUp), {{"a_ptr", "X"}, {"c_ptr", "H"}}},
                      {sample::gemm(kDown), {{"a_ptr", input_of_down}, {"c_ptr", output_of_down}}}};
    if (!third.bindings.empty()) program.stages.push_back(std::move(third));
    return program;
}

TEST(Chain, LetsEachTileWaitForTheRowThatItReads) {
    const Result<Schedule> schedule = fuse(chain("H", "Y"));
    ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
    EXPECT_FALSE(schedule->stages[0].overlaps);
    EXPECT_TRUE(schedule->stages[1].overlaps);
    const RankSchedule& rank = schedule->ranks[0];
    ASSERT_EQ(rank.chunks.size(), 4U);  // the rows of H
    for (std::size_t row = 0; row < 4; ++row) {
        EXPECT_EQ(rank.chunks[row].counting,
                  (std::vector<std::int32_t>{static_cast<std::int32_t>(2 * row),
                                             static_cast<std::int32_t>(2 * row + 1)}));
        ASSERT_EQ(rank.chunks[row].posts.size(), 1U);
        const Slot& slot = rank.slots[8 + row];
        EXPECT_EQ(slot.tile, static_cast<std::int64_t>(row));
        ASSERT_EQ(slot.waits.size(), 1U);
        EXPECT_EQ(slot.waits[0].signal, rank.chunks[row].posts[0].signal);
        const SignalMeaning& meaning = rank.signals[static_cast<std::size_t>(slot.waits[0].signal)];
        EXPECT_EQ(meaning.kind, SignalMeaning::Kind::made);
    }
}

TEST(Chain, ReadsAsItWasWritten) {
    const Result<Schedule> schedule = fuse(chain("H", "Y"));
    ASSERT_TRUE(schedule.ok());
    const Result<Schedule> again = schedule_from_json(to_json(*schedule), "schedule.json");
    ASSERT_TRUE(again.ok()) << again.error().to_string();
    EXPECT_EQ(again->stages, schedule->stages);
}

TEST(Chain, StartsAStageThatOverwritesAnInputWhenTheOneBeforeHasEnded) {
    const Result<Schedule> schedule = fuse(chain("H", "X"));  // which the first stage reads
    ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
    EXPECT_FALSE(schedule->stages[1].overlaps);
}

TEST(Chain, LetsNoTileAwaitManyChunks) {
    // A tile of stage 1 reads all rows of H up to its own, as causal attention does: no two rows of H are
    // needed by the same tiles, and the last tile needs all sixteen.
    StagedProgram program = chain("H", "Y");
    program.stages[0].kernel = sample::gemm({16, 8, 4, 1, 4, 4, 0});
    kernel::Kernel causal = sample::gemm({16, 4, 8, 1, 4, 4, 0});
    for (kernel::Tile& tile : causal.tiles) tile.reads["a_ptr"][0].begin = 0;
    program.stages[1].kernel = causal;
    const Result<Schedule> schedule = fuse(program);
    ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
    const RankSchedule& rank = schedule->ranks[0];
    EXPECT_EQ(rank.chunks.size(), 4U);
    for (const Slot& slot : rank.slots) EXPECT_LE(slot.waits.size(), 4U);
    EXPECT_EQ(rank.slots[32].waits.size(), 1U) << "the first row needs the first chunk only";
    EXPECT_EQ(rank.slots[47].waits.size(), 4U);
}

/// Tiles take time by their depth alone.
Options by_depth(Device device) {
    Options options{.device = device};
    options.costs.tile_us = 0;
    return options;
}

std::vector<std::int64_t> tiles_of(const Schedule& schedule, std::size_t stage) {
    std::vector<std::int64_t> tiles;
    for (const Slot& slot : schedule.slots_of(schedule.ranks[0], stage)) tiles.push_back(slot.tile);
    return tiles;
}

TEST(Chain, CompletesAChunkBeforeTheLastRoundWhereThatEndsItSooner) {
    const std::vector<std::int64_t> row_by_row{0, 1, 2, 3, 4, 5, 6, 7};
    // Six programs: in the kernel's own order no row is complete after the first round.
    const Result<Schedule> persistent = fuse(chain_of_rounds(6), by_depth(Device::host));
    ASSERT_TRUE(persistent.ok()) << persistent.error().to_string();
    EXPECT_EQ(tiles_of(*persistent, 0), row_by_row);
    // So it is with a tile a program on six multiprocessors. Eight run all tiles at once.
    StagedProgram program = chain_of_rounds(0);
    program.stages[0].kernel.arguments.num_sms = program.stages[1].kernel.arguments.num_sms = 6;
    const Result<Schedule> plain = fuse(program, by_depth(Device::host));
    ASSERT_TRUE(plain.ok()) << plain.error().to_string();
    EXPECT_EQ(tiles_of(*plain, 0), row_by_row);
    program.stages[0].kernel.arguments.num_sms = program.stages[1].kernel.arguments.num_sms = 8;
    const Result<Schedule> at_once = fuse(program, by_depth(Device::host));
    ASSERT_TRUE(at_once.ok()) << at_once.error().to_string();
    EXPECT_EQ(tiles_of(*at_once, 0), (std::vector<std::int64_t>{0, 4, 1, 5, 2, 6, 3, 7}));
}

TEST(Chain, GivesProgramsAHeadStartWhereTheKernelTakesOne) {
    StagedProgram program = chain_of_rounds(6);
    const Result<Schedule> none = fuse(program, by_depth(Device::cuda));
    ASSERT_TRUE(none.ok()) << none.error().to_string();
    EXPECT_EQ(none->stages[1].head_start, HeadStart());
    program.stages[1].kernel.head_start = true;
    const Result<Schedule> schedule = fuse(program, by_depth(Device::cuda));
    ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
    EXPECT_EQ(schedule->stages[0].head_start, HeadStart());
    EXPECT_EQ(schedule->stages[1].head_start, (HeadStart{4, 1}));
    // Each program waits once for each row: programs 0 to 3 from slots 0 to 3 on, 4 and 5 from 8 and 9 on.
    const std::span<const Slot> slots = schedule->slots_of(schedule->ranks[0], 1);
    ASSERT_EQ(slots.size(), 20U);
    for (const std::size_t slot : {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15})
        EXPECT_EQ(slots[slot].waits.size(), 1U) << slot;
    for (const std::size_t slot : {4, 5, 6, 7, 16, 17, 18, 19})
        EXPECT_EQ(slots[slot].waits.size(), 0U) << slot;
    for (std::size_t slot = 0; slot < 20; ++slot)
        EXPECT_EQ(slots[slot].tile, static_cast<std::int64_t>(slot));
    const Result<Schedule> again = schedule_from_json(to_json(*schedule), "schedule.json");
    ASSERT_TRUE(again.ok()) << again.error().to_string();
    EXPECT_EQ(again->stages, schedule->stages);
    Schedule wrong = *schedule;
    wrong.stages[1].head_start.rounds = 6;
    const Result<Schedule> refused = schedule_from_json(to_json(wrong), "schedule.json");
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().to_string().find("stages[1] has a head start of more slots than it has"),
              std::string::npos)
        << refused.error().to_string();
}

TEST(Chain, OverlapsStagesThatShareNothing) {
    const Result<Schedule> schedule = fuse(chain("X", "Y"));
    // `down` reads 8 columns; X has 4.
    EXPECT_FALSE(schedule.ok());
    const Result<Schedule> fan = fuse(chain("H", "Y", {sample::gemm(kDown), {{"a_ptr", "H"}}}));
    ASSERT_TRUE(fan.ok()) << fan.error().to_string();
    EXPECT_TRUE(fan->stages[2].overlaps);
    EXPECT_EQ(fan->ranks[0].chunks.size(), 4U) << "two consumers share what is made";
    EXPECT_EQ(fan->ranks[0].slots[12].waits, fan->ranks[0].slots[8].waits);
}

}  // namespace
}  // namespace syncopate::fuse
