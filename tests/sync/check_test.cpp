#include "chains.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cpu_time.hpp"

namespace syncopate::sync::test {
namespace {

using Kinds = std::vector<std::string>;

TEST(Check, AcceptsAConsumerThatAwaitsItsRow) {
    EXPECT_EQ(findings(products(R"(, "waits": {"Y": {"policy": "row"}})")), "");
}

TEST(Check, AcceptsEveryNamedPolicyThatGroupsWhatIsNeeded) {
    for (const char* policy : {"tile", "row", "strided", "consecutive", "halo", "batched", "auto"})
        EXPECT_EQ(findings(products(std::string(R"(, "waits": {"Y": ")") + policy + "\"}")), "") << policy;
}

TEST(Check, NamesTheTileThatReadsTooEarly) {
    EXPECT_EQ(
        findings(products(R"(, "waits": {"Y": "none"})")),
        "stage down block (0, 0, 0): early_read: it reads Y[0:128, 0:128] before block (0, 0, 0) of stage up "
        "has written it; it awaits nothing of stage up (and 7 more blocks alike)\n");
}

TEST(Check, RefusesACountThatSomePostsFulfil) {
    EXPECT_EQ(
        findings(products(R"(, "waits": {"Y": {"policy": "custom", "semaphore": "y", "count": 7}})")),
        "stage down block (0, 0, 0): early_read: it reads Y[0:128, 0:128] before block (0, 0, 0) of stage up "
        "has written it; it awaits 7 of the 8 posts on semaphore 0 (and 7 more blocks alike)\n");
}

TEST(Check, RefusesACountThatNobodyFulfils) {
    EXPECT_EQ(kinds(products(R"(, "waits": {"Y": {"policy": "custom", "semaphore": "y", "count": 9}})")),
              Kinds{"deadlock"});
}

TEST(Check, RefusesAWaitForASemaphoreThatNobodyPosts) {
    EXPECT_EQ(kinds(products(R"(, "waits": {"Y": {"policy": "custom", "semaphore": "y", "awaits": "y+2"}})")),
              (Kinds{"deadlock"}));
}

TEST(Check, RefusesOneRowWhereATileSpansTwo) {
    const std::string chain = R"({"schema": "syncopate.chain/1", "tensors": {"Y": [512, 256]}, "stages": [
        {"name": "up", "grid": [2, 4], "writes": {"Y": ["128*y:128*y+128", "128*x:128*x+128"]}},
        {"name": "down", "grid": [1, 2], "reads": {"Y": ["256*y:256*y+256", ":"]}, "waits": {"Y": POLICY}}]})";
    const auto with = [&](const std::string& policy) {
        std::string text = chain;
        return text.replace(text.find("POLICY"), 6, policy);
    };
    EXPECT_EQ(kinds(with(R"({"policy": "custom", "semaphore": "y", "awaits": "2*y"})")), Kinds{"early_read"});
    EXPECT_EQ(findings(with(R"({"policy": "custom", "semaphore": "y", "awaits": "2*y:2*y+2"})")), "");
    EXPECT_EQ(findings(with(R"("row")")), "");
}

TEST(Check, AcceptsATransitiveWait) {
    // `last` reads what `first` wrote, and waits only for `middle`, which waited for it.
    const std::string chain = R"({"schema": "syncopate.chain/1", "tensors": {"A": [4], "B": [4]}, "stages": [
        {"name": "first", "grid": [4], "writes": {"A": ["x"]}},
        {"name": "middle", "grid": [4], "reads": {"A": ["x"]}, "writes": {"B": ["x"]}},
        {"name": "last", "grid": [4], "reads": {"A": ["x"], "B": ["x"]}, "waits": {"A": "none", "B": "tile"}}]})";
    EXPECT_EQ(findings(chain), "");
}

TEST(Check, RefusesWaitsWhereNothingOrdersTheStages) {
    EXPECT_EQ(kinds(products("", "", R"(, "launch": "any")")), Kinds{"deadlock"});
}

TEST(Check, RefusesABufferThatALaterStageOverwrites) {
    const std::string chain = R"({"schema": "syncopate.chain/1", "tensors": {"A": [4], "B": [4]}, "stages": [
        {"name": "first", "grid": [4], "reads": {"A": ["x-1:x+2"]}, "writes": {"B": ["x"]}},
        {"name": "second", "grid": [4], "reads": {"B": ["READS"]}, "writes": {"A": ["x"]}}]})";
    const auto with = [&](const std::string& reads) {
        std::string text = chain;
        return text.replace(text.find("READS"), 5, reads);
    };
    // Two convolutions that share two buffers: whoever reads A[x] is awaited for its own B.
    EXPECT_EQ(findings(with("x-1:x+2")), "");
    EXPECT_EQ(kinds(with("x")), Kinds{"overwrite"});
}

TEST(Check, RefusesOverlappedCallsWithoutGuards) {
    // The next call writes what is still read, and its posts count for those of this call that are missing.
    EXPECT_EQ(kinds(products("", "", R"(, "calls": "overlapped")")), (Kinds{"early_read", "overwrite"}));
}

TEST(Check, AcceptsOverlappedCallsWithGuards) {
    EXPECT_EQ(findings(products("", R"(, "guards": {"Y": "auto"})", R"(, "calls": "overlapped")")), "");
}

TEST(Check, RefusesAGuardThatAwaitsMoreThanComes) {
    EXPECT_EQ(kinds(products("", R"(, "guards": {"Y": {"policy": "row", "count": 9}})")), Kinds{"malformed"});
}

TEST(Check, RefusesAnEarlyInputThatTheChainWrites) {
    EXPECT_EQ(kinds(products(R"(, "early": ["Y"])")), Kinds{"early_read"});
}

TEST(Check, RefusesTilesOfOneStageThatAwaitLaterOnes) {
    const std::string chain = R"({"schema": "syncopate.chain/1", "tensors": {"A": [4]}, "stages": [
        {"name": "scan", "grid": [4]ORDER, "reads": {"A": ["x-1"]}, "writes": {"A": ["x"]}, "waits": {"A": WAITS}}]})";
    const auto with = [&](const std::string& order, const std::string& waits) {
        std::string text = chain;
        text.replace(text.find("ORDER"), 5, order);
        return text.replace(text.find("WAITS"), 5, waits);
    };
    EXPECT_EQ(findings(with("", R"("auto")")), "");
    EXPECT_EQ(kinds(with(R"(, "tickets": false)", R"("auto")")), Kinds{"deadlock"});
    EXPECT_EQ(kinds(with("", R"_({"policy": "custom", "semaphore": "x", "awaits": "min(x+1, 3)"})_")),
              Kinds{"deadlock"});
}

TEST(Check, TakesTheTilesOfAStageThatReadsItsOwnOutputAsOneAfterTheOther) {
    const std::string chain = R"({"schema": "syncopate.chain/1", "tensors": {"A": [4]}, "stages": [
        {"name": "sweep", "grid": [4], "reads": {"A": ["READS"]}, "writes": {"A": ["x"]}, "waits": {"A": "WAITS"}}]})";
    const auto with = [&](const std::string& reads, const std::string& waits) {
        std::string text = chain;
        text.replace(text.find("READS"), 5, reads);
        return text.replace(text.find("WAITS"), 5, waits);
    };
    // Earlier tiles are awaited; what later ones write is read as it was before.
    for (const char* reads : {"x-1", "x-1:x+2", ":"}) EXPECT_EQ(findings(with(reads, "auto")), "") << reads;
    // A row is complete when the tile has run that would wait for it.
    EXPECT_EQ(kinds(with(":", "row")), Kinds{"deadlock"});
    EXPECT_EQ(kinds(with("x-1", "none")), Kinds{"early_read"});
    // Nothing holds the next tile up while this one reads what it overwrites.
    EXPECT_EQ(kinds(with("x+1", "auto")), Kinds{"overwrite"});
}

/// A product whose K is split over z, without and with `adds`.
std::string split_product(const std::string& more) {
    return R"({"schema": "syncopate.chain/1", "tensors": {"A": [64, 64], "C": [64, 64]}, "stages": [
        {"name": "split", "grid": [2, 1, 2], "reads": {"A": [":", ":"]},
         "writes": {"C": [":", "32*x:32*x+32"]})" +
           more + "}]}";
}

TEST(Check, NamesTwoTilesOfOneStageThatWriteTheSameElement) {
    EXPECT_EQ(
        findings(split_product("")),
        "stage split block (0, 0, 1): overwrite: it writes C[0:64, 0:32], as block (0, 0, 0) of stage split "
        "does, and nothing orders the two: what is left depends on which one comes last; where both add to "
        "it, name C among the stage's \"adds\" (and 1 more blocks alike)\n");
    EXPECT_EQ(findings(split_product(R"(, "adds": ["C"])")), "");
}

TEST(Check, RefusesTilesOfOneStageWhoseOutputsOverlapByAnElement) {
    const auto stage = [](const std::string& grid, const std::string& writes, const std::string& more = "") {
        return R"({"schema": "syncopate.chain/1", "tensors": {"A": [8], "B": [8]}, "stages": [
            {"name": "only", "grid": )" +
               grid + R"(, "reads": {"B": [":"]}, "writes": {"A": )" + writes + "}" + more + "}]}";
    };
    const Kinds race{"overwrite"};
    EXPECT_EQ(findings(stage("[4]", R"(["2*x:2*x+2"])")), "");
    EXPECT_EQ(kinds(stage("[4]", R"(["2*x:2*x+3"])")), race) << "the first one of the next";
    EXPECT_EQ(kinds(stage("[4]", R"(["2*x-1:2*x+2"])")), race) << "the last one of the one before";
    EXPECT_EQ(kinds(stage("[5]", R"(["x:x+1"])")), Kinds{});
    EXPECT_EQ(kinds(stage("[5]", R"_(["min(x, 3)"])_")), race) << "the last two";
    EXPECT_EQ(kinds(stage("[4, 2]", R"(["2*x:2*x+2"])")), race) << "every y";
    EXPECT_EQ(kinds(stage("[4, 2]", R"(["x+4*y"])")), Kinds{});
    EXPECT_EQ(kinds(stage("[8]", R"(["x%4"])")), race);
    EXPECT_EQ(kinds(stage("[1]", R"([[":"], [":"]])")), Kinds{}) << "one tile twice";
    EXPECT_EQ(kinds(stage("[2]", R"([["4*x:4*x+4"], ["7"]])")), race) << "one place for all";
    EXPECT_EQ(kinds(stage("[4]", R"(["2*x:2*x+3"])", R"(, "tickets": false)")), race);
    EXPECT_EQ(kinds(stage("[4]", R"(["2*x:2*x+3"])", R"(, "order": "transposed")")), race);
}

TEST(Check, AcceptsTilesOfOneStageThatAwaitWhomTheyOverwrite) {
    const std::string chain = R"({"schema": "syncopate.chain/1", "tensors": {"A": [8]}, "stages": [
        {"name": "sum", "grid": [4], "reads": {"A": [":"]}, "writes": {"A": [":"]}, "waits": {"A": "WAITS"}}]})";
    const auto with = [&](const std::string& waits) {
        std::string text = chain;
        return text.replace(text.find("WAITS"), 5, waits);
    };
    EXPECT_EQ(findings(with("auto")), "") << "one after the other";
    EXPECT_EQ(kinds(with("none")), (Kinds{"early_read", "overwrite"}));
}

TEST(Check, RefusesARangeThatIsReversedOrNowhereInTheTensor) {
    const auto reading = [](const std::string& range) {
        return R"({"schema": "syncopate.chain/1", "tensors": {"A": [4], "B": [4]}, "stages": [
            {"name": "up", "grid": [4], "writes": {"A": ["x"]}},
            {"name": "down", "grid": [4], "reads": {"A": [")" +
               range + R"("]}, "writes": {"B": ["x"]}, "waits": {"A": "none"}}]})";
    };
    EXPECT_EQ(kinds(reading("x:x+1")), Kinds{"early_read"});
    EXPECT_EQ(findings(reading("x+1:x")),
              "stage down: malformed: stage down, tensor A, block (0, 0, 0): its range 1:0 is reversed\n");
    EXPECT_EQ(findings(reading("1000:2000")),
              "stage down: malformed: stage down, tensor A: in no block does its box hold an element of the "
              "tensor\n");
    EXPECT_EQ(kinds(reading("x+2")), Kinds{"early_read"}) << "some blocks read beyond it, as by masks";
}

TEST(Check, JudgesOrRefusesStagesThatReadAllOfALargeTensorQuickly) {
    const auto stages = [](int width, std::initializer_list<std::pair<const char*, const char*>> tensors) {
        std::string text =
            R"({"schema": "syncopate.chain/1", "tensors": {"A": [4096, 4096], "B": [4096, 4096], "C": [4096, 4096]}, "stages": [)";
        for (const auto& [read, written] : tensors) {
            if (text.back() == '}') text += ", ";
            text += R"({"name": "s)" + std::to_string(text.size()) + R"(", "grid": [)" +
                    std::to_string(width) + ", " + std::to_string(width) + R"(], "reads": {")" + read +
                    R"(": [":", ":"]}, "writes": {")" + written + R"(": ["y", "x"]}})";
        }
        return text + "]}";
    };
    const double before = ::syncopate::test::cpu_seconds();
    EXPECT_EQ(findings(stages(256, {{"A", "B"}, {"B", "C"}})), "");
    EXPECT_EQ(findings(stages(48, {{"A", "A"}, {"A", "A"}})), "");
    EXPECT_EQ(kinds(stages(256, {{"A", "A"}})), Kinds{"malformed"});
    EXPECT_LT(::syncopate::test::cpu_seconds() - before, 20);
}

TEST(Check, JudgesALargeChainQuickly) {
    std::string chain =
        R"({"schema": "syncopate.chain/1", "tensors": {"Y": [12288, 49152], "Z": [12288, 12288]},
      "stages": [{"name": "up", "grid": [384, 96], "writes": {"Y": ["128*y:128*y+128", "128*x:128*x+128"]}},
        {"name": "down", "grid": [96, 96], "reads": {"Y": ["128*y:128*y+128", ":"]},
         "writes": {"Z": ["128*y:128*y+128", "128*x:128*x+128"]}}]})";
    const double before = ::syncopate::test::cpu_seconds();
    EXPECT_EQ(findings(chain), "");
    EXPECT_LT(::syncopate::test::cpu_seconds() - before, 20);
}

/// What check says of the products' chain after `change`: that a program made, and no file.
std::string said_of(const std::function<void(Chain&)>& change) {
    Chain chain = chain_from_json(products(""), "chain.json").value();
    change(chain);
    const Verdict verdict = check(chain);
    if (verdict.findings.size() != 1) return fmt::format("{} findings", verdict.findings.size());
    return verdict.findings.front().to_string();
}

TEST(Check, RefusesWhatMakesNoSenseInAChainOfAProgram) {
    const auto order = [](OrderKind kind, std::int64_t rows, std::vector<std::int32_t> tiles) {
        return said_of([&](Chain& chain) { chain.stages[1].order = {kind, rows, std::move(tiles)}; });
    };
    const auto policy = [](const Policy& one) {
        return said_of([&](Chain& chain) { chain.stages[1].waits["Y"] = one; });
    };
    const std::string down = "stage down: malformed: ";
    EXPECT_EQ(order(OrderKind::grouped, 0, {}),
              down + "its order has groups of 0 rows; expected 1 to 1048576");
    EXPECT_EQ(order(OrderKind::custom, 8, {0, 1, 2}), down + "its order has 3 of 8 tiles");
    EXPECT_EQ(order(OrderKind::custom, 8, {0, 0, 1, 2, 3, 4, 5, 6}), down + "its order has tile 0 twice");
    EXPECT_EQ(order(OrderKind::custom, 8, {0, 1, 2, 3, 4, 5, 6, 8}),
              down + "its order has tile 8; there are 0 to 7");
    EXPECT_EQ(policy({.kind = PolicyKind::custom}),
              down + "it waits for Y by a custom policy without a semaphore");
    EXPECT_EQ(policy({.kind = PolicyKind::custom, .semaphore = affine::Expression()}),
              down + "it waits for Y by a custom policy without a semaphore");
    EXPECT_EQ(policy({.kind = PolicyKind::tile, .count = (std::int64_t{1} << 32) + 1}),
              down + "it waits for Y by a count of 4294967297 posts; expected 0 to 1048576");
    EXPECT_EQ(policy({.kind = PolicyKind::strided, .stride = -1}),
              down + "it waits for Y by a stride of -1 blocks; expected 0 to 1048576");
    EXPECT_EQ(said_of([](Chain& chain) { chain.stages[1].grid = {-2, -4, 1}; }),
              down + "its grid has -2 blocks along an axis; expected 1 to 1048576");
    EXPECT_EQ(said_of([](Chain& chain) { chain.stages[1].guards["Y"] = {}; }),
              down + "it guards Y, which it does not write");
    EXPECT_EQ(said_of([](Chain& chain) { chain.stages[1].early = {"W"}; }),
              down + "it reads W early, which it does not read");
    EXPECT_EQ(said_of([](Chain& chain) { chain.stages[1].adds = {"Y"}; }),
              down + "it adds to Y, which it does not write");
    EXPECT_EQ(said_of([](Chain& chain) { chain.tensors.erase("Y"); }),
              "stage up: malformed: it touches Y, which is not among the tensors");
    EXPECT_EQ(said_of([](Chain& chain) { chain.stages[1].reads["Y"].front().pop_back(); }),
              down + "a box of Y has 1 ranges; the tensor has 2 axes");
    EXPECT_EQ(said_of([](Chain& chain) { chain.stages[1].reads["Y"].front().front() = {.single = true}; }),
              down + "a range of Y is one element, and says not which");
    EXPECT_EQ(said_of([](Chain& chain) { chain.stages[1].name = "up"; }),
              "stage up: malformed: another stage has its name");
    EXPECT_EQ(said_of([](Chain& chain) { chain.stages.resize(65, chain.stages.front()); }),
              "malformed: it has 65 stages; expected 1 to 64");
    EXPECT_EQ(said_of([](Chain& chain) { chain.stages.clear(); }),
              "malformed: it has 0 stages; expected 1 to 64");
    EXPECT_EQ(said_of([](Chain& chain) { chain.tensors["Y"] = {0, 1024}; }),
              "malformed: tensor Y has an extent of 0; expected 1 to 1099511627776");
}

}  // namespace
}  // namespace syncopate::sync::test
