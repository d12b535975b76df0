// A kernel that states that it sums, and plans whose sums it carries out, for the tests of fuse and emit.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fuse/sample.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/kernel/stated/statement.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::fuse::sample {

inline constexpr std::int64_t kColumns = 48;  // rows of 96 bytes: the heap is laid out by 3072
inline constexpr std::int64_t kBlock = 16;    // rows, and columns, of a tile

inline plan::Tensor c_of(std::int64_t rows, std::int64_t columns = kColumns) {
    return {"C", {rows, columns}, plan::DType::bf16};
}

/// A product of three programs that states that they store tiles where slots say, and sum.
inline kernel::Kernel product(std::int64_t rows, std::int64_t columns = kColumns,
                              const std::string& sums = "SUMS") {
    const kernel::stated::Statement statement{
        .kernel = "matmul",
        .file = "matmul.py",
        .source = "def matmul(): pass\n",
        .parameters = {"a_desc", "b_desc", "c_desc", "M", "N", "sy_schedule", "sy_control", "SUMS"},
        .constants = {"SUMS"},
        .tiles = {{"m", "cdiv(M, 16)"}, {"n", "cdiv(N, 16)"}},
        .loops = {{"k", "2"}},
        .reads = {{"a_desc", {"16*m : 16*m + 16", "16*k : 16*k + 16"}},
                  {"b_desc", {"16*k : 16*k + 16", "16*n : 16*n + 16"}}},
        .writes = {{"c_desc", {"16*m : 16*m + 16", "16*n : 16*n + 16"}}},
        .placed = {"c_desc"},
        .sums = sums};
    const auto tensor = [](std::int64_t m, std::int64_t n) {
        return kernel::TensorArgument{{m, n}, {}, plan::DType::bf16, {kBlock, kBlock}};
    };
    kernel::Arguments arguments;
    arguments.scalars = {{"M", rows}, {"N", columns}, {"SUMS", std::int64_t{0}}};
    arguments.tensors = {
        {"a_desc", tensor(rows, 32)}, {"b_desc", tensor(32, columns)}, {"c_desc", tensor(rows, columns)}};
    arguments.grid = {3, 1, 1};
    auto kernel = kernel::stated::analyse(statement, arguments);
    EXPECT_TRUE(kernel.ok()) << (kernel.ok() ? "" : kernel.error().to_string());
    return kernel.ok() ? *std::move(kernel) : kernel::Kernel{};
}

/// The product of as many rows and columns as the plan's first tensor has, bound to that.
inline Program summed(const plan::Plan& plan) {
    const std::vector<std::int64_t>& shape = plan.tensors.front().shape;
    return {product(shape[0], shape[1]), plan, {{"c_desc", "C"}}};
}

inline Options in_kernel() {
    return {.device = Device::cuda, .preferred = plan::Backend::tma_inline, .kernel_sums = true};
}

inline plan::Plan to_all(std::int32_t num_ranks, const plan::PushReduceToAllOptions& options,
                         std::int64_t rows = 48) {
    return plan::push_reduce_to_all(ranks(num_ranks), c_of(rows), "D", options).value();
}

/// A reduce-scatter whose contributions are stored at their owners; `rows` of each.
inline plan::Plan to_owners(std::int32_t num_ranks, std::int64_t rows = kBlock) {
    plan::PushReduceOptions options;
    options.backends.assign(static_cast<std::size_t>(num_ranks - 1), plan::Backend::tma_inline);
    return plan::push_reduce(ranks(num_ranks), c_of(num_ranks * rows), options).value();
}

}  // namespace syncopate::fuse::sample
