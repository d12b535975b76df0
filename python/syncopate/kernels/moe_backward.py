"""The products of a mixture of experts' backward pass, on rows that lie as dispatch left them: experts one after another, each
from a multiple of BLOCK_M on. With h = x @ w1 = (gate, up), a = act(gate) * up and dy of each row:

    da = dy @ w2ᵀ    dgate = da * up * act'(gate)    dup = da * act(gate)
    dx = (dgate, dup) @ w1ᵀ    dw1 = xᵀ @ (dgate, dup)    dw2 = aᵀ @ dy

h is made again: it is not kept. `own` [2, E]: of each expert its first row, and how many it has.
"""

import triton
import triton.language as tl

from .moe import _activated, _grouped_product


@triton.jit
def _expert_at(own_ptr, row, EXPERTS: tl.constexpr, BE: tl.constexpr):
    """Whose row it is, and how many of that one's follow, with it; 0: nobody's."""
    e = tl.arange(0, BE)
    begin = tl.load(own_ptr + e, mask=e < EXPERTS, other=0)
    end = begin + tl.load(own_ptr + EXPERTS + e, mask=e < EXPERTS, other=0)
    here = (row >= begin) & (row < end)
    return tl.sum(tl.where(here, e, 0), 0), tl.sum(tl.where(here, end - row, 0), 0)


@triton.jit
def moe_backward_inner(
    x_ptr, dy_ptr, w1_ptr, w2_ptr, own_ptr, a_ptr, dh_ptr,
    H: tl.constexpr, F: tl.constexpr, EXPERTS: tl.constexpr, BE: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """a [., F] and dh [., 2 F]."""
    row, n = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    expert, rows = _expert_at(own_ptr, row, EXPERTS, BE)
    if rows > 0:
        w = expert.to(tl.int64) * (2 * H * F)
        gate, up = _grouped_product(
            x_ptr, row, rows, w1_ptr, w, w + F, n, F, H, 2 * F, 1, BLOCK_M, BLOCK_N, BLOCK_K, True, PRECISION
        )  # fmt: skip
        w = expert.to(tl.int64) * (H * F)
        da, _ = _grouped_product(
            dy_ptr, row, rows, w2_ptr, w, w, n, F, H, 1, H, BLOCK_M, BLOCK_N, BLOCK_K, False, PRECISION
        )  # fmt: skip
        act = _activated(gate, ACTIVATION)
        if ACTIVATION == "silu":
            sigmoid = 1.0 / (1.0 + tl.exp(-gate))
            slope = sigmoid * (1.0 + gate * (1.0 - sigmoid))
        elif ACTIVATION == "relu":
            slope = tl.where(gate > 0.0, 1.0, 0.0)
        else:
            slope = gate * 0.0 + 1.0
        lane, column = tl.arange(0, BLOCK_M)[:, None], n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        inside = (lane < rows) & (column < F)
        at = (row + lane).to(tl.int64)
        tl.store(a_ptr + at * F + column, (act * up).to(a_ptr.dtype.element_ty), mask=inside)
        dh = dh_ptr + at * (2 * F) + column
        tl.store(dh, (da * up * slope).to(dh_ptr.dtype.element_ty), mask=inside)
        tl.store(dh + F, (da * act).to(dh_ptr.dtype.element_ty), mask=inside)


@triton.jit
def moe_backward_rows(
    dh_ptr, w1_ptr, own_ptr, dx_ptr,
    H: tl.constexpr, F: tl.constexpr, EXPERTS: tl.constexpr, BE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dx [., H] of each row."""
    row, n = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    expert, rows = _expert_at(own_ptr, row, EXPERTS, BE)
    if rows > 0:
        w = expert.to(tl.int64) * (2 * H * F)
        dx, _ = _grouped_product(
            dh_ptr, row, rows, w1_ptr, w, w, n, H, 2 * F, 1, 2 * F, BLOCK_M, BLOCK_N, BLOCK_K, False, PRECISION
        )  # fmt: skip
        lane, column = tl.arange(0, BLOCK_M)[:, None], n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        at = (row + lane).to(tl.int64) * H + column
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=(lane < rows) & (column < H))


@triton.jit
def moe_backward_weights(
    left_ptr, right_ptr, own_ptr, dw_ptr,
    K: tl.constexpr, N: tl.constexpr, EXPERTS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dw [E, K, N]: of each expert leftᵀ @ right over its rows, in their order."""
    k = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    expert = tl.program_id(0)
    begin, count = tl.load(own_ptr + expert), tl.load(own_ptr + EXPERTS + expert)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, count, BLOCK_K):
        row = first + tl.arange(0, BLOCK_K)
        at = (begin + row).to(tl.int64)
        left = tl.load(left_ptr + at[None, :] * K + k, mask=(row[None, :] < count) & (k < K), other=0.0)
        right = tl.load(right_ptr + at[:, None] * N + n, mask=(row[:, None] < count) & (n < N), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    at = expert.to(tl.int64) * (K * N) + k * N + n
    tl.store(dw_ptr + at, total.to(dw_ptr.dtype.element_ty), mask=(k < K) & (n < N))
