#include "plan/check/happens_before.hpp"

#include <random>

#include <gtest/gtest.h>

#include "plan/plans.hpp"

namespace syncopate::plan {
namespace {

/// Ops that move nothing of interest, each after some of those before it.
template <typename Waits>
Plan ops_with(std::int32_t count, Waits waits) {
    Plan plan = test::relay();
    plan.ranks = {{}, {}, {}};
    for (std::int32_t i = 0; i < count; ++i)
        plan.ranks[0].push_back(test::push(1, test::box({{0, 4}}), waits(i)));
    return plan;
}

/// Compares every answer with the transitive closure, asked in the order in which check does.
void expect_closure(const Plan& plan) {
    const EventGraph graph(plan, {});
    const Followers followers = followers_of(graph);
    const std::vector<std::int32_t> order = topological_order(followers);
    Budget budget(std::int64_t{1} << 40);
    HappensBefore happens_before(graph, followers, order, budget);
    const auto count = static_cast<std::size_t>(graph.num_events());
    std::vector<std::vector<bool>> closure(count, std::vector<bool>(count, false));  // [second][first]
    std::vector<std::int32_t> earlier_events;
    for (const std::int32_t event : order) {
        std::vector<bool>& row = closure[static_cast<std::size_t>(event)];
        for (const std::int32_t wait : graph.waits(event)) {
            row[static_cast<std::size_t>(wait)] = true;
            for (std::size_t i = 0; i < count; ++i)
                row[i] = row[i] || closure[static_cast<std::size_t>(wait)][i];
        }
        happens_before.look_at(event);
        for (const std::int32_t first : earlier_events) {
            ASSERT_EQ(happens_before.before(first, event), row[static_cast<std::size_t>(first)])
                << first << " before " << event;
            ASSERT_FALSE(happens_before.before(event, first));
        }
        for (const std::int32_t wait : graph.waits(event)) {  // and of what it waits for
            for (const std::int32_t first : earlier_events) {
                ASSERT_EQ(happens_before.before(first, wait),
                          bool{closure[static_cast<std::size_t>(wait)][static_cast<std::size_t>(first)]});
            }
        }
        earlier_events.push_back(event);
    }
}

TEST(HappensBefore, IsTheTransitiveClosureOfRandomWaits) {
    std::mt19937 random(7);
    for (const std::uint32_t most : {1U, 2U, 3U, 8U}) {
        expect_closure(ops_with(300, [&](std::int32_t i) {
            std::vector<OpRef> after;
            for (std::uint32_t n = random() % (most + 1); n > 0 && i > 0; --n) {
                const auto back = static_cast<std::int32_t>(random() % 40) + 1;
                if (back <= i) after.push_back({0, i - back});
            }
            return after;
        }));
    }
}

TEST(HappensBefore, OfALatticeIsToldByClocks) {
    constexpr std::int32_t kWide = 30;
    expect_closure(ops_with(kWide * kWide, [](std::int32_t i) {
        std::vector<OpRef> after;
        if (i % kWide > 0) after.push_back({0, i - 1});
        if (i >= kWide) after.push_back({0, i - kWide});
        return after;
    }));
}

TEST(HappensBefore, OfALatticeThatGoesRoundAsWell) {
    constexpr std::int32_t kWide = 32;
    expect_closure(ops_with(kWide * 40, [](std::int32_t i) {
        std::vector<OpRef> after;
        if (i >= kWide) after = {{0, i - kWide}, {0, i / kWide * kWide - kWide + (i + kWide - 1) % kWide}};
        return after;
    }));
}

TEST(HappensBefore, ThroughABarrierOfThousands) {
    constexpr std::int32_t kEach = 2000;
    const Plan plan = ops_with(2 * kEach + 1, [](std::int32_t i) {
        std::vector<OpRef> after;
        if (i == kEach) {
            for (std::int32_t n = 0; n < kEach; ++n) after.push_back({0, n});
        } else if (i > kEach) {
            after.push_back({0, kEach});
        }
        return after;
    });
    const EventGraph graph(plan, {});
    const Followers followers = followers_of(graph);
    const std::vector<std::int32_t> order = topological_order(followers);
    Budget budget(1 << 20);  // far less than all pairs
    HappensBefore happens_before(graph, followers, order, budget);
    for (std::int32_t i = 0; i < kEach; ++i) {
        EXPECT_TRUE(happens_before.before(i, kEach + 1 + (i * 7) % kEach));
        EXPECT_FALSE(happens_before.before(i, (i + 1) % kEach));
    }
    EXPECT_FALSE(budget.exhausted());
}

}  // namespace
}  // namespace syncopate::plan
