// The sum of contributions, in rank order: sy_await, one warp, waits until they are there; then sy_reduce, on
// all multiprocessors that are free, adds them up as fp32 (int32 as it is), and the block that ends last
// posts.
//
// Two kernels, since many blocks that wait could keep another op's kernel off the multiprocessors, whose
// chunks a peer's sum waits for: a circle. One warp keeps nobody off. What has arrived is read past L1, which
// is not coherent with peers' writes.
#include "runtime/cuda/boundary/boundary.cuh"
#include "runtime/cuda/engine/summation.cuh"
#include "runtime/cuda/streams/reduce.hpp"

namespace syncopate::runtime::device {
namespace {

/// One of the threads that do a box together.
struct Worker {
    std::uint32_t index;
    std::uint32_t count;
};

/// The n-th contribution of the sum.
__device__ __forceinline__ Addend addend(const ReduceArguments& a, std::int32_t n) {
    if (n == a.own_place) return {a.own, a.own_pitch};
    const std::int32_t slot = n - (a.own_place >= 0 && n > a.own_place ? 1 : 0);
    if (a.in_places != 0) return a.sources[slot];
    return {a.slots + slot * a.slot_distance, a.slot_pitch};
}

/// Units of 16 bytes, of kBatch contributions at once: as many loads in flight as 32 registers allow, of
/// which a multiprocessor holds 2048 threads.
template <typename Type, typename Combine>
__device__ void sum_units(const ReduceArguments& a, const Worker& worker) {
    constexpr int kBatch = 2;
    const std::uint32_t count = a.rows * a.row_units;
    const std::int32_t addends = a.num_slots + (a.own_place >= 0 ? 1 : 0);
    for (std::uint32_t unit = worker.index; unit < count; unit += worker.count) {
        const std::uint32_t row = a.rows == 1 ? 0 : unit / a.row_units;
        const std::uint32_t column = unit - row * a.row_units;
        Totals<Type> totals;
        for (std::int32_t n = 0; n < addends; n += kBatch) {
            uint4 units[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if (n + i >= addends) break;
                const Addend from = addend(a, n + i);
                units[i] = __ldcg(reinterpret_cast<const uint4*>(from.base + row * from.pitch) + column);
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if (n + i >= addends) break;
                add<Type, Combine>(totals, units[i], n + i == 0);
            }
        }
        const uint4 total = narrowed<Type>(totals);
        reinterpret_cast<uint4*>(a.out + row * a.out_pitch)[column] = total;
        for (std::int32_t i = 0; i < a.num_copies; ++i)
            reinterpret_cast<uint4*>(a.own + a.copies[i] + row * a.own_pitch)[column] = total;
    }
}

/// The same element by element, for boxes that are not aligned to 16 bytes.
template <typename Type, typename Combine>
__device__ void sum_elements(const ReduceArguments& a, const Worker& worker) {
    const auto load = [](std::uint64_t address) -> std::uint32_t {
        if (Type::kBytes == 4) return __ldcg(reinterpret_cast<const unsigned int*>(address));
        return __ldcg(reinterpret_cast<const unsigned short*>(address));
    };
    const std::uint32_t count = a.rows * a.row_units;
    const std::int32_t addends = a.num_slots + (a.own_place >= 0 ? 1 : 0);
    for (std::uint32_t unit = worker.index; unit < count; unit += worker.count) {
        const std::uint64_t row = unit / a.row_units;
        const std::uint64_t column = static_cast<std::uint64_t>(unit % a.row_units) * Type::kBytes;
        typename Type::Total total{};
        for (std::int32_t n = 0; n < addends; ++n) {
            const Addend from = addend(a, n);
            const auto value = Type::widen(load(from.base + row * from.pitch + column));
            total = n > 0 ? Combine::combine(total, value) : value;
        }
        for (std::int32_t i = -1; i < a.num_copies; ++i) {
            const std::uint64_t to =
                (i < 0 ? a.out + row * a.out_pitch : a.own + a.copies[i] + row * a.own_pitch) + column;
            if (Type::kBytes == 4) {
                *reinterpret_cast<std::uint32_t*>(to) = Type::narrow(total);
            } else {
                *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(Type::narrow(total));
            }
        }
    }
}

template <typename Type, typename Combine>
__device__ void sum_box(const ReduceArguments& a, const Worker& worker) {
    if (a.aligned != 0) {
        sum_units<Type, Combine>(a, worker);
    } else {
        sum_elements<Type, Combine>(a, worker);
    }
}

template <typename Type>
__device__ void reduce_as(const ReduceArguments& a, const Worker& worker) {
    if (a.largest != 0) {
        sum_box<Type, Max>(a, worker);
    } else {
        sum_box<Type, Sum>(a, worker);
    }
}

__device__ void reduce_box(const ReduceArguments& a, const Worker& worker) {
    switch (a.type) {
        case kSumBf16: reduce_as<Bf16>(a, worker); break;
        case kSumFp16: reduce_as<Fp16>(a, worker); break;
        case kSumFp32: reduce_as<Fp32>(a, worker); break;
        default: reduce_as<Int32>(a, worker); break;
    }
}

/// The block that ends last posts.
__device__ void post_if_last(const ReduceArguments& a) {
    if (a.num_posts == 0) return;
    __syncthreads();
    if (threadIdx.x != 0) return;
    const std::uint32_t epoch = a.control[word::published];
    __threadfence_system();
    if (atomicAdd(a.finished, 1u) + 1u != epoch * gridDim.x) return;
    __threadfence_system();
    for (std::int32_t i = 0; i < a.num_posts; ++i)
        store_release(reinterpret_cast<std::uint32_t*>(a.posts[i]), epoch);
}

}  // namespace

/// One warp. Ends when all waits are over, or this rank has a fault, and has passed the gate [P22]. The call's
/// number is what sy_begin has published [P2].
extern "C" __global__ void __launch_bounds__(32) sy_await(const AwaitArguments a) {
    const std::uint32_t epoch = a.control[word::published];
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < a.num_waits; i += 32)
        wait_for(a.control, a.waits[i], epoch, a.where);
    if (a.gate != nullptr && threadIdx.x == 0) pass_gate(a.gate, a.gate_value);
    if (a.reports == 0) return;
    __syncwarp();
    const auto lane = static_cast<std::int32_t>(threadIdx.x);
    const std::uint32_t fault = fault_of(a.boundary, lane);
    if (fault != 0) report_fault(a.boundary, fault, epoch, lane);
}

/// After a fault it sums and posts nothing [P30]. Each quarter of a multiprocessor has registers of its own:
/// beside a Gluon GEMM (kernels/gluon_launch.py) it has room for one warp of 32 registers a thread, so for
/// one block.
extern "C" __global__ void __launch_bounds__(128, 16) sy_reduce(const ReduceArguments a) {
    if (load_acquire(a.control + word::fault) != 0) return;
    reduce_box(a, {blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x});
    post_if_last(a);
}

}  // namespace syncopate::runtime::device
