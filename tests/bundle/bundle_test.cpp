#include "syncopate/bundle/bundle.hpp"

#include <gtest/gtest.h>

#include "bundle/samples.hpp"
#include "syncopate/bundle/program.hpp"

namespace syncopate::bundle {
namespace {

using testing::compiled_sample;
using testing::sample;

void expect_refused(const Bundle& wrong, const std::string& text) {
    const Result<Bundle> read = from_bytes(to_bytes(wrong), "op.sybundle");
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.error().to_string().find(text), std::string::npos) << read.error().to_string();
    EXPECT_TRUE(read.error().to_string().starts_with("op.sybundle: ")) << read.error().to_string();
}

TEST(BundleFile, IsReadAsItWasWritten) {
    for (const Bundle& made :
         {sample("all_gather_matmul:N=48,K=32,dtype=bf16,ranks=2,sms=4"), compiled_sample()}) {
        const std::string bytes = to_bytes(made);
        const Result<Bundle> read = from_bytes(bytes, "op.sybundle");
        ASSERT_TRUE(read) << read.error().to_string();
        EXPECT_EQ(to_bytes(*read), bytes);
        EXPECT_EQ(read->op->buckets.size(), 2U);
        EXPECT_EQ(read->kernels.size(), made.kernels.size());
    }
}

TEST(BundleFile, NamesTheSectionThatDoesNotFit) {
    Bundle lacks = compiled_sample();
    lacks.sections.erase("kernels/0.cubin");
    expect_refused(lacks, "section manifest.json names kernels/0.cubin, which is not there");
    Bundle no_code = compiled_sample();
    no_code.sections["kernels/0.cubin"] = "#!/bin/sh";
    expect_refused(no_code, "section kernels/0.cubin is no cubin");
    Bundle more = compiled_sample();
    more.sections["kernels/1.cubin"] =
        "\x7f"
        "ELF";
    expect_refused(more, "section kernels/1.cubin belongs to nothing");
    const Result<Bundle> none = from_bytes(pack({{"source/a", "b"}}), "op.sybundle");
    EXPECT_EQ(none.error().to_string(), "op.sybundle: section manifest.json is not there");
}

TEST(BundleFile, RefusesAManifestWhosePartsDoNotFit) {
    Bundle falls = compiled_sample();
    std::swap(falls.op->buckets.front(), falls.op->buckets.back());
    expect_refused(falls, "section manifest.json");
    Bundle unknown = compiled_sample();
    unknown.op->buckets.front().variants.front().kernels = {7};
    expect_refused(unknown, "has a variant of kernels that are not there");
    Bundle neither = compiled_sample();
    neither.op.reset();
    expect_refused(neither, "has to have one of \"operator\", \"folder\" and \"grouped\"");
    std::string later = manifest_to_json(compiled_sample());
    later.replace(later.find("bundle/1"), 8, "bundle/2");
    const Result<Bundle> newer = manifest_from_json(later, "op.sybundle");
    ASSERT_FALSE(newer.ok());
    EXPECT_NE(newer.error().to_string().find("is \"syncopate.bundle/2\"; this version reads"),
              std::string::npos)
        << newer.error().to_string();
}

TEST(BundleFile, TellsTheRowsThatItHas) {
    const Bundle made = sample("all_gather_matmul:N=48,K=32,dtype=bf16,ranks=2,sms=4");
    for (const auto& [rows, bucket] : {std::pair{1, 16}, {16, 16}, {17, 64}, {64, 64}})
        EXPECT_EQ((*bucket_of(made, rows))->rows, bucket);
    for (const std::int64_t rows : {65, 0, -1, 1 << 20}) {
        const auto none = bucket_of(made, rows);
        ASSERT_FALSE(none.ok());
        EXPECT_NE(none.error().message.find("are not in this bundle, which has 1 to 64"), std::string::npos);
        EXPECT_EQ(none.error().error_class, ErrorClass::usage);
    }
}

TEST(BundleProgram, OfRowsThatNoBucketHasIsMadeByThePasses) {
    for (const char* problem : {"all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"}) {
        const Bundle made = sample(std::string(problem) + ":N=48,K=32,dtype=bf16,ranks=2,sms=4");
        for (const std::int64_t rows : {1, 2, 15, 16, 17, 33, 61, 64}) {
            const Result<Planned> planned = plan_rows(made, rows);
            ASSERT_TRUE(planned) << problem << " " << rows << ": " << planned.error().to_string();
            const std::vector<runtime::Operand> operands = operands_of(*planned, 1);
            ASSERT_EQ(operands.size(), 3U);
            EXPECT_EQ(operands[0].name, "x");
            EXPECT_EQ(operands[1].name, "w");
            EXPECT_EQ(operands[2].name, "y");
            const std::int64_t shard = rows / 2;
            EXPECT_EQ(operands[0].shape[0], std::string(problem).starts_with("all_gather") ? shard : rows);
            EXPECT_EQ(operands[2].shape[0], std::string(problem).ends_with("scatter") ? shard : rows);
            EXPECT_GT(needs_of(made, *planned, 0).heap, 0U);
            EXPECT_EQ(needs_of(made, *planned, 0).heap, needs_of(made, *planned, 1).heap);
        }
    }
}

/// So the kernels that were compiled for all are those of a part.
TEST(BundleProgram, OfARankOverNodesIsItsNodesPartWithTheKernelsOfTheWhole) {
    for (const char* problem : {"all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce",
                                "all_to_all_matmul", "matmul_all_to_all"}) {
        const Bundle made =
            sample(std::string(problem) + ":N=64,K=64,dtype=bf16,ranks=8,nodes=2,sms=4", {64, 64});
        const Bucket& bucket = made.op->buckets.front();
        const Result<Lowered> whole = lower(*made.op, bucket, 64, fuse::Device::cuda);
        ASSERT_TRUE(whole) << problem << ": " << whole.error().to_string();
        EXPECT_FALSE(whole->launch.schedule.part);
        for (std::int32_t rank = 0; rank < 8; ++rank) {
            const Result<Lowered> part = lower(*made.op, bucket, 64, fuse::Device::cuda, rank);
            ASSERT_TRUE(part) << problem << ": " << part.error().to_string();
            ASSERT_TRUE(part->launch.schedule.part) << problem;
            EXPECT_EQ(part->launch.schedule.part->first, rank / 4 * 4);
            EXPECT_EQ(part->traits, whole->traits) << problem;
        }
        EXPECT_TRUE(plan_rows(made, 64, 5)->launch.schedule.part);
    }
}

TEST(BundleProgram, OfRowsThatAStrategyDoesNotTakeGoesByTheNextBucket) {
    Bundle made = sample("matmul_reduce_scatter:N=128,K=128,dtype=bf16,ranks=2,sms=4", {64, 64});
    ops::Strategy& sums =
        made.op->buckets.front().strategy;  // only whole tiles of rows can be summed by a kernel
    sums.kernel = ops::ProductKernel::gluon;
    sums.kernel_sums = true;
    sums.backend = plan::Backend::tma_inline;
    sums.tiles = {{.block_m = 32, .block_n = 64, .block_k = 64, .stages = 2}};
    made.arch = "sm_90";
    const Result<Lowered> whole = lower(*made.op, made.op->buckets.front(), 64, fuse::Device::cuda);
    ASSERT_TRUE(whole) << whole.error().to_string();
    EXPECT_FALSE(lower(*made.op, made.op->buckets.front(), 62, fuse::Device::cuda));
    made.arch = std::string(kHost);
    EXPECT_TRUE(plan_rows(made, 62)) << plan_rows(made, 62).error().to_string();
}

TEST(BundleProgram, SaysWhichRowsWereNotCompiledFor) {
    const Bundle made = compiled_sample();  // whose kernel is for no schedule of this operator
    const Result<Planned> planned = plan_rows(made, 20);
    ASSERT_FALSE(planned.ok());
    EXPECT_NE(planned.error().to_string().find("op.sybundle: the schedule of 20 rows asks for a kernel that "
                                               "is not in this bundle: compile it with --rows 20"),
              std::string::npos)
        << planned.error().to_string();
}

}  // namespace
}  // namespace syncopate::bundle
