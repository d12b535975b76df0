"""Which tiles cover a product."""

from __future__ import annotations

from functools import lru_cache

import torch

from .. import _syncopate
from .._syncopate import Tiling
from ..call.arguments import DTYPE_NAMES


@lru_cache
def device_name() -> str:
    """Of this process's GPU, by which its machine file is found; "" without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def choose_tiling(m: int, n: int, k: int, dtype: torch.dtype, programs: int) -> Tiling:
    """The quickest by the estimate (C++: tune/candidates/tiles.hpp) for so many programs."""
    return _syncopate.tune.tiles(m, n, k, DTYPE_NAMES[dtype], programs, exact_fp32(), device_name())


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
