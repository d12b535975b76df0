"""Tiles of kernels.gluon_attention: which one a slot is of, where its rows are, and which blocks of K they see."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

from ..gluon import sy_num_slots, sy_tile


@gluon.jit
def count_slots(B, H, SQ, sy_schedule, BM: gl.constexpr, FUSED: gl.constexpr):
    """How many slots there are."""
    if FUSED:
        return sy_num_slots(sy_schedule)
    else:
        return gl.cdiv(SQ, BM) * H * B


@gluon.jit
def _unfused_tile(
    slot, B, H, SQ, order_ptr, BM: gl.constexpr, DOCUMENTS: gl.constexpr, LONGEST_FIRST: gl.constexpr
):
    """The order of an unfused call. Every other round of programs is dealt out backwards, so that who got the longest tile of
    one round gets the shortest of the next."""
    programs = gl.num_programs(0)
    tiles = gl.cdiv(SQ, BM)
    turn = slot // programs
    at = slot
    if turn % 2 == 1:
        at = gl.minimum((turn + 1) * programs, tiles * H * B) - 1 - slot % programs
    if DOCUMENTS:
        return gl.load(order_ptr + at // (H * B)) + at % (H * B) * tiles
    elif LONGEST_FIRST:
        return (tiles - 1 - at // (H * B)) + at % (H * B) * tiles
    else:
        return at


@gluon.jit
def tile_of(
    slot,
    B,
    H,
    SQ,
    order_ptr,
    sy_schedule,
    BM: gl.constexpr,
    DOCUMENTS: gl.constexpr,
    LONGEST_FIRST: gl.constexpr,
    FUSED: gl.constexpr,
):
    """The tile of `slot`; those of a head are numbered by rows, then come those of the next head. It waits for nothing."""
    if FUSED:
        return sy_tile(sy_schedule, slot)
    else:
        return _unfused_tile(slot, B, H, SQ, order_ptr, BM, DOCUMENTS, LONGEST_FIRST)


@gluon.jit
def coordinates_of(tile, H, SQ, BM: gl.constexpr):
    """The tile's first row, its head and its batch entry."""
    tiles = gl.cdiv(SQ, BM)
    return tile % tiles * BM, tile // tiles % H, tile // tiles // H


@gluon.jit
def extent_of(
    first,
    bounds_ptr,
    SQ,
    SK,
    OFFSET,
    WINDOW,
    CAUSAL: gl.constexpr,
    WINDOWED: gl.constexpr,
    DOCUMENTS: gl.constexpr,
    BM: gl.constexpr,
    BN: gl.constexpr,
):
    """Blocks [low, high) hold all that some row of the tile sees, [whole, part) are those that all rows see whole, and
    whether it sees none: it then goes through block 0, which is masked."""
    low = 0
    high = SK
    whole = 0
    part = SK
    if DOCUMENTS:
        bounds = bounds_ptr + 4 * (first // BM)
        low = gl.load(bounds)
        whole = gl.load(bounds + 1)
        part = gl.load(bounds + 2)
        high = gl.load(bounds + 3)
    else:
        begin = first + OFFSET
        end = gl.minimum(first + BM, SQ) + OFFSET
        if CAUSAL:
            high = gl.minimum(high, end)
            part = gl.minimum(part, begin + 1)
        elif WINDOWED:
            high = gl.minimum(high, end + WINDOW - 1)
            part = gl.minimum(part, begin + WINDOW)
        if WINDOWED:
            low = gl.maximum(begin - WINDOW + 1, 0)
            whole = gl.maximum(end - WINDOW, 0)
    low = low // BN
    whole = gl.cdiv(whole, BN)
    part = gl.maximum(part, 0) // BN
    high = gl.cdiv(gl.maximum(high, 0), BN)
    empty = high <= low
    low = gl.where(empty, 0, low)
    high = gl.where(empty, 1, high)
    part = gl.where(empty, 0, part)
    return low, high, whole, part, empty


@gluon.jit
def place_of(first, place_ptr, BN: gl.constexpr, PLACED: gl.constexpr):
    """At which row of Q and O a tile's rows begin."""
    if PLACED:
        return gl.load(place_ptr + first // BN)
    else:
        return first
