#include "syncopate/plan/templates/push_groups.hpp"

#include <gtest/gtest.h>

#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/json/json.hpp"

namespace syncopate::plan {
namespace {

Mesh mesh_of(std::int32_t ranks) { return Mesh{.axes = {{"gpu", ranks}}}; }

const Tensor kRows{"A", {24, 8}, DType::bf16};
const Tensor kBack{"C", {24, 6}, DType::fp32};

TEST(PushGroups, BringEachGroupToItsExpertsRankAndWhatIsMadeOfItBack) {
    for (const std::int32_t ranks : {1, 2, 3, 5}) {
        for (const auto& back : {std::optional<Tensor>(), std::optional<Tensor>(kBack)}) {
            const auto plan = push_groups(mesh_of(ranks), kRows, {.experts = 2 * ranks, .back = back});
            ASSERT_TRUE(plan) << plan.error().to_string();
            EXPECT_TRUE(check(*plan).empty()) << check(*plan).front().message;
            const auto again = from_json(to_json(*plan), "plan.json");
            ASSERT_TRUE(again) << again.error().to_string();
            EXPECT_TRUE(*again == *plan) << "as JSON says it";
            const std::size_t each = static_cast<std::size_t>(ranks) - 1;
            for (const std::vector<Op>& ops : plan->ranks) EXPECT_EQ(ops.size(), back ? 2 * each : each);
        }
    }
}

TEST(PushGroups, BringASecondTensorOfTheSameRowsAndKeepWhatComes) {
    const Tensor more{"D", {24, 6}, DType::fp32};
    for (const std::int32_t ranks : {1, 2, 3}) {
        for (const bool keep : {false, true}) {
            const auto plan = push_groups(mesh_of(ranks), kRows,
                                          {.experts = 2 * ranks, .more = more, .back = kBack, .keep = keep});
            ASSERT_TRUE(plan) << plan.error().to_string();
            EXPECT_TRUE(check(*plan).empty()) << check(*plan).front().message;
            ASSERT_EQ(plan->tensors.size(), 4U);
            EXPECT_EQ(plan->tensors[2].name, "D");
            const auto each = static_cast<std::size_t>(ranks);
            EXPECT_EQ(plan->initial.size(), 3 * each) << "both tensors' rows, and their counts";
            EXPECT_EQ(plan->final.size(), (keep ? 3 : 1) * each);
            for (const std::vector<Op>& ops : plan->ranks) EXPECT_EQ(ops.size(), 3 * (each - 1));
        }
    }
}

TEST(PushGroups, RefuseWhatHasNoGroups) {
    const auto refused = [](const Tensor& rows, const PushGroupsOptions& options, const char* why) {
        const auto plan = push_groups(mesh_of(2), rows, options);
        ASSERT_FALSE(plan);
        EXPECT_NE(plan.error().message.find(why), std::string::npos) << plan.error().message;
    };
    refused(kRows, {.experts = 3}, "3 experts are no multiple of 2 ranks");
    refused({"A", {24}, DType::bf16}, {.experts = 2}, "tensor A: expected [bound, columns]");
    refused(kRows, {.experts = 2, .back = Tensor{"C", {23, 6}, DType::fp32}},
            "tensor C: expected [bound, columns]");
    refused(kRows, {.experts = 2, .more = Tensor{"D", {25, 6}, DType::fp32}},
            "tensor D: expected [bound, columns]");
}

}  // namespace
}  // namespace syncopate::plan
