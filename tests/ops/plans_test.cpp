// The plans of operators, and what strategies of them are refused for. tests/ops/golden/plans.tsv has a line for
// each: problem, strategy, the axis of x, whether what comes is kept, and what the plan's JSON comes to (FNV-1a
// of 64 bits), or the objection.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "syncopate/ops/operators.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/json/json.hpp"

namespace syncopate::ops {
namespace {

std::string digest(const std::string& text) {
    std::uint64_t hash = 14695981039346656037U;
    for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211U;
    return fmt::format("{:016x}", hash);
}

Problem problem_of(const std::string& spec) {
    const Result<Problem> problem = parse_problem(spec);
    EXPECT_TRUE(problem) << problem.error().to_string();
    return *problem;
}

TEST(OperatorPlans, AreThoseThatTheyWere) {
    std::ifstream file(std::string(SYNCOPATE_SOURCE_DIR) + "/tests/ops/golden/plans.tsv");
    int lines = 0;
    for (std::string line; std::getline(file, line); ++lines) {
        std::vector<std::string> words;
        std::istringstream parts(line);
        for (std::string word; std::getline(parts, word, '\t');) words.push_back(word);
        ASSERT_EQ(words.size(), 5U) << line;
        const Result<Strategy> strategy = strategy_from_json(words[1]);
        ASSERT_TRUE(strategy) << line;
        const Result<Outline> made =
            outline(problem_of(words[0]), *strategy, {.axis = std::stoi(words[2]), .kept = words[3] == "1"});
        EXPECT_EQ(made ? digest(plan::to_json(made->plan)) : made.error().message, words[4]) << line;
    }
    EXPECT_GT(lines, 100);
}

TEST(OperatorPlans, OfEveryRowAreSoundAndBindTheirOwnTensors) {
    for (const OperatorRow& row : operators()) {
        std::string spec = std::string(row.name) + ":";
        for (std::size_t i = 0; i < row.required; ++i)
            spec += fmt::format("{}={},", row.extents[i], row.extents[i] == "S" ? 1024 : 256);
        spec += row.name == "mlp_chain" ? "ranks=1" : "ranks=4";
        const Result<Outline> made = outline(problem_of(spec), {});
        ASSERT_TRUE(made) << row.name << ": " << made.error().to_string();
        EXPECT_TRUE(plan::check(made->plan).empty()) << row.name;
        const auto has = [&](const std::string& tensor) {
            return made->plan.find_tensor(tensor).has_value();
        };
        for (const Bindings& bindings : made->bindings)
            for (const auto& [param, tensor] : bindings) EXPECT_TRUE(has(tensor)) << row.name << " " << param;
        for (const std::string& tensor : {made->input, made->scales, made->output})
            EXPECT_TRUE(tensor.empty() || has(tensor)) << row.name << " " << tensor;
    }
}

TEST(OperatorPlans, SendScalesOfXBeforeX) {
    for (const char* op : {"all_gather_matmul", "all_to_all_matmul"}) {
        const Problem problem =
            problem_of(std::string(op) + ":M=64,N=128,K=256,dtype=fp8e4m3,scales=block,ranks=4");
        const Result<Outline> made = outline(problem, {});
        ASSERT_TRUE(made) << made.error().to_string();
        ASSERT_FALSE(made->scales.empty());
        const plan::Op& first = made->plan.ranks[1].front();
        EXPECT_EQ(made->plan.tensors[static_cast<std::size_t>(first.src.tensor)].name, made->scales) << op;
        EXPECT_EQ(made->bindings.front().count("scale_a_ptr"), 1U) << op;
    }
}

TEST(OperatorPlans, OfAnUnknownOperatorAreRefusedByItsName) {
    Problem problem = problem_of("matmul_all_reduce:M=64,N=64,K=64");
    problem.op = "matmul_scan";
    const Result<Outline> made = outline(problem, {});
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().message, "there is no operator \"matmul_scan\"");
}

}  // namespace
}  // namespace syncopate::ops
