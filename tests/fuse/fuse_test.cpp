#include "syncopate/fuse/fuse.hpp"

#include <gtest/gtest.h>

#include "cpu_time.hpp"
#include "fuse/sample.hpp"

namespace syncopate::fuse {
namespace {

std::size_t slot_waits(const RankSchedule& rank) {
    std::size_t waits = 0;
    for (const Slot& slot : rank.slots) {
        waits += slot.waits.size();
        for (const Phase& phase : slot.phases) waits += phase.waits.size();
    }
    return waits;
}

std::string error_of(const Program& program, const Options& options = {}) {
    const auto result = fuse(program, options);
    return result.ok() ? "" : result.error().to_string();
}

TEST(Fuse, AProgramWaitsOnceForEachChunkThatItReads) {
    const sample::Gemm one_per_program{8, 8, 4, 2, 2, 2};
    sample::Gemm persistent = one_per_program;
    persistent.programs = 2;
    EXPECT_EQ(slot_waits(fuse(sample::all_gather_gemm(one_per_program, 4)).value().ranks[0]), 12U);
    EXPECT_EQ(slot_waits(fuse(sample::all_gather_gemm(persistent, 4)).value().ranks[0]), 6U);
}

TEST(Fuse, TilesThatWaitTogetherAllWaitForAllThatArrives) {
    sample::Gemm g{8, 4, 4, 2, 2, 2};  // four rows of two tiles
    g.programs = 8;
    const Schedule together = fuse(sample::all_gather_gemm(g, 4), {.together = true}).value();
    for (const RankSchedule& rank : together.ranks) {
        ASSERT_EQ(rank.slots.size(), 8U);
        for (const Slot& slot : rank.slots) EXPECT_EQ(slot.waits, rank.slots.front().waits);
        EXPECT_EQ(rank.slots.front().waits.size(), 3U) << "of each peer";
    }
    EXPECT_TRUE(fuse(sample::all_gather_gemm(g, 4)).value().ranks[0].slots.front().waits.empty());
    // In slices they wait for each where the loop comes to it.
    const Schedule sliced = fuse(sample::all_gather_gemm(g, 2, {.minor_axis = 1, .minor_split = 2}),
                                 {.device = Device::cuda, .together = true})
                                .value();
    for (const Slot& slot : sliced.ranks[0].slots) {
        ASSERT_EQ(slot.phases.size(), 2U);
        EXPECT_EQ(slot.waits.size(), 1U);
        EXPECT_EQ(slot.phases[1].waits.size(), 1U);
    }
}

TEST(Fuse, AStreamsLastChunkCoversTheEarlierOnes) {
    // A tile reads the two chunks of a shard: on copy engines the second one's signal is enough.
    const sample::Gemm g{8, 2, 4, 4, 2, 2};
    const plan::AllGatherOptions options{.split = 2};
    EXPECT_EQ(fuse(sample::all_gather_gemm(g, 2, options), {.device = Device::host})
                  .value()
                  .ranks[0]
                  .slots[1]
                  .waits.size(),
              2U);
    EXPECT_EQ(fuse(sample::all_gather_gemm(g, 2, options), {.device = Device::cuda})
                  .value()
                  .ranks[0]
                  .slots[1]
                  .waits.size(),
              1U);
}

TEST(Fuse, NumbersArrivalsByExpectedTime) {
    const auto schedule = fuse(sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4)).value();
    std::vector<std::int32_t> sources;
    for (const SignalMeaning& signal : schedule.ranks[2].signals) {
        if (signal.kind == SignalMeaning::Kind::arrived) sources.push_back(signal.op.rank);
    }
    EXPECT_EQ(sources, (std::vector<std::int32_t>{1, 0, 3}));
}

TEST(Fuse, APushIsGuardedByOneConsumedPerPeerFromTheKernel) {
    const auto schedule =
        fuse(sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4, {.split = 2, .transient = true})).value();
    const RankSchedule& rank = schedule.ranks[1];
    EXPECT_TRUE(rank.begin_posts.empty());
    EXPECT_EQ(rank.begin_waits.size(), 3U);
    for (const Wait& wait : rank.begin_waits) EXPECT_EQ(wait.lag, 1);
    EXPECT_EQ(rank.kernel_posts.size(), 3U);
    EXPECT_TRUE(rank.end_waits.empty());
    EXPECT_TRUE(rank.end_posts.empty());
}

TEST(Fuse, WhatTheCallLeavesIsTheUsersUntilTheNextCallThoughTheKernelReadsItToo) {
    const auto schedule = fuse(sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4)).value();
    const RankSchedule& rank = schedule.ranks[1];
    EXPECT_EQ(rank.begin_posts.size(), 3U);
    ASSERT_EQ(rank.begin_waits.size(), 3U);
    for (const Wait& wait : rank.begin_waits) EXPECT_EQ(wait.lag, 0);
    EXPECT_TRUE(rank.kernel_posts.empty());
}

TEST(Fuse, APullIsGuardedByReadyAndFetched) {
    const auto schedule = fuse(sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4, {.pull = true})).value();
    const RankSchedule& rank = schedule.ranks[1];
    EXPECT_EQ(rank.begin_posts.size(), 3U);
    EXPECT_EQ(rank.begin_waits.size(), 3U);
    EXPECT_EQ(rank.end_waits.size(), 3U);
    EXPECT_TRUE(rank.kernel_posts.empty());
}

TEST(Fuse, ARingIsAcknowledgedAtTheEndSinceItsTransfersReadTheBufferToo) {
    const sample::Gemm g{4, 4, 4, 1, 4, 2};
    plan::Plan ring = sample::ring_all_gather(4, sample::a_of(g));
    ring.final.clear();
    const auto schedule = fuse({sample::gemm(g), ring, {{"a_ptr", "A"}}}).value();
    EXPECT_TRUE(schedule.ranks[0].kernel_posts.empty());
    ASSERT_EQ(schedule.ranks[0].end_posts.size(), 1U);
    EXPECT_EQ(schedule.ranks[0].end_posts[0].rank, 3);
    EXPECT_EQ(schedule.ranks[0].transfers[1].waits.size(), 1U);
}

TEST(Fuse, CutsTheReductionLoopWhereChunksLieAlongIt) {
    const auto schedule = fuse(sample::all_gather_gemm({2, 4, 16, 2, 2, 2}, 4, {.axis = 1})).value();
    EXPECT_TRUE(schedule.stages[0].phased);
    const Slot& slot =
        schedule.ranks[1].slots[0];  // rank 0's slice first, its own next, then those of 2 and 3
    EXPECT_EQ(slot.waits.size(), 1U);
    ASSERT_EQ(slot.phases.size(), 3U);
    EXPECT_TRUE(slot.phases[0].waits.empty());
    EXPECT_EQ(slot.phases[0].iteration_end, 4);
    EXPECT_EQ(slot.phases[1].iteration_end, 6);
    EXPECT_EQ(slot.phases[2].iteration_end, 8);
    EXPECT_EQ(slot.phases[2].waits.size(), 1U);
}

TEST(Fuse, HasNoPhasesWhereChunksAreWholeRows) {
    EXPECT_FALSE(fuse(sample::all_gather_gemm({8, 4, 16, 2, 2, 2}, 4)).value().stages[0].phased);
}

TEST(Fuse, APhasedSlotThatNeedsNothingHasOnePhase) {
    const auto schedule =
        fuse(sample::all_gather_gemm({8, 4, 16, 2, 4, 2}, 4, {.minor_axis = 1, .minor_split = 2})).value();
    EXPECT_TRUE(schedule.stages[0].phased);
    ASSERT_EQ(schedule.ranks[0].slots[0].phases.size(), 1U);
    EXPECT_EQ(schedule.ranks[0].slots[0].phases[0].iteration_end, 8);
    EXPECT_EQ(schedule.ranks[0].slots[1].phases.size(), 2U);
}

TEST(Fuse, NamesWhatIsWrongWithABinding) {
    Program program = sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4);
    program.bindings = {{"x_ptr", "A"}};
    EXPECT_EQ(error_of(program),
              "kernel matmul has no parameter x_ptr to bind; did you mean \"a_ptr\"?; it has a_ptr, b_ptr, "
              "c_ptr, M");
    program.bindings = {{"a_ptr", "X"}};
    EXPECT_EQ(error_of(program), "the plan has no tensor X to bind a_ptr to; it has A");
    program.bindings = {{"a_ptr", "a"}};
    EXPECT_EQ(error_of(program), "the plan has no tensor a to bind a_ptr to; did you mean \"A\"?; it has A");
    program.bindings = {{"M", "A"}};
    EXPECT_NE(error_of(program).find("parameter M is not a tensor"), std::string::npos);
    program.bindings = {{"b_ptr", "A"}};
    EXPECT_NE(error_of(program).find("parameter b_ptr is 4x4:bf16 but tensor A of the plan is 8x4:bf16"),
              std::string::npos);
    program.bindings = {{"a_ptr", "A"}};
    program.kernel.arguments.tensors["a_ptr"].dtype = plan::DType::fp16;
    EXPECT_NE(error_of(program).find("a_ptr is 8x4:fp16"), std::string::npos);
    program.kernel.arguments.tensors["a_ptr"] = {{8, 4}, {1, 8}, plan::DType::bf16, {}};
    EXPECT_NE(error_of(program).find("row-major"), std::string::npos);
    program.kernel.arguments.tensors.erase("a_ptr");
    EXPECT_NE(error_of(program).find("--tensor a_ptr=8x4:bf16"), std::string::npos);
}

TEST(Fuse, RefusesAPlanThatTheCheckFaults) {
    Program program = sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4);
    program.plan.ranks[0][0].peer = 9;
    EXPECT_NE(error_of(program).find("the plan is wrong (malformed)"), std::string::npos);
}

TEST(Fuse, OnlyAPersistentKernelTakesAnotherGrid) {
    EXPECT_FALSE(fuse(sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4), {.num_programs = 3}).ok());
    EXPECT_TRUE(fuse(sample::all_gather_gemm({8, 4, 4, 2, 2, 2, 2}, 4), {.num_programs = 3}).ok());
}

TEST(Fuse, TakesLittleOfTheCpuForAGemmOf1792TilesOn8Ranks) {
    const Program program = sample::all_gather_gemm({8192, 3584, 8192, 128, 128, 64, 132}, 8, {.split = 2});
    ASSERT_EQ(program.kernel.tiles.size(), 1792U);
    const double start = syncopate::test::cpu_seconds();
    ASSERT_TRUE(fuse(program, {.device = Device::cuda}).ok());
    EXPECT_LT(syncopate::test::cpu_seconds() - start, 3);  // about 0.03
}

}  // namespace
}  // namespace syncopate::fuse
