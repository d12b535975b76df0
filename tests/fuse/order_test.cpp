#include <gtest/gtest.h>

#include "fuse/graphs.hpp"
#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/passes/order.hpp"
#include "syncopate/plan/topology/topology.hpp"

namespace syncopate::fuse {
namespace {

std::vector<std::int64_t> tiles_of(const RankSchedule& rank) {
    std::vector<std::int64_t> tiles;
    for (const Slot& slot : rank.slots) tiles.push_back(slot.tile);
    return tiles;
}

Arrivals arrivals_of(const plan::Plan& plan, Device device) {
    const sample::Placed placed = sample::graph_of(plan, device).value();
    return expect_arrivals(placed.graph, placed.lowered, placed.backends, placed.placement, {}).value();
}

TEST(Order, ExpectsOpsOfARankOneAfterAnother) {
    const plan::Plan plan = plan::all_gather(sample::ranks(3), {"A", {6, 4}, plan::DType::bf16}).value();
    EXPECT_EQ(arrivals_of(plan, Device::cuda), (Arrivals{16, 32, 16, 32, 16, 32}));
}

TEST(Order, ExpectsAnOpAfterThoseItWaitsFor) {
    const plan::Plan plan = sample::ring_all_gather(3, {"A", {3, 8}, plan::DType::bf16});
    EXPECT_EQ(arrivals_of(plan, Device::host), (Arrivals{16, 32, 16, 32, 16, 32}));
}

TEST(Order, RunsOwnTilesFirstThenByArrivalThenByTheKernelsTraversal) {
    const auto schedule = fuse(sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4)).value();
    // Rank r sends to r+1 first, so rank 2 gets rank 1's rows first, then rank 0's, then rank 3's.
    EXPECT_EQ(tiles_of(schedule.ranks[2]), (std::vector<std::int64_t>{4, 5, 2, 3, 0, 1, 6, 7}));
}

TEST(Order, KeepsTheKernelsTraversalWhereEachTileHasAProgram) {
    sample::Gemm gemm{8, 4, 4, 2, 2, 2};
    const std::vector<std::int64_t> as_made{0, 1, 2, 3, 4, 5, 6, 7};
    const auto of_rank_2 = [&](std::int64_t programs, const Options& options = {}) {
        gemm.programs = programs;
        return tiles_of(fuse(sample::all_gather_gemm(gemm, 4), options).value().ranks[2]);
    };
    EXPECT_EQ(of_rank_2(8), as_made);
    EXPECT_EQ(of_rank_2(7), (std::vector<std::int64_t>{4, 5, 2, 3, 0, 1, 6, 7})) << "one tile starts later";
    EXPECT_EQ(of_rank_2(4, {.num_programs = 8}), as_made);
}

TEST(Order, TilesThatWaitForOthersOfTheirKernelKeepItsOrderOrAreRefused) {
    const sample::Gemm gemm{8, 4, 4, 2, 2, 2};
    const std::vector<std::int64_t> as_made{0, 1, 2, 3, 4, 5, 6, 7};
    for (const Device device : {Device::host, Device::cuda}) {
        Program gathered = sample::all_gather_gemm(gemm, 4);
        gathered.kernel.in_order = true;
        const auto schedule = fuse(gathered, {.device = device});
        ASSERT_TRUE(schedule) << schedule.error().to_string();
        for (const RankSchedule& rank : schedule->ranks) EXPECT_EQ(tiles_of(rank), as_made);
    }
    const auto refusal = [&](const plan::Plan& plan, const std::string& param, const std::string& tensor) {
        Program program{sample::gemm(gemm), plan, {{param, tensor}}};
        EXPECT_TRUE(fuse(program)) << "else";
        program.kernel.in_order = true;
        const auto schedule = fuse(program);
        return schedule ? std::string("none") : schedule.error().to_string();
    };
    // Each rank runs the tiles of the rows that it gathers, and others' tiles would never come.
    plan::Plan made = plan::all_gather(sample::ranks(2), {"C", {8, 4}, plan::DType::bf16}).value();
    made.produced = made.initial;
    EXPECT_NE(refusal(made, "c_ptr", "C").find("not all of them run on each rank"), std::string::npos);
    plan::AllGatherOptions options;
    options.algorithm = plan::Algorithm::hierarchical;
    const plan::Plan apart =
        plan::all_gather({{{"node", 2}, {"gpu", 1}}, "node"}, sample::a_of(gemm), options).value();
    EXPECT_NE(refusal(apart, "a_ptr", "A").find("over nodes tiles run"), std::string::npos);
}

TEST(Order, PullsComeFromTheNextRankFirst) {
    const auto schedule = fuse(sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4, {.pull = true})).value();
    EXPECT_EQ(tiles_of(schedule.ranks[2]), (std::vector<std::int64_t>{4, 5, 6, 7, 0, 1, 2, 3}));
}

TEST(Order, OnTheMeasuredMachineADirectAllGatherHasTheSameOrder) {
    for (const bool pull : {false, true}) {
        const Program program = sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4, {.pull = pull});
        const auto equal_links = fuse(program).value();
        const auto measured = fuse(program, {.topology = plan::default_topology(4)}).value();
        for (std::size_t rank = 0; rank < 4; ++rank)
            EXPECT_EQ(tiles_of(measured.ranks[rank]), tiles_of(equal_links.ranks[rank]));
    }
}

TEST(Order, ASlowLinksChunkComesLast) {
    const Program program = sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4);
    plan::Topology topology = plan::switch_topology(4);
    for (plan::Link& link : topology.links) {
        if (link.from == 1) link.gbps = 1e-4;  // rank 1 sends slowly
    }
    const auto schedule = fuse(program, {.topology = topology}).value();
    EXPECT_EQ(tiles_of(schedule.ranks[2]), (std::vector<std::int64_t>{4, 5, 0, 1, 6, 7, 2, 3}));
}

TEST(Order, OverNodesAndOfRaggedAxesAMachineOrdersNothing) {
    const plan::Mesh mesh{{{"node", 2}, {"gpu", 2}}, "node"};
    const Program over{sample::gemm({8, 4, 4, 2, 2, 2}),
                       plan::all_gather(mesh, {"A", {8, 4}, plan::DType::bf16}).value(),
                       {{"a_ptr", "A"}}};
    EXPECT_NE(topology_objection(over.plan), "");
    const auto equal_links = fuse(over).value();
    const auto measured = fuse(over, {.topology = plan::default_topology(4)}).value();
    for (std::size_t rank = 0; rank < 4; ++rank)
        EXPECT_EQ(tiles_of(measured.ranks[rank]), tiles_of(equal_links.ranks[rank]));

    Program ragged = sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4);
    EXPECT_EQ(topology_objection(ragged.plan), "");
    plan::Tensor x{"X", {4, 4}, plan::DType::bf16};
    x.ragged = plan::Ragged{0, {"expert"}, 16, 12};
    ragged.plan.tensors.push_back(x);
    EXPECT_NE(topology_objection(ragged.plan).find("rows of X"), std::string::npos);
    const auto schedule = fuse(ragged, {.topology = plan::default_topology(4)});
    EXPECT_TRUE(schedule) << schedule.error().to_string();
}

TEST(Order, AMachineThatIsTooSmallIsAnError) {
    const auto schedule =
        fuse(sample::all_gather_gemm({8, 4, 4, 2, 2, 2}, 4), {.topology = plan::switch_topology(2)});
    EXPECT_EQ(schedule.error().message, "the plan has 4 ranks, but topology switch:2 has 2 devices");
}

}  // namespace
}  // namespace syncopate::fuse
