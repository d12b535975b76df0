#include "syncopate/tune/search/contenders.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {
namespace {

const Problem kProblem = parse_problem("matmul_all_reduce:M=192,N=14336,K=3584", 2, 132).value();

Machine machine() { return find_machine("h200x2").value(); }

TEST(Contenders, BeginWithWhatIsTakenUntunedAndTheUnfusedPair) {
    const auto made = contenders(kProblem, machine(), {}).value();
    ASSERT_GT(made.size(), 10U);
    EXPECT_EQ(made[0].name, "default");
    EXPECT_EQ(made[0].strategy, to_json(choose(kProblem, machine()).strategy));
    EXPECT_EQ(made[1].name, "unfused");
    std::set<std::string> seen;
    for (std::size_t i = 0; i < made.size(); ++i) {
        EXPECT_EQ(made[i].baseline, i < 2);
        EXPECT_GT(made[i].estimate_us, 0) << made[i].name;
        EXPECT_TRUE(seen.insert(made[i].strategy).second) << made[i].name << " is there twice";
        if (i > 2) {
            EXPECT_LE(made[i - 1].estimate_us, made[i].estimate_us);
        }
    }
}

TEST(Contenders, AreVariationsOfTheDefaultWhereTheseAreAskedFor) {
    const auto made = contenders(kProblem, machine(), {}, std::vector<std::string>{"split=1,2,4"}).value();
    ASSERT_GE(made.size(), 4U);
    EXPECT_EQ(made.back().name, "split=4");
    EXPECT_EQ(strategy_from_json(made.back().strategy)->split, 4);
    EXPECT_EQ(contenders(kProblem, machine(), {}, std::vector<std::string>{"splt=1"}).error().error_class,
              ErrorClass::usage);
}

TEST(Contenders, OnTheHostHaveSmallTiles) {
    const auto made = contenders(kProblem, machine(), {.device = fuse::Device::host}).value();
    for (const Contender& one : made) {
        const Strategy strategy = strategy_from_json(one.strategy).value();
        if (strategy.placement != Placement::fused) continue;
        ASSERT_EQ(strategy.tiles.size(), 1U) << one.name;
        EXPECT_EQ(strategy.tiles.front(), ops::small_tile());
    }
}

TEST(Contenders, OfAMixtureAreTilesOfManyAndOfFewRowsOnEitherDevice) {
    const Problem problem = parse_problem("moe:T=64,E=8,topk=2,H=256,F=512", 2, 132).value();
    for (const fuse::Device device : {fuse::Device::cuda, fuse::Device::host}) {
        const auto made = contenders(problem, machine(), {.device = device}).value();
        std::set<std::int32_t> rows;
        std::set<std::string> seen;
        for (const Contender& one : made) {
            EXPECT_TRUE(seen.insert(one.strategy).second) << one.name << " is there twice";
            const Strategy strategy = strategy_from_json(one.strategy).value();
            if (strategy.placement == Placement::fused) rows.insert(strategy.tiles.front().block_m);
        }
        EXPECT_EQ(rows, (std::set<std::int32_t>{16, 32, 64, 128}));
        EXPECT_EQ(made.size() > 8, device == fuse::Device::cuda);
    }
}

TEST(Contenders, OfAMixtureVaryItsTileAndProgramsAndNothingElse) {
    const Problem problem = parse_problem("moe:T=64,E=8,topk=2,H=256,F=512", 2, 132).value();
    for (const fuse::Device device : {fuse::Device::cuda, fuse::Device::host}) {
        const auto varied = [&](const std::string& text) {
            return contenders(problem, machine(), {.device = device}, std::vector<std::string>{text});
        };
        EXPECT_EQ(varied("programs=3,5").value().size(), 4U);
        EXPECT_EQ(strategy_from_json(varied("tiles.block_n=256").value().back().strategy)->tiles[0].block_n,
                  256);
        for (const char* text :
             {"split=1,2", "pull=1", "kind=ring", "tiles.split_k=2", "tiles.block_m=24", "chunking.rows=2"}) {
            const auto refused = varied(text);
            ASSERT_FALSE(refused) << text;
            EXPECT_EQ(refused.error().error_class, ErrorClass::usage);
        }
    }
}

TEST(Contenders, OfAttentionAreItsKindsWithWhatTheEstimateDoesNotTellApart) {
    const auto made = [](const char* spec, fuse::Device device, std::vector<std::string> vary = {}) {
        const auto all =
            contenders(*parse_problem(spec, 4, 132), *find_machine("h200x4"), {.device = device}, vary);
        std::set<std::string> names;
        for (const Contender& one : *all) names.insert(one.name);
        return names;
    };
    for (const fuse::Device device : {fuse::Device::cuda, fuse::Device::host}) {
        const auto names = made("attention:S=16384,H=16,HKV=16", device);
        for (const char* name :
             {"default", "unfused", "ring", "all_gather", "ring/head_parts=2", "ulysses/split=2"})
            EXPECT_TRUE(names.contains(name)) << name;
        EXPECT_GT(names.size(), 20U);
        for (const std::string& name : made("attention:S=16384,H=16,HKV=16,kind=ring", device))
            EXPECT_TRUE(name == "default" || name == "unfused" || name.starts_with("ring")) << name;
    }
    const auto varied = made("attention:S=16384", fuse::Device::cuda, {"kind=ring,double_ring"});
    EXPECT_EQ(varied, (std::set<std::string>{"default", "unfused", "kind=ring", "kind=double_ring"}));
}

TEST(Contenders, OfAMixtureTryTheGluonKernelWhereItTakesTheProblem) {
    const auto kernels = [](const std::string& spec, const std::vector<std::string>& vary) {
        const auto made = contenders(parse_problem(spec, 2, 132).value(), machine(), {}, vary);
        std::vector<std::string> names;
        if (!made) return std::vector<std::string>{made.error().message};
        for (const Contender& one : *made) {
            const Strategy strategy = strategy_from_json(one.strategy).value();
            if (strategy.kernel == ProductKernel::gluon && strategy.placement != Placement::unfused)
                names.push_back(fmt::format("{}x{}", strategy.tiles[0].block_m, strategy.tiles[0].block_k));
        }
        return names;
    };
    const std::vector<std::string> tile{"128x64"};
    EXPECT_EQ(kernels("moe:T=4096,E=8,topk=2,H=256,F=512", {}), tile);
    EXPECT_EQ(kernels("moe:T=64,E=8,topk=2,H=256,F=512", {"kernel=gluon"}), tile);
    for (const char* none : {"moe:T=4096,E=8,topk=2,H=250,F=512", "moe:T=4096,E=8,topk=2,H=256,F=500",
                             "moe:T=4096,E=8,topk=2,H=256,F=512,dtype=fp32"}) {
        EXPECT_EQ(kernels(none, {}), std::vector<std::string>{}) << none;
        ASSERT_EQ(kernels(none, {"kernel=gluon"}).size(), 1U) << none;
        EXPECT_TRUE(kernels(none, {"kernel=gluon"})[0].starts_with("--vary kernel=gluon: kernel")) << none;
    }
}

TEST(Contenders, OfAProblemThatIsNotEstimatedAreRefused) {
    Problem many = kProblem;
    many.ranks = 512;
    const std::string why = estimate_objection(many, machine());
    ASSERT_FALSE(why.empty());
    EXPECT_EQ(contenders(many, machine(), {}).error().message, why);
}

TEST(Contenders, OverNodesWithoutANetworkAreWhatRunsThereWithoutAnEstimate) {
    Problem over = kProblem;
    over.ranks = 4;
    over.nodes = 2;
    for (const fuse::Device device : {fuse::Device::cuda, fuse::Device::host}) {
        const auto made = contenders(over, machine(), {.device = device});
        ASSERT_TRUE(made) << made.error().to_string();
        EXPECT_GT(made->size(), 2U);
        for (const Contender& one : *made) {
            EXPECT_EQ(one.estimate_us, 0) << one.name;
            EXPECT_EQ(strategy_objection(over, strategy_from_json(one.strategy).value()), "") << one.name;
        }
    }
}

}  // namespace
}  // namespace syncopate::tune
