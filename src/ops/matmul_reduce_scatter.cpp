// y = reduce_scatter(x @ w): x [M, K] and w [K, N] of each rank, y [M / ranks, N], the sum over ranks of this
// rank's rows. The first M % ranks of them get one row more.
#include "ops/reduction.hpp"

namespace syncopate::ops {

OperatorRow matmul_reduce_scatter() {
    OperatorRow row = product_row("matmul_reduce_scatter", OperatorRow::Kind::scatters);
    row.outline = [](const Problem& problem, const Strategy& strategy, const Call& /*call*/) {
        return reduction(problem, strategy, false);
    };
    return row;
}

}  // namespace syncopate::ops
