// Stated kernels are fused like inferred ones, and their files are left alone.
#include <gtest/gtest.h>

#include <string>

#include "fuse/sample.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/emit/language.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/json.hpp"
#include "syncopate/kernel/stated/statement.hpp"

namespace syncopate::emit {
namespace {

constexpr fuse::sample::Gemm kShape{
    .M = 128, .N = 64, .K = 32, .block_m = 16, .block_n = 32, .block_k = 16, .programs = 6};

kernel::stated::Statement statement() {
    return {.kernel = "matmul",
            .file = "matmul.cu",
            .source = "// the user's\n__global__ void matmul(/* … */) {}\n",
            .parameters = {"a_ptr", "b_ptr", "c_ptr", "M", "sy_schedule", "sy_control"},
            .tiles = {{"m", "cdiv(M, 16)"}, {"n", "2"}},
            .loops = {{"k", "2"}},
            .reads = {{"a_ptr", {"16*m : 16*m + 16", "16*k : 16*k + 16"}},
                      {"b_ptr", {"16*k : 16*k + 16", "32*n : 32*n + 32"}}},
            .writes = {{"c_ptr", {"16*m : 16*m + 16", "32*n : 32*n + 32"}}}};
}

fuse::Program stated_program(const kernel::stated::Statement& stated, const plan::AllGatherOptions& options) {
    fuse::Program program = fuse::sample::all_gather_gemm(kShape, 4, options);
    kernel::Arguments arguments = program.kernel.arguments;
    arguments.scalars["M"] = kShape.M;
    arguments.grid = {6, 1, 1};
    auto kernel = kernel::stated::analyse(stated, arguments);
    EXPECT_TRUE(kernel.ok()) << (kernel.ok() ? "" : kernel.error().to_string());
    if (kernel) program.kernel = *std::move(kernel);
    return program;
}

TEST(StatedKernel, HasTheScheduleOfTheSameKernelInferred) {
    plan::AllGatherOptions options;
    options.minor_axis = 1;
    options.minor_split = 2;  // slices of K: phases
    const auto inferred = fuse::fuse(fuse::sample::all_gather_gemm(kShape, 4, options));
    const auto stated = fuse::fuse(stated_program(statement(), options));
    ASSERT_TRUE(inferred.ok() && stated.ok());
    EXPECT_TRUE(stated->stages[0].phased);
    EXPECT_EQ(fuse::to_json(*stated), fuse::to_json(*inferred));
}

TEST(StatedKernel, IsNotRewritten) {
    const auto artifact = make_artifact(stated_program(statement(), {}));
    ASSERT_TRUE(artifact.ok()) << artifact.error().to_string();
    EXPECT_EQ(artifact->sources[0].kernel, statement().source);
    EXPECT_EQ(artifact->sources[0].original, statement().source);
    EXPECT_EQ(kernel_file(*artifact, "kernel", 0), "kernel.cu");
    EXPECT_EQ(artifact->launch.stages[0].file, "matmul.cu");
}

TEST(StatedKernel, NeedsTheParametersOfASchedule) {
    kernel::stated::Statement stated = statement();
    stated.parameters.pop_back();
    const auto artifact = make_artifact(stated_program(stated, {}));
    ASSERT_FALSE(artifact.ok());
    EXPECT_EQ(artifact.error().to_string(),
              "matmul.cu:2: stated kernel matmul has no parameter sy_control: a kernel that follows a "
              "schedule takes "
              "sy_schedule and sy_control, both int64 addresses");
}

TEST(StatedKernel, IsStoredElsewhereOnlyIfItSaysSo) {
    const plan::Tensor c{"C", {kShape.M, kShape.N}, plan::DType::bf16};
    const auto with = [&](const kernel::stated::Statement& stated) {
        fuse::Program program = stated_program(stated, {});
        plan::TemplateOptions options;
        options.produced = true;
        program.plan = plan::make_plan("reduce_scatter", fuse::sample::ranks(4), c, options).value();
        program.bindings = {{"c_ptr", "C"}};
        fuse::Options fusing;
        fusing.device = fuse::Device::cuda;
        fusing.preferred = plan::Backend::ldst_inline;
        return make_artifact(program, fusing);
    };
    const auto refused = with(statement());
    kernel::stated::Statement placed = statement();
    placed.placed = {"c_ptr"};
    const auto sent = with(placed);
    ASSERT_TRUE(sent.ok()) << sent.error().to_string();
    EXPECT_TRUE(sent->launch.schedule.stores().has_value());
    const bool sends_all = refused.ok() && refused->launch.schedule.stores().has_value();
    EXPECT_FALSE(sends_all) << "it does not say that it stores where its slot says";
}

TEST(StatedKernel, RunsInItsOwnOrderWhereNothingElseDecides) {
    kernel::stated::Statement stated = statement();
    stated.order = {"n", "m"};
    stated.split = "2";
    const auto artifact = make_artifact(stated_program(stated, {}));
    ASSERT_TRUE(artifact.ok()) << artifact.error().to_string();
    const std::vector<fuse::Slot>& slots = artifact->launch.schedule.ranks[0].slots;
    EXPECT_EQ(slots[0].tile, 0);
    EXPECT_EQ(slots[1].tile, 2) << "the own rows by columns";
    EXPECT_EQ(slots[2].tile, 1);
    EXPECT_EQ(artifact->launch.stages[0].num_programs(), 3) << "six, of which two share each tile";
    EXPECT_EQ(artifact->launch.grid_of(0, 1), (std::array<std::int64_t, 3>{6, 1, 1}));
    EXPECT_EQ(artifact->launch.programs_of(1), 3);
    const auto again = schedule_file_from_json(artifact->schedule_json);
    ASSERT_TRUE(again.ok()) << again.error().to_string();
    EXPECT_EQ(to_json(*again), artifact->schedule_json);
}

TEST(StatedKernel, IsReadFromItsJsonByTheSuffix) {
    EXPECT_EQ(language_of("folder/matmul.kernel.json").name, "stated");
    EXPECT_EQ(suffix_of("folder.d/matmul.cu"), ".cu");
    EXPECT_EQ(suffix_of("folder.d/matmul"), ".py");
    EXPECT_EQ(suffix_of("-"), ".py");
}

}  // namespace
}  // namespace syncopate::emit
