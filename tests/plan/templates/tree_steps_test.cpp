#include "plan/templates/tree_steps.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <gtest/gtest.h>

namespace syncopate::plan {
namespace {

/// `each` chunks of every device of a topology.
std::vector<MovingChunk> chunks_of(const Topology& topology, std::int32_t each) {
    std::vector<MovingChunk> chunks;
    for (std::int32_t device = 0; device < topology.num_devices(); ++device) {
        for (std::int32_t part = 0; part < each; ++part) chunks.push_back({device, -1, 1 << 20});
    }
    return chunks;
}

std::optional<std::vector<TreeStep>> steps_on(const Topology& topology, std::int32_t each) {
    std::vector<std::int32_t> members(static_cast<std::size_t>(topology.num_devices()));
    std::iota(members.begin(), members.end(), 0);
    return tree_steps({topology, members}, chunks_of(topology, each));
}

TEST(TreeSteps, EachChunkIsSummedAtItsOwnerAndSpreadOverTheSameEdges) {
    const Topology topology = mesh_topology({3, 4});
    const auto steps = steps_on(topology, 2);
    ASSERT_TRUE(steps);
    ASSERT_EQ(steps->size(), 24U * 2 * 11);
    std::vector<std::set<std::pair<std::int32_t, std::int32_t>>> up(24);
    std::vector<std::set<std::pair<std::int32_t, std::int32_t>>> down(24);
    for (const TreeStep& step : *steps) {
        const auto chunk = static_cast<std::size_t>(step.chunk);
        if (step.sums) {
            EXPECT_TRUE(up[chunk].emplace(step.from, step.to).second);
        } else {
            EXPECT_TRUE(down[chunk].emplace(step.to, step.from).second);
        }
    }
    EXPECT_EQ(up, down);
    for (std::size_t chunk = 0; chunk < up.size(); ++chunk) {
        std::set<std::int32_t> senders;  // all but the owner, each once
        for (const auto& [from, to] : up[chunk]) EXPECT_TRUE(senders.insert(from).second);
        EXPECT_EQ(senders.size(), 11U);
        EXPECT_FALSE(senders.contains(static_cast<std::int32_t>(chunk) / 2));
    }
}

TEST(TreeSteps, LoadsTheLinksOfAMeshAlike) {
    const auto steps = steps_on(mesh_topology({4, 4}), 16);
    ASSERT_TRUE(steps);
    std::map<std::pair<std::int32_t, std::int32_t>, int> load;
    for (const TreeStep& step : *steps) ++load[{step.from, step.to}];
    ASSERT_EQ(load.size(), 48U);
    for (const auto& [link, steps_on_link] : load) EXPECT_NEAR(steps_on_link, 256 * 15 / 24, 3);
}

TEST(TreeSteps, DoesNotFitWhereConnectionsShareALink) {
    EXPECT_FALSE(steps_on(switch_topology(4), 1));
    EXPECT_FALSE(steps_on(*find_topology("h200x8"), 1));
}

}  // namespace
}  // namespace syncopate::plan
