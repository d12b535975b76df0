#include "syncopate/fuse/streams.hpp"

#include <gtest/gtest.h>

#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::fuse {
namespace {

using Kind = SignalMeaning::Kind;
using plan::Backend;
using Chunks = std::vector<std::int32_t>;
using Waits = std::vector<Wait>;

Transfer transfer(std::int32_t index, Backend backend, Waits waits = {}) {
    return {.op = {0, index}, .backend = backend, .waits = std::move(waits)};
}

TEST(Streams, ACopyThatWaitsForAMadeChunkAndForTheChunkEnginesOpBeforeWaitsForBoth) {
    RankSchedule rank;
    rank.signals = {{Kind::arrived, {0, 0}}, {Kind::made, {0, 0}}};
    rank.chunks.push_back({.counting = {0, 1}, .posts = {{0, 1}}});
    rank.transfers = {transfer(0, Backend::tma_dedicated),
                      transfer(1, Backend::copy_engine, {{0, 0}, {1, 0}}),
                      transfer(2, Backend::copy_engine, {{0, 0}, {1, 0}})};
    const StreamPlan streams = plan_streams(rank, 0);
    EXPECT_EQ(streams.steps[0].lane, Lane::none);
    EXPECT_EQ(streams.steps[1].lane, Lane::late);
    EXPECT_EQ(streams.steps[1].gates, Chunks{0});
    EXPECT_EQ(streams.steps[1].relayed, (Waits{{0, 0}}));
    EXPECT_EQ(streams.steps[1].relay, 0);
    EXPECT_EQ(streams.steps[2].gates, Chunks{}) << "the step before has passed it";
    EXPECT_EQ(streams.steps[2].relay, -1);
    EXPECT_EQ(streams.num_relays, 1);
    EXPECT_EQ(polled_chunks(rank, 0, streams), std::vector<bool>{false}) << "its gate is enough";
}

TEST(Streams, CopiesAfterCopiesAndAfterTheBeginAreEarly) {
    RankSchedule rank;
    rank.signals = {{Kind::arrived, {0, 0}}, {Kind::consumed, {1, -1}}, {Kind::arrived, {1, 4}}};
    rank.begin_waits = {{1, 1}};
    rank.transfers = {transfer(0, Backend::copy_engine, {{1, 1}}),
                      transfer(1, Backend::copy_engine, {{0, 0}}),
                      transfer(2, Backend::copy_engine, {{2, 0}}), transfer(3, Backend::copy_engine)};
    const StreamPlan streams = plan_streams(rank, 0);
    EXPECT_EQ(streams.steps[0].lane, Lane::early);
    EXPECT_EQ(streams.steps[1].lane, Lane::early);
    EXPECT_EQ(streams.steps[1].relay, -1);
    EXPECT_EQ(streams.steps[2].lane, Lane::late) << "another rank's op";
    EXPECT_EQ(streams.steps[2].relayed, (Waits{{2, 0}}));
    EXPECT_EQ(streams.steps[3].lane, Lane::late) << "in the order of the list";
}

TEST(Streams, ACopyAfterWhatTheKernelSendsInlineWaitsForTheGateOfItsChunk) {
    RankSchedule rank;
    rank.signals = {{Kind::arrived, {0, 0}}};  // op 0 is inline, and not in the list of transfers
    rank.chunks.push_back({.counting = {0, 1, 2}, .posts = {{1, 5}, {0, 0}}, .stores = {{1, 0, 0}}});
    rank.transfers = {transfer(1, Backend::copy_engine, {{0, 0}})};
    StreamPlan streams = plan_streams(rank, 0);
    EXPECT_EQ(streams.steps[0].gates, Chunks{0});
    EXPECT_EQ(polled_chunks(rank, 0, streams), std::vector<bool>{true}) << "rank 1 polls";
    // The chunk engine polls the signal itself, though no other rank is told.
    rank.chunks[0].posts = {{0, 0}};
    rank.transfers = {transfer(1, Backend::tma_dedicated, {{0, 0}})};
    streams = plan_streams(rank, 0);
    EXPECT_EQ(streams.num_relays, 0);
    EXPECT_EQ(polled_chunks(rank, 0, streams), std::vector<bool>{true});
}

TEST(Streams, SumsHaveAStreamOfTheirOwnAndPollWhatOthersSend) {
    const plan::Plan plan =
        plan::push_reduce(sample::ranks(3), {"C", {12, 4}, plan::DType::bf16}, {.all = true}).value();
    const Program program{sample::gemm({12, 4, 4, 4, 4, 4}), plan, {{"c_ptr", "C"}}};
    const Schedule schedule = fuse(program, {.device = Device::cuda}).value();
    const StreamPlan streams = plan_streams(schedule.ranks[0], 0);
    std::size_t sums = 0;
    for (std::size_t i = 0; i < streams.steps.size(); ++i) {
        const StreamStep& step = streams.steps[i];
        if (step.lane == Lane::sums) {
            ++sums;
            EXPECT_EQ(step.awaited.size(), 2U) << "two contributions";
            EXPECT_EQ(step.gates.size(), 1U) << "and its own";
        }
        EXPECT_EQ(step.relay, -1) << "the copies of the sum follow it by an event";
    }
    EXPECT_EQ(sums, 1U);
}

TEST(Streams, SmallChunksThatTheKernelMakesTakeTurnsOnTwoCopyStreams) {
    const auto streams_of = [](std::int64_t rows) {
        const plan::Plan plan =
            plan::push_reduce(sample::ranks(4), {"C", {rows, 4096}, plan::DType::bf16}).value();
        const Program program{sample::gemm({rows, 4096, 64, rows / 8, 4096, 64}), plan, {{"c_ptr", "C"}}};
        const Schedule schedule = fuse(program, {.device = Device::cuda}).value();
        std::vector<std::size_t> streams;
        for (const StreamStep& step : plan_streams(schedule.ranks[0], 0).steps) {
            streams.push_back(step.stream);
            EXPECT_EQ(step.after, std::vector<std::size_t>{}) << "chunks of their own";
        }
        return streams;
    };
    constexpr std::size_t kSecond = stream_of_copies(1);
    EXPECT_EQ(streams_of(4 * 2048), (std::vector<std::size_t>{kCopies, kSecond, kCopies, kSums}));
    EXPECT_EQ(streams_of(4 * 2056), (std::vector<std::size_t>{kCopies, kCopies, kCopies, kSums}))
        << "more than 16 MiB";
}

TEST(Streams, WhatIsSummedGoesToEachPeerByAStreamOfItsOwn) {  // but for the last part, which its sum stores
    const auto streams_of = [](std::int32_t ranks) {
        const plan::Plan plan =
            plan::push_reduce(sample::ranks(ranks), {"C", {ranks * 2048, 4096}, plan::DType::bf16},
                              {.split = 2, .all = true, .by_part = true})
                .value();
        const Program program{sample::gemm({ranks * 2048, 4096, 64, 128, 4096, 64}), plan, {{"c_ptr", "C"}}};
        const Schedule schedule = fuse(program, {.device = Device::cuda}).value();
        const RankSchedule& rank = schedule.ranks[1];
        const StreamPlan plans = plan_streams(rank, 1);
        std::map<std::size_t, std::vector<std::int32_t>> peers;
        for (std::size_t i = 0; i < rank.transfers.size(); ++i) {
            if (plans.steps[i].stream > stream_of_copies(1))
                peers[plans.steps[i].stream].push_back(rank.transfers[i].dst_rank);
        }
        EXPECT_EQ(plans.num_streams, stream_of_copies(1) + 1 + peers.size());
        std::vector<std::vector<std::int32_t>> result;
        for (auto& [stream, list] : peers) result.push_back(std::move(list));
        return result;
    };
    using Peers = std::vector<std::vector<std::int32_t>>;
    EXPECT_EQ(streams_of(4), (Peers{{2}, {3}, {0}}));
    EXPECT_EQ(streams_of(7), (Peers{{2, 6}, {3, 0}, {4}, {5}})) << "four at most, shared by the farther ones";
}

TEST(Streams, ASmallSumIsStoredAtThePeersByWhoeverSums) {
    const auto fused = [](std::int64_t rows, const Options& options, std::int32_t split = 1) {
        const plan::Plan plan = plan::push_reduce(sample::ranks(3), {"C", {rows, 1024}, plan::DType::bf16},
                                                  {.split = split, .all = true, .by_part = true})
                                    .value();
        const Program program{sample::gemm({rows, 1024, 64, 64, 1024, 64}), plan, {{"c_ptr", "C"}}};
        return fuse(program, options).value();
    };
    for (const Device device : {Device::cuda, Device::host}) {
        const Schedule schedule = fused(3 * 64, {.device = device});
        const RankSchedule& rank = schedule.ranks[1];
        ASSERT_EQ(rank.transfers.size(), 3U) << "two contributions and the sum";
        const Transfer& sum = rank.transfers.back();
        EXPECT_EQ(sum.peers, (std::vector<std::int32_t>{2, 0}));
        std::set<std::int32_t> told;
        for (const Post& post : sum.posts) told.insert(post.rank);
        EXPECT_EQ(told, (std::set<std::int32_t>{0, 2}));
    }
    const auto sends = [&](const Schedule& schedule) {
        return std::ranges::count_if(schedule.ranks[1].transfers, [](const Transfer& transfer) {
            return transfer.reduce == plan::Reduce::none && transfer.dst.tensor == transfer.src.tensor;
        });
    };
    EXPECT_EQ(sends(fused(3 * 64, {.device = Device::cuda})), 0);
    EXPECT_EQ(sends(fused(3 * 2 * 2112, {.device = Device::cuda}, 2)), 2)
        << "more than 4 MiB: the first part by the copy engine, while the kernel still makes the last";
    EXPECT_EQ(sends(fused(3 * 64, {.device = Device::cuda, .preferred = Backend::copy_engine})), 2);
}

TEST(Streams, ACopyFollowsTheOneOfTheOtherStreamThatHasPassedItsGate) {
    RankSchedule rank;
    rank.signals = {{Kind::made, {0, 0}}, {Kind::arrived, {0, 0}}};
    rank.chunks.push_back({.counting = {0, 1}, .posts = {{0, 0}}});
    rank.transfers = {transfer(0, Backend::copy_engine, {{0, 0}}),
                      transfer(1, Backend::copy_engine, {{0, 0}}),
                      transfer(2, Backend::copy_engine, {{1, 0}})};
    rank.transfers[1].copy_stream = rank.transfers[2].copy_stream = 1;
    const StreamPlan streams = plan_streams(rank, 0);
    EXPECT_EQ(streams.steps[0].gates, Chunks{0});
    EXPECT_EQ(streams.steps[1].stream, stream_of_copies(1));
    EXPECT_EQ(streams.steps[1].gates, Chunks{}) << "it would never open again";
    EXPECT_EQ(streams.steps[1].after, std::vector<std::size_t>{0});
    EXPECT_EQ(streams.steps[2].after, std::vector<std::size_t>{0}) << "an op of the other stream";
}

}  // namespace
}  // namespace syncopate::fuse
