// Decisions: all that the passes decide about a program, before it is numbered: the work graph, and beside it the
// lane and the order of everything in it. What `syncopate fuse --show graph` prints (draw_graph.hpp).
#pragma once

#include <vector>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/inline/inline.hpp"
#include "syncopate/fuse/inline/inline_reads.hpp"
#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/fuse/passes/guard.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/fuse/passes/order.hpp"
#include "syncopate/fuse/passes/place.hpp"
#include "syncopate/fuse/passes/synchronize.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

struct Decisions {
    Scope scope;  ///< whose orders, waits and guards these are; what comes before orders is of all ranks
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

/// The passes from lower to order, and no checks: who does what, and in which order. What it leaves is empty.
[[nodiscard]] Result<Decisions> arrange(const StagedProgram& program, const Options& options = {},
                                        Scope scope = {});

/// The passes from lower to guard. Fails as fuse does.
[[nodiscard]] Result<Decisions> decide(const StagedProgram& program, const Options& options = {},
                                       Scope scope = {});

}  // namespace syncopate::fuse
