// Loops that hide an all-gather or a reduce-scatter beside a dot: recognised by executing them, not by name.
#include <string>

#include <gtest/gtest.h>

#include "ingest/programs.hpp"

namespace syncopate::ingest {
namespace {

using test::candidates;
using test::dots;
using test::findings;
using test::Lines;

void replace(std::string& text, const std::string& old_text, const std::string& new_text) {
    const std::size_t place = text.find(old_text);
    ASSERT_NE(place, text.npos) << old_text;
    text.replace(place, old_text.size(), new_text);
}

/// A loop of 4 steps on 4 ranks; `body` has the state's elements x, w, out and i and ends with `next`.
std::string loop(const std::string& x, const std::string& w, const std::string& out,
                 const std::string& body) {
    const std::string state = "(" + x + ", " + w + ", " + out + ", u32[])";
    return "HloModule m, num_partitions=4\n"
           "body {\n  p = " +
           state +
           " parameter(0)\n"
           "  x = " +
           x + " get-tuple-element(p), index=0\n  w = " + w +
           " get-tuple-element(p), index=1\n"
           "  out = " +
           out +
           " get-tuple-element(p), index=2\n  i = u32[] get-tuple-element(p), index=3\n"
           "  one = u32[] constant(1)\n  four = u32[] constant(4)\n  zero = u32[] constant(0)\n"
           "  me = u32[] partition-id()\n  j = u32[] add(i, one)\n" +
           body +
           "}\n"
           "cond { p = " +
           state +
           " parameter(0)\n  i = u32[] get-tuple-element(p), index=3\n"
           "  n = u32[] constant(4)\n  ROOT c = pred[] compare(i, n), direction=LT }\n"
           "ENTRY e {\n  a = " +
           x + " parameter(0)\n  b = " + w +
           " parameter(1)\n  z = bf16[] constant(0)\n"
           "  o = " +
           out +
           " broadcast(z), dimensions={}\n  k = u32[] constant(0)\n"
           "  t = " +
           state + " tuple(a, b, o, k)\n  ROOT r = " + state + " while(t), condition=cond, body=body\n}\n";
}

const std::string kRing = "channel_id=1, source_target_pairs={{0,3},{1,0},{2,1},{3,2}}";

std::string gather_rows() {
    return loop("bf16[8,16]", "bf16[16,24]", "bf16[32,24]",
                "  y = bf16[8,16] collective-permute(x), " + kRing +
                    "\n"
                    "  d = bf16[8,24] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                    "  s = u32[] add(i, me)\n  m = u32[] remainder(s, four)\n  e = u32[] constant(8)\n"
                    "  f = u32[] multiply(m, e)\n"
                    "  next = bf16[32,24] dynamic-update-slice(out, d, f, zero)\n"
                    "  ROOT q = (bf16[8,16], bf16[16,24], bf16[32,24], u32[]) tuple(y, w, next, j)\n");
}

TEST(WindowedEinsum, ShardsWrittenPlaceByPlaceAreAnAllGatherOfRows) {
    const auto found = candidates(gather_rows());
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(found[0].windowed);
    EXPECT_EQ(found[0].kind, "all-gather");
    EXPECT_EQ(found[0].trips, 4);
    EXPECT_EQ(dots(found[0]), Lines{"feeds d lhs 0 rows M32 N24 K16"});
    EXPECT_EQ(found[0].exchanges[0].after.to_string(), "bf16[32,16]");
    EXPECT_EQ(found[0].spec(), "all_gather_matmul:M=32,N=24,K=16,dtype=bf16");
    EXPECT_EQ(findings(found[0]), Lines{});
    const plan::Plan plan = *plan_of(found[0]);
    ASSERT_EQ(plan.ranks[1].size(), 3U);
    EXPECT_EQ(plan.ranks[1][0].peer, 0);
    EXPECT_EQ(plan.ranks[1][1].src.region, (plan::Region{{16, 24}, {0, 16}}));
    EXPECT_EQ(plan.ranks[1][1].after, (std::vector<plan::OpRef>{{2, 0}}));
}

TEST(WindowedEinsum, ADotInsideAFusionIsStillThatOfTheLoop) {
    std::string text = gather_rows();
    replace(text, "  d = bf16[8,24] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n",
            "  d = bf16[8,24] fusion(x, w), kind=kOutput, calls=inner\n");
    text +=
        "inner { a = bf16[8,16] parameter(0)\n b = bf16[16,24] parameter(1)\n"
        " ROOT d = bf16[8,24] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }\n";
    const auto found = candidates(text);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(dots(found[0]), Lines{"feeds d lhs 0 rows M32 N24 K16"});
}

TEST(WindowedEinsum, ShardsWrittenToTheWrongPlaceAreNot) {
    // The shard of rank r + i is written to place r: that is no all-gather, only a permute beside a dot.
    std::string text = gather_rows();
    replace(text, "add(i, me)", "add(me, zero)");
    const auto found = candidates(text);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].kind, "collective-permute");
    EXPECT_EQ(found[0].trips, 4);
}

TEST(WindowedEinsum, AStepTooFewIsNot) {
    std::string text = gather_rows();
    replace(text, "n = u32[] constant(4)", "n = u32[] constant(3)");
    EXPECT_EQ(candidates(text)[0].kind, "collective-permute");
}

TEST(WindowedEinsum, ARingTheOtherWayRoundIsNot) {
    std::string text = gather_rows();
    replace(text, "{{0,3},{1,0},{2,1},{3,2}}", "{{3,0},{0,1},{1,2},{2,3}}");
    EXPECT_EQ(candidates(text)[0].kind, "collective-permute");
}

TEST(WindowedEinsum, ProductsWithSlicesThatAreAddedUpGatherTheContractedAxis) {
    const auto found = candidates(
        loop("bf16[8,4]", "bf16[16,24]", "bf16[8,24]",
             "  y = bf16[8,4] collective-permute(x), " + kRing +
                 "\n"
                 "  s = u32[] add(i, me)\n  m = u32[] remainder(s, four)\n  f = u32[] multiply(m, four)\n"
                 "  v = bf16[4,24] dynamic-slice(w, f, zero), dynamic_slice_sizes={4,24}\n"
                 "  d = bf16[8,24] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                 "  next = bf16[8,24] add(out, d)\n"
                 "  ROOT q = (bf16[8,4], bf16[16,24], bf16[8,24], u32[]) tuple(y, w, next, j)\n"));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(found[0].windowed);
    EXPECT_EQ(dots(found[0]), Lines{"feeds d lhs 1 contracted M8 N24 K16"});
    EXPECT_EQ(found[0].exchanges[0].after.to_string(), "bf16[8,16]");
    EXPECT_EQ(findings(found[0]), Lines{});
}

std::string scatter_rows() {
    // Step i: rank r adds the product for place r + 3 - i … that ends, after the last step, at its owner.
    return loop("bf16[32,16]", "bf16[16,24]", "bf16[8,24]",
                "  y = bf16[8,24] collective-permute(out), channel_id=1, "
                "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}\n"
                "  three = u32[] constant(3)\n  a1 = u32[] add(me, three)\n  a2 = u32[] subtract(a1, i)\n"
                "  m = u32[] remainder(a2, four)\n  e = u32[] constant(8)\n  f = u32[] multiply(m, e)\n"
                "  v = bf16[8,16] dynamic-slice(x, f, zero), dynamic_slice_sizes={8,16}\n"
                "  d = bf16[8,24] dot(v, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                "  next = bf16[8,24] add(y, d)\n"
                "  ROOT q = (bf16[32,16], bf16[16,24], bf16[8,24], u32[]) tuple(x, w, next, j)\n");
}

TEST(WindowedEinsum, AccumulatorsThatGoRoundAreAReduceScatter) {
    const auto found = candidates(scatter_rows());
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(found[0].windowed);
    EXPECT_EQ(found[0].kind, "reduce-scatter");
    EXPECT_EQ(found[0].operator_name(), "GEMM-RS");
    EXPECT_EQ(dots(found[0]), Lines{"drains d result 0 rows M32 N24 K16"});
    EXPECT_EQ(findings(found[0]), Lines{});
    const plan::Plan plan = *plan_of(found[0]);
    EXPECT_EQ(plan.produced.size(), 4U);
    EXPECT_EQ(plan.ranks[0][0].reduce, plan::Reduce::sum);
    EXPECT_EQ(plan.ranks[0][0].peer, 1);
    EXPECT_EQ(plan.ranks[0][0].src.region, (plan::Region{{24, 32}, {0, 24}}));
}

TEST(WindowedEinsum, AnAccumulatorThatBeginsAsSomethingElseIsNot) {
    std::string text = scatter_rows();
    replace(text, "z = bf16[] constant(0)", "z = bf16[] constant(1)");
    EXPECT_EQ(candidates(text)[0].kind, "collective-permute");
}

TEST(WindowedEinsum, AContributionThatIsAddedForTheWrongPlaceIsNot) {
    std::string text = scatter_rows();
    replace(text, "subtract(a1, i)", "subtract(a1, zero)");
    EXPECT_EQ(candidates(text)[0].kind, "collective-permute");
}

TEST(WindowedEinsum, ALoopThatNeverEndsIsGivenUp) {
    std::string text = gather_rows();
    replace(text, "compare(i, n), direction=LT", "compare(i, i), direction=EQ");
    const auto found = candidates(text);
    EXPECT_EQ(found[0].kind, "collective-permute");
    EXPECT_EQ(found[0].trips, -1);
}

/// gather_rows, its place computed as `place` says: it defines f of i and me.
std::string gather_rows_at(const std::string& place) {
    std::string text = gather_rows();
    const std::size_t begin = text.find("  s = u32[] add(i, me)");
    text.replace(begin, text.find("  next = ") - begin, place);
    return text;
}

class PlaceOfAShard : public testing::TestWithParam<const char*> {};

TEST_P(PlaceOfAShard, IsComputed) {
    const auto found = candidates(gather_rows_at(GetParam()));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(found[0].windowed) << ::testing::PrintToString(found[0].why);
    EXPECT_EQ(dots(found[0]), Lines{"feeds d lhs 0 rows M32 N24 K16"});
    EXPECT_EQ(findings(found[0]), Lines{});
}

INSTANTIATE_TEST_SUITE_P(
    WindowedEinsum, PlaceOfAShard,
    testing::Values(
        // A mask and a shift.
        "  s = u32[] add(i, me)\n  t = u32[] constant(3)\n  m = u32[] and(s, t)\n"
        "  f = u32[] shift-left(m, t)\n",
        // Numbers without a sign wrap around.
        "  n = u32[] negate(i)\n  s = u32[] subtract(me, n)\n  t = u32[] constant(3)\n"
        "  m = u32[] and(s, t)\n  e = u32[] constant(8)\n  f = u32[] multiply(m, e)\n",
        // Signed ones, and a remainder that is made positive.
        "  c = s32[] convert(i)\n  b = s32[] convert(me)\n  k = s32[] constant(-4)\n  g = s32[] add(c, k)\n"
        "  s = s32[] add(g, b)\n  four2 = s32[] constant(4)\n  m = s32[] remainder(s, four2)\n"
        "  o = s32[] constant(0)\n  l = pred[] compare(m, o), direction=LT\n"
        "  u = pred[] compare(m, o), direction=NE\n  a = pred[] and(l, u)\n  h = s32[] add(m, four2)\n"
        "  v = s32[] select(a, h, m)\n  e = s32[] constant(8)\n  f = s32[] multiply(v, e)\n",
        // Logic of truth values.
        "  s = u32[] add(i, me)\n  l = pred[] compare(s, four), direction=LT\n  nl = pred[] not(l)\n"
        "  t = pred[] constant(true)\n  x1 = pred[] xor(nl, t)\n  x2 = pred[] or(x1, l)\n"
        "  h = u32[] subtract(s, four)\n  m = u32[] select(x2, s, h)\n  e = u32[] constant(8)\n"
        "  f = u32[] multiply(m, e)\n",
        // A table.
        "  s = u32[] add(i, me)\n  m = u32[] remainder(s, four)\n  tab = u32[4] constant({0,8,16,24})\n"
        "  one_of = u32[1] dynamic-slice(tab, m), dynamic_slice_sizes={1}\n  f = u32[] reshape(one_of)\n",
        // A table that is computed.
        "  s = u32[] add(i, me)\n  m = u32[] remainder(s, four)\n  io = u32[4] iota(), iota_dimension=0\n"
        "  e = u32[] constant(8)\n  eb = u32[4] broadcast(e), dimensions={}\n"
        "  tab = u32[4] multiply(io, eb)\n  one_of = u32[1] dynamic-slice(tab, m), "
        "dynamic_slice_sizes={1}\n  f = u32[] reshape(one_of)\n",
        // Shifts to the right, the smaller and the larger.
        "  s = u32[] add(i, me)\n  t = u32[] constant(2)\n  r = u32[] shift-right-logical(s, t)\n"
        "  w2 = u32[] shift-left(r, t)\n  m = u32[] subtract(s, w2)\n  n = u32[] minimum(m, four)\n"
        "  x3 = u32[] maximum(n, zero)\n  e = u32[] constant(8)\n  f = u32[] multiply(x3, e)\n",
        // A clamp and a power.
        "  s = u32[] add(i, me)\n  m = u32[] remainder(s, four)\n  k = u32[] clamp(zero, m, four)\n"
        "  two = u32[] constant(2)\n  t = u32[] constant(3)\n  e = u32[] power(two, t)\n"
        "  f = u32[] multiply(k, e)\n"));

TEST(WindowedEinsum, ANumberThatGoesRoundWithItsShardSaysWhoseItIs) {
    // The rank's number is computed before the loop, in a fusion, and passed on beside the shard.
    const std::string state = "(bf16[8,16], bf16[16,24], bf16[32,24], s32[], s32[])";
    const auto found = candidates(
        "HloModule m, num_partitions=4\n"
        "mine { u = u32[] parameter(0)\n  t = u32[] constant(3)\n  a = u32[] and(u, t)\n"
        "  ROOT c = s32[] convert(a) }\n"
        "body {\n  p = " +
        state +
        " parameter(0)\n  x = bf16[8,16] get-tuple-element(p), index=0\n"
        "  w = bf16[16,24] get-tuple-element(p), index=1\n  out = bf16[32,24] get-tuple-element(p), index=2\n"
        "  i = s32[] get-tuple-element(p), index=3\n  whose = s32[] get-tuple-element(p), index=4\n"
        "  one = s32[] constant(1)\n  zero = s32[] constant(0)\n  eight = s32[] constant(8)\n"
        "  j = s32[] add(i, one)\n  y = bf16[8,16] collective-permute(x), " +
        kRing + "\n  whose2 = s32[] collective-permute(whose), " + kRing +
        "\n  d = bf16[8,24] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  f = s32[] multiply(whose, eight)\n  next = bf16[32,24] dynamic-update-slice(out, d, f, zero)\n"
        "  ROOT q = " +
        state +
        " tuple(y, w, next, j, whose2)\n}\n"
        "cond { p = " +
        state +
        " parameter(0)\n  i = s32[] get-tuple-element(p), index=3\n"
        "  n = s32[] constant(4)\n  ROOT c = pred[] compare(i, n), direction=LT }\n"
        "ENTRY e {\n  a = bf16[8,16] parameter(0)\n  b = bf16[16,24] parameter(1)\n  z = bf16[] constant(0)\n"
        "  o = bf16[32,24] broadcast(z), dimensions={}\n  k = s32[] constant(0)\n  me = u32[] "
        "partition-id()\n"
        "  r = s32[] fusion(me), kind=kLoop, calls=mine\n  t = " +
        state +
        " tuple(a, b, o, k, r)\n"
        "  ROOT l = " +
        state + " while(t), condition=cond, body=body\n}\n");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(found[0].windowed) << ::testing::PrintToString(found[0].why);
    EXPECT_EQ(dots(found[0]), Lines{"feeds d lhs 0 rows M32 N24 K16"});
    EXPECT_EQ(findings(found[0]), Lines{});
}

TEST(WindowedEinsum, ALoopThatIsNoGatherSaysWhy) {
    const auto why = [](std::string text, const std::string& old_text, const std::string& new_text) {
        replace(text, old_text, new_text);
        const auto found = candidates(text);
        EXPECT_EQ(found.at(0).kind, "collective-permute");
        EXPECT_EQ(found.at(0).why.size(), 1U);
        const std::string start = "the loop r is no gather or reduce-scatter: ";
        const std::string said = found.at(0).why.empty() ? "" : found.at(0).why[0];
        EXPECT_TRUE(said.starts_with(start)) << said;
        return said.substr(std::min(said.size(), start.size()));
    };
    EXPECT_EQ(
        why(gather_rows(), "n = u32[] constant(4)", "n = u32[] constant(3)"),
        "its 3 steps are no whole ring of parts of 8; rank 0 has that of rank 0 at 0, that of rank 1 at 8, "
        "that of rank 2 at 16; rank 1 has that of rank 1 at 8, that of rank 2 at 16, that of rank 3 at 24");
    EXPECT_EQ(why(gather_rows(), "n = u32[] constant(4)", "n = u32[] constant(0)"), "it runs no step");
    EXPECT_EQ(why(gather_rows(), "add(i, me)", "add(me, zero)"),
              "rank 0 has two products for place 0 of axis 0");
    EXPECT_EQ(
        why(gather_rows(), "add(i, me)", "popcount-of(i, me)"),
        "next (dynamic-update-slice) puts a product where s (popcount-of) says, whose value is not known "
        "here");
    EXPECT_EQ(why(gather_rows(), "compare(i, n), direction=LT", "custom-call(i), custom_call_target=\"go\""),
              "it goes on for as long as c (custom-call) says, whose value is not known here");
    EXPECT_EQ(why(gather_rows(), "compare(i, n), direction=LT", "compare(i, i), direction=EQ"),
              "it takes too many steps to be executed here");
    EXPECT_EQ(why(gather_rows(), "d = bf16[8,24] dot(x, w)",
                  "xx = bf16[8,16] add(x, x)\n"
                  "  d = bf16[8,24] dot(xx, w)"),
              "xx (add) computes with what is passed on before a dot reads it");
    EXPECT_EQ(why(gather_rows(), "dynamic-update-slice(out, d, f, zero)", "pad(d, zero), padding=0_24x0_0"),
              "next (pad) takes a product and neither adds it up nor writes it in a place");
    EXPECT_EQ(why(gather_rows(), "{{0,3},{1,0},{2,1},{3,2}}", "{{0,7}}"), "its permutes name rank 7 of 4");
    EXPECT_EQ(why(gather_rows(), "dot(x, w)", "dot(w, w)"), "no dot in it reads what is passed on");
    EXPECT_EQ(why(scatter_rows(), "z = bf16[] constant(0)", "z = bf16[] constant(1)"),
              "what goes round as a sum does not begin as zeros");
}

}  // namespace
}  // namespace syncopate::ingest
