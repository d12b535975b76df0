#include <gtest/gtest.h>

#include "fuse/graphs.hpp"
#include "fuse/sample.hpp"

namespace syncopate::fuse {
namespace {

using Ids = std::vector<std::int32_t>;

sample::Placed of(const plan::Plan& plan, Device device) { return sample::graph_of(plan, device).value(); }

TEST(Place, FollowsAfterThroughSeveralRanks) {
    const sample::Placed ring =
        of(sample::ring_all_gather(4, {"A", {4, 4}, plan::DType::bf16}), Device::host);
    // rank 3 passes on in its third op what came through the first two of ranks 1 and 2
    EXPECT_EQ(ring.placement.before[ring.graph.op({3, 2})], Ids{ring.graph.op({2, 1})});
    EXPECT_EQ(last_of(ring.placement, {ring.graph.op({3, 2}), ring.graph.op({2, 1}), ring.graph.op({1, 0})}),
              Ids{ring.graph.op({3, 2})});
    EXPECT_EQ(last_of(ring.placement, {ring.graph.op({3, 1}), ring.graph.op({2, 1})}).size(), 2U);
}

TEST(Place, CountsAStreamOnCopyEnginesOnly) {
    const plan::Plan plan = plan::all_gather(sample::ranks(4), {"A", {4, 4}, plan::DType::bf16}).value();
    const sample::Placed cuda = of(plan, Device::cuda);
    const sample::Placed host = of(plan, Device::host);
    EXPECT_EQ(last_of(cuda.placement, {0, 1, 2}), Ids{2});
    EXPECT_EQ(last_of(host.placement, {0, 1, 2}), (Ids{0, 1, 2}));
}

TEST(Place, CompletedWithIsTransitiveAndReflexive) {
    const sample::Placed ring =
        of(sample::ring_all_gather(4, {"A", {4, 4}, plan::DType::bf16}), Device::host);
    const auto completed = completed_with(ring.placement, {ring.graph.op({3, 2})});
    EXPECT_TRUE(completed[ring.graph.op({3, 2})]);
    EXPECT_TRUE(completed[ring.graph.op({2, 1})]);
    EXPECT_TRUE(completed[ring.graph.op({1, 0})]);
    EXPECT_FALSE(completed[ring.graph.op({3, 0})]);
}

TEST(Place, ReordersAListThatWouldBlockItsStream) {
    plan::Plan plan = plan::all_gather(sample::ranks(3), {"A", {3, 4}, plan::DType::bf16}).value();
    plan.ranks[0][0].after = {{0, 1}};
    const sample::Placed placed = of(plan, Device::cuda);
    EXPECT_EQ(placed.graph.start_order[0], (Ids{1, 0}));
    EXPECT_EQ(placed.graph.start_order[1], (Ids{2, 3})) << "the others keep theirs";
}

TEST(Place, RefusesACircle) {
    plan::Plan plan = plan::all_gather(sample::ranks(2), {"A", {2, 4}, plan::DType::bf16}).value();
    plan.ranks[0][0].after = {{1, 0}};
    plan.ranks[1][0].after = {{0, 0}};
    EXPECT_FALSE(sample::graph_of(plan, Device::host).ok());
}

}  // namespace
}  // namespace syncopate::fuse
