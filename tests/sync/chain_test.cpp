// Chains as text: what is refused, and where.
#include "chains.hpp"
#include "syncopate/io.hpp"

namespace syncopate::sync::test {
namespace {

std::string error_of(const std::string& text) {
    const Result<Chain> chain = chain_from_json(text, "chain.json");
    return chain ? std::string() : chain.error().to_string();
}

TEST(ChainJson, NamesTheLineOfWhatItRefuses) {
    EXPECT_EQ(error_of(products(R"(, "waits": {"Y": "rows"})")),
              "chain.json:6:76: stages[1].waits.Y is \"rows\"; did you mean \"row\"?");
}

TEST(ChainJson, RefusesWhatMakesNoSense) {
    const auto stage = [](const std::string& members) {
        return R"({"schema": "syncopate.chain/1", "tensors": {"T": [6, 2]}, "stages": [{"name": "a", )" +
               members + "}]}";
    };
    for (const auto& [members, message] : std::vector<std::pair<std::string, std::string>>{
             {R"("grid": [])", "is empty; it needs one to three counts"},
             {R"("grid": [0])", "is 0; expected 1 to 1048576"},
             {R"("grid": [1048576, 2])", "is more than 1048576 blocks"},
             {R"("grid": [2], "reads": {"U": ["x", "x"]})", "names \"U\", which is not among the tensors"},
             {R"("grid": [2], "reads": {"T": ["x"]})", "has 1 ranges; \"T\" has 2 axes"},
             {R"("grid": [2], "reads": {"T": ["x:", "(x"]})", "is not a range"},
             {R"("grid": [2], "waits": {"T": "row"})", "which the stage does not read"},
             {R"("grid": [2], "early": ["T"])", "which the stage does not read"},
             {R"("grid": [2], "adds": ["T"])", "names \"T\", which the stage does not write"},
             {R"("grid": [2], "writes": {"T": ["x", "0"]}, "adds": "T")", "a list of tensors"},
             {R"("grid": [2], "order": {"order": "custom", "tiles": [0, 0]})",
              "is 0, which the list has already"},
             {R"("grid": [2], "order": {"order": "custom", "tiles": [0]})", "has 1 of 2 tiles"},
             {R"("grid": [2], "order": {"order": "identity", "rows": 2})",
              "has \"rows\" without \"grouped\""},
             {R"("grid": [2], "reads": {"T": ["x", "x"]}, "waits": {"T": {"policy": "custom"}})",
              "lacks \"semaphore\""},
             {R"("grid": [2], "reads": {"T": ["x", "x"]}, "waits": {"T": {"policy": "row", "stride": 2}})",
              "has \"stride\", which belongs to \"strided\""},
             {R"("grid": [2], "reads": {"T": ["x", "x"]}, "waits": {"T": {"policy": "none", "count": 2}})",
              "has \"count\", and \"none\" awaits nothing"},
         }) {
        EXPECT_NE(error_of(stage(members)).find(message), std::string::npos) << members << "\n"
                                                                             << error_of(stage(members));
    }
}

TEST(ChainJson, NamesTheBlockOfARangeThatCannotBe) {
    EXPECT_EQ(findings(R"({"schema": "syncopate.chain/1", "tensors": {"T": [6]}, "stages": [
        {"name": "a", "grid": [3], "reads": {"T": ["6 // x"]
}
}]
})")
                  .substr(0, 50),
              "stage a: malformed: stage a, tensor T, block (0, 0");
}

TEST(Generate, FindsThePolicyThatTheFootprintsAskFor) {
    const auto found = [](const std::string& name) {
        const Result<std::string> text =
            read_file(std::string(SYNCOPATE_SOURCE_DIR) + "/examples/chains/" + name);
        const Result<Chain> chain = chain_from_json(*text, name);
        EXPECT_TRUE(chain.ok());
        Chain automatic = *chain;
        for (ChainStage& stage : automatic.stages) stage.waits.clear();
        EXPECT_EQ(check(*chain).findings.size(), 0U) << name;
        const Verdict verdict = check(automatic);
        EXPECT_EQ(verdict.findings.size(), 0U) << name;
        std::vector<std::string> policies;
        for (const Link& link : verdict.synchronization.links) policies.emplace_back(name_of(link.found));
        return policies;
    };
    using Names = std::vector<std::string>;
    EXPECT_EQ(found("gpt3_mlp.json"), Names{"row"});
    EXPECT_EQ(found("llama_mlp.json"), (Names{"strided", "row"}));
    EXPECT_EQ(found("attention.json"), (Names{"custom", "row"}));  // K and V of a head and a row together
    EXPECT_EQ(found("convolutions.json"), Names{"batched"});       // one tile is a row of an image
}

TEST(Generate, OrdersAConsumerByWhatIsMadeFirst) {
    // The producer runs its columns first, and the consumer reads columns.
    const Verdict verdict =
        judged(R"({"schema": "syncopate.chain/1", "tensors": {"T": [4, 3], "U": [3]}, "stages": [
        {"name": "a", "grid": [3, 4], "order": "auto", "writes": {"T": ["y", "x"]}},
        {"name": "b", "grid": [3], "order": "auto", "reads": {"T": [":", "2-x"]}, "writes": {"U": ["x"]}}]})");
    EXPECT_TRUE(verdict.ok());
    EXPECT_EQ(verdict.synchronization.order_kinds[0], OrderKind::transposed);
    EXPECT_EQ(verdict.synchronization.orders[1], (std::vector<std::int32_t>{2, 1, 0}));
}

}  // namespace
}  // namespace syncopate::sync::test
