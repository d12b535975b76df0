// `syncopate tune SPEC --explain`: all strategies of a problem, ranked by the estimate, with no GPU.
#pragma once

#include <string>

#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tools {

/// Prints the ranking, as JSON or as a table. `machine`: a name or a file; "": the nearest known one. `ranks`
/// 0: those of the spec, else 8. `routing`: of a mixture of experts, "random", "balanced", "skewed", rows of each expert, or
/// @FILE; "": random.
void explain(const std::string& spec, int ranks, const std::string& machine, const std::string& routing,
             bool json);

}  // namespace syncopate::tools
