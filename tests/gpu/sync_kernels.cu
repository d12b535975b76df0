// Kernels of check_sync.cpp. What each makes depends on the tile and the call's number, so that a reader
// knows what it must find, and finds a stale value out: no host has to look.
#include "syncopate/sync/stage.cuh"

namespace sync = syncopate::sync;

namespace {

constexpr std::uint32_t kWidth = 128;  // words of a tile; threads of a block

struct Check {
    std::uint32_t* made;    ///< what the stages write, rows of `columns` tiles
    std::uint32_t* wrong;   ///< how many words were not as expected
    std::uint32_t columns;  ///< tiles of the row that is read
    std::uint32_t rows;     ///< of the producer that one tile of the consumer reads
    std::uint32_t halo;     ///< rows before and after those
    std::uint32_t all_rows;
    std::uint32_t delay_ns;  ///< of a block, at most
};

__device__ std::uint32_t mix(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    std::uint32_t h = a * 0x9e3779b1u ^ b * 0x85ebca6bu ^ c * 0xc2b2ae35u ^ d * 0x27d4eb2fu;
    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    return h ^ h >> 13;
}

/// A block is late by up to `most` ns, now and then.
__device__ void be_late(std::uint32_t most, std::uint32_t salt, const sync::Tile& tile) {
    if (most == 0) return;
    const std::uint32_t h = mix(tile.linear, tile.epoch, salt, 7);
    if (h % 4 != 0) return;
    const std::uint64_t until = sync::nanoseconds() + h / 4 % most;
    while (sync::nanoseconds() < until) {
    }
}

/// The next tile of a kernel that may run in clusters.
template <bool kPersistent, bool kClusters>
__device__ sync::Tile next_tile(const sync::Stage<kPersistent>& stage) {
    if constexpr (kClusters) return stage.next_tile_of_cluster();
    return stage.next_tile();
}

template <bool kPersistent, bool kClusters = false>
__device__ void produce(const sync::StageArguments& arguments, const Check& c) {
    const sync::Stage<kPersistent> stage(arguments);
    for (;;) {
        const sync::Tile tile = next_tile<kPersistent, kClusters>(stage);
        if (!tile.valid) return stage.end(tile);
        be_late(c.delay_ns, 1, tile);
        c.made[(tile.y * c.columns + tile.x) * kWidth + threadIdx.x] =
            mix(tile.x, tile.y, threadIdx.x, tile.epoch);
        stage.post(tile);
        if (!kPersistent) return stage.end(tile);
    }
}

__device__ void expect(const Check& c, std::uint32_t found, std::uint32_t x, std::uint32_t y, std::uint32_t i,
                       std::uint32_t epoch) {
    if (found != mix(x, y, i, epoch)) atomicAdd(c.wrong, 1u);
}

__device__ std::uint32_t first_row(const Check& c, const sync::Tile& tile) {
    const std::uint32_t first = tile.y * c.rows;
    return first < c.halo ? 0 : first - c.halo;
}
__device__ std::uint32_t end_row(const Check& c, const sync::Tile& tile) {
    return min((tile.y + 1) * c.rows + c.halo, c.all_rows);
}

/// Reads by plain loads.
template <bool kPersistent, bool kClusters = false>
__device__ void consume(const sync::StageArguments& arguments, const Check& c) {
    const sync::Stage<kPersistent> stage(arguments);
    for (;;) {
        const sync::Tile tile = next_tile<kPersistent, kClusters>(stage);
        if (!tile.valid) return stage.end(tile);
        stage.wait_by_block(0, tile);
        for (std::uint32_t y = first_row(c, tile); y < end_row(c, tile); ++y) {
            for (std::uint32_t x = 0; x < c.columns; ++x)
                expect(c, c.made[(y * c.columns + x) * kWidth + threadIdx.x], x, y, threadIdx.x, tile.epoch);
        }
        be_late(c.delay_ns, 2, tile);
        stage.post(tile);
        if (!kPersistent) return stage.end(tile);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kWidth)
    check_produce(const __grid_constant__ sync::StageArguments a, const __grid_constant__ Check c) {
    produce<false>(a, c);
}
extern "C" __global__ void __launch_bounds__(kWidth)
    check_produce_persistent(const __grid_constant__ sync::StageArguments a,
                             const __grid_constant__ Check c) {
    produce<true>(a, c);
}
extern "C" __global__ void __launch_bounds__(kWidth)
    check_consume(const __grid_constant__ sync::StageArguments a, const __grid_constant__ Check c) {
    consume<false>(a, c);
}
extern "C" __global__ void __launch_bounds__(kWidth)
    check_consume_persistent(const __grid_constant__ sync::StageArguments a,
                             const __grid_constant__ Check c) {
    consume<true>(a, c);
}

extern "C" __global__ void __launch_bounds__(kWidth)
    check_produce_clusters(const __grid_constant__ sync::StageArguments a, const __grid_constant__ Check c) {
    produce<false, true>(a, c);
}
extern "C" __global__ void __launch_bounds__(kWidth)
    check_consume_clusters(const __grid_constant__ sync::StageArguments a, const __grid_constant__ Check c) {
    consume<false, true>(a, c);
}
extern "C" __global__ void __launch_bounds__(kWidth)
    check_produce_clusters_persistent(const __grid_constant__ sync::StageArguments a,
                                      const __grid_constant__ Check c) {
    produce<true, true>(a, c);
}

/// Never posts: who awaits it meets its deadline.
extern "C" __global__ void __launch_bounds__(kWidth)
    check_silent(const __grid_constant__ sync::StageArguments a, const __grid_constant__ Check) {
    const sync::Stage<> stage(a);
    const sync::Tile tile = stage.next_tile();
    stage.end(tile);
}

/// Keeps multiprocessors busy from another stream.
extern "C" __global__ void __launch_bounds__(1024) check_press(std::uint32_t ns) {
    const std::uint64_t until = sync::nanoseconds() + ns;
    while (sync::nanoseconds() < until) {
    }
}

#if __CUDA_ARCH__ >= 900
/// Warp 0 waits and loads by TMA (bulk copies); the others take what has arrived from shared memory.
extern "C" __global__ void __launch_bounds__(kWidth + 32)
    check_consume_tma(const __grid_constant__ sync::StageArguments a, const __grid_constant__ Check c) {
    __shared__ alignas(128) std::uint32_t box[kWidth];
    __shared__ alignas(8) std::uint64_t full;
    const std::uint32_t barrier = static_cast<std::uint32_t>(__cvta_generic_to_shared(&full));
    const std::uint32_t to = static_cast<std::uint32_t>(__cvta_generic_to_shared(box));
    const sync::Stage<> stage(a);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    const sync::Tile tile = stage.next_tile();
    if (threadIdx.x < 32) stage.wait(0, tile);
    std::uint32_t phase = 0;
    for (std::uint32_t y = first_row(c, tile); y < end_row(c, tile); ++y) {
        for (std::uint32_t x = 0; x < c.columns; ++x, phase ^= 1) {
            if (threadIdx.x == 0) {
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                             "r"(kWidth * 4)
                             : "memory");
                asm volatile(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
                    "[%3];" ::"r"(to),
                    "l"(c.made + (y * c.columns + x) * kWidth), "r"(kWidth * 4), "r"(barrier)
                    : "memory");
            }
            std::uint32_t done = 0;
            while (done == 0) {
                asm volatile(
                    "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, "
                    "0, p; }"
                    : "=r"(done)
                    : "r"(barrier), "r"(phase)
                    : "memory");
            }
            if (threadIdx.x >= 32) expect(c, box[threadIdx.x - 32], x, y, threadIdx.x - 32, tile.epoch);
            __syncthreads();  // the box is free again
        }
    }
    stage.post(tile);
    stage.end(tile);
}
#endif
