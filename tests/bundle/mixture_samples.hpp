// A mixture of experts as a bundle, and its calls on host by the C API.
#pragma once

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bundle/c_samples.hpp"
#include "bundle/samples.hpp"
#include "syncopate/at.hpp"

namespace syncopate::bundle::testing {

inline constexpr std::int64_t kTokens = 5, kTopk = 2, kHidden = 8, kInner = 6, kExperts = 4;

inline ops::Strategy one_tile() {
    return {.tiles = {{.block_m = 16, .block_n = 16, .block_k = 16, .stages = 1}}, .programs = 4};
}

inline Bundle mixture(const std::string& more = "", int ranks = 2) {
    Bundle made{.name = "a mixture", .made_by = "a test", .arch = std::string(kHost)};
    made.op.emplace();
    const bool says = more.find("dtype=") != std::string::npos;
    made.op->problem = *ops::parse_problem("moe:T=5,E=4,topk=2,H=8,F=6" + more + (says ? "" : ",dtype=fp32") +
                                           ",sms=4,ranks=" + std::to_string(ranks));
    made.op->activation = "relu";
    made.op->buckets.push_back({.rows = kTokens, .strategy = one_tile()});
    made.file = "op.sybundle";
    return made;
}

/// topk_ids.
struct Ids {
    Ids() {
        tensor.data = values.data();
        tensor.device = {SY_CPU, 0};
        tensor.ndim = 2;
        tensor.dtype = {SY_INT, 64, 1};
        tensor.shape = shape.data();
    }
    std::vector<int64_t> shape{kTokens, kTopk};
    std::vector<int64_t> values = std::vector<int64_t>(static_cast<size_t>(kTokens * kTopk));
    sy_tensor tensor{};
};

/// The tensors of a rank's calls. Every element of expert e's w1 is e + 1 and of its w2 1, each of x the rank and the token.
struct Call {
    explicit Call(int rank, int ranks)
        : x({kTokens, kHidden}),
          weights({kTokens, kTopk}),
          w1({kExperts / ranks, kHidden, 2 * kInner}),
          w2({kExperts / ranks, kInner, kHidden}),
          y({kTokens, kHidden}) {
        for (size_t i = 0; i < x.values.size(); ++i)
            x.values[i] = value(rank, static_cast<int64_t>(i) / kHidden);
        std::ranges::fill(w2.values, 1.0F);
        for (size_t i = 0; i < w1.values.size(); ++i)
            w1.values[i] = static_cast<float>(rank * kExperts / ranks +
                                              static_cast<int64_t>(i) / (kHidden * 2 * kInner) + 1);
        for (size_t i = 0; i < weights.values.size(); ++i) weights.values[i] = i % 2 == 0 ? 0.5F : 1.0F;
    }
    static float value(int rank, int64_t token) { return static_cast<float>(10 * rank + token + 1); }
    sy_code run(sy_op* op) {
        const sy_tensor* tensors[] = {&x.tensor,  &ids.tensor, &weights.tensor,
                                      &w1.tensor, &w2.tensor,  &y.tensor};
        return sy_run(op, tensors, 6, nullptr);
    }
    /// What an expert makes of a token's row, all of whose elements are alike.
    static float made(int rank, int64_t token, int64_t expert) {
        const float up = static_cast<float>(kHidden) * value(rank, token) * static_cast<float>(expert + 1);
        return static_cast<float>(kInner) * up * up;
    }
    void expect_right(int rank, const std::set<int64_t>& left_out = {}) const {
        for (int64_t token = 0; token < kTokens; ++token) {
            float wanted = 0;
            for (int64_t k = 0; k < kTopk; ++k) {
                const int64_t route = token * kTopk + k;
                if (!left_out.contains(route))
                    wanted += weights.values[at(route)] * made(rank, token, ids.values[at(route)]);
            }
            for (int64_t h = 0; h < kHidden; ++h)
                ASSERT_EQ(y.values[at(token * kHidden + h)], wanted)
                    << "rank " << rank << ", token " << token;
        }
    }
    Floats x;
    Ids ids;
    Floats weights, w1, w2, y;
};

/// `work` on each rank, with its op.
inline void with_ops(const Bundle& made, int ranks, const std::function<void(sy_op*, int)>& work,
                     int64_t rows = kTokens) {
    with_bundle(made, ranks, [&](sy_comm* comm, sy_bundle* opened, int rank) {
        sy_op* op = nullptr;
        sy_prepare_config prepare{};
        prepare.size = sizeof(prepare);
        prepare.rows = rows;
        OK(sy_prepare(comm, opened, &prepare, &op));
        work(op, rank);
        OK(sy_op_destroy(op));
    });
}

}  // namespace syncopate::bundle::testing
