#include <gtest/gtest.h>

#include "fuse/graphs.hpp"
#include "fuse/sample.hpp"

namespace syncopate::fuse {
namespace {

Result<Graph> of(const Program& program) {
    const auto backends = assign(program.plan, Device::host);
    return build({{{program.kernel, program.bindings}}, program.plan}, {.plan = program.plan}, *backends);
}

const Edges& needs_of(const Graph& graph, std::int32_t rank, std::int64_t tile) {
    return graph.in[graph.tiles(0, rank, tile)];
}

TEST(Build, TilesOfOwnRowsNeedNothingAndOthersTheirChunk) {
    const Program program = sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4);
    const Graph graph = of(program).value();
    EXPECT_TRUE(needs_of(graph, 0, 0).empty());
    ASSERT_EQ(needs_of(graph, 0, 2).size(),
              1U);  // rows 2..4 come from rank 1, whose last op aims at rank 0
    EXPECT_EQ(needs_of(graph, 0, 2)[0], (Edge{0, 5}));
    EXPECT_EQ(graph.tiles(0, 0, 2), graph.tiles(0, 0, 3)) << "one row of tiles is one node";
}

TEST(Build, ATileAcrossTwoChunksNeedsBoth) {
    const Graph graph = of(sample::all_gather_gemm({8, 4, 4, 4, 2, 2}, 4)).value();
    EXPECT_EQ(needs_of(graph, 3, 0).size(), 2U);
    EXPECT_EQ(needs_of(graph, 3, 2).size(), 1U) << "its other half is its own shard";
}

TEST(Build, TellsTheFirstIterationThatReadsAChunkAlongK) {
    const Graph graph = of(sample::all_gather_gemm({2, 4, 16, 2, 2, 2}, 4, {.axis = 1})).value();
    std::vector<std::int64_t> iterations;
    for (const Edge& need : needs_of(graph, 1, 0)) iterations.push_back(need.iteration);
    EXPECT_EQ(iterations, (std::vector<std::int64_t>{0, 4, 6})) << "iterations 2 and 3 read its own shard";
}

TEST(Build, AChunkThatBeginsInsideABlockIsNeededByThatIteration) {
    const Graph graph = of(sample::all_gather_gemm({2, 4, 16, 2, 2, 8}, 4, {.axis = 1})).value();
    std::vector<std::int64_t> iterations;
    for (const Edge& need : needs_of(graph, 0, 0)) iterations.push_back(need.iteration);
    EXPECT_EQ(iterations, (std::vector<std::int64_t>{0, 1, 1}));
}

TEST(Build, NamesTileParameterRegionAndRankOfWhatNeverComes) {
    Program program = sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4);
    program.plan.ranks[1].pop_back();
    const auto result = of(program);
    ASSERT_FALSE(result.ok());
    const std::string text = result.error().to_string();
    EXPECT_NE(text.find("tile 2 of matmul reads A[2:4, 0:4] through a_ptr, which rank 0"), std::string::npos)
        << text;
}

TEST(Build, NamesTheIntegersThatWouldTellWhatATileReadsAtMost) {
    Program program = sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4);
    program.plan.ranks[1].pop_back();
    for (kernel::Tile& tile : program.kernel.tiles) tile.inexact_reads.insert("a_ptr");
    program.kernel.params.push_back({.name = "rows_ptr", .kind = kernel::ParamKind::pointer, .read = true});
    program.kernel.arguments.tensors["rows_ptr"] = {.shape = {8}, .dtype = plan::DType::int32};
    const auto said = [&] { return of(program).error().message; };
    EXPECT_NE(said().find("tile 2 of matmul may read A[2:4, 0:4] through a_ptr"), std::string::npos)
        << said();
    EXPECT_TRUE(said().ends_with(", or say what it loads, where the host knows it, with --values rows_ptr=…"))
        << said();
    program.kernel.arguments.tensors["rows_ptr"].values = {0, 1, 2, 3, 4, 5, 6, 7};
    EXPECT_TRUE(said().ends_with("add an op that delivers it")) << said();
}

TEST(Build, WhatAKernelMakesAndAlsoReadsIsItsOwn) {
    Program program = sample::all_gather_gemm({4, 4, 4, 2, 2, 2}, 2);
    program.plan.produced = {{.rank = 0, .chunk = {0, {{0, 4}, {0, 4}}}}};
    program.plan.ranks[0].clear();  // rank 1, which makes nothing, must receive nothing
    program.bindings = {{"c_ptr", "A"}};
    for (kernel::Param& param : program.kernel.params) param.read = true;
    for (kernel::Tile& tile : program.kernel.tiles) tile.reads["c_ptr"] = tile.writes["c_ptr"];
    const auto result = of(program);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_TRUE(needs_of(*result, 0, 0).empty());
}

}  // namespace
}  // namespace syncopate::fuse
