"""A product after or before an all-to-all of blocks of rows:

y = sy.ops.matmul_all_to_all(x, w)          all_to_all(x @ w): x [M, K], y [M, N]
y = sy.ops.all_to_all_matmul(x, w)          all_to_all(x) @ w
"""

from __future__ import annotations

from typing import Any

import torch

from .product import OneProduct, function_of


class Exchange(OneProduct):
    """What the two have in common: M is a multiple of the ranks."""

    @property
    def block(self) -> slice:
        """The rows that go to the rank of this number, or come from it."""
        rows = self.m // self.group.size
        return slice(self.group.rank * rows, (self.group.rank + 1) * rows)


class MatmulAllToAll(Exchange):
    """y = all_to_all(x @ w): block p of M / ranks rows of this rank's product becomes block r of y on rank p."""

    name = "matmul_all_to_all"

    def reference(self, x, weights):
        ranks = range(self.group.size)
        return torch.cat([self.product_of(x(rank), weights(rank))[self.block] for rank in ranks])


class AllToAllMatmul(Exchange):
    """y = all_to_all(x) @ w: block p of M / ranks rows of x becomes block r of what rank p multiplies. The strategy's
    `chunking` says how a block is cut and sent. `keep`: what has come stays in the heap for the caller (`gathered`).
    `copied`: calls give `copy` [M, K], a tensor that takes it."""

    name = "all_to_all_matmul"

    def __init__(self, *args: Any, keep: bool = False, copied: bool = False, **options: Any) -> None:
        self.keep, self.copied = keep, copied
        super().__init__(*args, **options)

    def reference(self, x, weights):
        return self.product_of_all(x, weights, self.block)


matmul_all_to_all = function_of(
    MatmulAllToAll,
    """all_to_all(x @ w) of equal blocks of rows, fused. x: [M, K], M a multiple of the ranks, w: [K, N] or the transpose of a
    contiguous [N, K]; returns [M, N], whose block r comes from rank r. dtypes: bf16, fp16, fp32; float8_e4m3fn with
    `scales` and `out_dtype` as all_gather_matmul takes them, of this rank's x [M, K] and w.

    Collective over `group` (a torch process group; default: the world). The first call with a shape sets it up.
    """,
)


all_to_all_matmul = function_of(
    AllToAllMatmul,
    """all_to_all(x) @ w, fused: arguments as matmul_all_to_all; returns [M, N].""",
)
