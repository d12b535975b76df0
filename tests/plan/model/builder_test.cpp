#include "syncopate/plan/model/builder.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/executor.hpp"
#include "plan/plans.hpp"

namespace syncopate::plan {
namespace {

using test::box;
using test::lines;
using test::ring_of;
using Refs = std::vector<OpRef>;

/// Four ranks, tensors A and B of 12 elements.
Builder builder(bool pull = false) {
    Builder made(ring_of(4), pull);
    made.tensor({"A", {12}, DType::fp32});
    made.tensor({"B", {12}, DType::fp32});
    return made;
}

RankChunk place(std::int32_t rank, std::int64_t begin, std::int64_t end, std::int32_t tensor = 0) {
    return {rank, box({{begin, end}}, tensor)};
}

TEST(Builder, AnOpWaitsForWhatWroteWhatItReads) {
    Builder plan = builder();
    plan.transfer(place(0, 0, 4), place(1, 0, 4));
    plan.transfer(place(0, 4, 8), place(1, 4, 8));
    plan.transfer(place(1, 2, 4), place(2, 2, 4));
    plan.transfer(place(1, 2, 6), place(3, 2, 6));
    const Plan made = *plan.take();
    EXPECT_EQ(made.ranks[1][0].after, (Refs{{0, 0}}));
    EXPECT_EQ(made.ranks[1][1].after, (Refs{{0, 0}, {0, 1}}));
}

TEST(Builder, AnOpWaitsForWhatReadOrWroteWhatItOverwrites) {
    Builder plan = builder();
    plan.transfer(place(0, 0, 4), place(1, 0, 4));
    plan.transfer(place(2, 0, 4), place(1, 0, 4));  // over what came first
    plan.transfer(place(3, 0, 4), place(0, 2, 6));  // over what the first one read
    const Plan made = *plan.take();
    EXPECT_EQ(made.ranks[2][0].after, (Refs{{0, 0}}));
    EXPECT_EQ(made.ranks[3][0].after, (Refs{{0, 0}}));
}

TEST(Builder, AReductionIsAReadAndAWriteSoOneFollowsTheOther) {
    Builder plan = builder();
    for (std::int32_t rank = 1; rank < 4; ++rank)
        plan.transfer(place(rank, 0, 4), place(0, 0, 4), Reduce::sum);
    const Plan made = *plan.take();
    EXPECT_EQ(made.ranks[1][0].after, Refs{});
    EXPECT_EQ(made.ranks[2][0].after, (Refs{{1, 0}}));
    EXPECT_EQ(made.ranks[3][0].after, (Refs{{2, 0}}));
}

TEST(Builder, AReadOfTheNewDataDoesNotWaitForReadsOfTheOld) {
    Builder plan = builder();
    plan.transfer(place(0, 0, 4), place(1, 0, 4));
    plan.transfer(place(1, 0, 4), place(2, 0, 4));
    plan.transfer(place(1, 0, 4), place(3, 0, 4));
    const Plan made = *plan.take();
    EXPECT_EQ(made.ranks[1][0].after, (Refs{{0, 0}}));
    EXPECT_EQ(made.ranks[1][1].after, (Refs{{0, 0}}));
}

TEST(Builder, AnEdgeThatAnotherOneImpliesIsLeftOut) {
    Builder plan = builder();
    plan.transfer(place(0, 0, 4), place(1, 0, 4));
    plan.transfer(place(1, 0, 4), place(2, 0, 4));
    plan.transfer(place(3, 0, 4), place(1, 0, 4));  // waits for the reader, which has waited for the writer
    const Plan made = *plan.take();
    EXPECT_EQ(made.ranks[3][0].after, (Refs{{1, 0}}));
}

TEST(Builder, GivenEdgesAreKept) {
    Builder plan = builder();
    const OpRef first = plan.transfer(place(0, 0, 4), place(1, 0, 4));
    plan.transfer(place(2, 4, 8), place(3, 4, 8), Reduce::none, {first});
    EXPECT_EQ(plan.take()->ranks[2][0].after, (Refs{first}));
}

TEST(Builder, TransfersAreOwnedByTheSourceOrWithPullByTheDestination) {
    Builder pushes = builder();
    EXPECT_EQ(pushes.transfer(place(0, 0, 4), place(1, 0, 4)), (OpRef{0, 0}));
    EXPECT_EQ(pushes.take()->ranks[0][0].kind, OpKind::push);
    Builder pulls = builder(true);
    EXPECT_EQ(pulls.transfer(place(0, 0, 4), place(1, 0, 4)), (OpRef{1, 0}));
    EXPECT_EQ(pulls.transfer(place(2, 0, 4), place(2, 0, 4, 1)), (OpRef{2, 0}));
    const Plan made = *pulls.take();
    EXPECT_EQ(made.ranks[1][0].kind, OpKind::pull);
    EXPECT_EQ(made.ranks[1][0].peer, 0);
    EXPECT_EQ(made.ranks[2][0].kind, OpKind::local);
}

TEST(Builder, ScratchTensorsGetANameOfTheirOwn) {
    Builder plan = builder();
    plan.scratch({"A", {4}, DType::fp32});
    plan.scratch({"A", {4}, DType::fp32});
    const Plan made = *plan.take();
    EXPECT_EQ(made.tensors[2].name, "A-2");
    EXPECT_EQ(made.tensors[3].name, "A-3");
}

TEST(Builder, WhatIsWrongIsSaidOnceByTake) {
    const auto message = [](auto add) {
        Builder plan = builder();
        plan.transfer(place(0, 0, 4), place(1, 0, 4));
        add(plan);
        plan.transfer(place(0, 0, 99), place(1, 0, 99));
        const Result<Plan> made = plan.take();
        return made ? "no error" : made.error().to_string();
    };
    EXPECT_EQ(message([](Builder& plan) { plan.transfer(place(0, 0, 4), place(4, 0, 4)); }),
              "transfer 1: there is no rank 4; the mesh has ranks 0 to 3");
    EXPECT_EQ(message([](Builder& plan) { plan.transfer(place(0, 0, 4, 2), place(1, 0, 4)); }),
              "transfer 1: there is no tensor number 2; the plan has 2");
    EXPECT_EQ(message([](Builder& plan) { plan.transfer(place(0, 4, 4), place(1, 4, 4)); }),
              "transfer 1: [4:4] is no box inside tensor A, [0:12]");
    EXPECT_EQ(message([](Builder& plan) { plan.final(place(-1, 0, 4)); }),
              "there is no rank -1; the mesh has ranks 0 to 3");
    EXPECT_EQ(message([](Builder&) {}), "transfer 1: [0:99] is no box inside tensor A, [0:12]");
    EXPECT_EQ(Builder({}).take().error().to_string(), "the mesh has 0 ranks; expected 1 to 4096");
}

TEST(Builder, TheExampleOfItsHeaderIsARingAllGather) {
    const std::int32_t n = 4;
    const Tensor tensor{"A", {n}, DType::fp32};
    Builder plan(ring_of(n));
    const std::int32_t a = plan.tensor(tensor);
    for (std::int32_t step = 0; step + 1 < n; ++step) {
        for (std::int32_t rank = 0; rank < n; ++rank) {
            const std::int32_t shard = (rank - step + n) % n;
            const Chunk chunk = box({{shard, shard + 1}}, a);
            plan.transfer({rank, chunk}, {(rank + 1) % n, chunk});
        }
    }
    EXPECT_EQ(plan.take()->ranks, all_gather(ring_of(n), tensor, {.algorithm = Algorithm::ring})->ranks);
}

/// A random program gives, in whatever order its plan is executed, what it gives line by line.
TEST(Builder, EveryOrderOfExecutionGivesWhatTheProgramGives) {
    std::uint32_t state = 12345;
    const auto below = [&](std::uint32_t n) {
        state = state * 1664525 + 1013904223;
        return static_cast<std::int64_t>((state >> 8) % n);
    };
    for (std::int32_t round = 0; round < 300; ++round) {
        Builder plan = builder(round % 2 == 1);
        Builder chain = builder(round % 2 == 1);
        for (std::int32_t rank = 0; rank < 4; ++rank) {
            for (std::int32_t tensor = 0; tensor < 2; ++tensor) {
                plan.initial(place(rank, 0, 12, tensor), true);
                chain.initial(place(rank, 0, 12, tensor), true);
            }
        }
        Refs last;
        for (std::int32_t line = 0; line < 25; ++line) {
            const std::int64_t size = 1 + below(6);
            const std::int64_t from = below(static_cast<std::uint32_t>(13 - size));
            const std::int64_t to = below(static_cast<std::uint32_t>(13 - size));
            const auto source = static_cast<std::int32_t>(below(4));
            const auto target = static_cast<std::int32_t>(below(4));
            const RankChunk read = place(source, from, from + size, 0);
            const RankChunk write =
                place(target, to, to + size, source == target ? 1 : static_cast<std::int32_t>(below(2)));
            const Reduce reduce = below(3) == 0 ? Reduce::max : Reduce::none;
            plan.transfer(read, write, reduce);
            last = {chain.transfer(read, write, reduce, last)};
        }
        const Plan made = *plan.take();
        const Plan sequential = *chain.take_unordered();
        ASSERT_EQ(lines(check(made)), std::vector<std::string>{});
        ASSERT_EQ(test::race(made), "");
        const auto seed = static_cast<std::uint32_t>(round);
        ASSERT_EQ(test::execute(made, test::small_integer, seed),
                  test::execute(sequential, test::small_integer, seed));
    }
}

}  // namespace
}  // namespace syncopate::plan
