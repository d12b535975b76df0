"""Mixture of experts: rows on their way, to their experts' ranks, back, and added up, in Triton."""

import triton
import triton.language as tl

from ..language import (
    sy_acquire,
    sy_finish,
    sy_group,
    sy_group_rows,
    sy_num_slots,
    sy_post,
    sy_start_next,
)
from .moe_layout import _at_rank


@triton.jit
def store_rows(from_ptr, source, there, row, lane, rows, weights_ptr, route, H: tl.constexpr, COLUMNS: tl.constexpr,
               WEIGHTED: tl.constexpr):  # fmt: skip
    """Rows `source` of from_ptr [., H] to the rows `row` from `there` on, of which there are those of a `lane` below `rows`. WEIGHTED:
    times the weight of each one's `route`."""
    for begin in range(0, H, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)[None, :]
        inside = (lane[:, None] < rows) & (column < H)
        value = tl.load(from_ptr + source.to(tl.int64)[:, None] * H + column, mask=inside, other=0.0)
        if WEIGHTED:
            weight = tl.load(weights_ptr + route, mask=lane < rows, other=0.0).to(tl.float32)
            value = (value.to(tl.float32) * weight[:, None]).to(there.dtype.element_ty)
        tl.store(there + row.to(tl.int64)[:, None] * H + column, value, mask=inside)


@triton.jit
def moe_dispatch(
    given_ptr, weights_ptr, order_ptr, group_ptr, sent_ptr, x_ptr, origin_ptr, rank, stride, stride_numbers,
    sy_schedule, sy_control, ROUTES: tl.constexpr, EXPERTS: tl.constexpr, TOPK: tl.constexpr, H: tl.constexpr,
    LANES: tl.constexpr, COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr, STARTS_NEXT: tl.constexpr,
):  # fmt: skip
    """Rows of `given` [T, H] to where their experts are, one for each route, and beside each of them where it comes from:
    rank * ROUTES + route. WEIGHTED: times the route's weight. STARTS_NEXT: the next stage starts beside it. A slot's rows go in
    parts of LANES."""
    if STARTS_NEXT:
        sy_start_next()
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        first = sy_acquire(sy_schedule, sy_control, slot)
        expert, rows = sy_group(sy_schedule, slot), sy_group_rows(sy_schedule, slot)
        shift = tl.load(sent_ptr + expert) + first - tl.load(group_ptr + expert)
        peer = expert // EXPERTS
        there = _at_rank(x_ptr, peer, rank, stride)
        origins = _at_rank(origin_ptr, peer, rank, stride_numbers)
        for part in range(0, rows, LANES):
            lane = part + tl.arange(0, LANES)
            route = tl.load(order_ptr + first + lane, mask=lane < rows, other=0)
            row = shift + lane
            tl.store(origins + row, rank * ROUTES + route, mask=lane < rows)
            store_rows(
                given_ptr, route // TOPK, there, row, lane, rows, weights_ptr, route, H, COLUMNS, WEIGHTED
            )
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def _back(
    y_ptr, origin_ptr, row, rows, rank, stride, ROUTES: tl.constexpr, H: tl.constexpr, BLOCK_M: tl.constexpr
):
    """By row of a tile, where its token's rank has place for it."""
    lane = tl.arange(0, BLOCK_M)
    origin = tl.load(origin_ptr + row + lane, mask=lane < rows, other=0)
    return _at_rank(y_ptr, origin // ROUTES, rank, stride) + (origin % ROUTES).to(tl.int64) * H


@triton.jit
def moe_return(
    rows_ptr, origin_ptr, y_ptr, rank, stride, sy_schedule, sy_control,
    ROUTES: tl.constexpr, H: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Rows [., H] that lie as dispatch left them, to the ranks of their tokens, by route."""
    lane = tl.arange(0, TILE)[:, None]
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        row = sy_acquire(sy_schedule, sy_control, slot)
        rows = sy_group_rows(sy_schedule, slot)
        there = _back(y_ptr, origin_ptr, row, rows, rank, stride, ROUTES, H, TILE)[:, None]
        for begin in range(0, H, COLUMNS):
            column = begin + tl.arange(0, COLUMNS)[None, :]
            inside = (lane < rows) & (column < H)
            value = tl.load(rows_ptr + (row + lane).to(tl.int64) * H + column, mask=inside, other=0.0)
            tl.store(there + column, value, mask=inside)
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def moe_combine(
    y_ptr, ids_ptr, weights_ptr, position_ptr, sent_ptr, out_ptr, done_ptr, rank, sy_schedule, sy_control,
    T: tl.constexpr, TOPK: tl.constexpr, E: tl.constexpr, H: tl.constexpr, BLOCKS: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """out [T, H]: of each token the rows that came back, by their weights, in the order of its topk, in fp32. A route whose id is
    no expert's, or that was over the bound, adds nothing. A tile has every BLOCKS-th token."""
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        block = sy_acquire(sy_schedule, sy_control, slot) % BLOCKS
        token = block + BLOCKS * tl.arange(0, TOKENS)
        for begin in range(0, H, COLUMNS):
            column = begin + tl.arange(0, COLUMNS)[None, :]
            total = tl.zeros((TOKENS, COLUMNS), dtype=tl.float32)
            for choice in tl.static_range(TOPK):  # unrolled: all rows are on their way at once
                route = token * TOPK + choice
                ids = tl.load(ids_ptr + route, mask=token < T, other=-1)
                good = (ids >= 0) & (ids < E)
                taken = tl.load(sent_ptr + E + ids, mask=good, other=0)
                good = good & (tl.load(position_ptr + route, mask=good, other=0) < taken)
                inside = good[:, None] & (column < H)
                value = tl.load(y_ptr + route.to(tl.int64)[:, None] * H + column, mask=inside, other=0.0).to(
                    tl.float32
                )
                if WEIGHTED:
                    value *= tl.load(weights_ptr + route, mask=good, other=0.0).to(tl.float32)[:, None]
                total += value
            inside = (token < T)[:, None] & (column < H)
            tl.store(
                out_ptr + token.to(tl.int64)[:, None] * H + column,
                total.to(out_ptr.dtype.element_ty),
                mask=inside,
            )
        tl.store(done_ptr + rank * BLOCKS + block, 1)
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)
