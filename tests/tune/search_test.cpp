// A search finds the fastest strategy through noise and drift, and never one that is slower than the
// baselines.
#include "syncopate/tune/search/search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace syncopate::tune {
namespace {

/// A machine of one rank on which contender i takes us[i], times noise and a clock that drifts.
struct Machine {
    std::vector<double> us;
    double noise = 0.01;  ///< standard deviation of a time, of which one in twenty is much longer
    double drift = 0;     ///< per call: clocks fall
    double prepare_seconds = 0.1;
    std::set<std::size_t> broken{};  ///< cannot be made ready
    std::set<std::size_t> faulty{};  ///< fail when they are measured
    std::uint64_t seed = 1;

    std::mt19937_64 random{seed};
    double now = 0;
    double calls = 0;
    std::vector<std::size_t> prepared{};
    std::set<std::size_t> ready{};
    std::size_t most_ready = 0;
    std::vector<std::int32_t> measured = std::vector<std::int32_t>(us.size(), 0);
    std::vector<Trial> recorded{};

    Measuring measuring() {
        return {
            .prepare =
                [this](std::size_t i) {
                    now += prepare_seconds;
                    prepared.push_back(i);
                    ready.insert(i);
                    most_ready = std::max(most_ready, ready.size());
                    return broken.contains(i) ? std::string("no room") : std::string();
                },
            .measure =
                [this](std::span<const std::size_t> which) {
                    std::vector<double> times;
                    for (const std::size_t i : which) {
                        EXPECT_TRUE(ready.contains(i)) << i;
                        std::normal_distribution<double> normal(1, noise);
                        const double jump = random() % 20 == 0 ? 1.5 : 1;
                        calls += 1;
                        measured[i] += 1;
                        const double slower = 1 + drift * calls;
                        now += us[i] * 1e-6;
                        times.push_back(faulty.contains(i)
                                            ? std::numeric_limits<double>::infinity()
                                            : us[i] * normal(random) * slower * (noise > 0 ? jump : 1));
                    }
                    return times;
                },
            .release = [this](std::size_t i) { EXPECT_EQ(ready.erase(i), 1U) << i; },
            .agree = [](const std::vector<double>& values) { return Result<std::vector<double>>(values); },
            .seconds = [this] { return now; },
            .record = [this](const Trial& trial) { recorded.push_back(trial); }};
    }
};

/// Two baselines, then contenders whose estimate is their time.
std::vector<Contender> contenders_of(const std::vector<double>& us) {
    std::vector<Contender> made;
    for (std::size_t i = 0; i < us.size(); ++i) {
        const std::string name = i == 0 ? "default" : i == 1 ? "unfused" : "c" + std::to_string(i);
        made.push_back({.name = name, .strategy = "{" + name + "}", .estimate_us = us[i], .baseline = i < 2});
    }
    return made;
}

SearchResult found(Machine& machine, const SearchOptions& options = {}, std::span<const Trial> earlier = {}) {
    const auto result = find_fastest(contenders_of(machine.us), options, machine.measuring(), earlier);
    EXPECT_TRUE(result) << (result ? "" : result.error().to_string());
    EXPECT_TRUE(machine.ready.empty()) << "all is released at the end";
    return result ? *result : SearchResult{};
}

TEST(Search, FindsTheFastestThroughNoiseAndDrift) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        Machine machine{
            .us = {100, 110, 98, 95, 80, 99, 101, 90, 97, 120}, .noise = 0.02, .drift = 0.002, .seed = seed};
        const SearchResult result = found(machine);
        EXPECT_EQ(result.winner, 4U) << "seed " << seed;
        EXPECT_NEAR(result.trials[4].ratio, 0.8, 0.03);
        EXPECT_TRUE(result.in_time);
        EXPECT_EQ(result.baseline_us.size(), 2U);
        EXPECT_NEAR(result.us / result.baseline_us[0], 0.8, 0.05);
    }
}

TEST(Search, IsTheSameEachTimeForTheSameMeasurements) {
    Machine one{.us = {100, 90, 80, 85, 95, 79, 99}, .seed = 3};
    Machine two = one;
    EXPECT_EQ(found(one).trials, found(two).trials);
}

TEST(Search, TakesABaselineWhereNothingIsFasterBeyondTheNoise) {
    Machine machine{.us = {100, 100.5, 100.1, 99.9, 100, 101}, .noise = 0.05};
    EXPECT_LT(found(machine).winner, 2U);
    Machine unfused{.us = {130, 100, 120, 115}};
    EXPECT_EQ(found(unfused).winner, 1U);
}

/// The unfused pair is the fastest CUDA graph of each of these. `eager`: what the default strategy, the pair and a contender take by
/// calls of the host.
TEST(Search, TakesAnUnfusedWinnerOnlyWhereItGainsMoreThanTheHostLosesByIt) {
    constexpr double kFails = std::numeric_limits<double>::infinity();
    struct Case {
        std::vector<double> us, eager;
        std::size_t winner;
    };
    for (const Case& one : std::vector<Case>{
             {{100, 90, 95}, {70, 140, 60}, 2},     // 5 % for half of the host's time
             {{100, 90, 120}, {70, 140, 60}, 0},    // the fused one that is the faster graph
             {{100, 90, 95}, {100, 101, 100}, 1},   // the host takes as long
             {{100, 90, 95}, {100, 80, 100}, 1},    // less
             {{200, 90, 190}, {100, 160, 100}, 1},  // half of the graph for a third by the host
             {{100, 90, 95}, {kFails, 140, kFails}, 1},
             {{100, 90, 95}, {70, kFails, 60}, 2},
             {{100, 90, 80}, {70, 140, 60}, 2},  // no unfused winner: nobody asks
         }) {
        Machine machine{.us = one.us, .noise = 0.001};
        std::vector<std::vector<std::size_t>> asked;
        Measuring measuring = machine.measuring();
        measuring.eager = [&](std::span<const std::size_t> which) {
            asked.emplace_back(which.begin(), which.end());
            std::vector<double> times;
            for (const std::size_t i : which) {
                EXPECT_TRUE(machine.ready.contains(i)) << i;
                times.push_back(one.eager[i]);
            }
            return times;
        };
        const auto made = find_fastest(contenders_of(machine.us), {.unfused = 1}, measuring);
        ASSERT_TRUE(made) << made.error().to_string();
        EXPECT_EQ(made->winner, one.winner) << one.us[0] << ' ' << one.us[2] << ' ' << one.eager[1];
        EXPECT_NEAR(made->us, one.us[one.winner], 2);
        const bool is_fastest = one.us[1] < one.us[2];
        EXPECT_EQ(asked.empty(), !is_fastest);
        EXPECT_EQ(made->instead.empty(), one.winner == 1 || !is_fastest) << made->instead;
        measuring.eager = nullptr;
        EXPECT_EQ(find_fastest(contenders_of(machine.us), {.unfused = 1}, measuring)->winner,
                  is_fastest ? 1U : 2U);
    }
}

/// Over many machines with noise, drift and estimates that mislead: the winner's true time is never beyond
/// that of the faster baseline by more than the noise.
TEST(Search, IsNeverSlowerThanTheBaselines) {
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> spread(0.7, 1.5);
    double worst = 0;
    double gained = 0;
    for (int problem = 0; problem < 300; ++problem) {
        Machine machine{.us = {},
                        .noise = 0.005 * static_cast<double>(1 + problem % 6),
                        .drift = problem % 3 == 0 ? 0.001 : 0,
                        .seed = static_cast<std::uint64_t>(problem) + 1};
        const std::size_t count = 3 + random() % 20;
        for (std::size_t i = 0; i < count; ++i) machine.us.push_back(100 * spread(random));
        if (problem % 2 == 0) {
            for (std::size_t i = 2; i < count; ++i)
                machine.us[i] = std::max(machine.us[i], machine.us[0] * 1.001);
        }
        machine.measured.assign(count, 0);
        machine.random.seed(machine.seed);
        std::vector<Contender> contenders = contenders_of(machine.us);
        for (Contender& one : contenders) one.estimate_us *= spread(random);
        const auto result = find_fastest(contenders, {}, machine.measuring());
        ASSERT_TRUE(result);
        const double baseline = std::min(machine.us[0], machine.us[1]);
        const double slower = machine.us[result->winner] / baseline - 1;
        EXPECT_LE(slower, 1.5 * machine.noise) << "problem " << problem;
        worst = std::max(worst, slower);
        gained += slower < -0.01 ? 1 : 0;
    }
    EXPECT_GT(gained, 50) << "and it often is faster";
    RecordProperty("worst", std::to_string(worst));
}

TEST(Search, DriftThatWouldFavourTheFirstDoesNot) {
    // Each call is 1 % slower than the one before: absolute times of later ones look 20 times as long.
    Machine machine{.us = {100, 100, 99, 98, 97, 96, 90}, .noise = 0, .drift = 0.01};
    EXPECT_EQ(found(machine).winner, 6U);
}

TEST(Search, BaselinesAreInEveryRound) {
    Machine machine{.us = {100, 110, 98, 95, 80, 99, 101, 90, 97, 120}};
    (void)found(machine);
    for (std::size_t i = 2; i < machine.us.size(); ++i) {
        EXPECT_LE(machine.measured[i], machine.measured[0]);
        EXPECT_LE(machine.measured[i], machine.measured[1]);
    }
    EXPECT_GE(machine.measured[4], 15 + 3) << "a finalist is measured again";
}

TEST(Search, WhatTheEstimateCallsMuchSlowerIsNotLookedAt) {
    Machine machine{.us = {100, 100, 90, 300}};
    const SearchResult result = found(machine);
    EXPECT_EQ(machine.measured[3], 0);
    EXPECT_EQ(result.trials[3].rounds, 0);
}

TEST(Search, WhatTheEstimateDoesNotTellApartTakesTurnsWithTheRest) {
    Machine machine{.us = {100, 110, 80, 80, 80, 80, 81, 82.5, 90}};
    (void)found(machine);
    const std::vector<std::size_t> others(machine.prepared.begin() + 2, machine.prepared.end());
    EXPECT_EQ(others, (std::vector<std::size_t>{2, 6, 3, 7, 4, 5, 8}));
}

TEST(Search, WhatCannotRunIsSaidAndLeftOut) {
    Machine machine{.us = {100, 110, 50, 60, 90}, .broken = {2}, .faulty = {3}};
    const SearchResult result = found(machine);
    EXPECT_EQ(result.winner, 4U);
    EXPECT_EQ(result.trials[2].refused, "no room");
    EXPECT_EQ(result.trials[3].refused, "it failed while it was measured");
}

TEST(Search, OneBaselineIsEnough) {
    Machine no_default{.us = {100, 110, 90}, .broken = {0}};
    SearchResult result = found(no_default);
    EXPECT_EQ(result.winner, 2U);
    EXPECT_EQ(result.baseline_us[0], 0);
    EXPECT_GT(result.baseline_us[1], 0);
    Machine faulty{.us = {100, 110, 120}, .faulty = {0}};
    EXPECT_EQ(found(faulty).winner, 1U);
    Machine none{.us = {100, 110, 90}, .broken = {0, 1}};
    const auto refused = find_fastest(contenders_of(none.us), {}, none.measuring());
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("default: no room"), std::string::npos) << refused.error().message;
}

TEST(Search, KeepsToItsBudget) {
    Machine machine{.us = std::vector<double>(60, 100), .prepare_seconds = 2};
    const SearchResult result = found(machine, {.budget = 60});
    EXPECT_FALSE(result.in_time);
    EXPECT_LE(machine.now, 60);
    EXPECT_GT(machine.prepared.size(), 10U);
    EXPECT_LE(machine.most_ready, 2 + 8 + 4U) << "memory is bounded";
    // Calls of a second: rounds are as many as there is time for.
    Machine slow{.us = std::vector<double>(20, 1e6), .prepare_seconds = 0.01};
    (void)found(slow, {.budget = 60});
    EXPECT_LE(slow.now, 66);
}

TEST(Search, AnInterruptedSearchGoesOnWhereItWas) {
    Machine first{.us = {100, 110, 98, 95, 80, 99, 101, 90, 97, 120}, .prepare_seconds = 10, .broken = {6}};
    (void)found(first, {.budget = 100, .batch = 1});
    std::vector<Trial> trials = first.recorded;  // the last of each counts, as in a store
    std::reverse(trials.begin(), trials.end());
    Machine second = Machine{.us = first.us};
    const SearchResult result = found(second, {}, trials);
    EXPECT_EQ(result.winner, 4U);
    std::set<std::size_t> before(first.prepared.begin(), first.prepared.end());
    EXPECT_GT(before.size(), 3U);
    EXPECT_LT(before.size(), 10U);
    for (const std::size_t i : before) {
        // What was measured is not measured by itself again, only against the others that are left.
        EXPECT_LE(std::count(second.prepared.begin(), second.prepared.end(), i), i == 6 ? 0 : 1) << i;
    }
}

/// The maximum over two threads of what each gives.
class Exchange {
public:
    std::vector<double> agree(const std::vector<double>& values) {
        std::unique_lock<std::mutex> lock(mutex_);
        const std::size_t turn = turn_;
        if (waiting_++ == 0) {
            sum_ = values;
            changed_.wait(lock, [&] { return turn_ != turn; });
            return agreed_;
        }
        EXPECT_EQ(sum_.size(), values.size()) << "both speak of the same things";
        for (std::size_t i = 0; i < values.size(); ++i) sum_[i] = std::max(sum_[i], values[i]);
        agreed_ = sum_;
        waiting_ = 0;
        ++turn_;
        changed_.notify_all();
        return agreed_;
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<double> sum_;
    std::vector<double> agreed_;
    int waiting_ = 0;
    std::size_t turn_ = 0;
};

TEST(Search, AllRanksDecideAlike) {
    const std::vector<double> us{100, 104, 98, 95, 80, 99, 120, 101};
    Exchange exchange;
    SearchResult results[2];
    Machine machines[2];
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
        // Each rank has times, a clock and failures of its own.
        machines[rank] = Machine{.us = us, .noise = 0.03, .prepare_seconds = rank == 0 ? 0.1 : 4.0};
        machines[rank].random.seed(static_cast<std::uint64_t>(rank) + 5);
        machines[rank].broken = {rank == 0 ? 2U : 3U};
        ranks.emplace_back([&, rank] {
            Measuring measuring = machines[rank].measuring();
            measuring.agree = [&](const std::vector<double>& values) -> Result<std::vector<double>> {
                return exchange.agree(values);
            };
            const auto result = find_fastest(contenders_of(us), {}, measuring);
            if (result) results[rank] = *result;
        });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(results[0].winner, 4U);
    EXPECT_EQ(results[1].winner, 4U);
    EXPECT_EQ(machines[0].prepared, machines[1].prepared);
    EXPECT_EQ(machines[0].measured, machines[1].measured);
    EXPECT_EQ(results[0].trials[2].refused, "no room");
    EXPECT_EQ(results[1].trials[2].refused, "another rank cannot run it");
}

TEST(Search, AFailureOfAnotherRankEndsItOnAll) {
    Machine machine{.us = {100, 110, 90}};
    Measuring measuring = machine.measuring();
    measuring.agree = [](const std::vector<double>&) {
        return Result<std::vector<double>>(Error{"rank 1 is gone"});
    };
    const auto result = find_fastest(contenders_of(machine.us), {}, measuring);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message, "rank 1 is gone");
}

TEST(Median, IsTheMiddleAndInfinityComesLast) {
    EXPECT_EQ(median({}), 0);
    EXPECT_EQ(median({3, 1, 2}), 2);
    EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
    EXPECT_EQ(median({1, std::numeric_limits<double>::infinity(), 2}), 2);
}

TEST(ProgressLine, ShowsHowFarSomethingIs) {
    EXPECT_EQ(progress_line(0.5, "half"), "[############            ]  50 %  half");
    EXPECT_EQ(progress_line(2, "done", 34), "[########################] 100 %  ");
}

}  // namespace
}  // namespace syncopate::tune
