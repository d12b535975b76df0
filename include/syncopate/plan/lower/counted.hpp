// Counted: the plan of a call whose groups are known before it, from a plan with ragged axes. Groups become rows, so that a
// kernel which finds its rows by tables of known values (kernel/, "values") runs on it tile by tile.
//
//     X [2 x 2 groups, H], counts   3 1     X [9, H]   rows_from_rank 0: expert 0 has rows 0 to 3, expert 1 row 3
//                                   0 5                rows_from_rank 1: expert 0 has none, expert 1 rows 4 to 9
//
// Groups lie in row-major order of their names, one behind the other, at the same rows on all ranks. What moves no row is left
// out, and who waited for it waits for what that waited for. Of other counts a plan is made anew.
#pragma once

#include <cstdint>
#include <span>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// `counts`: rows of each group, in row-major order, of all ragged tensors, which have the same groups. A plan without such
/// tensors is refused, as are counts that are negative, or fewer or more than the groups, and (naming tensor and rank) more
/// rows on a rank than the tensor's bound.
[[nodiscard]] Result<Plan> counted(const Plan& plan, std::span<const std::int64_t> counts);

}  // namespace syncopate::plan
