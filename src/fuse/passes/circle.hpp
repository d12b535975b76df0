// Who waits for whom in a circle, among nodes that edges order.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/topological_order.hpp"

namespace syncopate::fuse {

/// A circle among the nodes that `sorted`, a topological order, lacks; each waits for the next, the last one for
/// the first. Empty where it lacks none.
[[nodiscard]] std::vector<std::int32_t> circle_of(const Followers& followers,
                                                  const std::vector<std::int32_t>& sorted);

}  // namespace syncopate::fuse
