#include "syncopate/plan/templates/templates.hpp"

#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "plan/plans.hpp"

namespace syncopate::plan {
namespace {

using test::lines;
using test::ring_of;

TEST(SplitEvenly, TheFirstPartsAreLongerByOne) {
    EXPECT_EQ(split_evenly(10, 17, 3), (std::vector<Interval>{{10, 13}, {13, 15}, {15, 17}}));
}

TEST(SplitEvenly, WithFewerElementsThanPartsTheLastAreEmpty) {
    EXPECT_EQ(split_evenly(0, 2, 4), (std::vector<Interval>{{0, 1}, {1, 2}, {2, 2}, {2, 2}}));
}

using Case = std::tuple<std::int32_t, std::int32_t, std::int32_t, bool>;
class AllGather : public ::testing::TestWithParam<Case> {};

/// Bytes that each rank sends (push) or receives (pull).
std::vector<std::int64_t> bytes_by_owner(const Plan& plan) {
    std::vector<std::int64_t> bytes;
    for (const std::vector<Op>& ops : plan.ranks) {
        std::int64_t& sum = bytes.emplace_back(0);
        for (const Op& op : ops) sum += plan.bytes(op.src);
    }
    return bytes;
}

TEST_P(AllGather, IsSoundAndMovesEachShardOnceToEachPeer) {
    const auto [ranks, split, axis, pull] = GetParam();
    // 29 is uneven for most rank counts and 5 leaves some ranks without a shard.
    for (const std::int64_t size : {29, 5}) {
        Tensor tensor{"A", {12, 12}, DType::bf16};
        tensor.shape[static_cast<std::size_t>(axis)] = size;
        const Plan plan = *all_gather(ring_of(ranks), tensor, {axis, split, pull});
        EXPECT_EQ(lines(check(plan)), std::vector<std::string>{});
        const std::vector<Interval> shards = split_evenly(0, size, ranks);
        const std::vector<std::int64_t> bytes = bytes_by_owner(plan);
        for (std::int32_t rank = 0; rank < ranks; ++rank) {
            const std::int64_t own = shards[static_cast<std::size_t>(rank)].size() * 12 * 2;
            const std::int64_t others = size * 12 * 2 - own;
            EXPECT_EQ(bytes[static_cast<std::size_t>(rank)], pull ? others : own * (ranks - 1));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Templates, AllGather,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5, 8, 16), ::testing::Values(1, 2, 5),
                                            ::testing::Values(0, 1), ::testing::Bool()));
INSTANTIATE_TEST_SUITE_P(Sweep, AllGather,
                         ::testing::Combine(::testing::Range(1, 17), ::testing::Range(1, 6),
                                            ::testing::Values(0, 1), ::testing::Bool()));

TEST(AllGatherOrder, APushGoesRoundTheRingFromItselfPeerByPeer) {
    const Plan plan = *all_gather(ring_of(4), {"A", {8}, DType::bf16}, {0, 2});
    std::vector<std::pair<std::int32_t, std::int64_t>> order;  // peer, first element
    for (const Op& op : plan.ranks[2]) order.emplace_back(op.peer, op.src.region[0].begin);
    EXPECT_EQ(order, (std::vector<std::pair<std::int32_t, std::int64_t>>{
                         {3, 4}, {3, 5}, {0, 4}, {0, 5}, {1, 4}, {1, 5}}));
}

TEST(AllGatherOrder, APullTakesAllChunksOfTheNearestSourceFirst) {
    const Plan plan = *all_gather(ring_of(3), {"A", {6}, DType::bf16}, {0, 2, true});
    std::vector<std::pair<std::int32_t, std::int64_t>> order;
    for (const Op& op : plan.ranks[1]) order.emplace_back(op.peer, op.src.region[0].begin);
    EXPECT_EQ(order, (std::vector<std::pair<std::int32_t, std::int64_t>>{{2, 4}, {2, 5}, {0, 0}, {0, 1}}));
}

TEST(AllGatherOrder, EveryPeersFirstMinorSliceComesBeforeAnySecond) {
    const Plan plan = *all_gather(ring_of(3), {"A", {6, 10}, DType::bf16}, {0, 1, false, 1, 3});
    std::vector<std::pair<std::int32_t, Interval>> order;
    for (const Op& op : plan.ranks[0]) order.emplace_back(op.peer, op.src.region[1]);
    EXPECT_EQ(order, (std::vector<std::pair<std::int32_t, Interval>>{
                         {1, {0, 4}}, {2, {0, 4}}, {1, {4, 7}}, {2, {4, 7}}, {1, {7, 10}}, {2, {7, 10}}}));
    EXPECT_EQ(lines(check(plan)), std::vector<std::string>{});
}

TEST(AllGatherOrder, AtEachStepNoTwoRanksAimAtTheSamePeer) {
    const Plan plan = *all_gather(ring_of(7), {"A", {7}, DType::bf16});
    for (std::size_t step = 0; step < 6; ++step) {
        std::vector<bool> aimed(7, false);
        for (const std::vector<Op>& ops : plan.ranks) {
            EXPECT_FALSE(aimed[static_cast<std::size_t>(ops[step].peer)]);
            aimed[static_cast<std::size_t>(ops[step].peer)] = true;
        }
    }
}

TEST(AllGatherArguments, AMeshOfSeveralAxesCountsItsRanksRowMajor) {
    const Plan plan = *all_gather({{{"node", 2}, {"gpu", 3}}}, {"A", {12}, DType::bf16});
    EXPECT_EQ(plan.num_ranks(), 6);
    EXPECT_EQ(lines(check(plan)), std::vector<std::string>{});
}

TEST(AllGatherArguments, OneRankNeedsNoOps) {
    const Plan plan = *all_gather(ring_of(1), {"A", {12}, DType::bf16}, {0, 2147483647});
    EXPECT_TRUE(plan.ranks[0].empty());
}

TEST(AllGatherArguments, WrongOnesAreNamed) {
    const Tensor tensor{"A", {12, 8}, DType::bf16};
    const auto message = [&](const AllGatherOptions& options) {
        const Result<Plan> plan = all_gather(ring_of(2), tensor, options);
        return plan ? "no error" : plan.error().to_string();
    };
    EXPECT_EQ(message({2}), "all_gather: axis 2 is not an axis of tensor A; expected 0 to 1");
    EXPECT_EQ(message({0, 0}), "all_gather: split is 0; expected at least 1");
    EXPECT_EQ(message({0, 1, false, -1, 2}),
              "all_gather: minor_split needs minor_axis: the axis to cut along");
    EXPECT_EQ(message({0, 1, false, 0, 2}),
              "all_gather: minor_axis and axis are both 0; use split to cut shards finer");
    EXPECT_EQ(message({0, 1, false, 5, 2}),
              "all_gather: minor_axis 5 is not an axis of tensor A; expected 0 to 1");
    EXPECT_EQ(all_gather({}, tensor).error().to_string(),
              "all_gather: the mesh has 0 ranks; expected 1 to 4096");
}

TEST(AllGatherArguments, SlicesMayBeOfGivenExtents) {
    const Tensor tensor{"A", {4, 8}, DType::bf16};
    const auto made = [&](const std::vector<std::int64_t>& sizes, std::int32_t axis = 1,
                          std::int32_t split = 1) {
        return all_gather(ring_of(2), tensor,
                          {.minor_axis = axis, .minor_split = split, .minor_sizes = sizes});
    };
    const Result<Plan> plan = made({1, 2, 5});
    ASSERT_TRUE(plan) << plan.error().to_string();
    EXPECT_TRUE(check(*plan).empty());
    ASSERT_EQ(plan->ranks[0].size(), 3u);
    const std::vector<Interval> expected{{0, 1}, {1, 3}, {3, 8}};
    for (std::size_t slice = 0; slice < 3; ++slice)
        EXPECT_EQ(plan->ranks[0][slice].dst.region[1], expected[slice]);
    const auto message = [](const Result<Plan>& result) {
        return result ? "no error" : result.error().to_string();
    };
    EXPECT_EQ(message(made({1, 2, 4})),
              "all_gather: minor_sizes 1 + 2 + 4 are not the 8 elements of axis 1 together");
    EXPECT_EQ(message(made({8, 1})),
              "all_gather: minor_sizes 8 + 1 are not the 8 elements of axis 1 together");
    EXPECT_EQ(message(made({0, 8})), "all_gather: minor_sizes has 0; expected at least 1");
    EXPECT_EQ(message(made({1, 7}, 1, 2)),
              "all_gather: minor_split and minor_sizes both say how to cut: give one");
    EXPECT_EQ(message(made({1, 7}, -1)), "all_gather: minor_sizes needs minor_axis: the axis to cut along");
}

TEST(AllGatherArguments, AHugeSplitIsRefusedBeforeItUsesMemory) {
    const Tensor tensor{"A", {std::int64_t{1} << 40, std::int64_t{1} << 20}, DType::int8};
    const Result<Plan> plan = all_gather(ring_of(4096), tensor, {0, 2147483647, false, 1, 2147483647});
    EXPECT_EQ(plan.error().to_string(),
              "all_gather: the plan would have more than 16777216 ops; use a smaller split");
}

}  // namespace
}  // namespace syncopate::plan
