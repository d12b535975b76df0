#include "syncopate/tune/choose.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "cpu_time.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/tune/candidates/candidates.hpp"
#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {
namespace {

Problem problem_of(const std::string& spec, std::int32_t ranks = 8) {
    const Result<Problem> problem = parse_problem(spec, ranks, 132);
    EXPECT_TRUE(problem) << problem.error().to_string();
    return *problem;
}

Machine machine_of(std::int32_t ranks) { return nearest_machine("NVIDIA H200", ranks)->machine; }

const std::vector<std::string>& specs() {
    static const std::vector<std::string> kSpecs{
        "all_gather_matmul:M=8192,N=3584,K=8192",     "all_gather_matmul:M=130,N=72,K=64",
        "matmul_reduce_scatter:M=1024,N=8192,K=3584", "matmul_reduce_scatter:M=16,N=2048,K=4096",
        "matmul_all_reduce:M=4096,N=8192,K=3584",     "matmul_all_reduce:M=64,N=4096,K=1792,dtype=fp32",
        "all_to_all_matmul:M=1024,N=3584,K=8192",     "matmul_all_to_all:M=1024,N=8192,K=3584",
        "feed_forward:M=1024,K=4096,F=1792,N=4096",
    };
    return kSpecs;
}

/// A store with one answer.
class OneResult : public Store {
public:
    explicit OneResult(Strategy strategy) : strategy_(std::move(strategy)) {}
    std::optional<Stored> find(const Problem&) const override {
        return Stored{.strategy = strategy_, .us = 12.5, .note = "tuned"};
    }

private:
    Strategy strategy_;
};

TEST(Candidates, OfOtherStagesAndWarpsComeBehindTheDefaultForTheSearchToTry) {
    const Problem problem = problem_of("all_gather_matmul:M=64,N=28672,K=8192", 4);
    const Machine machine = machine_of(4);
    const Strategy usual = complete(problem, machine, {});
    const std::vector<Candidate> ranked = rank_candidates(problem, machine);
    const auto place = [&](const Strategy& strategy) {
        return std::ranges::find(ranked, strategy, &Candidate::strategy) - ranked.begin();
    };
    const auto count = static_cast<std::ptrdiff_t>(ranked.size());
    ASSERT_EQ(usual.tiles.front().stages, 5);
    for (const auto& [stages, warps] : {std::pair{4, 0}, std::pair{6, 0}, std::pair{5, 8}}) {
        Strategy other = usual;
        other.tiles.front().stages = stages;
        other.tiles.front().warps = warps;
        EXPECT_LT(place(usual), place(other));
        ASSERT_LT(place(other), count) << stages << " stages, " << warps << " warps";
        EXPECT_EQ(ranked[static_cast<std::size_t>(place(other))].pruned, "");
    }
}

TEST(Candidates, AreCompleteDifferentAndHoldTheUnfusedPair) {
    for (const std::string& spec : specs()) {
        for (const std::int32_t ranks : {1, 2, 8}) {
            const Problem problem = problem_of(spec, ranks);
            const Machine machine = machine_of(ranks);
            std::set<std::string> names;
            int unfused = 0;
            for (const Strategy& strategy : candidates(problem, machine)) {
                EXPECT_TRUE(names.insert(name_of(strategy)).second) << spec << ": " << name_of(strategy);
                unfused += strategy.placement == Placement::unfused ? 1 : 0;
                EXPECT_EQ(complete(problem, machine, strategy), strategy)
                    << spec << ": " << name_of(strategy);
                EXPECT_EQ(strategy.tiles.size(), problem.products().size());
            }
            EXPECT_EQ(unfused, 1) << spec;
        }
    }
}

TEST(Estimate, OfHugeExtentsAndManyRanksIsMadeInAMoment) {
    for (const char* spec :
         {"all_gather_matmul:M=1048576,N=1048576,K=1048576", "matmul_reduce_scatter:M=8192,N=536870912,K=8",
          "matmul_all_reduce:M=4294967296,N=1024,K=1024", "all_to_all_matmul:M=8,N=549755813888,K=8"}) {
        const double before = test::cpu_seconds();
        const std::vector<Candidate> ranked = rank_candidates(problem_of(spec, 8), machine_of(8));
        EXPECT_LT(test::cpu_seconds() - before, 20) << spec;
        EXPECT_GT(ranked.front().estimate.us, 0) << spec;
    }
    EXPECT_LT(candidates(problem_of("matmul_all_reduce:M=8192,N=3584,K=8192", 64), machine_of(8)).size(),
              300U);
    EXPECT_EQ(estimate_objection(problem_of("matmul_all_reduce:M=8192,N=3584,K=8192", 65), machine_of(8)),
              "estimates are of at most 64 ranks, got 65");
}

TEST(Estimate, HasPartsThatAddUpForEveryLegalStrategy) {
    for (const std::string& spec : specs()) {
        for (const std::int32_t ranks : {2, 4, 8}) {
            const Problem problem = problem_of(spec, ranks);
            const std::vector<Candidate> ranked = rank_candidates(problem, machine_of(ranks));
            ASSERT_FALSE(ranked.empty());
            double before = 0;
            for (const Candidate& candidate : ranked) {
                if (!candidate.pruned.empty()) continue;
                const Estimate& e = candidate.estimate;
                EXPECT_GT(e.compute, 0) << spec << ": " << candidate.name;
                EXPECT_LT(e.us, 1e6) << spec << ": " << candidate.name << " could not be simulated";
                EXPECT_NEAR(e.us, e.compute + e.exposed + e.fixed, 1e-6 * e.us)
                    << spec << ": " << candidate.name;
                EXPECT_GE(e.us, before) << "the best comes first";
                before = e.us;
            }
        }
    }
}

/// Of `specs`, on nodes: what an all-to-all sends has to be whole blocks.
std::vector<Problem> problems_on(std::int32_t ranks, std::int32_t nodes) {
    std::vector<Problem> made;
    for (const std::string& spec : specs()) {
        const Result<Problem> problem = parse_problem(fmt::format("{},nodes={}", spec, nodes), ranks, 132);
        if (problem) made.push_back(*problem);
    }
    return made;
}

TEST(Choose, OverNodesWithoutANetworkTakesThePairAndOnHostADefaultThatRunsThere) {
    const Machine machine = machine_of(4);
    ASSERT_EQ(machine.rates.network_gbps, 0);
    for (const auto& [ranks, nodes] :
         {std::pair{2, 2}, {4, 2}, {6, 2}, {6, 3}, {16, 4}, {64, 8}, {1024, 128}}) {
        const std::vector<Problem> problems = problems_on(ranks, nodes);
        EXPECT_GT(problems.size(), 5U);
        for (const Problem& problem : problems) {
            for (const fuse::Device device : {fuse::Device::cuda, fuse::Device::host}) {
                const Choice choice = choose(problem, machine, nullptr, {.device = device});
                EXPECT_EQ(strategy_objection(problem, choice.strategy), "") << problem.key();
                const Choice alone = choose(problem, machine, nullptr, {.unfused = false, .device = device});
                EXPECT_EQ(strategy_objection(problem, alone.strategy), "") << problem.key();
                EXPECT_EQ(alone.strategy.placement, Placement::fused) << problem.key();
                EXPECT_FALSE(fuse::is_inline(alone.strategy.backend)) << problem.key();
                if (device == fuse::Device::host) {
                    EXPECT_EQ(choice.strategy, alone.strategy) << problem.key();
                    continue;
                }
                EXPECT_EQ(choice.strategy.placement, Placement::unfused) << problem.key();
                EXPECT_NE(choice.note.find(ranks > 64 ? "at most 64 ranks" : "no \"network\""),
                          std::string::npos)
                    << choice.note;
                EXPECT_EQ(choice.us, 0) << "nothing is said of what is not known";
                EXPECT_EQ(alone.strategy.programs, 132 - fuse::kChannelBlocks) << "NCCL runs beside";
            }
        }
    }
}

TEST(Choose, OfManyRanksOverNodesTakesThePairAndSaysWhy) {
    const Problem problem = problem_of("all_gather_matmul:M=8192,N=3584,K=8192,nodes=9", 72);
    const Choice choice = choose(problem, *find_machine("h200x8"));
    EXPECT_EQ(choice.strategy.placement, Placement::unfused);
    EXPECT_EQ(choice.note, "the unfused pair: over nodes the estimate chooses for at most 64 ranks");
}

TEST(Estimate, OfThePairOverNodesHasTheKernelsOfABlockOnceAsOnOneNode) {
    const Machine machine = *find_machine("h200x8");
    const auto fixed = [&](const std::string& spec) {
        return estimate(problem_of(spec), machine, {.placement = Placement::unfused, .tiles = {TileConfig{}}})
            .fixed;
    };
    EXPECT_EQ(fixed("feed_forward:M=1024,K=4096,F=1792,N=4096,nodes=2"),
              fixed("feed_forward:M=1024,K=4096,F=1792,N=4096"));
}

TEST(Estimate, OfAChainHidesTheSecondLaunchAndIsShorterThanItsTwo) {
    const Machine machine = *find_machine("h200x1");
    const Problem chain = problem_of("mlp_chain:M=256,H=12288,F=6144", 1);
    const std::vector<Candidate> ranked = rank_candidates(chain, machine);
    ASSERT_GE(ranked.size(), 2U);
    std::set<std::string> names;
    for (const Candidate& one : ranked) {
        EXPECT_EQ(one.pruned, "") << one.name;
        EXPECT_GT(one.estimate.us, 0) << one.name;
        EXPECT_NEAR(one.estimate.us, one.estimate.compute + one.estimate.exposed + one.estimate.fixed,
                    1e-6 * one.estimate.us);
        names.insert(one.name);
    }
    EXPECT_TRUE(names.contains("unfused"));
    const Strategy fused = complete(chain, machine, {.kernel = ProductKernel::plain});
    const double whole = estimate(chain, machine, fused).us;
    const double twice = estimate(problem_of("mlp_chain:M=512,H=12288,F=6144", 1), machine, fused).us;
    EXPECT_GT(twice, 1.2 * whole);
    EXPECT_EQ(choose(chain, machine).note, "the default: a first call measures its ways");
}

TEST(Candidates, OverNodesThatAreNotPrunedMakePlansThatCanBeSplit) {
    const Machine machine = machine_of(4);
    for (const Problem& problem : problems_on(4, 2)) {
        std::size_t made = 0;
        for (const Candidate& candidate : rank_candidates(problem, machine)) {
            EXPECT_EQ(candidate.estimate.us, 0);
            if (!candidate.pruned.empty() || candidate.strategy.placement != Placement::fused) continue;
            const auto outlined = ops::outline(problem, candidate.strategy);
            ASSERT_TRUE(outlined) << candidate.name << ": " << outlined.error().to_string();
            const auto lowered = fuse::lower(outlined->plan, {.preferred = candidate.strategy.backend});
            ASSERT_TRUE(lowered) << candidate.name << ": " << lowered.error().to_string();
            EXPECT_FALSE(lowered->channel.empty()) << candidate.name;
            ++made;
        }
        EXPECT_GT(made, 2U) << problem.key();
    }
}

TEST(Objection, SaysOfEachStrategyWhatNodesCannotDo) {
    const auto said = [](const char* spec, const Strategy& strategy, std::int32_t nodes) {
        Problem problem = problem_of(spec, 4);
        problem.nodes = nodes;
        return strategy_objection(problem, complete(problem, machine_of(4), strategy));
    };
    const char* const sum = "matmul_reduce_scatter:M=1024,N=8192,K=3584";
    const char* const everywhere = "matmul_all_reduce:M=1024,N=8192,K=3584";
    for (const char* spec : {sum, everywhere}) {
        for (const Strategy& strategy : {Strategy{.pull = true}, Strategy{.stored = 1}, Strategy{.stored = 3},
                                         Strategy{.pull = true, .backend = plan::Backend::ldst_dedicated},
                                         Strategy{.pull = true, .backend = plan::Backend::ldst_inline}}) {
            EXPECT_NE(said(spec, strategy, 2).find("nodes: each node sums"), std::string::npos);
            EXPECT_NE(said(spec, strategy, 4).find("nodes: each node sums"), std::string::npos);
            EXPECT_EQ(said(spec, strategy, 1), "");
        }
        EXPECT_EQ(said(spec, {.split = 2}, 2), "");
        EXPECT_EQ(said(spec, {.backend = plan::Backend::tma_dedicated}, 2), "");
        EXPECT_EQ(said(spec, {.placement = Placement::unfused}, 2), "");
    }
    for (const char* spec :
         {"all_gather_matmul:M=1024,N=3584,K=8192", "all_to_all_matmul:M=1024,N=3584,K=8192"}) {
        EXPECT_NE(said(spec, {.backend = plan::Backend::tma_inline}, 2).find("nodes: tiles fetch x"),
                  std::string::npos);
        EXPECT_EQ(said(spec, {.backend = plan::Backend::tma_inline}, 1), "");
        EXPECT_EQ(said(spec, {.chunking = {.rows = 2}}, 2), "");
    }
}

TEST(Estimate, OfWhatAMachineHasNoFigureForIsNoTimeButAReason) {
    const Problem problem = problem_of("matmul_reduce_scatter:M=1024,N=8192,K=3584", 4);
    Machine machine = machine_of(4);
    machine.rates.read_gbps = 0;  // of contributions that sums read where they are
    std::size_t without = 0;
    for (const Candidate& candidate : rank_candidates(problem, machine)) {
        EXPECT_LT(candidate.estimate.us * (candidate.pruned.empty() ? 1 : 0), kUnknownUs) << candidate.name;
        without += candidate.pruned.find("has no figure") != std::string::npos ? 1 : 0;
    }
    EXPECT_GT(without, 0U);
    EXPECT_LT(choose(problem, machine).us, kUnknownUs);
}

TEST(Candidates, OfABlockAreItsTwoOperatorsToo) {
    const Problem block = problem_of("feed_forward:M=64,K=4096,F=7168,N=4096,activation=gelu", 2);
    const Machine machine = machine_of(2);
    const std::vector<Problem> parts = block.parts();
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_EQ(parts[0], problem_of("all_gather_matmul:M=64,N=7168,K=4096", 2));
    EXPECT_EQ(parts[1], problem_of("matmul_reduce_scatter:M=64,N=4096,K=7168", 2));
    const Strategy apart = complete(block, machine, {.placement = Placement::apart});
    ASSERT_EQ(apart.parts.size(), 2U);
    EXPECT_EQ(strategy_objection(block, apart), "");
    double us = -machine.rates.call_us;
    for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(apart.parts[i], choose(parts[i], machine).strategy);
        us += estimate(parts[i], machine, apart.parts[i]).us;
    }
    EXPECT_DOUBLE_EQ(estimate(block, machine, apart).us, us);
    EXPECT_EQ(choose(block, machine).strategy, apart) << "of few rows each operator has better ways";
}

TEST(Choose, RunsNoPartThatTheCallerCannotRun) {
    const Problem block = problem_of("feed_forward:M=16,K=4096,F=1792,N=4096");
    const Machine machine = machine_of(8);
    const ChooseOptions options{.unfused = false, .gluon = false};
    const Strategy apart = complete(block, machine, {.placement = Placement::apart}, options);
    ASSERT_EQ(apart.parts.size(), 2U);
    for (const Strategy& part : apart.parts) {
        EXPECT_NE(part.placement, Placement::unfused);
        EXPECT_EQ(part.kernel, ProductKernel::plain);
    }
    const OneResult store({.placement = Placement::apart,
                           .parts = {{.placement = Placement::unfused}, {.placement = Placement::unfused}}});
    EXPECT_TRUE(choose(block, machine, &store).measured);
    EXPECT_FALSE(choose(block, machine, &store, options).measured);
}

TEST(Objection, ToWhatNoKernelCanDoComesBeforeTheRun) {
    const Problem problem = problem_of("matmul_reduce_scatter:M=1024,N=8192,K=3584");
    const auto objection = [&](const Strategy& strategy) { return strategy_objection(problem, strategy); };
    EXPECT_EQ(objection({.split = 2, .split_axis = 2}), "a product has no axis 2");
    EXPECT_EQ(objection({.tiles = {{.block_m = 3}}}),
              "the plain kernel's tiles have powers of two of rows and columns, not 3");
    EXPECT_EQ(objection({.tiles = {{.stages = 40}}}),
              "40 stages of 128x256x64 take more shared memory than there is");
    EXPECT_EQ(objection({.tiles = {{}, {}, {}}}), "tiles of 3 products, and there is 1");
    EXPECT_EQ(objection({.programs = 1'000'000'000}),
              "1000000000 programs: 132 multiprocessors run at most 32 each");
}

TEST(Objection, ToPartsNamesTheOperator) {
    const Problem block = problem_of("feed_forward:M=64,K=4096,F=1792,N=4096");
    const auto objection = [&](const Problem& problem, std::vector<Strategy> parts) {
        return strategy_objection(problem, {.placement = Placement::apart, .parts = std::move(parts)});
    };
    EXPECT_EQ(objection(block, {{}}), "feed_forward is 2 operators, and parts has 1");
    EXPECT_EQ(objection(block, {{}, {.placement = Placement::apart}}),
              "matmul_reduce_scatter: matmul_reduce_scatter is one operator");
    EXPECT_EQ(objection(block, {{.stored = 1}, {}}),
              "all_gather_matmul: only contributions to sums are stored");
    const Problem one = problem_of("all_gather_matmul:M=64,N=1792,K=4096");
    EXPECT_EQ(objection(one, {}), "all_gather_matmul is one operator");
    EXPECT_EQ(strategy_objection(one, {.parts = {{}}}), "one operator has no parts");
}

TEST(Estimate, RanksAProblemInASecond) {
    const Problem problem = problem_of("matmul_all_reduce:M=8192,N=16384,K=6656");
    const Machine machine = machine_of(8);
    const double before = test::cpu_seconds();
    EXPECT_GT(rank_candidates(problem, machine).size(), 50U);
    EXPECT_LT(test::cpu_seconds() - before, 5.0)
        << "seconds of the CPU, on a slow machine without optimisation";
}

TEST(Choose, IsThereForFewerRowsThanRanks) {
    for (const char* spec : {"all_gather_matmul:M=1,N=28672,K=8192", "feed_forward:M=1,K=64,F=64,N=64",
                             "all_gather_matmul:M=3,N=64,K=64", "matmul_reduce_scatter:M=1,N=64,K=64"}) {
        for (const std::int32_t ranks : {2, 4, 8}) {
            const Choice choice = choose(problem_of(spec, ranks), machine_of(ranks));
            EXPECT_GT(choice.us, 0) << spec << " on " << ranks;
        }
    }
}

TEST(Estimate, HidesTransfersUnderALargeProductAndNotUnderASmallOne) {
    const Machine machine = machine_of(8);
    const auto exposed_share = [&](const std::string& spec) {
        const Problem problem = problem_of(spec);
        const Estimate e = estimate(problem, machine, complete(problem, machine, {}));
        return e.exposed / e.communicate;
    };
    EXPECT_LT(exposed_share("all_gather_matmul:M=8192,N=6144,K=12288"), 0.1);
    EXPECT_GT(exposed_share("all_gather_matmul:M=8192,N=512,K=12288"), 0.5);
}

TEST(Candidates, LetTheProductsProgramsSumInOneStepOrAtOwnersWhereTilesEndWithTheirRows) {
    const Machine machine = *find_machine("h100x2");
    const auto ways = [&](const std::string& spec) {  // in one step, at owners
        const Problem problem = problem_of(spec, 2);
        std::pair<bool, bool> found;
        for (const Candidate& candidate : rank_candidates(problem, machine)) {
            if (!candidate.strategy.kernel_sums) continue;
            EXPECT_EQ(strategy_objection(problem, candidate.strategy), "") << candidate.name;
            (candidate.strategy.one_step ? found.first : found.second) = true;
        }
        return found;
    };
    EXPECT_EQ(ways("matmul_reduce_scatter:M=128,N=4096,K=1792"), (std::pair{true, true}));
    EXPECT_EQ(ways("matmul_reduce_scatter:M=64,N=4096,K=1792"), (std::pair{true, true}));
    EXPECT_EQ(ways("matmul_reduce_scatter:M=16,N=4096,K=1792"), (std::pair{true, false}))
        << "one tile has the rows of both ranks";
    EXPECT_EQ(ways("matmul_reduce_scatter:M=150,N=4096,K=1792"), (std::pair{true, false}));
    EXPECT_EQ(ways("matmul_all_reduce:M=128,N=4096,K=1792"), (std::pair{true, false}));
    EXPECT_EQ(ways("matmul_all_reduce:M=64,N=4096,K=1792,dtype=fp32"), (std::pair{false, false}));
    EXPECT_EQ(ways("all_gather_matmul:M=64,N=4096,K=1792"), (std::pair{false, false}));
}

TEST(Estimate, OfAFasterMachineIsShorter) {
    const Problem problem = problem_of("all_gather_matmul:M=8192,N=512,K=12288");
    const Machine slow = machine_of(8);
    Machine fast = slow;
    for (plan::Link& link : fast.topology.links) link.gbps *= 2;
    const Strategy strategy = complete(problem, slow, {});
    EXPECT_LT(estimate(problem, fast, strategy).us, 0.8 * estimate(problem, slow, strategy).us);
}

TEST(Estimate, CountsWeightsThatTheCacheDoesNotHoldForEachGroupOfRows) {
    const Machine machine = machine_of(4);
    const auto us = [&](const std::string& spec, std::int32_t rows) {
        const Problem problem = problem_of(spec, 4);
        const Strategy cut{.chunking = {.rows = rows}, .backend = plan::Backend::copy_engine};
        return estimate(problem, machine, complete(problem, machine, cut)).us;
    };
    // 218 MB of weights, seven times: as measured, cutting shards in two loses 12 %.
    const std::string large = "all_gather_matmul:M=1024,N=6656,K=16384";
    EXPECT_GT(us(large, 2), 1.08 * us(large, 1));
    EXPECT_LT(us(large, 2), 1.17 * us(large, 1));
    // With more rows the product takes longer than that.
    const std::string rows = "all_gather_matmul:M=8192,N=6656,K=16384";
    EXPECT_LT(us(rows, 2), 1.01 * us(rows, 1));
}

TEST(Estimate, OfMoreRanksThanTheMachineHasIsOnOneSwitch) {
    const Problem problem = problem_of("all_gather_matmul:M=4096,N=1024,K=1024", 16);
    const Machine machine = machine_of(8);
    EXPECT_LT(estimate(problem, machine, complete(problem, machine, {})).us, 1e6);
}

TEST(Objection, SaysWhyTheRuntimeCannotCarryOutAStrategy) {
    const auto why = [](const std::string& spec, const Strategy& strategy) {
        return strategy_objection(problem_of(spec, 4), strategy);
    };
    const std::string gather = "all_gather_matmul:M=1024,N=512,K=1024";
    const std::string reduce = "matmul_all_reduce:M=1024,N=512,K=1024";
    EXPECT_EQ(why(gather, {}), "");
    EXPECT_EQ(why(reduce, {.placement = Placement::unfused}), "");
    EXPECT_NE(why(gather, {.stored = 1}), "");
    EXPECT_NE(why(reduce, {.stored = 4}), "");
    EXPECT_EQ(why(reduce, {.one_step = true, .backend = plan::Backend::tma_inline}), "");
    EXPECT_NE(why(reduce, {.stored = 1, .one_step = true}), "");
    EXPECT_NE(why(gather, {.one_step = true}), "");
    EXPECT_EQ(why("matmul_reduce_scatter:M=1024,N=512,K=1024", {.one_step = true}), "");
    EXPECT_NE(why(reduce, {.backend = plan::Backend::nccl}), "");
    EXPECT_NE(why(reduce, {.backend = plan::Backend::host}), "");
    EXPECT_NE(why(reduce, {.chunking = {.rows = 2}}), "");
    EXPECT_NE(why(gather, {.tiles = {TileConfig{}}, .chunking = {.slices = {100, 924}}}), "");
    EXPECT_NE(why(gather, {.tiles = {TileConfig{}}, .chunking = {.slices = {512}}}), "");
    EXPECT_EQ(why(gather, {.tiles = {TileConfig{}}, .chunking = {.slices = {256, 768}}}), "");
}

TEST(Objection, SaysWhyTilesCannotWaitTogether) {
    const auto why = [](const std::string& op, Strategy strategy) {
        strategy.together = true;
        return strategy_objection(problem_of(op + ":M=1024,N=512,K=1024", 4), strategy);
    };
    EXPECT_EQ(why("all_gather_matmul", {}), "");
    EXPECT_EQ(why("all_to_all_matmul", {.kernel = ProductKernel::gluon}), "");
    EXPECT_EQ(why("matmul_reduce_scatter", {}), "tiles wait together for what comes before one product");
    EXPECT_EQ(why("all_gather_matmul", {.pull = true, .backend = plan::Backend::tma_inline}),
              "tiles that fetch what they read wait for nothing");
}

TEST(Candidates, TilesWaitTogetherWhereTheCacheDoesNotHoldTheWeights) {
    const Machine machine = *find_machine("h100x2");
    const auto together = [&](const std::string& spec) {
        std::vector<Strategy> found = candidates(problem_of(spec, 2), machine);
        std::erase_if(found, [](const Strategy& strategy) { return !strategy.together; });
        return found;
    };
    EXPECT_TRUE(together("all_gather_matmul:M=256,N=1792,K=4096").empty()) << "15 MB";
    const std::vector<Strategy> found = together("all_gather_matmul:M=256,N=6144,K=12288");
    EXPECT_FALSE(found.empty());
    for (const Strategy& strategy : found)
        EXPECT_EQ(strategy.programs, machine.num_sms) << "the engine has ended when they begin";
    const Strategy chosen = choose(problem_of("all_gather_matmul:M=256,N=6144,K=12288", 2), machine).strategy;
    EXPECT_TRUE(chosen.together) << name_of(chosen);
}

TEST(Objection, SaysWhyTheProductsProgramsCannotSum) {
    const auto why = [](const std::string& spec, Strategy strategy) {
        strategy.kernel_sums = true;
        return strategy_objection(problem_of(spec, 4), strategy);
    };
    using enum ProductKernel;
    const std::string reduce = "matmul_all_reduce:M=64,N=4096,K=1792";
    const std::string scatter = "matmul_reduce_scatter:M=64,N=4096,K=1792";
    const TileConfig rows_of_16{.block_m = 16, .block_n = 64, .block_k = 128, .stages = 10};
    const TileConfig rows_of_64{.block_m = 64, .block_n = 64, .block_k = 128, .stages = 6};

    EXPECT_EQ(why(reduce, {.kernel = gluon, .one_step = true}), "");
    EXPECT_EQ(why(reduce, {.kernel = gluon, .tiles = {rows_of_64}, .one_step = true}), "");
    EXPECT_EQ(why(scatter, {.kernel = gluon, .tiles = {rows_of_64}, .one_step = true}), "")
        << "in one step tiles need not end where shares do";
    EXPECT_EQ(why(scatter, {.kernel = gluon, .tiles = {rows_of_16}}), "");
    EXPECT_EQ(why(scatter, {.kernel = gluon, .tiles = {rows_of_16}, .backend = plan::Backend::tma_inline}),
              "");

    EXPECT_EQ(why(reduce, {.one_step = true}), "only the Gluon kernel sums");
    EXPECT_EQ(why("all_gather_matmul:M=64,N=4096,K=1792", {.kernel = gluon}),
              "the product has nothing to sum");
    EXPECT_EQ(why("matmul_all_to_all:M=64,N=4096,K=1792", {.kernel = gluon}),
              "the product has nothing to sum");
    EXPECT_EQ(why(reduce, {.kernel = gluon}), "the product's programs send no sums");
    EXPECT_EQ(why("matmul_reduce_scatter:M=3,N=4096,K=1792", {.kernel = gluon, .one_step = true}),
              "some rank would have nothing to sum");
    EXPECT_EQ(why("matmul_all_reduce:M=3,N=4096,K=1792", {.kernel = gluon, .one_step = true}), "")
        << "every rank sums all of it";
    EXPECT_EQ(why(scatter, {.kernel = gluon, .tiles = {rows_of_64}}),
              "some tile of 64 rows is for several of 4 ranks, and stored at one");
    EXPECT_EQ(why(scatter, {.kernel = gluon, .one_step = true, .backend = plan::Backend::copy_engine}),
              "where the product's programs sum, tiles store what they make");
    const std::string once = "the product's programs sum once, what tiles have stored at their owners";
    EXPECT_EQ(why(scatter, {.kernel = gluon, .tiles = {rows_of_16}, .split = 2}), once);
    EXPECT_EQ(why(scatter, {.kernel = gluon, .tiles = {rows_of_16}, .pull = true}), once);
    EXPECT_EQ(strategy_objection(problem_of("matmul_reduce_scatter:M=1024,N=4096,K=1792", 16),
                                 {.kernel = gluon, .tiles = {rows_of_64}, .kernel_sums = true}),
              "the product's programs sum for at most 15 ranks");
}

TEST(Objection, IsToTilesThatAreForSeveralRanksAndStoredAtOne) {
    const Strategy stored{.tiles = {TileConfig{.block_m = 64, .block_n = 64, .block_k = 128, .stages = 6}},
                          .backend = plan::Backend::tma_inline};
    EXPECT_NE(strategy_objection(problem_of("matmul_all_to_all:M=64,N=4096,K=1792", 2), stored), "");
    EXPECT_EQ(strategy_objection(problem_of("matmul_all_to_all:M=128,N=4096,K=1792", 2), stored), "");
    const Strategy chosen =
        choose(problem_of("matmul_all_to_all:M=64,N=4096,K=1792", 2), *find_machine("h100x2")).strategy;
    EXPECT_EQ(chosen.backend, plan::Backend::tma_inline);
    EXPECT_EQ(chosen.tiles.front().block_m, 32) << "they end where a rank's rows do";
    const auto why = [](const char* spec, Strategy strategy) {
        strategy.tiles = {TileConfig{.block_m = 128, .block_n = 256, .block_k = 64, .stages = 4}};
        return strategy_objection(problem_of(spec, 4), strategy);
    };
    EXPECT_EQ(why("matmul_reduce_scatter:M=128,N=16384,K=6656", {.split = 1, .stored = 2}),
              "some tile of 128 rows is for several of 4 ranks, and stored at one");
    EXPECT_EQ(why("matmul_reduce_scatter:M=512,N=16384,K=6656", {.split = 1, .stored = 2}), "");
    EXPECT_EQ(
        why("matmul_all_reduce:M=1024,N=8192,K=1792", {.split = 4, .backend = plan::Backend::tma_inline}),
        "tiles of 128 rows do not end where 4 parts do");
}

TEST(Estimate, OfLargeChunksByLoadsAndStoresIsLongerThanByBulkCopies) {
    const Machine machine = *find_machine("h100x2");
    const auto us = [&](const std::string& spec, plan::Backend backend) {
        const Strategy given{.chunking = {.rows = 2}, .backend = backend};
        const Problem problem = problem_of(spec, 2);
        return estimate(problem, machine, complete(problem, machine, given)).us;
    };
    using enum plan::Backend;
    const std::string many = "all_gather_matmul:M=4096,N=1792,K=4096";
    EXPECT_GT(us(many, ldst_dedicated), 1.1 * us(many, tma_dedicated)) << "131 and 104 us";
    EXPECT_NEAR(us(many, ldst_dedicated), 131, 0.1 * 131);
    EXPECT_NEAR(us(many, tma_dedicated), 104, 0.15 * 104);
    const std::string few = "all_gather_matmul:M=64,N=1792,K=4096";
    EXPECT_LT(us(few, ldst_dedicated), us(few, tma_dedicated)) << "it goes at once";
}

TEST(Estimate, OfTheGluonKernelTakesSlicesByFewBlocksOfTheEngine) {
    const Machine machine = *find_machine("h100x4");
    const Problem problem = problem_of("all_gather_matmul:M=1024,N=3584,K=8192", 4);
    const auto us = [&](std::int32_t blocks, std::int32_t slices) {
        const Strategy given{.kernel = ProductKernel::gluon,
                             .chunking = {.num_slices = slices},
                             .backend = plan::Backend::tma_dedicated,
                             .engine_blocks = blocks};
        return estimate(problem, machine, complete(problem, machine, given)).us;
    };
    EXPECT_LT(us(8, 4), us(8, 2)) << "119 and 125 us";
    EXPECT_LE(us(8, 2), us(16, 2)) << "125 and 133 us";
    const Strategy chosen = choose(problem, machine).strategy;
    EXPECT_EQ(chosen.kernel, ProductKernel::gluon);
    EXPECT_EQ(chosen.engine_blocks, 8);
    EXPECT_GT(chosen.chunking.slices.size(), 1U);
}

TEST(Estimate, OfBlocksOfTheEngineIsNearWhatTheyTook) {
    const Machine machine = *find_machine("h100x2");
    const Problem problem = problem_of("all_gather_matmul:M=4096,N=3584,K=8192", 2);
    for (const auto& [blocks, measured] :
         {std::pair{2, 606.0}, std::pair{4, 418.0}, std::pair{8, 363.0}, std::pair{16, 359.0}}) {
        const Strategy given{.backend = plan::Backend::tma_dedicated, .engine_blocks = blocks};
        EXPECT_NEAR(estimate(problem, machine, complete(problem, machine, given)).us, measured,
                    0.1 * measured)
            << blocks << " blocks";
    }
}

TEST(Estimate, OfSlicesThatComeSideBySideReadsTheWeightsOnceForAll) {
    const Machine machine = *find_machine("h100x4");
    const Problem problem = problem_of("all_gather_matmul:M=1024,N=6656,K=16384", 4);
    Strategy given{.kernel = ProductKernel::gluon,
                   .chunking = {.slices = {2240, 4608, 9536}},
                   .backend = plan::Backend::tma_dedicated,
                   .engine_blocks = 8};
    const double side_by_side = estimate(problem, machine, complete(problem, machine, given)).us;
    EXPECT_NEAR(side_by_side, 376, 0.03 * 376);
    given.chunking.slices = {4096, 4096, 4096, 4096};
    given.chunking.peer_by_peer = true;
    const double one_by_one = estimate(problem, machine, complete(problem, machine, given)).us;
    EXPECT_NEAR(one_by_one, 409, 0.04 * 409);
}

// The Gluon kernel takes all registers of a multiprocessor.
TEST(Estimate, OfTheGluonKernelHasSumsOfPartsAfterTheProduct) {
    const Machine machine = *find_machine("h100x4");
    const auto us = [&](const char* spec, Strategy given) {
        given.kernel = ProductKernel::gluon;
        const Problem problem = problem_of(spec, 4);
        const Estimate made = estimate(problem, machine, complete(problem, machine, given));
        return made.us - made.copied;  // as the bench takes results
    };
    const char* reduce = "matmul_all_reduce:M=4096,N=16384,K=6656";
    const double in_parts = us(reduce, {.split = 4, .split_axis = 1});
    EXPECT_NEAR(in_parts, 1575, 0.08 * 1575);
    const double by_engine = us(reduce, {.split = 8,
                                         .split_axis = 1,
                                         .pull = true,
                                         .backend = plan::Backend::ldst_dedicated,
                                         .engine_blocks = 8});
    EXPECT_NEAR(by_engine, 1341, 0.07 * 1341) << "on multiprocessors of its own";
    EXPECT_NEAR(us("matmul_reduce_scatter:M=4096,N=8192,K=3584",
                   {.split = 2, .split_axis = 0, .backend = plan::Backend::copy_engine}),
                379, 0.05 * 379);
    EXPECT_GT(us("matmul_all_reduce:M=8192,N=4096,K=1792", {.split = 2}), 320) << "392 us";
}

TEST(Estimate, OfSlicesWhoseFirstOnesComeFarApartReadsTheWeightsForEachPeer) {
    const Machine machine = *find_machine("h100x4");
    const Problem problem = problem_of("all_gather_matmul:M=512,N=6144,K=12288", 4);
    const auto us = [&](std::vector<std::int64_t> slices) {
        const Strategy given{.kernel = ProductKernel::gluon,
                             .chunking = {.slices = std::move(slices)},
                             .backend = plan::Backend::tma_dedicated,
                             .engine_blocks = 4};
        return estimate(problem, machine, complete(problem, machine, given)).us;
    };
    EXPECT_NEAR(us({640, 1408, 3136, 7104}), 152, 0.05 * 152);
    EXPECT_NEAR(us({3072, 3072, 3072, 3072}), 174, 0.05 * 174);
    EXPECT_NEAR(us({5376, 6912}), 227, 0.15 * 227);
}

TEST(Estimate, OfRowsOfManyRanksReadsTheWeightsOnceARoundOfTiles) {
    // Each of eight ranks has 128 of the rows, half a round of tiles: 360 and 259 us on 8 x H200, 2026-11-22.
    const Machine machine = *find_machine("h200x8");
    const auto us = [&](const char* spec) {
        const Problem problem = problem_of(spec, 8);
        return estimate(problem, machine, complete(problem, machine, {.split = 1, .stored = 1})).us;
    };
    EXPECT_NEAR(us("matmul_reduce_scatter:M=1024,N=16384,K=6656"), 360, 0.12 * 360);
    EXPECT_NEAR(us("matmul_reduce_scatter:M=1024,N=12288,K=6144"), 259, 0.12 * 259);
}

TEST(Choose, TakesTheBestByTheEstimate) {
    for (const char* spec :
         {"matmul_all_reduce:M=128,N=8192,K=3584", "all_gather_matmul:M=2048,N=3584,K=8192",
          "matmul_reduce_scatter:M=4096,N=8192,K=3584"}) {
        const Problem problem = problem_of(spec);
        const Machine machine = machine_of(4);
        const Choice choice = choose(problem, machine);
        EXPECT_EQ(name_of(choice.strategy), rank_candidates(problem, machine).front().name);
        EXPECT_FALSE(choice.measured);
        EXPECT_EQ(choice.note, "by the estimate on h200x4");
    }
}

TEST(Choose, TakesNoKernelThatTheCallerCannotRun) {
    const Machine machine = machine_of(4);
    const Problem problem = problem_of("all_gather_matmul:M=8192,N=6656,K=16384", 4);
    EXPECT_EQ(choose(problem, machine).strategy.kernel, ProductKernel::gluon);
    EXPECT_EQ(choose(problem, machine, nullptr, {.gluon = false}).strategy.kernel, ProductKernel::plain);
}

// Of 2 x H200, in a caller's tensor less where it is made (bench/results/measured.csv).
TEST(Estimate, HasTheCopyOfAResultThatComesFromPeers) {
    const Machine machine = *find_machine("h200x2");
    const auto copied = [&](const char* spec, const Strategy& given) {
        const Problem problem = problem_of(spec, 2);
        const Estimate made = estimate(problem, machine, complete(problem, machine, given));
        EXPECT_NEAR(made.us, made.fixed + made.compute + made.exposed, 0.01 * made.us);
        return made.copied;
    };
    EXPECT_NEAR(copied("matmul_all_reduce:M=4096,N=12288,K=6144", {.split = 4}), 49.0, 6);
    EXPECT_NEAR(copied("matmul_all_reduce:M=1024,N=4096,K=1792", {.split = 1}), 5.5, 1.5);
    EXPECT_NEAR(copied("matmul_all_to_all:M=1024,N=12288,K=6144", {.split = 1}), 14.8, 1.5);
    EXPECT_NEAR(copied("matmul_all_reduce:M=768,N=3584,K=1216", {.placement = Placement::unfused}), 4.2, 1);
    // Sums that nobody else reads are stored in the caller's tensor.
    EXPECT_EQ(copied("matmul_reduce_scatter:M=4096,N=12288,K=6144", {.split = 1}), 0);
    EXPECT_EQ(copied("matmul_all_reduce:M=512,N=12288,K=6144",
                     {.kernel = ProductKernel::gluon, .split = 1, .one_step = true, .kernel_sums = true}),
              0);
    EXPECT_EQ(copied("all_gather_matmul:M=512,N=6144,K=12288", {}), 0);
}

TEST(Complete, TakesTheQuickerKernelWhereItIsOpen) {
    const Machine machine = machine_of(4);
    const auto us = [&](const Problem& problem, const Strategy& given) {
        return estimate(problem, machine, complete(problem, machine, given)).us;
    };
    std::set<ProductKernel> taken;
    for (const std::int64_t m : {64, 512, 1024, 2048, 4096, 8192}) {
        const Problem problem = problem_of(fmt::format("matmul_reduce_scatter:M={},N=12288,K=6144", m), 4);
        for (const std::int32_t split : {1, 2}) {
            const Strategy open{.kernel = std::nullopt, .split = split};
            const Strategy made = complete(problem, machine, open);
            const double plain = us(problem, {.kernel = ProductKernel::plain, .split = split});
            const double gluon = us(problem, {.kernel = ProductKernel::gluon, .split = split});
            EXPECT_EQ(made.kernel, gluon < plain ? ProductKernel::gluon : ProductKernel::plain) << m;
            EXPECT_EQ(made.split, split);
            taken.insert(*made.kernel);
        }
    }
    EXPECT_EQ(taken.size(), 2u);  // each is quicker somewhere
    const Problem problem = problem_of("matmul_reduce_scatter:M=64,N=12288,K=6144", 4);
    const auto kernel_of = [&](const Strategy& given, const ChooseOptions& options = {}) {
        return complete(problem, machine, given, options).kernel;
    };
    EXPECT_EQ(kernel_of({.kernel = std::nullopt, .kernel_sums = true}), ProductKernel::gluon);
    EXPECT_EQ(kernel_of({.kernel = std::nullopt, .tiles = {TileConfig{}}}), ProductKernel::plain);
    EXPECT_EQ(kernel_of({.kernel = std::nullopt}, {.gluon = false}), ProductKernel::plain);
    EXPECT_EQ(kernel_of({.kernel = std::nullopt}, {.device = fuse::Device::host}), ProductKernel::plain);
    EXPECT_EQ(kernel_of({.placement = Placement::unfused, .kernel = std::nullopt}), ProductKernel::plain);
}

TEST(Choose, TakesThePairWhereNothingIsQuicker) {
    const Machine machine = *find_machine("h200x2");
    // 23.1 to 18.7, 30.4 to 23.9, 31.3 to 23.7 and 74.2 to 64.2 us: the pair, and fused (compared_2xH200.json).
    for (const char* extents :
         {"M=72,N=4096,K=1792", "M=96,N=6656,K=2240", "M=200,N=4096,K=1792", "M=64,N=16384,K=6656"}) {
        const Problem problem = problem_of(fmt::format("matmul_all_reduce:{}", extents), 2);
        EXPECT_EQ(choose(problem, machine).strategy.placement, Placement::fused) << extents;
    }
    const Problem exchanged = problem_of("matmul_all_to_all:M=16,N=16384,K=6656", 2);
    EXPECT_EQ(choose(exchanged, machine).strategy.placement, Placement::unfused) << "98.2 fused, 68.1";
}

TEST(Choose, TakesAStoredWinnerWhereTheRuntimeCanCarryItOut) {
    const Problem problem = problem_of("matmul_all_reduce:M=1024,N=4096,K=1024");
    const Machine machine = machine_of(8);
    const OneResult legal({.split = 1, .stored = 2});
    const Choice stored = choose(problem, machine, &legal);
    EXPECT_EQ(stored.strategy.stored, 2);
    EXPECT_TRUE(stored.measured);
    EXPECT_EQ(stored.us, 12.5);
    const OneResult illegal({.split = 1, .stored = 99});
    const Choice instead = choose(problem, machine, &illegal);
    EXPECT_FALSE(instead.measured);
    EXPECT_NE(instead.warning.find("is not taken: "), std::string::npos) << instead.warning;
    EXPECT_EQ(stored.warning, "");
    const OneResult unfused({.placement = Placement::unfused});
    EXPECT_TRUE(choose(problem, machine, &unfused).measured);
    const Choice fused = choose(problem, machine, &unfused, {.unfused = false});
    EXPECT_FALSE(fused.measured);
    EXPECT_EQ(fused.warning, "") << "another caller can run it";
}

TEST(Choose, TakesTheUnfusedPairOnlyWhereItCanBeRun) {
    Machine machine = machine_of(2);
    machine.rates.fused_us = 1e4;  // a fused kernel that nobody wants
    const Problem problem = problem_of("matmul_all_reduce:M=1024,N=4096,K=1024", 2);
    const ChooseOptions plain{.gluon = false}, none{.unfused = false, .gluon = false};
    EXPECT_EQ(choose(problem, machine, nullptr, plain).strategy.placement, Placement::unfused);
    EXPECT_NE(choose(problem, machine, nullptr, none).strategy.placement, Placement::unfused);
}

TEST(Choose, LetsTilesFetchNothingThatTheCallerReadsInTheHeap) {
    const Problem problem = problem_of("all_gather_matmul:M=1024,N=4096,K=1024", 2);
    const Machine machine = machine_of(2);
    const OneResult fetched({.pull = true, .backend = plan::Backend::tma_inline});
    ASSERT_TRUE(choose(problem, machine, &fetched).measured);
    const Choice kept = choose(problem, machine, &fetched, {.kept = true});
    EXPECT_FALSE(kept.measured);
    EXPECT_FALSE(fuse::is_inline(kept.strategy.backend));
}

TEST(Choose, TakesTheUnfusedPairWhereACopyCostsMoreThanIsGained) {
    const Problem problem = problem_of("all_gather_matmul:M=8192,N=3584,K=8192", 2);
    Machine machine = machine_of(2);
    const Choice kept = choose(problem, machine, nullptr, {.kept = true});
    ASSERT_NE(kept.strategy.placement, Placement::unfused);
    const ChooseOptions copying{.kept = true, .copied = true};
    EXPECT_GT(choose(problem, machine, nullptr, copying).us, kept.us + 15);  // 134 MB at the memory's rate
    machine.rates.gluon_tflops = 0;
    const Choice by_plain = choose(problem, machine, nullptr, copying);
    EXPECT_GT(by_plain.us, kept.us + 30);  // 134 MB twice at the memory's rate
    machine.rates.memory_gbps = 10;
    EXPECT_EQ(choose(problem, machine, nullptr, copying).strategy.placement, Placement::unfused);
}

TEST(Choose, MakesFp32ProductsExactWhereTheyHaveToBe) {
    const Problem problem = problem_of("all_gather_matmul:M=2,N=256,K=512,dtype=fp32", 2);
    const Machine machine = machine_of(2);
    const auto precision = [&](const Store* store, bool exact) {
        return choose(problem, machine, store, {.exact_fp32 = exact}).strategy.tiles.front().precision;
    };
    EXPECT_EQ(precision(nullptr, false), "tf32");
    EXPECT_EQ(precision(nullptr, true), "ieee");
    Strategy tuned{.tiles = {{.block_m = 128, .block_n = 128, .block_k = 32, .stages = 4}}};
    const OneResult store(tuned);
    EXPECT_EQ(precision(&store, false), "tf32");
    EXPECT_EQ(precision(&store, true), "ieee");
}

TEST(Choose, TakesTheDefaultOnTheHost) {
    const Problem problem = *parse_problem("matmul_all_reduce:M=512,N=8192,K=3584,ranks=4,sms=4");
    const Choice choice = choose(problem, machine_of(4), nullptr, {.device = fuse::Device::host});
    EXPECT_EQ(choice.strategy.backend, plan::Backend::automatic);
    EXPECT_EQ(choice.strategy.programs, 4);
    EXPECT_EQ(choice.strategy.split, 1);
}

TEST(Complete, LeavesWhatIsGivenAndFillsInTheRest) {
    const Problem problem = problem_of("matmul_all_reduce:M=512,N=8192,K=3584", 4);
    const Machine machine = machine_of(4);
    const Strategy pulled = complete(problem, machine, {.pull = true});
    EXPECT_EQ(pulled.backend, plan::Backend::ldst_dedicated);
    EXPECT_EQ(pulled.programs, 132 - *pulled.engine_blocks);
    EXPECT_EQ(complete(problem, machine, {.stored = 2}).backend, plan::Backend::automatic);
    const Strategy given{.tiles = {TileConfig{.block_m = 64}},
                         .programs = 7,
                         .split = 2,
                         .backend = plan::Backend::copy_engine,
                         .engine_blocks = 3};
    EXPECT_EQ(complete(problem, machine, given), given);
}

TEST(Complete, StoresWhatTheProductsProgramsSumAndLetsThePlainKernelSumNothing) {
    const Problem problem = problem_of("matmul_all_reduce:M=64,N=4096,K=1792", 2);
    const Machine machine = *find_machine("h100x2");
    const Strategy asked{.kernel = ProductKernel::gluon, .kernel_sums = true};
    const Strategy made = complete(problem, machine, asked);
    EXPECT_EQ(made.kernel, ProductKernel::gluon);
    EXPECT_TRUE(made.kernel_sums);
    EXPECT_EQ(made.backend, plan::Backend::tma_inline);
    EXPECT_EQ(made.split, 1);
    const Problem fp32 = problem_of("matmul_all_reduce:M=64,N=4096,K=1792,dtype=fp32", 2);
    for (const Strategy& plain :
         {complete(problem, machine, asked, {.gluon = false}), complete(fp32, machine, asked)}) {
        EXPECT_EQ(plain.kernel, ProductKernel::plain);
        EXPECT_FALSE(plain.kernel_sums);
        EXPECT_EQ(strategy_objection(problem, plain), "") << name_of(plain);
    }
    const Strategy on_host = complete(problem, machine, asked, {.device = fuse::Device::host});
    EXPECT_EQ(on_host.backend, plan::Backend::automatic);
    EXPECT_TRUE(on_host.kernel_sums) << "there the plan is the same, and its sums are ordinary ones";
}

TEST(Choose, LetsTheProductsProgramsSumFewRows) {
    const Problem problem = problem_of("matmul_reduce_scatter:M=64,N=4096,K=1792", 2);
    const Machine machine = *find_machine("h100x2");
    const Strategy chosen = choose(problem, machine).strategy;
    EXPECT_TRUE(chosen.kernel_sums) << name_of(chosen);
    EXPECT_EQ(chosen.kernel, ProductKernel::gluon);
    EXPECT_EQ(chosen.backend, plan::Backend::tma_inline);
    EXPECT_EQ(strategy_objection(problem, chosen), "");
    EXPECT_EQ(complete(problem, machine, chosen), chosen);
    for (const ChooseOptions& options :
         {ChooseOptions{.gluon = false}, ChooseOptions{.device = fuse::Device::host}})
        EXPECT_FALSE(choose(problem, machine, nullptr, options).strategy.kernel_sums);
}

TEST(Complete, MultipliesFp8ByTheGluonKernelWhereTheMachineKnowsIt) {
    const Machine machine = *find_machine("h100x2");
    const auto kernel_of = [](const Problem& of, const Machine& on, const Strategy& given,
                              const ChooseOptions& options = {}) {
        const Strategy made = complete(of, on, given, options);
        EXPECT_EQ(strategy_objection(of, made), "") << name_of(made);
        return made.kernel;
    };
    using enum ProductKernel;
    for (const char* spec : {"all_gather_matmul:M=4096,N=4096,K=4096,dtype=fp8e4m3",
                             "matmul_reduce_scatter:M=64,N=4096,K=4096,dtype=fp8e4m3,scales=row",
                             "matmul_all_reduce:M=1024,N=4096,K=4096,dtype=fp8e4m3,scales=block"}) {
        const Problem problem = problem_of(spec, 2);
        EXPECT_EQ(kernel_of(problem, machine, {}), gluon) << spec;
        EXPECT_EQ(kernel_of(problem, machine, {.placement = Placement::unfused}), plain) << spec;
        EXPECT_EQ(kernel_of(problem, machine, {}, {.gluon = false}), plain) << spec;
        EXPECT_EQ(kernel_of(problem, machine, {}, {.device = fuse::Device::host}), plain) << spec;
        Machine other = machine;
        other.rates.gluon_tflops = 0;
        EXPECT_EQ(kernel_of(problem, other, {}), plain) << spec << " where nothing of it was measured";
        const Strategy given{.tiles = {{.block_m = 128, .block_n = 128, .block_k = 128}}};
        EXPECT_EQ(kernel_of(problem, machine, given), plain) << spec << " with tiles for the plain kernel";
        EXPECT_EQ(complete(problem, machine, given).tiles, given.tiles) << spec;
    }
    EXPECT_EQ(kernel_of(problem_of("all_gather_matmul:M=4096,N=4096,K=4096", 2), machine, {}), plain);
}

TEST(Choose, MultipliesFp8ByTheGluonKernelWhereItRuns) {
    for (const std::string op : {"all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"}) {
        for (const auto& [name, ranks] : {std::pair{"h100x2", 2}, std::pair{"h200x8", 8}}) {
            const Machine machine = *find_machine(name);
            for (const char* rows : {"64", "1024", "4096"}) {
                const Problem problem = problem_of(
                    op + ":M=" + rows + ",N=4096,K=4096,dtype=fp8e4m3,scales=row", std::int32_t{ranks});
                const auto chosen = [&](bool gluon) {
                    return choose(problem, machine, nullptr, {.unfused = false, .gluon = gluon});
                };
                EXPECT_EQ(chosen(true).strategy.kernel, ProductKernel::gluon)
                    << problem.key() << ": " << name_of(chosen(true).strategy);
                EXPECT_EQ(chosen(false).strategy.kernel, ProductKernel::plain) << problem.key();
                EXPECT_GT(chosen(false).us, 0) << problem.key() << " has candidates elsewhere, too";
            }
        }
    }
}

TEST(Kernel, IsTheGluonOneForFewRowsWhereItRuns) {
    const Problem few = problem_of("all_gather_matmul:M=64,N=2304,K=7168", 4);
    const Machine machine = *find_machine("h200x4");
    const Strategy chosen = choose(few, machine, nullptr, {.unfused = false}).strategy;
    EXPECT_EQ(chosen.kernel, ProductKernel::gluon) << name_of(chosen);
    EXPECT_EQ(strategy_objection(few, chosen), "");
    EXPECT_EQ(complete(few, machine, chosen), chosen);
    for (const ChooseOptions& options :
         {ChooseOptions{.unfused = false, .gluon = false}, ChooseOptions{.device = fuse::Device::host}})
        EXPECT_EQ(choose(few, machine, nullptr, options).strategy.kernel, ProductKernel::plain);
}

TEST(Kernel, IsThePlainOneWhereTheGluonOneIsAskedForButDoesNotRun) {
    const Machine machine = *find_machine("h200x4");
    const Strategy asked{.kernel = ProductKernel::gluon, .tiles = {TileConfig{.split_k = 4}}};
    const Problem bf16 = problem_of("all_gather_matmul:M=64,N=2304,K=7168", 4);
    EXPECT_EQ(complete(bf16, machine, asked).kernel, ProductKernel::gluon);
    const auto is_plain = [&](const Problem& given, const ChooseOptions& options) {
        const Strategy made = complete(given, machine, asked, options);
        EXPECT_EQ(made.kernel, ProductKernel::plain);
        EXPECT_EQ(strategy_objection(given, made), "");
    };
    is_plain(bf16, {.gluon = false});
    is_plain(bf16, {.device = fuse::Device::host});
    is_plain(problem_of("all_gather_matmul:M=64,N=2304,K=7168,dtype=fp32", 4), {});
}

TEST(Kernel, OfGluonTilesLeaveTheHostTheirPowersOfTwo) {
    const Problem problem = problem_of("matmul_reduce_scatter:M=768,N=2304,K=640", 2);
    const TileConfig square{.block_m = 192, .block_n = 192, .block_k = 64, .stages = 3};
    const Strategy made =
        complete(problem, *find_machine("h200x2"), {.kernel = ProductKernel::gluon, .tiles = {square}},
                 {.device = fuse::Device::host});
    ASSERT_EQ(made.tiles.size(), 1U);
    EXPECT_EQ(made.tiles[0].block_m, 64);
    EXPECT_EQ(made.tiles[0].block_n, 64);
    EXPECT_EQ(strategy_objection(problem, made), "");
}

TEST(Kernel, OfGluonIsObjectedToWithTilesThatItDoesNotTake) {
    const Problem few = problem_of("all_gather_matmul:M=64,N=2304,K=7168", 4);
    const auto why = [&](const TileConfig& tile) {
        return strategy_objection(few, {.kernel = ProductKernel::gluon, .tiles = {tile}});
    };
    EXPECT_EQ(why({.block_m = 64, .block_n = 64, .block_k = 128, .stages = 6, .split_k = 3}), "");
    EXPECT_EQ(why({.block_m = 16, .block_n = 64, .block_k = 128, .stages = 10, .split_k = 3}), "");
    EXPECT_EQ(why({.block_m = 32, .block_n = 32, .block_k = 128, .stages = 12}), "");
    EXPECT_EQ(why({.block_m = 128, .block_n = 192, .block_k = 64, .stages = 4}), "");
    EXPECT_EQ(why({.block_m = 192, .block_n = 192, .block_k = 64, .stages = 3}), "");
    EXPECT_EQ(why({.block_m = 192, .block_n = 128, .block_k = 64, .stages = 4}),
              "tiles of 192 rows have 192 columns, not 128");
    EXPECT_NE(why({.block_m = 8, .block_n = 64, .block_k = 128}), "");
    EXPECT_NE(why({.block_m = 32, .block_n = 128, .block_k = 128}), "");
    EXPECT_NE(why({.block_m = 64, .block_n = 32, .block_k = 128, .stages = 8}), "");
    EXPECT_NE(why({.block_m = 64, .block_n = 192, .block_k = 128, .stages = 2}), "");
    EXPECT_EQ(why({.block_m = 128, .block_n = 96, .block_k = 64, .stages = 7}), "");
    EXPECT_NE(why({.block_m = 64, .block_n = 96, .block_k = 128, .stages = 4}), "");
    EXPECT_NE(why({.block_m = 64, .block_n = 160, .block_k = 64}), "");
    EXPECT_NE(why({.block_m = 16, .block_n = 64, .block_k = 128, .stages = 11}), "");
    EXPECT_NE(why({.block_m = 64, .block_n = 64, .block_k = 32}), "");
    EXPECT_NE(why({.block_m = 128, .block_n = 256, .block_k = 64, .stages = 4}), "");
    EXPECT_NE(why({.block_m = 64, .block_n = 64, .block_k = 128, .stages = 6, .split_k = 57}), "");
    EXPECT_NE(why({.block_m = 64, .block_n = 64, .block_k = 128, .stages = 6, .num_wide = 1}), "");
}

TEST(Kernel, OfGluonHasTilesOfFewRowsWhereThereAreFew) {
    for (const std::int64_t rows : {1, 16, 17, 32, 33, 64, 65, 128, 129}) {
        std::int32_t least = 192, most = 0;
        for (const TileConfig& tile : gluon_tile_configs({}, {.m = rows, .n = 4096, .k = 1792}, 132)) {
            EXPECT_EQ(gluon_objection({}, {.m = rows, .n = 4096, .k = 1792}, tile), "");
            least = std::min(least, tile.block_m);
            most = std::max(most, tile.block_m);
        }
        EXPECT_EQ(least, rows <= 64 ? 16 : rows <= 128 ? 32 : 64) << rows << ": four rows of tiles at most";
        EXPECT_EQ(most, rows <= 32 ? 32 : rows <= 64 ? 64 : 192) << rows;
    }
}

TEST(Kernel, OfGluonMultipliesFp8WithAsManyBytesOnTheirWay) {
    const Machine machine = *find_machine("h200x4");
    for (const Scales scales : {Scales::none, Scales::row, Scales::block}) {
        const Operands operands{plan::DType::fp8e4m3, scales};
        for (const std::int64_t rows : {16, 64, 1024, 8192}) {
            const ProductShape shape{.m = rows, .n = 4096, .k = 4096};
            for (const TileConfig& tile : gluon_tile_configs(operands, shape, 132)) {
                EXPECT_EQ(gluon_objection(operands, shape, tile), "");
                EXPECT_EQ(tile.block_k, 128);
                EXPECT_LE(tile.block_n, scales == Scales::block ? 128 : 256);
            }
            EXPECT_LT(
                gluon_product_us(machine, operands, shape,
                                 quickest_gluon_tiles(machine, operands, shape, 132), 132),
                gluon_product_us(machine, {}, shape, quickest_gluon_tiles(machine, {}, shape, 132), 132));
        }
    }
}

TEST(Choose, ScalesThatComeWithXAreForTilesThatAreSentIt) {
    const auto why = [](const char* spec, plan::Backend backend) {
        const Problem problem = *parse_problem(spec, 8, 132);
        return strategy_objection(problem, complete(problem, *find_machine("h200x8"), {.backend = backend}));
    };
    const char* scaled = "all_gather_matmul:M=512,N=4096,K=8192,dtype=fp8e4m3,scales=row";
    EXPECT_EQ(why(scaled, plan::Backend::tma_inline), "tiles that fetch x have no scales of it");
    EXPECT_EQ(why(scaled, plan::Backend::copy_engine), "");
    EXPECT_EQ(why("all_gather_matmul:M=512,N=4096,K=8192,dtype=fp8e4m3", plan::Backend::tma_inline), "");
    EXPECT_EQ(
        why("matmul_reduce_scatter:M=512,N=4096,K=8192,dtype=fp8e4m3,scales=row", plan::Backend::tma_inline),
        "");
}

TEST(Choose, OfFp8SendsBytesOfWhatItMoves) {
    const auto moved = [](const char* spec) {
        const Problem problem = *parse_problem(spec, 8, 132);
        const Machine machine = *find_machine("h200x8");
        return estimate(problem, machine, complete(problem, machine, {.kernel = ProductKernel::gluon}))
            .communicate;
    };
    EXPECT_LT(moved("all_gather_matmul:M=8192,N=4096,K=8192,dtype=fp8e4m3"),
              0.6 * moved("all_gather_matmul:M=8192,N=4096,K=8192"));
    const double made = moved("matmul_reduce_scatter:M=8192,N=4096,K=8192,dtype=fp8e4m3");
    EXPECT_GT(made, 0.9 * moved("matmul_reduce_scatter:M=8192,N=4096,K=8192"));
}

// Of the Gluon kernel alone neighbours load the same blocks at once.
TEST(Estimate, OfSmallTilesThatTakeTurnsLoadsAsFastAsTheProductAlone) {
    // Measured on 4 x H200, 2026-11-26: 41.4 us by tiles of 32 rows, and 46.5.
    const Machine machine = *find_machine("h200x4");
    const auto us = [&](const char* spec, std::int32_t block_m) {
        const Problem problem = problem_of(spec, 4);
        const TileConfig tile{.block_m = block_m, .block_n = 64, .block_k = 128, .stages = 6};
        const Strategy sums{.kernel = ProductKernel::gluon, .tiles = {tile}, .split = 1, .kernel_sums = true};
        return estimate(problem, machine, complete(problem, machine, sums)).us;
    };
    EXPECT_NEAR(us("matmul_reduce_scatter:M=128,N=8192,K=3584", 32), 41.4, 6);
    EXPECT_NEAR(us("matmul_reduce_scatter:M=256,N=8192,K=3584", 64), 46.5, 6);
}

TEST(Estimate, OfGluonTilesThatFollowArrivalsLoadsNoFasterThanThePlainKernel) {
    const Problem problem = problem_of("all_gather_matmul:M=3072,N=2048,K=10240", 2);
    const TileConfig tile{.block_m = 128, .block_n = 128, .block_k = 64, .stages = 5};
    Machine machine = *find_machine("h100x2");
    const auto fused = [&](const Problem& of) {
        return estimate(of, machine,
                        complete(of, machine, {.kernel = ProductKernel::gluon, .tiles = {tile}}));
    };
    const double rounds = 3, bytes = 2.0 * (128 + 128) * 10240;
    const double before = fused(problem).compute;
    EXPECT_NEAR(before, rounds * (bytes / (1e3 * machine.rates.sm_load_gbps) + machine.rates.gluon_tile_us),
                1);
    EXPECT_LT(gluon_product_us(machine, {}, {3072, 2048, 10240}, tile, 132), 0.92 * before);
    const Problem one_round = problem_of("all_gather_matmul:M=1024,N=2048,K=10240", 2);
    const double kept = fused(one_round).compute;
    machine.rates.sm_load_gbps /= 2;
    EXPECT_NEAR(fused(problem).compute / before, 2, 0.1);
    EXPECT_DOUBLE_EQ(fused(one_round).compute, kept);
}

}  // namespace
}  // namespace syncopate::tune
