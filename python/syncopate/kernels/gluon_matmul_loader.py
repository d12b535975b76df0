"""The loader of kernels.gluon_matmul: it fills the ring of blocks of a and b by TMA, when the waiter says that they are there."""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from ..gluon import (
    sy_await_kernel_before,
    sy_await_sum,
    sy_call,
    sy_load_row,
    sy_loaded,
    sy_reads_own,
)
from .gluon_matmul_waiter import awaited, bounds
from .gluon_versions import load_block


@gluon.jit
def _boxes_of(call, tile_row):
    """How many boxes of a bring the rows of a tile, from `tile_row` on, that a has."""
    return gl.minimum(gl.cdiv(call.M - tile_row, call.a_desc.block_shape[0]), call.BOXES)


@gluon.jit
def _expect(call, boxes, stage, pred):
    """Says how much is loaded into a place of the ring: of a, so many boxes."""
    BYTES: gl.constexpr = call.BLOCK_K * (call.a_desc.dtype.primitive_bitwidth // 8)  # of a row or column
    COLUMNS: gl.constexpr = (2 if call.GATED else 1) * call.BLOCK_N
    ROWS: gl.constexpr = call.a_desc.block_shape[0]
    for box in gl.static_range(call.BOXES):
        mbarrier.expect(
            call.full.index(stage), BYTES * ((box + 1) * ROWS + COLUMNS), pred=pred & (boxes == box + 1)
        )


@gluon.jit
def _load_a(call, desc, row, boxes, k, stage):
    """The tile's rows of a from `row` on, as far as a has them: what else stands in the ring makes rows that nobody stores."""
    ROWS: gl.constexpr = call.a_desc.block_shape[0]
    for part in gl.static_range(call.PARTS):
        for box in gl.static_range(call.BOXES):
            load_block(
                desc,
                [row + box * ROWS, k * call.BLOCK_K + part * (call.BLOCK_K // call.PARTS)],
                call.full.index(stage),
                call.a_ring.index((stage * call.PARTS + part) * call.BOXES + box),
                pred=box < boxes,
            )


@gluon.jit
def _load_b(call, column, k, stage):
    full = call.full.index(stage)
    for part in gl.static_range(call.PARTS):
        depth = k * call.BLOCK_K + part * (call.BLOCK_K // call.PARTS)
        for block in gl.static_range(call.NUM_B):
            if call.SLAB > 0:
                at = column + call.slab_column(block)
            else:
                at = column + block * call.N
            into = call.b_ring.slab(stage * call.PARTS + part, block)
            if call.B_TRANSPOSED:
                load_block(call.b_desc, [at, depth], full, into)
            else:
                load_block(call.b_desc, [depth, at], full, into)


@gluon.jit
def loader(call):
    """Brings blocks of a and b into the ring, slot by slot, in the order of K; before, it waits for what a slot reads."""
    begin_turn, end_turn, step = call.turns()
    k_begin, k_end = call.share()
    num_n = gl.cdiv(call.N, call.BLOCK_N)
    stage = 0
    parity = 1  # a ring that was never filled is empty
    number = 0
    if call.TELLS:
        number = sy_call(call.sy_control)
        mbarrier.arrive(call.arrived)
    early = 0
    if call.B_EARLY:
        if begin_turn < end_turn:
            tile = call.tile(call.slot(begin_turn))
            early = gl.minimum(k_end - k_begin, call.STAGES)
            boxes = _boxes_of(call, tile // num_n * call.BLOCK_M)
            for at in range(early):
                _expect(call, boxes, at, True)
                _load_b(call, tile % num_n * call.BLOCK_N, k_begin + at, at)
    if call.AFTER_KERNEL:
        sy_await_kernel_before()
    if call.SUMMANDS > 0:
        number = sy_call(call.sy_control)
    told = 0
    for turn in range(begin_turn, end_turn, step):
        slot = call.slot(turn)
        tile = call.tile(slot)
        phases = 0
        if call.FUSED:
            phases, told = awaited(call, told)
        row = tile // num_n * call.BLOCK_M
        boxes = _boxes_of(call, row)
        if call.FETCHED:
            row += sy_load_row(call.sy_schedule, slot)
        own = False
        if call.OWN:
            own = sy_reads_own(call.sy_schedule, slot)
        column = tile % num_n * call.BLOCK_N
        covered = k_begin
        for _ in range(gl.maximum(phases, 1)):
            begin = k_begin
            end = k_end
            if call.FUSED:
                # The waiter hands on no word behind those of this program's share.
                if phases > 0 and covered >= k_end:
                    begin = k_end
                elif phases > 0:
                    word, told = awaited(call, told)
                    begin, end = bounds(word)
                    covered = end
            for k in range(begin, end):
                mbarrier.wait(call.empty.index(stage), parity)
                loaded = False
                if call.B_EARLY:
                    loaded = early > 0
                    early -= 1
                _expect(call, boxes, stage, not loaded)
                if call.OWN:
                    if own:
                        _load_a(call, call.sy_own, row, boxes, k, stage)
                    else:
                        _load_a(call, call.a_desc, row, boxes, k, stage)
                else:
                    _load_a(call, call.a_desc, row, boxes, k, stage)
                if not loaded:
                    _load_b(call, column, k, stage)
                stage, parity = call.next(stage, parity)
    if call.TELLS:
        for _ in range(call.STAGES):  # what was loaded has been multiplied
            mbarrier.wait(call.empty.index(stage), parity)
            stage, parity = call.next(stage, parity)
        sy_loaded(call.sy_schedule, call.sy_control, number, call.SPLIT_K)
    if call.SUMMANDS > 0:
        sy_await_sum(call.sy_schedule, call.sy_control, number)
        mbarrier.arrive(call.arrived)
