"""The storer of kernels.gluon_matmul: it stores tiles by TMA, here or at peers, posts them, and ends the program."""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from ..gluon import (
    sy_await_kernel_before,
    sy_call,
    sy_count_end,
    sy_finish,
    sy_finish_counted,
    sy_post,
    sy_post_each,
    sy_posts,
    sy_row,
    sy_turn,
)
from .gluon_matmul_tiles import WGMMA_ROWS
from .gluon_versions import block_at, store_block


@gluon.jit
def _arrive_at_tile(sy_workspace, tile, SPLIT_K: gl.constexpr):
    """Whether this block is the last of the tile's SPLIT_K. Releases and acquires the partial sums (GPU scope); the last
    one sets the count back for the next call."""
    count = sy_workspace.to(gl.pointer_type(gl.int32), bitcast=True) + tile
    last = gl.atomic_add(count, 1, sem="acq_rel", scope="gpu") == SPLIT_K - 1
    gl.store(count, 0, mask=last)
    return last


@gluon.jit
def _store_rows(call, tile_row, row, column):
    """The tile that begins at `tile_row` of c, at [row, column] of the descriptor. At a peer the descriptor does not
    end where c does: rows that c has not are left out, of which each consumer has all or, as the schedule says,
    none."""
    for part in gl.static_range(call.CONSUMERS):
        if call.PUSHED and part > 0:
            if tile_row + part * WGMMA_ROWS < call.M:
                _store_part(call, row + part * WGMMA_ROWS, column, part)
        else:
            _store_part(call, row + part * WGMMA_ROWS, column, part)


@gluon.jit
def _store_part(call, row, column, part: gl.constexpr):
    """The rows of consumer `part`."""
    if call.BLOCK_M < WGMMA_ROWS:
        first = block_at(call.c_tile.ring, 0, [call.BLOCK_M, call.BLOCK_N])
        store_block(call.c_desc, [row, column], first)
    elif call.SLAB > 0:
        for slab in gl.static_range(call.c_tile.ALL):
            store_block(call.c_desc, [row, column + slab * call.SLAB], call.c_tile.slab(part, slab))
    else:
        store_block(call.c_desc, [row, column], call.c_tile.slab(part, 0))


@gluon.jit
def storer(call):
    """Stores tiles that the consumers have made where their slots say, tells who waits for them, and ends the call."""
    begin_turn, end_turn, step = call.turns()
    num_n = gl.cdiv(call.N, call.BLOCK_N)
    filled = 0
    counted = 0
    last = gl.program_id(0) % call.SPLIT_K == 0  # without a slot, one of those that share tiles ends for all
    table = call.sy_schedule
    if call.SUMMANDS > 0:
        if call.AFTER_KERNEL:
            sy_await_kernel_before()
        table = sy_turn(call.sy_schedule, sy_call(call.sy_control))
    number, count, ends = 0, 0, 0
    if call.COUNTS_END:
        number = sy_call(call.sy_control)
        if begin_turn >= end_turn:
            if call.TELLS:
                mbarrier.wait(call.arrived, 0)
            if last:
                count, ends = sy_count_end(call.sy_schedule, call.sy_control)
    for turn in range(begin_turn, end_turn, step):
        slot = call.slot(turn)
        tile = call.tile(slot)
        if call.SUMMANDS > 0:
            posts = sy_posts(table, call.sy_control, slot)
        if call.SPLIT_K > 1:
            mbarrier.wait(call.parts_ready, counted)
            counted ^= 1
            last = _arrive_at_tile(call.sy_workspace, tile, call.SPLIT_K)
            zero = gl.full((128,), 0, gl.int32, layout=gl.BlockedLayout([4], [32], [1], [0]))
            call.verdict.store(zero + last.to(gl.int32))
            mbarrier.arrive(call.verdict_ready)
        if last:
            mbarrier.wait(call.ready, filled)
            filled ^= 1
            row = tile // num_n * call.BLOCK_M
            column = tile % num_n * call.BLOCK_N
            if call.COPIES > 1:
                for copy in gl.static_range(call.COPIES):
                    _store_rows(call, row, row + sy_row(table, slot, copy), column)
            elif call.PUSHED:
                _store_rows(call, row, row + sy_row(table, slot), column)
            else:
                _store_rows(call, row, row, column)
            if call.SUMMANDS > 0:
                sy_post_each(posts)
                mbarrier.arrive(call.stored)
            else:
                # This program's last tile is made: all its partitions have asked for the call's number.
                if call.COUNTS_END:
                    if turn + step >= end_turn:
                        count, ends = sy_count_end(call.sy_schedule, call.sy_control)
                tma.store_wait(0)
                mbarrier.arrive(call.stored)
                if call.COUNTS_END:
                    sy_post(call.sy_schedule, call.sy_control, slot, number)
                elif call.FUSED:
                    sy_post(call.sy_schedule, call.sy_control, slot)
    if call.SUMMANDS > 0:
        # Nobody is told of its end, which only counts; who had a tile has read the call's number in all partitions.
        if begin_turn >= end_turn:
            mbarrier.wait(call.summed, 0)
    if call.FUSED:
        if last:
            if call.COUNTS_END:
                sy_finish_counted(call.sy_control, number, count, ends)
            else:
                sy_finish(call.sy_schedule, call.sy_control)
