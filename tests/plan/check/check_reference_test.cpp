// check() against the reference, which runs every interleaving: on plans of a few ops, with a fixed seed.
//
// SYNCOPATE_RANDOM_PLANS=N runs N plans from each seed instead of 1,000 (in a sweep: 12,500),
// SYNCOPATE_RANDOM_SEED=S others. `syncopate_plan_tests --gtest_filter='*AgainstReference*'` runs them all.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/plans.hpp"
#include "plan/random_plans.hpp"
#include "plan/reference_checker.hpp"
#include "syncopate/plan/json/json.hpp"

namespace syncopate::plan {
namespace {

using Kind = Finding::Kind;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::string names(const std::set<Kind>& kinds) {
    std::string text;
    for (const Kind kind : kinds) text += std::string(name_of(kind)) + " ";
    return text;
}

std::set<Kind> kinds_of(const std::vector<Finding>& findings) {
    std::set<Kind> kinds;
    for (const Finding& finding : findings) kinds.insert(finding.kind);
    return kinds;
}

TEST(Reference, AgreesOnTheRelayAndFindsEachWrongInIt) {
    Plan plan = test::relay();
    EXPECT_TRUE(test::run_every_way(plan).ok);
    plan.ranks[1][0].after = {};
    EXPECT_EQ(test::run_every_way(plan, {2, true}).kinds.count(Kind::early_read), 1U);
    plan.ranks[1][0].after = {{0, 0}};
    plan.ranks[0][0].after = {{1, 0}};
    EXPECT_EQ(test::run_every_way(plan).kinds, std::set{Kind::cycle});
}

TEST(Reference, SeesTransfersThatAreNotAtomic) {
    // Two ops that write the same two elements, one of each: in some interleaving the halves mix.
    Plan plan = test::relay();
    plan.initial.push_back({2, test::box({{4, 8}})});
    plan.ranks[2] = {test::transfer(OpKind::push, 1, test::box({{4, 8}}), test::box({{0, 4}}))};
    plan.final = {};
    const test::ReferenceVerdict verdict = test::run_every_way(plan, {2, true});
    EXPECT_EQ(verdict.kinds.count(Kind::write_race), 1U);
}

/// So many random plans from a seed.
struct Sample {
    std::uint64_t seed = 0;
    std::uint64_t plans = 0;
};
void PrintTo(const Sample& sample, std::ostream* out) {
    *out << sample.plans << " plans, seed " << sample.seed;
}

std::vector<Sample> samples(std::uint64_t seeds, std::uint64_t plans) {
    std::vector<Sample> made;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) made.push_back({seed, plans});
    return made;
}

class CheckAgainstReference : public testing::TestWithParam<Sample> {};

TEST_P(CheckAgainstReference, EveryVerdictIsThatOfEveryInterleaving) {
    const std::uint64_t count = from_environment("SYNCOPATE_RANDOM_PLANS", GetParam().plans);
    const std::uint64_t seed = from_environment("SYNCOPATE_RANDOM_SEED", 20261121) + GetParam().seed;
    std::cout << "seed " << seed << ", " << count << " plans\n";
    test::RandomPlans plans(seed);
    std::uint64_t right = 0;
    std::uint64_t states = 0;
    std::map<Kind, std::uint64_t> by_kind;
    std::map<std::string, std::uint64_t> by_origin;
    int disagreements = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        // A few of six ops, most of up to four: interleavings grow as 4 to the power of ops.
        const bool large = i % 40 == 0;
        const Plan plan = plans.next(large ? 6 : 4);
        std::size_t ops = 0;
        for (const auto& list : plan.ranks) ops += list.size();
        test::ReferenceOptions options;
        options.parts = ops <= 2 || (ops == 3 && i % 8 == 0) ? 2 : 1;
        options.explore_all = i % 4 == 0 && ops <= 4;
        const test::ReferenceVerdict slow = test::run_every_way(plan, options);
        ASSERT_TRUE(slow.complete) << "plan " << i;
        const std::vector<Finding> findings = check(plan);
        const std::set<Kind> fast = kinds_of(findings);
        states += slow.states;
        right += slow.ok ? 1 : 0;
        for (const Kind kind : fast) ++by_kind[kind];
        ++by_origin[plans.story().substr(0, plans.story().find(','))];
        // Where one thing only is wrong, it has one name.
        const bool one_name = !options.explore_all || slow.kinds.size() != 1 ||
                              fast.count(Kind::malformed) > 0 || fast.count(*slow.kinds.begin()) > 0;
        if (slow.ok == findings.empty() && one_name) continue;
        ADD_FAILURE() << "plan " << i << " (" << plans.story() << "): every interleaving says "
                      << (slow.ok ? "right" : "wrong: " + names(slow.kinds)) << ", check says "
                      << (findings.empty() ? "right" : findings.front().to_string()) << " [" << names(fast)
                      << "]\n"
                      << to_json(plan);
        if (++disagreements == 3) break;
    }
    std::cout << right << " right, " << count - right << " wrong, " << states << " states\n";
    for (const auto& [kind, times] : by_kind) std::cout << "  " << name_of(kind) << ": " << times << '\n';
    for (const auto& [origin, times] : by_origin) std::cout << "  " << origin << ": " << times << '\n';
    if (count < 1000) return;
    // That it is no test of nothing: all kinds come up, and neither verdict is rare.
    EXPECT_GT(right, count / 5);
    EXPECT_LT(right, count * 4 / 5);
    for (const Kind kind :
         {Kind::cycle, Kind::early_read, Kind::write_race, Kind::overwrite, Kind::duplicate_contribution,
          Kind::missing_contribution, Kind::final_not_reached})
        EXPECT_GT(by_kind[kind], count / 500) << name_of(kind);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CheckAgainstReference, testing::ValuesIn(samples(4, 1000)));
INSTANTIATE_TEST_SUITE_P(Sweep, CheckAgainstReference, testing::ValuesIn(samples(8, 12500)));

}  // namespace
}  // namespace syncopate::plan
