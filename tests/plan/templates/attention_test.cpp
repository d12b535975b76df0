#include "syncopate/plan/templates/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "syncopate/plan/check/check.hpp"

namespace syncopate::plan {
namespace {

Mesh ranks(std::int32_t count) { return {{{"gpu", count}}}; }

AttentionOptions options_for(const Sequence& sequence, std::int32_t count, Sharding sharding) {
    AttentionOptions options;
    options.rows = shard_rows(sequence, count, sharding, 4);
    for (const Rows& rows : options.rows) options.attended.push_back(attended_by(sequence, rows));
    return options;
}

/// By rank, the rows of K that it holds or is sent, of head `head`.
std::vector<std::vector<bool>> rows_that_arrive(const Plan& plan, std::int64_t length, std::int64_t head) {
    const std::int32_t k = *plan.find_tensor("K");
    std::vector<std::vector<bool>> have(plan.ranks.size(),
                                        std::vector<bool>(static_cast<std::size_t>(length), false));
    const auto add = [&](std::int32_t rank, const Chunk& chunk) {
        if (chunk.tensor != k || head < chunk.region[1].begin || head >= chunk.region[1].end) return;
        for (std::int64_t row = chunk.region[2].begin; row < chunk.region[2].end; ++row)
            have[static_cast<std::size_t>(rank)][static_cast<std::size_t>(row)] = true;
    };
    for (const Holding& held : plan.initial) add(held.rank, held.chunk);
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        for (const Op& op : plan.ranks[static_cast<std::size_t>(rank)])
            add(op.destination_rank(rank), op.dst);
    }
    return have;
}

TEST(AttentionPlan, SendsAllOfTheFirstPartOfTheHeadsBeforeTheOthers) {
    for (const std::int32_t ulysses : {1, 2}) {
        AttentionOptions options = options_for({.length = 64}, 4, Sharding::contiguous);
        options.ulysses = ulysses;
        options.parts = 2;
        const auto plan = attention(ranks(4), {1, 8, 4, 64, 8}, options);
        ASSERT_TRUE(plan.ok()) << plan.error().to_string();
        EXPECT_TRUE(check(*plan).empty());
        for (const std::vector<Op>& ops : plan->ranks) {
            std::vector<std::int64_t> parts;
            for (const Op& op : ops) {
                const std::string& name = plan->tensors[static_cast<std::size_t>(op.dst.tensor)].name;
                if (name == "O" || name == "L") continue;  // these go back when all has come
                const Interval heads = op.dst.region[1];
                parts.push_back(heads.begin / heads.size() % 2);
            }
            EXPECT_TRUE(std::ranges::is_sorted(parts)) << ulysses;
            EXPECT_EQ(std::ranges::count(parts, 0), std::ranges::count(parts, 1)) << ulysses;
        }
    }
}

TEST(AttentionPlan, HasNoFindingsOfAnyKindOnAnyNumberOfRanks) {
    for (std::int32_t count = 1; count <= 8; ++count) {
        for (const Sharding sharding : {Sharding::contiguous, Sharding::zigzag}) {
            for (const bool causal : {false, true}) {
                const Sequence sequence{.length = 64 + 7, .causal = causal};
                AttentionOptions options = options_for(sequence, count, sharding);
                for (const Circulation circulation :
                     {Circulation::all_gather, Circulation::ring, Circulation::double_ring}) {
                    for (const std::int32_t ulysses : {1, 2, 4}) {
                        if (count % ulysses != 0) continue;
                        options.circulation = circulation;
                        options.ulysses = ulysses;
                        options.split = ulysses == 2 ? 2 : 1;
                        options.parts = ulysses == 1 ? 2 : 1;
                        const auto plan = attention(ranks(count), {2, 8, 2, 71, 8}, options);
                        ASSERT_TRUE(plan.ok()) << plan.error().to_string();
                        const auto findings = check(plan.value());
                        EXPECT_TRUE(findings.empty())
                            << count << " ranks, Ulysses " << ulysses << ": " << findings.front().message;
                    }
                }
            }
        }
    }
}

TEST(AttentionPlan, SendsExactlyWhatRowsAttendTo) {
    const Sequence sequence{.length = 64, .documents = {0, 20, 52, 64}, .causal = true};
    const AttentionOptions options = options_for(sequence, 4, Sharding::contiguous);
    const Plan plan = attention(ranks(4), {1, 2, 1, 64, 8}, options).value();
    const auto have = rows_that_arrive(plan, 64, 0);
    for (std::size_t rank = 0; rank < 4; ++rank) {
        for (std::int64_t row = 0; row < 64; ++row) {
            const auto within = [&](const Rows& rows) {
                return std::ranges::any_of(
                    rows, [&](const Interval& run) { return run.begin <= row && row < run.end; });
            };
            EXPECT_EQ(have[rank][static_cast<std::size_t>(row)],
                      within(options.rows[rank]) || within(options.attended[rank]))
                << "rank " << rank << ", row " << row;
        }
    }
}

TEST(AttentionPlan, RanksSendToTheNextOneFirst) {
    const Plan plan =
        attention(ranks(4), {1, 1, 1, 64, 8}, options_for({.length = 64}, 4, Sharding::contiguous)).value();
    for (std::int32_t rank = 0; rank < 4; ++rank) {
        const auto& ops = plan.ranks[static_cast<std::size_t>(rank)];
        ASSERT_EQ(ops.size(), 6U);  // K and V to each
        for (std::size_t n = 0; n < 6; ++n)
            EXPECT_EQ(ops[n].peer, (rank + 1 + static_cast<std::int32_t>(n) / 2) % 4);
    }
}

TEST(AttentionPlan, ARingGoesNoFurtherThanSomebodyAttends) {
    AttentionOptions options = options_for({.length = 64, .causal = true}, 4, Sharding::contiguous);
    options.circulation = Circulation::ring;
    const Plan plan = attention(ranks(4), {1, 1, 1, 64, 8}, options).value();
    EXPECT_EQ(plan.ranks[0].size(), 2U) << "its own rows to rank 1";
    EXPECT_EQ(plan.ranks[2].size(), 6U) << "those of ranks 0, 1 and its own to rank 3";
    EXPECT_TRUE(plan.ranks[3].empty());
}

TEST(AttentionPlan, UlyssesSendsHeadsBeforeAndRowsAfter) {
    AttentionOptions options = options_for({.length = 64}, 2, Sharding::contiguous);
    options.ulysses = 2;
    const Plan plan = attention(ranks(2), {1, 4, 1, 64, 8}, options).value();
    const auto& ops = plan.ranks[0];
    ASSERT_EQ(ops.size(), 5U);  // Q, K, V, then O and L
    const auto name = [&](std::size_t n) {
        return plan.tensors[static_cast<std::size_t>(ops[n].src.tensor)].name;
    };
    EXPECT_EQ(name(0) + name(1) + name(2) + name(3) + name(4), "QKVOL");
    EXPECT_EQ(ops[0].src.region, (Region{{0, 1}, {2, 4}, {0, 32}, {0, 8}}));
    EXPECT_EQ(ops[1].src.region, (Region{{0, 1}, {0, 1}, {0, 32}, {0, 8}}))
        << "the one head of K goes with all";
    EXPECT_EQ(ops[3].src.region, (Region{{0, 1}, {0, 2}, {32, 64}, {0, 8}}));
}

TEST(AttentionPlan, OfKAndVAloneMovesThemTheSameWay) {
    for (const Circulation circulation :
         {Circulation::all_gather, Circulation::ring, Circulation::double_ring}) {
        AttentionOptions options = options_for({.length = 64}, 4, Sharding::zigzag);
        options.circulation = circulation;
        const Plan whole = attention(ranks(4), {1, 4, 2, 64, 8}, options).value();
        options.only_kv = true;
        const Plan alone = attention(ranks(4), {1, 4, 2, 64, 8}, options).value();
        EXPECT_TRUE(check(alone).empty());
        ASSERT_EQ(alone.tensors.size(), 2U);
        EXPECT_TRUE(alone.produced.empty());
        for (std::size_t rank = 0; rank < 4; ++rank)
            EXPECT_EQ(alone.ranks[rank].size(), whole.ranks[rank].size());
        EXPECT_EQ(rows_that_arrive(alone, 64, 0), rows_that_arrive(whole, 64, 0));
        options.only_kv = false;
        options.q_o_stay = true;
        const Plan staying = attention(ranks(4), {1, 4, 2, 64, 8}, options).value();
        EXPECT_TRUE(check(staying).empty());
        ASSERT_EQ(staying.tensors.size(), 3U);
        EXPECT_EQ(staying.tensors[2].name, "L");
        EXPECT_EQ(staying.produced.size(), staying.final.size()) << "each rank's own rows of L";
        EXPECT_EQ(rows_that_arrive(staying, 64, 0), rows_that_arrive(whole, 64, 0));
    }
}

TEST(AttentionPlan, SaysWhyItCannotBe) {
    const auto error = [](const AttentionShape& shape, const AttentionOptions& options) {
        return attention(ranks(4), shape, options).error().message;
    };
    AttentionOptions options = options_for({.length = 64}, 4, Sharding::contiguous);
    options.ulysses = 4;
    EXPECT_EQ(
        error({1, 6, 2, 64, 8}, options),
        "attention: 6 heads cannot be shared out over 4 ranks: take a number of ranks that divides them, or "
        "no Ulysses");
    options.only_kv = true;
    EXPECT_EQ(error({1, 8, 2, 64, 8}, options),
              "attention: ranks that exchange heads move Q and O, too: a plan without these has no Ulysses");
    options.only_kv = false;
    options.ulysses = 1;
    EXPECT_EQ(error({1, 6, 4, 64, 8}, options),
              "attention: 6 heads of Q are no multiple of 4 heads of K and V");
    options.rows[1][0].begin += 1;
    EXPECT_EQ(
        error({1, 4, 4, 64, 8}, options),
        "attention: row 16 is not held by one rank: a run begins at 17 where the one before ends at 16");
}

TEST(ShardRows, InGroupsOnlyTheseAreCutAtTiles) {
    const auto rows = shard_rows({.length = 90}, 4, Sharding::zigzag, 16, 2);
    EXPECT_EQ(rows, (std::vector<Rows>{{{0, 16}, {64, 69}}, {{69, 90}}, {{16, 40}}, {{40, 64}}}));
    EXPECT_TRUE(cut_at_tiles(rows, 90, 16, 2));
    EXPECT_FALSE(cut_at_tiles(rows, 90, 16));
    EXPECT_TRUE(cut_at_tiles(shard_rows({.length = 90}, 4, Sharding::contiguous, 16), 90, 16));
}

TEST(ShardRows, ZigzagPairsTheFirstPartWithTheLast) {
    EXPECT_EQ(shard_rows({.length = 64}, 2, Sharding::zigzag, 4),
              (std::vector<Rows>{{{0, 16}, {48, 64}}, {{16, 48}}}));
}

TEST(ShardRows, CutsAreMultiplesOfABlockButForTheEnd) {
    for (const Sharding sharding : {Sharding::contiguous, Sharding::zigzag, Sharding::documents}) {
        for (const Rows& rows : shard_rows({.length = 83, .documents = {0, 30, 83}}, 3, sharding, 8)) {
            for (const Interval& run : rows) {
                EXPECT_EQ(run.begin % 8, 0);
                EXPECT_TRUE(run.end % 8 == 0 || run.end == 83);
            }
        }
    }
}

TEST(ShardRows, EachRowHasOneRank) {
    for (const Sharding sharding : {Sharding::contiguous, Sharding::zigzag, Sharding::documents}) {
        for (std::int32_t count = 1; count <= 5; ++count) {
            std::vector<int> held(90, 0);
            for (const Rows& rows :
                 shard_rows({.length = 90, .documents = {0, 17, 60, 90}}, count, sharding, 4)) {
                for (const Interval& run : rows) {
                    for (std::int64_t row = run.begin; row < run.end; ++row)
                        ++held[static_cast<std::size_t>(row)];
                }
            }
            EXPECT_TRUE(std::ranges::all_of(held, [](int n) { return n == 1; }));
        }
    }
}

TEST(AttendedBy, StopsAtTheDiagonalTheWindowAndTheDocument) {
    EXPECT_EQ(attended_by({.length = 64}, {{8, 16}}), (Rows{{0, 64}}));
    EXPECT_EQ(attended_by({.length = 64, .causal = true}, {{8, 16}, {40, 44}}), (Rows{{0, 44}}));
    EXPECT_EQ(attended_by({.length = 64, .causal = true, .window = 4}, {{8, 16}, {40, 44}}),
              (Rows{{5, 16}, {37, 44}}));
    EXPECT_EQ(attended_by({.length = 64, .window = 4}, {{8, 16}}), (Rows{{5, 19}}));
    EXPECT_EQ(attended_by({.length = 64, .documents = {0, 10, 64}, .causal = true}, {{8, 16}}),
              (Rows{{0, 16}}));
    EXPECT_EQ(attended_by({.length = 64, .documents = {0, 10, 64}, .causal = true}, {{12, 16}}),
              (Rows{{10, 16}}));
}

}  // namespace
}  // namespace syncopate::plan
