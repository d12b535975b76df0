// StableHLO: the generic and the pretty form say the same, and the same as HLO.
#include "syncopate/ingest/stablehlo/stablehlo.hpp"

#include <string>

#include <gtest/gtest.h>

#include "ingest/programs.hpp"

namespace syncopate::ingest {
namespace {

using test::dots;
using test::findings;
using test::Lines;
using test::stablehlo_candidates;

std::string error_of(std::string_view text) {
    const Result<TensorProgram> program = read_stablehlo(text, "p.mlir");
    return program ? "no error" : program.error().to_string();
}

TEST(StableHlo, AnAllGatherThatFeedsADotIsFoundInBothForms) {
    const std::string gather = R"(
  %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
       replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> : (tensor<128x64xbf16>) -> tensor<256x64xbf16>
)";
    const std::string begin =
        R"(module @m attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
 func.func public @main(%x: tensor<128x64xbf16> {mhlo.sharding = "{devices=[2,1,2]<=[4]}"}, %w: tensor<64x96xbf16>) -> (tensor<256x96xbf16> {jax.result_info = ""}) {)";
    const std::string end = "\n  return %d : tensor<256x96xbf16>\n }\n}\n";
    for (const std::string dot :
         {"%d = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : "
          "(tensor<256x64xbf16>, tensor<64x96xbf16>) -> tensor<256x96xbf16>",
          "%d = \"stablehlo.dot_general\"(%g, %w) <{dot_dimension_numbers = "
          "#stablehlo.dot<lhs_contracting_dimensions = "
          "[1], rhs_contracting_dimensions = [0]>}> : (tensor<256x64xbf16>, tensor<64x96xbf16>) -> "
          "tensor<256x96xbf16>",
          "%d = stablehlo.dot %g, %w : (tensor<256x64xbf16>, tensor<64x96xbf16>) -> tensor<256x96xbf16>"}) {
        const auto found = stablehlo_candidates(begin + gather + "  " + dot + end);
        ASSERT_EQ(found.size(), 1U) << dot;
        EXPECT_EQ(dots(found[0]), Lines{"feeds %d lhs 0 rows M256 N96 K64"});
        EXPECT_EQ(found[0].groups, (std::vector<std::vector<std::int32_t>>{{0, 1}, {2, 3}}));
        EXPECT_EQ(found[0].spec(), "all_gather_matmul:M=256,N=96,K=64,dtype=bf16");
        EXPECT_EQ(findings(found[0]), Lines{});
    }
}

TEST(StableHlo, ReductionsAreToldByTheirRegion) {
    const auto text = [](const std::string& op) {
        return "func.func @f(%a: tensor<8x4xf32>) -> tensor<4x4xf32> {\n"
               "  %r = \"stablehlo.reduce_scatter\"(%a) ({\n"
               "  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
               "    %s = " +
               op +
               "\n    stablehlo.return %s : tensor<f32>\n"
               "  }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64} : "
               "(tensor<8x4xf32>) -> tensor<4x4xf32>\n  func.return %r : tensor<4x4xf32>\n}\n";
    };
    const auto sum = stablehlo_candidates(text("stablehlo.add %x, %y : tensor<f32>"));
    EXPECT_EQ(sum[0].reduce, plan::Reduce::sum);
    EXPECT_EQ(findings(sum[0]), Lines{});
    const auto max = stablehlo_candidates(
        text("\"stablehlo.maximum\"(%y, %x) : (tensor<f32>, tensor<f32>) -> tensor<f32>"));
    EXPECT_EQ(max[0].reduce, plan::Reduce::max);
    const auto product = stablehlo_candidates(text("stablehlo.multiply %x, %y : tensor<f32>"));
    EXPECT_NE(product[0].problem.find("whose result is multiply"), std::string::npos) << product[0].problem;
}

TEST(StableHlo, AnAllToAllBetweenTwoAxesIsAReshardingInPlace) {
    const auto found = stablehlo_candidates(R"(func.func @f(%a: tensor<4x16xf32>) -> tensor<16x4xf32> {
  %0 = "stablehlo.all_to_all"(%a) {split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 4 : i64,
    replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<4x16xf32>) -> tensor<16x4xf32>
  return %0 : tensor<16x4xf32>
})");
    EXPECT_EQ(findings(found[0]), Lines{});
    const plan::Plan plan = *plan_of(found[0]);
    EXPECT_EQ(plan.tensors[0].shape, (std::vector<std::int64_t>{16, 16}));
    EXPECT_EQ(plan.initial[1].chunk.region, (plan::Region{{4, 8}, {0, 16}}));
    EXPECT_EQ(plan.final[1].chunk.region, (plan::Region{{0, 16}, {4, 8}}));
}

TEST(StableHlo, ACollectiveThatDoesNotNameItsAxesIsRefused) {
    const auto exchange = [](const std::string& axes) {
        return "func.func @f(%a: tensor<4x16xf32>) -> tensor<4x16xf32> {\n  %0 = "
               "\"stablehlo.all_to_all\"(%a) {" +
               axes +
               R"(split_count = 4 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}
    : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
})";
    };
    for (const char* axes : {"split_dimension = 1 : i64, ", "concat_dimension = 1 : i64, "}) {
        const auto program = read_stablehlo(exchange(axes), "t.mlir");
        ASSERT_FALSE(program) << axes;
        EXPECT_EQ(program.error().to_string(),
                  "t.mlir:2:3: an all_to_all needs both split_dimension and concat_dimension");
    }
    const auto negative =
        stablehlo_candidates(exchange("split_dimension = -3 : i64, concat_dimension = 1 : i64, "));
    EXPECT_EQ(negative[0].problem, "names axis -3 of f32[4,16]");
    const auto gather = stablehlo_candidates(R"(func.func @f(%a: tensor<4xf32>) -> tensor<8xf32> {
  %0 = "stablehlo.all_gather"(%a) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}
    : (tensor<4xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
})");
    EXPECT_EQ(gather[0].problem, "names no axis of f32[4]");
}

TEST(StableHlo, GroupsOfUnequalSizeAreFilledUpWithMinusOne) {
    const auto found = stablehlo_candidates(R"(func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.all_reduce"(%a) ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %s = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 2, -1], [1, 3, 4]]> : tensor<2x3xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
})");
    EXPECT_EQ(found[0].groups, (std::vector<std::vector<std::int32_t>>{{0, 2}, {1, 3, 4}}));
    EXPECT_EQ(findings(found[0]), Lines{});
}

TEST(StableHlo, AsynchronousRegionsAreSeenThrough) {
    const auto found =
        stablehlo_candidates(R"(func.func @main(%a: tensor<4x2xf32>, %w: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = "stablehlo.async_start"(%a) ({
  ^bb0(%b: tensor<4x2xf32>):
    %1 = "stablehlo.all_gather"(%b) <{all_gather_dim = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4x2xf32>) -> tensor<4x4xf32>
    stablehlo.return %1 : tensor<4x4xf32>
  }) : (tensor<4x2xf32>) -> !stablehlo.future<tensor<4x4xf32>>
  %2 = "stablehlo.async_done"(%0) : (!stablehlo.future<tensor<4x4xf32>>) -> tensor<4x4xf32>
  %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %4 : tensor<4x8xf32>
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(dots(found[0]), Lines{"feeds %4 lhs 0 contracted M4 N8 K4"});
}

TEST(StableHlo, AWindowedEinsumIsFoundInALoop) {
    const auto found = stablehlo_candidates(R"(module attributes {mhlo.num_partitions = 2 : i32} {
func.func @main(%a: tensor<8x16xbf16>, %w: tensor<16x24xbf16>) -> tensor<16x24xbf16> {
  %z = stablehlo.constant dense<0.0> : tensor<16x24xbf16>
  %c0 = stablehlo.constant dense<0> : tensor<ui32>
  %r:4 = stablehlo.while(%x = %a, %v = %w, %out = %z, %i = %c0) : tensor<8x16xbf16>, tensor<16x24xbf16>, tensor<16x24xbf16>, tensor<ui32>
  cond {
    %n = stablehlo.constant dense<2> : tensor<ui32>
    %go = stablehlo.compare LT, %i, %n, UNSIGNED : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<ui32>
    %one = stablehlo.constant dense<1> : tensor<ui32>
    %two = stablehlo.constant dense<2> : tensor<ui32>
    %eight = stablehlo.constant dense<8> : tensor<ui32>
    %y = "stablehlo.collective_permute"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<8x16xbf16>) -> tensor<8x16xbf16>
    %d = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<8x16xbf16>, tensor<16x24xbf16>) -> tensor<8x24xbf16>
    %me = stablehlo.partition_id : tensor<ui32>
    %s = stablehlo.add %i, %me : tensor<ui32>
    %m = stablehlo.remainder %s, %two : tensor<ui32>
    %f = stablehlo.multiply %m, %eight : tensor<ui32>
    %next = stablehlo.dynamic_update_slice %out, %d, %f, %zero : (tensor<16x24xbf16>, tensor<8x24xbf16>, tensor<ui32>, tensor<ui32>) -> tensor<16x24xbf16>
    %j = stablehlo.add %i, %one : tensor<ui32>
    stablehlo.return %y, %v, %next, %j : tensor<8x16xbf16>, tensor<16x24xbf16>, tensor<16x24xbf16>, tensor<ui32>
  }
  return %r#2 : tensor<16x24xbf16>
}
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(found[0].windowed);
    EXPECT_EQ(dots(found[0]), Lines{"feeds %d lhs 0 rows M16 N24 K16"});
    EXPECT_EQ(findings(found[0]), Lines{});
}

TEST(StableHlo, ARingThatCallsFunctionsAndCapturesValuesIsAGather) {
    // What JAX makes of fori_loop and ppermute: the body calls a function, that one a remainder which is made
    // positive, and the rank's number is computed before the loop.
    const auto found = stablehlo_candidates(R"(module attributes {mhlo.num_partitions = 2 : i32} {
func.func public @main(%a: tensor<16x16xbf16>, %w: tensor<16x24xbf16>) -> tensor<16x24xbf16> {
  %0 = sdy.manual_computation(%a, %w) in_shardings=[] out_shardings=[] manual_axes={"x"} (%s: tensor<8x16xbf16>, %v: tensor<16x24xbf16>) {
    %c = stablehlo.constant dense<2> : tensor<ui32>
    %n = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.partition_id : tensor<ui32>
    %2 = stablehlo.remainder %1, %c : tensor<ui32>
    %me = stablehlo.convert %2 : (tensor<ui32>) -> tensor<i32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %z = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<bf16>) -> tensor<16x24xbf16>
    %i0 = stablehlo.constant dense<0> : tensor<i32>
    %r:3 = stablehlo.while(%i = %i0, %out = %z, %x = %s) : tensor<i32>, tensor<16x24xbf16>, tensor<8x16xbf16>
    cond {
      %go = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %b:3 = func.call @closed_call(%v, %me, %i, %out, %x) : (tensor<16x24xbf16>, tensor<i32>, tensor<i32>, tensor<16x24xbf16>, tensor<8x16xbf16>) -> (tensor<i32>, tensor<16x24xbf16>, tensor<8x16xbf16>)
      stablehlo.return %b#0, %b#1, %b#2 : tensor<i32>, tensor<16x24xbf16>, tensor<8x16xbf16>
    }
    sdy.return %r#1 : tensor<16x24xbf16>
  } : (tensor<16x16xbf16>, tensor<16x24xbf16>) -> tensor<16x24xbf16>
  return %0 : tensor<16x24xbf16>
}
func.func private @closed_call(%v: tensor<16x24xbf16>, %me: tensor<i32>, %i: tensor<i32>, %out: tensor<16x24xbf16>, %x: tensor<8x16xbf16>) -> (tensor<i32>, tensor<16x24xbf16>, tensor<8x16xbf16>) {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %j = stablehlo.add %i, %one : tensor<i32>
  %d = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<8x16xbf16>, tensor<16x24xbf16>) -> tensor<8x24xbf16>
  %0 = stablehlo.add %me, %i : tensor<i32>
  %1 = call @remainder(%0) : (tensor<i32>) -> tensor<i32>
  %eight = stablehlo.constant dense<8> : tensor<i32>
  %f = stablehlo.multiply %1, %eight : tensor<i32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %next = stablehlo.dynamic_update_slice %out, %d, %f, %zero : (tensor<16x24xbf16>, tensor<8x24xbf16>, tensor<i32>, tensor<i32>) -> tensor<16x24xbf16>
  %y = "stablehlo.collective_permute"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<8x16xbf16>) -> tensor<8x16xbf16>
  return %j, %next, %y : tensor<i32>, tensor<16x24xbf16>, tensor<8x16xbf16>
}
func.func private @remainder(%a: tensor<i32>) -> tensor<i32> {
  %n = stablehlo.constant dense<2> : tensor<i32>
  %r = stablehlo.remainder %a, %n : tensor<i32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %ne = stablehlo.compare NE, %r, %zero, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %lt = stablehlo.compare LT, %r, %zero, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %both = stablehlo.and %lt, %ne : tensor<i1>
  %up = stablehlo.add %r, %n : tensor<i32>
  %m = stablehlo.select %both, %up, %r : tensor<i1>, tensor<i32>
  return %m : tensor<i32>
}
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(found[0].windowed) << ::testing::PrintToString(found[0].why);
    EXPECT_EQ(found[0].kind, "all-gather");
    EXPECT_EQ(dots(found[0]), Lines{"feeds %d lhs 0 rows M16 N24 K16"});
    EXPECT_EQ(findings(found[0]), Lines{});
}

/// A gather `%g`, `ops` that make `%b` of it, and the dot of `%b`.
std::string gather_and(const std::string& ops, const std::string& functions = "") {
    return "module attributes {mhlo.num_partitions = 2 : i32} {\n"
           "func.func @main(%a: tensor<4x8xf32>, %w: tensor<8x2xf32>) -> tensor<8x2xf32> {\n"
           "  %g = \"stablehlo.all_gather\"(%a) <{all_gather_dim = 0 : i64, channel_handle = "
           "#stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : "
           "tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x8xf32>) -> tensor<8x8xf32>\n" +
           ops +
           "  %d = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, "
           "tensor<8x2xf32>) -> tensor<8x2xf32>\n  return %d : tensor<8x2xf32>\n}\n" +
           functions + "}\n";
}

TEST(StableHlo, IdentitiesUnderOtherNamesAreSeenThrough) {
    const std::string same =
        "func.func private @same(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {\n"
        "  return %x : tensor<8x8xf32>\n}\n";
    const std::string t = "tensor<8x8xf32>";
    for (const auto& [ops, functions] : {
             std::pair{"  %b = stablehlo.optimization_barrier %g : " + t + "\n", std::string()},
             std::pair{"  %x:2 = stablehlo.optimization_barrier %w, %g : tensor<8x2xf32>, " + t +
                           "\n  %b = stablehlo.convert %x#1 : " + t + "\n",
                       std::string()},
             std::pair{"  %x:2 = \"stablehlo.optimization_barrier\"(%g, %w) : (" + t +
                           ", tensor<8x2xf32>) -> (" + t +
                           ", tensor<8x2xf32>)\n  %b = "
                           "stablehlo.optimization_barrier %x#0 : " +
                           t + "\n",
                       std::string()},
             std::pair{
                 "  %b = stablehlo.composite \"my.op\" %g {decomposition = @same, version = 1 : i32} : (" +
                     t + ") -> " + t + "\n",
                 same},
             std::pair{"  %b = \"stablehlo.composite\"(%g) <{name = \"my.op\", decomposition = @same}> : (" +
                           t + ") -> " + t + "\n",
                       same},
             std::pair{"  %c = stablehlo.composite \"my.op\" %a {decomposition = @same4} : "
                       "(tensor<4x8xf32>) -> tensor<4x8xf32>\n  %b = call @same(%g) : (" +
                           t + ") -> " + t + "\n",
                       same + "func.func private @same4(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {\n"
                              "  return %x : tensor<4x8xf32>\n}\n"},
             std::pair{"  %b = sdy.sharding_constraint %g <@mesh, [{}, {}]> : " + t + "\n", std::string()},
             std::pair{"  %b = stablehlo.custom_call @Sharding(%g) : (" + t + ") -> " + t + "\n",
                       std::string()},
             std::pair{"  %b = stablehlo.reduce_precision %g, format = e8m23 : " + t + "\n", std::string()},
             std::pair{"  %b = stablehlo.slice %g [0:8, 0:8] : (" + t + ") -> " + t + "\n", std::string()},
             std::pair{"  %b = stablehlo.broadcast_in_dim %g, dims = [0, 1] : (" + t + ") -> " + t + "\n",
                       std::string()},
         }) {
        const auto found = stablehlo_candidates(gather_and(ops, functions));
        ASSERT_EQ(found.size(), 1U) << ops;
        EXPECT_EQ(dots(found[0]), Lines{"feeds %d lhs 0 rows M8 N2 K8"}) << ops;
        EXPECT_EQ(found[0].why, Lines{}) << ops;
    }
    EXPECT_EQ(stablehlo_candidates(gather_and("  %b = stablehlo.negate %g : " + t + "\n"))[0].why,
              Lines{"feeds no dot: %b (negate) computes between it and %d"});
    EXPECT_EQ(stablehlo_candidates(gather_and("  %b = stablehlo.broadcast_in_dim %g, dims = [1, 0] : (" + t +
                                              ") -> " + t + "\n"))[0]
                  .why,
              Lines{"feeds no dot: %b (broadcast-in-dim) computes between it and %d"});
    EXPECT_EQ(stablehlo_candidates(gather_and("  %p = stablehlo.constant dense<true> : tensor<i1>\n"
                                              "  %b = \"stablehlo.if\"(%p) ({ stablehlo.return %g : " +
                                              t + " }, { %n = stablehlo.negate %g : " + t +
                                              "\n stablehlo.return %n : " + t + " }) : (tensor<i1>) -> " + t +
                                              "\n"))[0]
                  .why,
              Lines{"feeds no dot: %b (conditional) computes between it and %d"});
}

TEST(StableHlo, AValueThatARegionCapturesIsStillThatValue) {
    const auto found = stablehlo_candidates(R"(module attributes {mhlo.num_partitions = 2 : i32} {
func.func @main(%a: tensor<4x8xf32>, %w: tensor<8x2xf32>) -> tensor<8x2xf32> {
  %p:2 = stablehlo.optimization_barrier %w, %a : tensor<8x2xf32>, tensor<4x8xf32>
  %g = "stablehlo.all_gather"(%p#1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x8xf32>) -> tensor<8x8xf32>
  %i0 = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %i0, %o = %p#0) : tensor<i32>, tensor<8x2xf32>
  cond {
    %n = stablehlo.constant dense<3> : tensor<i32>
    %go = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %d = stablehlo.dot_general %g, %p#0, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
    stablehlo.return %j, %d : tensor<i32>, tensor<8x2xf32>
  }
  return %r#1 : tensor<8x2xf32>
}
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(dots(found[0]), Lines{"feeds %d lhs 0 rows M8 N2 K8"});
}

TEST(StableHlo, LinesOfTheUsersProgramComeFromLocations) {
    std::string text = gather_and("  %b = stablehlo.optimization_barrier %g : tensor<8x8xf32> loc(#loc1)\n");
    const auto with = [&](const std::string& of_gather, const std::string& of_dot) {
        std::string made = text;
        made.insert(made.find('\n', made.find("%g =")), " loc(" + of_gather + ")");
        made.insert(made.find('\n', made.find("%d =")), " loc(" + of_dot + ")");
        return stablehlo_candidates(made + R"(
#loc = loc(unknown)
#loc1 = loc("/home/me/model.py":31:4 to :9)
#loc2 = loc("/home/me/train.py":7:0)
#loc3 = loc("mlp"(#loc1))
#loc4 = loc(callsite(#loc3 at #loc2))
#loc5 = loc("jit(f)/all_gather"(#loc4))
#loc6 = loc(fused<"x">[#loc5, #loc2])
#loc7 = loc(#loc7)
)");
    };
    auto found = with("#loc5", "#loc2");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].source, "/home/me/model.py:31");
    EXPECT_EQ(found[0].exchanges[0].dots.at(0).source, "/home/me/train.py:7");
    EXPECT_EQ(with("\"here.py\":3:1", "#loc6")[0].source, "here.py:3");
    EXPECT_EQ(with("#loc", "#loc6")[0].exchanges[0].dots.at(0).source, "/home/me/model.py:31");
    for (const char* none : {"#loc", "#loc7", "#loc99", "\"name\"", "unknown"})
        EXPECT_EQ(with(none, none)[0].source, "") << none;
}

TEST(StableHlo, ABranchMayOrMayNotRun) {
    for (const char* branch : {"\"stablehlo.case\"(%i)", "\"stablehlo.if\"(%p)"}) {
        const auto found =
            stablehlo_candidates(std::string(R"(module attributes {mhlo.num_partitions = 2 : i32} {
func.func @main(%a: tensor<4x8xf32>, %i: tensor<i32>, %p: tensor<i1>) -> tensor<8x8xf32> {
  %0 = )") + branch + R"( ({
    %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %g : tensor<8x8xf32>
  }, {
    %z = stablehlo.constant dense<0.0> : tensor<8x8xf32>
    stablehlo.return %z : tensor<8x8xf32>
  }) : (tensor<i1>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
})");
        ASSERT_EQ(found.size(), 1U) << branch;
        EXPECT_EQ(found[0].problem, "stands in a branch of %0; whether it runs depends on data") << branch;
    }
}

TEST(StableHlo, APermuteOfNoPairsIsLegal) {
    const auto found = stablehlo_candidates(R"(module attributes {mhlo.num_partitions = 4 : i32} {
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = "stablehlo.collective_permute"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<> : tensor<0x2xi64>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].problem, "");
    EXPECT_EQ(found[0].num_ranks, 4);
    EXPECT_EQ(findings(found[0]), Lines{});
}

TEST(StableHlo, AnAllToAllSplitsIntoAsManyPartsAsThereAreRanks) {
    const auto found = stablehlo_candidates(R"(module attributes {mhlo.num_partitions = 2 : i32} {
func.func @main(%a: tensor<8x4xf32>) -> tensor<16x2xf32> {
  %0 = "stablehlo.all_to_all"(%a) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<8x4xf32>) -> tensor<16x2xf32>
  return %0 : tensor<16x2xf32>
}
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].problem, "splits into 4 parts over 2 ranks");
}

/// The shape of the instruction called `name`.
std::string shape_of(std::string_view text, std::string_view name) {
    const Result<TensorProgram> program = read_stablehlo(text, "p.mlir");
    EXPECT_TRUE(program) << program.error().to_string();
    if (!program) return {};
    for (const Computation& computation : program->computations) {
        for (const Instruction& instruction : computation.instructions) {
            if (instruction.name == name) return instruction.shape.to_string();
        }
    }
    return "no " + std::string(name);
}

TEST(StableHlo, SeveralResultsHaveTheirTypesInEveryForm) {
    const auto in = [](const std::string& op) {
        return "func.func @f(%a: tensor<8x4xf32>, %i: tensor<8x4xi32>, %z: tensor<f32>, %p: tensor<i1>) {\n "
               " " +
               op + "\n  return\n}";
    };
    const std::string types = "(tensor<8xf32>, tensor<8xi32>)";
    for (const std::string& op : {
             "%0:2 = stablehlo.custom_call @f(%a) : (tensor<8x4xf32>) -> " + types,
             "%0:2 = chlo.top_k(%a, k = 1) : tensor<8x4xf32> -> " + types,
             std::string("%0:2 = stablehlo.optimization_barrier %a, %i : tensor<8xf32>, tensor<8xi32>"),
             "%0:2 = scf.if %p -> " + types + " {\n    stablehlo.return %a, %i : " + types + "\n  }",
             "%0:2 = stablehlo.reduce(%a init: %z), (%i init: %z) across dimensions = [1] : "
             "(tensor<8x4xf32>, "
             "tensor<8x4xi32>, tensor<f32>, tensor<f32>) -> " +
                 types +
                 "\n   reducer(%x: tensor<f32>, %y: tensor<f32>) (%u: tensor<i32>, %v: tensor<i32>) {\n"
                 "    stablehlo.return %x, %u : tensor<f32>, tensor<i32>\n  }",
             "%0:2 = sdy.manual_computation(%a, %i) in_shardings=[] manual_axes={\"x\"} (%x: tensor<8xf32>, "
             "%y: tensor<8xi32>) {\n    sdy.return %x, %y : tensor<8xf32>, tensor<8xi32>\n  } : "
             "(tensor<8x4xf32>, tensor<8x4xi32>) -> " +
                 types,
         }) {
        EXPECT_EQ(shape_of(in(op), "%0#0"), "f32[8]") << op;
        EXPECT_EQ(shape_of(in(op), "%0#1"), "s32[8]") << op;
    }
}

TEST(StableHlo, TypesWithParametersAreShownWhole) {
    for (const auto& [type, shown] :
         {std::pair{"tensor<8x4xcomplex<f32>>", "c64[8,4]"}, std::pair{"tensor<complex<f64>>", "c128[]"},
          std::pair{"tensor<4x!quant.uniform<i8:f32, 5.0e-01:-3>>", "quant.uniform<i8:f32, 5.0e-01:-3>[4]"},
          std::pair{"tensor<4x2x!quant.uniform<i8<-7:7>:f32:1, {0.5, 0.25}>>",
                    "quant.uniform<i8<-7:7>:f32:1, {0.5, 0.25}>[4,2]"},
          std::pair{"!quant.uniform<i8:f32, 0.5>", "!quant.uniform<i8:f32, 0.5>"},
          std::pair{"!stablehlo.token", "token[]"}, std::pair{"!mhlo.token", "token[]"},
          std::pair{"!stablehlo.future<tensor<4xf32>>", "!stablehlo.future<tensor<4xf32>>"},
          std::pair{"tuple<tensor<2xcomplex<f32>>, tuple<tensor<f8E4M3FN>>, !stablehlo.token>",
                    "(c64[2], (f8e4m3fn[]), token[])"},
          std::pair{"tensor<?x2xui8, #stablehlo.bounds<4, ?>>", "u8[-1,2]"},
          std::pair{"tensor<4xi1>", "pred[4]"}, std::pair{"tensor<4xf4E2M1FN>", "f4e2m1fn[4]"}}) {
        const std::string text = std::string("func.func @f(%a: ") + type + ") {\n  return\n}";
        EXPECT_EQ(shape_of(text, "%a"), shown) << type;
    }
    const auto found = stablehlo_candidates(R"(module attributes {mhlo.num_partitions = 2 : i32} {
func.func @main(%a: tensor<4x8xcomplex<f32>>) -> tensor<8x8xcomplex<f32>> {
  %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> : (tensor<4x8xcomplex<f32>>) -> tensor<8x8xcomplex<f32>>
  return %g : tensor<8x8xcomplex<f32>>
}
})");
    EXPECT_EQ(found.at(0).problem, "moves c64, which no dtype of a plan is");
}

TEST(StableHlo, ARegionOfAPrettyOperationMayBeFollowedByItsType) {
    const auto found = stablehlo_candidates(R"(module attributes {mhlo.num_replicas = 2 : i32} {
func.func @f(%a: tensor<8x4xf32>, %b: tensor<2xf32>) -> tensor<2xf32> {
  %0:2 = stablehlo.all_reduce %a, %b replica_groups = dense<[[0, 1]]> : tensor<1x2xi64> {
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %s = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %s : tensor<f32>
  } : (tensor<8x4xf32>, tensor<2xf32>) -> (tensor<8x4xf32>, tensor<2xf32>)
  return %0#1 : tensor<2xf32>
}
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].problem, "");
    EXPECT_EQ(found[0].groups, (std::vector<std::vector<std::int32_t>>{{0, 1}}));
    ASSERT_EQ(found[0].exchanges.size(), 2U);
    EXPECT_EQ(found[0].exchanges[1].after.to_string(), "f32[2]");
    EXPECT_EQ(findings(found[0]), Lines{});
}

TEST(StableHlo, ModulesStandSideBySideOrOneIsChosen) {
    const auto module = [](const std::string& name, int ranks, const std::string& tensor) {
        return "module @" + name + " attributes {mhlo.num_replicas = " + std::to_string(ranks) +
               " : i32} {\n sdy.mesh @m = <[\"x\"=" + std::to_string(ranks) +
               "]>\n func.func @g(%a: " + tensor + ") -> " + tensor + " {\n  return %a : " + tensor +
               "\n }\n func.func @main(%a: " + tensor + ") -> " + tensor + " {\n  %0 = call @g(%a) : (" +
               tensor + ") -> " + tensor +
               "\n  %1 = \"stablehlo.all_to_all\"(%0) {split_dimension = 0 : i64, concat_dimension = 0 : "
               "i64, "
               "split_count = 2 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @m, axes = "
               "[\"x\"]>} : (" +
               tensor + ") -> " + tensor + "\n  return %1 : " + tensor + "\n }\n}\n";
    };
    const std::string both = module("one", 2, "tensor<8xf32>") + module("two", 2, "tensor<4xf32>");
    const auto found = stablehlo_candidates(both);
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found[1].exchanges[0].before.to_string(), "f32[4]");
    const Result<Import> import = import_stablehlo(both, "p.mlir");
    ASSERT_FALSE(import);
    EXPECT_EQ(
        import.error().to_string(),
        "p.mlir: holds 2 collectives; choose one with --pick 0 to 1, --list shows them; or a module with "
        "--module: one, two");
    ImportOptions options;
    options.module = "two";
    const Result<Import> second = import_stablehlo(both, "p.mlir", options);
    ASSERT_TRUE(second) << second.error().to_string();
    EXPECT_EQ(second->plan.tensors[0].shape, (std::vector<std::int64_t>{2, 4}));
    options.module = "three";
    EXPECT_EQ(import_stablehlo(both, "p.mlir", options).error().to_string(),
              "p.mlir:1:1: holds no module called three; choose one with --module, by its name or number: 0 "
              "(one), 1 (two)");
    EXPECT_EQ(
        error_of(module("one", 2, "tensor<8xf32>") + module("two", 4, "tensor<4xf32>")),
        "p.mlir:12:45: mhlo.num_replicas is 4, and 2 in another module; choose one module with --module, "
        "by its name or number");
}

TEST(StableHlo, ShardysCollectivesAreListedAndRefused) {
    const auto found = stablehlo_candidates(R"(sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @f(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}) -> tensor<8x8xf32> {
  %0 = sdy.all_gather [{"x"}, {}] %a out_sharding=<@mesh, [{}, {}]> : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
})");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].kind, "sdy.all_gather");
    EXPECT_NE(found[0].problem.find("write its placements as partition IR"), std::string::npos);
}

TEST(StableHlo, GroupsOfAMeshThatIsNowhereAreRefused) {
    const auto found = stablehlo_candidates(R"(func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "stablehlo.all_gather"(%a) {all_gather_dim = 0, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = ["a"]>} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
})");
    EXPECT_EQ(found[0].problem, "has replica_groups of a mesh @mesh that the text does not define");
}

TEST(StableHloError, IsAtTheLineAndColumnOfWhatIsWrong) {
    EXPECT_EQ(error_of(""), "p.mlir:1:1: empty: expected MLIR text");
    EXPECT_EQ(error_of("func.func @f(%a: tensor<4xf32>) {\n  %0 = stablehlo.add %a, %b : tensor<4xf32>\n}"),
              "p.mlir:2:26: reads %b, which nothing above defines");
    EXPECT_EQ(error_of("func.func @f(%a: tensor<4xf32>) {\n  return\n"),
              "p.mlir:1:33: a region that is never closed");
    EXPECT_EQ(error_of("func.func @f(%a: tensor<4f32>) {\n}"),
              "p.mlir:1:26: expected 'x' after an axis' size, found \"f32\"");
    EXPECT_EQ(
        error_of(
            "func.func @f(%a: tensor<4xf32>) {\n  %0:2 = \"x.y\"(%a) : (tensor<4xf32>) -> tensor<4xf32>\n  "
            "return %0#5 : tensor<4xf32>\n}"),
        "p.mlir:3:10: %0 has 2 results");
    EXPECT_EQ(error_of("}"), "p.mlir:1:1: '}' closes nothing");
    EXPECT_EQ(error_of("sdy.mesh @m = <[]>\n"), "p.mlir:1:1: no function");
}

TEST(StableHloError, DepthIsBounded) {
    std::string deep = "func.func @f() {\n";
    for (int i = 0; i < 100000; ++i) deep += "\"a.b\"() ({\n";
    EXPECT_NE(error_of(deep).find("regions nested more than 64 deep"), std::string::npos);
    EXPECT_NE(error_of("func.func @f(%a: " + std::string(100000, '<')).find("p.mlir:1:18: "),
              std::string::npos);
}

TEST(StableHlo, GroupsMayLieAlongAxesOfAMesh) {
    const auto gather = [](const std::string& mesh, const std::string& axes, int ranks) {
        return stablehlo_candidates(mesh + R"(
func.func @f(%a: tensor<8xf32>) -> tensor<)" +
                                    std::to_string(8 * ranks) + R"(xf32> {
  %0 = "stablehlo.all_gather"(%a) {all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @m, axes = )" +
                                    axes + "> } : (tensor<8xf32>) -> tensor<" + std::to_string(8 * ranks) +
                                    "xf32>\n  return %0 : tensor<" + std::to_string(8 * ranks) +
                                    "xf32>\n}")[0];
    };
    using Groups = std::vector<std::vector<std::int32_t>>;
    const std::string mesh = R"(sdy.mesh @m = <["x"=2, "y"=3]>)";
    EXPECT_EQ(gather(mesh, R"(["y"])", 3).groups, (Groups{{0, 1, 2}, {3, 4, 5}}));
    EXPECT_EQ(gather(mesh, R"(["x"])", 2).groups, (Groups{{0, 3}, {1, 4}, {2, 5}}));
    EXPECT_EQ(gather(mesh, R"(["y", "x"])", 6).groups, (Groups{{0, 3, 1, 4, 2, 5}}));
    EXPECT_EQ(findings(gather(mesh, R"(["y"])", 3)), Lines{});
    EXPECT_EQ(
        gather(R"("sdy.mesh"() <{mesh = #sdy.mesh<["x"=4]>, sym_name = "m"}> : () -> ())", R"(["x"])", 4)
            .groups,
        (Groups{{0, 1, 2, 3}}));
    const auto problem = [&](const std::string& with, const std::string& axes) {
        return gather(with, axes, 2).problem;
    };
    EXPECT_EQ(problem(mesh, R"(["z"])"), "has replica_groups of an axis \"z\" that the mesh does not have");
    EXPECT_EQ(problem(mesh, R"(["x":(1)2])"),
              "has replica_groups of a part of a mesh axis, which is not taken");
    EXPECT_EQ(problem(mesh, R"(["x", "x"])"), "has replica_groups of a mesh axis named twice");
    EXPECT_EQ(problem(R"(sdy.mesh @m = <["x"=2], device_ids=[1,0]>)", R"(["x"])"),
              "has replica_groups of a mesh with device_ids, whose order is not taken");
    EXPECT_EQ(problem(R"(sdy.mesh @m = <["x"=99999999, "y"=99999999]>)", R"(["x"])"),
              "has replica_groups of a mesh whose axes cannot be read");
}

}  // namespace
}  // namespace syncopate::ingest
