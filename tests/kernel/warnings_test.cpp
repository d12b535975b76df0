// What a kernel surely does and can hardly mean is told in one line, and what it may do is not.
#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

using Lines = std::vector<std::string>;

Kernel on(const std::string& signature, const std::string& body, Arguments args,
          std::array<std::int64_t, 3> grid) {
    args.grid = grid;
    return analysed(source(signature, body), args);
}

const std::string kCopy =
    "    r = tl.program_id(0) * 2 + tl.arange(0, 2)\n"
    "    c = tl.arange(0, 8)\n"
    "    x = tl.load(x_ptr + r[:, None] * sx + c[None, :])\n"
    "    tl.store(y_ptr + r[:, None] * sy + c[None, :], x)\n";

Lines of_copy(const std::string& strides, const std::string& x, const std::string& y) {
    const auto typed = [](const std::string& shape) {
        return shape.find(':') == std::string::npos ? shape + ":fp32" : shape;
    };
    return on("x_ptr, y_ptr, sx, sy", kCopy, arguments(strides, {"x_ptr=" + typed(x), "y_ptr=" + typed(y)}),
              {4, 1, 1})
        .warnings;
}

TEST(Warnings, TellOfAnInputOfAnotherStrideOrHalfTheSize) {
    EXPECT_EQ(of_copy("sx=8,sy=8", "8x8", "8x8"), Lines{});
    EXPECT_EQ(
        of_copy("sx=16,sy=8", "8x8", "8x8"),
        Lines{"kernel.py:9: tile 2 loads from memory outside of x_ptr (shape 8x8, strides 8,1): give the "
              "shape and strides that it has in a launch"});
    EXPECT_EQ(
        of_copy("sx=8,sy=8", "4x8", "8x8"),
        Lines{"kernel.py:9: tile 2 loads from memory outside of x_ptr (shape 4x8, strides 8,1): give the "
              "shape and strides that it has in a launch"});
    EXPECT_EQ(of_copy("sx=8,sy=8", "7x8", "8x8").size(), 1U) << "by one row";
    EXPECT_EQ(of_copy("sx=9,sy=8", "8x8:fp32:9,1", "8x8"), Lines{})
        << "rows of nine, of which eight are used";
    EXPECT_EQ(of_copy("sx=8,sy=8", "8x8:fp32:9,1", "8x8").size(), 1U) << "the ninth is none of the tensor's";
    EXPECT_EQ(of_copy("sx=0,sy=8", "1x8", "8x8"), Lines{}) << "one row for all";
    EXPECT_EQ(of_copy("sx=8,sy=8", "64", "8x8"), Lines{}) << "the same memory";
}

// A stride that keeps all rows inside the tensor: one that is called so, and is none of it.
TEST(Warnings, TellOfAStrideByWhichRowsStayInside) {
    const auto lines = [](const std::string& name, const std::string& given, const std::string& x) {
        std::string body = kCopy;
        for (std::size_t at = body.find("sx"); at != std::string::npos;
             at = body.find("sx", at + name.size()))
            body.replace(at, 2, name);
        return on("x_ptr, y_ptr, " + name + ", sy", body,
                  arguments(name + "=" + given + ",sy=8", {"x_ptr=" + x + ":fp32", "y_ptr=8x8:fp32"}),
                  {4, 1, 1})
            .warnings;
    };
    EXPECT_EQ(
        lines("stride_xm", "7", "8x8"),
        Lines{
            "kernel.py:9: the rows of a block lie `stride_xm=7` elements apart, which is no stride of x_ptr "
            "(shape 8x8, strides 8,1): give the shape and strides that it has in a launch"});
    EXPECT_EQ(lines("x_stride", "4", "8x8").size(), 1U);
    EXPECT_EQ(lines("stride", "12", "8x16").size(), 1U);
    EXPECT_EQ(lines("stride_xm", "8", "8x8"), Lines{});
    EXPECT_EQ(lines("stride_xm", "16", "16x8"), Lines{}) << "every second row";
    EXPECT_EQ(lines("stride_xm", "8", "64"), Lines{}) << "flat memory";
    EXPECT_EQ(lines("step", "7", "8x8"), Lines{}) << "a band, for all that is known";
    EXPECT_EQ(lines("stride_xm", "0", "1x8"), Lines{});
}

TEST(Warnings, TellOfAnOutputThatIsLeftOrStoredTwice) {
    EXPECT_EQ(
        of_copy("sx=8,sy=16", "8x8", "8x8"),
        Lines{"kernel.py:10: tile 2 stores to memory outside of y_ptr (shape 8x8, strides 8,1): give the "
              "shape and strides that it has in a launch"});
    EXPECT_EQ(
        of_copy("sx=8,sy=4", "8x8", "8x8"),
        Lines{"kernel.py:10: tile 0 and tile 1 both store y_ptr[1:2, 0:4], and nothing orders them: let one "
              "tile store it, or add to it by tl.atomic_add"});
}

TEST(Warnings, DoNotTellOfWhatMasksKeepInside) {
    const std::string body =
        "    at = tl.program_id(0) * 8 + tl.arange(0, 8)\n"
        "    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)\n";
    const std::string signature = "x_ptr, y_ptr, n";
    for (const std::int64_t n : {1, 8, 13, 24})
        EXPECT_EQ(on(signature, body, arguments("n=" + std::to_string(n), {"x_ptr=24:fp32", "y_ptr=24:fp32"}),
                     {4, 1, 1})
                      .warnings,
                  Lines{})
            << n;
    EXPECT_EQ(
        on(signature, body, arguments("n=25", {"x_ptr=24:fp32", "y_ptr=25:fp32"}), {4, 1, 1}).warnings.size(),
        1U);
}

TEST(Warnings, DoNotTellOfWhatDataDecides) {
    const std::string body =
        "    at = tl.program_id(0) * 8 + tl.arange(0, 8)\n"
        "    x = tl.load(x_ptr + at, mask=at < 24)\n"
        "    tl.store(y_ptr + at, x, mask=x > 0)\n"
        "    tl.store(z_ptr + tl.arange(0, 8), x, mask=x > 0)\n";
    EXPECT_EQ(on("x_ptr, y_ptr, z_ptr", body,
                 arguments("", {"x_ptr=24:fp32", "y_ptr=24:fp32", "z_ptr=8:fp32"}), {4, 1, 1})
                  .warnings,
              Lines{});
}

TEST(Warnings, DoNotTellOfDescriptorsWhichClip) {
    const std::string body =
        "    d = tl.make_tensor_descriptor(x_ptr, [5, 8], [8, 1], [2, 8])\n"
        "    at = tl.program_id(0) * 2\n"
        "    tl.store(y_ptr + (at + tl.arange(0, 2))[:, None] * 8 + tl.arange(0, 8)[None, :], d.load([at, "
        "0]))\n";
    EXPECT_EQ(
        on("x_ptr, y_ptr", body, arguments("", {"x_ptr=5x8:fp32", "y_ptr=6x8:fp32"}), {3, 1, 1}).warnings,
        Lines{});
}

/// A store by programs (x, y) of the place and value that are given.
Lines stored(const std::string& place, const std::string& value, const std::string& more = "") {
    const std::string body =
        "    x, y = tl.program_id(0), tl.program_id(1)\n"
        "    at = tl.arange(0, 4)\n" +
        more + "    tl.store(y_ptr + " + place + ", " + value + ")\n";
    return on("a_ptr, y_ptr, lock_ptr", body,
              arguments("", {"a_ptr=32:fp32", "y_ptr=32:fp32", "lock_ptr=8:int32"}), {4, 2, 1})
        .warnings;
}

TEST(Warnings, TellOfTilesThatStoreDifferentValuesToOnePlace) {
    EXPECT_EQ(stored("x * 8 + y * 4 + at", "1.0"), Lines{});
    EXPECT_EQ(stored("x * 4 + at", "tl.load(a_ptr + y * 16 + x * 4 + at)"),
              Lines{"kernel.py:9: program (0, 0, 0) and program (0, 1, 0) both store y_ptr[0:4], and nothing "
                    "orders them: let one tile store it, or add to it by tl.atomic_add"});
    EXPECT_EQ(stored("x * 4 + at", "y * 1.0").size(), 1U);
    EXPECT_EQ(stored("x * 4 + y + at", "1.0").size(), 1U) << "a place that moves, by less than a block";
    EXPECT_EQ(stored("at", "x * 1.0").size(), 1U);
    EXPECT_EQ(stored("x // 2 * 4 + at", "tl.load(a_ptr + x * 4 + at)").size(), 1U);
}

TEST(Warnings, DoNotTellOfTilesThatStoreTheSameOrAdd) {
    EXPECT_EQ(stored("x * 4 + at", "tl.load(a_ptr + x * 4 + at)"), Lines{}) << "all y store the same";
    EXPECT_EQ(stored("at", "1.0"), Lines{});
    const std::string body =
        "    x, y = tl.program_id(0), tl.program_id(1)\n"
        "    at = tl.arange(0, 4)\n"
        "    tl.atomic_add(y_ptr + x * 4 + at, tl.load(a_ptr + y * 16 + x * 4 + at))\n";
    EXPECT_EQ(on("a_ptr, y_ptr", body, arguments("", {"a_ptr=32:fp32", "y_ptr=16:fp32"}), {4, 2, 1}).warnings,
              Lines{});
    EXPECT_EQ(stored("x * 4 + at", "y * 1.0",
                     "    while tl.atomic_cas(lock_ptr + x, y, y) != y:\n"
                     "        pass\n"),
              Lines{})
        << "they take turns";
    EXPECT_EQ(stored("x * 8 + at", "y * 1.0",
                     "    if y > 0:\n"
                     "        return\n"),
              Lines{})
        << "one of them stores";
}

TEST(Warnings, TellOfAStoreOfOneTileToWhatAnotherAddsTo) {
    const auto lines = [](const std::string& body) {
        return on("x_ptr, y_ptr, lock_ptr", "    p = tl.program_id(0)\n    at = tl.arange(0, 4)\n" + body,
                  arguments("", {"x_ptr=16:fp32", "y_ptr=16:fp32", "lock_ptr=4:int32"}), {4, 1, 1})
            .warnings;
    };
    const std::string x = "tl.load(x_ptr + p * 4 + at)";
    EXPECT_EQ(lines("    if p == 0:\n        tl.store(y_ptr + at, " + x +
                    ")\n    else:\n        tl.atomic_add(y_ptr + at, " + x + ")\n"),
              Lines{"kernel.py:10: tile 0 stores y_ptr[0:4], which tile 1 changes by an atomic, and nothing "
                    "orders them: let both do it by atomics"});
    EXPECT_EQ(
        lines("    tl.store(y_ptr + p * 4 + at, 0.0)\n    tl.atomic_add(y_ptr + (p + 1) % 4 * 4 + at, " + x +
              ")\n")
            .size(),
        1U)
        << "zeros of its own, and a sum beside it";
    EXPECT_EQ(
        lines("    tl.store(y_ptr + p * 4 + at, 0.0)\n    tl.atomic_max(y_ptr + p * 4 + at, " + x + ")\n"),
        Lines{})
        << "one tile does both";
    EXPECT_EQ(lines("    while tl.atomic_cas(lock_ptr, p, p) != p:\n        pass\n"
                    "    if p == 0:\n        tl.store(y_ptr + at, 0.0)\n    tl.atomic_add(y_ptr + at, " +
                    x + ")\n"),
              Lines{})
        << "they take turns";
}

// By flags and locks tiles wait for each other, and a store beside an atomic is how they are set.
TEST(Warnings, DoNotTellOfAStoreToAFlagBesideAtomics) {
    const auto lines = [](const std::string& body) {
        return on("x_ptr, y_ptr, flag_ptr", "    p = tl.program_id(0)\n    at = tl.arange(0, 4)\n" + body,
                  arguments("", {"x_ptr=16:fp32", "y_ptr=16:fp32", "flag_ptr=4:int32"}), {4, 1, 1})
            .warnings;
    };
    const std::string own = "    tl.store(y_ptr + p * 4 + at, 1.0)\n";
    for (const std::string& body : {
             "    tl.store(flag_ptr + p, 1)\n    while tl.atomic_cas(flag_ptr + (p + 1) % 4, 1, 1) != 1:\n"
             "        pass\n" +
                 own,
             "    tl.atomic_add(flag_ptr, 1)\n    while tl.atomic_add(flag_ptr, 0) < 4:\n        pass\n" +
                 own + "    if p == 3:\n        tl.store(flag_ptr, 0)\n",
             "    n = tl.atomic_add(flag_ptr, 1)\n" + own + "    if p == 3:\n        tl.store(flag_ptr, 0)\n",
             own + "    if p == 0:\n        tl.store(flag_ptr, 1)\n    else:\n        tl.atomic_or(flag_ptr, "
                   "1)\n",
             own + "    if p == 0:\n        tl.store(flag_ptr, 1)\n    else:\n        "
                   "tl.atomic_xchg(flag_ptr, 1)\n",
             std::string("    if p == 0:\n        tl.store(y_ptr + at, 1.0)\n        tl.store(flag_ptr, 1)\n"
                         "    else:\n        while tl.load(flag_ptr, volatile=True) == 0:\n            pass\n"
                         "        tl.atomic_add(y_ptr + at, 1.0)\n"),
         })
        EXPECT_EQ(lines(body), Lines{}) << body;
}

/// What is said of a launch whose grid is not given.
Lines inferred(const std::string& body, const std::string& scalars,
               std::initializer_list<std::string> tensors) {
    return analysed(source("x_ptr, y_ptr, M, N", body), arguments(scalars, tensors)).warnings;
}

// The grid is then that of the smaller tensor, and the rest of the input is left aside.
TEST(Warnings, TellOfAnOutputThatEndsBeforeTheMasksDo) {
    const std::string vector =
        "    at = tl.program_id(0) * 8 + tl.arange(0, 8)\n"
        "    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < N), mask=at < N)\n";
    EXPECT_EQ(
        inferred(vector, "M=1,N=64", {"x_ptr=64:fp32", "y_ptr=32:fp32"}),
        Lines{
            "kernel.py:8: y_ptr (shape 32, strides 1) ends behind 4 programs along axis x, and the kernel's "
            "masks let 8 store: give the shapes and the numbers of one launch, or --grid 4,1,1 if it has no "
            "more programs"});
    EXPECT_EQ(inferred(vector, "M=1,N=61", {"x_ptr=61:fp32", "y_ptr=16:fp32"}).size(), 1U);
    EXPECT_EQ(inferred(vector, "M=1,N=61", {"x_ptr=61:fp32", "y_ptr=61:fp32"}), Lines{});
    EXPECT_EQ(inferred(vector, "M=1,N=64", {"x_ptr=64:fp32", "y_ptr=64:fp32"}), Lines{});
    const std::string matrix =
        "    r = tl.program_id(0) * 4 + tl.arange(0, 4)\n"
        "    c = tl.program_id(1) * 8 + tl.arange(0, 8)\n"
        "    m = (r[:, None] < M) & (c[None, :] < N)\n"
        "    tl.store(y_ptr + r[:, None] * N + c[None, :], tl.load(x_ptr + r[:, None] * N + c[None, :], "
        "mask=m), "
        "mask=m)\n";
    EXPECT_EQ(
        inferred(matrix, "M=16,N=24", {"x_ptr=16x24:fp32", "y_ptr=8x24:fp32"}),
        Lines{"kernel.py:10: y_ptr (shape 8x24, strides 24,1) ends behind 2 programs along axis x, and the "
              "kernel's masks let 4 store: give the shapes and the numbers of one launch, or --grid 2,3,1 if "
              "it has "
              "no more programs"});
    EXPECT_EQ(inferred(matrix, "M=32,N=24", {"x_ptr=16x24:fp32", "y_ptr=16x24:fp32"}).size(), 1U)
        << "a number that is too large";
    EXPECT_EQ(inferred(matrix, "M=15,N=21", {"x_ptr=15x21:fp32", "y_ptr=15x21:fp32"}), Lines{});
}

TEST(Warnings, TellOfAnOutputThatEndsBeforeTheGroupsOfTilesDo) {
    const std::string grouped =
        "    pid = tl.program_id(0)\n"
        "    rows, columns = tl.cdiv(M, 8), tl.cdiv(N, 8)\n"
        "    first = pid // (2 * columns) * 2\n"
        "    height = min(rows - first, 2)\n"
        "    r = (first + pid % (2 * columns) % height) * 8 + tl.arange(0, 8)\n"
        "    c = pid % (2 * columns) // height * 8 + tl.arange(0, 8)\n";
    const std::string mask = "    m = (r[:, None] < M) & (c[None, :] < N)\n";
    const auto stored = [](const std::string& how) {
        return "    tl.store(y_ptr + r[:, None] * N + c[None, :], 1.0" + how + ")\n";
    };
    const std::string masked = grouped + mask + stored(", mask=m");
    EXPECT_EQ(
        inferred(masked, "M=64,N=24", {"x_ptr=1:fp32", "y_ptr=32x24:fp32"}),
        Lines{"kernel.py:14: y_ptr (shape 32x24, strides 24,1) ends behind 12 programs along axis x, and the "
              "kernel's masks let 24 store: give the shapes and the numbers of one launch, or --grid 12,1,1 "
              "if it "
              "has no more programs"});
    EXPECT_EQ(inferred(masked, "M=64,N=24", {"x_ptr=1:fp32", "y_ptr=64x24:fp32"}), Lines{});
    EXPECT_EQ(inferred(masked, "M=37,N=21", {"x_ptr=1:fp32", "y_ptr=37x21:fp32"}), Lines{});
    EXPECT_EQ(inferred(grouped + stored(""), "M=64,N=24", {"x_ptr=1:fp32", "y_ptr=64x24:fp32"}), Lines{});
}

// Directives are then not at fault.
TEST(Warnings, AnOutputThatEndsEarlyIsNamedBeforeADirectiveThatItContradicts) {
    Arguments args = pointers(128, 64, 64);
    args.tensors.at("c_ptr").shape = {64, 64};
    const std::string error = error_of(example("matmul_pointers.py"), args);
    EXPECT_NE(
        error.find(
            ": c_ptr (shape 64x64, strides 64,1) ends behind 1 program along axis x, and the kernel's "
            "masks let 2 store: give the shapes and the numbers of one launch, or --grid 1,1,1 if it has no "
            "more programs. So this `@sy."),
        std::string::npos)
        << error;
}

TEST(Warnings, DoNotTellOfAnOutputWhoseRowsNoMaskEnds) {
    const std::string rows =
        "    at = tl.program_id(0) * N + tl.arange(0, 8)\n"
        "    m = tl.arange(0, 8) < N\n"
        "    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=m), mask=m)\n";
    EXPECT_EQ(inferred(rows, "M=1,N=6", {"x_ptr=8x6:fp32", "y_ptr=4x6:fp32"}), Lines{}) << "a longer table";
}

// Programs beyond the launch may be dearer than all of it.
TEST(Warnings, LookBeyondTheGridOnlyAsFarAsThatIsCheap) {
    const auto lines = [](const std::string& rounds) {
        return inferred("    p = tl.program_id(0)\n    at = p * 8 + tl.arange(0, 8)\n    for j in range(0, " +
                            rounds +
                            "):\n        tl.load(x_ptr + j % 8 * 8 + tl.arange(0, 8))\n"
                            "    tl.store(y_ptr + at, 1.0, mask=at < N)\n",
                        "M=1,N=128", {"x_ptr=64:fp32", "y_ptr=48:fp32"});
    };
    EXPECT_EQ(lines("5").size(), 1U);
    EXPECT_EQ(lines("p + 1").size(), 1U);
    EXPECT_EQ(lines("p * p * p"), Lines{});
}

TEST(Warnings, NameTheTileOfManyThatAreRunAtOnce) {
    const std::string body =
        "    at = tl.program_id(0) * 8 + tl.arange(0, 8)\n"
        "    tl.store(y_ptr + at, tl.load(x_ptr + at))\n";
    const Arguments args =
        arguments("", {"x_ptr=" + std::to_string(8 * 1000 - 4) + ":fp32", "y_ptr=8000:fp32"});
    EXPECT_EQ(
        on("x_ptr, y_ptr", body, args, {1000, 1, 1}).warnings,
        Lines{"kernel.py:8: tile 999 loads from memory outside of x_ptr (shape 7996, strides 1): give the "
              "shape and strides that it has in a launch"});
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
