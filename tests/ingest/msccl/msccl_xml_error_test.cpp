// What the reader of MSCCL XML refuses, and the line it names.
#include <gtest/gtest.h>

#include "ingest/imports.hpp"
#include "ingest/msccl/msccl_text.hpp"
#include "syncopate/ingest/msccl/msccl_xml.hpp"

namespace syncopate::ingest {
namespace {

using test::algo;
using test::GpuText;
using test::rows;

std::string error_of(const std::string& text, std::int64_t chunks = 4) {
    const Result<Import> import = read_msccl_xml(text, "t", rows(chunks));
    return import ? "no error" : import.error().to_string();
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
    text.replace(text.find(what), what.size(), with);
    return text;
}

/// Right, until something in it is replaced.
const std::string kRight =
    algo("custom", 4, true, {{{{1, -1, {{"s", "i0"}}}}}, {{{-1, 0, {{"r", "i1", "i1"}}}}}});

TEST(MscclXmlErrors, WhatIsNotXml) {
    EXPECT_EQ(error_of(kRight), "no error");
    EXPECT_EQ(error_of(""), "t: empty: expected an <algo>");
    EXPECT_EQ(error_of("hello"), "t:1: not XML: no document element found");
    EXPECT_EQ(error_of(replaced(kRight, "</tb>", "</tc>")), "t:5: not XML: start-end tags mismatch");
    EXPECT_EQ(error_of(kRight.substr(0, kRight.size() - 10)), "t:11: not XML: error parsing end element tag");
    EXPECT_EQ(error_of(kRight + kRight), "t:13: a second <algo>; expected one");
    EXPECT_EQ(error_of("<system/>"), "t:1: the file has the element <system>; expected <algo>");
    EXPECT_EQ(error_of(replaced(kRight, "</tb>", "x</tb>")),
              "t:4: rank 0 tb 0: <tb> has text \"x\"; expected <step>");
    EXPECT_EQ(error_of(replaced(kRight, "</tb>", "<s/></tb>")),
              "t:5: rank 0 tb 0: <tb> has the element <s>; expected <step>");
}

TEST(MscclXmlErrors, AttributesThatAreMissingRepeatedOrWrong) {
    EXPECT_EQ(error_of(replaced(kRight, " ngpus=\"2\"", "")), "t:1: <algo> lacks the attribute \"ngpus\"");
    EXPECT_EQ(error_of(replaced(kRight, "ngpus=\"2\"", "ngpus=\"2\" ngpus=\"2\"")),
              "t:1: <algo> has the attribute \"ngpus\" twice");
    EXPECT_EQ(error_of(replaced(kRight, "ngpus=\"2\"", "ngpus=\"2x\"")), "t:1: ngpus=\"2x\" is no integer");
    EXPECT_EQ(error_of(replaced(kRight, "ngpus=\"2\"", "ngpus=\"99999999999999999999\"")),
              "t:1: ngpus=\"99999999999999999999\" is no integer");
    EXPECT_EQ(error_of(replaced(kRight, "ngpus=\"2\"", "ngpus=\"100000\"")),
              "t:1: ngpus=\"100000\" is not in 1 to 1024");
    EXPECT_EQ(error_of(replaced(kRight, "ngpus=\"2\"", "ngpus=\"3\"")),
              "t:1: ngpus=\"3\", and there are 2 <gpu>");
    EXPECT_EQ(error_of(replaced(kRight, "Simple", "LL64")),
              "t:1: proto=\"LL64\" is none of Simple, LL, LL128");
    EXPECT_EQ(error_of(replaced(kRight, "custom", "allfather")),
              "t:1: coll=\"allfather\" is no collective that MSCCL knows");
    EXPECT_EQ(error_of(replaced(kRight, "<gpu id=\"0\"", "<gpu id=\"1\"")),
              "t:2: rank 0: <gpu id=\"1\">; expected the ids 0 to 1 in order");
    EXPECT_EQ(error_of(replaced(kRight, "<tb id=\"0\"", "<tb id=\"1\"")),
              "t:3: rank 0 tb 0: <tb id=\"1\">; expected 0: ids count from 0");
    EXPECT_EQ(error_of(replaced(kRight, "chan=\"0\"", "chan=\"4\"")),
              "t:3: rank 0 tb 0: chan=\"4\" is not in 0 to 3");
    EXPECT_EQ(error_of(replaced(kRight, "send=\"1\"", "send=\"0\"")),
              "t:3: rank 0 tb 0: its peer is its own rank");
}

TEST(MscclXmlErrors, AReductionThatNoPlanHas) {
    const auto with = [](const std::string& redop, const std::string& type) {
        std::string text = replaced(kRight, " ngpus=", " redop=\"" + redop + "\" ngpus=");
        return error_of(replaced(text, "type=\"r\"", "type=\"" + type + "\""));
    };
    for (const char* redop : {"nop", "prod", "min", "avg", "sum", "max"})
        EXPECT_EQ(with(redop, "r"), "no error") << redop;  // nothing is reduced
    EXPECT_EQ(with("nop", "rrc"), "t:9: rank 1 tb 0 step 0: rrc reduces, and <algo> has redop=\"nop\"");
    for (const char* redop : {"prod", "min", "avg", "premulsum"})
        EXPECT_EQ(with(redop, "rrc"), "t:9: rank 1 tb 0 step 0: rrc reduces, and <algo> has redop=\"" +
                                          std::string(redop) + "\"; a plan reduces by sum or max");
    EXPECT_EQ(with("", "r"),
              "t:1: redop=\"\" is no reduction of MSCCL's; it knows sum, max, min, prod, avg and nop");
    EXPECT_EQ(with("add", "r"),
              "t:1: redop=\"add\" is no reduction of MSCCL's; it knows sum, max, min, prod, avg and nop");
}

TEST(MscclXmlErrors, AnAlgorithmThatWorksNeitherInPlaceNorOutOfIt) {
    const auto with = [](int in, int out) {
        return error_of(
            replaced(kRight, "inplace=\"1\"",
                     "inplace=\"" + std::to_string(in) + "\" outofplace=\"" + std::to_string(out) + "\""));
    };
    EXPECT_EQ(with(0, 0), "t:1: inplace=\"0\" and outofplace=\"0\": it works neither in place nor out of it");
    EXPECT_EQ(with(1, 0), "no error");
    EXPECT_EQ(with(1, 1), "no error");
}

TEST(MscclXmlErrors, StepsThatMakeNoSense) {
    const std::string at = "t:4: rank 0 tb 0 step 0: ";
    EXPECT_EQ(error_of(replaced(kRight, "<step s=\"0\"", "<step s=\"1\"")),
              at + "s=\"1\"; expected 0: steps count from 0");
    EXPECT_EQ(error_of(replaced(kRight, "type=\"s\"", "type=\"rsc\"")),
              at + "type=\"rsc\" is none of s, r, rcs, rrs, rrc, rrcs, cpy, re, nop; did you mean \"rcs\"?");
    EXPECT_EQ(error_of(replaced(kRight, "type=\"s\"", "type=\"r\"")),
              at + "r receives, and its tb has recv=\"-1\"");
    EXPECT_EQ(error_of(replaced(kRight, "srcbuf=\"i\"", "srcbuf=\"x\"")),
              at + "srcbuf=\"x\" is none of i, o, s");
    EXPECT_EQ(error_of(replaced(kRight, "srcoff=\"0\"", "srcoff=\"4\"")),
              at + "src is chunks 4 to 4 of input, which has 4");
    EXPECT_EQ(error_of(replaced(kRight, "srcbuf=\"i\"", "srcbuf=\"s\"")),
              at + "src is chunks 0 to 0 of scratch, which has 0");
    EXPECT_EQ(error_of(replaced(kRight, "cnt=\"1\"", "cnt=\"0\"")), at + "cnt=\"0\" is not in 1 to 1048576");
    EXPECT_EQ(error_of(replaced(kRight, "depid=\"-1\"", "depid=\"0\"")),
              at + "depid and deps must both name something or both be -1");
    EXPECT_EQ(error_of(replaced(kRight, "depid=\"-1\" deps=\"-1\"", "depid=\"0\" deps=\"7\"")),
              at + "depends on tb 0 step 7, which does not exist");
    EXPECT_EQ(error_of(algo("custom", 4, true, {{{{-1, -1, {{"cpy", "i0", "i1", 2}}}}}})),
              at + "src and dst overlap in one buffer");
}

TEST(MscclXmlErrors, AWaitForAStepThatNeverTells) {
    EXPECT_EQ(
        error_of(algo(
            "custom", 4, true,
            {{{{-1, -1, {{"cpy", "i0", "i1", 1, -1, -1, 0}}}, {-1, -1, {{"cpy", "i1", "i2", 1, 0, 0}}}}}})),
        "t:7: rank 0 tb 1 step 0: depends on tb 0 step 0, which has hasdep=\"0\" and so never tells that it "
        "is done");
}

TEST(MscclXmlErrors, MessagesThatNobodySendsOrReceives) {
    EXPECT_EQ(error_of(algo("custom", 4, true,
                            {{{{1, -1, {{"s"}, {"s", "i1"}}}}}, {{{-1, 0, {{"r", "i0", "i2"}}}}}})),
              "t:5: rank 0 tb 0 step 1: sends message 2 to rank 1 on channel 0, which receives 1");
    EXPECT_EQ(
        error_of(algo("custom", 4, true, {{{{1, -1, {{"s"}}}}}, {{{-1, 0, {{"r"}, {"r", "i0", "i2"}}}}}})),
        "t:10: rank 1 tb 0 step 1: waits for message 2 from rank 0 on channel 0, which sends 1");
    EXPECT_EQ(error_of(algo("custom", 4, true, {{{{1, -1, {{"s", "i0", "i0", 2}}}}}, {{{-1, 0, {{"r"}}}}}})),
              "t:9: rank 1 tb 0 step 0: receives 1 chunks, and rank 0 tb 0 step 0 sends 2");
}

TEST(MscclXmlErrors, AConnectionOfTwoThreadblocks) {
    EXPECT_EQ(error_of(algo("custom", 4, true,
                            {{{{1, -1, {{"s"}}}, {1, -1, {{"s", "i1"}}}}},
                             {{{-1, 0, {{"r", "i0", "i2"}, {"r", "i0", "i3"}}}}}})),
              "t:7: rank 0 tb 1 step 0: sends to rank 1 on channel 0, as tb 0 does; a connection belongs to "
              "one tb");
    EXPECT_EQ(error_of(algo("custom", 4, true,
                            {{{{1, -1, {{"s"}, {"s", "i1"}}}}},
                             {{{-1, 0, {{"r", "i0", "i2"}}}, {-1, 0, {{"r", "i0", "i3"}}}}}})),
              "t:13: rank 1 tb 1 step 0: receives from rank 0 on channel 0, as tb 0 does; a connection "
              "belongs to one tb");
}

TEST(MscclXmlErrors, ChunksThatRanksCannotShare) {
    EXPECT_EQ(error_of(replaced(kRight, "custom", "allgather") /* 4 chunks, 2 ranks: fine */), "no error");
    EXPECT_EQ(error_of(replaced(replaced(kRight, "custom", "allgather"), "nchunksperloop=\"4\"",
                                "nchunksperloop=\"5\""),
                       5),
              "t:1: says allgather, and its 5 chunks cannot be shared by 2 ranks");
}

TEST(MscclXmlErrors, WhatIsNotKnownOfAStepIsLeftOutWithAWarning) {
    const Result<Import> import =
        read_msccl_xml(replaced(kRight, "cnt=\"1\"", "cnt=\"1\" colour=\"red\""), "t", rows(4));
    ASSERT_TRUE(import);
    EXPECT_EQ(import->warnings[0], "the attribute \"colour\" of <step> is not known and left out");
}

TEST(MscclXmlErrors, AStepBeyondWhatItsGpuSaysToHaveIsToldOnce) {
    const Result<Import> import =
        read_msccl_xml(replaced(kRight, "i_chunks=\"4\"", "i_chunks=\"0\""), "t", rows(4));
    ASSERT_TRUE(import);
    EXPECT_EQ(import->warnings.back(),
              "rank 0 tb 0 step 0: src is chunks 0 to 0 of input, and <gpu id=\"0\"> says i_chunks=\"0\"; 4 "
              "are taken");
    EXPECT_EQ(read_msccl_xml(kRight, "t", rows(4))->warnings.size() + 1, import->warnings.size());
}

TEST(MscclXmlErrors, DeepNestingIsNoTrouble) {
    std::string text;
    for (int i = 0; i < 200'000; ++i) text += "<a>";
    EXPECT_EQ(error_of(text), "t:1: not XML: start-end tags mismatch");
    EXPECT_EQ(error_of("<" + std::string(std::size_t{32} << 20, ' ')), "t: larger than 32 MiB");
}

}  // namespace
}  // namespace syncopate::ingest
