"""The consumers of kernels.gluon_matmul: each multiplies 64 rows of a tile from the ring, and makes what is stored of the sums."""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..gluon import sy_add_up, sy_await_kernel_before, sy_call, sy_summands, sy_turn
from .gluon_matmul_tiles import HEAD, WGMMA_ROWS
from .gluon_versions import PropagateNan, block_at, few_rows, store_block

_NAN = gl.constexpr(PropagateNan.ALL)  # of a NaN's maximum: a NaN


@gluon.jit
def _activate(x, ACTIVATION: gl.constexpr):
    """As kernels.matmul: gelu with tanh, x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))."""
    if ACTIVATION == "relu":
        x = gl.maximum(x, 0.0, propagate_nan=_NAN)
    elif ACTIVATION == "gelu":
        x = x / (1.0 + gl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "silu":
        x = x / (1.0 + gl.exp(-x))
    return x


@gluon.jit
def _a_box(call, at, index):
    """Where consumer `index`'s first box of a stands in the ring; `at`: of which part."""
    return at * call.BOXES + index * (call.BOXES // call.CONSUMERS)


@gluon.jit
def _a_block(call, at, index, SUMS: gl.constexpr):
    """Consumer `index`'s 64 rows of a, of which a tile may have fewer, for sums of layout SUMS; `at`: which part of the ring."""
    box = _a_box(call, at, index)
    if call.BLOCK_M < WGMMA_ROWS:
        return few_rows(call.a_ring, box, SUMS)
    else:
        return block_at(call.a_ring, box, [WGMMA_ROWS, call.BLOCK_K // call.PARTS])


@gluon.jit
def _copy_a(call, index, row, k, stage):
    """Stores consumer `index`'s rows of a's block k of K, which stand in the ring at `stage`."""
    ROWS: gl.constexpr = call.a_desc.block_shape[0]
    for part in gl.static_range(call.PARTS):
        first = _a_box(call, stage * call.PARTS + part, index)
        for box in gl.static_range(call.BOXES // call.CONSUMERS):
            if row + box * ROWS < call.M:
                store_block(
                    call.a_copy_desc,
                    [row + box * ROWS, k * call.BLOCK_K + part * (call.BLOCK_K // call.PARTS)],
                    call.a_ring.index(first + box),
                )


@gluon.jit
def _b_block(call, at, SECOND: gl.constexpr):
    """b's block [BLOCK_K / PARTS, …] for the first or second sums; `at`: which part of the ring."""
    WIDTH: gl.constexpr = call.OTHER_WIDTH if SECOND else call.WIDTH
    DEPTH: gl.constexpr = call.BLOCK_K // call.PARTS
    if call.B_TRANSPOSED:
        return call.b_ring.block(at, SECOND, WIDTH, DEPTH).permute((1, 0))
    else:
        return call.b_ring.block(at, SECOND, DEPTH, WIDTH)


@gluon.jit
def _scale_block(call, total, part, rows, column, k):
    """total + part * (scale of each row's block of K) * (scale of b's block): blocks of 128 along K and N."""
    k_blocks = gl.cdiv(call.K, 128)
    at = k * call.BLOCK_K // 128
    scale_a = gl.load(call.scale_a_ptr + rows * k_blocks + at, mask=rows < call.M, other=0.0)
    scale_b = gl.load(call.scale_b_ptr + column // 128 * k_blocks + at)
    return total + part * gl.expand_dims(scale_a * scale_b, 1)


@gluon.jit
def _halves(sums):
    """The left and the right half of the columns of `sums`, as sums of so many columns have them: nothing moves."""
    LAYOUT: gl.constexpr = sums.type.layout
    WIDTH: gl.constexpr = sums.type.shape[1] // 2
    HALF: gl.constexpr = gl.NVMMADistributedLayout(
        LAYOUT.version, LAYOUT.warps_per_cta, [16, WIDTH, LAYOUT.instr_shape[2]]
    )
    left, right = sums.reshape((WGMMA_ROWS, 2, WIDTH)).permute((0, 2, 1)).split()
    return gl.convert_layout(left, HALF, assert_trivial=True), gl.convert_layout(
        right, HALF, assert_trivial=True
    )


@gluon.jit
def _finish(call, total, row, column, WIDTH: gl.constexpr):
    """What is stored of columns whose sums are complete, but for a gate."""
    return _activate(_scale_and_bias(call, total, row, column, WIDTH), call.ACTIVATION)


@gluon.jit
def _places(call, index, row, sums, WIDTH: gl.constexpr):
    """Where `sums` of consumer `index` stand in the first partial sums, and which of its rows, from `row` on, c has."""
    LAYOUT: gl.constexpr = sums.type.layout
    local = gl.arange(0, WGMMA_ROWS, layout=gl.SliceLayout(1, LAYOUT))
    used = local < gl.minimum(call.M - row, call.BLOCK_M)
    inside = gl.expand_dims((index * WGMMA_ROWS + local) * WIDTH, 1) + gl.expand_dims(
        gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT)), 0
    )
    return call.sy_workspace + HEAD + inside, gl.expand_dims(used, 1)


@gluon.jit
def _keep(call, index, row, number, sums, SECOND: gl.constexpr):
    """Writes partial sums of this number among all of all tiles."""
    WIDTH: gl.constexpr = call.OTHER_WIDTH if SECOND else call.WIDTH
    BEHIND: gl.constexpr = call.BLOCK_M * call.WIDTH if SECOND else 0
    places, used = _places(call, index, row, sums, WIDTH)
    gl.store(places + (number.to(gl.int64) * call.PARTIAL_SUMS + BEHIND), sums, mask=used)


@gluon.jit
def _add_up(call, index, row, number, split, sums, SECOND: gl.constexpr):
    """The partial sums of all programs of the tile, whose first are of this number, in the order of K. `sums`: of this one."""
    WIDTH: gl.constexpr = call.OTHER_WIDTH if SECOND else call.WIDTH
    BEHIND: gl.constexpr = call.BLOCK_M * call.WIDTH if SECOND else 0
    LAYOUT: gl.constexpr = sums.type.layout
    places, used = _places(call, index, row, sums, WIDTH)
    first = places + (number.to(gl.int64) * call.PARTIAL_SUMS + BEHIND)
    total = gl.zeros((WGMMA_ROWS, WIDTH), gl.float32, layout=LAYOUT)
    # Few columns: all loads are on their way before the first is added, and this program loads not what it has.
    if WIDTH <= 64:
        for part in gl.static_range(call.SPLIT_K):
            at = first + part * call.PARTIAL_SUMS
            other = gl.load(at, mask=used & (part != split), other=0.0, cache_modifier=".cg")
            total += gl.where(part == split, sums, other)
    else:
        for part in range(call.SPLIT_K):
            total += gl.load(first + part * call.PARTIAL_SUMS, mask=used, other=0.0, cache_modifier=".cg")
    return total


@gluon.jit
def _scale_and_bias(call, total, row, column, WIDTH: gl.constexpr):
    LAYOUT: gl.constexpr = total.type.layout
    columns = column + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    if call.SCALES == "row":
        rows = row + gl.arange(0, WGMMA_ROWS, layout=gl.SliceLayout(1, LAYOUT))
        scale_a = gl.load(call.scale_a_ptr + rows, mask=rows < call.M, other=0.0)
        scale_b = gl.load(call.scale_b_ptr + columns, mask=columns < call.N, other=0.0)
        total = total * gl.expand_dims(scale_a, 1) * gl.expand_dims(scale_b, 0)
    if call.WHOLE_BIAS:
        rows = row + gl.arange(0, WGMMA_ROWS, layout=gl.SliceLayout(1, LAYOUT))
        there = gl.expand_dims(rows < call.M, 1) & gl.expand_dims(columns < call.N, 0)
        places = gl.expand_dims(rows.to(gl.int64) * call.N, 1) + gl.expand_dims(columns, 0)
        total += gl.load(call.bias_ptr + places, mask=there, other=0.0).to(gl.float32)
    elif call.bias_ptr is not None:
        bias = gl.load(call.bias_ptr + columns, mask=columns < call.N, other=0.0).to(gl.float32)
        total += gl.expand_dims(bias, 0)
    return total


@gluon.jit
def _keep_tile(call, index, total, other, row, column, kept):
    """Writes consumer `index`'s rows of the tile, whose sums are complete, to c_tile once that is free."""
    DTYPE: gl.constexpr = call.c_desc.dtype
    if call.SLAB > 0:
        FIRST: gl.constexpr = call.WIDTH // 2 if call.GATED else call.WIDTH  # columns of c
        if call.GATED:
            gate, up = _halves(total)
            other_gate, other_up = _halves(other)
            left = _finish(call, gate, row, column, FIRST) * up
            right = _finish(call, other_gate, row, column + FIRST, call.BLOCK_N - FIRST) * other_up
        else:
            left = _finish(call, total, row, column, FIRST)
            right = _finish(call, other, row, column + FIRST, call.BLOCK_N - FIRST)
        mbarrier.wait(call.stored, kept)
        call.c_tile.block(index, False, WGMMA_ROWS, FIRST).store(left.to(DTYPE))
        call.c_tile.block(index, True, WGMMA_ROWS, call.SLAB).store(right.to(DTYPE))
    else:
        made = _finish(call, total, row, column, call.WIDTH)
        if call.GATED:
            made = made * other
        mbarrier.wait(call.stored, kept)
        call.c_tile.slab(index, 0).store(made.to(DTYPE))


@gluon.jit
def consumer(index: gl.constexpr, call):
    """Consumer `index`: rows [64 * index, 64 * index + 64) of each tile."""
    SPLIT_K: gl.constexpr = call.SPLIT_K
    PARTS: gl.constexpr = call.PARTS
    PAIR: gl.constexpr = call.PAIR
    COPIED: gl.constexpr = call.a_copy_desc is not None
    DEPTH: gl.constexpr = 256 // call.a_ring.dtype.primitive_bitwidth
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, call.WIDTH, DEPTH])
    OTHER: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, call.OTHER_WIDTH, DEPTH])
    begin_turn, end_turn, step = call.turns()
    split = gl.program_id(0) % SPLIT_K
    k_begin, k_end = call.share()
    num_n = gl.cdiv(call.N, call.BLOCK_N)
    copied = gl.cdiv(gl.cdiv(call.K, call.BLOCK_K), num_n)  # blocks of K that each tile of a row copies
    stage = 0
    parity = 0
    kept = 1  # parity of `stored`: the place of c is free at first
    judged = 0
    if call.SUMMANDS > 0:
        ends = split == 0  # of those that share tiles, the one that ends the call for all
        if call.AFTER_KERNEL:
            sy_await_kernel_before()
        schedule = sy_turn(call.sy_schedule, sy_call(call.sy_control))
        elements, summands = sy_summands(schedule, call.sy_control, call.SUMMANDS)
    for turn in range(begin_turn, end_turn, step):
        tile = call.tile(call.slot(turn))
        row = tile // num_n * call.BLOCK_M + index * WGMMA_ROWS
        column = tile % num_n * call.BLOCK_N
        zero = gl.zeros((WGMMA_ROWS, call.WIDTH), gl.float32, layout=ACC)
        if call.SCALES == "block":
            rows = row + gl.arange(0, WGMMA_ROWS, layout=gl.SliceLayout(1, ACC))
            total = zero
            for k in range(k_begin, k_end):
                mbarrier.wait(call.full.index(stage), parity)
                if COPIED:
                    if k // copied == tile % num_n:
                        _copy_a(call, index, row, k, stage)
                a = _a_block(call, stage, index, ACC)
                part = warpgroup_mma(a, _b_block(call, stage, False), zero, use_acc=False)
                if COPIED:
                    tma.store_wait(0)
                mbarrier.arrive(call.empty.index(stage))
                total = _scale_block(call, total, part, rows, column, k)
                stage, parity = call.next(stage, parity)
        else:
            acc = zero
            more = gl.zeros((WGMMA_ROWS, call.OTHER_WIDTH), gl.float32, layout=OTHER)
            for k in range(k_begin, k_end):
                mbarrier.wait(call.full.index(stage), parity)
                if COPIED:
                    if k // copied == tile % num_n:
                        _copy_a(call, index, row, k, stage)
                for part in gl.static_range(PARTS):
                    at = stage * PARTS + part
                    a = _a_block(call, at, index, ACC)
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
            if PAIR:
                _keep_tile(call, index, total, other, row, column, kept)
            else:
                _keep_tile(call, index, total, total, row, column, kept)
            kept ^= 1
            fence_async_shared()
            mbarrier.arrive(call.ready)
        if call.SUMMANDS > 0:
            if SPLIT_K > 1:
                ends = last
    if call.SUMMANDS > 0:
        mbarrier.wait(call.arrived, 0)
        if ends:
            first, _, programs = call.slots()
            part = first * call.CONSUMERS + index
            parts = programs * call.CONSUMERS
            sy_add_up(elements, summands, call.sy_sums, part, parts, call.c_desc.dtype, call.SUMMANDS)
        mbarrier.arrive(call.summed)
