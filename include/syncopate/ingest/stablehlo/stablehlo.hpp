// StableHLO (and MHLO) as MLIR text, in the generic and in the pretty form; other dialects are skipped over.
//
// Collectives of Shardy (`sdy.all_gather`, …) speak of global arrays and a mesh, not of what one device runs;
// they are listed, and refused with that reason.
#pragma once

#include <string>
#include <string_view>

#include "syncopate/ingest/program/tensor_program.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ingest {

/// The program in `text`: all modules side by side, or only `module`, as choose_module takes it; functions of
/// split test files side by side. Fails with the line and column of the first thing that is not MLIR text, of
/// a value that does not exist, or of a bound passed; and if modules side by side differ in their numbers of
/// replicas or partitions.
[[nodiscard]] Result<TensorProgram> read_stablehlo(std::string_view text, const std::string& file_name,
                                                   std::string_view module = {});

}  // namespace syncopate::ingest
