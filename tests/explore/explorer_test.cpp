// No order of what a call does is wrong: small schedules of every operator, backend and kind of guard, three calls in
// flight, as the library's executors carry them out, in every order that their waits allow.
#include "explore/explorer.hpp"

#include <gtest/gtest.h>

#include <cstdio>

#include "explore/cases.hpp"

namespace syncopate::explore {
namespace {

/// `all`: none may have more states than are looked at.
void expect_right(const std::vector<Case>& cases, const ExploreOptions& options, bool all = true) {
    for (const Case& one : cases) {
        const Result<Model> model = record(one);
        ASSERT_TRUE(model) << one.name << ": " << model.error().to_string();
        const Explored found = explore(*model, options);
        EXPECT_EQ(found.violation, "") << one.name;
        EXPECT_TRUE(found.complete || !all) << one.name << " has more than " << found.states << " states";
        std::printf("%8llu states, %4zu agents, %5zu steps: %s\n",
                    static_cast<unsigned long long>(found.states), model->agents.size(), model->record.size(),
                    one.name.c_str());
    }
}

TEST(Explorer, FindsNothingWrongInSmallPlansOfTwoRanks) { expect_right(plan_cases(2), {}); }
TEST(Explorer, FindsNothingWrongInSmallPlansOfThreeRanks) { expect_right(plan_cases(3), {}); }
TEST(Explorer, FindsNothingWrongInOperators) { expect_right(operator_cases(2), {}); }

/// A receive is posted when its place is free, so that a send needs no acknowledgement [P41].
TEST(Explorer, FindsNothingWrongOverNodes) {
    expect_right(node_cases(2, 1), {});
    expect_right(node_cases(2, 2), {});
}
TEST(Explorer, FindsNothingWrongInOperatorsOverNodes) {
    expect_right(operator_node_cases(2, 1), {});
    expect_right(operator_node_cases(2, 2), {});
}
TEST(ExplorerSweep, FindsNothingWrongOverNodes) {
    expect_right(node_cases(3, 1), {});
    expect_right(operator_node_cases(3, 1), {});
    expect_right(node_cases(3, 2), {});
}

TEST(Explorer, FindsNothingWrongInEveryOrderOfSmallPlansOfTwoRanks) {
    expect_right(plan_cases(2), {.reduce = false, .most_states = 1'000'000});
}

TEST(ExplorerSweep, FindsNothingWrongInOperatorsOfThreeRanks) { expect_right(operator_cases(3), {}); }
TEST(ExplorerSweep, FindsNothingWrongInFourRanks) {
    expect_right(plan_cases(4), {});
    expect_right(operator_cases(4), {});
}
TEST(ExplorerSweep, FindsNothingWrongInEveryOrderOfThreeRanksAsFarAsItLooks) {
    expect_right(plan_cases(3), {.reduce = false, .most_states = 100'000}, false);
}
TEST(ExplorerSweep, FindsNothingWrongInEveryOrderOfOperators) {
    expect_right(operator_cases(2), {.reduce = false, .most_states = 10'000'000});
}

}  // namespace
}  // namespace syncopate::explore
