// A product from CUTLASS's building blocks as a stage of a chain, for sm_90a: C = act(A Bᵀ), A [M, K], B [N,
// K], C [M, N], fp16, sums in fp32.
//
//   warp 0         | wait for the tile's rows of A | TMA loads of A and B, stage by stage |
//   warps 4 to 11  | wgmma, two warpgroups that share a tile                              | store, post |
//
// Only the loading warp waits; the others go on from the ring of stages. With kEarlyB it fills the ring with
// operand B, which no stage makes, before it waits. CUTLASS makes the mainloop (CollectiveMma); ours are the
// tile, the wait, the order of the first loads, and the post.
#pragma once

#include <cuda_fp16.h>

#include <cutlass/arch/reg_reconfig.h>
#include <cute/tensor.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>

#include "syncopate/sync/stage.cuh"

namespace sync_cutlass {

using namespace cute;

using TileShape = Shape<_128, _128, _64>;
using ClusterShape = Shape<_1, _1, _1>;
constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 64, kThreads = 384, kStages = 5;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, cutlass::half_t, cutlass::layout::RowMajor, 8,
    cutlass::half_t, cutlass::layout::ColumnMajor, 8, float, TileShape, ClusterShape,
    cutlass::gemm::collective::StageCount<kStages>,
    cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
using Pipeline = typename Mainloop::MainloopPipeline;
using PipelineState = typename Mainloop::PipelineState;

struct Product {
    typename Mainloop::Params mainloop;
    cutlass::half_t* c;
    int m, n, k;
    int awaits;  ///< 1: A is made by an earlier stage, input 0
    int relu;
};

/// On the host: tensor maps and all.
inline Product make_product(const cutlass::half_t* a, const cutlass::half_t* b, cutlass::half_t* c, int m,
                            int n, int k, bool awaits, bool relu) {
    const typename Mainloop::Arguments arguments{
        a, {std::int64_t{k}, _1{}, std::int64_t{0}}, b, {std::int64_t{k}, _1{}, std::int64_t{0}}};
    const auto params = Mainloop::to_underlying_arguments(make_shape(m, n, k, 1), arguments, nullptr);
    return {params, c, m, n, k, awaits ? 1 : 0, relu ? 1 : 0};
}

struct SharedStorage {
    typename Mainloop::TensorStorage tensors;
    typename Mainloop::PipelineStorage pipeline;
    unsigned long long ticket;
};

/// One warp: all loads of a tile.
template <bool kEarlyB>
__device__ void load(const syncopate::sync::Stage<>& stage, const syncopate::sync::Tile& tile,
                     const Product& p, Pipeline& pipeline, SharedStorage& shared) {
    Mainloop mainloop;
    const auto inputs = mainloop.load_init(make_shape(p.m, p.n, p.k, 1), p.mainloop);
    const int steps = (p.k + kBlockK - 1) / kBlockK;
    const Tensor sA =
        make_tensor(make_smem_ptr(shared.tensors.smem_A.data()), typename Mainloop::SmemLayoutA{});
    const Tensor sB =
        make_tensor(make_smem_ptr(shared.tensors.smem_B.data()), typename Mainloop::SmemLayoutB{});
    const auto slice_a = p.mainloop.tma_load_a.get_slice(0);
    const auto slice_b = p.mainloop.tma_load_b.get_slice(0);
    const Tensor from_a = slice_a.partition_S(get<0>(inputs)(_, _, static_cast<int>(tile.y), _, 0));
    const Tensor from_b = slice_b.partition_S(get<1>(inputs)(_, _, static_cast<int>(tile.x), _, 0));
    Tensor to_a = slice_a.partition_D(sA);
    Tensor to_b = slice_b.partition_D(sB);
    const auto load_a = [&](const PipelineState& at, int step) {
        copy(p.mainloop.tma_load_a.with(*pipeline.producer_get_barrier(at)), from_a(_, _, _, step),
             to_a(_, _, _, at.index()));
    };
    const auto load_b = [&](const PipelineState& at, int step) {
        copy(p.mainloop.tma_load_b.with(*pipeline.producer_get_barrier(at)), from_b(_, _, _, step),
             to_b(_, _, _, at.index()));
    };
    const int early = kEarlyB && p.awaits != 0 ? min(steps, kStages) : 0;
    const bool leader = cute::elect_one_sync();
    PipelineState write = cutlass::make_producer_start_state<Pipeline>();
    if (leader) {
        PipelineState ahead = write;
        for (int step = 0; step < early; ++step, ++ahead) {
            pipeline.producer_acquire(ahead);  // expects the bytes of both operands
            load_b(ahead, step);
        }
    }
    __syncwarp();
    if (p.awaits != 0) stage.wait(0, tile);
    if (!leader) return;
    for (int step = 0; step < steps; ++step, ++write) {
        if (step >= early) {
            pipeline.producer_acquire(write);
            load_b(write, step);
        }
        load_a(write, step);
    }
}

/// Two warpgroups: the product of a tile, and its store.
__device__ inline void multiply(const syncopate::sync::Tile& tile, const Product& p, Pipeline& pipeline,
                                SharedStorage& shared) {
    typename Mainloop::TiledMma tiled_mma;
    const int thread = static_cast<int>(threadIdx.x) - 128;
    const int steps = (p.k + kBlockK - 1) / kBlockK;
    Tensor sums = partition_fragment_C(tiled_mma, take<0, 2>(TileShape{}));
    PipelineState read;
    Mainloop mainloop;
    mainloop.mma(pipeline, read, sums, steps, thread, shared.tensors, p.mainloop);
    mainloop.mma_tail(pipeline, read, steps);
    const Tensor c = make_tensor(make_gmem_ptr(p.c), make_shape(p.m, p.n), make_stride(p.n, _1{}));
    const Tensor places = make_identity_tensor(shape(c));
    const auto at = make_coord(static_cast<int>(tile.y), static_cast<int>(tile.x));
    const auto of_thread = tiled_mma.get_thread_slice(thread);
    Tensor to = of_thread.partition_C(local_tile(c, take<0, 2>(TileShape{}), at));
    const Tensor place = of_thread.partition_C(local_tile(places, take<0, 2>(TileShape{}), at));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < size(sums); ++i) {
        if (!elem_less(place(i), shape(c))) continue;
        const float value = p.relu != 0 ? fmaxf(sums(i), 0.0F) : sums(i);
        to(i) = cutlass::half_t(value);
    }
}

template <bool kEarlyB>
__global__ void __launch_bounds__(kThreads, 1)
    product(const __grid_constant__ syncopate::sync::StageArguments arguments,
            const __grid_constant__ Product p) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<SharedStorage*>(memory);
    const syncopate::sync::Stage<> stage(arguments);
    const bool loads = threadIdx.x < 128;
    typename Pipeline::Params params;
    params.role = loads ? Pipeline::ThreadCategory::Producer : Pipeline::ThreadCategory::Consumer;
    params.is_leader = threadIdx.x % 128 == 0;
    params.num_consumers = 256;
    params.num_producers = 1;
    params.transaction_bytes = p.mainloop.tma_transaction_bytes;
    Pipeline pipeline(shared.pipeline, params, ClusterShape{});
    if (threadIdx.x == 0) {
        Mainloop::prefetch_tma_descriptors(p.mainloop);
        shared.ticket = stage.draw();
    }
    __syncthreads();  // also: the barriers are ready
    syncopate::sync::launch_dependents();
    const syncopate::sync::Tile tile = stage.tile_of(shared.ticket);
    if (loads) {
        cutlass::arch::warpgroup_reg_dealloc<40>();
        if (threadIdx.x < 32) load<kEarlyB>(stage, tile, p, pipeline, shared);
    } else {
        cutlass::arch::warpgroup_reg_alloc<232>();
        multiply(tile, p, pipeline, shared);
    }
    stage.post(tile);
    stage.end(tile);
#endif
}

}  // namespace sync_cutlass
