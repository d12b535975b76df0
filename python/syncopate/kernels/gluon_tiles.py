"""Which tiles of kernels.gluon_matmul make a product soonest: an estimate whose rates were fitted to one H200's times of all
candidates (bench/results/gemm_1xH200.csv). Over its 56 products the choice takes 1.004 of the best candidate's time, and
1.11 at most (tests/python/test_gluon_tiles.py)."""

from __future__ import annotations

from dataclasses import replace

from .gluon_launch import MAX_SPLIT_TILES, GluonTiling

#: Tiles, with the stages that fit into a multiprocessor's shared memory; of 16-bit types.
TILINGS = (
    GluonTiling(64, 64, 128, 6),
    GluonTiling(64, 128, 64, 8),
    GluonTiling(64, 256, 64, 4),
    GluonTiling(128, 64, 64, 7),
    GluonTiling(128, 128, 64, 5),
    GluonTiling(128, 256, 64, 3),
)
SPLITS = (1, 2, 3, 4, 6, 8)
ITEM = 2  # bytes

# Of one multiprocessor while all work, and of the memory that they share.
FLOPS_PER_US = 6.66e6
NARROW_RATE = 0.84  # of it, by wgmma of 64 columns
LOAD_BYTES_PER_US = 1.28e5
TILE_US = 1.13  # its begin and end
SPLIT_US, SPLIT_BYTES_PER_US = 9.85, 1e5  # to hand over partial sums, and to read them
MEMORY_BYTES_PER_US = 6.36e6
FILLED = (
    1.42  # so many times the share of multiprocessors that work is the share of that rate which they reach
)
LAUNCH_US = 4.36


def product_us(m: int, n: int, k: int, t: GluonTiling, programs: int) -> float:
    """µs of [m, k] @ [k, n], 16-bit, on an H200 of which `programs` multiprocessors are free."""
    tiles = t.tiles(m, n)
    at_once = min(tiles, max(programs // t.split_k, 1))
    blocks = -(-k // t.block_k)
    depth = -(-blocks // t.split_k) * t.block_k
    rate = FLOPS_PER_US * (1.0 if t.block_n >= 128 else NARROW_RATE)
    multiply = 2 * t.block_m * t.block_n * depth / rate
    load = ITEM * (t.block_m + t.block_n) * depth / LOAD_BYTES_PER_US
    tile = max(multiply, load) + TILE_US
    if t.split_k > 1:
        tile += SPLIT_US + 4 * t.split_k * t.block_m * t.block_n / SPLIT_BYTES_PER_US
    working = min(at_once * t.split_k / programs * FILLED, 1.0)
    memory = ITEM * (n * k + m * k + m * n) / MEMORY_BYTES_PER_US / working
    return max(-(-tiles // at_once) * tile, memory) + LAUNCH_US


def candidates(m: int, n: int, k: int, programs: int) -> list[GluonTiling]:
    """Those that were measured for such a product: K is split where less than a third of the programs would have a tile, and
    into no more parts than there are programs, and blocks of K."""
    found = []
    for t in TILINGS:
        tiles = t.tiles(m, n)
        if t.block_m == 128 and m <= 64:
            continue
        few = []
        for split in SPLITS:
            fits = tiles * split <= programs * 1.05 and tiles <= MAX_SPLIT_TILES
            if split > 1 and not (fits and split <= -(-k // t.block_k)):
                continue
            made = replace(t, split_k=split)
            if tiles * split < programs / 3 and split != SPLITS[-1]:
                few = [made]
            else:
                found.append(made)
        found += few if not any(replace(one, split_k=1) == t for one in found) else []
    return found


def quickest(m: int, n: int, k: int, programs: int) -> GluonTiling:
    """By the estimate; among equals the first of `candidates`."""
    return min(candidates(m, n, k, programs), key=lambda t: product_us(m, n, k, t, programs))
