// What is wrong with a binding, where several passes may find it.
#pragma once

#include <string>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// That `param` cannot be bound to a tensor which the plan lacks, and which it may have been.
[[nodiscard]] Error no_tensor_to_bind(const plan::Plan& plan, const std::string& tensor,
                                      const std::string& param);

}  // namespace syncopate::fuse
