// Part: what a schedule of one node's ranks says of all of them, and of what it was made.
#pragma once

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"

namespace syncopate::fuse {

/// `decisions`: of one node.
[[nodiscard]] Part part_of(const StagedProgram& program, const Options& options, const Decisions& decisions);

}  // namespace syncopate::fuse
