"""Shards of rows, one a rank, and sums over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def rows_of(m: int, size: int, rank: int) -> slice:
    """Those of `rank`'s shard of m rows; the first m % size ranks have one row more."""
    base, extra = divmod(m, size)
    first = rank * base + min(rank, extra)
    return slice(first, first + base + (rank < extra))


def count(rows: slice) -> int:
    return rows.stop - rows.start


def summed(parts: Sequence[torch.Tensor] | Any) -> torch.Tensor:
    """In rank order as fp32, rounded once: as the runtime sums."""
    total = None
    for part in parts:
        dtype = part.dtype
        total = part.float() if total is None else total + part.float()
    return total.to(dtype)
