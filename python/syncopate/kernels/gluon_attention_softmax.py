"""What the consumers of kernels.gluon_attention do between products: masks, sums of rows, and joining passes."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

NEVER = gl.constexpr(float("-inf"))


@gluon.jit
def mask_scores(call, scores, n, rows, seen_from, seen_to):
    """The scores of block n, minus infinity where a row does not see a column."""
    SCORES: gl.constexpr = scores.type.layout
    column = n * call.BN + gl.arange(0, call.BN, layout=gl.SliceLayout(0, SCORES))
    if call.PASS:
        column = gl.load(call.position_ptr + column, mask=column < call.SK, other=-1)
    columns = gl.expand_dims(column, 0)
    if call.DOCUMENTS:
        seen = (columns >= gl.expand_dims(seen_from, 1)) & (columns < gl.expand_dims(seen_to, 1))
    else:
        at = gl.expand_dims(rows + call.OFFSET, 1)
        seen = columns < call.SK
        if call.CAUSAL:
            seen = seen & (columns <= at)
        elif call.WINDOWED:
            seen = seen & (columns - at < call.WINDOW)
        if call.WINDOWED:
            seen = seen & (at - columns < call.WINDOW)
    return gl.where(seen, scores, NEVER)


@gluon.jit
def block_number(call, stage, high, i):
    """Which block of K the ring has at `stage`, the i-th of the tile."""
    if call.FUSED:
        ONE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
        return gl.max(call.numbers.index(stage).load(ONE), axis=0)
    else:
        return high - 1 - i


@gluon.jit
def part_sums(p, ROWS: gl.constexpr, BN: gl.constexpr):
    """Eight sums a row of p [ROWS, BN]. A row is shared by four threads: these stay within a thread, so that no thread
    awaits another in the loop."""
    return gl.sum(p.reshape((ROWS, BN // 8, 8)), axis=1)


@gluon.jit
def times_rows(parts, faded):
    LAYOUT: gl.constexpr = parts.type.layout
    return parts * gl.expand_dims(gl.convert_layout(faded, gl.SliceLayout(1, LAYOUT)), 1)


@gluon.jit
def add_up(parts, ROWS: gl.constexpr):
    return gl.convert_layout(gl.sum(parts, axis=1), ROWS)


@gluon.jit
def join_passes(call, acc, top, total, rows, head, b):
    """What a pass has made of the rows, joined with what those before it have, as a block is with the blocks before it, and
    left for the next pass."""
    OUT: gl.constexpr = acc.type.layout
    OUT_ROWS: gl.constexpr = gl.SliceLayout(1, OUT)
    row = (b * call.H + head).to(gl.int64) * call.SQ
    all_rows = (call.B * call.H).to(gl.int64) * call.SQ
    known = (rows < call.SQ) & (call.FIRST == 0)
    kept = (rows < call.SQ) & (call.LAST == 0)
    tops = call.tops_ptr + row + rows
    top_before = gl.load(tops, mask=known, other=NEVER)
    total_before = gl.load(tops + all_rows, mask=known, other=0.0)
    joined = gl.maximum(top, top_before)
    base = gl.where(joined == NEVER, 0.0, joined)
    faded = gl.exp2(top - base)
    faded_before = gl.exp2(top_before - base)
    out_rows = gl.convert_layout(rows, OUT_ROWS)
    at = call.carry_ptr + gl.expand_dims((row + out_rows) * call.D, 1)
    at += gl.expand_dims(gl.arange(0, call.D, layout=gl.SliceLayout(0, OUT)), 0)
    inside = gl.expand_dims(out_rows < call.SQ, 1)
    carried = gl.load(at, mask=inside & (call.FIRST == 0), other=0.0)
    # Of a row that sees nothing in this pass, whatever lies in the masked block: it may be no number.
    unseen = gl.convert_layout(total == 0.0, OUT_ROWS)
    acc = gl.where(
        gl.expand_dims(unseen, 1), 0.0, acc * gl.expand_dims(gl.convert_layout(faded, OUT_ROWS), 1)
    )
    acc = acc + carried * gl.expand_dims(gl.convert_layout(faded_before, OUT_ROWS), 1)
    total = total * faded + total_before * faded_before
    gl.store(at, acc, mask=inside & (call.LAST == 0))
    gl.store(tops, joined, mask=kept)
    gl.store(tops + all_rows, total, mask=kept)
    return acc, joined, total
