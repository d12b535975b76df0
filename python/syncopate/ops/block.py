"""The feed-forward block of a tensor-parallel transformer as one program of two stages, or (apart) as two operators:

y = sy.ops.feed_forward(x, w1, w2, activation="gelu")      reduce_scatter(act(all_gather(x) @ w1) @ w2)

all-gather of x | stage 1: h = act(x @ w1), as rows of x arrive | stage 2: partial = h @ w2          |
                                                                | rows leave as they are made, and are summed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..call import known
from ..call.autocast import cast_operands, is_any_enabled
from ..call.cache import run
from ..call.in_graphs import joins_graphs, refuse_tracing, runs_whole, traced
from ..call.laid_out import rows
from ..call.places import require_tensors
from ..group import Group
from ..strategy import Strategy, given
from .differentiable import STRATEGY_REFUSED, recorded, wanted
from .gather import AllGatherMatmul
from .no_elements import of_nothing
from .operator import Operator, cached, members_of, problem_of
from .product_kernel import Product
from .reduce import MatmulReduceScatter
from .shards import count, rows_of, summed


class Apart:
    """A block as two operators, one after the other; what is between them is a tensor of the call's own."""

    opaque = "apart: the block is two operators; record or run them, or give a fused strategy"

    def __init__(self, block: FeedForward, **options: Any) -> None:
        m, k, f, n = block.m, block.k, block.f, block.n
        gathers, scatters = block.strategy.parts
        given = {"asked": False, **options}
        self._gather = AllGatherMatmul(
            m, f, k, block.dtype, block.group, strategy=gathers, activation=block.activation, **given
        )
        self._scatter = MatmulReduceScatter(m, n, f, block.dtype, block.group, strategy=scatters, **given)
        self.products = [*self._gather.products, *self._scatter.products]

    def prepare(self, weights: Sequence[torch.Tensor]) -> None:
        self._gather.prepare(*weights[:1])
        self._scatter.prepare(*weights[1:])

    def run(
        self, block: FeedForward, x: torch.Tensor, weights: Sequence[torch.Tensor], out: torch.Tensor
    ) -> torch.Tensor:
        up, down = weights
        return self._scatter(self._gather(x, up), down, out)

    def shard(self, block: FeedForward) -> torch.Tensor:
        return self._gather.shard()

    def result(self, block: FeedForward) -> torch.Tensor:
        return self._scatter.result()

    def held_bytes(self) -> int:
        return self._gather.held_bytes() + self._scatter.held_bytes()

    def reset(self) -> None:
        self._gather.reset()
        self._scatter.reset()

    def check(self) -> None:
        self._gather.check()
        self._scatter.check()

    @property
    def calls_differ(self) -> bool:
        return self._gather.calls_differ or self._scatter.calls_differ

    def close(self) -> None:
        self._gather.close()
        self._scatter.close()


class FeedForward(Operator):
    """y = reduce_scatter(act(all_gather(x) @ w1) @ w2) for one shape: x [M / ranks, K], w1 [K, F], w2 [F, N] local, y
    [M / ranks, N], the sum over ranks of this rank's rows. F: this rank's part of the inner width.

    M need not be a multiple of the ranks: the first M % ranks of them hold one row more. `activation`: one of
    kernels.matmul.ACTIVATIONS, applied to the fp32 product before it is rounded. Each rank's product is rounded to
    `dtype` before the sum, which is accumulated as fp32 in rank order. Of the strategy, `chunking.rows` cuts a shard of x,
    `split` one of y.
    """

    name = "feed_forward"
    stages = 2
    adds_over_ranks = True

    def __init__(
        self,
        m: int,
        k: int,
        f: int,
        n: int,
        dtype: torch.dtype = torch.bfloat16,
        group: Group | Any | None = None,
        *,
        strategy: Strategy | None = None,
        device: Any = None,
        **options: Any,
    ) -> None:
        members = members_of(group, device)
        self.f = f
        super().__init__(problem_of(self.name, m, n, k, dtype, members, f), members, strategy, **options)

    def _set_up_instead(self) -> Any:
        if not self.strategy.apart:
            return super()._set_up_instead()
        return Apart(self, **self._timing)

    def _make_products(self) -> list[Product]:
        return self._instead.products if self.strategy.apart else super()._make_products()

    @property
    def out_rows(self) -> int:
        return self.shard_rows

    def shapes(self, rank):
        rows = count(rows_of(self.m, self.group.size, rank))
        return {"x": (rows, self.k), "w1": (self.k, self.f), "w2": (self.f, self.n)}

    def calls(self, heap, x, weights, y):
        up, down = self.products
        return [up.call(heap["X"], weights[0], heap["H"]), down.call(heap["H"], weights[1], heap["C"])]

    @runs_whole
    def __call__(
        self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        refuse_tracing("FeedForward")
        return self.run(x, (w1, w2), out)

    def unfused(
        self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> torch.Tensor:
        """The unmodified kernels on the whole input x [M, K], one after the other: c, this rank's part of the sum."""
        up, down = self.products
        up.run(x, w1, h)
        down.run(h, w2, c)
        return c

    def reference(self, x, weights):
        whole = torch.cat([x(rank) for rank in range(self.group.size)])

        def part(rank: int) -> torch.Tensor:
            h, c = (torch.full_like(self.empty(self.m, n), float("nan")) for n in (self.f, self.n))
            return self.unfused(whole, *weights(rank), h, c)

        total = summed(part(rank) for rank in range(self.group.size))
        return total[rows_of(self.m, self.group.size, self.group.rank)]


@joins_graphs
def feed_forward(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    group: Group | Any | None = None,
    out: torch.Tensor | None = None,
    *,
    activation: str = "",
    strategy: Strategy | str = "auto",
) -> torch.Tensor:
    """reduce_scatter(act(all_gather(x) @ w1) @ w2), fused. x: this rank's rows [M / ranks, K], w1: [K, F], w2: [F, N];
    returns [M / ranks, N]. `activation`: "", "relu", "gelu" (the one with tanh) or "silu". dtypes: bf16, fp16, fp32. `strategy`:
    as of all_gather_matmul.

    The same number of rows on every rank. Collective over `group` (a torch process group; default: the world). The first
    call with a shape sets it up.
    """
    if torch.compiler.is_compiling():
        refused = {"a strategy": bool(given(strategy))}
        return traced(FeedForward.name, (x, w1, w2), group, refused, out, activation=activation)
    if out is None and is_any_enabled():  # with `out` torch.mm casts nothing either
        x, w1, w2 = cast_operands(x, w1, w2)
    options = {"activation": activation, **given(strategy)}
    called, tensors = (FeedForward, group, *options.values()), (x, w1, w2)
    if (y := known.call(called, tensors, out)) is not None:
        return y
    require_tensors(x=x, w1=w1, w2=w2, **({} if out is None else {"out": out}))
    members = members_of(group, "cuda" if x.is_cuda else "host")
    fits = x.dim() == w1.dim() == w2.dim() == 2 and x.shape[1] == w1.shape[0] and w1.shape[1] == w2.shape[0]
    if not fits:
        shapes = ", ".join(str(list(t.shape)) for t in (x, w1, w2))
        raise ValueError(f"expected x [rows, K], w1 [K, F] and w2 [F, N], got {shapes}")
    if names := wanted({"x": x, "w1": w1, "w2": w2, "out": out}):
        refused = {
            "out= takes no call that is recorded": out is not None,
            STRATEGY_REFUSED: "strategy" in options,
        }
        return recorded(FeedForward.name, members, (x, w1, w2), names, refused, **options)
    extents = (x.shape[0] * members.size, x.shape[1], w1.shape[1], w2.shape[1])
    if 0 in extents:
        operands = {"x": x, "w1": w1, "w2": w2}
        return of_nothing(
            FeedForward.name,
            members,
            extents,
            operands,
            (x.shape[0], w2.shape[1]),
            out=out,
            options=str(options),
        )
    entry = cached(FeedForward, extents, x.dtype, members, **options)
    taken = [rows(one) for one in tensors]
    y = run(entry.operator, *taken, out)
    known.learn(called, tensors, taken, entry)
    return y
