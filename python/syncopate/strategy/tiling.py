"""Which tiles cover a product."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import torch

# A narrow tile (half as wide) takes this share of a wide one's time: its shared-memory traffic per product is
# higher. Measured on H200, bf16: 0.61 to 0.63 by the two warpgroups that a wide one needs, 0.51 to 0.53 by one, where there
# are no wide ones (docs/performance_log.md).
NARROW_COST = 0.62
NARROW_ALONE_COST = 0.54


@dataclass(frozen=True)
class Tiling:
    """Which tiles cover an M x N product: `num_wide` columns of wide tiles, the rest in narrow ones."""

    block_m: int
    block_n: int
    block_k: int
    stages: int
    num_wide: int  # -1: one tile shape (block_n) throughout
    precision: str = "tf32"
    group_m: int = 8


#: For 16-bit products of more than a few tiles.
WIDE = Tiling(128, 256, 64, 4, -1)
NARROW = Tiling(128, 128, 64, 6, -1)


def makespan(rows: int, wide: int, narrow: int, programs: int) -> float:
    """Time, in wide tiles, of rows x (wide + narrow) tiles on `programs` programs, wide ones first."""
    ends = [0.0] * programs
    for _ in range(rows * wide):
        heapq.heapreplace(ends, ends[0] + 1.0)
    for _ in range(rows * narrow):
        heapq.heapreplace(ends, ends[0] + NARROW_COST)
    return max(ends)


def choose_tiling(m: int, n: int, k: int, dtype: torch.dtype, num_sms: int) -> Tiling:
    """The tiling with the shortest simulated makespan; among equals, the one with the most wide tiles. Small tiles for a
    product of few."""
    size = dtype.itemsize
    if size > 2:
        exact = not torch.backends.cuda.matmul.allow_tf32
        # Without tensor cores a tile lives in registers: small, or it spills.
        return Tiling(64, 64, 32, 2, -1, "ieee") if exact else Tiling(128, 128, 32, 4, -1)
    # Few tiles are best made by many multiprocessors: the smallest that do in one round (docs/performance_log.md).
    for small in (Tiling(64, 64, 128, 6, -1), Tiling(64, 128, 128, 4, -1)):
        if gemm_tiles(m, n, small) <= num_sms:
            return small
    if m <= 64:
        return Tiling(64, 128, 64, 5, -1)
    rows = -(-m // 128)
    columns = -(-n // 256)

    def time(wide: int) -> float:
        narrow = max(0, -(-(n - wide * 256) // 128))
        return makespan(rows, wide, narrow, num_sms) * (1.0 if wide else NARROW_ALONE_COST / NARROW_COST)

    best = min(range(columns, -1, -1), key=lambda wide: (round(time(wide), 3), -wide))
    if best == columns:
        return WIDE
    return replace(WIDE, num_wide=best) if best else NARROW


def gemm_tiles(m: int, n: int, t: Tiling) -> int:
    if t.num_wide >= 0:
        columns = t.num_wide + max(0, -(-(n - t.num_wide * t.block_n) // (t.block_n // 2)))
    else:
        columns = -(-n // t.block_n)
    return -(-m // t.block_m) * columns
