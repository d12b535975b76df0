// Runs schedules on simulated ranks, many calls in a row, with an adversary that decides who goes next.
//
// Every element of every tensor carries a value and the number of the call that wrote it. A step is one
// atomic action of one agent: a rank's main stream, a program of a kernel, or a transfer (on copy engines:
// its stream). A wait is a step that is only possible once it is over; a copy, a sum and a read of a tile
// take several steps, so that others come between.
//
// What ranks hold at first and what kernels make are the small integers of plan/executor.hpp. Given what the
// plan's own executor says that ranks hold in the end, the simulator sees also what comes from the wrong
// place, or is added twice or never.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/executor.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"

namespace syncopate::fuse {

struct SimulatorOptions {
    std::int32_t calls = 3;
    std::uint64_t seed = 0;
    /// A rank that is held back: some of its agents, at random, go only when nobody else can.
    std::optional<std::int32_t> straggler;
    /// What tiles must read, and what must be there at the end of a call, where the plan says so; null: any
    /// value of the call.
    const plan::test::Memory* values = nullptr;
    /// What kernels sum from has two places, for every other call (kernel_sums.hpp); false: only one.
    bool alternate = true;
};

/// What went wrong: stale, early or wrong data that was read, or that nobody can go on; nullopt if all calls
/// ended well. `program_of`: by slot, of all stages, the program that runs it.
[[nodiscard]] std::optional<std::string> simulate(const StagedProgram& program, const Schedule& schedule,
                                                  const std::vector<std::int64_t>& program_of,
                                                  const SimulatorOptions& options);
[[nodiscard]] std::optional<std::string> simulate(const Program& program, const Schedule& schedule,
                                                  const std::vector<std::int64_t>& program_of,
                                                  const SimulatorOptions& options);

}  // namespace syncopate::fuse
