// Runs schedules on simulated ranks, many calls in a row, with an adversary that decides who goes next.
//
// Every element of every tensor carries the number of the call that wrote it. A step is one atomic action of
// one agent: a rank's main stream, a program of its kernel, or a transfer (on copy engines: its stream). A
// wait is a step that is only possible once it is over; a copy and a read of a tile take several steps, so
// that others come between.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "syncopate/fuse/program.hpp"
#include "syncopate/fuse/schedule.hpp"

namespace syncopate::fuse {

struct SimulatorOptions {
    std::int32_t calls = 3;
    std::uint64_t seed = 0;
    /// A rank that is held back: some of its agents, at random, go only when nobody else can.
    std::optional<std::int32_t> straggler;
};

/// What went wrong: stale or early data that was read, or that nobody can go on; nullopt if all calls ended
/// well. `program_of`: by slot, the program that runs it.
[[nodiscard]] std::optional<std::string> simulate(const Program& program, const Schedule& schedule,
                                                  const std::vector<std::int64_t>& program_of,
                                                  const SimulatorOptions& options);

}  // namespace syncopate::fuse
