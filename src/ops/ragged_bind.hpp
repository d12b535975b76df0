// Which of a user's kernel's parameters are the rows that come, what goes back, and what tells where rows lie.
#pragma once

#include "syncopate/emit/artifact.hpp"
#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/ops/ragged.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

/// Sets `made.reads`, `made.told` and, where something goes back, `made.makes`, from the stage's bindings. `follows`: it is not the
/// first kernel.
[[nodiscard]] Status bind_parameters(const emit::StageText& stage, const RaggedRows& of, bool follows,
                                     RaggedKernel& made);

/// That the kernel uses them so. Sets `made.makes` where nothing goes back: to a parameter that it stores into.
[[nodiscard]] Status check_parameters(const kernel::Kernel& found, RaggedKernel& made);

}  // namespace syncopate::ops
