"""What the partitions of kernels.gluon_attention are given, and of its tiles: which one a slot is of, where its rows are, and
which blocks of K they see."""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import tma

from ..gluon import sy_num_slots, sy_tile
from .gluon_members import set_members
from .gluon_versions import aggregate

CONSUMER_ROWS = gl.constexpr(64)  # what one wgmma multiplies

_Maybe = gl.tensor | gl.constexpr  # a pointer, or None
_MaybeRows = tma.tensor_descriptor | gl.constexpr


@aggregate
class Call:
    """What the partitions of a block are given. First the kernel's parameters, whose comments are there."""

    q_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    o_desc: tma.tensor_descriptor
    own_k_desc: _MaybeRows
    own_v_desc: _MaybeRows
    place_ptr: _Maybe
    l_ptr: gl.tensor
    bounds_ptr: _Maybe
    seen_ptr: _Maybe
    order_ptr: _Maybe
    position_ptr: _Maybe
    carry_ptr: _Maybe
    tops_ptr: _Maybe
    scale: gl.tensor
    B: gl.tensor
    H: gl.tensor
    HKV: gl.tensor
    SQ: gl.tensor
    SK: gl.tensor
    OFFSET: gl.tensor
    WINDOW: gl.tensor
    FIRST: gl.tensor
    LAST: gl.tensor
    sy_schedule: gl.tensor
    sy_control: gl.tensor
    CAUSAL: gl.constexpr
    WINDOWED: gl.constexpr
    DOCUMENTS: gl.constexpr
    D: gl.constexpr
    BM: gl.constexpr
    BN: gl.constexpr
    STAGES: gl.constexpr
    O_IN_Q: gl.constexpr
    LONGEST_FIRST: gl.constexpr
    PASS: gl.constexpr
    PLACED: gl.constexpr
    FUSED: gl.constexpr
    # Shared memory.
    q_tile: gl.shared_memory_descriptor  # [consumers, 64, D]
    k_ring: gl.shared_memory_descriptor  # [STAGES, BN, D]
    v_ring: gl.shared_memory_descriptor
    o_tile: gl.shared_memory_descriptor  # as q_tile, and with O_IN_Q the same
    numbers: gl.shared_memory_descriptor  # [STAGES, 1]: which block of K is there
    # mbarriers.
    q_full: gl.shared_memory_descriptor  # for the consumers: q_tile is filled
    q_empty: gl.shared_memory_descriptor  # for the loader: it is read
    k_full: gl.shared_memory_descriptor  # [STAGES], for the consumers: a place of the ring is filled
    k_empty: gl.shared_memory_descriptor  # [STAGES], for the loader: it is read
    v_full: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor  # for the storer: o_tile is written
    stored: gl.shared_memory_descriptor  # for the consumers: it is read

    @gluon.constexpr_function
    def __init__(self, **values):
        set_members(self, values)

    @gluon.jit
    def slots(self):
        """How many slots there are."""
        if self.FUSED:
            return sy_num_slots(self.sy_schedule)
        else:
            return gl.cdiv(self.SQ, self.BM) * self.H * self.B

    @gluon.jit
    def unfused_tile(self, slot):
        """The order of an unfused call. Every other round of programs is dealt out backwards, so that who got the longest tile
        of one round gets the shortest of the next."""
        programs = gl.num_programs(0)
        tiles = gl.cdiv(self.SQ, self.BM)
        turn = slot // programs
        at = slot
        if turn % 2 == 1:
            at = gl.minimum((turn + 1) * programs, tiles * self.H * self.B) - 1 - slot % programs
        if self.DOCUMENTS:
            return gl.load(self.order_ptr + at // (self.H * self.B)) + at % (self.H * self.B) * tiles
        elif self.LONGEST_FIRST:
            return (tiles - 1 - at // (self.H * self.B)) + at % (self.H * self.B) * tiles
        else:
            return at

    @gluon.jit
    def tile(self, slot):
        """The tile of `slot`; those of a head are numbered by rows, then come those of the next head. It waits for nothing."""
        if self.FUSED:
            return sy_tile(self.sy_schedule, slot)
        else:
            return self.unfused_tile(slot)

    @gluon.jit
    def coordinates(self, tile):
        """The tile's first row, its head and its batch entry."""
        tiles = gl.cdiv(self.SQ, self.BM)
        return tile % tiles * self.BM, tile // tiles % self.H, tile // tiles // self.H

    @gluon.jit
    def extent(self, first):
        """Blocks [low, high) hold all that some row of the tile sees, [whole, part) are those that all rows see whole, and
        whether it sees none: it then goes through block 0, which is masked."""
        low = 0
        high = self.SK
        whole = 0
        part = self.SK
        if self.DOCUMENTS:
            bounds = self.bounds_ptr + 4 * (first // self.BM)
            low = gl.load(bounds)
            whole = gl.load(bounds + 1)
            part = gl.load(bounds + 2)
            high = gl.load(bounds + 3)
        else:
            begin = first + self.OFFSET
            end = gl.minimum(first + self.BM, self.SQ) + self.OFFSET
            if self.CAUSAL:
                high = gl.minimum(high, end)
                part = gl.minimum(part, begin + 1)
            elif self.WINDOWED:
                high = gl.minimum(high, end + self.WINDOW - 1)
                part = gl.minimum(part, begin + self.WINDOW)
            if self.WINDOWED:
                low = gl.maximum(begin - self.WINDOW + 1, 0)
                whole = gl.maximum(end - self.WINDOW, 0)
        low = low // self.BN
        whole = gl.cdiv(whole, self.BN)
        part = gl.maximum(part, 0) // self.BN
        high = gl.cdiv(gl.maximum(high, 0), self.BN)
        empty = high <= low
        low = gl.where(empty, 0, low)
        high = gl.where(empty, 1, high)
        part = gl.where(empty, 0, part)
        return low, high, whole, part, empty

    @gluon.jit
    def place(self, first):
        """At which row of Q and O a tile's rows begin."""
        if self.PLACED:
            return gl.load(self.place_ptr + first // self.BN)
        else:
            return first
