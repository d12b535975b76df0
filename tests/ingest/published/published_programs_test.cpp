// HLO and StableHLO that others have published, read in place; skipped where their folder is not there.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ingest/programs.hpp"
#include "syncopate/io.hpp"
#include "syncopate/plan/json/json.hpp"

namespace syncopate::ingest {
namespace {

const std::string kFolder = std::string(SYNCOPATE_SOURCE_DIR) + "/../shared/plans/";

/// How many candidates a file has, how many of them are dots' partners, and why those that are no plan are
/// none.
struct Published {
    const char* file;
    std::size_t candidates;
    std::size_t with_dots;
    std::vector<std::string> problems;  // parts of them, in order
    std::int32_t ranks = 0;             // --ranks
};

void PrintTo(const Published& published, std::ostream* out) { *out << published.file; }

class PublishedPrograms : public testing::TestWithParam<Published> {};

TEST_P(PublishedPrograms, AreListedAndEachCandidateVerifiesOrIsRefusedForATrueReason) {
    if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << kFolder << " is not there";
    const Result<std::string> text = read_file(kFolder + GetParam().file);
    ASSERT_TRUE(text) << text.error().to_string();
    ImportOptions options;
    options.ranks = GetParam().ranks;
    const auto candidates = list_candidates(*text, "file", Format::automatic, options);
    ASSERT_TRUE(candidates) << candidates.error().to_string();
    EXPECT_EQ(candidates->size(), GetParam().candidates);
    std::size_t with_dots = 0;
    std::size_t problems = 0;
    for (const Candidate& candidate : *candidates) {
        if (!candidate.operator_name().empty()) ++with_dots;
        if (!candidate.problem.empty()) {
            ASSERT_LT(problems, GetParam().problems.size()) << candidate.name << ": " << candidate.problem;
            EXPECT_NE(candidate.problem.find(GetParam().problems[problems++]), std::string::npos)
                << candidate.problem;
            continue;
        }
        EXPECT_EQ(test::findings(candidate), test::Lines{}) << candidate.name;
        const Result<plan::Plan> plan = plan_of(candidate);
        ASSERT_TRUE(plan);
        EXPECT_EQ(*plan::from_json(plan::to_json(*plan)), *plan);
    }
    EXPECT_EQ(with_dots, GetParam().with_dots);
    EXPECT_EQ(problems, GetParam().problems.size());
}

using test::Lines;
const std::string kShardy = "reshards a global array over a Shardy mesh";

Lines shardy_and(const std::string& last) {
    Lines problems(13, kShardy);
    problems.push_back(last);
    return problems;
}

INSTANTIATE_TEST_SUITE_P(
    Hlo, PublishedPrograms,
    testing::Values(
        Published{"xla_hlo/aws_llama_tp1_layer1.hlo", 0, 0, {}},
        Published{"xla_hlo/aws_llama_tp4_layer1.hlo", 2, 2, {}},
        Published{"xla_hlo/gpu_hlo_collective_cse.hlo", 3, 0, {}},
        Published{"xla_hlo/hlo_llama3_8b_cp_bf16_1x4.hlo", 79, 28, {}},
        Published{"xla_hlo/import.hlo", 18, 0, {"over all devices"}},
        Published{"xla_hlo/u4_all_gather_1x8.hlo", 1, 0, {"elements are smaller than a byte"}},
        Published{"xla_hlo_embedded/collective_permute_cycle_decomposer_test.ForwardCycleWithMatmul.L205.hlo",
                  1,
                  1,
                  {}},
        Published{"xla_hlo_embedded/gpu_hlo_schedule_test.LHSCostModel.L437.hlo",
                  2,
                  0,
                  {"over all devices", "over all devices"}},
        Published{"xla_hlo_embedded/gpu_hlo_schedule_test.LHSCostModel.L437.hlo", 2, 0, {}, 8},
        Published{"xla_hlo_embedded/gpu_hlo_schedule_test.LHSSendRecvAllReduce.L1126.hlo", 1, 0, {}},
        Published{"xla_hlo_embedded/gpu_hlo_schedule_test.ProfileGuidedCostModel.L672.hlo", 2, 0, {}, 4},
        Published{
            "xla_hlo_embedded/"
            "gpu_hlo_schedule_test."
            "ProfileGuidedCostModelDoesNotFailWithIncompleteProfileIfAccuracyCheckerIsDisabled.L821.hlo",
            2,
            0,
            {},
            4},
        Published{"xla_hlo_embedded/hlo_replication_analysis_test.NoControlFlowSPMD.L119.hlo", 8, 3, {}, 4},
        Published{"xla_hlo_embedded/windowed_einsum_handler_test.A2aTransposeLoopsHaveStreamIds.L475.hlo",
                  1,
                  1,
                  {}},
        Published{"xla_hlo_embedded/windowed_einsum_handler_test.AgLoopsHaveStreamIds.L52.hlo", 1, 1, {}},
        Published{"xla_hlo_embedded/windowed_einsum_handler_test.AgLoopsMultipleConsumersAreChained.L211.hlo",
                  2,
                  2,
                  {}},
        Published{"xla_hlo_embedded/xplane_to_profile_instructions_test.const.L111.hlo",
                  2,
                  0,
                  {"over all devices"}}));

INSTANTIATE_TEST_SUITE_P(
    StableHlo, PublishedPrograms,
    testing::Values(
        Published{"stablehlo_mlir/interpret_all_gather.mlir",
                  5,
                  0,
                  {"makes s64[2,4] of s64[2,2], and s64[2,8] is written"}},
        Published{"stablehlo_mlir/interpret_all_reduce.mlir", 5, 0, {}},
        Published{"stablehlo_mlir/ops_stablehlo_roundtrip.mlir", 15, 0, {}},
        Published{"stablehlo_mlir/shardy_export_convert_global_to_local_stablehlo_dot_general.mlir",
                  1,
                  1,
                  {kShardy}},
        Published{"stablehlo_mlir/shardy_export_insert_explicit_reshards.mlir", 12, 0, Lines(12, kShardy)},
        Published{"stablehlo_mlir/shardy_export_insert_explicit_reshards_func_inputs_outputs.mlir", 0, 0, {}},
        Published{"stablehlo_mlir/verify_async_ops.mlir", 17, 0, {"names axis 2 of f32[8,2]"}},
        Published{"stablehlo_mlir/xla_sdy_round_trip_shard_map_import.mlir", 1, 1, {}},
        Published{"stablehlo_mlir/xla_stablehlo_async.mlir", 6, 0, {}},
        Published{"stablehlo_mlir/xla_stablehlo_export_pipeline.mlir", 14, 0,
                  shardy_and("makes f32[16] of f32[8], and f32[8] is written")}));

}  // namespace
}  // namespace syncopate::ingest
