// The chunk engine: a persistent kernel of a few blocks that carries out a table of chunk ops (its format:
// engine_format.hpp; the same with the CPU: host_engine.cpp). Each warp walks the table and does its pieces
// (engine_warp.cuh); two more warps of each block count and post.
//
// Warps count in shared memory, and a thread of the block counts for all of them. The thread that posts has
// acquired, through the counts, that all is written [P17].
//
// A block wants a multiprocessor for itself: beside a GEMM, which keeps shared memory busy all the time, its
// copies hardly get through (measured on H200: 5 GB/s instead of 44 a block). It takes so much shared memory
// that no program of a GEMM fits beside it. The engine comes before the fused kernel in the stream and lets
// that one start when all its own blocks run: so it can never wait for a multiprocessor that the fused kernel
// holds.
#include "runtime/cuda/engine/engine_warp.cuh"

namespace syncopate::runtime::device {
namespace {

/// How many of the table's first `pieces` pieces are this block's.
__device__ std::uint32_t share(std::uint32_t pieces) {
    return (pieces + gridDim.x - 1 - blockIdx.x) / gridDim.x;
}

/// One thread of a block counts for all of its warps, in the order of the ops: a release to the whole GPU
/// takes as long as all that the thread knows to be stored, and keeps a warp that moves bytes from its next
/// piece (measured: 330 instead of 343 GB/s). It acquires from the block's warps and releases to the thread
/// that posts. It stops at a fault.
__device__ void count_ops(const EngineArguments& a, const EngineOp* table, const std::uint32_t* of_block) {
    for (std::uint32_t index = 0; index < a.count; ++index) {
        const EngineOp& op = table[index];
        if (op.last_piece != op.first_counted + op.expected) continue;  // not the counter's last op
        const std::uint32_t mine = share(op.last_piece) - share(op.first_counted);
        if (mine == 0) continue;
        const auto here = static_cast<std::uint32_t>(__cvta_generic_to_shared(of_block + op.counter));
        for (std::uint32_t polls = 1;; ++polls) {
            std::uint32_t seen;
            asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(seen) : "r"(here) : "memory");
            if (seen == mine) break;
            if (polls % 64 == 0 && load_acquire(a.begin.control + word::fault) != 0) return;
            __nanosleep(50);
        }
        add_release(a.finished + op.counter, mine);
    }
}

/// One thread posts the ops, in order, as their pieces are counted [P7, P23]. It stops at a fault: false.
__device__ bool post_ops(const EngineArguments& a, const EngineOp* table, std::uint32_t epoch) {
    for (std::uint32_t index = 0; index < a.count; ++index) {
        const EngineOp& op = table[index];
        if (op.num_posts == 0) continue;
        const std::uint32_t* counter = a.finished + op.counter;
        const std::uint32_t target = epoch * op.expected;
        for (std::uint32_t polls = 1;; ++polls) {
            std::uint32_t seen;
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
            if (static_cast<std::int32_t>(seen - target) >= 0) break;
            if (polls % 64 == 0 && load_acquire(a.begin.control + word::fault) != 0) return false;
        }
        for (std::uint32_t i = 0; i < op.num_posts; ++i) {
            store_release(reinterpret_cast<std::uint32_t*>(a.posts[op.first_post + i]), posted(op, epoch));
        }
    }
    return true;
}

/// One thread: lets the streams go on that wait for relays, after a fault [P22].
__device__ void open_gates(const EngineArguments& a, const EngineOp* table, std::uint32_t epoch) {
    for (std::uint32_t index = 0; index < a.count; ++index) {
        if (table[index].opens != 0)
            store_release(reinterpret_cast<std::uint32_t*>(a.posts[table[index].first_post]),
                          posted(table[index], epoch));
    }
}

/// The whole of a block's work.
template <bool kThreads>
__device__ __forceinline__ void run_engine(const EngineArguments& a) {
    extern __shared__ __align__(128) char stages[];
    __shared__ __align__(16) EngineOp entries[kEngineTableEntries];
    __shared__ std::uint32_t of_block[kEngineBlockCounters];
    __shared__ __align__(8) std::uint64_t barriers[kEngineWarps * kEngineStages];
    __shared__ std::uint32_t shared_fault;
    __shared__ std::uint32_t shared_epoch;
    const std::uint32_t warp = threadIdx.x / 32;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    launch_next();

    const EngineOp* table = a.count <= kEngineTableEntries ? entries : a.ops;
    if (warp == kEngineWarps) {
        // The epoch is this call's until the fused kernel ends, which it does after this kernel.
        const std::uint32_t epoch = a.begin.control[word::epoch];
        if (a.begins != 0) {
            if (blockIdx.x == 0 && a.begin.num_posts > 0) post_all(a.begin, epoch, lane);
            if (blockIdx.x == 0) tell_begun(a.begin, epoch, lane);
            // Each block waits for itself, so that it has acquired what the posters did before.
            for (std::int32_t i = lane; i < a.begin.num_waits; i += 32)
                wait_for(a.begin.control, a.begin.waits[i], epoch, word::at_begin);
            __syncwarp();
        }
        const std::uint32_t fault = fault_of(a.begin, lane);
        if (lane == 0) {
            shared_epoch = epoch;
            shared_fault = fault;
            for (std::uint64_t& barrier : barriers) {
                const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(&barrier));
                asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at) : "memory");
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            fence_proxy_async();
        }
    } else if (warp < kEngineWarps && table == entries) {
        const auto* from = reinterpret_cast<const uint2*>(a.ops);
        auto* to = reinterpret_cast<uint2*>(entries);
        for (std::uint32_t i = threadIdx.x; i < a.count * (sizeof(EngineOp) / sizeof(uint2));
             i += 32 * kEngineWarps) {
            to[i] = from[i];
        }
    }
    const bool counts_here = a.count <= kEngineBlockCounters;  // no op has more than one counter
    if (warp == kEngineWarps + 1) {
        for (std::uint32_t i = lane; counts_here && i < a.count; i += 32) of_block[i] = 0;
    }
    __syncthreads();
    const std::uint32_t epoch = shared_epoch;
    const bool good = shared_fault == 0;
    if (warp == kEngineWarps) {
        if (blockIdx.x == 0) {
            if (good && a.begins != 0) publish(a.begin, epoch, lane);
            if (lane == 0 && !(good && post_ops(a, table, epoch))) open_gates(a, table, epoch);
        }
    } else if (good && warp == kEngineWarps + 1) {
        if (counts_here && lane == 0) count_ops(a, table, of_block);
    } else if (good) {
        EngineWarp<kThreads> engine(a, table, counts_here ? of_block : nullptr, epoch,
                                    stages + warp * kEngineStages * kEnginePieceBytes,
                                    barriers + warp * kEngineStages);
        engine.run(warp * gridDim.x + blockIdx.x, kEngineWarps * gridDim.x);
    }
    if (blockIdx.x == 0 && warp == 0) {
        const std::uint32_t fault = fault_of(a.begin, lane);
        if (fault != 0) report_fault(a.begin, fault, epoch, lane);
    }
}

}  // namespace

// Two kernels, so that what goes in bulk does without the registers that loads and stores want: what does not
// fit into these lies in memory, behind all that is just being moved (measured: 2900 cycles to find the next
// piece). For the same reason the parameter is not copied.
extern "C" __global__ void __launch_bounds__(kEngineThreads, 1)
    sy_engine_bulk(const __grid_constant__ EngineArguments a) {
    run_engine<false>(a);
}

extern "C" __global__ void __launch_bounds__(kEngineThreads, 1)
    sy_engine(const __grid_constant__ EngineArguments a) {
    run_engine<true>(a);
}

}  // namespace syncopate::runtime::device
