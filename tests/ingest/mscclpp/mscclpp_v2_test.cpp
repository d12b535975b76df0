#include <gtest/gtest.h>

#include "ingest/imports.hpp"
#include "ingest/mscclpp/mscclpp_text.hpp"
#include "syncopate/ingest/mscclpp/mscclpp_json.hpp"

namespace syncopate::ingest {
namespace {

using test::data_op;
using test::finding_texts;
using test::here;
using test::op_texts;
using test::plus_v2;
using test::PlusGpu;
using test::rows;
using test::sync_op;
using test::there;
using Texts = std::vector<std::string>;

constexpr int kI = 0;  // buffer ids of the first peer
constexpr int kO = 1;
constexpr int kS = 2;

Import import_of(const std::string& text, std::int64_t chunks) {
    Result<Import> import = read_mscclpp_json(text, "t", rows(chunks));
    if (!import) throw std::runtime_error(import.error().to_string());
    return *std::move(import);
}

std::string error_of(const std::string& text, std::int64_t chunks = 4) {
    const Result<Import> import = read_mscclpp_json(text, "t", rows(chunks));
    return import ? "no error" : import.error().to_string();
}

/// Two ranks of `chunks` input and output chunks, in place; rank 0 runs `zero`, rank 1 `one`.
std::string pair_of(const std::vector<std::vector<std::string>>& zero,
                    const std::vector<std::vector<std::string>>& one, int chunks = 4,
                    const std::string& collective = "test", int scratch = 4) {
    return plus_v2(collective, true,
                   {PlusGpu{zero, chunks, chunks, scratch}, PlusGpu{one, chunks, chunks, scratch}});
}

TEST(MscclppV2, APutIsAPushAndAGetIsAPull) {
    const Import import = import_of(pair_of({{data_op("put", here("i", 0), there(kI, 1))}},
                                            {{data_op("get", there(kI, 2), here("i", 3))}}),
                                    4);
    EXPECT_EQ(op_texts(import.plan), (Texts{"push 0->1 A[0:1] -> A[1:2]", "pull 0->1 A[2:3] -> A[3:4]"}));
    EXPECT_EQ(import.origins[0][0].place, "gpus[0].threadblocks[0].ops[0] (put)");
    EXPECT_EQ(import.origins[0][0].line, 4);
}

TEST(MscclppV2, APutOfSeveralPairsIsAPushEach) {
    const Import import = import_of(
        pair_of({{data_op("put", here("i", 0) + "," + here("i", 1), there(kI, 2) + "," + there(kI, 3))}}, {}),
        4);
    EXPECT_EQ(op_texts(import.plan), (Texts{"push 0->1 A[0:1] -> A[2:3]", "push 0->1 A[1:2] -> A[3:4]"}));
}

TEST(MscclppV2, WhatASignalPublishesAWaitSees) {
    const auto text = [](const std::string& signal, const std::string& wait) {
        return pair_of({{data_op("put", here("i", 0), there(kS, 0)), signal}},
                       {{wait, data_op("copy", here("s", 0), here("i", 1))}});
    };
    const Import ordered = import_of(text(sync_op("signal"), sync_op("wait")), 4);
    EXPECT_EQ(op_texts(ordered.plan),
              (Texts{"push 0->1 A[0:1] -> A.scratch[0:1]", "local A.scratch[0:1] -> A[1:2] after 0:0"}));
    EXPECT_EQ(finding_texts(ordered), Texts{});
    for (const auto& [signal, wait] : {std::pair{"rlxsignal", "wait"}, std::pair{"signal", "rlxwait"}}) {
        const Import relaxed = import_of(text(sync_op(signal), sync_op(wait)), 4);
        ASSERT_FALSE(finding_texts(relaxed).empty()) << signal;
        EXPECT_NE(finding_texts(relaxed)[0].find("early_read"), std::string::npos)
            << finding_texts(relaxed)[0];
    }
}

TEST(MscclppV2, ASignalBeforeThePutPublishesNothing) {
    const Import import = import_of(pair_of({{sync_op("signal"), data_op("put", here("i", 0), there(kS, 0))}},
                                            {{sync_op("wait"), data_op("copy", here("s", 0), here("i", 1))}}),
                                    4);
    const Texts findings = finding_texts(import);
    ASSERT_FALSE(findings.empty());
    EXPECT_TRUE(
        findings[0].starts_with("t:11: rank 1 gpus[1].threadblocks[0].ops[1] (copy) (op 0): early_read: "))
        << findings[0];
}

TEST(MscclppV2, PutWithSignalPublishesWhatItPut) {
    for (const char* name : {"pws", "pwsf"}) {
        const Import import =
            import_of(pair_of({{data_op(name, here("i", 0), there(kS, 0), R"(, "channel_ids": [0])")}},
                              {{sync_op("wait"), data_op("copy", here("s", 0), here("i", 1))}}),
                      4);
        EXPECT_EQ(finding_texts(import), Texts{}) << name;
    }
}

TEST(MscclppV2, ASignalOfOneOfTwoThreadblocksTellsNothingOfTheOther) {
    // Both of rank 0's threadblocks use the same channel: after one wait either may have come.
    const std::string shared = pair_of({{data_op("put", here("i", 0), there(kS, 0)), sync_op("signal")},
                                        {data_op("put", here("i", 1), there(kS, 1)), sync_op("signal")}},
                                       {{sync_op("wait"), data_op("copy", here("s", 0), here("i", 2))}, {}});
    std::string text = shared;
    const std::string own = R"("channel_ids": [1]}])";  // threadblock 1 of rank 0
    text.replace(text.find(own), own.size(), R"("channel_ids": [0]}])");
    const Texts findings = finding_texts(import_of(text, 4));
    ASSERT_FALSE(findings.empty());
    EXPECT_NE(findings[0].find("early_read"), std::string::npos) << findings[0];
}

TEST(MscclppV2, AfterAsManyWaitsAsSignalsAllHaveCome) {
    const std::string wait = sync_op("wait");
    std::string text = pair_of({{data_op("put", here("i", 0), there(kS, 0)), sync_op("signal")},
                                {data_op("put", here("i", 1), there(kS, 1)), sync_op("signal")}},
                               {{wait, wait, data_op("copy", here("s", 0), here("i", 2))}, {}});
    const std::string own = R"("channel_ids": [1]}])";
    text.replace(text.find(own), own.size(), R"("channel_ids": [0]}])");
    EXPECT_EQ(finding_texts(import_of(text, 4)), Texts{});
}

TEST(MscclppV2, AWaitThatNobodyEndsIsRefused) {
    EXPECT_EQ(error_of(pair_of({{sync_op("wait")}}, {{}})),
              "t:4: rank 0 gpus[0].threadblocks[0].ops[0] (wait): waits for ever: memory channel 0 from rank "
              "1 to rank 0 "
              "is awaited 1 times and signalled 0");
}

TEST(MscclppV2, WaitingForEachOtherIsADeadlock) {
    const std::vector<std::string> ops{sync_op("wait"), data_op("put", here("i", 0), there(kS, 0)),
                                       sync_op("signal")};
    const Texts findings = finding_texts(import_of(pair_of({ops}, {ops}), 4));
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_TRUE(findings[0].starts_with("t:4: rank 0 gpus[0].threadblocks[0].ops[0] (wait): cycle: deadlock"))
        << findings[0];
}

TEST(MscclppV2, ReductionsPullAddAndPush) {
    const std::string zero =
        data_op("rres", here("i", 0) + "," + there(kI, 0), here("i", 0) + "," + there(kI, 0));
    EXPECT_EQ(op_texts(import_of(pair_of({{zero}}, {}), 4).plan),
              (Texts{"pull 1->0 A[0:1] -> A[0:1] sum", "push 0->1 A[0:1] -> A[0:1] after 0:0"}));
    const std::string apart =
        data_op("re", here("i", 0) + "," + here("s", 1) + "," + here("s", 2), here("i", 3));
    EXPECT_EQ(op_texts(import_of(pair_of({{apart}}, {}), 4).plan),
              (Texts{"local A[0:1] -> A[3:4]", "local A.scratch[1:2] -> A[3:4] sum after 0:0",
                     "local A.scratch[2:3] -> A[3:4] sum after 0:0"}));
    const std::string into_second = data_op("re", here("i", 0) + "," + here("s", 1), here("s", 1));
    EXPECT_EQ(op_texts(import_of(pair_of({{into_second}}, {}), 4).plan),
              Texts{"local A[0:1] -> A.scratch[1:2] sum"});
    const std::string most =
        data_op("re", here("i", 0) + "," + here("s", 1), here("s", 1), R"(, "reduce_op": "max")");
    EXPECT_EQ(op_texts(import_of(pair_of({{most}}, {}), 4).plan),
              Texts{"local A[0:1] -> A.scratch[1:2] max"});
}

TEST(MscclppV2, AnAllReduceOfReadReduceSend) {
    const auto rank = [](int mine) {
        return std::vector<std::string>{
            sync_op("signal"), sync_op("wait"),
            data_op("rres", here("i", mine) + "," + there(kI, mine), here("i", mine) + "," + there(kI, mine)),
            sync_op("signal"), sync_op("wait")};
    };
    EXPECT_EQ(finding_texts(import_of(pair_of({rank(0)}, {rank(1)}, 2, "allreduce", 0), 2)), Texts{});
    const Texts twice = finding_texts(import_of(pair_of({rank(0)}, {rank(0)}, 2, "allreduce", 0), 2));
    EXPECT_FALSE(twice.empty());
}

TEST(MscclppV2, PacketsAreWaitedForWhereTheyAreRead) {
    const Import import = import_of(plus_v2("allgather", true,
                                            {PlusGpu{{{data_op("ppkt", here("o", 0), there(kS, 0))},
                                                      {data_op("upkt", here("s", 0), here("o", 1))}},
                                                     1,
                                                     2,
                                                     1},
                                             PlusGpu{{{data_op("ppkt", here("o", 1), there(kS, 0))},
                                                      {data_op("upkt", here("s", 0), here("o", 0))}},
                                                     1,
                                                     2,
                                                     1}},
                                            "LL"),
                                    2);
    EXPECT_EQ(op_texts(import.plan),
              (Texts{"push 0->1 A[0:1] -> A.scratch[0:1]", "local A.scratch[0:1] -> A[1:2] after 1:0",
                     "push 1->0 A[1:2] -> A.scratch[0:1]", "local A.scratch[0:1] -> A[0:1] after 0:0"}));
    EXPECT_EQ(finding_texts(import), Texts{});
}

TEST(MscclppV2, PacketsThatNobodyWritesAreRefused) {
    EXPECT_EQ(error_of(pair_of({{data_op("upkt", here("s", 1), here("i", 0))}}, {})),
              "t:4: rank 0 gpus[0].threadblocks[0].ops[0] (upkt): waits for ever for packets that nothing "
              "writes, in chunk "
              "1 of scratch");
}

TEST(MscclppV2, PacketsReducedAndSentOn) {
    // Rank 0 packs to rank 1, which adds and sends the sum back as packets.
    const Import import = import_of(plus_v2("allreduce", true,
                                            {PlusGpu{{{data_op("ppkt", here("i", 0), there(kS, 0)),
                                                       data_op("upkt", here("s", 1), here("i", 0))}},
                                                     1,
                                                     1,
                                                     2},
                                             PlusGpu{{{data_op("respkt", here("i", 0) + "," + here("s", 0),
                                                               here("i", 0) + "," + there(kS, 1))}},
                                                     1,
                                                     1,
                                                     2}},
                                            "LL"),
                                    1);
    EXPECT_EQ(finding_texts(import), Texts{});
    EXPECT_EQ(op_texts(import.plan),
              (Texts{"push 0->1 A[0:1] -> A.scratch[0:1]", "local A.scratch[1:2] -> A[0:1] after 0:0 1:1",
                     "local A.scratch[0:1] -> A[0:1] sum after 0:0",
                     "push 1->0 A[0:1] -> A.scratch[1:2] after 1:0"}));
}

TEST(MscclppV2, ThreadblocksOfAGroupShareAnOpByRows) {
    const auto op = [](int tb) {
        return data_op("copy", here("i", 0, 2), here("i", 2, 2),
                       fmt::format(R"(, "tbg_info": {{"tb_id": {}, "tbg_size": 2}})", tb));
    };
    EXPECT_EQ(op_texts(import_of(pair_of({{op(0)}, {op(1)}}, {}), 4).plan),
              (Texts{"local A[0:1] -> A[2:3]", "local A[1:2] -> A[3:4]"}));
    const Result<Import> by_default = read_mscclpp_json(pair_of({{op(0)}, {op(1)}}, {}), "t");
    ASSERT_TRUE(by_default);
    EXPECT_EQ(by_default->plan.tensors[0].shape[0], 4 * 2048);
}

TEST(MscclppV2, ABarrierOrdersTheThreadblocksThatMeet) {
    const std::string barrier = R"({"name": "barrier", "barrier_id": 0, "num_threadblocks": 2})";
    const Import import = import_of(pair_of({{data_op("copy", here("i", 0), here("s", 0)), barrier},
                                             {barrier, data_op("copy", here("s", 0), here("i", 1))}},
                                            {}),
                                    4);
    EXPECT_EQ(finding_texts(import), Texts{});
    EXPECT_EQ(op_texts(import.plan)[1], "local A.scratch[0:1] -> A[1:2] after 0:0");
    EXPECT_EQ(error_of(pair_of({{barrier}}, {})),
              "t:4: rank 0 gpus[0].threadblocks[0].ops[0] (barrier): waits for ever: barrier 0 is for 2 "
              "threadblocks, and "
              "1 come to it");
    EXPECT_NE(error_of(pair_of({{barrier}, {barrier}, {barrier}}, {})).find("may wait for ever"),
              std::string::npos);
}

TEST(MscclppV2, ASemaphoreHandsOver) {
    const std::string acquire = R"({"name": "sem_acquire", "semaphore_ids": [0]})";
    const std::string release = R"({"name": "sem_release", "semaphore_ids": [0]})";
    const auto text = [&](const std::string& semaphores) {
        return plus_v2("test", true,
                       {PlusGpu{{{data_op("copy", here("i", 0), here("s", 0)), release},
                                 {acquire, data_op("copy", here("s", 0), here("i", 1))}},
                                4,
                                4,
                                1},
                        PlusGpu{{}, 4, 4, 1}},
                       "Simple", semaphores);
    };
    EXPECT_EQ(finding_texts(import_of(text(R"([{"init_value": 0}])"), 4)), Texts{});
    // One to begin with: the second threadblock need not wait for the first.
    EXPECT_FALSE(finding_texts(import_of(text(R"([{"init_value": 1}])"), 4)).empty());
    EXPECT_EQ(error_of(text("[]")),
              "t:5:42: gpus[0].threadblocks[0].ops[1].semaphore_ids names semaphore 0, which the gpu does "
              "not list");
}

TEST(MscclppV2, APipelineRunsItsOpsOnce) {
    const std::string op =
        R"({"name": "pipeline", "iter_context": {"unit_size": 1024, "num_chunks": 1}, "ops": [)" +
        data_op("copy", here("i", 0), here("i", 1)) + "]}";
    const Import import = import_of(pair_of({{op}}, {}), 4);
    EXPECT_EQ(op_texts(import.plan), Texts{"local A[0:1] -> A[1:2]"});
    EXPECT_EQ(import.origins[0][0].place, "gpus[0].threadblocks[0].ops[0].ops[0] (copy)");
    EXPECT_EQ(import.warnings[0], "a pipeline is taken to run once, as it does for chunks of one unit");
}

/// Rank 0 runs `ops`, and has a group of both ranks; `name` says which buffer the group is for.
std::string multicast(const std::string& name, const std::vector<std::string>& ops) {
    std::string text = pair_of({ops}, {});
    const std::string channels = R"("channels": [{"channel_type": "memory", "connected_to": [1]}])";
    text.replace(text.find(channels), channels.size(),
                 R"("channels": [{"channel_type": "switch", ")" + name +
                     R"(": "i", "rank_groups": [{"size": 2, "ranks": [0, 1]}]}])");
    const std::string ids = R"({"channel_type": "memory", "channel_ids": [0]})";
    text.replace(text.find(ids), ids.size(),
                 R"({"channel_type": "switch", ")" + name + R"(": "i", "channel_ids": [0]})");
    return text;
}

const std::vector<std::string> kStoreAndReduce{
    R"({"name": "gstore", "channel_type": "switch", "src_buff": [{"type": "s", "index": 0, "size": 1}], "dst_buff": [{"switch_channel_id": 0, "index": 2, "size": 1}]})",
    R"({"name": "glres", "channel_type": "switch", "src_buff": [{"switch_channel_id": 0, "index": 1, "size": 1}], "dst_buff": [{"switch_channel_id": 0, "index": 1, "size": 1}]})"};

TEST(MscclppV2, MulticastIsATransferForEachRank) {
    const Texts ops{"local A.scratch[0:1] -> A[2:3]", "push 0->1 A.scratch[0:1] -> A[2:3]",
                    "pull 1->0 A[1:2] -> A[1:2] sum", "push 0->1 A[1:2] -> A[1:2] after 0:2"};
    for (const char* name : {"buffer_type", "buff"})
        EXPECT_EQ(op_texts(import_of(multicast(name, kStoreAndReduce), 4).plan), ops) << name;
}

std::string grouped(const std::string& op) { return multicast("buffer_type", {op}); }

const Texts kStored{"local A.scratch[1:2] -> A[2:3]", "push 0->1 A.scratch[1:2] -> A[2:3]"};
const Texts kLoaded{"local A[1:2] -> A.scratch[3:4]", "pull 1->0 A[1:2] -> A.scratch[3:4] max after 0:0"};

TEST(MscclppV2, ABufferMaySayWhoseItIs) {
    const auto store = [](const std::string& rank) {
        return grouped(
            R"({"name": "gstore", "channel_type": "switch", "src_buff": [{"rank": )" + rank +
            R"(, "type": "s", "index": 1, "size": 1}], "dst_buff": [{"switch_channel_id": 0, "index": 2, "size": 1}]})");
    };
    EXPECT_EQ(op_texts(import_of(store("0"), 4).plan), kStored);
    EXPECT_NE(error_of(store("1")).find("src_buff[0].rank is 1, and the buffer is one of rank 0"),
              std::string::npos);
    EXPECT_NE(error_of(store("7")).find("src_buff[0].rank is 7"), std::string::npos);
    const auto put = [](const std::string& rank) {
        return pair_of({{data_op("put", R"({"rank": 0, "type": "i", "index": 0, "size": 1})",
                                 R"({"rank": )" + rank + R"(, "buffer_id": 0, "index": 1, "size": 1})")}},
                       {});
    };
    EXPECT_EQ(op_texts(import_of(put("1"), 4).plan), Texts{"push 0->1 A[0:1] -> A[1:2]"});
    EXPECT_NE(error_of(put("0")).find("dst_buff[0].rank is 0, and the buffer is one of rank 1"),
              std::string::npos);
}

TEST(MscclppV2, AGroupLoadReducesIntoItsOwnRankAlone) {
    EXPECT_EQ(
        op_texts(
            import_of(
                grouped(
                    R"({"name": "glre", "channel_type": "switch", "reduce_op": "max", "src_buff": [{"switch_channel_id": 0, "index": 1, "size": 1}], "dst_buff": [{"rank": 0, "type": "s", "index": 3, "size": 1}]})"),
                4)
                .plan),
        kLoaded);
    EXPECT_NE(
        error_of(
            grouped(
                R"({"name": "glre", "channel_type": "switch", "src_buff": [{"switch_channel_id": 0, "index": 1, "size": 1}], "dst_buff": [{"switch_channel_id": 0, "index": 3, "size": 1}]})"))
            .find("(glre): needs a local destination"),
        std::string::npos);
}

const std::string kFlatLoad =
    R"({"name": "glre", "buffer_type": "i", "buffer_offset": 1, "size": 1, "dst_chunk": {"rank": 0, "type": "s", "index": 3, "size": 1}, "channel_ids": [0], "channel_type": "switch", "reduce_op": "max"})";
const std::string kFlatStore =
    R"({"name": "gstore", "src_chunk": {"rank": 0, "type": "s", "index": 1, "size": 1}, "buffer_type": "i", "buffer_offset": 2, "size": 1, "channel_ids": [0], "channel_type": "switch"})";

TEST(MscclppV2, GroupLoadsAndStoresMayBeWrittenWithOffsets) {
    EXPECT_EQ(op_texts(import_of(grouped(kFlatLoad), 4).plan), kLoaded);
    EXPECT_EQ(op_texts(import_of(grouped(kFlatStore), 4).plan), kStored);
}

TEST(MscclppV2, GroupOpsWithOffsetsThatDoNotFitAreNamed) {
    const auto said = [](std::string op, const std::string& what, const std::string& with) {
        op.replace(op.find(what), what.size(), with);
        const std::string error = error_of(grouped(op));
        return error.substr(error.find("ops[0]") == error.npos ? 0 : error.find("ops[0]"));
    };
    EXPECT_EQ(said(kFlatLoad, R"("buffer_type": "i")", R"("buffer_type": "o")"),
              "ops[0].buffer_type is not the buffer that the switch channel is for");
    EXPECT_EQ(said(kFlatLoad, "\"channel_ids\": [0]", "\"channel_ids\": [1]"),
              "ops[0].channel_ids names no one of the threadblock's 1 switch channels");
    EXPECT_EQ(said(kFlatLoad, "\"channel_ids\": [0], ", ""),
              "ops[0] needs \"channel_ids\", \"buffer_type\", \"buffer_offset\" and \"size\"");
    EXPECT_EQ(said(kFlatLoad, "\"buffer_offset\": 1", "\"buffer_offset\": 4"),
              "ops[0] (glre): chunks 4 to 4 of the input of rank 0, which has 4");
    EXPECT_EQ(said(kFlatLoad, "\"buffer_offset\": 1, \"size\": 1", "\"buffer_offset\": 1, \"size\": 2"),
              "ops[0] (glre): its source and its destination have different numbers of chunks");
    EXPECT_EQ(said(kFlatLoad, "\"rank\": 0", "\"rank\": 1"),
              "ops[0].dst_chunk.rank is 1, and the buffer is one of rank 0");
    EXPECT_EQ(said(kFlatLoad, "dst_chunk", "src_chunk"),
              "ops[0] has \"src_chunk\", which means nothing to glre");
    EXPECT_EQ(said(kFlatStore, "gstore", "put"), "ops[0] has \"src_chunk\", which means nothing to put");
    EXPECT_EQ(said(kFlatStore, "\"channel_ids\"", "\"src_buff\": [], \"channel_ids\""),
              "ops[0] names its buffers twice, in chunks and in lists of buffers");
    EXPECT_EQ(said(kFlatStore, "}, \"buffer_type\"", "}, \"reduce_op\": \"sum\", \"buffer_type\""),
              "ops[0] has \"src_chunk\" beside \"reduce_op\", of a dialect before version 2: a store reduces "
              "nothing");
}

TEST(MscclppV2, AKeyThatMeansNothingToItsOpIsRefused) {
    const auto said = [](const std::string& op) {
        const std::string error = error_of(pair_of({{op}}, {}));
        return error.substr(error.find("ops[0]") == error.npos ? 0 : error.find("ops[0]"));
    };
    const std::string buffers =
        R"("src_buff": [{"type": "i", "index": 0, "size": 1}], "dst_buff": [{"type": "i", "index": 1, "size": 1}])";
    EXPECT_EQ(said(R"({"name": "nop", )" + buffers + "}"),
              "ops[0] has \"src_buff\", which means nothing to nop");
    EXPECT_EQ(said(R"({"name": "copy", "reduce_op": "max", )" + buffers + "}"),
              "ops[0] has \"reduce_op\", which means nothing to copy");
    EXPECT_EQ(said(R"({"name": "copy", "barrier_id": 0, )" + buffers + "}"),
              "ops[0] has \"barrier_id\", which means nothing to copy");
    EXPECT_EQ(said(R"({"name": "copy", "semaphore_ids": [0], )" + buffers + "}"),
              "ops[0] has \"semaphore_ids\", which means nothing to copy");
    EXPECT_EQ(said(R"({"name": "copy", "iter_context": {}, )" + buffers + "}"),
              "ops[0] has \"iter_context\", which means nothing to copy");
    EXPECT_EQ(said(R"({"name": "copy", "deps": [{"tb": 1, "step": 0}], )" + buffers + "}"),
              "ops[0] has \"deps\", which means nothing to copy");
    EXPECT_EQ(said(R"({"name": "copy", "deps": [], )" + buffers + "}"), "no error");
    std::string text = pair_of({{R"({"name": "copy", )" + buffers + "}"}}, {});
    text.insert(1, R"("dynamic": true, )");
    EXPECT_NE(error_of(text).find("dynamic is true: a template is no plan"), std::string::npos);
    std::string other = multicast("buffer_type", kStoreAndReduce);
    const std::string scope = R"("buffer_type": "i", "channel_ids")";
    other.replace(other.find(scope), scope.size(), R"("buffer_type": "o", "channel_ids")");
    EXPECT_NE(error_of(other).find("names switch channel 0, which is for another buffer than output"),
              std::string::npos)
        << error_of(other);
}

TEST(MscclppV2, TheSizesOfMessagesAreClaimed) {
    std::string text = pair_of({}, {});
    text.insert(1, R"("min_message_size": 1024, "max_message_size": 18446744073709551615, )");
    const std::pair<std::string, std::string> claim{"bytes", "from 1024 to 18446744073709551615"};
    EXPECT_EQ(import_of(text, 4).claims.back(), claim);
    text.replace(text.find("1024"), 4, "\"x\"");
    EXPECT_NE(error_of(text).find("min_message_size is the string \"x\"; expected bytes"), std::string::npos);
}

TEST(MscclppV2, TheCollectiveMustFitTheChunks) {
    EXPECT_EQ(error_of(pair_of({}, {}, 4, "allgather")),
              "t:2:1: gpus[0] has 4 chunks in and 4 out, and allgather over 2 ranks needs that many times as "
              "many out as in");
    EXPECT_EQ(error_of(plus_v2("allreduce", false, {PlusGpu{{}, 4, 4, 0}, PlusGpu{{}, 2, 4, 0}})),
              "t:4:1: gpus[1] has 2 chunks in and 4 out, and other gpus have 4 and 4");
    EXPECT_EQ(error_of(plus_v2("test", false, {PlusGpu{{}, 0, 0, 0}})),
              "t:2:1: gpus[0] has neither input nor output chunks");
}

TEST(MscclppV2, WhatIsNotThereIsNamedByItsPath) {
    const std::string at = "gpus[0].threadblocks[0].ops[0]";
    EXPECT_EQ(error_of(pair_of({{data_op("puts", here("i", 0), there(kI, 0))}}, {})),
              "t:4:10: " + at + ".name is \"puts\", which is no op of version 2");
    EXPECT_EQ(error_of(pair_of({{data_op("put", here("i", 4), there(kI, 0))}}, {})),
              "t:4: rank 0 " + at + " (put): chunks 4 to 4 of the input of rank 0, which has 4");
    EXPECT_EQ(error_of(pair_of({{data_op("put", here("i", 0), there(9, 0))}}, {})),
              "t:4:122: " + at +
                  ".dst_buff[0].buffer_id is 9; the threadblock has 3 remote buffers of its channel type");
    EXPECT_EQ(error_of(pair_of({{data_op("put", here("q", 0), there(kI, 0))}}, {})),
              "t:4:65: " + at + ".src_buff[0].type is the string \"q\"; expected i, o or s");
    EXPECT_EQ(error_of(pair_of({{sync_op("signal", "1")}}, {})),
              "t:4:62: " + at + ".channel_ids[0] is 1; the threadblock has 1 channels of this type");
    EXPECT_EQ(
        error_of(pair_of({{data_op("copy", here("i", 0, 2), here("i", 2, 1))}}, {})),
        "t:4: rank 0 " + at + " (copy): its source and its destination have different numbers of chunks");
    EXPECT_EQ(error_of(pair_of({{data_op("copy", here("i", 0, 2), here("i", 1, 2))}}, {})),
              "t:4: rank 0 " + at + " (copy): its source and its destination overlap");
    EXPECT_EQ(error_of(pair_of({{data_op("copy", here("i", 0), there(kO, 1))}}, {})),
              "t:4: rank 0 " + at + " (copy): copy does not write other ranks there");
    EXPECT_EQ(error_of(pair_of({{R"({"name": "put"})"}}, {})),
              "t:4: rank 0 " + at + " (put): put needs a source and a destination");
    EXPECT_EQ(error_of(pair_of({{R"({"name": "put", "colour": 1})"}}, {})).substr(0, 60),
              ("t:4:17: " + at + " has an unknown key \"colour\"; the keys here are").substr(0, 60));
}

TEST(MscclppV2, AnOpThatNamesNoBuffersMayNameItsChannels) {
    const std::string at = "gpus[0].threadblocks[0].ops[1]";
    const auto flush = [](const std::string& ids) {
        return pair_of({{data_op("put", here("i", 0), there(kI, 1)), sync_op("flush", ids)}}, {});
    };
    EXPECT_EQ(op_texts(import_of(flush("0"), 4).plan), Texts{"push 0->1 A[0:1] -> A[1:2]"});
    EXPECT_NE(error_of(flush("1")).find(at + ".channel_ids[0] is 1; the threadblock has 1 channels"),
              std::string::npos)
        << error_of(flush("1"));
}

TEST(MscclppV2, AChannelThatLeadsElsewhereThanTheBufferIsRefused) {
    const std::string at = "gpus[0].threadblocks[0].ops[0]";
    const auto put = [](const std::string& ids) {
        const std::vector<std::vector<std::string>> ops{
            {data_op("put", here("i", 0), there(kI, 1), ", \"channel_ids\": " + ids)}};
        return plus_v2("test", true, {PlusGpu{ops, 4, 4, 0}, PlusGpu{{}, 4, 4, 0}, PlusGpu{{}, 4, 4, 0}});
    };
    EXPECT_EQ(op_texts(import_of(put("[0]"), 4).plan), Texts{"push 0->1 A[0:1] -> A[1:2]"});
    EXPECT_EQ(op_texts(import_of(put("[]"), 4).plan), Texts{"push 0->1 A[0:1] -> A[1:2]"});
    EXPECT_NE(error_of(put("[1]"))
                  .find(at + ".channel_ids[0] leads to rank 2, and the op names no buffer of that rank"),
              std::string::npos)
        << error_of(put("[1]"));
    EXPECT_NE(error_of(put("[7]")).find("is 7; the threadblock has 2 channels of this type"),
              std::string::npos);
}

TEST(MscclppV2, DialectsAreRefusedByName) {
    EXPECT_NE(error_of(pair_of({{R"({"name": "tpkt"})"}}, {}))
                  .find("is \"tpkt\", of a dialect between versions 1 and 2"),
              std::string::npos);
    EXPECT_NE(error_of(R"({"gpus": [{"id": 0, "input_chunks": "${IN}"}]})")
                  .find("a placeholder: a template is no plan"),
              std::string::npos);
    EXPECT_NE(error_of(R"({"gpus": [{"id": 0, "input_chunks": 1, "remoteBuffers": []}]})")
                  .find("has \"remoteBuffers\", of a dialect"),
              std::string::npos);
    EXPECT_EQ(error_of(R"({"gpus": [{"id": 0}]})"),
              "t:1:11: gpus[0] has neither inputChunks (version 1) nor input_chunks (version 2): a dialect "
              "between the versions");
    EXPECT_EQ(error_of(R"({"gpus": []})"), "t:1:10: gpus has no gpu");
    EXPECT_EQ(error_of("[]"), "t:1:1: the plan is an empty list; expected an object with \"gpus\"");
    EXPECT_EQ(error_of("{}"), "t:1:1: the plan lacks \"gpus\": no execution plan of MSCCL++");
}

TEST(MscclppV2, CpktOutOfScratchIsTheEarlyNameOfUpkt) {
    const Import import = import_of(
        pair_of({{data_op("cpkt", here("i", 0), here("s", 0)), data_op("cpkt", here("s", 0), here("i", 1))}},
                {}),
        4);
    EXPECT_EQ(finding_texts(import), Texts{});
    EXPECT_NE(import.warnings[0].find("is taken as upkt"), std::string::npos);
}

}  // namespace
}  // namespace syncopate::ingest
