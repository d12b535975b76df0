// The chunk engine for tables of nothing but sums by loads and stores (engine_format.hpp): an all-reduce or a
// reduce-scatter whose owners read every contribution where it is, add it up, and store the result, at the
// other ranks as well where the table says so. The same with the CPU: host_engine.cpp.
//
// A block does an op's share together, and then the next op:
//
//      block 0   | wait for op 0 | units 0, 2, 4, … | count | wait for op 1 | …
//      block 1   | wait for op 0 | units 1, 3, 5, … | count | wait for op 1 | …       the last one posts
//
// Bytes move as fast as loads are on their way at once: 1024 threads with 8 loads of 16 bytes each. That
// takes all registers of a multiprocessor, so each type and number of summands has a kernel of its own, and
// all ops of a table are of one. On H200 8 blocks that read three sources and store three times on another
// GPU fill the link, 4 reach three quarters.
#include "runtime/cuda/engine/block_work.cuh"
#include "runtime/cuda/engine/summation.cuh"

namespace syncopate::runtime::device {
namespace {

constexpr std::uint32_t kNearSources = 32;  // of an op, that all threads of a block find in shared memory

/// An op, for all threads of the block.
struct SumOp {
    EngineOp op;
    EngineSource near[kNearSources];
    std::uint64_t copies[kMostSumCopies];
    const EngineSource* far;  ///< all of them, in the table
};

/// The block's units of plane `plane` of a sum of at most kSources summands or, where that is
/// kEngineLoadsAtOnce, of any number. `shift`: EngineArguments::sum_shift.
template <typename Type, typename Combine, std::uint32_t kSources>
__device__ __forceinline__ void sum_plane(const SumOp& sum, std::uint32_t plane, std::uint64_t shift) {
    constexpr std::uint32_t kUnits = kEngineLoadsAtOnce / kSources;
    const EngineOp& op = sum.op;
    const std::uint32_t per_row = static_cast<std::uint32_t>(op.row_bytes / kEngineUnit);
    const std::uint32_t units = per_row * op.rows_per_plane;
    const std::uint32_t step = gridDim.x * blockDim.x;
    const std::uint32_t num_sources = op.num_sources;
    const auto address_of = [&](const EngineSource& box, std::uint32_t row, std::uint32_t column) {
        return box.address + plane * box.plane + row * box.pitch + column;
    };
    for (std::uint32_t first = blockIdx.x * blockDim.x + threadIdx.x; first < units; first += step * kUnits) {
        std::uint32_t row[kUnits];
        std::uint32_t column[kUnits];
#pragma unroll
        for (std::uint32_t u = 0; u < kUnits; ++u) {
            const std::uint32_t unit = first + u * step;
            row[u] = op.rows_per_plane == 1 ? 0 : unit / per_row;
            column[u] = (unit - row[u] * per_row) * kEngineUnit;
        }
        Totals<Type> total;  // of the one unit, where its summands come in several turns
        std::uint32_t turn = 0;
        do {
            uint4 values[kUnits][kSources];
#pragma unroll
            for (std::uint32_t i = 0; i < kSources; ++i) {
                if (turn + i < num_sources) {
                    const bool near = kSources < kEngineLoadsAtOnce || num_sources <= kNearSources;
                    const EngineSource& source = near ? sum.near[turn + i] : sum.far[turn + i];
#pragma unroll
                    for (std::uint32_t u = 0; u < kUnits; ++u) {
                        if (first + u * step < units)
                            values[u][i] = load_once(address_of(source, row[u], column[u]));
                    }
                }
            }
#pragma unroll
            for (std::uint32_t u = 0; u < kUnits; ++u) {
#pragma unroll
                for (std::uint32_t i = 0; i < kSources; ++i) {
                    if (turn + i < num_sources)
                        add<Type, Combine>(total, values[u][i], i == 0 && (kUnits > 1 || turn == 0));
                }
                if (turn + kSources < num_sources || first + u * step >= units) continue;
                const uint4 made = narrowed<Type>(total);
                const std::uint64_t to = address_of(op.dst, row[u], column[u]) + shift;
                *reinterpret_cast<uint4*>(to) = made;
#pragma unroll 1
                for (std::uint32_t copy = 0; copy < op.num_copies; ++copy)
                    *reinterpret_cast<uint4*>(to + sum.copies[copy]) = made;
            }
            turn += kSources;
        } while (kUnits == 1 && turn < num_sources);
    }
}

/// Op `index` of the table into shared memory, by warps 1 to 3 of the block.
__device__ __forceinline__ void fetch(SumOp& to, const EngineArguments& a, std::uint32_t index,
                                      std::uint32_t warp, std::int32_t lane) {
    if (index >= a.count) return;
    const EngineOp& op = a.ops[index];
    if (warp == 1) {
        copy_words(&to.op, &op, 1, lane);
    } else if (warp == 2) {
        copy_words(to.near, a.sources + op.first_source, min(op.num_sources, kNearSources), lane);
        if (lane == 0) to.far = a.sources + op.first_source;
    } else if (warp == 3) {
        copy_words(to.copies, a.copies + op.first_copy, op.num_copies, lane);
    }
}

/// The whole of a block's work.
template <typename Type, typename Combine, std::uint32_t kSources>
__device__ __forceinline__ void run_sums(const EngineArguments& a) {
    __shared__ SumOp sum;
    __shared__ NearSignals near[2];
    __shared__ std::uint32_t shared_fault;
    const std::uint32_t warp = threadIdx.x / 32;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    std::uint32_t* const control = a.begin.control;
    std::uint32_t epoch = 0;  // of warp 0, which alone posts and waits
    bool good = true;         // of warp 0: no fault has kept a wait from ending
    const Signals begin = signals_of(a.begin, a.begins != 0, near[0]);
    fetch(sum, a, 0, warp, lane);
    __syncthreads();
    if (warp == 0) {
        begin.bring(lane);
        signals_of(a, 0, near[1]).bring(lane);
    }
    launch_next();
    if (warp == 0) {
        epoch =
            control[word::epoch];  // this call's until the fused kernel ends, which it does after this one
        good = a.begins == 0 || load_relaxed(control + word::fault) == 0;
        if (good && blockIdx.x == 0) begin.post(epoch, lane);
        if (good && a.begins != 0 && blockIdx.x == 0) tell_begun(a.begin, epoch, lane);
        // Each block waits for itself, so that it has acquired what the posters did before.
        good = good && wait_for_all(begin, control, epoch, word::at_begin, lane);
        if (good && a.begins != 0 && blockIdx.x == 0) publish(a.begin, epoch, lane);
    }
#pragma unroll 1
    for (std::uint32_t index = 0; index < a.count; ++index) {
        if (index > 0) fetch(sum, a, index, warp, lane);
        if (warp == 0) {
            const Signals signals = signals_of(a, index, near[1]);
            if (index > 0) signals.bring(lane);
            good = good && wait_for_all(signals, control, epoch, a.ops[index].where, lane);
            if (lane == 0) shared_fault = good ? 0 : 1;
        }
        __syncthreads();
        if (shared_fault != 0) break;
        for (std::uint32_t plane = 0; plane * sum.op.rows_per_plane < sum.op.num_rows; ++plane)
            sum_plane<Type, Combine, kSources>(sum, plane, a.sum_shift);
        __syncthreads();
        if (warp != 0) continue;
        const Signals signals = signals_of(a, index, near[1]);
        if (signals.num_posts == 0) continue;  // not its transfer's last
        if (is_last(a.finished + a.ops[index].counter, epoch, gridDim.x, lane)) signals.post(epoch, lane);
    }
    if (warp != 0 || blockIdx.x != 0 || good) return;
    const std::uint32_t fault = fault_of(a.begin, lane);
    if (fault != 0) report_fault(a.begin, fault, epoch, lane);
}

}  // namespace

// Named as sum_engine_name (engine_table.hpp) has it.
#define SYNCOPATE_SUM_ENGINE(name, Type, Combine, sources)                            \
    extern "C" __global__ void __launch_bounds__(kBlockEngineThreads, 1)              \
        sy_sum_engine_##name##_##sources(const __grid_constant__ EngineArguments a) { \
        run_sums<Type, Combine, sources>(a);                                          \
    }
#define SYNCOPATE_SUM_ENGINES(name, Type, Combine) \
    SYNCOPATE_SUM_ENGINE(name, Type, Combine, 2)   \
    SYNCOPATE_SUM_ENGINE(name, Type, Combine, 4)   \
    SYNCOPATE_SUM_ENGINE(name, Type, Combine, 8)

SYNCOPATE_SUM_ENGINES(bf16_sum, Bf16, Sum)
SYNCOPATE_SUM_ENGINES(bf16_max, Bf16, Max)
SYNCOPATE_SUM_ENGINES(fp16_sum, Fp16, Sum)
SYNCOPATE_SUM_ENGINES(fp16_max, Fp16, Max)
SYNCOPATE_SUM_ENGINES(fp32_sum, Fp32, Sum)
SYNCOPATE_SUM_ENGINES(fp32_max, Fp32, Max)
SYNCOPATE_SUM_ENGINES(int32_sum, Int32, Sum)
SYNCOPATE_SUM_ENGINES(int32_max, Int32, Max)

}  // namespace syncopate::runtime::device
