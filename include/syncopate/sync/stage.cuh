// A stage of a chain, inside its kernel (header-only, C++17, nothing but CUDA; sm_80, sm_90 and later):
//
//     __global__ void down(const __grid_constant__ StageArguments arguments, …) {
//         const Stage<> stage(arguments);
//         const Tile tile = stage.next_tile();            // all threads, instead of blockIdx
//         …                                               // what needs no wait: operand B
//         if (warp == 0) stage.wait(0, tile);              // one warp, the one that loads
//         …                                               // load, multiply, store
//         stage.post(tile);                               // all threads
//         stage.end(tile);
//     }
//
// A persistent kernel (Stage<true>) does so `while ((tile = stage.next_tile()).valid)`.
//
// Why it cannot deadlock: a block draws its ticket, then lets the next stage's kernel start. That kernel
// starts when all blocks of this one have, so whoever waits waits for blocks that run already, or for tiles
// with smaller tickets of its own stage. The blocks of a cluster start together, and draw together. check.hpp
// proves the rest of a chain.
//
// In stream order (Way::stream, launch.hpp) the same kernel draws, awaits and posts nothing: next_tile is the
// block's own place, so it costs what a kernel without a chain costs. Barriers stay, as kernels may rely on
// them.
//
// What an awaited input must not be: `const T* __restrict__`. nvcc then loads by ld.global.nc, which is not
// coherent with a kernel that still writes. Input (launch.cuh) is a pointer that is safe.
#pragma once

#include <cstdint>

#include "syncopate/sync/format.hpp"
#include "syncopate/sync/memory_order.cuh"

namespace syncopate::sync {

struct Tile {
    std::uint32_t linear = 0;  ///< x fastest
    std::uint32_t x = 0, y = 0, z = 0;
    std::uint32_t epoch = 0;  ///< the number of the call, from 0, modulo 2^32; 0 where nothing counts calls
    bool valid = false;       ///< persistent kernels: false after the last tile
    bool last = false;        ///< the launch's last ticket
};

template <bool kPersistent = false>
class Stage {
public:
    __device__ explicit Stage(const StageArguments& arguments) : a_(arguments) {}

    /// One thread draws a ticket. Orders nothing: data is ordered by waits. Blocks that use it themselves
    /// call launch_dependents after their first draw.
    __device__ unsigned long long draw() const { return atomicAdd(a_.ticket, 1ULL); }

    /// The tile of a ticket.
    __device__ Tile tile_of(unsigned long long ticket) const {
        Tile tile;
        const auto place = static_cast<std::uint32_t>(ticket % a_.draws);
        tile.epoch = static_cast<std::uint32_t>(ticket / a_.draws);
        tile.last = place == a_.draws - 1;
        tile.valid = place < a_.tiles;
        if (!tile.valid) return tile;
        place_at(tile, a_.ordered != 0 ? __ldg(a_.table + place) : own_place());
        return tile;
    }

    /// All threads of the block: the next tile, the same for all. A barrier of the block before and after;
    /// lets the next stage's kernel start.
    __device__ Tile next_tile() const {
        if (!kPersistent && a_.awaits == 0 && a_.ordered == 0) return own_tile();
        __shared__ unsigned long long ticket;
        if (kPersistent) __syncthreads();  // the ticket before has been read
        if (is_first_thread()) ticket = draw();
        __syncthreads();
        launch_dependents();
        return tile_of(ticket);
    }

    /// All threads of a cluster of blocks along x (launched with Blocks::cluster): the next tiles, one for each
    /// block: neighbours in the stage's order. A barrier of the cluster before and after.
    __device__ Tile next_tile_of_cluster() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        __shared__ unsigned long long ticket;
        cluster_barrier();  // all blocks run, and the tickets before have been read
        const std::uint32_t blocks = cluster_blocks();
        if (cluster_rank() == 0 && is_first_thread()) {
            const unsigned long long first = atomicAdd(a_.ticket, static_cast<unsigned long long>(blocks));
            for (std::uint32_t rank = 0; rank < blocks; ++rank) store_in_cluster(&ticket, rank, first + rank);
        }
        cluster_barrier();
        launch_dependents();
        return tile_of(ticket);
#else
        return Tile{};  // no clusters before sm_90: a launch with one fails
#endif
    }

    /// One whole warp: until all that `tile` reads of input `input` is written (inputs are numbered by
    /// DeviceChain::input). Each lane acquires what it polls at GPU scope and a warp barrier hands that on,
    /// so all lanes see the data by generic loads; a proxy fence follows, so they see it by TMA, too. Other
    /// warps see it after a barrier with this one (of the block, or the mbarrier of a TMA load). False when a
    /// deadline has passed, of this wait or another one: then nothing is ordered, and the caller goes on to
    /// its end.
    __device__ bool wait(std::uint32_t input, const Tile& tile) const {
        if (a_.awaits == 0) return true;
        const std::uint32_t* begin = a_.table + a_.waits_at + input * (a_.tiles + 1) + tile.linear;
        const std::uint32_t end = __ldg(begin + 1);
        bool over = true;
        for (std::uint32_t i = __ldg(begin) + lane(); i < end; i += 32) over = await(i, input, tile) && over;
        over = __all_sync(0xffffffffu, over);
        __syncwarp();
        fence_before_tma();
        return over;
    }

    /// All threads of the block: the same, by the first warp, with a barrier after it: for kernels of which
    /// every thread loads.
    __device__ bool wait_by_block(std::uint32_t input, const Tile& tile) const {
        bool over = true;
        if (warp() == 0) over = wait(input, tile);
        over = __syncthreads_and(over) != 0;
        fence_before_tma();
        return over;
    }

    /// All threads of the block, after their stores of the tile: posts it. A barrier collects the stores in
    /// one thread; its fence and adds release them at GPU scope. Whoever stores by TMA calls
    /// complete_bulk_stores first.
    __device__ void post(const Tile& tile) const {
        __syncthreads();
        if (is_first_thread()) post_by_thread(tile);
    }

    /// One thread, which has seen all stores of the tile through a barrier: the same.
    __device__ void post_by_thread(const Tile& tile) const {
        if (a_.awaits == 0) return;
        const std::uint32_t* begin = a_.table + a_.posts_at + tile.linear;
        const std::uint32_t first = __ldg(begin);
        const std::uint32_t end = __ldg(begin + 1);
        if (first == end) return;
        fence_gpu();
        for (std::uint32_t i = first; i < end; ++i)
            add_relaxed(a_.semaphores + kSemaphoreWords * __ldg(a_.table + a_.posted_at + i));
    }

    /// The block's last act, with its last tile: the launch's last block ends after the kernels before it, so
    /// that who comes after this kernel in the stream comes after those, too.
    __device__ void end(const Tile& tile) const {
        if (tile.last && is_first_thread()) await_kernels_before();
    }

private:
    __device__ static std::uint32_t thread() {
        return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    }
    __device__ static bool is_first_thread() { return thread() == 0; }
    __device__ static std::uint32_t lane() { return thread() % 32; }
    __device__ static std::uint32_t warp() { return thread() / 32; }

    __device__ static std::uint32_t own_place() {
        return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }
    __device__ void place_at(Tile& tile, std::uint32_t linear) const {
        tile.linear = linear;
        tile.x = linear % a_.grid[0];
        tile.y = linear / a_.grid[0] % a_.grid[1];
        tile.z = linear / (a_.grid[0] * a_.grid[1]);
    }
    /// In stream order, of a launch with the stage's own grid.
    __device__ static Tile own_tile() {
        Tile tile;
        tile.linear = own_place();
        tile.x = blockIdx.x;
        tile.y = blockIdx.y;
        tile.z = blockIdx.z;
        tile.valid = true;
        return tile;
    }

    /// Polls entry `i`. Acquires at GPU scope on each poll, the first one, too.
    __device__ bool await(std::uint32_t i, std::uint32_t input, const Tile& tile) const {
        const std::uint32_t* words = a_.table + a_.entries_at + 4 * i;
        const WaitEntry entry{__ldg(words), __ldg(words + 1), __ldg(words + 2), __ldg(words + 3)};
        const std::uint32_t target = (tile.epoch - entry.lag) * entry.posts + entry.count;
        const std::uint32_t* word = a_.semaphores + kSemaphoreWords * entry.semaphore;
        std::uint64_t start = 0;  // the time is looked at only now and then
        for (std::uint32_t polls = 1;; ++polls) {
            const std::uint32_t seen = load_acquire(word);
            if (static_cast<std::int32_t>(seen - target) >= 0) return true;
            if (polls % 64 != 0) continue;
            if (load_acquire(a_.fault + kFault) != 0) return false;
            const std::uint64_t deadline = static_cast<std::uint64_t>(a_.fault[kDeadlineMs]) * 1000000u;
            if (start == 0) start = nanoseconds();
            if (deadline == 0 || nanoseconds() - start < deadline) continue;
            if (atomicCAS(a_.fault + kFault, 0u, a_.stage + 1) == 0u) {
                a_.fault[kFaultTile] = tile.linear;
                a_.fault[kFaultInput] = input;
                a_.fault[kFaultSemaphore] = entry.semaphore;
                a_.fault[kFaultSeen] = seen;
                a_.fault[kFaultAwaited] = target;
            }
            return false;
        }
    }

    const StageArguments& a_;
};

}  // namespace syncopate::sync
