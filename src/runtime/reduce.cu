// The sum of contributions, in rank order: sy_await, one warp, waits until they are there; then sy_reduce, on
// all multiprocessors that are free, adds them up as fp32 (int32 as it is), and the block that ends last
// posts.
//
// Two kernels, since many blocks that wait could keep another op's kernel off the multiprocessors, whose
// chunks a peer's sum waits for: a circle. One warp keeps nobody off. What has arrived is read past L1, which
// is not coherent with peers' writes.
//
// One translation unit with device.cu, whose waiting and posting it uses (cmake/Cuda.cmake).
#include "runtime/device_types.hpp"
#include "runtime/summation.cuh"

namespace syncopate::runtime::device {
namespace {

/// Units of 16 bytes; kUnroll of them a thread at a time, so that enough loads are in flight.
template <typename Type, typename Combine>
__device__ void sum_units(const ReduceArguments& a) {
    constexpr int kUnroll = 2;
    constexpr int kAhead = 4;  // summands whose loads are in flight together
    const std::uint32_t stride = gridDim.x * blockDim.x;
    const std::uint32_t count = a.rows * a.row_units;
    for (std::uint32_t first = blockIdx.x * blockDim.x + threadIdx.x; first < count;
         first += stride * kUnroll) {
        std::uint32_t rows[kUnroll];
        std::uint32_t columns[kUnroll];
        Totals<Type> totals[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            // Past the end the last unit is read once more, and not written.
            const std::uint32_t unit = min(first + u * stride, count - 1);
            rows[u] = a.rows == 1 ? 0 : unit / a.row_units;
            columns[u] = unit - rows[u] * a.row_units;
        }
        // The summands in order: the slots before the own place, that, the slots after it.
        const std::int32_t own = a.own_place < 0 ? a.num_slots : a.own_place;
        const std::int32_t count_of_summands = a.num_slots + (a.own_place < 0 ? 0 : 1);
        for (std::int32_t begin = 0; begin < count_of_summands; begin += kAhead) {
            uint4 units[kAhead][kUnroll];
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                const std::int32_t summand = begin + i;
                if (summand >= count_of_summands) break;
                const bool is_own = summand == own;
                const std::int32_t slot = summand > own ? summand - 1 : summand;
                const std::uint64_t base = is_own ? a.own : a.slots + slot * a.slot_distance;
                const std::uint64_t pitch = is_own ? a.own_pitch : a.slot_pitch;
#pragma unroll
                for (int u = 0; u < kUnroll; ++u)
                    units[i][u] = __ldcg(reinterpret_cast<const uint4*>(base + rows[u] * pitch) + columns[u]);
            }
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                if (begin + i >= count_of_summands) break;
#pragma unroll
                for (int u = 0; u < kUnroll; ++u)
                    add<Type, Combine>(totals[u], units[i][u], begin + i == 0);
            }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (first + u * stride < count)
                reinterpret_cast<uint4*>(a.out + rows[u] * a.out_pitch)[columns[u]] =
                    narrowed<Type>(totals[u]);
        }
    }
}

/// The same element by element, for boxes that are not aligned to 16 bytes.
template <typename Type, typename Combine>
__device__ void sum_elements(const ReduceArguments& a) {
    const auto load = [](std::uint64_t address) -> std::uint32_t {
        if (Type::kBytes == 4) return __ldcg(reinterpret_cast<const unsigned int*>(address));
        return __ldcg(reinterpret_cast<const unsigned short*>(address));
    };
    const std::uint32_t stride = gridDim.x * blockDim.x;
    const std::uint32_t count = a.rows * a.row_units;
    for (std::uint32_t unit = blockIdx.x * blockDim.x + threadIdx.x; unit < count; unit += stride) {
        const std::uint64_t row = unit / a.row_units;
        const std::uint64_t column = static_cast<std::uint64_t>(unit % a.row_units) * Type::kBytes;
        typename Type::Total total{};
        bool begun = false;
        for (std::int32_t slot = 0; slot <= a.num_slots; ++slot) {
            if (slot == a.own_place) {
                const auto value = Type::widen(load(a.own + row * a.own_pitch + column));
                total = begun ? Combine::combine(total, value) : value;
                begun = true;
            }
            if (slot == a.num_slots) break;
            const auto value =
                Type::widen(load(a.slots + row * a.slot_pitch + column + slot * a.slot_distance));
            total = begun ? Combine::combine(total, value) : value;
            begun = true;
        }
        const std::uint64_t to = a.out + row * a.out_pitch + column;
        if (Type::kBytes == 4) {
            *reinterpret_cast<std::uint32_t*>(to) = Type::narrow(total);
        } else {
            *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(Type::narrow(total));
        }
    }
}

template <typename Type, typename Combine>
__device__ void sum_box(const ReduceArguments& a) {
    if (a.aligned != 0) {
        sum_units<Type, Combine>(a);
    } else {
        sum_elements<Type, Combine>(a);
    }
}

template <typename Type>
__device__ void reduce_box(const ReduceArguments& a) {
    if (a.largest != 0) {
        sum_box<Type, Max>(a);
    } else {
        sum_box<Type, Sum>(a);
    }
}

}  // namespace

/// One warp. Ends when all waits are over, or this rank has a fault. The call's number is what sy_begin has
/// published: the kernel that runs beside this one may advance kEpoch.
extern "C" __global__ void __launch_bounds__(32) sy_await(const AwaitArguments a) {
    const std::uint32_t epoch = a.control[kPublished];
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < a.num_waits; i += 32)
        wait_for(a.control, a.waits[i], epoch, a.where);
}

/// After a fault it sums and posts nothing.
extern "C" __global__ void __launch_bounds__(256, 4) sy_reduce(const ReduceArguments a) {
    if (load_acquire(a.control + kFault) != 0) return;
    const std::uint32_t epoch = a.control[kPublished];
    switch (a.type) {
        case kSumBf16: reduce_box<Bf16>(a); break;
        case kSumFp16: reduce_box<Fp16>(a); break;
        case kSumFp32: reduce_box<Fp32>(a); break;
        default: reduce_box<Int32>(a); break;
    }
    if (a.num_posts == 0) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        if (atomicAdd(a.finished, 1u) + 1u == epoch * gridDim.x) {
            __threadfence_system();
            for (std::int32_t i = 0; i < a.num_posts; ++i)
                store_release(reinterpret_cast<std::uint32_t*>(a.posts[i]), epoch);
        }
    }
}

}  // namespace syncopate::runtime::device
