// A simulated run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.
#pragma once

#include <string>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/topology/topology.hpp"

namespace syncopate::plan {

/// Trace Event Format (JSON): a process a rank, a thread a lane of an engine, a slice an op, named after the
/// chunk's rank of origin and its peer, with regions, bytes and GB/s as arguments; an arrow for each `after`.
/// Time in µs.
[[nodiscard]] std::string to_trace(const Plan& plan, const Topology& topology, const Simulation& simulation);

}  // namespace syncopate::plan
