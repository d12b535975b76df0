// `syncopate tune SPEC --explain`: all strategies of a problem, ranked by the estimate, with no GPU.
#pragma once

#include <string>

#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tools {

/// Prints the ranking, as JSON or as a table. `machine`: a name or a file; "": the nearest known one. `ranks`
/// 0: those of the spec, else 8.
void explain(const std::string& spec, int ranks, const std::string& machine, bool json);

}  // namespace syncopate::tools
