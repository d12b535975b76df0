"""A problem with its inputs, in as many sets as it takes to leave the L2 cache between two uses of one, and what runs on
it: an operator, its product, its collective. One class an operator; a peer takes what it needs from here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from .. import ops
from ..strategy import SMALL, Strategy
from .measure import capture
from .shapes import Shape

L2_BYTES = 180e6  # more than any GPU's cache holds


class Rotating(list):
    """One thing for each set of inputs; thing(i) is that of the i-th call."""

    def __call__(self, i: int) -> Any:
        return self[i % len(self)]


def on_gpu() -> bool:
    return torch.cuda.is_available()


def synchronize() -> None:
    if on_gpu():
        torch.cuda.synchronize()


def off(made: torch.Tensor, wanted: torch.Tensor) -> float:
    """The relative error in the 2-norm; that of what is no number is infinite."""
    error = ((made.to(wanted.dtype) - wanted).norm() / wanted.norm().clamp_min(1e-30)).item()
    return math.inf if math.isnan(error) else error


class Made:
    """The operators that are made for a problem, until it is done, and their calls as CUDA graphs."""

    count = 0  # sets of inputs
    in_a_row = 1  # calls of a graph

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu() else torch.device("cpu")
        self._operators: list[Any] = []

    def graphs(self, call: Callable[[int], object]) -> Callable[[int], object]:
        """The same calls as CUDA graphs, of `in_a_row` calls each."""
        if self.in_a_row > 1:
            row = capture(lambda: [call(i) for i in range(self.in_a_row)])
            return lambda _: row.replay()
        captured = Rotating(capture(lambda i=i: call(i)) for i in range(self.count))
        return lambda i: captured(i).replay()

    def forget(self, operator: Any) -> None:
        """Someone else has closed it."""
        self._operators.remove(operator)

    def check(self) -> None:
        for operator in self._operators:
            operator.check()

    def close(self) -> None:
        for operator in self._operators:
            operator.close()
        self._operators.clear()


class Case(Made):
    """`x`, `w`: what the operator is called with; `out`: where others put their result; `right`: what is right."""

    operator: ClassVar[str] = ""  # its name in ops.OPERATORS
    sharded: ClassVar[str] = "N"  # see shapes_of
    tolerance: ClassVar[float] = 1e-2  # of a relative error, in the 2-norm
    in_heap: ClassVar[bool] = False  # whether `ours` leaves y in the operator's heap
    shares_x: ClassVar[bool] = False  # x has a rank's share of the rows
    shares_y: ClassVar[bool] = False  # y has

    def __init__(self, shape: Shape, seed: int = 1234, dtype: torch.dtype | None = None) -> None:
        self.shape = shape
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        super().__init__()
        self.dtype = dtype or (torch.bfloat16 if on_gpu() else torch.float32)
        m, n, k = shape.m, shape.n, shape.k
        footprint = (
            2 * (m * k + (k + n) * max(shape.f, 1) + m * n) if shape.f else 2 * (m * k + k * n + m * n)
        )
        self.count = max(2, min(6, math.ceil(L2_BYTES / footprint))) if on_gpu() else 2
        self.left_out: dict[str, str] = {}  # row → why it was not measured
        self.strategies: dict[str, Strategy] = {}  # row → what it runs by, of those that are ours
        torch.manual_seed(seed + self.rank)
        self.make_tensors()
        self.right = self.make_right()

    # What a case says of itself.

    def make_tensors(self) -> None:
        """Of one product; more where a peer needs them."""
        m, n, k = self.shape.m, self.shape.n, self.shape.k
        self.x = self.random(m // self.size if self.shares_x else m, k)
        self.w, self.out = self.random(k, n), self.empty(m // self.size if self.shares_y else m, n)

    def multiply(self, i: int, out: torch.Tensor) -> torch.Tensor:
        """The product alone, by the vendor's library, into `out`."""
        a, w, *_ = self.operands(i)
        return torch.mm(a, w, out=out)

    def product(self, i: int) -> None:
        """The same where the unfused pair puts it."""
        self.multiply(i, self.operands(i)[2])

    def collective(self, i: int) -> None:
        """The collective alone, by the vendor's library."""
        raise NotImplementedError

    def unfused(self, i: int) -> torch.Tensor:
        """The two, one after the other; returns y."""
        raise NotImplementedError

    def operands(self, i: int) -> tuple[Any, ...]:
        """a, w and c of the product alone, and what else Operator.unfused takes."""
        raise NotImplementedError

    def make_right(self) -> list[torch.Tensor]:
        """What y should be, for each set of inputs."""
        return [self.unfused(i).clone().float() for i in range(self.count)]

    # What follows.

    def random(self, rows: int, columns: int) -> Rotating:
        return self._tensors(torch.randn, rows, columns)

    def empty(self, rows: int, columns: int) -> Rotating:
        return self._tensors(torch.empty, rows, columns)

    def _tensors(self, make: Callable[..., torch.Tensor], rows: int, columns: int) -> Rotating:
        return Rotating(make(rows, columns, device=self.device, dtype=self.dtype) for _ in range(self.count))

    @property
    def kind(self) -> Any:
        return ops.OPERATORS[self.operator]

    def operators(self, count: int = 0, **options: Any) -> Rotating:
        """One operator for each set (or `count` of them); checked and closed after the shape."""
        s = self.shape
        extents = {"m": s.m, "n": s.n, "k": s.k} | ({"f": s.f} if s.f else {})
        if not on_gpu():
            chosen = options.get("strategy") or Strategy()
            if not chosen.tilings:  # so that there are several tiles
                import dataclasses

                options["strategy"] = dataclasses.replace(chosen, tilings=(SMALL,))
        made = Rotating()
        for _ in range(count or self.count):
            made.append(
                self.kind(
                    **extents,
                    dtype=self.dtype_of_x,
                    device="cuda" if on_gpu() else "host",
                    **self.options,
                    **options,
                )
            )
            self._operators.append(made[-1])
        return made

    def called(self, made: Rotating) -> Callable[[int], torch.Tensor]:
        """As users call them, and as the estimate counts: x and y in tensors of the caller's."""
        return self.ours(made, elsewhere=True)

    def ours(self, made: Rotating, elsewhere: bool = False) -> Callable[[int], torch.Tensor]:
        """A call of these operators, with x and y where they like them best, or `elsewhere`: in the caller's tensors."""
        y = Rotating(op.result() for op in made) if self.in_heap and not elsewhere else self.out
        x = self.x
        if made[0].input and made[0].name.startswith("all_gather") and not elsewhere:
            x = Rotating(op.shard() for op in made)
            for place, values in zip(x, self.x, strict=False):
                place.copy_(values)

        def call(i: int) -> torch.Tensor:
            if scales := self.scales_of(i):
                return made(i)(x(i), self.w(i), y(i), None, scales)
            return made(i)(x(i), *(w(i) for w in self.weights), y(i))

        return call

    @property
    def weights(self) -> tuple[Rotating, ...]:
        return (self.w,)

    @property
    def options(self) -> dict[str, Any]:
        """Of the operator, besides its extents."""
        return {}

    @property
    def dtype_of_x(self) -> torch.dtype:
        return self.dtype

    def scales_of(self, i: int) -> tuple[torch.Tensor, ...]:
        """Of x and w, of fp8."""
        return ()

    def expect(
        self, name: str, call: Callable[[int], torch.Tensor], right: Sequence[torch.Tensor] = ()
    ) -> None:
        """Raises on all ranks alike unless call(i) gives right[i], or what is right."""
        errors = torch.tensor([self.error(call, right)], device=self.device)
        dist.all_reduce(errors, op=dist.ReduceOp.MAX)
        if not errors.item() <= self.tolerance:
            raise RuntimeError(f"{name} is wrong: relative error {errors.item():.3g}")

    def error(self, call: Callable[[int], torch.Tensor], right: Sequence[torch.Tensor] = ()) -> float:
        """The largest relative error of call(i) on this rank, in the 2-norm."""
        worst = 0.0
        for i in range(self.count):
            self.out[i].fill_(float("nan"))
            y = call(i)
            synchronize()
            worst = max(worst, off(y, (right or self.right)[i].float()))
        return worst


class AllGatherMatmul(Case):
    operator = "all_gather_matmul"
    shares_x = True

    def make_tensors(self):
        super().make_tensors()
        self.gathered = self.empty(self.shape.m, self.shape.k)

    def collective(self, i):
        dist.all_gather_into_tensor(self.gathered(i), self.x(i))

    def unfused(self, i):
        self.collective(i)
        self.product(i)
        return self.out(i)

    def operands(self, i):
        return self.gathered(i), self.w(i), self.out(i)


class AllToAllMatmul(AllGatherMatmul):
    operator = "all_to_all_matmul"
    shares_x = False

    def collective(self, i):
        dist.all_to_all_single(self.gathered(i), self.x(i))


class MatmulReduceScatter(Case):
    operator = "matmul_reduce_scatter"
    sharded = "K"
    shares_y = True
    sends_partial = True  # what is sent is not where y is

    def make_tensors(self):
        super().make_tensors()
        self.partial = self.empty(self.shape.m, self.shape.n) if self.sends_partial else self.out

    def make_right(self):
        """Summed as fp32."""
        sums = [torch.empty_like(y, dtype=torch.float32) for y in self.out]
        for i, total in enumerate(sums):
            dist.reduce_scatter_tensor(total, torch.mm(self.x(i), self.w(i)).float())
        return sums

    def collective(self, i):
        dist.reduce_scatter_tensor(self.out(i), self.partial(i))

    def unfused(self, i):
        self.product(i)
        self.collective(i)
        return self.out(i)

    def operands(self, i):
        return self.x(i), self.w(i), self.partial(i)


class MatmulAllReduce(MatmulReduceScatter):
    operator = "matmul_all_reduce"
    in_heap = True
    shares_y = sends_partial = False

    def make_right(self):
        sums = [torch.mm(self.x(i), self.w(i)).float() for i in range(self.count)]
        for total in sums:
            dist.all_reduce(total)
        return sums

    def collective(self, i):
        dist.all_reduce(self.out(i))


class MatmulAllToAll(MatmulReduceScatter):
    operator = "matmul_all_to_all"
    in_heap = True
    shares_y = False

    def make_right(self):
        return Case.make_right(self)

    def collective(self, i):
        dist.all_to_all_single(self.out(i), self.partial(i))


class TwoProducts(Case):
    """x @ up @ down, on each rank by itself."""

    sharded = "F"

    def make_tensors(self):
        m, n, k, f = self.shape.m, self.shape.n, self.shape.k, self.shape.f
        rows = m // self.size if self.shares_x else m
        self.x, self.out = self.random(rows, k), self.empty(rows, n)
        self.up, self.down = self.random(k, f), self.random(f, n)
        for up in self.up:
            up.mul_(k**-0.5)
        self.inner = self.empty(m, f)

    @property
    def weights(self):
        return self.up, self.down


class FeedForward(TwoProducts):
    """reduce_scatter(all_gather(x) @ up @ down)"""

    operator = "feed_forward"
    shares_x = True

    def make_tensors(self):
        super().make_tensors()
        m, n, k = self.shape.m, self.shape.n, self.shape.k
        self.gathered, self.partial = self.empty(m, k), self.empty(m, n)

    def product(self, i):
        torch.mm(self.gathered(i), self.up(i), out=self.inner(i))
        torch.mm(self.inner(i), self.down(i), out=self.partial(i))

    def collective(self, i):
        dist.all_gather_into_tensor(self.gathered(i), self.x(i))
        dist.reduce_scatter_tensor(self.out(i), self.partial(i))

    def unfused(self, i):
        dist.all_gather_into_tensor(self.gathered(i), self.x(i))
        self.product(i)
        dist.reduce_scatter_tensor(self.out(i), self.partial(i))
        return self.out(i)


class MlpChain(TwoProducts):
    operator = "mlp_chain"

    @property
    def kind(self):
        from .mlp_chain import MlpChain

        return MlpChain

    def product(self, i):
        torch.mm(self.x(i), self.up(i), out=self.inner(i))
        torch.mm(self.inner(i), self.down(i), out=self.out(i))

    def unfused(self, i):
        self.product(i)
        return self.out(i)


CASES: dict[str, type[Case]] = {
    case.operator: case
    for case in (
        AllGatherMatmul,
        MatmulReduceScatter,
        MatmulAllReduce,
        AllToAllMatmul,
        MatmulAllToAll,
        FeedForward,
        MlpChain,
    )
}
