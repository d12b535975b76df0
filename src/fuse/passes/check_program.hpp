// Checks of a program that no single pass makes: what can be said before the passes, and what only all of
// their decisions together show.
#pragma once

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/fuse/passes/place.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// A plan without findings, sound bindings, tiles, and no tensor that transfers move and two stages write.
Status check_program(const StagedProgram& program, const Options& options);

/// Fails where a stage's tile would wait for what only a later stage lets go, which would never come; and on
/// cuda where it would wait for a sum of what an earlier stage makes, which needs multiprocessors that the
/// waiting kernel holds.
Status check_stage_order(const StagedProgram& program, const Graph& graph, const Placement& placement,
                         Device device);

/// Fails where the schedule asks for what the device, or a kernel that is left as it is, cannot do.
Status check_schedule(const StagedProgram& program, const Decisions& decisions, const Schedule& schedule,
                      const Options& options);

}  // namespace syncopate::fuse
