"""What the partitions of kernels.gluon_attention_backward are given, and what its consumers have in common: which block of K a program
has, which rows of Q see it, masks, and how dQ is added."""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import tma

from ..gluon import sy_num_slots, sy_tile
from .gluon_attention_softmax import NEVER
from .gluon_members import set_members
from .gluon_versions import aggregate

LOG2E = gl.constexpr(1.4426950408889634)
CACHE = gl.constexpr(24 << 20)  # bytes that stay: less than half of an H200's L2
TOGETHER = gl.constexpr(264)  # tiles: two for each multiprocessor

_Maybe = gl.tensor | gl.constexpr


@aggregate
class Call:
    """What the partitions are given. First the kernel's parameters, whose comments are there."""

    q_desc: tma.tensor_descriptor
    do_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    lse_desc: tma.tensor_descriptor
    delta_desc: tma.tensor_descriptor
    dq_ptr: gl.tensor
    dk_ptr: gl.tensor
    dv_ptr: gl.tensor
    bounds_ptr: _Maybe
    seen_ptr: _Maybe
    scale: gl.tensor
    H: gl.tensor
    HKV: gl.tensor  # heads of dK and dV: PARTS for each of K
    PARTS: gl.tensor
    SQ: gl.tensor
    SK: gl.tensor
    OFFSET: gl.tensor
    WINDOW: gl.tensor
    sy_schedule: gl.tensor
    sy_control: gl.tensor
    CAUSAL: gl.constexpr
    WINDOWED: gl.constexpr
    TABLES: gl.constexpr
    ADD_DQ: gl.constexpr
    FUSED: gl.constexpr
    D: gl.constexpr
    BM: gl.constexpr
    BN: gl.constexpr
    STAGES: gl.constexpr
    P_PLACES: gl.constexpr
    # Shared memory.
    k_tile: gl.shared_memory_descriptor  # [BN, D]
    v_tile: gl.shared_memory_descriptor  # [BN, D]
    q_ring: gl.shared_memory_descriptor  # [STAGES, BM, D]
    do_ring: gl.shared_memory_descriptor  # [STAGES, BM, D]
    lse_ring: gl.shared_memory_descriptor  # [STAGES, BM]
    delta_ring: gl.shared_memory_descriptor  # [STAGES, BM]
    ds_ring: gl.shared_memory_descriptor  # [2, BN, BM]: dS, transposed
    p_ring: gl.shared_memory_descriptor  # WIDE: [P_PLACES, BN * BM] of fp32: P, transposed, in pieces
    # mbarriers.
    kv_full: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor  # [STAGES], for the consumers
    do_full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor  # [STAGES], for the loader: Q and dO are read
    ds_full: gl.shared_memory_descriptor  # both consumers have written the block's dS
    p_full: gl.shared_memory_descriptor  # WIDE: [P_PLACES], for consumer 1
    p_empty: gl.shared_memory_descriptor  # WIDE: [P_PLACES], for consumer 0
    stored: gl.shared_memory_descriptor  # FUSED: both have stored their rows of dK and dV

    @gluon.constexpr_function
    def __init__(self, **values):
        set_members(self, values)

    @gluon.jit
    def coordinates(self):
        """The program's block of K, its head of dK and its batch entry. Where tiles may differ the longest come first, those with the
        first rows of K, of some heads at a time: so many that Q, dO and dQ's sums of them stay in the cache until the next block of K
        wants them, but enough for the short tiles of the last heads to fill what their long ones leave."""
        tile = gl.program_id(0)
        blocks = gl.cdiv(self.SK, self.BN)
        if self.FUSED:
            tile = sy_tile(self.sy_schedule, tile)
            n = tile % blocks
            head = tile // blocks
        elif self.CAUSAL or self.TABLES:
            heads = gl.num_programs(0) // blocks
            cached = CACHE // (8 * self.D) // self.SQ
            groups = gl.maximum(heads // gl.maximum(cached, gl.cdiv(TOGETHER, blocks)), 1)
            share = heads // groups
            first = gl.minimum(tile // (share * blocks), groups - 1) * share
            share = gl.where(
                first == (groups - 1) * share, heads - first, share
            )  # the last ones have what is left
            n = (tile - first * blocks) // share
            head = first + (tile - first * blocks) % share
        else:
            n = tile % blocks
            head = tile // blocks
        return n, head % self.HKV, head // self.HKV

    @gluon.jit
    def extent(self, n):
        """Blocks [low, high) of Q hold all rows that see some row of block n of K, [whole, part) are those of which each row sees
        all of it."""
        first = n * self.BN
        if self.TABLES:
            bounds = self.bounds_ptr + 4 * n
            low = gl.load(bounds)
            whole = gl.load(bounds + 1)
            part = gl.load(bounds + 2)
            high = gl.load(bounds + 3)
        else:
            low = 0
            whole = 0
            high = self.SQ
            part = self.SQ + self.BM  # rows beyond the last one need no mask
            if self.CAUSAL:
                low = gl.maximum(first - self.OFFSET, 0)
                whole = gl.maximum(first + self.BN - 1 - self.OFFSET, 0)
            elif self.WINDOWED:
                low = gl.maximum(first - self.OFFSET - self.WINDOW + 1, 0)
                whole = gl.maximum(first + self.BN - self.OFFSET - self.WINDOW, 0)
            if self.WINDOWED:
                high = gl.minimum(high, first + self.BN - 1 + self.WINDOW - self.OFFSET)
                part = gl.minimum(part, first + self.WINDOW - self.OFFSET)
            low = low // self.BM
            whole = gl.cdiv(whole, self.BM)
            part = gl.maximum(part, 0) // self.BM
            high = gl.cdiv(gl.maximum(high, 0), self.BM)
        if first + self.BN > self.SK:
            part = 0  # rows beyond the last one have to be masked
        return low, whole, part, gl.maximum(high, low)

    @gluon.jit
    def has_tile(self):
        """Whether this program has one: ranks may have fewer than others."""
        there = True
        if self.FUSED:
            there = gl.program_id(0) < sy_num_slots(self.sy_schedule)
        return there


@gluon.jit
def mask(call, scores, row, column, base):
    """The scores [rows of K, rows of Q], minus infinity where a row of Q does not see a row of K."""
    rows = gl.expand_dims(row, 1)
    seen = rows < call.SK
    if call.TABLES:
        seen_from = gl.load(call.seen_ptr + column)
        seen_to = gl.load(call.seen_ptr + base + column)
        seen = (rows >= gl.expand_dims(seen_from, 0)) & (rows < gl.expand_dims(seen_to, 0))
    else:
        at = gl.expand_dims(column + call.OFFSET, 0)
        if call.CAUSAL:
            seen = seen & (rows <= at)
        elif call.WINDOWED:
            seen = seen & (rows - at < call.WINDOW)
        if call.WINDOWED:
            seen = seen & (at - rows < call.WINDOW)
    return gl.where(seen, scores, NEVER)


@gluon.jit
def pieces_of(block):
    """A block [ROWS, COLUMNS] of a consumer's sums, as the tensor cores leave it: of 16 rows by 8 columns each thread has two pairs of
    neighbours, eight rows apart, which are put side by side. So a thread has 16 bytes in a row, and a warp 512."""
    ROWS: gl.constexpr = block.shape[0]
    COLUMNS: gl.constexpr = block.shape[1]
    made = block.reshape((ROWS // 16, 2, 8, COLUMNS // 8, 4, 2)).permute((0, 3, 2, 4, 1, 5))
    return made.reshape((ROWS * COLUMNS,))


@gluon.jit
def block_of_pieces(pieces, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """The block, in the layout that it had; nothing moves."""
    made = pieces.reshape((ROWS // 16, COLUMNS // 8, 8, 4, 2, 2)).permute((0, 4, 2, 1, 3, 5))
    return gl.convert_layout(made.reshape((ROWS, COLUMNS)), LAYOUT, assert_trivial=True)


@gluon.jit
def add(to_ptr, dq):
    """Adds a consumer's part of a block of dQ, as it has it (pieces_of).

    Said in PTX: beside a fence that acquires, as a fused kernel has it, the assembler takes gl.atomic_add for one whose old value
    may be asked for. It then waits for it, and the whole kernel takes a fifth to a third longer."""
    ELEMENTS: gl.constexpr = dq.shape[0] * dq.shape[1]
    even, odd = pieces_of(dq).reshape((ELEMENTS // 4, 2, 2)).split()
    first, third = even.split()
    second, fourth = odd.split()
    to = (to_ptr + 4 * gl.arange(0, ELEMENTS // 4, layout=first.type.layout)).to(gl.int64, bitcast=True)
    gl.inline_asm_elementwise(
        "red.relaxed.gpu.global.add.v4.f32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0;",
        "=r,l,f,f,f,f",
        [to, first, second, third, fourth],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def places_of(call, n, kv_head, b, row, OUT: gl.constexpr):
    """Where dK and dV have rows `row` of the tile, [rows, D], and which of them there are."""
    out_row = n * call.BN + row
    places = (b * call.HKV + kv_head).to(gl.int64) * call.SK * call.D + (
        gl.expand_dims(out_row * call.D, 1)
        + gl.expand_dims(gl.arange(0, call.D, layout=gl.SliceLayout(0, OUT)), 0)
    )
    return places, gl.expand_dims(out_row < call.SK, 1)
