// Collectives lowered by synthesis, and some lowered one way and some another.
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "plan/executor.hpp"
#include "plan/plans.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/synthesise/synthesise.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::plan {
namespace {

using test::lines;
using test::ring_of;
using Lines = std::vector<std::string>;

LowerOptions synth(const std::string& topology, std::int32_t split = 1, std::uint64_t seed = 0) {
    return {
        .with = Lowering::synthesised, .split = split, .topology = *find_topology(topology), .seed = seed};
}

std::int32_t num_collectives(const Plan& plan) {
    std::int32_t count = 0;
    for (const std::vector<Op>& list : plan.ranks) {
        for (const Op& op : list) count += op.kind == OpKind::collective ? 1 : 0;
    }
    return count;
}

void expect_equal_results(const Plan& plan, const Plan& lowered) {
    ASSERT_EQ(num_collectives(lowered), 0);
    ASSERT_EQ(lines(check(lowered)), Lines{});
    ASSERT_EQ(test::compare(plan, test::execute(plan, test::small_integer, 1), test::small_integer), "");
    ASSERT_EQ(test::compare(lowered, test::execute(lowered, test::small_integer, 2), test::small_integer),
              "");
    ASSERT_EQ(test::race(lowered), "");
}

TEST(LowerSynth, GivesWhatTheCollectiveGivesOnEveryTopology) {
    for (const char* name : {"ring:1", "ring:2", "ring:5", "torus:2x3", "mesh:2x3", "switch:4", "h200x8"}) {
        const Topology topology = *find_topology(name);
        const std::int32_t ranks = topology.num_devices();
        for (const Template& of : templates()) {
            if (!of.collective) continue;
            for (const std::int32_t split : {0, 1, 3}) {
                SCOPED_TRACE(fmt::format("{} on {}, split {}", of.name, name, split));
                TemplateOptions options;
                options.axis = split == 1 ? 1 : 0;
                if (of.name == "broadcast") options.root = ranks / 2;
                const Plan plan = *make_collective(of.name, ring_of(ranks),
                                                   {"A", {ranks * 3 + 1, ranks + 2}, DType::fp32}, options);
                const Result<Plan> lowered = lower_collectives(plan, synth(name, split));
                ASSERT_TRUE(lowered) << lowered.error().to_string();
                expect_equal_results(plan, *lowered);
                if (HasFatalFailure()) return;
            }
        }
    }
}

/// A collective between two tensors: what is read stays whole, sums and relays need places of their own.
Plan between_tensors(CollectiveKind kind, std::int32_t ranks) {
    const std::int64_t n = ranks;
    const bool gathers = kind == CollectiveKind::all_gather;
    const bool scatters = kind == CollectiveKind::reduce_scatter;
    Plan plan;
    plan.mesh = ring_of(ranks);
    plan.tensors = {{"A", {gathers ? 3 : 3 * n}, DType::fp32}, {"B", {scatters ? 3 : 3 * n}, DType::fp32}};
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        Op& op = plan.ranks[static_cast<std::size_t>(rank)].emplace_back();
        op.kind = OpKind::collective;
        op.collective = kind;
        op.src = {0, plan.tensors[0].whole()};
        op.dst = {1, plan.tensors[1].whole()};
        std::vector<std::int32_t> all(static_cast<std::size_t>(ranks));
        std::iota(all.begin(), all.end(), 0);
        op.ranks = std::move(all);
        if (scatters || kind == CollectiveKind::all_reduce) op.reduce = Reduce::sum;
        plan.initial.push_back({rank, op.src, true});
    }
    return plan;
}

TEST(LowerSynth, BetweenTensorsTheSourceStaysAsItIs) {
    for (const CollectiveKind kind :
         {CollectiveKind::all_gather, CollectiveKind::reduce_scatter, CollectiveKind::all_reduce,
          CollectiveKind::all_to_all, CollectiveKind::broadcast}) {
        for (const char* topology : {"ring:6", "torus:3x3", "switch:3"}) {
            for (const std::int32_t split : {1, 2}) {
                SCOPED_TRACE(fmt::format("{} on {}", name_of(kind), topology));
                const Plan plan = between_tensors(kind, find_topology(topology)->num_devices());
                const Result<Plan> lowered = lower_collectives(plan, synth(topology, split));
                ASSERT_TRUE(lowered) << lowered.error().to_string();
                ASSERT_EQ(lines(check(*lowered)), Lines{});
                ASSERT_EQ(test::race(*lowered), "");
                const test::Memory before = test::execute(plan, test::small_integer, 3);
                const test::Memory after = test::execute(*lowered, test::small_integer, 4);
                for (std::size_t rank = 0; rank < before.size(); ++rank) {
                    for (const std::size_t tensor : {0, 1})
                        ASSERT_EQ(before[rank][tensor], after[rank][tensor]) << rank << " " << tensor;
                }
            }
        }
    }
}

TEST(LowerSynth, SendsOnlyBetweenNeighboursAndIsAsFastAsTheSynthesisedPlan) {
    const Tensor tensor{"A", {4096, 4096}, DType::bf16};
    const Topology torus = *find_topology("torus:4x4");
    for (const auto& [kind, name] : {std::pair{CollectiveKind::all_gather, "all_gather"},
                                     std::pair{CollectiveKind::all_reduce, "all_reduce"}}) {
        const Plan lowered =
            *lower_collectives(*make_collective(name, ring_of(16), tensor), synth("torus:4x4", 4));
        const Plan whole = *synthesise(ring_of(16), tensor, torus, {.kind = kind, .chunks = 4});
        EXPECT_NEAR(simulate(lowered, torus)->makespan_us / simulate(whole, torus)->makespan_us, 1, 0.02);
    }
    for (std::int32_t rank = 0; rank < 16; ++rank) {
        const Plan lowered =
            *lower_collectives(*make_collective("all_to_all", ring_of(16), tensor), synth("torus:4x4"));
        for (const Op& op : lowered.ranks[static_cast<std::size_t>(rank)]) {
            if (op.kind == OpKind::local) continue;
            const std::int32_t rows = (op.peer / 4 - rank / 4 + 4) % 4;
            const std::int32_t columns = (op.peer % 4 - rank % 4 + 4) % 4;
            EXPECT_TRUE((rows == 0) != (columns == 0) && rows != 2 && columns != 2)
                << rank << " to " << op.peer;
        }
    }
}

TEST(LowerSynth, TheSameSeedGivesTheSamePlanAndAnotherOneAnother) {
    const Plan plan = *make_collective("all_gather", ring_of(12), {"A", {240, 8}, DType::bf16});
    EXPECT_EQ(*lower_collectives(plan, synth("torus:3x4", 2, 5)),
              *lower_collectives(plan, synth("torus:3x4", 2, 5)));
    EXPECT_FALSE(*lower_collectives(plan, synth("torus:3x4", 2, 5)) ==
                 *lower_collectives(plan, synth("torus:3x4", 2, 6)));
}

TEST(LowerSynth, OverAMeshAxisEachGroupKeepsToItself) {
    TemplateOptions options;
    options.over = {"row"};
    const Mesh mesh{{{"row", 3}, {"column", 4}}};
    const Plan plan = *make_collective("all_reduce", mesh, {"A", {24, 4}, DType::fp32}, options);
    const Plan lowered = *lower_collectives(plan, synth("torus:3x4", 2));
    expect_equal_results(plan, lowered);
    for (std::int32_t rank = 0; rank < 12; ++rank) {
        for (const Op& op : lowered.ranks[static_cast<std::size_t>(rank)]) EXPECT_EQ(op.peer % 4, rank % 4);
    }
}

TEST(LowerSynth, AmongSomeRanksTheOthersRest) {
    TemplateOptions options;
    options.group = {6, 1, 4};
    for (const char* name : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"}) {
        const Plan plan = *make_collective(name, ring_of(8), {"A", {9, 9}, DType::fp32}, options);
        const Plan lowered = *lower_collectives(plan, synth("h200x8", 2));
        expect_equal_results(plan, lowered);
        for (const std::size_t rank : {0, 2, 3, 5, 7}) EXPECT_TRUE(lowered.ranks[rank].empty());
    }
}

/// All-gather, then all-reduce of what came.
Plan two_collectives() {
    Plan plan = *make_collective("all_gather", ring_of(4), {"A", {16}, DType::fp32});
    for (std::int32_t rank = 0; rank < 4; ++rank) {
        std::vector<Op>& list = plan.ranks[static_cast<std::size_t>(rank)];
        list.push_back(list.front());
        list.back().collective = CollectiveKind::all_reduce;
        list.back().reduce = Reduce::max;
        list.back().src = list.back().dst;
        list.back().after = {{rank, 0}};
    }
    plan.final.clear();
    for (Holding& holding : plan.initial) holding.partial = true;
    return plan;
}

TEST(LowerRules, EachCollectiveMayGoItsOwnWay) {
    const Plan plan = two_collectives();
    ASSERT_EQ(lines(check(plan)), Lines{});
    LowerOptions options = synth("ring:4");
    options.rules = {*parse_lower_rule("all_gather=direct")};
    const Plan half = *lower_collectives(plan, options);
    EXPECT_EQ(num_collectives(half), 4);
    EXPECT_EQ(lines(check(half)), Lines{});
    EXPECT_EQ(half.ranks[0].front().collective, CollectiveKind::all_gather);
    // The transfers of the all-reduce wait for the collective that stays.
    EXPECT_EQ(half.ranks[0][1].after.front().index, 0);

    const Plan other =
        *lower_collectives(plan, {.rules = {*parse_lower_rule("direct"), *parse_lower_rule("2:1=template")}});
    EXPECT_EQ(num_collectives(other), 4);
    EXPECT_EQ(lines(check(other)), Lines{});
    EXPECT_EQ(other.tensors.size(), 2U);  // the staging space of two_shot
}

std::string message(const LowerOptions& options, const Plan& plan = two_collectives()) {
    const Result<Plan> lowered = lower_collectives(plan, options);
    return lowered ? "no error" : lowered.error().to_string();
}

TEST(LowerRules, WhatCannotBeIsRefused) {
    LowerOptions options{.with = Lowering::synthesised};
    EXPECT_EQ(message(options), "synth needs a topology: the machine to find transfers for");
    EXPECT_EQ(message(synth("ring:3")), "the plan has 4 ranks, but topology ring:3 has 3 devices");
    options = synth("ring:4");
    options.pull = true;
    EXPECT_EQ(message(options), "pull is for templates: what is synthesised is pushed");
    options = synth("ring:4");
    options.algorithm = Algorithm::ring;
    EXPECT_EQ(message(options),
              "no collective of the plan that a template lowers has the algorithm \"ring\"; there are: none");
    options = synth("ring:4", 0);
    options.rules = {{.kind = CollectiveKind::all_reduce}};
    EXPECT_EQ(message(options), "split is 0; expected at least 1");
    EXPECT_EQ(message(synth("ring:4", -1)),
              "split is -1; expected at least 1, or 0 for as many as are fastest");
    EXPECT_EQ(message({.topology = ring_topology(4)}),
              "a topology and a seed are for collectives that are synthesised; lower some with synth");
    EXPECT_EQ(message({.rules = {*parse_lower_rule("0:7=direct")}}),
              "op 7 of rank 0 is no collective of the plan");
    TemplateOptions some;
    some.group = {0, 2};
    EXPECT_EQ(
        message(synth("ring:4"), *make_collective("all_gather", ring_of(4), {"A", {4}, DType::fp32}, some)),
        "rank 0 op 0: all_gather: there is no way from rank 2 to rank 0 through the ranks that take part, on "
        "topology ring:4");
    EXPECT_EQ(message(synth("ring:4", 1 << 24),
                      *make_collective("all_gather", ring_of(4), {"A", {1 << 26}, DType::int8})),
              "rank 0 op 0: all_gather: the plan would have more than 16777216 ops; use a smaller split");
}

TEST(LowerRules, ARuleThatNamesNothingIsRefused) {
    const auto refused = [](const char* text) { return parse_lower_rule(text).error().message; };
    EXPECT_EQ(refused("best"), "collectives cannot be lowered by \"best\"; expected direct, template, synth");
    EXPECT_EQ(refused("gather=synth"),
              "\"gather\" names no collectives; expected RANK:INDEX of an op, or one of all_gather, "
              "reduce_scatter, "
              "all_reduce, all_to_all, broadcast, permute");
    for (const char* text : {"=synth", "1:=synth", "1:-1=synth", "1:2x=synth"})
        EXPECT_FALSE(parse_lower_rule(text)) << text;
}

}  // namespace
}  // namespace syncopate::plan
