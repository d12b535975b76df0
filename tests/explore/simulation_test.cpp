// The executors of device host under a seed (simulation.hpp). What goes wrong is run again by
//
//      SYNCOPATE_SIMULATION_SEED=… build/bin/syncopate_explore_tests --gtest_filter=Simulation.RunsOneSeedAgain
#include "explore/simulation.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "explore/cases.hpp"

namespace syncopate::explore {
namespace {

constexpr int kCalls = 12;

/// So many runs; returns calls that ended well.
std::uint64_t expect_right(std::uint64_t first, std::uint64_t seeds, int calls, bool harmless) {
    std::uint64_t ended = 0, failed = 0;
    for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
        const SimulationResult found = simulate(seed, calls, harmless);
        EXPECT_EQ(found.wrong, "") << "seed " << seed << ": " << found.story;
        ended += found.calls;
        failed += found.failed;
    }
    std::printf("%llu calls ended, %llu failed as they should\n", static_cast<unsigned long long>(ended),
                static_cast<unsigned long long>(failed));
    return ended;
}

TEST(Simulation, EndsEveryCallRightUnderDelaysAndStops) {
    EXPECT_GT(expect_right(1, 150, kCalls, true), 1000U);
}

TEST(Simulation, FailsWithinTheDeadlineOrIsRightUnderKillsAndFaults) {
    EXPECT_GT(expect_right(100'000, 150, kCalls, false), 500U);
}

void expect_gone_on(std::uint64_t first, std::uint64_t seeds, std::uint64_t least) {
    std::uint64_t recoveries = 0, ended = 0;
    for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
        const auto after = seed % 3 == 0 ? AfterFault::reset : AfterFault::recover;
        const SimulationResult found = simulate(seed, 5, false, after);
        EXPECT_EQ(found.wrong, "") << "seed " << seed << ": " << found.story;
        recoveries += found.recoveries;
        ended += found.calls;
    }
    std::printf("%llu recoveries, %llu calls ended\n", static_cast<unsigned long long>(recoveries),
                static_cast<unsigned long long>(ended));
    EXPECT_GT(recoveries, least);
}

TEST(Simulation, GoesOnAfterKillsAndFaultsAndComputesRight) { expect_gone_on(7'000'000, 60, 60); }
TEST(SimulationSweep, GoesOnAfterKillsAndFaultsAndComputesRight) { expect_gone_on(8'000'000, 3'000, 3'000); }

TEST(Simulation, DoesTheSameAgainWithTheSameSeed) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        const SimulationResult once = simulate(seed, kCalls, false);
        const SimulationResult again = simulate(seed, kCalls, false);
        EXPECT_EQ(once.trace, again.trace) << "seed " << seed << ": " << once.story;
        EXPECT_NE(once.trace, simulate(seed + 100, kCalls, false).trace);
    }
}

TEST(Simulation, NoticesAWaitThatIsNotThere) {
    int programs = 0;
    for (Case& one : plan_cases(2)) {
        if (!one.name.starts_with("push of") && !one.name.starts_with("reduce-scatter of")) continue;
        one.spoil = [](fuse::Schedule& schedule) {
            for (fuse::Slot& slot : schedule.ranks[0].slots) slot.waits.clear(), slot.phases.clear();
            for (fuse::Transfer& transfer : schedule.ranks[0].transfers) {
                transfer.waits.clear();
                transfer.step.gates.clear();
                transfer.step.awaited.clear();
            }
        };
        bool noticed = false;
        for (std::uint64_t seed = 1; !noticed && seed < 60; ++seed)
            noticed = !simulate(one, seed, 6, true).wrong.empty();
        EXPECT_TRUE(noticed) << one.name;
        ++programs;
    }
    EXPECT_GT(programs, 6);
}

TEST(Simulation, RunsOneSeedAgain) {
    const char* const seed = std::getenv("SYNCOPATE_SIMULATION_SEED");
    const SimulationResult found =
        simulate(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1, kCalls, false);
    EXPECT_EQ(found.wrong, "") << found.story;
    EXPECT_NE(found.trace, 0U);
}

TEST(SimulationSweep, EndsHundredsOfThousandsOfCallsRight) {
    EXPECT_GT(expect_right(1'000'000, 1'500, 150, true), 450'000U);
}
TEST(SimulationSweep, EndsHundredsOfThousandsOfOtherCallsRight) {
    EXPECT_GT(expect_right(2'000'000, 1'500, 150, true), 450'000U);
}
TEST(SimulationSweep, FailsOrIsRightUnderKillsAndFaults) {
    EXPECT_GT(expect_right(3'000'000, 20'000, kCalls, false), 100'000U);
}

}  // namespace
}  // namespace syncopate::explore
