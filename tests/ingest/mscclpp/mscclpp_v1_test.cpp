#include <gtest/gtest.h>

#include "ingest/imports.hpp"
#include "syncopate/ingest/mscclpp/mscclpp_json.hpp"

namespace syncopate::ingest {
namespace {

using test::finding_texts;
using test::op_texts;
using test::rows;
using Texts = std::vector<std::string>;

/// Two ranks of 4 input and scratch chunks, in place, each with one threadblock and channels i->i, i->s and
/// s->s to the other, all of which the threadblock names 0. One op a line; rank 0's first is on line 4.
std::string pair_of(const std::string& zero, const std::string& one, const std::string& protocol = "Simple") {
    std::string text = R"({"name": "test", "colletive": "test", "protocol": ")" + protocol +
                       R"(", "inplace": true, "gpus": [)"
                       "\n";
    for (int rank = 0; rank < 2; ++rank) {
        std::string channels;
        std::string scope;
        for (const auto& [src, dst] : {std::pair{"i", "i"}, {"i", "s"}, {"s", "s"}}) {
            channels +=
                fmt::format(R"({}{{"srcbuff": "{}", "dstbuff": "{}", "type": "sm", "connectedTo": [{}]}})",
                            channels.empty() ? "" : ", ", src, dst, 1 - rank);
            scope += fmt::format(R"({}{{"src": "{}", "dst": "{}", "ctype": "sm", "cids": [0]}})",
                                 scope.empty() ? "" : ", ", src, dst);
        }
        text += fmt::format(
            R"({{"id": {}, "inputChunks": 4, "outputChunks": 0, "scratchChunks": 4, "chunkGroups": 1, "channels": [{}], "threadblocks": [)"
            "\n",
            rank, channels);
        text += fmt::format(R"({{"id": 0, "channels": [{}], "ops": [)"
                            "\n{}\n]}}\n",
                            scope, rank == 0 ? zero : one);
        text += rank == 0 ? "]},\n" : "]}\n";
    }
    return text + "]}\n";
}

std::string out(const std::string& to, int offset) {
    return fmt::format(R"("o_buff": {{"src": "i", "dst": "{}"}}, "o_cids": [{{"id": 0, "off": {}}}])", to,
                       offset);
}
std::string in(const std::string& from, int offset) {
    return fmt::format(R"("i_buff": {{"src": "i", "dst": "{}"}}, "i_cids": [{{"id": 0, "off": {}}}])", from,
                       offset);
}
std::string local(const std::string& side, const std::string& buffer, int offset) {
    return fmt::format(R"("{0}": 0, "{0}buff": "{1}", "{0}off": {2})", side, buffer, offset);
}
std::string op(const std::string& name, const std::string& members, int count = 1) {
    return fmt::format(R"({{"name": "{}", {}, "ctype": "sm", "cnt": {}}})", name, members, count);
}

Import import_of(const std::string& text) {
    Result<Import> import = read_mscclpp_json(text, "t", rows(4));
    if (!import) throw std::runtime_error(import.error().to_string());
    return *std::move(import);
}

Texts ops_of(const std::string& zero) { return op_texts(import_of(pair_of(zero, "")).plan); }

std::string error_of(const std::string& zero) {
    const Result<Import> import = read_mscclpp_json(pair_of(zero, ""), "t", rows(4));
    return import ? "no error" : import.error().to_string();
}

TEST(MscclppV1, TransfersNameTheirChannelAndTheRemoteChunk) {
    EXPECT_EQ(ops_of(op("put", R"("srcs": [{"buff": "i", "off": 1}], )" + out("s", 2), 2)),
              Texts{"push 0->1 A[1:3] -> A.scratch[2:4]"});
    EXPECT_EQ(ops_of(op("put", local("src", "i", 1) + ", " + out("i", 0))),
              Texts{"push 0->1 A[1:2] -> A[0:1]"});
    EXPECT_EQ(ops_of(op("get", in("i", 3) + ", " + local("dst", "i", 0))),
              Texts{"pull 1->0 A[3:4] -> A[0:1]"});
    EXPECT_EQ(ops_of(op("copy", local("src", "i", 1) + ", " + local("dst", "s", 0))),
              Texts{"local A[1:2] -> A.scratch[0:1]"});
}

TEST(MscclppV1, ReductionsHaveTheirOldNames) {
    const std::string here = local("src", "i", 0) + ", " + local("dst", "i", 0);
    EXPECT_EQ(ops_of(op("rrc", here + ", " + in("i", 0))), Texts{"pull 1->0 A[0:1] -> A[0:1] sum"});
    EXPECT_EQ(ops_of(op("rrcs", here + ", " + in("i", 0) + ", " + out("i", 0))),
              (Texts{"pull 1->0 A[0:1] -> A[0:1] sum", "push 0->1 A[0:1] -> A[0:1] after 0:0"}));
    EXPECT_EQ(ops_of(op("re", here + R"(, "srcs": [{"buff": "s", "off": 1}])")),
              Texts{"local A.scratch[1:2] -> A[0:1] sum"});
    EXPECT_EQ(ops_of(op("rs", here + R"(, "srcs": [{"buff": "s", "off": 1}], )" + out("i", 0))),
              (Texts{"local A.scratch[1:2] -> A[0:1] sum", "push 0->1 A[0:1] -> A[0:1] after 0:0"}));
}

TEST(MscclppV1, TpktPacksAndCpktUnpacks) {
    const std::string pack = op("tpkt", local("src", "i", 0) + ", " + local("dst", "s", 0));
    const std::string send =
        op("ppkt", R"("srcs": [{"buff": "s", "off": 0}], )" +
                       std::string(R"("o_buff": {"src": "s", "dst": "s"}, "o_cids": [{"id": 0, "off": 1}])"));
    const std::string unpack = op("cpkt", local("src", "s", 1) + ", " + local("dst", "i", 3));
    const std::string nop = R"({"name": "nop", "deps": [{"tb": 0, "step": 0}]})";
    const Import import = import_of(pair_of(pack + ",\n" + nop + ",\n" + send, unpack, "LL"));
    EXPECT_EQ(op_texts(import.plan),
              (Texts{"local A[0:1] -> A.scratch[0:1]", "push 0->1 A.scratch[0:1] -> A.scratch[1:2] after 0:0",
                     "local A.scratch[1:2] -> A[3:4] after 0:1"}));
    EXPECT_EQ(finding_texts(import), Texts{});
    EXPECT_EQ(import.origins[1][0], (Origin{11, "gpus[1].threadblocks[0].ops[0] (cpkt)"}));
}

TEST(MscclppV1, SignalsAndWaitsMeetByChannel) {
    const std::string put = op("put", R"("srcs": [{"buff": "i", "off": 0}], )" + out("s", 0));
    const std::string read = op("copy", local("src", "s", 0) + ", " + local("dst", "i", 1));
    const auto text = [&](const std::string& waits_on) {
        return pair_of(put + ",\n" + op("signal", out("s", 0)), op("wait", in(waits_on, 0)) + ",\n" + read);
    };
    EXPECT_EQ(finding_texts(import_of(text("s"))), Texts{});
    const Result<Import> other = read_mscclpp_json(text("i"), "t", rows(4));
    ASSERT_FALSE(other);
    EXPECT_NE(other.error().message.find("waits for ever: memory channel 0 from rank 0 to rank 1"),
              std::string::npos);
}

TEST(MscclppV1, WhatIsNotThereIsNamedByItsPath) {
    const std::string at = "gpus[0].threadblocks[0].ops[0]";
    EXPECT_EQ(
        error_of(op("rrs", local("dst", "i", 0))),
        "t:4:10: " + at + ".name is \"rrs\", of a dialect before version 1 that no published reader takes");
    EXPECT_EQ(error_of(op("upkt", local("dst", "i", 0))),
              "t:4:10: " + at + ".name is \"upkt\", which is no op of version 1");
    EXPECT_EQ(error_of(op("put", out("i", 0))), "t:4:1: " + at + R"( needs "srcbuff" and "srcoff")");
    EXPECT_EQ(error_of(op("signal", R"("o_buff": {"src": "o", "dst": "i"}, "o_cids": [{"id": 0}])")),
              "t:4:74: " + at + ".o_cids[0].id is 0; the threadblock has 0 channels of this kind");
    EXPECT_EQ(error_of(R"({"name": "nop", "deps": [{"tb": 1, "step": 0}]})"),
              "t:4:26: " + at +
                  ".deps[0] names no earlier step of its own threadblock; the runtime knows no other");
    EXPECT_EQ(error_of(op("copy", local("src", "i", 4) + ", " + local("dst", "s", 0))),
              "t:4: rank 0 " + at + " (copy): chunks 4 to 4 of the input of rank 0, which has 4");
}

TEST(MscclppV1, AKeyThatMeansNothingToItsOpIsRefused) {
    const auto said = [](const std::string& op) {
        const std::string error = error_of(op);
        return error.substr(std::min(error.size(), error.find("ops[0]")));
    };
    EXPECT_EQ(said(op("signal", out("i", 0) + ", " + local("src", "i", 0))),
              "ops[0] has \"srcbuff\", which means nothing to signal");
    EXPECT_EQ(said(op("copy", local("src", "i", 0) + ", " + local("dst", "i", 1) + ", " + in("i", 0))),
              "ops[0] has \"i_buff\", which means nothing to copy");
    EXPECT_EQ(said(op("copy", local("src", "i", 0) + ", " + local("dst", "i", 1) + ", \"barrier_id\": 0")),
              "ops[0] has \"barrier_id\", which means nothing to copy");
    EXPECT_EQ(said(op("put", local("src", "i", 0) + ", " + out("i", 1) + ", \"gi_cid\": 0")),
              "ops[0] has \"gi_cid\", which means nothing to put");
}

}  // namespace
}  // namespace syncopate::ingest
