#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

/// The pointer example with one text replaced.
std::string changed(const std::string& from, const std::string& to) {
    std::string text = example("matmul_pointers.py");
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string error_after(const std::string& from, const std::string& to) {
    return error_of(changed(from, to), pointers(200, 144, 96));
}

TEST(Directive, AnUnknownOneIsAnErrorAtItsPlace) {
    EXPECT_EQ(error_after("# @sy.tile_id", "# @sy.tileid"),
              "kernel.py:31:36: unknown directive `@sy.tileid`; did you mean \"tile_id\"?");
}

TEST(Directive, AnUnknownVariableIsAnErrorAtItsPlace) {
    EXPECT_EQ(
        error_after("M=pid_m N=pid_n", "M=pid_m N=pid_x"),
        "kernel.py:43:29: `pid_x` is not a variable of kernel `matmul_kernel`; did you mean \"pid_m\"?");
    EXPECT_EQ(
        error_after("M block=BLOCK_M", "M block=BLOCK"),
        "kernel.py:32:63: `BLOCK` is not a variable of kernel `matmul_kernel`; did you mean \"BLOCK_M\"?");
}

TEST(Directive, AContradictedBlockIsAnError) {
    const std::string text = changed("M block=BLOCK_M", "M block=BLOCK_K");
    EXPECT_EQ(error_of(text, pointers(200, 144, 96)),
              "kernel.py:32:63: block=BLOCK_K contradicts `tl.cdiv(M, BLOCK_M)`, which counts blocks of "
              "another size: write block=BLOCK_M");
}

TEST(Directive, APidMapThatDoesNotNumberTheTilesIsAnError) {
    const std::string message = error_after("M=pid_m N=pid_n", "M=pid_n N=pid_m");
    EXPECT_TRUE(message.starts_with("kernel.py:43:7: this `@sy.pid_map` does not number the tiles"))
        << message;
}

TEST(Directive, AVariableThatIsNoTileIdIsAnError) {
    const std::string message = error_after("num_pid_in_group = GROUP_M * num_pid_n",
                                            "num_pid_in_group = GROUP_M * num_pid_n  # @sy.tile_id");
    EXPECT_EQ(message,
              "kernel.py:37:47: `num_pid_in_group` is not a tile's linear id: no address follows from it as "
              "one; mark the assignment of the variable from which tl.load and tl.store find their place");
}

TEST(Directive, PersistentOnAKernelWithoutATileLoopIsAnError) {
    EXPECT_EQ(error_after("# @sy.tile_id", "# @sy.tile_id persistent"),
              "kernel.py:31:36: `persistent`: this kernel has no loop over tiles; write `@sy.tile_id`");
}

TEST(Directive, ABeginWithoutAnEndIsAnError) {
    EXPECT_EQ(error_after("    # @sy.dispatch end\n", ""),
              "kernel.py:36:7: this `begin` has no `end`: write the same directive with `end` below the "
              "lines that it is about");
    const std::string message = error_after("    # @sy.dispatch begin\n", "");
    EXPECT_EQ(message,
              "kernel.py:42:7: `@sy.pid_map` belongs between `@sy.dispatch begin` and `@sy.dispatch end`");
}

TEST(Directive, AnEpilogueBeforeTheLastStoreIsAnError) {
    const std::string message =
        error_after("    offs_cm = pid_m", "    # @sy.producer_epilogue\n    offs_cm = pid_m");
    EXPECT_EQ(message,
              "kernel.py:61:7: a tile still stores after this: its last store ends on line 66; move the "
              "directive below that line");
}

TEST(Directive, AWrongNumberOfTilesIsAnError) {
    const std::string text =
        changed("    num_pid_in_group =",
                "    total = num_pid_m * num_pid_n + 1  # @sy.num_tiles\n    num_pid_in_group =");
    Arguments args = pointers(200, 144, 96);
    args.grid = {12, 1, 1};
    EXPECT_EQ(error_of(text, args),
              "kernel.py:37:42: the variable marked as the number of tiles is 13, but the launch runs 12 "
              "tiles: mark the total of the tile counts, or give the launch with --grid");
}

TEST(Directive, NumTilesGivesTheGrid) {
    const std::string text =
        source("x_ptr, y_ptr, n, B: tl.constexpr",
               "    tiles = (n + B - 1) // B  # @sy.num_tiles\n    pid = tl.program_id(0)\n"
               "    r = pid * B + tl.arange(0, B)\n    tl.store(y_ptr + r, tl.load(x_ptr + r))\n");
    EXPECT_EQ(analysed(text, arguments("n=100,B=32", {"x_ptr=100:fp32", "y_ptr=100:fp32"})).tiles.size(), 4u);
}

TEST(Directive, AFootprintStatedByHandReplacesOneThatDependsOnData) {
    const std::string body =
        "    # @sy.reads x_ptr[pid * B:(pid + 1) * B]\n    pid = tl.program_id(0)\n    r = pid * B + "
        "tl.arange(0, B)\n"
        "    i = tl.load(i_ptr + r)\n    tl.store(y_ptr + r, tl.load(x_ptr + i))\n";
    const std::string signature = "x_ptr, i_ptr, y_ptr, B: tl.constexpr";
    const Arguments args = arguments("B=8", {"x_ptr=20:fp32", "i_ptr=24:int32", "y_ptr=24:fp32"});
    const Kernel k = analysed(source(signature, body), args);
    ASSERT_EQ(k.tiles.size(), 3u);
    EXPECT_EQ(k.tiles[2].reads.at("x_ptr"), (plan::Region{{16, 20}}));
    EXPECT_TRUE(k.find_param("x_ptr")->read);
    EXPECT_TRUE(k.tiles[2].inexact_reads.contains("x_ptr")) << "a person may state more than is touched";
    EXPECT_FALSE(k.tiles[2].inexact_reads.contains("i_ptr"));
    EXPECT_EQ(error_of(source(signature, body.substr(body.find("    pid"))), args),
              "kernel.py:10:33: the address `x_ptr + i` cannot be known before the kernel runs: it depends "
              "on data loaded by "
              "`tl.load(i_ptr + r)` (line 9); state what a tile touches with `# @sy.reads x_ptr[…]`, or give "
              "the elements of `i_ptr`, where the host knows them, with --values i_ptr=…");
}

TEST(Directive, AFootprintIsNotStatedNarrowerThanWhatIsSurelyTouched) {
    const std::string signature = "x_ptr, y_ptr, n, B: tl.constexpr";
    const Arguments args = arguments("n=20,B=8", {"x_ptr=24:fp32", "y_ptr=24:fp32"});
    const auto kernel = [&](const std::string& directive, const std::string& load) {
        return source(signature, "    # @sy." + directive +
                                     "\n    pid = tl.program_id(0)\n    r = pid * B + tl.arange(0, B)\n" +
                                     "    tl.store(y_ptr + r, tl.load(" + load + "))\n");
    };
    EXPECT_EQ(error_of(kernel("reads x_ptr[pid * B]", "x_ptr + r"), args),
              "kernel.py:7:7: tile 0 reads x_ptr[1:8], which this does not state");
    EXPECT_EQ(error_of(kernel("writes y_ptr[8:(pid + 1) * B]", "x_ptr + r"), args),
              "kernel.py:7:7: tile 0 writes y_ptr[0:8], which this does not state");
    const Kernel wide = analysed(kernel("reads x_ptr[:]", "x_ptr + r"), args);
    EXPECT_EQ(wide.tiles[1].reads.at("x_ptr"), (plan::Region{{0, 24}}));
    // What a mask leaves out a person may know.
    const Kernel masked =
        analysed(kernel("reads x_ptr[pid * B]", "x_ptr + r, mask=tl.load(y_ptr + r) > n"), args);
    EXPECT_EQ(masked.tiles[1].reads.at("x_ptr"), (plan::Region{{8, 9}}));
}

TEST(Directive, HostCodeIsNotRewrittenAndSaysWhatIsUsedInstead) {
    for (const std::string name : {"host_entry", "kernel_launch"}) {
        const std::string message = error_after("def matmul(", "# @sy." + name + "\ndef matmul(");
        EXPECT_TRUE(message.starts_with("kernel.py:69:3: `@sy." + name + "`: host code is not rewritten: "))
            << message;
        EXPECT_NE(message.find("`sy.fuse(matmul_kernel, plan, bind=…)[grid](…)`"), std::string::npos);
    }
}

/// A tile of columns that loops over blocks of KV, whose lines can be replaced.
struct Looping {
    std::string count = "    num_kv = tl.cdiv(S, BN)  # @sy.axis_count KV=range block=BN\n";
    std::string dispatch =
        "    # @sy.dispatch begin\n    m = pid\n    lo = 0\n    hi = (m + 1) * BN\n"
        "    # @sy.pid_map M=m KV=lo..hi\n    # @sy.dispatch end\n";
    std::string loop = "    for n in range(lo, hi, BN):\n";
    std::string before = "";
    std::string after = "";

    [[nodiscard]] std::string text() const {
        return source(
            "k_ptr, o_ptr, S, BN: tl.constexpr",
            before + "    pid = tl.program_id(0)\n    num_m = tl.cdiv(S, BN)  # @sy.axis_count M block=BN\n" +
                count + dispatch + "    acc = tl.zeros((BN,), dtype=tl.float32)\n" + loop +
                "        acc += tl.load(k_ptr + n + tl.arange(0, BN))\n"
                "    tl.store(o_ptr + m * BN + tl.arange(0, BN), acc)\n" +
                after);
    }
    [[nodiscard]] static Arguments shapes() {
        Arguments made = arguments("S=64,BN=16", {"k_ptr=64:fp32", "o_ptr=64:fp32"});
        made.grid = {4, 1, 1};
        return made;
    }
    [[nodiscard]] std::string error() const { return error_of(text(), shapes()); }
};

void expect_part(const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(LoopAxis, AHeldCountAndBoundsAreUnderstood) {
    const Kernel k = analysed(Looping{}.text(), Looping::shapes());
    EXPECT_EQ(k.tiles.size(), 4U);
    EXPECT_EQ(k.warnings, std::vector<std::string>{});
}

TEST(LoopAxis, AnotherBlockIsAnError) {
    const std::string text =
        source("k_ptr, o_ptr, S, BN: tl.constexpr, BM: tl.constexpr",
               "    pid = tl.program_id(0)\n    num_kv = tl.cdiv(S, BN)  # @sy.axis_count KV=range block=BM\n"
               "    acc = tl.zeros((BN,), dtype=tl.float32)\n    for n in range(num_kv):\n"
               "        acc += tl.load(k_ptr + n * BN + tl.arange(0, BN))\n"
               "    tl.store(o_ptr + pid * BN + tl.arange(0, BN), acc)\n");
    Arguments given = arguments("S=64,BN=16,BM=32", {"k_ptr=64:fp32", "o_ptr=64:fp32"});
    given.grid = {4, 1, 1};
    expect_part(error_of(text, given), "block=BM contradicts `tl.cdiv(S, BN)`");
}

TEST(LoopAxis, ACountThatNoLoopHasIsAnError) {
    Looping kernel;
    kernel.count = "    num_kv = tl.cdiv(S, BN) + 77  # @sy.axis_count KV=range\n";
    expect_part(
        kernel.error(),
        "kernel.py:9:37: the variable marked as the count of `KV` is 81, but the loops in which a tile "
        "loads run at most so often: 4 (line ");
}

TEST(LoopAxis, ABlockOfWhatIsSeenToCountNoBlocksIsRefused) {
    Looping kernel;
    kernel.count = "    num_kv = S // 16  # @sy.axis_count KV=range block=BN\n";
    expect_part(kernel.error(), "block=BN cannot be held against `S // 16`");
}

TEST(LoopAxis, ANameOfATileAxisOrOneGivenTwiceIsAnError) {
    Looping kernel;
    kernel.count = "    num_kv = tl.cdiv(S, BN)  # @sy.axis_count M=range block=BN\n";
    expect_part(kernel.error(), "axis `M` is named on line 8 already");
    kernel.count = "    num_kv = tl.cdiv(S, 2 * BN)  # @sy.axis_count M block=2*BN\n";
    expect_part(kernel.error(), "axis `M` is named on line 8 already, for another count");
    kernel.count = "    num_kv = tl.cdiv(S, BN)  # @sy.axis_count =range block=BN\n";
    expect_part(kernel.error(), "an axis is NAME or NAME=range");
    kernel.count = "    num_kv = tl.cdiv(S, BN)  # @sy.axis_count KV=range block=BN block=S\n";
    expect_part(kernel.error(), "`block=S` is not expected");
}

TEST(LoopAxis, ACountThatIsNotRunIsRefused) {
    Looping kernel;
    kernel.count = "    if S < 0:\n        num_kv = tl.cdiv(S, BN)  # @sy.axis_count KV=range block=BN\n";
    expect_part(kernel.error(), "nothing holds this");
}

TEST(LoopAxis, BoundsOfNoLoopAreAnError) {
    const auto mapped = [](const std::string& pairs) {
        Looping kernel;
        const std::string from = "M=m KV=lo..hi";
        kernel.dispatch.replace(kernel.dispatch.find(from), from.size(), pairs);
        return kernel.error();
    };
    expect_part(mapped("M=m KV=hi..lo"),
                "no loop of a tile runs from hi to lo: its loops run over `range(lo, hi, BN)` (line ");
    expect_part(mapped("M=m KV=lo..S"), "no loop of a tile runs from lo to S");
    expect_part(mapped("M=m KV=1..hi"), "no loop of a tile runs from 1 to hi");
    expect_part(mapped("M=m ZZ=lo..hi"), "`ZZ` is not an axis that a tile loops over");
    expect_part(mapped("M=m M=lo..hi"), "axis `M` is mapped twice");
    expect_part(mapped("M=m KV=lo..bogus"), "`bogus` is not a variable");
    expect_part(mapped("M=m KV=lo..hi+1"), "a bound is a variable or a whole number");
    expect_part(mapped("M=m KV=pid"), "`KV` is not a tile axis of this kernel");
    EXPECT_EQ(analysed(
                  [&] {
                      Looping kernel;
                      kernel.dispatch.replace(kernel.dispatch.find("KV=lo"), 5, "KV=0");
                      return kernel.text();
                  }(),
                  Looping::shapes())
                  .tiles.size(),
              4U);
}

TEST(Directive, ASecondPidMapIsAnError) {
    Looping kernel;
    kernel.dispatch.replace(kernel.dispatch.find("    # @sy.dispatch end"), 0, "    # @sy.pid_map M=m\n");
    expect_part(kernel.error(), "this is a second `@sy.pid_map`");
}

TEST(Directive, WhatNothingHoldsIsAWarning) {
    Looping kernel;
    kernel.dispatch.replace(kernel.dispatch.find("    # @sy.pid_map M=m KV=lo..hi\n"), 32, "");
    const Kernel k = analysed(kernel.text(), Looping::shapes());
    ASSERT_EQ(k.warnings.size(), 1U);
    expect_part(k.warnings[0], "`@sy.dispatch` is held against nothing");
}

TEST(Directive, LinesRunOnceAreThoseOfAPersistentKernelOutsideOfItsTiles) {
    Looping kernel;
    kernel.before = "    # @sy.persistent_init begin\n    x = S\n    # @sy.persistent_init end\n";
    expect_part(kernel.error(), "this kernel has no loop over tiles");
    const auto persistent = [](const std::string& inside) {
        return error_of(source("x_ptr, y_ptr, n, B: tl.constexpr",
                               "    start = tl.program_id(0)\n    tiles = tl.cdiv(n, B)\n"
                               "    for t in range(start, tiles, tl.num_programs(0)):\n" +
                                   inside),
                        arguments("n=64,B=16", {"x_ptr=64:fp32", "y_ptr=64:fp32"}));
    };
    const std::string body =
        "        r = t * B + tl.arange(0, B)\n        tl.store(y_ptr + r, tl.load(x_ptr + r))\n";
    expect_part(
        persistent("        # @sy.persistent_init begin\n        q = 1\n        # @sy.persistent_init end\n" +
                   body),
        "these lines run once per tile");
    expect_part(persistent(body + "    # @sy.producer_epilogue\n"),
                "this is after the loop over tiles (line ");
}

TEST(Directive, AFootprintThatHoldsNothingInAnyTileIsAnError) {
    const auto stated = [](const std::string& range) {
        return error_of(source("x_ptr, i_ptr, y_ptr, B: tl.constexpr",
                               "    # @sy.reads x_ptr[" + range +
                                   "]\n    pid = tl.program_id(0)\n    r = pid * B + tl.arange(0, B)\n"
                                   "    tl.store(y_ptr + r, tl.load(x_ptr + tl.load(i_ptr + r)))\n"),
                        arguments("B=8", {"x_ptr=24:fp32", "i_ptr=24:int32", "y_ptr=24:fp32"}));
    };
    expect_part(stated("(pid + 1) * B:pid * B"), "this states no element of `x_ptr` in any tile");
    expect_part(stated("24:100"), "this states no element of `x_ptr` in any tile");
}

TEST(Directive, AFootprintFarFromAnyKernelIsAnError) {
    const std::string text = "# @sy.reads x[0:1]\nX = 1\n\n\n" + Looping{}.text();
    expect_part(error_of(text, Looping::shapes()), "belongs inside a kernel or right above one");
}

TEST(Directive, AnyOrderOfALoopThatLoadsNothingIsAnError) {
    Looping kernel;
    kernel.after = "    for i in range(2):  # @sy.any_order\n        q = i\n";
    expect_part(kernel.error(), "this is no loop in which a tile loads");
}

TEST(Directive, AnyOrderIsTakenOfALoopThatNoTileOfALaunchRuns) {
    Looping kernel;
    kernel.after = "    for i in range(0):  # @sy.any_order\n        q = tl.load(k_ptr + i)\n";
    const Kernel k = analysed(kernel.text(), Looping::shapes());
    EXPECT_EQ(k.tiles.size(), 4U);
    EXPECT_EQ(k.warnings, std::vector<std::string>{});
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
