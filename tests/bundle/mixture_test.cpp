// Mixtures of experts from bundles: their calls on host by the C API.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bundle/mixture_samples.hpp"
#include "syncopate/at.hpp"
#include "syncopate/bundle/loaded.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/ops/mixture.hpp"

namespace syncopate::bundle {
namespace {

using namespace testing;

TEST(BundleMixture, IsCalledFromCWithOneRoutingAfterAnother) {
    for (const int ranks : {1, 2, 4}) {
        with_ops(mixture("", ranks), ranks, [&](sy_op* op, int rank) {
            ASSERT_EQ(sy_num_operands(op), 6);
            const char* const names[] = {"x", "topk_ids", "topk_weights", "w1", "w2", "y"};
            for (int32_t i = 0; i < 6; ++i) {
                sy_operand operand{};
                operand.size = sizeof(operand);
                OK(sy_operand_at(op, i, &operand));
                EXPECT_STREQ(operand.name, names[i]);
                EXPECT_EQ(operand.writes, i == 5);
            }
            Call call(rank, ranks);
            for (int routing = 0; routing < 6; ++routing) {
                for (int64_t route = 0; route < kTokens * kTopk; ++route) {
                    // Spread, all to one expert, repeated within a token, nothing for the last rank.
                    const int64_t ids[] = {(route + rank) % kExperts,         1,
                                           route / kTopk % kExperts,          route % 2 * 2,
                                           (route * 7 + 3 * rank) % kExperts, kExperts - 1};
                    call.ids.values[at(route)] = ids[routing];
                }
                OK(call.run(op));
                OK(sy_status(op));
                call.expect_right(rank);
            }
        });
    }
}

TEST(BundleMixture, SaysOnAllRanksThatMoreRowsThanTheBoundCameOrDropsThem) {
    for (const bool drops : {false, true}) {
        Bundle made = mixture(",bound=12");
        made.op->drops = drops;
        with_ops(made, 2, [&](sy_op* op, int rank) {
            Call call(rank, 2);
            std::ranges::fill(call.ids.values, 2);  // 20 rows to rank 1: those of rank 0 first
            if (drops) {
                OK(call.run(op));
                call.expect_right(
                    rank, rank == 0 ? std::set<int64_t>{} : std::set<int64_t>{2, 3, 4, 5, 6, 7, 8, 9});
            } else {
                EXPECT_EQ(call.run(op), SY_USAGE);
                EXPECT_STREQ(sy_last_error(),
                             "bound: as many as 8 rows more than 12 come to a rank: compile it with "
                             "bound=20, or --drop");
            }
            for (int64_t route = 0; route < kTokens * kTopk; ++route)
                call.ids.values[at(route)] = route % kExperts;
            OK(call.run(op));  // the next call knows nothing of it
            OK(sy_status(op));
            call.expect_right(rank);
        });
    }
}

TEST(BundleMixture, SaysOnAllRanksThatAnIdNamesNoExpert) {
    for (const int64_t id : {int64_t{-2}, kExperts, int64_t{1} << 40, std::numeric_limits<int64_t>::min()}) {
        with_ops(mixture(), 2, [&](sy_op* op, int rank) {
            Call call(rank, 2);
            for (int64_t route = 0; route < kTokens * kTopk; ++route)
                call.ids.values[at(route)] = route % kExperts;
            if (rank == 1) call.ids.values[3] = id;
            EXPECT_EQ(call.run(op), SY_USAGE);
            EXPECT_STREQ(sy_last_error(),
                         "topk_ids: 1 of all ranks' ids name no expert; there are experts 0 to 3");
            call.expect_right(rank, rank == 1 ? std::set<int64_t>{3} : std::set<int64_t>{});
        });
    }
}

TEST(BundleMixture, IsFilledUpWithRoutesThatAddNothing) {
    for (const int ranks : {1, 2}) {
        with_ops(mixture(",bound=8", ranks), ranks, [&](sy_op* op, int rank) {
            Call call(rank, ranks);
            for (const int64_t used : {kTokens - 2, int64_t{0}, int64_t{1}}) {
                std::set<int64_t> filled;
                for (int64_t route = 0; route < kTokens * kTopk; ++route) {
                    const bool fills = route >= used * kTopk || (rank == 0 && used == 1);
                    call.ids.values[at(route)] = fills ? -1 : route % kExperts;
                    if (fills) filled.insert(route);
                }
                std::ranges::fill(call.y.values, 7.0F);
                OK(call.run(op));
                OK(sy_status(op));
                call.expect_right(rank, filled);
            }
        });
    }
}

TEST(BundleMixture, ForgetsWithItsFailedCallsWhatOneRankAloneHasSeenOfThem) {
    Store meet;
    on_ranks(2, [&](int rank) {
        const auto made = std::make_shared<const Bundle>(mixture());
        auto loaded = Loaded::open(made, {}, meet.rendezvous(rank, 2));
        ASSERT_TRUE(loaded) << loaded.error().to_string();
        auto prepared = (*loaded)->prepare(kTokens);
        ASSERT_TRUE(prepared) << prepared.error().to_string();
        Prepared& op = **prepared;
        // What a call leaves that has ended between this rank's layout and the others' rows.
        const Scratch scratch = scratch_of(op.planned());
        runtime::SymmetricHeap& heap = *op.op().heap();
        const std::uint64_t place = heap.local((heap.bytes_allocated() - scratch.bytes + 255) / 256 * 256 +
                                               scratch.places.at(ops::kSeen).offset);
        const std::vector<std::uint32_t> left{9, 5, 1, 1};
        if (rank == 1) {
            ASSERT_TRUE(heap.write(place, left.data(), 4 * left.size()));
        }
        const Status reset = op.reset();
        EXPECT_TRUE(reset) << reset.error().to_string();
        const Status checked = op.check();
        EXPECT_TRUE(checked) << "rank " << rank << ": " << checked.error().to_string();
        if (rank == 1) {  // nobody failed: it is news
            ASSERT_TRUE(heap.write(place, std::vector<std::uint32_t>{9, 8, 2, 2}.data(), 16));
            const Status news = op.check();
            ASSERT_FALSE(news);
            EXPECT_NE(news.error().message.find("topk_ids: 3 of all"), std::string::npos)
                << news.error().message;
            EXPECT_TRUE(op.check()) << "told once";
        }
        EXPECT_TRUE(op.destroy());
    });
}

TEST(BundleMixture, OfFaultsInCallsIsToldOnceWhicheverThreadAsks) {
    with_ops(mixture(), 2, [&](sy_op* op, int rank) {
        Call call(rank, 2);
        for (int turn = 0; turn < 20; ++turn) {
            for (int64_t route = 0; route < kTokens * kTopk; ++route)
                call.ids.values[at(route)] = route % kExperts;
            if (turn % 2 == 1) call.ids.values[at(turn % 4)] = kExperts + rank;
            std::jthread other([&] { OK(sy_status(op)); });
            EXPECT_EQ(call.run(op), turn % 2 == 1 ? SY_USAGE : SY_OK) << turn;
        }
        OK(sy_status(op));
    });
}

TEST(BundleMixture, TakesNoMoreMemoryThanItSaysAndGivesAllOfItBack) {
    with_bundle(mixture(), 2, [&](sy_comm* comm, sy_bundle* opened, int rank) {
        sy_op* op = nullptr;
        sy_workspace needs{};
        needs.size = sizeof(needs);
        OK(sy_workspace_size(opened, kTokens, &needs));
        sy_prepare_config prepare{};
        prepare.size = sizeof(prepare);
        prepare.rows = kTokens;
        OK(sy_prepare(comm, opened, &prepare, &op));
        sy_memory memory{};
        memory.size = sizeof(memory);
        OK(sy_comm_memory(comm, &memory));
        EXPECT_EQ(memory.bytes, needs.mapped);
        EXPECT_EQ(needs.own, 0U) << "all else is the heap's, which sy_release gives back";
        Call call(rank, 2);
        for (int turn = 0; turn < 2; ++turn) {
            for (int64_t route = 0; route < kTokens * kTopk; ++route)
                call.ids.values[at(route)] = (route + turn) % kExperts;
            OK(call.run(op));
            call.expect_right(rank);
            OK(sy_release(comm));
            OK(sy_status(op));
            OK(sy_restore(comm));
        }
        OK(sy_op_destroy(op));
    });
    // Of many tokens, what kernels share is no rounding of a page any more.
    Bundle large = mixture();
    large.op->problem = large.op->problem.with_rows(1 << 20);
    large.op->buckets.front().rows = 1 << 20;
    const Result<Planned> planned = plan_rows(large, 1 << 20, 0);
    ASSERT_TRUE(planned) << planned.error().to_string();
    const std::uint64_t scratch = scratch_of(*planned).bytes;
    EXPECT_GT(scratch, std::uint64_t{16} << 20);
    EXPECT_GE(needs_of(large, *planned, 0).heap, planned->launch.schedule.heap.bytes + scratch);
}

TEST(BundleMixture, NamesTheTensorThatIsNotAligned) {
    with_ops(mixture("", 1), 1, [&](sy_op* op, int rank) {
        Call call(rank, 1);
        std::ranges::fill(call.ids.values, 1);
        for (sy_tensor* const one : {&call.x.tensor, &call.ids.tensor, &call.weights.tensor, &call.w1.tensor,
                                     &call.w2.tensor, &call.y.tensor}) {
            one->byte_offset = 8;
            EXPECT_EQ(call.run(op), SY_USAGE);
            EXPECT_NE(std::string(sy_last_error()).find(": its address is no multiple of 16 bytes"),
                      std::string::npos)
                << sy_last_error();
            one->byte_offset = 0;
        }
        sy_operand operand{};
        operand.size = sizeof(operand);
        OK(sy_operand_at(op, 3, &operand));
        EXPECT_EQ(operand.alignment, 16);
        OK(call.run(op));
    });
}

TEST(BundleMixture, IsOfTheTokensOfItsBucketsAlone) {
    Bundle made = mixture();
    made.op->buckets.insert(made.op->buckets.begin(), {.rows = 2, .strategy = one_tile()});
    EXPECT_TRUE(plan_rows(made, 2));
    for (const std::int64_t rows : {1, 3, 6, 0}) {
        const Result<Planned> none = plan_rows(made, rows);
        ASSERT_FALSE(none.ok());
        EXPECT_NE(none.error().message.find("tokens a rank are not in this bundle, which has 2, 5"),
                  std::string::npos)
            << none.error().message;
    }
}

}  // namespace
}  // namespace syncopate::bundle
