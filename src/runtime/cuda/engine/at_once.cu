// The chunk engine for a few small copies by loads and stores (fuse/passes/engine.hpp): what an op
// moves fits into the registers of its blocks, so all of it is on its way at once, and what counts is how
// soon it arrives. Every op has blocks of its own, so that they all go side by side:
//
//      2 ops, 5 blocks:   op 0 | block 0 | block 2 | block 4 |
//                         op 1 | block 1 | block 3 |
//
//      a block            | table, signals | load | wait for the call's begin | store | + 1 at the peer
//
// Where others than tiles wait for an op, a block counts here instead, and the last one posts.
//
// What this rank itself holds is loaded before the wait: it was complete when the kernel started. The engine
// of warps (engine.cu) takes some 6 us longer for 256 KiB: its pieces are too few for all warps, its counts
// go through two more threads, and a thread has to find them.
#include "runtime/cuda/engine/block_work.cuh"

namespace syncopate::runtime::device {
namespace {

/// A thread's share of an op: every `step`-th unit of 16 bytes from `first` on.
struct Share {
    std::uint32_t first;
    std::uint32_t step;
};

/// Calls visit(i, row, column in bytes) for the i-th unit of the share, as long as the op has it.
template <typename Visit>
__device__ __forceinline__ void each_unit(const EngineOp& op, const Share& share, Visit visit) {
    const auto per_row = static_cast<std::uint32_t>(op.row_bytes / kEngineUnit);
    const std::uint32_t units = per_row * op.num_rows;
#pragma unroll
    for (std::uint32_t i = 0; i < kEngineLoadsAtOnce; ++i) {
        const std::uint32_t unit = share.first + i * share.step;
        if (unit >= units) continue;
        const std::uint32_t row = unit / per_row;
        visit(i, row, (unit - row * per_row) * kEngineUnit);
    }
}

using Values = uint4[kEngineLoadsAtOnce];

__device__ __forceinline__ void load_share(const EngineOp& op, const Share& share, std::uint64_t shift,
                                           Values& values) {
    each_unit(op, share, [&](std::uint32_t i, std::uint32_t row, std::uint32_t column) {
        values[i] = load_once(source_row(op, row, shift) + column);
    });
}

__device__ __forceinline__ void store_share(const EngineOp& op, const Share& share, const Values& values) {
    each_unit(op, share, [&](std::uint32_t i, std::uint32_t row, std::uint32_t column) {
        *reinterpret_cast<uint4*>(row_address(op, op.dst, row) + column) = values[i];
    });
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlockEngineThreads, 1)
    sy_engine_at_once(const __grid_constant__ EngineArguments a) {
    __shared__ EngineOp op;
    __shared__ NearSignals near[2];
    __shared__ std::uint32_t shared_fault;
    const std::uint32_t warp = threadIdx.x / 32;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    const std::uint32_t index = blockIdx.x % a.count;
    const std::uint32_t blocks = (gridDim.x - index + a.count - 1) / a.count;  // of this op
    std::uint32_t* const control = a.begin.control;
    launch_next();

    const Signals begin = signals_of(a.begin, a.begins != 0, near[0]);
    std::uint32_t epoch = 0;  // of warp 0, which alone posts and waits
    bool good = false;        // the same: no fault has kept a wait from ending
    if (warp == 0) {
        epoch =
            control[word::epoch];  // this call's until the fused kernel ends, which it does after this one
        begin.bring(lane);
        good = load_relaxed(control + word::fault) == 0;
        if (good && blockIdx.x == 0) begin.post(epoch, lane);
        if (good && a.begins != 0 && blockIdx.x == 0) tell_begun(a.begin, epoch, lane);
    } else if (warp == 1) {
        copy_words(&op, a.ops + index, 1, lane);
    } else if (warp == 2) {
        signals_of(a, index, near[1]).bring(lane);
    }
    __syncthreads();
    const Share share{blockIdx.x / a.count * blockDim.x + threadIdx.x, blocks * blockDim.x};
    const bool is_own = op.shifted != 0;
    Values values;
    if (is_own) load_share(op, share, a.source_shift, values);
    if (warp == 0) {
        // Each block waits for itself, so that it has acquired what the posters did before.
        good = good && wait_for_all(begin, control, epoch, word::at_begin, lane);
        if (lane == 0) shared_fault = good ? 0 : 1;
    }
    __syncthreads();
    if (shared_fault == 0) {
        if (!is_own) load_share(op, share, a.source_shift, values);
        store_share(op, share, values);
    }
    __syncthreads();
    if (warp != 0) return;
    const Signals signals = signals_of(a, index, near[1]);
    if (good && a.counts != 0) {
        signals.add(lane);
    } else if (good && signals.num_posts > 0 && is_last(a.finished + op.counter, epoch, blocks, lane)) {
        signals.post(epoch, lane);
    }
    if (blockIdx.x != 0) return;
    if (good && a.begins != 0) publish(a.begin, epoch, lane);
    const std::uint32_t fault = fault_of(a.begin, lane);
    if (fault != 0) report_fault(a.begin, fault, epoch, lane);
}

}  // namespace syncopate::runtime::device
