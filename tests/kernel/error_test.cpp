#include <cmath>
#include <limits>
#include <random>

#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

const std::string kCopy =
    "    r = tl.program_id(0) * B + tl.arange(0, B)\n    tl.store(y_ptr + r, tl.load(x_ptr + r))\n";

TEST(Errors, ASyntaxErrorHasItsLineAndColumn) {
    const std::string message =
        error_of("import triton\n\n@triton.jit\ndef k(x):\n    y = (1 +\n    z = 2\n", {});
    EXPECT_TRUE(message.starts_with("kernel.py:5:")) << message;
    EXPECT_NE(message.find("syntax error"), std::string::npos);
}

TEST(Errors, ABracketThatDoesNotMatchIsShownWhereItIs) {
    EXPECT_EQ(
        error_of("@triton.jit\ndef k(x):\n    n = tl.cdiv(x, 4  # (\n    z = ')' + \"\"\"]\"\"\" + 2\n", {}),
        "kernel.py:3:16: syntax error: `(` is never closed: write `)`");
    EXPECT_EQ(error_of("@triton.jit\ndef k(x):\n    n = x[4)\n", {}),
              "kernel.py:3:12: syntax error: `)` does not close the `[` of line 3: write `]`");
    EXPECT_EQ(error_of("@triton.jit\ndef k(x):\n    n = 4}\n", {}),
              "kernel.py:3:10: syntax error: `}` closes nothing: leave it out");
}

TEST(Errors, AMissingArgumentIsNamed) {
    EXPECT_EQ(
        error_of(source("x_ptr, y_ptr, B: tl.constexpr", kCopy),
                 arguments("", {"x_ptr=8:fp32", "y_ptr=8:fp32"})),
        "kernel.py:7:28: parameter `B` has no value: give --args B=… (or --tensor B=… if it is a tensor)");
}

TEST(Errors, AnArgumentThatIsNoParameterIsNamed) {
    EXPECT_EQ(error_of(source("x_ptr, y_ptr, B: tl.constexpr", kCopy), arguments("B=4,C=1", {})),
              "kernel.py:6:5: kernel `k` has no parameter `C`; it has x_ptr, y_ptr, B");
    EXPECT_EQ(error_of(source("x_ptr, y_ptr, B: tl.constexpr", kCopy), arguments("b=4", {})),
              "kernel.py:6:5: kernel `k` has no parameter `b`; did you mean \"B\"?; it has x_ptr, y_ptr, B");
}

const std::string kMasked =
    "    r = tl.program_id(0) * B + tl.arange(0, B)\n"
    "    tl.store(y_ptr + r, tl.load(x_ptr + r, mask=r < n) * s, mask=r < n)\n";
const std::string kMaskedSignature = "x_ptr, y_ptr, n, s, B: tl.constexpr";

TEST(Errors, ARealNumberForAWholeOneIsNamed) {
    const std::string real = error_of(source(kMaskedSignature, kMasked),
                                      arguments("n=8.0,s=2.0,B=4", {"x_ptr=8:fp32", "y_ptr=8:fp32"}));
    EXPECT_NE(real.find("; `n` is given as the real number 8.0: give --args n=8 if it counts something"),
              std::string::npos)
        << real;
    EXPECT_EQ(real.find("`s` is given"), std::string::npos) << real;
    const std::string block = error_of(source(kMaskedSignature, kMasked),
                                       arguments("n=8,s=2.0,B=4.0", {"x_ptr=8:fp32", "y_ptr=8:fp32"}));
    EXPECT_NE(block.find("`B` is given as the real number 4.0: give --args B=4"), std::string::npos) << block;
}

TEST(Errors, WhatCountsNothingIsNamedWhereverANumberIsNeeded) {
    const auto told = [](const std::string& body, const std::string& n) {
        return error_of(source("x_ptr, y_ptr, n, B: tl.constexpr", "    p = tl.program_id(0)\n" + body),
                        arguments("B=8,n=" + n, {"x_ptr=24x8:fp32", "y_ptr=24x8:fp32"}));
    };
    const std::string real =
        "; `n` is given as the real number 24.0: give --args n=24 if it counts something";
    const std::string loop =
        "    for i in range(0, n, B):\n        tl.store(y_ptr + p * 24 + i, tl.load(x_ptr + i))\n";
    const std::string bound =
        "    for i in range(n // B):\n        tl.store(y_ptr + i, tl.load(x_ptr + i))\n";
    const std::string descriptor =
        "    d = tl.make_tensor_descriptor(x_ptr, [n, 8], [8, 1], [B, 8])\n"
        "    e = tl.make_tensor_descriptor(y_ptr, [n, 8], [8, 1], [B, 8])\n"
        "    e.store([p * B, 0], d.load([p * B, 0]))\n";
    const std::string block =
        "    d = tl.make_block_ptr(base=x_ptr, shape=(n,), strides=(1,), offsets=(p * B,), block_shape=(B,), "
        "order=(0,))\n"
        "    tl.store(y_ptr + p * B + tl.arange(0, B), tl.load(d))\n";
    const std::string count = "    tl.store(y_ptr + p % tl.cdiv(n, B), 1.0)\n";
    for (const std::string& body : {loop, bound, descriptor, block, count})
        EXPECT_TRUE(told(body, "24.0").ends_with(real)) << told(body, "24.0");
    EXPECT_TRUE(told(descriptor, "None").ends_with("; `n` is given as None, where a whole number is needed"))
        << told(descriptor, "None");
    const std::string masked = "    r = p * B + tl.arange(0, B)\n    tl.store(y_ptr + r, 1.0, mask=r < n)\n";
    EXPECT_TRUE(
        told(masked, "none").ends_with("; `n` is given as the text \"none\", where a whole number is needed"))
        << told(masked, "none");
}

TEST(Errors, WhatIsComparedOrCountsNothingIsNotBlamedForAMissingNumber) {
    const auto told = [](const std::string& body) {
        return error_of(source("x_ptr, y_ptr, n, mode: tl.constexpr, act: tl.constexpr, B: tl.constexpr",
                               "    p = tl.program_id(0)\n    o = p * B + tl.arange(0, B)\n" + body +
                                   "    tl.store(y_ptr + tl.load(x_ptr + o).to(tl.int32), 1.0)\n"),
                        arguments("B=8,n=None,mode=fast,act=None", {"x_ptr=24:fp32", "y_ptr=24:fp32"}));
    };
    const std::string loop = " tl.load(x_ptr + o)\n";
    for (const std::string& body :
         {"    for i in tl.range(0, n if mode == 'fast' else B, num_stages=act):\n       " + loop,
          "    for i in range(tl.cdiv(n, B if act is None else 2 * B)):\n       " + loop,
          "    for i in range(0, n, B if mode == 'fast' else 1):\n       " + loop,
          std::string("    d = tl.make_tensor_descriptor(x_ptr, shape=[n], strides=[1], block_shape=[B], "
                      "padding_option=mode)\n    d.load([p * B])\n")}) {
        const std::string error = told(body);
        EXPECT_NE(error.find("`n` is given as None"), std::string::npos) << error;
        EXPECT_EQ(error.find("`mode` is given"), std::string::npos) << error;
        EXPECT_EQ(error.find("`act` is given"), std::string::npos) << error;
    }
}

TEST(Errors, ANumberForATensorIsNamed) {
    EXPECT_EQ(
        error_of(source(kMaskedSignature, kMasked), arguments("n=8,s=2.0,B=4,x_ptr=3", {"y_ptr=8:fp32"})),
        "kernel.py:8:25: `x_ptr` is used as an address in `tl.load(x_ptr + r, mask=r < n)`, but --args gives "
        "it a "
        "number: give its tensor instead, as in --tensor x_ptr=512x256:bf16");
}

TEST(Errors, ATensorThatIsLeftOutIsNamed) {
    const std::string error =
        error_of(source(kMaskedSignature, kMasked), arguments("n=8,s=2.0,B=4", {"x_ptr=8:fp32"}));
    EXPECT_NE(
        error.find("the shape of `y_ptr`, which it writes, is not known: give --tensor y_ptr=512x256:bf16"),
        std::string::npos)
        << error;
}

TEST(Errors, ATensorWhoseElementsShareAddressesIsRefused) {
    const std::string copy = source("x_ptr, y_ptr, B: tl.constexpr", kCopy);
    EXPECT_EQ(error_of(copy, arguments("B=4", {"x_ptr=5x16:fp32:1,1", "y_ptr=8:fp32"})),
              "kernel.py:6:7: elements of `x_ptr` share an address, or rows lie between each other's "
              "elements: pass a "
              "tensor each of whose strides steps over all that lies within");
    for (const std::string x :
         {"x_ptr=2x4:fp32:9,2", "x_ptr=4x2:fp32:1,4", "x_ptr=3x8:fp32:0,1", "x_ptr=1x8:fp32:1,1"})
        EXPECT_EQ(analysed(copy, arguments("B=4", {x, "y_ptr=8:fp32"})).tiles.size(), 2U) << x;
}

TEST(Errors, AnUndefinedNameIsNamed) {
    EXPECT_EQ(error_of(source("y_ptr", "    tl.store(y_ptr + nothing, 0)\n"), {}),
              "kernel.py:7:22: `nothing` is neither a variable of the kernel nor a constant of the file; "
              "assign it in the file, as in nothing = tl.constexpr(…), or make it a parameter");
}

TEST(Errors, AHostDescriptorNeedsItsBlock) {
    const std::string message = error_of(source("d, y_ptr", "    tl.store(y_ptr, d.load([0, 0]))\n"),
                                         arguments("", {"d=4x4:fp32", "y_ptr=1:fp32"}));
    EXPECT_EQ(message,
              "kernel.py:6:7: `d` is a tensor descriptor: give its block too, as in --tensor "
              "d=512x256:bf16@128x64");
}

TEST(Errors, AGridThatDoesNotFollowIsAskedFor) {
    const std::string message =
        error_of(source("x_ptr, y_ptr, B: tl.constexpr", kCopy), arguments("B=4", {}));
    EXPECT_TRUE(message.starts_with("kernel.py:6:5: the launch grid of `k` does not follow from the kernel"))
        << message;
    EXPECT_NE(message.find("--grid"), std::string::npos);
}

TEST(Errors, ATileThatNoProgramRunsIsNamed) {
    Arguments args = descriptors(200, 144, 96, true);
    args.grid = {3, 1, 1};
    const std::string message = error_of(example("matmul_persistent_host_tma.py"), args);
    EXPECT_EQ(message,
              "kernel.py:46:5: tile 3 is run by no program of a grid of 3; give the grid of the launch with "
              "--grid");
}

TEST(Errors, ALoopBoundThatDependsOnDataIsNamed) {
    const std::string message =
        error_of(source("n_ptr, y_ptr",
                        "    n = tl.load(n_ptr)\n    for i in range(n):\n        tl.store(y_ptr + i, 0)\n"),
                 {});
    EXPECT_TRUE(
        message.starts_with("kernel.py:8:14: how often the loop over `range(n)` runs depends on loaded data"))
        << message;
}

TEST(Errors, AFailingStaticAssertionIsReported) {
    const std::string message = error_of(
        source("y_ptr, B: tl.constexpr", "    tl.static_assert(B % 16 == 0)\n    tl.store(y_ptr, 0)\n"),
        arguments("B=8", {}));
    EXPECT_EQ(message,
              "kernel.py:7:5: the kernel's own assertion fails for these arguments: `B % 16 == 0`; give "
              "--args for which it holds");
}

TEST(Errors, UnknownKernelsAreListed) {
    const std::string text = source("y_ptr", "    tl.store(y_ptr, 0)\n") +
                             "\n\n@triton.jit\ndef other(y_ptr):\n    tl.store(y_ptr, 1)\n";
    EXPECT_EQ(error_of(text, {}, "nope"), "kernel.py: no function `nope`; under @triton.jit are: k, other");
    EXPECT_EQ(error_of(text, {}),
              "kernel.py:11:5: the file has several kernels; name one of: k, other, as in FILE.py:k");
}

TEST(Errors, EndlessWorkIsGivenUp) {
    EXPECT_NE(
        error_of(source("y_ptr", "    i = 0\n    while i < 1:\n        i = i * 2\n    tl.store(y_ptr, 0)\n"),
                 {})
            .find("gives up"),
        std::string::npos);
    const std::string deep = source("y_ptr", "    x = " + std::string(100000, '(') + "1" +
                                                 std::string(100000, ')') + "\n    tl.store(y_ptr, x)\n");
    EXPECT_FALSE(analyse(deep, "kernel.py", "", {}).ok());
    const std::string self =
        "import triton\nimport triton.language as tl\n@triton.jit\ndef f(x):\n    return f(x)\n" +
        source("y_ptr", "    tl.store(y_ptr + f(1), 0)\n");
    EXPECT_NE(error_of(self, {}, "k").find("32 deep"), std::string::npos);
}

TEST(Errors, HostileNestingIsRefusedAtOnce) {
    constexpr int kDeep = 1'000;
    const auto repeated = [](const std::string& text, int count) {
        std::string all;
        for (int i = 0; i < count; ++i) all += text;
        return all;
    };
    const auto around = [&](const std::string& before, const std::string& inner, const std::string& after) {
        return "    x = " + repeated(before, kDeep) + inner + repeated(after, kDeep) +
               "\n    tl.store(y_ptr, x)\n";
    };
    const auto blocks = [&](const std::string& head) {
        std::string all;
        for (int i = 0; i < kDeep; ++i)
            all += std::string(static_cast<std::size_t>(4 + i), ' ') + head + "\n";
        return all + std::string(kDeep + 4, ' ') + "tl.store(y_ptr, 1)\n";
    };
    for (const std::string& body :
         {around("(", "1", ")"), around("-", "1", ""), around("not ", "1", ""), around("1 + ", "1", ""),
          around("2 ** ", "1", ""), around("tl.abs(", "1", ")"), around("", "y_ptr", "[0]"),
          around("", "y_ptr", ".T"), around("1 if y_ptr else ", "2", ""), around("[", "", "]"),
          around("1 < ", "1", ""), around("lambda: ", "1", "("), blocks("if True:"),
          blocks("for i in range(2):"), blocks("while True:"), blocks("with y_ptr:")}) {
        const std::string error = error_of(source("y_ptr", body), {}, "k");
        EXPECT_TRUE(error.starts_with("kernel.py:")) << error.substr(0, 200) << " of " << body.substr(0, 40);
    }
}

TEST(Errors, HostileBytesNeverCrash) {
    const std::string good = example("matmul_pointers.py");
    const Arguments args = pointers(200, 144, 96);
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
        std::string text = good;
        for (int change = 0; change < 3 && !text.empty(); ++change) {
            const std::size_t at = random() % text.size();
            switch (random() % 4) {
                case 0: text[at] = static_cast<char>(random() % 256); break;
                case 1: text.erase(at, random() % 20); break;
                case 2: text.insert(at, text.substr(random() % text.size(), random() % 40)); break;
                default: text.resize(at + 1); break;
            }
        }
        const auto result = analyse(text, "kernel.py", "", args);
        if (!result) {
            EXPECT_FALSE(result.error().message.empty());
        }
    }
}

TEST(Notation, ScalarsTensorsAndGrids) {
    const auto scalars = parse_scalars("M=512,ACT=None,x=1.5,flag=True,dtype=fp16,s=\"a b\"");
    ASSERT_TRUE(scalars.ok());
    EXPECT_EQ(scalars->at("M"), Scalar(std::int64_t{512}));
    EXPECT_EQ(scalars->at("ACT"), Scalar(NoneValue{}));
    EXPECT_EQ(scalars->at("x"), Scalar(1.5));
    EXPECT_EQ(scalars->at("flag"), Scalar(true));
    EXPECT_EQ(scalars->at("s"), Scalar(std::string("a b")));
    const auto tensor = parse_tensor("a_ptr=512x256:bf16:256,1@128x64");
    ASSERT_TRUE(tensor.ok());
    EXPECT_EQ(tensor->second.strides, (std::vector<std::int64_t>{256, 1}));
    EXPECT_EQ(tensor->second.block, (std::vector<std::int64_t>{128, 64}));
    EXPECT_EQ(*parse_grid("3,2"), (std::array<std::int64_t, 3>{3, 2, 1}));
    for (const char* wrong : {"a", "a=", "a=4x:bf16", "a=4:bf17", "a=4x4:bf16:1", "a=4x4:bf16@4"})
        EXPECT_FALSE(parse_tensor(wrong).ok()) << wrong;
    for (const char* wrong : {"", "0", "1,2,3,4", "x"}) EXPECT_FALSE(parse_grid(wrong).ok()) << wrong;
    for (const char* wrong : {"a", "=1", "a=", "a=1,a=2", "a=1x"})
        EXPECT_FALSE(parse_scalars(wrong).ok()) << wrong;
}

TEST(Notation, WhatIsMissingOrTooLargeIsSaidWithWhatWasGiven) {
    EXPECT_EQ(parse_tensor("a=4:bf16@").error().message, "`a=4:bf16@` lacks a whole number");
    EXPECT_EQ(parse_values("a=1,").error().message, "`a=1,` lacks a whole number");
    EXPECT_EQ(parse_scalars("a=1,").error().message,
              "`a=1,` has a comma too many: write NAME=VALUE,NAME=VALUE");
    EXPECT_EQ(parse_scalars("a=99999999999999999999").error().message,
              "`a=99999999999999999999` does not fit 64 bits");
    EXPECT_EQ(parse_scalars("a=1e400").error().message,
              "`a=1e400` does not fit a float; write inf where it is meant");
    const double inf = std::numeric_limits<double>::infinity();
    for (const auto& [text, value] : {std::pair("inf", inf),
                                      {"-inf", -inf},
                                      {"float('-inf')", -inf},
                                      {"float(\"inf\")", inf},
                                      {"1e-06", 1e-6},
                                      {"-0.0", -0.0},
                                      {"1e300", 1e300}})
        EXPECT_EQ(parse_scalars("a=" + std::string(text))->at("a"), Scalar(value)) << text;
    EXPECT_TRUE(std::isnan(std::get<double>(parse_scalars("a=nan")->at("a"))));
    EXPECT_EQ(parse_scalars("a=\"inf\"")->at("a"), Scalar(std::string("inf")));
    EXPECT_EQ(parse_scalars("a=9223372036854775807")->at("a"), Scalar(std::int64_t{INT64_MAX}));
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
