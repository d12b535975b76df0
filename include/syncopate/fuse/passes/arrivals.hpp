// Arrivals: when each op is expected to end.
//
// Without a topology, arrival is simulated with equal links: each rank starts its ops of one lane one
// after another, an op starts when those that it is `after` have ended, and lasts as long as its bytes. With
// one, plan::simulate tells, but of several nodes and of ragged axes. What a rank holds from the start arrives at 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/cost.hpp"
#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/fuse/passes/place.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// By op: when it ends, in bytes that one link has carried by then. With a topology: as simulated with the
/// backends that were assigned, in bytes that a copy stream (Costs, cost.hpp) has moved.
/// Fails as plan::simulate does.
using Arrivals = std::vector<std::int64_t>;
[[nodiscard]] Result<Arrivals> expect_arrivals(const Graph& graph, const Lowered& lowered,
                                               const Backends& backends, const Placement& placement,
                                               const Options& options);
/// Why arrivals of a plan are not simulated whatever the topology, but expected on equal links; "" where they are.
[[nodiscard]] std::string topology_objection(const plan::Plan& plan);

/// Bytes that a copy stream moves in a µs: what turns Arrivals into times.
[[nodiscard]] double bytes_per_us(const Costs& costs);

}  // namespace syncopate::fuse
