// In which order a rank's ops start: that of its list, unless starting each engine's ops one after another
// would then block for ever (an op waits for a later one of its engine); then one topological order of
// `after`.
#pragma once

#include <vector>

#include "plan/check/event_graph.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// Which engine of its rank an op has on `topology`.
[[nodiscard]] EngineKind engine_of(const Plan& plan, const Topology& topology, OpRef ref);

/// Ops of one rank with the same key wait in one line. `engine` is the key modulo kNumEngineKinds.
[[nodiscard]] std::int64_t line_key(const Plan& plan, const Topology& topology, OpRef ref);

/// The engine's figures; those of the copy engine for what has none of its own.
[[nodiscard]] const Engine& engine_figures(const Topology& topology, EngineKind kind);

struct StartOrder {
    std::vector<std::vector<OpRef>> ranks;  ///< by rank: its ops
};

/// Fails if ops wait for each other in a circle.
[[nodiscard]] Result<StartOrder> start_order(const Plan& plan, const Topology& topology,
                                             const EventGraph& graph);

}  // namespace syncopate::plan
