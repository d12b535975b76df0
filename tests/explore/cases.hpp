// Small programs of every operator, backend and kind of guard, for the explorer and the simulation.
#pragma once

#include <vector>

#include "explore/played_op.hpp"

namespace syncopate::explore {

/// Of two ranks; `ranks` 3: of three.
[[nodiscard]] std::vector<Case> plan_cases(int ranks);
/// What goes between nodes, of so many ranks each: the operators' plans.
[[nodiscard]] std::vector<Case> node_cases(int nodes, int places);
/// The library's operators, in the ways in which strategies carry them out.
[[nodiscard]] std::vector<Case> operator_cases(int ranks);
/// The same over nodes.
[[nodiscard]] std::vector<Case> operator_node_cases(int nodes, int places);

}  // namespace syncopate::explore
