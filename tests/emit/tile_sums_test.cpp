// Sums that tiles do, from the example kernel that stores through a descriptor made on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "fuse/sample.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/io.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::emit {
namespace {

struct Case {
    std::int64_t rows = 2048;
    std::int32_t ranks = 4;
    plan::PushReduceOptions plan{};
    std::string kernel = "matmul_persistent_host_tma";
    plan::Backend preferred = plan::Backend::automatic;
    plan::DType dtype = plan::DType::bf16;
    bool one_shot = false;
};

constexpr std::int64_t kColumns = 512;

Artifact fused(const Case& c) {
    kernel::Arguments arguments;
    const bool pointers = c.kernel == "matmul_pointers";
    const std::int64_t k = 128;
    arguments.scalars = {{"M", c.rows},
                         {"N", kColumns},
                         {"K", k},
                         {"BLOCK_M", std::int64_t{128}},
                         {"BLOCK_N", std::int64_t{128}},
                         {"BLOCK_K", std::int64_t{64}},
                         {"GROUP_M", std::int64_t{8}}};
    const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, std::int64_t columns) {
        const std::vector<std::int64_t> block{128, columns};
        arguments.tensors[name + (pointers ? "_ptr" : "_desc")] = {
            std::move(shape), {}, c.dtype, pointers ? std::vector<std::int64_t>{} : block};
    };
    add("a", {c.rows, k}, 64);
    add("b", pointers ? std::vector{k, kColumns} : std::vector{kColumns, k}, 64);
    add("c", {c.rows, kColumns}, 128);
    if (pointers) {
        for (const auto& [name, stride] : {std::pair<const char*, std::int64_t>{"stride_am", k},
                                           {"stride_ak", 1},
                                           {"stride_bk", kColumns},
                                           {"stride_bn", 1},
                                           {"stride_cm", kColumns},
                                           {"stride_cn", 1}})
            arguments.scalars[name] = stride;
    } else {
        arguments.scalars["NUM_SMS"] = std::int64_t{8};
    }
    const plan::Tensor tensor{"C", {c.rows, kColumns}, c.dtype};
    auto plan = c.one_shot
                    ? plan::push_to_all(fuse::sample::ranks(c.ranks), tensor, "Y", {.axis = 1, .split = 4})
                    : plan::push_reduce(fuse::sample::ranks(c.ranks), tensor, c.plan);
    EXPECT_TRUE(plan.ok());
    const std::string file = "examples/" + c.kernel + ".py";
    auto artifact = make_artifact(
        read_file(std::string(SYNCOPATE_SOURCE_DIR) + "/" + file).value(), file, "matmul_kernel",
        std::move(arguments), *std::move(plan), {{pointers ? "c_ptr" : "c_desc", "C"}},
        {.device = fuse::Device::cuda, .preferred = c.preferred, .tile_sums = true});
    EXPECT_TRUE(artifact.ok()) << artifact.error().to_string();
    return *std::move(artifact);
}

TEST(TileSums, AreDoneByTheTilesOfTheOwnShardEachElementOnce) {
    const fuse::Schedule schedule = fused({}).launch.schedule;
    ASSERT_TRUE(schedule.summed.has_value());
    for (std::int32_t number = 0; number < 4; ++number) {
        const fuse::RankSchedule& rank = schedule.ranks[static_cast<std::size_t>(number)];
        ASSERT_EQ(rank.transfers.size(), 4U) << "three pushes and the sum";
        const fuse::Transfer& sum = rank.transfers.back();
        std::int64_t elements = 0;
        std::set<std::int32_t> slots;
        for (const fuse::TileSum& tile : sum.tiles) {
            EXPECT_TRUE(contains(sum.dst.region, tile.region));
            EXPECT_EQ(tile.blocks, 1);
            elements += num_elements(tile.region);
            EXPECT_TRUE(slots.insert(tile.slot).second);
            EXPECT_GE(tile.slot, schedule.num_slots * 3 / 4) << "the own rows come last";
        }
        EXPECT_EQ(elements, num_elements(sum.dst.region));
    }
}

TEST(TileSums, WaitForWhatOtherRanksSendAndNotForTheirOwnTiles) {
    const fuse::Schedule schedule = fused({}).launch.schedule;
    const std::vector<std::uint64_t> offsets{0, 1 << 20, 1 << 24};  // of C, its staging, the control block
    const std::vector<std::int32_t> words = make_table(schedule, 1, 1 << 30, 8, offsets);
    const fuse::RankSchedule& rank = schedule.ranks[1];
    const fuse::Transfer& sum = rank.transfers.back();
    std::size_t summing = 0;
    for (std::int32_t slot = 0; slot < schedule.num_slots; ++slot) {
        const std::int32_t record = words[static_cast<std::size_t>(words[table::sums] + 2 * slot)];
        EXPECT_EQ(words[static_cast<std::size_t>(late_word(words, slot))], 0);
        if (record == 0) continue;
        ++summing;
        const std::int32_t* const r = &words[static_cast<std::size_t>(record)];
        EXPECT_EQ(r[1] - r[0], 2 * 3) << "one signal from each other rank";
        EXPECT_EQ(r[2], 3);
        EXPECT_EQ(r[3], 1) << "rank 1 comes second";
        // Slot 0 of staging holds rows 512 to 1023 of C; row 0 would be 512 rows before it.
        EXPECT_EQ(r[4], (1 << 20) - 512 * kColumns * 2 - (1 << 24));
        EXPECT_EQ(r[5], -1);
        EXPECT_EQ(r[6], 512 * kColumns * 2);
        EXPECT_EQ(r[8], kColumns);
        EXPECT_EQ(r[9], 0) << "nobody waits for the sum";
    }
    EXPECT_EQ(summing, sum.tiles.size());
}

TEST(TileSums, OfAnAllReduceLetEachPartLeaveWhileLaterOnesAreMade) {
    const fuse::Schedule schedule =
        fused({.plan = {.split = 4, .all = true, .by_part = true}}).launch.schedule;
    const fuse::RankSchedule& rank = schedule.ranks[0];
    const fuse::StreamPlan streams = fuse::plan_streams(rank, 0);
    EXPECT_EQ(streams.num_tile_sums, 4);
    std::vector<std::int32_t> first_slots;
    for (std::size_t i = 0; i < rank.transfers.size(); ++i) {
        const fuse::StreamStep& step = streams.steps[i];
        if (step.tile_sum < 0) continue;
        EXPECT_TRUE(step.gated);
        EXPECT_TRUE(step.gates.empty()) << "what the tiles have left is done after the kernel";
        EXPECT_EQ(fuse::blocks_of_sum(rank, streams, step.tile_sum), 4U) << "128 rows of four tiles";
        const auto& tiles = rank.transfers[i].tiles;
        first_slots.push_back(std::min_element(tiles.begin(), tiles.end(), [](const auto& a, const auto& b) {
                                  return a.slot < b.slot;
                              })->slot);
    }
    ASSERT_EQ(first_slots.size(), 4U);
    EXPECT_TRUE(std::is_sorted(first_slots.begin(), first_slots.end()));
    EXPECT_LT(first_slots.front(), schedule.num_slots / 2) << "the first part is summed early";
    std::set<std::int32_t> passed;
    for (const fuse::StreamStep& step : streams.steps) passed.insert(step.summed.begin(), step.summed.end());
    EXPECT_EQ(passed.size(), 4U) << "copies wait for the gates of all four";
}

TEST(TileSums, OfAnAllReduceInOneStepAreOfEveryTileWhichIsPostedBeforeItWaits) {
    const Artifact artifact = fused({.rows = 256, .preferred = plan::Backend::tma_inline, .one_shot = true});
    const fuse::Schedule& schedule = artifact.launch.schedule;
    ASSERT_TRUE(schedule.summed.has_value());
    EXPECT_EQ(schedule.tensors[static_cast<std::size_t>(*schedule.summed)].name, "C");
    EXPECT_EQ(schedule.stores->copies, 4) << "three peers' staging and the place of the sum";
    const fuse::RankSchedule& rank = schedule.ranks[2];
    ASSERT_EQ(rank.transfers.size(), 4U) << "a sum for each chunk; what is sent goes inline";
    std::set<std::int32_t> slots;
    for (const fuse::Transfer& sum : rank.transfers) {
        EXPECT_EQ(sum.own, 2);
        for (const fuse::TileSum& tile : sum.tiles) slots.insert(tile.slot);
    }
    EXPECT_EQ(slots.size(), 8U) << "every tile";
    const std::string& text = artifact.kernel_source();
    const std::size_t store = text.find("c_desc.store(["), post = text.find("sy_post(sy_sch"),
                      sum = text.find("sy_sum(sy_sch");
    EXPECT_LT(store, post);
    EXPECT_LT(post, sum);
    EXPECT_EQ(text.find("sy_post(sy_sch", post + 1), std::string::npos) << "once";
    // Without inline stores the own part would be copied over the sum.
    const Case copied{.rows = 256, .preferred = plan::Backend::copy_engine, .one_shot = true};
    EXPECT_FALSE(fused(copied).launch.schedule.summed.has_value());
    EXPECT_TRUE(fused({.rows = 256, .one_shot = true}).launch.schedule.summed.has_value())
        << "left open, it is stored there";
}

TEST(TileSums, AreLeftToTheStreamWhereTilesCannot) {
    const auto summed = [](const Case& c) { return fused(c).launch.schedule.summed.has_value(); };
    EXPECT_FALSE(summed({.rows = 2000})) << "tiles straddle shards";
    EXPECT_FALSE(summed({.kernel = "matmul_pointers"}));
    EXPECT_FALSE(summed({.plan = {.reduce = plan::Reduce::max}}));
    EXPECT_FALSE(summed({.preferred = plan::Backend::tma_dedicated})) << "the chunk engine sums";
    EXPECT_TRUE(summed({.preferred = plan::Backend::tma_inline}));
    EXPECT_TRUE(summed({.dtype = plan::DType::fp32}));
}

}  // namespace
}  // namespace syncopate::emit
