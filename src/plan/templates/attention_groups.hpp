// The backward of attention where groups of neighbours exchange heads and K and V go around between groups
// (attention_backward.hpp).
#pragma once

#include "syncopate/plan/templates/attention_backward.hpp"

namespace syncopate::plan {

[[nodiscard]] Result<Plan> attention_groups_backward(const Mesh& mesh, const AttentionShape& shape,
                                                     const AttentionBackwardOptions& options);

}  // namespace syncopate::plan
