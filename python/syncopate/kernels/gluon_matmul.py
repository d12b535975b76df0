"""The library's GEMM for Hopper, in Gluon: c = act(a @ b + bias), alone or following a schedule (a stated kernel).

One block has up to four partitions, each of which walks the same slots:

    loader (1 warp)      awaits the slot, then fills a ring of STAGES pairs (rows of a, block of b) by TMA
    consumer (4 warps)   64 rows of the tile each: wgmma from the ring, epilogue in registers, rows into shared memory
    storer (1 warp)      stores the tile by TMA (here or at a peer), posts it, and ends the program

Waits stand in the loader: consumers go on from the ring while it polls. Posts stand in the storer: consumers start the
next tile while the stores complete. With SPLIT_K > 1 as many blocks share a tile: each adds up an even share of K and
writes fp32 partial sums; the block that is last adds all of them in the order of K, so that the bits do not depend on
who that is, and finishes the tile. Nobody waits for another block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..gluon import (
    sy_await,
    sy_await_phase,
    sy_finish,
    sy_load_row,
    sy_num_phases,
    sy_num_slots,
    sy_post,
    sy_reads_own,
    sy_row,
    sy_tile,
)

#: Words at the head of the workspace of a split K: a count for each tile.
MAX_SPLIT_TILES = 1024

_ROWS = gl.constexpr(64)  # of a consumer: what one wgmma multiplies
_HEAD = gl.constexpr(MAX_SPLIT_TILES)


@gluon.jit
def _slots(M, N, sy_schedule, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, FUSED: gl.constexpr):
    """How many slots there are."""
    if FUSED:
        return sy_num_slots(sy_schedule)
    else:
        return gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)


@gluon.jit
def _unfused_tile(slot, num_m, num_n, GROUP_M: gl.constexpr):
    """The order of an unfused call: GROUP_M rows of tiles share the same columns of b while these are in L2."""
    per_group = GROUP_M * num_n
    first = slot // per_group * GROUP_M
    size = gl.minimum(num_m - first, GROUP_M)
    row = first + slot % per_group % size
    return row * num_n + slot % per_group // size


@gluon.jit
def _tile_of(
    slot,
    M,
    N,
    sy_schedule,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    GROUP_M: gl.constexpr,
    FUSED: gl.constexpr,
):
    """The tile of `slot`; tiles are numbered row by row. It waits for nothing."""
    if FUSED:
        return sy_tile(sy_schedule, slot)
    else:
        return _unfused_tile(slot, gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N), GROUP_M)


@gluon.jit
def _share(k_blocks, split, SPLIT_K: gl.constexpr):
    """The blocks of K [begin, end) of one of SPLIT_K programs: even shares."""
    return split * k_blocks // SPLIT_K, (split + 1) * k_blocks // SPLIT_K


@gluon.jit
def _next(stage, phase, STAGES: gl.constexpr):
    """The ring's next place, and the parity of its mbarriers there."""
    stage += 1
    wrapped = stage == STAGES
    return gl.where(wrapped, 0, stage), gl.where(wrapped, phase ^ 1, phase)


@gluon.jit
def _before(stage, STAGES: gl.constexpr):
    """The ring's place before `stage`."""
    return gl.where(stage == 0, STAGES, stage) - 1


@gluon.jit
def _load_a(a_desc, row, k, a_ring, full, stage, CONSUMERS: gl.constexpr):
    BLOCK_K: gl.constexpr = a_desc.block_shape[1]
    for part in gl.static_range(CONSUMERS):
        tma.async_copy_global_to_shared(
            a_desc,
            [row + part * _ROWS, k * BLOCK_K],
            full.index(stage),
            a_ring.index(stage * CONSUMERS + part),
        )


@gluon.jit
def _load_b(b_desc, column, k, N, b_ring, full, stage, B_TRANSPOSED: gl.constexpr, GATED: gl.constexpr):
    BLOCK_K: gl.constexpr = b_desc.block_shape[1 if B_TRANSPOSED else 0]
    for part in gl.static_range(2 if GATED else 1):
        at = column + part * N
        into = b_ring.index(stage * (2 if GATED else 1) + part)
        if B_TRANSPOSED:
            tma.async_copy_global_to_shared(b_desc, [at, k * BLOCK_K], full.index(stage), into)
        else:
            tma.async_copy_global_to_shared(b_desc, [k * BLOCK_K, at], full.index(stage), into)


@gluon.jit
def _load(
    a_desc,
    b_desc,
    sy_own,
    M,
    N,
    K,
    sy_schedule,
    sy_control,
    a_ring,
    b_ring,
    full,
    empty,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
    GROUP_M: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    GATED: gl.constexpr,
    FUSED: gl.constexpr,
    B_EARLY: gl.constexpr,
    FETCHED: gl.constexpr,
    OWN: gl.constexpr,
):
    """The loader. B_EARLY: the first blocks of b leave before the first wait (b is nothing that a plan brings)."""
    NUM_B: gl.constexpr = 2 if GATED else 1
    BYTES: gl.constexpr = BLOCK_K * (BLOCK_M + NUM_B * BLOCK_N) * (a_desc.dtype.primitive_bitwidth // 8)
    programs = gl.num_programs(0) // SPLIT_K
    first = gl.program_id(0) // SPLIT_K
    k_begin, k_end = _share(gl.cdiv(K, BLOCK_K), gl.program_id(0) % SPLIT_K, SPLIT_K)
    num_n = gl.cdiv(N, BLOCK_N)
    stage = 0
    parity = 1  # a ring that was never filled is empty
    slots = _slots(M, N, sy_schedule, BLOCK_M, BLOCK_N, FUSED)
    early = 0
    if B_EARLY:
        if first < slots:
            tile = _tile_of(first, M, N, sy_schedule, BLOCK_M, BLOCK_N, GROUP_M, FUSED)
            early = gl.minimum(k_end - k_begin, STAGES)
            for at in range(early):
                mbarrier.expect(full.index(at), BYTES)
                _load_b(
                    b_desc, tile % num_n * BLOCK_N, k_begin + at, N, b_ring, full, at, B_TRANSPOSED, GATED
                )
    for slot in range(first, slots, programs):
        if FUSED:
            tile = sy_await(sy_schedule, sy_control, slot)
            phases = sy_num_phases(sy_schedule, slot)
        else:
            tile = _tile_of(slot, M, N, sy_schedule, BLOCK_M, BLOCK_N, GROUP_M, FUSED)
            phases = 0
        row = tile // num_n * BLOCK_M
        if FETCHED:
            row += sy_load_row(sy_schedule, slot)
        own = False
        if OWN:
            own = sy_reads_own(sy_schedule, slot)
        column = tile % num_n * BLOCK_N
        for phase in range(gl.maximum(phases, 1)):
            begin = k_begin
            end = k_end
            if FUSED:
                if phases > 0:
                    begin, end = sy_await_phase(sy_schedule, sy_control, slot, phase)
                    begin = gl.maximum(begin, k_begin)
                    end = gl.minimum(end, k_end)
            for k in range(begin, end):
                mbarrier.wait(empty.index(stage), parity)
                loaded = False
                if B_EARLY:
                    loaded = early > 0
                    early -= 1
                mbarrier.expect(full.index(stage), BYTES, pred=not loaded)
                if OWN:
                    if own:
                        _load_a(sy_own, row, k, a_ring, full, stage, CONSUMERS)
                    else:
                        _load_a(a_desc, row, k, a_ring, full, stage, CONSUMERS)
                else:
                    _load_a(a_desc, row, k, a_ring, full, stage, CONSUMERS)
                if not loaded:
                    _load_b(b_desc, column, k, N, b_ring, full, stage, B_TRANSPOSED, GATED)
                stage, parity = _next(stage, parity, STAGES)


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
def _block(b_ring, index, B_TRANSPOSED: gl.constexpr):
    """b's block [BLOCK_K, BLOCK_N] in place `index`."""
    if B_TRANSPOSED:
        return b_ring.index(index).permute((1, 0))
    else:
        return b_ring.index(index)


@gluon.jit
def _scale_block(
    total,
    part,
    scale_a_ptr,
    scale_b_ptr,
    rows,
    row_mask,
    column,
    k,
    N,
    K,
    BLOCK_K: gl.constexpr,
    ACC: gl.constexpr,
):
    """total + part * (scale of each row's block of K) * (scale of b's block): blocks of 128 along K and N."""
    k_blocks = gl.cdiv(K, 128)
    at = k * BLOCK_K // 128
    scale_a = gl.load(scale_a_ptr + rows * k_blocks + at, mask=row_mask, other=0.0)
    scale_b = gl.load(scale_b_ptr + column // 128 * k_blocks + at)
    return total + part * gl.expand_dims(scale_a * scale_b, 1)


@gluon.jit
def _multiply(
    index: gl.constexpr,
    bias_ptr,
    scale_a_ptr,
    scale_b_ptr,
    M,
    N,
    K,
    sy_schedule,
    sy_workspace,
    a_ring,
    b_ring,
    c_tile,
    verdict,
    full,
    empty,
    stored,
    ready,
    parts_ready,
    verdict_ready,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
    GROUP_M: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    GATED: gl.constexpr,
    ACTIVATION: gl.constexpr,
    SCALES: gl.constexpr,
    FUSED: gl.constexpr,
):
    """Consumer `index`: rows [64 * index, 64 * index + 64) of each tile."""
    NUM_B: gl.constexpr = 2 if GATED else 1
    ACC: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [4, 1], [16, BLOCK_N, 256 // a_ring.dtype.primitive_bitwidth]
    )
    programs = gl.num_programs(0) // SPLIT_K
    first = gl.program_id(0) // SPLIT_K
    split = gl.program_id(0) % SPLIT_K
    k_begin, k_end = _share(gl.cdiv(K, BLOCK_K), split, SPLIT_K)
    num_n = gl.cdiv(N, BLOCK_N)
    stage = 0
    parity = 0
    kept = 1  # parity of `stored`: the place of c is free at first
    judged = 0
    for slot in range(first, _slots(M, N, sy_schedule, BLOCK_M, BLOCK_N, FUSED), programs):
        tile = _tile_of(slot, M, N, sy_schedule, BLOCK_M, BLOCK_N, GROUP_M, FUSED)
        row = tile // num_n * BLOCK_M + index * _ROWS
        column = tile % num_n * BLOCK_N
        rows = row + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, ACC))
        columns = column + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, ACC))
        zero = gl.zeros((_ROWS, BLOCK_N), gl.float32, layout=ACC)
        if SCALES == "block":
            total = zero
            for k in range(k_begin, k_end):
                mbarrier.wait(full.index(stage), parity)
                part = warpgroup_mma(
                    a_ring.index(stage * CONSUMERS + index),
                    _block(b_ring, stage, B_TRANSPOSED),
                    zero,
                    use_acc=False,
                )
                mbarrier.arrive(empty.index(stage))
                total = _scale_block(
                    total, part, scale_a_ptr, scale_b_ptr, rows, rows < M, column, k, N, K, BLOCK_K, ACC
                )
                stage, parity = _next(stage, parity, STAGES)
        else:
            acc = zero
            gate = zero
            for k in range(k_begin, k_end):
                mbarrier.wait(full.index(stage), parity)
                a = a_ring.index(stage * CONSUMERS + index)
                acc = warpgroup_mma(a, _block(b_ring, stage * NUM_B, B_TRANSPOSED), acc, is_async=True)
                if GATED:
                    gate = warpgroup_mma(
                        a, _block(b_ring, stage * NUM_B + 1, B_TRANSPOSED), gate, is_async=True
                    )
                # What was issued before is complete: its place in the ring may be filled again.
                if GATED:
                    acc, gate = warpgroup_mma_wait(num_outstanding=2, deps=(acc, gate))
                else:
                    acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
                mbarrier.arrive(empty.index(_before(stage, STAGES)), pred=k > k_begin)
                stage, parity = _next(stage, parity, STAGES)
            if GATED:
                total, other = warpgroup_mma_wait(num_outstanding=0, deps=(acc, gate))
            else:
                total = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
            mbarrier.arrive(empty.index(_before(stage, STAGES)), pred=k_end > k_begin)

        last = True
        if SPLIT_K > 1:
            inside = (
                gl.expand_dims(index * _ROWS + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, ACC)), 1)
                * BLOCK_N
            )
            inside += gl.expand_dims(gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, ACC)), 0)
            TILE: gl.constexpr = BLOCK_M * BLOCK_N * NUM_B
            partials = sy_workspace + _HEAD + (tile * SPLIT_K).to(gl.int64) * TILE + inside
            gl.store(partials + split * TILE, total)
            if GATED:
                gl.store(partials + split * TILE + BLOCK_M * BLOCK_N, other)
            mbarrier.arrive(parts_ready)
            mbarrier.wait(verdict_ready, judged)
            judged ^= 1
            LANES: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
            last = gl.max(verdict.load(LANES), axis=0) != 0
            if last:
                total = zero
                for part in range(SPLIT_K):
                    total += gl.load(partials + part * TILE, cache_modifier=".cg")
                if GATED:
                    other = zero
                    for part in range(SPLIT_K):
                        other += gl.load(partials + part * TILE + BLOCK_M * BLOCK_N, cache_modifier=".cg")
        if last:
            if SCALES == "row":
                scale_a = gl.load(scale_a_ptr + rows, mask=rows < M, other=0.0)
                scale_b = gl.load(scale_b_ptr + columns, mask=columns < N, other=0.0)
                total = total * gl.expand_dims(scale_a, 1) * gl.expand_dims(scale_b, 0)
            if bias_ptr is not None:
                bias = gl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(gl.float32)
                total += gl.expand_dims(bias, 0)
            if GATED:
                total = _activate(total, ACTIVATION) * other
            else:
                total = _activate(total, ACTIVATION)
            mbarrier.wait(stored, kept)
            kept ^= 1
            c_tile.index(index).store(total.to(c_tile.dtype))
            fence_async_shared()
            mbarrier.arrive(ready)


@gluon.jit
def _arrive_at_tile(sy_workspace, tile, SPLIT_K: gl.constexpr):
    """Whether this block is the last of the tile's SPLIT_K. Releases and acquires the partial sums (GPU scope); the last
    one sets the count back for the next call."""
    count = sy_workspace.to(gl.pointer_type(gl.int32), bitcast=True) + tile
    last = gl.atomic_add(count, 1, sem="acq_rel", scope="gpu") == SPLIT_K - 1
    gl.store(count, 0, mask=last)
    return last


@gluon.jit
def _store(
    c_desc,
    M,
    N,
    sy_schedule,
    sy_control,
    sy_workspace,
    c_tile,
    verdict,
    stored,
    ready,
    parts_ready,
    verdict_ready,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    SPLIT_K: gl.constexpr,
    CONSUMERS: gl.constexpr,
    GROUP_M: gl.constexpr,
    FUSED: gl.constexpr,
    PUSHED: gl.constexpr,
):
    """The storer. PUSHED: tiles are stored where the schedule says, through a descriptor over the heaps of all ranks."""
    programs = gl.num_programs(0) // SPLIT_K
    first = gl.program_id(0) // SPLIT_K
    num_n = gl.cdiv(N, BLOCK_N)
    filled = 0
    counted = 0
    last = True
    for slot in range(first, _slots(M, N, sy_schedule, BLOCK_M, BLOCK_N, FUSED), programs):
        tile = _tile_of(slot, M, N, sy_schedule, BLOCK_M, BLOCK_N, GROUP_M, FUSED)
        if SPLIT_K > 1:
            mbarrier.wait(parts_ready, counted)
            counted ^= 1
            last = _arrive_at_tile(sy_workspace, tile, SPLIT_K)
            verdict.store(
                gl.full((128,), 0, gl.int32, layout=gl.BlockedLayout([4], [32], [1], [0])) + last.to(gl.int32)
            )
            mbarrier.arrive(verdict_ready)
        if last:
            mbarrier.wait(ready, filled)
            filled ^= 1
            row = tile // num_n * BLOCK_M
            if PUSHED:
                row += sy_row(sy_schedule, slot)
            for part in gl.static_range(CONSUMERS):
                tma.async_copy_shared_to_global(
                    c_desc, [row + part * _ROWS, tile % num_n * BLOCK_N], c_tile.index(part)
                )
            tma.store_wait(0)
            mbarrier.arrive(stored)
            if FUSED:
                sy_post(sy_schedule, sy_control, slot)
    if FUSED:
        if last:
            sy_finish(sy_schedule, sy_control)


@gluon.jit(do_not_specialize=["M", "N", "K"])
def gluon_matmul(
    a_desc,  # [M, K], block [64, BLOCK_K]
    b_desc,  # [K, N], block [BLOCK_K, BLOCK_N]; with B_TRANSPOSED [N, K], block [BLOCK_N, BLOCK_K]; GATED: 2 N for N
    c_desc,  # [M, N], block [64, BLOCK_N]
    bias_ptr,  # [N], or None
    scale_a_ptr,  # SCALES "row": fp32 [M]; "block": fp32 [M, cdiv(K, 128)]; else None
    scale_b_ptr,  # SCALES "row": fp32 [N]; "block": fp32 [cdiv(N, 128), cdiv(K, 128)]; else None
    M,
    N,
    K,
    sy_schedule,
    sy_control,
    sy_own,  # OWN: as a_desc, of what this rank was given; else None
    sy_workspace,  # SPLIT_K > 1: fp32, MAX_SPLIT_TILES words of 0 and a tile of partial sums for each program; else None
    BLOCK_M: gl.constexpr,  # 64 * CONSUMERS
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,  # 1 or 2
    GROUP_M: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    GATED: gl.constexpr = False,  # c = act(a @ b[:, :N]) * (a @ b[:, N:])
    ACTIVATION: gl.constexpr = "",
    SCALES: gl.constexpr = "",
    FUSED: gl.constexpr = False,  # follows the schedule; else sy_schedule and sy_control are not looked at
    B_EARLY: gl.constexpr = False,
    FETCHED: gl.constexpr = False,
    PUSHED: gl.constexpr = False,
    OWN: gl.constexpr = False,
):
    NUM_B: gl.constexpr = 2 if GATED else 1
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES * CONSUMERS, 64, BLOCK_K], a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES * NUM_B] + b_desc.block_shape, b_desc.layout)
    c_tile = gl.allocate_shared_memory(c_desc.dtype, [CONSUMERS, 64, BLOCK_N], c_desc.layout)
    verdict = gl.allocate_shared_memory(gl.int32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    stored = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    parts_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    verdict_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)
    mbarrier.init(stored, count=1)
    mbarrier.init(ready, count=CONSUMERS)
    mbarrier.init(parts_ready, count=CONSUMERS)
    mbarrier.init(verdict_ready, count=1)

    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (
                    _multiply,
                    (
                        0,
                        bias_ptr,
                        scale_a_ptr,
                        scale_b_ptr,
                        M,
                        N,
                        K,
                        sy_schedule,
                        sy_workspace,
                        a_ring,
                        b_ring,
                        c_tile,
                        verdict,
                        full,
                        empty,
                        stored,
                        ready,
                        parts_ready,
                        verdict_ready,
                        BLOCK_M,
                        BLOCK_N,
                        BLOCK_K,
                        SPLIT_K,
                        STAGES,
                        CONSUMERS,
                        GROUP_M,
                        B_TRANSPOSED,
                        GATED,
                        ACTIVATION,
                        SCALES,
                        FUSED,
                    ),
                ),
                (
                    _multiply,
                    (
                        1,
                        bias_ptr,
                        scale_a_ptr,
                        scale_b_ptr,
                        M,
                        N,
                        K,
                        sy_schedule,
                        sy_workspace,
                        a_ring,
                        b_ring,
                        c_tile,
                        verdict,
                        full,
                        empty,
                        stored,
                        ready,
                        parts_ready,
                        verdict_ready,
                        BLOCK_M,
                        BLOCK_N,
                        BLOCK_K,
                        SPLIT_K,
                        STAGES,
                        CONSUMERS,
                        GROUP_M,
                        B_TRANSPOSED,
                        GATED,
                        ACTIVATION,
                        SCALES,
                        FUSED,
                    ),
                ),
                (
                    _load,
                    (
                        a_desc,
                        b_desc,
                        sy_own,
                        M,
                        N,
                        K,
                        sy_schedule,
                        sy_control,
                        a_ring,
                        b_ring,
                        full,
                        empty,
                        BLOCK_M,
                        BLOCK_N,
                        BLOCK_K,
                        SPLIT_K,
                        STAGES,
                        CONSUMERS,
                        GROUP_M,
                        B_TRANSPOSED,
                        GATED,
                        FUSED,
                        B_EARLY,
                        FETCHED,
                        OWN,
                    ),
                ),
                (
                    _store,
                    (
                        c_desc,
                        M,
                        N,
                        sy_schedule,
                        sy_control,
                        sy_workspace,
                        c_tile,
                        verdict,
                        stored,
                        ready,
                        parts_ready,
                        verdict_ready,
                        BLOCK_M,
                        BLOCK_N,
                        SPLIT_K,
                        CONSUMERS,
                        GROUP_M,
                        FUSED,
                        PUSHED,
                    ),
                ),
            ],
            [4, 1, 1],
            [232, 40, 40],
        )
    else:
        gl.warp_specialize(
            [
                (
                    _multiply,
                    (
                        0,
                        bias_ptr,
                        scale_a_ptr,
                        scale_b_ptr,
                        M,
                        N,
                        K,
                        sy_schedule,
                        sy_workspace,
                        a_ring,
                        b_ring,
                        c_tile,
                        verdict,
                        full,
                        empty,
                        stored,
                        ready,
                        parts_ready,
                        verdict_ready,
                        BLOCK_M,
                        BLOCK_N,
                        BLOCK_K,
                        SPLIT_K,
                        STAGES,
                        CONSUMERS,
                        GROUP_M,
                        B_TRANSPOSED,
                        GATED,
                        ACTIVATION,
                        SCALES,
                        FUSED,
                    ),
                ),
                (
                    _load,
                    (
                        a_desc,
                        b_desc,
                        sy_own,
                        M,
                        N,
                        K,
                        sy_schedule,
                        sy_control,
                        a_ring,
                        b_ring,
                        full,
                        empty,
                        BLOCK_M,
                        BLOCK_N,
                        BLOCK_K,
                        SPLIT_K,
                        STAGES,
                        CONSUMERS,
                        GROUP_M,
                        B_TRANSPOSED,
                        GATED,
                        FUSED,
                        B_EARLY,
                        FETCHED,
                        OWN,
                    ),
                ),
                (
                    _store,
                    (
                        c_desc,
                        M,
                        N,
                        sy_schedule,
                        sy_control,
                        sy_workspace,
                        c_tile,
                        verdict,
                        stored,
                        ready,
                        parts_ready,
                        verdict_ready,
                        BLOCK_M,
                        BLOCK_N,
                        SPLIT_K,
                        CONSUMERS,
                        GROUP_M,
                        FUSED,
                        PUSHED,
                    ),
                ),
            ],
            [1, 1],
            [40, 40],
        )


@dataclass(frozen=True)
class GluonTiling:
    """How gluon_matmul cuts a product. block_m: 64 (one consumer) or 128 (two); stages: blocks of K in the ring;
    split_k: programs that share a tile."""

    block_m: int
    block_n: int
    block_k: int
    stages: int
    split_k: int = 1
    group_m: int = 8

    def tiles(self, m: int, n: int) -> int:
        return -(-m // self.block_m) * -(-n // self.block_n)

    def grid(self, m: int, n: int, programs: int) -> tuple[int]:
        """At most `programs` programs, split_k for each of the tiles that are made at once."""
        return (min(self.tiles(m, n), max(programs // self.split_k, 1)) * self.split_k,)

    def shared_bytes(self, itemsize: int, gated: bool = False) -> int:
        """About what a block takes of its multiprocessor's shared memory, with 16-bit results."""
        ring = self.stages * self.block_k * (self.block_m + self.block_n * (1 + gated)) * itemsize
        return ring + self.block_m * self.block_n * 2 + 1024

    def options(self) -> dict[str, int]:
        """Launch options. Two consumers of 64 x 256 need 232 registers a thread: 168 for each of 12 warps are shared out."""
        return {"num_warps": 4, "maxnreg": 168 if self.block_m == 128 else 255}


def make_workspace(
    tiling: GluonTiling, m: int, n: int, device: Any, gated: bool = False
) -> torch.Tensor | None:
    """What a split K needs: counts of 0, and partial sums. It serves one call after another."""
    if tiling.split_k == 1:
        return None
    tiles = tiling.tiles(m, n)
    if tiles > MAX_SPLIT_TILES:
        raise ValueError(f"K can be split for at most {MAX_SPLIT_TILES} tiles, this product has {tiles}")
    partials = tiles * tiling.split_k * tiling.block_m * tiling.block_n * (1 + gated)
    return torch.zeros(MAX_SPLIT_TILES + partials, dtype=torch.float32, device=device)


def gluon_arguments(
    a: torch.Tensor,
    w: torch.Tensor,
    c: torch.Tensor,
    shape: tuple[int, int, int],
    tiling: GluonTiling,
    *,
    w_transposed: bool = False,
    bias: torch.Tensor | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    workspace: torch.Tensor | None = None,
    activation: str = "",
    gated: bool = False,
    **flags: Any,
) -> dict[str, Any]:
    """gluon_matmul's arguments for c [M, N] = act(a [M, K] @ w + bias), shape = (M, N, K). w [K, N], or [N, K] with
    `w_transposed`; gated: twice N columns, c = act(a @ w[:, :N]) * (a @ w[:, N:]). `scales` (fp8): fp32 [M] and [N], or
    [M, cdiv(K, 128)] and [cdiv(N, 128), cdiv(K, 128)]. `flags`: the kernel's further constexprs."""
    block_w = [tiling.block_n, tiling.block_k] if w_transposed else [tiling.block_k, tiling.block_n]
    scale_a, scale_b = scales or (None, None)
    m, n, k = shape
    return {
        "a_desc": _descriptor(a, [64, tiling.block_k]),
        "b_desc": _descriptor(w, block_w),
        "c_desc": _descriptor(c, [64, tiling.block_n]),
        "bias_ptr": bias,
        "scale_a_ptr": scale_a,
        "scale_b_ptr": scale_b,
        "M": m,
        "N": n,
        "K": k,
        "sy_schedule": 0,
        "sy_control": 0,
        "sy_own": None,
        "sy_workspace": workspace,
        "BLOCK_M": tiling.block_m,
        "BLOCK_N": tiling.block_n,
        "BLOCK_K": tiling.block_k,
        "SPLIT_K": tiling.split_k,
        "STAGES": tiling.stages,
        "CONSUMERS": tiling.block_m // 64,
        "GROUP_M": tiling.group_m,
        "B_TRANSPOSED": w_transposed,
        "GATED": gated,
        "ACTIVATION": activation,
        "SCALES": "" if scale_a is None else "row" if scale_a.dim() == 1 else "block",
        **flags,
    }


def _descriptor(tensor: torch.Tensor, block: list[int]) -> TensorDescriptor:
    name = str(tensor.dtype).removeprefix("torch.")
    dtype = {"float8_e4m3fn": gl.float8e4nv}.get(name) or getattr(gl, name)
    return TensorDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, dtype))
