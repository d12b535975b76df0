"""How what comes before a product is cut and sent, and into which tiles the product then goes (docs/performance.md)."""

from __future__ import annotations

import itertools

import torch

from .model import Chunking, Strategy
from .tiling import NARROW, WIDE, Tiling, choose_tiling, gemm_tiles

LINK_BYTES_PER_US = 340e3  # one copy engine, a shard of 16 MiB
FLOPS_PER_US = 700e6  # a large bf16 product
PHASE_US = 3.0  # what one more phase costs a tile
ENGINE_BLOCKS = 8  # multiprocessors of the chunk engine: more are slower beside a GEMM


def growing_slices(k: int, block_k: int, sending: float, multiplying: float) -> tuple[int, ...]:
    """Extents of slices along K for tiles of one wave, which all begin with the first slice: one slice is sent in the time
    in which the one before is multiplied, so that nobody waits again. As many as pay for a phase each. `sending`: µs of
    all that comes, `multiplying`: of a tile.
    """
    growth = min(max(multiplying / sending, 0.25), 8.0)
    shares = [sum(growth**i for i in range(n)) for n in range(1, 5)]
    count = min(range(1, 5), key=lambda n: sending / shares[n - 1] + PHASE_US * n)
    blocks = k // block_k
    edges = [round(blocks * shares[n] / shares[count - 1]) for n in range(count - 1)]
    for i in range(count - 1):
        edges[i] = max(edges[i], edges[i - 1] + 1 if i else 1)
    edges = [0, *(edge * block_k for edge in edges if edge < blocks), k]
    return tuple(end - begin for begin, end in itertools.pairwise(edges))


def choose_cut(m: int, n: int, k: int, size: int, dtype: torch.dtype, num_sms: int) -> Strategy:
    """Tiles and chunks by what was fastest on 2 and 4 x H200 (docs/performance.md, bench/results):

    - a product of one wave of tiles: the chunk engine, K in slices that grow. It is quicker than the copy engine with
      little data, each rank's first slices come early, and the multiprocessors that it takes are idle anyway;
    - sending takes more than 0.6 of the time of multiplying: K in two, peer by peer, in tiles of one shape (a kernel of
      two shapes has no phases), so that what is left to do when the last slice comes is half a tile. Narrow tiles
      where a shard's fit in one wave;
    - more than a third: at most two waves of tiles of one shape: K in two; else rows in two, or a small shard whole.
    """
    tiling = choose_tiling(m, n, k, dtype, num_sms)
    if dtype.itemsize > 2 or size == 1:
        return _by_copies(tiling, Chunking())
    shard = m // size * k * dtype.itemsize
    sending = (size - 1) * shard / LINK_BYTES_PER_US
    multiplying = 2 * m * n * k / FLOPS_PER_US
    phases = k % 128 == 0 and k >= 1024
    rows = -(-m // 128)
    if phases and m > 64 and shard >= 1 << 20:
        for one_wave in (NARROW, WIDE):
            if rows * -(-n // one_wave.block_n) <= num_sms - ENGINE_BLOCKS:
                tile = 2 * one_wave.block_m * one_wave.block_n * k * num_sms / FLOPS_PER_US
                slices = growing_slices(k, one_wave.block_k, sending, tile)
                return Strategy(
                    tilings=(one_wave,),
                    chunking=Chunking(1, slices),
                    backend="tma_dedicated",
                    engine_blocks=ENGINE_BLOCKS,
                )
        if sending > 0.6 * multiplying:
            fits = -(-rows // size) * -(-n // NARROW.block_n) <= num_sms
            return _by_copies(NARROW if fits else WIDE, Chunking(1, 2, peer_by_peer=True))
        if sending > multiplying / 3 and tiling.num_wide < 0 and gemm_tiles(m, n, tiling) <= 2 * num_sms:
            return _by_copies(tiling, Chunking(1, 2, peer_by_peer=True))
    return _by_copies(tiling, Chunking(2 if shard >= 16 << 20 and sending > multiplying / 3 else 1))


def _by_copies(tiling: Tiling, chunking: Chunking) -> Strategy:
    return Strategy(tilings=(tiling,), chunking=chunking)
