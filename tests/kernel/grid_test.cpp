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

}  // namespace
}  // namespace syncopate::kernel::triton::test
