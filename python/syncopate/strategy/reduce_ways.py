"""How the sum over ranks of a product is best made, by the number of ranks and a model of the time it takes. The model's
figures are those of 4 and 8 x H200 (docs/performance.md, GEMM + all-reduce: "Which way"); times are in µs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .model import Strategy
from .tiling import NARROW, WIDE, choose_tiling, gemm_tiles, makespan

AFTER_ROWS = 128  # rows a rank, up to which an all-reduce follows its product
AFTER_ROWS_OF_ALL = 1024  # rows of all ranks, the same, from MANY ranks on
AFTER_BYTES = 9 << 20  # bytes of the product, the same
MANY = 4  # ranks from which on the chunk engine beside the kernel is quicker than copies
UNITS_OF_A_BLOCK = 1024  # of 16 bytes, that a block of the engine has on their way at once
BLOCKS_AFTER_OF_TWO = 128  # of the chunk engine after the kernel, on two ranks; on more ranks:
BLOCKS_AFTER = 32  # more slow each other down (four GPUs)
ENGINE_BYTES_PER_US = {8: 225e3, 12: 278e3, 16: 290e3}  # by multiprocessors: read and stored, beside a GEMM
FLOPS_PER_US = 750e6  # a large bf16 product without anything beside it
PARTS = (8, 4, 2)
PART_US = 5.0  # what one more part takes
LAST_US = 10.0  # what is left at the end, and begins
STALL_BYTES_PER_US = 700e3  # what tiles stored at peers keep the kernel
STORE_BYTES_PER_US = 320e3  # sums stored at all ranks, when nothing else runs
INLINE_US = 12.0
TILE_ROWS, TILE_COLUMNS = 128, 256  # of a wide tile
SMALL_SHARD = 512  # rows a rank, up to which one round of tiles is stored at its destination
SMALLEST_SHARD = 128  # rows a rank, the same for any number of rounds, from 8 ranks on
SMALL_CHUNK = 4 << 20  # bytes of a shard up to which starting copies for 7 and more peers takes too long
AFTER_US = 12.0  # what an engine that follows takes beside its bytes
AFTER_BYTES_PER_US = {MANY: 345e3, 8: 300e3}  # by ranks from which on: read and stored when nothing else runs
PULLED_US = 40.0
PULLED_US_PER_BYTE = 0.5e-6  # of what is read and stored beside the product, that slows it
COPY_BYTES_PER_US = 345e3
COPY_US = 6.0  # from one copy to the next
SUM_BYTES_PER_US = 3.4e6  # read and stored in a GPU's own memory
READ_BYTES_PER_US = 270e3  # by a sum, at another rank whose sum reads here
READ_US = 11.0
LONG_ROUNDS = 6  # of tiles stored at their owners, from which on that is best done in parts
LONG_PARTS = 4

#: By kind, what the numbers in a way's name are.
NUMBERS_OF = {
    "after": ["engine_blocks"],
    "beside": ["engine_blocks", "split"],
    "inline": ["split"],
    "mixed": ["stored"],
    "narrow": ["stored"],
    "fused": ["split"],
    "pulled": ["split"],
    "pulled_last": ["pulled"],
}

COUNTED = ("mixed", "narrow", "pulled_last")  # whose number is of contributions, at least one


@dataclass(frozen=True)
class Way:
    """How owners get the contributions to their sums, and all ranks the sums.

    kind      "after": by the chunk engine when the kernel, left as it is, has ended; "beside": by the chunk engine on
              `engine_blocks` multiprocessors that the kernel leaves free, one of `split` parts after another; "pulled": by
              the sums, kernels that run beside the product's on what it leaves of all multiprocessors, one a part;
              "inline": tiles are stored at the owners, whose sums store themselves at all ranks; "mixed": of each rank's
              contributions the last `stored` so, the others copied; "narrow": the same by narrow tiles; "fused": copied, as
              an operator does by itself, or with `split` in so many parts of columns; "pulled_last": copied, but the last `pulled`
              contributions of each rank, which the sums read where they are. `sum_parts`: of a reduce-scatter's sums, at most
    """

    kind: str
    engine_blocks: int = 8
    split: int = 1
    stored: int = 0
    pulled: int = 0
    sum_parts: int = 8

    @classmethod
    def named(cls, text: str) -> Way:
        """From "beside:16:8": a kind, multiprocessors (or blocks) of the engine, and parts. Raises ValueError for anything else."""
        kind, *numbers = text.split(":")
        names = NUMBERS_OF.get(kind)
        if names is None:
            raise ValueError(f"way '{text}': expected {', '.join(NUMBERS_OF)}")
        if len(numbers) > len(names) or not all(n.isdecimal() and int(n) > 0 for n in numbers):
            raise ValueError(
                f"way '{text}': expected {kind} with up to {len(names)} numbers from 1 on after it"
            )
        given = dict(zip(names, map(int, numbers), strict=False))
        return cls(kind, **dict.fromkeys(names, 1) | given) if kind in COUNTED else cls(kind, **given)

    def __str__(self) -> str:
        numbers = [getattr(self, name) for name in NUMBERS_OF[self.kind]]
        if numbers == [1] and self.kind not in COUNTED:  # one part is no part
            numbers = []
        return ":".join(map(str, [self.kind, *numbers]))

    @property
    def strategy(self) -> Strategy:
        parts: dict[str, Any] = {"split": self.split, "split_axis": 1} if self.split > 1 else {}
        chosen: dict[str, Any] = {
            "after": {"plain_kernel": True, "backend": "ldst_dedicated", "engine_blocks": self.engine_blocks},
            "beside": {
                "pull": True,
                "backend": "ldst_dedicated",
                "engine_blocks": self.engine_blocks,
                "split": self.split,
            },
            "inline": {"backend": "tma_inline", **parts},
            "mixed": {"stored": self.stored},
            "narrow": {"stored": self.stored, "tilings": (NARROW,)},
            "fused": {"sum_parts": self.sum_parts, **parts},
            "pulled": {"pull": True, "backend": "ldst_inline", **parts},
            "pulled_last": {"pulled": self.pulled, "sum_parts": 1},
        }
        return Strategy(**chosen[self.kind])


def product_us(m: int, n: int, k: int, dtype: torch.dtype, programs: int, num_sms: int) -> float:
    """Of x [m, k] @ w [k, n] by so many programs, as its tiles fill them; `num_sms` programs reach FLOPS_PER_US."""
    tiling = choose_tiling(m, n, k, dtype, programs)
    wide = -(-n // TILE_COLUMNS) if tiling.num_wide < 0 else tiling.num_wide
    narrow = max(0, -(-2 * (n - wide * TILE_COLUMNS) // TILE_COLUMNS))
    tiles = makespan(-(-m // TILE_ROWS), wide, narrow, programs)
    return tiles * 2 * TILE_ROWS * TILE_COLUMNS * k * num_sms / FLOPS_PER_US


def blocks_after_kernel(m: int, n: int, dtype: torch.dtype, size: int) -> int:
    """Blocks of the chunk engine that sum a rank's part of [m, n] after the kernel: what keeps the links busy, and no more."""
    units = -(-m // size) * n * dtype.itemsize // 16
    return max(1, min(BLOCKS_AFTER_OF_TWO if size <= 2 else BLOCKS_AFTER, -(-units // UNITS_OF_A_BLOCK)))


def follows_product(m: int, n: int, dtype: torch.dtype, size: int) -> bool:
    """Whether an all-reduce of [m, n] is best done when its product is there, by all multiprocessors: then the product's
    kernel runs without a line added, which at so few tiles would cost more than sending under them hides."""
    few = m <= max(AFTER_ROWS * size, AFTER_ROWS_OF_ALL if size >= MANY else 0)
    return size > 1 and (few or m * n * dtype.itemsize <= AFTER_BYTES)


def rounds_of(m: int, n: int, k: int, dtype: torch.dtype, num_sms: int) -> float:
    """Rounds that a program for each multiprocessor takes to make all tiles."""
    return gemm_tiles(m, n, choose_tiling(m, n, k, dtype, num_sms)) / num_sms


def parts_of_rounds(m: int, n: int, num_sms: int) -> int:
    """Into how many parts of columns [m, n] is to be cut, so that one round of wide tiles makes each; 1 where none fits. Cut
    elsewhere, a part would be complete only a round after most of it."""
    rows, columns = -(-m // TILE_ROWS), -(-n // TILE_COLUMNS)
    parts = -(-rows * columns // num_sms)
    fits = n % (parts * TILE_COLUMNS) == 0 and rows * columns // parts <= num_sms
    return parts if fits else 1


def choose_all_reduce_way(m: int, n: int, k: int, dtype: torch.dtype, size: int, num_sms: int) -> Way:
    """Of all_reduce(x [m, k] @ w [k, n]) over `size` GPUs with `num_sms` multiprocessors each."""
    step = (size - 1) / max(size, 1) * m * n * dtype.itemsize  # bytes to a rank in each of two steps
    parts = parts_of_rounds(m, n, num_sms) if dtype.itemsize <= 2 else 1
    if follows_product(m, n, dtype, size):
        after = Way("after", blocks_after_kernel(m, n, dtype, size))
        if size < MANY or parts < 2:
            return after
        rate = max((ranks, rate) for ranks, rate in AFTER_BYTES_PER_US.items() if ranks <= size)[1]
        last = 2 * step / parts
        pulled_us = last / rate + PULLED_US + PULLED_US_PER_BYTE * (2 * step - last)
        return Way("pulled", split=parts) if pulled_us < AFTER_US + 2 * step / rate else after
    if size > 1 and size < MANY and m <= AFTER_ROWS_OF_ALL and parts > 2:
        return Way("pulled", split=parts)
    if size < MANY or dtype.itemsize > 2:
        return Way("fused")
    times: dict[Way, float] = {}
    for blocks, rate in ENGINE_BYTES_PER_US.items():
        product = product_us(m, n, k, dtype, num_sms - blocks, num_sms)
        moving = 2 * step / rate
        for parts in PARTS:
            if n % (parts * TILE_COLUMNS) == 0:
                overlapped = max(product, moving) + min(product, moving) / parts
                times[Way("beside", blocks, parts)] = overlapped + PART_US * parts + LAST_US
    if size == MANY:  # with more it was not measured
        product = product_us(m, n, k, dtype, num_sms, num_sms)
        long = rounds_of(m, n, k, dtype, num_sms) >= LONG_ROUNDS and n % (LONG_PARTS * TILE_COLUMNS) == 0
        inline = Way("inline", split=LONG_PARTS if long else 1)
        times[inline] = product + step / STALL_BYTES_PER_US + step / STORE_BYTES_PER_US + INLINE_US
    return min(times, key=times.__getitem__, default=Way("fused"))


def stored_at_peers(rows: int, tiles: int, programs: int) -> bool:
    """Whether chunks of `rows` rows for each rank are best stored straight into the peers' memory: of a product of one round
    of tiles, with few rows. Else that would stall the multiprocessors at the speed of the links, where a copy engine sends
    chunks under the next tiles (bench/gemm_rs)."""
    return rows <= SMALL_SHARD and tiles <= programs


def made_last(tiles: int, programs: int, size: int) -> int:
    """How many of the `size` - 1 shards for others some tile of the last round makes: a copy of such a one leaves when the
    kernel has ended, where its tiles, stored at the owner, are there by then."""
    last_round = (-(-tiles // programs) - 1) * programs
    return sum(shard * tiles / size > last_round for shard in range(1, size))


def copied_way(m: int, n: int, k: int, dtype: torch.dtype, size: int, num_sms: int) -> Way:
    """Of a reduce-scatter whose contributions are copied: where that takes longer than to multiply, in parts of columns, or all
    but the last contribution, by which of them would end first. A part leaves earlier, and less is left to sum at the end;
    but each has its own copies. What is read in its place is not awaited, but loads are slower than copies."""
    product = product_us(m, n, k, dtype, num_sms, num_sms)
    contribution = -(-m // max(size, 1)) * n * dtype.itemsize
    summed = (size + 1) * contribution / SUM_BYTES_PER_US

    def copied(count: int, parts: int = 1) -> float:
        one = COPY_US + contribution / parts / COPY_BYTES_PER_US
        last_made = product * (1 - 1 / (size * parts))
        return max(product / (size * parts) + count * parts * one, last_made + one, product)

    if size < 2 or copied(size - 1) <= product:
        return Way("fused")
    # Where the last copy comes when the own part has long been made, a sum in parts of its own only takes more launches.
    times = {
        Way("fused", split=parts, sum_parts=1): copied(size - 1, parts) + summed / parts + PART_US * parts
        for parts in (1, 2, 4)
        if parts == 1 or n % (parts * TILE_COLUMNS) == 0
    }
    if size > 2:
        read = contribution / READ_BYTES_PER_US
        times[Way("pulled_last", pulled=1)] = copied(size - 2) + read + READ_US
    return min(times, key=times.__getitem__)


def choose_reduce_scatter_way(m: int, n: int, k: int, dtype: torch.dtype, size: int, num_sms: int) -> Way:
    """Of reduce_scatter(x [m, k] @ w [k, n]) over `size` GPUs with `num_sms` multiprocessors each. From 8 ranks on a copy
    engine takes longer to start its many copies than to make the smaller ones."""
    many = size >= 8
    tiling = choose_tiling(m, n, k, dtype, num_sms)
    rows, tiles = m // max(size, 1), gemm_tiles(m, n, tiling)
    whole_tiles = m % (TILE_ROWS * size) == 0  # a tile is copied, or stored at one owner
    if stored_at_peers(rows, tiles, num_sms):
        # What one round of wide tiles makes all leaves when they end. Narrow ones take two, so what the first makes is under
        # way by then, a contribution of it by the copy engine, which does not keep the multiprocessors.
        two_rounds = size > 2 and tiles > num_sms // 2 and tiling == WIDE
        return Way("narrow", stored=size - 2) if two_rounds and whole_tiles else Way("inline")
    if rows <= (SMALLEST_SHARD if many else SMALL_SHARD) and dtype.itemsize <= 2 and whole_tiles:
        stored = made_last(tiles, num_sms, size)
        if stored:
            return Way("mixed", stored=stored)
    if many and rows <= SMALLEST_SHARD:
        return Way("inline")
    if many and dtype.itemsize <= 2 and rows * n * dtype.itemsize <= SMALL_CHUNK:
        return Way("beside", 16, 4)
    return copied_way(m, n, k, dtype, size, num_sms)
