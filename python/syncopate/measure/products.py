"""Products timed by the library's Gluon kernel in many tiles: its figures are fitted to these times (C++,
tune/machine/product_fit.hpp). Part of `syncopate tune --measure-machine`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from ..kernels.gluon_launch import GluonTiling
from ..kernels.gluon_tiles import ranked

#: M, N, K: few rows and many, weights that a cache holds and others, whole rounds of tiles and not, one round and several.
SHAPES = (
    (16, 3584, 8192),
    (64, 4096, 4096),
    (128, 3584, 8192),
    (256, 8192, 3584),
    (512, 1792, 4096),
    (512, 6144, 12288),
    (1024, 2304, 7168),
    (2048, 4096, 4096),
    (4096, 4096, 1024),
)
TILINGS = 6  # of each shape, at most
AT_LEAST_US = 200  # of calls in one graph: what its launch takes does not count
CACHE_BYTES = 120e6  # more than any GPU's cache holds: the weights of a call come from memory


@dataclass(frozen=True)
class GluonRun:
    """One product by the Gluon kernel in one tiling."""

    shape: tuple[int, int, int]
    tiling: GluonTiling

    @property
    def name(self) -> str:
        t = self.tiling
        split = f", K in {t.split_k}" if t.split_k > 1 else ""
        return f"{'x'.join(map(str, self.shape))} by {t.block_m}x{t.block_n}{split}"

    def timed(self, us: float) -> list[float]:
        """As C++ reads it (measured.hpp)."""
        t = self.tiling
        return [*self.shape, t.block_m, t.block_n, t.block_k, t.stages, t.split_k, us]


def gluon_runs(sms: int) -> list[GluonRun]:
    """The first ones of each shape, then the second ones: whenever the time is over, all shapes have been timed alike. Tiles of
    all sizes, those first that another machine's figures take for quick."""
    of_shapes = []
    for shape in SHAPES:
        tilings = [tiling for tiling, _ in ranked(*shape, sms)]
        # Of each size its best split of K, then further ones.
        first = {(t.block_m, t.block_n): t for t in reversed(tilings)}
        best = sorted(first.values(), key=tilings.index)
        of_shapes.append((best + [t for t in tilings if t not in best])[:TILINGS])
    return [
        GluonRun(shape, tilings[turn])
        for turn in range(TILINGS)
        for shape, tilings in zip(SHAPES, of_shapes, strict=True)
        if turn < len(tilings)
    ]


def repeats(m: int, n: int, k: int) -> tuple[int, int]:
    """How many sets of operands leave no weights in the cache, and how many calls with these in turn make a graph."""
    copies = min(max(2, math.ceil(CACHE_BYTES / (2 * (m * k + k * n + m * n)))), 8)
    return copies, copies * max(1, round(AT_LEAST_US / max(m * n * k * 2 / 600e6, 10) / copies))


def gluon_calls(run: GluonRun, sms: int) -> list[Callable[[], None]]:
    """Calls in a row, each with other operands than the one before."""
    import torch

    from ..kernels.gluon_launch import gluon_arguments, make_workspace
    from ..kernels.gluon_matmul import gluon_matmul

    m, n, k = run.shape
    copies, count = repeats(m, n, k)
    grid = run.tiling.grid(m, n, sms)

    def call() -> Callable[[], None]:
        a, w = (torch.randn(*size, dtype=torch.bfloat16, device="cuda") for size in ((m, k), (k, n)))
        c = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        workspace = make_workspace(run.tiling, m, n, a.device, False)
        arguments = gluon_arguments(a, w, c, run.shape, run.tiling, workspace=workspace)
        return lambda: gluon_matmul[grid](**arguments, **run.tiling.options())

    made = [call() for _ in range(copies)]
    return list(itertools.islice(itertools.cycle(made), count))
