"""Who chooses: the strategy of a problem, by what was fastest where it was measured (docs/performance.md), and what a
strategy leaves open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .cuts import choose_cut
from .model import DEDICATED, Problem, Strategy
from .reduce_ways import (
    blocks_after_kernel,
    choose_all_reduce_way,
    choose_reduce_scatter_way,
    stored_at_peers,
)
from .tiling import Tiling, choose_tiling, gemm_tiles

ENGINE_BLOCKS = 8  # multiprocessors of the chunk engine that reach the speed of a link
MOST_PARTS = 4  # of a shard, in an all-reduce, each of two rounds of tiles
REDUCTIONS = ("matmul_reduce_scatter", "matmul_all_reduce")
SENDS_ITS_PRODUCT = (*REDUCTIONS, "matmul_all_to_all")

#: Tiles with which a small problem has several of them, for Triton's interpreter.
SMALL = Tiling(32, 32, 32, 2, -1, "ieee", 2)


def _cut(problem: Problem) -> Strategy:
    p = problem
    return choose_cut(p.m, p.n, p.k, p.ranks, p.dtype, p.num_sms)


def _scattered(problem: Problem) -> Strategy:
    p = problem
    return choose_reduce_scatter_way(p.m, p.n, p.k, p.dtype, p.ranks, p.num_sms).strategy


def _reduced(problem: Problem) -> Strategy:
    p = problem
    return choose_all_reduce_way(p.m, p.n, p.k, p.dtype, p.ranks, p.num_sms).strategy


CHOOSERS: dict[str, Callable[[Problem], Strategy]] = {
    "all_gather_matmul": _cut,
    "all_to_all_matmul": _cut,
    "matmul_reduce_scatter": _scattered,
    "matmul_all_reduce": _reduced,
}


def choose(problem: Problem) -> Strategy:
    """The fastest known, complete. On the host none is faster than another."""
    chooser = CHOOSERS.get(problem.operator) if problem.device == "cuda" else None
    return complete(problem, chooser(problem) if chooser else Strategy())


def complete(problem: Problem, given: Strategy) -> Strategy:
    """`given` with everything that it leaves open."""
    made = _with_engine(problem, given)
    beside = problem.device == "cuda" and made.backend in DEDICATED and not made.plain_kernel
    programs = made.programs or problem.num_sms - (made.engine_blocks if beside else 0)
    shapes = problem.products
    tilings = made.tilings or tuple(choose_tiling(*shape, problem.dtype, programs) for shape in shapes)
    if len(tilings) == 1:
        tilings *= len(shapes)
    made = replace(made, programs=programs, tilings=tilings)
    if problem.device == "cuda" and made.backend == "auto" and problem.operator in SENDS_ITS_PRODUCT:
        made = _with_backend(problem, made)
    return replace(made, split=made.split or 1)


def _with_engine(problem: Problem, given: Strategy) -> Strategy:
    """With the backend of owners that read contributions, and the blocks of the chunk engine."""
    blocks = given.engine_blocks
    if problem.operator in REDUCTIONS and given.backend == "auto" and (given.plain_kernel or given.pull):
        if given.plain_kernel and blocks is None:
            blocks = blocks_after_kernel(problem.m, problem.n, problem.dtype, problem.ranks)
        given = replace(given, backend="ldst_dedicated")
    return replace(given, engine_blocks=ENGINE_BLOCKS if blocks is None else blocks)


def _with_backend(problem: Problem, given: Strategy) -> Strategy:
    """How what a product makes leaves a GPU: copied, or stored at its destination tile by tile."""
    tiles = gemm_tiles(problem.m, problem.n, given.tilings[0])
    if problem.operator == "matmul_all_reduce" and given.split is None:
        # While one part is made, the one before is summed and sent.
        split = max(1, min(MOST_PARTS, round(tiles / given.programs / 2)))
        given = replace(given, split=split)
        if split > 1:
            return given
    one_way = not (given.stored or given.pulled)
    if one_way and stored_at_peers(problem.m // max(problem.ranks, 1), tiles, given.programs):
        return replace(given, backend="tma_inline")
    return given
