// Tiles that read what their rank itself was given where the user has it (inline_reads.hpp).
#include <gtest/gtest.h>

#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"

namespace syncopate::fuse {
namespace {

/// An all-to-all of X into A, and the product of what came.
Program exchanged(const sample::Gemm& g, std::int32_t ranks, bool for_kernel = true) {
    return {sample::gemm(g),
            plan::push_exchange(sample::ranks(ranks), {"X", {g.M, g.K}, plan::DType::bf16}, "A",
                                {.produced = false, .for_kernel = for_kernel})
                .value(),
            {{"a_ptr", "A"}}};
}

bool copies_own(const RankSchedule& rank) {
    return std::ranges::any_of(rank.transfers, [](const Transfer& t) { return t.src_rank == t.dst_rank; });
}

TEST(OwnReads, NeedNoCopyAndNoWaitAndComeFirst) {
    for (const Device device : {Device::host, Device::cuda}) {
        const auto schedule = fuse(exchanged({8, 4, 4, 2, 2, 2}, 4), {.device = device}).value();
        EXPECT_EQ(schedule.loads(), (Reach{1, false, true}));
        for (std::int32_t rank = 0; rank < 4; ++rank) {
            const RankSchedule& of_rank = schedule.ranks[static_cast<std::size_t>(rank)];
            EXPECT_FALSE(copies_own(of_rank));
            EXPECT_EQ(of_rank.transfers.size(), 3u);
            for (std::size_t slot = 0; slot < of_rank.slots.size(); ++slot) {
                const bool own = slot < 2;  // two tiles of its two rows
                EXPECT_EQ(of_rank.slots[slot].from, own ? std::optional(Place{rank, 0, 0}) : std::nullopt);
                EXPECT_EQ(of_rank.slots[slot].waits.empty(), own);
            }
        }
    }
}

TEST(OwnReads, AreNotForWhatIsToStayOrIsOverwrittenNorForTilesOfSeveralBlocks) {
    const auto copied = [](const Program& program, const Options& options = {}) {
        const auto schedule = fuse(program, options);
        EXPECT_TRUE(schedule.ok()) << schedule.error().to_string();
        return copies_own(schedule->ranks[0]);
    };
    const sample::Gemm g{8, 4, 4, 2, 2, 2};
    EXPECT_FALSE(copied(exchanged(g, 4)));
    EXPECT_FALSE(copied(exchanged(g, 4), {.preferred = plan::Backend::copy_engine}));
    EXPECT_TRUE(copied(exchanged(g, 4, false))) << "the end of the call asks for it";
    EXPECT_TRUE(copied(exchanged({12, 4, 4, 2, 2, 2}, 4))) << "blocks of three rows, tiles of two";
    EXPECT_TRUE(copied(exchanged({6, 4, 4, 4, 2, 2}, 2))) << "a tile reads two blocks";
    Program named = exchanged(g, 4);
    for (auto& list : named.plan.ranks) list[0].backend = plan::Backend::host;
    EXPECT_TRUE(copied(named)) << "the plan says how";
    Program overwritten = exchanged(g, 2);
    plan::Op write = overwritten.plan.ranks[1][1];  // from rank 1, into what rank 0 was given
    write.dst = {0, {{0, 4}, {0, 4}}};
    write.after = {{0, 0}, {0, 1}};
    overwritten.plan.ranks[1].push_back(write);
    EXPECT_TRUE(copied(overwritten));
}

/// A gathered along its rows, and the product of it.
Program gathered(const sample::Gemm& g, std::int32_t ranks, const plan::AllGatherOptions& options) {
    return {sample::gemm(g),
            plan::all_gather(sample::ranks(ranks), {"A", {g.M, g.K}, plan::DType::bf16}, options).value(),
            {{"a_ptr", "A"}}};
}

TEST(OwnReads, AreOfThePartThatARankHoldsWhereTheEndDoesNotAskForIt) {
    for (const bool pull : {false, true}) {
        const auto schedule =
            fuse(gathered({8, 4, 4, 2, 2, 2}, 4, {.pull = pull, .transient = true}), {.device = Device::cuda})
                .value();
        EXPECT_EQ(schedule.loads(), (Reach{0, false, true}));
        for (std::int32_t rank = 0; rank < 4; ++rank) {
            const RankSchedule& of_rank = schedule.ranks[static_cast<std::size_t>(rank)];
            EXPECT_EQ(of_rank.transfers.size(), 3u);
            for (std::size_t slot = 0; slot < of_rank.slots.size(); ++slot) {
                const bool own = of_rank.slots[slot].tile / 2 == rank;
                EXPECT_EQ(own, slot < 2) << "they come first";
                EXPECT_EQ(of_rank.slots[slot].from, own ? std::optional(Place{rank, 0, 0}) : std::nullopt);
                EXPECT_EQ(of_rank.slots[slot].waits.empty(), own);
            }
        }
    }
    const auto reads_own = [](const Program& program, const Options& options = {}) {
        const auto schedule = fuse(program, options);
        EXPECT_TRUE(schedule.ok()) << schedule.error().to_string();
        return schedule.ok() && schedule->loads().has_value();
    };
    EXPECT_FALSE(reads_own(gathered({8, 4, 4, 2, 2, 2}, 4, {})));
    EXPECT_TRUE(
        reads_own(gathered({8, 4, 4, 2, 2, 2}, 4, {.minor_axis = 1, .minor_split = 2, .transient = true})));
    EXPECT_TRUE(reads_own(gathered({8, 4, 4, 2, 2, 2}, 4, {.transient = true}),
                          {.preferred = plan::Backend::tma_dedicated}));
    EXPECT_FALSE(reads_own(gathered({4, 4, 4, 4, 2, 2}, 4, {.transient = true}))) << "every tile reads more";
    Program overwritten = gathered({8, 4, 4, 2, 2, 2}, 2, {.transient = true});
    plan::Op back = overwritten.plan.ranks[0][0];  // rank 0's rows, which rank 1 sends back
    back.peer = 0;
    back.after = {{0, 0}};
    overwritten.plan.ranks[1].push_back(back);
    EXPECT_FALSE(reads_own(overwritten));
}

TEST(OwnReads, LeaveOutTilesAtABorderWhoseRowsAreInTheHeap) {
    // Three rows a rank, tiles of two rows by two columns: each rank has a row that a tile shares with another.
    const auto schedule =
        fuse(gathered({12, 4, 4, 2, 2, 2}, 4, {.transient = true}), {.device = Device::cuda}).value();
    EXPECT_EQ(schedule.loads(), (Reach{0, false, true}));
    for (std::int32_t rank = 0; rank < 4; ++rank) {
        const RankSchedule& of_rank = schedule.ranks[static_cast<std::size_t>(rank)];
        const std::int64_t row = rank % 2 == 0 ? 3 * rank + 2 : 3 * rank;
        ASSERT_EQ(of_rank.borders.size(), 1u);
        EXPECT_EQ(of_rank.borders[0].region, (plan::Region{{row, row + 1}, {0, 4}}));
        for (const Slot& slot : of_rank.slots) {
            const std::int64_t first = slot.tile / 2 * 2;
            const bool own = first >= 3 * rank && first + 2 <= 3 * rank + 3;
            EXPECT_EQ(slot.from, own ? std::optional(Place{rank, 0, 0}) : std::nullopt);
            EXPECT_EQ(slot.waits.empty(), own) << "a tile at a border waits for the other rank's rows";
        }
    }
    EXPECT_TRUE(fuse(gathered({8, 4, 4, 2, 2, 2}, 4, {.transient = true})).value().ranks[0].borders.empty());
}

TEST(OwnReads, AreByAHeapWideAddressWhereOthersAreFetchedToo) {
    Program program = exchanged({8, 4, 4, 2, 2, 2}, 4);
    program.plan = plan::push_exchange(sample::ranks(4), {"X", {8, 4}, plan::DType::bf16}, "A",
                                       {.produced = false, .transient = true})
                       .value();
    const auto schedule = fuse(program, {.preferred = plan::Backend::ldst_inline}).value();
    EXPECT_EQ(schedule.loads(), (Reach{1, false, false}));
    const auto alone =
        fuse(exchanged({8, 4, 4, 2, 2, 2}, 1), {.preferred = plan::Backend::ldst_inline}).value();
    EXPECT_EQ(alone.loads(), (Reach{1, false, true})) << "one rank fetches from itself only";
}

}  // namespace
}  // namespace syncopate::fuse
