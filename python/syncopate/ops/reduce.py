"""A product whose contributions are summed over ranks while its kernel runs:

    y = sy.ops.matmul_reduce_scatter(x, w)      reduce_scatter(x @ w): x [M, K / ranks], w [K / ranks, N], y [M / ranks, N]
    y = sy.ops.matmul_all_reduce(x, w)          all_reduce(x @ w): y [M, N]

Each rank's product is rounded to the dtype, as the unfused pair does; sums are accumulated as fp32 in rank order: the same
input gives the same bits on every run. M need not be a multiple of the ranks.
"""

from __future__ import annotations

from .product import OneProduct, function_of
from .shards import rows_of, summed


class Reduction(OneProduct):
    """What the two have in common. With `pull` owners read the contributions where they are, by the chunk engine beside the
    kernel. With `stored` so many of each rank's contributions, its last, are stored at their owners tile by tile, and the
    earlier ones copied. With `one_step` every rank sends all that it makes to all ranks, and each sums what it is to have.
    With `kernel_sums` the kernel's programs sum, when they have made their tiles.

    `bias`: y = the sum over ranks of (x @ w + bias), each with its own rank's: one that all ranks give alike is in y as many
    times as there are ranks. Of a Linear whose weight is sharded along K, one rank gives the bias and the others zeros, or
    each gives its bias / ranks, as sy.parallel.RowwiseParallel does."""

    everywhere = False  # all ranks get all sums
    adds_over_ranks = True

    def reference(self, x, weights):
        total = summed(self.product_of(x(rank), weights(rank)) for rank in range(self.group.size))
        return total if self.everywhere else total[rows_of(self.m, self.group.size, self.group.rank)]


class MatmulReduceScatter(Reduction):
    """y = reduce_scatter(x @ w): x [M, K] and w [K, N] local, y [M / ranks, N], the sum over ranks of this rank's rows. The
    first M % ranks of them get one row more."""

    name = "matmul_reduce_scatter"
    shares_rows = True

    @property
    def out_rows(self) -> int:
        return self.shard_rows


class MatmulAllReduce(Reduction):
    """y = all_reduce(x @ w), the same bits on all ranks: x [M, K] and w [K, N] local, y [M, N]. Each rank sums its rows
    chunk by chunk and sends them on; with `pull` by parts of columns (`split`)."""

    name = "matmul_all_reduce"
    everywhere = True


matmul_reduce_scatter = function_of(
    MatmulReduceScatter,
    """reduce_scatter(x @ w), fused. x: [M, K], w: [K, N] or the transpose of a contiguous [N, K]; returns this rank's
    M / ranks rows of the sum over ranks, [M / ranks, N]. dtypes: bf16, fp16, fp32; float8_e4m3fn with `scales` and `out_dtype`
    as all_gather_matmul takes them, of this rank's x [M, K] and w. There is no bias: add it to what comes back, once. (The
    operator and the custom op take one, of each rank: Reduction.)

    Collective over `group` (a torch process group; default: the world). The first call with a shape sets it up.
    """,
)


matmul_all_reduce = function_of(
    MatmulAllReduce,
    """all_reduce(x @ w), fused: as matmul_reduce_scatter, and returns the whole sum [M, N] on every rank. The gradient that comes
    for it is summed over ranks, as torch's functional all-reduce does: where every rank computes the same loss of it, use
    torch.ops.syncopate.matmul_all_reduce(…, replicated_grad=True).""",
)
