#include "syncopate/plan/templates/attention_passes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace syncopate::plan {
namespace {

TEST(AttentionPasses, TakeASliceOfEachRun) {
    const std::vector<Rows> rows = shard_rows({.length = 32}, 2, Sharding::zigzag, 1);
    const AttentionPasses passes = attention_passes(rows, 2).value();
    EXPECT_EQ(passes.width, 16);
    EXPECT_EQ(passes.places, (std::vector<Rows>{{{0, 4}, {12, 16}}, {{4, 12}}}));
    ASSERT_EQ(passes.slices.size(), 2U);
    EXPECT_EQ(passes.slices[1][0], (std::vector<PassSlice>{{{4, 8}, 4}, {{28, 32}, 28}}));
    EXPECT_EQ(passes.slices[1][1], (std::vector<PassSlice>{{{16, 24}, 16}}));
}

/// By place of a pass, the row of the sequence there, or -1: one that no row is to see.
std::vector<std::int64_t> positions(const AttentionPasses& passes, std::int32_t pass) {
    std::vector<std::int64_t> made(static_cast<std::size_t>(passes.width), -1);
    const auto& by_rank = passes.slices[static_cast<std::size_t>(pass)];
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
        for (std::size_t i = 0; i < by_rank[rank].size(); ++i) {
            const PassSlice& slice = by_rank[rank][i];
            const std::int64_t first = passes.places[rank][i].begin - slice.rows.begin;
            for (std::int64_t row = slice.fresh; row < slice.rows.end; ++row)
                made[static_cast<std::size_t>(first + row)] = row;
        }
    }
    return made;
}

TEST(AttentionPasses, HaveEachRowOnceAndInRisingOrder) {
    for (const Sharding sharding : {Sharding::contiguous, Sharding::zigzag, Sharding::documents}) {
        for (std::int32_t ranks = 1; ranks <= 8; ++ranks) {
            for (const std::int64_t length : {1, 3, 8, 64, 91}) {
                const Sequence sequence{.length = length,
                                        .documents = length > 3 ? std::vector<std::int64_t>{0, 3, length}
                                                                : std::vector<std::int64_t>{}};
                const std::vector<Rows> rows = shard_rows(sequence, ranks, sharding, 1);
                for (const std::int32_t count : {1, 2, 3, 5}) {
                    const AttentionPasses passes = attention_passes(rows, count).value();
                    std::vector<int> seen(static_cast<std::size_t>(length), 0);
                    for (std::int32_t pass = 0; pass < count; ++pass) {
                        std::int64_t last = -1;
                        for (const std::int64_t row : positions(passes, pass)) {
                            if (row < 0) continue;
                            EXPECT_GT(row, last);
                            last = row;
                            ++seen[static_cast<std::size_t>(row)];
                        }
                    }
                    EXPECT_TRUE(std::ranges::all_of(seen, [](int n) { return n == 1; }))
                        << ranks << " ranks, " << length << " rows, " << count << " passes";
                }
            }
        }
    }
}

TEST(AttentionPasses, NeverReadBeyondTheirRun) {
    const AttentionPasses passes = attention_passes({{{0, 5}}, {{5, 7}}}, 3).value();
    for (const auto& by_rank : passes.slices) {
        EXPECT_GE(by_rank[0][0].rows.begin, 0);
        EXPECT_LE(by_rank[0][0].rows.end, 5);
        EXPECT_GE(by_rank[1][0].rows.begin, 5);
        EXPECT_LE(by_rank[1][0].rows.end, 7);
    }
    EXPECT_EQ(passes.slices[2][0][0], (PassSlice{{3, 5}, 4})) << "row 3 was in the pass before";
    EXPECT_EQ(passes.slices[2][1][0], (PassSlice{{6, 7}, 7})) << "nothing is left of it";
}

TEST(AttentionPasses, AreAsFewAsKeepWithinTheRowsAsked) {
    for (const std::int32_t ranks : {2, 4, 8}) {
        const std::vector<Rows> rows = shard_rows({.length = 64 * ranks}, ranks, Sharding::zigzag, 1);
        const std::int32_t passes = passes_within(rows, 128).value();
        EXPECT_EQ(passes, ranks / 2) << "of two ranks' rows";
        EXPECT_LE(attention_passes(rows, passes).value().width, 128);
    }
    const std::vector<Rows> rows = shard_rows({.length = 100}, 3, Sharding::contiguous, 1);
    for (std::int64_t most = 3; most <= 110; ++most) {
        const std::int32_t passes = passes_within(rows, most).value();
        EXPECT_LE(attention_passes(rows, passes).value().width, most);
        if (passes > 1) {
            EXPECT_GT(attention_passes(rows, passes - 1).value().width, most);
        }
    }
    EXPECT_EQ(passes_within(rows, 2).error().message,
              "attention: K and V of 2 rows at once are too few: each of 3 runs of rows brings one at least");
    EXPECT_FALSE(attention_passes(rows, 0));
}

}  // namespace
}  // namespace syncopate::plan
