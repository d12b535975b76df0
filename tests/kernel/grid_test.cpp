// The launch grid: found where tile counts and stores agree on it, and asked for otherwise.
#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

using Grid = std::array<std::int64_t, 3>;

const std::string kRows =
    "    pid = tl.program_id(0)\n"
    "    at = pid * B + tl.arange(0, B)\n";

TEST(Grid, IsTheNumberOfProgramsThatTogetherStoreEachElementOnce) {
    const std::string text =
        source("y_ptr, n, B: tl.constexpr", kRows + "    tl.store(y_ptr + at, 1.0, mask=at < n)\n");
    EXPECT_EQ(analysed(text, arguments("n=1000,B=8", {"y_ptr=1000:fp32"})).grid, (Grid{125, 1, 1}));
}

TEST(Grid, OfKernelsInWhichAProgramStoresNothingIsAskedFor) {
    for (const std::string hole : {"0", "77", "124"}) {
        const std::string text =
            source("y_ptr, n, B: tl.constexpr",
                   kRows + "    if pid == " + hole +
                       ":\n        return\n    tl.store(y_ptr + at, 1.0, mask=at < n)\n");
        const std::string message = error_of(text, arguments("n=1000,B=8", {"y_ptr=1000:fp32"}));
        EXPECT_NE(message.find("leave y_ptr["), std::string::npos) << message;
        EXPECT_NE(message.find("give --grid"), std::string::npos) << message;
    }
}

// A store that never runs makes its loop look like one over tiles, and the loop's step like a number of programs.
TEST(Grid, OfALoopWhoseOnlyStoreIsDeadIsTheSameAsWithoutIt) {
    const std::string dead =
        "        if KEEP:\n"
        "            tl.store(p_ptr + at, total)\n";
    const auto body = [](const std::string& in_loop) {
        return "    k, t, h = tl.program_id(0), tl.program_id(1), tl.program_id(2)\n"
               "    y_ptr += k * T * H * V + h * V\n"
               "    rows, cols = t * BT + tl.arange(0, BT), tl.arange(0, V)\n"
               "    total = tl.zeros((BT, V), tl.float32)\n"
               "    for s in range(t * BT, min((t + 1) * BT, T), BT):\n"
               "        at = (s + tl.arange(0, BT))[:, None] * (H * V) + h * V + cols[None, :]\n"
               "        total += tl.load(x_ptr + at)\n" +
               in_loop +
               "    tl.store(y_ptr + rows[:, None] * (H * V) + cols[None, :], total, mask=rows[:, None] < "
               "T)\n";
    };
    const std::string signature =
        "x_ptr, y_ptr, p_ptr, T, H: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, KEEP: tl.constexpr";
    const Arguments args =
        arguments("p_ptr=None,T=24,H=2,V=16,BT=8,KEEP=False", {"x_ptr=24x2x16:fp32", "y_ptr=1x24x2x16:fp32"});
    for (const std::string& in_loop : {std::string(), dead})
        EXPECT_EQ(analysed(source(signature, body(in_loop)), args).grid, (Grid{1, 3, 2})) << in_loop;
}

TEST(Grid, OfProgramsThatStoreBehindTheTensorIsAskedFor) {
    // Two rows a program, of which the last one has but one: the store is not masked.
    const std::string body =
        "    r = tl.program_id(0) * 2 + tl.arange(0, 2)\n"
        "    tl.store(y_ptr + r[:, None] * 8 + tl.arange(0, 8)[None, :], 1.0)\n";
    const std::string message = error_of(source("y_ptr", body), arguments("", {"y_ptr=5x8:fp32"}));
    EXPECT_NE(message.find("tile 2 of a grid of 3 programs stores to memory outside of y_ptr (shape 5x8, "
                           "strides 8,1)"),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("give --grid"), std::string::npos) << message;
}

/// Rows of heads of batches, each at the place that the strides give.
std::string nested_axes(const std::string& mask) {
    return "    b, h, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)\n"
           "    r = b * B + tl.arange(0, B)\n"
           "    at = z * sz + h * sh + r[:, None] * sl + tl.arange(0, D)[None, :]\n"
           "    tl.store(o_ptr + at, 1.0" +
           mask + ")\n";
}
const std::string kNested = "o_ptr, L, sz, sh, sl, D: tl.constexpr, B: tl.constexpr";

TEST(Grid, OfHeadsThatRunOnIntoTheNextBatchEndsWhereThatBegins) {
    const std::string masked = source(kNested, nested_axes(", mask=r[:, None] < L"));
    const std::string bare = source(kNested, nested_axes(""));
    const auto grid = [](const std::string& text, const std::string& scalars, const std::string& shape) {
        return analysed(text, arguments("D=16,B=8," + scalars, {"o_ptr=" + shape + ":fp16"})).grid;
    };
    const std::string heads_first = "L=32,sz=2048,sh=512,sl=16", rows_first = "L=32,sz=2048,sh=16,sl=64";
    for (const std::string& text : {masked, bare}) {
        EXPECT_EQ(grid(text, heads_first, "2x4x32x16"), (Grid{4, 4, 2}));
        EXPECT_EQ(grid(text, heads_first, "1x4x32x16"), (Grid{4, 4, 1}));
        EXPECT_EQ(grid(text, heads_first, "5x4x32x16"), (Grid{4, 4, 5}));
        EXPECT_EQ(grid(text, rows_first, "2x32x4x16"), (Grid{4, 4, 2}));
        EXPECT_EQ(grid(text, rows_first, "3x32x4x16"), (Grid{4, 4, 3}));
    }
    EXPECT_EQ(grid(masked, "L=30,sz=1920,sh=480,sl=16", "2x4x30x16"), (Grid{4, 4, 2})) << "rows left over";
    EXPECT_EQ(grid(bare, "L=32,sz=512,sh=1024,sl=16", "4x2x32x16"), (Grid{4, 4, 2}))
        << "batches inside heads";
    EXPECT_EQ(grid(masked, "L=8,sz=1024,sh=128,sl=16", "3x8x8x16"), (Grid{1, 8, 3})) << "one block";
}

// b * HEADS + h: the axis goes on elsewhere at the next batch, where the axis of blocks ends.
TEST(Grid, OfAnAxisThatIsHeadsAndBatchesAtOnceIsNotCutShort) {
    const std::string body =
        "    b, hz = tl.program_id(0), tl.program_id(1)\n"
        "    z, h = hz // H, hz % H\n"
        "    r = b * B + tl.arange(0, B)\n"
        "    at = z * L * H * D + h * D + r[:, None] * (H * D) + tl.arange(0, D)[None, :]\n"
        "    tl.store(o_ptr + at, 1.0)\n";
    const std::string text = source("o_ptr, L, H: tl.constexpr, D: tl.constexpr, B: tl.constexpr", body);
    EXPECT_EQ(analysed(text, arguments("L=32,H=2,D=16,B=8", {"o_ptr=2x32x2x16:fp16"})).grid, (Grid{4, 4, 1}));
    EXPECT_EQ(analysed(text, arguments("L=48,H=3,D=16,B=16", {"o_ptr=5x48x3x16:fp16"})).grid,
              (Grid{3, 15, 1}));
}

// Where it stores does not say which of the two axes ends.
TEST(Grid, OfTwoAxesThatMoveAlikeIsAskedForByTheirNames) {
    const std::string body =
        "    at = (tl.program_id(0) + tl.program_id(2)) * B + tl.arange(0, B)\n"
        "    tl.store(y_ptr + at, 1.0)\n";
    const std::string message =
        error_of(source("y_ptr, B: tl.constexpr", body), arguments("B=8", {"y_ptr=64:fp32"}));
    EXPECT_NE(message.find("so how many programs there are along axes x and z is not known"),
              std::string::npos)
        << message;
}

TEST(Grid, OfMoreProgramsThanStoreAnythingIsTakenAndSaysSo) {
    const std::string text = source(
        "x_ptr, y_ptr, M, N, B: tl.constexpr",
        "    r = tl.program_id(0) * 2 + tl.arange(0, 2)\n    c = tl.program_id(1) * B + tl.arange(0, B)\n"
        "    ok = (r < M)[:, None] & (c < N)[None, :]\n    at = r[:, None] * N + c[None, :]\n"
        "    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=ok), mask=ok)\n");
    const auto said = [&](const Grid& grid) {
        Arguments args = arguments("M=8,N=12,B=4", {"x_ptr=8x12:fp32", "y_ptr=8x12:fp32"});
        args.grid = grid;
        const Result<Explained> made = analyse_and_explain(text, "kernel.py", "", args);
        std::string all;
        for (const Note& note : made.ok() ? made->notes : std::vector<Note>{})
            if (note.text.find("store nothing") != std::string::npos) all += note.text + "; ";
        EXPECT_TRUE(made.ok() && made->kernel.warnings.empty());
        return all;
    };
    EXPECT_EQ(said({4, 3, 1}), "");
    EXPECT_EQ(said({5, 3, 1}), "programs from 4 on along axis x of the grid store nothing: 4 would do; ");
    EXPECT_EQ(said({4, 4, 1}), "programs from 3 on along axis y of the grid store nothing: 3 would do; ");
    EXPECT_EQ(said({7, 9, 1}),
              "programs from 4 on along axis x of the grid store nothing: 4 would do; "
              "programs from 3 on along axis y of the grid store nothing: 3 would do; ");
    EXPECT_EQ(said({4, 3, 2}), "") << "it asks for no z: each program along it does the same";
}

// Rows of blocks end at their mask; columns run on into the next row, and nothing says where they end.
TEST(Grid, OfWhichOneAxisRunsOnNamesThatAxisAlone) {
    const auto message = [](const std::string& p, const std::string& o) {
        return error_of(
            source("y_ptr, M, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr",
                   "    p = " + p + " * BM + tl.arange(0, BM)\n    o = " + o +
                       " * BN + tl.arange(0, BN)\n"
                       "    tl.store(y_ptr + p[:, None] * N + o[None, :], 1.0, mask=(p < M)[:, None])\n"),
            arguments("M=32,N=8,BM=8,BN=4", {"y_ptr=2x4x4x8:fp32"}));
    };
    const std::string x = "tl.program_id(0)", y = "tl.program_id(1)", z = "tl.program_id(2)";
    EXPECT_NE(message(x, y).find("along axis y is not known"), std::string::npos) << message(x, y);
    EXPECT_NE(message(y, x).find("along axis x is not known"), std::string::npos) << message(y, x);
    EXPECT_NE(message(x, z).find("along axis z is not known"), std::string::npos) << message(x, z);
}

TEST(Grid, OfAKernelWhoseFirstProgramsStoreNothingIsAskedForWithThatReason) {
    const std::string body =
        "    i, j = tl.program_id(0), tl.program_id(1)\n"
        "    if j == 2:\n"
        "        tl.store(y_ptr + i * 8 + tl.arange(0, 8), 1.0)\n";
    const std::string message = error_of(source("y_ptr", body), arguments("", {"y_ptr=32:fp32"}));
    EXPECT_NE(message.find("(its first programs along each axis store nothing): give --grid"),
              std::string::npos)
        << message;
}

TEST(Grid, ThatADirectiveStatesIsTakenThoughItsFirstProgramsStoreNothing) {
    const std::string body =
        "    p = tl.program_id(0)\n    o = tl.arange(0, 8)\n    # @sy.num_tiles\n    nt = 6\n"
        "    v = tl.load(x_ptr + p * 8 + o)\n"
        "    if p >= 2:\n        tl.store(y_ptr + (p - 2) * 8 + o, v)\n";
    EXPECT_EQ(analysed(source("x_ptr, y_ptr", body), arguments("", {"x_ptr=48:fp32", "y_ptr=32:fp32"}))
                  .tiles.size(),
              6U);
}

TEST(Grid, ThatStoresDependOnLoadedIntegersForNamesTheirValues) {
    const std::string body =
        "    pid = tl.program_id(0)\n"
        "    n = tl.load(n_ptr + pid)\n"
        "    at = tl.arange(0, B)\n"
        "    tl.store(y_ptr + pid * B + at, 1.0, mask=at < n)\n";
    const std::string message = error_of(source("n_ptr, y_ptr, B: tl.constexpr", body),
                                         arguments("B=8", {"n_ptr=4:int32", "y_ptr=4x8:fp32"}));
    EXPECT_NE(message.find("depends on data, which --values n_ptr=… may tell"), std::string::npos) << message;
}

const std::string kGrouped =
    "    pid = tl.program_id(0)\n"
    "    rows = tl.cdiv(M, BM)\n"
    "    columns = tl.cdiv(N, BN)\n"
    "    width = GROUP * columns\n"
    "    first = (pid // width) * GROUP\n"
    "    height = min(rows - first, GROUP)\n"
    "    i = first + (pid % width) % height\n"
    "    j = (pid % width) // height\n"
    "    r = i * BM + tl.arange(0, BM)\n"
    "    c = j * BN + tl.arange(0, BN)\n"
    "    tl.store(y_ptr + r[:, None] * N + c[None, :], 1.0)\n";
const std::string kGroupedSignature = "y_ptr, M, N, GROUP, BM: tl.constexpr, BN: tl.constexpr";
const std::string kGroupedScalars = "M=32,N=48,GROUP=4,BM=16,BN=16";

// Tiles in groups wrap around behind the last one: without masks, programs beyond the launch store again.
TEST(Grid, OfGroupedTilesWithoutMasksFollowsFromTheirCounts) {
    const Kernel k =
        analysed(source(kGroupedSignature, kGrouped), arguments(kGroupedScalars, {"y_ptr=32x48:fp32"}));
    EXPECT_EQ(k.grid, (Grid{6, 1, 1}));
}

TEST(Grid, OfALoopOverTheRowsOfAProgramIsThatOfTheLaunch) {
    const std::string body =
        "    pid = tl.program_id(0)\n"
        "    for t in range(pid * BM, min((pid + 1) * BM, T)):\n"
        "        tl.store(y_ptr + t * D + tl.arange(0, D), 1.0)\n";
    const std::string text = source("y_ptr, T, BM: tl.constexpr, D: tl.constexpr", body);
    EXPECT_EQ(analysed(text, arguments("T=13,BM=4,D=8", {"y_ptr=13x8:fp32"})).grid, (Grid{4, 1, 1}));
}

TEST(Grid, OfASplitSumIsAskedFor) {
    const std::string body =
        "    at = tl.program_id(0) * B + tl.arange(0, B)\n"
        "    part = tl.program_id(1)\n"
        "    x = tl.load(x_ptr + part * n + at, mask=at < n)\n"
        "    tl.atomic_add(y_ptr + at, x, mask=at < n)\n";
    const std::string message = error_of(source("x_ptr, y_ptr, n, B: tl.constexpr", body),
                                         arguments("n=64,B=16", {"x_ptr=4x64:fp32", "y_ptr=64:fp32"}));
    EXPECT_NE(message.find("does not depend on axis y of it"), std::string::npos) << message;
}

TEST(Grid, OfAPartOfATensorIsAskedFor) {
    const std::string text =
        source("y_ptr, n, B: tl.constexpr", kRows + "    tl.store(y_ptr + at, 1.0, mask=at < n)\n");
    EXPECT_EQ(
        error_of(text, arguments("n=40,B=8", {"y_ptr=64:fp32"})),
        "kernel.py:6:5: the launch grid of `k` does not follow from the kernel (the tiles of a grid of 5 "
        "programs leave y_ptr[40:64] out): give --grid X[,Y[,Z]], or mark the number of tiles with `# "
        "@sy.num_tiles`");
}

TEST(Grid, OfAPersistentKernelOnTwoAxesIsFoundAlongBoth) {
    const std::string body =
        "    z = tl.program_id(1)\n"
        "    for t in range(tl.program_id(0), tl.cdiv(n, B), P):\n"
        "        at = t * B + tl.arange(0, B)\n"
        "        tl.store(y_ptr + z * n + at, 1.0, mask=at < n)\n";
    const std::string text = source("y_ptr, n, P: tl.constexpr, B: tl.constexpr", body);
    const Arguments args = arguments("n=64,B=8,P=3", {"y_ptr=5x64:fp32"});
    EXPECT_EQ(analysed(text, args).grid, (Grid{3, 5, 1}));
}

TEST(Grid, OfWhatIsStoredToAnUnknownTensorFollowsFromNumberedCounts) {
    const std::string body =
        "    pid = tl.program_id(0)\n"
        "    columns = tl.cdiv(N, BN)\n"
        "    i = pid // columns\n"
        "    j = pid % columns\n"
        "    r = i * BM + tl.arange(0, BM)\n"
        "    c = j * BN + tl.arange(0, BN)\n"
        "    tl.store(y_ptr + r[:, None] * N + c[None, :], 1.0)\n";
    const std::string signature = "y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr";
    const std::string scalars = "M=32,N=48,BM=16,BN=16";
    // The rows are not counted: nothing says how many there are.
    EXPECT_NE(error_of(source(signature, body), arguments(scalars, {})).find("give --grid"),
              std::string::npos);
    EXPECT_EQ(analysed(source(kGroupedSignature, kGrouped), arguments(kGroupedScalars, {})).grid,
              (Grid{6, 1, 1}));
}

// As in stream-K, where a program's work ends at a tile's end, wherever it began.
TEST(Grid, AWhileLoopThatDoesNotStepOverProgramsIsNoneOverTiles) {
    for (const std::string next : {"it + 3", "it + 1 + it % 2"}) {
        const std::string text = source("y_ptr, n",
                                        "    it = tl.program_id(0)\n    while it < n:\n"
                                        "        tl.store(y_ptr + it, 1.0)\n        it = " +
                                            next + "\n");
        Arguments args = arguments("n=9", {"y_ptr=9:fp32"});
        args.grid = {1, 1, 1};
        const Kernel k = analysed(text, args);
        EXPECT_EQ(k.tiles.size(), 1U) << next;
        EXPECT_FALSE(k.persistent) << next;
    }
}

// As in stream-K: where each sharer begins is, for some numbers, its own id.
TEST(Grid, OfRangesThatBeginAtTheirProgramsIdsByChanceHasAProgramATile) {
    const std::string body =
        "    pid = tl.program_id(0)\n"
        "    at = tl.arange(0, B)\n"
        "    if pid < WHOLE:\n"
        "        tl.store(y_ptr + pid * B + at, 1.0)\n"
        "    else:\n"
        "        units = (N // B - WHOLE) * K // SHARERS\n"
        "        start = (pid - WHOLE) * units\n"
        "        end = start + units - 1\n"
        "        for block in tl.range(start // K + WHOLE, end // K + WHOLE + 1):\n"
        "            low = tl.where(block == start // K + WHOLE, start % K, 0)\n"
        "            high = tl.where(block == end // K + WHOLE, end % K, K - 1)\n"
        "            total = tl.zeros((B,), tl.float32)\n"
        "            for k in tl.range(low, high + 1):\n"
        "                total += tl.load(x_ptr + (block * B + at) * K + k)\n"
        "            tl.atomic_add(y_ptr + block * B + at, total)\n";
    const std::string text =
        source("x_ptr, y_ptr, N, WHOLE, SHARERS, B: tl.constexpr, K: tl.constexpr", body);
    const auto shared = [&](std::int64_t whole, std::int64_t sharers) {
        Arguments args =
            arguments("N=48,B=8,K=6,WHOLE=" + std::to_string(whole) + ",SHARERS=" + std::to_string(sharers),
                      {"x_ptr=48x6:fp32", "y_ptr=48:fp32"});
        args.grid = {whole + sharers, 1, 1};
        return analysed(text, args);
    };
    for (const auto& [whole, sharers] :
         {std::pair(0, 4), {1, 3}, {2, 2}, {2, 3}, {3, 2}, {0, 6}, {4, 1}, {1, 5}}) {
        const Kernel k = shared(whole, sharers);
        EXPECT_EQ(k.tiles.size(), static_cast<std::size_t>(whole + sharers)) << whole << " " << sharers;
        EXPECT_EQ(k.warnings, std::vector<std::string>{}) << whole << " " << sharers;
    }
    const Kernel k = shared(2, 3);
    EXPECT_EQ(k.tiles[1].writes.at("y_ptr"), (plan::Region{{8, 16}}));
    EXPECT_EQ(k.tiles[2].writes.at("y_ptr"), (plan::Region{{16, 32}})) << "8 units of 6 a block";
    EXPECT_EQ(k.tiles[4].writes.at("y_ptr"), (plan::Region{{32, 48}}));
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
