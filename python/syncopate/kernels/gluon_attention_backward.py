"""Flash attention, backward, for Hopper, in Gluon: the gradients of k and v, and in fp32 the one of q, of what gluon_attention has
made. FlashAttention-2 (arXiv 2307.08691, algorithm 2), a block of K a tile, with the partitions of FlashAttention-3:

    loader (1 warp)      fills places for K and V, then a ring of STAGES blocks of Q and of dO by TMA
    consumer (4 warps)   64 rows of the tile's K and V each. With P = exp2(S - lse), all transposed, a row of K a row:
                         S = K Qᵀ   dP = V dOᵀ   dV += P dO   dS = P (dP - delta)   dK += dS Q
                         and of the block's dQ = dSᵀ K, which needs the rows of both, a half: 64 of 128 rows, or of the columns

      consumer 0  | S dP . exp . dV . dS | dQ[:, :D/2]   dK | S dP …
      consumer 1  | S dP . exp . dV . dS | dQ[:, D/2:]   dK | S dP …
                                         ^ each has the other's dS

dQ is added in fp32, in no fixed order, as blocks of K come to it, and lies as the tensor cores leave it (`add`), for finish_rows to
sort: a thread adds 16 bytes and a warp 512, straight from its registers. In the order of rows it has to go through shared memory
first, and takes a fifth longer in all (one H200, H = 16, S = 8192: 2,940 µs that way, 2,467 this way, 2,013 if nothing is
added). dK of a block is still under way while the next one begins. `lse` and `delta` come from gluon_attention_backward_call, in
base 2, with rows up to a multiple of BM.

A row of Q sees what CAUSAL and WINDOW leave of K, or what a table says (TABLES). Rows of Q beyond SQ are zeros, and add none.
Heads of Q that share a head of K are one tile's work, so dK and dV are complete when it ends. Where that leaves few tiles, PARTS
of them share the heads, and each has a dK and a dV of its own, to be summed (add_parts).

Heads of 256 leave no registers for that: their tiles have 64 rows of K, and consumers of their own (gluon_attention_backward_wide).

FUSED: a program runs the tile of its slot, if it has one. The loader awaits the tile's rows of K and V, and posts what the
consumers have stored of dK and dV. Without ADD_DQ, dQ is left to another kernel: then all is added in a fixed order.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from .gluon_attention_backward_loader import load_tile
from .gluon_attention_backward_tiles import LOG2E, Call, add, mask
from .gluon_attention_backward_wide import differentiate_wide
from .gluon_attention_tiles import CONSUMER_ROWS
from .gluon_versions import threads_meet


@gluon.jit
def _differentiate(index: gl.constexpr, call):
    """Consumer `index` of the program's tile, if it has one."""
    if call.FUSED:
        if call.has_tile():
            _differentiate_tile(index, call)
            threads_meet()  # all threads have stored
            mbarrier.arrive(call.stored)
    else:
        _differentiate_tile(index, call)


@gluon.jit
def _differentiate_tile(index: gl.constexpr, call):
    if call.D == 256:
        differentiate_wide(index, call)
    else:
        _differentiate_rows(index, call)


@gluon.jit
def _differentiate_rows(index: gl.constexpr, call):
    """Rows [64 * index, 64 * index + 64) of the tile's K and V."""
    D: gl.constexpr = call.D
    BM: gl.constexpr = call.BM
    # It has half of a block's rows of dQ, or else of its columns.
    BY_ROWS: gl.constexpr = BM == 2 * CONSUMER_ROWS
    COLUMNS: gl.constexpr = D if BY_ROWS else D // 2
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    OF_Q: gl.constexpr = gl.SliceLayout(0, SCORES)
    n, kv_head, b = call.coordinates()
    low, whole, part, high = call.extent(n)
    padded = gl.cdiv(call.SQ, BM) * BM
    scale_log2 = call.scale * LOG2E
    row = n * call.BN + index * CONSUMER_ROWS + gl.arange(0, CONSUMER_ROWS, layout=gl.SliceLayout(1, SCORES))
    column = gl.arange(0, BM, layout=OF_Q)
    k = call.k_tile.slice(index * CONSUMER_ROWS, CONSUMER_ROWS, 0)
    v = call.v_tile.slice(index * CONSUMER_ROWS, CONSUMER_ROWS, 0)
    zero = gl.zeros((CONSUMER_ROWS, BM), gl.float32, layout=SCORES)
    zero_dq = gl.zeros((CONSUMER_ROWS, COLUMNS), gl.float32, layout=DQ)
    dk = gl.zeros((CONSUMER_ROWS, D), gl.float32, layout=OUT)
    dv = gl.zeros((CONSUMER_ROWS, D), gl.float32, layout=OUT)
    shared_by = call.H // call.HKV
    blocks = shared_by * (high - low)
    head = (b * call.H + kv_head * shared_by) * padded
    m = low
    mbarrier.wait(call.kv_full, 0)
    dk = warpgroup_mma_init(dk)
    for block in range(blocks):
        stage = block % call.STAGES
        parity = block // call.STAGES % 2
        q = call.q_ring.index(stage)
        do = call.do_ring.index(stage)
        mbarrier.wait(call.q_full.index(stage), parity)
        scores = warpgroup_mma(k, q.permute((1, 0)), zero, use_acc=False, is_async=True)
        mbarrier.wait(call.do_full.index(stage), parity)
        dp = warpgroup_mma(v, do.permute((1, 0)), zero, use_acc=False, is_async=True)
        # dK of the block before was still under way: it keeps the tensor cores busy from block to block.
        dk = warpgroup_mma_wait(num_outstanding=2, deps=(dk,))
        mbarrier.arrive(call.empty.index((block + call.STAGES - 1) % call.STAGES), pred=block > 0)
        scores = warpgroup_mma_wait(num_outstanding=1, deps=(scores,))
        if (m < whole) | (m >= part):
            scores = mask(call, scores, row, m * BM + column, padded)
        lse = call.lse_ring.index(stage).load(OF_Q)
        p = gl.exp2(scores * scale_log2 - gl.expand_dims(lse, 0))
        weights = gl.convert_layout(p.to(q.dtype), WEIGHTS)
        dv = warpgroup_mma(weights, do, dv, is_async=True)
        dp = warpgroup_mma_wait(num_outstanding=1, deps=(dp,))
        delta = call.delta_ring.index(stage).load(OF_Q)
        ds = (p * (dp - gl.expand_dims(delta, 0))).to(q.dtype)
        ds_place = call.ds_ring.index(block % 2)
        own_ds = ds_place.slice(index * CONSUMER_ROWS, CONSUMER_ROWS, 0)
        own_ds.store(ds)
        fence_async_shared()
        mbarrier.arrive(call.ds_full)
        mbarrier.wait(call.ds_full, block % 2)
        if call.ADD_DQ:
            if BY_ROWS:
                ds_half = ds_place.slice(index * CONSUMER_ROWS, CONSUMER_ROWS, 1)
                k_half = call.k_tile
            else:
                ds_half = ds_place
                k_half = call.k_tile.slice(index * COLUMNS, COLUMNS, 1)
            dq = warpgroup_mma(ds_half.permute((1, 0)), k_half, zero_dq, use_acc=False, is_async=True)
            dk = warpgroup_mma(own_ds, q, dk, is_async=True)
            dq, dv = warpgroup_mma_wait(num_outstanding=1, deps=(dq, dv))
            add(call.dq_ptr + ((head + m * BM).to(gl.int64) * D + index * CONSUMER_ROWS * COLUMNS), dq)
        else:
            dk = warpgroup_mma(own_ds, q, dk, is_async=True)
            dv = warpgroup_mma_wait(num_outstanding=1, deps=(dv,))
        m += 1
        if m == high:
            m = low
            head += padded
    dk = warpgroup_mma_wait(num_outstanding=0, deps=(dk,))
    out_row = n * call.BN + index * CONSUMER_ROWS + gl.arange(0, CONSUMER_ROWS, layout=gl.SliceLayout(1, OUT))
    places = (b * call.HKV + kv_head).to(gl.int64) * call.SK * D + (
        gl.expand_dims(out_row * D, 1) + gl.expand_dims(gl.arange(0, D, layout=gl.SliceLayout(0, OUT)), 0)
    )
    inside = gl.expand_dims(out_row < call.SK, 1)
    gl.store(call.dv_ptr + places, dv.to(call.dv_ptr.dtype.element_ty), mask=inside)
    gl.store(call.dk_ptr + places, (dk * call.scale).to(call.dk_ptr.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=["B", "H", "HKV", "SQ", "SK", "PARTS", "OFFSET", "WINDOW"])
def gluon_attention_backward(
    q_desc,  # [B, H, SQ, D], block [1, 1, BM, D]
    do_desc,  # as q_desc
    k_desc,  # [B, HKV, SK, D], block [1, 1, BN, D]
    v_desc,  # as k_desc
    lse_desc,  # fp32 [B * H * blocks of SQ * BM], base 2, block [BM]; +inf of a row that sees nothing
    delta_desc,  # as lse_desc: the sum of dO * O of each row; 0 beyond SQ
    dq_ptr,  # fp32 [B, H, blocks of SQ * BM, D], of zeros: dQ without the scale is added; within a block as `add` leaves it
    dk_ptr,  # [B, HKV * PARTS, SK, D]
    dv_ptr,  # as dk_ptr
    bounds_ptr,  # TABLES: int32 [blocks of SK, 4]: of each block of K low, whole, part and high (Call.extent), in blocks of Q
    seen_ptr,  # TABLES: int32 [2, blocks of SQ * BM], of each row of Q the first row of K that it sees and past the last one
    scale,
    B,
    H,
    HKV,
    SQ,
    SK,
    PARTS,  # so many tiles share the heads of Q of a head of K; H // HKV is a multiple
    OFFSET,  # row r of Q stands at row r + OFFSET of K
    WINDOW,  # WINDOWED: a row sees so many rows up to itself (CAUSAL), or to either side
    sy_schedule,
    sy_control,
    CAUSAL: gl.constexpr,
    WINDOWED: gl.constexpr,
    TABLES: gl.constexpr,
    D: gl.constexpr,
    BM: gl.constexpr,  # 64, or 128 with D = 64
    BN: gl.constexpr,  # 128: 64 for each consumer; 64 with D = 256
    STAGES: gl.constexpr,
    ADD_DQ: gl.constexpr = True,
    FUSED: gl.constexpr = False,  # follows the schedule; else sy_schedule and sy_control are not looked at
):
    CONSUMERS: gl.constexpr = 2
    WIDE: gl.constexpr = D == 256
    P_PLACES: gl.constexpr = 1 if ADD_DQ else 2  # WIDE
    BLOCK: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, D], q_desc.dtype)
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, D], q_desc.dtype)
    DS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, BM], q_desc.dtype)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    k_tile = gl.allocate_shared_memory(k_desc.dtype, [BN, D], TILE)
    v_tile = gl.allocate_shared_memory(k_desc.dtype, [BN, D], TILE)
    q_ring = gl.allocate_shared_memory(q_desc.dtype, [STAGES, BM, D], BLOCK)
    do_ring = gl.allocate_shared_memory(q_desc.dtype, [STAGES, BM, D], BLOCK)
    lse_ring = gl.allocate_shared_memory(gl.float32, [STAGES, BM], lse_desc.layout)
    delta_ring = gl.allocate_shared_memory(gl.float32, [STAGES, BM], lse_desc.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    do_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    ds_full = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    # What a call has no use for stands for what it has.
    ds_ring, p_ring, p_full, p_empty, stored = k_tile, lse_ring, ds_full, ds_full, ds_full
    if ADD_DQ or not WIDE:
        ds_ring = gl.allocate_shared_memory(q_desc.dtype, [2, BN, BM], DS)
    if WIDE:
        p_ring = gl.allocate_shared_memory(
            gl.float32, [P_PLACES, BN * BM], gl.SwizzledSharedLayout(1, 1, 1, [0])
        )
        p_full = gl.allocate_shared_memory(gl.int64, [P_PLACES, 1], BARRIER)
        p_empty = gl.allocate_shared_memory(gl.int64, [P_PLACES, 1], BARRIER)
    if FUSED:
        stored = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    call = Call(
        q_desc=q_desc, do_desc=do_desc, k_desc=k_desc, v_desc=v_desc, lse_desc=lse_desc, delta_desc=delta_desc,
        dq_ptr=dq_ptr, dk_ptr=dk_ptr, dv_ptr=dv_ptr, bounds_ptr=bounds_ptr, seen_ptr=seen_ptr, scale=scale, H=H, HKV=HKV * PARTS,
        PARTS=PARTS, SQ=SQ, SK=SK, OFFSET=OFFSET, WINDOW=WINDOW, sy_schedule=sy_schedule, sy_control=sy_control,
        CAUSAL=CAUSAL, WINDOWED=WINDOWED, TABLES=TABLES, D=D, BM=BM, BN=BN, STAGES=STAGES, P_PLACES=P_PLACES, ADD_DQ=ADD_DQ,
        FUSED=FUSED, k_tile=k_tile, v_tile=v_tile, q_ring=q_ring, do_ring=do_ring, lse_ring=lse_ring, delta_ring=delta_ring,
        ds_ring=ds_ring, p_ring=p_ring, kv_full=kv_full, q_full=q_full, do_full=do_full, empty=empty, ds_full=ds_full,
        p_full=p_full, p_empty=p_empty, stored=stored,
    )  # fmt: skip
    mbarrier.init(kv_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(q_full.index(stage), count=1)
        mbarrier.init(do_full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)
    if FUSED:
        mbarrier.init(stored, count=CONSUMERS)
    mbarrier.init(ds_full, count=1 if WIDE else CONSUMERS)
    if WIDE:
        for place in gl.static_range(P_PLACES):
            mbarrier.init(p_full.index(place), count=1)
            mbarrier.init(p_empty.index(place), count=1)
    gl.warp_specialize(
        [(_differentiate, (0, call)), (_differentiate, (1, call)), (load_tile, (call,))],
        [4, 1],
        [240, 24],
    )
