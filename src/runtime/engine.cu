// The chunk engine: a persistent kernel of a few blocks that carries out a table of chunk ops (its format:
// syncopate/runtime/engine_format.hpp; the same with the CPU: host_engine.cpp). Each warp walks the table and
// does its pieces.
//
// A copy in bulk: a warp brings a piece into its own part of shared memory and stores it from there; a store
// is acknowledged by the other GPU microseconds after it has left, and meanwhile the warp loads its next
// piece:
//
//      piece n     | load | store leaves | on its way ...   | written
//      piece n + 1                       | load | store leaves     | on its way ...
//
// A sum in bulk: a piece of every summand is brought into shared memory at once, from wherever it is, and
// then added from there in order; by loads and stores, a thread has 16 loads of 16 bytes on their way at
// once.
//
// A warp counts what it has done of an op when it has left the op, once that is written; whoever counts an
// op's last piece has acquired, through the count, that all are, and releases that with the post. A warp that
// has to wait for a signal first counts what it has stored: another rank may need that to go on.
//
// A block wants a multiprocessor for itself: beside a GEMM, which keeps shared memory busy all the time, its
// copies hardly get through (measured on H200: 5 GB/s instead of 44 a block). It takes so much shared memory
// that no program of a GEMM fits beside it. The engine comes before the fused kernel in the stream and lets
// that one start when all its own blocks run: so it can never wait for a multiprocessor that the fused kernel
// holds.
#include "runtime/boundary.cuh"
#include "runtime/summation.cuh"

namespace syncopate::runtime::device {
namespace {

__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

__device__ __forceinline__ bool is_over(const WaitEntry& wait, std::uint32_t epoch) {
    const std::uint32_t seen = load_acquire(reinterpret_cast<const std::uint32_t*>(wait.word));
    return static_cast<std::int32_t>(seen - (epoch - wait.lag)) >= 0;
}

/// What a warp adds up: the op's boxes, or, in bulk, what of them is in its stage.
struct Summands {
    const EngineSource* boxes;
    const char* stage;
};

/// From the stage, which holds the piece of one summand after that of another.
template <typename Type, typename Combine>
__device__ __noinline__ void sum_stage(const EngineOp& op, const EnginePiece part, const char* stage) {
    const std::uint32_t num_sources = op.num_sources;
    const std::uint32_t bytes = part.rows * part.bytes;
    for (std::uint32_t at = threadIdx.x % 32 * kEngineUnit; at < bytes; at += 32 * kEngineUnit) {
        Totals<Type> totals;
        add<Type, Combine>(totals, *reinterpret_cast<const uint4*>(stage + at), true);
#pragma unroll 2
        for (std::uint32_t source = 1; source < num_sources; ++source)
            add<Type, Combine>(totals, *reinterpret_cast<const uint4*>(stage + source * bytes + at), false);
        const std::uint32_t row = part.rows == 1 ? 0 : at / part.bytes;
        *reinterpret_cast<uint4*>(row_address(op, op.dst, part.row + row) + part.column +
                                  (at - row * part.bytes)) = narrowed<Type>(totals);
    }
}

/// Where row `row` of summand `source` begins, for a piece; 0 past the last summand.
__device__ __forceinline__ std::uint64_t summand(const EngineOp& op, const EngineSource* boxes,
                                                 std::uint32_t source, std::uint32_t row,
                                                 std::uint64_t column) {
    return source < op.num_sources ? row_address(op, boxes[source], row) + column : 0;
}

/// From wherever the summands are: each thread has kAtOnce * kUnits loads on their way at once.
template <typename Type, typename Combine>
__device__ __noinline__ void sum_boxes(const EngineOp& op, const EnginePiece part,
                                       const EngineSource* boxes) {
    constexpr std::uint32_t kUnits = 3;
    constexpr std::uint32_t kAtOnce = 4;  // summands
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t units = part.bytes / kEngineUnit;
    const std::uint32_t num_sources = op.num_sources;
#pragma unroll 1
    for (std::uint32_t row = part.row; row < part.row + part.rows; ++row) {
        auto* dst = reinterpret_cast<uint4*>(row_address(op, op.dst, row) + part.column);
        std::uint64_t mine = summand(op, boxes, lane, row, part.column);  // of 32 summands, one a lane
#pragma unroll 1
        for (std::uint32_t first = 0; first < units; first += 32 * kUnits) {
            std::uint32_t at[kUnits];
#pragma unroll
            for (std::uint32_t u = 0; u < kUnits; ++u) at[u] = min(first + 32 * u + lane, units - 1);
            Totals<Type> totals[kUnits];
#pragma unroll 1
            for (std::uint32_t source = 0; source < num_sources; source += kAtOnce) {
                if (num_sources > 32 && source % 32 == 0)
                    mine = summand(op, boxes, source + lane, row, part.column);
                uint4 values[kAtOnce][kUnits];
#pragma unroll
                for (std::uint32_t i = 0; i < kAtOnce; ++i) {
                    const auto* from = reinterpret_cast<const uint4*>(
                        __shfl_sync(0xffffffffu, mine, static_cast<int>((source + i) % 32)));
                    if (source + i >= num_sources) continue;
#pragma unroll
                    for (std::uint32_t u = 0; u < kUnits; ++u) values[i][u] = __ldcg(from + at[u]);
                }
#pragma unroll
                for (std::uint32_t i = 0; i < kAtOnce; ++i) {
                    if (source + i >= num_sources) continue;
#pragma unroll
                    for (std::uint32_t u = 0; u < kUnits; ++u)
                        add<Type, Combine>(totals[u], values[i][u], source + i == 0);
                }
            }
            // A unit past the end was the last one once more.
#pragma unroll
            for (std::uint32_t u = 0; u < kUnits; ++u) {
                if (first + 32 * u + lane < units) dst[at[u]] = narrowed<Type>(totals[u]);
            }
        }
    }
}

template <typename Type, typename Combine>
__device__ __forceinline__ void sum_up(const EngineOp& op, const EnginePiece& part, const Summands& from) {
    if (op.method == EngineMethod::bulk) {
        sum_stage<Type, Combine>(op, part, from.stage);
    } else {
        sum_boxes<Type, Combine>(op, part, from.boxes);
    }
}

/// One warp of the engine. All its lanes agree on everything but what they load and store.
class EngineWarp {
public:
    /// `stage`: kEnginePieceBytes of shared memory; `barrier`: an mbarrier for one arrival.
    __device__ EngineWarp(const EngineArguments& a, std::uint32_t epoch, char* stage, std::uint64_t* barrier)
        : a_(a),
          epoch_(epoch),
          lane_(threadIdx.x % 32),
          stage_(stage),
          barrier_(static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier))) {}

    /// Does every `step`-th piece of the table from piece `first` on; ends at once after a fault.
    __device__ void run(const EngineOp* table, std::uint32_t first, std::uint32_t step) {
        if (a_.count == 0) return;
        fence_proxy_async();
        std::uint32_t index = 0;
        bool entered = false;  // its waits are over
        for (std::uint32_t piece = first;; piece += step) {
            while (piece >= table[index].last_piece) {
                if (++index == a_.count) {
                    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");  // also of what is not counted
                    settle<0>();
                    return;
                }
                entered = false;
            }
            const EngineOp& op = table[index];
            if (!entered && op.num_waits > 0 && !enter(op)) return;
            entered = true;
            std::uint32_t* const counter = op.expected > 0 ? a_.finished + op.counter : nullptr;
            const bool another = counter != counter_;
            const EnginePiece part = piece_of(op, piece);
            if (op.reduce != EngineReduce::none) {
                sum(op, part, another);
            } else if (op.method == EngineMethod::bulk) {
                copy_in_bulk(op, part, another);
            } else {
                if (another) settle<0>();
                copy_by_threads(op, part);
            }
            counter_ = counter;
            if (counter != nullptr) ++done_;
        }
    }

private:
    /// Waits for the op's signals. False after a fault.
    __device__ bool enter(const EngineOp& op) {
        bool over = true;
        for (std::uint32_t i = lane_; i < op.num_waits; i += 32)
            over = is_over(a_.waits[op.first_wait + i], epoch_) && over;
        if (!__all_sync(0xffffffffu, over)) {
            settle<0>();
            for (std::uint32_t i = lane_; i < op.num_waits; i += 32)
                wait_for(a_.begin.control, a_.waits[op.first_wait + i], epoch_, op.where);
        }
        __syncwarp();
        fence_proxy_async();
        return fault_of(a_.begin, static_cast<std::int32_t>(lane_)) == 0;
    }

    /// Says that `bytes` will be loaded into the stage. All lanes have read what was there.
    __device__ void expect(std::uint32_t bytes) {
        __syncwarp();
        if (lane_ == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier_), "r"(bytes)
                         : "memory");
        }
        __syncwarp();
    }

    /// Starts a load of `bytes` into the stage at `offset`.
    __device__ void load(std::uint32_t offset, std::uint64_t from, std::uint32_t bytes) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                stage_address() + offset),
            "l"(from), "r"(bytes), "r"(barrier_)
            : "memory");
    }

    /// Until all that was expected is in the stage.
    __device__ void wait_for_loads() {
        std::uint32_t over = 0;
        while (over == 0) {
            asm volatile(
                "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                : "=r"(over)
                : "r"(barrier_), "r"(parity_)
                : "memory");
        }
        parity_ ^= 1u;
    }

    __device__ void copy_in_bulk(const EngineOp& op, const EnginePiece& part, bool another) {
        expect(part.rows * part.bytes);
        for (std::uint32_t i = lane_; i < part.rows; i += 32)
            load(i * part.bytes, row_address(op, op.source, part.row + i) + part.column, part.bytes);
        wait_for_loads();
        for (std::uint32_t i = lane_; i < part.rows; i += 32) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                             row_address(op, op.dst, part.row + i) + part.column),
                         "r"(stage_address() + i * part.bytes), "r"(part.bytes)
                         : "memory");
        }
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        if (another) settle<1>();
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the stage may be loaded again
        __syncwarp();
    }

    __device__ void copy_by_threads(const EngineOp& op, const EnginePiece& part) {
        constexpr std::uint32_t kUnroll = 16;
        const std::uint32_t units = part.bytes / kEngineUnit;
        for (std::uint32_t row = part.row; row < part.row + part.rows; ++row) {
            const auto* src = reinterpret_cast<const int4*>(row_address(op, op.source, row) + part.column);
            auto* dst = reinterpret_cast<int4*>(row_address(op, op.dst, row) + part.column);
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

    __device__ void sum(const EngineOp& op, const EnginePiece& part, bool another) {
        if (op.method == EngineMethod::bulk) {
            load_summands(op, part);
            if (another) settle<0>();
            wait_for_loads();
        } else if (another) {
            settle<0>();
        }
        const Summands from{a_.sources + op.first_source, stage_};
        const bool largest = op.reduce == EngineReduce::max;
        switch (op.type) {
            case kSumBf16:
                largest ? sum_up<Bf16, Max>(op, part, from) : sum_up<Bf16, Sum>(op, part, from);
                break;
            case kSumFp16:
                largest ? sum_up<Fp16, Max>(op, part, from) : sum_up<Fp16, Sum>(op, part, from);
                break;
            case kSumFp32:
                largest ? sum_up<Fp32, Max>(op, part, from) : sum_up<Fp32, Sum>(op, part, from);
                break;
            default: largest ? sum_up<Int32, Max>(op, part, from) : sum_up<Int32, Sum>(op, part, from); break;
        }
        fence_proxy_async();  // the reads of the stage come before the next loads into it; a copy reads it by none
    }

    /// Into the stage: the piece of one summand after that of another.
    __device__ void load_summands(const EngineOp& op, const EnginePiece& part) {
        const std::uint32_t bytes = part.rows * part.bytes;
        expect(op.num_sources * bytes);
        for (std::uint32_t i = lane_; i < op.num_sources * part.rows; i += 32) {
            const std::uint32_t source = i / part.rows;
            const std::uint32_t row = i - source * part.rows;
            load(source * bytes + row * part.bytes,
                 row_address(op, a_.sources[op.first_source + source], part.row + row) + part.column,
                 part.bytes);
        }
    }

    /// Counts the pieces done of the op before, once they are written; `kLater` bulk copies have been
    /// committed since.
    template <std::uint32_t kLater>
    __device__ void settle() {
        if (done_ == 0) return;
        asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kLater) : "memory");
        __syncwarp();
        if (lane_ == 0)
            asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter_), "r"(done_) : "memory");
        done_ = 0;
    }

    __device__ std::uint32_t stage_address() const {
        return static_cast<std::uint32_t>(__cvta_generic_to_shared(stage_));
    }

    const EngineArguments& a_;
    std::uint32_t epoch_;
    std::uint32_t lane_;
    char* stage_;
    std::uint32_t barrier_;
    std::uint32_t parity_ = 0;
    std::uint32_t done_ = 0;            // pieces stored and not counted
    std::uint32_t* counter_ = nullptr;  // their op's
};

/// One thread posts the ops, in order, as their pieces are counted. It stops at a fault: false.
__device__ bool post_ops(const EngineArguments& a, const EngineOp* table, std::uint32_t epoch) {
    for (std::uint32_t index = 0; index < a.count; ++index) {
        const EngineOp& op = table[index];
        if (op.num_posts == 0) continue;
        const std::uint32_t* counter = a.finished + op.counter;
        const std::uint32_t target = epoch * op.expected;
        for (std::uint32_t polls = 1;; ++polls) {
            std::uint32_t seen;
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
            if (static_cast<std::int32_t>(seen - target) >= 0) break;
            if (polls % 64 == 0 && load_acquire(a.begin.control + kFault) != 0) return false;
        }
        for (std::uint32_t i = 0; i < op.num_posts; ++i) {
            store_release(reinterpret_cast<std::uint32_t*>(a.posts[op.first_post + i]), epoch);
        }
    }
    return true;
}

/// One thread: lets the streams go on that wait for relays, after a fault.
__device__ void open_gates(const EngineArguments& a, const EngineOp* table, std::uint32_t epoch) {
    for (std::uint32_t index = 0; index < a.count; ++index) {
        if (table[index].opens != 0)
            store_release(reinterpret_cast<std::uint32_t*>(a.posts[table[index].first_post]), epoch);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kEngineThreads, 1) sy_engine(const EngineArguments a) {
    extern __shared__ __align__(128) char stages[];
    __shared__ __align__(16) EngineOp entries[kEngineTableEntries];
    __shared__ __align__(8) std::uint64_t barriers[kEngineWarps];
    __shared__ std::uint32_t shared_fault;
    __shared__ std::uint32_t shared_epoch;
    const std::uint32_t warp = threadIdx.x / 32;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    launch_next();

    const EngineOp* table = a.count <= kEngineTableEntries ? entries : a.ops;
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
        const auto* from = reinterpret_cast<const uint2*>(a.ops);
        auto* to = reinterpret_cast<uint2*>(entries);
        for (std::uint32_t i = threadIdx.x; i < a.count * (sizeof(EngineOp) / sizeof(uint2));
             i += 32 * kEngineWarps) {
            to[i] = from[i];
        }
    }
    __syncthreads();
    const std::uint32_t epoch = shared_epoch;
    const bool good = shared_fault == 0;
    if (warp == kEngineWarps) {
        if (blockIdx.x == 0) {
            if (good && a.begins != 0) publish(a.begin, epoch, lane);
            if (lane == 0 && !(good && post_ops(a, table, epoch))) open_gates(a, table, epoch);
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
