// choose() takes what tuning has found, where it is legal, and the estimate where nothing is.
#include "syncopate/tune/store/winners.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/search/contenders.hpp"

namespace syncopate::tune {
namespace {

namespace fs = std::filesystem;

const Scope kScope{.kernel = "k", .device = "NVIDIA H200", .versions = "v"};

class WinnersTest : public testing::Test {
protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "syncopate-winners-XXXXXX").string();
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder = pattern;
        file.emplace(folder / "tuning.sqlite");
    }
    void TearDown() override {
        file.reset();
        fs::remove_all(folder);
    }
    static Problem problem(const std::string& rest, int ranks = 8) {
        return *parse_problem("matmul_reduce_scatter:" + rest, ranks, 132);
    }
    void keep(const Problem& of, const std::string& strategy) {
        ASSERT_TRUE(
            file->put({.key = key_of(of, kScope), .strategy = strategy, .us = 42, .when = 1790000000}));
    }

    fs::path folder;
    std::optional<StoreFile> file;
};

TEST_F(WinnersTest, KeysSayTheRowsApart) {
    const ResultKey key = key_of(problem("M=1024,N=4096,K=1792"), kScope);
    EXPECT_EQ(key.family, "matmul_reduce_scatter:N=4096,K=1792,dtype=bf16");
    EXPECT_EQ(key.rows, 1024);
    EXPECT_EQ(key.ranks, 8);
    const ResultKey sequence = key_of(*parse_problem("attention:S=16384,kind=ring"), kScope);
    EXPECT_EQ(sequence.rows, 16384);
    EXPECT_EQ(sequence.family.find("S="), std::string::npos);
}

TEST_F(WinnersTest, KeysTellScalesAndOutputsApart) {
    const auto family = [](const std::string& rest) {
        return key_of(problem("M=1024,N=4096,K=1792,dtype=fp8e4m3" + rest), kScope).family;
    };
    EXPECT_EQ(family(",scales=row"), "matmul_reduce_scatter:N=4096,K=1792,dtype=fp8e4m3,out=bf16,scales=row");
    EXPECT_NE(family(",scales=row"), family(",scales=block"));
    EXPECT_NE(family(""), family(",out=fp16"));
}

TEST_F(WinnersTest, ChooseTakesTheStoredWinner) {
    const Machine machine = *find_machine("h200x8");
    const Winners winners(*file, kScope);
    const Problem of = problem("M=1024,N=4096,K=1792");
    EXPECT_FALSE(choose(of, machine, &winners).measured);
    keep(of, R"({"placement":"unfused"})");
    const Choice choice = choose(of, machine, &winners);
    EXPECT_TRUE(choice.measured);
    EXPECT_EQ(choice.strategy.placement, Placement::unfused);
    EXPECT_EQ(choice.us, 42);
    EXPECT_EQ(choice.note, "tuned 2026-09-21");
    EXPECT_FALSE(choose(of, machine, &winners, {.unfused = false}).measured) << "which cannot be run there";
}

TEST_F(WinnersTest, OtherRowsTakeTheNearestWinner) {
    const Machine machine = *find_machine("h200x8");
    const Winners winners(*file, kScope);
    keep(problem("M=1024,N=4096,K=1792"), R"({"split":2})");
    const Choice near = choose(problem("M=1536,N=4096,K=1792"), machine, &winners);
    EXPECT_EQ(near.strategy.split, 2);
    EXPECT_EQ(near.note, "tuned 2026-09-21 for 1024 rows");
    EXPECT_FALSE(choose(problem("M=16,N=4096,K=1792"), machine, &winners).measured);
    EXPECT_FALSE(choose(problem("M=1024,N=4096,K=3584"), machine, &winners).measured) << "another product";
    EXPECT_FALSE(choose(problem("M=1024,N=4096,K=1792", 4), machine, &winners).measured) << "other ranks";
}

TEST_F(WinnersTest, AWinnerOfOtherRowsHasToBeTheBetterOneForTheseToo) {
    const Machine machine = *find_machine("h200x4");
    const Winners winners(*file, kScope);
    const auto reduce = [](int rows) {
        return *parse_problem("matmul_all_reduce:N=4096,K=1792,M=" + std::to_string(rows), 4, 132);
    };
    const auto keep_for = [&](int rows, const Strategy& strategy, double us, double usual_us) {
        ASSERT_TRUE(file->put({.key = key_of(reduce(rows), kScope),
                               .strategy = to_json(strategy),
                               .us = us,
                               .default_us = usual_us,
                               .when = 1790000000}));
    };
    const Choice many = choose(reduce(4096), machine);
    const Choice few = choose(reduce(1024), machine);
    ASSERT_NE(many.strategy.placement, few.strategy.placement);
    // What is taken anyway for many rows says nothing of few.
    keep_for(4096, many.strategy, 210, 210);
    EXPECT_TRUE(choose(reduce(4096), machine, &winners).measured);
    EXPECT_FALSE(choose(reduce(1024), machine, &winners).measured);
    EXPECT_EQ(choose(reduce(1024), machine, &winners).strategy, few.strategy);
    // What was four times as fast as the estimate knows is taken for few, too.
    keep_for(4096, many.strategy, 210, 4 * 210);
    const Choice carried = choose(reduce(1024), machine, &winners);
    EXPECT_EQ(carried.note, "tuned 2026-09-21 for 4096 rows");
    EXPECT_EQ(carried.strategy.placement, many.strategy.placement);
    // What was half as fast again: for half of the rows, and not for a quarter.
    keep_for(4096, many.strategy, 210, 1.5 * 210);
    EXPECT_TRUE(choose(reduce(2048), machine, &winners).measured);
    EXPECT_FALSE(choose(reduce(1024), machine, &winners).measured);
}

TEST_F(WinnersTest, WhatIsNotLegalOrNotReadableIsPassedOver) {
    const Winners winners(*file, kScope);
    const Problem of = problem("M=1024,N=4096,K=1792");
    keep(of, R"({"stored":9})");  // there are seven contributions
    keep(problem("M=2048,N=4096,K=1792"), "no JSON");
    keep(problem("M=4096,N=4096,K=1792"), R"({"split":4})");
    ASSERT_TRUE(winners.find(of));
    EXPECT_EQ(winners.find(of)->strategy.split, 4);
}

/// Else it would be searched for again at every start.
TEST_F(WinnersTest, WhateverASearchMayFindFastestIsTakenByTheNextCall) {
    const Machine machine = find_machine("h200x4").value();
    const char* const specs[] = {
        "attention:S=64,H=2,HKV=1,D=16",
        "attention:S=256,H=8,HKV=4,D=32,causal=0",
        "attention:S=1024,H=8,HKV=8,D=64,sharding=zigzag",
        "attention:S=8192,H=32,HKV=8,D=128,kind=ring",
        "attention:S=16384,H=16,HKV=16,D=128",
        "moe:T=64,E=8,topk=2,H=256,F=512",
        "moe:T=512,E=8,topk=2,H=256,F=512,parallel=tensor",
        "all_gather_matmul:M=256,N=512,K=256",
        "matmul_reduce_scatter:M=256,N=512,K=256",
        "matmul_all_reduce:M=256,N=512,K=256",
        "matmul_all_to_all:M=256,N=512,K=256",
        "feed_forward:M=256,K=256,F=512,N=256",
    };
    for (const fuse::Device device : {fuse::Device::cuda, fuse::Device::host}) {
        const bool cuda = device == fuse::Device::cuda;
        const ChooseOptions options{.device = device, .gluon = cuda};
        for (const char* spec : specs) {
            const Problem of = parse_problem(spec, 2, cuda ? 132 : 4).value();
            std::size_t fused = 0;
            const std::vector<Contender> all = contenders(of, machine, options).value();
            for (const Contender& one : all) {
                // The pair is not always legal; a search refuses it where it makes it ready.
                const Strategy strategy = strategy_from_json(one.strategy).value();
                if (!strategy_objection(of, strategy).empty()) {
                    EXPECT_EQ(one.name, "unfused") << spec;
                    continue;
                }
                keep(of, one.strategy);
                const Winners winners(*file, kScope);
                const Choice taken = choose(of, machine, &winners, options);
                EXPECT_TRUE(taken.measured) << spec << " " << one.name << " " << taken.note << taken.warning;
                EXPECT_EQ(taken.strategy.placement, strategy.placement) << spec << " " << one.name;
                EXPECT_EQ(taken.strategy.kind, strategy.kind) << spec << " " << one.name;
                fused += strategy.placement == Placement::fused ? 1 : 0;
            }
            EXPECT_GT(fused, 1U) << spec;
        }
    }
}

}  // namespace
}  // namespace syncopate::tune
