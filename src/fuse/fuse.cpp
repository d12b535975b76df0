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

Result<Decisions> decide(const StagedProgram& program, const Options& options, Scope scope) {
    if (Status status = check_program(program, options); !status) return status.error();
    auto lowered = lower(program, options);
    if (!lowered) return lowered.error();
    auto backends = assign(program, *lowered, options);
    if (!backends) return backends.error();
    auto graph = build(program, *lowered, *backends);
    if (!graph) return graph.error();
    const auto awaits_chunks = [](const Graph::StageNodes& stage) {
        return std::ranges::any_of(stage.awaits, [](const auto& chunks) { return !chunks.empty(); });
    };
    const auto is_collective = [](const Node& node) { return node.kind == Node::Kind::collective; };
    // What these ask of ranks of other nodes no part would find.
    if (std::ranges::any_of(graph->stages, awaits_chunks) ||
        std::any_of(graph->nodes.begin(), graph->nodes.begin() + graph->num_ops(), is_collective))
        scope = {};
    if (options.together) {
        if (Status status = wait_together(program, *graph); !status) return status.error();
    }
    auto placement = place(*graph, *lowered, *backends, options.costs, scope);
    if (!placement) return placement.error();
    auto arrivals = expect_arrivals(*graph, *lowered, *backends, *placement, options);
    if (!arrivals) return arrivals.error();
    auto orders = order(program, *graph, *lowered, *placement, *arrivals, options, scope);
    if (!orders) return orders.error();
    if (Status status = check_stage_order(program, *graph, *placement, options.device); !status)
        return status.error();
    auto stores = store_inline(program, *lowered, *graph, *backends);
    if (!stores) return stores.error();
    auto loads = load_inline(program, *lowered, *graph, *backends);
    if (!loads) return loads.error();
    Synchronization waits = synchronize(*graph, *placement, *orders, *arrivals, scope);
    Guards guards = guard(*graph, lowered->plan, *placement, waits, scope);
    return Decisions{scope.within(lowered->plan.num_ranks()),
                     *std::move(lowered),
                     *std::move(backends),
                     *std::move(graph),
                     *std::move(placement),
                     *std::move(arrivals),
                     *std::move(orders),
                     std::move(waits),
                     std::move(guards),
                     *std::move(stores),
                     *std::move(loads)};
}

namespace {

Result<Schedule> fuse_scope(const StagedProgram& program, const Options& options, Scope scope) {
    const auto decisions = decide(program, options, scope);
    if (!decisions) return decisions.error();
    Schedule schedule = make_schedule(*decisions);
    const Scope all = Scope{}.within(decisions->lowered.plan.num_ranks());
    if (decisions->scope != all) schedule.part = part_of(program, options, *decisions);
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
