// A bundle on one rank of a group: its code, loaded once, and an executable for each number of rows that is asked
// for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "syncopate/bundle/host_kernel.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/executable/executable.hpp"
#include "syncopate/runtime/heap/device.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::bundle {

struct PrepareOptions {
    std::int64_t deadline_ms = 30'000;  ///< of one wait of a call; 0: none
    TileKernel tiles{};                 ///< of a user's program on host
    bool graphs = false;                ///< runtime::GraphUse::of_many
    std::int64_t max_delay_us = 0;      ///< host: chunks are late at random, up to this
    std::uint64_t seed = 0;
};

/// A program of a bundle, ready to be called.
class Prepared {
public:
    ~Prepared();
    Prepared(const Prepared&) = delete;
    Prepared& operator=(const Prepared&) = delete;

    [[nodiscard]] const std::vector<runtime::Operand>& operands() const { return executable_->operands(); }
    [[nodiscard]] const Planned& planned() const { return *planned_; }
    [[nodiscard]] const Needs& needs() const { return needs_; }
    [[nodiscard]] runtime::FusedOp& op() { return executable_->op(); }
    [[nodiscard]] runtime::Executable& executable() { return *executable_; }
    /// One call; all ranks make it alike. `tensors`: in the order of operands(), with their shapes. On host it fails as check()
    /// does, too.
    Status run(std::span<const runtime::CallTensor> tensors, runtime::CudaStream stream);
    /// Waits for this rank's calls: whether one of them has failed (FusedOp::check), or, of a mixture of experts, whether in
    /// calls since the last check an id named no expert, or more rows than the bound came (usage; alike on all ranks). Any thread
    /// may ask: what one was told no other one is.
    Status check();
    /// FusedOp::reset. Collective.
    Status reset() { return op().reset(); }
    /// Gives the memory back. Collective.
    Status destroy();

private:
    friend class Loaded;
    Prepared() = default;
    /// Of what kernels have seen in calls (ops::OperatorRow::seen) all that was not told yet is told now.
    Status judge();
    /// The same is forgotten: of calls that failed not all ranks have seen it.
    void forget();
    using Words = std::vector<std::uint32_t>;
    /// What they have written down so far.
    [[nodiscard]] Result<Words> seen() const;
    /// Whether the operator's do.
    [[nodiscard]] bool tells() const { return !told_.empty(); }
    /// The same status; of a call that the machine made fail what was seen is forgotten.
    Status failed(const Status& status);

    std::shared_ptr<const Bundle> bundle_;
    std::shared_ptr<const Planned> planned_;
    Needs needs_;
    Scratch scratch_;
    std::uint64_t scratch_at_ = 0;  ///< its address, in the op's heap; 0: there is none
    std::mutex telling_;            ///< of the next one; on host a call holds it
    Words told_;  ///< what was seen when it was last told, or forgotten; none: nobody writes it down
    std::unique_ptr<runtime::Executable> executable_;
};

/// Of the meeting at which ranks begin to prepare so many rows: who cannot go on comes there to say so.
[[nodiscard]] std::string prepare_label(std::int64_t rows);

class Loaded {
public:
    /// Fails where the bundle is for another kind of device, or number of ranks; on cuda code is loaded when it is
    /// first needed.
    static Result<std::unique_ptr<Loaded>> open(std::shared_ptr<const Bundle> bundle, runtime::Device device,
                                                std::shared_ptr<runtime::Rendezvous> rendezvous);

    [[nodiscard]] const Bundle& bundle() const { return *bundle_; }
    [[nodiscard]] runtime::Device device() const { return device_; }
    /// Who meets to set programs up; null: a group that has gone on with fewer ranks, and none are.
    [[nodiscard]] const std::shared_ptr<runtime::Rendezvous>& group() const { return rendezvous_; }
    /// From now on programs are set up with those who meet here, as many as before (runtime/recover/recover.hpp), or not at all.
    void set_group(std::shared_ptr<runtime::Rendezvous> rendezvous) { rendezvous_ = std::move(rendezvous); }

    /// Sets a program up for so many rows (plan_rows). Collective: all ranks ask for the same, and a failure on one
    /// is one on all. Compiles nothing.
    Result<std::unique_ptr<Prepared>> prepare(std::int64_t rows, const PrepareOptions& options = {});

private:
    Loaded(std::shared_ptr<const Bundle> bundle, runtime::Device device,
           std::shared_ptr<runtime::Rendezvous> rendezvous)
        : bundle_(std::move(bundle)), device_(device), rendezvous_(std::move(rendezvous)) {}
    static Status take_scratch(Prepared& made, runtime::FusedOp& op);
    /// Into the scratch: what kernels read there and no call writes.
    static Status write_known(const Prepared& made, runtime::SymmetricHeap& heap);
    Status make_executable(Prepared& made, std::shared_ptr<runtime::FusedOp> op,
                           const PrepareOptions& options);
    Result<std::shared_ptr<runtime::CudaKernel>> kernel(std::int32_t index);

    std::shared_ptr<const Bundle> bundle_;
    runtime::Device device_;
    std::shared_ptr<runtime::Rendezvous> rendezvous_;
    std::map<std::int32_t, std::shared_ptr<runtime::CudaKernel>>
        kernels_;  ///< those without scratch of their own
};

}  // namespace syncopate::bundle
