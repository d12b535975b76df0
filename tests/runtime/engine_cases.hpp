// Schedules without a kernel, made of transfers alone: every kind of op that the chunk engine's table can
// hold. Run on any device and compared with a reference that knows nothing of tables: the transfers of all
// ranks, one after another, on arrays of this process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/runtime/call/op.hpp"

namespace syncopate::runtime::testing {

struct EngineCase {
    std::string name;
    fuse::Schedule schedule;
};

/// For `size` ranks, by both methods; `scale` multiplies the larger tensors' rows.
std::vector<EngineCase> engine_cases(int size, int scale);

/// One transfer that waits for a signal which nobody posts, on rank 0.
EngineCase engine_case_without_end(int size);

/// The contents of all tensors of one rank, as bytes.
using Memory = std::vector<std::vector<std::byte>>;

/// What rank `rank` holds before call `call`: finite numbers whose sum depends on the order of adding.
Memory memory_before(const fuse::Schedule& schedule, int rank, std::uint32_t call);

/// What all ranks hold after it, from what all hold before it. Waits for what never comes are ignored.
void run_reference(const fuse::Schedule& schedule, std::vector<Memory>& memory);

/// One call of `op` without a kernel: fills the rank's tensors, runs, and says which tensor is wrong; empty
/// when none is. `expected`: of this rank, after the call.
std::string run_call(FusedOp& op, const Memory& before, const Memory& expected);

}  // namespace syncopate::runtime::testing
