#include "syncopate/plan/check/check.hpp"

#include <gtest/gtest.h>

#include "plan/plans.hpp"

namespace syncopate::plan {
namespace {

using test::box;
using test::lines;
using test::pull;
using test::push;
using test::relay;
using test::transfer;
using Lines = std::vector<std::string>;

/// One op of rank 0 of the relay changed, and what check says.
template <typename Change>
Lines after_changing(Change change) {
    Plan plan = relay();
    change(plan.ranks[0][0]);
    return lines(check(plan));
}

TEST(Check, ASoundRelayHasNoFinding) { EXPECT_EQ(lines(check(relay())), Lines{}); }

TEST(CheckMalformed, ARegionOutsideItsTensor) {
    EXPECT_EQ(after_changing([](Op& op) { op.dst.region = {{9, 13}}; }),
              Lines{"rank 0 op 0: malformed: dst region [9:13] leaves tensor A: axis 0 goes from 0 to 12"});
    EXPECT_EQ(after_changing([](Op& op) { op.src.region = {{-1, 3}}; }),
              Lines{"rank 0 op 0: malformed: src region [-1:3] leaves tensor A: axis 0 goes from 0 to 12"});
}

TEST(CheckMalformed, AnEmptyOrBackwardRegion) {
    EXPECT_EQ(after_changing([](Op& op) { op.src.region = {{4, 4}}; }),
              Lines{"rank 0 op 0: malformed: src region [4:4] is empty along axis 0; its begin must be below "
                    "its end"});
    EXPECT_EQ(after_changing([](Op& op) { op.src.region = {{5, 4}}; }),
              Lines{"rank 0 op 0: malformed: src region [5:4] is empty along axis 0; its begin must be below "
                    "its end"});
}

TEST(CheckMalformed, ARegionWithTheWrongNumberOfAxes) {
    EXPECT_EQ(after_changing([](Op& op) { op.src.region = {{0, 2}, {0, 2}}; }),
              Lines{"rank 0 op 0: malformed: src region [0:2, 0:2] has 2 axes; tensor A has 1"});
}

TEST(CheckMalformed, SourceAndDestinationOfDifferentSize) {
    EXPECT_EQ(
        after_changing([](Op& op) { op.dst.region = {{0, 3}}; }),
        Lines{
            "rank 0 op 0: malformed: src A[0:4] and dst A[0:3] differ in size; each axis must have the same "
            "extent"});
}

TEST(CheckMalformed, EqualVolumeInAnotherShapeIsStillADifferentSize) {
    Plan plan = relay();
    plan.tensors = {{"A", {12, 12}, DType::fp32}};
    plan.initial = plan.final = {};
    plan.ranks = {{transfer(OpKind::push, 1, box({{0, 2}, {0, 3}}), box({{0, 3}, {0, 2}}))}, {}, {}};
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 0 op 0: malformed: src A[0:2, 0:3] and dst A[0:3, 0:2] differ in size; "
                    "each axis must have the same extent"});
}

TEST(CheckMalformed, SourceAndDestinationOfDifferentDtype) {
    Plan plan = relay();
    plan.tensors.push_back({"B", {12}, DType::bf16});
    plan.ranks[0][0].dst.tensor = 1;
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 0 op 0: malformed: src is fp32 and dst is bf16; a transfer does not convert"});
}

TEST(CheckMalformed, AnUnknownPeerOrOneself) {
    EXPECT_EQ(after_changing([](Op& op) { op.peer = 3; }),
              Lines{"rank 0 op 0: malformed: peer is 3; the plan has ranks 0 to 2"});
    EXPECT_EQ(after_changing([](Op& op) { op.peer = 0; }),
              Lines{"rank 0 op 0: malformed: a push whose peer is its own rank; use a local op"});
}

TEST(CheckMalformed, AnAfterThatNamesNoOp) {
    EXPECT_EQ(after_changing([](Op& op) { op.after = {{7, 0}, {1, 1}, {1, -1}}; }),
              (Lines{"rank 0 op 0: malformed: after names rank 7; the plan has ranks 0 to 2",
                     "rank 0 op 0: malformed: after names op 1 of rank 1, which has 1",
                     "rank 0 op 0: malformed: after names op -1 of rank 1, which has 1"}));
}

TEST(CheckMalformed, ABackendThatCannotDoTheOp) {
    EXPECT_EQ(
        after_changing([](Op& op) {
            op = transfer(OpKind::local, -1, box({{0, 4}}), box({{4, 8}}));
            op.backend = Backend::nccl;
        }),
        Lines{"rank 0 op 0: malformed: backend nccl cannot reach a rank's own memory for a local op; use "
              "copy_engine or auto"});
}

TEST(CheckMalformed, ALocalCopyOntoItself) {
    EXPECT_EQ(after_changing([](Op& op) { op = transfer(OpKind::local, -1, box({{0, 4}}), box({{2, 6}})); }),
              Lines{"rank 0 op 0: malformed: src A[0:4] and dst A[2:6] overlap in one memory"});
}

TEST(CheckMalformed, AMeshThatDoesNotMatchTheRanks) {
    Plan plan = relay();
    plan.mesh.axes[0].size = 4;
    EXPECT_EQ(lines(check(plan)), Lines{"malformed: the plan lists 3 ranks and its mesh has 4"});
}

TEST(CheckMalformed, AHoldingOutsideItsTensorOrRanks) {
    Plan plan = relay();
    plan.initial[0].rank = 5;
    plan.final[0].chunk.region = {{0, 99}};
    plan.final[0].of = {9};
    EXPECT_EQ(lines(check(plan)),
              (Lines{"malformed: initial[0].rank is 5; the plan has ranks 0 to 2",
                     "rank 2: malformed: final[0] region [0:99] leaves tensor A: axis 0 goes from 0 to 12",
                     "rank 2: malformed: final[0].of names rank 9; the plan has ranks 0 to 2"}));
}

TEST(CheckMalformed, AllFindingsOfAPlanAreReportedAtOnce) {
    Plan plan = relay();
    plan.ranks[0][0].peer = 9;
    plan.ranks[1][0].src.region = {{0, 40}};
    plan.ranks[1][0].after.push_back({1, 0});
    EXPECT_EQ(lines(check(plan)),
              (Lines{"rank 0 op 0: malformed: peer is 9; the plan has ranks 0 to 2",
                     "rank 1 op 0: malformed: src region [0:40] leaves tensor A: axis 0 goes from 0 to 12",
                     "rank 1 op 0: cycle: 1:0 -> 1:0 (rank:op, each waits for the next)"}));
}

TEST(CheckCycle, IsPrintedOpByOp) {
    Plan plan = relay();
    plan.ranks[2] = {push(0, box({{0, 4}}), {{1, 0}})};
    plan.ranks[0][0].after = {{2, 0}};
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 0 op 0: cycle: 0:0 -> 2:0 -> 1:0 -> 0:0 (rank:op, each waits for the next)"});
}

TEST(CheckCycle, TheShortestThroughItsFirstOpIsShownAndWhatFollowsItIsNot) {
    Plan plan = relay();
    const Chunk chunk = box({{0, 4}});
    plan.ranks[0] = {push(1, chunk, {{0, 1}}), push(1, chunk, {{0, 2}, {0, 0}}), push(1, chunk, {{0, 0}}),
                     push(1, chunk, {{0, 0}})};
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 0 op 0: cycle: 0:0 -> 0:1 -> 0:0 (rank:op, each waits for the next)"});
}

TEST(CheckCycle, EachSetOfOpsThatWaitForOneAnotherIsOneFinding) {
    Plan plan = relay();
    const Chunk chunk = box({{0, 4}});
    plan.ranks[0] = {push(1, chunk, {{0, 1}}), push(1, chunk, {{0, 0}})};
    plan.ranks[1] = {push(2, chunk, {{1, 1}}), push(2, chunk, {{1, 0}, {0, 0}})};
    EXPECT_EQ(lines(check(plan)),
              (Lines{"rank 0 op 0: cycle: 0:0 -> 0:1 -> 0:0 (rank:op, each waits for the next)",
                     "rank 1 op 0: cycle: 1:0 -> 1:1 -> 1:0 (rank:op, each waits for the next)"}));
}

TEST(CheckCycle, OneOfAHundredThousandOpsIsFoundAndShortened) {
    Plan plan = relay();
    plan.ranks[0].clear();
    constexpr std::int32_t kOps = 100000;
    for (std::int32_t i = 0; i < kOps; ++i)
        plan.ranks[0].push_back(push(1, box({{0, 4}}), {{0, (i + 1) % kOps}}));
    const std::vector<Finding> findings = check(plan);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].message.substr(0, 28), "0:0 -> 0:1 -> 0:2 -> 0:3 -> ");
    EXPECT_NE(findings[0].message.find(" -> (99936 more) -> "), std::string::npos) << findings[0].message;
}

TEST(CheckEarlyRead, AnOpThatDoesNotWaitForWhatItReads) {
    Plan plan = relay();
    plan.ranks[1][0].after = {};
    EXPECT_EQ(lines(check(plan)), Lines{"rank 1 op 0: early_read: reads A[0:4] on rank 1, where [0:4] has "
                                        "not surely arrived: op 0:0 writes "
                                        "it, but this op does not wait for that one"});
}

TEST(CheckEarlyRead, AnOpThatReadsWhatNobodyWrites) {
    Plan plan = relay();
    plan.ranks[1][0].src.region = plan.ranks[1][0].dst.region = {{2, 6}};
    plan.final[0].chunk.region = {{2, 4}};
    EXPECT_EQ(
        lines(check(plan)),
        Lines{"rank 1 op 0: early_read: reads A[2:6] on rank 1, where [4:6] has not surely arrived: nothing "
              "writes it there before"});
}

TEST(CheckEarlyRead, AnOpThatItsSourcesWriterWaitsFor) {
    Plan plan = relay();
    plan.ranks[1][0].after = {};
    plan.ranks[0][0].after = {{1, 0}};
    EXPECT_EQ(
        lines(check(plan)),
        (Lines{"rank 1 op 0: early_read: reads A[0:4] on rank 1, where [0:4] has not surely arrived: op 0:0 "
               "writes it, but waits for this op",
               "rank 2: final_not_reached: final[0]: A[0:4] never arrives"}));
}

TEST(CheckEarlyRead, WaitingThroughOtherOpsIsEnough) {
    Plan plan = relay();
    // 1:1 reads what 0:0 wrote; it waits for 2:0, which waits for 0:1, which waits for 0:0.
    const Chunk chunk = box({{0, 4}});
    plan.ranks[0].push_back(push(2, chunk, {{0, 0}}));
    plan.ranks[2] = {transfer(OpKind::local, -1, chunk, box({{8, 12}}), {{0, 1}})};
    plan.ranks[1] = {transfer(OpKind::push, 2, chunk, box({{4, 8}}), {{2, 0}})};
    EXPECT_EQ(lines(check(plan)), Lines{});
}

TEST(CheckEarlyRead, APullReadsFromItsPeer) {
    Plan plan = relay();
    plan.ranks = {{}, {pull(0, box({{0, 4}}))}, {pull(1, box({{0, 4}}), {{1, 0}})}};
    EXPECT_EQ(lines(check(plan)), Lines{});
    plan.ranks[2][0].after = {};
    EXPECT_EQ(lines(check(plan)), Lines{"rank 2 op 0: early_read: reads A[0:4] on rank 1, where [0:4] has "
                                        "not surely arrived: op 1:0 writes "
                                        "it, but this op does not wait for that one"});
}

TEST(CheckEarlyRead, ASourceMayBePutTogetherFromSeveralArrivals) {
    Plan plan = relay();
    plan.ranks[0] = {push(1, box({{0, 1}})), push(1, box({{1, 4}}))};
    plan.ranks[1][0].after = {{0, 0}, {0, 1}};
    EXPECT_EQ(lines(check(plan)), Lines{});
    plan.ranks[1][0].after = {{0, 0}};
    EXPECT_EQ(lines(check(plan)), Lines{"rank 1 op 0: early_read: reads A[0:4] on rank 1, where [1:4] has "
                                        "not surely arrived: op 0:1 writes "
                                        "it, but this op does not wait for that one"});
}

TEST(CheckEarlyRead, AReductionIntoMemoryThatHoldsNothing) {
    Plan plan = test::ring_reduce_scatter(3);
    plan.produced.erase(plan.produced.begin() + 1);
    EXPECT_EQ(lines(check(plan)).front().substr(0, 62),
              "rank 0 op 0: early_read: reduces into C[2:3] on rank 1, where ");
}

TEST(CheckFinal, ARegionThatNeverArrivesIsShown) {
    Plan plan = relay();
    plan.final[0].chunk.region = {{0, 6}};
    EXPECT_EQ(lines(check(plan)), Lines{"rank 2: final_not_reached: final[0]: A[4:6] never arrives"});
}

TEST(CheckFinal, AnAllGatherThatLosesOneOpIsNotReached) {
    Plan plan = *all_gather(test::ring_of(4), {"A", {16, 4}, DType::bf16}, {0, 2});
    plan.ranks[3].erase(plan.ranks[3].begin() + 2);  // second peer (rank 1), first chunk
    EXPECT_EQ(lines(check(plan)), Lines{"rank 1: final_not_reached: final[1]: A[12:14, 0:4] never arrives"});
}

TEST(CheckFinal, AChunkThatLandsInTheWrongPlaceIsMissedInTheRightOne) {
    Plan plan = relay();
    plan.ranks[1][0].dst.region = {{1, 5}};
    EXPECT_EQ(lines(check(plan)),
              (Lines{"rank 2: final_not_reached: final[0]: A[0:1] never arrives",
                     "rank 2: final_not_reached: final[0]: A[1:4] holds the value of A[0:3] instead of its "
                     "own"}));
}

TEST(CheckFinal, WhatIsHeldAtTheStartOrProducedCounts) {
    Plan plan = relay();
    plan.final.push_back({0, box({{0, 4}})});
    plan.produced.push_back({1, box({{8, 12}})});
    plan.final.push_back({1, box({{8, 12}})});
    EXPECT_EQ(lines(check(plan)), Lines{});
}

TEST(CheckReduction, ARingReduceScatterIsSound) {
    for (std::int32_t ranks = 1; ranks <= 9; ++ranks) {
        EXPECT_EQ(lines(check(test::ring_reduce_scatter(ranks))), Lines{}) << ranks;
    }
}

TEST(CheckReduction, AContributionThatIsLeftOutIsMissed) {
    Plan plan = test::ring_reduce_scatter(3);
    plan.ranks[1].pop_back();  // the last step towards rank 2
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 2: missing_contribution: final[2]: C[2:3] lacks the contribution of ranks 0, 1"});
}

TEST(CheckReduction, AContributionThatIsAddedTwiceIsReportedAtTheOp) {
    Plan plan = test::ring_reduce_scatter(3);
    plan.ranks[0].push_back(push(1, box({{2, 3}}), {{0, 0}}, Reduce::sum));  // as 0:0 did
    plan.ranks[1][1].after.push_back({0, 2});
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 0 op 2: duplicate_contribution: adds the contribution of rank 0 to C[2:3] "
                    "on rank 1 a second time"});
}

TEST(CheckReduction, OfTheGreatestTwoAreAsGoodAsOne) {
    Plan plan = test::ring_reduce_scatter(3);
    for (auto& ops : plan.ranks) {
        for (Op& op : ops) op.reduce = Reduce::max;
    }
    plan.ranks[0].push_back(push(1, box({{2, 3}}), {{0, 0}}, Reduce::max));
    plan.ranks[1][1].after.push_back({0, 2});
    EXPECT_EQ(lines(check(plan)), Lines{});
}

TEST(CheckReduction, ASumThatIsThenComparedIsNeitherSumNorMaximum) {
    Plan plan = test::ring_reduce_scatter(3);
    plan.ranks[1][1].reduce = Reduce::max;  // into rank 2's own contribution to C[2:3]
    EXPECT_EQ(
        lines(check(plan)),
        Lines{"rank 2: final_not_reached: final[2]: C[2:3] holds a reduction by sum and by max at once"});
}

TEST(CheckReduction, SummingValuesInsteadOfContributionsIsReported) {
    Plan plan = test::ring_reduce_scatter(2);
    for (Holding& holding : plan.produced) holding.partial = false;
    const Lines found = lines(check(plan));
    ASSERT_EQ(found.size(), 4U);
    EXPECT_EQ(
        found[0],
        "rank 0 op 0: duplicate_contribution: sums into C[1:2] on rank 1, where what arrives is the "
        "value itself and not a contribution; mark contributions \"partial\": true in initial or produced");
    EXPECT_EQ(
        found[2],
        "rank 0: final_not_reached: final[0]: C[0:1] holds the value itself, not the reduction asked for "
        "with \"of\"");
}

TEST(CheckReduction, AReductionOverSomeRanksIsExact) {
    Plan plan = test::ring_reduce_scatter(3);
    plan.final[0].of_all = false;
    plan.final[0].of = {0, 1};
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 0: final_not_reached: final[0]: C[0:1] also has the contribution of rank 2, "
                    "which \"of\" does not list"});
    plan.final[0].of = {};
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 0: final_not_reached: final[0]: C[0:1] holds the reduction over ranks 0, 1, "
                    "2, not the value; ask for it with \"of\""});
}

}  // namespace
}  // namespace syncopate::plan
