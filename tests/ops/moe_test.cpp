// Mixture of experts: the plan that it makes holds whatever the counts are, and fuse makes groups of tiles of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/json.hpp"
#include "syncopate/ops/operators.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/model/ragged.hpp"

namespace syncopate::ops {
namespace {

Problem problem_of(const std::string& spec) {
    const Result<Problem> problem = parse_problem(spec);
    EXPECT_TRUE(problem) << problem.error().to_string();
    return *problem;
}

Strategy tiled() {
    return *strategy_from_json(
        R"({"tiles": [{"block_m": 16, "block_n": 32, "block_k": 32, "stages": 2}], "programs": 4})");
}

Strategy tiled_for_fp8(int block_n = 128, int block_k = 128) {
    Strategy made = tiled();
    made.tiles.front().block_n = block_n;
    made.tiles.front().block_k = block_k;
    return made;
}

std::string spec(int ranks, const std::string& more = "") {
    return fmt::format("moe:T=64,E=8,topk=2,H=48,F=80{},ranks={}", more, ranks);
}

TEST(Moe, ItsPlanHasNoFindings) {
    for (const int ranks : {1, 2, 4, 8}) {
        for (const std::string part : {"whole", "kept", "dispatch", "combine"}) {
            for (const std::string parallel : {"expert", "tensor"}) {
                const std::string more = ",part=" + part + ",parallel=" + parallel;
                const auto made = outline(problem_of(spec(ranks, more)), tiled());
                ASSERT_TRUE(made) << made.error().to_string();
                const auto findings = plan::check(made->plan);
                EXPECT_TRUE(findings.empty()) << more << ": " << findings.front().to_string();
                EXPECT_EQ(*plan::from_json(plan::to_json(made->plan)), made->plan);
            }
        }
        for (const std::string how : {"row,parallel=expert", "block,parallel=expert", "row,parallel=tensor",
                                      "block,parallel=tensor"}) {
            const auto made =
                outline(problem_of(fmt::format(
                            "moe:T=64,E=8,topk=2,H=320,F=1024,dtype=fp8e4m3,scales={},ranks={}", how, ranks)),
                        tiled_for_fp8());
            ASSERT_TRUE(made) << made.error().to_string();
            EXPECT_TRUE(plan::check(made->plan).empty()) << how;
            const plan::Tensor& factors =
                made->plan.tensors[static_cast<std::size_t>(*made->plan.find_tensor("x_scale"))];
            EXPECT_EQ(factors.memory_shape()[1], how.starts_with("row") ? 1 : 3);
        }
    }
}

TEST(Moe, ATokenOfTensorParallelExpertsTravelsOnceAndItsTileAwaitsNoOther) {
    const auto program = ops::program(problem_of(spec(4, ",parallel=tensor")), tiled());
    ASSERT_TRUE(program) << program.error().to_string();
    const auto schedule = fuse::fuse(*program, fuse_options(tiled(), fuse::Device::host));
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    ASSERT_EQ(schedule->stages.size(), 8U);
    std::int64_t rows = 0;
    for (const plan::Op& op : program->plan.ranks[1]) {
        if (program->plan.tensors[static_cast<std::size_t>(op.src.tensor)].name == "tokens")
            rows += op.src.region[1].size();
    }
    EXPECT_EQ(rows, 3 * 64) << "to each of three ranks";
    for (const fuse::RankSchedule& rank : schedule->ranks) {
        EXPECT_TRUE(rank.transfers.empty()) << "the kernels send everything themselves";
        std::size_t waited = 0;
        for (const fuse::Slot& slot : schedule->slots_of(rank, 3)) {
            EXPECT_LE(slot.waits.size(), 2U) << "a piece of the tokens, and of their routes";
            waited += slot.waits.empty() ? 0 : 1;
        }
        EXPECT_GT(waited, 0U);
        for (const fuse::Slot& slot : schedule->slots_of(rank, 4)) EXPECT_TRUE(slot.waits.empty());
        EXPECT_GT(schedule->stages[4].most_slots, 8) << "tiles of both products are made by the call";
    }
}

/// By stage, programs of its grid.
std::vector<std::int64_t> grids(const std::string& of, const Strategy& strategy) {
    const auto made = program(problem_of(of), strategy);
    EXPECT_TRUE(made) << made.error().to_string();
    std::vector<std::int64_t> programs;
    for (const fuse::Stage& stage : made->stages) programs.push_back(stage.kernel.num_programs());
    return programs;
}

TEST(Moe, AMultiprocessorHasAsManyProgramsOfAProductAsThereIsSharedMemoryForTheirStages) {
    using Programs = std::vector<std::int64_t>;
    Strategy open = tiled();
    open.programs.reset();
    EXPECT_EQ(grids(spec(2), open), (Programs{132, 132, 2 * 132, 4 * 132, 4 * 132, 2 * 132}))
        << "four at most";
    EXPECT_EQ(grids(spec(2, ",sms=7"), open), (Programs{7, 7, 14, 28, 28, 14}));
    EXPECT_EQ(grids(spec(2, ",sms=7"), tiled()), (Programs{4, 4, 8, 16, 16, 8}));
    const auto products = [&](std::int32_t m, std::int32_t n, std::int32_t stages, const char* more = "") {
        open.tiles = {{.block_m = m, .block_n = n, .block_k = 64, .stages = stages}};
        const Programs all = grids(spec(2, more), open);
        return std::pair(all[3] / 132, all[4] / 132);
    };
    EXPECT_EQ(products(16, 128, 4), std::pair(1L, 3L))
        << "of w1 a stage has a block for each of two products";
    EXPECT_EQ(products(64, 64, 4), std::pair(2L, 3L));
    EXPECT_EQ(products(128, 128, 3), std::pair(1L, 2L));
    EXPECT_EQ(products(64, 64, 4, ",dtype=fp32"), std::pair(1L, 1L));
    EXPECT_EQ(products(128, 256, 4), std::pair(1L, 1L)) << "one, also of too many stages";
}

TEST(Moe, EveryProgramHasATileOfTheSumsAndNoTileMoreThanSixteenTokens) {
    const auto tiles = [](int tokens, std::int32_t programs) {
        Strategy strategy = tiled();
        strategy.programs = programs;
        const std::string of = fmt::format("moe:T={},E=8,topk=2,H=48,F=80,ranks=2", tokens);
        const plan::Plan plan = outline(problem_of(of), strategy)->plan;
        return plan.tensors[static_cast<std::size_t>(*plan.find_tensor("done"))].shape[1];
    };
    EXPECT_EQ(tiles(1, 132), 1);
    EXPECT_EQ(tiles(64, 132), 64) << "one token each";
    EXPECT_EQ(tiles(512, 132), 2 * 132);
    EXPECT_EQ(tiles(8192, 132), 512);
    EXPECT_EQ(tiles(4096, 7), 256);
    EXPECT_EQ(tiles(64, 3), 6);
}

TEST(Moe, MemoryIsByBoundRanksAndTopk) {
    const auto rows = [](const std::string& of) {
        const plan::Plan plan = outline(problem_of(of), tiled())->plan;
        return plan.tensors[static_cast<std::size_t>(*plan.find_tensor("X"))].memory_shape()[0];
    };
    EXPECT_EQ(rows(spec(2)), 2 * 64 * 2 + 4 * 16);  // 4 experts a rank, each from a multiple of 16 on
    EXPECT_EQ(rows(spec(8)), 8 * 64 * 2 + 1 * 16);  // a token may name the one expert of a rank twice
    EXPECT_EQ(rows(spec(8, ",bound=1024")), rows(spec(8)));
    EXPECT_EQ(rows(spec(2, ",bound=100")), 160);
    EXPECT_EQ(rows(spec(2, ",bound=1")), 16);
    EXPECT_EQ(rows(spec(2, ",bound=9999")), rows(spec(2)));
}

TEST(Moe, WhatCannotBeIsRefused) {
    const auto refusal = [](const std::string& of) {
        const Result<Problem> problem = parse_problem(of);
        return problem ? "none" : problem.error().message;
    };
    EXPECT_EQ(refusal("moe:T=4,E=8,topk=2,H=16,F=16,ranks=3"), "moe: E=8 experts are no multiple of 3 ranks");
    EXPECT_EQ(refusal("moe:T=4,E=2,topk=3,H=16,F=16,ranks=2"), "moe: topk=3 of E=2 experts");
    EXPECT_EQ(refusal("moe:T=4,E=7,topk=2,H=16,F=15,parallel=tensor,ranks=2"),
              "moe: F=15 columns of tensor parallel experts are no multiple of 2 ranks");
    EXPECT_NE(refusal("moe:T=4,E=7,topk=2,H=16,F=16,parallel=data,ranks=2").find("expert, tensor"),
              std::string::npos);
    EXPECT_NE(refusal("moe:T=4,E=8,topk=2,H=16,ranks=2").find("needs F"), std::string::npos);
    EXPECT_NE(refusal("moe:T=4,E=8,topk=2,H=16,F=16,bound=-1").find("bound"), std::string::npos);
    EXPECT_NE(refusal("moe:T=4,E=8,topk=2,H=16,F=16,part=half").find("part"), std::string::npos);
    const std::string fp8 = "moe:T=4,E=8,topk=2,H=16,F=200,dtype=fp8e4m3";
    EXPECT_EQ(refusal(fp8 + ",ranks=2"), "moe: products of fp8e4m3 take scales=row or scales=block");
    EXPECT_EQ(refusal(fp8 + ",scales=row,ranks=2"), "none");
    EXPECT_NE(refusal(fp8 + ",scales=block,ranks=2").find("F=200 is no multiple of 128"), std::string::npos);
    EXPECT_NE(refusal(fp8 + ",scales=row,part=kept,ranks=2").find("part=kept is of bf16"), std::string::npos);
    EXPECT_EQ(refusal(fp8 + ",scales=row,parallel=tensor,ranks=2"), "none");
    EXPECT_NE(refusal("moe:T=4,E=8,topk=2,H=16,F=128,dtype=fp8e4m3,scales=block,parallel=tensor,ranks=2")
                  .find("F=64 of a rank is no multiple of 128"),
              std::string::npos);
    EXPECT_NE(refusal(fp8 + ",scales=row,out=fp32,ranks=2").find("bf16 or fp16"), std::string::npos);
    EXPECT_NE(refusal("moe:T=4,E=8,topk=2,H=16,F=16,scales=row,ranks=2").find("only fp8e4m3"),
              std::string::npos);
    EXPECT_NE(refusal("moe:T=4,E=8,topk=2,H=16,F=16,dtype=int8").find("int8"), std::string::npos);
    EXPECT_NE(refusal("moe:T=1000000,E=8,topk=8,H=16,F=16,ranks=512").find("no multiple"), std::string::npos);
    EXPECT_NE(refusal("moe:T=100000000,E=8,topk=8,H=16,F=16,ranks=8").find("number"), std::string::npos);
}

TEST(Moe, AStrategyOfAFileThatNoTableCanHoldIsRefused) {
    const auto refusal = [](const std::string& strategy, const std::string& of = spec(2)) {
        const Result<Strategy> read = strategy_from_json(strategy);
        EXPECT_TRUE(read) << strategy;
        const auto made = ops::program(problem_of(of), *read);
        EXPECT_EQ(made.ok(), outline(problem_of(of), *read).ok());
        return made ? std::string("none") : made.error().message;
    };
    const auto tile = [](std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t stages,
                         const std::string& more = "") {
        return fmt::format(
            R"({{"tiles": [{{"block_m": {}, "block_n": {}, "block_k": {}, "stages": {}{}}}], "programs": 4}})",
            m, n, k, stages, more);
    };
    EXPECT_EQ(refusal(tile(16, 256, 64, 8)), "none");
    for (const std::int64_t extent : {1, 8, 24, 512, 1 << 26, 1 << 30, 2147483647}) {
        for (const std::string& of :
             {tile(extent, 32, 32, 2), tile(32, extent, 32, 2), tile(32, 32, extent, 2)})
            EXPECT_EQ(refusal(of), fmt::format("moe: its tiles have powers of two of rows and columns, 16 to "
                                               "256, not {}",
                                               extent));
    }
    for (const std::int64_t stages : {9, 1 << 20, 2147483647})
        EXPECT_EQ(refusal(tile(32, 32, 32, stages)),
                  fmt::format("moe: its tiles have 1 to 8 stages, not {}", stages));
    EXPECT_NE(refusal(tile(32, 32, 32, 2, R"(, "split_k": 2)")).find("one shape"), std::string::npos);
    EXPECT_NE(refusal(tile(32, 32, 32, 2, R"(, "num_wide": 1)")).find("one shape"), std::string::npos);
    EXPECT_NE(refusal(R"({"programs": 2147483647})").find("1 to 65536 programs"), std::string::npos);
    EXPECT_NE(refusal(R"({"pull": true})").find("nothing else: not"), std::string::npos);
    EXPECT_NE(refusal(R"({"kernel_sums": true})").find("nothing else: not"), std::string::npos);
    const std::string two = R"({"block_m": 32, "block_n": 32, "block_k": 32, "stages": 2})";
    EXPECT_NE(refusal(fmt::format(R"({{"tiles": [{}, {}]}})", two, two)).find("one tile"), std::string::npos);
    // 2^22 rows, each of 512 tiles of `down`.
    const std::string many = "moe:T=1048576,E=8,topk=2,H=8192,F=16,ranks=2";
    EXPECT_NE(refusal(tile(16, 16, 16, 1), many).find("more than tables can number"), std::string::npos);
    // A table that has a word for each expert is made before any row is looked at.
    for (const char* experts :
         {"moe:T=4,E=2147483648,topk=1,H=16,F=16,ranks=1", "moe:T=4,E=16777216,topk=1,H=16,F=16,ranks=2"}) {
        const auto problem = parse_problem(experts);
        ASSERT_FALSE(problem) << experts;
        EXPECT_NE(problem.error().to_string().find("groups of rows are more than tables can number"),
                  std::string::npos)
            << problem.error().to_string();
    }
}

TEST(Moe, WhatItsKernelsHaveSeenIsToldOfTheCallsBetweenTwoReadings) {
    const Problem problem = problem_of(spec(2, ",bound=20"));
    const auto told = [&](std::vector<std::uint32_t> before, std::vector<std::uint32_t> now,
                          bool drops = false) {
        return operator_row("moe")->judge(problem, before, now, drops);
    };
    EXPECT_EQ(told({0, 0, 0, 0}, {0, 0, 0, 0}), "");
    EXPECT_EQ(told({9, 7, 3, 2}, {9, 7, 3, 2}), "") << "it was told before";
    EXPECT_EQ(told({9, 7, 3, 2}, {9, 9, 3, 3}),
              "topk_ids: 2 of all ranks' ids name no expert; there are experts 0 to 7");
    const std::string over =
        "bound: as many as 9 rows more than 20 come to a rank: compile it with bound=29, or --drop";
    EXPECT_EQ(told({9, 7, 3, 2}, {9, 7, 4, 2}), over) << "fewer than the most so far, and yet some";
    EXPECT_EQ(told({9, 7, 3, 2}, {9, 7, 4, 2}, true), "");
    EXPECT_EQ(told({0, 0xfffffffe, 0, 5}, {0, 3, 0, 6}),
              "topk_ids: 5 of all ranks' ids name no expert; there are experts 0 to 7")
        << "numbers go round";
    EXPECT_NE(told({0, 8, 0, 0xffffffff}, {0, 8, 0, 0}), "") << "2^32 ids, of one call more";
}

TEST(Moe, TilesOfFp8AreAsWideAsWhatSharesAScale) {
    const auto refusal = [](const char* scales, int block_n, int block_k) {
        const Problem problem = problem_of(
            fmt::format("moe:T=64,E=8,topk=2,H=320,F=256,dtype=fp8e4m3,scales={},ranks=2", scales));
        const Strategy strategy = tiled_for_fp8(block_n, block_k);
        const auto made = outline(problem, strategy);
        EXPECT_EQ(static_cast<bool>(made), static_cast<bool>(ops::program(problem, strategy)));
        return made ? std::string("none") : made.error().message;
    };
    for (const char* scales : {"row", "block"}) {
        for (const int block_n : {32, 64, 256})
            EXPECT_EQ(
                refusal(scales, block_n, 128),
                fmt::format("moe: tiles of fp8e4m3 take block_n=128, the columns that share a scale, got "
                            "block_n={}",
                            block_n));
        EXPECT_EQ(refusal(scales, 128, 256),
                  "moe: tiles of fp8e4m3 take a block_k that divides 128, the elements along K that share a "
                  "scale, got block_k=256");
        for (const int block_k : {32, 64, 128}) EXPECT_EQ(refusal(scales, 128, block_k), "none");
    }
}

TEST(Moe, OnlyTheFirstProductBeginsBesideTheStageBeforeIt) {
    for (const std::string part : {"whole", "kept", "dispatch", "combine"}) {
        for (const std::string parallel : {"expert", "tensor"}) {
            const std::string of = spec(2, ",part=" + part + ",parallel=" + parallel);
            for (const fuse::Device device : {fuse::Device::host, fuse::Device::cuda}) {
                const auto program = ops::program(problem_of(of), tiled());
                ASSERT_TRUE(program) << program.error().to_string();
                const auto schedule = fuse::fuse(*program, fuse_options(tiled(), device));
                ASSERT_TRUE(schedule) << schedule.error().to_string();
                // Places of rows and tables go from kernel to kernel in memory that the plan does not know: they
                // are made before rows are sent, which is all that the first product then waits for.
                for (std::size_t stage = 0; stage < schedule->stages.size(); ++stage) {
                    const bool up = program->stages[stage].kernel.name == "moe_up" && parallel == "expert";
                    EXPECT_EQ(schedule->stages[stage].overlaps, up) << of << ", stage " << stage;
                }
            }
        }
    }
}

TEST(Moe, TilesOfAnExpertWaitForTheRowsOfEveryRankAndForNoMore) {
    for (const fuse::Device device : {fuse::Device::host, fuse::Device::cuda}) {
        const auto program = ops::program(problem_of(spec(4)), tiled());
        ASSERT_TRUE(program) << program.error().to_string();
        const auto schedule = fuse::fuse(*program, fuse_options(tiled(), device));
        ASSERT_TRUE(schedule) << schedule.error().to_string();
        ASSERT_EQ(schedule->stages.size(), 6U);
        EXPECT_EQ(schedule->stages[2].count, 8);
        EXPECT_EQ(schedule->stages[3].count, 2);
        EXPECT_GT(schedule->stages[3].most_slots, 2);
        for (const fuse::RankSchedule& rank : schedule->ranks) {
            EXPECT_TRUE(rank.transfers.empty()) << "the kernels send everything themselves";
            for (const fuse::Slot& slot : schedule->slots_of(rank, 3)) {
                EXPECT_EQ(slot.waits.size(), 4U);
                int own = 0;
                for (const fuse::Wait& wait : slot.waits) {
                    const auto& meaning = rank.signals[static_cast<std::size_t>(wait.signal)];
                    if (meaning.kind == fuse::SignalMeaning::Kind::made) {
                        const auto& made = rank.chunks[static_cast<std::size_t>(meaning.op.index)];
                        EXPECT_EQ(program->plan.tensors[static_cast<std::size_t>(made.chunk.tensor)].name,
                                  "X");
                        EXPECT_EQ(made.chunk.region[1].begin, slot.tile) << "of the expert itself";
                        EXPECT_TRUE(made.sent.empty());
                        ++own;
                        continue;
                    }
                    EXPECT_EQ(meaning.kind, fuse::SignalMeaning::Kind::arrived);
                    const plan::Op& op = program->plan.op(meaning.op);
                    EXPECT_EQ(program->plan.tensors[static_cast<std::size_t>(op.dst.tensor)].name, "X");
                    EXPECT_EQ(op.dst.region[1].begin, slot.tile) << "of the expert itself";
                }
                EXPECT_EQ(own, 1) << "of the rank itself";
            }
            for (const fuse::Slot& slot : schedule->slots_of(rank, 5)) EXPECT_LE(slot.waits.size(), 3U);
        }
        const auto again = fuse::schedule_from_json(fuse::to_json(*schedule));
        ASSERT_TRUE(again) << again.error().to_string();
        EXPECT_EQ(fuse::to_json(*again), fuse::to_json(*schedule));
    }
}

TEST(Moe, NothingIsStoredAtARankBeforeItHasReadWhatTheLastCallBrought) {
    const auto program = ops::program(problem_of(spec(2)), tiled());
    const auto schedule = fuse::fuse(*program, fuse_options(tiled(), fuse::Device::host));
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    // Every program of the first stage stores counts there, and waits before; the other stages follow that one.
    const auto programs = static_cast<std::size_t>(*tiled().programs);
    for (const fuse::RankSchedule& rank : schedule->ranks) {
        const auto kept = [](const fuse::MadeChunk& chunk) { return chunk.sent.empty(); };
        EXPECT_EQ(std::ranges::count_if(rank.chunks, kept), 4) << "rows for the rank's own experts";
        for (const fuse::MadeChunk& chunk : rank.chunks) EXPECT_LE(chunk.sent.size(), 1U);
        EXPECT_TRUE(rank.begin_waits.empty()) << "nobody is left to wait there";
        for (std::size_t slot = 0; slot < programs; ++slot) {
            EXPECT_TRUE(std::ranges::any_of(rank.slots[slot].waits, [&](const fuse::Wait& wait) {
                const auto& meaning = rank.signals[static_cast<std::size_t>(wait.signal)];
                return wait.lag == 1 && meaning.kind == fuse::SignalMeaning::Kind::consumed;
            })) << slot;
        }
    }
}

TEST(Moe, TheTableOfAStageWhoseTilesACallMakesHasARecordForEachGroup) {
    namespace table = emit::table;
    const auto program = ops::program(problem_of(spec(2)), tiled());
    const auto schedule = fuse::fuse(*program, fuse_options(tiled(), fuse::Device::host));
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    const auto words = emit::make_table(*schedule, 1, 1 << 21, 24, {}, 2);
    const auto at = static_cast<std::size_t>(words[table::groups]);
    ASSERT_GT(at, 0U);
    EXPECT_EQ(words[at], 8);
    EXPECT_EQ(words[at + 1], schedule->stages[2].most_slots);
    EXPECT_GE(static_cast<std::int64_t>(at),
              table::first_slot + table::slot_words * schedule->stages[2].most_slots);
    int sent = 0;
    for (int group = 0; group < 8; ++group) {
        const std::size_t record = at + 4 + static_cast<std::size_t>(group * table::slot_words);
        EXPECT_EQ(words[record + table::slot_tile] / 8, 1) << "the tiles of rank 1";
        for (auto made = words[record + table::slot_makes];
             made < (words[record + table::slot_makes + 1] & ~table::at_once); made += table::made_words) {
            EXPECT_EQ(words[static_cast<std::size_t>(made) + table::made_groups], 1);
            ++sent;
        }
    }
    EXPECT_EQ(sent, 4 * 2 + 4)
        << "of the other rank's four experts, X and where it comes from; the own ones' X";
    const auto down = emit::make_table(*schedule, 1, 1 << 21, 24, {}, 4);
    const auto of_down = static_cast<std::size_t>(down[table::groups]) + 4;
    const auto made = static_cast<std::size_t>(down[of_down + table::slot_makes]);
    EXPECT_EQ(down[made + table::made_groups], 0)
        << "all experts of a rank make what goes back to another one";
    EXPECT_EQ(emit::make_table(*schedule, 1, 1 << 21, 24, {}, 0)[table::groups], 0);
}

TEST(Moe, AGroupThatNoKernelSendsByItselfIsRefused) {
    auto program = *ops::program(problem_of(spec(2)), tiled());
    for (kernel::Param& param : program.stages[2].kernel.params) param.sent = false;
    const auto schedule = fuse::fuse(program, fuse_options(tiled(), fuse::Device::host));
    ASSERT_FALSE(schedule);
    EXPECT_NE(schedule.error().message.find("a kernel that states that it sends them itself"),
              std::string::npos)
        << schedule.error().message;
}

}  // namespace
}  // namespace syncopate::ops
