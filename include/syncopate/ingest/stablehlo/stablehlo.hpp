// StableHLO (and MHLO) as MLIR text, in the generic and in the pretty form; other dialects are skipped over.
//
// Collectives of Shardy (`sdy.all_gather`, …) speak of global arrays and a mesh, not of what one device runs;
// they are listed, and refused with that reason.
#pragma once

#include <string>
#include <string_view>

#include "syncopate/ingest/tensor_program.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ingest {

/// The program in `text`; functions of several modules and of split test files side by side. Fails with the
/// line and column of the first thing that is not MLIR text, of a value that does not exist, or of a bound
/// passed.
[[nodiscard]] Result<TensorProgram> read_stablehlo(std::string_view text, const std::string& file_name);

}  // namespace syncopate::ingest
