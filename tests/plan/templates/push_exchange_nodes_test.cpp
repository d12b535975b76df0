// The all-to-all over several nodes: what a node has for one rank elsewhere crosses together, by the receiver's rail.
#include <cstdint>
#include <map>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"

namespace syncopate::plan {
namespace {

Mesh nodes_of(std::int32_t nodes, std::int32_t places) {
    return {{{"node", nodes}, {"gpu", places}}, "node"};
}

TEST(PushExchangeNodes, BringsEachBlockToItsReceiverOnAnyNodes) {
    for (const auto& [nodes, places] : {std::pair(2, 1), {2, 2}, {3, 2}, {2, 3}, {4, 4}}) {
        const Tensor x{"X", {2 * nodes * places, 6}, DType::bf16};
        for (const bool produced : {true, false}) {
            for (const std::int32_t split : {1, 2, 5}) {
                for (const std::int32_t slices : {1, 2}) {
                    PushExchangeOptions options{.produced = produced, .split = split};
                    if (slices > 1) {
                        options.minor_axis = 1;
                        options.minor_split = slices;
                    }
                    const Result<Plan> plan = push_exchange(nodes_of(nodes, places), x, "A", options);
                    ASSERT_TRUE(plan) << plan.error().to_string();
                    const auto findings = check(*plan);
                    EXPECT_TRUE(findings.empty()) << nodes << " x " << places << ", split " << split << ": "
                                                  << findings.front().message;
                }
            }
        }
    }
}

TEST(PushExchangeNodes, CrossesOnceToEachRankOfItsPlaceInOtherNodes) {
    const std::int32_t nodes = 3, places = 4, rows = 2;
    for (const std::int32_t split : {1, 2}) {
        const Plan plan =
            push_exchange(nodes_of(nodes, places), {"X", {nodes * places * rows, 8}, DType::bf16}, "A",
                          {.produced = false, .split = split, .for_kernel = true})
                .value();
        for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
            std::map<std::int32_t, int> crossed;
            for (const Op& op : plan.ranks[static_cast<std::size_t>(rank)]) {
                if (op.kind == OpKind::local || plan.mesh.node_of(op.peer) == plan.mesh.node_of(rank))
                    continue;
                EXPECT_EQ(op.peer % places, rank % places);
                EXPECT_EQ(op.src.region[0].size(), places * rows / split) << "of all ranks of the node";
                EXPECT_EQ(op.after.size(), static_cast<std::size_t>(places / split));
                ++crossed[op.peer];
            }
            EXPECT_EQ(crossed.size(), static_cast<std::size_t>(nodes - 1));
            for (const auto& [peer, times] : crossed) EXPECT_EQ(times, split);
        }
    }
}

}  // namespace
}  // namespace syncopate::plan
