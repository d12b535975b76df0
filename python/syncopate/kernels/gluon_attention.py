"""Flash attention, forward, for Hopper, in Gluon: o = softmax(q @ kᵀ · scale) @ v and the log-sum-exp of each row's scaled
scores, alone or following a schedule (a stated kernel). FlashAttention-3 (arXiv 2407.08608, sections 3.1 and 3.2) on the
schedule's terms.

One block has three kinds of partitions, each of which walks the same slots:

    loader (1 warp)      awaits the slot and its ranges of K, then fills a place for Q and a ring of STAGES blocks of K and
                         of V by TMA
    consumer (4 warps)   64 rows of the tile each: scores of the next block and the product of this one with V are both in
                         flight while it makes exponentials
    storer (1 warp)      stores the tile by TMA, posts it, and ends the program

      loader    | Q K0 V0 K1 V1 | K2 V2 …                      K's place is free after its scores, V's after its product
      consumer  | S0  P0 | S1 + O·V0 . P1 . | S2 + O·V1 . P2 .

Waits stand in the loader: consumers go on from the ring while it polls. Softmax takes blocks in any order, so the ranges
of a schedule may come in any: the loader says beside each block of K which one it is. Without a schedule the last blocks
come first, since these are the ones that a mask cuts.

A tile is BM rows of one head, a block BN rows of K and V. A row sees what CAUSAL, WINDOW and DOCUMENTS leave of K. Only
blocks that some row does not see whole are masked. A call may be one PASS of several, each with other rows of K: then a tile
goes on with what the passes before have made of its rows, joined by their log-sum-exps. PLACED, a rank's own rows are
read and stored where its caller has them: k_desc and v_desc have those of other ranks. Without a schedule tiles are
dealt out to programs to and fro, under a causal mask the longest first, so that each program gets as much work as the
others.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..gluon import sy_finish, sy_post
from .gluon_attention_loader import load_blocks
from .gluon_attention_softmax import (
    NEVER,
    add_up,
    block_number,
    join_passes,
    mask_scores,
    part_sums,
    times_rows,
)
from .gluon_attention_tiles import CONSUMER_ROWS, Call
from .gluon_versions import store_block

LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def _attend(index: gl.constexpr, call):
    """Consumer `index`: rows [64 * index, 64 * index + 64) of each tile."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, call.BN, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, call.D, 16])
    OUT_ROWS: gl.constexpr = gl.SliceLayout(1, OUT)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    # Masks may cut any block, or only the first that comes.
    ANY_MASKED: gl.constexpr = call.CAUSAL or call.WINDOWED or call.DOCUMENTS or call.FUSED
    scale_log2 = call.scale * LOG2E
    block = 0
    q_parity = 0
    kept = 1  # parity of `stored`: the place of o is free at first
    q = call.q_tile.index(index)
    for slot in range(gl.program_id(0), call.slots(), gl.num_programs(0)):
        tile = call.tile(slot)
        first, head, b = call.coordinates(tile)
        low, high, whole, part, empty = call.extent(first)
        rows = first + index * CONSUMER_ROWS + gl.arange(0, CONSUMER_ROWS, layout=gl.SliceLayout(1, SCORES))
        seen_from = rows
        seen_to = rows
        if call.DOCUMENTS:
            seen_from = gl.load(call.seen_ptr + rows, mask=rows < call.SQ, other=0)
            seen_to = gl.load(call.seen_ptr + call.SQ + rows, mask=rows < call.SQ, other=0)
        zero = gl.zeros((CONSUMER_ROWS, call.BN), gl.float32, layout=SCORES)

        mbarrier.wait(call.q_full, q_parity)
        q_parity ^= 1
        stage = block % call.STAGES
        mbarrier.wait(call.k_full.index(stage), block // call.STAGES % 2)
        scores = warpgroup_mma(q, call.k_ring.index(stage).permute((1, 0)), zero, use_acc=False)
        n = block_number(call, stage, high, 0)
        mbarrier.arrive(call.k_empty.index(stage))
        if (n < whole) | (n >= part):
            scores = mask_scores(call, scores, n, rows, seen_from, seen_to)
        top = gl.max(scores, axis=1) * scale_log2
        base = gl.where(top == NEVER, 0.0, top)  # of a row that sees nothing yet
        p = gl.exp2(scores * scale_log2 - gl.expand_dims(base, 1))
        parts = part_sums(p, CONSUMER_ROWS, call.BN)
        weights = gl.convert_layout(p.to(call.k_ring.dtype), WEIGHTS)
        acc = gl.zeros((CONSUMER_ROWS, call.D), gl.float32, layout=OUT)
        for i in range(1, high - low):
            v_stage = block % call.STAGES
            v_parity = block // call.STAGES % 2
            block += 1
            stage = block % call.STAGES
            mbarrier.wait(call.k_full.index(stage), block // call.STAGES % 2)
            next_scores = warpgroup_mma(
                q, call.k_ring.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True
            )
            mbarrier.wait(call.v_full.index(v_stage), v_parity)
            product = warpgroup_mma(weights, call.v_ring.index(v_stage), acc, is_async=True)
            scores = warpgroup_mma_wait(num_outstanding=1, deps=(next_scores,))
            n = block_number(call, stage, high, i)
            mbarrier.arrive(call.k_empty.index(stage))
            if ANY_MASKED:
                if (n < whole) | (n >= part):
                    scores = mask_scores(call, scores, n, rows, seen_from, seen_to)
            new_top = gl.maximum(top, gl.max(scores, axis=1) * scale_log2)
            base = gl.where(new_top == NEVER, 0.0, new_top)
            p = gl.exp2(scores * scale_log2 - gl.expand_dims(base, 1))
            faded = gl.exp2(top - base)
            top = new_top
            parts = times_rows(parts, faded) + part_sums(p, CONSUMER_ROWS, call.BN)
            next_weights = gl.convert_layout(p.to(call.k_ring.dtype), WEIGHTS)
            # This barrier is passed long since. As a branch it keeps ptxas from moving the wait for the product above
            # the exponentials.
            mbarrier.wait(call.v_full.index(v_stage), v_parity)
            acc, weights, parts = warpgroup_mma_wait(num_outstanding=0, deps=(product, next_weights, parts))
            mbarrier.arrive(call.v_empty.index(v_stage))
            acc = acc * gl.expand_dims(gl.convert_layout(faded, OUT_ROWS), 1)
        if not call.O_IN_Q:
            mbarrier.arrive(call.q_empty)
        stage = block % call.STAGES
        mbarrier.wait(call.v_full.index(stage), block // call.STAGES % 2)
        acc = warpgroup_mma(weights, call.v_ring.index(stage), acc)
        mbarrier.arrive(call.v_empty.index(stage))
        block += 1

        total = add_up(parts, gl.SliceLayout(1, SCORES))
        if call.PASS:
            acc, top, total = join_passes(call, acc, top, total, rows, head, b)
        unseen = total == 0.0
        total = gl.where(unseen, 1.0, total)
        # Of a row that sees nothing, whatever lies in the masked block: it may be no number.
        acc = gl.where(
            gl.expand_dims(gl.convert_layout(unseen, OUT_ROWS), 1),
            0.0,
            acc * gl.expand_dims(gl.convert_layout(1.0 / total, OUT_ROWS), 1),
        )
        if not call.O_IN_Q:
            mbarrier.wait(call.stored, kept)
            kept ^= 1
        call.o_tile.index(index).store(acc.to(call.o_tile.dtype))
        fence_async_shared()
        lse = gl.where(unseen, NEVER, (top + gl.log2(total)) * LN2)
        gl.store(call.l_ptr + (b * call.H + head).to(gl.int64) * call.SQ + rows, lse, mask=rows < call.SQ)
        mbarrier.arrive(call.ready)


@gluon.jit
def _store(call):
    """The storer."""
    filled = 0
    for slot in range(gl.program_id(0), call.slots(), gl.num_programs(0)):
        tile = call.tile(slot)
        first, head, b = call.coordinates(tile)
        row = call.place(first)
        mbarrier.wait(call.ready, filled)
        filled ^= 1
        for part in gl.static_range(call.BM // CONSUMER_ROWS):
            store_block(call.o_desc, [b, head, row + part * CONSUMER_ROWS, 0], call.o_tile.index(part))
        tma.store_wait(0)
        mbarrier.arrive(call.stored)
        if call.FUSED:
            sy_post(call.sy_schedule, call.sy_control, slot)
    if call.FUSED:
        sy_finish(call.sy_schedule, call.sy_control)


@gluon.jit(do_not_specialize=["B", "H", "HKV", "SQ", "SK", "OFFSET", "WINDOW", "FIRST", "LAST"])
def gluon_attention(
    q_desc,  # [B, H, SQ, D], block [1, 1, 64, D]
    k_desc,  # [B, HKV, SK, D], block [1, 1, BN, D]
    v_desc,  # as k_desc
    o_desc,  # as q_desc
    own_k_desc,  # PLACED: as k_desc, this rank's own rows, as Q and O then are: [B, HKV, rows, D]
    own_v_desc,  # as own_k_desc
    place_ptr,  # PLACED: int32 [blocks of BN of the sequence], where in this rank's own rows each begins; -1: it is not its own
    l_ptr,  # fp32 [B, H, SQ], contiguous
    bounds_ptr,  # DOCUMENTS: int32 [tiles of SQ, 4], of each tile's rows low, whole, part and high (extent_of), in rows
    seen_ptr,  # DOCUMENTS: int32 [2, SQ], of each row the first row of K that it sees and past the last one
    order_ptr,  # DOCUMENTS, unfused: int32 [tiles of SQ], in which order a head's tiles run
    position_ptr,  # PASS: int32 [SK], where in the sequence each row of K stands, which is what seen_ptr counts; -1: unseen
    carry_ptr,  # PASS: fp32 [B, H, SQ, D], contiguous: the weighted sums of V so far
    tops_ptr,  # PASS: fp32 [2, B, H, SQ]: each row's maximum so far, in base 2, and its sum of exponentials
    scale,  # of the scores, > 0
    B,
    H,
    HKV,
    SQ,
    SK,
    OFFSET,  # row r of q stands at row r + OFFSET of K
    WINDOW,  # WINDOWED: a row sees so many rows up to itself (CAUSAL), or to either side
    FIRST,  # PASS: whether no pass came before this one
    LAST,  # PASS: whether none comes after it
    sy_schedule,
    sy_control,
    CAUSAL: gl.constexpr,  # a row sees rows of K up to its own
    WINDOWED: gl.constexpr,
    DOCUMENTS: gl.constexpr,  # what a row sees is looked up; CAUSAL, WINDOWED, OFFSET and WINDOW say nothing
    D: gl.constexpr,
    BM: gl.constexpr,  # 128: 64 for each consumer
    BN: gl.constexpr,
    STAGES: gl.constexpr,
    O_IN_Q: gl.constexpr,  # o leaves from the place of q: less shared memory, but the next q comes only after that
    LONGEST_FIRST: gl.constexpr = False,
    PASS: gl.constexpr = False,  # one of several: bounds_ptr counts rows of K, seen_ptr those of the sequence
    PLACED: gl.constexpr = False,
    FUSED: gl.constexpr = False,  # follows the schedule; else sy_schedule and sy_control are not looked at
):
    CONSUMERS: gl.constexpr = BM // CONSUMER_ROWS
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CONSUMER_ROWS, D], q_desc.dtype)
    BLOCK: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, D], q_desc.dtype)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_tile = gl.allocate_shared_memory(q_desc.dtype, [CONSUMERS, CONSUMER_ROWS, D], TILE)
    if O_IN_Q:
        o_tile = q_tile
    else:
        o_tile = gl.allocate_shared_memory(o_desc.dtype, [CONSUMERS, CONSUMER_ROWS, D], TILE)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, BN, D], BLOCK)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES, BN, D], BLOCK)
    numbers = gl.allocate_shared_memory(gl.int32, [STAGES, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    ready = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    stored = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    if O_IN_Q:
        q_empty = stored
    else:
        q_empty = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    call = Call(
        q_desc=q_desc, k_desc=k_desc, v_desc=v_desc, o_desc=o_desc, own_k_desc=own_k_desc, own_v_desc=own_v_desc,
        place_ptr=place_ptr, l_ptr=l_ptr, bounds_ptr=bounds_ptr, seen_ptr=seen_ptr, order_ptr=order_ptr,
        position_ptr=position_ptr, carry_ptr=carry_ptr, tops_ptr=tops_ptr, scale=scale, B=B, H=H, HKV=HKV, SQ=SQ, SK=SK,
        OFFSET=OFFSET, WINDOW=WINDOW, FIRST=FIRST, LAST=LAST, sy_schedule=sy_schedule, sy_control=sy_control,
        CAUSAL=CAUSAL, WINDOWED=WINDOWED, DOCUMENTS=DOCUMENTS, D=D, BM=BM, BN=BN, STAGES=STAGES, O_IN_Q=O_IN_Q,
        LONGEST_FIRST=LONGEST_FIRST, PASS=PASS, PLACED=PLACED, FUSED=FUSED,
        q_tile=q_tile, k_ring=k_ring, v_ring=v_ring, o_tile=o_tile, numbers=numbers, q_full=q_full, q_empty=q_empty,
        k_full=k_full, k_empty=k_empty, v_full=v_full, v_empty=v_empty, ready=ready, stored=stored,
    )  # fmt: skip
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=CONSUMERS)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_empty.index(stage), count=CONSUMERS)
    mbarrier.init(q_full, count=1)
    mbarrier.init(ready, count=CONSUMERS)
    mbarrier.init(stored, count=1)
    if not O_IN_Q:
        mbarrier.init(q_empty, count=CONSUMERS)
    gl.warp_specialize(
        [(_attend, (0, call)), (_attend, (1, call)), (load_blocks, (call,)), (_store, (call,))],
        [4, 1, 1],
        [232, 40, 40],
    )
