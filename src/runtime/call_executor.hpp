// What happens around the fused kernel on one kind of device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "syncopate/fuse/streams.hpp"
#include "syncopate/runtime/control.hpp"
#include "syncopate/runtime/host_mover.hpp"
#include "syncopate/runtime/op.hpp"

namespace syncopate::runtime {

/// A rank's schedule with addresses instead of ranks, signals and regions.
struct CallPlan {
    int rank = 0;
    int num_ranks = 0;
    std::uint64_t first_control = 0;  ///< address of rank 0's control block
    std::uint64_t heap_stride = 0;
    std::vector<std::uint64_t> begin_posts;  ///< addresses of the words
    std::vector<fuse::Wait> begin_waits;
    std::vector<std::uint64_t> end_posts;
    std::vector<std::uint64_t> made_posts;  ///< when a plain kernel has ended
    bool plain = false;                     ///< the kernel is left as it is (fuse/schedule.hpp)
    std::uint64_t own_words = 0;            ///< device::EngineArguments::own_words
    std::vector<fuse::Wait> end_waits;
    std::vector<PreparedTransfer> transfers;
    fuse::StreamPlan streams;  ///< of those by copy_engine

    [[nodiscard]] std::uint64_t control_of(int r) const {
        return first_control + static_cast<std::uint64_t>(r) * heap_stride;
    }
    [[nodiscard]] std::uint64_t control() const { return control_of(rank); }
};

class CallExecutor {
public:
    virtual ~CallExecutor() = default;

    /// Copies `inputs`, then begins; on host, Done also means that the waits were over.
    virtual Status begin(CudaStream stream, std::span<const StridedCopy* const> inputs) = 0;
    /// Ends, then copies `outputs`. `ran`: the kernel was launched; without it nothing waits for what it
    /// makes.
    virtual Status end(CudaStream stream, std::span<const StridedCopy* const> outputs, bool ran) = 0;
    /// What transfer `index` of the schedule sums, to redirect it between calls; null when it sums nothing.
    virtual PreparedSum* sum_of(std::size_t index) = 0;
    /// Gives transfer `index` other copies, between calls; false, and nothing changes, where it has none of
    /// its own that can be changed.
    virtual bool set_copies(std::size_t index, std::vector<StridedCopy> copies) = 0;
    /// The fault words as they are now.
    virtual Result<FaultRecord> read_fault() const = 0;
    /// The same without a call of the driver, maybe late.
    virtual FaultRecord poll_fault() const = 0;
    /// Whether a kernel may start when the kernel before it in its stream has started: it waits for nothing
    /// but its signals, and ends after that one.
    virtual bool kernel_may_start_early() const { return false; }
    /// Waits for everything that was started.
    virtual Status synchronize() = 0;
    /// Where the kernel reads `table`.
    virtual std::uint64_t table_address() const = 0;
    virtual Status write_table_word(std::size_t word, std::int32_t value) = 0;
};

/// `table` must outlive the executor.
Result<std::unique_ptr<CallExecutor>> make_host_calls(CallPlan plan, const std::vector<std::int32_t>& table,
                                                      const fuse::RankSchedule& schedule,
                                                      const OpOptions& options);
Result<std::unique_ptr<CallExecutor>> make_cuda_calls(CallPlan plan, const std::vector<std::int32_t>& table,
                                                      SymmetricHeap& heap, const fuse::Schedule& schedule,
                                                      const OpOptions& options);

}  // namespace syncopate::runtime
