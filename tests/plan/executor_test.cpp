// That the tests' own executor and search for races see what they are there to see.
#include "plan/executor.hpp"

#include <string>

#include <gtest/gtest.h>

#include "plan/plans.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::plan {
namespace {

using test::ring_of;

Plan ring_all_reduce() {
    return *all_reduce(ring_of(4), {"A", {8}, DType::fp32}, {.algorithm = Algorithm::ring});
}

TEST(Executor, SeesWhatAnyMissingEdgeDoesToARing) {
    const Plan right = ring_all_reduce();
    ASSERT_EQ(test::race(right), "");
    for (std::size_t rank = 0; rank < 4; ++rank) {
        for (std::size_t i = 0; i < right.ranks[rank].size(); ++i) {
            if (right.ranks[rank][i].after.empty()) continue;
            Plan wrong = right;
            wrong.ranks[rank][i].after.clear();
            EXPECT_NE(test::race(wrong), "") << rank << ":" << i;
            std::string worst;
            for (std::uint32_t seed = 0; seed < 200 && worst.empty(); ++seed)
                worst = test::compare(wrong, test::execute(wrong, test::small_integer, seed),
                                      test::small_integer);
            EXPECT_NE(worst, "") << rank << ":" << i;
        }
    }
}

TEST(Executor, SeesAPieceThatIsAddedTwiceOrNotAtAll) {
    Plan twice = ring_all_reduce();
    twice.ranks[0].push_back(
        test::push(1, test::box({{0, 2}}), {{0, 5}, {1, 5}, {2, 5}, {3, 5}}, Reduce::sum));
    EXPECT_NE(test::compare(twice, test::execute(twice, test::small_integer, 0), test::small_integer), "");
    Plan lost = ring_all_reduce();
    lost.ranks[2][0].reduce = Reduce::none;
    EXPECT_NE(test::compare(lost, test::execute(lost, test::small_integer, 0), test::small_integer), "");
}

TEST(Executor, ShowsWhatNothingWroteTo) {
    Plan plan = *all_gather(ring_of(2), {"A", {4}, DType::fp32});
    plan.ranks[0].clear();
    EXPECT_EQ(test::compare(plan, test::execute(plan, test::small_integer, 0), test::small_integer),
              "rank 1 tensor 0 element 0: nan instead of 0");
}

}  // namespace
}  // namespace syncopate::plan
