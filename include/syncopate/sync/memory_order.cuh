// Loads, adds and fences with their order stated, of one GPU (scope .gpu). sm_70 and later; what sm_90 adds
// is nothing before it.
#pragma once

#include <cstdint>

namespace syncopate::sync {

/// Acquires at GPU scope: what a poster did before its release is visible to this thread, by generic loads.
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* word) {
    std::uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

/// What this thread has done, or seen through a barrier of its block, comes before what it does afterwards,
/// for all threads of the GPU.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// Adds 1. Orders nothing: after fence_gpu it releases.
__device__ __forceinline__ void add_relaxed(std::uint32_t* word) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(word) : "memory");
}

/// What this thread has acquired comes before its async-proxy accesses (TMA) that follow. Nothing before
/// sm_90.
__device__ __forceinline__ void fence_before_tma() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

/// Waits until the bulk stores that this thread has committed are written, not only read from shared memory:
/// then a post may follow.
__device__ __forceinline__ void complete_bulk_stores() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

/// Lets the stream's next kernel start once every block of this one has come here or ended. Orders no memory.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Until the kernels before this one in the stream have ended and their memory is flushed.
__device__ __forceinline__ void await_kernels_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ std::uint32_t cluster_rank() {
    std::uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ std::uint32_t cluster_blocks() {
    std::uint32_t blocks;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

/// All threads of the cluster. What any of them did before comes before what all do after, at cluster scope.
__device__ __forceinline__ void cluster_barrier() {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}

/// Stores into the shared variable of another block of the cluster. Orders nothing: a cluster_barrier follows.
__device__ __forceinline__ void store_in_cluster(unsigned long long* word, std::uint32_t rank,
                                                 unsigned long long value) {
    const auto own = static_cast<std::uint32_t>(__cvta_generic_to_shared(word));
    std::uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(there), "l"(value) : "memory");
}
#endif

__device__ __forceinline__ std::uint64_t nanoseconds() {
    std::uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
}

}  // namespace syncopate::sync
