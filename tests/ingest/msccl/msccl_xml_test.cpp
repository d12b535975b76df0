#include "syncopate/ingest/msccl/msccl_xml.hpp"

#include <gtest/gtest.h>

#include "ingest/imports.hpp"
#include "ingest/msccl/msccl_text.hpp"
#include "syncopate/plan/json/json.hpp"

namespace syncopate::ingest {
namespace {

using test::algo;
using test::finding_texts;
using test::GpuText;
using test::op_texts;
using test::rows;
using test::TbText;
using Texts = std::vector<std::string>;

Import import_of(const std::string& text, std::int64_t chunks) {
    Result<Import> import = read_msccl_xml(text, "t", rows(chunks));
    if (!import) throw std::runtime_error(import.error().to_string());
    return *std::move(import);
}

TEST(MscclXml, ASendAndItsReceiveAreOnePush) {
    const Import import = import_of(algo("allgather", 2, true,
                                         {{{{1, -1, {{"s", "o0", "o0"}}}, {-1, 1, {{"r", "o1", "o1"}}}}},
                                          {{{0, -1, {{"s", "o1", "o1"}}}, {-1, 0, {{"r", "o0", "o0"}}}}}}),
                                    2);
    EXPECT_EQ(op_texts(import.plan), (Texts{"push 0->1 A[0:1] -> A[0:1]", "push 1->0 A[1:2] -> A[1:2]"}));
    EXPECT_EQ(finding_texts(import), Texts{});
}

TEST(MscclXml, AnOpKnowsTheLineOfTheStepThatSendsIt) {
    const Import import = import_of(algo("allgather", 2, true,
                                         {{{{1, -1, {{"s", "o0", "o0"}}}, {-1, 1, {{"r", "o1", "o1"}}}}},
                                          {{{0, -1, {{"s", "o1", "o1"}}}, {-1, 0, {{"r", "o0", "o0"}}}}}}),
                                    2);
    EXPECT_EQ(import.origins[0][0], (Origin{4, "tb 0 step 0"}));
    EXPECT_EQ(import.origins[1][0], (Origin{12, "tb 0 step 0"}));
}

TEST(MscclXml, TheDestinationIsTheReceiversWhateverTheSenderSaysOfIt) {
    const Import import = import_of(
        algo("custom", 4, true, {{{{1, -1, {{"s", "i0", "i3"}}}}}, {{{-1, 0, {{"r", "i2", "i1"}}}}}}), 4);
    EXPECT_EQ(op_texts(import.plan), Texts{"push 0->1 A[0:1] -> A[1:2]"});
}

TEST(MscclXml, RrcAddsInPlaceAndElseCopiesFirst) {
    const Import in_place = import_of(
        algo("custom", 2, true, {{{{1, -1, {{"s", "i0"}}}}}, {{{-1, 0, {{"rrc", "i0", "i0"}}}}}}), 2);
    EXPECT_EQ(op_texts(in_place.plan), Texts{"push 0->1 A[0:1] -> A[0:1] sum"});
    const Import apart = import_of(
        algo("custom", 2, true, {{{{1, -1, {{"s", "i0"}}}}}, {{{-1, 0, {{"rrc", "i0", "i1"}}}}}}), 2);
    EXPECT_EQ(op_texts(apart.plan),
              (Texts{"push 0->1 A[0:1] -> A[1:2] sum after 1:0", "local A[0:1] -> A[1:2]"}));
}

TEST(MscclXml, RcsForwardsWhatItHasStored) {
    const Import import = import_of(algo("custom", 1, true,
                                         {{{{1, -1, {{"s", "i0"}}}}},
                                          {{{2, 0, {{"rcs", "i0", "i0"}}}}},
                                          {{{-1, 1, {{"r", "i0", "i0"}}}}}}),
                                    1);
    EXPECT_EQ(op_texts(import.plan),
              (Texts{"push 0->1 A[0:1] -> A[0:1]", "push 1->2 A[0:1] -> A[0:1] after 0:0"}));
}

TEST(MscclXml, RrsAddsInAPlaceOfItsOwnAndStoresNothing) {
    const Import import = import_of(algo("custom", 1, true,
                                         {{{{1, -1, {{"s", "i0"}}}}},
                                          {{{2, 0, {{"rrs", "i0", "i0"}}}}},
                                          {{{-1, 1, {{"rrc", "i0", "i0"}}}}}}),
                                    1);
    EXPECT_EQ(op_texts(import.plan),
              (Texts{"push 0->1 A[0:1] -> A.sums[0:1] sum after 1:0", "local A[0:1] -> A.sums[0:1]",
                     "push 1->2 A.sums[0:1] -> A[0:1] sum after 0:0 1:0"}));
}

TEST(MscclXml, RrcsStoresTheSumAndForwardsIt) {
    const Import import = import_of(algo("custom", 1, true,
                                         {{{{1, -1, {{"s", "i0"}}}}},
                                          {{{2, 0, {{"rrcs", "i0", "i0"}}}}},
                                          {{{-1, 1, {{"r", "i0", "i0"}}}}}}),
                                    1);
    EXPECT_EQ(op_texts(import.plan),
              (Texts{"push 0->1 A[0:1] -> A[0:1] sum", "push 1->2 A[0:1] -> A[0:1] after 0:0"}));
}

TEST(MscclXml, CopiesAndReductionsAreLocalAndANopIsNothing) {
    const Import import = import_of(
        algo("custom", 4, true, {{{{-1, -1, {{"cpy", "i0", "i1"}, {"nop"}, {"re", "i2", "i1"}}}}}}), 4);
    EXPECT_EQ(op_texts(import.plan),
              (Texts{"local A[0:1] -> A[1:2]", "local A[2:3] -> A[1:2] sum after 0:0"}));
}

/// Both of two ranks add (or whatever `redop` says) the other's chunk, through scratch.
std::string reducing(const std::string& redop) {
    std::string text =
        algo("allreduce", 1, true,
             {GpuText{{TbText{1, 1, {{"s", "i0", "s0"}, {"r", "i0", "s0"}, {"re", "s0", "i0"}}}}, "", 1},
              GpuText{{TbText{0, 0, {{"s", "i0", "s0"}, {"r", "i0", "s0"}, {"re", "s0", "i0"}}}}, "", 1}});
    if (!redop.empty()) text.insert(text.find(" proto="), " redop=\"" + redop + "\"");
    return text;
}

TEST(MscclXml, RedopSaysHowStepsReduce) {
    const auto ops = [](const std::string& redop) {
        return op_texts(import_of(reducing(redop), 1).plan).at(1);
    };
    EXPECT_EQ(ops("").find(" max"), std::string::npos);
    EXPECT_NE(ops("").find(" sum"), std::string::npos);
    EXPECT_EQ(ops("sum"), ops(""));
    for (const char* redop : {"max", "MAX", "Max"}) {
        EXPECT_NE(ops(redop).find("local A.scratch[0:1] -> A[0:1] max"), std::string::npos) << ops(redop);
        EXPECT_EQ(ops(redop).find(" sum"), std::string::npos);
    }
    // Received and added at once, or passed on as well.
    std::string fused =
        algo("allreduce", 1, true, {GpuText{{TbText{1, -1, {{"s"}}}}}, GpuText{{TbText{-1, 0, {{"rrc"}}}}}});
    fused.insert(fused.find(" proto="), " redop=\"max\"");
    EXPECT_NE(op_texts(import_of(fused, 1).plan).at(0).find(" max"), std::string::npos);
    const Import import = import_of(reducing("max"), 1);
    const std::pair<std::string, std::string> claim{"reduce", "max"};
    EXPECT_EQ(std::count(import.claims.begin(), import.claims.end(), claim), 1);
}

TEST(MscclXml, AStepOfSeveralChunksIsOneOp) {
    const Import import = import_of(
        algo("custom", 8, true, {{{{1, -1, {{"s", "i2", "i2", 3}}}}}, {{{-1, 0, {{"r", "i4", "i4", 3}}}}}}),
        8);
    EXPECT_EQ(op_texts(import.plan), Texts{"push 0->1 A[2:5] -> A[4:7]"});
}

TEST(MscclXml, ADependenceOrdersWhatSharesMemoryAndNothingElse) {
    const auto text = [](const std::string& second) {
        return algo("custom", 4, true,
                    {{{{-1, -1, {{"cpy", "i0", "i1"}}}, {-1, -1, {{"cpy", second, "i3", 1, 0, 0}}}}}});
    };
    EXPECT_EQ(op_texts(import_of(text("i1"), 4).plan),
              (Texts{"local A[0:1] -> A[1:2]", "local A[1:2] -> A[3:4] after 0:0"}));
    EXPECT_EQ(op_texts(import_of(text("i0"), 4).plan),
              (Texts{"local A[0:1] -> A[1:2]", "local A[0:1] -> A[3:4]"}));
}

TEST(MscclXml, ADependenceOfANopHoldsForTheStepAfterIt) {
    const Import import = import_of(algo("custom", 4, true,
                                         {{{{-1, -1, {{"cpy", "i0", "i1"}}},
                                            {-1, -1, {{"nop", "i0", "i0", 0, 0, 0}, {"cpy", "i1", "i3"}}}}}}),
                                    4);
    EXPECT_EQ(op_texts(import.plan), (Texts{"local A[0:1] -> A[1:2]", "local A[1:2] -> A[3:4] after 0:0"}));
}

TEST(MscclXml, AMissingDependenceIsAnEarlyReadOfTheOtherThreadblock) {
    const Import import =
        import_of(algo("custom", 4, true,
                       {{{{-1, -1, {{"cpy", "i0", "s0"}}}, {-1, -1, {{"cpy", "s0", "i3"}}}}, "", 1}}),
                  4);
    const Texts findings = finding_texts(import);
    ASSERT_FALSE(findings.empty());
    EXPECT_TRUE(findings[0].starts_with("t:7: rank 0 tb 1 step 0 (op 1): early_read: ")) << findings[0];
    EXPECT_NE(findings[0].find("op 0:0 (tb 0 step 0, line 4) writes it"), std::string::npos) << findings[0];
}

TEST(MscclXml, MessagesOfOneConnectionFollowEachOther) {
    const Import import = import_of(
        algo("custom", 4, true,
             {{{{1, -1, {{"s", "i0"}, {"s", "i1"}}}}}, {{{-1, 0, {{"r", "i2", "i2"}, {"r", "i3", "i3"}}}}}}),
        4);
    EXPECT_EQ(op_texts(import.plan),
              (Texts{"push 0->1 A[0:1] -> A[2:3]", "push 0->1 A[1:2] -> A[3:4] after 0:0"}));
}

TEST(MscclXml, ChannelsAreConnectionsOfTheirOwn) {
    const Import import =
        import_of(algo("custom", 4, true,
                       {{{{1, -1, {{"s", "i0"}}, 0}, {1, -1, {{"s", "i1"}}, 1}}},
                        {{{-1, 0, {{"r", "i2", "i2"}}, 1}, {-1, 0, {{"r", "i3", "i3"}}, 0}}}}),
                  4);
    EXPECT_EQ(op_texts(import.plan), (Texts{"push 0->1 A[0:1] -> A[3:4]", "push 0->1 A[1:2] -> A[2:3]"}));
}

TEST(MscclXml, AnExchangeInPlaceGoesThroughARelay) {
    // Each sends its chunk and then overwrites it with the other's: right with a FIFO, a circle for one-sided
    // ops.
    const Import import = import_of(
        algo("custom", 1, true,
             {{{{1, 1, {{"s", "i0"}, {"r", "i0", "i0"}}}}}, {{{0, 0, {{"s", "i0"}, {"r", "i0", "i0"}}}}}}),
        1);
    EXPECT_EQ(op_texts(import.plan),
              (Texts{"push 0->1 A[0:1] -> A.relay[0:1]", "local A.relay[0:1] -> A[0:1] after 0:0 1:0",
                     "push 1->0 A[0:1] -> A.relay[0:1]", "local A.relay[0:1] -> A[0:1] after 0:0 1:0"}));
    EXPECT_EQ(finding_texts(import), Texts{});
    EXPECT_EQ(import.warnings.size(), 2U);  // and that a custom collective asks for nothing
}

TEST(MscclXml, BothReceivingFirstIsADeadlock) {
    const Import import = import_of(algo("allgather", 2, true,
                                         {{{{1, 1, {{"r", "o1", "o1"}, {"s", "o0", "o0"}}}}},
                                          {{{0, 0, {{"r", "o0", "o0"}, {"s", "o1", "o1"}}}}}}),
                                    2);
    EXPECT_EQ(
        finding_texts(import),
        Texts{"t:4: rank 0 tb 0 step 0: cycle: deadlock, whatever the timing: rank 0 tb 0 step 0 -> rank 1 "
              "tb 0 "
              "step 1 -> rank 1 tb 0 step 0 -> rank 0 tb 0 step 1 -> rank 0 tb 0 step 0 (each waits for the "
              "next)"});
    // Without the reader's own words, the plan says the same.
    EXPECT_EQ(plan::check(import.plan).at(0).kind, plan::Finding::Kind::cycle);
}

TEST(MscclXml, ADeadlockOfDependencesIsFound) {
    const Import import = import_of(
        algo("custom", 4, true,
             {{{{-1, -1, {{"cpy", "i0", "i1", 1, 1, 0}}}, {-1, -1, {{"cpy", "i2", "i3", 1, 0, 0}}}}}}),
        4);
    ASSERT_EQ(finding_texts(import).size(), 1U);
    EXPECT_TRUE(finding_texts(import)[0].starts_with("t:4: rank 0 tb 0 step 0: cycle: "));
}

TEST(MscclXml, ADeadlockOfNopsAloneIsFound) {
    const Import import = import_of(
        algo("custom", 4, true,
             {{{{-1, -1, {{"nop", "i0", "i0", 0, 1, 0}}}, {-1, -1, {{"nop", "i0", "i0", 0, 0, 0}}}}}}),
        4);
    ASSERT_EQ(finding_texts(import).size(), 1U);
    EXPECT_TRUE(finding_texts(import)[0].starts_with("t:4: rank 0 tb 0 step 0: cycle: "));
}

/// Rank 0 sends three messages before it receives the one that rank 1 sends before it receives them.
std::string three_before_one() {
    return algo("custom", 8, true,
                {{{{1, -1, {{"s", "i0"}, {"s", "i1"}, {"s", "i2"}}}, {-1, 1, {{"r", "i3", "i3", 1, 0, 2}}}}},
                 {{{-1, 0, {{"r", "i4", "i4", 1, 1, 0}, {"r", "i5", "i5"}, {"r", "i6", "i6"}}},
                   {0, -1, {{"s", "i7"}, {"nop"}}}}}});
}

TEST(MscclXml, ASenderThatWaitsForASlotMayDeadlock) {
    // Here rank 1 starts to receive once its own send is done, which needs no slot of the other direction: no
    // deadlock.
    ImportOptions options = rows(8);
    options.fifo_slots = 2;
    EXPECT_EQ(finding_texts(*read_msccl_xml(three_before_one(), "t", options)), Texts{});
    // Both ranks send three before they receive: enough slots, or nothing moves.
    const std::vector<test::GpuText> both{{{{1,
                                             1,
                                             {{"s", "i0"},
                                              {"s", "i1"},
                                              {"s", "i2"},
                                              {"r", "i3", "i3"},
                                              {"r", "i4", "i4"},
                                              {"r", "i5", "i5"}}}}},
                                          {{{0,
                                             0,
                                             {{"s", "i0"},
                                              {"s", "i1"},
                                              {"s", "i2"},
                                              {"r", "i3", "i3"},
                                              {"r", "i4", "i4"},
                                              {"r", "i5", "i5"}}}}}};
    const std::string text = algo("custom", 8, true, both);
    ASSERT_EQ(finding_texts(*read_msccl_xml(text, "t", options)).size(), 1U);
    EXPECT_NE(finding_texts(*read_msccl_xml(text, "t", options))[0].find("deadlock"), std::string::npos);
    options.fifo_slots = 3;
    EXPECT_EQ(finding_texts(*read_msccl_xml(text, "t", options)), Texts{});
}

TEST(MscclXml, OutOfPlaceInputAndOutputAreTwoTensors) {
    const Import import = import_of(
        algo("alltoall", 2, false,
             {{{{1, -1, {{"s", "i1", "o0"}}}, {-1, 1, {{"r", "i0", "o1"}}}, {-1, -1, {{"cpy", "i0", "o0"}}}}},
              {{{0, -1, {{"s", "i0", "o1"}}},
                {-1, 0, {{"r", "i1", "o0"}}},
                {-1, -1, {{"cpy", "i1", "o1"}}}}}}),
        4);
    // Rank 1's buffers lie behind rank 0's.
    EXPECT_EQ(op_texts(import.plan),
              (Texts{"push 0->1 A.input[1:2] -> A.output[2:3]", "local A.input[0:1] -> A.output[0:1]",
                     "push 1->0 A.input[2:3] -> A.output[1:2]", "local A.input[3:4] -> A.output[3:4]"}));
    EXPECT_EQ(finding_texts(import), Texts{});
}

TEST(MscclXml, ACopyBeforeTheThreadblocksComesFirstAndInPlaceIsNothing) {
    test::GpuText zero{{{1, -1, {{"s", "i1", "o0"}}}, {-1, 1, {{"r", "i0", "o1"}}}},
                       "<copy i_off=\"0\" o_off=\"0\"/>\n"};
    test::GpuText one{{{0, -1, {{"s", "i0", "o1"}}}, {-1, 0, {{"r", "i1", "o0"}}}},
                      "<copy i_off=\"1\" o_off=\"1\"/>\n"};
    const Import import = import_of(algo("alltoall", 2, false, {zero, one}), 4);
    EXPECT_EQ(finding_texts(import), Texts{});
    EXPECT_EQ(op_texts(import.plan).size(), 4U);
    const Import custom = import_of(algo("custom", 2, true, {zero, one}), 2);
    EXPECT_EQ(op_texts(custom.plan).size(), 2U);
}

TEST(MscclXml, InPlaceAnAllGathersInputIsItsPartOfTheOutput) {
    const Import import =
        import_of(algo("allgather", 4, true,
                       {{{{1, -1, {{"s", "i0", "i0", 2}}}, {-1, 1, {{"r", "o0", "o2", 2}}}}},
                        {{{0, -1, {{"s", "i0", "i0", 2}}}, {-1, 0, {{"r", "o0", "o0", 2}}}}}}),
                  4);
    EXPECT_EQ(op_texts(import.plan), (Texts{"push 0->1 A[0:2] -> A[0:2]", "push 1->0 A[2:4] -> A[2:4]"}));
    EXPECT_EQ(finding_texts(import), Texts{});
}

TEST(MscclXml, InPlaceAReduceScattersOutputIsItsPartOfTheInput) {
    const Import import = import_of(algo("reducescatter", 2, true,
                                         {{{{1, -1, {{"s", "i1"}}}, {-1, 1, {{"rrc", "i0", "o0"}}}}},
                                          {{{0, -1, {{"s", "i0"}}}, {-1, 0, {{"rrc", "i1", "o0"}}}}}}),
                                    2);
    EXPECT_EQ(op_texts(import.plan),
              (Texts{"push 0->1 A[1:2] -> A[1:2] sum", "push 1->0 A[0:1] -> A[0:1] sum"}));
    EXPECT_EQ(finding_texts(import), Texts{});
}

TEST(MscclXml, AChunkInTheWrongPlaceIsFoundAtItsStep) {
    // The allreduce of four chunks ends with chunks 0 and 1 exchanged on rank 1.
    const std::string text =
        algo("allreduce", 2, true,
             {{{{1, -1, {{"s", "i0"}, {"s", "i1"}}}, {-1, 1, {{"r", "i0", "i0"}, {"r", "i1", "i1"}}}}},
              {{{-1, 0, {{"rrc", "i0", "i0"}, {"rrc", "i1", "i1"}}},
                {0, -1, {{"s", "i1", "i0", 1, 0, 1}, {"s", "i0"}}}}}});
    const Texts findings = finding_texts(import_of(text, 2));
    ASSERT_FALSE(findings.empty());
    EXPECT_NE(
        std::find(
            findings.begin(), findings.end(),
            "t:18: rank 1 tb 1 step 0 (op 0): final_not_reached: leaves chunk 1 of A in chunk 0 of A, where "
            "chunk 0 of A belongs"),
        findings.end())
        << findings[0];
}

TEST(MscclXml, ASumOfDifferentChunksIsFoundAtItsStep) {
    const std::string text = algo("allreduce", 2, true,
                                  {{{{1, 1, {{"s", "i1"}, {"r", "i0", "i0"}, {"r", "i1", "i1"}}}}},
                                   {{{0, 0, {{"rrc", "i0", "i0"}, {"s", "i0"}, {"s", "i1"}}}}}});
    const Texts findings = finding_texts(import_of(text, 2));
    const bool found = std::any_of(findings.begin(), findings.end(), [](const std::string& finding) {
        return finding.find("adds chunk 1 of A to chunk 0 of A") != std::string::npos;
    });
    EXPECT_TRUE(found) << (findings.empty() ? "" : findings[0]);
}

TEST(MscclXml, ThePlanSurvivesTheRoundTripThroughJson) {
    const Import import = import_of(three_before_one(), 8);
    const Result<plan::Plan> again = plan::from_json(plan::to_json(import.plan));
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_EQ(*again, import.plan);
}

TEST(MscclXml, WithoutATensorEachChunkHas1024Elements) {
    const Result<Import> import = read_msccl_xml(three_before_one(), "t");
    ASSERT_TRUE(import);
    EXPECT_EQ(import->plan.tensors[0], (plan::Tensor{"data", {8192}, plan::DType::bf16}));
}

TEST(MscclXml, ATensorsFirstAxisIsCutAndTheOthersStayWhole) {
    ImportOptions options;
    options.tensor = plan::Tensor{"X", {16, 5}, plan::DType::fp16};
    const Import import = *read_msccl_xml(three_before_one(), "t", options);
    EXPECT_EQ(import.plan.ranks[0][0].src.region, (plan::Region{{0, 2}, {0, 5}}));
    options.tensor->shape = {12, 5};
    const Result<Import> refused = read_msccl_xml(three_before_one(), "t", options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().error_class, ErrorClass::usage);
    EXPECT_EQ(refused.error().to_string(),
              "the plan cuts axis 0 of X into 8 chunks; 12 rows are no multiple of that");
}

TEST(MscclXml, ClaimsAreKept) {
    const Import import = import_of(three_before_one(), 8);
    EXPECT_EQ(import.name, "test");
    EXPECT_EQ(import.claims[0], (std::pair<std::string, std::string>{"collective", "custom"}));
    EXPECT_EQ(import.claims[4], (std::pair<std::string, std::string>{"protocol", "Simple"}));
}

}  // namespace
}  // namespace syncopate::ingest
