// Join: several plans as one, for a program whose stages each have a collective of their own.
//
// Each rank's list is that of the first plan, then that of the second, …; the ops of one are not ordered with
// those of another, except by what the kernels make and need. The plans may share no tensor.
#pragma once

#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// `parts`: at least one, all over the same mesh, with tensors of different names. `tensors`: more of them,
/// that no op moves (what one stage hands to the next on its own device). Fails, naming the plan by its place
/// from 0, where meshes differ or a name comes twice.
[[nodiscard]] Result<Plan> join(const std::vector<Plan>& parts, const std::vector<Tensor>& tensors = {});

}  // namespace syncopate::plan
