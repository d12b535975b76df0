// Candidates: which strategies there are for a problem. They are enumerated from what is legal: the rows of
// fuse/model/backend.hpp, the options of the operator's template, and tile configurations that fit a
// multiprocessor; never from a table of models.
#pragma once

#include <vector>

#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tune {

/// Complete strategies, each once. Some may have an objection (strategy_objection). Unfused comes first.
[[nodiscard]] std::vector<Strategy> candidates(const Problem& problem, const Machine& machine);

}  // namespace syncopate::tune
