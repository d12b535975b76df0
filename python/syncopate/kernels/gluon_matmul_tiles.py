"""What the partitions of kernels.gluon_matmul are given, and which tile a slot is."""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import tma

from ..gluon import sy_head_start, sy_num_slots, sy_tile
from .gluon_launch import MAX_SPLIT_TILES
from .gluon_members import set_members
from .gluon_versions import Slabs, aggregate

WGMMA_ROWS = gl.constexpr(64)  # of a consumer: what one wgmma multiplies
HEAD = gl.constexpr(MAX_SPLIT_TILES)

Maybe = gl.tensor | gl.constexpr  # a pointer, or None


@aggregate
class Call:
    """What the partitions of a block are given. First the kernel's parameters, whose comments are there."""

    a_desc: tma.tensor_descriptor
    b_desc: tma.tensor_descriptor
    c_desc: tma.tensor_descriptor
    a_copy_desc: tma.tensor_descriptor | gl.constexpr
    bias_ptr: Maybe
    scale_a_ptr: Maybe
    scale_b_ptr: Maybe
    M: gl.tensor
    N: gl.tensor
    K: gl.tensor
    sy_schedule: gl.tensor
    sy_control: gl.tensor
    sy_own: tma.tensor_descriptor | gl.constexpr
    sy_workspace: Maybe
    sy_sums: Maybe
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_K: gl.constexpr
    SPLIT_K: gl.constexpr
    STAGES: gl.constexpr
    CONSUMERS: gl.constexpr
    GROUP_M: gl.constexpr
    B_TRANSPOSED: gl.constexpr
    NUM_B: gl.constexpr  # blocks of b for each block of a: GATED 2, or as many as slabs
    PARTS: gl.constexpr  # of a block of K: as many blocks of a, and NUM_B times as many of b
    BOXES: gl.constexpr  # loads of a tile's rows of a
    SLAB: gl.constexpr  # columns of a block of b and of c, where these are slabs; else 0
    WIDTH: gl.constexpr  # columns of the first sums of a tile
    PAIR: gl.constexpr  # a tile has second sums: of GATED, or of the columns behind the first
    OTHER_WIDTH: gl.constexpr
    PARTIAL_SUMS: gl.constexpr  # of a tile, both
    GATED: gl.constexpr
    ACTIVATION: gl.constexpr
    SCALES: gl.constexpr
    WHOLE_BIAS: gl.constexpr
    FUSED: gl.constexpr
    B_EARLY: gl.constexpr
    AFTER_KERNEL: gl.constexpr
    HEAD_START: gl.constexpr
    FETCHED: gl.constexpr
    PUSHED: gl.constexpr
    COPIES: gl.constexpr
    OWN: gl.constexpr
    TELLS: gl.constexpr
    COUNTS_END: gl.constexpr
    SUMMANDS: gl.constexpr  # contributions that programs add up
    # Shared memory.
    a_ring: gl.shared_memory_descriptor  # [STAGES * PARTS * BOXES, …], and what a wgmma reads behind
    b_ring: Slabs  # [STAGES * PARTS] places of NUM_B blocks, for the first and the second sums
    c_tile: Slabs  # [CONSUMERS] places of [64, BLOCK_N], or of BLOCK_N / SLAB of [64, SLAB]
    verdict: gl.shared_memory_descriptor  # of a split K: whether this block finishes the tile
    words: gl.shared_memory_descriptor  # [AHEAD], of the waiter for the loader
    # mbarriers.
    full: gl.shared_memory_descriptor  # [STAGES], for the consumers: a place of the ring is filled
    empty: gl.shared_memory_descriptor  # [STAGES], for the loader: it is read
    stored: gl.shared_memory_descriptor  # for the consumers: c_tile is read
    ready: gl.shared_memory_descriptor  # for the storer: c_tile is written
    parts_ready: gl.shared_memory_descriptor  # for the storer: this block's partial sums are written
    verdict_ready: gl.shared_memory_descriptor  # for the consumers
    arrived: gl.shared_memory_descriptor  # for the consumers: the summands; TELLS, for the storer: the number
    summed: gl.shared_memory_descriptor  # for the storer: it is added up
    over: gl.shared_memory_descriptor  # [AHEAD], for the loader: a wait is over, and its word is there
    told: gl.shared_memory_descriptor  # [AHEAD], for the waiter: the word is read

    @gluon.constexpr_function
    def __init__(self, **values):
        set_members(self, values)

    @gluon.jit
    def turns(self):
        """This program's turns, as a range: begin, end, step. slot() says which slot a turn is."""
        first, slots, programs = self.slots()
        if self.HEAD_START:
            head, rounds = sy_head_start(self.sy_schedule)
            behind = gl.maximum(slots - head * rounds - first + programs - 1, 0) // programs
            return gl.where(first < head, 0, rounds), rounds + behind, 1
        else:
            return first, slots, programs

    @gluon.jit
    def slot(self, turn):
        """The slot of a turn of this program."""
        if self.HEAD_START:
            head, rounds = sy_head_start(self.sy_schedule)
            first, _, programs = self.slots()
            behind = head * rounds + (turn - rounds) * programs
            return first + gl.where(turn < rounds, turn * head, behind)
        else:
            return turn

    @gluon.jit
    def slots(self):
        """The first slot of this program, how many there are, and how many programs share them."""
        programs = gl.num_programs(0) // self.SPLIT_K
        first = gl.program_id(0) // self.SPLIT_K
        if self.FUSED:
            count = sy_num_slots(self.sy_schedule)
        else:
            count = gl.cdiv(self.M, self.BLOCK_M) * gl.cdiv(self.N, self.BLOCK_N)
        return first, count, programs

    @gluon.jit
    def tile(self, slot):
        """The tile of `slot`; tiles are numbered row by row. It waits for nothing."""
        if self.FUSED:
            return sy_tile(self.sy_schedule, slot)
        else:
            num_m = gl.cdiv(self.M, self.BLOCK_M)
            return _unfused_tile(slot, num_m, gl.cdiv(self.N, self.BLOCK_N), self.GROUP_M)

    @gluon.jit
    def share(self):
        """The blocks of K [begin, end) of this one of SPLIT_K programs: even shares."""
        k_blocks = gl.cdiv(self.K, self.BLOCK_K)
        split = gl.program_id(0) % self.SPLIT_K
        return split * k_blocks // self.SPLIT_K, (split + 1) * k_blocks // self.SPLIT_K

    @gluon.jit
    def slab_column(self, block: gl.constexpr):
        """Where slab `block` of the ring's stands in b, from the tile's column on. First the slabs of the first sums; of
        GATED, in either, those of the gate and then those that it multiplies."""
        FIRST: gl.constexpr = self.b_ring.FIRST
        SECOND: gl.constexpr = block >= FIRST
        SLABS: gl.constexpr = self.NUM_B - FIRST if SECOND else FIRST
        AT: gl.constexpr = block - FIRST if SECOND else block
        if self.GATED:
            HALF: gl.constexpr = SLABS // 2
            before = FIRST // 2 if SECOND else 0
            return AT // HALF * self.N + (before + AT % HALF) * self.SLAB
        else:
            return block * self.SLAB

    @gluon.jit
    def next(self, stage, phase):
        """The ring's next place, and the parity of its mbarriers there."""
        stage += 1
        wrapped = stage == self.STAGES
        return gl.where(wrapped, 0, stage), gl.where(wrapped, phase ^ 1, phase)

    @gluon.jit
    def before(self, stage):
        """The ring's place before `stage`."""
        return gl.where(stage == 0, self.STAGES, stage) - 1


@gluon.jit
def _unfused_tile(slot, num_m, num_n, GROUP_M: gl.constexpr):
    """The order of an unfused call: GROUP_M rows of tiles share the same columns of b while these are in L2."""
    per_group = GROUP_M * num_n
    first = slot // per_group * GROUP_M
    size = gl.minimum(num_m - first, GROUP_M)
    row = first + slot % per_group % size
    return row * num_n + slot % per_group // size
