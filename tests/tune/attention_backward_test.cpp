#include "syncopate/tune/play/attention_backward.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "syncopate/tune/choose.hpp"

namespace syncopate::tune {
namespace {

ops::AttentionBackwardTask task_of(std::int64_t heads, std::int64_t kv_heads, std::int64_t rows,
                                   std::int32_t ranks, bool causal = true) {
    ops::AttentionBackwardTask task{.forward = {}, .gluon = true};
    task.forward.shape = {
        .batch = 1, .heads = heads, .kv_heads = kv_heads, .length = rows * ranks, .head_dim = 128};
    task.forward.sequence = {.length = rows * ranks, .causal = causal};
    task.forward.split = 4;
    task.forward.tile = {.block_m = 64, .block_n = 128};
    task.forward.rows = plan::shard_rows(task.forward.sequence, ranks, plan::Sharding::zigzag, 1);
    return task;
}

std::vector<Candidate> ranked(const ops::AttentionBackwardTask& task) {
    return rank_attention_backward(task, *find_machine("h200x4"));
}

const Candidate& of_kind(const std::vector<Candidate>& all, const std::string& kind) {
    return *std::ranges::find(all, kind, [](const Candidate& one) { return one.strategy.kind; });
}

// Gradients of K and V that are summed go as fp32, and from all ranks: of four more than what else is exchanged.
TEST(AttentionBackwardKinds, ExchangeHeadsOfFourRanksWhereEachHasItsOwnKeys) {
    for (const std::int64_t rows : {2048, 4096, 8192}) {
        const auto all = ranked(task_of(32, 32, rows, 4));
        EXPECT_EQ(all.front().strategy.kind, "ulysses") << rows;
        EXPECT_LT(all.front().estimate.exposed, of_kind(all, "all_gather").estimate.exposed);
    }
}

// Measured, two H200s: 1,546 us, and 1,656 where heads are exchanged; of 8,192 rows 5,144 and 5,244.
TEST(AttentionBackwardKinds, GatherOnTwoRanksInPartsOfHeads) {
    for (const std::int64_t rows : {4096, 8192})
        EXPECT_EQ(ranked(task_of(32, 32, rows, 2)).front().strategy.kind, "all_gather") << rows;
}

// Measured: 1,556 and 1,762 µs, 3,973 and 4,110 (bench/results/attention_kinds_4xH200.csv).
TEST(AttentionBackwardKinds, GatherRatherThanPassOnUnderACausalMask) {
    for (const std::int64_t rows : {2048, 4096}) {
        const auto all = ranked(task_of(32, 32, rows, 4));
        EXPECT_LT(of_kind(all, "all_gather").estimate.us, of_kind(all, "ring").estimate.us) << rows;
    }
}

TEST(AttentionBackwardKinds, GatherFewHeadsOfKAndV) {
    EXPECT_NE(ranked(task_of(32, 4, 8192, 4)).front().strategy.kind, "ulysses");
    const auto one = ranked(task_of(32, 2, 8192, 4));
    EXPECT_NE(of_kind(one, "ulysses").pruned.find("2 heads of K and V are not shared out over 4 ranks"),
              std::string::npos)
        << of_kind(one, "ulysses").pruned;
}

TEST(AttentionBackwardKinds, GoAroundWhereTheOrderOfSumsIsFixedOrKAndVAreKept) {
    ops::AttentionBackwardTask task = task_of(32, 32, 4096, 4);
    task.deterministic = true;
    EXPECT_NE(ranked(task).front().strategy.kind, "ulysses");
    task.deterministic = false;
    task.kept = true;
    EXPECT_NE(ranked(task).front().strategy.kind, "ulysses");
    task.kept = false;
    task.forward.bounded = 0;
    EXPECT_NE(ranked(task).front().strategy.kind, "ulysses");
    EXPECT_EQ(ranked(task).front().pruned, "");
}

}  // namespace
}  // namespace syncopate::tune
