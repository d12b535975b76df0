#include "syncopate/ops/attention_backward.hpp"

#include <algorithm>
#include <ranges>
#include <span>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "syncopate/ops/attention_kernel.hpp"
#include "syncopate/ops/statements.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

TEST(AttentionBackward, IsAProgramOfItsKernelOnAnyNumberOfRanks) {
    for (const std::int32_t ranks : {2, 3, 4}) {
        for (const char* kind : {"all_gather", "ring", "double_ring"}) {
            for (const char* sharding : {"contiguous", "zigzag"}) {
                const auto problem = parse_problem(
                    fmt::format("attention_backward:S=3072,H=4,HKV=2,kind={},sharding={},ranks={}", kind,
                                sharding, ranks));
                ASSERT_TRUE(problem) << problem.error().to_string();
                const auto made = program(*problem, {});
                ASSERT_TRUE(made) << made.error().to_string();
                const auto schedule = fuse::fuse(*made, fuse_options({}, fuse::Device::cuda));
                EXPECT_TRUE(schedule) << kind << ": " << schedule.error().to_string();
            }
        }
    }
}

// What goes to others is made once their K and V have come; what stays is made before that, and while the rest leaves.
TEST(AttentionBackward, MakesWhatLeavesBetweenTilesThatStay) {
    for (const char* sharding : {"contiguous", "zigzag"}) {
        const auto problem = parse_problem(fmt::format(
            "attention_backward:S=16384,H=16,HKV=16,causal=0,kind=all_gather,sharding={},ranks=2", sharding));
        const auto made = program(*problem, {});
        ASSERT_TRUE(made) << made.error().to_string();
        const auto schedule = fuse::fuse(*made, fuse_options({}, fuse::Device::cuda));
        ASSERT_TRUE(schedule) << schedule.error().to_string();
        const plan::Sequence sequence{.length = 16384};
        const std::vector<plan::Rows> rows =
            attention_rows(sequence, 2, *plan::sharding_from(sharding), 128, 1, false);
        const std::vector<fuse::Slot>& slots = schedule->ranks[1].slots;
        const auto is_own = [&](const fuse::Slot& slot) {
            const std::int64_t row =
                made->stages[0].kernel.tiles[static_cast<std::size_t>(slot.tile)].coord[2] * 128;
            return std::ranges::any_of(
                rows[1], [&](const plan::Interval& run) { return run.begin <= row && row < run.end; });
        };
        const auto first = std::ranges::find_if_not(slots, is_own) - slots.begin();
        EXPECT_GE(first, 132) << "one for each multiprocessor while K and V come";
        EXPECT_LT(first, 300);
        const auto last = std::find_if_not(slots.rbegin(), slots.rend(), is_own) - slots.rbegin();
        EXPECT_GE(last, 132);
    }
}

// Under a causal mask some heads at a time: their gradients leave while the next ones' tiles run, behind the last ones short tiles that stay.
TEST(AttentionBackward, RunsCausalTilesByHeadsThatStayInTheCache) {
    const auto problem = parse_problem(
        "attention_backward:S=16384,H=32,HKV=32,causal=1,kind=all_gather,sharding=zigzag,ranks=2");
    const auto made = program(*problem, {});
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_TRUE(plan::check(made->plan).empty());
    const auto schedule = fuse::fuse(*made, fuse_options({}, fuse::Device::cuda));
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    const std::vector<plan::Rows> rows =
        attention_rows({.length = 16384, .causal = true}, 2, plan::Sharding::zigzag, 128, 1, false);
    for (std::size_t rank = 0; rank < 2; ++rank) {
        const std::vector<fuse::Slot>& slots = schedule->ranks[rank].slots;
        const auto coordinates = [&](const fuse::Slot& slot) -> const auto& {
            return made->stages[0].kernel.tiles[static_cast<std::size_t>(slot.tile)].coord;
        };
        for (std::size_t first = 0; first + 132 <= slots.size(); first += 132) {
            const auto heads = [&](const fuse::Slot& slot) { return coordinates(slot)[1]; };
            const auto together = std::span(slots).subspan(first, 132);
            const auto [least, most] = std::ranges::minmax(together | std::views::transform(heads));
            EXPECT_LE(most - least, 15) << "two parts of eight heads, behind slot " << first;
        }
        const auto is_own = [&](const fuse::Slot& slot) {
            const std::int64_t row = coordinates(slot)[2] * 128;
            return std::ranges::any_of(
                rows[rank], [&](const plan::Interval& run) { return run.begin <= row && row < run.end; });
        };
        EXPECT_GE(std::ranges::find_if_not(slots, is_own) - slots.begin(), 60) << "while K and V come";
        EXPECT_GE(std::find_if_not(slots.rbegin(), slots.rend(), is_own) - slots.rbegin(), 60)
            << "while gradients leave";
    }
}

// By whatever way K and V come, in parts of heads, gradients are summed part by part.
TEST(AttentionBackward, CirculatesHeadsInParts) {
    for (const char* kind : {"all_gather", "ring", "double_ring"}) {
        for (const std::int32_t ranks : {2, 3, 4}) {
            AttentionBackwardTask task{.forward = {}, .gluon = true};
            task.forward.shape = {.batch = 2, .heads = 8, .kv_heads = 4, .length = 3072, .head_dim = 128};
            task.forward.sequence = {.length = 3072, .causal = true};
            task.forward.rows = plan::shard_rows(task.forward.sequence, ranks, plan::Sharding::zigzag, 128);
            task.forward.kind = kind;
            task.forward.parts = 4;
            task.forward.tile = {.block_m = 64, .block_n = 128};
            const auto outline = attention_backward_outline(task);
            ASSERT_TRUE(outline) << outline.error().to_string();
            EXPECT_EQ(outline->together, 1);
            EXPECT_TRUE(plan::check(outline->plan).empty()) << kind << " of " << ranks;
            task.forward.parts = 3;
            EXPECT_FALSE(attention_backward_outline(task)) << "3 parts of 4 heads";
        }
    }
}

/// The backward of exchanged heads, causal, with what makes dQ of sums: of two ranks, or (`groups`) of four by twos.
Result<fuse::StagedProgram> exchanging(std::int64_t heads, std::int64_t length, std::int32_t parts,
                                       bool groups = false) {
    AttentionBackwardTask task{.forward = {}, .gluon = true};
    task.forward.shape = {.batch = 1, .heads = heads, .kv_heads = heads, .length = length, .head_dim = 128};
    task.forward.sequence = {.length = length, .causal = true};
    task.forward.rows = plan::shard_rows(task.forward.sequence, groups ? 4 : 2, plan::Sharding::zigzag, 1);
    task.forward.kind = groups ? "ulysses_ring" : "ulysses";
    task.forward.inner = 2;
    task.forward.parts = parts;
    task.forward.tile = {.block_m = 64, .block_n = 128};
    SYNCOPATE_TAKE(AttentionBackwardOutline outline, attention_backward_outline(task));
    const std::int64_t queries = groups ? length / 2 : length;
    kernel::Arguments given;
    given.scalars = {{"B", std::int64_t{1}},   {"H", heads / 2},         {"HKV", heads / 2},
                     {"SQ", queries},          {"SK", length},           {"D", std::int64_t{128}},
                     {"BM", std::int64_t{64}}, {"BN", std::int64_t{128}}};
    const plan::DType of_sums = groups ? plan::DType::fp32 : plan::DType::bf16;
    const auto rows = [&](plan::DType dtype, std::int64_t block) {
        return kernel::TensorArgument{.shape = {1, heads / 2, block == 64 ? queries : length, 128},
                                      .dtype = dtype,
                                      .block = {1, 1, block, 128}};
    };
    const kernel::TensorArgument of_row{.shape = {1, heads / 2, queries}, .dtype = plan::DType::fp32};
    given.tensors = {{"q_desc", rows(plan::DType::bf16, 64)},
                     {"do_desc", rows(plan::DType::bf16, 64)},
                     {"k_desc", rows(plan::DType::bf16, 128)},
                     {"v_desc", rows(plan::DType::bf16, 128)},
                     {"dk_ptr", rows(of_sums, 128)},
                     {"dv_ptr", rows(of_sums, 128)},
                     {"lse_desc", of_row},
                     {"delta_desc", of_row}};
    std::vector<std::int64_t> bounds;  // of a block of K: the blocks of Q from its own on
    for (std::int64_t n = 0; n < length / 128; ++n)
        bounds.insert(bounds.end(), {2 * n, 2 * n + 2, length / 64, length / 64});
    SYNCOPATE_TRY(kernel::set_values(given, "bounds_ptr", std::move(bounds)));
    const AttentionBackwardForm form{
        .causal = true, .exchanges = true, .whole = true, .together = outline.together, .groups = groups};
    SYNCOPATE_TAKE(kernel::Kernel tiles, kernel::stated::analyse(attention_backward_statement(form), given));
    kernel::stated::Statement finishes{.kernel = "finish_rows"};
    finishes.parameters = {"dq_ptr", "sy_schedule", "sy_control"};
    finishes.tiles = {{"h", "H"}, {"m", "cdiv(SQ, BM)"}};
    finishes.writes = {{"dq_ptr", {"0", "h", "m*BM : (m+1)*BM", ":"}}};
    given.tensors = {{"dq_ptr", rows(plan::DType::bf16, 64)}};
    SYNCOPATE_TAKE(kernel::Kernel finish, kernel::stated::analyse(finishes, given));
    fuse::StagedProgram made;
    made.stages.push_back({std::move(tiles), outline.bindings[0]});
    made.stages.push_back({std::move(finish), outline.bindings[1]});
    made.plan = std::move(outline.plan);
    return made;
}

// The heads of the first part are there when tiles begin; the longest tiles of the last one begin before its short ones.
TEST(AttentionBackward, RunsHeadsAsTheyComeAndOfThemTheLongestTilesFirst) {
    const auto made = exchanging(16, 16384, 4);
    ASSERT_TRUE(made) << made.error().to_string();
    const auto schedule = fuse::fuse(*made, fuse_options({}, fuse::Device::cuda));
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    for (const fuse::RankSchedule& rank : schedule->ranks) {
        std::int64_t part = 0, row = 0;  // of the slot before, among those of the first stage's second half
        for (std::size_t slot = 0; slot < 8U * 128; ++slot) {
            const auto& at =
                made->stages[0].kernel.tiles[static_cast<std::size_t>(rank.slots[slot].tile)].coord;
            const std::int64_t of = at[1] / 2;
            if (slot < 4U * 128) {
                EXPECT_LT(of, 2) << "what waits for nothing may run first, but not of the last parts";
                continue;
            }
            EXPECT_TRUE(of > part || (of == part && at[2] >= row)) << slot;
            part = of;
            row = at[2];
        }
        EXPECT_EQ(part, 3);
    }
}

TEST(AttentionBackward, IsAProgramWhereGroupsExchangeHeads) {
    const auto made = exchanging(8, 4096, 0, true);
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_TRUE(plan::check(made->plan).empty());
    const auto schedule = fuse::fuse(*made, fuse_options({}, fuse::Device::cuda));
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    for (const fuse::RankSchedule& rank : schedule->ranks)
        EXPECT_EQ(rank.slots.size(), 4U * 32 + 4U * 32)
            << "its heads, blocks of K, and then of its group's Q";
    const auto alone = exchanging(8, 4096, 2, true);
    EXPECT_NE(alone.error().to_string().find("nor where groups exchange them"), std::string::npos);
}

TEST(AttentionBackward, TakesAnotherKindWhereTheForwardsHasNone) {
    const BackwardAsked two{.ranks = 4, .kv_heads = 2}, eight{.ranks = 4, .kv_heads = 8};
    EXPECT_EQ(backward_kind("ring", two).kind, "ring");
    EXPECT_EQ(backward_kind("ring", two).why, "");
    EXPECT_EQ(backward_kind("ulysses", eight).kind, "ulysses");
    EXPECT_EQ(backward_kind("ulysses", two).kind, "all_gather");
    EXPECT_EQ(backward_kind("ulysses", two).why, "2 heads of K and V are not shared out over 4 ranks");
    BackwardAsked groups{.ranks = 4, .kv_heads = 8, .inner = 2};
    EXPECT_EQ(backward_kind("ulysses_ring", groups).kind, "ulysses_ring");
    EXPECT_EQ(backward_kind("ulysses_ring", groups).why, "");
    groups.kv_heads = 1;
    EXPECT_EQ(backward_kind("ulysses_ring", groups).why,
              "1 heads of K and V are not shared out over 2 ranks");
    groups = {.ranks = 4, .kv_heads = 8, .inner = 2, .deterministic = true};
    EXPECT_EQ(backward_kind("ulysses_ring", groups).kind, "ring");
    groups = {.ranks = 4, .kv_heads = 8, .inner = 2, .nodes = 2};
    EXPECT_EQ(backward_kind("ulysses_ring", groups).kind, "ring");
    groups = {.ranks = 4, .kv_heads = 8, .inner = 2, .kept = true};
    EXPECT_EQ(backward_kind("ulysses_ring", groups).kind, "ring");
}

TEST(AttentionBackward, RunsTheGluonKernelWhereItCanAndSaysWhyNot) {
    const AttentionTarget hopper{.cuda = true, .hopper = true};
    EXPECT_EQ(choose_backward_kernel(128, plan::DType::bf16, 0.1, hopper).name, AttentionKernelName::gluon);
    EXPECT_EQ(choose_backward_kernel(128, plan::DType::bf16, 0.1, hopper).tile.block_m, 64);
    for (const double scale : {0.0, -0.1})
        EXPECT_EQ(choose_backward_kernel(128, plan::DType::bf16, scale, hopper).name,
                  AttentionKernelName::triton)
            << "it masks scores before it scales them";
    EXPECT_EQ(choose_backward_kernel(64, plan::DType::bf16, 0.1, hopper).tile.block_m, 128);
    EXPECT_EQ(choose_backward_kernel(256, plan::DType::bf16, 0.1, hopper).name, AttentionKernelName::gluon);
    EXPECT_EQ(choose_backward_kernel(256, plan::DType::bf16, 0.1, hopper).tile.block_n, 64);
    EXPECT_EQ(choose_backward_kernel(96, plan::DType::bf16, 0.1, hopper).why,
              "the Gluon kernel has no tiles for D = 96");
    EXPECT_EQ(
        choose_backward_kernel(256, plan::DType::bf16, 0.1, {.cuda = true, .hopper = false}).tile.block_m,
        32);
    EXPECT_EQ(
        choose_backward_kernel(256, plan::DType::bf16, 0.1, {.cuda = true, .hopper = false}).tile.stages, 1);
    EXPECT_EQ(choose_backward_kernel(64, plan::DType::bf16, 0.1, {.cuda = true, .hopper = false}).why,
              "the Gluon kernel is for Hopper");
    EXPECT_EQ(
        choose_backward_kernel(16, plan::DType::fp16, 0.1, {.cuda = false, .hopper = false}).tile.block_n,
        16);
}

TEST(AttentionBackward, MakesDqOfWideHeadsByFewRows) {
    const auto rows = [](std::int64_t head_dim, const AttentionTarget& target) {
        const TileConfig tile = choose_backward_kernel(head_dim, plan::DType::bf16, 0.1, target).tile;
        const TileConfig of_q = attention_backward_q_tile(tile, head_dim, target.cuda);
        EXPECT_EQ(of_q.block_n, tile.block_n);
        EXPECT_EQ(tile.block_m % of_q.block_m, 0) << "rows are padded to the other kernel's blocks";
        return of_q.block_m;
    };
    EXPECT_EQ(rows(256, {.cuda = true, .hopper = true}), 32);
    EXPECT_EQ(rows(256, {.cuda = true, .hopper = false}), 32);
    EXPECT_EQ(rows(128, {.cuda = true, .hopper = true}), 64);
    EXPECT_EQ(rows(64, {.cuda = true, .hopper = true}), 128);
    EXPECT_EQ(rows(256, {.cuda = false, .hopper = false}), 8);
}

// As measured: bench/results/attention_kinds_4xH200.csv.
TEST(AttentionBackwardParts, OfHeadsAreAsManyAsPayForTheirTransfers) {
    const auto parts = [](std::int64_t heads, std::int64_t rows, plan::Sharding sharding) {
        const plan::AttentionShape shape{
            .batch = 1, .heads = heads, .kv_heads = heads, .length = 4 * rows, .head_dim = 128};
        const plan::Sequence sequence{.length = shape.length, .causal = sharding == plan::Sharding::zigzag};
        return attention_backward_head_parts(shape, plan::shard_rows(sequence, 4, sharding, 1));
    };
    EXPECT_EQ(parts(32, 1024, plan::Sharding::zigzag), 1);
    EXPECT_EQ(parts(32, 2048, plan::Sharding::zigzag), 2);
    EXPECT_EQ(parts(32, 4096, plan::Sharding::zigzag), 2);
    EXPECT_EQ(parts(32, 8192, plan::Sharding::zigzag), 4);
    EXPECT_EQ(parts(32, 2048, plan::Sharding::contiguous), 2);
    EXPECT_EQ(parts(32, 8192, plan::Sharding::contiguous), 4);
    EXPECT_EQ(parts(24, 32768, plan::Sharding::zigzag), 3) << "a divisor of a rank's heads";
    EXPECT_EQ(parts(4, 32768, plan::Sharding::zigzag), 1);
    EXPECT_EQ(parts(30, 32768, plan::Sharding::zigzag), 1) << "no heads to exchange";
}

TEST(AttentionBackwardParts, FewTilesShareOutTheHeadsOfAGroup) {
    const auto parts = [](std::int64_t h, std::int64_t hkv, std::int64_t s, bool causal,
                          std::int64_t multiprocessors = 132) {
        return attention_backward_parts((s + 127) / 128 * hkv, h / hkv, s, causal, multiprocessors);
    };
    EXPECT_EQ(parts(16, 16, 1024, true), 1) << "no group";
    EXPECT_EQ(parts(32, 8, 8192, true), 1) << "tiles enough";
    EXPECT_EQ(parts(32, 4, 16384, true), 1);
    EXPECT_EQ(parts(32, 4, 4096, false), 1) << "128 equal ones";
    EXPECT_GT(parts(32, 4, 4096, true), 1) << "128, of which the longest takes as long as two";
    EXPECT_EQ(parts(32, 4, 2048, false), 2);
    EXPECT_GT(parts(32, 4, 1024, false), 2);
    EXPECT_EQ(parts(32, 4, 4736, false, 148), 1);
    EXPECT_GT(parts(32, 4, 4864, false, 148), 1) << "a second wave of a few";
    for (std::int64_t group = 1; group < 13; ++group)
        EXPECT_EQ(group % attention_backward_parts(3, group, 4096, true, 132), 0) << group;
}

}  // namespace
}  // namespace syncopate::ops
