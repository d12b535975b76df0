// In which order a rank's ops start, and all ops complete (Graph::sorted).
#pragma once

#include <vector>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// Fills `sorted` and `start_order` of a graph that has its op nodes and the edges between them. Where it has
/// tiles and chunks, too, an op that sends what tiles make also comes after what these tiles need: in a lane
/// before that, it would wait for ever. Fails if edges form a cycle.
Status order_starts(Graph& graph);

/// By op: the ops that it comes after, also by way of tiles; each once, rising.
using OpsBefore = std::vector<std::vector<NodeId>>;
[[nodiscard]] OpsBefore ops_before(const Graph& graph);

}  // namespace syncopate::fuse
