#include <gtest/gtest.h>

#include "cpu_time.hpp"
#include "fuse/sample.hpp"
#include "syncopate/fuse/depend.hpp"

namespace syncopate::fuse {
namespace {

Result<Dependence> of(const Program& program) {
    const auto backends = assign(program.plan, Device::host).value();
    return depend(program, precede(program.plan, backends).value());
}

const std::vector<Need>& needs_of(const Dependence& dependence, std::int32_t rank, std::int64_t tile) {
    return dependence.needs[rank][dependence.class_of[tile]];
}

TEST(Depend, TilesOfOwnRowsNeedNothingAndOthersTheirChunk) {
    const Program program = sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4);
    const Dependence dependence = of(program).value();
    EXPECT_TRUE(needs_of(dependence, 0, 0).empty());
    ASSERT_EQ(needs_of(dependence, 0, 2).size(),
              1U);  // rows 2..4 come from rank 1, whose last op aims at rank 0
    EXPECT_EQ(needs_of(dependence, 0, 2)[0], (Need{0, 5}));
    EXPECT_EQ(dependence.class_of[2], dependence.class_of[3]) << "one row of tiles is one class";
}

TEST(Depend, ATileAcrossTwoChunksNeedsBoth) {
    const Dependence dependence = of(sample::all_gather_gemm({8, 4, 4, 4, 2, 2}, 4)).value();
    EXPECT_EQ(needs_of(dependence, 3, 0).size(), 2U);
    EXPECT_EQ(needs_of(dependence, 3, 2).size(), 1U) << "its other half is its own shard";
}

TEST(Depend, TellsTheFirstIterationThatReadsAChunkAlongK) {
    const Dependence dependence = of(sample::all_gather_gemm({2, 4, 16, 2, 2, 2}, 4, {.axis = 1})).value();
    std::vector<std::int64_t> iterations;
    for (const Need& need : needs_of(dependence, 1, 0)) iterations.push_back(need.iteration);
    EXPECT_EQ(iterations, (std::vector<std::int64_t>{0, 4, 6})) << "iterations 2 and 3 read its own shard";
}

TEST(Depend, AChunkThatBeginsInsideABlockIsNeededByThatIteration) {
    const Dependence dependence = of(sample::all_gather_gemm({2, 4, 16, 2, 2, 8}, 4, {.axis = 1})).value();
    std::vector<std::int64_t> iterations;
    for (const Need& need : needs_of(dependence, 0, 0)) iterations.push_back(need.iteration);
    EXPECT_EQ(iterations, (std::vector<std::int64_t>{0, 1, 1}));
}

TEST(Depend, NamesTileParameterRegionAndRankOfWhatNeverComes) {
    Program program = sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4);
    program.plan.ranks[1].pop_back();
    const auto result = of(program);
    ASSERT_FALSE(result.ok());
    const std::string text = result.error().to_string();
    EXPECT_NE(text.find("tile 2 of matmul reads A[2:4, 0:4] through a_ptr, which rank 0"), std::string::npos)
        << text;
}

TEST(Depend, WhatAKernelMakesAndAlsoReadsIsItsOwn) {
    Program program = sample::all_gather_gemm({4, 4, 4, 2, 2, 2}, 2);
    program.plan.produced = {{.rank = 0, .chunk = {0, {{0, 4}, {0, 4}}}}};
    program.bindings = {{"c_ptr", "A"}};
    for (kernel::Param& param : program.kernel.params) param.read = true;
    for (kernel::Tile& tile : program.kernel.tiles) tile.reads["c_ptr"] = tile.writes["c_ptr"];
    const auto result = of(program);
    ASSERT_TRUE(result.ok());
    EXPECT_TRUE(needs_of(*result, 0, 0).empty());
}

TEST(Depend, IsFastForManyTilesAndOps) {
    // 100 × 100 tiles, 8 ranks × 56 ops.
    const Program program = sample::all_gather_gemm({6400, 6400, 512, 64, 64, 64}, 8, {.split = 8});
    const double start = syncopate::test::cpu_seconds();
    ASSERT_TRUE(of(program).ok());
    EXPECT_LT(syncopate::test::cpu_seconds() - start, 3);  // about 0.03
}

}  // namespace
}  // namespace syncopate::fuse
