// Fuse: a kernel and a plan in, the schedule of every rank out. The passes, in order:
//
//   lower          reductions become copies to staging and sums
//   assign         the backend of each op
//   build          the work graph: ops and tiles, with an edge wherever one must be complete before the other
//   place          the lane of each op
//   order          when each op is expected, and in which order tiles run
//   synchronize    the edges that lanes and other edges do not imply, as waits
//   guard          the edges from one call to the next
//   make_schedule  waits and posts by the numbers of signals, tiles by slots: the schedule
//   launch         where in the call each transfer is launched, and what its stream waits for
//   engine         which of its kernels the chunk engine is, and which signals are counted
//   heap           where tensors and control block are in the symmetric heap
#pragma once

#include <cstdint>
#include <optional>

#include "syncopate/fuse/model/cost.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

struct Options {
    Device device = Device::host;
    /// Programs that the fused kernel will be launched with, if not as many as the kernel's own grid has.
    /// Only a persistent kernel leaves that choice; its slot s then runs on program s mod num_programs.
    std::optional<std::int64_t> num_programs;
    /// For transfers whose plan leaves the backend open, where it is legal.
    plan::Backend preferred = plan::Backend::automatic;
    /// Multiprocessors of the chunk engine, which the fused kernel's grid should leave free.
    std::int32_t engine_blocks = 8;
    /// Let the kernel's programs add up what arrives when they have made their tiles (kernel_sums.hpp).
    bool kernel_sums = false;
    /// Let tiles that need nothing of what arrives wait for it with the others of their rank (build.hpp). For
    /// a kernel whose tiles all run at once: those that read the same weights then read them at the same
    /// time.
    bool together = false;
    /// Where arrivals are simulated, for the order of tiles; without, or by topology_objection: equal links.
    std::optional<plan::Topology> topology{};
    /// Figures of the machine by which passes choose. All ranks must be given the same.
    Costs costs = usual_costs();
};

/// Checks that every binding names a parameter and a tensor that agree in shape, dtype and layout.
Status check_bindings(const BoundKernel& program);

/// The schedule of every rank. Within a rank, signals come in this order: completions by expected time,
/// ready, consumed. Fails on unsound bindings, on a plan that plan::check faults, and on what the passes
/// refuse.
[[nodiscard]] Result<Schedule> fuse(const Program& program, const Options& options = {});

/// The same for several stages, which share signals, transfers and guards: one schedule, whose slots are
/// those of the stages one after another. Fails also where two stages write a tensor that the plan moves, and
/// where a stage would wait for what a later one lets go.
[[nodiscard]] Result<Schedule> fuse(const StagedProgram& program, const Options& options = {});

/// The same, of which only the ranks of `rank`'s node are made (Schedule::part): what they have in the whole, but that the
/// control block is as large as the largest of the node. It is the whole where there is one node, where tiles wait for those of
/// an earlier stage, and where the plan has collectives of a library.
///
/// What it proves: of all ranks that the plan is right, how sends and receives meet in rounds, and that stages do not wait
/// for later ones; of its node that nothing is overwritten while it is read, and that nothing a round waits for waits for
/// that round or a later one. When each node's ranks have proved it, it holds for all (channel.hpp). Parts are of one
/// schedule if Part::made_of is the same. Fails as fuse does; what only the ranks of some node do wrong fails there alone.
[[nodiscard]] Result<Schedule> fuse_part(const StagedProgram& program, const Options& options,
                                         std::int32_t rank);

}  // namespace syncopate::fuse
