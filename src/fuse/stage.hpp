// Stage: what one kernel of a program contributes to the schedule, and how the stages' parts become one.
//
// Stages share the plan, its ops and their precedence, and run one after another on each rank. So each is
// scheduled by itself, against the same expected arrivals: its dependence, what it makes, its order of tiles,
// its waits. Where tiles and chunks are numbered in the whole program, a stage's follow those before it:
//
//      slots    | stage 0: 0 … n0 - 1 | stage 1: n0 … n0 + n1 - 1 |      tiles of makers likewise
//      chunks   | those of stage 0    | those of stage 1          |
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/depend.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/lower.hpp"
#include "syncopate/fuse/produce.hpp"
#include "syncopate/fuse/schedule.hpp"
#include "syncopate/fuse/synchronize.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

struct StageSchedule {
    Dependence dependence;
    Production production;
    Synchronization synchronization;
    std::vector<std::vector<std::int64_t>> tiles;  ///< by rank and slot
    std::vector<StageSlots> slots;                 ///< by stage
    std::vector<std::int64_t> program_of;          ///< by slot, of that slot's stage
};

/// What can be said of the stages before the passes: sound bindings, tiles, and no tensor that transfers move
/// and two stages write.
Status check_stages(const StagedProgram& program, const Options& options);

/// One stage by itself. `program.plan` is the lowered plan; `written`: by the stages before it.
[[nodiscard]] Result<StageSchedule> schedule_stage(const Program& program, const Lowered& lowered,
                                                   const Precedence& precedence,
                                                   const std::vector<std::int64_t>& arrivals,
                                                   const Written& written, const Options& options);

/// Adds what the tiles of `program` write of bound tensors.
void add_written(const Program& program, Written& written);

/// Fails where a stage's tile would wait for what only a later stage lets go, which would never come; and on
/// cuda where it would wait for a sum of what an earlier stage makes, which needs multiprocessors that the
/// waiting kernel holds.
Status check_stage_order(const StagedProgram& program, const plan::Plan& plan, const Precedence& precedence,
                         const std::vector<StageSchedule>& stages, Device device);

/// All stages as one. Of `dependence` only the needs, which are those of one stage's classes after another's.
[[nodiscard]] StageSchedule merge(std::vector<StageSchedule> stages);

}  // namespace syncopate::fuse
