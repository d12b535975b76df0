// What the problem of attention, or of its backward, comes to.
#pragma once

#include "syncopate/ops/attention.hpp"
#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/strategy.hpp"

namespace syncopate::ops {

/// Of the kind "auto", where nobody has chosen, all_gather. Fails (ErrorClass::usage) for heads that are too
/// large.
[[nodiscard]] Result<AttentionTask> attention_task(const Problem& problem, const Strategy& strategy);

}  // namespace syncopate::ops
