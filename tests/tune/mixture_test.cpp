// The tiles of a mixture of experts' products follow from the rows that an expert has on average.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/tune/candidates/mixture.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/play/mixture.hpp"

namespace syncopate::tune {
namespace {

Strategy completed(const std::string& spec, fuse::Device device = fuse::Device::cuda) {
    const Result<Problem> problem = parse_problem(spec);
    EXPECT_TRUE(problem) << problem.error().to_string();
    return complete(*problem, *find_machine("h200x8"), {}, {.device = device});
}

std::string tile_of(const std::string& spec) {
    const Strategy strategy = completed(spec);
    EXPECT_EQ(strategy.tiles.size(), 1U);
    const TileConfig& tile = strategy.tiles.front();
    return fmt::format("{}x{}x{}/{}/{}", tile.block_m, tile.block_n, tile.block_k, tile.stages, tile.warps);
}

TEST(Mixture, ATileHasTheRowsOfAnExpertAndHalfAsManyMore) {
    const auto rows = [](int tokens, int experts, int topk, int ranks) {
        const std::string spec =
            fmt::format("moe:T={},E={},topk={},H=64,F=64,ranks={}", tokens, experts, topk, ranks);
        return completed(spec).tiles.front().block_m;
    };
    EXPECT_EQ(rows(64, 128, 8, 2), 16) << "8 rows an expert";
    EXPECT_EQ(rows(64, 64, 8, 2), 32) << "16: one more would read the weights again";
    EXPECT_EQ(rows(64, 8, 2, 2), 64) << "32";
    EXPECT_EQ(rows(512, 128, 8, 2), 128) << "64";
    EXPECT_EQ(rows(4096, 8, 2, 2), 128);
    EXPECT_EQ(rows(1, 128, 1, 1), 16);
    EXPECT_EQ(rows(1, 1, 1, 1), 16);
    EXPECT_EQ(rows(64, 128, 8, 8), 64) << "of all ranks' tokens";
}

TEST(Mixture, FewRowsLeaveTheSharedMemoryToTheWeights) {
    EXPECT_EQ(tile_of("moe:T=64,E=128,topk=8,H=2048,F=768,ranks=2"), "16x128x64/4/4");
    EXPECT_EQ(tile_of("moe:T=64,E=64,topk=8,H=7168,F=2048,ranks=2"), "32x128x64/4/4");
    EXPECT_EQ(tile_of("moe:T=64,E=8,topk=2,H=4096,F=14336,ranks=2"), "64x64x64/4/4");
    EXPECT_EQ(tile_of("moe:T=4096,E=8,topk=2,H=4096,F=14336,ranks=2"), "128x128x64/3/8");
    EXPECT_EQ(tile_of("moe:T=4096,E=8,topk=2,H=4096,F=14336,dtype=fp32,ranks=2"), "128x128x32/3/8");
}

TEST(Mixture, TilesOfFp8AreBlocksOfScalesWide) {
    const auto tile = [](int tokens, const char* kind) {
        return tile_of(
            fmt::format("moe:T={},E=8,topk=2,H=4096,F=14336,dtype=fp8e4m3,scales={},ranks=2", tokens, kind));
    };
    EXPECT_EQ(tile(64, "row"), "64x128x128/4/8");
    EXPECT_EQ(tile(64, "block"), "32x128x128/4/4") << "half of the accumulators are what is being added";
    EXPECT_EQ(tile(4096, "row"), "128x128x128/3/8");
    EXPECT_EQ(tile(4096, "block"), "128x128x128/4/8") << "Gluon's";
}

TEST(Mixture, TheGluonKernelTakesAsManyStagesAsItsRingNeedsAndHasRoomFor) {
    const Problem problem = *parse_problem("moe:T=4096,E=8,topk=2,H=256,F=512,ranks=2");
    for (const std::int32_t stages : {1, 2, 4, 5}) {
        Strategy given{.kernel = ProductKernel::gluon, .tiles = {mixture_gluon_tile()}};
        given.tiles.front().stages = stages;
        const bool takes = stages == 2 || stages == 4;
        EXPECT_EQ(mixture_objection(problem, given).empty(), takes) << stages;
    }
    // Where this process has no Gluon, the plain kernel takes its place.
    const Machine machine = *find_machine("h200x2");
    const Strategy asked{.kernel = ProductKernel::gluon};
    EXPECT_EQ(complete(problem, machine, asked, {.device = fuse::Device::cuda}).kernel, ProductKernel::gluon);
    EXPECT_EQ(complete(problem, machine, asked, {.device = fuse::Device::cuda, .gluon = false}).kernel,
              ProductKernel::plain);
}

TEST(Mixture, AllPartsOfOneRoutingAlignRowsAlike) {
    for (const char* part : {"whole", "kept", "dispatch", "combine"}) {
        for (const int inner : {1, 768}) {  // dispatch and combine are made without knowing F
            const Strategy strategy =
                completed(fmt::format("moe:T=64,E=64,topk=8,H=7168,F={},part={},ranks=2", inner, part));
            EXPECT_EQ(strategy.tiles.front().block_m, 32) << part;
            EXPECT_EQ(strategy.kernel, ProductKernel::plain);
        }
    }
}

TEST(Mixture, WhatIsGivenStays) {
    const Problem problem = *parse_problem("moe:T=64,E=64,topk=8,H=64,F=64,ranks=2,sms=99");
    const Machine machine = *find_machine("h200x8");
    const Strategy given = *strategy_from_json(
        R"({"tiles": [{"block_m": 64, "block_n": 32, "block_k": 32, "stages": 2}], "programs": 5})");
    const Strategy made = complete(problem, machine, given, {.device = fuse::Device::cuda});
    EXPECT_EQ(made.tiles, given.tiles);
    EXPECT_EQ(made.programs, 5);
    EXPECT_EQ(complete(problem, machine, {}, {}).programs, 99);
    const Strategy host = completed("moe:T=4096,E=8,topk=2,H=64,F=64,ranks=2", fuse::Device::host);
    EXPECT_EQ(host.tiles.front().block_m, 16);
    EXPECT_EQ(host.tiles.front().stages, 1);
}

Estimate estimated(const std::string& spec, const Routing& routing = {}) {
    return estimate_mixture(*parse_problem(spec), *find_machine("h200x2"), completed(spec), routing);
}

TEST(Mixture, IsEstimatedAsItWasMeasured) {
    const std::vector<std::pair<std::string, double>> measured{
        // of bench/results/moe_tiles_1xH200.csv
        {"moe:T=64,E=64,topk=8,H=2048,F=768,ranks=1", 175.6},
        {"moe:T=64,E=4,topk=2,H=4096,F=14336,ranks=1", 369.3},
        {"moe:T=64,E=32,topk=8,H=7168,F=2048,ranks=1", 694.6},
        {"moe:T=512,E=64,topk=8,H=2048,F=768,ranks=1", 225.0},
        // of bench/results/moe_2xH200.json
        {"moe:T=64,E=128,topk=8,H=2048,F=768,ranks=2", 198},
        {"moe:T=512,E=128,topk=8,H=2048,F=768,ranks=2", 265},
        {"moe:T=4096,E=128,topk=8,H=2048,F=768,ranks=2", 912},
        {"moe:T=64,E=8,topk=2,H=4096,F=14336,ranks=2", 382},
        {"moe:T=4096,E=8,topk=2,H=4096,F=14336,ranks=2", 4462},
        {"moe:T=64,E=64,topk=8,H=7168,F=2048,ranks=2", 709},
        {"moe:T=512,E=64,topk=8,H=7168,F=2048,ranks=2", 1013},
        {"moe:T=4096,E=64,topk=8,H=7168,F=2048,ranks=2", 5428},
    };
    for (const auto& [spec, us] : measured) {
        EXPECT_GT(estimated(spec).us, us * 0.85) << spec;
        EXPECT_LT(estimated(spec).us, us * 1.15) << spec;
    }
}

TEST(Mixture, OfOneRankNothingIsExposedButItsOwnMoves) {
    const Estimate one = estimated("moe:T=4096,E=64,topk=8,H=2048,F=768,ranks=1");
    const Estimate two = estimated("moe:T=4096,E=128,topk=8,H=2048,F=768,ranks=2");
    EXPECT_LT(one.exposed * 2, two.exposed) << "half of the rows go over the link";
    EXPECT_NEAR(one.compute, two.compute, 0.01 * one.compute) << "the same rows and experts a rank";
    EXPECT_NEAR(two.us, two.fixed + two.compute + two.exposed, 1e-6);
}

TEST(Mixture, ARoutingCountsByItsBusiestRankAndByTheExpertsThatItReads) {
    const std::string many = "moe:T=4096,E=8,topk=2,H=4096,F=14336,ranks=2";
    const Estimate balanced = estimated(many, Routing(8, 2048));
    EXPECT_GT(estimated(many).compute, balanced.compute)
        << "of a routing that is not known tiles are not full";
    EXPECT_LT(estimated(many).compute, 1.1 * balanced.compute);
    EXPECT_GT(estimated(many, {4096, 4096, 4096, 4096, 0, 0, 0, 0}).compute, 1.9 * balanced.compute);
    EXPECT_GT(estimated(many, {5120, 1024, 1024, 1024, 2048, 2048, 2048, 2048}).exposed,
              balanced.exposed * 0.99);
    EXPECT_GT(estimated(many, {8192, 8192, 0, 0, 0, 0, 0, 0}).exposed, 1.5 * balanced.exposed);
    const std::string few = "moe:T=64,E=8,topk=2,H=4096,F=14336,ranks=2";
    EXPECT_LT(estimated(few, {128, 0, 0, 0, 128, 0, 0, 0}).compute, estimated(few).compute / 2)
        << "weights of two experts are read, not of eight";
}

TEST(Mixture, TensorParallelExpertsMultiplyAsMuchAndSendEachTokenOnce) {
    const std::string problem = "moe:T=4096,E=128,topk=8,H=2048,F=768";
    const Estimate experts = estimated(problem + ",ranks=2");
    const Estimate columns = estimated(problem + ",parallel=tensor,ranks=2");
    EXPECT_NEAR(columns.compute, experts.compute, 0.25 * experts.compute);
    EXPECT_LT(columns.communicate, experts.communicate) << "one of eight rows goes over the link";
    EXPECT_EQ(estimated(problem + ",parallel=tensor,ranks=2", {Routing(128, 512)}).exposed, columns.exposed);
    EXPECT_GT(estimated("moe:T=64,E=7,topk=2,H=64,F=66,parallel=tensor,ranks=3").us, 0);
}

TEST(Mixture, ItsPartsTakeLessThanTheWhole) {
    const auto part = [](const char* name) {
        return estimated(fmt::format("moe:T=512,E=64,topk=8,H=2048,F=768,part={},ranks=2", name));
    };
    EXPECT_EQ(part("kept").us, part("whole").us);
    EXPECT_EQ(part("dispatch").compute, 0);
    EXPECT_EQ(part("combine").compute, 0);
    EXPECT_LT(part("dispatch").us + part("combine").us, part("whole").us);
    EXPECT_GT(part("dispatch").us, part("dispatch").fixed);
}

TEST(Mixture, OfManyRowsLargeTilesAreEstimatedToBeTheQuickest) {
    const auto ranked = [](const std::string& spec) {
        return rank_candidates(*parse_problem(spec), *find_machine("h200x2"));
    };
    const auto many = ranked("moe:T=4096,E=128,topk=8,H=2048,F=768,ranks=2");
    ASSERT_GE(many.size(), 8U);
    EXPECT_EQ(many.front().strategy.tiles.front().block_m, 128);
    EXPECT_EQ(many.back().strategy.tiles.front().block_m, 16);
    EXPECT_GT(many.back().estimate.us, 2 * many.front().estimate.us);
    const std::string few = "moe:T=64,E=128,topk=8,H=2048,F=768,ranks=2";
    EXPECT_EQ(ranked(few).front().strategy, completed(few)) << "among equals what is chosen";
    EXPECT_EQ(estimate(*parse_problem(few), *find_machine("h200x2"), completed(few)).us, estimated(few).us);
}

TEST(Mixture, ARoutingIsAWordOrTheRowsOfEachExpert) {
    const Problem problem = *parse_problem("moe:T=6,E=4,topk=2,H=64,F=64,ranks=2");
    const auto rows = [&](const char* text) { return *parse_routing(problem, text); };
    EXPECT_TRUE(rows("random").empty());
    EXPECT_EQ(rows("balanced"), (Routing{6, 6, 6, 6}));
    EXPECT_EQ(rows("skewed"), (Routing{12, 4, 4, 4}));
    EXPECT_EQ(rows("0,24,0,0"), (Routing{0, 24, 0, 0}));
    for (const auto& [text, why] : {std::pair{"1,2,3", "rows of 3 experts, and there are E=4"},
                                    {"1,2,3,4,5", "rows of 5 experts"},
                                    {"1,2,3,4", "10 rows, and 6 tokens of 2 ranks have 24"},
                                    {"1,-2,3,22", "\"-2\": expected random, balanced"},
                                    {"zipf", "\"zipf\": expected"},
                                    {"1,,3,20", "\"\": expected"}}) {
        const Result<Routing> none = parse_routing(problem, text);
        ASSERT_FALSE(none.ok()) << text;
        EXPECT_NE(none.error().message.find(why), std::string::npos) << none.error().message;
    }
    EXPECT_FALSE(parse_routing(*parse_problem("all_gather_matmul:M=64,N=64,K=64"), "balanced").ok());
}

TEST(Mixture, StrategiesAreRankedUnderARouting) {
    const Problem problem = *parse_problem("moe:T=4096,E=32,topk=4,H=2048,F=1024,ranks=2");
    const Machine machine = *find_machine("h200x2");
    std::map<std::string, std::vector<Candidate>> by;
    for (const char* word : {"random", "balanced", "skewed"})
        by[word] = rank_candidates(problem, machine, *parse_routing(problem, word));
    const std::vector<Candidate> usual = rank_candidates(problem, machine);
    ASSERT_EQ(by["random"].size(), usual.size());
    for (std::size_t i = 0; i < usual.size(); ++i)
        EXPECT_EQ(by["random"][i].estimate.us, usual[i].estimate.us);
    EXPECT_GT(by["skewed"].front().estimate.us, 1.2 * by["balanced"].front().estimate.us);
    for (const auto& [word, ranked] : by) {
        for (std::size_t i = 1; i < ranked.size(); ++i) {
            if (!ranked[i].pruned.empty()) continue;
            EXPECT_LE(ranked[i - 1].estimate.us, ranked[i].estimate.us) << word;
        }
    }
}

}  // namespace
}  // namespace syncopate::tune
