// Plans of groups of rows whose counts are known (plan/lower/counted.hpp).
#include "syncopate/plan/lower/counted.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "syncopate/plan/check/check.hpp"

namespace syncopate::plan {
namespace {

constexpr std::int64_t kColumns = 4;

/// Rows of each rank for each expert go to the expert's rank and, of another tensor, back from there: the second op of a rank
/// waits for the first one.
Plan there_and_back(std::int32_t ranks, std::int64_t own, std::int64_t bound) {
    const std::int64_t experts = ranks * own;
    Plan plan;
    plan.mesh.axes = {{"gpu", ranks}};
    for (const char* name : {"X", "Y"}) {
        plan.tensors.push_back({name, {ranks, experts, kColumns}, DType::fp32});
        plan.tensors.back().ragged = Ragged{0, {"rows_from_rank", "expert"}, bound, bound};
    }
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    const auto of = [&](std::int32_t tensor, std::int64_t from, Interval to) {
        return Chunk{tensor, {{from, from + 1}, to, {0, kColumns}}};
    };
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        const Interval mine{rank * own, (rank + 1) * own};
        plan.initial.push_back({rank, of(0, rank, {0, experts})});
        for (std::int32_t other = 0; other < ranks; ++other) {
            plan.produced.push_back({rank, of(1, other, mine)});
            plan.final.push_back({rank, of(0, other, mine)});
            if (other == rank) continue;
            const Interval theirs{other * own, (other + 1) * own};
            auto& ops = plan.ranks[static_cast<std::size_t>(rank)];
            ops.push_back({.kind = OpKind::push,
                           .peer = other,
                           .src = of(0, rank, theirs),
                           .dst = of(0, rank, theirs)});
        }
        plan.final.push_back({rank, of(1, rank, {0, experts})});
    }
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        for (std::int32_t other = 0; other < ranks; ++other) {
            if (other == rank) continue;
            const Chunk back = of(1, other, {rank * own, (rank + 1) * own});
            const std::int32_t sent =
                other < rank ? rank - 1 : rank;  // which of the other's ops brings the rows
            plan.ranks[static_cast<std::size_t>(rank)].push_back(
                {.kind = OpKind::push, .peer = other, .src = back, .dst = back, .after = {{other, sent}}});
        }
    }
    return plan;
}

std::string refusal(const Plan& plan, const std::vector<std::int64_t>& counts) {
    const Result<Plan> made = counted(plan, counts);
    return made ? "it was counted" : made.error().to_string();
}

TEST(Counted, GroupsLieOneBehindTheOtherAndEmptyOnesMoveNothing) {
    const Plan plan = there_and_back(2, 1, 32);
    ASSERT_TRUE(check(plan).empty());
    const Result<Plan> made = counted(plan, std::vector<std::int64_t>{3, 0, 5, 4});
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_EQ(made->tensors[0].shape, (std::vector<std::int64_t>{12, kColumns}));
    EXPECT_FALSE(made->tensors[0].ragged);
    ASSERT_EQ(made->ranks[0].size(), 1U) << "it sends nothing to rank 1, and brings 5 rows back";
    EXPECT_EQ(made->ranks[0][0].src.region, (Region{{3, 8}, {0, kColumns}}));
    EXPECT_EQ(made->ranks[0][0].after, (std::vector<OpRef>{{1, 0}}));
    ASSERT_EQ(made->ranks[1].size(), 1U);
    EXPECT_EQ(made->ranks[1][0].src.region, (Region{{3, 8}, {0, kColumns}}));
    EXPECT_TRUE(check(*made).empty());
}

TEST(Counted, AnOpBehindOneThatMovesNothingWaitsForWhatThatWaitedFor) {
    Plan plan = there_and_back(2, 1, 32);
    auto& ops = plan.ranks[0];
    Op last = ops[1];
    last.after = {{0, 1}};  // which waits for {1, 0}
    ops.push_back(last);
    const Result<Plan> made = counted(plan, std::vector<std::int64_t>{1, 2, 3, 4});
    ASSERT_TRUE(made);
    EXPECT_EQ(made->ranks[0].back().after, (std::vector<OpRef>{{0, 1}}));
    ops[1].src.region[0] = ops[1].dst.region[0] = {0, 1};  // of no rows
    const Result<Plan> less = counted(plan, std::vector<std::int64_t>{0, 2, 3, 4});
    ASSERT_TRUE(less);
    EXPECT_EQ(less->ranks[0].back().after, (std::vector<OpRef>{{1, 0}}));
}

/// A chain of ops that become nothing is walked once, however long it is and however many ops follow it.
TEST(Counted, ManyOpsBehindALongChainThatMovesNothingWaitForWhatItsFirstOneWaitedFor) {
    constexpr std::int32_t kMany = 200'000;
    Plan plan = there_and_back(2, 1, 1 << 20);
    std::vector<Op>& ops = plan.ranks[0];
    const Op full = ops[1];
    Op empty = full;
    empty.src.region[0] = empty.dst.region[0] = {0, 1};
    for (std::int32_t i = 0; i < kMany; ++i) {
        empty.after = {{0, static_cast<std::int32_t>(ops.size()) - 1}};
        ops.push_back(empty);
    }
    const OpRef last{0, static_cast<std::int32_t>(ops.size()) - 1};
    for (std::int32_t i = 0; i < kMany; ++i) {
        ops.push_back(full);
        ops.back().after = {last};
    }
    const Result<Plan> made = counted(plan, std::vector<std::int64_t>{0, 2, 3, 4});
    ASSERT_TRUE(made) << made.error().to_string();
    ASSERT_EQ(made->ranks[0].size(), 2U + kMany);
    for (std::size_t op = 2; op < made->ranks[0].size(); ++op)
        ASSERT_EQ(made->ranks[0][op].after, (OpRefs{{0, 1}}));
}

TEST(Counted, OpsThatWaitForEachOtherAreRefused) {
    Plan plan = there_and_back(2, 1, 32);
    plan.ranks[0][0].after = {{0, 1}};
    plan.ranks[0][1].after = {{0, 0}};
    EXPECT_NE(refusal(plan, {1, 2, 3, 4}).find("wait for each other in a circle"), std::string::npos);
}

TEST(Counted, APlanThatIsProvedForAllCountsIsRightForAnyOfThem) {
    std::mt19937 random(3);
    for (int trial = 0; trial < 300; ++trial) {
        const std::int32_t ranks = 2 + trial % 4;
        const std::int64_t own = 1 + trial % 3;
        const Plan plan = there_and_back(ranks, own, 1 << 20);
        ASSERT_TRUE(check(plan).empty());
        std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks * ranks * own));
        for (std::int64_t& count : counts)
            count = random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 20);
        counts.back() += 1;  // of no rows there is nothing to call
        if (trial % 10 == 0) std::fill(counts.begin(), counts.end() - 1, 0);
        const Result<Plan> made = counted(plan, counts);
        ASSERT_TRUE(made) << made.error().to_string();
        EXPECT_TRUE(check(*made).empty()) << trial << ": " << check(*made).front().message;
        EXPECT_EQ(made->tensors[1].shape[0], std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    }
}

TEST(Counted, WhatCannotBeCountedIsRefusedByTensorAndRank) {
    const Plan plan = there_and_back(2, 1, 8);
    EXPECT_NE(refusal(plan, {1, 2, 3}).find("3 numbers, and X has 4 groups (2 x 2)"), std::string::npos);
    EXPECT_NE(refusal(plan, {1, -2, 3, 1}).find("group 1 has -2 rows"), std::string::npos);
    EXPECT_NE(refusal(plan, {4, 2, 3, 2}).find("X has 9 rows there, and its bound is 8"), std::string::npos)
        << refusal(plan, {4, 2, 3, 2});
    EXPECT_NE(refusal(plan, {4, 2, 3, 2}).find("rank 0"), std::string::npos);
    EXPECT_NE(refusal(plan, {1, std::int64_t{1} << 62, 3, 1}).find("group 1 has"), std::string::npos);
    EXPECT_NE(refusal(plan, {0, 0, 0, 0}).find("no group has rows"), std::string::npos);
    Plan other = plan;
    other.ranks[0][0].dst.region[1] = {0, 1};
    EXPECT_NE(refusal(other, {1, 1, 1, 1}).find("it moves groups to other groups"), std::string::npos);
    other = plan;
    other.ranks[0][0].after = {{5, 0}};
    EXPECT_NE(refusal(other, {1, 1, 1, 1}).find("it waits for an op that is not there"), std::string::npos);
    other = plan;
    other.tensors[1].ragged->groups = {"rows_from_rank", "token"};
    EXPECT_NE(refusal(other, {1, 1, 1, 1}).find("X and Y are not grouped alike"), std::string::npos);
    Plan none;
    none.tensors.push_back({"A", {4}, DType::fp32});
    EXPECT_NE(refusal(none, {}).find("the plan has no tensor with groups of rows"), std::string::npos);
}

}  // namespace
}  // namespace syncopate::plan
