// y = all_reduce(x @ w), the same bits on all ranks: x [M, K] and w [K, N] of each rank, y [M, N]. Each rank
// sums its rows chunk by chunk and sends them on.
#include "ops/reduction.hpp"

namespace syncopate::ops {

OperatorRow matmul_all_reduce() {
    OperatorRow row = product_row("matmul_all_reduce", OperatorRow::Kind::reduces);
    row.outline = [](const Problem& problem, const Strategy& strategy, const Call& /*call*/) {
        return reduction(problem, strategy, true);
    };
    return row;
}

}  // namespace syncopate::ops
