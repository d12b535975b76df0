#include "plan/templates/push_request.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "plan/model/cut.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {

Status judge_push(const Mesh& mesh, const Tensor& tensor, std::int32_t axis, std::int32_t split_axis,
                  std::int32_t split) {
    const std::int32_t ranks = mesh.num_ranks();
    if (ranks < 1 || ranks > kMaxRanks)
        return usage_error(fmt::format("the mesh has {} ranks; expected 1 to {}", ranks, kMaxRanks));
    SYNCOPATE_TRY(judge(tensor));
    const auto axes = static_cast<std::int32_t>(tensor.shape.size());
    if (axis < 0 || axis >= axes) {
        return usage_error(fmt::format("axis {} is not an axis of tensor {}; expected 0 to {}", axis,
                                       tensor.name, axes - 1));
    }
    if (split_axis < 0 || split_axis >= axes) {
        return usage_error(fmt::format("split axis {} is not an axis of tensor {}; expected 0 to {}",
                                       split_axis, tensor.name, axes - 1));
    }
    if (split < 1) return usage_error(fmt::format("split is {}; expected at least 1", split));
    const std::int64_t extent = tensor.shape[at(split_axis)];
    const std::int64_t chunks = axis == split_axis
                                    ? std::min<std::int64_t>(extent, std::int64_t{ranks} * split)
                                    : ranks * std::min<std::int64_t>(extent, split);
    if (chunks * ranks * 2 > kMaxOps)
        return usage_error(fmt::format("the plan would have more than {} ops; use a smaller split", kMaxOps));
    return Done{};
}

}  // namespace syncopate::plan
