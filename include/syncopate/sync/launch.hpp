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
// Before sm_90 there is no such launch: there stages run in stream order (Way::stream), as they do where a
// measurement finds that faster (choose).
//
// From a .cu file, launch.cuh launches ordinary kernels by their names.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "syncopate/result.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"
#include "syncopate/runtime/cuda/driver/launch.hpp"
#include "syncopate/sync/chain.hpp"
#include "syncopate/sync/format.hpp"
#include "syncopate/sync/way.hpp"

namespace syncopate::sync {

/// What lets a stage start beside the one before it.
enum class Launching : std::uint8_t {
    programmatic,  ///< griddepcontrol, in one stream: the least time between stages
    start_events,  ///< for kernels that do not call launch_dependents
};

/// The blocks of a stage's launch.
struct Blocks {
    std::uint32_t persistent = 0;  ///< of a persistent kernel (Stage<true>); 0: one for each tile
    std::uint32_t cluster = 1;  ///< of a cluster along x (Stage::next_tile_of_cluster); it divides the tiles
};

/// A kernel by its handle, and the shape of its blocks.
struct Function {
    /// cudaFunction_t or CUfunction, which are one thing: of cudaGetFuncBySymbol, cuModuleGetFunction, ….
    void* handle = nullptr;
    std::array<std::uint32_t, 3> threads{1, 1, 1};  ///< of a block
    /// Dynamic shared memory of a block. Above 48 KiB the kernel's attribute must allow it, as for any launch.
    std::uint32_t shared_bytes = 0;
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

    /// What stage `stage`'s kernel takes as its first parameter, by value, for launches with `blocks`, while
    /// the way stays as it is.
    [[nodiscard]] StageArguments arguments(std::size_t stage, Blocks blocks = {}) const;
    /// The number of an input, for sync::Stage::wait (stage.cuh). Fails where the stage awaits no such
    /// tensor.
    [[nodiscard]] Result<std::uint32_t> input(std::size_t stage, const std::string& tensor) const;
    /// The same of an output that the stage guards (ChainStage::guards): it is awaited like an input, by
    /// sync::Stage::wait before the tile is stored. Fails where the stage guards no such tensor.
    [[nodiscard]] Result<std::uint32_t> guard(std::size_t stage, const std::string& tensor) const;

    /// Enqueues a stage. A call is all stages, in their order, on one stream, which comes after all of them
    /// when the last one is enqueued. `parameters` are the addresses of the kernel's parameters, the first one
    /// that of arguments(stage, blocks). The stream may be captured.
    Status launch(std::size_t stage, const Function& function, std::span<void* const> parameters,
                  runtime::CudaStream stream, Blocks blocks = {});
    /// The same of a kernel that was loaded from a cubin, a fatbin or PTX, with its arguments packed.
    Status launch(std::size_t stage, runtime::CudaKernel& kernel, const runtime::KernelArguments& arguments,
                  runtime::CudaStream stream, Blocks blocks = {});

    /// Measures both ways, as replays of graphs in turn, and keeps the faster one (way.hpp says which). `call`
    /// enqueues one whole call on the stream that it is given, by launch() with arguments() of that moment; it is
    /// called some twenty times, so its result must not depend on how often. Waits for the GPU, before and after;
    /// not inside a capture. Without a measurement, tile by tile is taken. µs of a call by way; none where stages cannot overlap.
    Result<WayTimes> choose(const std::function<Status(runtime::CudaStream)>& call);
    /// Takes a way from the next call on; arguments() are others then. Stream order where stages cannot overlap.
    void use(Way way);
    [[nodiscard]] Way way() const;

    /// Whether stages can overlap on this GPU; else every call runs in stream order.
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
