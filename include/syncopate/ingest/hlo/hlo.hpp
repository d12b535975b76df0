// XLA's HLO text, as compilers dump it (`--xla_dump_to`, `lowered.compile().as_text()`).
//
// Taken: modules, of which one is read, or computations without a module line; instructions with or without
// operand shapes, layouts, comments, names with or without "%"; every form of replica_groups except those
// named by mesh axes with device_ids. What an instruction computes is not judged; only names, shapes,
// operands and the attributes that bear on the movement of data are.
#pragma once

#include <string>
#include <string_view>

#include "syncopate/ingest/program/tensor_program.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ingest {

/// The program in `text`. `file_name` is only for messages; `module` chooses one of several modules, as
/// choose_module takes it. Fails with the line and column of the first thing that is not HLO text, of an
/// operand or a computation that does not exist, or of a bound that is passed. Linear in the text.
[[nodiscard]] Result<TensorProgram> read_hlo(std::string_view text, const std::string& file_name,
                                             std::string_view module = {});

}  // namespace syncopate::ingest
