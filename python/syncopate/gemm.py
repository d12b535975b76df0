"""The products behind the operators: which tiles cover them, and what kernels.matmul and kernels.matmul_mixed are given."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Any

import torch

from .fused import DTYPE_NAMES

# A narrow tile (half as wide) takes this share of a wide one's time: its shared-memory traffic per product is
# higher. Measured on H200, bf16: 0.61 to 0.63 by the two warpgroups that a wide one needs, 0.51 to 0.53 by one, where there
# are no wide ones (bench/results/gemm_warps_1xH200_2026-11-22.txt).
NARROW_COST = 0.62
NARROW_ALONE_COST = 0.54
PROGRAMS_ON_HOST = 4  # of a grid, where each is a thread's work in the interpreter


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
    # Few tiles are best made by many multiprocessors: the smallest that do in one round (bench/results/gemm_small_…).
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


def require_supported(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    """Raises ValueError for a product that the kernels here cannot do, saying why."""
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"expected dtype bf16, fp16 or fp32, got {dtype}")
    if min(m, n, k) < 1:
        raise ValueError(f"M, N and K must be at least 1, got {m}, {n} and {k}")
    multiple = 16 // dtype.itemsize
    for name, extent in (("N", n), ("K", k)):
        if extent % multiple:
            raise ValueError(
                f"{name} must be a multiple of {multiple} for {DTYPE_NAMES[dtype]} (TMA takes rows of 16 bytes), got {extent}"
            )


def gemm_tiles(m: int, n: int, t: Tiling) -> int:
    if t.num_wide >= 0:
        columns = t.num_wide + max(0, -(-(n - t.num_wide * t.block_n) // (t.block_n // 2)))
    else:
        columns = -(-n // t.block_n)
    return -(-m // t.block_m) * columns


def gemm_programs(m: int, n: int, t: Tiling, programs: int) -> int:
    """The grid: a program for each tile, at most `programs`."""
    return min(programs, gemm_tiles(m, n, t))


def gemm_arguments(
    m: int, n: int, k: int, t: Tiling, programs: int, w_transposed: bool,
    a: torch.Tensor, w: torch.Tensor, out: torch.Tensor, activation: str = "", bias: torch.Tensor | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of kernels.matmul, or of kernels.matmul_mixed, for a [m, k] (or a rank's shard of it), w and bias [n]."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    if a.shape[0] == 0:
        a = a.new_empty(1, k)  # a descriptor cannot be empty; this rank holds nothing that could be read
    split_store = 2 if t.block_n == 256 or t.num_wide >= 0 else 1

    def weights(width: int) -> Any:
        return TensorDescriptor.from_tensor(w, [width, t.block_k] if w_transposed else [t.block_k, width])

    arguments: dict[str, Any] = {
        "a_desc": TensorDescriptor.from_tensor(a, [t.block_m, t.block_k]),
        "b_desc": weights(t.block_n),
        "c_desc": TensorDescriptor.from_tensor(out, [t.block_m, t.block_n // split_store]),
        "M": m,
        "N": n,
        "K": k,
        "BLOCK_M": t.block_m,
        "BLOCK_N": t.block_n,
        "BLOCK_K": t.block_k,
        "GROUP_M": t.group_m,
        "NUM_SMS": programs,
        "B_TRANSPOSED": w_transposed,
        "PRECISION": t.precision,
        "ACTIVATION": activation,
    }
    if bias is not None:
        arguments["bias_ptr"] = bias
    if t.num_wide >= 0:
        arguments["b_narrow_desc"] = weights(t.block_n // 2)
        arguments["num_wide"] = t.num_wide
    else:
        arguments["SPLIT_STORE"] = split_store
    return arguments


def gemm_options(t: Tiling) -> dict[str, int]:
    # One warpgroup makes 128 x 128 of 16-bit inputs in 0.9 of two's time; fp32 comes in shorter blocks of K, and would spill.
    most = 128 * 128 if t.block_k >= 64 and t.num_wide < 0 else 64 * 128
    return {"num_warps": 4 if t.block_m * t.block_n <= most else 8, "num_stages": t.stages}
