// The backward of attention where all ranks exchange heads for rows (attention_backward.hpp).
#pragma once

#include "syncopate/plan/templates/attention_backward.hpp"

namespace syncopate::plan {

[[nodiscard]] Result<Plan> attention_heads_backward(const Mesh& mesh, const AttentionShape& shape,
                                                    const AttentionBackwardOptions& options);

}  // namespace syncopate::plan
