"""What Gluon's products of a mixture of experts have in common: the ring of blocks that a loader fills and two consumers read, and the
storer of a first product's tiles."""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from ..gluon import sy_await, sy_finish, sy_group_rows, sy_num_slots, sy_post, sy_tile
from .gluon_versions import aggregate, store_block

ROWS = gl.constexpr(64)  # of a consumer
TILE_COLUMNS = gl.constexpr(128)


@aggregate
class Ring:
    """What the partitions share."""

    a: gl.shared_memory_descriptor  # 2 * STAGES blocks of 64 rows
    w: gl.shared_memory_descriptor  # STAGES, or GATED 2 * STAGES, blocks
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor  # consumers have left a tile
    stored: gl.shared_memory_descriptor
    schedule: gl.tensor
    control: gl.tensor
    STAGES: gl.constexpr
    GATED: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, a, w, full, empty, ready, stored, schedule, control, STAGES, GATED):
        self.a = a
        self.w = w
        self.full = full
        self.empty = empty
        self.ready = ready
        self.stored = stored
        self.schedule = schedule
        self.control = control
        self.STAGES = gl.constexpr(STAGES)
        self.GATED = gl.constexpr(GATED)

    @gluon.jit
    def next(self, stage, parity):
        stage += 1
        wraps = stage == self.STAGES
        return gl.where(wraps, 0, stage), gl.where(wraps, parity ^ 1, parity)

    @gluon.jit
    def before(self, stage):
        return gl.where(stage == 0, self.STAGES - 1, stage - 1)


@gluon.jit
def make_ring(a_desc, w_desc, schedule, control, STAGES: gl.constexpr, GATED: gl.constexpr):
    PRODUCTS: gl.constexpr = 2 if GATED else 1
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    made = Ring(
        gl.allocate_shared_memory(a_desc.dtype, [2 * STAGES] + a_desc.block_shape, a_desc.layout),
        gl.allocate_shared_memory(w_desc.dtype, [PRODUCTS * STAGES] + w_desc.block_shape, w_desc.layout),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER),
        gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        schedule.to(gl.int64),
        control.to(gl.int64),
        STAGES,
        GATED,
    )
    for stage in gl.static_range(STAGES):
        mbarrier.init(made.full.index(stage), count=1)
        mbarrier.init(made.empty.index(stage), count=2)
    mbarrier.init(made.ready, count=2)
    mbarrier.init(made.stored, count=1)
    return made


@gluon.jit
def store_first(ring, a_desc, a_tile, COLUMNS):
    """The storer of a first product: it stores the tiles that consumers leave, posts their slots, and ends the program."""
    filled = 0
    for slot in range(gl.program_id(0), sy_num_slots(ring.schedule), gl.num_programs(0)):
        tile = sy_tile(ring.schedule, slot)
        rows = sy_group_rows(ring.schedule, slot)
        if rows > 0:
            mbarrier.wait(ring.ready, filled)
            filled ^= 1
            store_block(a_desc, [tile // COLUMNS, tile % COLUMNS * TILE_COLUMNS], a_tile.index(0))
            if rows > ROWS:
                store_block(a_desc, [tile // COLUMNS + ROWS, tile % COLUMNS * TILE_COLUMNS], a_tile.index(1))
            tma.store_wait(0)
            mbarrier.arrive(ring.stored)
        else:
            sy_await(ring.schedule, ring.control, slot)
        sy_post(ring.schedule, ring.control, slot)
    sy_finish(ring.schedule, ring.control)
