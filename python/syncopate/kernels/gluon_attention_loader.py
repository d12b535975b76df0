"""The loader of kernels.gluon_attention: it awaits ranges of K and fills the places of Q, K and V by TMA."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from ..gluon import sy_await, sy_await_phase, sy_num_phases, sy_phase
from .gluon_attention_tiles import coordinates_of, count_slots, extent_of, place_of, tile_of

CONSUMER_ROWS = gl.constexpr(64)  # what one wgmma multiplies


@gluon.jit
def _load_rows(desc, own_desc, own, b, head, row, full, place, PLACED: gl.constexpr):
    """A block from `row` on, of this rank's own rows or of the others'."""
    if PLACED:
        if own:
            tma.async_copy_global_to_shared(own_desc, [b, head, row, 0], full, place)
        else:
            tma.async_copy_global_to_shared(desc, [b, head, row, 0], full, place)
    else:
        tma.async_copy_global_to_shared(desc, [b, head, row, 0], full, place)


@gluon.jit
def _load_block(
    k_desc,
    v_desc,
    own_k_desc,
    own_v_desc,
    place_ptr,
    b,
    kv_head,
    n,
    block,
    k_ring,
    v_ring,
    numbers,
    k_full,
    k_empty,
    v_full,
    v_empty,
    BN: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    NUMBERED: gl.constexpr,
    PLACED: gl.constexpr,
):
    """Block n of K and V, as the ring's `block`-th since the kernel began."""
    BYTES: gl.constexpr = BN * D * 2
    stage = block % STAGES
    row = n * BN
    own = False
    if PLACED:
        place = gl.load(place_ptr + n)
        own = place >= 0
        row = gl.where(own, place, row)
    parity = block // STAGES % 2 ^ 1  # a place that was never filled is empty
    mbarrier.wait(k_empty.index(stage), parity)
    if NUMBERED:
        ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
        numbers.index(stage).store(gl.full((1,), 0, gl.int32, layout=ONE) + n)
    mbarrier.expect(k_full.index(stage), BYTES)
    _load_rows(k_desc, own_k_desc, own, b, kv_head, row, k_full.index(stage), k_ring.index(stage), PLACED)
    mbarrier.wait(v_empty.index(stage), parity)
    mbarrier.expect(v_full.index(stage), BYTES)
    _load_rows(v_desc, own_v_desc, own, b, kv_head, row, v_full.index(stage), v_ring.index(stage), PLACED)


@gluon.jit
def load_blocks(
    CAUSAL: gl.constexpr,
    WINDOWED: gl.constexpr,
    DOCUMENTS: gl.constexpr,
    PASS: gl.constexpr,
    D: gl.constexpr,
    BM: gl.constexpr,
    BN: gl.constexpr,
    STAGES: gl.constexpr,
    LONGEST_FIRST: gl.constexpr,
    PLACED: gl.constexpr,
    FUSED: gl.constexpr,
    q_desc,
    k_desc,
    v_desc,
    own_k_desc,
    own_v_desc,
    place_ptr,
    bounds_ptr,
    order_ptr,
    B,
    H,
    HKV,
    SQ,
    SK,
    OFFSET,
    WINDOW,
    sy_schedule,
    sy_control,
    q_tile,
    k_ring,
    v_ring,
    numbers,
    q_full,
    q_empty,
    k_full,
    k_empty,
    v_full,
    v_empty,
):
    """The loader."""
    block = 0
    q_parity = 1
    for slot in range(gl.program_id(0), count_slots(B, H, SQ, sy_schedule, BM, FUSED), gl.num_programs(0)):
        phases = 0
        if FUSED:
            tile = sy_await(sy_schedule, sy_control, slot)
            phases = sy_num_phases(sy_schedule, slot)
        else:
            tile = tile_of(slot, B, H, SQ, order_ptr, sy_schedule, BM, DOCUMENTS, LONGEST_FIRST, FUSED)
        first, head, b = coordinates_of(tile, H, SQ, BM)
        kv_head = head // (H // HKV)
        low, high, whole, part, empty = extent_of(
            first, bounds_ptr, SQ, SK, OFFSET, WINDOW, CAUSAL, WINDOWED, DOCUMENTS, BM, BN
        )
        mbarrier.wait(q_empty, q_parity)
        q_parity ^= 1
        mbarrier.expect(q_full, BM * D * 2)
        row = place_of(first, place_ptr, BN, PLACED)
        for part_of_q in gl.static_range(BM // CONSUMER_ROWS):
            tma.async_copy_global_to_shared(
                q_desc,
                [b, head, row + part_of_q * CONSUMER_ROWS, 0],
                q_full,
                q_tile.index(part_of_q),
            )
        if FUSED:
            # Ranges of blocks, counted from the first one that the tile sees, in the schedule's order.
            ranges = gl.maximum(phases, 1)
            for phase in range(ranges):
                begin = low
                end = high
                if PASS:
                    # Ranges of all blocks: the schedule does not know which of them the tile sees, and takes it that
                    # it has awaited all.
                    if phases > 0:
                        begin, end = sy_phase(sy_schedule, slot, phase)
                        sy_await_phase(sy_schedule, sy_control, slot, phase)
                        begin = gl.maximum(begin, low)
                        end = gl.minimum(end, high)
                elif phases > 0:
                    if not empty:
                        begin, end = sy_phase(sy_schedule, slot, phase)
                        begin = low + begin
                        end = gl.minimum(low + end, high)
                        if begin < end:
                            sy_await_phase(sy_schedule, sy_control, slot, phase)
                    else:
                        end = gl.where(phase == 0, high, low)
                for n in range(begin, end):
                    _load_block(
                        k_desc,
                        v_desc,
                        own_k_desc,
                        own_v_desc,
                        place_ptr,
                        b,
                        kv_head,
                        n,
                        block,
                        k_ring,
                        v_ring,
                        numbers,
                        k_full,
                        k_empty,
                        v_full,
                        v_empty,
                        BN,
                        D,
                        STAGES,
                        True,
                        PLACED,
                    )
                    block += 1
        else:
            for i in range(high - low):
                _load_block(
                    k_desc,
                    v_desc,
                    own_k_desc,
                    own_v_desc,
                    place_ptr,
                    b,
                    kv_head,
                    high - 1 - i,
                    block,
                    k_ring,
                    v_ring,
                    numbers,
                    k_full,
                    k_empty,
                    v_full,
                    v_empty,
                    BN,
                    D,
                    STAGES,
                    False,
                    PLACED,
                )
                block += 1
