// Partition IR: placements before and after become transfers, as few bytes as possible.
#include "syncopate/ingest/partition/partition_ir.hpp"

#include <random>
#include <string>

#include <gtest/gtest.h>

#include "syncopate/plan/model/region.hpp"

namespace syncopate::ingest {
namespace {

using Lines = std::vector<std::string>;

std::string program(const std::string& mesh, const std::string& tensor, const std::string& more = "") {
    return R"({"schema": "syncopate.partition/1", "mesh": )" + mesh + more + R"(, "tensors": {"A": )" +
           tensor + "}}";
}

Import import_of(const std::string& text) {
    Result<Import> import = import_partition(text, "p.json");
    EXPECT_TRUE(import) << import.error().to_string();
    return import ? *std::move(import) : Import{};
}

std::string error_of(const std::string& text) {
    const Result<Import> import = import_partition(text, "p.json");
    return import ? "no error" : import.error().to_string();
}

Lines findings(const plan::Plan& plan) {
    Lines lines;
    for (const plan::Finding& finding : plan::check(plan)) lines.push_back(finding.to_string());
    return lines;
}

std::int64_t bytes(const plan::Plan& plan) {
    std::int64_t sum = 0;
    for (const auto& ops : plan.ranks) {
        for (const plan::Op& op : ops) sum += plan.bytes(op.src);
    }
    return sum;
}

struct Known {
    const char* before;
    const char* after;
    const char* name;
    std::int64_t elements;  // that have to move, all ranks together
};

/// A tensor of 24 × 8 on node=2, gpu=4.
class KnownConversion : public testing::TestWithParam<Known> {};

TEST_P(KnownConversion, IsNamedVerifiesAndMovesNoMoreThanItMust) {
    const Import import =
        import_of(program(R"([["node", 2], ["gpu", 4]])",
                          R"({"shape": [24, 8], "dtype": "fp32", "before": )" +
                              std::string(GetParam().before) + R"(, "after": )" + GetParam().after + "}"));
    EXPECT_EQ(import.claims[0].second, GetParam().name);
    EXPECT_EQ(findings(import.plan), Lines{});
    EXPECT_EQ(bytes(import.plan), GetParam().elements * 4);
}

INSTANTIATE_TEST_SUITE_P(
    Partition, KnownConversion,
    testing::Values(Known{R"({"shard": [["gpu"], []]})", R"({"shard": [["gpu"], []]})", "nothing moves", 0},
                    Known{R"({"shard": [["gpu"], []]})", R"({"shard": [[], []]})",
                          "all_gather over gpu (axis 0)", 8 * 192 * 3 / 4},
                    Known{R"({"shard": [["node", "gpu"], []]})", R"({"shard": [[], []]})",
                          "all_gather over node, gpu (axis 0)", 8 * 192 * 7 / 8},
                    Known{R"({"shard": [["node", "gpu"], []]})", R"({"shard": [["node"], []]})",
                          "all_gather over gpu (axis 0)", 8 * 96 * 3 / 4},
                    Known{R"({"shard": [[], []]})", R"({"shard": [["node"], ["gpu"]]})",
                          "local slice over node (axis 0); local slice over gpu (axis 1)", 0},
                    Known{R"({"shard": [["gpu"], []]})", R"({"shard": [[], ["gpu"]]})",
                          "all_to_all over gpu (axis 0 to 1)", 8 * 48 * 3 / 4},
                    Known{R"({"shard": [["gpu", "node"], []]})", R"({"shard": [["node", "gpu"], []]})",
                          "permutation of shards", 6 * 24},
                    Known{R"({"shard": [[], []], "partial": {"over": ["gpu"], "reduce": "sum"}})",
                          R"({"shard": [["gpu"], []]})", "reduce_scatter over gpu (axis 0)", 2 * 192 * 3},
                    Known{R"({"shard": [[], []], "partial": {"over": ["gpu"], "reduce": "max"}})",
                          R"({"shard": [[], []]})", "all_reduce over gpu", 2 * 192 * 3 * 2},
                    Known{R"({"shard": [["node"], []], "partial": {"over": ["gpu"], "reduce": "sum"}})",
                          R"({"shard": [[], ["gpu"]]})",
                          "all_gather over node (axis 0); reduce_scatter over gpu (axis 1)",
                          2 * 96 * 3 + 8 * 24},
                    Known{R"({"shard": [[], []], "partial": {"over": ["node", "gpu"], "reduce": "sum"}})",
                          R"({"shard": [["gpu"], []], "partial": {"over": ["node"], "reduce": "sum"}})",
                          "reduce_scatter over gpu (axis 0)", 2 * 192 * 3}));

TEST(Partition, RandomConversionsOnSeveralMeshAxesWithUnevenShardsVerify) {
    std::mt19937 random(7);
    const auto up_to = [&](int n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
    for (int round = 0; round < 500; ++round) {
        PartitionProgram made;
        const std::int32_t axes = 1 + up_to(3);
        for (std::int32_t i = 0; i < axes; ++i)
            made.mesh.axes.push_back({std::string(1, static_cast<char>('a' + i)), 1 + up_to(4)});
        made.uneven = up_to(2) == 0 ? Uneven::ceiling : Uneven::balanced;
        Conversion conversion;
        conversion.tensor = {"T", {1 + up_to(13), 1 + up_to(9), 1 + up_to(5)}, plan::DType::fp32};
        conversion.split = 1 + up_to(3);
        conversion.before.shard.resize(3);
        conversion.after.shard.resize(3);
        for (std::int32_t axis = 0; axis < axes; ++axis) {
            const std::int32_t from = up_to(5);  // 0-2: cut; 3: partial; 4: replicas
            const std::int32_t to = up_to(5);
            if (from < 3) conversion.before.shard[static_cast<std::size_t>(from)].push_back(axis);
            if (to < 3) conversion.after.shard[static_cast<std::size_t>(to)].push_back(axis);
            if (from == 3) conversion.before.partial.push_back(axis);
            if (from == 3 && to == 3) conversion.after.partial.push_back(axis);
        }
        if (!conversion.before.partial.empty()) conversion.before.reduce = plan::Reduce::sum;
        if (!conversion.after.partial.empty()) conversion.after.reduce = plan::Reduce::sum;
        made.conversions.push_back(conversion);
        const Result<plan::Plan> plan = plan_of(made);
        ASSERT_TRUE(plan) << plan.error().to_string();
        ASSERT_EQ(findings(*plan), Lines{})
            << "round " << round << ": " << conversion_name(made.mesh, conversion);
    }
}

TEST(Partition, UnevenShardsFollowTheRuleThatIsNamed) {
    const plan::Mesh mesh{{{"gpu", 4}}};
    const plan::Tensor tensor{"A", {10}, plan::DType::fp32};
    const Placement cut{{{0}}, {}, plan::Reduce::none};
    std::vector<std::int64_t> ceiling;
    std::vector<std::int64_t> balanced;
    for (std::int32_t rank = 0; rank < 4; ++rank) {
        ceiling.push_back(region_of(mesh, tensor, cut, rank, Uneven::ceiling)[0].size());
        balanced.push_back(region_of(mesh, tensor, cut, rank, Uneven::balanced)[0].size());
    }
    EXPECT_EQ(ceiling, (std::vector<std::int64_t>{3, 3, 3, 1}));
    EXPECT_EQ(balanced, (std::vector<std::int64_t>{3, 3, 2, 2}));
}

TEST(Partition, WhatLiesInTheSameNodeIsTakenFromThere) {
    // Held by gpu 0 of both nodes' rings: every rank takes from its own node.
    const Import import = import_of(program(R"([["node", 2], ["gpu", 4]])",
                                            R"({"shape": [8], "dtype": "fp32", "before": {"shard": [["gpu"]]},
                                                "after": {"shard": [[]]}})"));
    for (std::int32_t rank = 0; rank < 8; ++rank) {
        for (const plan::Op& op : import.plan.ranks[static_cast<std::size_t>(rank)])
            EXPECT_EQ(op.peer / 4, rank / 4);
    }
}

TEST(Partition, SplitCutsEachPieceIntoChunksAndProducedSaysThatAKernelWritesIt) {
    const Import import = import_of(program(R"([["gpu", 2]])", R"({"shape": [8], "dtype": "fp32", "split": 2,
        "produced": true, "before": {"shard": [["gpu"]]}, "after": {"shard": [[]]}})"));
    EXPECT_EQ(import.plan.ranks[0].size(), 2U);
    EXPECT_EQ(import.plan.initial.size(), 0U);
    EXPECT_EQ(import.plan.produced.size(), 2U);
    EXPECT_EQ(findings(import.plan), Lines{});
}

/// "p.json:1:C: ", the column of `marker` in the text.
std::string at(const std::string& text, const std::string& marker) {
    return "p.json:1:" + std::to_string(text.find(marker) + 1) + ": ";
}

std::string convert(const std::string& before, const std::string& after, const std::string& more = "") {
    return program(R"([["gpu", 2]])",
                   R"({"shape": [8], "dtype": "fp32", "before": )" + before + R"(, "after": )" + after + "}",
                   more);
}

TEST(PartitionError, NamesThePathAndThePlaceOfWhatIsWrong) {
    const std::string replicas = R"({"shard": [[]]})";
    EXPECT_EQ(error_of("{"),
              "p.json:1:2: not JSON: parsing object key - unexpected end of input; expected string literal");
    std::string text = convert(R"({"shard": [["gp"]]})", replicas);
    EXPECT_EQ(error_of(text),
              at(text, R"("gp")") +
                  R"(tensors.A.before.shard[0][0] is "gp", no axis of the mesh; did you mean "gpu"?)");
    text = convert(R"({"shard": [["gpu"], []]})", replicas);
    EXPECT_EQ(error_of(text),
              at(text, R"([["gpu"],)") + "tensors.A.before.shard has 2 entries; the tensor has 1 axes");
    text = convert(replicas, R"({"shard": [[]], "partial": {"over": ["gpu"], "reduce": "sum"}})");
    EXPECT_EQ(error_of(text),
              at(text, R"({"shard": [[]], "partial")") +
                  "tensors.A.after is partial over mesh axis \"gpu\" and \"before\" is not; contributions "
                  "have to be computed, moving data does not make them");
    text = convert(R"({"shard": [[]], "partial": {"over": ["gpu"], "reduce": "avg"}})", replicas);
    EXPECT_EQ(error_of(text),
              at(text, R"("avg")") +
                  R"(tensors.A.before.partial.reduce is "avg"; a plan can reduce by "sum" and "max")");
    text = convert(R"({"shard": [["gpu"]], "partial": {"over": ["gpu"], "reduce": "sum"}})", replicas);
    EXPECT_EQ(error_of(text),
              at(text, R"(["gpu"], "reduce")") +
                  R"(tensors.A.before.partial.over names mesh axis "gpu", along which the tensor is cut)");
    text = program(R"([["gpu", 2]])",
                   R"({"shape": [8, 8], "dtype": "fp32", "before": {"shard": [["gpu"], [ "gpu"]]},
                                          "after": {"shard": [[], []]}})");
    EXPECT_EQ(error_of(text),
              at(text, R"([ "gpu"])") +
                  R"(tensors.A.before.shard[1] cuts along mesh axis "gpu", along which another axis is cut)");
    text = convert(replicas, replicas, R"(, "uneven": "torch")");
    EXPECT_EQ(error_of(text),
              at(text, R"("torch")") +
                  R"(uneven is "torch", not a known way to cut; expected one of ceiling, balanced)");
    text = program("[ ]",
                   R"({"shape": [8], "dtype": "fp32", "before": {"shard": [[]]}, "after": {"shard": [[]]}})");
    EXPECT_EQ(error_of(text), at(text, "[ ]") + "mesh is empty; it needs at least one [name, size] pair");
}

TEST(PartitionError, OptionsForWhatTheFileSaysItselfAreRefused) {
    const std::string text = convert(R"({"shard": [["gpu"]]})", R"({"shard": [[]]})");
    const auto with = [&](const auto& set) {
        ImportOptions options;
        set(options);
        const Result<Import> import = import_plan(text, "p.json", Format::automatic, options);
        return import ? "no error" : import.error().to_string();
    };
    EXPECT_EQ(with([](ImportOptions&) {}), "no error");
    EXPECT_EQ(with([](ImportOptions& o) { o.tensor = plan::Tensor{"B", {8}}; }),
              "p.json: is partition, which says itself what its tensors are: leave out --tensor");
    EXPECT_EQ(with([](ImportOptions& o) { o.ranks = 4; }),
              "p.json: is partition, which says itself how many ranks there are: leave out --ranks");
    EXPECT_EQ(with([](ImportOptions& o) { o.module = "m"; }),
              "p.json: is partition, which has no modules: leave out --module");
}

TEST(PartitionError, APlanWithTooManyOpsIsRefused) {
    EXPECT_EQ(error_of(program(R"([["gpu", 4096]])", R"({"shape": [4096, 65536], "dtype": "int8",
                                 "before": {"shard": [["gpu"], []]}, "after": {"shard": [[], []]}})")),
              "p.json: tensors.A: the plan would have more than 1048576 ops");
}

TEST(Partition, AnAllReduceOverManyRanksHasFewerEdgesThanTwiceItsOps) {
    const Import import = import_of(program(R"([["gpu", 64]])", R"({"shape": [640], "dtype": "fp32",
        "before": {"shard": [[]], "partial": {"over": ["gpu"], "reduce": "sum"}}, "after": {"shard": [[]]}})"));
    EXPECT_EQ(findings(import.plan), Lines{});
    std::size_t ops = 0;
    std::size_t edges = 0;
    for (const auto& list : import.plan.ranks) {
        ops += list.size();
        for (const plan::Op& op : list) edges += op.after.size();
    }
    EXPECT_EQ(ops, 2U * 64 * 63);
    EXPECT_LT(edges, 2 * ops);
}

}  // namespace
}  // namespace syncopate::ingest
