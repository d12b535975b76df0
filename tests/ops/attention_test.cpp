#include "syncopate/ops/attention.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "syncopate/ops/attention_backward.hpp"
#include "syncopate/ops/attention_kernel.hpp"
#include "syncopate/ops/statements.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

TEST(AttentionKernel, PadsHeadsToTheNextSizeThatHasTiles) {
    EXPECT_EQ(padded_head(96), 128);
    EXPECT_EQ(padded_head(1), 64);
    EXPECT_EQ(padded_head(64), 64);
    EXPECT_EQ(padded_head(256), 256);
    EXPECT_EQ(padded_head(257), std::nullopt);
    EXPECT_EQ(padded_head(5, false), 16);
    EXPECT_EQ(padded_head(40, false), 64);
}

TEST(AttentionKernel, RunsTheGluonKernelWhereItCanAndSaysWhyNot) {
    const plan::AttentionShape shape{
        .batch = 1, .heads = 8, .kv_heads = 2, .length = 4096, .head_dim = 128, .dtype = plan::DType::bf16};
    const auto chosen = [](const plan::AttentionShape& of, std::int32_t ranks, double scale,
                           const AttentionTarget& target) {
        return choose_attention_kernel(of, ranks, scale, target);
    };
    const AttentionTarget hopper{.cuda = true, .hopper = true};
    const AttentionKernel usual = chosen(shape, 8, 0.1, hopper);
    EXPECT_EQ(usual.name, AttentionKernelName::gluon);
    EXPECT_EQ(usual.why, "");
    EXPECT_EQ(usual.tile.block_m, 128);
    const AttentionKernel host = chosen(shape, 2, 0.1, {.cuda = false, .hopper = false});
    EXPECT_EQ(host.name, AttentionKernelName::triton);
    EXPECT_EQ(host.tile.block_m, 16);
    EXPECT_NE(host.why, "");
    EXPECT_EQ(chosen(shape, 2, 0.1, {.cuda = true, .hopper = false}).why, "the Gluon kernel is for Hopper");
    EXPECT_EQ(chosen(shape, 2, -0.1, hopper).why, "the Gluon kernel takes a scale above 0, not -0.1");
    EXPECT_EQ(chosen(shape, 17, 0.1, hopper).why,
              "the Gluon kernel's tiles have 128 rows, and S = 4096 is less than two a rank, 4352");
    plan::AttentionShape odd = shape;
    odd.head_dim = 96;
    EXPECT_EQ(chosen(odd, 2, 0.1, hopper).why, "the Gluon kernel has no tiles for D = 96");
    odd = shape;
    odd.dtype = plan::DType::fp32;
    EXPECT_EQ(chosen(odd, 2, 0.1, hopper).name, AttentionKernelName::triton);
}

TEST(AttentionParts, AreAsManyAsLeaveTransfersThatAreWorthIt) {
    const auto parts = [](std::int64_t kv_heads, std::int32_t group, std::int64_t rows, int ranks = 2,
                          plan::Sequence sequence = {}) {
        plan::AttentionShape shape{
            .batch = 1, .heads = 24, .kv_heads = kv_heads, .head_dim = 128, .dtype = plan::DType::bf16};
        std::vector<plan::Rows> held;
        for (int rank = 0; rank < ranks; ++rank) held.push_back({{rank * rows, (rank + 1) * rows}});
        shape.length = ranks * rows;
        return attention_parts(shape, sequence, held, group);
    };
    EXPECT_EQ(parts(24, 1, 3072), 4);
    EXPECT_EQ(parts(24, 1, 3072, 2, {.causal = true}), 4);
    EXPECT_EQ(parts(24, 1, 3072, 4, {.causal = true}), 3) << "first tiles wait for rows of all ranks";
    EXPECT_EQ(parts(24, 1, 3072, 2, {.causal = true, .window = 100}), 1);
    EXPECT_EQ(parts(24, 1, 3072, 2, {.documents = {0, 100, 6144}}), 1);
    EXPECT_EQ(parts(24, 2, 3072), 2);
    EXPECT_EQ(parts(24, 5, 3072), 1) << "ranks share heads of K";
    EXPECT_EQ(parts(24, 1, 1024), 1);
    EXPECT_EQ(parts(6, 1, 65536), 3);
    EXPECT_EQ(parts(1, 1, 65536), 1);
}

TEST(AttentionParts, UnderAMaskAreForTheKernelForHopperOnOneNode) {
    AttentionTask task{.shape = {.batch = 1,
                                 .heads = 24,
                                 .kv_heads = 24,
                                 .length = 16384,
                                 .head_dim = 128,
                                 .dtype = plan::DType::bf16},
                       .sequence = {.length = 16384, .causal = true},
                       .rows = {{{0, 8192}}, {{8192, 16384}}},
                       .kind = "ring",
                       .tile = {.block_m = 128, .block_n = 128}};
    EXPECT_EQ(attention_outline(task)->together, 6);
    task.nodes = 2;
    EXPECT_EQ(attention_outline(task)->together, 0);
    task.nodes = 1;
    task.tile = {.block_m = 64, .block_n = 64};
    EXPECT_EQ(attention_outline(task)->together, 0);
}

TEST(AttentionParts, AreRefusedWhereKAndVComeInPassesOrHeadsAreNotDividedByThem) {
    AttentionTask task{.shape = {.heads = 4, .kv_heads = 2, .length = 256, .head_dim = 64},
                       .sequence = {.length = 256},
                       .rows = {{{0, 128}}, {{128, 256}}},
                       .kind = "ring",
                       .parts = 2,
                       .tile = {.block_m = 64, .block_n = 64}};
    EXPECT_TRUE(attention_outline(task));
    task.parts = 3;
    EXPECT_EQ(attention_outline(task).error().message,
              "attention: 2 heads of K and V are not shared out over 1 ranks in 3 parts");
    task.parts = 2;
    task.bounded = 128;
    EXPECT_EQ(attention_outline(task).error().message,
              "parts: heads are sent in parts only where K and V do not come in passes");
}

/// Of 4 heads on 2 or 4 ranks, tiles of 64 rows.
AttentionTask task_of(std::int64_t rows, std::int32_t ranks, std::string kind,
                      plan::Sharding sharding = plan::Sharding::contiguous, std::int32_t inner = 0) {
    AttentionTask task;
    task.shape = {.heads = 4, .kv_heads = 2, .length = rows, .head_dim = 64};
    task.sequence = {.length = rows, .causal = true};
    task.kind = std::move(kind);
    task.inner = inner;
    task.tile = {.block_m = 64, .block_n = 64};
    task.rows =
        attention_rows(task.sequence, ranks, sharding, 64, task.kind == "ulysses_ring" ? inner : 1, false);
    return task;
}

TEST(AttentionRows, AreTheUsualOnesUnlessThatWouldBeNoticed) {
    const plan::Sequence even{.length = 512};
    EXPECT_EQ(attention_rows(even, 4, plan::Sharding::contiguous, 64, 1, false),
              usual_rows(even, 4, plan::Sharding::contiguous));
    const plan::Sequence odd{.length = 500};  // 125 rows each, or 128, 128, 128 and 116
    const auto cut = attention_rows(odd, 4, plan::Sharding::contiguous, 64, 1, false);
    EXPECT_EQ(cut.back(), (plan::Rows{{384, 500}}));
    EXPECT_EQ(attention_rows(odd, 4, plan::Sharding::contiguous, 64, 1, true).back(),
              (plan::Rows{{375, 500}}));
    const plan::Sequence few{.length = 100};  // no whole tile for each rank
    EXPECT_EQ(attention_rows(few, 4, plan::Sharding::contiguous, 64, 1, false),
              usual_rows(few, 4, plan::Sharding::contiguous));
}

TEST(AttentionOutline, LeavesQueriesWhereTheyAreUnlessHeadsAreExchanged) {
    for (const char* kind : {"all_gather", "ring", "double_ring", "ulysses"}) {
        const Result<AttentionOutline> made = attention_outline(task_of(512, 4, kind));
        ASSERT_TRUE(made) << made.error().to_string();
        const bool moves = std::string_view(kind) == "ulysses";
        EXPECT_EQ(made->placed, !moves) << kind;
        EXPECT_EQ(made->plan.find_tensor("Q").has_value(), moves) << kind;
        EXPECT_EQ(made->bindings.contains("q_desc"), moves) << kind;
        EXPECT_FALSE(made->passes) << kind;
        EXPECT_TRUE(plan::check(made->plan).empty()) << kind;
    }
}

TEST(AttentionOutline, ComesInPassesWhereRowsAreNoWholeTilesOrMemoryIsBounded) {
    AttentionTask task = task_of(100, 4, "all_gather");
    EXPECT_TRUE(comes_in_passes(task));
    Result<AttentionOutline> made = attention_outline(task);
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_EQ(made->passes->slices.size(), 1U);
    task = task_of(512, 4, "ring", plan::Sharding::zigzag);
    EXPECT_FALSE(comes_in_passes(task));
    task.bounded = 128;
    made = attention_outline(task);
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_EQ(made->passes->slices.size(), 4U);
    EXPECT_LE(made->passes->width, 128);
    task.bounded = 0;  // as much as two of the four ranks hold
    EXPECT_EQ(attention_outline(task)->passes->slices.size(), 2U);
    EXPECT_TRUE(plan::check(made->plan).empty());
}

TEST(AttentionOutline, IsRefusedWithWhatWouldDo) {
    const auto message = [](AttentionTask task) {
        const Result<AttentionOutline> made = attention_outline(task);
        return made ? std::string() : made.error().message;
    };
    EXPECT_EQ(
        message(task_of(512, 4, "star")),
        "kind 'star': there is no kind 'star': one of all_gather, ring, double_ring, ulysses, ulysses_ring");
    EXPECT_EQ(
        message(task_of(512, 3, "ulysses")),
        "kind 'ulysses': 4 heads cannot be shared out over 3 ranks; all_gather, ring, double_ring take any "
        "number of heads, and 'auto' takes one of them");
    EXPECT_EQ(
        message(task_of(512, 4, "ulysses_ring", plan::Sharding::contiguous, 3)),
        "kind 'ulysses_ring': ulysses_ring needs inner, a number of ranks between 1 and 4 that divides them; "
        "got 3");
    EXPECT_EQ(message(task_of(512, 4, "double_ring", plan::Sharding::contiguous, 3)),
              "kind 'double_ring': 4 ranks are no multiple of the inner ring's 3");
    EXPECT_EQ(
        message(task_of(50, 4, "ulysses_ring", plan::Sharding::contiguous, 2)),
        "2 groups of 2 ranks do not each hold whole tiles of 64 of 50 rows: kind 'ulysses_ring' exchanges "
        "rows for heads; take one of all_gather, ring, double_ring");
    AttentionTask bounded = task_of(512, 4, "ulysses");
    bounded.bounded = 64;
    EXPECT_EQ(message(bounded),
              "bounded: kind 'ulysses' exchanges rows for heads; take one of all_gather, ring, double_ring");
}

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

/// The backward of exchanged heads on two ranks, causal, with what makes dQ of sums.
Result<fuse::StagedProgram> exchanging(std::int64_t heads, std::int64_t length, std::int32_t parts) {
    AttentionBackwardTask task{.forward = {}, .gluon = true};
    task.forward.shape = {.batch = 1, .heads = heads, .kv_heads = heads, .length = length, .head_dim = 128};
    task.forward.sequence = {.length = length, .causal = true};
    task.forward.rows = plan::shard_rows(task.forward.sequence, 2, plan::Sharding::zigzag, 1);
    task.forward.kind = "ulysses";
    task.forward.parts = parts;
    task.forward.tile = {.block_m = 64, .block_n = 128};
    SYNCOPATE_TAKE(AttentionBackwardOutline outline, attention_backward_outline(task));
    kernel::Arguments given;
    given.scalars = {{"B", std::int64_t{1}},   {"H", heads / 2},         {"HKV", heads / 2},
                     {"SQ", length},           {"SK", length},           {"D", std::int64_t{128}},
                     {"BM", std::int64_t{64}}, {"BN", std::int64_t{128}}};
    const auto rows = [&](plan::DType dtype, std::int64_t block) {
        return kernel::TensorArgument{
            .shape = {1, heads / 2, length, 128}, .dtype = dtype, .block = {1, 1, block, 128}};
    };
    const kernel::TensorArgument of_row{.shape = {1, heads / 2, length}, .dtype = plan::DType::fp32};
    given.tensors = {{"q_desc", rows(plan::DType::bf16, 64)},
                     {"do_desc", rows(plan::DType::bf16, 64)},
                     {"k_desc", rows(plan::DType::bf16, 128)},
                     {"v_desc", rows(plan::DType::bf16, 128)},
                     {"dk_ptr", rows(plan::DType::bf16, 128)},
                     {"dv_ptr", rows(plan::DType::bf16, 128)},
                     {"lse_desc", of_row},
                     {"delta_desc", of_row}};
    std::vector<std::int64_t> bounds;  // of a block of K: the blocks of Q from its own on
    for (std::int64_t n = 0; n < length / 128; ++n)
        bounds.insert(bounds.end(), {2 * n, 2 * n + 2, length / 64, length / 64});
    SYNCOPATE_TRY(kernel::set_values(given, "bounds_ptr", std::move(bounds)));
    const AttentionBackwardForm form{
        .causal = true, .exchanges = true, .whole = true, .together = outline.together};
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

TEST(AttentionBackward, TakesAnotherKindWhereTheForwardsHasNone) {
    EXPECT_EQ(backward_kind("ring", 4, 2).kind, "ring");
    EXPECT_EQ(backward_kind("ring", 4, 2).why, "");
    EXPECT_EQ(backward_kind("ulysses", 4, 8).kind, "ulysses");
    EXPECT_EQ(backward_kind("ulysses", 4, 2).kind, "all_gather");
    EXPECT_EQ(backward_kind("ulysses", 4, 2).why, "2 heads of K and V are not shared out over 4 ranks");
    EXPECT_EQ(backward_kind("ulysses_ring", 4, 8).kind, "ring");
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
