// Which transfers of a call on cuda come before the kernel in its own stream, and which beside it.
#include "runtime/call/call_order.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace syncopate::runtime {
namespace {

using plan::Backend;
using Indices = std::vector<std::size_t>;

constexpr int kRank = 1;

/// Rows of tensor `tensor`, all their columns.
plan::Chunk rows(std::int32_t tensor, std::int64_t begin, std::int64_t end) {
    return {tensor, {{begin, end}, {0, 8}}};
}

struct Schedule {
    fuse::RankSchedule rank;
    fuse::StreamPlan streams;

    Schedule& add(int to, plan::Chunk src, plan::Chunk dst, Backend backend = Backend::copy_engine,
                  fuse::Lane lane = fuse::Lane::early) {
        rank.transfers.push_back({.op = {kRank, static_cast<std::int32_t>(rank.transfers.size())},
                                  .backend = backend,
                                  .src_rank = kRank,
                                  .dst_rank = to,
                                  .src = std::move(src),
                                  .dst = std::move(dst)});
        streams.steps.push_back({.lane = lane});
        return *this;
    }
    [[nodiscard]] CallOrder order() const {
        Result<CallOrder> result = order_of(rank, streams, kRank, "gather");
        EXPECT_TRUE(result) << result.error().to_string();
        return std::move(result).value();
    }
};

TEST(CallOrder, TakesCopiesWithinTheGpuBeforeTheKernel) {
    Schedule schedule;
    schedule.add(0, rows(0, 0, 4), rows(1, 0, 4)).add(kRank, rows(0, 4, 8), rows(1, 4, 8));
    const CallOrder order = schedule.order();
    EXPECT_EQ(order.local, (Indices{1}));
    EXPECT_EQ(order.copies, (Indices{0}));
    EXPECT_TRUE(order.copies_start_first) << "nobody else touches what it reads or writes";
}

TEST(CallOrder, LeavesALocalCopyBehindWhatItFollows) {
    // What an earlier copy to this rank itself writes, which waits for something and so is not before.
    Schedule written;
    written.add(kRank, rows(2, 0, 4), rows(0, 0, 4)).add(kRank, rows(0, 2, 6), rows(1, 2, 6));
    written.rank.transfers[0].waits = {{0, 0}};
    EXPECT_EQ(written.order().copies, (Indices{0, 1}));
    EXPECT_TRUE(written.order().local.empty());
    // What an earlier one reads.
    Schedule read;
    read.add(0, rows(0, 0, 4), rows(0, 0, 4)).add(kRank, rows(2, 0, 4), rows(0, 0, 4));
    EXPECT_EQ(read.order().copies, (Indices{0, 1}));
    // The same by the chunk engine, which is in no list.
    Schedule engine;
    engine.add(0, rows(0, 0, 4), rows(0, 0, 4), Backend::tma_dedicated, fuse::Lane::none)
        .add(kRank, rows(2, 0, 4), rows(0, 0, 4));
    EXPECT_EQ(engine.order().copies, (Indices{1}));
    EXPECT_TRUE(engine.order().local.empty());
    // Another tensor's rows, or other rows, do not matter; nor do those at a peer.
    Schedule apart;
    apart.add(0, rows(1, 0, 4), rows(0, 0, 4)).add(kRank, rows(2, 0, 4), rows(0, 0, 4));
    EXPECT_EQ(apart.order().local, (Indices{1}));
}

TEST(CallOrder, LetsTheCopyStreamWaitForLocalCopiesThatItSendsOn) {
    Schedule schedule;
    schedule.add(kRank, rows(0, 0, 4), rows(1, 0, 4)).add(0, rows(1, 2, 3), rows(1, 2, 3));
    EXPECT_EQ(schedule.order().local, (Indices{0}));
    EXPECT_FALSE(schedule.order().copies_start_first);
    schedule.rank.transfers[1].src = rows(1, 4, 5);
    EXPECT_TRUE(schedule.order().copies_start_first);
}

TEST(CallOrder, PutsCollectivesBeforeTheKernelAndLeavesOutWhatFollowsIt) {
    Schedule schedule;
    schedule.add(kRank, rows(0, 0, 4), rows(1, 0, 4))
        .add(kRank, rows(2, 0, 4), rows(2, 0, 8), Backend::nccl, fuse::Lane::before)
        .add(0, rows(3, 0, 4), rows(3, 0, 4), Backend::copy_engine, fuse::Lane::late)
        .add(kRank, rows(4, 0, 4), rows(4, 0, 4), Backend::copy_engine, fuse::Lane::sums);
    const CallOrder order = schedule.order();
    EXPECT_EQ(order.local, (Indices{0}));
    EXPECT_EQ(order.collectives, (Indices{1}));
    EXPECT_TRUE(order.copies.empty());
    EXPECT_FALSE(order.copies_start_first) << "the collective's kernel comes first";
}

TEST(CallOrder, RefusesABackendThatCudaDoesNotHave) {
    Schedule schedule;
    schedule.add(0, rows(0, 0, 4), rows(0, 0, 4), Backend::host, fuse::Lane::none);
    const Result<CallOrder> order = order_of(schedule.rank, schedule.streams, kRank, "gather");
    ASSERT_FALSE(order);
    const std::string text = order.error().to_string();
    EXPECT_NE(text.find("'gather'"), std::string::npos) << text;
    EXPECT_NE(text.find("backend host"), std::string::npos) << text;
}

}  // namespace
}  // namespace syncopate::runtime
