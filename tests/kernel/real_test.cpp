// Real numbers that addresses, branches and loops depend on: known where no rounding can change them.
#include <cmath>
#include <limits>

#include "kernel/support.hpp"
#include "kernel/triton/evaluate/reals.hpp"

namespace syncopate::kernel::triton::test {
namespace {

const std::string kRounds = "which depends on how the GPU rounds: pass a whole number instead";

/// A kernel that loads x_ptr[k].
std::string loads(const std::string& k, const std::string& type = "") {
    return source("x_ptr, y_ptr, n, r" + type,
                  "    k = " + k + "\n    tl.store(y_ptr, tl.load(x_ptr + k))\n");
}

Arguments launch(const std::string& scalars) {
    Arguments args = arguments(scalars, {"x_ptr=64:fp32", "y_ptr=1:fp32"});
    args.grid = {1, 1, 1};
    return args;
}

std::int64_t loaded(const std::string& k, const std::string& scalars) {
    const Kernel kernel = analysed(loads(k), launch(scalars));
    return kernel.tiles.empty() ? -1 : kernel.tiles[0].reads.at("x_ptr")[0].begin;
}

std::string refused(const std::string& k, const std::string& scalars, const std::string& type = "") {
    return error_of(loads(k, type), launch(scalars));
}

TEST(Real, ACastIsKnownWhereNoRoundingChangesIt) {
    EXPECT_EQ(loaded("(r * n).to(tl.int32)", "n=50,r=0.29"), 14);
    EXPECT_EQ(loaded("(r * n).to(tl.int32)", "n=100,r=0.25"), 25) << "exact in fp32";
    EXPECT_EQ(loaded("(n / r).to(tl.int32)", "n=10,r=3.0"), 3);
    EXPECT_EQ(loaded("(n / r).to(tl.int32)", "n=12,r=4.0"), 3) << "by a power of two";
    EXPECT_EQ(loaded("(-r).to(tl.int32) + n", "n=10,r=0.9"), 10);
    EXPECT_EQ(loaded("n.to(tl.float32).to(tl.int32) - 16777210", "n=16777217,r=0.5"), 6)
        << "to the nearest, in fp32";
}

TEST(Real, ACastThatRoundingMayChangeIsRefused) {
    EXPECT_EQ(refused("(r * n).to(tl.int32)", "n=100,r=0.29"),
              "kernel.py:8:29: the address `x_ptr + k` cannot be known before the kernel runs: it depends on "
              "`(r * n).to(tl.int32)` (line 7), " +
                  kRounds + "; state what a tile touches with `# @sy.reads x_ptr[…]`");
    for (const std::string k :
         {"(n / 3).to(tl.int32)", "(n + 2049).to(tl.float16).to(tl.int32)", "n.to(tl.bfloat16).to(tl.int32)",
          "(n * 1e30 * 1e30).to(tl.int32)", "(n / (r - r)).to(tl.int32)", "(-r * n).to(tl.uint32)"})
        EXPECT_NE(refused(k, "n=6,r=0.5").find(kRounds), std::string::npos) << k;
    for (const std::string k : {"(r * n + 0.5 - 0.5).to(tl.int32)", "tl.cast(0.29 * n, tl.int32)"})
        EXPECT_NE(refused(k, "n=100,r=0.29").find(kRounds), std::string::npos) << k;
    EXPECT_NE(refused("(n / r).to(tl.int32)", "n=99999999,r=25000000.0").find(kRounds), std::string::npos);
    EXPECT_NE(refused("(r * n).to(tl.int32)", "n=2,r=1.5", ": tl.float16").find(kRounds), std::string::npos);
}

TEST(Real, AConstantInAVariableIsOfFp32) {
    const std::string body =
        "    s = 0.29\n    k = (s * 100).to(tl.int32)\n    tl.store(y_ptr, tl.load(x_ptr + k))\n";
    EXPECT_NE(error_of(source("x_ptr, y_ptr, n, r", body), launch("n=2,r=0.5")).find(kRounds),
              std::string::npos);
}

TEST(Real, ABranchThatRoundingMayChangeIsFollowedBothWays) {
    const auto reads = [](const std::string& condition, const std::string& scalars) {
        const Kernel kernel = analysed(
            source("x_ptr, y_ptr, n, r", "    if " + condition +
                                             ":\n        a = tl.load(x_ptr)\n    else:\n"
                                             "        a = tl.load(x_ptr + 1)\n    tl.store(y_ptr, a)\n"),
            launch(scalars));
        return kernel.tiles.at(0).reads.at("x_ptr");
    };
    EXPECT_EQ(reads("r * n >= 29", "n=100,r=0.29"), (plan::Region{{0, 2}}));
    EXPECT_EQ(reads("n / r > 5", "n=10,r=0.0"), (plan::Region{{0, 2}}));
    EXPECT_EQ(reads("r * n >= 28", "n=100,r=0.29"), (plan::Region{{0, 1}}));
    EXPECT_EQ(reads("r > 0.0", "n=100,r=0.1"), (plan::Region{{0, 1}}));
    EXPECT_EQ(reads("r == 1.0", "n=100,r=0.1"), (plan::Region{{1, 2}}));
    EXPECT_EQ(reads("r", "n=100,r=0.1"), (plan::Region{{0, 1}}));
}

TEST(Real, ALoopWhoseLengthRoundingMayChangeIsRefused) {
    const std::string body =
        "    a = 0.0\n    for i in range((r * n).to(tl.int32)):\n        a += tl.load(x_ptr + i)\n"
        "    tl.store(y_ptr, a)\n";
    EXPECT_EQ(error_of(source("x_ptr, y_ptr, n, r", body), launch("n=100,r=0.29")),
              "kernel.py:8:14: how often the loop over `range((r * n).to(tl.int32))` runs is not known: it "
              "depends on "
              "`(r * n).to(tl.int32)` (line 8), " +
                  kRounds + "; state what a tile touches with `# @sy.reads x_ptr[…]` (line 9)");
    EXPECT_EQ(
        analysed(source("x_ptr, y_ptr, n, r", body), launch("n=50,r=0.29")).tiles.at(0).reads.at("x_ptr"),
        (plan::Region{{0, 14}}));
}

TEST(Real, ConstantsAreComputedAsPythonDoes) {
    const std::string body =
        "    if S * 100 < 29:\n        k = 3\n    else:\n        k = 5\n"
        "    tl.store(y_ptr, tl.load(x_ptr + k))\n";
    const Kernel kernel = analysed(source("x_ptr, y_ptr, S: tl.constexpr", body), launch("S=0.29"));
    EXPECT_EQ(kernel.tiles.at(0).reads.at("x_ptr"), (plan::Region{{3, 4}}));
}

TEST(Real, IntervalsHoldWhatFp32AndDoubleGive) {
    // Without a fixed seed's luck: all pairs of a few numbers that round in different ways.
    const std::vector<double> numbers{0.1, 0.29, 1.0 / 3, 7, -2.5, 1e-30, 16777217, 3.4e37, -0.7};
    for (const double x : numbers) {
        for (const double y : numbers) {
            const auto a = static_cast<float>(x), b = static_cast<float>(y);
            const auto holds = [&](Operator op, double in_double, float in_single) {
                const auto made = computed(op, as_fp32(x), as_fp32(y));
                if (!made) return;
                EXPECT_LE(made->least, std::min(in_double, double{in_single})) << x << ' ' << y;
                EXPECT_GE(made->most, std::max(in_double, double{in_single})) << x << ' ' << y;
            };
            holds(Operator::add, x + y, a + b);
            holds(Operator::subtract, x - y, a - b);
            holds(Operator::multiply, x * y, a * b);
            holds(Operator::divide, x / y, a / b);
            EXPECT_EQ(compared(Operator::less, as_fp32(x), as_fp32(y)).value_or(x < y), x < y);
        }
    }
    const double none = std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(compared(Operator::less, {none, none}, {1, 1}));
    EXPECT_FALSE(compared(Operator::equal, {none, none}, {none, none}));
    EXPECT_FALSE(truncated({none, none}));
    EXPECT_FALSE(truncated({INFINITY, INFINITY}));
    EXPECT_FALSE(computed(Operator::multiply, {INFINITY, INFINITY}, {0, 1}));
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
