// The chunk engine: a persistent kernel of a few blocks that carries out a table of transfers, in order. A
// transfer is cut into pieces, which go round the warps of all blocks:
//
//      transfer 0  | 0 1 2 3 4 |  transfer 1  | 5 6 7 |  …        4 warps: warp 1 copies 1, 5, …
//
// A warp brings a piece into its own part of shared memory and stores it from there, by bulk copies; a store
// is acknowledged by the other GPU microseconds after it has left, and meanwhile the warp loads its next
// piece:
//
//      piece n     | load | store leaves | on its way ...   | count
//      piece n + 1                       | load | store leaves     | on its way ...
//
// Each piece is counted when it is written; whoever counts a transfer's last piece has acquired, through the
// count, that all are, and releases that with the post. A warp that has to wait for a signal first counts
// what it has stored: another rank may need that to go on.
//
// A block wants a multiprocessor for itself: beside a GEMM, which keeps shared memory busy all the time, its
// copies hardly get through (measured on H200: 5 GB/s instead of 44 a block). It takes so much shared memory
// that no program of a GEMM fits beside it. The engine comes before the fused kernel in the stream and lets
// that one start when all its own blocks run: so it can never wait for a multiprocessor that the fused kernel
// holds.
#include "runtime/boundary.cuh"

namespace syncopate::runtime::device {
namespace {

__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

__device__ __forceinline__ bool is_over(const WaitEntry& wait, std::uint32_t epoch) {
    const std::uint32_t seen = load_acquire(reinterpret_cast<const std::uint32_t*>(wait.word));
    return static_cast<std::int32_t>(seen - (epoch - wait.lag)) >= 0;
}

/// A warp's rows of a transfer.
struct Piece {
    std::uint32_t row;
    std::uint32_t rows;
};

__device__ __forceinline__ std::uint32_t bytes_of(const EngineTransfer& transfer, std::uint32_t row) {
    return row + 1 == transfer.rows ? transfer.last_row_bytes : transfer.row_bytes;
}

/// One warp of the engine. All its lanes agree on everything but the rows that they issue.
class EngineWarp {
public:
    /// `stage`: kEnginePieceBytes of shared memory; `barrier`: an mbarrier for one arrival.
    __device__ EngineWarp(const EngineArguments& a, std::uint32_t epoch, char* stage, std::uint64_t* barrier)
        : a_(a),
          epoch_(epoch),
          lane_(threadIdx.x % 32),
          stage_(static_cast<std::uint32_t>(__cvta_generic_to_shared(stage))),
          barrier_(static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier))) {}

    /// Copies every `step`-th piece of the table from piece `first` on; ends at once after a fault.
    __device__ void run(const EngineTransfer* table, std::uint32_t first, std::uint32_t step) {
        if (a_.count == 0) return;
        std::uint32_t index = 0;
        EngineTransfer transfer = table[0];
        bool entered = false;  // its waits are over
        for (std::uint32_t piece = first;; piece += step) {
            while (piece >= transfer.last_piece) {
                if (++index == a_.count) {
                    count<0>();
                    return;
                }
                transfer = table[index];
                entered = false;
            }
            if (!entered && transfer.num_waits > 0 && !enter(transfer)) return;
            entered = true;
            const std::uint32_t row =
                (piece - (transfer.last_piece - transfer.num_pieces)) * transfer.rows_per_piece;
            const Piece part{row, min(transfer.rows_per_piece, transfer.rows - row)};
            if (transfer.method == EngineMethod::bulk) {
                copy_in_bulk(transfer, part);
            } else {
                count<0>();
                copy_by_threads(transfer, part);
            }
            uncounted_ = true;
            counter_ = transfer.expected > 0 ? a_.finished + transfer.counter : nullptr;
        }
    }

private:
    /// Waits for the transfer's signals. False after a fault.
    __device__ bool enter(const EngineTransfer& transfer) {
        bool over = true;
        for (std::uint32_t i = lane_; i < transfer.num_waits; i += 32)
            over = is_over(a_.waits[transfer.first_wait + i], epoch_) && over;
        if (!__all_sync(0xffffffffu, over)) {
            count<0>();
            for (std::uint32_t i = lane_; i < transfer.num_waits; i += 32)
                wait_for(a_.begin.control, a_.waits[transfer.first_wait + i], epoch_, transfer.where);
        }
        __syncwarp();
        fence_proxy_async();
        return fault_of(a_.begin, static_cast<std::int32_t>(lane_)) == 0;
    }

    __device__ void copy_in_bulk(const EngineTransfer& transfer, Piece part) {
        if (lane_ == 0) {
            const std::uint32_t bytes =
                (part.rows - 1) * transfer.row_bytes + bytes_of(transfer, part.row + part.rows - 1);
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier_), "r"(bytes)
                         : "memory");
        }
        __syncwarp();
        for (std::uint32_t i = lane_; i < part.rows; i += 32) {
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                    "r"(stage_ + i * transfer.row_bytes),
                "l"(transfer.src + (part.row + i) * transfer.src_pitch),
                "r"(bytes_of(transfer, part.row + i)), "r"(barrier_)
                : "memory");
        }
        std::uint32_t over = 0;
        while (over == 0) {
            asm volatile(
                "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                : "=r"(over)
                : "r"(barrier_), "r"(parity_)
                : "memory");
        }
        parity_ ^= 1u;
        for (std::uint32_t i = lane_; i < part.rows; i += 32) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                             transfer.dst + (part.row + i) * transfer.dst_pitch),
                         "r"(stage_ + i * transfer.row_bytes), "r"(bytes_of(transfer, part.row + i))
                         : "memory");
        }
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        count<1>();                                                     // the piece before
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the stage may be loaded again
        __syncwarp();
    }

    __device__ void copy_by_threads(const EngineTransfer& transfer, Piece part) {
        constexpr std::uint32_t kUnroll = 16;
        for (std::uint32_t row = part.row; row < part.row + part.rows; ++row) {
            const auto* src = reinterpret_cast<const int4*>(transfer.src + row * transfer.src_pitch);
            auto* dst = reinterpret_cast<int4*>(transfer.dst + row * transfer.dst_pitch);
            const std::uint32_t units = bytes_of(transfer, row) / sizeof(int4);
            std::uint32_t at = lane_;
            for (; at + 32 * (kUnroll - 1) < units; at += 32 * kUnroll) {
                int4 values[kUnroll];
#pragma unroll
                for (std::uint32_t i = 0; i < kUnroll; ++i) values[i] = __ldcg(src + at + 32 * i);
#pragma unroll
                for (std::uint32_t i = 0; i < kUnroll; ++i) dst[at + 32 * i] = values[i];
            }
            for (; at < units; at += 32) dst[at] = __ldcg(src + at);
        }
    }

    /// Counts the piece that is not counted yet, once it is written; `kLater` bulk copies have been committed
    /// since.
    template <std::uint32_t kLater>
    __device__ void count() {
        if (!uncounted_) return;
        uncounted_ = false;
        asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kLater) : "memory");
        __syncwarp();
        if (lane_ != 0 || counter_ == nullptr) return;
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter_) : "memory");
    }

    const EngineArguments& a_;
    std::uint32_t epoch_;
    std::uint32_t lane_;
    std::uint32_t stage_;
    std::uint32_t barrier_;
    std::uint32_t parity_ = 0;
    bool uncounted_ = false;            // a piece is stored and not counted
    std::uint32_t* counter_ = nullptr;  // its transfer's
};

/// One thread posts the transfers, in order, as their pieces are counted. It stops at a fault.
__device__ void post_transfers(const EngineArguments& a, const EngineTransfer* table, std::uint32_t epoch) {
    for (std::uint32_t index = 0; index < a.count; ++index) {
        const EngineTransfer& transfer = table[index];
        if (transfer.num_posts == 0) continue;
        const std::uint32_t* counter = a.finished + transfer.counter;
        const std::uint32_t target = epoch * transfer.expected;
        for (std::uint32_t polls = 1;; ++polls) {
            std::uint32_t seen;
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
            if (static_cast<std::int32_t>(seen - target) >= 0) break;
            if (polls % 64 == 0 && load_acquire(a.begin.control + kFault) != 0) return;
        }
        for (std::uint32_t i = 0; i < transfer.num_posts; ++i) {
            store_release(reinterpret_cast<std::uint32_t*>(a.posts[transfer.first_post + i]), epoch);
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kEngineThreads, 1) sy_engine(const EngineArguments a) {
    extern __shared__ __align__(128) char stages[];
    __shared__ __align__(16) EngineTransfer entries[kEngineTableEntries];
    __shared__ __align__(8) std::uint64_t barriers[kEngineWarps];
    __shared__ std::uint32_t shared_fault;
    __shared__ std::uint32_t shared_epoch;
    const std::uint32_t warp = threadIdx.x / 32;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    launch_next();

    const EngineTransfer* table = a.count <= kEngineTableEntries ? entries : a.transfers;
    if (warp == kEngineWarps) {
        // The epoch is this call's until the fused kernel ends, which it does after this kernel.
        const std::uint32_t epoch = a.begin.control[kEpoch];
        if (a.begins != 0) {
            if (blockIdx.x == 0 && a.begin.num_posts > 0) post_begin(a.begin, epoch, lane);
            // Each block waits for itself, so that it has acquired what the posters did before.
            for (std::int32_t i = lane; i < a.begin.num_waits; i += 32)
                wait_for(a.begin.control, a.begin.waits[i], epoch, -1);
            __syncwarp();
        }
        const std::uint32_t fault = fault_of(a.begin, lane);
        if (lane == 0) {
            shared_epoch = epoch;
            shared_fault = fault;
            for (std::uint64_t& barrier : barriers) {
                const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(&barrier));
                asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at) : "memory");
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            fence_proxy_async();
        }
    } else if (table == entries) {
        const auto* from = reinterpret_cast<const uint2*>(a.transfers);
        auto* to = reinterpret_cast<uint2*>(entries);
        for (std::uint32_t i = threadIdx.x; i < a.count * (sizeof(EngineTransfer) / sizeof(uint2));
             i += 32 * kEngineWarps) {
            to[i] = from[i];
        }
    }
    __syncthreads();
    const std::uint32_t epoch = shared_epoch;
    const bool good = shared_fault == 0;
    if (warp == kEngineWarps) {
        if (good && blockIdx.x == 0) {
            if (a.begins != 0) publish(a.begin, epoch, lane);
            if (lane == 0) post_transfers(a, table, epoch);
        }
    } else if (good) {
        EngineWarp engine(a, epoch, stages + warp * kEnginePieceBytes, barriers + warp);
        engine.run(table, warp * gridDim.x + blockIdx.x, kEngineWarps * gridDim.x);
    }
    if (blockIdx.x == 0 && warp == 0) {
        const std::uint32_t fault = fault_of(a.begin, lane);
        if (fault != 0) report_fault(a.begin, fault, lane);
    }
}

}  // namespace syncopate::runtime::device
