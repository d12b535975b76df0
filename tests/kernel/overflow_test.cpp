// Results in the types that the device computes in: what wraps around, what is refused, and what is neither.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

using Boxes = std::vector<plan::Region>;

/// What tile `tile` of a launch of two programs reads of x_ptr at `index`, which follows from o = 0 … 7, then
/// 8 … 15, and from p, the program's id.
Boxes reads(const std::string& index, std::size_t tile, const std::string& lines = "") {
    const Kernel k =
        analysed(source("x_ptr, y_ptr, n, B: tl.constexpr",
                        "    p = tl.program_id(0)\n    o = p * B + tl.arange(0, B)\n" + lines +
                            "    i = " + index + "\n    tl.store(y_ptr + o, tl.load(x_ptr + i))\n"),
                 arguments("B=8,n=1000000", {"x_ptr=8192:fp32", "y_ptr=16:fp32"}));
    if (k.tiles.size() != 2) return {};
    const auto& boxes = k.tiles[tile].read_boxes.at("x_ptr");
    return {boxes.begin(), boxes.end()};
}

std::string refusal(const std::string& index, const std::string& lines = "",
                    const std::string& scalars = "B=8,n=1000000") {
    Arguments launch = arguments(scalars, {"x_ptr=8192:fp32", "y_ptr=16:fp32"});
    launch.grid = {2, 1, 1};
    return error_of(source("x_ptr, y_ptr, n, B: tl.constexpr",
                           "    p = tl.program_id(0)\n    o = p * B + tl.arange(0, B)\n" + lines +
                               "    i = " + index + "\n    tl.store(y_ptr + o, tl.load(x_ptr + i))\n"),
                    launch);
}

/// Without the number and what to do about it.
std::string told(const std::string& error) { return error.substr(0, error.find(", where")); }

const std::string kRows = R"(    row = tl.program_id(0)
    at = tl.arange(0, B)
    tl.store(y_ptr + row * B + at, tl.load(x_ptr + ROW * stride + at))
)";

Kernel rows(const std::string& row, const std::string& scalars, const std::string& stride) {
    std::string body = kRows;
    body.replace(body.find("ROW"), 3, row);
    return analysed(source("x_ptr, y_ptr, stride, B: tl.constexpr", body),
                    arguments(scalars, {"x_ptr=4x8:fp32:" + stride + ",1", "y_ptr=4x8:fp32"}));
}

TEST(Overflow, OfAnOffsetOfThirtyTwoBitsIsRefusedWithItsLineAndProgram) {
    EXPECT_EQ(error_of(source("x_ptr, y_ptr, stride, B: tl.constexpr",
                              "    row = tl.program_id(0)\n    at = tl.arange(0, B)\n"
                              "    far = row * stride\n"
                              "    tl.store(y_ptr + row * B + at, tl.load(x_ptr + far + at))\n"),
                       arguments("stride=1000000000,B=8", {"x_ptr=4x8:fp32:1000000000,1", "y_ptr=4x8:fp32"})),
              "kernel.py:9:11: `row * stride` leaves int32 in program 3, where it comes to 3000000000: cast "
              "an operand "
              "first, as in `.to(tl.int64)`; or give --grid, where the launch has fewer programs");
}

TEST(Overflow, OfARowTimesItsStrideIsNoneInSixtyFourBits) {
    const Kernel cast = rows("row.to(tl.int64)", "stride=1000000000,B=8", "1000000000");
    ASSERT_EQ(cast.tiles.size(), 4u);
    EXPECT_EQ(cast.tiles[3].read_boxes.at("x_ptr"), (Boxes{box(3, 4, 0, 8)}));
    // A stride of more than 32 bits is an int64 by itself.
    const Kernel wide = rows("row", "stride=3000000000,B=8", "3000000000");
    ASSERT_EQ(wide.tiles.size(), 4u);
    EXPECT_EQ(wide.tiles[3].read_boxes.at("x_ptr"), (Boxes{box(3, 4, 0, 8)}));
}

TEST(Overflow, IsNoneWhereTheLargestValueJustFits) {
    const Kernel fits = rows("row", "stride=715827882,B=8", "715827882");  // 3 times it is 2^31 - 2
    ASSERT_EQ(fits.tiles.size(), 4u);
    EXPECT_EQ(fits.tiles[3].read_boxes.at("x_ptr"), (Boxes{box(3, 4, 0, 8)}));
}

TEST(Overflow, OfASumOfBlocksIsRefused) {
    EXPECT_EQ(refusal("(o + 112).to(tl.int8) + o.to(tl.int8)"),
              "kernel.py:9:9: `(o + 112).to(tl.int8) + o.to(tl.int8)` leaves int8 in program 1, where it "
              "comes to 142: "
              "cast an operand first, as in `.to(tl.int64)`");
    EXPECT_EQ(reads("(o + 112).to(tl.int8) + o.to(tl.int16)", 1), (Boxes{{{128, 129}},
                                                                         {{130, 131}},
                                                                         {{132, 133}},
                                                                         {{134, 135}},
                                                                         {{136, 137}},
                                                                         {{138, 139}},
                                                                         {{140, 141}},
                                                                         {{142, 143}}}));
}

TEST(Overflow, OfAnAugmentedAssignmentIsShownWhole) {
    EXPECT_EQ(refusal("o + s", "    s = n\n    s *= n\n"),
              "kernel.py:10:5: `s *= n` leaves int32 in program 0, where it comes to 1000000000000: cast an "
              "operand "
              "first, as in `.to(tl.int64)`");
}

TEST(Overflow, OfUnsignedNumbersWrapsAround) {
    EXPECT_EQ(reads("o.to(tl.uint8) + 248", 1), (Boxes{{{0, 8}}}));
    EXPECT_EQ(reads("(8 - o.to(tl.uint16)) % 4096", 1), (Boxes{{{0, 1}}, {{4089, 4096}}}));
    EXPECT_EQ(reads("o + (p.to(tl.uint32) - 1) // 2147483648", 0), (Boxes{{{1, 9}}}));
    // A hash whose products leave 64 signed bits: 2654435769² mod 2³² is 3803075185.
    EXPECT_EQ(reads("o + (h * h) % 1024", 0, "    h = (p + 1).to(tl.uint32) * 2654435769\n"),
              (Boxes{{{2654435769ULL * 2654435769ULL % 4294967296ULL % 1024,
                       2654435769ULL * 2654435769ULL % 4294967296ULL % 1024 + 8}}}));
}

TEST(Overflow, OfWhatReachesNoAddressIsNone) {
    const std::string hash = "    s = n * 1103515245 + 12345\n    s = s * n + o\n";
    EXPECT_EQ(reads("o", 1, hash), (Boxes{{{8, 16}}}));
    // Nor of an offset that a loop computes for an iteration that does not come.
    const std::string loop =
        "    s = o\n    far = 0\n    for k in range(0, 3):\n        s += tl.load(x_ptr + o + far // "
        "1000000).to(tl.int32)\n"
        "        far += n * 1000\n";
    EXPECT_EQ(reads("o", 1, loop), (Boxes{{{8, 16}}, {{1008, 1016}}, {{2008, 2016}}}));
}

TEST(Overflow, OfAProgramThatDoesNotComeThereIsNone) {
    // Programs from 3 on overflow, and do nothing; those before them have exact footprints.
    for (const std::string body : {"    far = p * stride\n    if p < 3:\n        tl.store(y_ptr + o, "
                                   "tl.load(x_ptr + far + o - p * B))\n",
                                   "    far = p * stride\n    tl.store(y_ptr + o, tl.load(x_ptr + far + o - "
                                   "p * B, mask=p < 3), mask=p < 3)\n",
                                   "    far = p * stride\n    if (p < 3) and (far < 2000000001):\n"
                                   "        tl.store(y_ptr + o, tl.load(x_ptr + far + o - p * B))\n"}) {
        const std::string text = source("x_ptr, y_ptr, stride, B: tl.constexpr",
                                        "    p = tl.program_id(0)\n    o = p * B + tl.arange(0, B)\n" + body);
        Arguments launch =
            arguments("stride=1000000000,B=8", {"x_ptr=3x8:fp32:1000000000,1", "y_ptr=24:fp32"});
        launch.grid = {40, 1, 1};
        if (body.find("mask") != std::string::npos) {
            EXPECT_EQ(told(error_of(text, launch)), "kernel.py:9:11: `p * stride` leaves int32 in program 3")
                << body;
            continue;
        }
        const Kernel k = analysed(text, launch);
        ASSERT_EQ(k.tiles.size(), 40u) << body;
        EXPECT_EQ(k.tiles[2].read_boxes.at("x_ptr"), (Boxes{box(2, 3, 0, 8)}));
        EXPECT_TRUE(k.tiles[3].reads.empty());
    }
}

TEST(Overflow, OfOneIterationIsRefused) {
    const std::string loop =
        "    s = o\n    for k in range(0, 4):\n        s += tl.load(x_ptr + k * 1000 * n // "
        "n).to(tl.int32)\n";
    EXPECT_EQ(refusal("o", loop),
              "kernel.py:11:30: `k * 1000 * n` leaves int32 in program 0, where it comes to 3000000000: cast "
              "an operand "
              "first, as in `.to(tl.int64)`");
}

TEST(Overflow, OfElementsThatAreWorkedOutOneByOneIsSeen) {
    const std::string block =
        "    r = o[:, None] * 8 + tl.arange(0, 8)[None, :]\n    q = (r // 3) * (r % 5)\n";
    EXPECT_EQ(refusal("tl.max((q * 100 * n) // n, 1)", block),
              "kernel.py:11:17: `q * 100 * n` leaves int32 in program 0, where it comes to 2400000000: cast "
              "an operand first, "
              "as in `.to(tl.int64)`")
        << "some element";
    EXPECT_EQ(reads("tl.max(((q.to(tl.uint8) * 1) & 7) * 0, 1) + o", 1, block), (Boxes{{{8, 16}}}));
}

TEST(Overflow, IsNoneOfConstants) {
    // Those of the kernel are Python's, until a variable holds them.
    EXPECT_EQ(reads("o + B * 1000000000 // 4000000000", 1), (Boxes{{{10, 18}}}));
    EXPECT_EQ(reads("o + far // 4000000000", 1, "    far: tl.constexpr = B * 1000000000\n"),
              (Boxes{{{10, 18}}}));
    EXPECT_EQ(reads("o + far // 4000000000", 1, "    far = B * 1000000000\n"), (Boxes{{{10, 18}}}));
    EXPECT_EQ(refusal("o + far * far // n", "    far = B * 10000\n"),
              "kernel.py:10:13: `far * far` leaves int32 in program 0, where it comes to 6400000000: cast an "
              "operand "
              "first, as in `.to(tl.int64)`");
}

TEST(Overflow, OfTheNumberOfTilesIsRefusedWhereTilesFollowFromIt) {
    const std::string body =
        "    p = tl.program_id(0)\n    o = p * B + tl.arange(0, B)\n    tiles = tl.cdiv(n, B)\n"
        "    tl.store(y_ptr + o, tl.load(x_ptr + o + tiles))\n";
    EXPECT_EQ(told(error_of(source("x_ptr, y_ptr, n, B: tl.constexpr", body),
                            arguments("B=8,n=2147483644", {"x_ptr=8192:fp32", "y_ptr=16:fp32"}))),
              "kernel.py:9:13: `tl.cdiv(n, B)` leaves int32 in program 0");
}

TEST(Overflow, TypesFollowWhatOperandsAreOf) {
    // int32 and uint32: what is below 0 is large.
    EXPECT_EQ(reads("tl.where((o - 12) < p.to(tl.uint32) + 4, o, o + 100)", 1),
              (Boxes{{{12, 16}}, {{108, 112}}}));
    EXPECT_EQ(reads("tl.minimum(o - 12, p.to(tl.uint32) + 100)", 1), (Boxes{{{0, 4}}, {{101, 102}}}));
    // A constant that is compared is of a type of its own.
    EXPECT_EQ(reads("tl.where(o.to(tl.uint16) > -8, o, 0)", 1), (Boxes{{{8, 16}}}));
    EXPECT_EQ(reads("tl.where(o.to(tl.uint32) > -8, o, 0)", 1), (Boxes{{{0, 1}}}));
    // Conditions are of one bit, unless they are cast.
    EXPECT_EQ(reads("o + ((o < 9) + (o < 10)) * 64", 1), (Boxes{{{8, 9}}, {{10, 16}}, {{73, 74}}}));
    EXPECT_EQ(reads("o + ((o < 9).to(tl.int32) + (o < 10).to(tl.int32)) * 64", 1),
              (Boxes{{{10, 16}}, {{73, 74}}, {{136, 137}}}));
    // Sums of a block are of 32 bits at least.
    EXPECT_EQ(reads("o + tl.sum(o.to(tl.int8) * 8, 0)", 1), (Boxes{{{744, 752}}}));
    EXPECT_EQ(reads("o + tl.sum(o * (n * 100), 0, dtype=tl.int64) // 100000000", 1), (Boxes{{{100, 108}}}));
    // ~x of an unsigned number has all its bits.
    EXPECT_EQ(reads("~o.to(tl.uint8)", 1), (Boxes{{{240, 248}}}));
}

TEST(Overflow, OfAnUnsignedOffsetThatIsSubtractedLeadsFarAhead) {
    const auto at = [](const std::string& offset) {
        const Kernel k = analysed(source("x_ptr, y_ptr, B: tl.constexpr",
                                         "    o = tl.program_id(0) * B + tl.arange(0, B)\n"
                                         "    tl.store(y_ptr + o, tl.load(x_ptr + 300 - " +
                                             offset + "))\n"),
                                  arguments("B=8", {"x_ptr=8192:fp32", "y_ptr=16:fp32"}));
        return k.tiles.size() == 2 ? k.tiles[1].reads.at("x_ptr") : plan::Region{};
    };
    EXPECT_EQ(at("o"), (plan::Region{{285, 293}}));
    EXPECT_EQ(at("o.to(tl.uint8)"), (plan::Region{{541, 549}}));  // 300 + 256 - o
}

TEST(Overflow, ParametersAreOfTheTypeThatTheyAreAnnotatedWith) {
    const auto at = [](const std::string& annotation) {
        return source("x_ptr, y_ptr, stride" + annotation + ", B: tl.constexpr",
                      "    row = tl.program_id(0)\n    at = tl.arange(0, B)\n"
                      "    tl.store(y_ptr + row * B + at, tl.load(x_ptr + row * stride + at))\n");
    };
    const Arguments launch =
        arguments("stride=1000000000,B=8", {"x_ptr=4x8:fp32:1000000000,1", "y_ptr=4x8:fp32"});
    EXPECT_EQ(analysed(at(": tl.int64"), launch).tiles.size(), 4u);
    EXPECT_EQ(analysed(at(": 'i64'"), launch).tiles.size(), 4u);
    EXPECT_EQ(told(error_of(at(": int"), launch)),
              "kernel.py:9:52: `row * stride` leaves int32 in program 3");
    EXPECT_EQ(
        error_of(at(": tl.int16"), launch),
        "kernel.py:6:21: `stride` is 1000000000, which does not fit int16 as it is annotated: annotate it as "
        "tl.int64");
}

TEST(Overflow, OfAStatedFootprintIsNone) {
    const Kernel k = analysed(
        source("x_ptr, y_ptr, stride, B: tl.constexpr",
               "    # @sy.reads x_ptr[row * stride // 1000000000:row * stride // 1000000000 + 1, 0:B]\n"
               "    row = tl.program_id(0)\n    at = tl.arange(0, B)\n"
               "    tl.store(y_ptr + row * B + at, tl.load(x_ptr + row * stride + at))\n"),
        arguments("stride=1000000000,B=8", {"x_ptr=4x8:fp32:1000000000,1", "y_ptr=4x8:fp32"}));
    ASSERT_EQ(k.tiles.size(), 4u);
    EXPECT_EQ(k.tiles[3].read_boxes.at("x_ptr"), (Boxes{box(3, 4, 0, 8)}));
}

TEST(Overflow, OfElementsThatTheLaunchGivesIsOfTheirType) {
    Arguments launch = arguments("B=8", {"x_ptr=8192:fp32", "i_ptr=8:int8", "y_ptr=8:fp32"});
    launch.tensors.at("i_ptr").values = {100, 1, 2, 3, 4, 5, 6, 7};
    launch.grid = {1, 1, 1};
    const auto at = [](const std::string& index) {
        return source("x_ptr, i_ptr, y_ptr, B: tl.constexpr",
                      "    o = tl.arange(0, B)\n    i = tl.load(i_ptr + o)\n"
                      "    tl.store(y_ptr + o, tl.load(x_ptr + " +
                          index + "))\n");
    };
    EXPECT_EQ(told(error_of(at("(i + i)"), launch)), "kernel.py:9:42: `i + i` leaves int8 in program 0");
    const Kernel k = analysed(at("i.to(tl.int32) + i"), launch);
    ASSERT_EQ(k.tiles.size(), 1u);
    EXPECT_EQ(k.tiles[0].reads.at("x_ptr")[0].end, 201);
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
