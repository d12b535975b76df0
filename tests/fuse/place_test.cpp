#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "fuse/graphs.hpp"
#include "fuse/sample.hpp"
#include "syncopate/fuse/passes/precedence.hpp"

namespace syncopate::fuse {
namespace {

using Ids = std::vector<std::int32_t>;

Ids last_of(const sample::Placed& placed, Ids ops) {
    return Precedence(placed.graph, placed.placement).last_of(std::move(ops));
}

sample::Placed of(const plan::Plan& plan, Device device) { return sample::graph_of(plan, device).value(); }

TEST(Place, FollowsAfterThroughSeveralRanks) {
    const sample::Placed ring =
        of(sample::ring_all_gather(4, {"A", {4, 4}, plan::DType::bf16}), Device::host);
    // rank 3 passes on in its third op what came through the first two of ranks 1 and 2
    const auto before = ring.placement.before[static_cast<std::size_t>(ring.graph.op({3, 2}))];
    EXPECT_EQ(Ids(before.begin(), before.end()), Ids{ring.graph.op({2, 1})});
    EXPECT_EQ(last_of(ring, {ring.graph.op({3, 2}), ring.graph.op({2, 1}), ring.graph.op({1, 0})}),
              Ids{ring.graph.op({3, 2})});
    EXPECT_EQ(last_of(ring, {ring.graph.op({3, 1}), ring.graph.op({2, 1})}).size(), 2U);
}

TEST(Place, CountsAStreamOnCopyEnginesOnly) {
    const plan::Plan plan = plan::all_gather(sample::ranks(4), {"A", {4, 4}, plan::DType::bf16}).value();
    const sample::Placed cuda = of(plan, Device::cuda);
    const sample::Placed host = of(plan, Device::host);
    EXPECT_EQ(last_of(cuda, {0, 1, 2}), Ids{2});
    EXPECT_EQ(last_of(host, {0, 1, 2}), (Ids{0, 1, 2}));
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

/// Of any ops of any plan: a search for each of them says the same.
TEST(Precedence, ShowsOfSomeOpsWhatASearchFromEachShows) {
    std::mt19937_64 random(20261129);
    const plan::Tensor tensor{"A", {12, 4}, plan::DType::bf16};
    for (const Device device : {Device::host, Device::cuda}) {
        for (const plan::Plan& plan :
             {sample::ring_all_gather(4, tensor), plan::all_gather(sample::ranks(6), tensor).value(),
              plan::all_gather(sample::ranks(3), tensor, {.algorithm = plan::Algorithm::bidirectional})
                  .value()}) {
            const sample::Placed placed = of(plan, device);
            Precedence precedence(placed.graph, placed.placement);
            for (int n = 0; n < 30; ++n) {
                Ids ops;
                for (NodeId op = 0; op < placed.graph.num_ops(); ++op)
                    if (random() % 3 == 0) ops.push_back(op);
                const std::vector<Bits> shown = precedence.shown_by(ops);
                Ids last;
                for (std::size_t i = 0; i < ops.size(); ++i) {
                    const auto completed = completed_with(placed.placement, {ops[i]});
                    bool is_last = true;
                    for (std::size_t j = 0; j < ops.size(); ++j) {
                        EXPECT_EQ((shown[i][j / 64] >> (j % 64) & 1) != 0, completed[ops[j]]);
                        is_last = is_last && (i == j || !completed_with(placed.placement, {ops[j]})[ops[i]]);
                    }
                    if (is_last) last.push_back(ops[i]);
                }
                EXPECT_EQ(precedence.last_of(ops), last);
            }
        }
    }
    const Graph graph;
    const Placement placement;
    Precedence none(graph, placement);
    EXPECT_TRUE(none.shown_by({}).empty());
    EXPECT_TRUE(none.last_of({}).empty());
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
