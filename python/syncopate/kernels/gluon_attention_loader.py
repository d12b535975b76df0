"""The loader of kernels.gluon_attention: it awaits ranges of K and fills the places of Q, K and V by TMA."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from ..gluon import sy_await, sy_await_phase, sy_num_phases, sy_phase
from .gluon_attention_tiles import CONSUMER_ROWS
from .gluon_versions import load_block


@gluon.jit
def _load_rows(desc, own_desc, own, b, head, row, full, place, PLACED: gl.constexpr):
    """A block from `row` on, of this rank's own rows or of the others'."""
    if PLACED:
        if own:
            load_block(own_desc, [b, head, row, 0], full, place)
        else:
            load_block(desc, [b, head, row, 0], full, place)
    else:
        load_block(desc, [b, head, row, 0], full, place)


@gluon.jit
def _load_block(call, b, kv_head, n, block):
    """Block n of K and V, as the ring's `block`-th since the kernel began."""
    BYTES: gl.constexpr = call.BN * call.D * 2
    PLACED: gl.constexpr = call.PLACED
    stage = block % call.STAGES
    row = n * call.BN
    own = False
    if PLACED:
        place = gl.load(call.place_ptr + n)
        own = place >= 0
        row = gl.where(own, place, row)
    parity = block // call.STAGES % 2 ^ 1  # a place that was never filled is empty
    k_full = call.k_full.index(stage)
    v_full = call.v_full.index(stage)
    mbarrier.wait(call.k_empty.index(stage), parity)
    if call.FUSED:
        ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
        call.numbers.index(stage).store(gl.full((1,), 0, gl.int32, layout=ONE) + n)
    mbarrier.expect(k_full, BYTES)
    _load_rows(call.k_desc, call.own_k_desc, own, b, kv_head, row, k_full, call.k_ring.index(stage), PLACED)
    mbarrier.wait(call.v_empty.index(stage), parity)
    mbarrier.expect(v_full, BYTES)
    _load_rows(call.v_desc, call.own_v_desc, own, b, kv_head, row, v_full, call.v_ring.index(stage), PLACED)


@gluon.jit
def _load_q(call, first, head, b, q_parity):
    """The tile's rows of Q."""
    mbarrier.wait(call.q_empty, q_parity)
    mbarrier.expect(call.q_full, call.BM * call.D * 2)
    row = call.place(first)
    for part in gl.static_range(call.BM // CONSUMER_ROWS):
        place = [b, head, row + part * CONSUMER_ROWS, 0]
        load_block(call.q_desc, place, call.q_full, call.q_tile.index(part))


@gluon.jit
def _await_range(call, slot, phase, phases, low, high, empty):
    """Blocks [begin, end) of the tile's `phase`-th range, which are there: ranges are counted from the first block that the
    tile sees, in the schedule's order."""
    begin = low
    end = high
    if call.PASS:
        # Ranges of all blocks: the schedule does not know which of them the tile sees, and takes it that it has awaited all.
        if phases > 0:
            begin, end = sy_phase(call.sy_schedule, slot, phase)
            sy_await_phase(call.sy_schedule, call.sy_control, slot, phase)
            begin = gl.maximum(begin, low)
            end = gl.minimum(end, high)
    elif phases > 0:
        if not empty:
            begin, end = sy_phase(call.sy_schedule, slot, phase)
            begin = low + begin
            end = gl.minimum(low + end, high)
            if begin < end:
                sy_await_phase(call.sy_schedule, call.sy_control, slot, phase)
        else:
            end = gl.where(phase == 0, high, low)
    return begin, end


@gluon.jit
def load_blocks(call):
    """The loader."""
    block = 0
    q_parity = 1
    for slot in range(gl.program_id(0), call.slots(), gl.num_programs(0)):
        phases = 0
        if call.FUSED:
            tile = sy_await(call.sy_schedule, call.sy_control, slot)
            phases = sy_num_phases(call.sy_schedule, slot)
        else:
            tile = call.tile(slot)
        first, head, b = call.coordinates(tile)
        kv_head = head // (call.H // call.HKV)
        low, high, whole, part, empty = call.extent(first)
        _load_q(call, first, head, b, q_parity)
        q_parity ^= 1
        if call.FUSED:
            ranges = gl.maximum(phases, 1)
            for phase in range(ranges):
                begin, end = _await_range(call, slot, phase, phases, low, high, empty)
                for n in range(begin, end):
                    _load_block(call, b, kv_head, n, block)
                    block += 1
        else:
            for i in range(high - low):
                _load_block(call, b, kv_head, high - 1 - i, block)
                block += 1
