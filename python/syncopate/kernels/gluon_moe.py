"""The first product of a mixture of experts for Hopper, in Gluon: tiles of 128 rows of kernels.moe's moe_up, of 16-bit elements,
with the same bits. Partitions are those of kernels.gluon_moe_scaled; each consumer has two products on their way all the time.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..gluon import sy_await, sy_group, sy_group_rows, sy_num_slots
from .gluon_moe_ring import ROWS, TILE_COLUMNS, make_ring, store_first
from .gluon_versions import load_block, threads_meet

_DEPTH = gl.constexpr(64)  # a block of K


@gluon.jit
def _load(ring, x_desc, w_desc, H, F, COLUMNS):
    BYTES: gl.constexpr = 2 * (2 * ROWS + 2 * TILE_COLUMNS) * _DEPTH
    stage = 0
    parity = 1  # a ring that was never filled is empty
    for slot in range(gl.program_id(0), sy_num_slots(ring.schedule), gl.num_programs(0)):
        tile = sy_await(ring.schedule, ring.control, slot)
        rows = sy_group_rows(ring.schedule, slot)
        row = tile // COLUMNS
        column = tile % COLUMNS * TILE_COLUMNS
        first = sy_group(ring.schedule, slot) * H
        if rows > 0:
            for k in range(0, H, _DEPTH):
                full = ring.full.index(stage)
                mbarrier.wait(ring.empty.index(stage), parity)
                mbarrier.expect(full, BYTES)
                load_block(x_desc, [row, k], full, ring.a.index(2 * stage))
                load_block(x_desc, [row + ROWS, k], full, ring.a.index(2 * stage + 1))
                load_block(w_desc, [first + k, column], full, ring.w.index(2 * stage))
                load_block(w_desc, [first + k, F + column], full, ring.w.index(2 * stage + 1))
                stage, parity = ring.next(stage, parity)


@gluon.jit
def _consumer(index: gl.constexpr, ring, a_tile, H, COLUMNS, ACTIVATION: gl.constexpr):
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE_COLUMNS, 16])
    stage = 0
    parity = 0
    kept = 1  # parity of `stored`: the place of a tile is free at first
    for slot in range(gl.program_id(0), sy_num_slots(ring.schedule), gl.num_programs(0)):
        if sy_group_rows(ring.schedule, slot) > 0:
            gate = gl.zeros((ROWS, TILE_COLUMNS), gl.float32, layout=ACC)
            up = gate
            for k in range(gl.cdiv(H, _DEPTH)):
                mbarrier.wait(ring.full.index(stage), parity)
                x = ring.a.index(2 * stage + index)
                gate = warpgroup_mma(x, ring.w.index(2 * stage), gate, is_async=True)
                up = warpgroup_mma(x, ring.w.index(2 * stage + 1), up, is_async=True)
                # What was issued before is complete: its place in the ring may be filled again.
                gate, up = warpgroup_mma_wait(num_outstanding=2, deps=(gate, up))
                mbarrier.arrive(ring.empty.index(ring.before(stage)), pred=k > 0)
                stage, parity = ring.next(stage, parity)
            gate, up = warpgroup_mma_wait(num_outstanding=0, deps=(gate, up))
            mbarrier.arrive(ring.empty.index(ring.before(stage)))
            if ACTIVATION == "silu":
                gate = gate / (1.0 + gl.exp(-gate))
            elif ACTIVATION == "relu":
                gate = gl.maximum(gate, 0.0)
            mbarrier.wait(ring.stored, kept)
            kept ^= 1
            a_tile.index(index).store((gate * up).to(a_tile.dtype))
            fence_async_shared()
            threads_meet()
            mbarrier.arrive(ring.ready)


@gluon.jit
def gluon_moe_up(
    x_ptr,  # descriptor of x [., H], block [64, 64]
    w_ptr,  # of w [experts * H, 2 F], block [64, 128]
    a_ptr,  # of a [., F], block [64, 128]
    sy_schedule,
    sy_control,
    H: gl.constexpr,
    F: gl.constexpr,
    COLUMNS: gl.constexpr,
    ACTIVATION: gl.constexpr,
    STAGES: gl.constexpr,
):
    """As kernels.moe.moe_up. H is a multiple of a block of K, F of a tile's columns."""
    gl.static_assert(H % _DEPTH == 0 and F % TILE_COLUMNS == 0)
    ring = make_ring(x_ptr, w_ptr, sy_schedule, sy_control, STAGES, True)
    a_tile = gl.allocate_shared_memory(a_ptr.dtype, [2] + a_ptr.block_shape, a_ptr.layout)
    gl.warp_specialize(
        [
            (_consumer, (0, ring, a_tile, H, COLUMNS, ACTIVATION)),
            (_consumer, (1, ring, a_tile, H, COLUMNS, ACTIVATION)),
            (_load, (ring, x_ptr, w_ptr, H, F, COLUMNS)),
            (store_first, (ring, a_ptr, a_tile, COLUMNS)),
        ],
        [4, 1, 1],
        [232, 40, 40],
    )
