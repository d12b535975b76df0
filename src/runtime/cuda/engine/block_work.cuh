// What the kernels share that do an op with whole blocks (sum_engine.cu, at_once.cu).
#pragma once

#include "runtime/cuda/engine/near_signals.cuh"

namespace syncopate::runtime::device {
namespace {

/// 16 bytes that nobody reads again. No order of its own: it must follow a wait or a barrier that has
/// acquired.
__device__ __forceinline__ uint4 load_once(std::uint64_t address) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address)
                 : "memory");
    return value;
}

/// One warp: `count` things of 8-byte words.
template <typename Thing>
__device__ __forceinline__ void copy_words(Thing* to, const Thing* from, std::uint32_t count,
                                           std::int32_t lane) {
    const auto words = static_cast<std::int32_t>(count * (sizeof(Thing) / sizeof(std::uint64_t)));
    for (std::int32_t i = lane; i < words; i += 32)
        reinterpret_cast<std::uint64_t*>(to)[i] = reinterpret_cast<const std::uint64_t*>(from)[i];
}

/// One warp of each of `blocks` blocks: counts what its block has stored, which it has seen at a barrier.
/// Whether all blocks have [P7]; then the caller may post their stores, too.
__device__ __forceinline__ bool is_last(std::uint32_t* counter, std::uint32_t epoch, std::uint32_t blocks,
                                        std::int32_t lane) {
    std::uint32_t last = 0;
    if (lane == 0) {
        std::uint32_t before;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
        last = before + 1 == epoch * blocks ? 1 : 0;
    }
    return __shfl_sync(0xffffffffu, last, 0) != 0;
}

}  // namespace
}  // namespace syncopate::runtime::device
