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

}  // namespace
}  // namespace syncopate::ops
