// Posting [P3, P17], waiting [P4, P19] and the boundaries of a call, for the kernels beside it
// (docs/protocol.md). Neither orders TMA: [P20].
#pragma once

#include "runtime/cuda/boundary/boundary.hpp"

namespace syncopate::runtime::device {

/// Acquires at system scope [P19].
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* word) {
    std::uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

/// Releases at system scope [P17].
__device__ __forceinline__ void store_release(std::uint32_t* word, std::uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/// The value as all GPUs and the host see it. Orders nothing.
__device__ __forceinline__ std::uint32_t load_relaxed(const std::uint32_t* word) {
    std::uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

/// For all GPUs and the host to see. Orders nothing: after fence_to_system it releases.
__device__ __forceinline__ void store_relaxed(std::uint32_t* word, std::uint32_t value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/// What the thread has done or acquired before comes before what it does afterwards, for all GPUs. A
/// __threadfence_system does more, orders all such fences among each other, and takes longer.
__device__ __forceinline__ void fence_to_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ std::uint64_t nanoseconds() {
    std::uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
}

/// One thread: makes `fault` this rank's, where it is the first, with its words [P29].
__device__ void raise_fault(std::uint32_t* control, std::uint32_t fault, std::uint32_t seen,
                            std::uint32_t target, std::uint32_t epoch, std::int32_t where) {
    if (atomicCAS_system(control + word::fault_claim, 0u, word::claiming) != 0u) return;
    control[word::fault_seen] = seen;
    control[word::fault_epoch] = target;
    control[word::fault_call] = epoch;
    control[word::fault_where] = static_cast<std::uint32_t>(where);
    __threadfence_system();
    control[word::fault_claim] = atomicCAS_system(control + word::fault, 0u, fault) == 0u ? fault : 0u;
}

/// A wait of call `epoch` has failed: what copies post from now on is no number of that call [P30].
__device__ __forceinline__ void leave_call(std::uint32_t* control, std::uint32_t epoch) {
    if (control[word::fault_call] == 0) control[word::fault_call] = epoch;
    atomicExch_system(control + word::published, epoch - 2u);
}

/// Polls until the word has reached epoch - lag, or this rank has a fault, or the deadline makes one: false
/// [P28, P29]. After true it has acquired the word; after false nothing is ordered.
__device__ bool wait_for(std::uint32_t* control, const WaitEntry& wait, std::uint32_t epoch,
                         std::int32_t where) {
    const auto* word = reinterpret_cast<const std::uint32_t*>(wait.word);
    const std::uint32_t target = epoch - wait.lag;
    std::uint32_t seen = load_acquire(word);
    if (static_cast<std::int32_t>(seen - target) >= 0) return true;
    std::uint64_t last = 0;  // the time is looked at only now and then
    std::uint64_t waited = 0;
    for (std::uint32_t polls = 1;; ++polls) {
        seen = load_acquire(word);
        if (static_cast<std::int32_t>(seen - target) >= 0) return true;
        if (polls % 64 != 0) continue;
        if (load_acquire(control + word::fault) != 0) {
            leave_call(control, epoch);
            return false;
        }
        const std::uint64_t deadline = static_cast<std::uint64_t>(control[word::deadline_ms]) * 1000000u;
        const std::uint64_t now = nanoseconds();
        const std::uint64_t since = last == 0 ? 0 : now - last;
        waited += since < word::most_between_ns ? since : word::most_between_ns;
        last = now;
        if (deadline == 0 || waited < deadline) continue;
        raise_fault(control, static_cast<std::uint32_t>(wait.signal) + 1u, seen, target, epoch, where);
    }
}

/// Polls until this GPU's kernel has opened the gate, which it does whatever happens [P22], however long it computes,
/// and closes it. It has acquired what the gate's tiles had done; the close is for the next call, which later kernels
/// order.
__device__ void pass_gate(std::uint32_t* gate, std::uint32_t value) {
    while (static_cast<std::int32_t>(load_acquire(gate) - value) < 0) continue;
    *gate = 0;
}

/// One warp: tells the host [P9], and the other ranks if this rank's own wait failed [P8, P31]. `epoch`: the call that
/// is told, where no wait of one has failed.
__device__ void report_fault(const BoundaryArguments& a, std::uint32_t fault, std::uint32_t epoch,
                             std::int32_t lane) {
    if (lane == 0) {
        const std::uint32_t claim = load_acquire(a.control + word::fault_claim);
        if (claim != 0 && claim != word::claiming)
            fault = claim;  // the first, whatever hosts have written since
        if (a.control[word::fault_call] == 0) a.control[word::fault_call] = epoch;
        a.mirror[kMirrorSeen] = a.control[word::fault_seen];
        a.mirror[kMirrorAwaited] = a.control[word::fault_epoch];
        a.mirror[kMirrorWhere] = a.control[word::fault_where];
        a.mirror[kMirrorEpoch] = a.control[word::fault_call];
        store_release(a.mirror + kMirrorFault, fault);
    }
    if ((fault & word::fault_of_peer) != 0) return;
    for (std::int32_t rank = lane; rank < a.num_ranks; rank += 32) {
        auto* peer = reinterpret_cast<std::uint32_t*>(a.first_control +
                                                      static_cast<std::uint64_t>(rank) * a.heap_stride);
        if (peer == a.control) continue;
        atomicCAS_system(peer + word::fault, 0u, word::fault_of_peer | static_cast<std::uint32_t>(a.rank));
    }
}

/// One warp: the fault word, acquired by lane 0 and the same for all lanes.
__device__ __forceinline__ std::uint32_t fault_of(const BoundaryArguments& a, std::int32_t lane) {
    std::uint32_t fault = 0;
    if (lane == 0) fault = load_acquire(a.control + word::fault);
    return __shfl_sync(0xffffffffu, fault, 0);
}

/// Lets the stream's next kernel start, if it was launched so, once every block of this one has come here.
/// That kernel may rely on nothing that this one does.
__device__ __forceinline__ void launch_next() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// One warp: all posts, of what any lane has done or acquired. `epoch`: the call's number.
__device__ __forceinline__ void post_all(const BoundaryArguments& a, std::uint32_t epoch, std::int32_t lane) {
    if (a.num_posts == 0) return;
    __syncwarp();
    fence_to_system();
    for (std::int32_t i = lane; i < a.num_posts; i += 32)
        store_relaxed(reinterpret_cast<std::uint32_t*>(a.posts[i]), epoch);
}

/// One warp: tells the host that call `epoch` has begun [P9]. Orders nothing; after the call's first posts, so
/// that these do not wait for it.
__device__ __forceinline__ void tell_begun(const BoundaryArguments& a, std::uint32_t epoch,
                                           std::int32_t lane) {
    if (lane == 0) store_relaxed(a.mirror + kMirrorBegun, epoch);
}

/// One warp: tells the host and the copy engine that call `epoch` has begun [P2], unless a kernel beside this one has
/// left the call. A copy of the word in a stream after this kernel finds it.
__device__ __forceinline__ void publish(const BoundaryArguments& a, std::uint32_t epoch, std::int32_t lane) {
    if (lane != 0) return;
    atomicCAS_system(a.control + word::published, epoch - 1u, epoch);
    store_release(a.mirror + kMirrorPublished, epoch);
    __threadfence_system();
}

}  // namespace syncopate::runtime::device
