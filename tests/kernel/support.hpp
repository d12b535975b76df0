// Kernels and arguments for the tests of kernel/.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "syncopate/io.hpp"
#include "syncopate/kernel/triton/analyse/analyse.hpp"
#include "syncopate/kernel/triton/sites/text.hpp"

namespace syncopate::kernel::triton::test {

inline std::string example(const std::string& name) {
    const Result<std::string> text = read_file(std::string(SYNCOPATE_SOURCE_DIR) + "/examples/" + name);
    EXPECT_TRUE(text.ok());
    return text.ok() ? *text : std::string();
}

/// "M=2,…" and tensors, one per line of the command.
inline Arguments arguments(const std::string& scalars, std::initializer_list<std::string> tensors) {
    Arguments made;
    const auto parsed = parse_scalars(scalars);
    EXPECT_TRUE(parsed.ok());
    if (parsed.ok()) made.scalars = *parsed;
    for (const std::string& tensor : tensors) {
        const auto one = parse_tensor(tensor);
        EXPECT_TRUE(one.ok()) << tensor;
        if (one.ok()) made.tensors.insert(*one);
    }
    return made;
}

/// The body of a kernel after these lines, indented by four.
inline std::string source(const std::string& signature, const std::string& body) {
    return "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(" + signature + "):\n" + body;
}

inline Kernel analysed(const std::string& text, const Arguments& arguments, const std::string& name = "") {
    Result<Kernel> kernel = analyse(text, "kernel.py", name, arguments);
    EXPECT_TRUE(kernel.ok()) << (kernel.ok() ? "" : kernel.error().to_string());
    return kernel.ok() ? *std::move(kernel) : Kernel{};
}

/// The first line of the error.
inline std::string error_of(const std::string& text, const Arguments& arguments,
                            const std::string& name = "") {
    const Result<Kernel> kernel = analyse(text, "kernel.py", name, arguments);
    EXPECT_FALSE(kernel.ok());
    return kernel.ok() ? std::string() : kernel.error().location.to_string() + ": " + kernel.error().message;
}

inline const Sites& sites_of(const Kernel& kernel) { return text_of(kernel).sites; }

inline std::string slice(const Kernel& kernel, const SourceRange& range) {
    return text_of(kernel).source.substr(range.begin, range.end - range.begin);
}

inline plan::Region box(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    return {{a, b}, {c, d}};
}

inline Arguments pointers(std::int64_t m, std::int64_t n, std::int64_t k) {
    const auto s = [](std::int64_t x) { return std::to_string(x); };
    return arguments("M=" + s(m) + ",N=" + s(n) + ",K=" + s(k) +
                         ",BLOCK_M=64,BLOCK_N=64,BLOCK_K=32,GROUP_M=2,stride_am=" + s(k) +
                         ",stride_ak=1,stride_bk=" + s(n) + ",stride_bn=1,stride_cm=" + s(n) + ",stride_cn=1",
                     {"a_ptr=" + s(m) + "x" + s(k) + ":fp32", "b_ptr=" + s(k) + "x" + s(n) + ":fp32",
                      "c_ptr=" + s(m) + "x" + s(n) + ":fp32"});
}

inline Arguments descriptors(std::int64_t m, std::int64_t n, std::int64_t k, bool host) {
    const auto s = [](std::int64_t x) { return std::to_string(x); };
    const std::string suffix = host ? "_desc=" : "_ptr=";
    return arguments(
        "M=" + s(m) + ",N=" + s(n) + ",K=" + s(k) + ",BLOCK_M=64,BLOCK_N=64,BLOCK_K=32,GROUP_M=2,NUM_SMS=5",
        {"a" + suffix + s(m) + "x" + s(k) + ":fp32" + (host ? "@64x32" : ""),
         "b" + suffix + s(n) + "x" + s(k) + ":fp32" + (host ? "@64x32" : ""),
         "c" + suffix + s(m) + "x" + s(n) + ":fp32" + (host ? "@64x64" : "")});
}

}  // namespace syncopate::kernel::triton::test
