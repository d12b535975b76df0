// Estimates over nodes: what bounds them, and what must take longer.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "syncopate/ops/program.hpp"
#include "syncopate/tune/candidates/program.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/play/estimate.hpp"
#include "tune/play/over_nodes.hpp"

namespace syncopate::tune {
namespace {

const std::vector<std::string> kSpecs{
    "all_gather_matmul:M=1024,N=3584,K=4096", "matmul_reduce_scatter:M=1024,N=4096,K=3584",
    "matmul_all_reduce:M=1024,N=4096,K=3584", "all_to_all_matmul:M=1024,N=3584,K=4096",
    "matmul_all_to_all:M=1024,N=4096,K=3584", "feed_forward:M=1024,K=4096,F=1792,N=4096"};

Problem problem_of(const std::string& spec, std::int32_t ranks, std::int32_t nodes) {
    const Result<Problem> problem = parse_problem(fmt::format("{},nodes={}", spec, nodes), ranks, 132);
    EXPECT_TRUE(problem) << problem.error().to_string();
    return *problem;
}

Machine with(double gbps, double us) {
    Machine machine = find_machine("h200x8").value();
    machine.rates.network_gbps = gbps;
    machine.rates.network_us = us;
    machine.rates.network_collective_gbps = gbps;
    return machine;
}

Estimate of(const std::string& spec, std::int32_t ranks, std::int32_t nodes, const Machine& machine) {
    const Problem problem = problem_of(spec, ranks, nodes);
    const Estimate made = estimate(problem, machine, complete(problem, machine, {}));
    EXPECT_LT(made.us, 1e6) << spec << " could not be played";
    EXPECT_NEAR(made.us, made.compute + made.exposed + made.fixed, 1e-6 * made.us) << spec;
    return made;
}

TEST(OverNodes, NoCallIsShorterThanItsBytesOnTheCardAndMoreOfItIsNotSlower) {
    for (const std::string& spec : kSpecs) {
        const bool meets = spec.find("all_to_all") != std::string::npos;
        const bool twice = spec.find("all_reduce") != std::string::npos || spec.starts_with("feed_forward");
        // Of 1024 x 4096 in bf16, half crosses; where ranks of a node share it, a quarter of that by each card.
        const double bytes = 1024.0 * 4096 * 2 / 2 / (meets ? 1 : 4) * (twice ? 2 : 1);
        double before = 1e9;
        for (const double gbps : {2.0, 10.0, 50.0, 400.0}) {
            const Estimate made = of(spec, 8, 2, with(gbps, 5));
            EXPECT_GT(made.communicate, 0.99 * bytes / (gbps * 1e3)) << spec << " at " << gbps << " GB/s";
            EXPECT_LE(made.us, before * 1.01) << spec << " at " << gbps << " GB/s";
            before = made.us;
        }
    }
}

TEST(OverNodes, EachRoundTakesItsTime) {
    for (const std::string& spec : kSpecs) {
        const Estimate soon = of(spec, 8, 4, with(50, 1));
        const Estimate late = of(spec, 8, 4, with(50, 200));
        EXPECT_GT(late.communicate, soon.communicate + 3 * 199 * 0.99)
            << spec << ": three other nodes' chunks";
    }
}

TEST(OverNodes, ChoosesByTheEstimateAmongWhatRunsThere) {
    const Machine machine = with(50, 5);
    for (const std::string& spec : kSpecs) {
        const Problem problem = problem_of(spec, 8, 2);
        const Choice choice = choose(problem, machine);
        EXPECT_EQ(strategy_objection(problem, choice.strategy), "") << spec;
        EXPECT_EQ(choice.note, "by the estimate on h200x8") << spec;
        const std::vector<Candidate> ranked = rank_candidates(problem, machine);
        EXPECT_GT(choice.us, 0) << spec;
        EXPECT_LE(choice.us, ranked.front().estimate.us * 1.031) << spec;
        const auto pair = std::ranges::find_if(
            ranked, [](const Candidate& one) { return one.strategy.placement == Placement::unfused; });
        ASSERT_NE(pair, ranked.end());
        EXPECT_LE(choice.us, pair->estimate.us) << spec << ": nobody is slower than without Syncopate";
    }
}

TEST(OverNodes, ASideComesAfterAllSidesOfItsRanksRoundBefore) {
    const Machine machine = with(50, 5);
    const Problem problem = problem_of(kSpecs[1], 8, 4);
    const Strategy strategy = complete(problem, machine, {});
    const auto program = ops::program(problem, strategy).value();
    const auto work = fuse::decide(program, options_of(strategy, fuse::Device::cuda, machine)).value();
    plan::Plan plan = fuse::transfers_of(work.lowered, work.backends);
    meet_between_nodes(work.lowered, work.graph, plan);
    std::size_t receives = 0, behind = 0;
    for (const auto& [ref, side] : work.lowered.channel) {
        const plan::Op& op = plan.op(ref);
        if (side.sends) continue;
        ++receives;
        EXPECT_EQ(op.kind, plan::OpKind::pull);
        EXPECT_EQ(op.peer, side.other.rank);
        for (const auto& [other, of] : work.lowered.channel) {
            const bool just_before = other.rank == ref.rank && work.graph.round(work.graph.op(other)) + 1 ==
                                                                   work.graph.round(work.graph.op(ref));
            if (!just_before) continue;
            const plan::OpRef end = of.sends ? of.other : other;
            EXPECT_NE(std::ranges::find(op.after, end), op.after.end()) << ref.rank << ":" << ref.index;
            ++behind;
        }
    }
    EXPECT_EQ(receives, 8U * 3);
    EXPECT_GT(behind, 0U);
}

TEST(OverNodes, AMachineWithoutANetworkSaysSo) {
    const Problem problem = problem_of(kSpecs[0], 8, 2);
    EXPECT_EQ(estimate_objection(problem, find_machine("h200x4").value()),
              "h200x4 says nothing of a network between 2 nodes: its file has no \"network\"");
    EXPECT_EQ(estimate_objection(problem, find_machine("h200x8").value()), "");
}

TEST(OverNodes, AMachinesNetworkIsReadWhole) {
    const std::string good = to_json(find_machine("h200x8").value());
    const auto message = [&](const std::string& old, const std::string& now) {
        std::string text = good;
        const std::size_t at = text.find(old);
        EXPECT_NE(at, std::string::npos) << old;
        text.replace(at, old.size(), now);
        const Result<Machine> machine = machine_from_json(text, "m.json");
        EXPECT_FALSE(machine) << old << " -> " << now;
        return machine ? std::string() : machine.error().to_string();
    };
    EXPECT_NE(message("\"gbps\": {\"value\": 50", "\"gbps\": {\"value\": 0").find("carries nothing"),
              std::string::npos);
    EXPECT_NE(message("\"gbps\": {\"value\"", "\"gpbs\": {\"value\"").find("did you mean \"gbps\"?"),
              std::string::npos);
    EXPECT_NE(message("\"network\": {", "\"netwrk\": {").find("netwrk"), std::string::npos);
}

}  // namespace
}  // namespace syncopate::tune
