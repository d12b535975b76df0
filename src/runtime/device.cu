// The two small kernels around the fused one: a warp that posts and waits. The order of memory:
// - a post is st.release.sys: all that the stream did before this kernel is visible to whoever acquires the
// word;
// - a wait is ld.acquire.sys: what the poster did before is visible to this thread, and to later kernels of
// the stream. Neither orders the async proxy (TMA): a kernel that reads what has arrived by TMA makes its own
// proxy fence.
#include "runtime/device_types.hpp"

namespace syncopate::runtime::device {
namespace {

__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* word) {
    std::uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ void store_release(std::uint32_t* word, std::uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ std::uint64_t nanoseconds() {
    std::uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
}

/// Polls until the word has reached epoch - lag, or this rank has a fault, or the deadline makes one.
__device__ void wait_for(std::uint32_t* control, const WaitEntry& wait, std::uint32_t epoch,
                         std::int32_t where) {
    const auto* word = reinterpret_cast<const std::uint32_t*>(wait.word);
    const std::uint32_t target = epoch - wait.lag;
    std::uint32_t seen = load_acquire(word);
    if (static_cast<std::int32_t>(seen - target) >= 0) return;
    const std::uint64_t deadline = static_cast<std::uint64_t>(control[kDeadlineMs]) * 1000000u;
    const std::uint64_t start = nanoseconds();
    for (std::uint32_t polls = 1;; ++polls) {
        seen = load_acquire(word);
        if (static_cast<std::int32_t>(seen - target) >= 0) return;
        if (polls % 64 != 0) continue;
        if (load_acquire(control + kFault) != 0) return;
        if (deadline == 0 || nanoseconds() - start < deadline) continue;
        if (atomicCAS_system(control + kFault, 0u, static_cast<std::uint32_t>(wait.signal) + 1u) == 0u) {
            control[kFaultSeen] = seen;
            control[kFaultEpoch] = target;
            control[kFaultWhere] = static_cast<std::uint32_t>(where);
            __threadfence_system();
        }
        return;
    }
}

/// Tells the host, and the other ranks if this rank's own wait failed; the ranks' first fault stays.
__device__ void report_fault(const BoundaryArguments& a, std::uint32_t fault, std::int32_t lane) {
    if (lane == 0) {
        __threadfence_system();
        a.mirror[kMirrorSeen] = a.control[kFaultSeen];
        a.mirror[kMirrorAwaited] = a.control[kFaultEpoch];
        a.mirror[kMirrorWhere] = a.control[kFaultWhere];
        a.mirror[kMirrorEpoch] = a.control[kEpoch];
        store_release(a.mirror + kMirrorFault, fault);
    }
    if ((fault & kPeerFault) != 0) return;
    for (std::int32_t rank = lane; rank < a.num_ranks; rank += 32) {
        if (rank == a.rank) continue;
        auto* peer = reinterpret_cast<std::uint32_t*>(a.first_control +
                                                      static_cast<std::uint64_t>(rank) * a.heap_stride);
        atomicCAS_system(peer + kFault, 0u, kPeerFault | static_cast<std::uint32_t>(a.rank));
    }
}

__device__ __forceinline__ std::uint32_t fault_of(const BoundaryArguments& a, std::int32_t lane) {
    std::uint32_t fault = 0;
    if (lane == 0) fault = load_acquire(a.control + kFault);
    return __shfl_sync(0xffffffffu, fault, 0);
}

}  // namespace

/// One warp. epoch += 1, posts, waits, and publishes the epoch for the copy engine's posts. After a fault:
/// nothing.
extern "C" __global__ void __launch_bounds__(32) sy_begin(const BoundaryArguments a) {
    const auto lane = static_cast<std::int32_t>(threadIdx.x);
    std::uint32_t fault = fault_of(a, lane);
    if (fault == 0) {
        std::uint32_t epoch = 0;
        if (lane == 0) {
            epoch = a.control[kEpoch] + 1u;
            a.control[kEpoch] = epoch;
        }
        epoch = __shfl_sync(0xffffffffu, epoch, 0);
        __threadfence_system();
        for (std::int32_t i = lane; i < a.num_posts; i += 32) {
            store_release(reinterpret_cast<std::uint32_t*>(a.posts[i]), epoch);
        }
        for (std::int32_t i = lane; i < a.num_waits; i += 32) wait_for(a.control, a.waits[i], epoch, -1);
        __syncwarp();
        fault = fault_of(a, lane);
        if (fault == 0 && lane == 0) {
            a.control[kPublished] = epoch;
            store_release(a.mirror + kMirrorPublished, epoch);
            __threadfence_system();
        }
    }
    if (fault != 0) report_fault(a, fault, lane);
}

/// One warp. Waits, then posts; nothing is posted after a fault.
extern "C" __global__ void __launch_bounds__(32) sy_end(const BoundaryArguments a) {
    const auto lane = static_cast<std::int32_t>(threadIdx.x);
    std::uint32_t fault = fault_of(a, lane);
    if (fault == 0) {
        std::uint32_t epoch = 0;
        if (lane == 0) epoch = a.control[kEpoch];
        epoch = __shfl_sync(0xffffffffu, epoch, 0);
        for (std::int32_t i = lane; i < a.num_waits; i += 32) wait_for(a.control, a.waits[i], epoch, -2);
        __syncwarp();
        fault = fault_of(a, lane);
        if (fault == 0) {
            __threadfence_system();
            for (std::int32_t i = lane; i < a.num_posts; i += 32) {
                store_release(reinterpret_cast<std::uint32_t*>(a.posts[i]), epoch);
            }
        }
    }
    if (fault != 0) report_fault(a, fault, lane);
}

// The chunk engine: a few blocks copy one chunk after another, all blocks a part of each. The block that ends
// a chunk's last part posts it: every thread's stores come before its block's barrier, the barrier before
// that block's fence and count, and the counts before the last block's fence and release, so whoever acquires
// the word sees the whole chunk.
//
// A block wants a multiprocessor for itself: beside a GEMM, which keeps shared memory busy all the time, its
// loads and stores hardly get through (measured on H200: 5 GB/s instead of 44 a block). It is launched with
// so much shared memory that a GEMM's program does not fit beside it, and the fused kernel's grid leaves it
// the multiprocessors it needs.
extern "C" __global__ void __launch_bounds__(1024, 1) sy_copy(const EngineArguments a) {
    constexpr std::uint32_t kUnroll = 8;
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const std::uint32_t warps = gridDim.x * (blockDim.x / 32);
    if (load_acquire(a.control + kFault) != 0) return;
    const std::uint32_t epoch = a.control[kEpoch];
    for (std::int32_t index = a.first; index < a.first + a.count; ++index) {
        const EngineTransfer transfer = a.transfers[index];
        for (std::uint32_t row = warp; row < transfer.rows; row += warps) {
            const auto* src = reinterpret_cast<const int4*>(transfer.src + row * transfer.src_pitch);
            auto* dst = reinterpret_cast<int4*>(transfer.dst + row * transfer.dst_pitch);
            const std::uint32_t units =
                row + 1 == transfer.rows ? transfer.last_row_units : transfer.row_units;
            std::uint32_t at = lane;
            for (; at + 32 * (kUnroll - 1) < units; at += 32 * kUnroll) {
                int4 values[kUnroll];
#pragma unroll
                for (std::uint32_t i = 0; i < kUnroll; ++i) values[i] = __ldcg(src + at + 32 * i);
#pragma unroll
                for (std::uint32_t i = 0; i < kUnroll; ++i) dst[at + 32 * i] = values[i];
            }
            for (; at < units; at += 32) dst[at] = __ldcg(src + at);
        }
        if (transfer.num_posts == 0) continue;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence_system();
            if (atomicAdd(a.finished + index, 1u) + 1u == epoch * gridDim.x) {
                __threadfence_system();
                for (std::uint32_t i = 0; i < transfer.num_posts; ++i) {
                    store_release(reinterpret_cast<std::uint32_t*>(a.posts[transfer.first_post + i]), epoch);
                }
            }
        }
    }
}

}  // namespace syncopate::runtime::device
