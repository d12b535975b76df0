// A warp of the chunk engine: it walks the table and does its pieces.
//
// A copy in bulk: a warp has two stages in shared memory; it brings a piece into one of them and stores it
// from there, while the next piece comes into the other. A store is acknowledged by the other GPU
// microseconds after it has left:
//
//      piece n, stage 0     | load | store leaves | on its way ...   | written
//      piece n + 1, stage 1        | load         | store leaves     | on its way ...
//      piece n + 2, stage 0                       | load             | store leaves
//
// A sum in bulk: a piece of every summand is brought into a stage at once, from wherever it is, added there
// in order, and stored from there, at other ranks as well where the table says so; by loads and stores, a
// thread has 8 loads of 16 bytes on their way at once.
//
// A warp counts what it has done of an op when it has left the op, once that is written [P18]. A warp that has
// to wait for a signal [P23] first counts what it has stored: another rank may need that to go on.
#pragma once

#include "runtime/cuda/boundary/boundary.cuh"
#include "runtime/cuda/engine/engine_arguments.hpp"
#include "runtime/cuda/engine/engine_sums.cuh"

namespace syncopate::runtime::device {
namespace {

/// What the thread has done or acquired before comes before the bulk copies that it starts next [P20].
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// Whether the wait is over in call `epoch`; then what the poster did before is visible to this thread, but
/// to its bulk copies only after fence_proxy_async.
__device__ __forceinline__ bool is_over(const WaitEntry& wait, std::uint32_t epoch) {
    const std::uint32_t seen = load_acquire(reinterpret_cast<const std::uint32_t*>(wait.word));
    return static_cast<std::int32_t>(seen - (epoch - wait.lag)) >= 0;
}

/// Counts: what the thread has done or acquired before is visible to whoever acquires the word, on this GPU.
/// Peers see it by the post that follows the count (post_ops).
__device__ __forceinline__ void add_release(std::uint32_t* word, std::uint32_t value) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/// One warp of the engine; `kThreads`: some op goes by loads and stores. All its lanes agree on everything
/// but what they load and store.
template <bool kThreads>
class EngineWarp {
public:
    /// `of_block`: a word for each counter of the table, 0 when a call begins; null: it has none. `stages`:
    /// kEngineStages times kEnginePieceBytes of shared memory; `barriers`: as many mbarriers for one arrival.
    __device__ EngineWarp(const EngineArguments& a, const EngineOp* table, std::uint32_t* of_block,
                          std::uint32_t epoch, char* stages, std::uint64_t* barriers)
        : a_(a),
          table_(table),
          of_block_(of_block),
          epoch_(epoch),
          lane_(threadIdx.x % 32),
          stages_(stages),
          barriers_(static_cast<std::uint32_t>(__cvta_generic_to_shared(barriers))) {}

    /// Does every `step`-th piece of the table from piece `first` on; ends at once after a fault.
    __device__ void run(std::uint32_t first, std::uint32_t step) {
        fence_proxy_async();
        OpPiece here = place(first, 0);
        if (here.op == a_.count || !enter(here)) return;
        start(here, 0);
        for (std::uint32_t stage = 0, piece = first + step;; piece += step) {
            // While this piece is on its way, what the next one is; and that one sets out, too, if it may.
            const OpPiece next = place(piece, here.op);
            const std::uint32_t after = (stage + 1) % kEngineStages;
            const bool early = !kThreads && kEngineStages > 1 && next.op < a_.count &&
                               (next.op == here.op || table_[next.op].num_waits == 0);
            if (early) start(next, after);
            finish(here, stage);
            if (next.op == a_.count) break;
            if (next.op != here.op && !enter(next)) return;
            if (!early) start(next, after);
            count_before();
            here = next;
            stage = after;
        }
        settle();
    }

private:
    /// A piece of the table, and the op that it is of; a_.count past the last one.
    struct OpPiece {
        std::uint32_t op;
        EnginePiece part;
    };

    /// Where piece `piece` is, which is none of an op before `op`.
    __device__ OpPiece place(std::uint32_t piece, std::uint32_t op) const {
        while (op < a_.count && piece >= table_[op].last_piece) ++op;
        return {op, op < a_.count ? piece_of(table_[op], piece) : EnginePiece{}};
    }

    /// Waits for the op's signals. False after a fault; else what the posters did before is visible to all
    /// that the warp does next, in bulk or not.
    __device__ bool enter(const OpPiece& at) {
        const EngineOp& op = table_[at.op];
        if (op.num_waits == 0) return true;
        bool over = true;
        for (std::uint32_t i = lane_; i < op.num_waits; i += 32)
            over = is_over(a_.waits[op.first_wait + i], epoch_) && over;
        if (!__all_sync(0xffffffffu, over)) {
            settle();
            for (std::uint32_t i = lane_; i < op.num_waits; i += 32)
                wait_for(a_.begin.control, a_.waits[op.first_wait + i], epoch_, op.where);
        }
        __syncwarp();
        fence_proxy_async();
        return fault_of(a_.begin, static_cast<std::int32_t>(lane_)) == 0;
    }

    /// Lets what goes in bulk set out for the stage, once no store reads it.
    __device__ void start(const OpPiece& at, std::uint32_t stage) {
        const EngineOp& op = table_[at.op];
        if (op.method != EngineMethod::bulk) return;
        const EnginePiece& part = at.part;
        const std::uint32_t bytes = part.rows * part.bytes;
        const bool sums = op.reduce != EngineReduce::none;
        const std::uint32_t num_sources = sums ? op.num_sources : 1;
        if (sums && at.op != summed_) {
            if (lane_ < num_sources) source_ = a_.sources[op.first_source + lane_];
            summed_ = at.op;
        }
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        __syncwarp();
        if (lane_ == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barriers_ + 8 * stage),
                         "r"(num_sources * bytes)
                         : "memory");
        }
        __syncwarp();
        if (!sums) {
            for (std::uint32_t i = lane_; i < part.rows; i += 32)
                load(stage, i * part.bytes, source_row(op, part.row + i, a_.source_shift) + part.column,
                     part.bytes);
        } else if (part.rows == 1 && num_sources <= 32) {
            if (lane_ < num_sources)
                load(stage, lane_ * bytes, row_address(op, source_, part.row) + part.column, part.bytes);
        } else {
            for (std::uint32_t i = lane_; i < num_sources * part.rows; i += 32) {
                const std::uint32_t source = i / part.rows;
                const std::uint32_t row = i - source * part.rows;
                load(stage, source * bytes + row * part.bytes,
                     row_address(op, a_.sources[op.first_source + source], part.row + row) + part.column,
                     part.bytes);
            }
        }
    }

    /// Starts a load of `bytes` into the stage at `offset`.
    __device__ void load(std::uint32_t stage, std::uint32_t offset, std::uint64_t from, std::uint32_t bytes) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                address_of(stage) + offset),
            "l"(from), "r"(bytes), "r"(barriers_ + 8 * stage)
            : "memory");
    }

    /// Until all that was to come into the stage is there.
    __device__ void wait_for_loads(std::uint32_t stage) {
        std::uint32_t over = 0;
        while (over == 0) {
            asm volatile(
                "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                : "=r"(over)
                : "r"(barriers_ + 8 * stage), "r"(parities_ >> stage & 1u)
                : "memory");
        }
        parities_ ^= 1u << stage;
    }

    /// Stores the piece, and counts it with those of its op that are done and not yet told.
    __device__ void finish(const OpPiece& at, std::uint32_t stage) {
        const EngineOp& op = table_[at.op];
        if (op.counter != table_[newest_.op].counter) {
            count_before();
            before_ = newest_;
            newest_.pieces = 0;
            stored_ = false;
        }
        newest_.op = at.op;
        const bool sums = op.reduce != EngineReduce::none;
        if (op.method == EngineMethod::bulk) {
            wait_for_loads(stage);
            if (sums) {
                sum(op, at.part, stage);
                fence_proxy_async();
                __syncwarp();
            }
            store_in_bulk(op, at.part, stage);
            stored_ = true;
        } else if (kThreads) {
            sums ? sum(op, at.part, stage) : copy_by_threads(op, at.part);
        }
        if (op.expected > 0) ++newest_.pieces;
    }

    __device__ void store_in_bulk(const EngineOp& op, const EnginePiece& part, std::uint32_t stage) {
        for (std::uint32_t i = lane_; i < part.rows * (1 + op.num_copies); i += 32) {
            const std::uint32_t copy = i / part.rows;
            const std::uint32_t row = i - copy * part.rows;
            const std::uint64_t distance = copy == 0 ? 0 : a_.copies[op.first_copy + copy - 1];
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                             row_address(op, op.dst, part.row + row) + part.column + distance),
                         "r"(address_of(stage) + row * part.bytes), "r"(part.bytes)
                         : "memory");
        }
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }

    __device__ void copy_by_threads(const EngineOp& op, const EnginePiece& part) {
        constexpr std::uint32_t kUnroll = 8;
        const std::uint32_t units = part.bytes / kEngineUnit;
        for (std::uint32_t row = part.row; row < part.row + part.rows; ++row) {
            const auto* src =
                reinterpret_cast<const int4*>(source_row(op, row, a_.source_shift) + part.column);
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

    __device__ void sum(const EngineOp& op, const EnginePiece& part, std::uint32_t stage) {
        const bool largest = op.reduce == EngineReduce::max;
        switch (op.type) {
            case kSumBf16: largest ? sum<Bf16, Max>(op, part, stage) : sum<Bf16, Sum>(op, part, stage); break;
            case kSumFp16: largest ? sum<Fp16, Max>(op, part, stage) : sum<Fp16, Sum>(op, part, stage); break;
            case kSumFp32: largest ? sum<Fp32, Max>(op, part, stage) : sum<Fp32, Sum>(op, part, stage); break;
            default: largest ? sum<Int32, Max>(op, part, stage) : sum<Int32, Sum>(op, part, stage); break;
        }
    }

    template <typename Type, typename Combine>
    __device__ __forceinline__ void sum(const EngineOp& op, const EnginePiece& part, std::uint32_t stage) {
        if (!kThreads || op.method == EngineMethod::bulk) {
            sum_stage<Type, Combine>(op, part, stages_ + stage * kEnginePieceBytes);
        } else {
            sum_boxes<Type, Combine>(op, part, a_.sources + op.first_source, a_.copies + op.first_copy);
        }
    }

    /// Pieces that are done and not counted.
    struct Done {
        std::uint32_t op = 0;  ///< one of those that they count for
        std::uint32_t pieces = 0;
    };

    /// Counts the pieces of the op before this one's, once they are written: the newest store may still be
    /// under way.
    __device__ void count_before() {
        if (before_.pieces == 0) return;
        if (stored_) {
            asm volatile("cp.async.bulk.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
        count(before_);
    }

    /// Counts all that is done, once it is written.
    __device__ void settle() {
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        if (before_.pieces > 0) count(before_);
        if (newest_.pieces > 0) count(newest_);
    }

    /// A release to the block's counting thread (count_ops), or, where there is none, to the whole GPU. What
    /// it counts must have been awaited: a bulk store that is under way is not ordered by it.
    __device__ void count(Done& done) {
        const std::uint32_t counter = table_[done.op].counter;
        __syncwarp();
        if (lane_ == 0) {
            if (of_block_ != nullptr) {
                const auto here = static_cast<std::uint32_t>(__cvta_generic_to_shared(of_block_ + counter));
                asm volatile("red.release.cta.shared.add.u32 [%0], %1;" ::"r"(here), "r"(done.pieces)
                             : "memory");
            } else {
                add_release(a_.finished + counter, done.pieces);
            }
        }
        done.pieces = 0;
    }

    __device__ std::uint32_t address_of(std::uint32_t stage) const {
        return static_cast<std::uint32_t>(__cvta_generic_to_shared(stages_)) + stage * kEnginePieceBytes;
    }

    const EngineArguments& a_;
    const EngineOp* table_;
    std::uint32_t* of_block_;
    std::uint32_t epoch_;
    std::uint32_t lane_;
    char* stages_;
    std::uint32_t barriers_;
    std::uint32_t parities_ = 0;  // a bit a stage
    Done newest_{};
    Done before_{};          // of the op before
    bool stored_ = false;    // in bulk, since those
    EngineSource source_{};  // the lane's summand of op `summed_`
    std::uint32_t summed_ = 0xffffffffu;
};

}  // namespace
}  // namespace syncopate::runtime::device
