// What a stated kernel in CUDA C++ calls to follow a schedule: the tile of a slot, waits before its loads,
// posts after its stores. The table and the control block are those of layout.hpp. `syncopate.gluon` has the
// same calls for Gluon.
//
//      extern "C" __global__ void kernel(…, long long sy_schedule, long long sy_control) {
//          const syncopate::device::Schedule schedule(sy_schedule, sy_control);
//          for (int slot = blockIdx.x; slot < schedule.num_slots(); slot += gridDim.x) {
//              const int tile = schedule.await(slot);
//              …                                          // load, compute, store
//              schedule.post(slot);
//          }
//          schedule.finish();
//      }
//
// await, await_phase, post and finish are called by all threads of the block, which they synchronise. They
// keep docs/protocol.md:
// - await, await_phase: [P1, P4, P5, P19, P20] for all loads and bulk copies of the block; [P28, P29] past the
//   deadline, and after a fault they return.
// - post: [P3, P7, P17, P18, P22] of every thread's stores. finish: the same of all that the block has read
//   and written.
#pragma once

#include <cstdint>

#include "syncopate/emit/layout.hpp"

namespace syncopate::device {

/// Iterations [begin, end) of a loop.
struct Iterations {
    std::int32_t begin;
    std::int32_t end;
};

class Schedule {
public:
    __device__ Schedule(std::int64_t schedule, std::int64_t control)
        : table_(reinterpret_cast<const std::int32_t*>(schedule)),
          control_(reinterpret_cast<std::uint32_t*>(control)) {}

    [[nodiscard]] __device__ std::int32_t num_slots() const { return table_[emit::table::num_slots]; }
    /// The tile of `slot`. It waits for nothing.
    [[nodiscard]] __device__ std::int32_t tile(std::int32_t slot) const {
        return record(slot)[emit::table::slot_tile];
    }

    /// The tile of `slot`, once the signals that all of it waits for have come.
    [[nodiscard]] __device__ std::int32_t await(std::int32_t slot) const {
        const std::int32_t* at = record(slot);
        wait(slot, at[emit::table::slot_waits], at[emit::table::slot_waits + 1]);
        return at[emit::table::slot_tile];
    }

    /// Into how many ranges the loop of `slot` is cut that are awaited one by one; 0: it runs whole after
    /// await.
    [[nodiscard]] __device__ std::int32_t num_phases(std::int32_t slot) const {
        const std::int32_t begin = record(slot)[emit::table::slot_phases];
        return begin == 0 ? 0 : table_[begin - emit::table::pair_words + 1];
    }
    /// The iterations of range `phase` of `slot`, once the signals that it waits for have come. Where the
    /// loop may run in any order, a range need not begin where the one before it ends.
    [[nodiscard]] __device__ Iterations await_phase(std::int32_t slot, std::int32_t phase) const {
        const std::int32_t* at =
            table_ + record(slot)[emit::table::slot_phases] + emit::table::phase_words * phase;
        wait(slot, at[emit::table::phase_waits], at[emit::table::phase_waits + 1]);
        return {at[emit::table::phase_begin], at[emit::table::phase_begin + 1]};
    }

    /// The tile of `slot` is stored: counts it in the chunks that it writes into; the last tile of a chunk
    /// lets it go.
    __device__ void post(std::int32_t slot) const {
        complete_bulk_stores();
        __syncthreads();
        if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
            const std::int32_t* at = record(slot);
            const std::int32_t end = at[emit::table::slot_makes + 1] & ~emit::table::at_once;
            const bool good = load_relaxed(control_ + emit::control::fault) == 0;  // [P30]
            __threadfence();
            for (std::int32_t made = at[emit::table::slot_makes]; made < end; made += emit::table::made_words)
                count(table_ + made, good);
        }
    }

    /// Ends this block's part of the call; the call's last block tells the ranks that may now overwrite what
    /// was read here.
    __device__ void finish() const {
        complete_bulk_stores();
        __syncthreads();
        if (threadIdx.x + threadIdx.y + threadIdx.z != 0) return;
        const std::uint32_t epoch = control_[emit::control::epoch];
        const std::uint32_t all = static_cast<std::uint32_t>(table_[emit::table::num_programs]) * epoch;
        __threadfence();
        const bool last = atomicAdd(control_ + emit::control::finished, 1U) + 1U == all;
        __threadfence();
        if (last && load_relaxed(control_ + emit::control::fault) == 0) {
            const std::int32_t first = table_[emit::table::kernel_posts];
            post_all(first, first + emit::table::pair_words * table_[emit::table::num_kernel_posts], epoch);
            after_kernel_before();
            control_[emit::control::epoch] = epoch + 1;
        } else if (blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y &&
                   blockIdx.z + 1 == gridDim.z) {
            after_kernel_before();  // one block is enough, and the others leave room for those to come
        }
    }

    /// What is added to the pointers, in elements, or to a descriptor's first coordinate, where the tile of
    /// `slot` is stored, and where it loads what it fetches.
    [[nodiscard]] __device__ std::int64_t store_offset(std::int32_t slot) const {
        return number(record(slot) + emit::table::slot_store);
    }
    [[nodiscard]] __device__ std::int64_t load_offset(std::int32_t slot) const {
        return number(table_ + table_[emit::table::loads] + emit::table::pair_words * slot);
    }
    /// What is added to the pointers, in elements, where the tile of `slot` loads this rank's own part where
    /// the user has it. `own`: the parameter sy_own.
    [[nodiscard]] __device__ std::int64_t own_offset(std::int32_t slot, std::int64_t own) const {
        return load_offset(slot) != 0 ? own - emit::table::own_base : 0;
    }

private:
    [[nodiscard]] __device__ const std::int32_t* record(std::int32_t slot) const {
        return table_ + emit::table::first_slot + emit::table::slot_words * slot;
    }
    [[nodiscard]] static __device__ std::int64_t number(const std::int32_t* pair) {
        const auto low = static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair[0]));
        return static_cast<std::int64_t>(low | static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair[1]))
                                                   << 32);
    }

    __device__ void wait(std::int32_t slot, std::int32_t begin, std::int32_t end) const {
        if (begin >= end) return;
        if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
            const std::uint32_t epoch = control_[emit::control::epoch];
            for (std::int32_t at = begin; at < end; at += emit::table::pair_words) {
                const auto pair = static_cast<std::uint32_t>(table_[at + 1]);
                const std::uint32_t lag = pair & ((1U << emit::table::wait_count_shift) - 1U);
                const std::uint32_t posts = 1U + (pair >> emit::table::wait_count_shift);
                if (!poll(table_[at], (epoch - lag) * posts, slot)) break;
            }
        }
        __syncthreads();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
    }

    /// Until the word has reached `target`; false after a fault, or at the deadline, which makes one.
    __device__ bool poll(std::int32_t word, std::uint32_t target, std::int32_t slot) const {
        std::uint64_t last = 0;
        std::uint64_t waited = 0;
        for (std::uint32_t polls = 1;; ++polls) {
            std::uint32_t seen;
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                         : "=r"(seen)
                         : "l"(control_ + word)
                         : "memory");
            if (static_cast<std::int32_t>(seen - target) >= 0) return true;
            __nanosleep(100);
            if (polls % 64 != 0) continue;  // the time is looked at only now and then
            if (load_relaxed(control_ + emit::control::fault) != 0) {
                leave_call();
                return false;
            }
            std::uint64_t now;
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
            const std::uint64_t limit = std::uint64_t{control_[emit::control::deadline_ms]} * 1000000U;
            const std::uint64_t since = last == 0 ? 0 : now - last;
            waited += since < emit::control::most_between_ns ? since : emit::control::most_between_ns;
            last = now;
            if (limit == 0 || waited < limit) continue;
            const auto signal = static_cast<std::uint32_t>((word - emit::control::first_signal) /
                                                           emit::control::signal_stride);
            raise(signal + 1U, seen, target, slot);  // and leaves once the fault is there
        }
    }

    /// [P29]
    __device__ void raise(std::uint32_t fault, std::uint32_t seen, std::uint32_t target,
                          std::int32_t slot) const {
        std::uint32_t* claim = control_ + emit::control::fault_claim;
        if (atomicCAS_system(claim, 0U, emit::control::claiming) != 0U) return;
        control_[emit::control::fault_seen] = seen;
        control_[emit::control::fault_epoch] = target;
        control_[emit::control::fault_call] = control_[emit::control::epoch];
        control_[emit::control::fault_where] = static_cast<std::uint32_t>(slot);
        __threadfence_system();
        *claim = atomicCAS_system(control_ + emit::control::fault, 0U, fault) == 0U ? fault : 0U;
    }

    /// A wait of this call has failed: what copies post from now on is no number of this call [P30].
    __device__ void leave_call() const {
        const std::uint32_t epoch = control_[emit::control::epoch];
        if (control_[emit::control::fault_call] == 0) control_[emit::control::fault_call] = epoch;
        atomicExch_system(control_ + emit::control::published, epoch - 2U);
    }

    /// One thread, after a fence at GPU scope: this program's last tile of a made chunk. `good`: there was no fault once
    /// the tile was stored, so that no wait of what it rests on has failed; else it lets only streams go on.
    __device__ void count(const std::int32_t* made, bool good) const {
        std::uint32_t* counter = control_ + made[emit::table::made_counter];
        const std::int64_t gates = number(made + emit::table::made_gates);
        if (gates != 0) {
            atomicAdd(reinterpret_cast<unsigned long long*>(counter + emit::control::gate),
                      static_cast<unsigned long long>(gates));
        }
        if (!good || made[emit::table::made_told] == 0) return;
        if (atomicAdd(counter, 1U) + 1U != static_cast<std::uint32_t>(made[emit::table::made_tiles])) return;
        atomicExch(counter, 0U);
        post_all(made[emit::table::made_posts], made[emit::table::made_posts + 1],
                 control_[emit::control::epoch]);
    }

    /// One thread: one fence at system scope, then relaxed stores; together they release.
    __device__ void post_all(std::int32_t begin, std::int32_t end, std::uint32_t epoch) const {
        asm volatile("fence.acq_rel.sys;" ::: "memory");
        for (std::int32_t at = begin; at < end; at += emit::table::pair_words) {
            char* word = reinterpret_cast<char*>(control_) + number(table_ + at);
            asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(epoch) : "memory");
        }
    }

    static __device__ std::uint32_t load_relaxed(const std::uint32_t* word) {
        std::uint32_t value;
        asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
        return value;
    }
    /// This thread's bulk stores are visible, not only read from shared memory.
    static __device__ void complete_bulk_stores() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
    }
    /// The kernel may have been started beside the one before it in its stream; it ends after that one.
    static __device__ void after_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    }

    const std::int32_t* table_;
    std::uint32_t* control_;
};

}  // namespace syncopate::device
