// Which executor carries out which backend: the runtime's half of a backend's row (fuse/model/backend.hpp says what
// a backend may carry, and in which lane). The rest of the runtime asks for the executor and names no
// backend.
//
//   executor   on cuda                                        on host
//   streams    copies and sums on streams (late_transfers)    threads in their place (host_streams)
//   library    one call of NCCL in a stream                   the ranks together (host_collective)
//   engine     a kernel that interprets a table (engine.cu)   threads that do (host_engine)
//   kernel     the fused kernel itself: it is in the schedule's stores and loads, and no transfer
//   channel    sends and receives of NCCL, in a stream        the same over sockets (host_channel)
//   cpu        none                                           a thread that moves bytes (host_executor)
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/runtime/cuda/engine/engine_format.hpp"

namespace syncopate::runtime {

enum class Executor : std::uint8_t { streams, library, engine, kernel, cpu, channel };

struct ExecutorRow {
    plan::Backend backend;
    Executor executor;
    device::EngineMethod method = device::EngineMethod::ldst;  ///< of the engine
};

inline constexpr std::array kExecutors{
    ExecutorRow{plan::Backend::copy_engine, Executor::streams},
    ExecutorRow{plan::Backend::tma_dedicated, Executor::engine, device::EngineMethod::bulk},
    ExecutorRow{plan::Backend::ldst_dedicated, Executor::engine, device::EngineMethod::ldst},
    ExecutorRow{plan::Backend::tma_inline, Executor::kernel},
    ExecutorRow{plan::Backend::ldst_inline, Executor::kernel},
    ExecutorRow{plan::Backend::nccl, Executor::library},
    ExecutorRow{plan::Backend::channel, Executor::channel},
    ExecutorRow{plan::Backend::host, Executor::cpu},
};

/// The row of a backend; that of `host` where a schedule leaves the backend open.
[[nodiscard]] constexpr const ExecutorRow& row_of(plan::Backend backend) {
    const auto* const row = std::ranges::find(kExecutors, backend, &ExecutorRow::backend);
    return row != kExecutors.end() ? *row : kExecutors.back();
}

[[nodiscard]] constexpr Executor executor_of(const fuse::Transfer& transfer) {
    return row_of(transfer.backend).executor;
}

/// Whether the chunk engine carries it out.
[[nodiscard]] constexpr bool is_by_engine(const fuse::Transfer& transfer) {
    return executor_of(transfer) == Executor::engine;
}

}  // namespace syncopate::runtime
