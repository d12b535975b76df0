// Which functions of a file are kernels, and that what stands outside of them does not matter.
#include <algorithm>

#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

const std::string kImports =
    "import functools\nimport triton\nimport triton.language as tl\nfrom triton import jit as J\n\n";
const std::string kFunction =
    "def k(x_ptr, y_ptr, B: tl.constexpr):\n"
    "    at = tl.program_id(0) * B + tl.arange(0, B)\n"
    "    tl.store(y_ptr + at, tl.load(x_ptr + at))\n\n";

Arguments vectors() { return arguments("B=16", {"x_ptr=64:fp32", "y_ptr=64:fp32"}); }

/// Whether the function `name` of this text is a kernel of four tiles.
bool is_kernel(const std::string& text, const std::string& name = "k") {
    const Result<Kernel> made = analyse(kImports + text, "kernel.py", name, vectors());
    EXPECT_TRUE(made.ok()) << text << (made.ok() ? "" : made.error().to_string());
    return made.ok() && made->tiles.size() == 4;
}

std::string indented(std::string text) {
    std::string made = "    ";
    for (const char c : text.substr(0, text.find_last_not_of('\n') + 1))
        made += c == '\n' ? "\n    " : std::string(1, c);
    return made + "\n";
}

TEST(Kernels, AreMadeByCalls) {
    for (const char* call :
         {"k = triton.jit(k)", "k = triton.jit(fn=k)", "k = J(k)",
          "k = triton.jit(do_not_specialize=['x_ptr'])(k)",
          "k = triton.autotune(configs=[], key=[])(triton.jit(k))", "k = functools.wraps(k)(triton.jit(k))",
          "k = triton.heuristics({'B': lambda args: 16})(triton.autotune([], [])(triton.jit(k)))",
          "k = triton.runtime.jit.JITFunction(k)", "k: object = triton.jit(k)", "k, other = triton.jit(k), 3",
          "KERNELS = {'k': triton.jit(k)}", "def get():\n    return triton.jit(k)",
          "if True:\n    k = triton.jit(k)"})
        EXPECT_TRUE(is_kernel(kFunction + call + "\n")) << call;
    EXPECT_TRUE(is_kernel(kFunction + "fast = triton.autotune([], [])(triton.jit(k))\n", "fast"));
    EXPECT_TRUE(is_kernel("def make():\n" + indented(kFunction) + "    return triton.jit(k)\n"));
    EXPECT_TRUE(is_kernel("@triton.jit\n" + kFunction + "k = triton.autotune([], [])(k)\n"));
}

TEST(Kernels, AreUnderDecoratorsThatStandForTritons) {
    for (const char* decorator :
         {"my = functools.partial(triton.jit, noinline=True)\n", "def my(f):\n    return triton.jit(f)\n",
          "my = triton.jit if triton else (lambda f: f)\n", "my = lambda f: triton.jit(f)\n",
          "my = triton.jit\n", "my = triton.jit(noinline=True)\n"})
        EXPECT_TRUE(is_kernel(std::string(decorator) + "@my\n" + kFunction)) << decorator;
    EXPECT_TRUE(
        is_kernel("def my(**kw):\n    def wrap(f):\n        return triton.jit(f, **kw)\n    return wrap\n"
                  "@my(noinline=True)\n" +
                  kFunction));
}

TEST(Kernels, AreNotWhatOtherCallsAreGiven) {
    for (const char* call : {"k = functools.lru_cache(k)\n", "def wrap(k):\n    return triton.jit(k)\n",
                             "print(k)\n", "k = triton.autotune([], [])(k)\n"})
        EXPECT_NE(error_of(kImports + kFunction + call, vectors(), "k").find("`k` is not under @triton.jit"),
                  std::string::npos)
            << call;
}

TEST(Kernels, TellWhichChoosesAParameterThatACallLeavesOpen) {
    const std::string error =
        error_of(kImports + kFunction +
                     "k = triton.autotune(configs=[triton.Config({'B': 32})], key=[])(triton.jit(k))\n",
                 arguments("", {"x_ptr=64:fp32", "y_ptr=64:fp32"}), "k");
    EXPECT_NE(error.find("since @triton.autotune on line 10 chooses it (32)"), std::string::npos) << error;
}

TEST(Syntax, OutsideOfKernelsDoesNotMatter) {
    const std::string kernel = "@triton.jit\n" + kFunction;
    for (const char* host :
         {"def f(a, b, c):\n    return *a, *(b or c)\n",
          "def f(a, b):\n    print(*a or b)\n    x = *a | b, a\n    yield *a, *b or a\n",
          "class A:\n    def f(self, a):\n        if a:\n            return *a, *(a or a)\n        else:\n   "
          "         return 1\n",
          "def f(d):\n    print(f\"{d[\"a\"]} {f\"{d['b']!r:>{10}}\"}\")\n",
          "type Alias[T] = list[T] | None\n", "def f[T: int, *Ts, **P](a: T) -> T:\n    return a\n",
          "try:\n    pass\nexcept* ValueError as e:\n    raise\n",
          "match x:\n    case {'a': 1, **rest} if rest:\n        pass\n    case [1, *_] | (3 as z):\n        "
          "pass\n",
          "if (n := 3) > 2 and [y := 1, y**2]:\n    print(f'{(x := 3)} {x:=10}')\n",
          "x = (1, 2\n@dec(\ndef f(a, b) -> {\n    return a +\n",
          "def f(a):\n    \"\"\"doc\ndef g(:\n    \"\"\"\n    return *a, *(a or a)\n",
          "if x\n  y = 1\nelse\n  z = [\n", "print 'python 2'\n", "def f(a):\n\treturn *a, *(a or a)\n"}) {
        EXPECT_TRUE(is_kernel(host + kernel)) << host;
        EXPECT_TRUE(is_kernel(kernel + host)) << host;
    }
}

TEST(Syntax, OfAFunctionAroundAKernelDoesNotMatter) {
    EXPECT_TRUE(
        is_kernel("def make(a, b):\n    def inner():\n        return *a, *(b or a)\n    @triton.jit\n" +
                  indented(kFunction) + "    return *a, *(b or k)\n"));
}

TEST(Syntax, MattersWhereAKernelNeedsIt) {
    const std::string wrong = "@triton.jit\ndef helper(x):\n    y = = 3\n    return x\n\n";
    EXPECT_TRUE(is_kernel(wrong + "@triton.jit\n" + kFunction));
    std::string calls = kFunction;
    calls.replace(calls.find("tl.load(x_ptr + at)"), 19, "helper(tl.load(x_ptr + at))");
    EXPECT_EQ(error_of(kImports + wrong + "@triton.jit\n" + calls, vectors(), "k"),
              "kernel.py:8:9: syntax error: unexpected `=`; is something missing before it?");
    EXPECT_EQ(error_of(kImports + "def f(a): return *a, *(a or a)\n" + wrong + "@triton.jit\n" + calls,
                       vectors(), "k"),
              "kernel.py:9:5: syntax error: `y = = 3` is not understood");
    EXPECT_EQ(error_of(kImports + wrong + kFunction + "k = triton.jit(k)\n", vectors()),
              "kernel.py:8:9: syntax error: unexpected `=`; is something missing before it?");
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
