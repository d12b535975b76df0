// What a tile waits for: the phases of its loop, as the edges of the work graph tell them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "syncopate/fuse/model/decisions.hpp"
#include "tune/play/tiles_play.hpp"

namespace syncopate::tune {

/// At least one. `done`: by node, µs at which it is complete. Of loops that run range by range, those that nothing has
/// to bring come first, the others as they come.
[[nodiscard]] std::vector<Phase> phases_of(const fuse::Graph& graph, const fuse::StageOrder& order,
                                           std::size_t stage, fuse::NodeId tile,
                                           std::span<const double> done);

}  // namespace syncopate::tune
