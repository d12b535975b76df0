// Collectives, who takes part in them, and the dots they feed or drain.
#include "syncopate/ingest/candidates/candidates.hpp"

#include <string>

#include <gtest/gtest.h>

#include "ingest/candidates/dataflow.hpp"
#include "ingest/programs.hpp"

namespace syncopate::ingest {
namespace {

using test::candidates;
using test::dots;
using test::findings;
using test::Lines;

const std::string kAdd =
    "add { x = bf16[] parameter(0)\n y = bf16[] parameter(1)\n ROOT s = bf16[] add(x, y) }\n";

TEST(Candidates, AnAllGatherOfRowsThatFeedsADotIsARunnableOperator) {
    const auto found = candidates(R"(HloModule m, num_partitions=4
ENTRY e {
  x = bf16[128,64] parameter(0)
  w = bf16[64,96] parameter(1)
  g = bf16[512,64] all-gather(x), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true
  ROOT d = bf16[512,96] dot(g, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(dots(found[0]), Lines{"feeds d lhs 0 rows M512 N96 K64"});
    EXPECT_EQ(found[0].operator_name(), "AG-GEMM");
    EXPECT_EQ(found[0].spec(), "all_gather_matmul:M=512,N=96,K=64,dtype=bf16");
    EXPECT_EQ(found[0].chunks, 4);
    EXPECT_EQ(findings(found[0]), Lines{});
    const plan::Plan plan = *plan_of(found[0]);
    EXPECT_EQ(plan.tensors[0].name, "x");
    EXPECT_EQ(plan.tensors[0].shape, (std::vector<std::int64_t>{512, 64}));
    EXPECT_EQ(plan.initial[2].chunk.region, (plan::Region{{256, 384}, {0, 64}}));
}

TEST(Candidates, ARhsThatIsGatheredAlongTheContractedAxisIsNoOperatorOfRun) {
    const auto found = candidates(R"(e {
  x = bf16[128,64] parameter(0)
  w = bf16[16,96] parameter(1)
  g = bf16[64,96] all-gather(w), replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT d = bf16[128,96] dot(x, g), lhs_contracting_dims={1}, rhs_contracting_dims={0}
})");
    EXPECT_EQ(dots(found[0]), Lines{"feeds d rhs 0 contracted M128 N96 K64"});
    EXPECT_EQ(found[0].operator_name(), "AG-GEMM");
    EXPECT_EQ(found[0].spec(), "");
}

TEST(Candidates, TheAxisIsFollowedThroughTransposesReshapesConversionsTuplesAndFusions) {
    const auto found = candidates(R"(
fused { p = f32[64,4,128] parameter(0)
  q = bf16[64,4,128] convert(p)
  r = bf16[64,512] reshape(q)
  v = bf16[64,96] parameter(1)
  ROOT d = bf16[512,96] dot(r, v), lhs_contracting_dims={0}, rhs_contracting_dims={0} }
ENTRY e {
  x = f32[1,128,64] parameter(0)
  w = bf16[64,96] parameter(1)
  g = f32[4,128,64] all-gather(x), replica_groups={{0,1,2,3}}, dimensions={0}
  t = f32[64,4,128] transpose(g), dimensions={2,0,1}
  u = (f32[64,4,128], bf16[64,96]) tuple(t, w)
  o = f32[64,4,128] get-tuple-element(u), index=0
  ROOT f = bf16[512,96] fusion(o, w), kind=kOutput, calls=fused
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(dots(found[0]), Lines{"feeds d lhs 1 rows M512 N96 K64"});
    EXPECT_EQ(found[0].exchanges[0].dots[0].through, (Lines{"transpose", "convert", "reshape"}));
}

TEST(Candidates, ADotIsDrainedByReduceScatterAllReduceAndAllToAll) {
    const auto found = candidates(kAdd + R"(ENTRY e {
  x = bf16[512,32] parameter(0)
  w = bf16[32,96] parameter(1)
  d = bf16[512,96] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  rs = bf16[128,96] reduce-scatter(d), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=add
  ar = bf16[512,96] all-reduce(d), replica_groups={{0,1,2,3}}, to_apply=add
  a2a = bf16[512,96] all-to-all(d), replica_groups={{0,1,2,3}}, dimensions={0}
})");
    ASSERT_EQ(found.size(), 3U);
    EXPECT_EQ(found[0].operator_name(), "GEMM-RS");
    EXPECT_EQ(dots(found[0]), Lines{"drains d result 0 rows M512 N96 K32"});
    EXPECT_EQ(found[1].operator_name(), "GEMM-AR");
    EXPECT_EQ(dots(found[1]), Lines{"drains d result -1 unknown M512 N96 K32"});
    EXPECT_EQ(found[2].operator_name(), "GEMM-A2A");
    for (const Candidate& each : found) {
        EXPECT_EQ(findings(each), Lines{});
        EXPECT_TRUE(plan_of(each)->initial.empty()) << "a drained dot's result is produced";
    }
}

TEST(Candidates, AsynchronousPairsAndWrappersAreSeenThrough) {
    const auto found = candidates(kAdd + R"(
wrapped { p = bf16[512,96] parameter(0)
  ROOT rs = bf16[128,96] reduce-scatter(p), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=add }
ENTRY e {
  x = bf16[128,64] parameter(0)
  w = bf16[64,96] parameter(1)
  s = (bf16[128,64], bf16[512,64]) all-gather-start(x), replica_groups={{0,1,2,3}}, dimensions={0}
  g = bf16[512,64] all-gather-done(s)
  d = bf16[512,96] dot(g, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  as = ((bf16[512,96]), bf16[128,96], u32[]) async-start(d), calls=wrapped
  ad = bf16[128,96] async-done(as)
  v = bf16[96,8] parameter(2)
  ROOT e = bf16[128,8] dot(ad, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
})");
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(dots(found[0]),
              (Lines{"feeds e lhs -1 unknown M128 N8 K96", "drains d result 0 rows M512 N96 K64"}));
    EXPECT_TRUE(found[1].async);
    EXPECT_EQ(dots(found[1]), Lines{"feeds d lhs 0 rows M512 N96 K64"});
    EXPECT_EQ(findings(found[0]), Lines{});
    EXPECT_EQ(findings(found[1]), Lines{});
}

TEST(Candidates, ACollectiveOfSeveralArraysHasAnExchangeForEach) {
    const auto found = candidates(kAdd + R"(ENTRY e {
  a = bf16[8,4] parameter(0)
  b = bf16[] parameter(1)
  ROOT r = (bf16[8,4], bf16[]) all-reduce(a, b), replica_groups={{0,1},{2,3}}, to_apply=add
})");
    ASSERT_EQ(found[0].exchanges.size(), 2U);
    EXPECT_EQ(findings(found[0]), Lines{});
    const plan::Plan plan = *plan_of(found[0]);
    EXPECT_EQ(plan.tensors.size(), 2U);
    EXPECT_EQ(plan.tensors[1].shape, std::vector<std::int64_t>{1});
    EXPECT_EQ(plan.num_ranks(), 4);
    EXPECT_EQ(plan.ranks[3].size(), 2U);
    EXPECT_EQ(plan.final[0].of, (std::vector<std::int32_t>{0, 1}));
}

std::vector<std::vector<std::int32_t>> groups_of(const std::string& header, const std::string& collective) {
    const auto found =
        candidates(header + "\n" + kAdd + "ENTRY e { a = bf16[8] parameter(0)\n b = " + collective + " }");
    return found.size() == 1 && found[0].problem.empty() ? found[0].groups
                                                         : std::vector<std::vector<std::int32_t>>{};
}

TEST(Participants, FollowTheModeOfTheCollective) {
    using Groups = std::vector<std::vector<std::int32_t>>;
    const std::string header = "HloModule m, replica_count=2, num_partitions=2";
    const std::string reduce = "bf16[8] all-reduce(a), to_apply=add, ";
    // replicas, for each partition
    EXPECT_EQ(groups_of(header, reduce + "replica_groups={{0,1}}"), (Groups{{0, 2}, {1, 3}}));
    // replicas, all their partitions
    EXPECT_EQ(groups_of(header, reduce + "replica_groups={{0},{1}}, channel_id=1"), (Groups{{0, 1}, {2, 3}}));
    EXPECT_EQ(groups_of(header, reduce + "replica_groups={}, channel_id=1"), (Groups{{0, 1, 2, 3}}));
    // ranks
    EXPECT_EQ(
        groups_of(header, reduce + "replica_groups={{3,0},{1,2}}, channel_id=1, use_global_device_ids=true"),
        (Groups{{3, 0}, {1, 2}}));
    // partitions, for each replica
    EXPECT_EQ(
        groups_of(header, "bf16[8] all-to-all(a), dimensions={0}, replica_groups={{1,0}}, channel_id=1"),
        (Groups{{1, 0}, {3, 2}}));
}

TEST(Participants, WhereNothingSaysHowManyTheNumbersOrTheShapesDo) {
    using Groups = std::vector<std::vector<std::int32_t>>;
    EXPECT_EQ(groups_of("", "bf16[8] all-reduce(a), to_apply=add, replica_groups={{0,1,2}}"),
              (Groups{{0, 1, 2}}));
    EXPECT_EQ(groups_of("", "bf16[24] all-gather(a), dimensions={0}"), (Groups{{0, 1, 2}}));
    EXPECT_EQ(groups_of("", "bf16[4] reduce-scatter(a), to_apply=add, dimensions={0}"), (Groups{{0, 1}}));
}

std::string problem_of(const std::string& collective, const std::string& header = "") {
    const auto found =
        candidates(header + "\n" + kAdd +
                   "low { x = bf16[] parameter(0)\n y = bf16[] parameter(1)\n s = bf16[] minimum(x, y) }\n"
                   "ENTRY e { a = bf16[8] parameter(0)\n u = u4[8] parameter(1)\n b = " +
                   collective + " }");
    return found.size() == 1 ? found[0].problem : "not one candidate";
}

TEST(Problem, SaysWhyThereIsNoPlan) {
    EXPECT_EQ(problem_of("bf16[8] all-reduce(a), to_apply=add"),
              "is over all devices, and neither the module (replica_count, num_partitions) nor a shape says "
              "how many "
              "there are; say it with --ranks");
    EXPECT_EQ(problem_of("bf16[8] all-reduce(a), to_apply=low, replica_groups={{0,1}}"),
              "reduces with computation low, whose result is minimum; add and maximum of its two arguments "
              "are taken");
    EXPECT_EQ(problem_of("bf16[8] all-reduce(a), to_apply=add, replica_groups={{0,5}}",
                         "HloModule m, replica_count=2"),
              "names replica 5, and the module has 2 (2 replicas × 1 partitions)");
    EXPECT_EQ(problem_of("bf16[8] all-reduce(a), to_apply=add, replica_groups={{0,1},{1,2}}"),
              "has replica 1 in replica_groups twice");
    EXPECT_EQ(problem_of("bf16[16] all-gather(a), dimensions={0}, replica_groups={{0,1},{2}}"),
              "has replica_groups of 2 and of 1 members");
    EXPECT_EQ(problem_of("bf16[32] all-gather(a), dimensions={0}, replica_groups={{0,1}}"),
              "all-gather over 2 ranks makes bf16[16] of bf16[8], and bf16[32] is written");
    EXPECT_EQ(problem_of("(bf16[8], bf16[32]) all-gather-start(a), dimensions={0}, replica_groups={{0,1}}"),
              "all-gather over 2 ranks makes bf16[16] of bf16[8], and bf16[32] is written");
    EXPECT_EQ(problem_of("bf16[16] all-gather(a), dimensions={0,0}, replica_groups={{0,1}}"),
              "names 2 axes of bf16[8], where one is expected");
    EXPECT_EQ(problem_of("bf16[16] all-gather(a), replica_groups={{0,1}}"), "names no axis of bf16[8]");
    EXPECT_EQ(problem_of("bf16[16] all-gather(a), dimensions={3}, replica_groups={{0,1}}"),
              "names axis 3 of bf16[8]");
    EXPECT_EQ(problem_of("bf16[2] reduce-scatter(a), to_apply=add, dimensions={0}, replica_groups={{0,1,2}}"),
              "axis 0 of bf16[8] is not divisible by 3 ranks");
    EXPECT_EQ(problem_of("u4[16] all-gather(u), dimensions={0}, replica_groups={{0,1}}"),
              "moves u4, whose elements are smaller than a byte");
    EXPECT_EQ(problem_of("bf16[8] collective-permute(a), source_target_pairs={{0,1},{2,1}}"),
              "names replica 1 as a target twice");
    EXPECT_EQ(problem_of("(bf16[8], bf16[8]) all-to-all(a, a), replica_groups={{0,1,2}}"),
              "sends 2 arrays over 3 ranks");
    EXPECT_EQ(problem_of("(bf16[8], u4[16]) all-to-all(a, u), replica_groups={{0,1}}"),
              "sends bf16[8] to one rank and u4[8] to another");
    EXPECT_EQ(
        problem_of("bf16[8] all-reduce(a), to_apply=add, replica_groups=mesh['x'=2], device_ids=([2]) {'x'}"),
        "has replica_groups of a mesh with device_ids, whose order is not taken");
}

TEST(Problem, ABranchMayOrMayNotRun) {
    const auto found = candidates(kAdd + R"(
yes { p = bf16[8] parameter(0)
  ROOT r = bf16[8] all-reduce(p), replica_groups={{0,1}}, to_apply=add }
no { ROOT p = bf16[8] parameter(0) }
ENTRY e {
  c = pred[] parameter(0)
  a = bf16[8] parameter(1)
  ROOT b = bf16[8] conditional(c, a, a), branch_computations={yes, no}
})");
    EXPECT_EQ(found[0].problem, "stands in a branch of b; whether it runs depends on data");
}

TEST(CandidatePlan, EveryKindVerifies) {
    for (const std::string collective :
         {"bf16[8,12] all-gather(a), dimensions={0}, replica_groups={{2,0,3,1}}",
          "bf16[2,48] all-gather(a), dimensions={1}, replica_groups={{0,1,2,3}}",
          "bf16[2,3] reduce-scatter(a), dimensions={1}, replica_groups={{0,1,2,3}}, to_apply=add",
          "bf16[2,6] reduce-scatter(a), dimensions={1}, replica_groups={{0,2},{3,1}}, to_apply=add",
          "bf16[2,12] all-reduce(a), replica_groups={{0},{1,2},{3}}, to_apply=add",
          "bf16[2,12] all-to-all(a), dimensions={1}, replica_groups={{0,1,2,3}}",
          "bf16[2,12] all-to-all(a), dimensions={0}, replica_groups={{0,1},{2,3}}",
          "(bf16[2,12], bf16[2,12]) all-to-all(a, a), replica_groups={{0,1},{3,2}}",
          "bf16[2,12] collective-permute(a), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}",
          "bf16[2,12] collective-permute(a), source_target_pairs={{0,0},{1,2}}",
          "bf16[2,12] collective-broadcast(a), replica_groups={{1,0},{2,3}}"}) {
        const auto found =
            candidates(kAdd + "ENTRY e { a = bf16[2,12] parameter(0)\n b = " + collective + " }");
        ASSERT_EQ(found.size(), 1U);
        EXPECT_EQ(found[0].problem, "") << collective;
        EXPECT_EQ(findings(found[0]), Lines{}) << collective;
    }
}

TEST(CandidatePlan, AnAllToAllAlongOneAxisKeepsApartWhoseItWas) {
    const auto found = candidates(
        "e { a = bf16[2,12] parameter(0)\n b = bf16[2,12] all-to-all(a), dimensions={1}, "
        "replica_groups={{0,1,2,3}} }");
    const plan::Plan plan = *plan_of(found[0]);
    EXPECT_EQ(plan.tensors[0].shape, (std::vector<std::int64_t>{4, 2, 12}));
    EXPECT_EQ(plan.initial[1].chunk.region, (plan::Region{{1, 2}, {0, 2}, {0, 12}}));
    EXPECT_EQ(plan.final[1].chunk.region, (plan::Region{{0, 4}, {0, 2}, {3, 6}}));
}

TEST(CandidatePlan, AnAllToAllOfAListSendsEachRankItsArray) {
    const auto found = candidates(R"(e {
  a = bf16[2,12] parameter(0)
  b = bf16[2,12] parameter(1)
  w = bf16[12,5] parameter(2)
  d = bf16[2,12] add(a, b)
  x = (bf16[2,12], bf16[2,12]) all-to-all(a, d), replica_groups={{1,0}}
  y = bf16[2,12] get-tuple-element(x), index=1
  ROOT p = bf16[2,5] dot(y, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].operator_name(), "A2A-GEMM");
    const plan::Plan plan = *plan_of(found[0]);
    EXPECT_EQ(plan.tensors[0].name, "x");
    EXPECT_EQ(plan.tensors[0].shape, (std::vector<std::int64_t>{2, 2, 2, 12}));  // from, to, and one array
    EXPECT_EQ(plan.ranks[0][0].src.region,
              (plan::Region{{1, 2}, {0, 2}, {0, 2}, {0, 12}}));  // second in line
    EXPECT_EQ(plan.ranks[0][0].dst.region, (plan::Region{{0, 2}, {1, 2}, {0, 2}, {0, 12}}));
    EXPECT_EQ(findings(found[0]), Lines{});
}

TEST(AxisAfterReshape, IsKnownWhileTheFollowedPartsStayBoxes) {
    EXPECT_EQ(axis_after_reshape({8, 6}, {8, 2, 3}, 0, 4), 0);
    EXPECT_EQ(axis_after_reshape({8, 6}, {4, 2, 6}, 0, 4), 0);
    EXPECT_EQ(axis_after_reshape({8, 6}, {2, 4, 6}, 0, 4), -1);  // four parts do not fit two halves
    EXPECT_EQ(axis_after_reshape({8, 6}, {48}, 0, 4), 0);
    EXPECT_EQ(axis_after_reshape({8, 6}, {48}, 1, 2), -1);  // strided
    EXPECT_EQ(axis_after_reshape({1, 8, 6}, {8, 6}, 1, 2), 0);
    EXPECT_EQ(axis_after_reshape({8, 6}, {8, 1, 6}, 1, 3), 2);
    EXPECT_EQ(axis_after_reshape({6, 4}, {4, 6}, 0, 2), -1);
    EXPECT_EQ(axis_after_reshape({6, 4}, {4, 6}, 5, 2), -1);
}

}  // namespace
}  // namespace syncopate::ingest
