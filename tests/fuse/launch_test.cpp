#include "syncopate/fuse/passes/launch.hpp"

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

/// `rank` with the steps of its transfers, as rank `number`'s.
RankSchedule launched(RankSchedule rank, std::size_t number = 0) {
    Schedule schedule;
    schedule.ranks.resize(number + 1);
    schedule.ranks[number] = std::move(rank);
    return launch(std::move(schedule)).ranks[number];
}

constexpr std::size_t kSecondCopies = kSums + 1;  // the stream of the second copies

TEST(Launch, ACopyThatWaitsForAMadeChunkAndForTheChunkEnginesOpBeforeWaitsForBoth) {
    RankSchedule rank;
    rank.signals = {{Kind::arrived, {0, 0}}, {Kind::made, {0, 0}}};
    rank.chunks.push_back({.counting = {0, 1}, .posts = {{0, 1}}});
    rank.transfers = {transfer(0, Backend::tma_dedicated),
                      transfer(1, Backend::copy_engine, {{0, 0}, {1, 0}}),
                      transfer(2, Backend::copy_engine, {{0, 0}, {1, 0}})};
    const RankSchedule result = launched(rank);
    EXPECT_EQ(result.transfers[0].step.launch, Launch::none);
    EXPECT_EQ(result.transfers[1].step.launch, Launch::late);
    EXPECT_EQ(result.transfers[1].step.gates, Chunks{0});
    EXPECT_EQ(result.transfers[1].step.relayed, (Waits{{0, 0}}));
    EXPECT_EQ(result.transfers[1].step.relay, 0);
    EXPECT_EQ(result.transfers[2].step.gates, Chunks{}) << "the step before has passed it";
    EXPECT_EQ(result.transfers[2].step.relay, -1);
    EXPECT_EQ(result.num_relays, 1);
    EXPECT_EQ(polled_chunks(result, 0), std::vector<bool>{false}) << "its gate is enough";
}

TEST(Launch, CopiesAfterCopiesAndAfterTheBeginAreEarly) {
    RankSchedule rank;
    rank.signals = {{Kind::arrived, {0, 0}}, {Kind::consumed, {1, -1}}, {Kind::arrived, {1, 4}}};
    rank.begin_waits = {{1, 1}};
    rank.transfers = {transfer(0, Backend::copy_engine, {{1, 1}}),
                      transfer(1, Backend::copy_engine, {{0, 0}}),
                      transfer(2, Backend::copy_engine, {{2, 0}}), transfer(3, Backend::copy_engine)};
    const RankSchedule result = launched(rank);
    EXPECT_EQ(result.transfers[0].step.launch, Launch::early);
    EXPECT_EQ(result.transfers[1].step.launch, Launch::early);
    EXPECT_EQ(result.transfers[1].step.relay, -1);
    EXPECT_EQ(result.transfers[2].step.launch, Launch::late) << "another rank's op";
    EXPECT_EQ(result.transfers[2].step.relayed, (Waits{{2, 0}}));
    EXPECT_EQ(result.transfers[3].step.launch, Launch::late) << "in the order of the list";
}

TEST(Launch, ACopyAfterWhatTheKernelSendsInlineWaitsForTheGateOfItsChunk) {
    RankSchedule rank;
    rank.signals = {{Kind::arrived, {0, 0}}};  // op 0 is inline, and not in the list of transfers
    rank.chunks.push_back({.counting = {0, 1, 2}, .posts = {{1, 5}, {0, 0}}, .stores = {{1, 0, 0}}});
    rank.transfers = {transfer(1, Backend::copy_engine, {{0, 0}})};
    RankSchedule result = launched(rank);
    EXPECT_EQ(result.transfers[0].step.gates, Chunks{0});
    EXPECT_EQ(polled_chunks(result, 0), std::vector<bool>{true}) << "rank 1 polls";
    // The chunk engine polls the signal itself, though no other rank is told.
    rank.chunks[0].posts = {{0, 0}};
    rank.transfers = {transfer(1, Backend::tma_dedicated, {{0, 0}})};
    result = launched(rank);
    EXPECT_EQ(result.num_relays, 0);
    EXPECT_EQ(polled_chunks(result, 0), std::vector<bool>{true});
}

TEST(Launch, SumsHaveAStreamOfTheirOwnAndPollWhatOthersSend) {
    const plan::Plan plan =
        plan::push_reduce(sample::ranks(3), {"C", {12, 4}, plan::DType::bf16}, {.all = true}).value();
    const Program program{sample::gemm({12, 4, 4, 4, 4, 4}), plan, {{"c_ptr", "C"}}};
    const Schedule schedule = fuse(program, {.device = Device::cuda}).value();
    std::size_t sums = 0;
    for (const Transfer& transfer : schedule.ranks[0].transfers) {
        const StreamStep& step = transfer.step;
        if (step.launch == Launch::sums) {
            ++sums;
            EXPECT_EQ(step.awaited.size(), 2U) << "two contributions";
            EXPECT_EQ(step.gates.size(), 1U) << "and its own";
        }
        EXPECT_EQ(step.relay, -1) << "the copies of the sum follow it by an event";
    }
    EXPECT_EQ(sums, 1U);
}

TEST(Launch, SmallChunksThatTheKernelMakesTakeTurnsOnTwoCopyStreams) {
    const auto streams_of = [](std::int64_t rows) {
        const plan::Plan plan =
            plan::push_reduce(sample::ranks(4), {"C", {rows, 4096}, plan::DType::bf16}).value();
        const Program program{sample::gemm({rows, 4096, 64, rows / 8, 4096, 64}), plan, {{"c_ptr", "C"}}};
        const Schedule schedule = fuse(program, {.device = Device::cuda}).value();
        std::vector<std::size_t> streams;
        for (const Transfer& transfer : schedule.ranks[0].transfers) {
            streams.push_back(transfer.step.stream);
            EXPECT_EQ(transfer.step.after, std::vector<std::size_t>{}) << "chunks of their own";
        }
        return streams;
    };
    EXPECT_EQ(streams_of(4 * 2048), (std::vector<std::size_t>{kCopies, kSecondCopies, kCopies, kSums}));
    EXPECT_EQ(streams_of(4 * 2056), (std::vector<std::size_t>{kCopies, kCopies, kCopies, kSums}))
        << "more than 16 MiB";
}

TEST(Launch, WhatIsSummedGoesToEachPeerByAStreamOfItsOwn) {  // but for the last part, which its sum stores
    const auto streams_of = [](std::int32_t ranks) {
        const plan::Plan plan =
            plan::push_reduce(sample::ranks(ranks), {"C", {ranks * 2048, 4096}, plan::DType::bf16},
                              {.split = 2, .all = true, .by_part = true})
                .value();
        const Program program{sample::gemm({ranks * 2048, 4096, 64, 128, 4096, 64}), plan, {{"c_ptr", "C"}}};
        const Schedule schedule = fuse(program, {.device = Device::cuda}).value();
        const RankSchedule& rank = schedule.ranks[1];
        std::map<std::size_t, std::vector<std::int32_t>> peers;
        for (std::size_t i = 0; i < rank.transfers.size(); ++i) {
            if (rank.transfers[i].step.stream > kSecondCopies)
                peers[rank.transfers[i].step.stream].push_back(rank.transfers[i].dst_rank);
        }
        EXPECT_EQ(rank.num_streams, kSecondCopies + 1 + peers.size());
        std::vector<std::vector<std::int32_t>> result;
        for (auto& [stream, list] : peers) result.push_back(std::move(list));
        return result;
    };
    using Peers = std::vector<std::vector<std::int32_t>>;
    EXPECT_EQ(streams_of(4), (Peers{{2}, {3}, {0}}));
    EXPECT_EQ(streams_of(7), (Peers{{2, 6}, {3, 0}, {4}, {5}})) << "four at most, shared by the farther ones";
}

TEST(Launch, ASmallSumIsStoredAtThePeersByWhoeverSums) {
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
        EXPECT_EQ(sum.sum()->peers, (std::vector<std::int32_t>{2, 0}));
        std::set<std::int32_t> told;
        for (const Post& post : sum.posts) told.insert(post.rank);
        EXPECT_EQ(told, (std::set<std::int32_t>{0, 2}));
    }
    const auto sends = [&](const Schedule& schedule) {
        return std::ranges::count_if(schedule.ranks[1].transfers, [](const Transfer& transfer) {
            return transfer.copy() != nullptr && transfer.dst.tensor == transfer.src.tensor;
        });
    };
    EXPECT_EQ(sends(fused(3 * 64, {.device = Device::cuda})), 0);
    EXPECT_EQ(sends(fused(3 * 2 * 2112, {.device = Device::cuda}, 2)), 2)
        << "more than 4 MiB: the first part by the copy engine, while the kernel still makes the last";
    EXPECT_EQ(sends(fused(3 * 64, {.device = Device::cuda, .preferred = Backend::copy_engine})), 2);
}

TEST(Launch, ACopyFollowsTheOneOfTheOtherStreamThatHasPassedItsGate) {
    RankSchedule rank;
    rank.signals = {{Kind::made, {0, 0}}, {Kind::arrived, {0, 0}}};
    rank.chunks.push_back({.counting = {0, 1}, .posts = {{0, 0}}});
    rank.transfers = {transfer(0, Backend::copy_engine, {{0, 0}}),
                      transfer(1, Backend::copy_engine, {{0, 0}}),
                      transfer(2, Backend::copy_engine, {{1, 0}})};
    rank.transfers[1].work = rank.transfers[2].work = Copy{.stream = 1};
    const RankSchedule result = launched(rank);
    EXPECT_EQ(result.transfers[0].step.gates, Chunks{0});
    EXPECT_EQ(result.transfers[1].step.stream, kSecondCopies);
    EXPECT_EQ(result.transfers[1].step.gates, Chunks{}) << "it would never open again";
    EXPECT_EQ(result.transfers[1].step.after, std::vector<std::size_t>{0});
    EXPECT_EQ(result.transfers[2].step.after, std::vector<std::size_t>{0}) << "an op of the other stream";
}

/// Rank 1's copies of rows of tensors, in the order in which they are added.
struct Copies {
    RankSchedule rank{.signals = {{Kind::arrived, {0, 7}}}};

    Copies& add(std::int32_t to, plan::Chunk src, plan::Chunk dst, Backend backend = Backend::copy_engine) {
        rank.transfers.push_back({.op = {1, static_cast<std::int32_t>(rank.transfers.size())},
                                  .backend = backend,
                                  .src_rank = 1,
                                  .dst_rank = to,
                                  .src = std::move(src),
                                  .dst = std::move(dst)});
        return *this;
    }
    [[nodiscard]] RankSchedule launch() const { return launched(rank, 1); }
    [[nodiscard]] std::vector<Launch> launches() const {
        std::vector<Launch> result;
        for (const Transfer& transfer : launch().transfers) result.push_back(transfer.step.launch);
        return result;
    }
};
using Launches = std::vector<Launch>;

plan::Chunk rows(std::int32_t tensor, std::int64_t begin, std::int64_t end) {
    return {tensor, {{begin, end}, {0, 8}}};
}

TEST(Launch, CopiesWithinTheRankGoFirst) {
    Copies copies;
    copies.add(0, rows(0, 0, 4), rows(1, 0, 4)).add(1, rows(0, 4, 8), rows(1, 4, 8));
    EXPECT_EQ(copies.launches(), (Launches{Launch::early, Launch::local}));
    EXPECT_TRUE(copies.launch().copies_start_first) << "nobody else touches what it reads or writes";
}

TEST(Launch, ALocalCopyStaysBehindWhatItFollows) {
    Copies written;  // what an earlier copy to this rank itself writes, which waits for something
    written.add(1, rows(2, 0, 4), rows(0, 0, 4)).add(1, rows(0, 2, 6), rows(1, 2, 6));
    written.rank.begin_waits = written.rank.transfers[0].waits = {{0, 0}};
    EXPECT_EQ(written.launches(), (Launches{Launch::early, Launch::early}));
    Copies read;  // what an earlier one reads
    read.add(0, rows(0, 0, 4), rows(0, 0, 4)).add(1, rows(2, 0, 4), rows(0, 0, 4));
    EXPECT_EQ(read.launches(), (Launches{Launch::early, Launch::early}));
    Copies engine;  // the same by the chunk engine
    engine.add(0, rows(0, 0, 4), rows(0, 0, 4), Backend::tma_dedicated).add(1, rows(2, 0, 4), rows(0, 0, 4));
    EXPECT_EQ(engine.launches(), (Launches{Launch::none, Launch::early}));
    Copies apart;  // another tensor's rows, or a peer's, do not matter
    apart.add(0, rows(1, 0, 4), rows(0, 0, 4)).add(1, rows(2, 0, 4), rows(0, 0, 4));
    EXPECT_EQ(apart.launches(), (Launches{Launch::early, Launch::local}));
}

TEST(Launch, TheCopyStreamWaitsForLocalCopiesThatItSendsOn) {
    Copies copies;
    copies.add(1, rows(0, 0, 4), rows(1, 0, 4)).add(0, rows(1, 2, 3), rows(1, 2, 3));
    EXPECT_EQ(copies.launches(), (Launches{Launch::local, Launch::early}));
    EXPECT_FALSE(copies.launch().copies_start_first);
    copies.rank.transfers[1].src = rows(1, 4, 5);
    EXPECT_TRUE(copies.launch().copies_start_first);
}

TEST(Launch, CollectivesComeBeforeTheKernelAndSumsAfterIt) {
    Copies copies;
    copies.add(1, rows(0, 0, 4), rows(1, 0, 4))
        .add(1, rows(2, 0, 4), rows(2, 0, 8), Backend::nccl)
        .add(0, rows(3, 0, 4), rows(3, 0, 4))
        .add(1, rows(4, 0, 4), rows(4, 0, 4));
    copies.rank.transfers[2].waits = {{0, 0}};  // another rank's op
    copies.rank.transfers[3].work = Sum{};
    EXPECT_EQ(copies.launches(), (Launches{Launch::local, Launch::before, Launch::late, Launch::sums}));
    EXPECT_FALSE(copies.launch().copies_start_first) << "the collective's kernel comes first";
}

TEST(Launch, TheKernelThatAwaitsContributionsStartsWithTheLastCopyMadeBeforeTheOwnPart) {
    const plan::Plan plan = plan::push_reduce(sample::ranks(3), {"C", {12, 4}, plan::DType::bf16}).value();
    const Program program{sample::gemm({12, 4, 4, 4, 4, 4}), plan, {{"c_ptr", "C"}}};
    const Schedule schedule = fuse(program, {.device = Device::cuda}).value();
    const std::vector<Transfer>& transfers = schedule.ranks[0].transfers;
    ASSERT_EQ(transfers.size(), 3U);
    EXPECT_EQ(transfers[2].step.await_after, std::optional<std::size_t>(1));
    EXPECT_TRUE(transfers[2].step.awaits_gate) << "and waits for the own part itself";
    EXPECT_TRUE(schedule.ranks[0].ends_with_sum) << "nothing else arrives";
}

}  // namespace
}  // namespace syncopate::fuse
