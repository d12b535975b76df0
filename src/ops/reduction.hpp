// Reduction: a product whose contributions are summed over ranks while its kernel runs; what a reduce-scatter
// and an all-reduce have in common.
//
//     pull           owners read the contributions where they are, by the chunk engine, beside the kernel
//     stored         so many of each rank's contributions, its last, are stored at their owners tile by tile
//     one_step       every rank sends all that it makes to all, and each sums what it is to have
#pragma once

#include "ops/product.hpp"

namespace syncopate::ops {

/// `everywhere`: all ranks get all sums; else each its rows.
[[nodiscard]] Result<Outline> reduction(const Problem& problem, const Strategy& strategy, bool everywhere);

}  // namespace syncopate::ops
