"""Which tiles cover a product."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from .. import _syncopate
from ..call.arguments import DTYPE_NAMES
from .brief import brief


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
    split_k: int = 1  # programs that share a tile's reduction, where the kernel can
    warps: int = 0  # of the plain kernel; 0: as many as such a tile usually takes

    __repr__ = brief

    @property
    def num_warps(self) -> int:
        """Of a program of the plain kernel."""
        return self.warps or _usual_warps(self.block_m, self.block_n, self.block_k, self.num_wide)


@lru_cache
def _usual_warps(block_m: int, block_n: int, block_k: int, num_wide: int) -> int:
    return _syncopate.tune.usual_warps(block_m, block_n, block_k, num_wide)


@lru_cache
def device_name() -> str:
    """Of this process's GPU, by which its machine file is found; "" without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def choose_tiling(m: int, n: int, k: int, dtype: torch.dtype, programs: int) -> Tiling:
    """The quickest by the estimate (C++: tune/candidates/tiles.hpp) for so many programs."""
    return Tiling(**_syncopate.tune.tiles(m, n, k, DTYPE_NAMES[dtype], programs, exact_fp32(), device_name()))


def exact_fp32() -> bool:
    """Whether fp32 products are to be exact, as torch is told."""
    return not torch.backends.cuda.matmul.allow_tf32


def gemm_tiles(m: int, n: int, t: Tiling) -> int:
    """How many tiles cover an m x n product."""
    if t.num_wide >= 0:
        columns = t.num_wide + max(0, -(-(n - t.num_wide * t.block_n) // (t.block_n // 2)))
    else:
        columns = -(-n // t.block_n)
    return -(-m // t.block_m) * columns
