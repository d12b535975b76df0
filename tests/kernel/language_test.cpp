// What of Python and Triton a kernel may use.
#include <filesystem>
#include <fstream>

#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

using Boxes = std::vector<plan::Region>;

/// What the only program of a kernel writes to y_ptr, a vector of 64.
Boxes written(const std::string& body, const std::string& before = "") {
    Arguments args = arguments("n=64", {"x_ptr=64:fp32", "y_ptr=64:fp32", "d_ptr=64:int32"});
    args.grid = {1, 1, 1};
    const Kernel k = analysed(before + source("x_ptr, y_ptr, d_ptr, n", body), args);
    return k.tiles.empty()                            ? Boxes{}
           : k.tiles[0].write_boxes.contains("y_ptr") ? Boxes(k.tiles[0].write_boxes.at("y_ptr"))
                                                      : Boxes{};
}

Boxes at(std::int64_t begin, std::int64_t end) { return {{{begin, end}}}; }

TEST(Language, DefaultsOfHelpersAreThoseOfTheirFile) {
    const std::string helper =
        "import triton\n\nW = 3\n\n\n@triton.jit\ndef place(i, W, N=W):\n    return i + N + 10 * W\n\n\n";
    EXPECT_EQ(written("    W = 2\n    N = 7\n    tl.store(y_ptr + place(N, W), 1.0)\n", helper), at(30, 31));
}

TEST(Language, AssignmentsChainUnpackAndSlice) {
    EXPECT_EQ(
        written("    a = b = 5\n    c, (d, e) = a, (b + 1, 7)\n    tl.store(y_ptr + a + b + d + e, 0)\n"),
        at(23, 24));
    EXPECT_EQ(
        written("    t = (1, 2, 3, 4)\n    u = t[1:3]\n    tl.store(y_ptr + u[0] * 10 + u[-1], len(u))\n"),
        at(23, 24));
    EXPECT_EQ(written("    t = [i * 2 for i in range(4)]\n    tl.store(y_ptr + t[3], 0)\n"), at(6, 7));
}

TEST(Language, LoopsRunOverTuplesHaveElseAndEndEarly) {
    EXPECT_EQ(written("    for i in (3, 4, 5):\n        tl.store(y_ptr + i, 0)\n"), at(3, 6));
    EXPECT_EQ(written("    a = 0\n    for i in range(4):\n        a += 2\n    else:\n        a += 1\n"
                      "    tl.store(y_ptr + a, 0)\n"),
              at(9, 10));
    EXPECT_EQ(written("    a = 0\n    for i in range(9):\n        if i == 3:\n            break\n        a "
                      "+= 2\n    else:\n"
                      "        a += 1\n    tl.store(y_ptr + a, 0)\n"),
              at(6, 7));
}

TEST(Language, DivisionTruncatesAtRunTimeAndFloorsAtCompileTime) {
    EXPECT_EQ(written("    p = tl.program_id(0)\n    tl.store(y_ptr + 10 + (p - 7) // 2, 0)\n"), at(7, 8));
    EXPECT_EQ(written("    tl.store(y_ptr + 10 + (-7) // 2, 0)\n"), at(6, 7));
    EXPECT_EQ(written("    p = tl.program_id(0)\n    tl.store(y_ptr + 10 + (p - 7) % 4, 0)\n"), at(7, 8));
}

TEST(Language, ElementTypesAreTheSameByAnyOfTheirNames) {
    const auto stored = [](const std::string& given, const std::string& type) {
        Arguments args =
            arguments("OUT=" + given, {"y_ptr=64:" + type, "x_ptr=4:float8_e4m3fn", "m_ptr=4:int1"});
        args.grid = {1, 1, 1};
        const Kernel k = analysed(source("y_ptr, x_ptr, m_ptr, OUT: tl.constexpr",
                                         "    at = 0\n"
                                         "    if OUT == tl.float16:\n        at += 1\n"
                                         "    if OUT == y_ptr.dtype.element_ty:\n        at += 2\n"
                                         "    if OUT != tl.float8e5:\n        at += 4\n"
                                         "    if x_ptr.dtype.element_ty == tl.float8e4nv:\n        at += 8\n"
                                         "    if m_ptr.dtype.element_ty == tl.int1:\n        at += 16\n"
                                         "    tl.store(y_ptr + at, 0)\n"),
                                  args);
        return Boxes(k.tiles.at(0).write_boxes.at("y_ptr"))[0][0].begin;
    };
    for (const char* name : {"fp16", "float16", "tl.float16", "torch.float16"}) {
        EXPECT_EQ(stored(name, "fp16"), 31) << name;
        EXPECT_EQ(stored(name, "uint64"), 29) << name;
    }
    for (const char* name : {"fp8e5m2", "tl.float8e5", "torch.float8_e5m2"}) {
        EXPECT_EQ(stored(name, "fp8e5m2"), 26) << name;
    }
}

TEST(Language, ModuleLevelConstantsMayBeExpressions) {
    EXPECT_EQ(written("    tl.store(y_ptr + C + OFFSETS[1], 0)\n",
                      "import triton.language as tl\nB = tl.constexpr(4)\nC = B * 2\nOFFSETS = (1, 5)\n"),
              at(13, 14));
}

TEST(Language, ABreakOnLoadedDataLeavesWhatFollowsUnknown) {
    const std::string body =
        "    a = 0\n    for i in range(4):\n        if tl.load(d_ptr) == i:\n            break\n        a += "
        "1\n";
    EXPECT_EQ(written(body + "    tl.store(y_ptr + 2, 0)\n"), at(2, 3));
    Arguments args = arguments("n=64", {"y_ptr=64:fp32", "d_ptr=64:int32"});
    args.grid = {1, 1, 1};
    EXPECT_NE(error_of(source("x_ptr, y_ptr, d_ptr, n", body + "    tl.store(y_ptr + a, 0)\n"), args)
                  .find("depends on"),
              std::string::npos);
}

TEST(Language, AContinueOnLoadedDataMayReachTheRoundsAfterABreak) {
    const std::string body =
        "    for i in range(3):\n        tl.store(y_ptr + i, 0)\n        if tl.load(d_ptr + i) == 0:\n"
        "            continue\n        break\n    tl.store(y_ptr + 9, 0)\n";
    EXPECT_EQ(written(body), (Boxes{{{0, 3}}, {{9, 10}}}));
}

TEST(Language, ALoopThatDataSteersIsFollowedWhereNoAddressNeedsIt) {
    EXPECT_EQ(
        written(
            "    n = tl.load(d_ptr)\n    acc = 0.0\n    while n > 0:\n        acc += 1.0\n        n -= 1\n"
            "    tl.store(y_ptr + 3, acc)\n"),
        at(3, 4));
    EXPECT_EQ(
        written("    while tl.atomic_cas(d_ptr, 0, 1) == 1:\n        pass\n    tl.store(y_ptr + 3, 0)\n"),
        at(3, 4));
}

TEST(Language, AReturnOnLoadedDataMakesWhatFollowsDoubtful) {
    Arguments args = arguments("n=64", {"y_ptr=64:fp32", "d_ptr=64:int32"});
    args.grid = {1, 1, 1};
    const Kernel k =
        analysed(source("x_ptr, y_ptr, d_ptr, n",
                        "    if tl.load(d_ptr) == 0:\n        return\n    tl.store(y_ptr + 3, 0)\n"),
                 args);
    EXPECT_EQ(k.tiles[0].write_boxes.at("y_ptr"), at(3, 4));
    EXPECT_TRUE(k.tiles[0].inexact_writes.contains("y_ptr"));
    EXPECT_FALSE(k.tiles[0].inexact_reads.contains("d_ptr"));
}

/// Whether the kernel surely stores all that it may store to y.
bool surely_stores(const std::string& body) {
    Arguments args = arguments("", {"x_ptr=64:fp32", "y_ptr=64:fp32"});
    args.grid = {1, 1, 1};
    const std::string helpers =
        "@triton.jit\ndef put(y_ptr, at):\n    tl.store(y_ptr + at, 1.0)\n    return at\n\n\n"
        "@triton.jit\ndef may_put(y_ptr, c):\n    if c > 0:\n        if c > 1:\n            return\n"
        "    tl.store(y_ptr, 1.0)\n\n\n";
    std::string text = source("x_ptr, y_ptr", "    c = tl.load(x_ptr)\n    d = tl.load(x_ptr + 1)\n" + body);
    text.insert(text.find("@triton.jit"), helpers);
    const Kernel k = analysed(text, args, "k");
    return !k.tiles.empty() && !k.tiles[0].inexact_writes.contains("y_ptr");
}

TEST(Language, AStoreIsSureWhereAllWaysThatDataDecidesMakeIt) {
    const std::string store = "tl.store(y_ptr, 1.0)\n", deep = "        " + store,
                      deeper = "            " + store;
    const std::string otherwise = "    else:\n" + deep;
    EXPECT_TRUE(surely_stores("    if c > 0:\n" + deep + otherwise));
    EXPECT_TRUE(surely_stores("    if c > 0:\n" + deep + "    elif c > -1:\n" + deep + otherwise));
    EXPECT_TRUE(surely_stores("    if c > 0:\n        if d > 0:\n" + deeper + "        else:\n" + deeper +
                              otherwise));
    EXPECT_TRUE(surely_stores("    if c > 0:\n" + deep + "        return\n" + otherwise));
    EXPECT_TRUE(surely_stores("    a = put(y_ptr, 0) if c > 0 else put(y_ptr, 0)\n"));
    EXPECT_TRUE(
        surely_stores("    for i in range(2):\n        if c > 0:\n            continue\n    " + store));
    EXPECT_TRUE(surely_stores("    for i in range(2):\n        if c > 0:\n            break\n    " + store));
}

TEST(Language, AStoreIsInDoubtWhereOneWayThatDataDecidesMakesNone) {
    const std::string store = "tl.store(y_ptr, 1.0)\n", deep = "        " + store,
                      deeper = "            " + store;
    const std::string otherwise = "    else:\n" + deep, last = "    " + store;
    EXPECT_FALSE(surely_stores("    if c > 0:\n" + deep));
    EXPECT_FALSE(surely_stores("    if c > 0:\n" + deep + "    elif c > -1:\n        pass\n" + otherwise));
    EXPECT_FALSE(surely_stores("    if c > 0:\n" + deep + "    elif c > -1:\n" + deep));
    EXPECT_FALSE(surely_stores("    if c > 0:\n        if d > 0:\n" + deeper + otherwise));
    EXPECT_FALSE(
        surely_stores("    if c > 0:\n        for i in range(d.to(tl.int32)):\n" + deeper + otherwise));
    EXPECT_FALSE(surely_stores("    if c > 0:\n        while tl.load(x_ptr) > 0:\n" + deeper + otherwise));
    EXPECT_FALSE(surely_stores("    if c > 0:\n        return\n" + last));
    EXPECT_FALSE(surely_stores("    if c > 0:\n        if d > 0:\n            return\n" + last));
    EXPECT_FALSE(surely_stores(
        "    if c > 0:\n        pass\n    else:\n        if d > 0:\n            return\n" + last));
    EXPECT_FALSE(surely_stores("    if c > 0:\n        if d > 0:\n            return\n" + deep + otherwise));
    EXPECT_FALSE(surely_stores("    may_put(y_ptr, c)\n"));
    EXPECT_FALSE(surely_stores("    a = put(y_ptr, 0) if c > 0 else 1\n"));
    EXPECT_FALSE(surely_stores("    a = 1 if c > 0 else put(y_ptr, 0)\n"));
    EXPECT_FALSE(surely_stores("    a = put(y_ptr, 0) if c > 0 else put(y_ptr, 1)\n"));
    EXPECT_FALSE(surely_stores("    for i in range(1):\n        if c > 0:\n            continue\n" + deep));
    EXPECT_FALSE(surely_stores("    for i in range(2):\n        if c > 0:\n            break\n" + deep));
    EXPECT_FALSE(surely_stores(
        "    for i in range(1):\n        if c > 0:\n            if d > 0:\n                continue\n" +
        deep));
}

TEST(Language, DoubtOfOneLoopOrProgramIsNotThatOfTheNextOne) {
    const std::string both =
        "    if c > 0:\n        tl.store(y_ptr, 1.0)\n    else:\n        tl.store(y_ptr, 2.0)\n";
    // The first loop's rounds are looked at twice, as i // 3 is no affine address.
    EXPECT_TRUE(
        surely_stores("    s = 0.0\n    for i in range(12):\n        if c > 0:\n            s += "
                      "tl.load(x_ptr + i // 3)\n" +
                      both));
    const std::string twice =
        "    for i in range(12):\n        if c > 0:\n            if d > 0:\n                continue\n       "
        "     if d > 1:\n"
        "                continue\n        else:\n            d += tl.load(x_ptr + i // 3)\n";
    EXPECT_TRUE(surely_stores(twice + both));
    EXPECT_FALSE(surely_stores(twice + "    if d > 3:\n        tl.store(y_ptr, 1.0)\n"));
    EXPECT_FALSE(surely_stores(
        "    for i in range(4):\n        tl.store(y_ptr + i, 1.0)\n        if c > 0:\n            return\n"));
    EXPECT_FALSE(surely_stores(
        "    for k in (0, 1):\n        tl.store(y_ptr + k, 1.0)\n        if c > 0:\n            break\n"));
    EXPECT_TRUE(surely_stores(
        "    for k in (0, 1):\n        if c > 0:\n            break\n    tl.store(y_ptr, 1.0)\n"));
    EXPECT_FALSE(
        surely_stores("    for i in range(2):\n        if c > 0:\n            break\n        return\n    "
                      "tl.store(y_ptr, 1.0)\n"));
}

TEST(Language, WhatFollowsALoopThatIsLeftOneWayAndEndsTheKernelTheOtherWayIsSeen) {
    EXPECT_EQ(written("    for i in range(2):\n        if tl.load(d_ptr) > 0:\n            break\n        "
                      "return\n    tl.store(y_ptr + 5, 1.0)\n"),
              at(5, 6));
    EXPECT_EQ(written("    i = 0\n    while i < 2:\n        if tl.load(d_ptr) > 0:\n            break\n"
                      "        return\n    tl.store(y_ptr + 5, 1.0)\n"),
              at(5, 6));
    EXPECT_FALSE(
        surely_stores("    i = 0\n    while i < 2:\n        if c > 0:\n            break\n        "
                      "return\n    tl.store(y_ptr, 1.0)\n"));
    EXPECT_TRUE(surely_stores("    i = 0\n    while i < 2:\n        i += 1\n    tl.store(y_ptr, 1.0)\n"));
}

TEST(Language, AWhileThatDataMayEndEarlierRunsAsOftenAsTheRestOfItsConditionAllows) {
    const std::string body =
        "    i = 0\n    done = 0\n    while (i < 4) & (done == 0):\n        tl.store(y_ptr + i, "
        "1.0)\n        done = tl.load(d_ptr + i)\n        i += 1\n";
    EXPECT_EQ(written(body), at(0, 4));
    EXPECT_FALSE(surely_stores(
        "    i = 0\n    while (i < 4) & (c == 0):\n        tl.store(y_ptr + i, 1.0)\n        i += 1\n"));
    EXPECT_EQ(written("    i = 8\n    while i > 4 and tl.load(d_ptr + i) > 0:\n        i -= 1\n        "
                      "tl.store(y_ptr + i, 1.0)\n"),
              at(4, 8));
    EXPECT_EQ(written("    i = 0\n    while (tl.load(d_ptr) > 0) & (i < 2) & (i != 7):\n        i += 1\n    "
                      "tl.store(y_ptr + 9, 1.0)\n"),
              at(9, 10));
    // A part that always holds bounds nothing.
    EXPECT_EQ(
        written("    i = 3\n    while (i < 4) & (tl.load(d_ptr) > 0):\n        tl.store(y_ptr + i, 1.0)\n"),
        at(3, 4));
}

TEST(Language, TheConditionOfAWhileThatDataEndsIsSeenInEveryRound) {
    Arguments args = arguments("", {"x_ptr=4x8:fp32", "f_ptr=4x8:int32", "y_ptr=4:fp32"});
    args.grid = {4, 1, 1};
    const auto refusal = [&](const std::string& condition, const std::string& round) {
        const std::string body =
            "    pid = tl.program_id(0)\n    p = x_ptr + pid * 8\n    i = 0\n    while " + condition +
            ":\n        " + round + "\n    tl.store(y_ptr + pid, i)\n";
        return error_of(source("x_ptr, f_ptr, y_ptr", body), args);
    };
    const std::vector<std::string> conditions{
        "tl.load(x_ptr + pid * 8 + i) > 0", "not (i >= 8 or tl.load(p + i) != 0)",
        "i < 2 or tl.load(p + i) == 0", "(v := tl.load(p + i)) > 0", "tl.load(p + i * i) > tl.load(p)"};
    for (const std::string& condition : conditions)
        EXPECT_NE(refusal(condition, "i += 1").find("@sy.reads"), std::string::npos) << condition;
    EXPECT_NE(refusal("(tl.load(p) == 0) | (i > 100)", "p += 1").find("@sy.reads"), std::string::npos);
    EXPECT_NE(refusal("tl.load(f_ptr + pid * 8 + 7 + i) == 0", "i -= 1").find("@sy.reads"),
              std::string::npos);
    EXPECT_NE(refusal("tl.atomic_add(f_ptr + pid * 8 + i, 1) == 0", "i += 1").find("@sy."),
              std::string::npos);
    // Where it loads does not change, or no longer than the rest of it holds.
    const std::string still = source(
        "x_ptr, y_ptr",
        "    pid = tl.program_id(0)\n    i = 0\n    while tl.load(x_ptr + pid * 8) > i:\n        i += 1\n"
        "    tl.store(y_ptr + pid, i)\n");
    args = arguments("", {"x_ptr=4x8:fp32", "y_ptr=4:fp32"});
    args.grid = {4, 1, 1};
    EXPECT_EQ(analysed(still, args, "k").tiles[1].reads.at("x_ptr"), (plan::Region{{1, 2}, {0, 1}}));
    const std::string ahead = source(
        "x_ptr, y_ptr",
        "    pid = tl.program_id(0)\n    i = 0\n    while i < 8 and tl.load(x_ptr + pid * 8 + i) >= 0:\n"
        "        i += 1\n    tl.store(y_ptr + pid, i)\n");
    EXPECT_EQ(analysed(ahead, args, "k").tiles[1].reads.at("x_ptr"), (plan::Region{{1, 2}, {0, 8}}))
        << "no round looks at the next tile's";
}

TEST(Language, WhilesInsideWhilesThatDataEndsTakeNoLongerThanTheirAddressesNeed) {
    std::string body = "    pid = tl.program_id(0)\n    d = tl.load(x_ptr + pid)\n", round;
    std::string indent = "    ";
    for (const char* name : {"i", "j", "k"}) {
        body += indent + name + " = 0\n" + indent + "while (" + name + " < 100) & (d > 0):\n";
        indent += "    ";
        round = indent + name + " += 1\n" + round;
    }
    body += indent + "d -= tl.load(x_ptr + pid)\n" + round + "    tl.store(y_ptr + pid, d)\n";
    Arguments args = arguments("", {"x_ptr=64:fp32", "y_ptr=64:fp32"});
    args.grid = {64, 1, 1};
    EXPECT_EQ(analysed(source("x_ptr, y_ptr", body), args, "k").tiles.size(), 64U);
    // Each tile has as many rounds as the others, also in a loop that data may leave.
    args = arguments("", {"x_ptr=64x32:fp32", "y_ptr=64:fp32"});
    args.grid = {64, 1, 1};
    const Kernel walks =
        analysed(source("x_ptr, y_ptr",
                        "    pid = tl.program_id(0)\n    d = 0.0\n    while True:\n        i = 0\n"
                        "        while (i < 32) & (d < 9.0):\n            d += tl.load(x_ptr + pid * 32 + "
                        "i)\n            i += 1\n"
                        "        if d > 5.0:\n            break\n    tl.store(y_ptr + pid, d)\n"),
                 args, "k");
    EXPECT_EQ(walks.tiles[63].reads.at("x_ptr"), (plan::Region{{63, 64}, {0, 32}}));
}

TEST(Language, TilesThatWaitForOthersKeepTheirOrder) {
    const auto in_order = [](const std::string& wait, const std::string& done) {
        Arguments args = arguments("", {"f_ptr=4:int32", "y_ptr=4:fp32"});
        args.grid = {4, 1, 1};
        std::string text = source("f_ptr, y_ptr", "    pid = tl.program_id(0)\n" + wait +
                                                      "    tl.store(y_ptr + pid, 1.0)\n" + done);
        text.insert(text.find("@triton.jit"),
                    "@triton.jit\ndef ready(p):\n    v = tl.load(p)\n    if v == 1:\n        return 1\n    "
                    "return 0\n\n\n@triton.jit\ndef spin_with(look: tl.constexpr, p):\n    while look(p) == "
                    "0:\n        pass\n\n\n");
        return analysed(text, args, "k").in_order;
    };
    const std::string told = "    tl.atomic_xchg(f_ptr + pid, 1)\n";
    EXPECT_TRUE(
        in_order("    if pid > 0:\n        while tl.atomic_add(f_ptr + pid - 1, 0) == 0: pass\n", told));
    EXPECT_TRUE(
        in_order("    if pid > 0:\n        while tl.atomic_cas(f_ptr + pid - 1, 1, 1) != 1: pass\n", told));
    EXPECT_TRUE(
        in_order("    while tl.load(f_ptr, volatile=True) != pid: pass\n", "    tl.store(f_ptr, pid + 1)\n"));
    EXPECT_TRUE(
        in_order("    ready = tl.load(f_ptr)\n    while ready < pid:\n        ready = tl.load(f_ptr)\n",
                 "    tl.atomic_add(f_ptr, 1)\n"));
    const std::string before = "tl.load(f_ptr + pid - 1)";
    const std::vector<std::string> waits{
        "    while not " + before + ": pass\n",
        "    while not (" + before + " == 1): pass\n",
        "    done = False\n    while not done:\n        done = " + before + " == 1\n",
        "    done = 0\n    while done == 0:\n        v = " + before +
            "\n        if v == 1:\n            done = 1\n",
        "    done = 0\n    while done == 0:\n        done = 1 if " + before + " == 1 else 0\n",
        "    while (tl.load(y_ptr) == 0) & (" + before + " == 0): pass\n",
        "    while tl.load(y_ptr) + " + before + " == 0: pass\n",
        "    while tl.atomic_cas(f_ptr + pid - 1, 1, 0) != 1: pass\n",
        "    while ready(f_ptr + pid - 1) == 0: pass\n",
        "    while tl.atomic_xchg(f_ptr + pid - 1, 0) == 0: pass\n",
        "    spin_with(ready, f_ptr + pid - 1)\n",
        "    look: tl.constexpr = ready\n    while look(f_ptr + pid - 1) == 0: pass\n",
        "    while tl.atomic_xchg(f_ptr + pid - 1, 2) == 0: pass\n"};
    for (const std::string& wait : waits) EXPECT_TRUE(in_order(wait, told)) << wait;
    // What the tile before hands on is no lock that each tile frees itself.
    EXPECT_TRUE(in_order("    if pid > 0:\n        while tl.atomic_cas(f_ptr + pid - 1, 0, 1) != 0: pass\n",
                         "    tl.atomic_xchg(f_ptr + pid, 0)\n"));
    EXPECT_TRUE(in_order("    p = f_ptr + pid - 1\n    while tl.atomic_cas(p, 0, 1) != 0: pass\n",
                         "    p += 1\n    tl.atomic_xchg(p, 0)\n"));
    const std::string one =
        "    if pid > 0:\n        while tl.atomic_cas(f_ptr + pid - 1, 0, 1) != 0: pass\n";
    const std::string freed = "    tl.atomic_xchg(f_ptr + pid - 1, 0)\n";
    for (const char* handed :
         {"    tl.store(f_ptr + pid, 0)\n", "    tl.atomic_and(f_ptr + pid, 0)\n",
          "    tl.store(f_ptr + pid, pid * 0)\n", "    tl.atomic_xchg(f_ptr + pid, val=0)\n"})
        EXPECT_TRUE(in_order(one, freed + handed)) << "freed, and handed on: " << handed;
    EXPECT_TRUE(in_order(
        "    p = f_ptr + pid - 1\n    while tl.atomic_cas(p, 0, 1) != 0: pass\n    q = (p := p + 1)\n",
        "    tl.atomic_xchg(p, 0)\n"));
    EXPECT_TRUE(in_order("    while tl.atomic_cas(f_ptr, 0, 1) == 1: pass\n", "")) << "nobody frees it";
    // Beside a lock, what counts who came.
    EXPECT_FALSE(in_order("    lock = f_ptr + pid % 2\n    while tl.atomic_cas(lock, 0, 1) == 1: pass\n",
                          "    tl.atomic_xchg(lock + 2, 1)\n    tl.atomic_xchg(lock, 0)\n"));
    // Who has a lock does not matter, nor what the kernel does not store.
    EXPECT_FALSE(
        in_order("    while tl.atomic_cas(f_ptr, 0, 1) == 1: pass\n", "    tl.atomic_xchg(f_ptr, 0)\n"));
    EXPECT_FALSE(
        in_order("    while tl.atomic_xchg(f_ptr, 1) == 1: pass\n", "    tl.atomic_xchg(f_ptr, 0)\n"));
    EXPECT_FALSE(in_order("    lock = f_ptr + pid % 2\n    while tl.atomic_cas(lock, 0, 1) == 1: pass\n",
                          "    tl.store(lock, 0)\n"));
    EXPECT_FALSE(in_order("    i = tl.load(f_ptr)\n    while i > 0:\n        i -= 1\n", ""));
    EXPECT_FALSE(in_order("", told));
}

TEST(Language, ANameOfAListsOwnIsUnknownAfterIt) {
    // Python gives it back, and Triton does not.
    const Arguments args = arguments("", {"y_ptr=64:fp32"});
    const std::string body = "    k = 3\n    t = [k * 2 for k in range(2)]\n    tl.store(y_ptr + k, 1.0)\n";
    EXPECT_NE(error_of(source("y_ptr", body), args).find("cannot be known"), std::string::npos);
}

TEST(Language, HelpersTakeStarsDefaultsAndFunctions) {
    const std::string helpers =
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef total(*parts):\n    s = 0\n"
        "    for p in parts:\n        s += p\n    return s\n\n@triton.jit\ndef twice(x, by=2):\n    return x "
        "* by\n\n"
        "@triton.jit\ndef apply(f, x):\n    return f(x)\n\n";
    Arguments args = arguments("n=64", {"y_ptr=64:fp32"});
    args.grid = {1, 1, 1};
    const Kernel k = analysed(
        helpers +
            source("y_ptr, n", "    t = (1, 2)\n    tl.store(y_ptr + total(*t, 3) + apply(twice, 5), 0)\n"),
        args, "k");
    EXPECT_EQ(k.tiles[0].write_boxes.at("y_ptr"), at(16, 17));
}

TEST(Language, UnknownSyntaxIsRefusedOnlyWhereMemoryDependsOnIt) {
    EXPECT_EQ(written("    f = lambda z: z + 1\n    s = f\"{n} of {n:>3}\"\n    tl.store(y_ptr + 1, 0)\n"),
              at(1, 2));
    Arguments args = arguments("n=64", {"y_ptr=64:fp32"});
    args.grid = {1, 1, 1};
    EXPECT_NE(error_of(source("x_ptr, y_ptr, d_ptr, n",
                              "    try:\n        tl.store(y_ptr, 0)\n    finally:\n        pass\n    "
                              "tl.store(y_ptr + 1, 0)\n"),
                       args)
                  .find("not understood, and could touch memory"),
              std::string::npos);
}

/// The error of a kernel with this body.
std::string refusal(const std::string& body, const std::string& before = "") {
    Arguments args = arguments("n=20", {"x_ptr=4096:fp32", "y_ptr=64:fp32", "d_ptr=64:int32"});
    args.grid = {1, 1, 1};
    return error_of(before + source("x_ptr, y_ptr, d_ptr, n", body), args, "k");
}

TEST(Language, FlagsOfBuiltinsAreSeenByTheirPosition) {
    for (const std::string at :
         {"tl.cumsum(o, 0, True)", "o.cumsum(0, True)", "tl.cumsum(o, axis=0, reverse=True)",
          "tl.sum(z, 1, True)", "z.sum(1, True)", "tl.max(z, 1, False, True, True)", "tl.max(z, 1, True)",
          "tl.min(z, 1, True)[0]", "tl.ravel(z, True)", "tl.cat(o, o, True)",
          "tl.reshape(z, (4, 2), can_reorder=True)", "tl.view(z, (4, 2))"}) {
        EXPECT_NE(refusal("    o = tl.arange(0, 8)\n    z = tl.reshape(o, (2, 4))\n    tl.store(y_ptr + " +
                          at + ", 0.0)\n")
                      .find("depends on"),
                  std::string::npos)
            << at;
    }
    EXPECT_EQ(
        written(
            "    o = tl.arange(0, 8)\n    z = tl.reshape(o, (2, 4))\n    c = tl.cumsum(o // 7, 0, False)\n"
            "    tl.store(y_ptr + c + tl.sum(tl.max(z, 0, False, True, False), 0, False), 0.0)\n"),
        at(22, 24));
}

TEST(Language, TheBitsOfARealNumberAreNoAddress) {
    for (const std::string k :
         {"n.to(tl.float32).to(tl.int32, bitcast=True)", "tl.cast(n.to(tl.float32), tl.int32, None, True)",
          "n.to(tl.float32, bitcast=True).to(tl.int32)"})
        EXPECT_NE(refusal("    tl.store(y_ptr + " + k + ", 0.0)\n").find("takes the bits of another type"),
                  std::string::npos)
            << k;
    EXPECT_EQ(
        written(
            "    tl.store(y_ptr + (n - 60).to(tl.uint32, bitcast=True).to(tl.int32, bitcast=True), 0.0)\n"),
        at(4, 5));
}

TEST(Language, AFunctionOfAnotherPackageIsNotTritonsOfThatName) {
    for (const std::string import :
         {"from some_pkg import cdiv, flip\n", "from some_pkg import a as cdiv, b as flip\n",
          "from some_pkg import *\n", "from triton.language import *\nfrom some_pkg import *\n"}) {
        EXPECT_NE(
            refusal("    tl.store(y_ptr + cdiv(n, 4), 0.0)\n", import).find("no function of this project"),
            std::string::npos)
            << import;
        EXPECT_NE(refusal("    tl.store(y_ptr + flip(tl.arange(0, 4)), 0.0)\n", import)
                      .find("no function of this project"),
                  std::string::npos)
            << import;
    }
    EXPECT_NE(refusal("    tl.store(y_ptr + p.cdiv(n, 4), 0.0)\n", "import some_pkg.part as p\n")
                  .find("no function of"),
              std::string::npos);
    EXPECT_EQ(written("    tl.store(y_ptr + cdiv(n, 4) + c(n, 8), 0.0)\n",
                      "from triton.language import *\nfrom triton import cdiv as c\n"),
              at(24, 25));
}

TEST(Language, AFunctionThatTheLaunchGivesIsNotFollowed) {
    Arguments args = arguments("F=thrice", {"y_ptr=64:fp32"});
    args.grid = {1, 1, 1};
    EXPECT_EQ(error_of(source("y_ptr, F: tl.constexpr", "    tl.store(y_ptr + F(3), 0.0)\n"), args),
              "kernel.py:7:14: the address `y_ptr + F(3)` cannot be known before the kernel runs: it depends "
              "on `F(3)` "
              "(line 7), a function that is given as a value, which is not followed; state what a tile "
              "touches with "
              "`# @sy.writes y_ptr[…]`");
}

TEST(Language, AndAndOrOfNumbersAreConditionsOnly) {
    EXPECT_EQ(written("    if n and (n or 3) and not (n and 0):\n        tl.store(y_ptr + 1, 0.0)\n"),
              at(1, 2));
    EXPECT_EQ(written("    tl.store(y_ptr + (2 if n and 3 else 5), 0.0)\n"), at(2, 3));
    EXPECT_EQ(written("    h = (n > 3) and (n < 100)\n    tl.store(y_ptr + tl.where(h, 2, 5), 0.0)\n"),
              at(2, 3));
    EXPECT_EQ(written("    tl.store(y_ptr + (2 and 3), 0.0)\n"), at(3, 4));
    for (const std::string k : {"(n and 3)", "(n or 3)", "((n > 3) and 3)"})
        EXPECT_NE(
            refusal("    tl.store(y_ptr + " + k + ", 0.0)\n").find("Triton and Python compute differently"),
            std::string::npos)
            << k;
}

TEST(Language, ALoopsVariableEndsWithTheLoop) {
    for (const std::string range : {"range(4)", "range(n)", "tl.range(0, 4)", "range(0)"})
        EXPECT_NE(refusal("    i = 1\n    for i in " + range +
                          ":\n        tl.store(y_ptr, 0.0)\n    tl.store(y_ptr + i, 0.0)\n")
                      .find("which Triton does not keep after the loop"),
                  std::string::npos)
            << range;
    EXPECT_EQ(written("    for i in tl.static_range(4):\n        pass\n    tl.store(y_ptr + i, 0.0)\n"),
              at(3, 4));
    EXPECT_EQ(written("    for i in (5, 6):\n        pass\n    tl.store(y_ptr + i, 0.0)\n"), at(6, 7));
}

TEST(Language, AnAggregateIsNotFollowed) {
    EXPECT_NE(refusal("    t = Tile(x_ptr, n)\n    tl.store(y_ptr, t.load(0))\n",
                      "@aggregate\nclass Tile:\n    n = 1\n")
                  .find("`Tile` is a class, and holds `x_ptr` from here on: aggregates are not followed"),
              std::string::npos);
    EXPECT_NE(refusal("    tl.store(y_ptr + Place(n).at, 0.0)\n", "class Place:\n    at = 1\n")
                  .find("an aggregate, which is not followed"),
              std::string::npos);
}

TEST(Language, ConstantsInVariablesAreDividedAsFarAsAllAgree) {
    EXPECT_NE(refusal("    a = -7\n    tl.store(y_ptr + 10 + a // 2, 0.0)\n").find("rounds towards 0"),
              std::string::npos);
    EXPECT_NE(refusal("    a = -7\n    tl.store(y_ptr + 10 + a % 2, 0.0)\n").find("rounds towards 0"),
              std::string::npos);
    EXPECT_EQ(written("    a = -8\n    tl.store(y_ptr + 10 + a // 2, 0.0)\n"), at(6, 7));
}

TEST(Language, BuiltinsTakeTheirArgumentsByName) {
    EXPECT_EQ(
        written(
            "    o = tl.arange(0, 4)\n    tl.store(y_ptr + tl.where(condition=o < 8, x=o, y=o + 9), 0.0)\n"),
        at(0, 4));
    EXPECT_EQ(
        written(
            "    o = tl.arange(0, 4)\n    tl.store(y_ptr + tl.gather(o + 3, index=o // 2, axis=0), 0.0)\n"),
        at(3, 5));
    EXPECT_EQ(written("    o = tl.arange(0, 4)\n    e = tl.expand_dims(o, (0, 2))\n"
                      "    tl.store(y_ptr + e + tl.arange(0, 2), 0.0)\n"),
              at(0, 5));
}

TEST(Language, ImportsOfTheSameProjectAreFollowed) {
    const std::filesystem::path folder = std::filesystem::temp_directory_path() / "syncopate_imports_test";
    std::filesystem::create_directories(folder / "pkg");
    std::ofstream(folder / "pkg" / "util.py") << "import triton\nimport triton.language as tl\nSIZE: "
                                                 "tl.constexpr = 8\n\n@triton.jit\ndef place(p):\n"
                                                 "    return p * SIZE + tl.arange(0, SIZE)\n";
    const std::string kernel_source =
        "import triton\nimport triton.language as tl\nfrom .util import place\nfrom . import util as "
        "u\nimport util\n\n"
        "@triton.jit\ndef k(y_ptr):\n    p = tl.program_id(0)\n"
        "    tl.store(y_ptr + place(p) + u.SIZE, 0)\n    tl.store(y_ptr + util.place(p), 0)\n";
    Arguments args = arguments("", {"y_ptr=64:fp32"});
    args.grid = {2, 1, 1};
    const auto k = analyse(kernel_source, (folder / "pkg" / "kernels.py").string(), "", args);
    std::filesystem::remove_all(folder);
    ASSERT_TRUE(k.ok()) << k.error().to_string();
    EXPECT_EQ(k->tiles[1].write_boxes.at("y_ptr"), at(8, 24));
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
