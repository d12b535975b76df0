// What happens around the fused kernel on one kind of device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/call/call_plan.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::runtime {

class CallExecutor {
public:
    virtual ~CallExecutor() = default;

    /// Copies `inputs`, then begins; on host, Done also means that the waits were over. `capture`: of the stream.
    virtual Status begin(CudaStream stream, std::span<const StridedCopy* const> inputs, Capture capture) = 0;
    /// Ends, then copies `outputs`. `ran`: the kernel was launched; without it the op is given up on all
    /// ranks, as what it should have made never comes.
    virtual Status end(CudaStream stream, std::span<const StridedCopy* const> outputs, bool ran) = 0;
    /// What transfer `index` of the schedule sums, to redirect it between calls; null when it sums nothing.
    virtual PreparedSum* sum_of(std::size_t index) = 0;
    /// Gives transfer `index` other copies, between calls; false, and nothing changes, where it has none of
    /// its own that can be changed.
    virtual bool set_copies(std::size_t index, std::vector<StridedCopy> copies) = 0;
    /// Lets the chunk engine read what it copies of `tensor` on this rank `distance` bytes (modulo 2^64)
    /// behind where that is in the heap, from the next call on; false, and nothing changes, where it has no
    /// copies that can.
    virtual bool shift_sources(std::int32_t tensor, std::uint64_t distance) = 0;
    /// Lets the chunk engine put all that it sums `distance` bytes (modulo 2^64) behind where that is in the
    /// heap, from the next call on; false, and nothing changes, where it cannot.
    virtual bool shift_sums(std::uint64_t /*distance*/) { return false; }
    /// Calls that have begun [P9]. Without a call of the driver, and from any thread.
    [[nodiscard]] virtual std::uint32_t begun() const = 0;
    /// Makes `word` the fault on all ranks; the first one of each stays. From any thread.
    virtual void raise(std::uint32_t word) = 0;
    /// Waits until this rank's device has begun what it was given, also after the op; null where nothing is to be waited for.
    virtual std::function<void()> settling() const { return {}; }
    /// Whether this rank has a fault. From any thread.
    virtual bool is_faulty() const = 0;
    /// The fault words as they are now.
    virtual Result<FaultRecord> read_fault() const = 0;
    /// The same without a call of the driver, maybe late.
    virtual FaultRecord poll_fault() const = 0;
    /// Whether a kernel may start when the kernel before it in its stream has started: it waits for nothing
    /// but its signals, and ends after that one.
    virtual bool kernel_may_start_early() const { return false; }
    /// Whether none of the kernel's programs ends before all have started.
    virtual bool programs_wait_for_each_other() const { return false; }
    /// Does what begin and end do besides enqueueing around `launch`, which launches a graph of a whole call into `stream`.
    virtual Status around_graph(CudaStream /*stream*/, const std::function<Status()>& /*launch*/) {
        return usage_error("there are no graphs on host");
    }
    /// From now on begin and end go into a stream of ours that is being captured, or no longer.
    virtual void set_capturing(bool /*on*/) {}
    /// About how many calls of the driver a call takes; 0: it cannot be a graph of ours.
    [[nodiscard]] virtual std::size_t driver_calls() const { return 0; }
    /// Waits for everything that was started.
    virtual Status synchronize() = 0;
    /// Ends what waits for other ranks by a library, after a fault of this rank's [P35]. Waits for no rank.
    virtual void interrupt() {}
    /// The same as synchronize() behind that, whatever other ranks no longer do.
    virtual Status drain() { return synchronize(); }
    /// What counts calls is as before the first one, and what ranks share beside the heap is made anew [P36].
    /// The control block has been written. Collective over the ranks of `rendezvous`.
    virtual Status renew(Rendezvous& rendezvous) = 0;
    /// Whether some call was captured, so that a graph may replay it.
    virtual bool was_captured() const { return false; }
    /// Called by the watch's thread now and then: gives up what has no deadline of its own.
    virtual void look() {}
    /// Where the kernel reads `table`.
    virtual std::uint64_t table_address() const = 0;
};

/// `table` must outlive the executor.
Result<std::unique_ptr<CallExecutor>> make_host_calls(CallPlan plan, const std::vector<std::int32_t>& table,
                                                      SymmetricHeap& heap, const fuse::Schedule& schedule,
                                                      const OpOptions& options);
Result<std::unique_ptr<CallExecutor>> make_cuda_calls(CallPlan plan, const std::vector<std::int32_t>& table,
                                                      SymmetricHeap& heap, const fuse::Schedule& schedule,
                                                      const OpOptions& options);

}  // namespace syncopate::runtime
