// In which order a rank's ops start: that of its list, unless starting each engine's ops one after another
// would then block for ever (an op waits for a later one of its engine); then one topological order of
// `after`.
#pragma once

#include <vector>

#include "event_graph.hpp"
#include "syncopate/plan/plan.hpp"
#include "syncopate/plan/simulate.hpp"
#include "syncopate/plan/topology.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// Which engine of its rank an op has on `topology`.
[[nodiscard]] EngineKind engine_of(const Plan& plan, const Topology& topology, OpRef ref);

struct StartOrder {
    std::vector<std::vector<OpRef>> ranks;  ///< by rank: its ops
};

/// Fails if ops wait for each other in a circle.
[[nodiscard]] Result<StartOrder> start_order(const Plan& plan, const Topology& topology,
                                             const EventGraph& graph);

}  // namespace syncopate::plan
