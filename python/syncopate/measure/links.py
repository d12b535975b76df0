"""What choices need to know between GPUs, measured by ranks that run together: copies by size and direction, the chunk engine's
copies and sums by number of blocks, alone and beside a product, what copies slow a product down by, and how long a signal takes
to a peer.

A rate is the difference of two sizes over the difference of their times, so that fixed costs cancel out. An operator carries what
the chunk engine moves. Where it copies, a product of few columns takes next to nothing; of a sum, whose product makes all that is
summed, the product's own time is taken off.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from .. import _syncopate, ops
from ..group import Group
from ..ops.product_kernel import Product
from ..strategy import Strategy, Tiling

ROUNDS = 7
SLEEP_CYCLES = 4_000_000  # while the host enqueues all of a round
BLOCKS = (4, 8, 16)  # of the chunk engine
SUM_BLOCKS = (4, 8, 16, 32)
COLUMNS, DEPTH = 128, 8192
WIDE = Tiling(128, 256, 64, 4, -1)
SIZES = (2048, 8192)  # rows
KERNEL_BLOCKS = 48  # multiprocessors for the operator's own product, beside another one: with fewer it takes longer than its copies
COPIED = (64 << 10, 256 << 20)  # bytes
IN_A_ROW = 8  # copies, for what one more takes

Say = Callable[[str], None]


class Ranks:
    """Times of the slowest rank, the same on all. The group is one of torch's."""

    def __init__(self, group: Group) -> None:
        self.group = group
        # Hosts meet some ms apart, as they ask a store, and sleeps end apart, as clocks differ. Devices meet within a few µs.
        self.met = torch.zeros(1, device="cuda") if dist.get_backend() == "nccl" else None

    def slowest(self, us: float) -> float:
        return _syncopate.tune.largest(self.group.rendezvous, [us])[0]

    def time(self, call: Callable[[], Any], before: Callable[[], Any] | None = None) -> float:
        """µs of one call, each after `before`: the median over rounds, of the slowest rank in each."""
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        times = []
        for _ in range(ROUNDS):
            self.group.barrier("measure")
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if before:
                before()
            torch.cuda._sleep(SLEEP_CYCLES)
            if self.met is not None:
                dist.all_reduce(self.met)
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(1e3 * begin.elapsed_time(end))
        return statistics.median(_syncopate.tune.largest(self.group.rendezvous, times))


@contextmanager
def gathering(group: Group, rows: int, strategy: Strategy) -> Iterator[tuple[Callable[[], Any], None]]:
    """An all-gather of [rows, DEPTH]."""
    op = ops.AllGatherMatmul(rows, COLUMNS, DEPTH, group=group, strategy=strategy)
    w = torch.zeros(DEPTH, COLUMNS, dtype=torch.bfloat16, device="cuda")
    op.prepare(w)
    x = op.shard()
    with _closed_after(op):
        yield lambda: op(x, w), None


@contextmanager
def summing(
    group: Group, rows: int, strategy: Strategy
) -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
    """A sum of [rows, DEPTH] over ranks, and its product alone, of the multiprocessors that the sum leaves."""
    op = ops.MatmulReduceScatter(rows, DEPTH, COLUMNS, group=group, strategy=strategy)
    product = Product(rows, DEPTH, COLUMNS, WIDE, multiprocessors() - strategy.engine_blocks)
    x = torch.zeros(rows, COLUMNS, dtype=torch.bfloat16, device="cuda")
    w = torch.zeros(COLUMNS, DEPTH, dtype=torch.bfloat16, device="cuda")
    made, y = (
        torch.empty(count, DEPTH, dtype=torch.bfloat16, device="cuda") for count in (rows, rows // group.size)
    )
    with _closed_after(op):
        yield lambda: op(x, w, y), lambda: product.run(x, w, made)


@contextmanager
def _closed_after(op: Any) -> Iterator[None]:
    try:
        yield
    finally:
        torch.cuda.synchronize()
        op.close()


def multiprocessors() -> int:
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


def rate(
    ranks: Ranks, make: Callable[..., Any], strategy: Strategy, around: Callable | None = None
) -> float | None:
    """GB/s into a rank, of what goes by `strategy`. `around`: what else runs while a call does."""
    times = []
    for rows in SIZES:
        with make(ranks.group, rows, strategy) as (call, product):
            us = ranks.time(call if around is None else lambda call=call: around(call))
            times.append(us - ranks.time(product) if product else us)
    size = ranks.group.size
    moved = [rows * DEPTH * 2 * (size - 1) / size for rows in SIZES]
    if times[1] <= times[0]:
        return None
    return (moved[1] - moved[0]) / (times[1] - times[0]) / 1e3


class Beside:
    """A product that leaves `free` multiprocessors, on a stream of its own, while something else is measured."""

    def __init__(self, free: int) -> None:
        m, n, k = 4096, 8192, 8192
        self.product = Product(m, n, k, WIDE, max(1, multiprocessors() - free))
        shapes = ((m, k), (k, n), (m, n))
        # Of zeros it would take less power, and run at a higher clock.
        self.operands = [torch.randn(*shape, device="cuda").bfloat16() for shape in shapes]
        self.stream = torch.cuda.Stream()

    def run(self) -> None:
        self.product.run(*self.operands)

    def around(self, call: Callable[[], Any]) -> None:
        """`call` while the product runs; waits for neither."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.run()
        call()


def engine_copies(ranks: Ranks, say: Say) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the chunk engine: the table and the figure of its copies."""
    copies, alone = [], {}
    for blocks in BLOCKS:
        by = Strategy(kernel="plain", backend="tma_dedicated", engine_blocks=blocks)
        alone[blocks] = rate(ranks, gathering, by)
        say(f"the chunk engine, {blocks} blocks")
        beside = rate(ranks, gathering, by, Beside(blocks + KERNEL_BLOCKS).around)
        say(f"the chunk engine, {blocks} blocks, beside a product")
        copies.append((blocks, beside or alone[blocks]))
    known = ", ".join(f"{blocks}: {gbps:.0f}" for blocks, gbps in alone.items() if gbps)
    source = f"all-gathers of {ranks.group.size} ranks by bulk copies beside a product of 4096 x 8192 x 8192; alone {known}"
    by_loads = rate(
        ranks, gathering, Strategy(kernel="plain", backend="ldst_dedicated", engine_blocks=BLOCKS[1])
    )
    say("the chunk engine by loads and stores")
    figures = {}
    if by_loads and alone[BLOCKS[1]]:
        figures["engine_ldst"] = (
            by_loads / alone[BLOCKS[1]],
            f"all-gathers by {BLOCKS[1]} blocks of each kind",
        )
    return {"engine_gbps": {"points": rising(copies), "source": source}}, figures


def engine_sums(ranks: Ranks, say: Say) -> dict[str, Any]:
    """The same of its sums."""

    def by(blocks: int) -> float | None:
        strategy = Strategy(kernel="plain", backend="tma_dedicated", engine_blocks=blocks, pull=True, split=1)
        made = rate(ranks, summing, strategy)
        say(f"the chunk engine's sums, {blocks} blocks")
        return made

    points = rising([(blocks, by(blocks)) for blocks in SUM_BLOCKS])
    source = f"reduce-scatters of {ranks.group.size} ranks that the chunk engine sums in bulk"
    return {"engine_sum_gbps": {"points": points, "source": source}}


def rising(points: list[tuple[int, float | None]]) -> list[list[float]]:
    return [[blocks, gbps] for blocks, gbps in points if gbps]


class Copies:
    """Copies between this rank and the next one, as the runtime's: a heap's memory, by the stream's own copies."""

    def __init__(self, group: Group) -> None:
        most = COPIED[-1]
        heap = _syncopate.SymmetricHeap("cuda", group.ordinal, group.rendezvous, most + (2 << 20))
        offset = heap.allocate(most)
        self.heap = heap
        self.theirs = heap.array((group.rank + 1) % group.size, offset, most)
        self.mine = torch.zeros(most, dtype=torch.uint8, device="cuda")

    def push(self, size: int) -> None:
        self.theirs[:size].copy_(self.mine[:size])

    def pull(self, size: int) -> None:
        self.mine[:size].copy_(self.theirs[:size])


def link_figures(ranks: Ranks, copies: Copies) -> dict[str, float]:
    """Of the topology: the rate of copies, what one takes to start, and what each further one of a row takes."""
    small, large = COPIED
    nothing = ranks.time(lambda: None)
    one = ranks.time(lambda: copies.push(small))
    row = ranks.time(lambda: [copies.push(small) for _ in range(1 + IN_A_ROW)])
    gbps = (large - small) / max(ranks.time(lambda: copies.push(large)) - one, 1e-3) / 1e3
    bytes_us = small / gbps / 1e3
    pulled = ranks.time(lambda: copies.pull(small))
    return {
        "gbps": gbps,
        "push_us": max(0.5, one - nothing - bytes_us),
        "pull_us": max(0.5, pulled - nothing - bytes_us),
        "repeat_us": max(0.1, (row - one) / IN_A_ROW - bytes_us),
    }


def product_beside_copies(ranks: Ranks, copies: Copies) -> float:
    """How many times as long a product takes while copies leave and come, about as long as it does."""
    product, side = Beside(0), torch.cuda.Stream()

    def both() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                copies.push(COPIED[-1])
        product.run()

    return max(1.0, ranks.time(both) / ranks.time(product.run))


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


def between_ranks(ranks: Ranks, say: Say, shared: bool = False) -> dict[str, Any]:
    """Collective. `shared`: ranks take turns on one GPU, so that a signal is waited for in vain."""
    of_copies, figures = engine_copies(ranks, say)
    tables = {name: of for name, of in (of_copies | engine_sums(ranks, say)).items() if of["points"]}
    copies = Copies(ranks.group)
    links = link_figures(ranks, copies)
    say("copies by size and direction")
    beside = "a product of 4096 x 8192 x 8192 beside copies of 512 MiB"
    figures["beside_copies"] = (product_beside_copies(ranks, copies), beside)
    say("a product beside copies")
    if not shared:
        links["signal_us"] = signal_us(ranks)
    say("a signal between GPUs")
    return {"tables": tables, "figures": figures, "links": links}
