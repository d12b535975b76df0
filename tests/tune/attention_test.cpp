#include "syncopate/tune/candidates/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include <fmt/format.h>

#include "cpu_time.hpp"

#include "syncopate/tune/choose.hpp"

namespace syncopate::tune {
namespace {

AttentionProblem problem_of(const std::string& spec, std::int32_t ranks) {
    const Result<Problem> parsed = parse_problem(spec, ranks, 132);
    EXPECT_TRUE(parsed) << parsed.error().to_string();
    const Result<AttentionProblem> made = attention_problem(*parsed, *find_machine("h200x8"));
    EXPECT_TRUE(made) << made.error().to_string();
    return *made;
}

std::vector<Candidate> ranked(const std::string& spec, std::int32_t ranks) {
    return rank_attention(problem_of(spec, ranks), *find_machine("h200x8"));
}

std::string kind_of(const Candidate& one) {
    return one.strategy.placement == Placement::unfused ? "unfused" : one.strategy.kind;
}

const Candidate& of_kind(const std::vector<Candidate>& all, const std::string& kind) {
    return *std::ranges::find(all, kind, kind_of);
}

TEST(Attention, IsNotByUlyssesWhereHeadsCannotBeSharedOut) {
    const auto all = ranked("attention:S=16384,H=6,HKV=6,D=128,causal=1", 4);
    EXPECT_EQ(of_kind(all, "ulysses").pruned, "6 heads cannot be shared out over 4 ranks");
    EXPECT_NE(kind_of(all.front()), "ulysses");
    EXPECT_EQ(of_kind(all, "ulysses_ring").pruned, "") << "by two ranks they can";
    const auto odd = ranked("attention:S=16384,H=7,HKV=7,D=128,causal=1", 4);
    EXPECT_NE(of_kind(odd, "ulysses_ring").pruned, "");
    EXPECT_TRUE(std::ranges::is_sorted(odd, {}, [](const auto& c) { return !c.pruned.empty(); }));
}

TEST(Attention, OfAStrategyThatLeavesTheKindOpenGetsTheOneThatIsChosen) {
    const Machine machine = *find_machine("h200x8");
    const std::string head = "attention:D=128,causal=1,dtype=bf16,ranks=4,sms=132,";
    std::vector<std::string> kinds;
    for (const char* rows : {"S=65536,H=32,HKV=4", "S=16384,H=30,HKV=30", "S=8192,H=32,HKV=32",
                             "S=262144,H=7,HKV=1,sharding=zigzag"}) {
        const Problem problem = *parse_problem(head + rows, 4, 132);
        const Strategy chosen = choose(problem, machine).strategy;
        for (const Strategy& open : {Strategy{}, Strategy{.split = 2}, Strategy{.head_parts = 2}}) {
            const Strategy made = complete(problem, machine, open);
            EXPECT_EQ(made.kind, chosen.kind) << rows;
            EXPECT_EQ(made.inner, chosen.inner) << rows;
            EXPECT_EQ(made.split, open.split) << rows;
        }
        EXPECT_EQ(complete(problem, machine, {.kind = "ring"}).kind, "ring");
        EXPECT_EQ(complete(problem, machine, {.placement = Placement::unfused}).kind, "");
        kinds.push_back(chosen.kind);
    }
    EXPECT_TRUE(std::ranges::any_of(kinds, [](const std::string& kind) { return kind != "all_gather"; }));
    const Problem asked = *parse_problem(head + "S=16384,H=32,HKV=8,kind=ring", 4, 132);
    EXPECT_EQ(complete(asked, machine, {}).kind, "ring");
}

TEST(Attention, IsChosenLikeEveryOperatorAndTellsWhereUnfusedWouldBeFaster) {
    Machine machine = *find_machine("h200x8");
    const Problem problem = *parse_problem("attention:S=32768,H=16,HKV=16,D=128,causal=0", 8, 132);
    const Choice usual = choose(problem, machine);
    const std::vector<Candidate> all = rank_candidates(problem, machine);
    EXPECT_EQ(usual.strategy.kind, all.front().strategy.kind);
    EXPECT_EQ(usual.us, all.front().estimate.us);
    EXPECT_EQ(usual.note, "by the estimate on h200x8");
    EXPECT_FALSE(usual.strategy.tiles.empty()) << "it is complete";
    // Where links of ours are as slow as nothing else, NCCL's all-gather is faster: that is told, and a search takes it.
    for (plan::Link& link : machine.topology.links) link.gbps = 1;
    const Choice told = choose(problem, machine);
    EXPECT_EQ(told.strategy.placement, Placement::fused);
    EXPECT_NE(told.note.find("; unfused, which `tune` tries, would take "), std::string::npos) << told.note;
    for (const ChooseOptions& other :
         {ChooseOptions{.unfused = false}, ChooseOptions{.device = fuse::Device::host}})
        EXPECT_EQ(choose(problem, machine, nullptr, other).note, "by the estimate on h200x8");
}

TEST(Attention, OfAKindThatIsAskedForIsOfThatKind) {
    const Machine machine = *find_machine("h200x8");
    const auto chosen = [&](const char* spec) {
        return choose(*parse_problem(spec, 8, 132), machine).strategy;
    };
    EXPECT_EQ(chosen("attention:S=32768,kind=ring").kind, "ring");
    EXPECT_EQ(chosen("attention:S=32768,kind=ring").placement, Placement::fused);
    EXPECT_EQ(chosen("attention:S=32768,nodes=2").kind, "double_ring");
    EXPECT_EQ(chosen("attention:S=32768,nodes=2").inner, 4);
}

TEST(Attention, LeavesMultiprocessorsToWhatMovesChunksBesideIt) {
    const Machine machine = *find_machine("h200x8");
    const auto programs = [&](const char* spec, const Strategy& given, fuse::Device device) {
        return complete(*parse_problem(spec, 8, 132), machine, given, {.device = device})
            .programs.value_or(0);
    };
    const char* const one = "attention:S=16384,H=8,HKV=8,D=128";
    const char* const two = "attention:S=16384,H=8,HKV=8,D=128,nodes=2";
    const Strategy by_engine{.backend = plan::Backend::tma_dedicated, .engine_blocks = 16};
    EXPECT_EQ(programs(one, {}, fuse::Device::cuda), 132);
    EXPECT_EQ(programs(one, by_engine, fuse::Device::cuda), 116);
    EXPECT_EQ(programs(two, {}, fuse::Device::cuda), 127) << "NCCL's, and what is told by relays";
    EXPECT_EQ(programs(two, by_engine, fuse::Device::cuda), 111);
    for (const char* kind : {"ring", "double_ring", "ulysses_ring"})
        EXPECT_EQ(programs(fmt::format("{},kind={}", one, kind).c_str(), {}, fuse::Device::cuda), 131)
            << kind;
    for (const char* kind : {"all_gather", "ulysses"})
        EXPECT_EQ(programs(fmt::format("{},kind={}", one, kind).c_str(), {}, fuse::Device::cuda), 132)
            << kind;
    EXPECT_EQ(programs(two, by_engine, fuse::Device::host), 132);
}

TEST(Attention, ComputesAsMuchByEveryKindAndHidesPartOfWhatMoves) {
    for (const std::int32_t ranks : {2, 4, 8}) {
        const auto all = ranked("attention:S=32768,H=16,HKV=16,D=128,causal=0", ranks);
        const Estimate unfused = of_kind(all, "unfused").estimate;
        for (const Candidate& candidate : all) {
            if (!candidate.pruned.empty()) continue;
            EXPECT_NEAR(candidate.estimate.compute, unfused.compute, 0.02 * unfused.compute)
                << candidate.name;
            EXPECT_GT(candidate.estimate.us, candidate.estimate.compute) << candidate.name;
        }
        EXPECT_LT(of_kind(all, "all_gather").estimate.exposed, unfused.exposed / 4);
        EXPECT_NEAR(unfused.exposed, unfused.communicate, 1);
    }
}

TEST(Attention, GathersOnTwoGpusWhereOutputsOfAllHeadsComeBackAtTheEnd) {
    const auto all = ranked("attention:S=2048,H=32,HKV=32,D=128,causal=0", 2);
    EXPECT_EQ(kind_of(all.front()), "all_gather") << "118 us on two H100s, Ulysses 186";
    EXPECT_GT(of_kind(all, "ulysses").estimate.us, 1.1 * all.front().estimate.us);
}

TEST(Attention, ACausalMaskHalvesTheWorkAtTheRateThatTheMachineHasUnderOne) {
    const double full = of_kind(ranked("attention:S=32768,H=16,HKV=16,causal=0", 4), "ring").estimate.compute;
    const double causal =
        of_kind(ranked("attention:S=32768,H=16,HKV=16,causal=1,sharding=zigzag", 4), "ring").estimate.compute;
    const double rate = find_machine("h200x8")->rates.attention_causal.at(128);
    EXPECT_NEAR(causal, full / 2 / rate, 0.03 * full);
    EXPECT_LT(rate, 1);
}

TEST(Attention, SharesRowsOutInTheOrderOfTheRanksUnlessTheProblemSaysZigzag) {
    const auto rows = [](const std::string& spec) { return problem_of(spec, 2).rows; };
    const std::vector<plan::Rows> in_order{{{0, 2048}}, {{2048, 4096}}};
    EXPECT_EQ(rows("attention:S=4096,causal=1"), in_order);
    EXPECT_EQ(rows("attention:S=4096,causal=1,sharding=contiguous"), in_order);
    EXPECT_EQ(rows("attention:S=4096,causal=0"), in_order);
    const std::vector<plan::Rows> from_both_ends{{{0, 1024}, {3072, 4096}}, {{1024, 3072}}};
    EXPECT_EQ(rows("attention:S=4096,causal=1,sharding=zigzag"), from_both_ends);
}

TEST(Attention, OfContiguousRowsUnderACausalMaskIsAsSlowAsTheLastRank) {
    const auto us = [](const std::string& sharding) {
        const auto all = ranked("attention:S=65536,H=16,HKV=16,causal=1,sharding=" + sharding, 4);
        return of_kind(all, "all_gather").estimate.us;
    };
    EXPECT_NEAR(us("contiguous") / us("zigzag"), 7.0 / 4, 0.2)
        << "(2 W - 1) / W of the mean, and first tiles that wait for all of K and V";
}

TEST(Attention, ExchangesHeadsOnlyWhereThatMovesMuchLess) {
    // Few heads of K and V: gathering them is cheap, exchanging all of Q and O is not.
    const auto shared = ranked("attention:S=8192,H=32,HKV=1,D=128,causal=1", 8);
    EXPECT_LT(of_kind(shared, "all_gather").estimate.communicate,
              of_kind(shared, "ulysses").estimate.communicate);
    const auto many = ranked("attention:S=8192,H=32,HKV=32,D=128,causal=1", 8);
    EXPECT_GT(of_kind(many, "all_gather").estimate.communicate,
              of_kind(many, "ulysses").estimate.communicate);
}

TEST(Attention, WaitsForTheHeadsOfItsFirstTilesOnly) {
    // Measured on two H200s with all heads in one part: 18 to 26 %.
    const auto exposed = [](const std::string& heads) {
        const auto all = ranked("attention:S=6144,causal=0,H=" + heads + ",HKV=" + heads, 2);
        const Estimate found = of_kind(all, "all_gather").estimate;
        return found.exposed / found.us;
    };
    EXPECT_LT(exposed("24"), 0.02);
    EXPECT_NEAR(exposed("23"), 0.18, 0.04) << "which no parts divide";
}

TEST(Attention, SendsHeadsOfCausalTilesInPartsOnlyWhereThatPays) {
    double best = 1;
    for (const std::int32_t ranks : {2, 4, 8}) {
        for (const char* heads : {"H=16,HKV=16", "H=24,HKV=24", "H=32,HKV=8"}) {
            for (const std::int64_t rows : {1024, 2048, 3072, 8192}) {
                for (const char* sharding : {"contiguous", "zigzag"}) {
                    AttentionProblem problem = problem_of(
                        fmt::format("attention:S={},causal=1,{},sharding={}", rows * ranks, heads, sharding),
                        ranks);
                    const auto us = [&](std::int32_t parts) {
                        problem.parts = parts;
                        const auto all = rank_attention(problem, *find_machine("h200x8"));
                        return of_kind(all, "all_gather").estimate.us;
                    };
                    const double gain = us(1) / us(0);
                    EXPECT_GT(gain, 0.985)
                        << ranks << " ranks, " << heads << ", " << rows << ", " << sharding;
                    best = std::max(best, gain);
                }
            }
        }
    }
    EXPECT_GT(best, 1.15);
}

TEST(Attention, OfRanksThatHoldNoRowsIsEstimated) {
    const auto all = ranked("attention:S=3,H=8,HKV=8,D=64", 4);
    EXPECT_TRUE(std::ranges::any_of(all, [](const auto& one) { return one.pruned.empty(); }));
}

// Packed sequences have other documents at each step, and each set of them is ranked anew.
TEST(Attention, OfManyDocumentsIsRankedInSeconds) {
    AttentionProblem problem = problem_of("attention:S=65536,H=32,HKV=32,D=128,causal=1", 8);
    for (std::int64_t row = 0; row <= 65536; row += 1024) problem.sequence.documents.push_back(row);
    problem.rows = plan::shard_rows(problem.sequence, 8, plan::Sharding::documents, 128);
    const double start = test::cpu_seconds();
    EXPECT_EQ(rank_attention(problem, *find_machine("h200x8")).front().pruned, "");
    EXPECT_LT(test::cpu_seconds() - start, 20)
        << "2 s; with each pair of runs looked at it was more than a minute";
}

TEST(Attention, OfOneRankIsTheKernel) {
    const auto all = ranked("attention:S=4096", 1);
    EXPECT_EQ(of_kind(all, "all_gather").estimate.exposed, 0);
    EXPECT_EQ(of_kind(all, "all_gather").estimate.communicate, 0);
}

TEST(Attention, IsOfHeadsAsWideAsTheKernelsTiles) {
    EXPECT_EQ(problem_of("attention:S=4096,D=96", 2).shape.head_dim, 128);
    EXPECT_EQ(problem_of("attention:S=4096,D=96", 2).kernel.name, AttentionKernelName::gluon);
}

TEST(Attention, ComputesAtTheRateOfItsKernel) {
    AttentionProblem problem = problem_of("attention:S=32768,H=16,HKV=16,D=128,causal=0", 2);
    EXPECT_EQ(problem.kernel.name, AttentionKernelName::gluon);
    Machine machine = *find_machine("h200x8");
    const double quick = rank_attention(problem, machine).front().estimate.compute;
    // 4 S^2 D H operations, half a rank, at 5.33 TFLOP/s a multiprocessor.
    EXPECT_NEAR(quick, 4.0 * 32768 * 32768 * 128 * 16 / 2 / (5.33e6 * 132), 0.01 * quick);
    problem.kernel.name = AttentionKernelName::triton;
    const double plain = rank_attention(problem, machine).front().estimate.compute;
    EXPECT_NEAR(plain / quick, 5.33 / 4.1, 0.01);
    machine.rates.attention_gluon_tflops.points = {{128, 0}};
    EXPECT_EQ(attention_problem(*parse_problem("attention:S=8192", 2, 132), machine)->kernel.name,
              AttentionKernelName::triton);
}

TEST(Attention, IsByGroupsThatExchangeHeadsWhereTheseHaveWholeTiles) {
    EXPECT_EQ(of_kind(ranked("attention:S=256,H=8,HKV=8", 8), "ulysses_ring").pruned, "");
    const auto all = ranked("attention:S=200,H=8,HKV=8", 8);
    EXPECT_EQ(of_kind(all, "ulysses_ring").pruned,
              "groups of 2 ranks hold no whole tiles of 64 rows of these 200");
    for (const char* kind : {"all_gather", "ring", "double_ring", "ulysses"})
        EXPECT_EQ(of_kind(all, kind).pruned, "") << kind;
}

TEST(Attention, WhatCannotBeAttentionIsRefused) {
    const auto error = [](const std::string& spec) {
        const Result<AttentionProblem> made =
            attention_problem(*parse_problem(spec, 8, 132), *find_machine("h200x8"));
        return made ? std::string() : made.error().message;
    };
    EXPECT_EQ(error("attention:S=8192,H=6,HKV=4"), "attention: H must be a multiple of HKV, got 6 and 4");
    EXPECT_EQ(error("attention:S=3"), "") << "fewer rows than ranks";
    EXPECT_EQ(error("attention:S=64,D=300"), "attention: D is 300: no kernel has tiles for such heads");
}

}  // namespace
}  // namespace syncopate::tune
