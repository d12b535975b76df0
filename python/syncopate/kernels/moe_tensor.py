"""Mixture of experts, tensor parallel: the kernels of ops/moe_tensor.cpp, beside those of moe.py that it shares.

Of a route (a token's choice of one of its topk experts) three words travel with its token: its expert, how many routes of its
rank before it name the same one, and the bits of its weight. A tile has BLOCK tokens, of LANES lanes. A token of fp8 has SCALES
factors with it (others: 0), of WIDE lanes.
"""

import triton
import triton.language as tl

from ..language import sy_acquire, sy_finish, sy_num_slots, sy_post
from .moe_layout import _BAD, _CALLS_BAD, _OVER, _at_rank, _make_slots, _places


@triton.jit
def _tokens_of(tile, T: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr):
    """The rank whose tile it is; its tokens, and which lanes have one."""
    lane = tl.arange(0, LANES)
    token = tile % TILES * BLOCK + lane
    return tile // TILES, token, (lane < BLOCK) & (token < T)


@triton.jit
def moe_gather(
    given_ptr, given_scale_ptr, ids_ptr, weights_ptr, position_ptr, tokens_ptr, token_scale_ptr, routes_ptr, rank, stride,
    stride_scales, stride_numbers, sy_schedule, sy_control, T: tl.constexpr, TOPK: tl.constexpr, E: tl.constexpr,
    H: tl.constexpr, R: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr,
    WEIGHTED: tl.constexpr, SCALES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """This rank's tokens [T, H] and the words of their routes, at all ranks. The expert of an id that names none is -1: its low
    half may name one."""
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        tile = sy_acquire(sy_schedule, sy_control, slot)
        _, token, there = _tokens_of(tile, T, TILES, BLOCK, LANES)
        row = rank * T + token
        for choice in range(TOPK):
            route = token * TOPK + choice
            ids = tl.load(ids_ptr + route, mask=there, other=-1)
            expert = tl.where((ids >= 0) & (ids < E), ids, -1).to(tl.int32)
            position = tl.load(position_ptr + route, mask=there, other=0)
            weight = tl.zeros((LANES,), tl.float32)
            if WEIGHTED:
                weight = tl.load(weights_ptr + route, mask=there, other=0.0).to(tl.float32)
            for peer in range(R):
                at = _at_rank(routes_ptr, peer, rank, stride_numbers) + (row * TOPK + choice) * 3
                tl.store(at, expert, mask=there)
                tl.store(at + 1, position, mask=there)
                tl.store(at + 2, weight.to(tl.int32, bitcast=True), mask=there)
        if SCALES:
            factor = tl.arange(0, WIDE)[None, :]
            has_one = there[:, None] & (factor < SCALES)
            scale = tl.load(
                given_scale_ptr + token.to(tl.int64)[:, None] * SCALES + factor, mask=has_one, other=0.0
            )
            for peer in range(R):
                at = (
                    _at_rank(token_scale_ptr, peer, rank, stride_scales)
                    + row.to(tl.int64)[:, None] * SCALES
                    + factor
                )
                tl.store(at, scale, mask=has_one)
        for begin in range(0, H, COLUMNS):
            column = begin + tl.arange(0, COLUMNS)[None, :]
            inside = there[:, None] & (column < H)
            value = tl.load(given_ptr + token.to(tl.int64)[:, None] * H + column, mask=inside)
            for peer in range(R):
                at = _at_rank(tokens_ptr, peer, rank, stride) + row.to(tl.int64)[:, None] * H + column
                tl.store(at, value, mask=inside)
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def moe_tensor_layout(
    counts_ptr, begins_ptr, own_ptr, status_ptr, seen_ptr, up_ptr, down_ptr, sy_schedule, sy_control,
    E: tl.constexpr, R: tl.constexpr, BOUND: tl.constexpr, TILE: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr,
    BALL: tl.constexpr, BR: tl.constexpr, SLOTS: tl.constexpr, GATHERS: tl.constexpr,
):  # fmt: skip
    """Of the counts of all ranks, which are the same on each:

    begins_ptr [R, E]  where the group of rank r's rows for an expert begins
    own_ptr [2, E]     of each expert: where its rows begin, how many they are
    status_ptr, seen_ptr and the tables of the two products as moe_layout makes them; nothing is over a bound
    """
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        # A tile is not below 0, but only the device knows: no count is loaded before the wait is over.
        counts_ptr += tl.minimum(sy_acquire(sy_schedule, sy_control, slot), 0)
    expert, source = tl.arange(0, BALL), tl.arange(0, BR)
    begin, taken, run, rows, over = _places(counts_ptr, 0, E, E, BOUND, TILE, BALL, BR, R)
    is_group = (expert < E)[:, None] & (source < R)[None, :]
    tl.store(begins_ptr + source[None, :] * E + expert[:, None], begin, mask=is_group)
    tl.store(own_ptr + expert, run, mask=expert < E)
    tl.store(own_ptr + E + expert, rows, mask=expert < E)
    bad = tl.sum(tl.load(counts_ptr + source * (E + 1) + E, mask=source < R, other=0), 0)
    tl.store(status_ptr + _OVER, over)
    tl.store(status_ptr + _BAD, bad)
    if GATHERS:
        if tl.program_id(0) == 0:
            tl.atomic_add(seen_ptr + _BAD, bad)
            tl.atomic_add(seen_ptr + _CALLS_BAD, tl.minimum(bad, 1))
    if UP:
        _make_slots(up_ptr, 0, rows, run, expert, E, TILE, UP, SLOTS, 0, 0, E, 1)
    if DOWN:
        _make_slots(down_ptr, 0, rows, run, expert, E, TILE, DOWN, SLOTS, E, 0, E, 1)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def _row_of(words, begins_ptr, there, E: tl.constexpr):
    """Of a route of each token its row among its expert's; whether it has one."""
    expert = tl.load(words, mask=there, other=-1)
    good = there & (expert >= 0) & (expert < E)
    return tl.load(begins_ptr + expert, mask=good, other=0) + tl.load(words + 1, mask=good, other=0), good


@triton.jit
def moe_spread(
    tokens_ptr, token_scale_ptr, routes_ptr, begins_ptr, x_ptr, x_scale_ptr, origin_ptr, sy_schedule, sy_control,
    T: tl.constexpr, TOPK: tl.constexpr, E: tl.constexpr, H: tl.constexpr,
    TILES: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr,
    SCALES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A row of each route of all ranks' tokens, where its expert's are, and beside it its number among all ranks' routes.
    WEIGHTED: times its weight."""
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        tile = sy_acquire(sy_schedule, sy_control, slot)
        source, token, there = _tokens_of(tile, T, TILES, BLOCK, LANES)
        route = (source * T + token) * TOPK
        for begin in range(0, H, COLUMNS):
            column = begin + tl.arange(0, COLUMNS)[None, :]
            at = tokens_ptr + (source * T + token).to(tl.int64)[:, None] * H + column
            value = tl.load(at, mask=there[:, None] & (column < H))
            for choice in range(TOPK):
                words = routes_ptr + (route + choice) * 3
                row, good = _row_of(words, begins_ptr + source * E, there, E)
                tl.store(origin_ptr + row, route + choice, mask=good & (begin == 0))
                made = value
                if WEIGHTED:
                    weight = tl.load(words + 2, mask=good, other=0).to(tl.float32, bitcast=True)
                    made = (value.to(tl.float32) * weight[:, None]).to(x_ptr.dtype.element_ty)
                at = x_ptr + row.to(tl.int64)[:, None] * H + column
                tl.store(at, made, mask=good[:, None] & (column < H))
        if SCALES:
            factor = tl.arange(0, WIDE)[None, :]
            at = token_scale_ptr + (source * T + token).to(tl.int64)[:, None] * SCALES + factor
            scale = tl.load(at, mask=there[:, None] & (factor < SCALES), other=0.0)
            for choice in range(TOPK):
                row, good = _row_of(routes_ptr + (route + choice) * 3, begins_ptr + source * E, there, E)
                at = x_scale_ptr + row.to(tl.int64)[:, None] * SCALES + factor
                tl.store(at, scale, mask=good[:, None] & (factor < SCALES))
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def moe_sum(
    y_ptr, routes_ptr, partial_ptr, p_ptr, dots_ptr, rank, stride, stride_numbers, sy_schedule, sy_control,
    R: tl.constexpr, T: tl.constexpr, TOPK: tl.constexpr, E: tl.constexpr, H: tl.constexpr,
    TILES: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr,
    DOTS: tl.constexpr,
):  # fmt: skip
    """Of each rank's tokens the sum [T, H] over their routes, by their weights, in the order of topk, in fp32: this rank's part,
    stored at that rank. DOTS: and `partial` [R, T, TOPK] beside it. A route whose id is no expert's adds nothing."""
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        tile = sy_acquire(sy_schedule, sy_control, slot)
        group, token, there = _tokens_of(tile, T, TILES, BLOCK, LANES)
        peer = group % R
        of = peer * T + token  # among all ranks' tokens
        place = (rank * T + token).to(tl.int64)[:, None]
        for begin in range(0, H, COLUMNS):
            column = begin + tl.arange(0, COLUMNS)[None, :]
            total = tl.zeros((LANES, COLUMNS), dtype=tl.float32)
            for choice in tl.static_range(TOPK):  # unrolled: all rows are on their way at once
                route = of * TOPK + choice
                expert = tl.load(routes_ptr + route * 3, mask=there, other=-1)
                good = there & (expert >= 0) & (expert < E)
                at = y_ptr + route.to(tl.int64)[:, None] * H + column
                value = tl.load(at, mask=good[:, None] & (column < H), other=0.0).to(tl.float32)
                if WEIGHTED:
                    weight = tl.load(routes_ptr + route * 3 + 2, mask=good, other=0)
                    value *= weight.to(tl.float32, bitcast=True)[:, None]
                total += value
            at = _at_rank(p_ptr, peer, rank, stride) + place * H + column
            tl.store(at, total.to(p_ptr.dtype.element_ty), mask=there[:, None] & (column < H))
        if DOTS:
            for choice in range(TOPK):
                dot = tl.load(partial_ptr + of * TOPK + choice, mask=there, other=0.0)
                at = _at_rank(dots_ptr, peer, rank, stride_numbers) + (rank * T + token) * TOPK + choice
                tl.store(at, dot, mask=there)
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def moe_reduce(
    p_ptr, dots_ptr, out_ptr, dot_ptr, done_ptr, rank, sy_schedule, sy_control,
    R: tl.constexpr, T: tl.constexpr, TOPK: tl.constexpr, H: tl.constexpr,
    TILES: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr, DOTS: tl.constexpr,
):  # fmt: skip
    """out [T, H]: the sum of what all ranks made of this one's tokens, in their order, in fp32. DOTS: and of `dot` [T, TOPK]."""
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        tile = sy_acquire(sy_schedule, sy_control, slot)
        _, token, there = _tokens_of(tile, T, TILES, BLOCK, LANES)
        for begin in range(0, H, COLUMNS):
            column = begin + tl.arange(0, COLUMNS)[None, :]
            inside = there[:, None] & (column < H)
            total = tl.zeros((LANES, COLUMNS), dtype=tl.float32)
            for source in range(R):
                at = p_ptr + (source * T + token).to(tl.int64)[:, None] * H + column
                total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
            at = out_ptr + token.to(tl.int64)[:, None] * H + column
            tl.store(at, total.to(out_ptr.dtype.element_ty), mask=inside)
        if DOTS:
            for choice in range(TOPK):
                total = tl.zeros((LANES,), dtype=tl.float32)
                for source in range(R):
                    total += tl.load(dots_ptr + (source * T + token) * TOPK + choice, mask=there, other=0.0)
                tl.store(dot_ptr + token * TOPK + choice, total, mask=there)
        tl.store(done_ptr + rank * TILES + tile % TILES, 1)
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)
