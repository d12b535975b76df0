#include "syncopate/topological_order.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <random>
#include <utility>
#include <vector>

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

Order rising(std::size_t nodes) {
    Order order(nodes);
    std::iota(order.begin(), order.end(), 0);
    return order;
}

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
    EXPECT_EQ(topological_order_in(of, rising(5)), (Order{1, 3, 2, 4, 0}));
    EXPECT_EQ(topological_order_in(of, Order{4, 3, 2, 1, 0}), (Order{4, 3, 2, 1, 0}));
}

TEST(TopologicalOrder, LeavesOutWhatIsOnACircleOrBehindOne) {
    const Followers of = followers(5, {{0, 1}, {1, 2}, {2, 1}, {2, 3}});
    EXPECT_EQ(topological_order(of), (Order{0, 4}));
    EXPECT_EQ(topological_order_in(of, rising(5)), (Order{0, 4}));
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
        for (const Order& order : {topological_order(of), topological_order_in(of, rising(nodes))}) {
            ASSERT_EQ(order.size(), nodes);
            for (const auto& [before, after] : edges) {
                EXPECT_LT(std::find(order.begin(), order.end(), before),
                          std::find(order.begin(), order.end(), after));
            }
        }
    }
}

/// What is said of it, by a queue.
Order first_in(const Followers& of, const Order& sequence) {
    Order place(sequence.size());
    for (std::size_t i = 0; i < sequence.size(); ++i)
        place[static_cast<std::size_t>(sequence[i])] = static_cast<std::int32_t>(i);
    Order missing = of.num_before();
    std::priority_queue<std::int32_t, Order, std::greater<>> ready;
    const auto add = [&](std::int32_t node) { ready.push(place[static_cast<std::size_t>(node)]); };
    for (std::size_t node = 0; node < missing.size(); ++node)
        if (missing[node] == 0) add(static_cast<std::int32_t>(node));
    Order order;
    while (!ready.empty()) {
        order.push_back(sequence[static_cast<std::size_t>(ready.top())]);
        ready.pop();
        for (const std::int32_t after : of(order.back()))
            if (--missing[static_cast<std::size_t>(after)] == 0) add(after);
    }
    return order;
}

TEST(TopologicalOrder, TakesTheFirstInASequenceOfAnyLength) {
    std::mt19937 random(2);
    for (const std::size_t nodes : {0, 1, 2, 63, 64, 65, 4096, 4097, 5000, 300'000}) {
        Order sequence = rising(nodes);
        std::shuffle(sequence.begin(), sequence.end(), random);
        Edges edges;
        for (std::size_t i = 0; i < nodes; ++i) {
            const std::size_t one = random() % nodes, other = random() % nodes;
            if (one != other) edges.emplace_back(std::min(one, other), std::max(one, other));
        }
        if (nodes > 2) edges.emplace_back(1, 0);  // maybe a circle
        const Followers of = followers(nodes, edges);
        EXPECT_EQ(topological_order_in(of, sequence), first_in(of, sequence)) << nodes;
    }
}

TEST(InOrderOf, PutsNodesBehindThoseOfSmallerKeysAndOfTheirOwn) {
    const std::vector<std::size_t> keys{3, 0, 2, 0, 3, 5};
    const auto key = [&](std::int32_t node) { return keys[static_cast<std::size_t>(node)]; };
    EXPECT_EQ(in_order_of(6, key), (Order{1, 3, 2, 0, 4, 5}));
    EXPECT_EQ(in_order_of(0, key), Order{});
}

}  // namespace
}  // namespace syncopate
