"""Calls of operators and of torch's collectives, timed by ranks that run together: the collectives' curves, and the figures that
only whole calls show (C++, tune/machine/call_fit.hpp). Part of `syncopate tune --measure-machine`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .. import ops
from ..group import Group
from ..strategy import Strategy
from .links import Ranks, Say
from .products import CACHE_BYTES

HIDDEN, LOCAL = 4096, 1792  # Llama 8B by eight


@dataclass(frozen=True)
class CallRun:
    """One operator of so many rows by one strategy, and the figure that its time gives."""

    figure: str
    operator: str
    rows: int
    strategy: Strategy

    @property
    def extents(self) -> tuple[int, int, int]:
        n, k = (LOCAL, HIDDEN) if self.operator == "all_gather_matmul" else (HIDDEN, LOCAL)
        return self.rows, n, k


#: In this order: each figure is set with those before it.
CALLS = (
    CallRun("fused_us", "matmul_all_reduce", 512, Strategy(kernel="plain", one_step=True)),
    CallRun(
        "sum_us", "matmul_reduce_scatter", 1024, Strategy(kernel="plain", backend="copy_engine", split=1)
    ),
)

#: Of the tables: the operator whose unfused pair has the collective.
COLLECTIVES = {
    "library_gather_us": "all_gather_matmul",
    "library_scatter_us": "matmul_reduce_scatter",
    "library_reduce_us": "matmul_all_reduce",
    "library_exchange_us": "all_to_all_matmul",
}
SENT = (1 << 15, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)  # bytes that come into a rank
THIN = 64  # the extent of a product that takes next to nothing


@contextmanager
def operator(group: Group, name: str, extents: tuple[int, int, int], strategy: Strategy) -> Iterator[Any]:
    made = ops.OPERATORS[name](*extents, group=group, strategy=strategy)
    try:
        yield made
    finally:
        torch.cuda.synchronize()
        made.close()


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


class Calls:
    """Times of calls as the estimate takes them: replayed graphs of one call whose operands no cache holds."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.other = torch.zeros(int(CACHE_BYTES) // 4, dtype=torch.int32, device="cuda")

    def us(self, call: Callable[[], Any]) -> float:
        return self.replayed(self.captured(call))

    def captured(self, call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        self.ranks.group.barrier("captured")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph

    def replayed(self, graph: torch.cuda.CUDAGraph) -> float:
        return self.ranks.time(graph.replay, before=self.other.max)

    def of(self, made: Any, in_place: bool = False) -> float:
        return self.us(self.call_of(made, in_place))

    def call_of(self, made: Any, in_place: bool = False) -> Callable[[], Any]:
        """`in_place`: the result is left where it is made, else in a tensor of ours."""
        x, w = random(*made.shapes(made.group.rank)["x"]), random(made.k, made.n)
        if made.name == "all_gather_matmul":
            x = made.shard().copy_(x)
        y = made.result() if in_place else torch.empty(made.out_rows, made.n, dtype=x.dtype, device="cuda")
        return lambda: made(x, w, y)

    def timed(self, run: CallRun) -> list[Any]:
        """As C++ reads it (measured.hpp)."""
        with operator(self.ranks.group, run.operator, run.extents, run.strategy) as made:
            return [run.figure, made.problem.key, made.strategy.to_json(), self.of(made)]

    def curve(self, name: str, nothing: float, kernel_us: float) -> list[list[float]]:
        """[MiB that come into a rank, µs] of the collective in the unfused pair, as a call whose result stays where the library
        makes it: the pair less its product, which has a call's beginning (`nothing`), too, and less the launch of a second kernel."""
        size = self.ranks.group.size
        points = []
        for sent in SENT:
            width = HIDDEN if sent > SENT[0] else HIDDEN // 8
            rows = size * sent // (size - 1) // (2 * width)
            rows -= rows % size
            n, k = (THIN, width) if name in ("all_gather_matmul", "all_to_all_matmul") else (width, THIN)
            with operator(self.ranks.group, name, (rows, n, k), Strategy(unfused=True)) as made:
                pair = self.of(made, in_place=True)
            a, w, y = random(rows, k), random(k, n), random(rows, n)
            product = self.us(lambda a=a, w=w, y=y: torch.mm(a, w, out=y))
            us = pair - product + nothing - kernel_us
            points.append([rows * width * 2 * (size - 1) / size / (1 << 20), max(us, nothing)])
        return points


def library_tables(ranks: Ranks, say: Say) -> dict[str, Any]:
    """The collectives' curves. The group is one of torch's."""
    calls, small = Calls(ranks), torch.zeros(1, device="cuda")
    nothing = calls.us(small.zero_)
    kernel_us = calls.us(lambda: (small.zero_(), small.zero_())) - nothing
    tables = {}
    for table, name in COLLECTIVES.items():
        points = calls.curve(name, nothing, max(kernel_us, 0))
        tables[table] = {"points": points, "source": f"the unfused {name} less its product"}
        say(f"the collective of {name}")
    return tables


def calls_timed(ranks: Ranks, say: Say, gluon: bool, seconds: float) -> list[list[Any]]:
    """Of CALLS what there is time for, the same on all ranks. What fails on some rank is said and left out."""
    calls, begin, timed = Calls(ranks), time.monotonic(), []
    for run in CALLS:
        if (run.strategy.kernel == "plain" or gluon) and ranks.slowest(time.monotonic() - begin) < seconds:
            try:
                timed.append(ranks.group.together(f"{run.figure}", lambda run=run: calls.timed(run)))
            except RuntimeError as error:
                print(f"\n{run.figure}: {error}", file=sys.stderr)
        say(f"{run.operator} of {run.rows} rows, for {run.figure}")
    return timed
