#include "syncopate/fuse/passes/build.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu_time.hpp"
#include "fuse/passes/run_tiles.hpp"
#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/json.hpp"
#include "syncopate/fuse/passes/launch.hpp"
#include "syncopate/fuse/passes/pack.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::fuse {
namespace {

Program reduced(const sample::Gemm& g, std::int32_t ranks, const plan::PushReduceOptions& options = {}) {
    return {sample::gemm(g),
            plan::push_reduce(sample::ranks(ranks), {"C", {g.M, g.N}, plan::DType::bf16}, options).value(),
            {{"c_ptr", "C"}}};
}

std::string error_of(const Program& program, const Options& options = {}) {
    const auto result = fuse(program, options);
    return result.ok() ? "" : result.error().to_string();
}

std::vector<std::int64_t> tiles_of(const RankSchedule& rank) {
    std::vector<std::int64_t> tiles;
    for (const Slot& slot : rank.slots) tiles.push_back(slot.tile);
    return tiles;
}

TEST(Produce, CountsTheTilesOfEachChunk) {
    const Schedule schedule = fuse(reduced({8, 4, 4, 2, 2, 2}, 4)).value();  // 4 rows of 2 tiles
    EXPECT_TRUE(schedule.produces(0));
    for (const RankSchedule& rank : schedule.ranks) {
        ASSERT_EQ(rank.chunks.size(), 4U) << "three that leave, and the own one";
        for (const MadeChunk& chunk : rank.chunks) {
            EXPECT_EQ(chunk.counting.size(), 2U);
            ASSERT_EQ(chunk.posts.size(), 1U);
        }
        for (const Slot& slot : rank.slots) EXPECT_EQ(slot.makes.size(), 1U);
    }
}

TEST(Produce, TilesThatMakeWhatIsSentDoNotWaitTogether) {
    EXPECT_EQ(error_of(reduced({8, 4, 4, 2, 2, 2}, 4), {.together = true}),
              "tiles of matmul cannot all wait for what arrives: some of them make what is sent");
}

TEST(Produce, ATileThatStraddlesChunksCountsInEach) {
    const Schedule schedule = fuse(reduced({6, 2, 4, 4, 2, 2}, 3)).value();  // tiles of 4 rows, shards of 2
    const RankSchedule& rank = schedule.ranks[0];
    ASSERT_EQ(rank.slots.size(), 2U);
    std::vector<std::size_t> counts{rank.slots[0].makes.size(), rank.slots[1].makes.size()};
    std::sort(counts.begin(), counts.end());
    EXPECT_EQ(counts, (std::vector<std::size_t>{1, 2}));
}

TEST(Produce, OrdersTilesByWhenTheirChunkLeavesTheNextRanksFirstTheOwnLast) {
    const Schedule schedule = fuse(reduced({8, 4, 4, 2, 2, 2}, 4)).value();
    EXPECT_EQ(tiles_of(schedule.ranks[1]), (std::vector<std::int64_t>{4, 5, 6, 7, 0, 1, 2, 3}));
    EXPECT_EQ(tiles_of(schedule.ranks[3]), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Produce, MakesThePartsOfASumThatReadsThemWhereTheyAreTogetherAndCountsThemAtOnce) {
    const Program program = reduced({16, 8, 4, 2, 8, 2}, 4, {.split = 2, .by_part = true, .pull = true});
    const Schedule schedule = fuse(program, {.preferred = plan::Backend::ldst_dedicated}).value();
    for (const RankSchedule& rank : schedule.ranks) {
        std::int64_t firsts = 0;  // of the first four tiles, those of first halves of shards
        for (std::size_t slot = 0; slot < 4; ++slot) firsts += rank.slots[slot].tile % 2 == 0;
        EXPECT_EQ(firsts, 4) << "the own part as well";
        for (const MadeChunk& chunk : rank.chunks) {
            EXPECT_EQ(chunk.counting.size(), 1U);
            EXPECT_TRUE(chunk.at_once);
        }
        for (const Transfer& transfer : rank.transfers) EXPECT_EQ(transfer.sum()->sources.size(), 3U);
    }
}

TEST(Produce, TilesThatAreStoredAtTheirOwnersTakeTurnsFromTheNextRanksOnSoThatNoTwoAimAtOne) {
    const Program program = reduced({16, 8, 4, 2, 8, 2}, 4);
    const Schedule schedule = fuse(program, {.preferred = plan::Backend::ldst_inline}).value();
    for (std::int64_t rank = 0; rank < 4; ++rank) {
        const std::vector<Slot>& slots = schedule.ranks[static_cast<std::size_t>(rank)].slots;
        ASSERT_EQ(slots.size(), 8U);
        for (std::int64_t slot = 0; slot < 8; ++slot) {  // two tiles for each rank
            const std::int64_t tile = slots[static_cast<std::size_t>(slot)].tile;
            EXPECT_EQ(tile / 2, (rank + 1 + slot) % 4);
            EXPECT_EQ(tile % 2, slot / 4) << "those of one column together";
        }
    }
}

TEST(Produce, TilesThatAreStoredDoNotTakeTurnsWhereSomebodySendsTheirChunkOn) {
    plan::Plan plan = plan::push_exchange(sample::ranks(2), {"C", {16, 8}, plan::DType::bf16}, "D").value();
    const auto tiles = [&] {  // of two rows each, of rank 0
        const Program program{sample::gemm({16, 8, 4, 2, 8, 2}), plan, {{"c_ptr", "C"}}};
        const auto made = fuse(program, {.preferred = plan::Backend::ldst_inline});
        EXPECT_TRUE(made) << made.error().to_string();
        return made ? tiles_of(made->ranks[0]) : std::vector<std::int64_t>{};
    };
    EXPECT_EQ(tiles(), (std::vector<std::int64_t>{4, 0, 5, 1, 6, 2, 7, 3}));

    const std::vector<plan::Op>& list = plan.ranks[0];
    const auto pushed = std::ranges::find(list, plan::OpKind::push, &plan::Op::kind);
    ASSERT_NE(pushed, list.end());
    plan::Op on{.kind = plan::OpKind::push, .peer = 0, .src = pushed->dst, .dst = pushed->dst};
    on.dst.tensor = static_cast<std::int32_t>(plan.tensors.size());
    on.after = {{0, static_cast<std::int32_t>(pushed - list.begin())}};
    plan.tensors.push_back({"E", {16, 8}, plan::DType::bf16});
    const auto held = std::ranges::find(plan.final, pushed->dst, &plan::Holding::chunk);
    ASSERT_NE(held, plan.final.end());
    plan::Holding asked = *held;
    asked.rank = 0;
    asked.chunk = on.dst;
    plan.final.push_back(asked);
    plan.ranks[1].push_back(on);
    EXPECT_EQ(tiles(), (std::vector<std::int64_t>{4, 5, 6, 7, 0, 1, 2, 3}))
        << "rank 1 waits for the first four";
}

TEST(Produce, WhatIsCopiedIsMadeBeforeWhatTheListStoresAtItsOwnerAfterIt) {
    using plan::Backend;
    const Program program = reduced(
        {16, 8, 4, 2, 8, 2}, 4, {.backends = {Backend::automatic, Backend::automatic, Backend::ldst_inline}});
    const Schedule schedule = fuse(program, {.device = Device::cuda}).value();
    for (std::int64_t rank = 0; rank < 4; ++rank) {
        const RankSchedule& own = schedule.ranks[static_cast<std::size_t>(rank)];
        for (std::int64_t slot = 0; slot < 8; ++slot)
            EXPECT_EQ(own.slots[static_cast<std::size_t>(slot)].tile / 2, (rank + 1 + slot / 2) % 4);
        EXPECT_EQ(own.transfers.size(), 3U) << "two copies and the sum";
    }
}

TEST(Produce, TheEngineStoresItsSumsAtThePeers) {
    const Program program = reduced({16, 8, 4, 2, 8, 2}, 4, {.all = true, .pull = true});
    const Schedule schedule = fuse(program, {.preferred = plan::Backend::ldst_dedicated}).value();
    for (std::int32_t rank = 0; rank < 4; ++rank) {
        const RankSchedule& own = schedule.ranks[static_cast<std::size_t>(rank)];
        ASSERT_EQ(own.transfers.size(), 1U) << "nothing else is sent";
        EXPECT_EQ(own.transfers[0].sum()->peers,
                  (std::vector<std::int32_t>{(rank + 1) % 4, (rank + 2) % 4, (rank + 3) % 4}));
        EXPECT_EQ(own.end_waits.size(), 3U) << "the other ranks' rows";
    }
}

TEST(Produce, SumsBesideTheKernelReadAndStoreAtThePeersThemselves) {
    const Program program =
        reduced({16, 8, 4, 2, 8, 2}, 4, {.split = 2, .all = true, .by_part = true, .pull = true});
    for (const Device device : {Device::cuda, Device::host}) {
        const Schedule schedule =
            fuse(program, {.device = device, .preferred = plan::Backend::ldst_inline}).value();
        for (std::int32_t rank = 0; rank < 4; ++rank) {
            const RankSchedule& own = schedule.ranks[static_cast<std::size_t>(rank)];
            ASSERT_EQ(own.transfers.size(), 2U) << "a sum a part, and nothing else";
            for (const Transfer& sum : own.transfers) {
                EXPECT_EQ(sum.backend,
                          device == Device::cuda ? plan::Backend::copy_engine : plan::Backend::host);
                EXPECT_EQ(sum.sum()->sources.size(), 3U);
                EXPECT_EQ(sum.sum()->peers.size(), 3U);
                EXPECT_EQ(sum.waits.size(), 4U) << "for what each rank makes";
            }
            EXPECT_EQ(own.num_relays, 0);
            if (device == Device::host) continue;
            for (const Transfer& sum : own.transfers) {
                EXPECT_EQ(sum.step.launch, Launch::sums);
                EXPECT_EQ(sum.step.gates.size(), 1U) << "of the own part";
                EXPECT_EQ(sum.step.awaited.size(), 3U) << "of the peers'";
            }
        }
        const std::string text = to_json(schedule);
        EXPECT_EQ(to_json(schedule_from_json(text, "test").value()), text);
    }
}

TEST(Produce, ATransferWaitsForItsOwnKernelAndASumForItsContributionsToo) {
    const Schedule schedule = fuse(reduced({8, 4, 4, 2, 2, 2}, 4)).value();
    const RankSchedule& rank = schedule.ranks[2];
    ASSERT_EQ(rank.transfers.size(), 4U);
    for (const Transfer& transfer : rank.transfers) {
        std::size_t made = 0;
        std::size_t arrived = 0;
        for (const Wait& wait : transfer.waits) {
            const SignalMeaning& meaning = rank.signals[wait.signal];
            made += meaning.kind == SignalMeaning::Kind::made ? 1 : 0;
            arrived += meaning.kind == SignalMeaning::Kind::arrived ? 1 : 0;
        }
        EXPECT_EQ(made, 1U);
        EXPECT_EQ(arrived, transfer.sum() == nullptr ? 0U : 3U);
    }
    EXPECT_EQ(rank.transfers.back().sum()->own, 2);
}

TEST(Produce, OfEachChunkTheLastTileOfEachProgramCounts) {
    // 64 rows of 8 tiles on 16 programs: each makes 32 tiles, 8 of them of each of four shards.
    const Schedule schedule = fuse(reduced({64, 16, 4, 1, 2, 2, 16}, 4)).value();
    for (const RankSchedule& rank : schedule.ranks) {
        EXPECT_EQ(rank.chunks.front().counting.front(), 112);
        for (std::size_t chunk = 0; chunk < rank.chunks.size(); ++chunk) {
            const MadeChunk& made = rank.chunks[chunk];
            std::vector<std::int32_t> last(16);
            for (std::size_t slot = 0; slot < rank.slots.size(); ++slot) {
                if (rank.slots[slot].makes != std::vector{static_cast<std::int32_t>(chunk)}) continue;
                last[slot % 16] = static_cast<std::int32_t>(slot);
            }
            std::sort(last.begin(), last.end());
            EXPECT_EQ(made.counting, last);
            EXPECT_TRUE(made.at_once);
        }
    }
}

TEST(Produce, WhatIsStoredAtOtherRanksCanWait) {
    const Schedule schedule = fuse(reduced({64, 16, 4, 1, 2, 2, 16}, 4),
                                   {.device = Device::cuda, .preferred = plan::Backend::ldst_inline})
                                  .value();
    for (const MadeChunk& made : schedule.ranks[0].chunks) EXPECT_EQ(made.at_once, made.stores.empty());
}

TEST(Produce, WhatStaysOnTheRankIsMadeLast) {
    const plan::Plan plan =
        plan::push_exchange(sample::ranks(4), {"C", {8, 4}, plan::DType::bf16}, "D").value();
    const Schedule schedule = fuse(Program{sample::gemm({8, 4, 4, 2, 2, 2}), plan, {{"c_ptr", "C"}}}).value();
    EXPECT_EQ(tiles_of(schedule.ranks[0]), (std::vector<std::int64_t>{2, 3, 4, 5, 6, 7, 0, 1}));
}

TEST(Produce, EveryTileOfASplitKernelCounts) {
    Program program = reduced({8, 4, 4, 2, 2, 2}, 2);
    const std::size_t tiles = program.kernel.tiles.size();
    for (std::size_t tile = 0; tile < tiles; ++tile) {  // each place is written by two tiles
        kernel::Tile twin = program.kernel.tiles[tile];
        twin.id = static_cast<std::int64_t>(tiles + tile);
        twin.program = twin.id;
        program.kernel.tiles.push_back(twin);
    }
    program.kernel.grid = {static_cast<std::int64_t>(2 * tiles), 1, 1};
    const Schedule schedule = fuse(program).value();
    for (const MadeChunk& chunk : schedule.ranks[0].chunks) EXPECT_EQ(chunk.counting.size(), 8U);
}

TEST(Produce, PacksTilesOfUnequalCostChunkByChunk) {
    const std::vector<double> times{1, 2, 1, 2};
    EXPECT_EQ(pack_by_deadline(times, {5, 5, 0, 0}, 1), (std::vector<std::int64_t>{3, 2, 1, 0}));
    // Program 1 is free first after its short tile, so it takes the next one.
    EXPECT_EQ(pack_by_deadline({2, 1, 2, 1}, {0, 0, 5, 5}, 2), (std::vector<std::int64_t>{0, 1, 3, 2}));
}

TEST(Produce, SaysWhatDoesNotFit) {
    Program program = reduced({8, 4, 4, 2, 2, 2}, 2);
    program.plan.produced.clear();
    program.plan.initial = {{.rank = 0, .chunk = {0, {{0, 8}, {0, 4}}}, .partial = true},
                            {.rank = 1, .chunk = {0, {{0, 8}, {0, 4}}}, .partial = true}};
    EXPECT_NE(error_of(program).find("list it in \"produced\""), std::string::npos) << error_of(program);

    program = reduced({8, 4, 4, 2, 2, 2}, 2);
    program.kernel.tiles.resize(4);  // the lower half is written by nobody
    EXPECT_NE(
        error_of(program).find("no tile of matmul writes C[4:8, 0:4], which the plan lists as produced"),
        std::string::npos)
        << error_of(program);

    program = reduced({8, 4, 4, 2, 2, 2}, 2);
    for (kernel::Tile& tile : program.kernel.tiles) tile.writes["c_ptr"][0] = {0, 8};
    program.plan.produced[0].chunk.region[1].end = 4;
    EXPECT_TRUE(fuse(program).ok());
    program.plan.tensors[0].shape[1] = 6;
    program.kernel.arguments.tensors["c_ptr"].shape[1] = 6;
    for (kernel::Tile& tile : program.kernel.tiles) tile.writes["c_ptr"][1] = {2, 6};
    EXPECT_NE(error_of(program).find("which the plan does not list as produced on rank 0"), std::string::npos)
        << error_of(program);
}

/// Rank 0 sends its C to where rank 1's kernel writes its own, and waits for nothing there.
Program sent_over() {
    Program program = reduced({4, 4, 4, 2, 2, 2}, 2);
    program.plan.ranks[1].clear();
    program.plan.ranks[0].resize(1);
    program.plan.ranks[0][0].reduce = plan::Reduce::none;
    program.plan.final.clear();
    return program;
}

TEST(Produce, RefusesToOverwriteWhatAKernelMakesUnasked) {
    const Program program = sent_over();
    EXPECT_NE(error_of(program).find("on rank 1, which the kernel produces and may write later"),
              std::string::npos)
        << error_of(program);
}

TEST(Produce, ARankThatMakesNothingLeavesOutWhatAnOpBringsIt) {
    Program program = sent_over();
    program.plan.produced.resize(1);
    program.plan.produced[0].partial = false;
    ASSERT_EQ(program.plan.produced[0].rank, 0);
    for (plan::Chunk* chunk : {&program.plan.ranks[0][0].src, &program.plan.ranks[0][0].dst})
        chunk->region = program.plan.tensors[at(chunk->tensor)].whole();
    const Result<Schedule> schedule = fuse(program, {});
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    EXPECT_EQ(schedule->ranks[0].slots.size(), program.kernel.tiles.size());
    EXPECT_TRUE(schedule->ranks[1].slots.empty());
    const std::string error = error_of(program, {.device = Device::cuda});
    EXPECT_NE(error.find("is left for this rank to run, as only device host can have it"), std::string::npos)
        << error;
}

/// What such ranks have is found in one walk over all ops, not in one for each of them: that would be 2 x 10^9 steps.
TEST(Produce, WhatManyRanksThatMakeNothingHaveIsFoundAtOnce) {
    constexpr std::int32_t kRanks = 4096, kOps = 128;
    Program program = sent_over();
    plan::Plan& plan = program.plan;
    plan.mesh = sample::ranks(kRanks);
    plan.produced.resize(1);
    plan.ranks.resize(at(kRanks));
    plan::Op sent = plan.ranks[0][0];
    sent.src.region = sent.dst.region = plan.tensors[at(sent.dst.tensor)].whole();
    plan.ranks[0].clear();
    for (std::int32_t rank = 1; rank < kRanks; ++rank) {
        sent.peer = rank;
        plan.ranks[0].push_back(sent);
        plan.ranks[at(rank)].resize(at(kOps));
        for (plan::Op& op : plan.ranks[at(rank)])
            op.dst = {sent.dst.tensor, {{4, 5}, {0, 1}}};  // beyond all tiles
    }
    Graph graph;
    graph.stages.resize(1);
    const double begun = test::cpu_seconds();
    const StagedProgram staged{{{program.kernel, program.bindings}}, plan};
    ASSERT_TRUE(find_runs(BoundKernel(staged.stages[0], staged.plan), 0, graph));
    EXPECT_LT(test::cpu_seconds() - begun, 5);
    const std::vector<std::vector<bool>>& runs = graph.stages[0].runs;
    ASSERT_EQ(runs.size(), at(kRanks));
    for (std::size_t rank = 0; rank < runs.size(); ++rank)
        EXPECT_EQ(std::ranges::count(runs[rank], true), rank == 0 ? std::ssize(program.kernel.tiles) : 0)
            << rank;
}

TEST(Produce, RefusesToReceiveWhatAKernelWritesUnasked) {
    // As above, but the tiles make something for the caller, too, so that rank 1 runs them all: they write there.
    Program program = sent_over();
    program.plan.produced.resize(1);
    program.plan.produced[0].partial = false;
    kernel::Param more = program.kernel.params.back();
    more.name = "more_ptr";
    more.written = true;
    program.kernel.params.push_back(more);
    const std::string error = error_of(program);
    EXPECT_NE(error.find("the plan lists nothing of C as produced on rank 1"), std::string::npos) << error;
}

}  // namespace
}  // namespace syncopate::fuse
