// Loops of a tile that run as often as the tile needs, and what they read, iteration by iteration.
#include <gtest/gtest.h>

#include <string>

#include "support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

/// Causal attention over K [heads, rows, dims]: blocks below the diagonal, and those on it.
std::string causal(const std::string& first = "", const std::string& second = "") {
    return source("q, k, o, S, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr",
                  "    m = tl.program_id(0)\n    h = tl.program_id(1)\n"
                  "    rows = m * BM + tl.arange(0, BM)\n    d = tl.arange(0, D)\n"
                  "    x = tl.load(q + h * S * D + rows[:, None] * D + d[None, :], mask=rows[:, None] < S)\n"
                  "    acc = tl.zeros((BM, D), dtype=tl.float32)\n"
                  "    for n in range(0, m * BM, BN):" +
                      first +
                      "\n"
                      "        c = n + tl.arange(0, BN)\n"
                      "        acc += tl.sum(tl.load(k + h * S * D + c[:, None] * D + d[None, :]))\n"
                      "    for n in range(m * BM, tl.minimum((m + 1) * BM, S), BN):" +
                      second +
                      "\n"
                      "        c = n + tl.arange(0, BN)\n"
                      "        acc += tl.sum(tl.load(k + h * S * D + c[:, None] * D + d[None, :], mask=c[:, "
                      "None] < S))\n"
                      "    tl.store(o + h * S * D + rows[:, None] * D + d[None, :], x + acc, mask=rows[:, "
                      "None] < S)\n");
}

Arguments shapes(const std::string& s) {
    return arguments("S=" + s + ",D=8,BM=32,BN=16",
                     {"q=2x" + s + "x8:fp32", "k=2x" + s + "x8:fp32", "o=2x" + s + "x8:fp32"});
}

plan::Region rows_of(std::int64_t head, std::int64_t begin, std::int64_t end) {
    return {{head, head + 1}, {begin, end}, {0, 8}};
}

TEST(Loops, EachHasItsOwnTripsInEachTile) {
    const Kernel k = analysed(causal(), shapes("112"));
    ASSERT_EQ(k.loops.size(), 2U);
    EXPECT_TRUE(k.tiles_differ);
    EXPECT_TRUE(k.loops[0].divisible && k.loops[1].divisible);
    EXPECT_EQ(k.loops[0].trips, 6);  // at most
    ASSERT_EQ(k.tiles.size(), 8U);
    for (std::size_t tile = 0; tile < 8; ++tile) {
        const auto m = static_cast<std::int64_t>(tile % 4);
        EXPECT_EQ(k.trips_of(k.tiles[tile], 0), 2 * m);
        EXPECT_EQ(k.trips_of(k.tiles[tile], 1), m == 3 ? 1 : 2);  // 16 rows are left of 112
    }
}

TEST(Loops, WhatEachReadsIsToldIterationByIteration) {
    const Kernel k = analysed(causal(), shapes("112"));
    ASSERT_EQ(k.tiles.size(), 8U);
    const std::vector<LoopRead>& reads = *k.tiles[7].loop_reads.at("k");  // rows 96 to 112 of head 1
    ASSERT_EQ(reads.size(), 2U);
    EXPECT_EQ(reads[0], (LoopRead{0, 1, 0, 16, 16, {rows_of(1, 0, 96)}}));
    EXPECT_EQ(reads[1], (LoopRead{1, 1, 96, 16, 16, {rows_of(1, 96, 112)}}));
    EXPECT_EQ(k.tiles[0].loop_reads.at("k")->size(), 1U);  // nothing is below its diagonal
    EXPECT_FALSE(k.tiles[7].loop_reads.contains("q"));
}

TEST(Loops, ADescriptorOfAllRowsWalksWithinTheRowsOfItsHead) {
    // Its rows are those of both heads one behind the other; the tensor has an axis for heads.
    const std::string text = source(
        "k, o, S, D: tl.constexpr, BN: tl.constexpr",
        "    h = tl.program_id(0)\n"
        "    d = tl.make_tensor_descriptor(k, [2 * S, D], [D, 1], [BN, D])\n"
        "    acc = tl.zeros((BN, D), dtype=tl.float32)\n"
        "    for n in range(tl.cdiv(S, BN)):  # @sy.any_order\n        acc += d.load([h * S + n * BN, 0])\n"
        "    tl.store(o + h * D + tl.arange(0, D), tl.sum(acc, axis=0))\n");
    const Kernel k = analysed(text, arguments("S=64,D=8,BN=16", {"k=2x64x8:fp32", "o=2x8:fp32"}));
    ASSERT_EQ(k.tiles.size(), 2U);
    ASSERT_EQ(k.loops.size(), 1U);
    if (k.tiles_differ) {
        EXPECT_EQ(k.tiles[1].loop_reads.at("k")->front(), (LoopRead{0, 1, 0, 16, 16, {rows_of(1, 0, 64)}}));
    } else {
        ASSERT_EQ(k.loops[0].slices.size(), 1U);
        EXPECT_EQ(k.loops[0].slices[0].base, 0);
    }
}

TEST(Loops, HowTheyAreWrittenIsKeptForEmit) {
    const Kernel k = analysed(causal(), shapes("112"));
    ASSERT_EQ(sites_of(k).loops.size(), 2U);
    const LoopSite& diagonal = sites_of(k).loops[1];
    EXPECT_EQ(diagonal.begin, "(m * BM)");
    EXPECT_EQ(diagonal.step, "BN");
    EXPECT_EQ(sites_of(k).loops[0].begin, "");
}

TEST(Loops, ADirectiveOnEachSaysThatItsOrderIsFree) {
    const Kernel k = analysed(causal("", "  # @sy.any_order"), shapes("112"));
    ASSERT_EQ(k.loops.size(), 2U);
    EXPECT_FALSE(k.loops[0].any_order);
    EXPECT_TRUE(k.loops[1].any_order);
}

TEST(Loops, TheDirectiveIsRefusedWhereSomethingMovesOnWithTheIterations) {
    const std::string text = source(
        "k, o, S, BN: tl.constexpr",
        "    at = k + tl.arange(0, BN)\n    acc = tl.zeros((BN,), dtype=tl.float32)\n"
        "    for n in range(0, S, BN):  # @sy.any_order\n        acc += tl.load(at)\n        at += BN\n"
        "    tl.store(o + tl.program_id(0) * BN + tl.arange(0, BN), acc)\n");
    EXPECT_EQ(error_of(text, arguments("S=64,BN=16", {"k=64:fp32", "o=32:fp32"})),
              "kernel.py:9:5: `@sy.any_order`: `at` moves on from one iteration to the next, so the order "
              "matters; take what it is from the loop's variable, or leave the directive out");
}

TEST(Loops, TheDirectiveBelongsOnALoop) {
    const std::string text =
        source("o, BN: tl.constexpr", "    x = tl.arange(0, BN)  # @sy.any_order\n    tl.store(o + x, x)\n");
    EXPECT_NE(error_of(text, arguments("BN=16", {"o=16:int32"})).find("belongs on a `for` loop of a tile"),
              std::string::npos);
}

TEST(Loops, OneInAHelperIsAsManyAsThereAreCalls) {
    const std::string text =
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        "def part(acc, k, low, high, BN: tl.constexpr):\n    for n in range(low, high, BN):\n"
        "        acc += tl.load(k + n + tl.arange(0, BN))\n    return acc\n\n\n"
        "@triton.jit\ndef kernel(k, o, BN: tl.constexpr):\n    m = tl.program_id(0)\n"
        "    acc = tl.zeros((BN,), dtype=tl.float32)\n    acc = part(acc, k, 0, m * BN, BN)\n"
        "    acc = part(acc, k, m * BN, (m + 1) * BN, BN)\n    tl.store(o + m * BN + tl.arange(0, BN), "
        "acc)\n";
    const Kernel k = analysed(text, arguments("BN=16", {"k=64:fp32", "o=64:fp32"}), "kernel");
    ASSERT_EQ(k.loops.size(), 2U);
    EXPECT_TRUE(k.loops[0].divisible && k.loops[1].divisible);
    ASSERT_EQ(k.tiles.size(), 4U);
    EXPECT_EQ(k.trips_of(k.tiles[3], 0), 3);
    EXPECT_EQ(k.trips_of(k.tiles[3], 1), 1);
    EXPECT_EQ(k.tiles[3].loop_reads.at("k")->at(1).boxes, (std::vector<plan::Region>{{{48, 64}}}));
    EXPECT_TRUE(sites_of(k).loops[1].in_helper());
    EXPECT_EQ(slice(k, sites_of(k).loops[1].call), "part(acc, k, m * BN, (m + 1) * BN, BN)");
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
