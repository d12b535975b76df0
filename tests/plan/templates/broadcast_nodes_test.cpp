#include "plan/templates/broadcast_nodes.hpp"

#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "syncopate/at.hpp"
#include "syncopate/plan/topology/topology.hpp"

namespace syncopate::plan {
namespace {

constexpr std::int32_t kPairs = 24;

std::optional<TwoNodes> nodes_of(const std::string& topology, const std::vector<std::int32_t>& ranks,
                                 std::int32_t root) {
    return two_nodes(hop_network(*find_topology(topology), ranks, false), root);
}

TwoNodes sixteen(std::int32_t root) {
    std::vector<std::int32_t> ranks(16);
    std::iota(ranks.begin(), ranks.end(), 0);
    return *nodes_of("h200x8x2", ranks, root);
}

TEST(TwoNodes, AreThoseOfTheRootAndOfItsTwin) {
    const auto nodes = nodes_of("h200x8x2", {0, 1, 2, 3, 8, 9, 10, 11}, 5);
    ASSERT_TRUE(nodes);
    EXPECT_EQ(nodes->inside, (std::vector<std::int32_t>{5, 4, 7, 6}));
    EXPECT_EQ(nodes->outside, (std::vector<std::int32_t>{1, 0, 3, 2}));
    EXPECT_FALSE(nodes_of("h200x8x2", {0, 1, 2, 3, 8, 9, 10}, 0));
    EXPECT_FALSE(nodes_of("h200x8x2", {0, 1, 2, 8, 9, 10}, 0));
    EXPECT_FALSE(nodes_of("h200x8", {0, 1, 2, 3, 4, 5, 6, 7}, 0));
    EXPECT_FALSE(nodes_of("ring:8", {0, 1, 2, 3, 4, 5, 6, 7}, 0));
}

TEST(BroadcastNodes, BringBothHalvesOfEveryPairToEveryoneOnce) {
    for (const std::int32_t root : {0, 6, 11}) {
        std::vector<std::set<std::pair<std::int32_t, int>>> has(16);
        for (std::int32_t pair = 0; pair < kPairs; ++pair) {
            for (const int half : {0, 1}) has[at(root)].emplace(pair, half);
        }
        std::int32_t place = 0;
        for (const NodeStep& step : broadcast_nodes(sixteen(root), kPairs)) {
            for (const int half : {0, 1}) {
                if (step.half != Half::both && static_cast<int>(step.half) != half) continue;
                EXPECT_TRUE(has[at(step.from)].contains({step.pair, half})) << place;
                EXPECT_TRUE(has[at(step.to)].emplace(step.pair, half).second) << place;
            }
            EXPECT_LT(step.yields_to, place++);
        }
        for (std::int32_t rank = 0; rank < 16; ++rank) EXPECT_EQ(has[at(rank)].size(), 2U * kPairs) << rank;
    }
}

TEST(BroadcastNodes, CrossOnceByAllCardsAlike) {
    std::vector<std::int32_t> crossings(16, 0);
    for (const NodeStep& step : broadcast_nodes(sixteen(11), kPairs)) {
        EXPECT_EQ(step.half == Half::both, step.from / 8 != step.to / 8);
        if (step.half == Half::both) ++crossings[at(step.from)];
    }
    for (std::int32_t rank = 0; rank < 16; ++rank)
        EXPECT_EQ(crossings[at(rank)], rank < 8 ? 0 : kPairs / 8) << rank;
}

TEST(BroadcastNodes, PairsAreSmallAtFirstAndWhereTheyCrossLast) {
    const std::vector<double> shares = shares_of_pairs(8, 256);
    EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-9);
    EXPECT_LT(shares[0], shares[100] / 2);       // leaves the root first
    EXPECT_LT(shares[223], 0.7 * shares[100]);   // the last one of another card
    EXPECT_LT(shares[224], 0.7 * shares[100]);   // the last one of the root's card
    EXPECT_DOUBLE_EQ(shares[255], shares[100]);  // which begins with this one
}

}  // namespace
}  // namespace syncopate::plan
