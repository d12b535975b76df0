#include "syncopate/plan/model/ragged.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/json/json.hpp"

namespace syncopate::plan {
namespace {

TEST(Ragged, GroupsFollowEachOtherAndRunsBeginWhereTheyAreAligned) {
    const std::vector<std::int64_t> counts{3, 0, 5, 2, 4, 0};
    EXPECT_EQ(lay_groups(counts, {.run = 3, .align = 4, .bound = 100, .rows = 100}),
              (std::vector<Interval>{{0, 3}, {3, 3}, {3, 8}, {8, 10}, {10, 14}, {14, 14}}));
    EXPECT_EQ(lay_groups(counts, {.run = 2, .align = 8, .bound = 100, .rows = 100}),
              (std::vector<Interval>{{0, 3}, {3, 3}, {8, 13}, {13, 15}, {16, 20}, {20, 20}}));
}

TEST(Ragged, OfRowsOverTheBoundTheLastAreLeftOut) {
    const std::vector<std::int64_t> counts{3, 4, 2};
    EXPECT_EQ(lay_groups(counts, {.run = 1, .align = 1, .bound = 5, .rows = 5}),
              (std::vector<Interval>{{0, 3}, {3, 5}, {5, 5}}));
    EXPECT_EQ(lay_groups(counts, {.run = 1, .align = 1, .bound = 9, .rows = 9}).back(), (Interval{7, 9}));
}

/// Counts as routings make them: some groups empty, some with all rows, any others.
std::vector<std::int64_t> random_counts(std::mt19937& random, std::size_t groups, std::int64_t most) {
    std::vector<std::int64_t> counts(groups, 0);
    const auto draw = [&](std::int64_t end) {
        return std::uniform_int_distribution<std::int64_t>(0, end)(random);
    };
    if (draw(3) == 0) {
        counts[static_cast<std::size_t>(draw(static_cast<std::int64_t>(groups) - 1))] = most;
        return counts;
    }
    for (std::int64_t& count : counts) count = draw(3) == 0 ? 0 : draw(most);
    return counts;
}

GroupLayout random_layout(std::mt19937& random) {
    const auto draw = [&](std::int64_t from, std::int64_t end) {
        return std::uniform_int_distribution<std::int64_t>(from, end)(random);
    };
    GroupLayout layout{.run = draw(1, 4), .align = std::int64_t{1} << draw(0, 5), .bound = draw(1, 60)};
    return layout;
}

TEST(Ragged, WhateverTheCountsAreGroupsLieApartAndWithinTheirMemory) {
    std::mt19937 random(59);
    for (int trial = 0; trial < 3000; ++trial) {
        GroupLayout layout = random_layout(random);
        const std::int64_t runs = 1 + trial % 5;
        layout.rows = rows_for(layout.bound, runs, layout.align);
        const auto counts =
            random_counts(random, static_cast<std::size_t>(runs * layout.run), 1 + trial % 90);
        const std::vector<Interval> places = lay_groups(counts, layout);
        // Against the words of the promise, not the function that makes it: no row twice, none outside.
        std::vector<int> held(static_cast<std::size_t>(layout.rows), 0);
        std::int64_t all = 0;
        for (const Interval& place : places) {
            for (std::int64_t row = place.begin; row < place.end; ++row)
                ++held.at(static_cast<std::size_t>(row));
            all += place.size();
        }
        EXPECT_LE(*std::ranges::max_element(held), 1);
        std::int64_t wanted = 0;
        for (const std::int64_t count : counts) wanted += count;
        EXPECT_EQ(all, std::min(wanted, layout.bound));
    }
}

constexpr std::string_view kMoved = R"({"schema": "syncopate.plan/1",
 "mesh": [["gpu", 2]],
 "tensors": {"X": {"shape": [16, 4], "dtype": "bf16", "ragged": {"axis": 0, "groups": "rows_from_rank × expert", "sizes": [2, 4], "bound": 12}}},
 "initial": [],
 "produced": [
  {"rank": 0, "tensor": "X", "region": [{"rows_from_rank": [0,1], "expert": [0,4]},[0,4]]},
  {"rank": 1, "tensor": "X", "region": [{"rows_from_rank": [1,2], "expert": [0,4]},[0,4]]}],
 "final": [
  {"rank": 0, "tensor": "X", "region": [{"rows_from_rank": [0,2], "expert": [0,2]},[0,4]]},
  {"rank": 1, "tensor": "X", "region": [{"rows_from_rank": [0,2], "expert": [2,4]},[0,4]]}],
 "ranks": [
  {"rank": 0, "ops": [
   {"op": "push", "peer": 1, "src": {"tensor": "X", "region": [{"rows_from_rank": [0,1], "expert": [2,4]},[0,4]]}, "dst": {"tensor": "X", "region": [{"rows_from_rank": [0,1], "expert": [2,4]},[0,4]]}}]},
  {"rank": 1, "ops": [
   {"op": "push", "peer": 0, "src": {"tensor": "X", "region": [{"rows_from_rank": [1,2], "expert": [0,2]},[0,4]]}, "dst": {"tensor": "X", "region": [{"rows_from_rank": [1,2], "expert": [0,2]},[0,4]]}}]}]}
)";

std::string changed(std::string_view what, std::string_view to, std::string text = std::string(kMoved)) {
    const std::size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return text.replace(at, what.size(), to);
}

TEST(Ragged, APlanOfGroupsIsWrittenAsItWasRead) {
    const Result<Plan> plan = from_json(kMoved);
    ASSERT_TRUE(plan) << plan.error().to_string();
    EXPECT_EQ(to_json(*plan), kMoved);
    const Tensor& x = plan->tensors[0];
    EXPECT_EQ(x.shape, (std::vector<std::int64_t>{2, 4, 4}));
    EXPECT_EQ(x.memory_shape(), (std::vector<std::int64_t>{16, 4}));
    EXPECT_EQ(x.bytes(), 128U);
    EXPECT_EQ(plan->bytes(plan->ranks[0][0].src), 96);  // at most
    EXPECT_TRUE(check(*plan).empty());
}

TEST(Ragged, BytesOfAnyRegionAreCountedWithoutOverflow) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    Plan plan = *from_json(kMoved);
    Tensor& x = plan.tensors[0];
    EXPECT_EQ(plan.bytes({0, {{0, 2}, {0, 4}, {0, 3}}}), 12 * 3 * 2);
    EXPECT_EQ(plan.bytes({0, {{1, 1}, {0, 4}, {0, 3}}}), 0);
    EXPECT_EQ(plan.bytes({0, {{0, 1}, {0, 4}, {0, kMost}}}), kMost);
    EXPECT_EQ(plan.bytes({0, {{0, 1}}}), 2) << "a region of fewer axes is only shown";
    EXPECT_EQ(plan.bytes({0, {}}), plan.bytes({0, Region{}}));
    x.ragged->bound = x.ragged->rows = kMost;
    EXPECT_EQ(plan.bytes({0, {{0, 1}, {0, 4}, {0, 3}}}), kMost);
    EXPECT_EQ(x.bytes(), 2 * static_cast<std::uint64_t>(kMost));
}

TEST(Ragged, AGroupMayBeANumberAndANameThatIsLeftOutIsAllOfItsGroups) {
    const std::string text =
        changed(R"({"rows_from_rank": [0,2], "expert": [0,2]})", R"({"expert": [0,2]})",
                changed(R"({"rows_from_rank": [0,1], "expert": [0,4]})", R"({"rows_from_rank": 0})"));
    const Result<Plan> plan = from_json(text);
    ASSERT_TRUE(plan) << plan.error().to_string();
    EXPECT_EQ(*plan, *from_json(kMoved));
}

std::string refusal(std::string_view what, std::string_view to) {
    const Result<Plan> plan = from_json(changed(what, to));
    return plan ? "it was read" : plan.error().message;
}

TEST(Ragged, WhatIsNoRaggedAxisIsRefusedByItsPath) {
    EXPECT_NE(refusal(R"("axis": 0)", R"("axis": 2)").find("ragged.axis"), std::string::npos);
    EXPECT_NE(refusal(R"("bound": 12)", R"("bound": 17)").find("ragged.bound"), std::string::npos);
    EXPECT_NE(refusal(R"("bound": 12)", R"("bound": 0)").find("ragged.bound"), std::string::npos);
    EXPECT_NE(refusal(R"("sizes": [2, 4])", R"("sizes": [2])").find("has 1 numbers; the groups have 2 names"),
              std::string::npos);
    EXPECT_NE(refusal(R"(, "sizes": [2, 4])", "").find("sizes"), std::string::npos);
    EXPECT_NE(refusal(R"(rows_from_rank × expert)", R"(expert × expert)").find("ragged.groups"),
              std::string::npos);
    EXPECT_NE(refusal(R"(rows_from_rank × expert)", R"(× expert)").find("ragged.groups"), std::string::npos);
    EXPECT_NE(
        refusal(R"({"rows_from_rank": [0,1], "expert": [0,4]})", R"([0,4])").find("groups of rows, by name"),
        std::string::npos);
    EXPECT_NE(refusal(R"({"rows_from_rank": [0,1], "expert": [0,4]})", R"({"ranks": 0})").find("ranks"),
              std::string::npos);
    EXPECT_NE(refusal(R"({"rows_from_rank": [0,1], "expert": [0,4]})", R"({"expert": "all"})").find("expert"),
              std::string::npos);
}

/// The kind and the message of the only finding.
std::string finding(const std::string& text) {
    const Result<Plan> plan = from_json(text);
    if (!plan) return plan.error().message;
    const std::vector<Finding> findings = check(*plan);
    return findings.empty() ? "none"
                            : std::string(name_of(findings.front().kind)) + ": " + findings.front().message;
}

TEST(Ragged, CheckProvesGroupsAsItDoesRegions) {
    // A group that nobody sends is missed at the end, and one that is not there cannot be sent.
    EXPECT_NE(
        finding(
            changed(
                R"("dst": {"tensor": "X", "region": [{"rows_from_rank": [1,2], "expert": [0,2]},[0,4]]})",
                R"("dst": {"tensor": "X", "region": [{"rows_from_rank": [1,2], "expert": [1,3]},[0,4]]})"))
            .find("are different groups: how many rows they have may differ"),
        std::string::npos);
    const std::string short_one = changed(
        R"("src": {"tensor": "X", "region": [{"rows_from_rank": [1,2], "expert": [0,2]},[0,4]]}, "dst": {"tensor": "X", "region": [{"rows_from_rank": [1,2], "expert": [0,2]},[0,4]]})",
        R"("src": {"tensor": "X", "region": [{"rows_from_rank": [1,2], "expert": [0,1]},[0,4]]}, "dst": {"tensor": "X", "region": [{"rows_from_rank": [1,2], "expert": [0,1]},[0,4]]})");
    EXPECT_TRUE(finding(short_one).starts_with("final_not_reached: ")) << finding(short_one);
    EXPECT_NE(finding(short_one).find("rows_from_rank 1, expert 1"), std::string::npos) << finding(short_one);
    const std::string not_there = changed(
        R"("src": {"tensor": "X", "region": [{"rows_from_rank": [1,2], "expert": [0,2]},[0,4]]}, "dst": {"tensor": "X", "region": [{"rows_from_rank": [1,2], "expert": [0,2]},[0,4]]})",
        R"("src": {"tensor": "X", "region": [{"rows_from_rank": [0,1], "expert": [0,2]},[0,4]]}, "dst": {"tensor": "X", "region": [{"rows_from_rank": [0,1], "expert": [0,2]},[0,4]]})");
    EXPECT_NE(finding(not_there).find("early_read"), std::string::npos) << finding(not_there);
}

TEST(Ragged, GroupsGoToNoOtherKindOfTensorAndAreNotReduced) {
    const std::string with_plain =
        changed(R"("tensors": {)", R"("tensors": {"P": {"shape": [2, 4, 4], "dtype": "bf16"}, )");
    EXPECT_NE(
        finding(
            changed(R"("dst": {"tensor": "X", "region": [{"rows_from_rank": [0,1], "expert": [2,4]},[0,4]]})",
                    R"("dst": {"tensor": "P", "region": [[0,1],[2,4],[0,4]]})", with_plain))
            .find("are not grouped alike"),
        std::string::npos);
    EXPECT_NE(finding(changed(R"("op": "push", "peer": 1,)", R"("op": "push", "peer": 1, "reduce": "sum",)"))
                  .find("does not reduce"),
              std::string::npos);
}

}  // namespace
}  // namespace syncopate::plan
