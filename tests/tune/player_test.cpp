// Calls of a program, played: what must take longer, and what must not.
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "syncopate/kernel/stated/statement.hpp"
#include "syncopate/plan/templates/all_gather.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"
#include "syncopate/tune/candidates/candidates.hpp"
#include "syncopate/tune/candidates/program.hpp"
#include "syncopate/tune/choose.hpp"
#include "tune/play/operator_play.hpp"

namespace syncopate::tune {
namespace {

TEST(Player, SaysOfNoStrategyThatItTakesLessThanItTakesAtLeast) {
    const std::pair<const char*, std::int32_t> kOf[]{{"all_gather_matmul:M=512,N=6656,K=16384", 8},
                                                     {"all_to_all_matmul:M=4096,N=1792,K=4096", 4},
                                                     {"matmul_reduce_scatter:M=1024,N=8192,K=3584", 8},
                                                     {"matmul_all_reduce:M=2048,N=4096,K=1792", 4},
                                                     {"matmul_all_to_all:M=512,N=8192,K=3584", 2}};
    for (const auto& [spec, ranks] : kOf) {
        const Problem problem = parse_problem(spec, ranks, 132).value();
        const Machine machine = find_machine("h200x" + std::to_string(ranks)).value();
        int tight = 0, all = 0;
        for (const Candidate& one : rank_candidates(problem, machine)) {
            if (!one.pruned.empty() || one.strategy.placement != Placement::fused) continue;
            const double least = least_us(problem, machine, one.strategy);
            EXPECT_LE(least, 1.02 * one.estimate.us) << spec << ", " << one.name;
            tight += least > 0.7 * one.estimate.us ? 1 : 0;
            ++all;
        }
        EXPECT_GT(2 * tight, all) << spec << ": what is never close prunes nothing";
    }
}

constexpr std::int32_t kRanks = 4;
const plan::Mesh kMesh{{{"gpu", kRanks}}};

/// c [m, n] = a [m, k] @ b [k, n] by 132 programs, with what of it the plan moves.
fuse::StagedProgram product(std::int64_t m, std::int64_t n, std::int64_t k, plan::Plan plan,
                            std::map<std::string, std::string> bindings) {
    const kernel::stated::Statement statement{.kernel = "product",
                                              .file = "product.py",
                                              .source = "def product(",
                                              .parameters = {"a", "b", "c", "M", "N", "K"},
                                              .tiles = {{"m", "cdiv(M, 128)"}, {"n", "cdiv(N, 128)"}},
                                              .loops = {{"k", "cdiv(K, 64)"}},
                                              .reads = {{"a", {"m*128 : (m+1)*128", "k*64 : (k+1)*64"}},
                                                        {"b", {"k*64 : (k+1)*64", "n*128 : (n+1)*128"}}},
                                              .writes = {{"c", {"m*128 : (m+1)*128", "n*128 : (n+1)*128"}}},
                                              .placed = {"a", "c"}};
    kernel::Arguments arguments;
    arguments.scalars = {{"M", m}, {"N", n}, {"K", k}};
    const auto tensor = [](std::int64_t rows, std::int64_t columns) {
        return kernel::TensorArgument{.shape = {rows, columns}, .block = {128, 64}};
    };
    arguments.tensors = {{"a", tensor(m, k)}, {"b", tensor(k, n)}, {"c", tensor(m, n)}};
    arguments.grid = {132, 1, 1};
    return {{{kernel::stated::analyse(statement, arguments).value(), std::move(bindings)}}, std::move(plan)};
}

fuse::StagedProgram gathered(std::int64_t m, std::int64_t n, std::int64_t k) {
    return product(m, n, k, plan::all_gather(kMesh, {"A", {m, k}, plan::DType::bf16}).value(), {{"a", "A"}});
}

fuse::StagedProgram reduced(std::int64_t m, std::int64_t n, std::int64_t k, std::int32_t split, bool pull) {
    const plan::PushReduceOptions options{.split = split, .split_axis = 1, .by_part = true, .pull = pull};
    return product(m, n, k, plan::push_reduce(kMesh, {"C", {m, n}, plan::DType::bf16}, options).value(),
                   {{"c", "C"}});
}

Machine machine_of_four() { return *find_machine("h200x4"); }

Estimate played(const fuse::StagedProgram& program, const Machine& machine, const Strategy& strategy = {}) {
    const auto decided = fuse::decide(program, options_of(strategy, fuse::Device::cuda, machine));
    EXPECT_TRUE(decided) << decided.error().message;
    return estimate_program(program, *decided, machine, strategy);
}

TEST(Player, HidesTransfersUnderALongProductAndNotUnderAShortOne) {
    const Machine machine = machine_of_four();
    const Estimate small = played(gathered(4096, 128, 1024), machine);
    EXPECT_GT(small.exposed, 0.5 * small.communicate);
    const Estimate large = played(gathered(4096, 8192, 1024), machine);
    EXPECT_LT(large.exposed, 0.3 * large.communicate);
    EXPECT_NEAR(large.us, large.fixed + large.compute + large.exposed, 1e-6);
}

TEST(Player, WaitsForSlowerLinks) {
    Machine machine = machine_of_four();
    const fuse::StagedProgram program = gathered(8192, 128, 8192);
    const double quick = played(program, machine).us;
    for (plan::Link& link : machine.topology.links) link.gbps /= 4;
    const Estimate slow = played(program, machine);
    EXPECT_GT(slow.us, 2 * quick);
    EXPECT_LT(slow.us, slow.fixed + slow.communicate + slow.compute);
}

TEST(Player, ReadsAgainWhatTheCacheNoLongerHoldsWhenTilesBegin) {
    // The rows of each rank come a while after those of the one before it, and read all of the weights.
    Machine machine = machine_of_four();
    machine.rates.memory_gbps = 500;
    const fuse::StagedProgram program = gathered(512, 4096, 8192);
    machine.rates.cache_mib = 1000;
    const double kept = played(program, machine).us;
    machine.rates.cache_mib = 1;
    const double lost = played(program, machine).us;
    const double weights_us = 8192 * 4096 * 2 / (machine.rates.memory_gbps * kBytesPerUs);
    EXPECT_GT(lost, 2 * weights_us);
    EXPECT_GT(lost, kept);
    EXPECT_LT(lost, kept + 5 * weights_us) << "each group of rows reads them once";
    const double together = played(program, machine, {.together = true}).us;
    EXPECT_LT(together, lost) << "tiles that begin together read them together";
}

TEST(Player, PlaysSumsThatReadContributionsWhereTheyAre) {
    const Machine machine = machine_of_four();
    const fuse::StagedProgram program = reduced(2048, 4096, 1024, 4, true);
    const Strategy by_engine{.backend = plan::Backend::ldst_dedicated, .engine_blocks = 8};
    const double us = played(program, machine, by_engine).us;
    EXPECT_LT(us, 1e6);
    Machine slow = machine;
    for (auto& [blocks, gbps] : slow.rates.engine_sum_gbps.points) gbps /= 4;
    EXPECT_GT(played(program, slow, by_engine).us, 2 * us) << "the engine's sums follow each other";
    EXPECT_LT(played(program, machine, {.backend = plan::Backend::ldst_inline}).us, 1e6);
}

TEST(Player, HoldsNoSumUpForWhatIsMadeLater) {
    const Machine machine = machine_of_four();
    const Strategy by_engine{.backend = plan::Backend::ldst_dedicated, .engine_blocks = 8};
    const Estimate whole = played(reduced(4096, 8192, 4096, 1, true), machine, by_engine);
    const Estimate parts = played(reduced(4096, 8192, 4096, 4, true), machine, by_engine);
    EXPECT_LT(parts.exposed, 0.7 * whole.exposed) << "three parts of four are summed beside the product";
}

TEST(Player, LetsTilesThatStoreAtPeersFillTheLinks) {
    const Machine machine = machine_of_four();
    const auto exchanged = [&](std::int64_t k) {
        const plan::Plan plan =
            plan::push_exchange(kMesh, {"C", {4096, 4096}, plan::DType::bf16}, "D", {}).value();
        return played(product(4096, 4096, k, plan, {{"c", "C"}}), machine,
                      {.backend = plan::Backend::tma_inline});
    };
    const Estimate long_product = exchanged(8192);
    const Estimate short_product = exchanged(256);
    EXPECT_LT(long_product.exposed, 0.8 * long_product.communicate);
    const double bytes = 4096.0 * 4096 * 2 * (kRanks - 1) / kRanks;
    EXPECT_GT(short_product.us, bytes / (machine.rates.tile_store_gbps.at(24) * kBytesPerUs));
}

TEST(Player, TakesNoOperatorForQuickerThanItsLeast) {
    // What choosing leaves out by (choose.cpp).
    for (const char* op : {"all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce",
                           "all_to_all_matmul", "matmul_all_to_all"}) {
        for (const std::int32_t ranks : {2, 8}) {
            const std::string name = ranks == 2 ? "h200x2" : "h200x8";
            for (const std::int64_t m : {64, 1024}) {
                const Problem problem =
                    parse_problem(std::string(op) + ":M=" + std::to_string(m) + ",N=4096,K=2048", ranks)
                        .value();
                const Machine known = *find_machine(name);
                const std::vector<Candidate> ranked = rank_candidates(problem, known);
                for (const Candidate& one : ranked) {
                    if (!one.pruned.empty()) continue;
                    EXPECT_LE(least_us(problem, known, one.strategy), one.estimate.us + 1e-6)
                        << problem.key() << " " << one.name;
                }
                EXPECT_LE(choose(problem, known).us, 1.03 * ranked.front().estimate.us) << problem.key();
            }
        }
    }
}

}  // namespace
}  // namespace syncopate::tune
