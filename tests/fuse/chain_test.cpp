// Stages that nothing but tiles works for: they overlap, and each tile waits for those that it reads.
#include <gtest/gtest.h>

#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/json.hpp"

namespace syncopate::fuse {
namespace {

constexpr sample::Gemm kUp{16, 8, 4, 4, 4, 4, 0};    // H [16, 8] = X [16, 4] @ …, tiles N fastest
constexpr sample::Gemm kDown{16, 4, 8, 4, 4, 4, 0};  // Y [16, 4] = H @ …

StagedProgram chain(const char* input_of_down, const char* output_of_down, Stage third = {}) {
    StagedProgram program;
    program.plan.mesh = sample::ranks(1);
    program.plan.ranks.resize(1);
    for (const auto& [name, columns] : {std::pair("X", 4), std::pair("H", 8), std::pair("Y", 4)}) {
        program.plan.tensors.push_back({name, {16, columns}, plan::DType::bf16});
        program.plan.initial.push_back({.rank = 0,
                                        .chunk = {static_cast<std::int32_t>(program.plan.tensors.size()) - 1,
                                                  program.plan.tensors.back().whole()}});
    }
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
