"""All-gather, then a product:

y = sy.ops.all_gather_matmul(x, w)          act(all_gather(x) @ w + bias): x [M / ranks, K], w [K, N], y [M, N]
y = sy.ops.all_gather_matmul(x, w, axis=1)  the same of columns: x [M, K / ranks]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..group import Group
from ..strategy import Strategy, given
from .product import OneProduct, call_cached
from .shards import count, rows_of


class AllGatherMatmul(OneProduct):
    """y = act(all_gather(x) @ w + bias) for one shape: x [M / ranks, K] on each rank, w [K, N] local, y [M, N] local.
    `activation`: one of kernels.matmul.ACTIVATIONS, applied to the fp32 product after the bias; "": none.

    x is read where it is, or copied into the heap first if it cannot be: where rows of x do not begin at multiples of 16 bytes.
    With M / ranks no multiple of a tile's rows, the rows of tiles that read two shards are copied. `shard` is this rank's place
    in the heap. M need not be a multiple of the ranks: the first M % ranks of them hold one row more. The result is the same,
    bit for bit, as that of the unfused kernel on the gathered input.

    `axis` 1: x is this rank's columns [M, K / ranks], K a multiple of the ranks. `keep`: the gathered x stays in the heap
    for the caller (`gathered`). `copied`: calls give `copy` [M, K], a tensor that takes it.
    """

    name = "all_gather_matmul"

    def __init__(
        self,
        *args: Any,
        axis: int = 0,
        keep: bool = False,
        copied: bool = False,
        strategy: Strategy | None = None,
        **options: Any,
    ) -> None:
        self.axis, self.keep, self.copied = axis, keep, copied
        if axis and strategy is None:
            strategy = Strategy(kernel="plain")  # what is known to be fast is about shards of rows
            options["asked"] = False
        super().__init__(*args, strategy=strategy, **options)

    def x_rows(self, rank):
        return self.m if self.axis else count(rows_of(self.m, self.group.size, rank))

    def shapes(self, rank):
        columns = self.k // self.group.size if self.axis else self.k
        return {**super().shapes(rank), "x": (self.x_rows(rank), columns)}

    def alone(self, prepared):
        """On the chunks of the last call and its x, whose waits are over; no program is the last one, so nothing is posted."""
        control = prepared.op.control_tensor.clone()
        control[0] -= 1  # the last call's epoch, not the next one's
        return {"sy_control": control}

    def reference(self, x, weights):
        return self.product_of_all(x, weights, axis=self.axis)


def all_gather_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    group: Group | Any | None = None,
    out: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    activation: str = "",
    axis: int = 0,
    scales: Sequence[torch.Tensor] | None = None,
    out_dtype: torch.dtype | None = None,
    strategy: Strategy | str = "auto",
) -> torch.Tensor:
    """act(all_gather(x) @ w + bias), fused. x: [M / ranks, K], the same number of rows on every rank, or with `axis` 1
    [M, K / ranks]; w: [K, N], or the transpose of a contiguous [N, K] (as a Linear layer keeps its weight); bias: [N];
    returns [M, N]. `activation`: "", "relu", "gelu" (the one with tanh) or "silu"; it and the bias are applied to the fp32
    product. dtypes: bf16, fp16, fp32; float8_e4m3fn for the transpose of a contiguous w and a y of `out_dtype`, bf16 (the default) or fp16.
    `scales`, of fp8: fp32 tensors for x and w, one number a row of x and a column of w, [M / ranks] and [N], or a number for
    all, or [M / ranks, cdiv(K, 128)] and [cdiv(N, 128), cdiv(K, 128)]. The product is multiplied by both. `strategy`: how it is
    done, a sy.Strategy; "auto": what tuning has found, else what is estimated to be the fastest. Without gradients then.

    Collective over `group` (a torch process group; default: the world). The first call with a shape sets it up.
    """
    return call_cached(
        AllGatherMatmul,
        x,
        w,
        group,
        out,
        gathered=axis,
        bias=bias,
        scales=scales,
        out_dtype=out_dtype,
        activation=activation,
        axis=axis,
        **given(strategy),
    )
