// Work: all that the passes decide about a program, before it is numbered: the work graph, and beside it the
// lane and the order of everything in it. What `syncopate fuse --show graph` prints (draw_graph.hpp).
#pragma once

#include <vector>

#include "syncopate/fuse/assign.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/graph.hpp"
#include "syncopate/fuse/guard.hpp"
#include "syncopate/fuse/inline.hpp"
#include "syncopate/fuse/inline_reads.hpp"
#include "syncopate/fuse/lower.hpp"
#include "syncopate/fuse/order.hpp"
#include "syncopate/fuse/place.hpp"
#include "syncopate/fuse/program.hpp"
#include "syncopate/fuse/synchronize.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

struct Work {
    Lowered lowered;
    Backends backends;
    Graph graph;
    Placement placement;
    Arrivals arrivals;
    std::vector<StageOrder> orders;
    Synchronization synchronization;
    Guards guards;
    InlineStores stores;
    InlineLoads loads;
};

/// The passes from lower to guard. Fails as fuse does.
[[nodiscard]] Result<Work> plan_work(const StagedProgram& program, const Options& options = {});

}  // namespace syncopate::fuse
