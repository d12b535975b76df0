// A chain on a GPU: its tables and semaphores in device memory, and the launches of its stages.
//
//   stage 0   | plain launch: after all that the stream holds
//   stage 1 …     | programmatic launch: once every block of the stage before has drawn its ticket
//
// A programmatic launch without griddepcontrol.wait is the launch rule that check.hpp builds on, and it needs
// no kernel that waits. What the stream holds after the chain starts after all of it: each launch's last
// block ends after the kernel before it (Stage::end).
//
// The same rule without the kernels' help: the launch of a stage records an event when every block has
// started, for which the next stage waits on a stream of its own (Launching::start_events). Captured into a
// graph, that is a launch-completion edge.
//
// Before sm_90 there is no such launch: there stages run
// in stream order, and every wait is over when it is first looked at.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "syncopate/result.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"
#include "syncopate/runtime/cuda/driver/launch.hpp"
#include "syncopate/sync/chain.hpp"
#include "syncopate/sync/format.hpp"

namespace syncopate::sync {

/// What lets a stage start beside the one before it.
enum class Launching : std::uint8_t {
    programmatic,  ///< griddepcontrol, in one stream: the least time between stages
    start_events,  ///< for kernels that do not call launch_dependents
};

class DeviceChain {
public:
    /// Checks the chain, refuses it with its first finding, and allocates. Calls that overlap need kernels
    /// that are not persistent. `deadline_ms`: of each wait; 0: none.
    static Result<std::unique_ptr<DeviceChain>> make(std::shared_ptr<runtime::CudaContext> context,
                                                     const Chain& chain, std::uint32_t deadline_ms = 30'000,
                                                     Launching launching = Launching::programmatic);
    ~DeviceChain();
    DeviceChain(const DeviceChain&) = delete;
    DeviceChain& operator=(const DeviceChain&) = delete;

    /// What stage `stage`'s kernel takes as its first parameter, by value. `blocks`: of a persistent kernel
    /// (Stage<true>); 0: one for each tile.
    [[nodiscard]] StageArguments arguments(std::size_t stage, std::uint32_t blocks = 0) const;
    /// The number of an input, for sync::Stage::wait (stage.cuh). Fails where the stage awaits no such
    /// tensor.
    [[nodiscard]] Result<std::uint32_t> input(std::size_t stage, const std::string& tensor) const;
    /// The same of an output that the stage guards (ChainStage::guards): it is awaited like an input, by
    /// sync::Stage::wait before the tile is stored. Fails where the stage guards no such tensor.
    [[nodiscard]] Result<std::uint32_t> guard(std::size_t stage, const std::string& tensor) const;

    /// Enqueues a stage. A call is all stages, in their order, on one stream, which comes after all of them
    /// when the last one is enqueued. `arguments` begins with
    /// StageArguments of the same `blocks`. The stream may be captured.
    Status launch(std::size_t stage, runtime::CudaKernel& kernel, const runtime::KernelArguments& arguments,
                  runtime::CudaStream stream, std::uint32_t blocks = 0);

    /// Whether stages overlap on this GPU; else launch() runs them in stream order.
    [[nodiscard]] bool overlaps() const;
    /// Why they do not; empty if they do.
    [[nodiscard]] std::string message() const;

    /// Waits for the GPU. Fails where a deadline has passed, naming stage, tile and input; the chain is then
    /// of no further use.
    [[nodiscard]] Status check() const;

private:
    struct State;
    explicit DeviceChain(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace syncopate::sync
