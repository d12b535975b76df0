// Which of several functions, constants and imports of one name a kernel sees.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

const std::string kImports = "import triton\nimport triton.language as tl\n\n";

/// A kernel `k` that loads x_ptr[at], indented by `indent`.
std::string kernel(const std::string& at, const std::string& indent = "") {
    return indent + "@triton.jit\n" + indent + "def k(x_ptr, y_ptr):\n" + indent +
           "    tl.store(y_ptr, tl.load(x_ptr + " + at + "))\n";
}

Arguments launch() {
    Arguments args = arguments("", {"x_ptr=64:fp32", "y_ptr=1:fp32"});
    args.grid = {1, 1, 1};
    return args;
}

/// Where the kernel of this file loads from.
std::int64_t loaded(const std::string& text, const std::string& name = "k") {
    const Kernel k = analysed(kImports + text, launch(), name);
    return k.tiles.empty() ? -1 : k.tiles[0].reads.at("x_ptr")[0].begin;
}

std::string refused(const std::string& text, const std::string& name = "k") {
    return error_of(kImports + text, launch(), name);
}

const std::string kBranches =
    "if hasattr(tl, 'nothing'):\n" + kernel("1", "    ") + "else:\n" + kernel("2", "    ");

TEST(Scope, AKernelOfSeveralOfItsNameIsFoundByItsLine) {
    EXPECT_EQ(loaded(kBranches, "k@5"), 1);  // of the decorator, as Python has it
    EXPECT_EQ(loaded(kBranches, "k@9"), 2);
    EXPECT_EQ(loaded(kBranches, "k@10"), 2);  // of the name
    EXPECT_EQ(loaded(kernel("1") + kernel("2"), "k@4"), 1);
    EXPECT_EQ(loaded("class A:\n" + kernel("1", "    ") + "class B:\n" + kernel("2", "    "), "k@9"), 2);
    EXPECT_EQ(loaded(kernel("3"), "k@77"), 3) << "the only one, whatever has been written above it since";
}

TEST(Scope, AKernelOfSeveralOfItsNameIsAskedForWithoutALine) {
    EXPECT_EQ(refused(kBranches),
              "kernel.py:10:9: the file has several functions `k`; name one of: k@6, k@10");
    EXPECT_EQ(
        refused(kBranches, "k@1"),
        "kernel.py:10:9: the file has several functions `k`, none of them on line 1; name one of: k@6, k@10");
    EXPECT_EQ(refused(kBranches, ""),
              "kernel.py:10:9: the file has several kernels; name one of: k@6, k@10, as in FILE.py:k@6");
    EXPECT_EQ(loaded(kernel("1") + kernel("2")), 2) << "the later one replaces the earlier one, as in Python";
}

TEST(Scope, AHelperOfSeveralOfItsNameIsNotGuessed) {
    const std::string first = "    @triton.jit\n    def h():\n        return 1\n",
                      second = "    @triton.jit\n    def h():\n        return 2\n";
    for (const auto& [before, between] : {std::pair{"if tl.X:\n", "else:\n"},
                                          {"try:\n", "except ImportError:\n"},
                                          {"for i in X:\n", "while X:\n"}}) {
        EXPECT_NE(refused(before + first + between + second + kernel("h()")).find("depends on `h()`"),
                  std::string::npos)
            << before;
    }
    EXPECT_NE(refused("h = None\nif tl.X:\n" + first + kernel("h()")).find("depends on `h()`"),
              std::string::npos);
    EXPECT_EQ(loaded("try:\n" + first + "except ImportError:\n    pass\n" + kernel("h()")), 1);
}

TEST(Scope, AConstantThatIsBoundTwiceIsNotGuessed) {
    const std::string two = "P = tl.constexpr(2)\n";
    for (const std::string again :
         {"for _ in range(1):\n    P = tl.constexpr(3)\n", "for P in (3, 4):\n    pass\n",
          "while X:\n    P = tl.constexpr(3)\n", "with X:\n    P = tl.constexpr(3)\n",
          "with X as P:\n    pass\n", "def f():\n    global P\n    P = tl.constexpr(3)\nf()\n",
          "print(P := 3)\n", "_, P = f()\n", "P += 1\n", "match X:\n    case [P]:\n        pass\n", "del P\n",
          "if X:\n    P = 3\nelif Y:\n    P = 4\n"}) {
        EXPECT_NE(refused(two + again + kernel("P")).find("depends on `P`"), std::string::npos) << again;
    }
    EXPECT_EQ(loaded(two + "P = tl.constexpr(3)\n" + kernel("P")), 3) << "the last one, when the kernel runs";
    EXPECT_EQ(loaded(two + "_, P = 1, tl.constexpr(3)\n" + kernel("P")), 3);
    EXPECT_EQ(loaded("(P, Q), R = (tl.constexpr(2), 5), 7\n" + kernel("P + Q + R")), 14);
}

TEST(Scope, AConstantMadeOfOneThatChangesLaterIsNotGuessed) {
    EXPECT_NE(refused("P = 2\nQ = P * 2\nP = 3\n" + kernel("Q")).find("depends on"), std::string::npos);
    EXPECT_NE(refused("P = 2\n@triton.jit\ndef h(at=P):\n    return at\nP = 3\n" + kernel("h()"))
                  .find("depends on"),
              std::string::npos);
    EXPECT_NE(refused("T = [1, 2]\nT[0] = 5\n" + kernel("T[0]")).find("depends on"), std::string::npos);
    EXPECT_EQ(loaded("P = 2\nQ = P * 2\n" + kernel("Q")), 4);
}

TEST(Scope, AKernelMadeByAFunctionSeesThatFunctionsNames) {
    const std::string made = kernel("S", "    ");
    EXPECT_NE(refused("S = 2\ndef make(S):\n" + made).find("depends on `S`"), std::string::npos)
        << "a parameter";
    EXPECT_NE(refused("S = 2\ndef make(*, S=4):\n" + made).find("depends on `S`"), std::string::npos);
    EXPECT_NE(refused("S = 2\ndef make():\n    S = 3\n" + made).find("depends on `S`"), std::string::npos)
        << "an interpreted kernel sees 2, a compiled one 3";
    EXPECT_EQ(loaded("def make():\n    S = 3\n" + made), 3);
    EXPECT_EQ(loaded("S = 2\ndef make():\n    T = 3\n" + made), 2);
    EXPECT_NE(refused("def other():\n    S = 2\n    def f():\n        pass\ndef make(S):\n" + made)
                  .find("depends on `S`"),
              std::string::npos);
    EXPECT_EQ(loaded("def make():\n    S = 3\n    @triton.jit\n    def h():\n        return S\n" +
                     kernel("h()", "    ")),
              3);
    EXPECT_NE(refused("def make():\n    S = 3\n    def change():\n        nonlocal S\n        S = 4\n" + made)
                  .find("depends on `S`"),
              std::string::npos);
}

TEST(Scope, WhatIsNotKnownIsNamedWithWhatWouldHelp) {
    EXPECT_EQ(refused("def make(stride):\n    T = stride\n" + kernel("T", "    ")),
              "kernel.py:8:33: the address `x_ptr + T` cannot be known before the kernel runs: it depends on "
              "`stride` (line "
              "5), whose value only running the file tells: bind it once, at the top level; state what a "
              "tile touches with "
              "`# @sy.reads x_ptr[…]`");
}

TEST(Scope, NamesOfAClassAreItsOwn) {
    EXPECT_EQ(loaded("K = 2\nclass A:\n    K = 3\n" + kernel("K")), 2);
    EXPECT_EQ(loaded("K = 2\nclass A:\n    K = 3\n" + kernel("K", "    ")), 2) << "methods do not see them";
}

TEST(Scope, AnImportGoesBeforeWhatReplacesItWhereItFails) {
    EXPECT_EQ(loaded("try:\n    from triton.language import cdiv\nexcept ImportError:\n    cdiv = None\n" +
                     kernel("cdiv(7, 4)")),
              2);
    EXPECT_EQ(loaded("if X:\n    import triton.language as ttl\nelse:\n    ttl = None\n" +
                     kernel("ttl.cdiv(7, 4)")),
              2);
    const std::string none = "ttl = Placeholder()\n", there = "import triton.language as ttl\n";
    for (const auto& [first, second] : {std::pair{there, none}, {none, there}})
        EXPECT_EQ(loaded("if X:\n    " + first + "else:\n    " + second + kernel("ttl.cdiv(7, 4)")), 2);
}

TEST(Scope, APackageThatIsNotFoundHandsTritonOn) {
    const std::string from = "from some.package import tl, triton\n";
    EXPECT_EQ(analysed(from + kernel("tl.cdiv(7, 4)"), launch(), "k").tiles[0].reads.at("x_ptr")[0].begin, 2);
}

// They are followed without PyTorch: kernels of torch.compile compute their indices with them.
TEST(Scope, HelpersOfInductorAreFollowed) {
    const std::string imports =
        "from torch._inductor.runtime import triton_helpers\n"
        "from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math\n";
    EXPECT_EQ(loaded(imports + kernel("tl_math.abs(tl.program_id(0) - 3)")), 3);
    EXPECT_EQ(loaded(imports + kernel("4 + triton_helpers.div_floor_integer(tl.program_id(0) - 7, 4)")), 2);
    EXPECT_EQ(loaded(imports + kernel("triton_helpers.div_floor_integer(tl.program_id(0) + 7, 4)")), 1);
    EXPECT_EQ(loaded(imports + kernel("triton_helpers.remainder_integer(tl.program_id(0) - 7, 4)")), 1);
    EXPECT_EQ(loaded(imports +
                     kernel("triton_helpers.minimum(triton_helpers.maximum(tl.program_id(0) - 3, 2), 5)")),
              2);
    EXPECT_NE(refused(imports + kernel("triton_helpers.unheard_of(tl.program_id(0))"))
                  .find("which is no function of this project"),
              std::string::npos);
}

TEST(Scope, TheLastOfSeveralStarsCountsAndIsBehindWhatStandsBelowIt) {
    namespace fs = std::filesystem;
    const fs::path folder = fs::temp_directory_path() / ("syncopate-stars-" + std::to_string(::getpid()));
    fs::create_directories(folder);
    for (const auto& [name, offset] : {std::pair{"one", "1"}, {"two", "2"}})
        std::ofstream(folder / (std::string(name) + ".py"))
            << kImports << "@triton.jit\ndef h():\n    return " << offset << "\n";
    const std::string own = "@triton.jit\ndef h():\n    return 3\n";
    const std::string one = "from one import *\n", two = "from two import *\n";
    const auto from = [&](const std::string& text) {
        const auto made = analyse(kImports + text + kernel("h()"), (folder / "k.py").string(), "k", launch());
        EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().to_string());
        return made.ok() ? made->tiles[0].reads.at("x_ptr")[0].begin : -1;
    };
    EXPECT_EQ(from(one + two), 2);
    EXPECT_EQ(from(two + one), 1);
    EXPECT_EQ(from(own + two), 2);
    EXPECT_EQ(from(two + own), 3);
    EXPECT_EQ(from("from two import h\n" + one), 1);
    fs::remove_all(folder);
}

TEST(Scope, AnotherNameOfATritonFunctionIsThatFunction) {
    EXPECT_EQ(loaded("cdiv = triton.cdiv\nup = cdiv\n" + kernel("up(7, 4)")), 2);
}

TEST(Scope, TheNextPowerOfTwoOfAConstantIsOne) {
    EXPECT_EQ(loaded(kernel("triton.next_power_of_2(13)")), 16);
    EXPECT_EQ(loaded(kernel("triton.next_power_of_2(16)")), 16);
    EXPECT_EQ(loaded(kernel("triton.next_power_of_2(1) + triton.next_power_of_2(0)")), 1);
    EXPECT_EQ(loaded("W = triton.next_power_of_2(3)\n" + kernel("W")), 4);
    EXPECT_NE(refused(kernel("triton.next_power_of_2(tl.program_id(0) + 3)")).find("cannot be known"),
              std::string::npos)
        << "Triton does not compile it of what only a program knows";
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
