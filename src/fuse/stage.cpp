#include "fuse/stage.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "syncopate/fuse/cost.hpp"
#include "syncopate/fuse/order.hpp"
#include "syncopate/fuse/pack.hpp"
#include "syncopate/fuse/sum_stores.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::fuse {
namespace {

/// By slot, the program that runs it.
Result<std::vector<std::int64_t>> programs_of_slots(const kernel::Kernel& kernel, const Options& options) {
    const std::int64_t own = kernel.num_programs();
    const std::int64_t programs = options.num_programs.value_or(own);
    if (programs < 1) return Error{"a grid of " + std::to_string(programs) + " programs runs nothing"};
    std::vector<std::int64_t> result;
    result.reserve(kernel.tiles.size());
    if (programs != own) {
        if (!kernel.persistent) {
            return Error{kernel.name + " runs one tile per program, so its grid has " + std::to_string(own) +
                         " programs, not " + std::to_string(programs)};
        }
        for (std::size_t slot = 0; slot < kernel.tiles.size(); ++slot) {
            result.push_back(static_cast<std::int64_t>(slot) % programs);
        }
    } else {
        for (const kernel::Tile& tile : kernel.tiles) result.push_back(tile.program);
    }
    return result;
}

/// Replaces the order of a persistent kernel's tiles where these take unequal times.
void repack(const kernel::Kernel& kernel, const Dependence& dependence,
            const std::vector<std::int64_t>& arrivals, const std::vector<std::int64_t>& program_of,
            const std::vector<std::vector<std::int64_t>>& deadlines,
            std::vector<std::vector<std::int64_t>>& tiles) {
    const std::vector<double> times = estimate_tile_times(kernel);
    if (!differ(times)) return;
    const std::int64_t programs = 1 + *std::max_element(program_of.begin(), program_of.end());
    for (std::size_t slot = 0; slot < program_of.size(); ++slot) {
        if (program_of[slot] != static_cast<std::int64_t>(slot) % programs)
            return;  // another way of counting
    }
    std::vector<double> ready(times.size());
    for (std::size_t rank = 0; rank < tiles.size(); ++rank) {
        for (std::size_t tile = 0; tile < times.size(); ++tile) {
            ready[tile] = 0;
            for (const Need& need :
                 dependence.needs[rank][static_cast<std::size_t>(dependence.class_of[tile])]) {
                ready[tile] =
                    std::max(ready[tile], static_cast<double>(arrivals[need.op]) / kLinkBytesPerMicrosecond);
            }
        }
        const bool waits = std::any_of(ready.begin(), ready.end(), [](double time) { return time > 0; });
        tiles[rank] = deadlines.empty() || waits ? pack_tiles(times, ready, programs)
                                                 : pack_by_deadline(times, deadlines[rank], programs);
    }
}

}  // namespace

Status check_stages(const StagedProgram& program, const Options& options) {
    if (program.stages.empty()) return Error{"a program has at least one stage"};
    if (program.stages.size() > 1 && options.num_programs) {
        return Error{"the number of programs of several stages is that of each kernel's own grid"};
    }
    std::set<std::int32_t> moved;
    for (const std::vector<plan::Op>& ops : program.plan.ranks) {
        for (const plan::Op& op : ops) moved.insert({op.src.tensor, op.dst.tensor});
    }
    std::map<std::string, const Stage*> writer;  // by tensor
    for (const Stage& stage : program.stages) {
        const Program one{stage.kernel, program.plan, stage.bindings};
        if (Status status = check_bindings(one); !status) return status;
        if (stage.kernel.tiles.empty())
            return Error{"kernel " + stage.kernel.name + " has no tiles for these arguments"};
        for (const auto& [param, tensor] : stage.bindings) {
            if (!stage.kernel.find_param(param)->written ||
                !moved.contains(*program.plan.find_tensor(tensor)))
                continue;
            const Stage* const first = writer.emplace(tensor, &stage).first->second;
            if (first == &stage) continue;
            return Error{"tensor " + tensor + " is moved by the plan and written by two stages, " +
                         first->kernel.name + " and " + stage.kernel.name +
                         ": only one can say when it is made"};
        }
    }
    return Done{};
}

void add_written(const Program& program, Written& written) {
    for (const auto& [name, tensor] : program.bindings) {
        if (!program.kernel.find_param(name)->written) continue;
        std::vector<plan::Region>& regions = written[*program.plan.find_tensor(tensor)];
        for (const kernel::Tile& tile : program.kernel.tiles) {
            for (plan::Region& box : kernel::boxes_written(tile, name)) regions.push_back(std::move(box));
        }
    }
}

Result<StageSchedule> schedule_stage(const Program& program, const Lowered& lowered,
                                     const Precedence& precedence, const std::vector<std::int64_t>& arrivals,
                                     const Written& written, const Options& options) {
    const kernel::Kernel& kernel = program.kernel;
    auto program_of = programs_of_slots(kernel, options);
    if (!program_of) return program_of.error();
    auto dependence = depend(program, precedence, written);
    if (!dependence) return dependence.error();
    auto production = produce(program, lowered, precedence);
    if (!production) return production.error();
    const auto deadlines = deadlines_of(lowered, precedence, *production, arrivals, kernel.tiles.size());

    // Phases only where some tile would otherwise wait for a chunk before an iteration that does not read it.
    const kernel::Loop* loop = kernel.loops.empty() ? nullptr : &kernel.loops.front();
    const bool can_cut = options.phases && loop != nullptr && loop->divisible && loop->trips > 1;
    StageSchedule made;
    bool phased = false;
    if (can_cut) {
        made.tiles = order_tiles(*dependence, arrivals, true, deadlines);
        made.synchronization = synchronize(precedence, *dependence, made.tiles, *program_of, loop->trips);
        for (const auto& slots : made.synchronization.slots) {
            phased |= std::any_of(slots.begin(), slots.end(),
                                  [](const SlotWaits& s) { return s.phases.size() > 1; });
        }
    }
    if (!phased) {
        made.tiles = order_tiles(*dependence, arrivals, false, deadlines);
        if (kernel.persistent) repack(kernel, *dependence, arrivals, *program_of, deadlines, made.tiles);
        made.synchronization = synchronize(precedence, *dependence, made.tiles, *program_of, 0);
    }
    made.slots = {{0, static_cast<std::int64_t>(kernel.tiles.size()), phased}};
    made.dependence = *std::move(dependence);
    made.production = *std::move(production);
    made.program_of = *std::move(program_of);
    return made;
}

Status check_stage_order(const StagedProgram& program, const plan::Plan& plan, const Precedence& precedence,
                         const std::vector<StageSchedule>& stages, Device device) {
    if (stages.size() < 2) return Done{};
    constexpr std::size_t kNone = 0;  // else 1 + the stage
    std::vector<std::size_t> made_by(precedence.ops.size(),
                                     kNone);  // the last stage whose chunks an op needs
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
        for (std::size_t id = 0; id < made_by.size(); ++id) {
            if (!stages[stage].production.needs[id].empty()) made_by[id] = stage + 1;
        }
    }
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
        std::set<std::int32_t> needed;
        for (const auto& of_rank : stages[stage].dependence.needs) {
            for (const std::vector<Need>& needs : of_rank) {
                for (const Need& need : needs) needed.insert(need.op);
            }
        }
        for (const std::int32_t id : needed) {
            const std::vector<bool> earlier = completed_with(precedence, {id});
            for (std::int32_t other = 0; other < precedence.num_ops(); ++other) {
                const auto at = static_cast<std::size_t>(other);
                if (!earlier[at]) continue;
                const plan::OpRef ref = precedence.ops[at];
                const std::string& kernel = program.stages[stage].kernel.name;
                if (made_by[at] > stage + 1) {
                    return error_at(ref,
                                    "the op sends what " + program.stages[made_by[at] - 1].kernel.name +
                                        " makes, and a tile of " + kernel +
                                        ", an earlier stage, would wait for it: that stage would never end");
                }
                if (device == Device::cuda && is_sum(plan.op(ref))) {
                    return error_at(ref, "a tile of " + kernel +
                                             " would wait for a sum, which needs multiprocessors that the "
                                             "waiting kernel holds: make it a program of its own");
                }
            }
        }
    }
    return Done{};
}

StageSchedule merge(std::vector<StageSchedule> stages) {
    StageSchedule all = std::move(stages.front());
    for (std::size_t stage = 1; stage < stages.size(); ++stage) {
        StageSchedule& next = stages[stage];
        const std::int64_t first_tile = all.slots.back().first + all.slots.back().count;
        all.slots.push_back({first_tile, next.slots.front().count, next.slots.front().phased});
        for (std::size_t rank = 0; rank < all.tiles.size(); ++rank) {
            const auto append = [](auto& to, auto& from) {
                to.insert(to.end(), std::make_move_iterator(from.begin()),
                          std::make_move_iterator(from.end()));
            };
            append(all.tiles[rank], next.tiles[rank]);
            append(all.dependence.needs[rank], next.dependence.needs[rank]);
            append(all.synchronization.slots[rank], next.synchronization.slots[rank]);
            std::vector<std::int32_t>& seen = all.synchronization.seen_by_kernel[rank];
            append(seen, next.synchronization.seen_by_kernel[rank]);
            std::sort(seen.begin(), seen.end());
            seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
        }
        all.program_of.insert(all.program_of.end(), next.program_of.begin(), next.program_of.end());
        // Numbers of chunks and of their makers' tiles move up by what is there already.
        std::vector<std::int32_t> first_chunk;
        for (std::size_t rank = 0; rank < all.production.chunks.size(); ++rank) {
            std::vector<plan::Chunk>& chunks = all.production.chunks[rank];
            first_chunk.push_back(static_cast<std::int32_t>(chunks.size()));
            chunks.insert(chunks.end(), next.production.chunks[rank].begin(),
                          next.production.chunks[rank].end());
            for (std::vector<std::int64_t> makers : next.production.makers[rank]) {
                for (std::int64_t& tile : makers) tile += first_tile;
                all.production.makers[rank].push_back(std::move(makers));
            }
        }
        for (std::size_t id = 0; id < all.production.needs.size(); ++id) {
            for (const MadeRef& need : next.production.needs[id])
                all.production.needs[id].push_back({need.rank, first_chunk[need.rank] + need.index});
        }
    }
    return all;
}

}  // namespace syncopate::fuse
