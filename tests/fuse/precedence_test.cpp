#include <gtest/gtest.h>

#include "fuse/sample.hpp"
#include "syncopate/fuse/precedence.hpp"

namespace syncopate::fuse {
namespace {

using Ids = std::vector<std::int32_t>;

Precedence of(const plan::Plan& plan, Device device) {
    return precede(plan, assign(plan, device).value()).value();
}

TEST(Precedence, FollowsAfterThroughSeveralRanks) {
    const Precedence ring = of(sample::ring_all_gather(4, {"A", {4, 4}, plan::DType::bf16}), Device::host);
    // rank 3 passes on in its third op what came through the first two of ranks 1 and 2
    EXPECT_EQ(ring.before[ring.id({3, 2})], Ids{ring.id({2, 1})});
    EXPECT_EQ(last_of(ring, {ring.id({3, 2}), ring.id({2, 1}), ring.id({1, 0})}), Ids{ring.id({3, 2})});
    EXPECT_EQ(last_of(ring, {ring.id({3, 1}), ring.id({2, 1})}).size(), 2U);
}

TEST(Precedence, CountsAStreamOnCopyEnginesOnly) {
    const plan::Plan plan = plan::all_gather(sample::ranks(4), {"A", {4, 4}, plan::DType::bf16}).value();
    const Precedence cuda = of(plan, Device::cuda);
    const Precedence host = of(plan, Device::host);
    EXPECT_EQ(last_of(cuda, {0, 1, 2}), Ids{2});
    EXPECT_EQ(last_of(host, {0, 1, 2}), (Ids{0, 1, 2}));
}

TEST(Precedence, CompletedWithIsTransitiveAndReflexive) {
    const Precedence ring = of(sample::ring_all_gather(4, {"A", {4, 4}, plan::DType::bf16}), Device::host);
    const auto completed = completed_with(ring, {ring.id({3, 2})});
    EXPECT_TRUE(completed[ring.id({3, 2})]);
    EXPECT_TRUE(completed[ring.id({2, 1})]);
    EXPECT_TRUE(completed[ring.id({1, 0})]);
    EXPECT_FALSE(completed[ring.id({3, 0})]);
}

TEST(Precedence, ReordersAListThatWouldBlockItsStream) {
    plan::Plan plan = plan::all_gather(sample::ranks(3), {"A", {3, 4}, plan::DType::bf16}).value();
    plan.ranks[0][0].after = {{0, 1}};
    const Precedence precedence = of(plan, Device::cuda);
    EXPECT_EQ(precedence.start_order[0], (Ids{1, 0}));
    EXPECT_EQ(precedence.start_order[1], (Ids{2, 3})) << "the others keep theirs";
}

TEST(Precedence, RefusesACircle) {
    plan::Plan plan = plan::all_gather(sample::ranks(2), {"A", {2, 4}, plan::DType::bf16}).value();
    plan.ranks[0][0].after = {{1, 0}};
    plan.ranks[1][0].after = {{0, 0}};
    EXPECT_FALSE(precede(plan, assign(plan, Device::host).value()).ok());
}

}  // namespace
}  // namespace syncopate::fuse
