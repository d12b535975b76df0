// What a stage's kernel reads, word by word.
#include "syncopate/sync/tables.hpp"

#include "chains.hpp"

namespace syncopate::sync::test {
namespace {

using Words = std::vector<std::uint32_t>;

Words words(const StageTable& table, std::uint32_t at, std::size_t count) {
    const auto first = table.words.begin() + at;
    return {first, first + static_cast<std::ptrdiff_t>(count)};
}

TEST(Tables, HoldOrderWaitsAndPostsOfEachTile) {
    const Result<Chain> chain =
        chain_from_json(R"({"schema": "syncopate.chain/1", "tensors": {"T": [2, 2], "U": [2]},
        "stages": [{"name": "a", "grid": [2, 2], "order": "transposed", "writes": {"T": ["y", "x"]}},
                   {"name": "b", "grid": [2], "reads": {"T": ["x", ":"]}, "writes": {"U": ["x"]}}]})",
                        "chain.json");
    ASSERT_TRUE(chain.ok());
    const Verdict verdict = check(*chain);
    const Tables tables = make_tables(*chain, verdict.synchronization);
    EXPECT_EQ(tables.num_semaphores, 2U);

    const StageTable& a = tables.stages[0];
    EXPECT_EQ(words(a, 0, 4), (Words{0, 2, 1, 3}));
    EXPECT_EQ(words(a, a.arguments.posts_at, 5), (Words{0, 1, 2, 3, 4}));
    EXPECT_EQ(words(a, a.arguments.posted_at, 4), (Words{0, 0, 1, 1}));  // by row
    EXPECT_EQ(a.arguments.draws, 4U);

    const StageTable& b = tables.stages[1];
    EXPECT_EQ(b.inputs, std::vector<std::string>{"T"});
    EXPECT_EQ(words(b, b.arguments.waits_at, 3), (Words{0, 1, 2}));
    EXPECT_EQ(words(b, b.arguments.entries_at, 8),
              (Words{0, 2, 2, 0, 1, 2, 2, 0}));  // semaphore, count, posts, lag
    EXPECT_EQ(words(b, b.arguments.posts_at, 3), (Words{0, 0, 0}));
}

TEST(Tables, NumberGuardsAfterInputs) {
    const Result<Chain> chain = chain_from_json(
        products("", R"(, "guards": {"Y": "auto"})", R"(, "calls": "overlapped")"), "chain.json");
    ASSERT_TRUE(chain.ok());
    const Verdict verdict = check(*chain);
    const Tables tables = make_tables(*chain, verdict.synchronization);
    const StageTable& up = tables.stages[0];
    EXPECT_EQ(up.inputs, std::vector<std::string>{"guard of Y"});
    EXPECT_EQ(words(up, up.arguments.entries_at, 4)[3], 1U);  // the lag
}

}  // namespace
}  // namespace syncopate::sync::test
