#include "syncopate/plan/templates/push_reduce.hpp"

#include <gtest/gtest.h>

#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"

namespace syncopate::plan {
namespace {

Mesh ranks(std::int32_t count) { return {{{"gpu", count}}}; }
const Tensor kC{"C", {10, 6}, DType::bf16};

TEST(PushReduce, HasNoFindingsOnAnyNumberOfRanks) {
    for (std::int32_t count = 1; count <= 12; ++count) {  // more ranks than rows: some own nothing
        for (const std::int32_t split : {1, 3}) {
            for (const bool all : {false, true}) {
                const Plan plan = push_reduce(ranks(count), kC, {.split = split, .all = all}).value();
                EXPECT_TRUE(check(plan).empty()) << count << " ranks: " << check(plan).front().message;
                EXPECT_EQ(plan.produced.size(), static_cast<std::size_t>(count));
            }
        }
    }
}

TEST(PushReduce, SendsTheNextRanksShardFirstSoThatNoTwoAimAtOneDestination) {
    const Plan plan = push_reduce(ranks(4), kC).value();
    for (std::int32_t rank = 0; rank < 4; ++rank) {
        ASSERT_EQ(plan.ranks[rank].size(), 3U);
        for (std::int32_t turn = 0; turn < 3; ++turn)
            EXPECT_EQ(plan.ranks[rank][turn].peer, (rank + 1 + turn) % 4);
    }
    EXPECT_EQ(plan.ranks[0][0].dst.region[0].begin, 3) << "shards of 3, 3, 2, 2 rows";
}

TEST(PushReduce, AnAllReduceSendsAChunkOnAfterAllItsContributions) {
    const Plan plan = push_reduce(ranks(3), kC, {.split = 2, .all = true}).value();
    const Op& on = plan.ranks[1].back();
    EXPECT_EQ(on.reduce, Reduce::none);
    ASSERT_EQ(on.after.size(), 2U);
    for (const OpRef ref : on.after) {
        EXPECT_EQ(plan.op(ref).dst, on.src);
        EXPECT_EQ(plan.op(ref).reduce, Reduce::sum);
    }
}

TEST(PushReduce, CutsShardsOfRowsIntoChunksOfColumns) {
    const Plan plan =
        push_reduce(ranks(2), kC, {.split = 4, .split_axis = 1, .all = true, .by_part = true}).value();
    EXPECT_TRUE(check(plan).empty()) << check(plan).front().message;
    std::vector<Region> sent;  // contributions of rank 0, to rank 1's rows
    for (const Op& op : plan.ranks[0]) {
        if (op.reduce != Reduce::none) sent.push_back(op.dst.region);
    }
    EXPECT_EQ(sent, (std::vector<Region>{
                        {{5, 10}, {0, 2}}, {{5, 10}, {2, 4}}, {{5, 10}, {4, 5}}, {{5, 10}, {5, 6}}}));
    for (const std::int32_t count : {1, 3, 12}) {
        for (const bool pull : {false, true}) {
            const Plan other =
                push_reduce(ranks(count), kC, {.split = 3, .split_axis = 1, .pull = pull}).value();
            EXPECT_TRUE(check(other).empty()) << count << " ranks: " << check(other).front().message;
        }
    }
    const auto refused = push_reduce(ranks(2), kC, {.split_axis = 2});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "split axis 2 is not an axis of tensor C; expected 0 to 1");
}

TEST(PushReduce, GivesTheContributionsABackendByDistance) {
    const Plan plan =
        push_reduce(ranks(4), kC,
                    {.split = 2, .all = true, .backends = {Backend::automatic, Backend::tma_inline}})
            .value();
    for (std::int32_t rank = 0; rank < 4; ++rank) {
        for (const Op& op : plan.ranks[static_cast<std::size_t>(rank)]) {
            const bool second = op.reduce != Reduce::none && op.peer == (rank + 2) % 4;
            EXPECT_EQ(op.backend, second ? Backend::tma_inline : Backend::automatic);
        }
    }
}

TEST(PushReduce, ByPartSendsTheFirstChunksOfAllShardsBeforeTheSecondOnes) {
    const Plan plan =
        push_reduce(ranks(3), {"C", {12, 6}, DType::bf16}, {.split = 2, .by_part = true}).value();
    EXPECT_TRUE(check(plan).empty());
    std::vector<std::int64_t> rows;
    for (const Op& op : plan.ranks[0]) rows.push_back(op.dst.region[0].begin);
    EXPECT_EQ(rows, (std::vector<std::int64_t>{4, 8, 6, 10}))
        << "shards begin at 4 and 8, second halves at 6 and 10";
    EXPECT_TRUE(check(push_reduce(ranks(5), kC, {.split = 3, .all = true, .by_part = true}).value()).empty());

    const Plan all =
        push_reduce(ranks(2), {"C", {12, 6}, DType::bf16}, {.split = 3, .all = true, .by_part = true})
            .value();
    std::string kinds;
    for (const Op& op : all.ranks[0]) kinds += op.reduce == Reduce::sum ? 'c' : 's';
    EXPECT_EQ(kinds, "ccscss") << "a sum is sent after the contributions to the next part";
    EXPECT_EQ(all.op({0, 2}).after, (std::vector<OpRef>{{1, 0}})) << "the first part of rank 0";
}

TEST(PushReduce, PulledByTheOwnersOfShards) {
    for (std::int32_t count = 1; count <= 5; ++count) {
        for (const bool all : {false, true}) {
            for (const bool by_part : {false, true}) {
                const Plan plan =
                    push_reduce(ranks(count), kC, {.split = 3, .all = all, .by_part = by_part, .pull = true})
                        .value();
                EXPECT_TRUE(check(plan).empty()) << count << " ranks: " << check(plan).front().message;
            }
        }
    }
    const Plan plan =
        push_reduce(ranks(3), {"C", {12, 6}, DType::bf16}, {.split = 2, .by_part = true, .pull = true})
            .value();
    std::vector<std::pair<std::int32_t, std::int64_t>> pulls;
    for (const Op& op : plan.ranks[1]) {
        EXPECT_EQ(op.kind, OpKind::pull);
        pulls.emplace_back(op.peer, op.dst.region[0].begin);
    }
    EXPECT_EQ(pulls, (std::vector<std::pair<std::int32_t, std::int64_t>>{{2, 4}, {0, 4}, {2, 6}, {0, 6}}))
        << "rank 1's shard begins at 4, its second half at 6";
}

TEST(PushReduce, CutsAlongAnotherAxis) {
    const Plan plan = push_reduce(ranks(2), kC, {.axis = 1, .reduce = Reduce::max}).value();
    EXPECT_TRUE(check(plan).empty());
    EXPECT_EQ(to_string(plan.ranks[0][0].dst.region), "[0:10, 3:6]");
    EXPECT_EQ(plan.ranks[0][0].reduce, Reduce::max);
}

TEST(PushReduce, SaysWhatIsWrongWithItsOptions) {
    const auto message = [](const Result<Plan>& plan) { return plan.ok() ? "" : plan.error().message; };
    EXPECT_NE(message(push_reduce(ranks(2), kC, {.axis = 2})).find("axis 2 is not an axis"),
              std::string::npos);
    EXPECT_NE(message(push_reduce(ranks(2), kC, {.split = 0})).find("split is 0"), std::string::npos);
    EXPECT_NE(message(push_reduce(ranks(2), kC, {.reduce = Reduce::none})).find("sum or max"),
              std::string::npos);
    EXPECT_NE(message(push_reduce({}, kC)).find("the mesh has 0 ranks"), std::string::npos);
    EXPECT_NE(message(push_reduce(ranks(4096), {"C", {1 << 24, 1}, DType::bf16}, {.split = 1 << 20}))
                  .find("use a smaller split"),
              std::string::npos);
}

TEST(PushReduceToAll, SendsEveryContributionToEveryRankInOneStep) {
    for (const std::int32_t count : {1, 2, 5}) {
        for (const std::int32_t axis : {0, 1}) {
            const Plan plan =
                push_reduce_to_all(ranks(count), kC, "D", {.split = 2, .split_axis = axis}).value();
            EXPECT_TRUE(check(plan).empty()) << count << " ranks, axis " << axis;
            for (const std::vector<Op>& list : plan.ranks) {
                EXPECT_EQ(list.size(), 2U * static_cast<std::size_t>(count));
                for (const Op& op : list) EXPECT_EQ(op.reduce == Reduce::none, op.kind == OpKind::local);
            }
        }
    }
    EXPECT_FALSE(push_reduce_to_all(ranks(2), kC, "D", {.split = 0}).ok());
    EXPECT_FALSE(push_reduce_to_all(ranks(2), kC, "D", {.reduce = Reduce::none}).ok());
}

TEST(PushReduceToAll, LeavesEachRankItsEvenShareOfTheRowsThatAreAskedFor) {
    using Finals = std::vector<std::pair<std::int32_t, Interval>>;  // rank, rows
    const auto finals = [](std::int32_t count, const PushReduceToAllOptions& options) {
        const Plan plan = push_reduce_to_all(ranks(count), kC, "D", options).value();
        EXPECT_TRUE(check(plan).empty()) << count << " ranks: " << check(plan).front().message;
        Finals made;
        for (const Holding& held : plan.final) {
            EXPECT_EQ(held.chunk.tensor, 1);
            EXPECT_EQ(held.chunk.region[1], (Interval{0, 6}));
            EXPECT_TRUE(held.of_all);
            made.emplace_back(held.rank, held.chunk.region[0]);
        }
        return made;
    };
    EXPECT_EQ(finals(3, {.all = false}), (Finals{{0, {0, 4}}, {1, {4, 7}}, {2, {7, 10}}}));
    EXPECT_EQ(finals(3, {.all = false, .rows = 8}), (Finals{{0, {0, 3}}, {1, {3, 6}}, {2, {6, 8}}}));
    EXPECT_EQ(finals(3, {.all = false, .rows = 2}), (Finals{{0, {0, 1}}, {1, {1, 2}}})) << "none for rank 2";
    EXPECT_EQ(finals(2, {.rows = 7}), (Finals{{0, {0, 7}}, {1, {0, 7}}}));
    EXPECT_EQ(finals(2, {.rows = 10}), finals(2, {}));
    EXPECT_EQ(finals(2, {.all = false, .rows = 9, .split = 3, .split_axis = 1}),
              (Finals{{0, {0, 5}}, {1, {5, 9}}}));
    EXPECT_EQ(finals(2, {.rows = 0}), Finals{});
}

TEST(PushReduceToAll, SendsAllThatIsMadeWhoeverAsksForIt) {
    const Plan all = push_reduce_to_all(ranks(3), kC, "D").value();
    const Plan shares = push_reduce_to_all(ranks(3), kC, "D", {.all = false, .rows = 7}).value();
    EXPECT_EQ(shares.ranks, all.ranks);
    EXPECT_EQ(shares.produced, all.produced);
}

TEST(PushReduceToAll, RefusesMoreRowsThanThereAre) {
    for (const std::int64_t rows : {-1, 11}) {
        const auto plan = push_reduce_to_all(ranks(2), kC, "D", {.rows = rows});
        ASSERT_FALSE(plan.ok());
        EXPECT_EQ(plan.error().message,
                  std::to_string(rows) + " rows of tensor C are asked for, which has 10");
    }
}

TEST(PushExchange, GivesEachRankABlockOfEachOther) {
    for (const std::int32_t split : {1, 2}) {
        const Plan plan = push_exchange(ranks(5), kC, "D", {.split = split}).value();
        EXPECT_TRUE(check(plan).empty()) << check(plan).front().message;
        EXPECT_EQ(plan.ranks[2].back().kind, OpKind::local) << "the own block last";
        EXPECT_EQ(plan.ranks[2].size(), static_cast<std::size_t>(5 * split));
    }
    EXPECT_EQ(push_exchange(ranks(5), kC, "D")->ranks[1].back().kind, OpKind::local) << "made last";
    EXPECT_EQ(push_exchange(ranks(5), kC, "D", {.produced = false})->ranks[1].front().kind, OpKind::local)
        << "used first";
    EXPECT_TRUE(check(push_exchange(ranks(5), kC, "D", {.produced = false}).value()).empty());
    const Plan fetched = push_exchange(ranks(5), kC, "D", {.produced = false, .transient = true}).value();
    EXPECT_TRUE(check(fetched).empty()) << check(fetched).front().message;
    EXPECT_TRUE(fetched.final.empty());
    EXPECT_EQ(fetched.ranks[3][1].kind, OpKind::pull);
    EXPECT_EQ(fetched.ranks[3][1].peer, 4);
    EXPECT_EQ(fetched.ranks[3][1].src.region[0], (Interval{6, 8})) << "block 3 of rank 4";
    EXPECT_EQ(fetched.ranks[3][1].dst.region[0], (Interval{8, 10})) << "becomes block 4";
    EXPECT_FALSE(push_exchange(ranks(5), kC, "D", {.transient = true}).ok()) << "nothing is held";
    EXPECT_FALSE(push_exchange(ranks(5), kC, "D", {.for_kernel = true}).ok());
    EXPECT_FALSE(push_exchange(ranks(3), kC, "D").ok()) << "10 rows are no multiple of 3";
}

TEST(PushExchange, CutsWhatLeavesAlongASecondAxis) {
    const auto message = [](const Result<Plan>& plan) {
        return plan.ok() ? std::string() : plan.error().to_string();
    };
    const Tensor x{"X", {6, 8}, DType::bf16};
    const auto columns = [](const Plan& plan) {  // of rank 0: peer and columns
        std::vector<std::pair<std::int32_t, Interval>> found;
        for (const Op& op : plan.ranks[0]) {
            EXPECT_EQ(op.src.region[1], op.dst.region[1]);
            found.emplace_back(op.peer, op.src.region[1]);
        }
        return found;
    };
    PushExchangeOptions options{.produced = false, .minor_axis = 1, .minor_sizes = {2, 6}};
    const Plan by_slice = push_exchange(ranks(3), x, "A", options).value();
    EXPECT_TRUE(check(by_slice).empty()) << check(by_slice).front().message;
    using Sent = std::vector<std::pair<std::int32_t, Interval>>;
    EXPECT_EQ(columns(by_slice), (Sent{{-1, {0, 8}}, {1, {0, 2}}, {2, {0, 2}}, {1, {2, 8}}, {2, {2, 8}}}));
    options.peer_by_peer = true;
    EXPECT_EQ(columns(push_exchange(ranks(3), x, "A", options).value()),
              (Sent{{-1, {0, 8}}, {1, {0, 2}}, {1, {2, 8}}, {2, {0, 2}}, {2, {2, 8}}}));
    const Plan made =
        push_exchange(ranks(3), x, "A", {.split = 2, .minor_axis = 1, .minor_split = 2}).value();
    EXPECT_TRUE(check(made).empty()) << check(made).front().message;
    EXPECT_EQ(made.ranks[0].size(), 2u * 2 * 2 + 2)
        << "two chunks in two slices for each peer, two of its own";
    EXPECT_EQ(made.ranks[0].back().kind, OpKind::local);

    options.minor_sizes = {2, 5};
    EXPECT_NE(
        message(push_exchange(ranks(3), x, "A", options)).find("minor_sizes 2 + 5 are not the 8 elements"),
        std::string::npos);
    EXPECT_NE(message(push_exchange(ranks(3), x, "A", {.minor_split = 2})).find("needs minor_axis"),
              std::string::npos);
    EXPECT_NE(message(push_exchange(ranks(2), {"X", {2, 1 << 24}, DType::bf16}, "A",
                                    {.minor_axis = 1, .minor_split = 1 << 24}))
                  .find("use a smaller split"),
              std::string::npos);
}

TEST(PushExchange, AsksForNothingAtTheEndThatIsForTheKernel) {
    const Plan plan = push_exchange(ranks(5), kC, "D", {.produced = false, .for_kernel = true}).value();
    EXPECT_TRUE(check(plan).empty()) << check(plan).front().message;
    EXPECT_TRUE(plan.final.empty());
    EXPECT_EQ(push_exchange(ranks(5), kC, "D", {.produced = false}).value().final.size(), 5u * 5);
}

}  // namespace
}  // namespace syncopate::plan
