#include "syncopate/fuse/fuse.hpp"

#include "fuse/check_program.hpp"
#include "fuse/number.hpp"
#include "syncopate/fuse/build.hpp"
#include "syncopate/fuse/guard.hpp"
#include "syncopate/fuse/inline.hpp"
#include "syncopate/fuse/inline_reads.hpp"
#include "syncopate/fuse/launch.hpp"
#include "syncopate/fuse/lower.hpp"
#include "syncopate/fuse/order.hpp"
#include "syncopate/fuse/place.hpp"
#include "syncopate/fuse/synchronize.hpp"

namespace syncopate::fuse {

Result<Schedule> fuse(const Program& program, const Options& options) {
    return fuse(StagedProgram{{{program.kernel, program.bindings}}, program.plan}, options);
}

Result<Schedule> fuse(const StagedProgram& program, const Options& options) {
    if (Status status = check_program(program, options); !status) return status.error();
    const auto lowered = lower(program, options);
    if (!lowered) return lowered.error();
    const auto backends = assign(program, *lowered, options);
    if (!backends) return backends.error();
    const auto graph = build(program, *lowered, *backends);
    if (!graph) return graph.error();
    const auto placement = place(*graph, *lowered, *backends);
    if (!placement) return placement.error();
    const auto arrivals = expect_arrivals(*graph, *lowered, *backends, *placement, options);
    if (!arrivals) return arrivals.error();
    const auto orders = order(program, *graph, *lowered, *placement, *arrivals, options);
    if (!orders) return orders.error();
    if (Status status = check_stage_order(program, *graph, *placement, options.device); !status)
        return status.error();
    const auto stores = store_inline(program, *lowered, *graph, *backends);
    if (!stores) return stores.error();
    const auto loads = load_inline(program, *lowered, *graph, *backends, options);
    if (!loads) return loads.error();
    const Synchronization waits = synchronize(*graph, *placement, *orders);
    const Guards guards = guard(*graph, lowered->plan, *placement, waits);
    Schedule schedule = launch(number(
        {*lowered, *backends, *graph, *placement, *arrivals, *orders, waits, guards, *stores, *loads}));
    schedule.plain = options.plain_kernel;
    if (Status status = check_schedule(lowered->plan, *graph, *placement, waits, schedule, options); !status)
        return status.error();
    return schedule;
}

}  // namespace syncopate::fuse
