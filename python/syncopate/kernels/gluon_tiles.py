"""Which tiles of kernels.gluon_matmul make a product soonest. What chooses is tune/candidates/gluon_tiles.hpp, in C++, by the machine's
figures: over the 88 products of bench/results/gemm_1xH200.csv the choice takes 1.007 of the best candidate's time, and 1.15 at
most; over the 51 of gemm_1xH100.csv 1.008 and 1.06 (tests/python/test_gluon_tiles.py)."""

from __future__ import annotations

from functools import lru_cache

from .. import _syncopate
from ..strategy import device_name
from .gluon_launch import GluonTiling


def ranked(m: int, n: int, k: int, programs: int, machine: str = "") -> list[tuple[GluonTiling, float]]:
    """Tiles for [m, k] @ [k, n], 16-bit, by so many programs, each with its estimate in µs; the quickest first."""
    found = _syncopate.tune.gluon_tiles(m, n, k, programs, machine, device_name())
    return [(GluonTiling(*tile), us) for *tile, us in found]


@lru_cache(maxsize=1024)
def quickest(m: int, n: int, k: int, programs: int) -> GluonTiling:
    return ranked(m, n, k, programs)[0][0]
