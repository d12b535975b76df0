// What cannot be followed: told where it is used, with all directives that would settle it; and what need not
// be followed, since nothing uses it.
#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

TEST(Missing, DirectivesAreListedAllAtOnce) {
    const std::string body =
        "    i = tl.load(i_ptr + tl.program_id(0))\n"
        "    x = tl.load(x_ptr + i)\n"
        "    w = tl.load(w_ptr + i)\n"
        "    tl.store(y_ptr + i, x * w)\n";
    EXPECT_EQ(
        error_of(source("i_ptr, x_ptr, w_ptr, y_ptr", body), {}),
        "kernel.py:8:17: the address `x_ptr + i` cannot be known before the kernel runs: it depends on data "
        "loaded by `tl.load(i_ptr + tl.program_id(0))` (line 7); state what a tile touches with `# @sy.reads "
        "x_ptr[…]`, `# @sy.reads w_ptr[…]` (line 9) and `# @sy.writes y_ptr[…]` (line 10), or give the "
        "elements of `i_ptr`, where the host knows them, with --values i_ptr=…");
}

TEST(Missing, ValuesAreNamedOfIntegersThatAreOnlyLoaded) {
    const std::string body =
        "    i = tl.load(i_ptr + tl.program_id(0))\n"
        "    tl.store(y_ptr + tl.program_id(0), tl.load(x_ptr + i))\n";
    const auto names = [&](const std::string& type, const std::string& more) {
        const std::string text = source("i_ptr, x_ptr, y_ptr", body + more);
        const std::string message =
            error_of(text, arguments("", {"i_ptr=4:" + type, "x_ptr=8:fp32", "y_ptr=4:fp32"}));
        EXPECT_NE(message.find("depends on data loaded by `tl.load(i_ptr + tl.program_id(0))`"),
                  std::string::npos)
            << message;
        return message.find("--values i_ptr=…") != std::string::npos;
    };
    for (const char* type : {"int32", "int64", "uint8"}) EXPECT_TRUE(names(type, "")) << type;
    EXPECT_FALSE(names("fp32", "")) << "an address made of floats";
    EXPECT_TRUE(names("int32", "    tl.store(y_ptr + 1, 1)\n"));
}

TEST(Missing, TellsWhichLineOfTheKernelCallsTheHelperOnce) {
    const std::string helpers =
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef inner(x, i):\n"
        "    return tl.load(x + tl.load(i))\n\n\n@triton.jit\ndef outer(x, i):\n    return inner(x, i)\n\n\n"
        "@triton.jit\ndef k(x_ptr, i_ptr, y_ptr):\n";
    EXPECT_EQ(
        error_of(helpers + "    tl.store(y_ptr, outer(x_ptr, i_ptr))\n",
                 arguments("", {"i_ptr=4:int32", "x_ptr=8:fp32", "y_ptr=4:fp32"})),
        "kernel.py:7:20: the address `x + tl.load(i)` cannot be known before the kernel runs: it depends on "
        "data loaded by `tl.load(i)` (line 7) (called by `outer(x_ptr, i_ptr)` in line 17); state what a "
        "tile "
        "touches with `# @sy.reads x_ptr[…]`, or give the elements of `i_ptr`, where the host knows them, "
        "with "
        "--values i_ptr=…");
}

TEST(Missing, BothHalvesOfAnAtomicAreStated) {
    const std::string body = "    tl.atomic_add(y_ptr + tl.load(i_ptr), 1)\n";
    const std::string message = error_of(source("i_ptr, y_ptr", body), {});
    const std::string values =
        ", or give the elements of `i_ptr`, where the host knows them, with --values i_ptr=…";
    EXPECT_TRUE(message.ends_with(
        "state what a tile touches with `# @sy.reads y_ptr[…]` and `# @sy.writes y_ptr[…]`" + values))
        << message;
    Arguments args = arguments("", {"i_ptr=1:int32", "y_ptr=8:int32"});
    args.grid = {1, 1, 1};
    const std::string half = "    # @sy.reads y_ptr[:]\n";
    EXPECT_TRUE(error_of(source("i_ptr, y_ptr", half + body), args)
                    .ends_with("with `# @sy.writes y_ptr[…]`" + values));
    const Kernel k = analysed(source("i_ptr, y_ptr", half + "    # @sy.writes y_ptr[:]\n" + body), args);
    EXPECT_EQ(k.tiles[0].writes.at("y_ptr"), (plan::Region{{0, 8}}));
}

TEST(Missing, ALoopWhoseBoundIsDataNamesTheLoadAndWhatItTouches) {
    const std::string body =
        "    n = tl.load(n_ptr)\n"
        "    for i in range(0, tl.cdiv(n, 4)):\n"
        "        tl.store(y_ptr + i, tl.load(x_ptr + i))\n";
    EXPECT_EQ(
        error_of(source("n_ptr, x_ptr, y_ptr", body), {}),
        "kernel.py:8:14: how often the loop over `range(0, tl.cdiv(n, 4))` runs depends on loaded data, "
        "`tl.load(n_ptr)` (line 7); state what a tile touches with `# @sy.reads x_ptr[…]` (line 9) and `# "
        "@sy.writes y_ptr[…]` (line 9), or give the elements of `n_ptr`, where the host knows them, with "
        "--values n_ptr=…");
    Arguments args = arguments("", {"n_ptr=1:int32", "x_ptr=8:fp32", "y_ptr=8:fp32"});
    args.grid = {1, 1, 1};
    const std::string stated = "    # @sy.reads x_ptr[:]\n    # @sy.writes y_ptr[0:4]\n" + body;
    const Kernel k = analysed(source("n_ptr, x_ptr, y_ptr", stated), args);
    EXPECT_EQ(k.tiles[0].writes.at("y_ptr"), (plan::Region{{0, 4}}));
}

/// A loop that starts from the program's id and stores looks like one over tiles, until it hands `acc` on: then all is run anew.
TEST(Missing, WhatAnAttemptDoesNotFollowIsToldByTheNextOne) {
    const auto body = [](const std::string& stated, const std::string& loop) {
        return stated +
               "    p = tl.program_id(0)\n    n = tl.load(n_ptr + p)\n    acc = 0.0\n"
               "    for head in range(2 * p, 2 * p + 2):\n" +
               loop +
               "            acc += tl.load(x_ptr + n + m)\n"
               "            tl.atomic_add(d_ptr + n + m, acc)\n"
               "    tl.store(y_ptr + p, acc)\n";
    };
    const std::string stated =
        "    # @sy.reads x_ptr[0:5]\n    # @sy.reads d_ptr[:]\n    # @sy.writes d_ptr[:]\n";
    const std::string touched = "`# @sy.reads x_ptr[…]`";
    for (const std::string loop : {"        for m in range(n):\n", "        for m in range(3):\n"}) {
        for (const int tiles : {1, 2, 3, 4, 8}) {
            const std::string size = std::to_string(tiles);
            Arguments args = arguments(
                "", {"n_ptr=" + size + ":int32", "x_ptr=8:fp32", "d_ptr=8:fp32", "y_ptr=" + size + ":fp32"});
            args.grid = {tiles, 1, 1};
            const std::string params = "n_ptr, x_ptr, d_ptr, y_ptr";
            const std::string message = error_of(source(params, body("", loop)), args);
            EXPECT_NE(message.find(touched), std::string::npos) << tiles << loop << message;
            const Kernel k = analysed(source(params, body(stated, loop)), args);
            EXPECT_EQ(k.tiles.at(0).reads.at("x_ptr"), (plan::Region{{0, 5}})) << tiles << loop;
        }
    }
}

TEST(Missing, ABlockPointerWithALoadedBaseIsStatedAlsoWhereItAdvances) {
    const std::string body =
        "    e = tl.load(e_ptr)\n"
        "    p = tl.make_block_ptr(w_ptr + e * 16, (4, 4), (4, 1), (0, 0), (2, 4), (1, 0))\n"
        "    q = tl.make_block_ptr(w_ptr, (e, 4), (4, 1), (0, 0), (2, 4), (1, 0))\n"
        "    for k in range(2):\n"
        "        x = tl.load(p) + tl.load(q)\n"
        "        p = tl.advance(p, (2, 0))\n"
        "        q = tl.advance(q, (e, 0))\n"
        "    d = tl.make_tensor_descriptor(v_ptr + e, [4, 4], [4, 1], [2, 4])\n"
        "    tl.store(y_ptr, tl.sum(x) + tl.sum(d.load([0, 0])))\n";
    const std::string signature = "e_ptr, w_ptr, v_ptr, y_ptr";
    const std::string message = error_of(source(signature, body), {});
    EXPECT_NE(message.find("`# @sy.reads w_ptr[…]`"), std::string::npos) << message;
    EXPECT_NE(message.find("`# @sy.reads v_ptr[…]` (line 15)"), std::string::npos) << message;
    Arguments args = arguments("", {"e_ptr=1:int32", "w_ptr=3x4x4:fp32", "v_ptr=20:fp32", "y_ptr=1:fp32"});
    args.grid = {1, 1, 1};
    const std::string stated = "    # @sy.reads w_ptr[:, :, :]\n    # @sy.reads v_ptr[:]\n" + body;
    EXPECT_EQ(analysed(source(signature, stated), args).tiles[0].reads.at("w_ptr").size(), 3U);
}

TEST(Missing, WhatIsMadeAndNeverUsedIsNoError) {
    const std::string body =
        "    n = tl.load(n_ptr)\n"
        "    p = tl.make_block_ptr(x_ptr, (n, 4), (4, 1), (0, 0), (2, 4), (1, 0))\n"
        "    p = tl.advance(p, (n, 0))\n"
        "    d = tl.make_tensor_descriptor(x_ptr + n, [4, 4], [4, 1], [2, 4])\n"
        "    tl.store(y_ptr, n)\n";
    EXPECT_EQ(analysed(source("n_ptr, x_ptr, y_ptr", body), arguments("", {"y_ptr=1:fp32"})).tiles.size(),
              1U);
}

TEST(Types, ATensorAndItsDescriptorAreToldApart) {
    const std::string text =
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef either(x, N: tl.constexpr):\n"
        "    if isinstance(x, tl.tensor_descriptor):\n        return x\n    else:\n"
        "        return tl.make_tensor_descriptor(x, [4, N], [N, 1], [2, N])\n\n\n@triton.jit\n"
        "def k(x, y, N: tl.constexpr):\n    x = either(x, N)\n    y = either(y, N)\n"
        "    r = tl.program_id(0) * 2\n    y.store([r, 0], x.load([r, 0]))\n";
    for (const std::string suffix : {"", "@2x8"}) {
        const Kernel k =
            analysed(text, arguments("N=8", {"x=4x8:fp32" + suffix, "y=4x8:fp32" + suffix}), "k");
        ASSERT_EQ(k.tiles.size(), 2U);
        EXPECT_EQ(k.tiles[1].reads.at("x"), box(2, 4, 0, 8));
    }
}

TEST(Types, TheWidthOfAnElementIsANumber) {
    const std::string body =
        "    W: tl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth\n"
        "    at = tl.program_id(0) * W + tl.arange(0, W)\n"
        "    tl.store(y_ptr + at, tl.load(x_ptr + at))\n";
    const std::string text = source("x_ptr, y_ptr", body);
    EXPECT_EQ(analysed(text, arguments("", {"x_ptr=32:fp16", "y_ptr=32:fp32"})).tiles.size(), 4U);
    EXPECT_EQ(analysed(text, arguments("", {"x_ptr=32:fp8e5m2", "y_ptr=32:fp32"})).tiles.size(), 2U);
}

TEST(Types, AnOlderStoreThroughADescriptorHasItsOffsetsLast) {
    const std::string body =
        "    r = tl.program_id(0) * 2\n"
        "    x = tl._experimental_descriptor_load(x_ptr, [r, 0], [2, 8], tl.float32)\n"
        "    tl._experimental_descriptor_store(y_ptr, x, [r, 0])\n";
    const Kernel k =
        analysed(source("x_ptr, y_ptr", body), arguments("", {"x_ptr=4x8:fp32@2x8", "y_ptr=4x8:fp32@2x8"}));
    ASSERT_EQ(k.tiles.size(), 2U);
    EXPECT_EQ(k.tiles[1].writes.at("y_ptr"), box(2, 4, 0, 8));
}

std::string axes_of(const Kernel& kernel) {
    std::string text;
    for (const TileAxis& axis : kernel.axes)
        text += axis.name + "=" + std::to_string(axis.count) + "x" + std::to_string(axis.block) + " ";
    return text;
}

TEST(Axes, OfASplitSumAreThoseOfWhatIsStoredAndItsParts) {
    const std::string body =
        "    pid, part = tl.program_id(0), tl.program_id(1)\n"
        "    columns = tl.cdiv(N, B)\n"
        "    rows = tl.cdiv(M, B)\n"
        "    m = (pid % rows) * B + tl.arange(0, B)\n"
        "    n = (pid // rows) % columns * B + tl.arange(0, B)\n"
        "    for k in range(part * 4, K, 4 * SPLIT):\n"
        "        a = tl.load(a_ptr + m[:, None] * K + k + tl.arange(0, 4)[None, :])\n"
        "    tl.atomic_add(c_ptr + m[:, None] * N + n[None, :], a)\n";
    Arguments args = arguments("M=16,N=24,K=32,B=8,SPLIT=2", {"a_ptr=16x32:fp32", "c_ptr=16x24:fp32"});
    args.grid = {6, 2, 1};
    const Kernel k =
        analysed(source("a_ptr, c_ptr, M, N, K, B: tl.constexpr, SPLIT: tl.constexpr", body), args);
    EXPECT_EQ(axes_of(k), "M=2x8 N=3x8 K=2x4 ");
    EXPECT_EQ(k.tiles[7].coord, (std::vector<std::int64_t>{1, 0, 1}));
}

TEST(Axes, OfStreamedStepsAreItsPrograms) {
    const std::string body =
        "    at = tl.program_id(0) * PER\n"
        "    last = min(at + PER, TOTAL)\n"
        "    while at < last:\n"
        "        tile = at // 5\n"
        "        until = min((tile + 1) * 5, last)\n"
        "        tl.atomic_add(c_ptr + tile * 8 + tl.arange(0, 8), until - at)\n"
        "        at = until\n";
    Arguments args = arguments("PER=7,TOTAL=20", {"c_ptr=32:fp32"});
    args.grid = {3, 1, 1};
    EXPECT_EQ(axes_of(analysed(source("c_ptr, PER, TOTAL", body), args)), "P=3x1 ");
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
