#include "syncopate/ingest/sccl/sccl_json.hpp"

#include <gtest/gtest.h>

#include "ingest/imports.hpp"

namespace syncopate::ingest {
namespace {

using test::finding_texts;
using test::op_texts;
using test::rows;
using Texts = std::vector<std::string>;

/// Three ranks that gather three addresses by the given steps.
std::string gather(const std::string& steps, const std::string& triggers = "{}") {
    return R"({"sccl_type": "algorithm", "name": "test",
 "input_map": {"0": [0], "1": [1], "2": [2]}, "output_map": {"0": [0], "1": [1], "2": [0, 1, 2]},
 "collective": {"sccl_type": "collective", "name": "Gather", "nodes": 3, "triggers": )" +
           triggers + R"(},
 "steps": [)" +
           steps + "]}\n";
}
std::string step(const std::string& sends) {
    return R"({"sccl_type": "step", "rounds": 1, "sends": [)" + sends + "]}";
}

Import import_of(const std::string& text) {
    Result<Import> import = read_sccl_json(text, "t", rows(3));
    if (!import) throw std::runtime_error(import.error().to_string());
    return *std::move(import);
}

std::string error_of(const std::string& text) {
    const Result<Import> import = read_sccl_json(text, "t", rows(3));
    return import ? "no error" : import.error().to_string();
}

TEST(ScclJson, ASendFollowsTheOneThatBroughtItsChunkAndTheOneBeforeItOnItsLink) {
    const Import import = import_of(gather(step("[0, 0, 1], [1, 1, 2]") + ", " + step("[0, 1, 2]")));
    EXPECT_EQ(op_texts(import.plan), (Texts{"push 0->1 A[0:1] -> A[0:1]", "push 1->2 A[1:2] -> A[1:2]",
                                            "push 1->2 A[0:1] -> A[0:1] after 0:0 1:0"}));
    EXPECT_EQ(finding_texts(import), Texts{});
    EXPECT_EQ(import.origins[1][1], (Origin{4, "steps[1].sends[0]"}));
    EXPECT_EQ(import.plan.initial.size(), 3U);
    EXPECT_EQ(import.plan.final[2].chunk.region, (plan::Region{{0, 3}}));
}

TEST(ScclJson, WhatArrivesInTheSameStepArrivesTooLateUnlessTimesTellOtherwise) {
    const Texts findings = finding_texts(import_of(gather(step("[0, 0, 1], [1, 1, 2], [0, 1, 2]"))));
    ASSERT_FALSE(findings.empty());
    EXPECT_TRUE(findings[0].starts_with("t:4: rank 1 steps[0].sends[2] (op 1): early_read: ")) << findings[0];
    EXPECT_EQ(finding_texts(import_of(gather(step("[0, 1, 2, 9, 0], [0, 0, 1, 5, 0], [1, 1, 2, 5, 0]")))),
              Texts{});
}

TEST(ScclJson, AChunkThatNeverComesIsFound) {
    const Texts findings = finding_texts(import_of(gather(step("[1, 1, 2]"))));
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0], "t: rank 2: final_not_reached: final[2]: A[0:1] never arrives");
}

TEST(ScclJson, ASendToWhereTheChunkIsAlreadyIsLeftOut) {
    const Import import = import_of(gather(step("[0, 0, 2], [1, 1, 2], [0, 0, 2]")));
    EXPECT_EQ(op_texts(import.plan).size(), 2U);
    EXPECT_EQ(import.warnings, Texts{"1 sends bring a chunk to where it is already, and are left out"});
}

TEST(ScclJson, APipelinedInstanceIsNotTaken) {
    const auto with = [](const std::string& pipeline) {
        std::string text = gather(step("[0, 0, 2], [1, 1, 2]"));
        text.insert(1,
                    R"("instance": {"sccl_type": "instance", "steps": 1, "pipeline": )" + pipeline + "}, ");
        return error_of(text);
    };
    for (const char* unset : {"null", "0", "false"}) EXPECT_EQ(with(unset), "no error");
    EXPECT_EQ(
        with("2"),
        "t:1:14: instance is pipelined: its steps run for one part of the data after another, which is not "
        "taken");
}

TEST(ScclJson, WhatIsNotTakenIsNamedByItsPath) {
    EXPECT_EQ(error_of(gather(step("[0, 0, 3]"))), "t:4:64: steps[0].sends[0][2] is 3; expected 0 to 2");
    EXPECT_EQ(error_of(gather(step("[0, 1, 1]"))), "t:4:57: steps[0].sends[0] sends from a rank to itself");
    EXPECT_EQ(error_of(gather(step("[0, 1]"))), "t:4:57: steps[0].sends[0] has 2 numbers; expected 3 or 5");
    EXPECT_NE(error_of(gather("", R"({"0": 1})")).find("algorithms that reduce are not taken"),
              std::string::npos);
    EXPECT_NE(error_of(gather("", R"([[0, 1]])")).find("algorithms that reduce are not taken"),
              std::string::npos);
    EXPECT_NE(error_of(R"({"sccl_type": "algorithm"})").find("lacks"), std::string::npos);
    std::string text = gather(step("[0, 0, 2]"));
    text.replace(text.find("\"1\": [1]"), 8, "\"7\": [1]");
    EXPECT_EQ(error_of(text), "t:2:26: input_map has the key \"7\"; expected the ranks 0 to 2");
}

}  // namespace
}  // namespace syncopate::ingest
