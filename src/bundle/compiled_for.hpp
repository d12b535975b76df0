// Compiled for: whether a bundle's kernels have the numbers in them with which the library plans their launches. A bundle
// may be older than the library, and tables and code that count differently write where nothing is theirs.
#pragma once

#include "syncopate/bundle/program.hpp"
#include "syncopate/result.hpp"

namespace syncopate::bundle {

/// Compares, stage by stage, what is compiled in (CompiledKernel::constants) with the program's numbers of these names, and with
/// what the operator says is compiled in (ops/parameters.hpp). On host there is nothing to compare.
[[nodiscard]] Status require_compiled_for(const Bundle& bundle, const Planned& planned);

}  // namespace syncopate::bundle
