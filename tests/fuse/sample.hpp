// Kernels and plans that the tests of fuse and emit share, made by hand so that nothing else needs to work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/fuse/model/program.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::fuse::sample {

struct Gemm {
    std::int64_t M = 0, N = 0, K = 0;
    std::int64_t block_m = 0, block_n = 0, block_k = 0;
    std::int64_t programs = 0;  ///< 0: one tile per program
};

/// C = A·B over row-major tiles, N fastest: a_ptr is read [M rows, K], b_ptr [K, N columns].
inline kernel::Kernel gemm(const Gemm& g) {
    kernel::Kernel kernel;
    kernel.name = "matmul";
    kernel.file = "sample.py";
    const auto tensor_param = [](const char* name, bool written) {
        kernel::Param param;
        param.name = name;
        param.kind = kernel::ParamKind::pointer;
        param.read = !written;
        param.written = written;
        return param;
    };
    kernel.params = {tensor_param("a_ptr", false), tensor_param("b_ptr", false), tensor_param("c_ptr", true)};
    kernel.params.push_back({"M", kernel::ParamKind::scalar, false, false, {}});
    const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const std::int64_t tiles_m = up(g.M, g.block_m), tiles_n = up(g.N, g.block_n);
    kernel.axes = {{"M", tiles_m, g.block_m}, {"N", tiles_n, g.block_n}};
    const std::int64_t programs =
        g.programs > 0 ? std::min(g.programs, tiles_m * tiles_n) : tiles_m * tiles_n;
    for (std::int64_t id = 0; id < tiles_m * tiles_n; ++id) {
        kernel::Tile tile;
        const std::int64_t m = id / tiles_n, n = id % tiles_n;
        tile.coord = {m, n};
        tile.id = id;
        tile.program = id % programs;
        const plan::Interval rows{m * g.block_m, std::min(g.M, (m + 1) * g.block_m)};
        const plan::Interval columns{n * g.block_n, std::min(g.N, (n + 1) * g.block_n)};
        tile.reads["a_ptr"] = {rows, {0, g.K}};
        tile.reads["b_ptr"] = {{0, g.K}, columns};
        tile.writes["c_ptr"] = {rows, columns};
        kernel.tiles.push_back(std::move(tile));
    }
    kernel.grid = {programs, 1, 1};
    kernel.persistent = g.programs > 0;
    kernel::Loop loop;
    loop.variable = "k";
    loop.divisible = true;
    loop.trips = up(g.K, g.block_k);
    loop.slices = {{"a_ptr", 1, 0, g.block_k, g.block_k}, {"b_ptr", 0, 0, g.block_k, g.block_k}};
    kernel.loops = {loop};
    kernel.accesses = {{.param = "a_ptr"}, {.param = "c_ptr", .stores = true}};
    kernel.arguments.tensors["a_ptr"] = {{g.M, g.K}, {}, plan::DType::bf16, {}};
    kernel.arguments.tensors["b_ptr"] = {{g.K, g.N}, {}, plan::DType::bf16, {}};
    kernel.arguments.tensors["c_ptr"] = {{g.M, g.N}, {}, plan::DType::bf16, {}};
    return kernel;
}

inline plan::Mesh ranks(std::int32_t count) { return {{{"gpu", count}}}; }

inline plan::Tensor a_of(const Gemm& g) { return {"A", {g.M, g.K}, plan::DType::bf16}; }

inline Program all_gather_gemm(const Gemm& g, std::int32_t num_ranks,
                               const plan::AllGatherOptions& options = {}) {
    return {gemm(g), plan::all_gather(ranks(num_ranks), a_of(g), options).value(), {{"a_ptr", "A"}}};
}

/// Each rank passes to the next one what it has: its own shard first, then what came from the one before.
inline plan::Plan ring_all_gather(std::int32_t num_ranks, const plan::Tensor& tensor, bool pull = false) {
    plan::Plan plan;
    plan.mesh = ranks(num_ranks);
    plan.tensors = {tensor};
    const auto shards = plan::split_evenly(0, tensor.shape[0], num_ranks);
    const auto chunk = [&](std::int32_t shard) {
        return plan::Chunk{0, {shards[(shard + num_ranks) % num_ranks], {0, tensor.shape[1]}}};
    };
    plan.ranks.resize(num_ranks);
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
        const std::int32_t before = (rank + num_ranks - 1) % num_ranks;
        plan.initial.push_back({.rank = rank, .chunk = chunk(rank)});
        plan.final.push_back({.rank = rank, .chunk = {0, tensor.whole()}});
        for (std::int32_t step = 0; step + 1 < num_ranks; ++step) {
            plan::Op op;
            op.kind = pull ? plan::OpKind::pull : plan::OpKind::push;
            op.peer = pull ? before : (rank + 1) % num_ranks;
            op.src = op.dst = chunk(pull ? before - step : rank - step);
            if (step > 0) op.after = {{before, step - 1}};
            plan.ranks[rank].push_back(op);
        }
    }
    return plan;
}

/// A plan of pushes, none after another, whose receivers fetch instead.
inline plan::Plan pulled(const plan::Plan& plan) {
    plan::Plan result = plan;
    for (auto& list : result.ranks) list.clear();
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        for (plan::Op op : plan.ranks[rank]) {
            if (op.kind == plan::OpKind::local) {
                result.ranks[rank].push_back(op);
                continue;
            }
            const std::int32_t receiver = op.peer;
            op.kind = plan::OpKind::pull;
            op.peer = rank;
            result.ranks[receiver].push_back(op);
        }
    }
    return result;
}

}  // namespace syncopate::fuse::sample
