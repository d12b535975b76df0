"""Mixture of experts of fp8: the kernels of ops/moe.cpp whose rows and weights have scales, fp32.

Of a row of x there is one scale, or one for each 128 of its elements; of w [E, N, K], whose rows are K long, one for each row, or
for each 128 x 128. What the first product makes is of fp8 as well, with a scale for each 128 elements of a row: a tile has so many
columns. A block of K has 128, too. Where a block has scales, its product is scaled and added in fp32.
"""

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
    sy_start_next,
)
from .moe import _activated, _tile_of_group
from .moe_layout import _at_rank
from .moe_rows import _back

LARGEST = tl.constexpr(448.0)  # of e4m3
SCALED = tl.constexpr(128)


@triton.jit
def moe_dispatch_scaled(
    given_ptr, given_scale_ptr, order_ptr, group_ptr, sent_ptr, x_ptr, x_scale_ptr, origin_ptr, rank, stride,
    stride_scales, stride_numbers, sy_schedule, sy_control, ROUTES: tl.constexpr, EXPERTS: tl.constexpr,
    TOPK: tl.constexpr, H: tl.constexpr, SCALES: tl.constexpr, WIDE: tl.constexpr, LANES: tl.constexpr,
    COLUMNS: tl.constexpr, STARTS_NEXT: tl.constexpr,
):  # fmt: skip
    """As moe_dispatch; SCALES of each row go with it."""
    if STARTS_NEXT:
        sy_start_next()
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        first = sy_acquire(sy_schedule, sy_control, slot)
        expert, rows = sy_group(sy_schedule, slot), sy_group_rows(sy_schedule, slot)
        shift = tl.load(sent_ptr + expert) + first - tl.load(group_ptr + expert)
        peer = expert // EXPERTS
        there = _at_rank(x_ptr, peer, rank, stride)
        scales = _at_rank(x_scale_ptr, peer, rank, stride_scales)
        origins = _at_rank(origin_ptr, peer, rank, stride_numbers)
        for part in range(0, rows, LANES):
            lane = part + tl.arange(0, LANES)
            route = tl.load(order_ptr + first + lane, mask=lane < rows, other=0)
            row = shift + lane
            tl.store(origins + row, rank * ROUTES + route, mask=lane < rows)
            token = (route // TOPK).to(tl.int64)[:, None]
            place = row.to(tl.int64)[:, None]
            factor = tl.arange(0, WIDE)[None, :]
            has_one = (lane[:, None] < rows) & (factor < SCALES)
            scale = tl.load(given_scale_ptr + token * SCALES + factor, mask=has_one, other=0.0)
            tl.store(scales + place * SCALES + factor, scale, mask=has_one)
            for begin in range(0, H, COLUMNS):
                column = begin + tl.arange(0, COLUMNS)[None, :]
                inside = (lane[:, None] < rows) & (column < H)
                value = tl.load(given_ptr + token * H + column, mask=inside)
                tl.store(there + place * H + column, value, mask=inside)
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def _scaled_product(
    a_ptr, a_scale_ptr, row, rows, w_ptr, w_scale_ptr, expert, first, second, N, WN: tl.constexpr, K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    A_BLOCKS: tl.constexpr, W_BLOCKS: tl.constexpr, GATED: tl.constexpr, STREAMED: tl.constexpr,
):  # fmt: skip
    """A tile of a group's product, [BLOCK_N, BLOCK_M]: rows [row, row + rows) of `a` [., K] times rows of w [experts, WN, K] that
    begin at `first` and, GATED, at `second`, N of them at most. A_BLOCKS, W_BLOCKS: of which there are scales of blocks. wgmma
    takes 64 of its left operand's rows and 8 of its right one's columns: the weights are left, the few rows right."""
    PER_ROW: tl.constexpr = (K + SCALED - 1) // SCALED
    PER_COLUMN: tl.constexpr = (WN + SCALED - 1) // SCALED
    lane, n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    one = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    other = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    of_expert = expert.to(tl.int64)
    for begin in range(0, K, BLOCK_K):
        if STREAMED:
            a = a_ptr.load([row, begin]).T
            w = w_ptr.load([expert, first, begin]).reshape(BLOCK_N, BLOCK_K)
        else:
            k = begin + tl.arange(0, BLOCK_K)
            at = (row + lane).to(tl.int64)[None, :] * K + k[:, None]
            a = tl.load(a_ptr + at, mask=(lane[None, :] < rows) & (k[:, None] < K), other=0.0)
            of_w = (of_expert * WN + n)[:, None] * K + k[None, :]
            inside = (n[:, None] < N) & (k[None, :] < K)
            w = tl.load(w_ptr + first.to(tl.int64) * K + of_w, mask=inside, other=0.0)
        if A_BLOCKS or W_BLOCKS:
            scale = tl.full((BLOCK_M,), 1.0, tl.float32)
            if A_BLOCKS:
                at = (row + lane).to(tl.int64) * PER_ROW + begin // SCALED
                scale = tl.load(a_scale_ptr + at, mask=lane < rows, other=0.0)
            w_scales = w_scale_ptr + of_expert * (PER_COLUMN * PER_ROW) + begin // SCALED
            by = scale
            if W_BLOCKS:
                by = scale * tl.load(w_scales + first // SCALED * PER_ROW)
            one += tl.dot(w, a) * by[None, :]
        else:
            one = tl.dot(w, a, one)
        if GATED:
            if STREAMED:
                w = w_ptr.load([expert, second, begin]).reshape(BLOCK_N, BLOCK_K)
            else:
                w = tl.load(w_ptr + second.to(tl.int64) * K + of_w, mask=inside, other=0.0)
            if A_BLOCKS or W_BLOCKS:
                by = scale
                if W_BLOCKS:
                    by = scale * tl.load(w_scales + second // SCALED * PER_ROW)
                other += tl.dot(w, a) * by[None, :]
            else:
                other = tl.dot(w, a, other)
    if not A_BLOCKS:
        by = tl.load(a_scale_ptr + row + lane, mask=lane < rows, other=0.0)[None, :]
        one *= by
        if GATED:
            other *= by
    if not W_BLOCKS:
        w_scales = w_scale_ptr + of_expert * WN + n
        one *= tl.load(w_scales + first, mask=n < N, other=0.0)[:, None]
        if GATED:
            other *= tl.load(w_scales + second, mask=n < N, other=0.0)[:, None]
    return one, other


@triton.jit
def _rounded(value):
    """To the nearest of three bits behind the point: Triton's interpreter loses the carry of a mantissa that it rounds up. A NaN
    stays as it is: the carry would make a zero or an infinity of some."""
    bits = value.to(tl.int32, bitcast=True)
    bits += 0x7FFFF + ((bits >> 20) & 1)
    return tl.where(value == value, (bits & ~0xFFFFF).to(tl.float32, bitcast=True), value)


@triton.jit
def _up_tile_scaled(
    slot, x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, a_ptr, a_scale_ptr, sy_schedule, sy_control,
    H: tl.constexpr, F: tl.constexpr, COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCKS: tl.constexpr, STREAMED: tl.constexpr,
):  # fmt: skip
    tile = sy_acquire(sy_schedule, sy_control, slot)
    expert, row, rows, n = _tile_of_group(sy_schedule, slot, tile, COLUMNS)
    if rows > 0:
        first = n * BLOCK_N
        gate, up = _scaled_product(
            x_ptr, x_scale_ptr, row, rows, w_ptr, w_scale_ptr, expert, first, F + first, F - first, 2 * F, H,
            BLOCK_M, BLOCK_N, BLOCK_K, BLOCKS, BLOCKS, True, STREAMED,
        )  # fmt: skip
        lane, column = tl.arange(0, BLOCK_M), first + tl.arange(0, BLOCK_N)
        inside = (lane[None, :] < rows) & (column[:, None] < F)
        made = tl.where(inside, _activated(gate, ACTIVATION) * up, 0.0)
        most = tl.max(tl.abs(made), 0)
        scale = tl.where(most == 0.0, 1.0, most / LARGEST)
        at = (row + lane).to(tl.int64)
        tl.store(a_scale_ptr + at * COLUMNS + n, scale, mask=lane < rows)
        made = _rounded(made / scale[None, :]).to(a_ptr.dtype.element_ty)
        tl.store(a_ptr + at[:, None] * F + column[None, :], made.T, mask=inside.T)
    sy_post(sy_schedule, sy_control, slot)


@triton.jit
def moe_up_scaled(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, a_ptr, a_scale_ptr, turn_ptr, sy_schedule, sy_control,
    H: tl.constexpr, F: tl.constexpr, COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCKS: tl.constexpr, STREAMED: tl.constexpr,
    TURNS: tl.constexpr,
):  # fmt: skip
    """a [., F] = act(x @ w[:F].T) * (x @ w[F:].T), of each expert's rows of x [., H] and its w [2 F, H], and its scales. TURNS: as
    of moe_up."""
    if TURNS:
        slots = sy_num_slots(sy_schedule)
        slot = tl.atomic_add(turn_ptr, 1, sem="relaxed")
        while slot < slots:
            _up_tile_scaled(slot, x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, a_ptr, a_scale_ptr, sy_schedule, sy_control,
                            H, F, COLUMNS, ACTIVATION, BLOCK_M, BLOCK_N, BLOCK_K, BLOCKS, STREAMED)  # fmt: skip
            slot = tl.atomic_add(turn_ptr, 1, sem="relaxed")
    else:
        for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
            _up_tile_scaled(slot, x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, a_ptr, a_scale_ptr, sy_schedule, sy_control,
                            H, F, COLUMNS, ACTIVATION, BLOCK_M, BLOCK_N, BLOCK_K, BLOCKS, STREAMED)  # fmt: skip
    sy_finish(sy_schedule, sy_control)


@triton.jit
def moe_down_scaled(
    a_ptr, a_scale_ptr, w_ptr, w_scale_ptr, origin_ptr, y_ptr, rank, stride, sy_schedule, sy_control,
    ROUTES: tl.constexpr, H: tl.constexpr, F: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCKS: tl.constexpr, STREAMED: tl.constexpr,
):  # fmt: skip
    """a @ w.T, of each expert's rows of a [., F] and its w [H, F]; stored at the ranks of their tokens, by route.
    Tiles are posted as moe_down's."""
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        tile = sy_acquire(sy_schedule, sy_control, slot)
        expert, row, rows, n = _tile_of_group(sy_schedule, slot, tile, COLUMNS)
        if rows > 0:
            first = n * BLOCK_N
            made, _ = _scaled_product(
                a_ptr, a_scale_ptr, row, rows, w_ptr, w_scale_ptr, expert, first, first, H - first, H, F,
                BLOCK_M, BLOCK_N, BLOCK_K, True, BLOCKS, False, STREAMED,
            )  # fmt: skip
            sy_post_previous(sy_schedule, sy_control, slot)
            there = _back(y_ptr, origin_ptr, row, rows, rank, stride, ROUTES, H, BLOCK_M)
            lane, column = tl.arange(0, BLOCK_M)[:, None], first + tl.arange(0, BLOCK_N)[None, :]
            made = made.T.to(y_ptr.dtype.element_ty)
            tl.store(there[:, None] + column, made, mask=(lane < rows) & (column < H))
        else:
            sy_post_previous(sy_schedule, sy_control, slot)
        sy_post_at_once(sy_schedule, sy_control, slot)
    sy_post_last(sy_schedule, sy_control)
    sy_finish(sy_schedule, sy_control)
