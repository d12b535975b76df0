// What passes a value on under another name, and what cuts it off from the dot behind it.
#include <string>

#include <gtest/gtest.h>

#include "ingest/programs.hpp"

namespace syncopate::ingest {
namespace {

using test::candidates;
using test::dots;
using test::findings;
using test::Lines;

/// What lies between a gather `g` and the dot that reads `ob`.
struct Between {
    const char* what;
    std::string ops;
    std::string computations = {};
    std::string dot =
        "  ROOT %d = f32[8,2]{1,0} dot(%ob, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n";
};

void PrintTo(const Between& between, std::ostream* out) { *out << between.what; }

std::string module(const Between& between) {
    return "HloModule m, num_partitions=2\n" + between.computations + R"(
ENTRY %main (y: f32[4,8], v: f32[8,2]) -> f32[8,2] {
  %y = f32[4,8]{1,0} parameter(0)
  %v = f32[8,2]{1,0} parameter(1)
  %token = token[] after-all()
  %g = f32[8,8]{1,0} all-gather(%y), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
)" + between.ops +
           between.dot + "}\n";
}

const std::string kSame = "%same (p: f32[8,8]) -> f32[8,8] {\n  ROOT %p = f32[8,8]{1,0} parameter(0)\n}\n";
const std::string kDot =
    "%product (l: f32[8,8], r: f32[8,2]) -> f32[8,2] {\n  %l = f32[8,8]{1,0} parameter(0)\n"
    "  %r = f32[8,2]{1,0} parameter(1)\n  %c = f32[8,2]{1,0} copy(%r)\n"
    "  ROOT %d = f32[8,2]{1,0} dot(%l, %c), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n";

class Identity : public testing::TestWithParam<Between> {};

TEST_P(Identity, IsSeenThrough) {
    const auto found = candidates(module(GetParam()));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(dots(found[0]), Lines{"feeds d lhs 0 rows M8 N2 K8"});
    EXPECT_EQ(found[0].why, Lines{});
    EXPECT_EQ(findings(found[0]), Lines{});
}

INSTANTIATE_TEST_SUITE_P(
    Dataflow, Identity,
    testing::Values(
        Between{"opt-barrier", "  %ob = f32[8,8]{1,0} opt-barrier(%g)\n"},
        Between{"a slice of the whole", "  %ob = f32[8,8]{1,0} slice(%g), slice={[0:8], [0:8]}\n"},
        Between{"a slice of the whole whose place is data",
                "  %i = s32[] parameter(2)\n  %ob = f32[8,8] dynamic-slice(%g, %i, %i), "
                "dynamic_slice_sizes={8,8}\n"},
        Between{"a concatenation of one", "  %ob = f32[8,8]{1,0} concatenate(%g), dimensions={0}\n"},
        Between{"a broadcast to the same shape", "  %ob = f32[8,8]{1,0} broadcast(%g), dimensions={0,1}\n"},
        Between{"opt-barrier of a tuple",
                "  %t = (f32[8,8], f32[8,2]) tuple(%g, %v)\n  %o = (f32[8,8], f32[8,2]) opt-barrier(%t)\n"
                "  %ob = f32[8,8] get-tuple-element(%o), index=0\n"},
        Between{"opt-barrier of a tuple in a tuple",
                "  %i = (f32[8,8]) tuple(%g)\n  %t = ((f32[8,8]), f32[8,2]) tuple(%i, %v)\n"
                "  %o = ((f32[8,8]), f32[8,2]) opt-barrier(%t)\n"
                "  %u = (f32[8,8]) get-tuple-element(%o), index=0\n"
                "  %ob = f32[8,8] get-tuple-element(%u), index=0\n"},
        Between{"domain", "  %ob = f32[8,8] domain(%g), domain={kind=\"sharding\", entry={replicated}}\n"},
        Between{"add-dependency", "  %ob = f32[8,8] add-dependency(%g, %token)\n"},
        Between{"a copy that starts and ends",
                "  %s = (f32[8,8], f32[8,8], u32[]) copy-start(%g)\n  %ob = f32[8,8] copy-done(%s)\n"},
        Between{"a sharding", "  %ob = f32[8,8] custom-call(%g), custom_call_target=\"Sharding\"\n"},
        Between{"a way to the host and back",
                "  %h = f32[8,8] custom-call(%g), custom_call_target=\"MoveToHost\"\n"
                "  %ob = f32[8,8] custom-call(%h), custom_call_target=\"MoveToDevice\"\n"},
        Between{"call", "  %ob = f32[8,8] call(%g), to_apply=%same\n", kSame},
        Between{"fusion", "  %ob = f32[8,8] fusion(%g), kind=kLoop, calls=%same\n", kSame},
        Between{"one of two calls of a function",
                "  %z = f32[8,8] broadcast(%v)\n  %other = f32[8,8] call(%z), to_apply=%same\n"
                "  %ob = f32[8,8] call(%g), to_apply=%same\n",
                kSame},
        Between{"async-start, whose end names the computation again",
                "  %s = ((f32[8,8]), f32[8,8], s32[]) async-start(%g), calls=%same\n"
                "  %u = ((f32[8,8]), f32[8,8], s32[]) async-update(%s), calls=%same\n"
                "  %ob = f32[8,8] async-done(%u), calls=%same\n",
                kSame},
        Between{"call-start",
                "  %s = ((f32[8,8]), f32[8,8], s32[]) call-start(%g), to_apply=%same, "
                "async_execution_thread=\"parallel\"\n  %u = ((f32[8,8]), f32[8,8], s32[]) call-update(%s)\n"
                "  %ob = f32[8,8] call-done(%u)\n",
                kSame},
        Between{"a started call of the dot",
                "  %s = ((f32[8,8], f32[8,2]), f32[8,2], s32[]) call-start(%g, %v), to_apply=%product\n",
                kDot, "  ROOT %r = f32[8,2] call-done(%s)\n"},
        Between{"a started fusion of the dot",
                "  %s = ((f32[8,8], f32[8,2]), f32[8,2], s32[]) fusion-start(%g, %v), kind=kCustom, "
                "calls=%product\n",
                kDot, "  ROOT %r = f32[8,2] fusion-done(%s)\n"},
        Between{"async-start of the dot",
                "  %s = ((f32[8,8], f32[8,2]), f32[8,2], s32[]) async-start(%g, %v), calls=%product\n", kDot,
                "  ROOT %r = f32[8,2] async-done(%s)\n"},
        Between{"the dot itself started",
                "  %d = ((f32[8,8], f32[8,2]), f32[8,2], s32[]) dot-start(%g, %v), lhs_contracting_dims={1}, "
                "rhs_contracting_dims={0}\n",
                "", "  ROOT %r = f32[8,2] dot-done(%d)\n"}));

/// A loop whose tuple has the gather, the weights, a counter and a product.
std::string in_a_loop(const std::string& result) {
    const std::string state = "(f32[8,8], f32[8,2], s32[], f32[8,2])";
    return module(
        {"",
         "  %c = s32[] constant(0)\n  %z = f32[8,2] broadcast(%c), dimensions={}\n  %t = " + state +
             " tuple(%g, %v, %c, %z)\n  %w = " + state + " while(%t), condition=%cond, body=%body\n",
         "%cond { %p = " + state +
             " parameter(0)\n  %i = s32[] get-tuple-element(%p), index=2\n  %n = s32[] constant(3)\n"
             "  ROOT %l = pred[] compare(%i, %n), direction=LT }\n%body { %p = " +
             state +
             " parameter(0)\n  %g = f32[8,8] get-tuple-element(%p), index=0\n"
             "  %h = f32[8,8] negate(%g)\n  %v = f32[8,2] get-tuple-element(%p), index=1\n"
             "  %i = s32[] get-tuple-element(%p), index=2\n  %o = s32[] constant(1)\n"
             "  %j = s32[] add(%i, %o)\n"
             "  %d = f32[8,2] dot(%g, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
             "  ROOT %t = " +
             state + " tuple(" + result + ", %v, %j, %d) }\n",
         "  ROOT %r = f32[8,2] get-tuple-element(%w), index=3\n"});
}

TEST(Dataflow, ALoopThatPassesAValueOnAsItIsIsSeenThrough) {
    const auto found = candidates(in_a_loop("%g"));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(dots(found[0]), Lines{"feeds d lhs 0 rows M8 N2 K8"});
    EXPECT_EQ(dots(candidates(in_a_loop("%h"))[0]), Lines{});
}

TEST(Dataflow, ConversionsOnTheWayAreNamed) {
    const auto found = candidates(module({"",
                                          "  %b = bf16[8,8] convert(%g)\n"
                                          "  %r = bf16[8,8] reduce-precision(%b), exponent_bits=8, "
                                          "mantissa_bits=4\n  %ob = f32[8,8] convert(%r)\n"}));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].exchanges[0].dots.at(0).through, (Lines{"convert", "reduce-precision", "convert"}));
}

TEST(Dataflow, ABitcastKeepsAnAxisAsTheLayoutsSay) {
    const auto of = [](const std::string& ops) { return dots(candidates(module({"", ops}))[0]); };
    // The same bytes, read column by column.
    EXPECT_EQ(of("  %ob = f32[8,8]{0,1} bitcast(%g)\n"), Lines{"feeds d lhs 1 contracted M8 N2 K8"});
    EXPECT_EQ(of("  %u = f32[1,8,8]{2,1,0} bitcast(%g)\n  %ob = f32[8,8]{1,0} bitcast(%u)\n"),
              Lines{"feeds d lhs 0 rows M8 N2 K8"});
    EXPECT_EQ(of("  %ob = f32[8,8]{1,0:T(8,128)} bitcast(%g)\n"), Lines{"feeds d lhs -1 unknown M8 N2 K8"});
}

TEST(Dataflow, AProductOfACallOfCublasIsItsFirstResult) {
    const auto module_with = [](const std::string& config) {
        return "HloModule m, num_partitions=2\n%sum { %a = bf16[] parameter(0)\n  %b = bf16[] parameter(1)\n"
               "  ROOT %c = bf16[] add(%a, %b) }\nENTRY %e (x: bf16[8,4], w: bf16[4,6]) -> bf16[4,6] {\n"
               "  %x = bf16[8,4]{1,0} parameter(0)\n  %w = bf16[4,6]{1,0} parameter(1)\n"
               "  %gemm = (bf16[8,6]{1,0}, s8[64]{0}) custom-call(%x, %w), "
               "custom_call_target=\"__cublas$lt$matmul\", backend_config={\"gemm_backend_config\":{" +
               config +
               "\"dot_dimension_numbers\":{\"lhs_contracting_dimensions\":[\"1\"],"
               "\"rhs_contracting_dimensions\":[\"0\"],\"lhs_batch_dimensions\":[],"
               "\"rhs_batch_dimensions\":[]}}}\n"
               "  %p = bf16[8,6]{1,0} get-tuple-element(%gemm), index=0\n"
               "  ROOT %rs = bf16[4,6]{1,0} reduce-scatter(%p), channel_id=1, replica_groups={{0,1}}, "
               "dimensions={0}, use_global_device_ids=true, to_apply=%sum\n}\n";
    };
    const auto found = candidates(module_with("\"alpha_real\":1,\"beta\":0,\"epilogue\":\"DEFAULT\","));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(dots(found[0]), Lines{"drains gemm result 0 rows M8 N6 K4"});
    EXPECT_EQ(found[0].exchanges[0].dots[0].dtype, "bf16");
    EXPECT_EQ(found[0].exchanges[0].dots[0].through, Lines{});
    // What cuBLAS does with the product first is said, for a plan of the product alone would leave it out.
    const auto more = candidates(module_with("\"alpha_real\":2,\"beta\":1,\"epilogue\":\"GELU_BIAS\","));
    EXPECT_EQ(more[0].exchanges[0].dots.at(0).through, Lines{"epilogue GELU_BIAS, alpha 2, beta 1"});
    // The same, printed as a string.
    std::string quoted = module_with("\"alpha_real\":2,\"beta\":1,\"epilogue\":\"GELU_BIAS\",");
    const std::size_t begin = quoted.find("backend_config={") + 15;
    const std::size_t end = quoted.find('\n', begin);
    std::string config = quoted.substr(begin, end - begin);
    for (std::size_t at = 0; (at = config.find('"', at)) != config.npos; at += 2) config.insert(at, "\\");
    quoted.replace(begin, end - begin, "\"" + config + "\"");
    EXPECT_EQ(candidates(quoted).at(0).exchanges[0].dots.at(0).through, more[0].exchanges[0].dots[0].through);
    // Its second result is memory that it needed.
    std::string other = module_with("");
    other.replace(other.find("index=0"), 7, "index=1");
    EXPECT_EQ(dots(candidates(other)[0]), Lines{});
}

// What is fed is another operator than the product alone, so no spec of that is given.
TEST(Dataflow, WhatCublasDoesWithAProductThatIsFedIsSaid) {
    const auto fed = [](const std::string& config) {
        const auto found =
            candidates(module({"", "", "",
                               "  ROOT %d = (f32[8,2]{1,0}, s8[64]{0}) custom-call(%g, %v), "
                               "custom_call_target=\"__cublas$lt$matmul\", "
                               "backend_config={\"gemm_backend_config\":{" +
                                   config +
                                   "\"dot_dimension_numbers\":{\"lhs_contracting_dimensions\":[\"1\"],"
                                   "\"rhs_contracting_dimensions\":[\"0\"]}}}\n"}));
        return found.at(0);
    };
    const Candidate plain = fed("\"alpha_real\":1,\"beta\":0,\"epilogue\":\"DEFAULT\",");
    EXPECT_EQ(dots(plain), Lines{"feeds d lhs 0 rows M8 N2 K8"});
    EXPECT_EQ(plain.spec(), "all_gather_matmul:M=8,N=2,K=8,dtype=fp32");
    const Candidate more = fed("\"alpha_real\":2.5,\"beta\":0,\"epilogue\":\"BIAS_GELU\",");
    EXPECT_EQ(dots(more), dots(plain));
    EXPECT_EQ(more.exchanges[0].dots[0].after, "epilogue BIAS_GELU, alpha 2.5");
    EXPECT_EQ(more.operator_name(), "AG-GEMM");
    EXPECT_EQ(more.spec(), "");
    EXPECT_NE(candidates_table({more}).find("K=8 f32, then epilogue BIAS_GELU, alpha 2.5\n"),
              std::string::npos)
        << candidates_table({more});
}

TEST(Dataflow, AReductionThatIsNoSumIsNamedInItsOperator) {
    const auto named = [](const std::string& opcode) {
        return candidates(
                   "HloModule m, num_partitions=2\n%by { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
                   "  ROOT c = f32[] " +
                   opcode +
                   "(a, b) }\nENTRY %e { x = f32[8,4] parameter(0)\n  w = f32[4,6] parameter(1)\n"
                   "  d = f32[8,6] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                   "  ROOT r = f32[8,6] all-reduce(d), channel_id=1, replica_groups={{0,1}}, "
                   "use_global_device_ids=true, to_apply=%by }\n")
            .at(0)
            .operator_name();
    };
    EXPECT_EQ(named("add"), "GEMM-AR");
    EXPECT_EQ(named("maximum"), "GEMM-AR by max");
    EXPECT_EQ(named("minimum"), "GEMM-AR by minimum");
    EXPECT_EQ(named("multiply"), "GEMM-AR by multiply");
}

/// Two ranks exchange halves of `x` along an axis, as XLA writes it: slices, a list, a concatenation.
std::string exchanged(const std::string& slices, const std::string& joined, const std::string& dot) {
    return "HloModule m, num_partitions=2\nENTRY %e {\n  x = f32[8,4] parameter(0)\n  w = f32[4,6] "
           "parameter(1)\n" +
           slices +
           "  a = (f32[4,4], f32[4,4]) all-to-all(s0, s1), channel_id=1, replica_groups={{0,1}}\n"
           "  g0 = f32[4,4] get-tuple-element(a), index=0\n  g1 = f32[4,4] get-tuple-element(a), index=1\n" +
           joined + dot + "}\n";
}

TEST(Dataflow, AListThatIsCutFromOneArrayAndJoinedAgainIsThatArray) {
    const std::string cut =
        "  d = f32[8,4] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  s0 = f32[4,4] slice(d), slice={[0:4], [0:4]}\n  s1 = f32[4,4] slice(d), slice={[4:8], [0:4]}\n";
    const std::string uncut = "  s0 = f32[4,4] parameter(3)\n  s1 = f32[4,4] parameter(4)\n";
    const std::string v = "  v = f32[4,4] parameter(2)\n";
    const std::string join = "  j = f32[8,4] concatenate(g0, g1), dimensions={0}\n";
    const std::string into =
        "  ROOT e = f32[8,6] dot(j, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n";
    const auto all = candidates(exchanged(v + cut, join, into));
    EXPECT_EQ(dots(all.at(0)), (Lines{"feeds e lhs 0 rows M8 N6 K4", "drains d result 0 rows M8 N4 K4"}));
    EXPECT_EQ(all[0].operator_name(), "GEMM-A2A-GEMM");
    EXPECT_EQ(all[0].why, Lines{});
    EXPECT_EQ(findings(all[0]), Lines{});
    const auto along = candidates(exchanged(
        v + uncut,
        "  j = f32[4,8] concatenate(g0, g1), dimensions={1}\n  t = f32[8,4] transpose(j), dimensions={1,0}\n",
        "  ROOT e = f32[8,6] dot(t, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"));
    EXPECT_EQ(dots(along.at(0)), Lines{"feeds e lhs 0 rows M8 N6 K4"});
    // In another order, or of only a part, it is another array.
    const auto swapped =
        candidates(exchanged(v + uncut, "  j = f32[8,4] concatenate(g1, g0), dimensions={0}\n", into));
    EXPECT_EQ(dots(swapped.at(0)), Lines{});
    EXPECT_EQ(swapped[0].why, Lines{"feeds no dot: j (concatenate) computes between it and e"});
    const std::string turned =
        "  d = f32[8,4] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  s0 = f32[4,4] slice(d), slice={[4:8], [0:4]}\n  s1 = f32[4,4] slice(d), slice={[0:4], [0:4]}\n";
    EXPECT_EQ(dots(candidates(exchanged(v + turned, join, into)).at(0)),
              Lines{"feeds e lhs 0 rows M8 N6 K4"});
    const std::string strided =
        "  d = f32[8,4] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  s0 = f32[4,4] slice(d), slice={[0:8:2], [0:4]}\n  s1 = f32[4,4] slice(d), slice={[1:8:2], "
        "[0:4]}\n";
    EXPECT_EQ(dots(candidates(exchanged(v + strided, join, into)).at(0)),
              Lines{"feeds e lhs 0 rows M8 N6 K4"});
}

TEST(Dataflow, AListThatIsCutInStridesIsNoArrayThatIsCut) {
    const auto all = candidates(exchanged(
        "  v = f32[4,4] parameter(2)\n"
        "  d = f32[8,4] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  s0 = f32[4,4] slice(d), slice={[0:7:2], [0:4]}\n  s1 = f32[4,4] slice(d), slice={[4:8], [0:4]}\n",
        "  j = f32[8,4] concatenate(g0, g1), dimensions={0}\n",
        "  e1 = f32[4,6] dot(g0, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  e = f32[8,6] dot(j, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  ROOT t = (f32[4,6], f32[8,6]) tuple(e1, e)\n"));
    EXPECT_EQ(dots(all.at(0)), (Lines{"feeds e lhs 0 rows M8 N6 K4", "feeds e1 lhs -1 unknown M4 N6 K4"}))
        << "and who reads one array of it is listed beside who reads all";
}

TEST(Dataflow, PartsThatMeetInTwoCallsOfOneFunctionAreNoArray) {
    const std::string joins =
        "HloModule m, num_partitions=2\n%f {\n  p = f32[4,4] parameter(0)\n  q = f32[4,4] parameter(1)\n"
        "  ROOT c = f32[8,4] concatenate(p, q), dimensions={0}\n}\n";
    const auto dots_of = [&](const std::string& calls) {
        std::string text = exchanged(
            "  y = f32[4,4] parameter(2)\n  s0 = f32[4,4] parameter(3)\n"
            "  s1 = f32[4,4] parameter(4)\n",
            calls, "");
        text.replace(0, text.find("ENTRY"), joins);
        return dots(candidates(text).at(0));
    };
    const std::string product =
        " = f32[8,6] dot(j0, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n";
    EXPECT_EQ(dots_of("  j0 = f32[8,4] fusion(g0, g1), kind=kLoop, calls=%f\n  ROOT e0" + product),
              Lines{"feeds e0 lhs 0 rows M8 N6 K4"});
    EXPECT_EQ(dots_of("  j0 = f32[8,4] fusion(g0, y), kind=kLoop, calls=%f\n"
                      "  j1 = f32[8,4] fusion(y, g1), kind=kLoop, calls=%f\n  e0" +
                      product + "  ROOT t = (f32[8,6], f32[8,4]) tuple(e0, j1)\n"),
              Lines{});
}

TEST(Dataflow, ACollectiveBesideAProductSaysWhyItFeedsNone) {
    const auto why = [](const Between& between) { return candidates(module(between)).at(0).why; };
    EXPECT_EQ(why({"", "  %ob = f32[8,8] negate(%g)\n"}),
              Lines{"feeds no dot: ob (negate) computes between it and d"});
    EXPECT_EQ(why({"",
                   "  %z = f32[] constant(0)\n  %ob = f32[8,8] pad(%g, %z), padding=0_0x0_0\n"
                   "  %other = f32[8,8] negate(%g)\n"}),
              Lines{"feeds no dot: ob (pad) computes between it and d"});
    EXPECT_EQ(why({"", "", "", "  ROOT %d = f32[8,2] convolution(%g, %v), dim_labels=bf_io->bf\n"}),
              Lines{"feeds d (convolution), a product of a kind that is not taken"});
    EXPECT_EQ(
        why({"", "  %s = s32[2] constant({4,4})\n  %w = f32[2,8,2] broadcast(%v), dimensions={1,2}\n", "",
             "  ROOT %d = f32[8,2] ragged-dot(%g, %w, %s), lhs_contracting_dims={1}, "
             "rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}\n"}),
        Lines{"feeds d (ragged-dot), a product of a kind that is not taken"});
    EXPECT_EQ(
        why({"", "", "",
             "  ROOT %d = f32[8,2] dot(%g, %v, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
             "sparsity=L.1@2:4\n"}),
        Lines{"feeds d (dot), a product of a kind that is not taken"});
    EXPECT_EQ(why({"",
                   "  %q = f32[8,8] parameter(2)\n  %t = (f32[8,8], f32[8,8]) tuple(%g, %q)\n"
                   "  %w = (f32[8,8], f32[8,8]) while(%t), condition=%holds, body=%swaps\n"
                   "  %ob = f32[8,8] get-tuple-element(%w), index=0\n",
                   "%holds {\n  p = (f32[8,8], f32[8,8]) parameter(0)\n  ROOT c = pred[] constant(true)\n}\n"
                   "%swaps {\n  p = (f32[8,8], f32[8,8]) parameter(0)\n  a = f32[8,8] get-tuple-element(p), "
                   "index=0\n"
                   "  b = f32[8,8] get-tuple-element(p), index=1\n  ROOT t = (f32[8,8], f32[8,8]) tuple(b, "
                   "a)\n}\n"}),
              Lines{"feeds no dot that is taken: the steps of w (while) make something else of it"});
    EXPECT_EQ(why({"", "  %ob = f32[8,8] copy(%g)\n"}), Lines{});
    EXPECT_EQ(why({"", "", "", "  ROOT %d = f32[8,8] negate(%g)\n"}), Lines{});  // no product is near
}

TEST(Dataflow, ACollectiveBehindAProductSaysWhyItDrainsNone) {
    const auto found = candidates(R"(HloModule m, num_partitions=2
%sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY %e (x: f32[8,4], w: f32[4,6]) -> f32[8,6] {
  %x = f32[8,4] parameter(0)
  %w = f32[4,6] parameter(1)
  %d = f32[8,6] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %scaled = f32[8,6] multiply(%d, %d)
  ROOT %r = f32[8,6] all-reduce(%scaled), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%sum
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].why, Lines{"drains no dot: scaled (multiply) computes between it and d"});
    EXPECT_NE(candidates_table(found).find("  drains no dot: scaled (multiply)"), std::string::npos);
}

TEST(Candidates, APermuteOfNoPairsIsLegalAndMovesNothing) {
    for (const char* text :
         {"HloModule m, num_partitions=4\nENTRY e { a = f32[4,8] parameter(0)\n"
          "  ROOT p = f32[4,8] collective-permute(a), channel_id=1, source_target_pairs={} }\n",
          "HloModule m\nENTRY e { a = f32[4,8] parameter(0)\n"
          "  ROOT p = f32[4,8] collective-permute(a), source_target_pairs={} }\n"}) {
        const auto found = candidates(text);
        ASSERT_EQ(found.size(), 1U);
        EXPECT_EQ(found[0].problem, "");
        EXPECT_EQ(found[0].why, Lines{"moves nothing: it has no pairs, and gives every rank zeros"});
        EXPECT_EQ(findings(found[0]), Lines{});
        EXPECT_TRUE(plan_of(found[0])->ranks[0].empty());
    }
}

TEST(Candidates, APermuteOfSlicesIsRefused) {
    const auto found = candidates(
        "HloModule m, num_partitions=2\nENTRY e { a = f32[4,8] parameter(0)\n  b = f32[4,8] parameter(1)\n"
        "  z = s32[] constant(0)\n  s = (s32[], s32[]) tuple(z, z)\n"
        "  ROOT p = f32[4,8] collective-permute(a, b, s, s), channel_id=1, source_target_pairs={{0,1}}, "
        "slice_sizes={{2,8}} }\n");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].problem,
              "moves slices whose places are values of the program; a plan's regions are fixed");
}

}  // namespace
}  // namespace syncopate::ingest
