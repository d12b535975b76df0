// Number: from nodes and edges to the schedule that runtime and kernel follow: every wait and post by the
// number of a signal in a rank's control block, every tile by its slot, every transfer by its place in its
// rank's list.
//
// A rank's signals are those that somebody on it waits for. They come in this order: completions of ops by
// expected time, chunks that a kernel makes, `ready`, `consumed`.
#pragma once

#include "syncopate/fuse/graph.hpp"
#include "syncopate/fuse/guard.hpp"
#include "syncopate/fuse/inline.hpp"
#include "syncopate/fuse/inline_reads.hpp"
#include "syncopate/fuse/order.hpp"
#include "syncopate/fuse/schedule.hpp"
#include "syncopate/fuse/synchronize.hpp"

namespace syncopate::fuse {

/// What the passes have decided.
struct Decided {
    const Lowered& lowered;
    const Backends& backends;
    const Graph& graph;
    const Placement& placement;
    const Arrivals& arrivals;
    const std::vector<StageOrder>& orders;
    const Synchronization& synchronization;
    const Guards& guards;
    const InlineStores& stores;
    const InlineLoads& loads;
};

[[nodiscard]] Schedule number(const Decided& decided);

}  // namespace syncopate::fuse
