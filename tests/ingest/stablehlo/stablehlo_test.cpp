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
