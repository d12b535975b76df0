// The posts and waits of the sum engine (sum_engine.cu), by one warp of a block: the begin of each list lies
// in shared memory, where it is brought while there is nothing else to do.
#pragma once

#include "runtime/cuda/boundary/boundary.cuh"
#include "runtime/cuda/engine/engine_arguments.hpp"

namespace syncopate::runtime::device {
namespace {

constexpr std::int32_t kNearWords = 32;  // of a list of posts or waits, one a lane

/// What warp 0 posts and waits for: the begin of each list, brought while there is nothing else to do.
struct NearSignals {
    std::uint64_t posts[kNearWords];
    WaitEntry waits[kNearWords];
};

/// A list of words to set and one of words to wait for. `near`: the begins of both.
struct Signals {
    const std::uint64_t* posts;
    const WaitEntry* waits;
    std::int32_t num_posts;
    std::int32_t num_waits;
    NearSignals* near;

    __device__ __forceinline__ void bring(std::int32_t lane) const {
        if (lane < num_posts) near->posts[lane] = posts[lane];
        if (lane < num_waits) near->waits[lane] = waits[lane];
        __syncwarp();
    }

    /// One warp: sets the words to the epoch, after all that any lane has done or acquired [P17].
    __device__ __forceinline__ void post(std::uint32_t epoch, std::int32_t lane) const {
        if (num_posts == 0) return;
        __syncwarp();
        fence_to_system();
        for (std::int32_t i = lane; i < num_posts; i += 32) {
            const std::uint64_t word = i < kNearWords ? near->posts[i] : posts[i];
            store_relaxed(reinterpret_cast<std::uint32_t*>(word), epoch);
        }
    }

    /// One warp of each of several blocks: adds to the words [P5], after all that any lane has done or
    /// acquired.
    __device__ __forceinline__ void add(std::int32_t lane) const {
        if (num_posts == 0) return;
        __syncwarp();
        fence_to_system();
        for (std::int32_t i = lane; i < num_posts; i += 32) {
            const std::uint64_t word = i < kNearWords ? near->posts[i] : posts[i];
            asm volatile("red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(word) : "memory");
        }
    }
};

/// One warp: until all words of the list have come so far; each lane acquires those that it has polled, and a
/// barrier hands that on. False after a fault, on all lanes alike.
__device__ __forceinline__ bool wait_for_all(const Signals& signals, std::uint32_t* control,
                                             std::uint32_t epoch, std::int32_t where, std::int32_t lane) {
    bool over = true;
    for (std::int32_t i = lane; i < signals.num_waits; i += 32) {
        const WaitEntry wait = i < kNearWords ? signals.near->waits[i] : signals.waits[i];
        over = over && wait_for(control, wait, epoch, where);
    }
    return __all_sync(0xffffffffu, over);
}

__device__ __forceinline__ Signals signals_of(const BoundaryArguments& a, bool used, NearSignals& near) {
    return {a.posts, a.waits, used ? a.num_posts : 0, used ? a.num_waits : 0, &near};
}

__device__ __forceinline__ Signals signals_of(const EngineArguments& a, std::uint32_t index,
                                              NearSignals& near) {
    const EngineOp& op = a.ops[index];
    return {a.posts + op.first_post, a.waits + op.first_wait, static_cast<std::int32_t>(op.num_posts),
            static_cast<std::int32_t>(op.num_waits), &near};
}

}  // namespace
}  // namespace syncopate::runtime::device
