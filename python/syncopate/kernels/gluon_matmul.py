"""The library's GEMM for Hopper, in Gluon: c = act(a @ b + bias), alone or following a schedule (a stated kernel).

One block has up to four partitions, each of which walks the same slots:

    loader (1 warp)      awaits the slot, then fills a ring of STAGES pairs (rows of a, block of b) by TMA
    consumer (4 warps)   64 rows of the tile each: wgmma from the ring, epilogue in registers, rows into shared memory
    storer (1 warp)      stores the tile by TMA (here or at a peer), posts it, and ends the program

Waits stand in the loader: consumers go on from the ring while it polls. Posts stand in the storer: consumers start the
next tile while the stores complete. With SPLIT_K > 1 as many blocks share a tile: each adds up an even share of K and
writes fp32 partial sums; the block that is last adds all of them in the order of K, so that the bits do not depend on
who that is, and finishes the tile. Nobody waits for another block.

A wgmma multiplies 64 rows. A tile of 16 or 32 loads, sums and stores only those: its place in the ring is as small, and
the 64 rows that the wgmma reads from there on go over into the places behind it. What these hold makes rows of the
product that nobody stores.

With SUMS the consumers add up what all ranks' tiles have stored here, each program an even share, when they have made
their tiles: the loader waits for that, and the storer ends the program after it.

With a_copy_desc tiles also store the rows of a that they load, from the ring, those of a row each its blocks of K: what
was gathered then lies in a tensor of the caller's when the kernel ends. A place is filled again when the store has read
it.

wgmma takes any number of columns, blocks of Triton only powers of two. A tile of 192 is 128 and 64 columns, each with
sums of its own; b and c are moved in slabs of 64 columns, of which two side by side are a block of 128.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.core import _aggregate as aggregate

from ..gluon import (
    sy_add_up,
    sy_await,
    sy_await_kernel_before,
    sy_await_phase,
    sy_await_sum,
    sy_call,
    sy_finish,
    sy_load_row,
    sy_loaded,
    sy_num_phases,
    sy_num_slots,
    sy_post,
    sy_post_each,
    sy_posts,
    sy_prefetch,
    sy_reads_own,
    sy_row,
    sy_start_next,
    sy_summands,
    sy_tile,
    sy_turn,
)
from .gluon_launch import MAX_SPLIT_TILES

_ROWS = gl.constexpr(64)  # of a consumer: what one wgmma multiplies
_SLAB = gl.constexpr(64)  # columns
_HEAD = gl.constexpr(MAX_SPLIT_TILES)

_Maybe = gl.tensor | gl.constexpr  # a pointer, or None


@aggregate
class _Call:
    """What the partitions of a block are given. First the kernel's parameters, whose comments are there."""

    a_desc: tma.tensor_descriptor
    b_desc: tma.tensor_descriptor
    c_desc: tma.tensor_descriptor
    a_copy_desc: tma.tensor_descriptor | gl.constexpr
    bias_ptr: _Maybe
    scale_a_ptr: _Maybe
    scale_b_ptr: _Maybe
    M: gl.tensor
    N: gl.tensor
    K: gl.tensor
    sy_schedule: gl.tensor
    sy_control: gl.tensor
    sy_own: tma.tensor_descriptor | gl.constexpr
    sy_workspace: _Maybe
    sy_sums: _Maybe
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_K: gl.constexpr
    SPLIT_K: gl.constexpr
    STAGES: gl.constexpr
    CONSUMERS: gl.constexpr
    GROUP_M: gl.constexpr
    B_TRANSPOSED: gl.constexpr
    NUM_B: gl.constexpr  # blocks of b for each block of a: GATED 2, of 192 columns 3 slabs
    PARTS: gl.constexpr  # of a block of K: as many blocks of a, and NUM_B times as many of b
    WIDTH: gl.constexpr  # columns of the first sums of a tile
    PAIR: gl.constexpr  # a tile has second sums: of GATED, or of columns from WIDTH on
    OTHER_WIDTH: gl.constexpr
    SUMS: gl.constexpr  # of a tile, both
    GATED: gl.constexpr
    ACTIVATION: gl.constexpr
    SCALES: gl.constexpr
    WHOLE_BIAS: gl.constexpr
    FUSED: gl.constexpr
    B_EARLY: gl.constexpr
    AFTER_KERNEL: gl.constexpr
    FETCHED: gl.constexpr
    PUSHED: gl.constexpr
    COPIES: gl.constexpr
    OWN: gl.constexpr
    TELLS: gl.constexpr
    ADDS: gl.constexpr  # summands
    # Shared memory.
    a_ring: gl.shared_memory_descriptor  # [STAGES * PARTS * CONSUMERS, …], and what a wgmma reads behind
    b_ring: gl.shared_memory_descriptor  # [STAGES * PARTS * NUM_B, …]
    c_tile: gl.shared_memory_descriptor  # [CONSUMERS, 64, BLOCK_N], or [CONSUMERS * 3, 64, 64]
    verdict: gl.shared_memory_descriptor  # of a split K: whether this block finishes the tile
    # mbarriers.
    full: gl.shared_memory_descriptor  # [STAGES], for the consumers: a place of the ring is filled
    empty: gl.shared_memory_descriptor  # [STAGES], for the loader: it is read
    stored: gl.shared_memory_descriptor  # for the consumers: c_tile is read
    ready: gl.shared_memory_descriptor  # for the storer: c_tile is written
    parts_ready: gl.shared_memory_descriptor  # for the storer: this block's partial sums are written
    verdict_ready: gl.shared_memory_descriptor  # for the consumers
    arrived: gl.shared_memory_descriptor  # for the consumers: what they add up has come
    summed: gl.shared_memory_descriptor  # for the storer: it is added up

    @gluon.constexpr_function
    def __init__(self, **values):
        for name, value in values.items():
            runtime = isinstance(value, (gl.tensor, tma.tensor_descriptor, gl.shared_memory_descriptor))
            setattr(self, name, value if runtime else gl.constexpr(value))

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


@gluon.jit
def _load_a(call, desc, row, k, stage):
    for part in gl.static_range(call.PARTS):
        for consumer in gl.static_range(call.CONSUMERS):
            tma.async_copy_global_to_shared(
                desc,
                [row + consumer * _ROWS, k * call.BLOCK_K + part * (call.BLOCK_K // call.PARTS)],
                call.full.index(stage),
                call.a_ring.index((stage * call.PARTS + part) * call.CONSUMERS + consumer),
            )


@gluon.jit
def _load_b(call, column, k, stage):
    full = call.full.index(stage)
    for part in gl.static_range(call.PARTS):
        depth = k * call.BLOCK_K + part * (call.BLOCK_K // call.PARTS)
        for block in gl.static_range(call.NUM_B):
            at = column + block * (call.N if call.GATED else _SLAB)
            into = call.b_ring.index((stage * call.PARTS + part) * call.NUM_B + block)
            if call.B_TRANSPOSED:
                tma.async_copy_global_to_shared(call.b_desc, [at, depth], full, into)
            else:
                tma.async_copy_global_to_shared(call.b_desc, [depth, at], full, into)


@gluon.jit
def _load(call):
    """The loader."""
    BYTES: gl.constexpr = (
        call.BLOCK_K
        * (call.BLOCK_M + (2 if call.GATED else 1) * call.BLOCK_N)
        * (call.a_desc.dtype.primitive_bitwidth // 8)
    )
    first, slots, programs = call.slots()
    k_begin, k_end = call.share()
    num_n = gl.cdiv(call.N, call.BLOCK_N)
    stage = 0
    parity = 1  # a ring that was never filled is empty
    number = 0
    if call.TELLS:
        number = sy_call(call.sy_control)
    early = 0
    if call.B_EARLY:
        if first < slots:
            tile = call.tile(first)
            early = gl.minimum(k_end - k_begin, call.STAGES)
            for at in range(early):
                mbarrier.expect(call.full.index(at), BYTES)
                _load_b(call, tile % num_n * call.BLOCK_N, k_begin + at, at)
    if call.AFTER_KERNEL:
        sy_await_kernel_before()
    if call.ADDS > 0:
        number = sy_call(call.sy_control)
    for slot in range(first, slots, programs):
        if call.FUSED:
            tile = sy_await(call.sy_schedule, call.sy_control, slot)
            phases = sy_num_phases(call.sy_schedule, slot)
        else:
            tile = call.tile(slot)
            phases = 0
        row = tile // num_n * call.BLOCK_M
        if call.FETCHED:
            row += sy_load_row(call.sy_schedule, slot)
        own = False
        if call.OWN:
            own = sy_reads_own(call.sy_schedule, slot)
        column = tile % num_n * call.BLOCK_N
        covered = k_begin
        for phase in range(gl.maximum(phases, 1)):
            begin = k_begin
            end = k_end
            if call.FUSED:
                # When this program's share is loaded others may end the call, whose number a wait asks for.
                if phases > 0 and covered >= k_end:
                    begin = k_end
                elif phases > 0:
                    begin, end = sy_await_phase(call.sy_schedule, call.sy_control, slot, phase)
                    covered = end
                    begin = gl.maximum(begin, k_begin)
                    end = gl.minimum(end, k_end)
            for k in range(begin, end):
                mbarrier.wait(call.empty.index(stage), parity)
                loaded = False
                if call.B_EARLY:
                    loaded = early > 0
                    early -= 1
                mbarrier.expect(call.full.index(stage), BYTES, pred=not loaded)
                if call.OWN:
                    if own:
                        _load_a(call, call.sy_own, row, k, stage)
                    else:
                        _load_a(call, call.a_desc, row, k, stage)
                else:
                    _load_a(call, call.a_desc, row, k, stage)
                if not loaded:
                    _load_b(call, column, k, stage)
                stage, parity = call.next(stage, parity)
    if call.TELLS:
        for _ in range(call.STAGES):  # what was loaded has been multiplied
            mbarrier.wait(call.empty.index(stage), parity)
            stage, parity = call.next(stage, parity)
        sy_loaded(call.sy_schedule, call.sy_control, number, call.SPLIT_K)
    if call.ADDS > 0:
        sy_await_sum(call.sy_schedule, call.sy_control, number)
        mbarrier.arrive(call.arrived)


@gluon.jit
def _activate(x, ACTIVATION: gl.constexpr):
    """As kernels.matmul: gelu with tanh, x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))."""
    if ACTIVATION == "relu":
        x = gl.maximum(x, 0.0)
    elif ACTIVATION == "gelu":
        x = x / (1.0 + gl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "silu":
        x = x / (1.0 + gl.exp(-x))
    return x


@gluon.jit
def _a_block(call, index):
    """a's 64 rows from place `index` of its ring on."""
    if call.BLOCK_M < _ROWS:
        LAYOUT: gl.constexpr = call.a_ring.type.layout
        rows = call.a_ring.index(index)
        return rows._reinterpret(call.a_ring.dtype, [_ROWS, call.BLOCK_K // call.PARTS], LAYOUT)
    else:
        return call.a_ring.index(index)


@gluon.jit
def _copy_a(call, index, row, k, stage):
    """Stores consumer `index`'s rows of a's block k of K, which stand in the ring at `stage`."""
    for part in gl.static_range(call.PARTS):
        tma.async_copy_shared_to_global(
            call.a_copy_desc,
            [row, k * call.BLOCK_K + part * (call.BLOCK_K // call.PARTS)],
            call.a_ring.index((stage * call.PARTS + part) * call.CONSUMERS + index),
        )


@gluon.jit
def _b_block(call, at, SECOND: gl.constexpr):
    """b's block [BLOCK_K / PARTS, …] for the first or second sums; `at`: which part of the ring."""
    index = at * call.NUM_B
    if call.NUM_B == 3:
        if SECOND:
            block = call.b_ring.index(index + 2)
        else:
            LAYOUT: gl.constexpr = call.b_ring.type.layout
            slab = call.b_ring.index(index)
            if call.B_TRANSPOSED:
                block = slab._reinterpret(call.b_ring.dtype, [2 * _SLAB, call.BLOCK_K], LAYOUT)
            else:
                block = slab._reinterpret(call.b_ring.dtype, [call.BLOCK_K, 2 * _SLAB], LAYOUT)
    elif SECOND:
        block = call.b_ring.index(index + 1)
    else:
        block = call.b_ring.index(index)
    if call.B_TRANSPOSED:
        return block.permute((1, 0))
    else:
        return block


@gluon.jit
def _scale_block(call, total, part, rows, column, k):
    """total + part * (scale of each row's block of K) * (scale of b's block): blocks of 128 along K and N."""
    k_blocks = gl.cdiv(call.K, 128)
    at = k * call.BLOCK_K // 128
    scale_a = gl.load(call.scale_a_ptr + rows * k_blocks + at, mask=rows < call.M, other=0.0)
    scale_b = gl.load(call.scale_b_ptr + column // 128 * k_blocks + at)
    return total + part * gl.expand_dims(scale_a * scale_b, 1)


@gluon.jit
def _places(call, index, row, sums, WIDTH: gl.constexpr):
    """Where `sums` of consumer `index` stand in the first partial sums, and which of its rows, from `row` on, c has."""
    LAYOUT: gl.constexpr = sums.type.layout
    local = gl.arange(0, _ROWS, layout=gl.SliceLayout(1, LAYOUT))
    used = local < gl.minimum(call.M - row, call.BLOCK_M)
    inside = gl.expand_dims((index * _ROWS + local) * WIDTH, 1) + gl.expand_dims(
        gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT)), 0
    )
    return call.sy_workspace + _HEAD + inside, gl.expand_dims(used, 1)


@gluon.jit
def _keep(call, index, row, number, sums, SECOND: gl.constexpr):
    """Writes partial sums of this number among all of all tiles."""
    WIDTH: gl.constexpr = call.OTHER_WIDTH if SECOND else call.WIDTH
    BEHIND: gl.constexpr = call.BLOCK_M * call.WIDTH if SECOND else 0
    places, used = _places(call, index, row, sums, WIDTH)
    gl.store(places + (number.to(gl.int64) * call.SUMS + BEHIND), sums, mask=used)


@gluon.jit
def _add_up(call, index, row, number, split, sums, SECOND: gl.constexpr):
    """The partial sums of all programs of the tile, whose first are of this number, in the order of K. `sums`: of this one."""
    WIDTH: gl.constexpr = call.OTHER_WIDTH if SECOND else call.WIDTH
    BEHIND: gl.constexpr = call.BLOCK_M * call.WIDTH if SECOND else 0
    LAYOUT: gl.constexpr = sums.type.layout
    places, used = _places(call, index, row, sums, WIDTH)
    first = places + (number.to(gl.int64) * call.SUMS + BEHIND)
    total = gl.zeros((_ROWS, WIDTH), gl.float32, layout=LAYOUT)
    # Few columns: all loads are on their way before the first is added, and this program loads not what it has.
    if WIDTH <= 64:
        for part in gl.static_range(call.SPLIT_K):
            at = first + part * call.SUMS
            other = gl.load(at, mask=used & (part != split), other=0.0, cache_modifier=".cg")
            total += gl.where(part == split, sums, other)
    else:
        for part in range(call.SPLIT_K):
            total += gl.load(first + part * call.SUMS, mask=used, other=0.0, cache_modifier=".cg")
    return total


@gluon.jit
def _scale_and_bias(call, total, row, column, WIDTH: gl.constexpr):
    LAYOUT: gl.constexpr = total.type.layout
    columns = column + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    if call.SCALES == "row":
        rows = row + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, LAYOUT))
        scale_a = gl.load(call.scale_a_ptr + rows, mask=rows < call.M, other=0.0)
        scale_b = gl.load(call.scale_b_ptr + columns, mask=columns < call.N, other=0.0)
        total = total * gl.expand_dims(scale_a, 1) * gl.expand_dims(scale_b, 0)
    if call.WHOLE_BIAS:
        rows = row + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, LAYOUT))
        there = gl.expand_dims(rows < call.M, 1) & gl.expand_dims(columns < call.N, 0)
        places = gl.expand_dims(rows.to(gl.int64) * call.N, 1) + gl.expand_dims(columns, 0)
        total += gl.load(call.bias_ptr + places, mask=there, other=0.0).to(gl.float32)
    elif call.bias_ptr is not None:
        bias = gl.load(call.bias_ptr + columns, mask=columns < call.N, other=0.0).to(gl.float32)
        total += gl.expand_dims(bias, 0)
    return total


@gluon.jit
def _multiply(index: gl.constexpr, call):
    """Consumer `index`: rows [64 * index, 64 * index + 64) of each tile."""
    SPLIT_K: gl.constexpr = call.SPLIT_K
    PARTS: gl.constexpr = call.PARTS
    GATED: gl.constexpr = call.GATED
    PAIR: gl.constexpr = call.PAIR
    COPIED: gl.constexpr = call.a_copy_desc is not None
    DEPTH: gl.constexpr = 256 // call.a_ring.dtype.primitive_bitwidth
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, call.WIDTH, DEPTH])
    OTHER: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, call.OTHER_WIDTH, DEPTH])
    first, slots, programs = call.slots()
    split = gl.program_id(0) % SPLIT_K
    k_begin, k_end = call.share()
    num_n = gl.cdiv(call.N, call.BLOCK_N)
    stage = 0
    parity = 0
    kept = 1  # parity of `stored`: the place of c is free at first
    judged = 0
    if call.ADDS > 0:
        ends = split == 0  # of those that share tiles, the one that ends the call for all
        if call.AFTER_KERNEL:
            sy_await_kernel_before()
        schedule = sy_turn(call.sy_schedule, sy_call(call.sy_control))
        elements, summands = sy_summands(schedule, call.sy_control, call.ADDS)
    for slot in range(first, slots, programs):
        tile = call.tile(slot)
        row = tile // num_n * call.BLOCK_M + index * _ROWS
        column = tile % num_n * call.BLOCK_N
        zero = gl.zeros((_ROWS, call.WIDTH), gl.float32, layout=ACC)
        if call.SCALES == "block":
            rows = row + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, ACC))
            total = zero
            for k in range(k_begin, k_end):
                mbarrier.wait(call.full.index(stage), parity)
                if COPIED:
                    if k % num_n == tile % num_n:
                        _copy_a(call, index, row, k, stage)
                a = _a_block(call, stage * call.CONSUMERS + index)
                part = warpgroup_mma(a, _b_block(call, stage, False), zero, use_acc=False)
                if COPIED:
                    tma.store_wait(0)
                mbarrier.arrive(call.empty.index(stage))
                total = _scale_block(call, total, part, rows, column, k)
                stage, parity = call.next(stage, parity)
        else:
            acc = zero
            more = gl.zeros((_ROWS, call.OTHER_WIDTH), gl.float32, layout=OTHER)
            for k in range(k_begin, k_end):
                mbarrier.wait(call.full.index(stage), parity)
                if COPIED:
                    if k % num_n == tile % num_n:
                        _copy_a(call, index, row, k, stage)
                for part in gl.static_range(PARTS):
                    at = stage * PARTS + part
                    a = _a_block(call, at * call.CONSUMERS + index)
                    acc = warpgroup_mma(a, _b_block(call, at, False), acc, is_async=True)
                    if PAIR:
                        more = warpgroup_mma(a, _b_block(call, at, True), more, is_async=True)
                # What was issued before is complete: its place in the ring may be filled again.
                if PAIR:
                    acc, more = warpgroup_mma_wait(num_outstanding=2 * PARTS, deps=(acc, more))
                else:
                    acc = warpgroup_mma_wait(num_outstanding=PARTS, deps=(acc,))
                if COPIED:
                    tma.store_wait(PARTS)
                mbarrier.arrive(call.empty.index(call.before(stage)), pred=k > k_begin)
                stage, parity = call.next(stage, parity)
            if PAIR:
                total, other = warpgroup_mma_wait(num_outstanding=0, deps=(acc, more))
            else:
                total = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
            if COPIED:
                tma.store_wait(0)
            mbarrier.arrive(call.empty.index(call.before(stage)), pred=k_end > k_begin)

        last = True
        if SPLIT_K > 1:
            number = tile * SPLIT_K
            _keep(call, index, row, number + split, total, False)
            if PAIR:
                _keep(call, index, row, number + split, other, True)
            mbarrier.arrive(call.parts_ready)
            mbarrier.wait(call.verdict_ready, judged)
            judged ^= 1
            LANES: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
            last = gl.max(call.verdict.load(LANES), axis=0) != 0
            if last:
                total = _add_up(call, index, row, number, split, total, False)
                if PAIR:
                    other = _add_up(call, index, row, number, split, other, True)
        if last:
            total = _scale_and_bias(call, total, row, column, call.WIDTH)
            total = _activate(total, call.ACTIVATION)
            if GATED:
                total = total * other
            elif PAIR:
                other = _scale_and_bias(call, other, row, column + call.WIDTH, call.OTHER_WIDTH)
                other = _activate(other, call.ACTIVATION)
            mbarrier.wait(call.stored, kept)
            kept ^= 1
            if call.NUM_B == 3:
                LAYOUT: gl.constexpr = call.c_tile.type.layout
                slab = call.c_tile.index(3 * index)
                wide = slab._reinterpret(call.c_tile.dtype, [_ROWS, 2 * _SLAB], LAYOUT)
                wide.store(total.to(call.c_tile.dtype))
                call.c_tile.index(3 * index + 2).store(other.to(call.c_tile.dtype))
            else:
                call.c_tile.index(index).store(total.to(call.c_tile.dtype))
            fence_async_shared()
            mbarrier.arrive(call.ready)
        if call.ADDS > 0:
            if SPLIT_K > 1:
                ends = last
    if call.ADDS > 0:
        mbarrier.wait(call.arrived, 0)
        if ends:
            part = first * call.CONSUMERS + index
            parts = programs * call.CONSUMERS
            sy_add_up(elements, summands, call.sy_sums, part, parts, call.c_desc.dtype, call.ADDS)
        mbarrier.arrive(call.summed)


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
            if tile_row + part * _ROWS < call.M:
                _store_part(call, row + part * _ROWS, column, part)
        else:
            _store_part(call, row + part * _ROWS, column, part)


@gluon.jit
def _store_part(call, row, column, part: gl.constexpr):
    """The rows of consumer `part`."""
    if call.BLOCK_M < _ROWS:
        LAYOUT: gl.constexpr = call.c_tile.type.layout
        first = call.c_tile.index(0)._reinterpret(call.c_tile.dtype, [call.BLOCK_M, call.BLOCK_N], LAYOUT)
        tma.async_copy_shared_to_global(call.c_desc, [row, column], first)
    elif call.NUM_B == 3:
        for slab in gl.static_range(3):
            at = call.c_tile.index(3 * part + slab)
            tma.async_copy_shared_to_global(call.c_desc, [row, column + slab * _SLAB], at)
    else:
        tma.async_copy_shared_to_global(call.c_desc, [row, column], call.c_tile.index(part))


@gluon.jit
def _store(call):
    """The storer."""
    first, slots, programs = call.slots()
    num_n = gl.cdiv(call.N, call.BLOCK_N)
    filled = 0
    counted = 0
    last = gl.program_id(0) % call.SPLIT_K == 0  # without a slot, one of those that share tiles ends for all
    if call.ADDS > 0:
        if call.AFTER_KERNEL:
            sy_await_kernel_before()
        turn = sy_turn(call.sy_schedule, sy_call(call.sy_control))
    for slot in range(first, slots, programs):
        tile = call.tile(slot)
        table = call.sy_schedule if call.ADDS == 0 else turn
        if call.ADDS > 0:
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
            if call.ADDS > 0:
                sy_post_each(posts)
                mbarrier.arrive(call.stored)
            else:
                tma.store_wait(0)
                mbarrier.arrive(call.stored)
                if call.FUSED:
                    sy_post(call.sy_schedule, call.sy_control, slot)
    if call.ADDS > 0:
        # Nobody is told of its end, which only counts; who had a tile has read the call's number in all partitions.
        if first >= slots:
            mbarrier.wait(call.summed, 0)
    if call.FUSED:
        if last:
            sy_finish(call.sy_schedule, call.sy_control, call.TELLS)


@gluon.jit(do_not_specialize=["M", "N", "K"])
def gluon_matmul(
    a_desc,  # [M, K], block [64, BLOCK_K], or below 64 rows [BLOCK_M, 128 bytes]
    b_desc,  # [K, N], block [K of a_desc, BLOCK_N or 64 for 192]; with B_TRANSPOSED [N, K] likewise; GATED: 2 N for N
    c_desc,  # [M, N], block [rows of a_desc, columns of b_desc]
    bias_ptr,  # [N], or with WHOLE_BIAS [M, N]; or None
    scale_a_ptr,  # SCALES "row": fp32 [M]; "block": fp32 [M, cdiv(K, 128)]; else None
    scale_b_ptr,  # SCALES "row": fp32 [N]; "block": fp32 [cdiv(N, 128), cdiv(K, 128)]; else None
    M,
    N,
    K,
    sy_schedule,
    sy_control,
    sy_own,  # OWN: as a_desc, of what this rank was given; else None
    sy_workspace,  # SPLIT_K > 1: fp32, MAX_SPLIT_TILES words of 0, then partial sums (make_workspace); else None
    sy_sums,  # SUMS > 0: where the sums go; else None
    BLOCK_M: gl.constexpr,  # 64 * CONSUMERS; with one of them also 16 or 32
    BLOCK_N: gl.constexpr,  # 192: not GATED, and BLOCK_K 64; below 64 rows 32 or 64: c's rows of 128 bytes at most
    BLOCK_K: gl.constexpr,
    SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,  # 1 or 2
    GROUP_M: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    GATED: gl.constexpr = False,  # c = act(a @ b[:, :N]) * (a @ b[:, N:])
    ACTIVATION: gl.constexpr = "",
    SCALES: gl.constexpr = "",
    WHOLE_BIAS: gl.constexpr = False,
    FUSED: gl.constexpr = False,  # follows the schedule; else sy_schedule and sy_control are not looked at
    B_EARLY: gl.constexpr = False,  # the first blocks of b leave before the first wait: b is nothing that a plan brings
    AFTER_KERNEL: gl.constexpr = False,  # launched programmatically: it awaits the kernel before it, after B_EARLY's loads
    STARTS_NEXT: gl.constexpr = False,  # the next kernel awaits the tiles that it reads, so it may start beside this one
    FETCHED: gl.constexpr = False,
    PUSHED: gl.constexpr = False,  # tiles are stored where the schedule says, by a descriptor over the heaps of all ranks
    COPIES: gl.constexpr = 0,  # places where each tile is stored then
    OWN: gl.constexpr = False,
    TELLS: gl.constexpr = False,  # loaders say when all is loaded, unless there are SCALES
    SUMS: gl.constexpr = 0,  # contributions that programs add up when they have made their tiles
    a_copy_desc=None,  # as a_desc, of another [M, K], which takes what tiles load of a; or None
):
    if STARTS_NEXT or AFTER_KERNEL:
        sy_start_next()
    WIDE: gl.constexpr = BLOCK_N == 192
    gl.static_assert(not WIDE or (BLOCK_K == 64 and not GATED and SCALES != "block"))
    gl.static_assert(BLOCK_M >= 64 or BLOCK_N * c_desc.dtype.primitive_bitwidth <= 1024)
    NUM_B: gl.constexpr = 3 if WIDE else (2 if GATED else 1)
    PARTS: gl.constexpr = BLOCK_K // a_desc.block_shape[1]
    BEHIND: gl.constexpr = 64 // BLOCK_M - 1 if BLOCK_M < 64 else 0
    gl.static_assert(PARTS == 1 or SCALES != "block")
    C_BLOCK: gl.constexpr = [64, 64] if WIDE else [64, BLOCK_N]
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    call = _Call(
        a_desc=a_desc,
        b_desc=b_desc,
        c_desc=c_desc,
        a_copy_desc=a_copy_desc,
        bias_ptr=bias_ptr,
        scale_a_ptr=scale_a_ptr,
        scale_b_ptr=scale_b_ptr,
        M=M,
        N=N,
        K=K,
        sy_schedule=sy_schedule,
        sy_control=sy_control,
        sy_own=sy_own,
        sy_workspace=sy_workspace,
        sy_sums=sy_sums,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K,
        SPLIT_K=SPLIT_K,
        STAGES=STAGES,
        CONSUMERS=CONSUMERS,
        GROUP_M=GROUP_M,
        B_TRANSPOSED=B_TRANSPOSED,
        NUM_B=NUM_B,
        PARTS=PARTS,
        WIDTH=128 if WIDE else BLOCK_N,
        PAIR=WIDE or GATED,
        OTHER_WIDTH=64 if WIDE else BLOCK_N,
        SUMS=BLOCK_M * BLOCK_N * (2 if GATED else 1),
        GATED=GATED,
        ACTIVATION=ACTIVATION,
        SCALES=SCALES,
        WHOLE_BIAS=WHOLE_BIAS,
        FUSED=FUSED,
        B_EARLY=B_EARLY,
        AFTER_KERNEL=AFTER_KERNEL,
        FETCHED=FETCHED,
        PUSHED=PUSHED,
        COPIES=COPIES,
        OWN=OWN,
        # A plan may bring the scales of a, too, and consumers read them behind the loaders: then the end tells.
        TELLS=TELLS and SCALES == "",
        ADDS=SUMS,
        a_ring=gl.allocate_shared_memory(
            a_desc.dtype, [STAGES * PARTS * CONSUMERS + BEHIND] + a_desc.block_shape, a_desc.layout
        ),
        b_ring=gl.allocate_shared_memory(
            b_desc.dtype, [STAGES * PARTS * NUM_B] + b_desc.block_shape, b_desc.layout
        ),
        c_tile=gl.allocate_shared_memory(
            c_desc.dtype, [CONSUMERS * (3 if WIDE else 1)] + C_BLOCK, c_desc.layout
        ),
        verdict=gl.allocate_shared_memory(gl.int32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        full=gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER),
        empty=gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER),
        stored=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        ready=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        parts_ready=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        verdict_ready=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        arrived=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        summed=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
    )
    if FUSED:
        sy_prefetch(sy_schedule, sy_control, gl.program_id(0) // SPLIT_K)
    for stage in gl.static_range(STAGES):
        mbarrier.init(call.full.index(stage), count=1)
        mbarrier.init(call.empty.index(stage), count=CONSUMERS)
    mbarrier.init(call.stored, count=1)
    mbarrier.init(call.ready, count=CONSUMERS)
    mbarrier.init(call.parts_ready, count=CONSUMERS)
    mbarrier.init(call.verdict_ready, count=1)
    mbarrier.init(call.arrived, count=1)
    mbarrier.init(call.summed, count=CONSUMERS)
    if CONSUMERS == 2:
        gl.warp_specialize(
            [(_multiply, (0, call)), (_multiply, (1, call)), (_load, (call,)), (_store, (call,))],
            [4, 1, 1],
            [232, 40, 40],
        )
    else:
        gl.warp_specialize([(_multiply, (0, call)), (_load, (call,)), (_store, (call,))], [1, 1], [40, 40])
