// In which order a rank's ops start, and all ops complete (Graph::sorted).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// Fills `sorted` and `start_order` of a graph that has its op nodes and the edges between them. Where it has
/// tiles and chunks, too, an op that sends what tiles make also comes after what these tiles need: in a lane
/// before that, it would wait for ever. Fails if edges form a cycle.
Status order_starts(Graph& graph);

/// Whether some op sends what tiles make that may wait for another op: then the order is another one with tiles than without.
[[nodiscard]] bool tiles_order_ops(const Graph& graph);

/// All ops as ranks list them: the first of each rank, then the second ones.
[[nodiscard]] std::vector<NodeId> in_lists(const Graph& graph);

/// By op: the ops that it comes after, also by way of tiles; each once, rising.
class OpsBefore {
public:
    explicit OpsBefore(const Graph& graph);
    [[nodiscard]] std::size_t size() const { return begin_.size() - 1; }
    [[nodiscard]] std::span<const NodeId> operator[](std::size_t op) const {
        return std::span(ops_).subspan(begin_[op], begin_[op + 1] - begin_[op]);
    }

private:
    std::vector<std::size_t> begin_;  ///< in ops_; one more entry for the end
    std::vector<NodeId> ops_;
};

}  // namespace syncopate::fuse
