// Small bundles for host, and what runs their ranks as threads of this process.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/thread_store.hpp"
#include "syncopate/bundle/bundle.hpp"

namespace syncopate::bundle::testing {

using Store = runtime::testing::ThreadStore;

/// Runs `work` on so many threads, one a rank.
inline void on_ranks(int size, const std::function<void(int rank)>& work) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back([&work, rank] { work(rank); });
}

inline ops::Strategy small_tiles() {
    ops::Strategy strategy;
    strategy.tiles = {{.block_m = 16, .block_n = 16, .block_k = 16, .stages = 1}};
    strategy.programs = 4;
    strategy.split = 1;
    strategy.backend = plan::Backend::automatic;
    return strategy;
}

/// An operator for host.
inline Bundle sample(const std::string& problem, std::vector<std::int64_t> rows = {16, 64}) {
    Bundle made{.name = problem, .made_by = "a test", .arch = std::string(kHost)};
    made.op.emplace();
    made.op->problem = *ops::parse_problem(problem + ",M=" + std::to_string(rows.back()));
    for (const std::int64_t count : rows)
        made.op->buckets.push_back({.rows = count, .strategy = small_tiles()});
    made.file = "op.sybundle";
    return made;
}

/// The same with one kernel, which is none: what a bundle for a GPU looks like to those that only read it.
inline Bundle compiled_sample() {
    Bundle made = sample("matmul_reduce_scatter:N=48,K=32,dtype=bf16,ranks=2,sms=4");
    made.arch = "sm_90";
    made.kernels.push_back({.section = "kernels/0.cubin",
                            .entry = "matmul",
                            .options = {.num_warps = 4, .shared_bytes = 1024},
                            .parameters = {{.name = "b_desc",
                                            .kind = "tensordesc",
                                            .block = {16, 16},
                                            .descriptor = {16, 16},
                                            .element_bytes = 2,
                                            .element_type = 3,
                                            .swizzle = 1},
                                           {.name = "M", .kind = "i32"}},
                            .constants = {{"BLOCK_M", std::int64_t{16}},
                                          {"ACTIVATION", std::string()},
                                          {"FUSED", true},
                                          {"scale", 0.5},
                                          {"bias_ptr", kernel::NoneValue{}}},
                            .multiples_of_16 = {"b_desc"}});
    made.sections["kernels/0.cubin"] =
        "\x7f"
        "ELF and more";
    made.sections["source/0.py"] = "def matmul(): ...\n";
    for (Bucket& bucket : made.op->buckets)
        bucket.variants.push_back({.traits = {{{"TELLS", 1}}}, .kernels = {0}});
    return made;
}

}  // namespace syncopate::bundle::testing
