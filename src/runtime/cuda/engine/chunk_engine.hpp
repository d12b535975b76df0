// The chunk engine of one op: its table, the kernel that interprets it, and the kernel's launch.
#pragma once

#if SYNCOPATE_HAS_CUDA

#include <string>
#include <vector>

#include "runtime/call/call_plan.hpp"
#include "runtime/cuda/driver/device_module.hpp"
#include "runtime/cuda/engine/engine_arguments.hpp"
#include "runtime/cuda/streams/device_lists.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/cuda/engine/engine_table.hpp"

namespace syncopate::runtime {

class ChunkEngine {
public:
    /// For the transfers of `schedule` that are the engine's; nothing is launched if none are. `module` must
    /// outlive it. Fails where the table cannot be made.
    static Result<ChunkEngine> create(const DeviceModule& module, const CallPlan& plan,
                                      const fuse::RankSchedule& schedule);

    [[nodiscard]] bool empty() const { return table_.empty(); }
    /// Adds what the kernel reads to `lists`.
    void add_to(DeviceLists& lists);
    /// Where those came to be, and what a call begins with. `begins`: the engine may do what sy_begin does.
    void place(const DeviceBuffer& lists, const device::BoundaryArguments& begin, bool begins);

    /// It does what sy_begin would.
    [[nodiscard]] bool begins_call() const { return arguments_.begins != 0; }

    /// As CallExecutor has it.
    [[nodiscard]] bool shift_sources(std::int32_t tensor, std::uint64_t distance);
    [[nodiscard]] bool shift_sums(std::uint64_t distance);

    Status launch(CUstream stream) const;

private:
    explicit ChunkEngine(const DeviceModule& module) : module_(&module) {}

    /// The lists of a table, wherever they come to be.
    struct Lists {
        DeviceList<device::EngineOp> ops;
        DeviceList<device::EngineSource> sources;
        DeviceList<std::uint64_t> copies, posts;
        DeviceList<device::WaitEntry> waits;
        DeviceList<std::uint32_t> finished;
    };

    const DeviceModule* module_;
    EngineTable table_;
    Lists lists_;
    CUfunction kernel_ = nullptr;
    fuse::EngineKernel kind_ = fuse::EngineKernel::none;
    unsigned threads_ = device::kEngineThreads;
    unsigned blocks_ = 8;
    unsigned shared_bytes_ = kEngineSharedBytes;
    device::EngineArguments arguments_{};
};

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
