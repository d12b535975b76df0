#include "syncopate/fuse/fuse.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "fuse/passes/check_program.hpp"
#include "fuse/passes/make_schedule.hpp"
#include "fuse/passes/part.hpp"
#include "fuse/passes/run_tiles.hpp"
#include "syncopate/fuse/inline/inline.hpp"
#include "syncopate/fuse/inline/inline_reads.hpp"
#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/fuse/passes/build.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/fuse/passes/collective.hpp"
#include "syncopate/fuse/passes/engine.hpp"
#include "syncopate/fuse/passes/guard.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/fuse/passes/launch.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/fuse/passes/order.hpp"
#include "syncopate/fuse/passes/place.hpp"
#include "syncopate/fuse/passes/synchronize.hpp"
#include "syncopate/try.hpp"

namespace syncopate::fuse {

Result<Schedule> fuse(const Program& program, const Options& options) {
    return fuse(StagedProgram{{{program.kernel, program.bindings}}, program.plan}, options);
}

Result<Decisions> arrange(const StagedProgram& program, const Options& options, Scope scope) {
    SYNCOPATE_TAKE(auto lowered, lower(program, options));
    SYNCOPATE_TAKE(auto backends, assign(program, lowered, options));
    // What collectives of a library, and stages that wait for earlier ones, ask of other nodes' ranks no part would find.
    if (has_collectives(lowered.plan)) scope = {};
    SYNCOPATE_TAKE(auto graph, build(program, lowered, backends, scope));
    SYNCOPATE_TRY(require_tiles(program, graph, options.device));
    const auto awaits_chunks = [](const Graph::StageNodes& stage) {
        return std::ranges::any_of(stage.awaits, [](const auto& chunks) { return !chunks.empty(); });
    };
    if (std::ranges::any_of(graph.stages, awaits_chunks)) scope = {};
    if (options.together) {
        SYNCOPATE_TRY(wait_together(program, graph));
    }
    SYNCOPATE_TAKE(auto placement, place(graph, lowered, backends, options.costs, scope));
    SYNCOPATE_TAKE(auto arrivals, expect_arrivals(graph, lowered, backends, placement, options));
    SYNCOPATE_TAKE(auto orders, order(program, graph, lowered, placement, arrivals, options, scope));
    return Decisions{.scope = scope.within(lowered.plan.num_ranks()),
                     .lowered = std::move(lowered),
                     .backends = std::move(backends),
                     .graph = std::move(graph),
                     .placement = std::move(placement),
                     .arrivals = std::move(arrivals),
                     .orders = std::move(orders)};
}

Result<Decisions> decide(const StagedProgram& program, const Options& options, Scope scope) {
    SYNCOPATE_TRY(check_program(program, options));
    SYNCOPATE_TAKE(Decisions made, arrange(program, options, scope));
    SYNCOPATE_TRY(check_stage_order(program, made.graph, made.placement, options.device));
    SYNCOPATE_TAKE(made.stores, store_inline(program, made.lowered, made.graph, made.backends));
    SYNCOPATE_TAKE(made.loads, load_inline(program, made.lowered, made.graph, made.backends));
    made.synchronization = synchronize(made.graph, made.placement, made.orders, made.arrivals, made.scope);
    made.guards = guard(made.graph, made.lowered.plan, made.placement, made.synchronization, made.scope);
    return made;
}

namespace {

Result<Schedule> fuse_scope(const StagedProgram& program, const Options& options, Scope scope) {
    SYNCOPATE_TAKE(const auto decisions, decide(program, options, scope));
    Schedule schedule = make_schedule(decisions);
    const Scope all = Scope{}.within(decisions.lowered.plan.num_ranks());
    if (decisions.scope != all) schedule.part = part_of(program, options, decisions);
    schedule = decide_engine(launch(std::move(schedule)), options.device, options.engine_blocks);
    schedule = lay_out_heap(std::move(schedule));
    if (std::string why = channel_objection(schedule); !why.empty()) return Error{std::move(why)};
    SYNCOPATE_TRY(check_schedule(program, decisions, schedule, options));
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
