"""dQ by itself, for Hopper, in Gluon: a block of Q a tile, which walks blocks of K in a fixed order, so that the same input gives the
same bits (FlashAttention-2, arXiv 2307.08691, algorithm 2, the other way around). Beside gluon_attention_backward without ADD_DQ.

    loader (1 warp)      fills places for Q and dO, then a ring of STAGES blocks of K and of V by TMA
    consumer (4 warps)   64 rows of the tile each. With P = exp2(S - lse):
                         S = Q Kᵀ   dP = dO Vᵀ   dS = P (dP - delta)   dQ += dS K

A block's part of dQ is made while the next one's exponentials are.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .gluon_attention_backward_tiles import LOG2E
from .gluon_attention_softmax import NEVER
from .gluon_attention_tiles import CONSUMER_ROWS
from .gluon_members import set_members
from .gluon_versions import aggregate, load_block


@aggregate
class _Call:
    """What the partitions are given. First the kernel's parameters, whose comments are there."""

    q_desc: tma.tensor_descriptor
    do_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    lse_ptr: gl.tensor
    delta_ptr: gl.tensor
    dq_ptr: gl.tensor
    bounds_ptr: gl.tensor
    seen_ptr: gl.tensor
    padded: gl.tensor
    scale: gl.tensor
    H: gl.tensor
    HKV: gl.tensor
    SQ: gl.tensor
    D: gl.constexpr
    BM: gl.constexpr
    BN: gl.constexpr
    STAGES: gl.constexpr
    # Shared memory.
    q_tile: gl.shared_memory_descriptor  # [BM, D]
    do_tile: gl.shared_memory_descriptor
    k_ring: gl.shared_memory_descriptor  # [STAGES, BN, D]
    v_ring: gl.shared_memory_descriptor
    # mbarriers.
    q_full: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor  # [STAGES], for the consumers
    v_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor  # [STAGES], for the loader
    v_empty: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, **values):
        set_members(self, values)

    @gluon.jit
    def coordinates(self):
        """The program's block of Q, its head and its batch entry: the last blocks of all heads first, which see most under a causal
        mask."""
        tiles = gl.cdiv(self.SQ, self.BM)
        heads = gl.num_programs(0) // tiles
        head = gl.program_id(0) % heads
        return tiles - 1 - gl.program_id(0) // heads, head % self.H, head // self.H

    @gluon.jit
    def extent(self, m):
        """Rows of block m see rows in blocks [low, high) of K, all of those in [whole, part)."""
        bounds = self.bounds_ptr + 4 * m
        return gl.load(bounds), gl.load(bounds + 1), gl.load(bounds + 2), gl.load(bounds + 3)


@gluon.jit
def _load(call):
    """The loader."""
    TILE: gl.constexpr = call.BM * call.D * 2
    BLOCK: gl.constexpr = call.BN * call.D * 2
    m, head, b = call.coordinates()
    low, _, _, high = call.extent(m)
    kv_head = head // (call.H // call.HKV)
    mbarrier.expect(call.q_full, 2 * TILE)
    load_block(call.q_desc, [b, head, m * call.BM, 0], call.q_full, call.q_tile)
    load_block(call.do_desc, [b, head, m * call.BM, 0], call.q_full, call.do_tile)
    for block in range(high - low):
        stage = block % call.STAGES
        parity = block // call.STAGES % 2 ^ 1  # a place that was never filled is empty
        row = (low + block) * call.BN
        k_full = call.k_full.index(stage)
        mbarrier.wait(call.k_empty.index(stage), parity)
        mbarrier.expect(k_full, BLOCK)
        load_block(call.k_desc, [b, kv_head, row, 0], k_full, call.k_ring.index(stage))
        v_full = call.v_full.index(stage)
        mbarrier.wait(call.v_empty.index(stage), parity)
        mbarrier.expect(v_full, BLOCK)
        load_block(call.v_desc, [b, kv_head, row, 0], v_full, call.v_ring.index(stage))


@gluon.jit
def _weights(call, scores, n, whole, part, row, lse):
    """P of scores [64, BN] with block n of K."""
    BN: gl.constexpr = call.BN
    if (n < whole) | (n >= part):
        seen_from = gl.load(call.seen_ptr + row, mask=row < call.SQ, other=0)
        seen_to = gl.load(call.seen_ptr + call.padded + row, mask=row < call.SQ, other=0)
        at = n * BN + gl.expand_dims(gl.arange(0, BN, layout=gl.SliceLayout(0, scores.type.layout)), 0)
        seen = (at >= gl.expand_dims(seen_from, 1)) & (at < gl.expand_dims(seen_to, 1))
        scores = gl.where(seen, scores, NEVER)
    return gl.exp2(scores * (call.scale * LOG2E) - gl.expand_dims(lse, 1))


@gluon.jit
def _store(call, dq, first, head, b):
    """A consumer's rows of dQ, from row `first` on."""
    D: gl.constexpr = call.D
    row = first + gl.arange(0, CONSUMER_ROWS, layout=gl.SliceLayout(1, dq.type.layout))
    column = gl.arange(0, D, layout=gl.SliceLayout(0, dq.type.layout))
    places = (b * call.H + head).to(gl.int64) * call.SQ * D + (
        gl.expand_dims(row * D, 1) + gl.expand_dims(column, 0)
    )
    made = (dq * call.scale).to(call.dq_ptr.dtype.element_ty)
    gl.store(call.dq_ptr + places, made, mask=gl.expand_dims(row < call.SQ, 1))


@gluon.jit
def _make_dq(index: gl.constexpr, call):
    """Consumer `index`: rows [64 * index, 64 * index + 64) of the tile."""
    D: gl.constexpr = call.D
    BN: gl.constexpr = call.BN
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    m, head, b = call.coordinates()
    low, whole, part, high = call.extent(m)
    first = m * call.BM + index * CONSUMER_ROWS
    row = first + gl.arange(0, CONSUMER_ROWS, layout=gl.SliceLayout(1, SCORES))
    place = (b * call.H + head) * call.padded + row
    lse = gl.load(call.lse_ptr + place, mask=row < call.SQ, other=float("inf"))
    delta = gl.load(call.delta_ptr + place, mask=row < call.SQ, other=0.0)
    q = call.q_tile.slice(index * CONSUMER_ROWS, CONSUMER_ROWS, 0)
    do = call.do_tile.slice(index * CONSUMER_ROWS, CONSUMER_ROWS, 0)
    zero = gl.zeros((CONSUMER_ROWS, BN), gl.float32, layout=SCORES)
    dq = gl.zeros((CONSUMER_ROWS, D), gl.float32, layout=OUT)
    mbarrier.wait(call.q_full, 0)
    if high > low:
        mbarrier.wait(call.k_full.index(0), 0)
        scores = warpgroup_mma(q, call.k_ring.index(0).permute((1, 0)), zero, use_acc=False)
        p = _weights(call, scores, low, whole, part, row, lse)
        mbarrier.wait(call.v_full.index(0), 0)
        dp = warpgroup_mma(do, call.v_ring.index(0).permute((1, 0)), zero, use_acc=False)
        mbarrier.arrive(call.v_empty.index(0))
        weights = gl.convert_layout((p * (dp - gl.expand_dims(delta, 1))).to(q.dtype), WEIGHTS)
        for block in range(1, high - low):
            stage = block % call.STAGES
            parity = block // call.STAGES % 2
            before = (block - 1) % call.STAGES
            mbarrier.wait(call.k_full.index(stage), parity)
            scores = warpgroup_mma(
                q, call.k_ring.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True
            )
            product = warpgroup_mma(weights, call.k_ring.index(before), dq, is_async=True)
            scores = warpgroup_mma_wait(num_outstanding=1, deps=(scores,))
            p = _weights(call, scores, low + block, whole, part, row, lse)
            mbarrier.wait(call.v_full.index(stage), parity)
            dq, weights = warpgroup_mma_wait(num_outstanding=0, deps=(product, weights))
            mbarrier.arrive(call.k_empty.index(before))
            dp = warpgroup_mma(do, call.v_ring.index(stage).permute((1, 0)), zero, use_acc=False)
            mbarrier.arrive(call.v_empty.index(stage))
            weights = gl.convert_layout((p * (dp - gl.expand_dims(delta, 1))).to(q.dtype), WEIGHTS)
        dq = warpgroup_mma(weights, call.k_ring.index((high - low - 1) % call.STAGES), dq)
        _store(call, dq, first, head, b)
    else:
        _store(call, dq, first, head, b)


@gluon.jit(do_not_specialize=["H", "HKV", "SQ", "padded"])
def gluon_attention_backward_q(
    q_desc,  # [B, H, SQ, D], block [1, 1, BM, D]
    do_desc,  # as q_desc
    k_desc,  # [B, HKV, SK, D], block [1, 1, BN, D]
    v_desc,  # as k_desc
    lse_ptr,  # fp32 [B, H, padded], base 2; +inf of a row that sees nothing
    delta_ptr,  # as lse_ptr: the sum of dO * O of each row
    dq_ptr,  # [B, H, SQ, D]
    bounds_ptr,  # int32 [blocks of SQ, 4]: low, whole, part and high, in blocks of K (_Call.extent)
    seen_ptr,  # int32 [2, padded], of each row of Q the first row of K that it sees and past the last one
    padded,
    scale,  # > 0
    H,
    HKV,
    SQ,
    D: gl.constexpr,
    BM: gl.constexpr,  # 128: 64 for each consumer
    BN: gl.constexpr,
    STAGES: gl.constexpr,
):
    gl.static_assert(STAGES >= 2, "a block is awaited before the one before it is let go")
    CONSUMERS: gl.constexpr = BM // CONSUMER_ROWS
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, D], q_desc.dtype)
    BLOCK: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, D], q_desc.dtype)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_tile = gl.allocate_shared_memory(q_desc.dtype, [BM, D], TILE)
    do_tile = gl.allocate_shared_memory(q_desc.dtype, [BM, D], TILE)
    k_ring = gl.allocate_shared_memory(q_desc.dtype, [STAGES, BN, D], BLOCK)
    v_ring = gl.allocate_shared_memory(q_desc.dtype, [STAGES, BN, D], BLOCK)
    q_full = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    call = _Call(
        q_desc=q_desc, do_desc=do_desc, k_desc=k_desc, v_desc=v_desc, lse_ptr=lse_ptr, delta_ptr=delta_ptr, dq_ptr=dq_ptr,
        bounds_ptr=bounds_ptr, seen_ptr=seen_ptr, padded=padded, scale=scale, H=H, HKV=HKV, SQ=SQ, D=D, BM=BM, BN=BN,
        STAGES=STAGES, q_tile=q_tile, do_tile=do_tile, k_ring=k_ring, v_ring=v_ring, q_full=q_full, k_full=k_full,
        v_full=v_full, k_empty=k_empty, v_empty=v_empty,
    )  # fmt: skip
    mbarrier.init(q_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=CONSUMERS)
        mbarrier.init(v_empty.index(stage), count=CONSUMERS)
    gl.warp_specialize(
        [(_make_dq, (0, call)), (_make_dq, (1, call)), (_load, (call,))],
        [4, 1],
        [240, 24],
    )
