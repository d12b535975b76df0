#include <gtest/gtest.h>

#include <numeric>

#include "plan/plans.hpp"
#include "syncopate/plan/check/check.hpp"

namespace syncopate::plan {
namespace {

using test::box;
using test::lines;
using test::push;
using Lines = std::vector<std::string>;

constexpr std::int32_t kRanks = 4;

Op collective(CollectiveKind kind, Chunk src, Chunk dst) {
    Op op;
    op.kind = OpKind::collective;
    op.collective = kind;
    std::vector<std::int32_t> ranks(static_cast<std::size_t>(kRanks));
    std::iota(ranks.begin(), ranks.end(), 0);
    op.ranks = std::move(ranks);
    op.src = std::move(src);
    op.dst = std::move(dst);
    return op;
}

Chunk shard(std::int32_t rank, std::int32_t tensor = 0) { return box({{2 * rank, 2 * rank + 2}}, tensor); }
const Chunk kWhole = box({{0, 8}});

/// Tensor A of 8 elements over four ranks; each rank takes part in one collective.
Plan plan_of(CollectiveKind kind, Chunk (*src)(std::int32_t), Chunk (*dst)(std::int32_t), bool partial) {
    Plan plan;
    plan.mesh = test::ring_of(kRanks);
    plan.tensors = {{"A", {8}, DType::fp32}};
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
        Holding given{rank, src(rank)};
        given.partial = partial;
        Holding wanted{rank, dst(rank)};
        wanted.of_all = partial;
        plan.initial.push_back(given);
        plan.final.push_back(wanted);
        plan.ranks.push_back({collective(kind, src(rank), dst(rank))});
    }
    return plan;
}

Chunk whole(std::int32_t) { return kWhole; }
Chunk own_shard(std::int32_t rank) { return shard(rank); }

TEST(CheckCollective, EachKindInPlaceReachesItsResult) {
    EXPECT_EQ(lines(check(plan_of(CollectiveKind::all_gather, own_shard, whole, false))), Lines{});
    EXPECT_EQ(lines(check(plan_of(CollectiveKind::reduce_scatter, whole, own_shard, true))), Lines{});
    EXPECT_EQ(lines(check(plan_of(CollectiveKind::all_reduce, whole, whole, true))), Lines{});
    EXPECT_EQ(lines(check(plan_of(CollectiveKind::broadcast, whole, whole, false))), Lines{});
}

TEST(CheckCollective, AnAllGatherIntoAnotherTensorIsLaidOutInRankOrder) {
    Plan plan = plan_of(CollectiveKind::all_gather, own_shard, whole, false);
    plan.tensors.push_back({"B", {16}, DType::fp32});
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
        plan.ranks[static_cast<std::size_t>(rank)][0].dst = box({{8, 16}}, 1);
        plan.final[static_cast<std::size_t>(rank)].chunk = box({{8, 16}}, 1);
    }
    EXPECT_EQ(lines(check(plan)), Lines{});
}

TEST(CheckCollective, AShardThatNobodyGivesIsNotReached) {
    Plan plan = plan_of(CollectiveKind::all_gather, own_shard, whole, false);
    plan.ranks[2][0].src = shard(1);
    plan.initial[2].chunk = shard(1);
    const Lines found = lines(check(plan));
    ASSERT_EQ(found.size(), 4U);
    EXPECT_EQ(found[0], "rank 0: final_not_reached: final[0]: A[4:6] never arrives");
}

TEST(CheckCollective, ASourceThatIsNotHeldIsReadEarly) {
    Plan plan = plan_of(CollectiveKind::all_gather, own_shard, whole, false);
    plan.initial.erase(plan.initial.begin() + 2);
    const Lines found = lines(check(plan));
    EXPECT_EQ(found[0],
              "rank 2 op 0: early_read: reads A[4:6] on rank 2, where [4:6] has not surely arrived: nothing "
              "writes it there before");
}

TEST(CheckCollective, AParticipantThatDoesNotCallIsWaitedForForever) {
    Plan plan = plan_of(CollectiveKind::all_gather, own_shard, whole, false);
    plan.ranks[3].clear();
    const Lines found = lines(check(plan));
    ASSERT_EQ(found.size(), 3U);
    EXPECT_EQ(
        found[0],
        "rank 0 op 0: malformed: is all_gather number 1 over these ranks, but rank 3 takes part in only "
        "0: it would wait forever");
}

TEST(CheckCollective, WhatAnyParticipantWaitsForIsWaitedForByAll) {
    // Rank 0's second op waits for the collective on rank 1; rank 2 enters the collective only after that op.
    Plan plan = plan_of(CollectiveKind::all_gather, own_shard, whole, false);
    plan.ranks[0].push_back(push(1, shard(0), {{1, 0}}));
    EXPECT_EQ(lines(check(plan)), Lines{});
    plan.ranks[2][0].after = {{0, 1}};
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 2 op 0: cycle: 2:0 -> 0:1 -> 2:0 (rank:op, each waits for the next)"});
}

TEST(CheckCollective, WhatOneParticipantReceivesIsOrderedByWaitingForAnother) {
    Plan plan = plan_of(CollectiveKind::all_gather, own_shard, whole, false);
    plan.ranks[0].push_back(push(1, shard(3), {{2, 0}}));
    EXPECT_EQ(lines(check(plan)), Lines{});
}

TEST(CheckCollective, RegionsThatDoNotFitTheKindAreMalformed) {
    Plan plan = plan_of(CollectiveKind::all_reduce, whole, whole, true);
    plan.ranks[1][0].dst = shard(1);
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 1 op 0: malformed: all_reduce: source [0:8] of rank 0 and destination [2:4] "
                    "of rank 1 do not fit; expected the same region"});
}

TEST(CheckCollective, OneThatLeavesOutItsOwnRankOrUsesACopyEngineIsMalformed) {
    Plan plan = plan_of(CollectiveKind::all_gather, own_shard, whole, false);
    for (auto& ops : plan.ranks) ops[0].backend = Backend::copy_engine;
    EXPECT_EQ(check(plan).size(), 4U);
    plan = plan_of(CollectiveKind::all_gather, own_shard, whole, false);
    plan.ranks[3][0].ranks = std::vector{0, 1, 2};
    EXPECT_EQ(lines(check(plan)).back(),
              "rank 3 op 0: malformed: a collective on rank 3 whose ranks do not include it");
}

TEST(CheckCollective, APermuteIsRefused) {
    const Plan plan = plan_of(CollectiveKind::permute, whole, whole, false);
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 0 op 0: malformed: a permute has no pairs of ranks in this schema; write "
                    "one push per pair instead"});
}

}  // namespace
}  // namespace syncopate::plan
