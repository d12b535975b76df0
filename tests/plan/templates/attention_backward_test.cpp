#include "syncopate/plan/templates/attention_backward.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "syncopate/plan/check/check.hpp"

namespace syncopate::plan {
namespace {

Mesh ranks(std::int32_t count) { return {{{"gpu", count}}}; }

AttentionBackwardOptions options_for(const Sequence& sequence, std::int32_t count, Sharding sharding) {
    AttentionBackwardOptions options;
    options.moved.rows = shard_rows(sequence, count, sharding, 1);
    for (const Rows& rows : options.moved.rows)
        options.moved.attended.push_back(attended_by(sequence, rows, 4));
    return options;
}

const AttentionShape kShape{2, 8, 8, 71, 8};

/// By rank, what it makes of a tensor's rows.
std::vector<std::set<std::int64_t>> rows_made(const Plan& plan, const char* name) {
    std::vector<std::set<std::int64_t>> made(plan.ranks.size());
    for (const Holding& holding : plan.produced) {
        if (holding.chunk.tensor != *plan.find_tensor(name)) continue;
        const Interval& rows = holding.chunk.region[2];
        for (std::int64_t row = rows.begin; row < rows.end; ++row)
            made[static_cast<std::size_t>(holding.rank)].insert(row);
    }
    return made;
}

TEST(AttentionBackwardPlan, HasNoFindingsOfAnyKindOnAnyNumberOfRanks) {
    for (std::int32_t count = 1; count <= 8; ++count) {
        for (const Sharding sharding : {Sharding::contiguous, Sharding::zigzag}) {
            for (const bool causal : {false, true}) {
                const Sequence sequence{.length = 71, .causal = causal, .window = count % 3 == 0 ? 20 : 0};
                AttentionBackwardOptions options = options_for(sequence, count, sharding);
                for (const Circulation circulation :
                     {Circulation::all_gather, Circulation::ring, Circulation::double_ring}) {
                    options.moved.circulation = circulation;
                    options.moved.split = 1 + count % 2;
                    options.kept = count == 3;
                    options.stays = count == 4;
                    const auto plan = attention_backward(ranks(count), kShape, options);
                    ASSERT_TRUE(plan.ok()) << plan.error().to_string();
                    const auto findings = check(plan.value());
                    EXPECT_TRUE(findings.empty()) << count << " ranks: " << findings.front().message;
                }
            }
        }
    }
}

TEST(AttentionBackwardPlan, HasNoFindingsWhereRanksExchangeHeads) {
    for (const std::int32_t count : {2, 4, 8}) {
        for (const Sharding sharding : {Sharding::contiguous, Sharding::zigzag}) {
            AttentionBackwardOptions options = options_for({.length = 71, .causal = true}, count, sharding);
            options.moved.ulysses = count;
            options.padded = 80;
            for (const std::int32_t parts : {1, 2}) {
                if (8 % (count * parts) != 0) continue;
                options.moved.parts = parts;
                const auto plan = attention_backward(ranks(count), kShape, options);
                ASSERT_TRUE(plan.ok()) << plan.error().to_string();
                const auto findings = check(plan.value());
                EXPECT_TRUE(findings.empty()) << count << " ranks: " << findings.front().message;
            }
        }
    }
}

TEST(AttentionBackwardPlan, HasNoFindingsWhereGroupsExchangeHeads) {
    for (const auto& [count, group] : {std::pair{4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}}) {
        for (const Sharding sharding : {Sharding::contiguous, Sharding::zigzag}) {
            for (const bool causal : {false, true}) {
                const Sequence sequence{.length = 71, .causal = causal, .window = count == 6 ? 20 : 0};
                AttentionBackwardOptions options = options_for(sequence, count, sharding);
                options.moved.ulysses = group;
                options.moved.circulation = Circulation::ring;
                options.moved.split = 1 + count / 4 % 2;
                options.padded = 40;
                const auto plan = attention_backward(ranks(count), {2, 12 * 2, 12, 71, 8}, options);
                ASSERT_TRUE(plan.ok()) << plan.error().to_string();
                const auto findings = check(plan.value());
                EXPECT_TRUE(findings.empty())
                    << count << " ranks by " << group << ": " << findings.front().message;
            }
        }
    }
}

// All of a part comes before any of the next, so that its tiles can begin.
TEST(AttentionBackwardPlan, ExchangesHeadsPartByPart) {
    AttentionBackwardOptions options = options_for({.length = 64}, 2, Sharding::contiguous);
    options.moved.ulysses = 2;
    options.moved.parts = 4;
    const auto plan = attention_backward(ranks(2), {1, 16, 8, 64, 8}, options);
    ASSERT_TRUE(plan.ok()) << plan.error().to_string();
    std::int64_t part = 0;    // of K, V, Q and dO of rank 0, in the order in which they are sent
    std::int64_t copies = 0;  // of what it keeps
    for (const Op& op : plan->ranks[0]) {
        const std::string& name = plan->tensors[static_cast<std::size_t>(op.dst.tensor)].name;
        copies += op.kind == OpKind::local && (name == "K.heads" || name == "DO.heads") ? 1 : 0;
    }
    EXPECT_EQ(copies, 2) << "one of each";
    for (const Op& op : plan->ranks[0]) {
        const std::string& name = plan->tensors[static_cast<std::size_t>(op.dst.tensor)].name;
        if (op.peer != 1 ||
            (name != "K.heads" && name != "V.heads" && name != "Q.heads" && name != "DO.heads"))
            continue;
        const std::int64_t of = op.dst.region[1].begin / op.dst.region[1].size();
        EXPECT_GE(of, part);
        part = of;
    }
    EXPECT_EQ(part, 3);
}

TEST(AttentionBackwardPlan, SumsOfEachRowWhatTheRanksThatSeeItMake) {
    // Causal, contiguous: rank r sees rows of ranks up to itself.
    const Sequence sequence{.length = 64, .causal = true};
    const AttentionBackwardOptions options = options_for(sequence, 4, Sharding::contiguous);
    const auto plan = attention_backward(ranks(4), {1, 2, 2, 64, 8}, options);
    ASSERT_TRUE(plan.ok());
    const auto made = rows_made(*plan, "DK");
    for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(made[rank].size(), 16 * (rank + 1));
    for (const Holding& holding : plan->final) {
        std::vector<std::int32_t> later;
        for (std::int32_t rank = holding.rank; rank < 4; ++rank) later.push_back(rank);
        EXPECT_EQ(holding.of, later);
    }
    EXPECT_TRUE(plan->ranks[0].size() == 6);  // K and V to three ranks; it adds to nobody's gradients
}

TEST(AttentionBackwardPlan, SendsEachGradientOnceARankRoundARing) {
    const Sequence sequence{.length = 64};
    AttentionBackwardOptions options = options_for(sequence, 4, Sharding::contiguous);
    options.moved.circulation = Circulation::ring;
    const auto plan = attention_backward(ranks(4), {1, 2, 2, 64, 8}, options);
    ASSERT_TRUE(plan.ok());
    for (std::int32_t rank = 0; rank < 4; ++rank) {
        for (const Op& op : plan->ranks[static_cast<std::size_t>(rank)]) EXPECT_EQ(op.peer, (rank + 1) % 4);
    }
}

TEST(AttentionBackwardPlan, MovesOnlyGradientsWhereKAndVAreKept) {
    AttentionBackwardOptions options = options_for({.length = 64}, 4, Sharding::contiguous);
    options.kept = true;
    const auto plan = attention_backward(ranks(4), {1, 2, 2, 64, 8}, options);
    ASSERT_TRUE(plan.ok());
    for (const std::vector<Op>& list : plan->ranks) {
        for (const Op& op : list) EXPECT_EQ(op.reduce, Reduce::sum);
    }
}

TEST(AttentionBackwardPlan, RefusesToExchangeHeadsThatAreNotSharedOut) {
    AttentionBackwardOptions options = options_for({.length = 71}, 4, Sharding::contiguous);
    options.moved.ulysses = 4;
    const auto plan = attention_backward(ranks(4), {1, 8, 2, 71, 8}, options);
    ASSERT_FALSE(plan.ok());
    EXPECT_NE(plan.error().to_string().find("2 heads of K and V are no multiple of 4 ranks"),
              std::string::npos);
}

}  // namespace
}  // namespace syncopate::plan
