#include "syncopate/topological_order.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>

#include <gtest/gtest.h>

namespace syncopate {
namespace {

using Edges = std::vector<std::pair<std::int32_t, std::int32_t>>;  // before, after
using Order = std::vector<std::int32_t>;

Followers followers(std::size_t nodes, const Edges& edges) {
    return {nodes, [&](auto&& edge) {
                for (const auto& [before, after] : edges) edge(before, after);
            }};
}

std::uint64_t rising(std::int32_t node) { return static_cast<std::uint64_t>(node); }
std::uint64_t falling(std::int32_t node) { return static_cast<std::uint64_t>(100 - node); }
std::uint64_t equal(std::int32_t) { return 7; }

TEST(Followers, AreInTheOrderOfTheirEdges) {
    const Followers of = followers(4, {{2, 3}, {0, 1}, {2, 0}, {2, 3}});
    EXPECT_EQ(Order(of(2).begin(), of(2).end()), (Order{3, 0, 3}));
    EXPECT_TRUE(of(3).empty());
    EXPECT_EQ(of.num_before(), (Order{1, 1, 0, 2}));
}

TEST(TopologicalOrder, GoesInWaves) {
    EXPECT_EQ(topological_order(followers(5, {{4, 0}, {1, 0}, {3, 2}})), (Order{1, 3, 4, 2, 0}));
    EXPECT_EQ(topological_order(followers(0, {})), Order{});
}

TEST(TopologicalOrder, TakesTheFirstOfThoseThatMayComeNext) {
    const Followers of = followers(5, {{4, 0}, {1, 0}, {3, 2}});
    EXPECT_EQ(topological_order(of, rising), (Order{1, 3, 2, 4, 0}));
    EXPECT_EQ(topological_order(of, falling), (Order{4, 3, 2, 1, 0}));
    EXPECT_EQ(topological_order(of, equal), (Order{1, 3, 2, 4, 0}));
}

TEST(TopologicalOrder, LeavesOutWhatIsOnACircleOrBehindOne) {
    const Followers of = followers(5, {{0, 1}, {1, 2}, {2, 1}, {2, 3}});
    EXPECT_EQ(topological_order(of), (Order{0, 4}));
    EXPECT_EQ(topological_order(of, rising), (Order{0, 4}));
}

TEST(TopologicalOrder, PutsEachNodeBehindThoseBeforeIt) {
    std::mt19937 random(1);
    for (int round = 0; round < 200; ++round) {
        const std::size_t nodes = 1 + random() % 40;
        Order shuffled(nodes);
        for (std::size_t i = 0; i < nodes; ++i) shuffled[i] = static_cast<std::int32_t>(i);
        std::shuffle(shuffled.begin(), shuffled.end(), random);
        Edges edges;
        for (std::size_t i = 0; i < 3 * nodes; ++i) {
            const auto [low, high] = std::minmax({random() % nodes, random() % nodes});
            if (low != high) edges.emplace_back(shuffled[low], shuffled[high]);
        }
        const Followers of = followers(nodes, edges);
        for (const Order& order : {topological_order(of), topological_order(of, rising)}) {
            ASSERT_EQ(order.size(), nodes);
            for (const auto& [before, after] : edges) {
                EXPECT_LT(std::find(order.begin(), order.end(), before),
                          std::find(order.begin(), order.end(), after));
            }
        }
    }
}

TEST(TopologicalOrder, OfASequenceIsThatOfItsPlacesAsKeys) {
    std::mt19937 random(2);
    for (const std::size_t nodes : {0, 1, 2, 63, 64, 65, 4096, 4097, 5000, 300'000}) {
        Order sequence(nodes), place(nodes);
        for (std::size_t i = 0; i < nodes; ++i) sequence[i] = static_cast<std::int32_t>(i);
        std::shuffle(sequence.begin(), sequence.end(), random);
        for (std::size_t i = 0; i < nodes; ++i)
            place[static_cast<std::size_t>(sequence[i])] = static_cast<std::int32_t>(i);
        Edges edges;
        for (std::size_t i = 0; i < nodes; ++i) {
            const std::size_t one = random() % nodes, other = random() % nodes;
            if (one != other) edges.emplace_back(std::min(one, other), std::max(one, other));
        }
        if (nodes > 2) edges.emplace_back(1, 0);  // maybe a circle
        const Followers of = followers(nodes, edges);
        const auto key = [&](std::int32_t node) {
            return static_cast<std::uint64_t>(place[static_cast<std::size_t>(node)]);
        };
        EXPECT_EQ(topological_order_in(of, sequence), topological_order(of, key)) << nodes;
    }
}

}  // namespace
}  // namespace syncopate
