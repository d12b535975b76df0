#include "syncopate/fuse/fuse.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "fuse/passes/check_program.hpp"
#include "fuse/passes/make_schedule.hpp"
#include "fuse/passes/part.hpp"
#include "syncopate/fuse/inline/inline.hpp"
#include "syncopate/fuse/inline/inline_reads.hpp"
#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/fuse/passes/build.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/fuse/passes/engine.hpp"
#include "syncopate/fuse/passes/guard.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/fuse/passes/launch.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/fuse/passes/order.hpp"
#include "syncopate/fuse/passes/place.hpp"
#include "syncopate/fuse/passes/synchronize.hpp"

namespace syncopate::fuse {

Result<Schedule> fuse(const Program& program, const Options& options) {
    return fuse(StagedProgram{{{program.kernel, program.bindings}}, program.plan}, options);
}

Result<Decisions> arrange(const StagedProgram& program, const Options& options, Scope scope) {
    auto lowered = lower(program, options);
    if (!lowered) return lowered.error();
    auto backends = assign(program, *lowered, options);
    if (!backends) return backends.error();
    auto graph = build(program, *lowered, *backends);
    if (!graph) return graph.error();
    const auto awaits_chunks = [](const Graph::StageNodes& stage) {
        return std::ranges::any_of(stage.awaits, [](const auto& chunks) { return !chunks.empty(); });
    };
    if (scope != Scope{} && std::ranges::any_of(graph->stages, awaits_chunks))
        return Error{"stages whose tiles wait for those of an earlier one are made for all ranks at once"};
    if (options.together) {
        if (Status status = wait_together(program, *graph); !status) return status.error();
    }
    auto placement = place(*graph, *lowered, *backends, options.costs, scope);
    if (!placement) return placement.error();
    auto arrivals = expect_arrivals(*graph, *lowered, *backends, *placement, options);
    if (!arrivals) return arrivals.error();
    auto orders = order(program, *graph, *lowered, *placement, *arrivals, options, scope);
    if (!orders) return orders.error();
    return Decisions{.scope = scope.within(lowered->plan.num_ranks()),
                     .lowered = *std::move(lowered),
                     .backends = *std::move(backends),
                     .graph = *std::move(graph),
                     .placement = *std::move(placement),
                     .arrivals = *std::move(arrivals),
                     .orders = *std::move(orders)};
}

Result<Decisions> decide(const StagedProgram& program, const Options& options, Scope scope) {
    if (Status status = check_program(program, options); !status) return status.error();
    auto made = arrange(program, options, scope);
    if (!made) return made;
    if (Status status = check_stage_order(program, made->graph, made->placement, options.device); !status)
        return status.error();
    auto stores = store_inline(program, made->lowered, made->graph, made->backends);
    if (!stores) return stores.error();
    made->stores = *std::move(stores);
    auto loads = load_inline(program, made->lowered, made->graph, made->backends);
    if (!loads) return loads.error();
    made->loads = *std::move(loads);
    made->synchronization = synchronize(made->graph, made->placement, made->orders, made->arrivals, scope);
    made->guards = guard(made->graph, made->lowered.plan, made->placement, made->synchronization, scope);
    return made;
}

namespace {

Result<Schedule> fuse_scope(const StagedProgram& program, const Options& options, Scope scope) {
    const auto decisions = decide(program, options, scope);
    if (!decisions) return decisions.error();
    Schedule schedule = make_schedule(*decisions);
    if (scope != Scope{}) schedule.part = part_of(program, options, *decisions);
    schedule = decide_engine(launch(std::move(schedule)), options.device, options.engine_blocks);
    schedule = lay_out_heap(std::move(schedule));
    if (std::string why = channel_objection(schedule); !why.empty()) return Error{std::move(why)};
    if (Status status = check_schedule(program, *decisions, schedule, options); !status)
        return status.error();
    return schedule;
}

}  // namespace

Result<Schedule> fuse(const StagedProgram& program, const Options& options) {
    return fuse_scope(program, options, {});
}

Result<Schedule> fuse_part(const StagedProgram& program, const Options& options, std::int32_t rank) {
    const plan::Mesh& mesh = program.plan.mesh;
    if (rank < 0 || rank >= mesh.num_ranks())
        return Error{"there is no rank " + std::to_string(rank) + " of " + std::to_string(mesh.num_ranks())};
    return fuse_scope(program, options, mesh.num_nodes() > 1 ? Scope::node_of(mesh, rank) : Scope{});
}

}  // namespace syncopate::fuse
