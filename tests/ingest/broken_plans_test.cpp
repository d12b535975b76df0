// Kinds of wrong plans that people have published, in small: each is caught, at its rank and step.
#include <gtest/gtest.h>

#include "ingest/imports.hpp"
#include "ingest/msccl/msccl_text.hpp"
#include "syncopate/ingest/msccl/msccl_xml.hpp"

namespace syncopate::ingest {
namespace {

using test::algo;
using test::GpuText;
using test::rows;
using test::TbText;

/// What is wrong with the plan, one line each: the reader's error or the findings.
std::string wrong(const std::string& text, std::int64_t chunks) {
    const Result<Import> import = read_msccl_xml(text, "t", rows(chunks));
    if (!import) return import.error().to_string();
    std::string all;
    for (const std::string& finding : test::finding_texts(*import)) all += finding + "\n";
    return all;
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(BrokenPlans, AReduceScatterThatOnlyCopies) {
    const std::string says = wrong(algo("reducescatter", 2, true,
                                        {{{{1, -1, {{"s", "i1"}}}, {-1, 1, {{"r", "i0", "i0"}}}}},
                                         {{{0, -1, {{"s", "i0"}}}, {-1, 0, {{"r", "i1", "i1"}}}}}}),
                                   2);
    EXPECT_SAYS(says, "t: rank 0: missing_contribution: final[0]: A[0:1] lacks the contribution of rank 0");
}

TEST(BrokenPlans, ASendOfScratchThatNobodyWrote) {
    const std::string says =
        wrong(algo("allreduce", 1, true,
                   {{{{1, 1, {{"s", "s0"}, {"rrc"}}}}, "", 1}, {{{0, 0, {{"s"}, {"rrc"}}}}, "", 1}}),
              1);
    EXPECT_SAYS(says, "t:4: rank 0 tb 0 step 0 (op 0): early_read: reads A.scratch[0:1] on rank 0");
}

TEST(BrokenPlans, AnAllReduceRingThatOnlySendsAndReceives) {
    const std::string says = wrong(algo("allreduce", 2, true,
                                        {{{{1, -1, {{"s", "i0"}}}, {-1, 1, {{"r", "i1", "i1"}}}}},
                                         {{{0, -1, {{"s", "i1"}}}, {-1, 0, {{"r", "i0", "i0"}}}}}}),
                                   2);
    EXPECT_SAYS(says, "rank 0: missing_contribution: final[0]: ");
    EXPECT_SAYS(says, "rank 1: missing_contribution: final[1]: ");
}

TEST(BrokenPlans, AnAllReduceThatLeavesAChunkUnreduced) {
    const std::string says = wrong(
        algo("allreduce", 2, true,
             {{{{1, 1, {{"s", "i0"}, {"r", "i0", "i0"}}}}}, {{{0, 0, {{"rrc", "i0", "i0"}, {"s", "i0"}}}}}}),
        2);
    EXPECT_SAYS(says, "rank 0: missing_contribution: final[0]: A[1:2] lacks the contribution of rank 1");
}

TEST(BrokenPlans, AnAllToAllWithoutTheCopyOfItsOwnChunk) {
    const std::string says = wrong(algo("alltoall", 2, false,
                                        {{{{1, -1, {{"s", "i1"}}}, {-1, 1, {{"r", "i0", "o1"}}}}},
                                         {{{0, -1, {{"s", "i0"}}}, {-1, 0, {{"r", "i0", "o0"}}}}}}),
                                   4);
    EXPECT_SAYS(says, "t: rank 0: final_not_reached: final[0]: A.output[0:1] never arrives");
    EXPECT_SAYS(says, "t: rank 1: final_not_reached: final[1]: A.output[3:4] never arrives");
}

TEST(BrokenPlans, PeersThatBothReceiveFirst) {
    const std::string says = wrong(
        algo("allgather", 2, true,
             {{{{1, 1, {{"r", "o1", "o1"}, {"s", "o0"}}}}}, {{{0, 0, {{"r", "o0", "o0"}, {"s", "o1"}}}}}}),
        2);
    EXPECT_SAYS(says,
                "t:4: rank 0 tb 0 step 0: cycle: deadlock, whatever the timing: rank 0 tb 0 step 0 -> rank 1 "
                "tb 0 step 1");
}

TEST(BrokenPlans, ASampleOfTrafficThatCallsItselfAnAllGather) {
    EXPECT_SAYS(wrong(algo("allgather", 3, true, {{{{1, -1, {{"s"}}}}}, {{{-1, 0, {{"r"}}}}}}), 3),
                "t:1: says allgather, and its 3 chunks cannot be shared by 2 ranks");
}

TEST(BrokenPlans, AConnectionThatTwoThreadblocksSend) {
    EXPECT_SAYS(wrong(algo("allgather", 4, true,
                           {{{{1, -1, {{"s", "o0"}}}, {1, -1, {{"s", "o1"}}}}},
                            {{{-1, 0, {{"r", "o0", "o0"}, {"r", "o1", "o1"}}}}}}),
                      4),
                "t:7: rank 0 tb 1 step 0: sends to rank 1 on channel 0, as tb 0 does");
}

TEST(BrokenPlans, AContributionAddedTwice) {
    const std::string says =
        wrong(algo("allreduce", 1, true,
                   {{{{1, 1, {{"s"}, {"s"}, {"r"}}}}}, {{{0, 0, {{"rrc"}, {"rrc"}, {"s"}}}}}}),
              1);
    EXPECT_SAYS(says, "t:5: rank 0 tb 0 step 1 (op 1): duplicate_contribution: ");
}

TEST(BrokenPlans, AChunkOfAnotherRankInTheWrongPlaceOfAnAllGather) {
    const std::string says = wrong(algo("allgather", 3, true,
                                        {{{{1, 2, {{"s", "o0"}, {"rcs", "o1", "o1"}, {"r", "o2", "o2"}}}}},
                                         {{{2, 0, {{"s", "o1"}, {"rcs", "o0", "o0"}, {"r", "o2", "o2"}}}}},
                                         {{{0, 1, {{"s", "o2"}, {"rcs", "o1", "o1"}, {"r", "o0", "o0"}}}}}}),
                                   3);
    EXPECT_SAYS(says, "final_not_reached: leaves chunk 2 of A in chunk 1 of A, where chunk 1 of A belongs");
}

TEST(BrokenPlans, AReadBeforeTheDependenceThatIsMissing) {
    // As msccl_ar's pairs: reduce what was received, without waiting for the threadblock that receives.
    const std::string says =
        wrong(algo("allreduce", 1, true,
                   {{{{1, 1, {{"s"}, {"r", "i0", "s0"}}}, {-1, -1, {{"re", "s0", "i0"}}}}, "", 1},
                    {{{0, 0, {{"s"}, {"r", "i0", "s0"}}}, {-1, -1, {{"re", "s0", "i0", 1, 0, 1}}}}, "", 1}}),
              1);
    EXPECT_SAYS(says, "t:8: rank 0 tb 1 step 0 (op 1): early_read: reads A.scratch[0:1] on rank 0");
}

TEST(BrokenPlans, AWaitForAMessageThatIsNeverSent) {
    EXPECT_SAYS(wrong(algo("allgather", 2, true,
                           {{{{1, -1, {{"s", "o0"}}}, {-1, 1, {{"r", "o1", "o1"}}}}},
                            {{{-1, 0, {{"r", "o0", "o0"}}}}}}),
                      2),
                "t:7: rank 0 tb 1 step 0: waits for message 1 from rank 1 on channel 0, which sends 0");
}

TEST(BrokenPlans, TwoThreadblocksThatReceiveIntoOneChunk) {
    const std::string says =
        wrong(algo("custom", 4, true,
                   {{{{1, -1, {{"s", "i0"}}, 0}, {1, -1, {{"s", "i1"}}, 1}}},
                    {{{-1, 0, {{"r", "i2", "i2"}}, 0}, {-1, 0, {{"r", "i2", "i2"}}, 1}}}}),
              4);
    EXPECT_SAYS(says, "t:7: rank 0 tb 1 step 0 (op 1): write_race: writes A[2:3] on rank 1");
}

TEST(BrokenPlans, AChunkOverwrittenWhileAnotherThreadblockMaySendIt) {
    const std::string says = wrong(
        algo("custom", 4, true,
             {{{{1, -1, {{"s", "i0"}}}, {-1, -1, {{"cpy", "i1", "i0"}}}}}, {{{-1, 0, {{"r", "i2", "i2"}}}}}}),
        4);
    EXPECT_SAYS(says, "rank 0 tb 1 step 0 (op 1): overwrite: ");
}

TEST(BrokenPlans, InPlaceAliasesRace) {
    // i0 and o0 are one place in place: the receive into o0 races with the send of i0. Out of place they are
    // two.
    const std::vector<GpuText> gpus{{{{1, -1, {{"s", "i0"}}}, {-1, 1, {{"r", "o0", "o0"}}}}},
                                    {{{0, -1, {{"s", "i0"}}}, {-1, 0, {{"r", "o0", "o0"}}}}}};
    EXPECT_SAYS(wrong(algo("custom", 1, true, gpus), 1), "overwrite");
    EXPECT_EQ(wrong(algo("custom", 1, false, gpus), 1), "");
}

}  // namespace
}  // namespace syncopate::ingest
