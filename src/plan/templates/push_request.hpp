// What all templates of pushes (push_reduce.hpp, push_exchange.hpp) ask of their arguments.
#pragma once

#include <cstdint>
#include <string>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// Fails on a mesh without ranks, an axis or a split axis that the tensor has not, a split below 1, and more
/// than kMaxOps ops.
[[nodiscard]] Status judge_push(const Mesh& mesh, const Tensor& tensor, std::int32_t axis,
                                std::int32_t split_axis, std::int32_t split);

}  // namespace syncopate::plan
