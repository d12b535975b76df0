// Integer tensors whose elements the launch gives: what is loaded from them is exact.
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

Arguments with_values(Arguments made, std::initializer_list<std::string> values) {
    for (const std::string& text : values) {
        const auto parsed = parse_values(text);
        EXPECT_TRUE(parsed.ok()) << text;
        if (parsed.ok()) {
            EXPECT_TRUE(set_values(made, parsed->first, parsed->second).ok());
        }
    }
    return made;
}

const std::string kSequences =
    "    z = tl.program_id(1)\n"
    "    begin = tl.load(cu_ptr + z)\n"
    "    end = tl.load(cu_ptr + z + 1)\n"
    "    r = begin + tl.program_id(0) * B + tl.arange(0, B)\n"
    "    if begin + tl.program_id(0) * B >= end:\n"
    "        return\n"
    "    x = tl.load(x_ptr + r, mask=r < end)\n"
    "    tl.store(y_ptr + r, x, mask=r < end)\n";

TEST(Values, OffsetsOfSequencesGiveExactRanges) {
    Arguments args = with_values(arguments("B=8", {"x_ptr=21:fp32", "y_ptr=21:fp32"}), {"cu_ptr=0,13,21"});
    args.grid = {2, 2, 1};
    const Kernel k = analysed(source("x_ptr, y_ptr, cu_ptr, B: tl.constexpr", kSequences), args);
    ASSERT_EQ(k.tiles.size(), 4U);
    EXPECT_EQ(k.tiles[0].writes.at("y_ptr"), (plan::Region{{0, 8}}));
    EXPECT_EQ(k.tiles[1].writes.at("y_ptr"), (plan::Region{{8, 13}}));
    EXPECT_EQ(k.tiles[2].writes.at("y_ptr"), (plan::Region{{13, 21}}));
    EXPECT_FALSE(k.tiles[3].writes.contains("y_ptr"));
    EXPECT_EQ(k.tiles[2].reads.at("cu_ptr"), (plan::Region{{1, 3}}));
    for (const Tile& tile : k.tiles) EXPECT_TRUE(tile.inexact_reads.empty() && tile.inexact_writes.empty());
}

TEST(Values, ABlockOfIndicesSaysWhichRowsAreRead) {
    const std::string body =
        "    i = tl.program_id(0) * 4 + tl.arange(0, 4)\n"
        "    row = tl.load(i_ptr + i, mask=i < 6, other=0)\n"
        "    c = tl.arange(0, 8)\n"
        "    x = tl.load(x_ptr + row[:, None] * 8 + c[None, :], mask=(i < 6)[:, None])\n"
        "    tl.store(y_ptr + i[:, None] * 8 + c[None, :], x, mask=(i < 6)[:, None])\n";
    Arguments args = with_values(arguments("", {"x_ptr=10x8:fp32", "y_ptr=6x8:fp32"}), {"i_ptr=9,2,3,4,0,7"});
    args.grid = {2, 1, 1};
    const Kernel k = analysed(source("x_ptr, y_ptr, i_ptr", body), args);
    const auto& first = k.tiles[0].read_boxes.at("x_ptr");
    ASSERT_EQ(first.size(), 2U);
    EXPECT_EQ(first[0], box(2, 5, 0, 8));
    EXPECT_EQ(first[1], box(9, 10, 0, 8));
    const auto& last = k.tiles[1].read_boxes.at("x_ptr");
    ASSERT_EQ(last.size(), 2U);
    EXPECT_EQ(last[0], box(0, 1, 0, 8));
    EXPECT_EQ(last[1], box(7, 8, 0, 8));
    EXPECT_TRUE(k.tiles[0].inexact_reads.empty());
}

TEST(Values, BlockPointersAndDescriptorsAreFollowedAsPointersAre) {
    const std::string rows =
        "    c = tl.arange(0, 8)\n"
        "    x = tl.load(x_ptr + row[:, None] * 8 + c[None, :])\n"
        "    tl.store(y_ptr + (tl.program_id(0) * 4 + tl.arange(0, 4))[:, None] * 8 + c[None, :], x)\n";
    const std::array<std::string, 3> loads{
        "    p = tl.make_block_ptr(i_ptr, (6,), (1,), (tl.program_id(0) * 4,), (4,), (0,))\n"
        "    row = tl.load(p, boundary_check=(0,))\n",
        "    p = tl.make_block_ptr(i_ptr, (6,), (1,), (0,), (4,), (0,))\n"
        "    p = tl.advance(p, (tl.program_id(0) * 4,))\n    row = tl.load(p, boundary_check=(0,))\n",
        "    d = tl.make_tensor_descriptor(i_ptr, [6], [1], [4])\n"
        "    row = d.load([tl.program_id(0) * 4])\n"};
    for (const std::string& load : loads) {
        Arguments args =
            with_values(arguments("", {"x_ptr=10x8:fp32", "y_ptr=8x8:fp32"}), {"i_ptr=9,2,3,4,1,7"});
        args.grid = {2, 1, 1};
        const Kernel k = analysed(source("x_ptr, y_ptr, i_ptr", load + rows), args);
        EXPECT_EQ(k.tiles[0].read_boxes.at("x_ptr").size(), 2U) << load;
        EXPECT_EQ(k.tiles[0].read_boxes.at("x_ptr")[0], box(2, 5, 0, 8)) << load;
        const auto& last = k.tiles[1].read_boxes.at("x_ptr");  // beyond the bounds there are zeros
        ASSERT_EQ(last.size(), 2U) << load;
        EXPECT_EQ(last[0], box(0, 2, 0, 8)) << load;
        EXPECT_EQ(last[1], box(7, 8, 0, 8)) << load;
        EXPECT_TRUE(k.tiles[1].inexact_reads.empty()) << load;
    }
}

TEST(Values, ADescriptorOfTheHostGivesAPageOfATable) {
    const std::string body =
        "    t = d.load([tl.program_id(0), 0])\n"
        "    page = tl.reshape(t, (4,))\n"
        "    c = tl.arange(0, 8)\n"
        "    x = tl.load(x_ptr + page[:, None] * 8 + c[None, :])\n"
        "    tl.store(y_ptr + tl.program_id(0) * 8 + c, tl.sum(x, 0))\n";
    Arguments args = with_values(arguments("", {"x_ptr=10x8:fp32", "y_ptr=2x8:fp32", "d=2x4:int32@1x4"}),
                                 {"d=1,2,3,4,9,8,0,7"});
    args.grid = {2, 1, 1};
    const Kernel k = analysed(source("x_ptr, y_ptr, d", body), args);
    EXPECT_EQ(k.tiles[0].reads.at("x_ptr"), box(1, 5, 0, 8));
    EXPECT_EQ(k.tiles[0].read_boxes.at("x_ptr").size(), 1U);
    const auto& second = k.tiles[1].read_boxes.at("x_ptr");
    ASSERT_EQ(second.size(), 2U);
    EXPECT_EQ(second[0], box(0, 1, 0, 8));
    EXPECT_EQ(second[1], box(7, 10, 0, 8));
}

TEST(Values, ATableThatALoopWalksIsFollowed) {
    const std::string body =
        "    n = tl.load(n_ptr + tl.program_id(0))\n"
        "    for p in range(0, n):\n"
        "        page = tl.load(t_ptr + tl.program_id(0) * 3 + p).to(tl.int64)\n"
        "        x = tl.load(x_ptr + page * 4 + tl.arange(0, 4))\n"
        "    tl.store(y_ptr + tl.program_id(0), 0)\n";
    Arguments args = with_values(arguments("", {"x_ptr=6x4:fp32", "y_ptr=2:fp32", "t_ptr=2x3:int64"}),
                                 {"n_ptr=3,1", "t_ptr=5,0,1,3,-1,-1"});
    args.grid = {2, 1, 1};
    const Kernel k = analysed(source("x_ptr, y_ptr, t_ptr, n_ptr", body), args);
    const auto& first = k.tiles[0].read_boxes.at("x_ptr");
    ASSERT_EQ(first.size(), 2U);
    EXPECT_EQ(first[0], box(0, 2, 0, 4));
    EXPECT_EQ(first[1], box(5, 6, 0, 4));
    EXPECT_EQ(k.tiles[1].reads.at("x_ptr"), box(3, 4, 0, 4));
}

TEST(Values, AnElementThatDoesNotExistIsNamedWithItsProgram) {
    Arguments args = with_values(arguments("", {"y_ptr=4:fp32"}), {"i_ptr=3,1"});
    args.grid = {3, 1, 1};
    EXPECT_EQ(
        error_of(source("y_ptr, i_ptr", "    tl.store(y_ptr + tl.load(i_ptr + tl.program_id(0)), 0)\n"),
                 args),
        "kernel.py:7:22: `tl.load(i_ptr + tl.program_id(0))` loads what lies 2 elements behind the first "
        "one of `i_ptr`, which has 2 elements, in program 2: mask the load, or give the tensor and the "
        "grid of the launch");
}

TEST(Values, MustFitTheirTensorWhichNobodyMayStoreTo) {
    const std::string text = source("y_ptr, i_ptr", "    tl.store(y_ptr + tl.load(i_ptr), 0)\n");
    const auto message = [&](std::initializer_list<std::string> tensors, const std::string& values) {
        Arguments args = with_values(arguments("", tensors), {values});
        args.grid = {1, 1, 1};
        return error_of(text, args);
    };
    EXPECT_EQ(
        message({"y_ptr=4:fp32", "i_ptr=3:int32"}, "i_ptr=1,2"),
        "kernel.py:6:14: `i_ptr` has 3 elements, but 2 values are given: give one for each, in row-major "
        "order");
    EXPECT_EQ(message({"y_ptr=4:fp32", "i_ptr=2:int8"}, "i_ptr=1,200"),
              "kernel.py:6:14: the value 200 of `i_ptr` does not fit int8: give its dtype with --tensor");
    EXPECT_EQ(
        message({"y_ptr=4:fp32", "i_ptr=2:fp32"}, "i_ptr=1,2"),
        "kernel.py:6:14: the values of `i_ptr` are given, but it is of fp32: only those of whole numbers "
        "can be, such as int32");
    Arguments stored = with_values({}, {"y_ptr=1,2"});
    stored.grid = {1, 1, 1};
    EXPECT_EQ(
        error_of(source("y_ptr", "    tl.store(y_ptr, 0)\n"), stored),
        "kernel.py:7:5: the values of `y_ptr` are given, but `tl.store(y_ptr, 0)` stores to it: leave its "
        "--values out");
    EXPECT_FALSE(parse_values("i_ptr").ok());
    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / ("syncopate-values-" + std::to_string(::getpid()));
    std::ofstream(file) << "0, 137\n-5\t2178,\n";
    const auto parsed = parse_values("i_ptr=@" + file.string());
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed->second, (std::vector<std::int64_t>{0, 137, -5, 2178}));
    std::ofstream(file) << "0\n1.5\n";
    EXPECT_EQ(parse_values("i_ptr=@" + file.string()).error().to_string(),
              file.string() + ":2: `1.5` is not a whole number");
    std::filesystem::remove(file);
    EXPECT_EQ(parse_values("i_ptr=@" + file.string()).error().location.file, file.string());
    EXPECT_FALSE(parse_values("i_ptr=1,x").ok());
    Arguments twice = with_values({}, {"i_ptr=1,2"});
    EXPECT_FALSE(set_values(twice, "i_ptr", {1, 2}).ok());
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
