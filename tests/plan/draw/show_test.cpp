#include "syncopate/plan/draw/show.hpp"

#include <gtest/gtest.h>

#include "plan/plans.hpp"

namespace syncopate::plan {
namespace {

TEST(Show, AShortPlanIsShownWhole) {
    EXPECT_EQ(to_table(test::relay()), R"(mesh     gpu=3 (3 ranks, 2 ops)
tensor   A  12 fp32  48 B

initial
  rank  region  bytes
  0     A[0:4]  16 B

final
  rank  region  bytes
  2     A[0:4]  16 B

rank 0 (1 op, 16 B)
  op  kind  peer  source  destination  bytes  backend
  0   push  1     A[0:4]  same         16 B   auto

rank 1 (1 op, 16 B)
  op  kind  peer  source  destination  bytes  after  backend
  0   push  2     A[0:4]  same         16 B   0:0    auto

rank 2 (0 ops)
)");
}

TEST(Show, WhatALongPlanLeavesOutIsCounted) {
    const Plan plan = *all_gather(test::ring_of(4), {"A", {64}, DType::bf16}, {0, 4});
    const std::string table = to_table(plan, {1, 2, 3});
    EXPECT_NE(table.find("\n  … 1 more\n"), std::string::npos) << table;
    EXPECT_NE(table.find("\n  … 10 more ops\n"), std::string::npos) << table;
    EXPECT_NE(table.find("\n… 3 more ranks, 36 ops\n"), std::string::npos) << table;
}

TEST(Show, AMalformedPlanIsShownToo) {
    Plan plan = test::relay();
    plan.ranks[0][0].src.tensor = 5;
    plan.ranks[0][0].dst.region = {{-3, 1}, {9, 2}};
    EXPECT_NE(to_table(plan).find("?[0:4]  A[-3:1, 9:2]  ?"), std::string::npos) << to_table(plan);
}

}  // namespace
}  // namespace syncopate::plan
