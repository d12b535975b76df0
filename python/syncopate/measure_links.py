"""What choices need to know between GPUs, measured by ranks that run together: the chunk engine's copies and sums by number of
blocks, alone and beside a product, what copies slow a product down by, and how long a signal takes to a peer.

A rate is the difference of two sizes over the difference of their times, so that fixed costs cancel out. An operator with a
product of few columns carries the transfers: its tiles take next to nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import _syncopate, ops
from .gemm import Product
from .group import Group
from .strategy import Strategy, Tiling

ROUNDS = 7
BLOCKS = (4, 8, 16)  # of the chunk engine
SUM_BLOCKS = (4, 8, 16, 32)
COLUMNS, DEPTH = 128, 8192
SIZES = (2048, 8192)  # rows

Say = Callable[[str], None]


class Ranks:
    """Times of the slowest rank, the same on all."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def slowest(self, us: float) -> float:
        return _syncopate.tune.largest(self.group.rendezvous, [us])[0]

    def time(self, call: Callable[[], Any]) -> float:
        """µs of one call: the median over rounds of the maximum over ranks."""
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        times = []
        for _ in range(ROUNDS):
            self.group.barrier("measure")
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(500_000)
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(1e3 * begin.elapsed_time(end))
        return self.slowest(statistics.median(times))


@contextmanager
def gathering(group: Group, rows: int, strategy: Strategy) -> Iterator[Callable[[], Any]]:
    with _made(ops.AllGatherMatmul, group, rows, DEPTH, strategy) as (op, w):
        x = op.shard()
        yield lambda: op(x, w)


@contextmanager
def summing(group: Group, rows: int, strategy: Strategy) -> Iterator[Callable[[], Any]]:
    """A sum of [rows, DEPTH] over ranks, whose product has little depth."""
    op = ops.MatmulReduceScatter(rows, DEPTH, COLUMNS, group=group, strategy=strategy)
    x = torch.zeros(rows, COLUMNS, dtype=torch.bfloat16, device="cuda")
    w = torch.zeros(COLUMNS, DEPTH, dtype=torch.bfloat16, device="cuda")
    y = torch.empty(rows // group.size, DEPTH, dtype=torch.bfloat16, device="cuda")
    try:
        yield lambda: op(x, w, y)
    finally:
        torch.cuda.synchronize()
        op.close()


@contextmanager
def _made(kind: Any, group: Group, rows: int, depth: int, strategy: Strategy) -> Iterator[tuple[Any, Any]]:
    op = kind(rows, COLUMNS, depth, group=group, strategy=strategy)
    w = torch.zeros(depth, COLUMNS, dtype=torch.bfloat16, device="cuda")
    op.prepare(w)
    try:
        yield op, w
    finally:
        torch.cuda.synchronize()
        op.close()


def rate(
    ranks: Ranks, make: Callable[..., Any], strategy: Strategy, around: Callable | None = None
) -> float | None:
    """GB/s into a rank, of what goes by `strategy`. `around`: what else runs while a call does."""
    times = []
    for rows in SIZES:
        with make(ranks.group, rows, strategy) as call:
            times.append(ranks.time(call if around is None else lambda call=call: around(call)))
    size = ranks.group.size
    moved = [rows * DEPTH * 2 * (size - 1) / size for rows in SIZES]
    if times[1] <= times[0]:
        return None
    return (moved[1] - moved[0]) / (times[1] - times[0]) / 1e3


class Beside:
    """A product that leaves `free` multiprocessors, on a stream of its own, while something else is measured."""

    def __init__(self, free: int) -> None:
        sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        m, n, k = 4096, 8192, 8192
        self.product = Product(m, n, k, Tiling(128, 256, 64, 4, -1), max(1, sms - free))
        shapes = ((m, k), (k, n), (m, n))
        self.operands = [torch.zeros(*shape, dtype=torch.bfloat16, device="cuda") for shape in shapes]
        self.stream = torch.cuda.Stream()

    def run(self) -> None:
        self.product.run(*self.operands)

    def around(self, call: Callable[[], Any]) -> None:
        """`call` while the product runs; waits for neither."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.run()
        call()


def engine_rates(ranks: Ranks, say: Say) -> dict[str, Any]:
    tables: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    copies, alone, sums = [], {}, []
    for blocks in BLOCKS:
        by = Strategy(backend="tma_dedicated", engine_blocks=blocks)
        alone[blocks] = rate(ranks, gathering, by)
        say(f"the chunk engine, {blocks} blocks")
        beside = rate(ranks, gathering, by, Beside(blocks + 4).around)
        say(f"the chunk engine, {blocks} blocks, beside a product")
        copies.append((blocks, beside or alone[blocks]))
    for blocks in SUM_BLOCKS:
        by = Strategy(backend="ldst_dedicated", engine_blocks=blocks, pull=True, split=1)
        sums.append((blocks, rate(ranks, summing, by)))
        say(f"its sums, {blocks} blocks")
    size = ranks.group.size
    known = ", ".join(f"{blocks}: {gbps:.0f}" for blocks, gbps in alone.items() if gbps)
    source = (
        f"all-gathers of {size} ranks by bulk copies beside a product of 4096 x 8192 x 8192; alone {known}"
    )
    tables["engine_gbps"] = {"points": rising(copies), "source": source}
    tables["engine_sum_gbps"] = {
        "points": rising(sums),
        "source": f"reduce-scatters of {size} ranks that the chunk engine sums",
    }
    by_loads = rate(ranks, gathering, Strategy(backend="ldst_dedicated", engine_blocks=BLOCKS[1]))
    say("the chunk engine by loads and stores")
    if by_loads and alone[BLOCKS[1]]:
        figures["engine_ldst"] = (
            by_loads / alone[BLOCKS[1]],
            f"all-gathers by {BLOCKS[1]} blocks of each kind",
        )
    return {
        "tables": {name: table for name, table in tables.items() if table["points"]},
        "figures": figures,
    }


def rising(points: list[tuple[int, float | None]]) -> list[list[float]]:
    return [[blocks, gbps] for blocks, gbps in points if gbps]


def product_beside_copies(ranks: Ranks) -> float:
    """How many times as long a product takes while copies leave and come."""
    product, side = Beside(8), torch.cuda.Stream()
    alone = ranks.time(product.run)
    with gathering(ranks.group, 4 * SIZES[1], Strategy(backend="copy_engine")) as call:

        def both() -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                call()
            product.run()

        beside = ranks.time(both)
    return max(1.0, beside / alone)


def signal_us(ranks: Ranks) -> float | None:
    """From one rank's store of a word to the other one's seeing it: half a round trip of ranks 0 and 1. None where they do
    not run at the same time, since they share a GPU."""
    from .signal_kernels import ping

    group = ranks.group
    heap = _syncopate.SymmetricHeap("cuda", group.ordinal, group.rendezvous, 1 << 21)
    offset = heap.allocate(256)
    mine, theirs = (
        heap.array(rank, offset, 256).view(torch.int32) for rank in (group.rank, 1 - min(group.rank, 1))
    )
    mine.zero_()
    torch.cuda.synchronize()
    times = []
    for rounds in (100, 1100):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        mine.zero_()
        torch.cuda.synchronize()
        group.barrier("ping")
        begin.record()
        if group.rank < 2:
            ping[(1,)](mine, theirs, group.rank == 0, rounds, num_warps=1)
        end.record()
        torch.cuda.synchronize()
        group.barrier("pong")
        times.append(ranks.slowest(1e3 * begin.elapsed_time(end)))
    return max(0.0, times[1] - times[0]) / 1000 / 2


def between_ranks(group: Group, say: Say, shared: bool = False) -> dict[str, Any]:
    """Collective. `shared`: ranks take turns on one GPU, so that a signal is waited for in vain."""
    ranks = Ranks(group)
    found = engine_rates(ranks, say)
    found["figures"]["beside_copies"] = (
        product_beside_copies(ranks),
        "a product of 4096 x 8192 x 8192 beside an all-gather by copies",
    )
    say("a product beside copies")
    found["links"] = {} if shared else {"signal_us": signal_us(ranks)}
    say("a signal between GPUs")
    return found
