// write_race, overwrite, early_read: what must be ordered and is not; and that big or hard plans end.
#include <gtest/gtest.h>

#include "plan/plans.hpp"

namespace syncopate::plan {
namespace {

using test::box;
using test::lines;
using test::pull;
using test::push;
using test::transfer;
using Lines = std::vector<std::string>;

/// Rank 0 holds A[0:4], rank 1 A[4:8]; tensor S is scratch.
Plan two_ranks() {
    Plan plan;
    plan.mesh = test::ring_of(2);
    plan.tensors = {{"A", {8}, DType::fp32}, {"S", {8}, DType::fp32}};
    plan.initial = {{0, box({{0, 4}})}, {1, box({{4, 8}})}};
    plan.ranks.resize(2);
    return plan;
}

const Chunk kSlot = box({{0, 4}}, 1);

TEST(CheckWriteRace, TwoUnorderedWritesOfOnePlace) {
    Plan plan = two_ranks();
    plan.ranks[0] = {transfer(OpKind::push, 1, box({{0, 4}}), kSlot)};
    plan.ranks[1] = {transfer(OpKind::local, -1, box({{4, 6}}), box({{3, 5}}, 1))};
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 1 op 0: write_race: writes S[3:4] on rank 1, which op 0:0 writes "
                    "too: neither op waits for the other"});
    plan.ranks[1][0].after = {{0, 0}};
    EXPECT_EQ(lines(check(plan)), Lines{});
    plan.ranks[1][0].after = {};
    plan.ranks[1][0].dst.region = {{4, 6}};
    EXPECT_EQ(lines(check(plan)), Lines{});
}

TEST(CheckWriteRace, TheSameValueTwiceIsStillARace) {
    Plan plan = two_ranks();
    plan.ranks[0] = {push(1, box({{0, 4}}))};
    plan.ranks[1] = {pull(0, box({{0, 4}}))};
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 1 op 0: write_race: writes A[0:4] on rank 1, which op 0:0 writes "
                    "too: neither op waits for the other"});
}

TEST(CheckWriteRace, AReductionAndAPlainWrite) {
    Plan plan = test::ring_reduce_scatter(2);
    plan.final = {};
    plan.ranks[0] = {push(1, box({{0, 1}}), {}, Reduce::sum), push(1, box({{0, 1}}))};
    plan.ranks[1] = {};
    EXPECT_EQ(lines(check(plan)),
              (Lines{"rank 0 op 1: write_race: writes C[0:1] on rank 1, which op 0:0 reduces (sum) into: "
                     "neither op waits for the other"}));
    plan.ranks[0][1].after = {{0, 0}};
    EXPECT_EQ(lines(check(plan)), Lines{});
}

TEST(CheckWriteRace, SumsIntoOnePlaceNeedNoOrderAndSumsWithMaximaDo) {
    Plan plan = test::ring_reduce_scatter(3);
    plan.final = {};
    plan.ranks = {{push(2, box({{0, 3}}), {}, Reduce::sum)}, {push(2, box({{0, 3}}), {}, Reduce::sum)}, {}};
    EXPECT_EQ(lines(check(plan)), Lines{});
    plan.ranks[1][0].reduce = Reduce::max;
    EXPECT_EQ(
        lines(check(plan)),
        Lines{"rank 1 op 0: write_race: reduces (max) into C[0:3] on rank 2, which op 0:0 reduces (sum) "
              "into: neither op waits for the other"});
}

TEST(CheckWriteRace, SourcesOfOneCollectiveThatDisagree) {
    Plan plan = two_ranks();
    plan.initial = {{0, box({{0, 4}})}, {1, box({{4, 8}})}, {1, box({{0, 8}}, 1)}};
    plan.ranks[1] = {transfer(OpKind::local, -1, box({{0, 4}}, 1), box({{0, 4}}))};
    for (std::size_t rank = 0; rank < 2; ++rank) {
        Op op = transfer(OpKind::collective, -1, box({{0, 4}}), box({{0, 8}}), {{1, 0}});
        op.collective = CollectiveKind::all_gather;
        op.ranks = std::vector{0, 1};
        plan.ranks[rank].push_back(op);
    }
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 1 op 1: write_race: brings A[0:4], where another participant of "
                    "the collective brings something else"});
}

TEST(CheckOverwrite, AWriteOverWhatAnotherOpMayStillRead) {
    Plan plan = two_ranks();
    plan.ranks[0] = {transfer(OpKind::push, 1, box({{0, 4}}), kSlot)};
    plan.ranks[1] = {transfer(OpKind::push, 0, box({{4, 8}}), box({{0, 4}}))};
    EXPECT_EQ(lines(check(plan)), Lines{"rank 1 op 0: overwrite: writes A[0:4] on rank 0, which op 0:0 may "
                                        "still read: neither op waits for the other"});
    plan.ranks[1][0].after = {{0, 0}};
    EXPECT_EQ(lines(check(plan)), Lines{});
}

TEST(CheckOverwrite, ASlotThatIsFilledAgainBeforeItIsEmpty) {
    Plan plan = two_ranks();
    plan.ranks[0] = {transfer(OpKind::push, 1, box({{0, 2}}), box({{0, 2}}, 1)),
                     transfer(OpKind::push, 1, box({{2, 4}}), box({{0, 2}}, 1), {{0, 0}})};
    plan.ranks[1] = {transfer(OpKind::local, -1, box({{0, 2}}, 1), box({{0, 2}}), {{0, 0}}),
                     transfer(OpKind::local, -1, box({{0, 2}}, 1), box({{2, 4}}), {{0, 1}})};
    EXPECT_EQ(lines(check(plan)), Lines{"rank 0 op 1: overwrite: writes S[0:2] on rank 1, which op 1:0 may "
                                        "still read: neither op waits for the other"});
    plan.ranks[0][1].after = {{1, 0}};
    plan.final = {{1, box({{0, 8}})}};
    EXPECT_EQ(lines(check(plan)), Lines{});
}

TEST(CheckOverwrite, WhatTheKernelProducesMayComeLater) {
    Plan plan = two_ranks();
    plan.produced = {{0, box({{4, 8}})}};
    plan.ranks[1] = {push(0, box({{4, 8}}))};
    EXPECT_EQ(
        lines(check(plan)),
        Lines{"rank 1 op 0: overwrite: writes A[4:8] on rank 0, which the kernel produces and may write "
              "later; wait for an op that reads it there"});
    plan.ranks[0] = {transfer(OpKind::push, 1, box({{4, 6}}), box({{0, 2}}, 1))};
    plan.ranks[1][0].after = {{0, 0}};
    EXPECT_EQ(
        lines(check(plan)),
        Lines{"rank 1 op 0: overwrite: writes A[6:8] on rank 0, which the kernel produces and may write "
              "later; wait for an op that reads it there"});
    plan.ranks[0] = {transfer(OpKind::push, 1, box({{4, 8}}), kSlot)};
    EXPECT_EQ(lines(check(plan)), Lines{});
}

TEST(CheckEarlyRead, ASumThatIsReadWhileItGrows) {
    Plan plan = test::ring_reduce_scatter(3);
    plan.ranks[1][1].after = {};
    EXPECT_EQ(
        lines(check(plan)),
        (Lines{"rank 1 op 1: early_read: reads C[2:3] on rank 1, where [2:3] has not surely arrived: op "
               "0:0 reduces into it, and neither op waits for the other"}));
}

TEST(CheckEarlyRead, EachSumMustFollowTheReadBeforeNotOnlyTheFirst) {
    Plan plan = test::ring_reduce_scatter(3);
    plan.final = {};
    plan.tensors.push_back({"S", {3}, DType::fp32});
    plan.ranks = {{transfer(OpKind::local, -1, box({{0, 3}}), box({{0, 3}}, 1))},
                  {push(0, box({{0, 3}}), {{0, 0}}, Reduce::sum)},
                  {push(0, box({{0, 3}}), {{0, 0}}, Reduce::sum)}};
    EXPECT_EQ(lines(check(plan)), Lines{});
    plan.ranks[2][0].after = {};
    ASSERT_EQ(check(plan).size(), 1U);
    EXPECT_EQ(check(plan)[0].kind, Finding::Kind::early_read);
    plan.ranks[2][0].after = {{0, 0}};
    plan.ranks[1][0].after = {};
    ASSERT_EQ(check(plan).size(), 1U);
    EXPECT_EQ(check(plan)[0].kind, Finding::Kind::early_read);
}

TEST(CheckFinal, AChunkOfTheWrongPlaceIsNotTheRightOne) {
    Plan plan = two_ranks();
    plan.ranks[0] = {transfer(OpKind::push, 1, box({{2, 4}}), box({{0, 2}}))};
    plan.final = {{1, box({{0, 2}})}};
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 1: final_not_reached: final[0]: A[0:2] holds the value of A[2:4] "
                    "instead of its own"});
}

TEST(CheckFinal, ATensorThatOnlyReceivesHasOneValueOnAllRanks) {
    Plan plan = two_ranks();
    plan.ranks[0] = {transfer(OpKind::push, 1, box({{0, 4}}), box({{4, 8}}, 1)),
                     transfer(OpKind::local, -1, box({{0, 4}}), box({{4, 8}}, 1))};
    plan.final = {{0, box({{4, 8}}, 1)}, {1, box({{4, 8}}, 1)}};
    EXPECT_EQ(lines(check(plan)), Lines{});
    plan.ranks[0][1] = pull(1, box({{4, 8}}));
    plan.ranks[0].push_back(transfer(OpKind::local, -1, box({{4, 8}}), box({{4, 8}}, 1), {{0, 1}}));
    EXPECT_EQ(
        lines(check(plan)),
        Lines{"rank 1: final_not_reached: final[1]: S[4:8] holds the value of A[0:4], and on rank 0 the "
              "value of A[4:8]: a tensor has one value; give each rank's part a place of its own in the "
              "tensor"});
}

TEST(CheckMalformed, HoldingsThatContradictEachOther) {
    Plan plan = two_ranks();
    plan.initial.push_back({0, box({{2, 6}})});
    EXPECT_EQ(lines(check(plan)), Lines{});
    plan.initial.back().partial = true;
    EXPECT_EQ(lines(check(plan)),
              Lines{"rank 0: malformed: initial[2] says partial of A[2:6], and initial[0] "
                    "says the value of A[0:4]: they overlap"});
}

/// All-reduce by a ring of which each rank does its ops in order: a lattice of waits.
Plan ring_in_order(std::int32_t ranks) {
    Plan plan = test::ring_reduce_scatter(ranks);
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        plan.final[static_cast<std::size_t>(rank)].chunk = box({{0, ranks}});
        auto& ops = plan.ranks[static_cast<std::size_t>(rank)];
        for (std::int32_t step = ranks - 1; step < 2 * (ranks - 1); ++step) {
            const std::int32_t chunk = (rank - 1 - step + 3 * ranks) % ranks;
            ops.push_back(push((rank + 1) % ranks, box({{chunk, chunk + 1}}),
                               {{(rank + ranks - 1) % ranks, step - 1}}));
        }
        for (std::size_t i = 1; i < ops.size(); ++i)
            ops[i].after.push_back({rank, static_cast<std::int32_t>(i - 1)});
    }
    return plan;
}

TEST(CheckScale, ALatticeOfWaitsIsJudgedByClocks) {
    Plan plan = ring_in_order(96);  // 18,240 ops
    EXPECT_EQ(lines(check(plan)), Lines{});
    plan.ranks[50][100].after = {{50, 99}};
    EXPECT_FALSE(check(plan).empty());
}

TEST(CheckScale, ThousandsOfRacesEndAndSayThatThereAreMore) {
    Plan plan = two_ranks();
    plan.ranks[0].assign(30000, push(1, box({{0, 4}})));
    const std::vector<Finding> findings = check(plan);
    ASSERT_GE(findings.size(), 10000U);
    EXPECT_EQ(findings.front().to_string(),
              "write_race: more than 10000 ops are out of order; the rest is not looked at");
}

TEST(CheckScale, WhereAThousandOpsAreOutOfOrderTheEndIsSaidNotToBeLookedAt) {
    Plan plan = two_ranks();
    const auto unseen = [](const std::vector<Finding>& findings) {
        return std::ranges::count_if(findings, [](const Finding& finding) {
            return finding.to_string().starts_with(
                "final_not_reached: not looked at, nor what is summed twice or missing: ");
        });
    };
    plan.ranks[0].assign(20, push(1, box({{0, 4}})));
    EXPECT_EQ(unseen(check(plan)), 0);
    plan.ranks[0].assign(3000, push(1, box({{0, 4}})));
    EXPECT_EQ(unseen(check(plan)), 1);
}

TEST(CheckScale, APlanTooIntricateToVerifyIsAFindingAndNoHang) {
    // Twenty thousand copies of odd pieces, back and forth: what is held falls into ever smaller boxes.
    Plan plan;
    plan.mesh = test::ring_of(2);
    plan.tensors = {{"A", {20000, 20000}, DType::fp32}};
    plan.initial = {{0, box({{0, 20000}, {0, 20000}})}, {1, box({{0, 20000}, {0, 20000}})}};
    plan.ranks.resize(2);
    std::uint32_t seed = 1;
    const auto below = [&](std::uint32_t bound) {
        seed = seed * 1664525U + 1013904223U;
        return static_cast<std::int64_t>((seed >> 8) % bound);
    };
    for (std::int32_t i = 0; i < 20000; ++i) {
        const std::int64_t rows = 5000 + below(9000);
        const std::int64_t columns = 5000 + below(9000);
        const std::int64_t r = below(1000) * 6;
        const std::int64_t c = below(1000) * 6;
        std::vector<OpRef> after;
        if (i > 0) after = {{0, i - 1}};
        const Chunk from = box({{r, r + rows}, {c, c + columns}});
        const Chunk to = box({{6000 - r, 6000 - r + rows}, {6000 - c, 6000 - c + columns}});
        plan.ranks[0].push_back(transfer(i % 2 == 0 ? OpKind::push : OpKind::pull, 1, from, to, after));
    }
    const Lines found = lines(check(plan));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].substr(0, 36), "malformed: too intricate to verify: ");
}

TEST(CheckReductions, WhatIsHeldBesideWhatIsMissingIsNoOp) {
    Plan plan;
    plan.mesh = test::ring_of(2);
    plan.tensors = {{"C", {4}, DType::fp32}};
    plan.initial = {{0, test::box({{2, 3}}), true}, {1, test::box({{2, 4}}), true}};
    plan.ranks.resize(2);
    plan.ranks[1] = {
        test::transfer(OpKind::push, 0, test::box({{2, 4}}), test::box({{2, 4}}), {}, Reduce::sum)};
    EXPECT_EQ(test::lines(check(plan)),
              std::vector<std::string>{
                  "rank 1 op 0: early_read: reduces into C[2:4] on rank 0, where [3:4] has not "
                  "surely arrived: nothing writes it there before"});
}

}  // namespace
}  // namespace syncopate::plan
