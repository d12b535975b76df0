"""For how many rows a strategy is chosen.

M changes from batch to batch. A strategy, and with it the compiled kernel, is chosen for a bucket of M; a new M in it gets
new tables only. Tiles along K, and the order of sums, are the strategy's. So within a bucket a row has the same bits
whatever M is and whichever rank owns it. The deterministic mode is one bucket for every M.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import torch

from ..call.arguments import require_whole

#: Buckets end at powers of two up to the first of these, and then at multiples of it.
STEP = 1024

_pinned: int | None = None
_generation = 0
on_change: list[Callable[[int], None]] = []  # who keeps what was chosen


def bucket(m: int) -> int:
    """The number of rows for which the strategy of M = m is chosen: m rounded up."""
    if _pinned is not None:
        return _pinned
    if m <= STEP:
        return next(size for size in (1 << n for n in itertools.count(4)) if m <= size)
    return -(-m // STEP) * STEP


def generation() -> int:
    """Changes with the mode: what was chosen in another one is not used."""
    return _generation


@contextlib.contextmanager
def deterministic(rows: int = 4096) -> Iterator[None]:
    """One strategy for every M, the one for `rows`: the bits of a row of a result then depend neither on the batch that it
    comes in nor on the rank that owns it. All ranks enter and leave alike. Not within a function that is compiled: enter it
    around the call.

    What is not fused is as deterministic as cuBLAS and NCCL.
    """
    require_whole("rows", rows, least=1)
    if rows >= 1 << 40:
        raise ValueError(f"rows: expected fewer than 2^40, got {rows}")
    if torch.compiler.is_compiling():  # the mode would last while the function is traced, not while it runs
        raise RuntimeError(
            "sy.deterministic within a compiled function: enter it around the call of that function"
        )
    before = _pinned, _generation
    _set(rows, rows)
    try:
        yield
    finally:
        _set(*before)


def _set(pinned: int | None, number: int) -> None:
    global _pinned, _generation
    _pinned, _generation = pinned, number
    for told in on_change:
        told(number)
