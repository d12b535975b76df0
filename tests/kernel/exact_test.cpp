// Footprints are what is touched, no more, where addresses do not depend on data.
#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

using Boxes = std::vector<plan::Region>;

Tile only_tile(const std::string& body, const std::string& scalars = "") {
    Arguments args = arguments(scalars, {"x_ptr=8x16:fp32", "y_ptr=16:fp32"});
    args.grid = {1, 1, 1};
    const Kernel k = analysed(source("x_ptr, y_ptr, n=0", body + "    tl.store(y_ptr, v)\n"), args);
    EXPECT_EQ(k.tiles.size(), 1u);
    return k.tiles.empty() ? Tile{} : k.tiles[0];
}

Boxes read(const std::string& body) {
    const Tile tile = only_tile(body);
    EXPECT_TRUE(tile.inexact_reads.empty());
    return tile.read_boxes.contains("x_ptr") ? Boxes(tile.read_boxes.at("x_ptr")) : Boxes{};
}

TEST(Exact, EverySecondColumnIsAColumnEach) {
    EXPECT_EQ(read("    v = tl.load(x_ptr + tl.arange(0, 4)[:, None] * 16 + 2 * tl.arange(0, 2)[None, :])\n"),
              (Boxes{box(0, 4, 0, 1), box(0, 4, 2, 3)}));
}

TEST(Exact, ADiagonalIsAnElementEach) {
    EXPECT_EQ(read("    v = tl.load(x_ptr + tl.arange(0, 4) * 17)\n"),
              (Boxes{box(0, 1, 0, 1), box(1, 2, 1, 2), box(2, 3, 2, 3), box(3, 4, 3, 4)}));
    EXPECT_EQ(read("    v = 0.0\n    for i in range(3):\n        v += tl.load(x_ptr + i * 17)\n"),
              (Boxes{box(0, 1, 0, 1), box(1, 2, 1, 2), box(2, 3, 2, 3)}));
}

TEST(Exact, ATriangularMaskIsATriangle) {
    EXPECT_EQ(read("    r = tl.arange(0, 4)\n    m = r[:, None] >= r[None, :]\n"
                   "    v = tl.load(x_ptr + r[:, None] * 16 + r[None, :], mask=m)\n"),
              (Boxes{box(0, 1, 0, 1), box(1, 2, 0, 2), box(2, 3, 0, 3), box(3, 4, 0, 4)}));
}

TEST(Exact, AMaskThatGrowsWithTheLoopIsCutRoundByRound) {
    EXPECT_EQ(read("    r = tl.arange(0, 8)\n    v = 0.0\n    for i in range(3):\n"
                   "        v += tl.load(x_ptr + i * 16 + r, mask=r <= i)\n"),
              (Boxes{box(0, 1, 0, 1), box(1, 2, 0, 2), box(2, 3, 0, 3)}));
}

TEST(Exact, RowsAndColumnsOfAFlatIndex) {
    EXPECT_EQ(read("    i = tl.arange(0, 8)\n    v = tl.load(x_ptr + (i // 4) * 32 + i % 4)\n"),
              (Boxes{box(0, 1, 0, 4), box(2, 3, 0, 4)}));
    EXPECT_EQ(read("    i = tl.reshape(tl.arange(0, 8), (2, 4))\n    v = tl.load(x_ptr + i * 2)\n"),
              (Boxes{box(0, 1, 0, 1), box(0, 1, 2, 3), box(0, 1, 4, 5), box(0, 1, 6, 7), box(0, 1, 8, 9),
                     box(0, 1, 10, 11), box(0, 1, 12, 13), box(0, 1, 14, 15)}));
    EXPECT_EQ(read("    i = tl.arange(0, 4)[:, None] * 2 + tl.arange(0, 2)[None, :]\n"
                   "    a, b = tl.split(i)\n    v = tl.load(x_ptr + a) + tl.load(x_ptr + b)\n"),
              (Boxes{box(0, 1, 0, 8)}));
}

TEST(Exact, ConditionsJoinedByOrAndNot) {
    EXPECT_EQ(read("    r = tl.arange(0, 16)\n    v = tl.load(x_ptr + r, mask=(r < 2) | (r >= 14))\n"),
              (Boxes{box(0, 1, 0, 2), box(0, 1, 14, 16)}));
    EXPECT_EQ(read("    r = tl.arange(0, 16)\n    v = tl.load(x_ptr + r, mask=~((r >= 2) & (r < 14)))\n"),
              (Boxes{box(0, 1, 0, 2), box(0, 1, 14, 16)}));
}

TEST(Exact, AConditionThatLetsAllThroughHidesTheOneItIsJoinedTo) {
    const std::string either = "    r = tl.arange(0, 16)\n    m = (tl.flip(r, 0) < 2) | (r // 4 < 11)\n";
    EXPECT_EQ(read(either + "    v = tl.load(x_ptr + r, mask=m & (r < 5))\n"), (Boxes{box(0, 1, 0, 5)}));
    EXPECT_EQ(read(either + "    v = tl.load(x_ptr + r + m.to(tl.int32) * 16)\n"), (Boxes{box(1, 2, 0, 16)}));
    EXPECT_EQ(read(either + "    v = tl.load(x_ptr + tl.where(m, r, r + 32))\n"), (Boxes{box(0, 1, 0, 16)}));
}

TEST(Exact, MasksThatAreMadeAsConstants) {
    const std::string r = "    r = tl.arange(0, 16)\n";
    const std::string load = "    v = tl.load(x_ptr + r, mask=m)\n";
    const Boxes all{box(0, 1, 0, 16)}, five{box(0, 1, 0, 5)}, none, ends{box(0, 1, 0, 2), box(0, 1, 14, 16)};
    EXPECT_EQ(read(r + "    m = tl.full([16], True, tl.int1)\n" + load), all);
    EXPECT_EQ(read(r + "    m = tl.full([16], 1, dtype=tl.int1)\n    m &= r < 5\n" + load), five);
    EXPECT_EQ(read(r + "    m = tl.zeros((16,), tl.int1)\n" + load), none);
    EXPECT_EQ(read(r + "    m = tl.zeros((16,), tl.int1)\n    m |= r < 2\n    m |= r >= 14\n" + load), ends);
    EXPECT_EQ(read(r + "    m = ~tl.zeros_like(r < 3)\n" + load), all);
    EXPECT_EQ(read(r + "    m = tl.full([], True, tl.int1) & (r < 5)\n" + load), five);
    EXPECT_EQ(read(r + "    m = tl.broadcast_to(n == 0, (16,)) & (r < 5)\n" + load), five);
    EXPECT_EQ(read(r + "    m = tl.full([1], False, tl.int1) | (r < 5)\n" + load), five);
    EXPECT_EQ(read(r + "    m = None\n    v = tl.load(x_ptr + r, m)\n"), all);
}

TEST(Exact, MasksMultipliedComparedAndChosen) {
    const std::string r = "    r = tl.arange(0, 16)\n";
    const std::string load = "    v = tl.load(x_ptr + r, mask=m)\n";
    const Boxes five{box(0, 1, 0, 5)}, ends{box(0, 1, 0, 2), box(0, 1, 14, 16)};
    EXPECT_EQ(read(r + "    m = (r < 9) * (r < 5)\n" + load), five);
    EXPECT_EQ(read(r + "    m = (r >= 5) == False\n" + load), five);
    EXPECT_EQ(read(r + "    m = (r >= 5) != tl.full([16], True, tl.int1)\n" + load), five);
    EXPECT_EQ(read(r + "    m = (r < 14) != (r < 2)\n    m = ~m\n" + load), ends);
    EXPECT_EQ(read(r + "    m = (r < 14) ^ tl.full([16], 1, tl.int1) ^ (r < 2)\n" + load), ends);
    EXPECT_EQ(read(r + "    m = tl.where(r < 14, r < 2, tl.full([1], True, tl.int1))\n" + load), ends);
    EXPECT_EQ(read(r + "    m = ((r < 5).to(tl.int32) & 2) == 0\n    m = m & (r < 5)\n" + load), five);
}

TEST(Exact, AConstantHidesAConditionOfData) {
    const std::string data = "    r = tl.arange(0, 16)\n    d = tl.load(y_ptr + r) > 0\n";
    EXPECT_EQ(read(data + "    m = (d | tl.full([16], True, tl.int1)) & (r < 5)\n"
                          "    v = tl.load(x_ptr + r, mask=m)\n"),
              (Boxes{box(0, 1, 0, 5)}));
    EXPECT_EQ(read(data + "    m = ~(d & tl.zeros([16], tl.int1)) & (r < 5)\n"
                          "    v = tl.load(x_ptr + r, mask=m)\n"),
              (Boxes{box(0, 1, 0, 5)}));
}

TEST(Exact, AMaskOfDataIsAnUpperBoundAndSaysSo) {
    const Tile tile = only_tile(
        "    r = tl.arange(0, 16)\n    m = tl.load(y_ptr + r) > 0\n"
        "    v = tl.load(x_ptr + r, mask=m & (r < 9))\n");
    EXPECT_EQ(tile.read_boxes.at("x_ptr"), (Boxes{box(0, 1, 0, 9)}));
    EXPECT_TRUE(tile.inexact_reads.contains("x_ptr"));
    EXPECT_FALSE(tile.inexact_reads.contains("y_ptr"));
}

TEST(Exact, AnyMaskOfDataSaysSo) {
    const Tile tile = only_tile(
        "    r = tl.arange(0, 16)\n    m = tl.load(y_ptr + r) > 0\n    v = tl.load(x_ptr + r, mask=m)\n");
    EXPECT_EQ(tile.read_boxes.at("x_ptr"), (Boxes{box(0, 1, 0, 16)}));
    EXPECT_TRUE(tile.inexact_reads.contains("x_ptr"));
}

TEST(Exact, WhatWouldTakeTooManyBoxesIsOneBoxAndSaysSo) {
    Arguments args = arguments("", {"x_ptr=200000:fp32", "y_ptr=16:fp32"});
    args.grid = {1, 1, 1};
    const Kernel k =
        analysed(source("x_ptr, y_ptr",
                        "    v = 0.0\n    for i in range(90000):\n        v += tl.load(x_ptr + 2 * i)\n"
                        "    tl.store(y_ptr, v)\n"),
                 args);
    EXPECT_EQ(k.tiles[0].read_boxes.at("x_ptr"), (Boxes{{{0, 179999}}}));
    EXPECT_TRUE(k.tiles[0].inexact_reads.contains("x_ptr"));
}

TEST(Exact, CausalAttentionStaysOneLoopForAllItsRounds) {
    const Kernel k = analysed(source("x_ptr, y_ptr, B: tl.constexpr",
                                     "    p = tl.program_id(0)\n    m = p * B + tl.arange(0, B)\n    acc = "
                                     "tl.zeros((B,), tl.float32)\n"
                                     "    for j in range(0, p + 1):\n        n = j * B + tl.arange(0, B)\n   "
                                     "     s = tl.load(x_ptr + n)\n"
                                     "        q = tl.where(m[:, None] >= n[None, :], s[None, :], "
                                     "float('-inf'))\n        acc += tl.sum(q, 1)\n"
                                     "    tl.store(y_ptr + m, acc)\n"),
                              arguments("B=4", {"x_ptr=16:fp32", "y_ptr=16:fp32"}));
    ASSERT_EQ(k.tiles.size(), 4u);
    EXPECT_EQ(k.tiles[2].read_boxes.at("x_ptr"), (Boxes{{{0, 12}}}));
    EXPECT_TRUE(!k.loops.empty());
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
