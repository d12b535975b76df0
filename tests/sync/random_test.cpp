// The checker against one that tries everything, on random chains.
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "chains.hpp"
#include "exhaustive.hpp"
#include "random_chains.hpp"

namespace syncopate::sync::test {
namespace {

/// How many chains were judged alike, by the kinds of findings ("": none).
using Counts = std::map<std::string, std::int32_t>;

void compare(std::uint64_t seed, Counts& counts) {
    const RandomChain random = random_chain(seed);
    const Result<Chain> chain = chain_from_json(random.text, "chain.json");
    ASSERT_TRUE(chain.ok()) << chain.error().to_string() << "\n" << random.text;
    const Verdict verdict = check(*chain);
    if (kinds(verdict) == std::vector<std::string>{"malformed"}) {
        ++counts["malformed"];
        return;
    }
    const std::int32_t calls = chain->calls == Chain::Calls::overlapped ? 3 : 2;
    constexpr std::size_t kMostStates = 300'000;
    const Tried tried = try_everything(*chain, verdict.synchronization, random.touched, calls, kMostStates);
    if (!tried.complete) {
        ++counts["left out"];
        return;
    }
    std::vector<std::string> expected;
    if (tried.deadlock) expected.emplace_back("deadlock");
    if (tried.early_read) expected.emplace_back("early_read");
    if (tried.overwrite) expected.emplace_back("overwrite");
    EXPECT_EQ(kinds(verdict), expected) << "seed " << seed << "\n" << random.text;
    if (random.all_automatic && calls == 2) {
        EXPECT_FALSE(tried.deadlock || tried.early_read) << "seed " << seed << "\n" << random.text;
    }
    ++counts[fmt::format("{}", fmt::join(expected, " "))];
}

void compare_many(std::uint64_t first, std::uint64_t count) {
    Counts counts;
    for (std::uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed)
        compare(seed, counts);
    // A comparison in which one outcome never comes would say little.
    for (const char* kind : {"", "deadlock", "early_read", "overwrite"})
        EXPECT_GT(counts[kind], static_cast<std::int32_t>(count / 200)) << kind;
    EXPECT_LT(counts["left out"], static_cast<std::int32_t>(count / 20));
}

TEST(RandomChains, AreJudgedAsTryingEverythingJudgesThem) { compare_many(1, 800); }

TEST(RandomChains, SweepAreJudgedAsTryingEverythingJudgesThem) { compare_many(100'000, 20'000); }

}  // namespace
}  // namespace syncopate::sync::test
