"""The products of a mixture of experts' backward pass, on rows that lie as dispatch left them: experts one after another, each
from a multiple of BLOCK_M on. With h = x @ w1 = (gate, up), which the forward kept, a = act(gate) * up and dy of each row:

    da = dy @ w2ᵀ    dgate = da * up * act'(gate)    dup = da * act(gate)
    dx = (dgate, dup) @ w1ᵀ    dw1 = xᵀ @ (dgate, dup)    dw2 = aᵀ @ dy

`own` [2, E]: of each expert its first row, and how many it has. STREAMED: what products load are descriptors. Programs take tiles
in turn, those of an expert's column one after another, as they share its weights.
"""

import triton
import triton.language as tl

from .moe import _activated, _grouped_product

_WGMMA_ROWS = tl.constexpr(64)
_GROUP = tl.constexpr(8)  # rows of tiles that go on together along N


@triton.jit
def _tiles(own_ptr, EXPERTS: tl.constexpr, BE: tl.constexpr, BLOCK_M: tl.constexpr, COLUMNS: tl.constexpr):
    """By expert the tiles of all up to its last."""
    e = tl.arange(0, BE)
    rows = tl.load(own_ptr + EXPERTS + e, mask=e < EXPERTS, other=0)
    return tl.cumsum((rows + BLOCK_M - 1) // BLOCK_M * COLUMNS, 0)


@triton.jit
def _at(own_ptr, ends, tile, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, COLUMNS: tl.constexpr):
    """Of a tile its expert, its first row, how many rows that expert has from there on, and its column."""
    before = ends <= tile
    expert = tl.sum(before.to(tl.int32), 0)
    number = tile - tl.max(tl.where(before, ends, 0), 0)
    rows = tl.load(own_ptr + EXPERTS + expert)
    down = tl.maximum((rows + BLOCK_M - 1) // BLOCK_M, 1)
    first = number % down * BLOCK_M
    return expert, tl.load(own_ptr + expert) + first, rows - first, number // down


@triton.jit
def _transposed_product(a_ptr, row, rows, w_ptr, expert, n, N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr,
                        BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, STREAMED: tl.constexpr):  # fmt: skip
    """A tile of rows of a [., K] times the transpose of the expert's w [N, K]. Where STREAMED, rows behind the expert's make
    whatever they make. Few rows are wgmma's right operand."""
    if not STREAMED:
        w = expert.to(tl.int64) * (N * K)
        total, _ = _grouped_product(
            a_ptr, row, rows, w_ptr, w, w, n, N, K, 1, K, BLOCK_M, BLOCK_N, BLOCK_K, False, PRECISION
        )  # fmt: skip
    elif BLOCK_M < _WGMMA_ROWS:
        few = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
        for begin in range(0, K, BLOCK_K):
            a = a_ptr.load([row, begin])
            w = w_ptr.load([expert, n * BLOCK_N, begin]).reshape(BLOCK_N, BLOCK_K)
            few = tl.dot(w, a.T, few)
        total = few.T
    else:
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for begin in range(0, K, BLOCK_K):
            a = a_ptr.load([row, begin])
            w = w_ptr.load([expert, n * BLOCK_N, begin]).reshape(BLOCK_N, BLOCK_K)
            total = tl.dot(a, w.T, total)
    return total


@triton.jit
def _half(block, which: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """The first or second half of its columns."""
    halves = block.reshape(M, 2, N // 2).permute(0, 2, 1).split()
    return halves[which]


@triton.jit
def _inner_columns(h_ptr, a_ptr, dh_ptr, da, row, rows, first, F: tl.constexpr, ACTIVATION: tl.constexpr,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Of some columns of a tile, from `first` on. A quarter of a tile's at once: all of them are more than there are registers for."""
    lane, column = tl.arange(0, BLOCK_M)[:, None], first + tl.arange(0, BLOCK_N)[None, :]
    inside = (lane < rows) & (column < F)
    # Of each tensor the place of the tile, then 32 bits: addresses of 64 take the registers of the sums.
    at = row.to(tl.int64) * F
    h, dh = h_ptr + 2 * at, dh_ptr + 2 * at
    of_gate = lane * (2 * F) + column
    gate = tl.load(h + of_gate, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(h + F + of_gate, mask=inside, other=0.0).to(tl.float32)
    act = _activated(gate, ACTIVATION)
    tl.store(a_ptr + at + (lane * F + column), (act * up).to(a_ptr.dtype.element_ty), mask=inside)
    tl.store(dh + F + of_gate, (da * act).to(dh_ptr.dtype.element_ty), mask=inside)
    if ACTIVATION == "silu":
        sigmoid = 1.0 / (1.0 + tl.exp(-gate))
        slope = sigmoid * (1.0 + gate * (1.0 - sigmoid))
    elif ACTIVATION == "relu":
        slope = tl.where(gate > 0.0, 1.0, 0.0)
    else:
        slope = tl.full(gate.shape, 1.0, tl.float32)
    tl.store(dh + of_gate, (da * up * slope).to(dh_ptr.dtype.element_ty), mask=inside)


@triton.jit
def moe_backward_inner(
    h_ptr, dy_ptr, w2_ptr, own_ptr, a_ptr, dh_ptr,
    H: tl.constexpr, F: tl.constexpr, EXPERTS: tl.constexpr, BE: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STREAMED: tl.constexpr,
):  # fmt: skip
    """a [., F] and dh [., 2 F]."""
    COLUMNS: tl.constexpr = (F + BLOCK_N - 1) // BLOCK_N
    ends = _tiles(own_ptr, EXPERTS, BE, BLOCK_M, COLUMNS)
    for tile in range(tl.program_id(0), tl.max(ends, 0), tl.num_programs(0)):
        expert, row, rows, n = _at(own_ptr, ends, tile, EXPERTS, BLOCK_M, COLUMNS)
        da = _transposed_product(
            dy_ptr, row, rows, w2_ptr, expert, n, F, H, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, STREAMED
        )  # fmt: skip
        QUARTER: tl.constexpr = BLOCK_N // 4
        first = n * BLOCK_N
        for half in tl.static_range(2):
            for part in tl.static_range(2):
                columns = _half(_half(da, half, BLOCK_M, BLOCK_N), part, BLOCK_M, BLOCK_N // 2)
                at = first + (2 * half + part) * QUARTER
                _inner_columns(h_ptr, a_ptr, dh_ptr, columns, row, rows, at, F, ACTIVATION, BLOCK_M, QUARTER)


@triton.jit
def moe_backward_rows(
    dh_ptr, w1_ptr, own_ptr, dx_ptr,
    H: tl.constexpr, F: tl.constexpr, EXPERTS: tl.constexpr, BE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STREAMED: tl.constexpr,
):  # fmt: skip
    """dx [., H] of each row."""
    COLUMNS: tl.constexpr = (H + BLOCK_N - 1) // BLOCK_N
    ends = _tiles(own_ptr, EXPERTS, BE, BLOCK_M, COLUMNS)
    for tile in range(tl.program_id(0), tl.max(ends, 0), tl.num_programs(0)):
        expert, row, rows, n = _at(own_ptr, ends, tile, EXPERTS, BLOCK_M, COLUMNS)
        dx = _transposed_product(
            dh_ptr, row, rows, w1_ptr, expert, n, H, 2 * F, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, STREAMED
        )  # fmt: skip
        lane, column = tl.arange(0, BLOCK_M)[:, None], n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        there = dx_ptr + row.to(tl.int64) * H
        tl.store(
            there + (lane * H + column), dx.to(dx_ptr.dtype.element_ty), mask=(lane < rows) & (column < H)
        )


@triton.jit
def moe_backward_weights(
    left_ptr, right_ptr, left_desc, right_desc, own_ptr, dw_ptr,
    K: tl.constexpr, N: tl.constexpr, EXPERTS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STREAMED: tl.constexpr,
):  # fmt: skip
    """dw [E, K, N]: of each expert leftᵀ @ right over its rows, in their order. Blocks of which it has all rows come by descriptors
    where STREAMED; what lies behind the last row is undefined, and not loaded."""
    DOWN: tl.constexpr = (K + BLOCK_M - 1) // BLOCK_M
    ACROSS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    expert, tile = tl.program_id(0) // (DOWN * ACROSS), tl.program_id(0) % (DOWN * ACROSS)
    first = tile // (_GROUP * ACROSS) * _GROUP
    beside = tl.minimum(DOWN - first, _GROUP)
    at_k = (first + tile % (_GROUP * ACROSS) % beside) * BLOCK_M
    at_n = tile % (_GROUP * ACROSS) // beside * BLOCK_N
    k, n = at_k + tl.arange(0, BLOCK_M)[:, None], at_n + tl.arange(0, BLOCK_N)[None, :]
    begin, count = tl.load(own_ptr + expert), tl.load(own_ptr + EXPERTS + expert)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    whole = begin * 0
    if STREAMED:
        whole = count // BLOCK_K * BLOCK_K
        for row in range(begin, begin + whole, BLOCK_K):
            total = tl.dot(left_desc.load([row, at_k]).T, right_desc.load([row, at_n]), total)
    for row in range(whole, count, BLOCK_K):
        rows = row + tl.arange(0, BLOCK_K)
        at = (begin + rows).to(tl.int64)
        left = tl.load(left_ptr + at[None, :] * K + k, mask=(rows[None, :] < count) & (k < K), other=0.0)
        right = tl.load(right_ptr + at[:, None] * N + n, mask=(rows[:, None] < count) & (n < N), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    at = expert.to(tl.int64) * (K * N) + k * N + n
    tl.store(dw_ptr + at, total.to(dw_ptr.dtype.element_ty), mask=(k < K) & (n < N))


@triton.jit
def moe_backward_dots(
    grad_ptr, back_ptr, taken_ptr, dot_ptr,
    TOPK: tl.constexpr, H: tl.constexpr, CHOICES: tl.constexpr, COLUMNS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """dot [., TOPK] of each token's grad [., H] with what came back of each of its routes [., TOPK, H], in fp32; 0 of a route that
    was not taken. ALL: every one was."""
    token = tl.program_id(0).to(tl.int64)
    choice = tl.arange(0, CHOICES)
    good = choice < TOPK
    if not ALL:
        good = good & (tl.load(taken_ptr + token * TOPK + choice, mask=good, other=0) != 0)
    total = tl.zeros((CHOICES,), dtype=tl.float32)
    for begin in range(0, H, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)[None, :]
        grad = tl.load(grad_ptr + token * H + column, mask=column < H, other=0.0).to(tl.float32)
        at = (token * TOPK + choice)[:, None] * H + column
        back = tl.load(back_ptr + at, mask=good[:, None] & (column < H), other=0.0).to(tl.float32)
        total += tl.sum(grad * back, 1)
    tl.store(dot_ptr + token * TOPK + choice, total.to(dot_ptr.dtype.element_ty), mask=choice < TOPK)


@triton.jit
def moe_keep(
    rows_ptr, own_ptr, kept_ptr, H: tl.constexpr, EXPERTS: tl.constexpr, BE: tl.constexpr, BLOCK_M: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """kept [., H]: the rows of the experts, where they lie; between them it stays undefined."""
    ACROSS: tl.constexpr = (H + COLUMNS - 1) // COLUMNS
    ends = _tiles(own_ptr, EXPERTS, BE, BLOCK_M, ACROSS)
    for tile in range(tl.program_id(0), tl.max(ends, 0), tl.num_programs(0)):
        expert, row, rows, n = _at(own_ptr, ends, tile, EXPERTS, BLOCK_M, ACROSS)
        lane, column = tl.arange(0, BLOCK_M)[:, None], n * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        inside = (lane < rows) & (column < H)
        at = (row + lane).to(tl.int64) * H + column
        tl.store(kept_ptr + at, tl.load(rows_ptr + at, mask=inside), mask=inside)
