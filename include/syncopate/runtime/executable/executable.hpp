// A compiled program as one object: kernels, where each of their arguments comes from, and the op around them
// (heap, tables, signals, transfers, streams). One call enqueues everything.
//
//   Program     what a compiler left, as data alone: code, grids, arguments, operands. It may be kept in a file
//   Executable  a Program on one rank, with its memory: made by all ranks together
//   run         set_input and set_output of what the plan moves, the kernels' arguments for these tensors, and
//               FusedOp::call
//
// A call gives tensors of the operands' shapes. Addresses are its own; strides are too, of operands that the
// plan moves. A kernel that takes an operand itself was compiled for some strides and alignment: a Form. An
// executable has as many forms as it has been given, and each call takes the first that fits.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/model/region.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/cuda/driver/launch.hpp"

namespace syncopate::runtime {

/// A compiled kernel, with nothing of a call in it.
struct Code {
    std::vector<std::byte> image;  ///< a cubin, a fatbin, or PTX ended by a zero byte
    std::string entry;             ///< the function's name in it
    KernelOptions options;         ///< warps (threads / 32), cluster, shared bytes, scratch
};

/// Memory that an argument names; `offset` bytes behind it.
struct Memory {
    enum class Of : std::uint8_t {
        operand,    ///< of the call: number `index`
        tensor,     ///< of the schedule (fuse::Schedule::tensors): its place in this rank's heap
        heaps,      ///< all ranks' heaps, from that of rank 0 on (FusedOp::flat_view)
        table,      ///< the stage's table
        control,    ///< this rank's control block
        sums,       ///< FusedOp::sum_place
        own,        ///< FusedOp::own_place: a descriptor of it has that pitch
        workspace,  ///< of the form's own (Form::workspaces): zeroes at first, kept from call to call
        fixed,      ///< the address `offset`; never in a file
        table_of,   ///< that of stage `index`
    };
    Of of = Of::operand;
    std::int32_t index = 0;
    std::int64_t offset = 0;

    friend bool operator==(const Memory&, const Memory&) = default;
};

/// A number, as the kernel takes it.
struct NumberArgument {
    std::array<std::byte, 8> value{};
    std::uint8_t bytes = 4;  ///< 1, 2, 4 or 8
};

struct PointerArgument {
    Memory at;
};

/// FusedOp::OwnPlace::elements + emit::table::own_base, 8 bytes: of kernels that load through pointers.
struct OwnDistanceArgument {};

/// A tensor map by value, then, unless `map_alone`, its shape (i32 each) and strides (i64 each), as Triton's launcher
/// passes them. `map.address` means nothing: it is that of `at`.
struct DescriptorArgument {
    Memory at;
    TensorMapRequest map;
    bool map_alone = true;
};

using Argument = std::variant<NumberArgument, PointerArgument, OwnDistanceArgument, DescriptorArgument>;

/// The kernel of a stage.
struct StageCode {
    std::int32_t code = 0;  ///< of Program::codes
    Grid grid;              ///< of this rank
    std::vector<Argument> arguments;
};

/// The kernels for operands of these layouts.
struct Form {
    std::vector<StageCode> stages;
    /// By operand, elements; empty: any. Strides of axes of one element are not looked at.
    std::vector<std::vector<std::int64_t>> strides;
    /// By operand, bytes of which its address is a multiple; 0 or 1: any.
    std::vector<std::int64_t> alignment;
    std::vector<std::uint64_t> workspaces;  ///< bytes of each
};

/// What a call gives.
struct Operand {
    /// A part of it that the plan moves.
    struct Part {
        std::string tensor;  ///< the plan's
        /// Of that tensor; nullopt, of inputs: the box around all that this rank holds initially.
        std::optional<plan::Region> region{};
        /// Where in the operand the region begins, elements an axis; empty: at its begin.
        std::vector<std::int64_t> at{};
    };
    enum class Layout : std::uint8_t {
        any,
        rows,  ///< contiguous along the last axis
        /// So, no two elements in one place, and each row begins at a multiple of 16 bytes, as TMA takes them.
        aligned_rows,
        contiguous,
        apart,  ///< contiguous along the last axis, and no two elements in one place: for what a call writes
    };
    std::string name;  ///< in messages
    plan::DType dtype = plan::DType::bf16;
    std::vector<std::int64_t> shape;  ///< on this rank
    Layout layout = Layout::any;
    std::vector<Part> inputs{};   ///< before the kernels
    std::vector<Part> outputs{};  ///< when the call has ended
    bool optional = false;        ///< a call may give none (address 0)
    std::int64_t alignment = 1;   ///< bytes of which its address is a multiple
};

struct Program {
    std::vector<Operand> operands;
    std::vector<Code> codes;  ///< on host none
    std::vector<Form> forms;  ///< on host none: the kernels are Executable::HostKernels
};

/// A tensor of a call. Shape and strides in elements.
struct CallTensor {
    std::uint64_t address = 0;
    std::span<const std::int64_t> shape;
    std::span<const std::int64_t> strides;
};

/// When a call's driver calls are one graph launch: kept by addresses, made when those come a second time.
enum class GraphUse : std::uint8_t {
    never,
    of_many,  ///< of calls with more than a kernel or two
    always,
};

class LoadedForm;  // src/runtime/executable/loaded_form.hpp
class CallGraphs;  // src/runtime/executable/call_graphs.hpp

class Executable {
public:
    /// Runs all stages' kernels on the host, between begin_call and end_call. May throw: the call is given up first.
    using HostKernels = std::function<Status(std::span<const CallTensor>)>;

    /// Collective, as FusedOp::create. Loads the code, and allocates all that calls need.
    static Result<std::unique_ptr<Executable>> make(std::shared_ptr<SymmetricHeap> heap,
                                                    const emit::ScheduleFile& launch, const Program& program,
                                                    OpOptions options = {}, HostKernels host = {});
    /// The same of an op that is there. Not collective.
    static Result<std::unique_ptr<Executable>> make(std::shared_ptr<FusedOp> op, const Program& program,
                                                    HostKernels host = {});
    ~Executable();
    Executable(const Executable&) = delete;
    Executable& operator=(const Executable&) = delete;

    [[nodiscard]] FusedOp& op() { return *op_; }
    [[nodiscard]] Device device() const { return op_->heap()->device(); }
    [[nodiscard]] const std::shared_ptr<FusedOp>& shared_op() const { return op_; }
    [[nodiscard]] const std::vector<Operand>& operands() const { return operands_; }

    /// Adds kernels for other layouts; `kernels`: those of form.stages, loaded. Not collective.
    Status add(const Form& form, std::vector<std::shared_ptr<CudaKernel>> kernels);
    /// The form that a call with these takes; nullopt: there is none yet. On host always 0.
    [[nodiscard]] std::optional<std::size_t> form_of(std::span<const CallTensor> tensors) const;

    /// The same where they are what the operands are, too; nullopt: a call of them would be refused.
    [[nodiscard]] std::optional<std::size_t> takes(std::span<const CallTensor> tensors) const;

    /// Shapes and layouts are the operands'; the error names the operand.
    [[nodiscard]] Status check(std::span<const CallTensor> tensors) const;
    /// Tells the op where what the plan moves is, as run does: for a call made otherwise.
    Status place(std::span<const CallTensor> tensors);
    /// One call; all ranks make it alike. On cuda it enqueues on `stream` and allocates nothing but graphs; the tensors must live until the
    /// call has ended there. On host it runs. Errors: no form (usage), and those of FusedOp::call. Calls must follow
    /// each other in stream order; threads may make them.
    Status run(std::span<const CallTensor> tensors, CudaStream stream = 0);
    /// The same of what takes() has said to go by `form`.
    Status run_taken(std::span<const CallTensor> tensors, std::size_t form, CudaStream stream);
    /// From the next call on. Off unless it is said: graphs take memory of the device (call_graphs.hpp).
    void use_graphs(GraphUse use) { graph_use_ = use; }
    [[nodiscard]] std::uint64_t graph_launches() const {
        return graph_launches_.load(std::memory_order_relaxed);
    }

    /// Calls so far.
    [[nodiscard]] std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
    /// Whether a CUDA graph of the user's may replay it.
    [[nodiscard]] bool captured() const { return captured_.load(std::memory_order_relaxed); }

private:
    /// A part of an operand that the plan moves, as the op knows it.
    struct Moved {
        std::size_t operand = 0;
        const Operand::Part* part = nullptr;
        bool is_input = true;
        std::size_t place = 0;  ///< FusedOp::buffer_place
    };

    Executable();
    Status look_up_places();
    Status run_on_cuda(std::span<const CallTensor> tensors, std::size_t form, CudaStream stream);
    Status run_on_host(std::span<const CallTensor> tensors);

    std::shared_ptr<FusedOp> op_;
    std::vector<Operand> operands_;
    std::optional<std::vector<Moved>> moved_;  ///< from the first call on
    mutable std::mutex adding_;                ///< of forms_, which only grows: a form stays where it is
    std::vector<std::unique_ptr<LoadedForm>> forms_;
    HostKernels host_;
    std::mutex calling_;
    GraphUse graph_use_ = GraphUse::never;
    std::unique_ptr<CallGraphs> graphs_;
    std::atomic<std::uint64_t> graph_launches_{0};
    std::atomic<std::uint64_t> calls_{0};
    std::atomic<bool> captured_{false};
};

}  // namespace syncopate::runtime
