#include "syncopate/plan/json/json.hpp"

#include <gtest/gtest.h>

#include "plan/plans.hpp"

namespace syncopate::plan {
namespace {

using test::box;

/// A plan that uses every key of the schema.
constexpr std::string_view kEverything = R"({"schema": "syncopate.plan/1",
 "mesh": [["node", 1], ["gpu", 2]],
 "tensors": {"A": {"shape": [8, 4], "dtype": "bf16"},
             "C \"sum\"": {"shape": [8], "dtype": "fp32"}},
 "initial": [
  {"rank": 0, "tensor": "A", "region": [[0,4],[0,4]]},
  {"rank": 1, "tensor": "C \"sum\"", "region": [[0,8]], "partial": true}],
 "produced": [
  {"rank": 0, "tensor": "C \"sum\"", "region": [[0,8]], "partial": true}],
 "final": [
  {"rank": 0, "tensor": "C \"sum\"", "region": [[0,8]], "of": "all"},
  {"rank": 1, "tensor": "C \"sum\"", "region": [[0,8]], "of": [1]}],
 "ranks": [
  {"rank": 0, "ops": [
   {"op": "push", "peer": 1, "src": {"tensor": "A", "region": [[0,4],[0,4]]}, "dst": {"tensor": "A", "region": [[4,8],[0,4]]}, "after": [[1,0],[0,2]], "channel": "nvlink", "backend": "copy_engine"},
   {"op": "pull", "peer": 1, "src": {"tensor": "C \"sum\"", "region": [[0,8]]}, "dst": {"tensor": "C \"sum\"", "region": [[0,8]]}, "reduce": "sum"},
   {"op": "local", "src": {"tensor": "A", "region": [[0,4],[0,4]]}, "dst": {"tensor": "A", "region": [[4,8],[0,4]]}}]},
  {"rank": 1, "ops": [
   {"op": "collective", "kind": "all_gather", "ranks": [0,1], "src": {"tensor": "A", "region": [[0,4],[0,4]]}, "dst": {"tensor": "A", "region": [[0,8],[0,4]]}}]}]}
)";

TEST(Json, APlanWithEveryKeyIsWrittenAsItWasRead) {
    const Result<Plan> plan = from_json(kEverything);
    ASSERT_TRUE(plan) << plan.error().to_string();
    EXPECT_EQ(to_json(*plan), kEverything);
}

TEST(Json, EveryKeyReachesItsField) {
    const Plan plan = *from_json(kEverything);
    EXPECT_EQ(plan.mesh, (Mesh{{{"node", 1}, {"gpu", 2}}}));
    EXPECT_EQ(plan.tensors[1], (Tensor{"C \"sum\"", {8}, DType::fp32}));
    EXPECT_TRUE(plan.initial[1].partial);
    EXPECT_TRUE(plan.final[0].of_all);
    EXPECT_EQ(plan.final[1].of, std::vector<std::int32_t>{1});
    const Op& push = plan.ranks[0][0];
    EXPECT_EQ(push.kind, OpKind::push);
    EXPECT_EQ(push.peer, 1);
    EXPECT_EQ(push.src, box({{0, 4}, {0, 4}}));
    EXPECT_EQ(push.after, (std::vector<OpRef>{{1, 0}, {0, 2}}));
    EXPECT_EQ(*push.channel, "nvlink");
    EXPECT_EQ(push.backend, Backend::copy_engine);
    EXPECT_EQ(plan.ranks[0][1].reduce, Reduce::sum);
    EXPECT_EQ(plan.ranks[1][0].collective, CollectiveKind::all_gather);
    EXPECT_EQ(plan.ranks[1][0].ranks, (std::vector<std::int32_t>{0, 1}));
}

TEST(Json, ATemplatesPlanSurvivesTheRoundTrip) {
    for (const bool pull : {false, true}) {
        const Plan plan = *all_gather(test::ring_of(5), {"A", {17, 6}, DType::fp8e4m3}, {0, 3, pull, 1, 2});
        const Result<Plan> again = from_json(to_json(plan));
        ASSERT_TRUE(again) << again.error().to_string();
        EXPECT_EQ(*again, plan);
    }
}

TEST(Json, APlanThatCheckRefusesSurvivesTheRoundTrip) {
    Plan plan = test::relay();
    plan.ranks[0][0].peer = -7;
    plan.ranks[0][0].src.region = {{-4, 99}, {3, 2}};
    plan.ranks[0][0].after = {{77, -1}};
    EXPECT_EQ(*from_json(to_json(plan)), plan);
}

TEST(Json, RanksMayComeInAnyOrder) {
    const Plan plan = *from_json(R"({"schema": "syncopate.plan/1", "mesh": [["gpu", 2]],
        "ranks": [{"rank": 1, "ops": []},
                  {"ops": [{"op": "push", "peer": 1, "src": {"region": [[0, 1]], "tensor": "A"},
                            "dst": {"tensor": "A", "region": [[0, 1]]}}], "rank": 0}],
        "final": [], "initial": [], "tensors": {"A": {"dtype": "int8", "shape": [1]}}})");
    EXPECT_EQ(plan.ranks[0].size(), 1U);
    EXPECT_EQ(plan.ranks[1].size(), 0U);
}

TEST(Json, DefaultsMayBeSpelledOut) {
    const std::string text = to_json(test::relay());
    std::string spelled = text;
    const std::string_view last = "\"dst\": {\"tensor\": \"A\", \"region\": [[0,4]]}";
    const std::size_t place = spelled.find(last);
    ASSERT_NE(place, std::string::npos);
    spelled.insert(place + last.size(),
                   ", \"after\": [], \"reduce\": \"none\", \"channel\": \"\", \"backend\": \"auto\"");
    EXPECT_EQ(*from_json(spelled), *from_json(text));
}

}  // namespace
}  // namespace syncopate::plan
