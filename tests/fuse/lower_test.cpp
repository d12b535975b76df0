#include "syncopate/fuse/passes/lower.hpp"

#include <gtest/gtest.h>

#include "fuse/sample.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::fuse {
namespace {

plan::Plan reduce_scatter(std::int32_t ranks, const plan::PushReduceOptions& options = {},
                          std::int64_t rows = 8) {
    return plan::push_reduce(sample::ranks(ranks), {"C", {rows, 4}, plan::DType::bf16}, options).value();
}

std::string error_of(const plan::Plan& plan) {
    const auto lowered = lower(plan);
    return lowered.ok() ? "" : lowered.error().to_string();
}

TEST(Lower, LeavesAPlanThatReducesNothing) {
    const plan::Plan plan = sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4).plan;
    const auto lowered = lower(plan);
    ASSERT_TRUE(lowered.ok());
    EXPECT_EQ(lowered->plan, plan);
    EXPECT_TRUE(lowered->own.empty());
}

TEST(Lower, StagesEachContributionAndSumsInRankOrder) {
    const Lowered lowered = lower(reduce_scatter(4)).value();
    ASSERT_EQ(lowered.plan.tensors.size(), 2U);
    EXPECT_EQ(lowered.plan.tensors[1].name, "C.staging");
    EXPECT_EQ(lowered.plan.tensors[1].shape, (std::vector<std::int64_t>{3, 2, 4}));  // a shard from each peer
    // Rank 2's list: pushes to 3, 0, 1, then the sum of rows [4, 6).
    ASSERT_EQ(lowered.plan.ranks[2].size(), 4U);
    const plan::Op& push = lowered.plan.ranks[2][1];  // to rank 0, where ranks 1, 2, 3 take slots 0, 1, 2
    EXPECT_EQ(push.reduce, plan::Reduce::none);
    EXPECT_EQ(push.dst, (plan::Chunk{1, {{1, 2}, {0, 2}, {0, 4}}}));
    const plan::Op& sum = lowered.plan.ranks[2][3];
    EXPECT_EQ(sum.kind, plan::OpKind::local);
    EXPECT_EQ(sum.reduce, plan::Reduce::sum);
    EXPECT_EQ(sum.src, (plan::Chunk{1, {{0, 3}, {0, 2}, {0, 4}}}));
    EXPECT_EQ(sum.dst, (plan::Chunk{0, {{4, 6}, {0, 4}}}));
    EXPECT_EQ(sum.after.size(), 3U);
    EXPECT_EQ(lowered.own.at({2, 3}), 2) << "after ranks 0 and 1, before rank 3";
}

TEST(Lower, ACollectiveAwaitsWhatAnotherParticipantAwaitsOfItsMemory) {
    plan::Plan plan =
        plan::make_collective("all_gather", sample::ranks(3), {"A", {6, 4}, plan::DType::bf16}).value();
    const plan::Chunk shard{0, {{2, 4}, {0, 4}}};  // of rank 1, which rank 0 has and brings
    for (plan::Holding& held : plan.initial) {
        if (held.rank == 1) held.rank = 0;
    }
    const auto brought = static_cast<std::int32_t>(plan.ranks[0].size());
    plan.ranks[0].push_back({.kind = plan::OpKind::push, .peer = 1, .src = shard, .dst = shard});
    plan.ranks[0][0].after = {{0, brought}};
    ASSERT_TRUE(plan::check(plan).empty()) << plan::check(plan).front().message;
    const Lowered lowered = lower(plan).value();
    EXPECT_EQ(lowered.plan.ranks[1][0].after, (std::vector<plan::OpRef>{{0, brought}}));
    EXPECT_TRUE(lowered.plan.ranks[2][0].after.empty());
}

TEST(Lower, WhoWaitedForAContributionWaitsForItsSum) {
    const Lowered lowered = lower(reduce_scatter(3, {.all = true})).value();
    // Rank 0: two pushes, two sends of the summed shard, the sum.
    ASSERT_EQ(lowered.plan.ranks[0].size(), 5U);
    EXPECT_EQ(lowered.plan.ranks[0][2].after, (std::vector<plan::OpRef>{{0, 4}}));
    EXPECT_EQ(lowered.plan.ranks[0][4].reduce, plan::Reduce::sum);
}

TEST(Lower, ASumInPartsReadsThePartsOfEachSlotAndWhoWaitedWaitsForAllOfThem) {
    const auto halves = [](std::int32_t, const plan::Chunk& chunk) {
        std::vector<plan::Region> parts{chunk.region, chunk.region};
        parts[0][1] = {0, 2};
        parts[1][1] = {2, 4};
        return parts;
    };
    const Lowered lowered = lower(reduce_scatter(3, {.all = true}, 6), {.parts_of = halves}).value();
    // Rank 1: two pushes, two sends of the summed shard, two sums.
    const std::vector<plan::Op>& ops = lowered.plan.ranks[1];
    ASSERT_EQ(ops.size(), 6U);
    EXPECT_EQ(ops[0].dst.region[2], (plan::Interval{0, 4})) << "contributions stay whole";
    EXPECT_EQ(ops[4].src, (plan::Chunk{1, {{0, 2}, {0, 2}, {0, 2}}}));
    EXPECT_EQ(ops[5].src, (plan::Chunk{1, {{0, 2}, {0, 2}, {2, 4}}}));
    EXPECT_EQ(ops[5].dst, (plan::Chunk{0, {{2, 4}, {2, 4}}}));
    EXPECT_EQ(ops[4].after, ops[5].after);
    EXPECT_EQ(ops[2].after, (std::vector<plan::OpRef>{{1, 4}, {1, 5}}));
    EXPECT_EQ(lowered.own.at({1, 5}), 1);
}

TEST(Lower, ADestinationThatHoldsNothingAddsNothing) {
    plan::Plan plan = reduce_scatter(2);
    std::erase_if(plan.produced, [](const plan::Holding& holding) { return holding.rank == 0; });
    plan.ranks[0].clear();
    const Lowered lowered = lower(plan).value();
    EXPECT_EQ(lowered.own.at({0, 0}), -1);
}

TEST(Lower, AContributionNeedNotWaitForTheCopyThatItsSumAddsTo) {
    const plan::Region whole{{0, 4}, {0, 4}};
    plan::Plan plan;  // each rank copies its C to its Y, to which the others add theirs
    plan.mesh = sample::ranks(3);
    plan.tensors = {{"C", {4, 4}, plan::DType::bf16}, {"Y", {4, 4}, plan::DType::bf16}};
    plan.ranks.resize(3);
    for (std::int32_t rank = 0; rank < 3; ++rank) {
        plan.produced.push_back({.rank = rank, .chunk = {0, whole}, .partial = true});
        plan.final.push_back({.rank = rank, .chunk = {1, whole}, .of_all = true});
        std::vector<plan::Op>& list = plan.ranks[static_cast<std::size_t>(rank)];
        for (const std::int32_t offset : {0, 1, 2}) {
            plan::Op& op = list.emplace_back();
            op.src = {0, whole};
            op.dst = {1, whole};
            if (offset == 0) continue;
            op.kind = plan::OpKind::push;
            op.peer = (rank + offset) % 3;
            op.after = {{op.peer, 0}};
            op.reduce = plan::Reduce::sum;
        }
    }
    const Lowered lowered = lower(plan).value();
    const plan::OpRef sum{1, 3};
    EXPECT_EQ(lowered.own.at(sum), 1);
    EXPECT_TRUE(lowered.plan.op({0, 1}).after.empty()) << "it goes to staging";
    EXPECT_EQ(lowered.plan.op(sum).after.size(), 3U) << "two contributions and the copy";
}

TEST(Lower, RefusesWhatCannotBeSummedInOneWay) {
    plan::Plan plan = reduce_scatter(3);
    plan.tensors[0].dtype = plan::DType::fp64;
    EXPECT_NE(error_of(plan).find("rank 0 op 0: elements of type fp64 are not reduced"), std::string::npos)
        << error_of(plan);

    plan = reduce_scatter(3);
    plan.ranks[1][1].reduce = plan::Reduce::max;
    EXPECT_NE(error_of(plan).find("where another op reduces by"), std::string::npos) << error_of(plan);

    plan = reduce_scatter(3);
    plan.ranks[1][1].src.region[0].end -= 1;
    plan.ranks[1][1].dst.region[0].end -= 1;
    EXPECT_NE(error_of(plan).find("cut all contributions alike"), std::string::npos) << error_of(plan);

    plan = reduce_scatter(3);
    plan.produced[0].chunk.region[0].end = 1;
    EXPECT_NE(error_of(plan).find("rank 0 holds all but [1:3, 0:4]"), std::string::npos) << error_of(plan);
}

TEST(Lower, AddsInRoundsWhereThePlanSaysSo) {
    plan::Plan plan = reduce_scatter(3);
    plan.ranks[1][1].after = {{2, 0}};  // both contribute to rank 0's shard
    const Lowered lowered = lower(plan).value();
    ASSERT_EQ(lowered.plan.ranks[0].size(), 4U) << "two pushes, two sums into the same shard";
    const plan::Op& second = lowered.plan.ranks[0][2].after == std::vector<plan::OpRef>{{1, 1}}
                                 ? lowered.plan.ranks[0][2]
                                 : lowered.plan.ranks[0][3];
    EXPECT_EQ(second.after, (std::vector<plan::OpRef>{{1, 1}}));
    const plan::OpRef first_sum{0, &second == &lowered.plan.ranks[0][2] ? 3 : 2};
    EXPECT_EQ(lowered.plan.ranks[1][1].after, (std::vector<plan::OpRef>{first_sum}));
    EXPECT_EQ(lowered.own.at({0, 2}), 0);
    EXPECT_EQ(lowered.own.at({0, 3}), 0);
}

/// Ranks 1 and 2 hold contributions to what rank 0 holds too, which pulls them.
plan::Plan two_pulls(std::int64_t columns) {
    plan::Plan plan;
    plan.mesh = sample::ranks(3);
    plan.tensors = {{"C", {4, columns}, plan::DType::bf16}};
    plan.ranks.resize(3);
    for (const std::int32_t peer : {2, 1}) {
        plan::Op pull{.kind = plan::OpKind::pull, .reduce = plan::Reduce::sum, .peer = peer};
        pull.src = pull.dst = {0, {{0, 4}, {0, columns}}};
        plan.ranks[0].push_back(pull);
    }
    for (std::int32_t rank = 0; rank < 3; ++rank)
        plan.initial.push_back({.rank = rank, .chunk = {0, {{0, 4}, {0, columns}}}, .partial = true});
    return plan;
}

TEST(Lower, LetsTheEngineReadWhatItPullsWhereItIs) {
    const Lowered lowered = lower(two_pulls(8), {.preferred = plan::Backend::ldst_dedicated}).value();
    EXPECT_EQ(lowered.plan.tensors.size(), 1u) << "nothing is staged";
    const plan::OpRef sum{0, 2};
    EXPECT_EQ(lowered.direct.at(sum), (std::vector<plan::OpRef>{{0, 1}, {0, 0}})) << "in the order of ranks";
    EXPECT_EQ(lowered.done_with.at({0, 0}), sum);
    EXPECT_EQ(lowered.own.at(sum), 0);
    EXPECT_EQ(lowered.plan.op(sum).backend, plan::Backend::automatic) << "assign says it";
    const Backends named = name_implied(lowered, false);
    EXPECT_EQ(named[0][2], plan::Backend::ldst_dedicated);
    EXPECT_EQ(named[0][1], plan::Backend::ldst_dedicated);
    EXPECT_EQ(lowered.plan.op(sum).src, lowered.plan.op(sum).dst);
}

TEST(Lower, GivesTransfersThatCanBeSimulatedWhereSumsReadContributionsWhereTheyAre) {
    for (const plan::Backend by : {plan::Backend::ldst_dedicated, plan::Backend::ldst_inline}) {
        const Lowered lowered = lower(two_pulls(8), {.preferred = by}).value();
        const plan::Plan transfers = transfers_of(lowered, {{by, by, by}, {}, {}});
        EXPECT_EQ(transfers.op({0, 2}).backend, by);
        const auto simulated = plan::simulate(transfers, plan::switch_topology(3));
        ASSERT_TRUE(simulated) << simulated.error().message;
        EXPECT_GE(simulated->ops[0][2].start_us, simulated->ops[0][1].end_us);
    }
}

TEST(Lower, LetsASumReadWhatItPullsItselfWhereItIs) {
    for (const std::int64_t columns : {8, 7}) {  // it need not be aligned
        const Lowered lowered = lower(two_pulls(columns), {.preferred = plan::Backend::ldst_inline}).value();
        EXPECT_EQ(lowered.plan.tensors.size(), 1u);
        const plan::OpRef sum{0, 2};
        EXPECT_EQ(lowered.direct.at(sum), (std::vector<plan::OpRef>{{0, 1}, {0, 0}}));
        EXPECT_EQ(lowered.done_with.at({0, 1}), sum);
        EXPECT_EQ(name_implied(lowered, true)[0][2], plan::Backend::ldst_inline);
        const Backends named = name_implied(lowered, false);
        EXPECT_EQ(named[0][2], plan::Backend::automatic);
        EXPECT_EQ(named[0][0], plan::Backend::automatic) << "a part of the sum";
    }
}

TEST(Lower, LetsASumReadSomeContributionsWhereTheyAreAndOthersFromTheirSlots) {
    plan::Plan plan = two_pulls(8);
    plan.ranks[0][0].backend = plan::Backend::ldst_inline;
    const std::int32_t farther = plan.ranks[0][0].peer;
    const std::int32_t nearer = plan.ranks[0][1].peer;
    ASSERT_LT(nearer, farther);
    const Lowered lowered = lower(plan).value();
    const plan::OpRef sum{0, 2};
    EXPECT_EQ(lowered.direct.at(sum), (std::vector<plan::OpRef>{{0, 0}}));
    EXPECT_EQ(lowered.done_with, (std::map<plan::OpRef, plan::OpRef>{{{0, 0}, sum}}));
    EXPECT_EQ(lowered.own.at(sum), 0);
    ASSERT_EQ(lowered.plan.tensors.size(), 2u);
    EXPECT_EQ(lowered.plan.tensors[1].shape.front(), 1) << "one slot, for the one that is staged";
    const plan::Chunk slot{1, {{0, 1}, {0, 4}, {0, 8}}};
    EXPECT_EQ(lowered.plan.op({0, 1}).dst, slot);
    EXPECT_EQ(lowered.plan.op(sum).src, slot);
    EXPECT_EQ(lowered.sources.at(sum), (std::vector<Source>{{0, slot}, {farther, plan.op({0, 0}).src}}))
        << "in the order of ranks";
}

TEST(Lower, StagesWhatDoesNotLieInMemoryAsTheDestinationDoes) {
    plan::Plan plan = two_pulls(8);
    plan.tensors.push_back({"wider", {4, 16}, plan.tensors[0].dtype});
    plan.ranks[0][0].backend = plan::Backend::ldst_inline;
    plan.ranks[0][0].src.tensor = 1;
    EXPECT_TRUE(lower(plan).value().direct.empty());
}

TEST(Lower, StagesMoreContributionsThanASumCanReadElsewhere) {
    const auto tensors = [](std::int32_t ranks) {
        const plan::Plan plan =
            plan::push_reduce(sample::ranks(ranks), {"C", {64, 8}, plan::DType::bf16}, {.pull = true})
                .value();
        return lower(plan, {.preferred = plan::Backend::ldst_inline})->plan.tensors.size();
    };
    EXPECT_EQ(tensors(16), 1u);
    EXPECT_EQ(tensors(17), 2u);
}

TEST(Lower, StagesWhatTheEngineCannotRead) {
    for (const auto& [columns, preferred] : {std::pair(std::int64_t{7}, plan::Backend::ldst_dedicated),
                                             std::pair(std::int64_t{8}, plan::Backend::automatic),
                                             std::pair(std::int64_t{8}, plan::Backend::copy_engine)}) {
        const Lowered lowered = lower(two_pulls(columns), {.preferred = preferred}).value();
        EXPECT_EQ(lowered.plan.tensors.size(), 2u);
        EXPECT_TRUE(lowered.direct.empty() && lowered.done_with.empty());
        EXPECT_TRUE(lowered.engine.empty());
    }
}

}  // namespace
}  // namespace syncopate::fuse
