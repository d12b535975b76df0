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

TEST(Directive, HostDirectivesBelongInHostCode) {
    EXPECT_EQ(error_after("# @sy.tile_id", "# @sy.kernel_launch"),
              "kernel.py:31:36: `@sy.kernel_launch` belongs in host code, not in a kernel: move it there");
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
