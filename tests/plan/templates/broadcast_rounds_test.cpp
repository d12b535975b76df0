#include "plan/templates/broadcast_rounds.hpp"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "syncopate/plan/topology/topology.hpp"

namespace syncopate::plan {
namespace {

TEST(BroadcastRounds, BringEveryChunkToEveryoneOnceInTheFewestRounds) {
    for (const auto& [participants, axes] : std::map<std::int32_t, std::int32_t>{{4, 2}, {8, 3}, {32, 5}}) {
        for (const std::int32_t chunks : {1, 2, 3, 7, 12}) {
            const std::int32_t root = participants / 2 + 1;
            // Participant and chunk, by the round before.
            std::set<std::pair<std::int32_t, std::int32_t>> had;
            std::set<std::pair<std::int32_t, std::int32_t>> gets;
            std::set<std::int32_t> senders;
            std::set<std::int32_t> receivers;
            double round = 0;
            for (std::int32_t chunk = 0; chunk < chunks; ++chunk) had.emplace(root, chunk);
            for (const SynthesisStep& step : broadcast_rounds(participants, root, chunks)) {
                if (step.start_us != round) {
                    had.merge(gets);
                    senders.clear();
                    receivers.clear();
                    round = step.start_us;
                }
                EXPECT_TRUE(had.contains({step.from, step.chunk}));
                EXPECT_FALSE(had.contains({step.to, step.chunk}));
                EXPECT_TRUE(senders.insert(step.from).second);
                EXPECT_TRUE(receivers.insert(step.to).second);
                gets.emplace(step.to, step.chunk);
            }
            had.merge(gets);
            EXPECT_EQ(had.size(), static_cast<std::size_t>(participants * chunks));
            EXPECT_LT(round, chunks + axes - 1) << participants << " participants, " << chunks << " chunks";
        }
    }
}

TEST(BroadcastRounds, KeepStepWithWhoSentToTheSameOneBefore) {
    const std::vector<SynthesisStep> steps = broadcast_rounds(8, 0, 6);
    std::map<std::int32_t, std::size_t> last;  // by receiver
    std::size_t waits = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const auto before = last.find(steps[i].to);
        if (before != last.end() && steps[before->second].from != steps[i].from) {
            EXPECT_EQ(steps[i].yields_to, static_cast<std::int32_t>(before->second));
            ++waits;
        } else {
            EXPECT_EQ(steps[i].yields_to, -1);
        }
        last[steps[i].to] = i;
    }
    EXPECT_GT(waits, 20u);
}

TEST(BroadcastRounds, FitAPowerOfTwoOfOneNodeWhereEveryoneReachesEveryone) {
    const auto fits = [](const std::string& topology, const std::vector<std::int32_t>& ranks) {
        return fits_rounds(hop_network(*find_topology(topology), ranks, false));
    };
    EXPECT_TRUE(fits("h200x8", {0, 1, 2, 3, 4, 5, 6, 7}));
    EXPECT_TRUE(fits("h200x8", {6, 1, 4, 3}));
    EXPECT_FALSE(fits("h200x8", {0, 1, 2, 3, 4, 5}));
    EXPECT_FALSE(fits("h200x8", {0, 1}));
    EXPECT_FALSE(fits("h200x8x2", {0, 1, 8, 9}));
    EXPECT_FALSE(fits("ring:4", {0, 1, 2, 3}));
}

}  // namespace
}  // namespace syncopate::plan
