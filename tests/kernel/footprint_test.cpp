#include <set>

#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

using Boxes = std::vector<plan::Region>;

TEST(Footprint, PointerMatmulReadsAndWritesItsTile) {
    const Kernel k = analysed(example("matmul_pointers.py"), pointers(256, 192, 96));
    ASSERT_EQ(k.tiles.size(), 12u);
    const Tile& tile = k.tiles[3];  // group of two rows: ids 0..5 go down the columns
    EXPECT_EQ(tile.coord, (std::vector<std::int64_t>{1, 1}));
    EXPECT_EQ(tile.reads.at("a_ptr"), box(64, 128, 0, 96));
    EXPECT_EQ(tile.reads.at("b_ptr"), box(0, 96, 64, 128));
    EXPECT_EQ(tile.writes.at("c_ptr"), box(64, 128, 64, 128));
}

TEST(Footprint, RowsThatWrapAroundAreABoxOfTheirOwn) {
    const Kernel k = analysed(example("matmul_pointers.py"), pointers(200, 144, 90));
    const Tile& last = k.tiles[k.tiles.size() - 1];
    EXPECT_EQ(last.writes.at("c_ptr"), box(192, 200, 128, 144));
    EXPECT_EQ(last.reads.at("a_ptr"), box(0, 200, 0, 90));
    EXPECT_EQ(last.read_boxes.at("a_ptr"), (Boxes{box(0, 56, 0, 90), box(192, 200, 0, 90)}));
    EXPECT_EQ(last.read_boxes.at("b_ptr"), (Boxes{box(0, 90, 0, 48), box(0, 90, 128, 144)}));
}

TEST(Footprint, ATensorSmallerThanABlockIsReadWhole) {
    const Kernel k = analysed(example("matmul_pointers.py"), pointers(5, 7, 3));
    ASSERT_EQ(k.tiles.size(), 1u);
    EXPECT_EQ(k.tiles[0].read_boxes.at("a_ptr"), (Boxes{box(0, 5, 0, 3)}));
    EXPECT_EQ(k.tiles[0].write_boxes.at("c_ptr"), (Boxes{box(0, 5, 0, 7)}));
}

TEST(Footprint, DeviceDescriptorsClipToTheTensor) {
    const Kernel k = analysed(example("matmul_persistent_device_tma.py"), descriptors(200, 144, 90, false));
    ASSERT_EQ(k.tiles.size(), 12u);
    EXPECT_EQ(k.num_programs(), 5);
    EXPECT_EQ(k.tiles[11].writes.at("c_ptr"), box(192, 200, 128, 144));
    EXPECT_EQ(k.tiles[11].reads.at("a_ptr"), box(192, 200, 0, 90));
    EXPECT_EQ(k.tiles[11].program, 1);
}

TEST(Footprint, HostDescriptorsClipToTheTensor) {
    const Kernel k = analysed(example("matmul_persistent_host_tma.py"), descriptors(200, 144, 90, true));
    ASSERT_EQ(k.tiles.size(), 12u);
    EXPECT_EQ(k.axes.size(), 2u);
    EXPECT_EQ(k.axes[0].name, "M");
    EXPECT_EQ(k.axes[1].count, 3);
    EXPECT_EQ(k.tiles[11].reads.at("b_desc"), box(128, 144, 0, 90));
    EXPECT_EQ(k.tiles[11].writes.at("c_desc"), box(192, 200, 128, 144));
}

TEST(Footprint, AnAxisOfExtentOneTakesNoOffsetFromOneThatHasRoom) {
    const std::string text = source(
        "x_ptr, y_ptr",
        "    r = tl.program_id(0) * 8 + tl.arange(0, 8)\n    tl.store(y_ptr + r, tl.load(x_ptr + r))\n");
    for (const std::string shape : {"1x24:fp32:1,1", "1x24:fp32:24,1", "24x1:fp32:1,1", "24x1:fp32:1,24"}) {
        Arguments args = arguments("", {"x_ptr=" + shape, "y_ptr=24:fp32"});
        const Kernel k = analysed(text, args, "k");
        ASSERT_EQ(k.tiles.size(), 3U) << shape;
        const plan::Region of_first_axis{{8, 16}, {0, 1}}, of_second{{0, 1}, {8, 16}};
        EXPECT_EQ(k.tiles[1].reads.at("x_ptr"), shape.starts_with("24") ? of_first_axis : of_second) << shape;
    }
    const plan::Region last{{0, 1}, {5, 8}, {0, 3}};
    for (const char* strides : {"3,3,1", "1,3,1", "2,3,1", "24,3,1", "100,3,1"}) {
        Arguments args = arguments("", {std::string("x_ptr=1x8x3:fp32:") + strides, "y_ptr=24:fp32"});
        EXPECT_EQ(analysed(text, args, "k").tiles[2].reads.at("x_ptr"), last) << strides;
    }
    for (const char* strides : {"3,3,1", "3,1,1", "3,2,1", "3,24,1"}) {
        Arguments args = arguments("", {std::string("x_ptr=8x1x3:fp32:") + strides, "y_ptr=24:fp32"});
        EXPECT_EQ(analysed(text, args, "k").tiles[2].reads.at("x_ptr"),
                  (plan::Region{{5, 8}, {0, 1}, {0, 3}}))
            << strides;
    }
    // Descriptors that the kernel makes have the strides of the launch.
    const std::string described =
        source("x_ptr, y_ptr",
               "    d = tl.make_tensor_descriptor(x_ptr, [1, 8, 4], [4, 4, 1], [1, 2, 4])\n"
               "    i = tl.program_id(0)\n    v = d.load([0, i * 2, 0])\n    tl.store(y_ptr + i, 1.0)\n");
    Arguments args = arguments("", {"x_ptr=1x8x4:fp32:4,4,1", "y_ptr=4:fp32"});
    EXPECT_EQ(analysed(described, args, "k").tiles[3].reads.at("x_ptr"),
              (plan::Region{{0, 1}, {6, 8}, {0, 4}}));
}

TEST(Footprint, EveryTileIsWrittenOnce) {
    for (const Kernel& k :
         {analysed(example("matmul_pointers.py"), pointers(200, 144, 90)),
          analysed(example("matmul_persistent_host_tma.py"), descriptors(200, 144, 90, true))}) {
        std::int64_t elements = 0;
        for (const Tile& tile : k.tiles) elements += plan::num_elements(tile.writes.begin()->second);
        EXPECT_EQ(elements, 200 * 144);
    }
}

TEST(Footprint, ATwoDimensionalGridFollowsFromWhatIsWritten) {
    const std::string text =
        source("x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr",
               "    pid_m = tl.program_id(0)\n    pid_n = tl.program_id(1)\n"
               "    rm = pid_m * BM + tl.arange(0, BM)\n    rn = pid_n * BN + tl.arange(0, BN)\n"
               "    mask = (rm[:, None] < M) & (rn[None, :] < N)\n    offs = rm[:, None] * N + rn[None, :]\n"
               "    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=mask), mask=mask)\n");
    const Kernel k =
        analysed(text, arguments("M=100,N=70,BM=32,BN=32", {"x_ptr=100x70:fp32", "y_ptr=100x70:fp32"}));
    EXPECT_EQ(k.grid, (std::array<std::int64_t, 3>{4, 3, 1}));
    ASSERT_EQ(k.tiles.size(), 12u);
    EXPECT_EQ(k.tiles[5].coord, (std::vector<std::int64_t>{1, 1}));
    EXPECT_EQ(k.tiles[11].reads.at("x_ptr"), box(96, 100, 64, 70));
    ASSERT_EQ(sites_of(k).tile_ids.size(), 1u);
    EXPECT_EQ(sites_of(k).tile_ids[0].kind, TileIdSite::Kind::rebind_grid);
    EXPECT_EQ(sites_of(k).tile_ids[0].variables, (std::vector<std::string>{"pid_m", "pid_n"}));
    EXPECT_EQ(slice(k, sites_of(k).tile_ids[0].anchor), "pid_n = tl.program_id(1)");
}

TEST(Footprint, AFlatRangeOverATensorOfTwoAxesIsRowsAndPartsOfRows) {
    const std::string text =
        source("x_ptr, y_ptr, n, B: tl.constexpr",
               "    offs = tl.program_id(0) * B + tl.arange(0, B)\n"
               "    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)\n");
    const Kernel k = analysed(text, arguments("n=100,B=32", {"x_ptr=10x10:fp32", "y_ptr=100:fp32"}));
    ASSERT_EQ(k.tiles.size(), 4u);
    EXPECT_EQ(k.tiles[1].read_boxes.at("x_ptr"),
              (Boxes{box(3, 4, 2, 10), box(4, 6, 0, 10), box(6, 7, 0, 4)}));
    EXPECT_EQ(k.tiles[3].writes.at("y_ptr"), (plan::Region{{96, 100}}));
    EXPECT_EQ(sites_of(k).tile_ids[0].kind, TileIdSite::Kind::entry);
    ASSERT_EQ(sites_of(k).tile_ids[0].program_ids.size(), 1u);
    EXPECT_EQ(slice(k, sites_of(k).tile_ids[0].program_ids[0].call), "tl.program_id(0)");
}

TEST(Footprint, BlockPointersAdvanceThroughTheLoop) {
    const std::string text =
        source("a_ptr, c_ptr, M, K, BM: tl.constexpr, BK: tl.constexpr",
               "    pid = tl.program_id(0)\n"
               "    a = tl.make_block_ptr(a_ptr, shape=(M, K), strides=(K, 1), offsets=(pid * BM, 0), "
               "block_shape=(BM, BK), order=(1, 0))\n"
               "    acc = tl.zeros((BM,), dtype=tl.float32)\n"
               "    for k in range(0, K, BK):\n        acc += tl.sum(tl.load(a, boundary_check=(0, 1)), "
               "axis=1)\n        a = tl.advance(a, (0, BK))\n"
               "    rows = pid * BM + tl.arange(0, BM)\n    tl.store(c_ptr + rows, acc, mask=rows < M)\n");
    const Kernel k =
        analysed(text, arguments("M=100,K=50,BM=32,BK=16", {"a_ptr=100x50:fp32", "c_ptr=100:fp32"}));
    ASSERT_EQ(k.tiles.size(), 4u);
    EXPECT_EQ(k.tiles[3].reads.at("a_ptr"), box(96, 100, 0, 50));
    ASSERT_TRUE(!k.loops.empty());
    ASSERT_EQ(k.loops.front().slices.size(), 1u);
    EXPECT_EQ(k.loops.front().slices[0].step, 16);
    EXPECT_TRUE(k.loops.front().divisible);  // its iterations are counted by steps of BK
    EXPECT_EQ(sites_of(k).loops.front().bound, "K");
    EXPECT_EQ(sites_of(k).loops.front().step, "BK");
}

TEST(Footprint, ALoopThatStridesOverItsReductionReadsOneBoxPerIteration) {
    const std::string text = source(
        "a_ptr, c_ptr, M, K, BM: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr",
        "    pid = tl.program_id(0)\n    pid_k = tl.program_id(1)\n    rm = pid * BM + tl.arange(0, BM)\n"
        "    rk = pid_k * BK + tl.arange(0, BK)\n    p = a_ptr + rm[:, None] * K + rk[None, :]\n    acc = "
        "tl.zeros((BM,), tl.float32)\n"
        "    for k in range(0, tl.cdiv(K, BK * SPLIT)):\n        acc += tl.sum(tl.load(p), 1)\n        p += "
        "BK * SPLIT\n"
        "    tl.atomic_add(c_ptr + rm, acc)\n");
    Arguments args = arguments("M=32,K=64,BM=16,BK=8,SPLIT=2", {"a_ptr=32x64:fp32", "c_ptr=32:fp32"});
    args.grid = {2, 2, 1};
    const Kernel k = analysed(text, args);
    EXPECT_EQ(k.tiles[0].read_boxes.at("a_ptr"),
              (Boxes{box(0, 16, 0, 8), box(0, 16, 16, 24), box(0, 16, 32, 40), box(0, 16, 48, 56)}));
    EXPECT_EQ(k.tiles[0].reads.at("a_ptr"), box(0, 16, 0, 56));
    EXPECT_TRUE(k.find_param("c_ptr")->read && k.find_param("c_ptr")->written);
}

TEST(Footprint, ALoopThatIsNotAffineIsRunIterationByIteration) {
    const std::string text = source(
        "x_ptr, y_ptr, B: tl.constexpr",
        "    offs = tl.arange(0, B)\n    at = 1\n    for i in range(4):\n"
        "        tl.store(y_ptr + at * B + offs, tl.load(x_ptr + at * B + offs))\n        at = at * 2\n"
        "    at = 0\n");
    const Kernel k = analysed(text, arguments("B=4", {"x_ptr=100:fp32", "y_ptr=100:fp32"}));
    EXPECT_EQ(k.tiles[0].read_boxes.at("x_ptr"), (Boxes{{{4, 12}}, {{16, 20}}, {{32, 36}}}));
}

TEST(Footprint, WhereAndMinimumKeepTheirPieces) {
    const std::string text = source(
        "x_ptr, y_ptr, M, B: tl.constexpr",
        "    pid = tl.program_id(0)\n    r = pid * B + tl.arange(0, B)\n    a = tl.where(r < M, r, 0)\n"
        "    b = tl.minimum(r, M - 1)\n    v = tl.load(x_ptr + a) + tl.load(x_ptr + b)\n    tl.store(y_ptr + "
        "r, v, mask=r < M)\n");
    const Kernel k = analysed(text, arguments("M=10,B=8", {"x_ptr=10:fp32", "y_ptr=10:fp32"}));
    ASSERT_EQ(k.tiles.size(), 2u);
    EXPECT_EQ(k.tiles[1].read_boxes.at("x_ptr"), (Boxes{{{0, 1}}, {{8, 10}}}));
}

TEST(Footprint, ACastToATypeThatIsTooSmallKeepsItsLowBits) {
    const auto reads = [](const std::string& index) {
        const Kernel k = analysed(source("x_ptr, y_ptr, B: tl.constexpr",
                                         "    o = tl.program_id(0) * B + tl.arange(0, B)\n    i = " + index +
                                             "\n    tl.store(y_ptr + o, tl.load(x_ptr + i, mask=i >= 0))\n"),
                                  arguments("B=8", {"x_ptr=4096:fp32", "y_ptr=16:fp32"}));
        const auto of = [&k](std::size_t tile) {
            const auto& boxes = k.tiles.at(tile).read_boxes.at("x_ptr");
            return Boxes(boxes.begin(), boxes.end());
        };
        return std::pair(of(0), of(1));
    };
    EXPECT_EQ(reads("(o + 100).to(tl.int8)"), std::pair(Boxes({{{100, 108}}}), Boxes({{{108, 116}}})));
    EXPECT_EQ(reads("(o + 116).to(tl.int8).to(tl.int32) + 128"),
              std::pair(Boxes({{{244, 252}}}), Boxes({{{0, 4}}, {{252, 256}}})));
    EXPECT_EQ(reads("(o + 244).to(tl.uint8)"),
              std::pair(Boxes({{{244, 252}}}), Boxes({{{0, 4}}, {{252, 256}}})));
    EXPECT_EQ(reads("(o - 4).to(tl.uint16) % 4096"),
              std::pair(Boxes({{{0, 4}}, {{4092, 4096}}}), Boxes({{{4, 12}}})));
    EXPECT_EQ(reads("tl.where((o - 4).to(tl.uint32) < 8, o, -1)"),
              std::pair(Boxes({{{4, 8}}}), Boxes({{{8, 12}}})));
}

TEST(Footprint, ABranchOnLoadedDataTakesBothSides) {
    const std::string text = source(
        "x_ptr, y_ptr, flag_ptr, B: tl.constexpr",
        "    r = tl.arange(0, B)\n    if tl.load(flag_ptr) > 0:\n        v = tl.load(x_ptr + r)\n    else:\n"
        "        v = tl.load(x_ptr + B + r)\n    tl.store(y_ptr + r, v)\n");
    const Kernel k = analysed(text, arguments("B=8", {"x_ptr=32:fp32", "y_ptr=8:fp32", "flag_ptr=1:int32"}));
    EXPECT_EQ(k.tiles[0].read_boxes.at("x_ptr"), (Boxes{{{0, 16}}}));
}

constexpr const char* kWide = R"(import triton
import triton.language as tl


@triton.jit
def k(a_desc, bw_desc, bn_desc, cw_desc, cn_desc, M, N, K, N_WIDE, BM: tl.constexpr, BNW: tl.constexpr, BNN: tl.constexpr, BK: tl.constexpr, NUM_SMS: tl.constexpr):
    start_pid = tl.program_id(0)
    rows = tl.cdiv(M, BM)
    num_wide = rows * (N_WIDE // BNW)
    num_tiles = num_wide + rows * tl.cdiv(N - N_WIDE, BNN)
    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS):
        if tile_id < num_wide:
            m = (tile_id % rows) * BM
            n = (tile_id // rows) * BNW
            acc = tl.zeros((BM, BNW), dtype=tl.float32)
            for k in range(tl.cdiv(K, BK)):
                acc = tl.dot(a_desc.load([m, k * BK]), bw_desc.load([n, k * BK]).T, acc)
            left, right = acc.reshape((BM, 2, BNW // 2)).permute((0, 2, 1)).split()
            cw_desc.store([m, n], left.to(cw_desc.dtype))
            cw_desc.store([m, n + BNW // 2], right.to(cw_desc.dtype))
        else:
            t = tile_id - num_wide
            m = (t % rows) * BM
            n = N_WIDE + (t // rows) * BNN
            acc = tl.zeros((BM, BNN), dtype=tl.float32)
            for k in range(tl.cdiv(K, BK)):
                acc = tl.dot(a_desc.load([m, k * BK]), bn_desc.load([n, k * BK]).T, acc)
            cn_desc.store([m, n], acc.to(cn_desc.dtype))
)";

TEST(Footprint, TwoPathsWithTheirOwnBlocksAreNumberedByTheLoop) {
    const Kernel k = analysed(
        kWide,
        arguments("M=256,N=704,K=64,N_WIDE=512,BM=128,BNW=256,BNN=128,BK=32,NUM_SMS=3",
                  {"a_desc=256x64:bf16@128x32", "bw_desc=704x64:bf16@256x32", "bn_desc=704x64:bf16@128x32",
                   "cw_desc=256x704:bf16@128x128", "cn_desc=256x704:bf16@128x128"}));
    ASSERT_EQ(k.tiles.size(), 8u);  // 2 × 2 wide, 2 × 2 narrow
    ASSERT_EQ(k.axes.size(), 1u);
    EXPECT_EQ(k.axes[0].name, "T");
    EXPECT_EQ(k.tiles[3].writes.at("cw_desc"), box(128, 256, 256, 512));
    EXPECT_EQ(k.tiles[3].reads.at("bw_desc"), box(256, 512, 0, 64));
    EXPECT_EQ(k.tiles[7].writes.at("cn_desc"), box(128, 256, 640, 704));
    EXPECT_FALSE(k.tiles[7].writes.contains("cw_desc"));
    ASSERT_EQ(k.loops.size(), 2u);
    EXPECT_EQ(k.trips_of(k.tiles[3], 0), 2);  // a wide tile runs the first loop only
    EXPECT_EQ(k.trips_of(k.tiles[3], 1), 0);
    ASSERT_EQ(sites_of(k).tile_ids.size(), 1u);
    EXPECT_EQ(sites_of(k).tile_ids[0].variables[0], "tile_id");
    EXPECT_TRUE(sites_of(k).tile_ids[0].guards_reads && sites_of(k).tile_ids[0].guards_writes);
    EXPECT_TRUE(slice(k, sites_of(k).last_store).starts_with("if tile_id < num_wide:"));
}

TEST(Footprint, TheRealShapeIsAnalysedForEveryTile) {
    const Kernel k =
        analysed(example("matmul_persistent_host_tma.py"),
                 arguments("M=8192,N=3584,K=8192,BLOCK_M=128,BLOCK_N=128,BLOCK_K=64,GROUP_M=8,NUM_SMS=132",
                           {"a_desc=8192x8192:bf16@128x64", "b_desc=3584x8192:bf16@128x64",
                            "c_desc=8192x3584:bf16@128x128"}));
    EXPECT_EQ(k.tiles.size(), 1792u);
    EXPECT_EQ(k.num_programs(), 132);
    EXPECT_EQ(k.loops.front().trips, 128);
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
