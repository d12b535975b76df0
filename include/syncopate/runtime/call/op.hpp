// A fused operator in memory: the full buffers of its tensors, its control block and its tables on one rank,
// and what happens around the fused kernel in each call.
//
//   begin_call   copies the user's inputs into the heap, begin_posts, begin_waits, starts transfers
//                (the caller runs the fused kernel)
//   end_call     starts the transfers that wait for what the kernel makes, joins all, end_waits, copies the
//                outputs, end_posts
//
// On cuda both only enqueue, allocate nothing, and may be captured into a graph [P26]. Calls of one op
// must follow each other in stream order; different ops may be in flight together, each has its own copy stream.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/emit/artifact.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/cuda/driver/capture.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"
#include "syncopate/runtime/cuda/driver/launch.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::runtime {

class CallExecutor;  // src/runtime/call/call_executor.hpp: begin and end on one kind of device
struct CallPlan;     // src/runtime/call/call_plan.hpp
struct OpMemory;     // src/runtime/call/op_memory.hpp
class UserBuffers;   // src/runtime/call/user_buffers.hpp
class CallWatch;     // src/runtime/call/call_watch.hpp
struct WatchedOp;

struct OpOptions {
    std::string name = "op";  ///< in messages
    /// What is called, the same on all ranks, where the ranks' calls differ: with its extents, so that variants
    /// are told apart. "": the name, what the launch's kernels are called with, and the schedule's tensors; then
    /// all ranks must have the launch's constants alike.
    std::string what{};
    /// What ranks must have alike beside the schedule: names and texts, such as those of the emitted kernels.
    std::vector<std::pair<std::string, std::string>> content{};
    std::int64_t deadline_ms = 30'000;  ///< of one wait, and of destroy(); 0: none
    /// That end a call: of the fused kernel's grid, those that share tiles counted once; of several stages,
    /// of all grids together.
    std::int64_t num_programs = 1;
    /// What this rank holds initially (Plan::initial; maybe nothing), for set_input without a region; if
    /// known.
    std::optional<std::vector<plan::Chunk>> initial{};
    /// Tensors that kernels read from this rank's heap, or of which this rank holds something at the end; if
    /// known. An input of any other tensor is not copied into the heap if every transfer can read it from the
    /// user's array.
    std::optional<std::vector<std::string>> kept_tensors{};
    /// Tensors of which kernels read what this rank was given through an argument of their own, and the heap
    /// only for what arrives: these are not among kept_tensors that a launch's are.
    std::vector<std::string> read_in_place{};
    std::int64_t max_delay_us = 0;  ///< host: random delays up to this, in random order
    std::uint64_t seed = 0;         ///< host: of the delays
};

class FusedOp final : public HeapUser {
public:
    using Options = OpOptions;

    /// Made by all ranks together, in the same order as other ops on this heap. Allocates what Schedule::heap
    /// says: one full buffer per tensor (contents undefined) and the control block. Errors: no room, ranks
    /// that make different ops, a transfer that this device's executors cannot do (located by rank and op).
    static Result<std::unique_ptr<FusedOp>> create(std::shared_ptr<SymmetricHeap> heap,
                                                   const fuse::Schedule& schedule,
                                                   const Options& options = {});
    /// The same of what fuse made: Options::initial, kept_tensors and num_programs are the launch's.
    static Result<std::unique_ptr<FusedOp>> create(std::shared_ptr<SymmetricHeap> heap,
                                                   const emit::ScheduleFile& launch, Options options = {});
    /// An op is its process's: in a child that is forked later every call fails, and touches nothing of what the
    /// ranks share.
    ///
    /// Without destroy() before, the heap keeps the op's memory: ranks drop objects in no common order.
    ~FusedOp() override;
    FusedOp(const FusedOp&) = delete;
    FusedOp& operator=(const FusedOp&) = delete;

    [[nodiscard]] int rank() const { return heap_->rank(); }
    [[nodiscard]] const fuse::Schedule& schedule() const { return schedule_; }
    [[nodiscard]] const std::shared_ptr<SymmetricHeap>& heap() const { return heap_; }

    /// The tensor's full buffer in this rank's heap (or in `rank`'s); its bytes.
    [[nodiscard]] Result<std::uint64_t> tensor_address(std::string_view name) const;
    [[nodiscard]] Result<std::uint64_t> tensor_address(std::string_view name, int rank) const;
    [[nodiscard]] Result<std::uint64_t> tensor_offset(std::string_view name) const;  ///< in every rank's heap
    /// All ranks' heaps: what a descriptor spans through which the kernel stores or loads in all of them
    /// (fuse/inline/inline.hpp, fuse/inline/inline_reads.hpp).
    struct FlatView {
        std::uint64_t address = 0;
        std::uint64_t bytes = 0;
    };
    [[nodiscard]] FlatView flat_view() const;
    [[nodiscard]] Result<std::uint64_t> tensor_bytes(std::string_view name) const;
    [[nodiscard]] std::uint64_t control_address() const;  ///< this rank's control block
    [[nodiscard]] std::uint64_t control_address(int rank) const;
    [[nodiscard]] std::uint64_t control_bytes() const;
    /// A stage's table, and where it is in memory that its kernel can read.
    [[nodiscard]] std::uint64_t table_address(std::size_t stage = 0) const;
    [[nodiscard]] std::span<const std::int32_t> table(std::size_t stage = 0) const;

    /// From the next call on, begin_call copies `region` of `tensor` from the user's array at `address`
    /// (extents: those of `region`; strides in elements, the last one 1) to its place in the heap. Copies
    /// that start with the call, by a copy engine or on host, read the user's array itself, and so does the
    /// chunk engine, if all that it sends of the tensor lies in the array as in the heap, a multiple of 16
    /// bytes away (and of one tensor only: the first that it sends). Nothing is copied when it is that place,
    /// or when nothing else reads it (OpOptions::kept_tensors). At most one input per (tensor, region). The
    /// array must live until the call has ended.
    Status set_input(std::string_view tensor, const plan::Region& region, std::uint64_t address,
                     std::span<const std::int64_t> strides);
    /// The same for the box around what Options::initial says of the tensor; nothing is copied when this rank
    /// holds none of it. Fails when Options::initial is not known.
    Status set_input(std::string_view tensor, std::uint64_t address, std::span<const std::int64_t> strides);
    /// From the next call on, what the heap holds is sent.
    void clear_inputs();
    /// From the next call on, end_call brings `region` of `tensor`, as it is at the end of the call, to the
    /// user's array at `address` (as set_input; it must live until the call has ended). Sums that make the
    /// region and that nobody else reads go there directly: the heap's own copy of it is then undefined.
    Status set_output(std::string_view tensor, const plan::Region& region, std::uint64_t address,
                      std::span<const std::int64_t> strides);

    /// The same of a place that was looked up before, as in each call of many: its number; of initial_place, nullopt where
    /// this rank holds nothing of the tensor initially.
    Result<std::size_t> buffer_place(std::string_view tensor, const plan::Region& region);
    Result<std::optional<std::size_t>> initial_place(std::string_view tensor);
    Status set_input(std::size_t place, std::uint64_t address, std::span<const std::int64_t> strides);
    Status set_output(std::size_t place, std::uint64_t address, std::span<const std::int64_t> strides);

    /// Where tiles read what this rank itself was given (fuse/inline/inline_reads.hpp, "own"), for the kernel's
    /// parameter sy_own: where row 0, column 0 of the tensor would be that the kernel is given, bytes from
    /// row to row, and how many elements that is from the tensor's place in the heap. A kernel that loads
    /// through a descriptor takes such a one of that place, one that loads through pointers `elements` +
    /// emit::table::own_base as an int64. It changes with set_input. nullopt: the kernel has no such
    /// parameter.
    struct OwnPlace {
        std::uint64_t address = 0;
        std::uint64_t pitch = 0;
        std::int64_t elements = 0;
    };
    [[nodiscard]] std::optional<OwnPlace> own_place() const;
    /// Where the kernel puts what its programs sum (fuse/inline/kernel_sums.hpp), from the next call on: the array
    /// that set_output has named, if it lies in memory like the heap's; else the heap. nullopt: it sums
    /// nothing.
    [[nodiscard]] std::optional<std::uint64_t> sum_place() const;

    /// On host, `stream` is ignored; both block there, and fail with the fault that this rank saw. `capture`: of the stream,
    /// where the caller has asked.
    Status begin_call(CudaStream stream = 0, Capture capture = Capture::unknown);
    /// `ran` false: the kernel could not be launched, so nothing will make what transfers wait for.
    Status end_call(CudaStream stream = 0, bool ran = true);
    /// cuda: begin_call, the launch of the fused kernel, end_call. The kernel starts beside what begin_call
    /// has enqueued, where the transfers allow it; launched otherwise, it starts after that: slower, the same
    /// result.
    Status call(CudaKernel& kernel, Grid grid, CudaStream stream, const KernelArguments& arguments);
    /// The same for the kernels of several stages, which run one after another.
    struct StageLaunch {
        CudaKernel* kernel = nullptr;
        Grid grid;
        const KernelArguments* arguments = nullptr;
    };
    Status call(std::span<const StageLaunch> stages, CudaStream stream, Capture capture = Capture::unknown);
    /// Fails (usage) where the stage's kernel, launched so, could wait for ever: calls do then.
    [[nodiscard]] Status require_room(std::size_t stage, const CudaKernel& kernel, Grid grid) const;

    /// The same into a stream of ours that is being captured: it is no call until call_graph launches what it became,
    /// and where it fails nothing has happened.
    Status capture_call(std::span<const StageLaunch> stages, CudaStream stream);
    /// A call that `launch` makes by a graph in which capture_call() was captured.
    Status call_graph(CudaStream stream, const std::function<Status()>& launch);
    /// About how many calls of the driver a call takes; 0: it cannot be a graph but a user's.
    [[nodiscard]] std::size_t driver_calls() const;

    /// The fault of a call, as an error: rank, op, chunk and signal. On cuda it reads the control block as it
    /// is now: after the stream has been synchronised it is final. Which calls are complete then: [P31, P32].
    Status check() const;
    /// As check() without any call of the driver: sees a fault once sy_begin or what ends the call (sy_end,
    /// or the last sum) has run after it. A call of stages of one rank that only share tiles has neither.
    Status poll() const;
    /// Where this rank cannot make a call that the others may be in: makes that the op's fault on all ranks, at once.
    void give_up();
    /// Whether the ranks called different ops in a call of this one: then check() and poll() say so, as an error
    /// of class usage on all ranks. Without any call of the driver.
    [[nodiscard]] bool calls_differ() const;
    /// Whether this rank's caller has been told so; and whether it had been before it began its last call of this one, by
    /// another op's error: nothing is new to it then, and it may make a new op and call that instead.
    [[nodiscard]] bool is_told() const;
    [[nodiscard]] bool had_been_told() const { return had_been_told_; }
    /// Waits for all that this rank has started, on cuda for the whole GPU context.
    Status synchronize();
    /// Waits for this op's own work and for the other ranks, and gives its memory back to the heap. All ranks
    /// call it.
    Status destroy();

    /// After a fault of which all ranks know (a rank was late, and its call has failed, too): what is in flight is dropped,
    /// and the op takes calls again, from the first on [P38]. Collective, within the op's deadline and the group's.
    Status reset();
    /// An error in a forked child, whose parent's op it is: it waits for no lock that a thread of the parent's holds.
    [[nodiscard]] Status require_own() const;
    /// `done` follows each reset, and each renewal of its group, when no call of before is in flight and none of after has begun on
    /// any rank. For what is kept beside the op, call by call, or in its heap.
    void when_renewed(std::function<Status()> done) { when_renewed_ = std::move(done); }
    // Of a group that goes on after a fault (runtime/recover/recover.hpp).
    [[nodiscard]] std::string identity() const override;
    [[nodiscard]] bool was_captured() const override;
    [[nodiscard]] Status require_idle() const override;
    void interrupt() override;
    Status drain() override;
    Status renew() override;
    void retire(const std::string& why) override;
    /// Why it takes no more calls, if its group has gone on without it.
    [[nodiscard]] const std::string& retired() const { return retired_; }

private:
    FusedOp(std::shared_ptr<SymmetricHeap> heap, const fuse::Schedule& schedule, const Options& options);
    Status allocate();
    /// The control block as it is before the first call.
    Status write_control();
    /// What ranks do together once each has made its part (`made`) of an op, and again when it is renewed. `make_ready`
    /// makes what other ranks' calls may touch, or wait for.
    Status join(const Status& made, const std::function<Status()>& make_ready);
    [[nodiscard]] Status require_not_retired() const;
    /// Fails (usage), naming the op, while the group's memory is released.
    [[nodiscard]] Status require_memory() const;
    void make_tables();
    Status make_executor(CallPlan plan);
    /// Gives up a call that nobody has ended: what its kernel should make never comes.
    void leave_call();
    /// Lets the group's watch see the op's calls. Collective.
    Status watch();
    /// On host a call ends once all ranks have asked for it, also on a rank that needs nothing of the others: so what
    /// differs is told in the call that differs [P27].
    Status alongside();
    void free_memory();
    [[nodiscard]] Error error_of(const FaultRecord& record) const;
    /// What its maker calls it (OpOptions::what), else "op 'NAME' KERNEL".
    [[nodiscard]] std::string called() const;
    /// The message of a rank that was given up, or that its process has ended.
    [[nodiscard]] std::string of_ended(int peer, const std::string& message) const;
    /// The fault of `rank`, with who has not begun the call.
    [[nodiscard]] Error described(const FaultRecord& record, int rank) const;

    std::shared_ptr<SymmetricHeap> heap_;
    fuse::Schedule schedule_;
    Options options_;
    std::unique_ptr<OpMemory> memory_;
    std::vector<std::int32_t> table_;              ///< of all stages, one after another
    std::vector<std::int64_t> waits_for_channel_;  ///< tiles that do, by stage, on this rank
    std::vector<std::size_t> stage_begin_;         ///< in table_, by stage; one more entry for the end
    std::unique_ptr<CallExecutor> executor_;
    std::unique_ptr<UserBuffers> buffers_;
    std::shared_ptr<CallWatch> watch_;    ///< null of one rank alone
    std::unique_ptr<WatchedOp> watched_;  ///< the same
    bool captures_ = false;               ///< the call in hand is capture_call's
    std::atomic<bool> calling_ = false;   ///< release() looks at it from another thread
    std::string retired_;
    std::function<Status()> when_renewed_;
    bool had_been_told_ = false;
    CudaStream stream_ = 0;  ///< of the call in progress
    bool destroyed_ = false;
};

}  // namespace syncopate::runtime
