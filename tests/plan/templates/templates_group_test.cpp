// Who takes part: groups along mesh axes, and one group of some ranks; and the options that not every
// template has.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/executor.hpp"
#include "plan/plans.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::plan {
namespace {

using test::lines;
using test::ring_of;
using Lines = std::vector<std::string>;

const Mesh kCube{{{"pod", 2}, {"node", 3}, {"gpu", 2}}};

void expect_right(const Result<Plan>& plan) {
    ASSERT_TRUE(plan) << plan.error().to_string();
    EXPECT_EQ(lines(check(*plan)), Lines{});
    EXPECT_EQ(test::compare(*plan, test::execute(*plan, test::small_integer, 5), test::small_integer), "");
    EXPECT_EQ(test::race(*plan), "");
}

/// The ranks that a rank's ops reach.
std::vector<std::int32_t> peers(const Plan& plan, std::int32_t rank) {
    std::vector<std::int32_t> list;
    for (const Op& op : plan.ranks[static_cast<std::size_t>(rank)]) {
        if (op.kind != OpKind::local) list.push_back(op.peer);
    }
    return list;
}

TEST(Groups, EveryLineOverAnAxisIsAGroup) {
    const auto over = [](std::vector<std::string> axes) {
        TemplateOptions options;
        options.over = std::move(axes);
        return *all_gather(kCube, {"A", {24}, DType::fp32}, options);
    };
    EXPECT_EQ(peers(over({"gpu"}), 5), (std::vector<std::int32_t>{4}));
    EXPECT_EQ(peers(over({"node"}), 5), (std::vector<std::int32_t>{1, 3}));
    EXPECT_EQ(peers(over({"pod"}), 5), (std::vector<std::int32_t>{11}));
    EXPECT_EQ(peers(over({"gpu", "pod"}), 5), (std::vector<std::int32_t>{10, 11, 4}));
    EXPECT_EQ(peers(over({"pod", "node", "gpu"}), 5).size(), 11U);
}

TEST(Groups, EveryTemplateRunsInEveryGroupAtOnce) {
    for (const Template& of : templates()) {
        for (const Algorithm algorithm : of.algorithms) {
            for (const std::vector<std::string>& over :
                 std::vector<std::vector<std::string>>{{"node"}, {"pod", "gpu"}, {"node", "gpu"}}) {
                SCOPED_TRACE(std::string(of.name) + " " + std::string(name_of(algorithm)));
                TemplateOptions options{.split = 2, .algorithm = algorithm, .over = over};
                if (over.size() == 1 &&
                    (algorithm == Algorithm::hierarchical || algorithm == Algorithm::double_ring))
                    options.inner = 3;
                expect_right(of.make(kCube, {"A", {13, 7}, DType::fp32}, options));
            }
        }
    }
}

TEST(Groups, OneGroupOfSomeRanksLeavesTheOthersAlone) {
    for (const Template& of : templates()) {
        for (const Algorithm algorithm : of.algorithms) {
            SCOPED_TRACE(std::string(of.name) + " " + std::string(name_of(algorithm)));
            TemplateOptions options{.algorithm = algorithm, .group = {6, 0, 3, 1}};
            if (algorithm == Algorithm::hierarchical || algorithm == Algorithm::double_ring)
                options.inner = 2;
            const Result<Plan> plan = of.make(ring_of(8), {"A", {13, 7}, DType::fp32}, options);
            expect_right(plan);
            for (const std::size_t rank : {2U, 4U, 5U, 7U}) EXPECT_TRUE(plan->ranks[rank].empty());
            for (const Holding& holding : plan->final)
                EXPECT_TRUE(holding.rank == 6 || holding.rank == 0 || holding.rank == 3 || holding.rank == 1);
        }
    }
}

TEST(Groups, AReductionIsOverTheRanksOfItsGroup) {
    TemplateOptions options;
    options.over = {"gpu"};
    const Plan plan = *all_reduce({{{"node", 2}, {"gpu", 2}}}, {"A", {4}, DType::fp32}, options);
    EXPECT_EQ(plan.final[3].of, (std::vector<std::int32_t>{2, 3}));
    EXPECT_FALSE(plan.final[3].of_all);
}

TEST(Produced, WhatRanksStartWithMayBeWrittenByTheKernel) {
    for (const Template& of : templates()) {
        TemplateOptions options;
        options.produced = true;
        options.inner = of.name == "double_ring" ? 2 : 0;
        const Result<Plan> plan = of.make(ring_of(4), {"A", {8, 8}, DType::fp32}, options);
        expect_right(plan);
        EXPECT_TRUE(plan->initial.empty());
        EXPECT_FALSE(plan->produced.empty());
    }
}

TEST(Transient, WhatArrivesIsAskedForByNobodyAtTheEnd) {
    for (const Template& of : templates()) {
        TemplateOptions options;
        options.transient = true;
        options.inner = of.name == "double_ring" ? 2 : 0;
        const Result<Plan> plan = of.make(ring_of(4), {"A", {8, 8}, DType::fp32}, options);
        if ((of.uses & Template::kReduce) != 0) {
            EXPECT_FALSE(plan.ok()) << of.name << " is there for what it leaves";
            continue;
        }
        ASSERT_TRUE(plan.ok()) << of.name << ": " << plan.error().to_string();
        EXPECT_TRUE(check(*plan).empty()) << of.name;
        EXPECT_TRUE(plan->final.empty()) << of.name;
        options.transient = false;
        EXPECT_EQ(plan->ranks, of.make(ring_of(4), {"A", {8, 8}, DType::fp32}, options)->ranks) << of.name;
    }
}

TEST(MinorSplit, IsAnOptionOfEveryTemplate) {
    for (const Template& of : templates()) {
        for (const Algorithm algorithm : of.algorithms) {
            SCOPED_TRACE(std::string(of.name) + " " + std::string(name_of(algorithm)));
            TemplateOptions options{.split = 2, .minor_axis = 2, .minor_split = 3, .algorithm = algorithm};
            if (algorithm == Algorithm::hierarchical || algorithm == Algorithm::double_ring)
                options.inner = 2;
            expect_right(of.make(ring_of(4), {"A", {9, 5, 7}, DType::fp32}, options));
            options.minor_split = 1;
            options.minor_sizes = {1, 4, 2};
            expect_right(of.make(ring_of(4), {"A", {9, 5, 7}, DType::fp32}, options));
        }
    }
}

TEST(Reduction, MayBeAMaximum) {
    TemplateOptions options;
    options.reduce = Reduce::max;
    const Plan plan = *all_reduce(ring_of(3), {"A", {5}, DType::fp32}, options);
    EXPECT_EQ(lines(check(plan)), Lines{});
    for (const std::vector<Op>& list : plan.ranks) {
        for (const Op& op : list) EXPECT_NE(op.reduce, Reduce::sum);
    }
}

TEST(Json, EveryTemplatesPlanReadsBackAsItWas) {
    for (const Template& of : templates()) {
        TemplateOptions options;
        options.inner = of.name == "double_ring" ? 2 : 0;
        options.group = {3, 1};
        const Plan plan = *of.make(ring_of(4), {"A", {8, 8}, DType::bf16}, options);
        EXPECT_EQ(*from_json(to_json(plan)), plan) << of.name;
    }
}

std::string message(std::string_view name, const TemplateOptions& options, const Mesh& mesh = kCube) {
    const Result<Plan> plan = make_plan(name, mesh, {"A", {12, 8}, DType::bf16}, options);
    return plan ? "no error" : plan.error().to_string();
}

TEST(TemplateArguments, WrongOnesAreNamed) {
    EXPECT_EQ(message("all_gathr", {}), "there is no template \"all_gathr\"; did you mean \"all_gather\"?");
    EXPECT_EQ(
        message("all_gather", {.algorithm = Algorithm::one_shot}),
        "all_gather: it has no algorithm \"one_shot\"; it has: direct, ring, bidirectional, double_ring, "
        "hierarchical");
    EXPECT_EQ(message("all_gather", {.over = {"rack"}}),
              "all_gather: the mesh has no axis \"rack\"; it has pod, node, gpu");
    EXPECT_EQ(
        message("all_gather", {.over = {"gpu"}, .group = {1}}),
        "all_gather: groups are either the lines over a mesh axis or one list of ranks; give one of the two");
    EXPECT_EQ(message("all_gather", {.group = {1, 12}}),
              "all_gather: the group names rank 12; the mesh has ranks 0 to 11");
    EXPECT_EQ(message("all_gather", {.group = {1, 1}}), "all_gather: the group names rank 1 twice");
    EXPECT_EQ(message("all_gather", {.inner = 2}),
              "all_gather: inner is the size of one of two levels; the algorithm direct has none");
    EXPECT_EQ(message("all_gather", {.root = 2}), "all_gather: root is not one of its options");
    EXPECT_EQ(message("all_gather", {.reduce = Reduce::max}), "all_gather: reduce is not one of its options");
    EXPECT_EQ(
        message("all_gather", {.produced = true, .transient = true}),
        "all_gather: transient is for what arrives and the kernel reads; here the end of the call wants "
        "it");
    EXPECT_EQ(message("broadcast", {.root = 12}), "broadcast: root is 12; among 12 ranks expected 0 to 11");
    EXPECT_EQ(message("ring", {.steps = 12}),
              "ring: steps is 12; among 12 ranks expected 0 to 11, or -1 for all");
    EXPECT_EQ(message("all_to_all", {.to_axis = 2}),
              "all_to_all: to_axis 2 is not an axis of tensor A; expected 0 to 1");
    EXPECT_EQ(message("all_to_all", {.axis = 1, .to_axis = 1}),
              "all_to_all: axis and to_axis are both 1; nothing would move");
    EXPECT_EQ(message("double_ring", {.inner = 5}),
              "double_ring: inner is 5, which does not divide the 12 ranks of a group");
    EXPECT_EQ(message("double_ring", {.group = {0, 1, 2, 4}}),
              "double_ring: positions 2 and 3 of a group are one inner level of 2 ranks, but ranks 2 and 4 "
              "differ in "
              "other axes than \"gpu\"; give the size of the inner level (inner)");
    EXPECT_EQ(
        message("double_ring", {}, ring_of(4)),
        "double_ring: two levels need a mesh of at least two axes, such as node=2,gpu=4, whose last one the "
        "group runs over, or the size of the inner level (inner)");
}

TEST(TemplateArguments, AHugeSplitIsRefusedByEveryTemplateBeforeItUsesMemory) {
    const Tensor tensor{"A", {std::int64_t{1} << 40, std::int64_t{1} << 20}, DType::int8};
    for (const Template& of : templates()) {
        for (const Algorithm algorithm : of.algorithms) {
            TemplateOptions options{.split = 2147483647, .algorithm = algorithm};
            if (algorithm == Algorithm::hierarchical || algorithm == Algorithm::double_ring)
                options.inner = 64;
            const Result<Plan> plan = of.make(ring_of(4096), tensor, options);
            EXPECT_EQ(
                plan.error().to_string(),
                std::string(of.name) + ": the plan would have more than 16777216 ops; use a smaller split");
        }
    }
}

TEST(TemplateArguments, StagingSpaceThatNoMemoryHoldsIsRefused) {
    const Tensor tensor{"A", {std::int64_t{1} << 40, std::int64_t{1} << 20}, DType::int8};
    EXPECT_EQ(all_reduce(ring_of(64), tensor, {.algorithm = Algorithm::one_shot}).error().to_string(),
              "all_reduce: the staging space A.staging would be too large: its bytes do not fit 64 bits");
}

}  // namespace
}  // namespace syncopate::plan
