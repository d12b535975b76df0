// The passes of check(), one source file each. Each takes what earlier passes have established and returns
// findings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/check/cells.hpp"
#include "plan/check/event_graph.hpp"
#include "plan/model/budget.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/check/collectives.hpp"

namespace syncopate::plan {

/// The plan as a whole: mesh, tensors, number of ranks and ops. The passes below need these to be sound.
[[nodiscard]] std::vector<Finding> check_outline(const Plan& plan);

/// Each op and holding by itself, and each collective: `malformed`. Needs a sound outline.
[[nodiscard]] std::vector<Finding> check_malformed(const Plan& plan, const CollectiveMatch& collectives,
                                                   Budget& budget);

/// `cycle`: one finding for each set of ops that all wait for one another, showing a shortest cycle through
/// its first. `topological` is topological_order(followers_of(graph)).
[[nodiscard]] std::vector<Finding> check_cycles(const Plan& plan, const EventGraph& graph,
                                                std::span<const std::int32_t> topological);

/// `early_read`, `write_race`, `overwrite`: conflicting accesses that neither `after` nor a collective
/// orders. From here on the plan is neither malformed nor cyclic. `axes` is key_axes(plan). Stops once `budget`
/// is exhausted.
[[nodiscard]] std::vector<Finding> check_order(const Plan& plan, const EventGraph& graph,
                                               const Followers& followers,
                                               std::span<const std::int32_t> topological,
                                               const std::vector<std::size_t>& axes, const Cells& cells,
                                               Budget& budget);

/// `duplicate_contribution`, `missing_contribution`, `final_not_reached`: executes the events in the given
/// order and looks at what every rank holds at the end. If check_order has found nothing, every order gives
/// the same. Stops once `budget` is exhausted.
[[nodiscard]] std::vector<Finding> check_result(const Plan& plan, const EventGraph& graph,
                                                std::span<const std::int32_t> topological,
                                                const std::vector<std::size_t>& axes, const Cells& cells,
                                                Budget& budget);

/// For each tensor the axis along which the plan's regions begin at the most places: the key for a BoxIndex.
[[nodiscard]] std::vector<std::size_t> key_axes(const Plan& plan);

/// "A[0:128, 0:256]"
[[nodiscard]] std::string to_string(const Plan& plan, const Chunk& chunk);

}  // namespace syncopate::plan
