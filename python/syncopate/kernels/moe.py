"""Mixture of experts: the kernels of ops/moe.cpp, in Triton, for GPUs and for the host's interpreter: here its products; beside
them where rows lie (moe_layout.py), and how they go there and back (moe_rows.py)."""

import triton
import triton.language as tl

from ..language import (
    sy_acquire,
    sy_finish,
    sy_group,
    sy_group_rows,
    sy_num_slots,
    sy_post,
    sy_post_at_once,
    sy_post_last,
    sy_post_previous,
)
from .moe_layout import moe_count, moe_layout
from .moe_rows import _back, moe_combine, moe_dispatch, moe_return

__all__ = [
    "moe_combine",
    "moe_count",
    "moe_dispatch",
    "moe_down",
    "moe_layout",
    "moe_return",
    "moe_up",
]


@triton.jit
def _grouped_product(a_ptr, row, rows, w_ptr, first, second, n, N, K: tl.constexpr, STRIDE_K, STRIDE_N,
                     BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr,
                     PRECISION: tl.constexpr):  # fmt: skip
    """A tile of a group's product: rows [row, row + rows) of `a` [., K] times columns `n` of one matrix that begins `first`
    elements behind w_ptr, and, GATED, of another one at `second`. fp32, in rising order of K."""
    lane, column = tl.arange(0, BLOCK_M)[:, None], n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    a_row = a_ptr + (row + lane).to(tl.int64) * K
    one = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    other = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for begin in range(0, K, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        a = tl.load(a_row + k[None, :], mask=(lane < rows) & (k[None, :] < K), other=0.0)
        inside = (k[:, None] < K) & (column < N)
        at = k[:, None] * STRIDE_K + column * STRIDE_N
        w = tl.load(w_ptr + first + at, mask=inside, other=0.0)
        one = tl.dot(a, w, one, input_precision=PRECISION)
        if GATED:
            w = tl.load(w_ptr + second + at, mask=inside, other=0.0)
            other = tl.dot(a, w, other, input_precision=PRECISION)
    return one, other


@triton.jit
def _streamed_product(a_desc, row, w_desc, expert, first, second, K: tl.constexpr,
                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr):  # fmt: skip
    """_grouped_product of descriptors: of a [., K] and w [experts, K, .], of which the tile's columns begin at `first` and, GATED,
    at `second`. Rows behind the group's, and columns behind w's, are whatever lies there: nobody stores what they make. wgmma takes
    64 of its left operand's rows and 8 of its right one's columns: the weights are left, the few rows right."""
    one = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    other = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for begin in range(0, K, BLOCK_K):
        a = a_desc.load([row, begin]).T
        w = w_desc.load([expert, begin, first]).reshape(BLOCK_K, BLOCK_N)
        one = tl.dot(w.T, a, one)
        if GATED:
            w = w_desc.load([expert, begin, second]).reshape(BLOCK_K, BLOCK_N)
            other = tl.dot(w.T, a, other)
    return one.T, other.T


@triton.jit
def _activated(gate, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        gate = gate / (1.0 + tl.exp(-gate))
    elif ACTIVATION == "relu":
        gate = tl.maximum(gate, 0.0)
    return gate


@triton.jit
def _finite(value, DTYPE: tl.constexpr):
    """In DTYPE: fp16's largest where it is larger, as an infinity that only rounding made would give NaN gradients. A NaN stays."""
    if DTYPE == tl.float16:
        value = tl.where(value > 65504.0, 65504.0, tl.where(value < -65504.0, -65504.0, value))
    return value.to(DTYPE)


@triton.jit
def _tile_of_group(sy_schedule, slot, tile, COLUMNS: tl.constexpr):
    """Its expert; its first row, and how many it has; its column of tiles."""
    return sy_group(sy_schedule, slot), tile // COLUMNS, sy_group_rows(sy_schedule, slot), tile % COLUMNS


@triton.jit
def _up_tile(
    slot, x_ptr, w_ptr, a_ptr, h_ptr, sy_schedule, sy_control,
    H: tl.constexpr, F: tl.constexpr, COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STREAMED: tl.constexpr, KEPT: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    tile = sy_acquire(sy_schedule, sy_control, slot)
    expert, row, rows, n = _tile_of_group(sy_schedule, slot, tile, COLUMNS)
    w = expert.to(tl.int64) * (2 * H * F)
    if rows > 0:
        if OWN is not None:
            gate = OWN(x_ptr, w_ptr, expert, row, rows, n, H, F, BLOCK_M, BLOCK_N, BLOCK_K)
            up = gate
        elif STREAMED:
            gate, up = _streamed_product(
                x_ptr, row, w_ptr, expert, n * BLOCK_N, F + n * BLOCK_N, H, BLOCK_M, BLOCK_N, BLOCK_K, True
            )  # fmt: skip
        else:
            gate, up = _grouped_product(
                x_ptr, row, rows, w_ptr, w, w + F, n, F, H, 2 * F, 1, BLOCK_M, BLOCK_N, BLOCK_K, True, PRECISION
            )  # fmt: skip
        lane, column = tl.arange(0, BLOCK_M)[:, None], n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        made = gate if OWN is not None else _activated(gate, ACTIVATION) * up
        made = made.to(a_ptr.dtype.element_ty)
        inside = (lane < rows) & (column < F)
        at = (row + lane).to(tl.int64)
        tl.store(a_ptr + at * F + column, made, mask=inside)
        if KEPT:
            h = h_ptr + at * (2 * F) + column
            tl.store(h, _finite(gate, h_ptr.dtype.element_ty), mask=inside)
            tl.store(h + F, _finite(up, h_ptr.dtype.element_ty), mask=inside)
    sy_post(sy_schedule, sy_control, slot)


@triton.jit
def moe_up(
    x_ptr, w_ptr, a_ptr, h_ptr, turn_ptr, sy_schedule, sy_control,
    H: tl.constexpr, F: tl.constexpr, COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STREAMED: tl.constexpr, KEPT: tl.constexpr, OWN: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """a [., F] = act(x @ w[:, :F]) * (x @ w[:, F:]), of each expert's rows of x [., H] and its w [H, 2 F]. KEPT: h [., 2 F] is
    x @ w, for a backward pass. OWN: the user's function that makes a tile, or None. TURNS: some programs start when those that
    send have ended, so each takes the next tile when it has made one."""
    if TURNS:
        slots = sy_num_slots(sy_schedule)
        slot = tl.atomic_add(turn_ptr, 1, sem="relaxed")
        while slot < slots:
            _up_tile(slot, x_ptr, w_ptr, a_ptr, h_ptr, sy_schedule, sy_control, H, F, COLUMNS, ACTIVATION, PRECISION,
                     BLOCK_M, BLOCK_N, BLOCK_K, STREAMED, KEPT, OWN)  # fmt: skip
            slot = tl.atomic_add(turn_ptr, 1, sem="relaxed")
    else:
        for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
            _up_tile(slot, x_ptr, w_ptr, a_ptr, h_ptr, sy_schedule, sy_control, H, F, COLUMNS, ACTIVATION, PRECISION,
                     BLOCK_M, BLOCK_N, BLOCK_K, STREAMED, KEPT, OWN)  # fmt: skip
    sy_finish(sy_schedule, sy_control)


@triton.jit
def moe_down(
    a_ptr, w_ptr, origin_ptr, y_ptr, rank, stride, sy_schedule, sy_control,
    ROUTES: tl.constexpr, H: tl.constexpr, F: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STREAMED: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """a @ w, of each expert's rows of a [., F] and its w [F, H]; stored at the ranks of their tokens, by route. OWN: as of moe_up.
    A tile is posted when the next one is made: by then its stores have arrived, for which no program has to stand still."""
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        tile = sy_acquire(sy_schedule, sy_control, slot)
        expert, row, rows, n = _tile_of_group(sy_schedule, slot, tile, COLUMNS)
        w = expert.to(tl.int64) * (H * F)
        if rows > 0:
            if OWN is not None:
                made = OWN(a_ptr, w_ptr, expert, row, rows, n, F, H, BLOCK_M, BLOCK_N, BLOCK_K)
            elif STREAMED:
                made, _ = _streamed_product(
                    a_ptr, row, w_ptr, expert, n * BLOCK_N, 0, F, BLOCK_M, BLOCK_N, BLOCK_K, False
                )  # fmt: skip
            else:
                made, _ = _grouped_product(
                    a_ptr, row, rows, w_ptr, w, w, n, H, F, H, 1, BLOCK_M, BLOCK_N, BLOCK_K, False, PRECISION
                )  # fmt: skip
            sy_post_previous(sy_schedule, sy_control, slot)
            there = _back(y_ptr, origin_ptr, row, rows, rank, stride, ROUTES, H, BLOCK_M)
            lane, column = tl.arange(0, BLOCK_M)[:, None], n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
            tl.store(
                there[:, None] + column, made.to(y_ptr.dtype.element_ty), mask=(lane < rows) & (column < H)
            )
        else:
            sy_post_previous(sy_schedule, sy_control, slot)
        sy_post_at_once(sy_schedule, sy_control, slot)
    sy_post_last(sy_schedule, sy_control)
    sy_finish(sy_schedule, sy_control)
