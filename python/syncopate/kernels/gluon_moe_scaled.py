"""Products of a mixture of experts of fp8 with scales of blocks, for Hopper, in Gluon: tiles of 128 rows of kernels.moe_scaled's
moe_up and moe_down, whose slots they follow. There a product waits until the one before it is scaled and added; here the two
consumers do so in turn, and one's products run while the other adds.

    loader (1 warp)      awaits a slot; fills a ring of STAGES (rows of a, a block of w for each product) by TMA
    consumer (4 warps)   two, with 64 rows each: a block of K's product, scaled, added to the sums in fp32
    storer (1 warp)      stores what a consumer has left in shared memory, posts the slot, and ends the program

Rows behind an expert's are whatever lies there: each makes its own row alone. A run begins at a multiple of a tile's rows, so that
what a tile of `a` stores behind its rows is nobody's.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..gluon import sy_await, sy_finish, sy_group, sy_group_rows, sy_num_slots, sy_post, sy_tile
from .gluon_moe_ring import ROWS, make_ring, store_first
from .gluon_versions import load_block, threads_meet

_SCALED = gl.constexpr(128)
_LARGEST = gl.constexpr(448.0)  # of e4m3


@gluon.jit
def _load(ring, a_desc, w_desc, K, N, GAP, COLUMNS):
    """`N` rows of w are an expert's; those of the second product lie `GAP` behind the first's."""
    BYTES: gl.constexpr = 2 * ROWS * _SCALED + (2 if ring.GATED else 1) * _SCALED * _SCALED
    stage = 0
    parity = 1  # a ring that was never filled is empty
    for slot in range(gl.program_id(0), sy_num_slots(ring.schedule), gl.num_programs(0)):
        tile = sy_await(ring.schedule, ring.control, slot)
        rows = sy_group_rows(ring.schedule, slot)
        row = tile // COLUMNS
        first = sy_group(ring.schedule, slot) * N + tile % COLUMNS * _SCALED
        if rows > 0:
            for k in range(0, K, _SCALED):
                full = ring.full.index(stage)
                mbarrier.wait(ring.empty.index(stage), parity)
                mbarrier.expect(full, BYTES)
                load_block(a_desc, [row, k], full, ring.a.index(2 * stage))
                load_block(a_desc, [row + ROWS, k], full, ring.a.index(2 * stage + 1))
                if ring.GATED:
                    load_block(w_desc, [first, k], full, ring.w.index(2 * stage))
                    load_block(w_desc, [first + GAP, k], full, ring.w.index(2 * stage + 1))
                else:
                    load_block(w_desc, [first, k], full, ring.w.index(stage))
                stage, parity = ring.next(stage, parity)


@gluon.jit
def _product(ring, index, place, stage, zero):
    """A block of K's, complete."""
    a = ring.a.index(2 * stage + index)
    made = warpgroup_mma(a, ring.w.index(place).permute((1, 0)), zero, use_acc=False, is_async=True)
    return warpgroup_mma_wait(num_outstanding=0, deps=(made,))


@gluon.jit
def _scales(ring, scale_a_ptr, of_w, k, per_row, GAP, inside):
    """Of a block of K, if there is one: each row's, and those of w's blocks."""
    there = k < per_row
    scale = gl.load(scale_a_ptr + k, mask=inside & there, other=0.0)
    first = gl.load(of_w + k, mask=there, other=0.0)
    second = first
    if ring.GATED:
        second = gl.load(of_w + GAP // _SCALED * per_row + k, mask=there, other=0.0)
    return scale, first, second


@gluon.jit
def _sums(
    ring, index, stage, parity, a_scale_ptr, w_scale_ptr, row, rows, group, n, K, N, GAP, ACC: gl.constexpr
):
    """Of a tile what each product adds up to, and where the ring stands behind it."""
    zero = gl.zeros((ROWS, _SCALED), gl.float32, layout=ACC)
    one, other = zero, zero
    per_row = gl.cdiv(K, _SCALED)
    local = gl.arange(0, ROWS, layout=gl.SliceLayout(1, ACC)) + index * ROWS
    scale_a_ptr = a_scale_ptr + (row + local).to(gl.int64) * per_row
    of_w = w_scale_ptr + (group * gl.cdiv(N, _SCALED) + n) * per_row
    # The rows' scales have come with the rows. Those of a block are loaded while the products of the one before run: what is left
    # of the L1 cache beside the ring holds too few of their lines.
    mbarrier.wait(ring.full.index(stage), parity)
    next_scale, next_first, next_second = _scales(ring, scale_a_ptr, of_w, 0, per_row, GAP, local < rows)
    for k in range(per_row):
        scale, first, second = next_scale, next_first, next_second
        mbarrier.wait(ring.full.index(stage), parity)
        next_scale, next_first, next_second = _scales(
            ring, scale_a_ptr, of_w, k + 1, per_row, GAP, local < rows
        )
        if ring.GATED:
            part = _product(ring, index, 2 * stage, stage, zero)
            one += part * gl.expand_dims(scale * first, 1)
            part = _product(ring, index, 2 * stage + 1, stage, zero)
            mbarrier.arrive(ring.empty.index(stage))
            other += part * gl.expand_dims(scale * second, 1)
        else:
            part = _product(ring, index, stage, stage, zero)
            mbarrier.arrive(ring.empty.index(stage))
            one += part * gl.expand_dims(scale * first, 1)
        stage, parity = ring.next(stage, parity)
    return one, other, stage, parity


@gluon.jit
def _up_consumer(
    index: gl.constexpr,
    ring,
    a_tile,
    x_scale_ptr,
    w_scale_ptr,
    a_scale_ptr,
    H,
    F,
    COLUMNS,
    ACTIVATION: gl.constexpr,
):
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _SCALED, 32])
    stage = 0
    parity = 0
    kept = 1  # parity of `stored`: the place of a tile is free at first
    for slot in range(gl.program_id(0), sy_num_slots(ring.schedule), gl.num_programs(0)):
        tile = sy_tile(ring.schedule, slot)
        rows = sy_group_rows(ring.schedule, slot)
        if rows > 0:
            row, n = tile // COLUMNS, tile % COLUMNS
            group = sy_group(ring.schedule, slot)
            gate, up, stage, parity = _sums(
                ring, index, stage, parity, x_scale_ptr, w_scale_ptr, row, rows, group, n, H, 2 * F, F, ACC
            )
            if ACTIVATION == "silu":
                gate = gate / (1.0 + gl.exp(-gate))
            elif ACTIVATION == "relu":
                gate = gl.maximum(gate, 0.0)
            made = gate * up
            most = gl.max(gl.abs(made), axis=1)
            scale = gl.where(most == 0.0, 1.0, most / _LARGEST)
            local = gl.arange(0, ROWS, layout=gl.SliceLayout(1, ACC)) + index * ROWS
            gl.store(a_scale_ptr + (row + local).to(gl.int64) * COLUMNS + n, scale, mask=local < rows)
            mbarrier.wait(ring.stored, kept)
            kept ^= 1
            a_tile.index(index).store((made / gl.expand_dims(scale, 1)).to(a_tile.dtype))
            fence_async_shared()
            threads_meet()
            mbarrier.arrive(ring.ready)


@gluon.jit
def gluon_moe_up_scaled(
    x_ptr,  # descriptor of x [., H], block [64, 128]
    x_scale_ptr,
    w_ptr,  # of w [experts * 2 F, H], block [128, 128]
    w_scale_ptr,
    a_ptr,  # of a [., F], block [64, 128]
    a_scale_ptr,
    sy_schedule,
    sy_control,
    H: gl.constexpr,
    F: gl.constexpr,
    COLUMNS: gl.constexpr,
    ACTIVATION: gl.constexpr,
    STAGES: gl.constexpr,
):
    """As kernels.moe_scaled.moe_up_scaled, of blocks."""
    ring = make_ring(x_ptr, w_ptr, sy_schedule, sy_control, STAGES, True)
    a_tile = gl.allocate_shared_memory(a_ptr.dtype, [2] + a_ptr.block_shape, a_ptr.layout)
    gl.warp_specialize(
        [
            (
                _up_consumer,
                (0, ring, a_tile, x_scale_ptr, w_scale_ptr, a_scale_ptr, H, F, COLUMNS, ACTIVATION),
            ),
            (
                _up_consumer,
                (1, ring, a_tile, x_scale_ptr, w_scale_ptr, a_scale_ptr, H, F, COLUMNS, ACTIVATION),
            ),
            (_load, (ring, x_ptr, w_ptr, H, 2 * F, F, COLUMNS)),
            (store_first, (ring, a_ptr, a_tile, COLUMNS)),
        ],
        [4, 1, 1],
        [232, 40, 40],
    )


@gluon.jit
def _down_consumer(
    index: gl.constexpr,
    ring,
    a_scale_ptr,
    w_scale_ptr,
    origin_ptr,
    y_ptr,
    rank,
    stride,
    ROUTES,
    H,
    F,
    COLUMNS,
):
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _SCALED, 32])
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])  # 16 bytes of a row each
    stage = 0
    parity = 0
    kept = 1
    for slot in range(gl.program_id(0), sy_num_slots(ring.schedule), gl.num_programs(0)):
        tile = sy_tile(ring.schedule, slot)
        rows = sy_group_rows(ring.schedule, slot)
        if rows > 0:
            row, n = tile // COLUMNS, tile % COLUMNS
            group = sy_group(ring.schedule, slot)
            made, _, stage, parity = _sums(
                ring, index, stage, parity, a_scale_ptr, w_scale_ptr, row, rows, group, n, F, H, 0, ACC
            )
            local = gl.arange(0, ROWS, layout=gl.SliceLayout(1, WIDE)) + index * ROWS
            column = n * _SCALED + gl.arange(0, _SCALED, layout=gl.SliceLayout(0, WIDE))
            origin = gl.load(origin_ptr + row + local, mask=local < rows, other=0)
            there = (
                y_ptr + (origin // ROUTES - rank).to(gl.int64) * stride + (origin % ROUTES).to(gl.int64) * H
            )
            inside = gl.expand_dims(local < rows, 1) & gl.expand_dims(column < H, 0)
            made = gl.convert_layout(made.to(y_ptr.dtype.element_ty), WIDE)
            gl.store(gl.expand_dims(there, 1) + gl.expand_dims(column, 0), made, mask=inside)
            # One tile at a time is counted.
            mbarrier.wait(ring.stored, kept)
            kept ^= 1
            threads_meet()
            mbarrier.arrive(ring.ready)


@gluon.jit
def _down_storer(ring):
    filled = 0
    for slot in range(gl.program_id(0), sy_num_slots(ring.schedule), gl.num_programs(0)):
        if sy_group_rows(ring.schedule, slot) > 0:
            mbarrier.wait(ring.ready, filled)
            filled ^= 1
            mbarrier.arrive(ring.stored)
        else:
            sy_await(ring.schedule, ring.control, slot)
        sy_post(ring.schedule, ring.control, slot)
    sy_finish(ring.schedule, ring.control)


@gluon.jit
def gluon_moe_down_scaled(
    a_ptr,  # descriptor of a [., F], block [64, 128]
    a_scale_ptr,
    w_ptr,  # of w [experts * H, F], block [128, 128]
    w_scale_ptr,
    origin_ptr,
    y_ptr,
    rank,
    stride,
    sy_schedule,
    sy_control,
    ROUTES: gl.constexpr,
    H: gl.constexpr,
    F: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """As kernels.moe_scaled.moe_down_scaled, of blocks."""
    ring = make_ring(a_ptr, w_ptr, sy_schedule, sy_control, STAGES, False)
    gl.warp_specialize(
        [
            (
                _down_consumer,
                (0, ring, a_scale_ptr, w_scale_ptr, origin_ptr, y_ptr, rank, stride, ROUTES, H, F, COLUMNS),
            ),
            (
                _down_consumer,
                (1, ring, a_scale_ptr, w_scale_ptr, origin_ptr, y_ptr, rank, stride, ROUTES, H, F, COLUMNS),
            ),
            (_load, (ring, a_ptr, w_ptr, F, H, 0, COLUMNS)),
            (_down_storer, (ring,)),
        ],
        [4, 1, 1],
        [232, 40, 40],
    )
