"""The consumers of kernels.gluon_attention_backward for heads of 256, whose dK and dV of 64 rows fill the registers of two: one makes dV,
the other dK. Each makes the scores' part that it needs first, and P goes from one to the other through shared memory:

      consumer 0  | S . exp P | dV += P dO | dQ[:, :D/2] . | S …
      consumer 1  | dP .        . dS | dQ[:, D/2:] . dK += dS Q | dP …
                              ^ it has P   ^ both have dS

A product is not awaited one instruction at a time (`lone_products` of tests/python/gluon_resources.py) only where the assembler sees
that a loop with sums in flight runs at least once, and for consumer 1, where none are in flight from round to round.
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

from .gluon_attention_backward_tiles import LOG2E, add, block_of_pieces, mask, pieces_of, places_of
from .gluon_versions import threads_meet


@gluon.jit
def _make_dv(call):
    """Consumer 0. Without ADD_DQ dV of a block is still under way while the next one begins."""
    D: gl.constexpr = call.D
    BM: gl.constexpr = call.BM
    BN: gl.constexpr = call.BN
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D // 2, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    OF_Q: gl.constexpr = gl.SliceLayout(0, SCORES)
    n, kv_head, b = call.coordinates()
    low, whole, part, high = call.extent(n)
    padded = gl.cdiv(call.SQ, BM) * BM
    scale_log2 = call.scale * LOG2E
    row = n * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, SCORES))
    column = gl.arange(0, BM, layout=OF_Q)
    zero = gl.zeros((BN, BM), gl.float32, layout=SCORES)
    zero_dq = gl.zeros((BM, D // 2), gl.float32, layout=DQ)
    dv = gl.zeros((BN, D), gl.float32, layout=OUT)
    out_row = gl.arange(0, BN, layout=gl.SliceLayout(1, OUT))
    shared_by = call.H // call.HKV
    blocks = shared_by * (high - low)
    head = (b * call.H + kv_head * shared_by) * padded
    m = low
    mbarrier.wait(call.kv_full, 0)
    if blocks > 0:
        if not call.ADD_DQ:
            dv = warpgroup_mma_init(dv)
        for block in range(blocks):
            stage = block % call.STAGES
            parity = block // call.STAGES % 2
            q = call.q_ring.index(stage)
            do = call.do_ring.index(stage)
            mbarrier.wait(call.q_full.index(stage), parity)
            scores = warpgroup_mma(call.k_tile, q.permute((1, 0)), zero, use_acc=False, is_async=True)
            if not call.ADD_DQ:
                dv = warpgroup_mma_wait(num_outstanding=1, deps=(dv,))
                mbarrier.arrive(call.empty.index((block + call.STAGES - 1) % call.STAGES), pred=block > 0)
            scores = warpgroup_mma_wait(num_outstanding=0, deps=(scores,))
            if (m < whole) | (m >= part):
                scores = mask(call, scores, row, m * BM + column, padded)
            lse = call.lse_ring.index(stage).load(OF_Q)
            p = gl.exp2(scores * scale_log2 - gl.expand_dims(lse, 0))
            place = block % call.P_PLACES
            mbarrier.wait(call.p_empty.index(place), block // call.P_PLACES % 2 ^ 1)
            call.p_ring.index(place).store(pieces_of(p))
            threads_meet()
            mbarrier.arrive(call.p_full.index(place))
            weights = gl.convert_layout(p.to(q.dtype), WEIGHTS)
            mbarrier.wait(call.do_full.index(stage), parity)
            dv = warpgroup_mma(weights, do, dv, is_async=True)
            if call.ADD_DQ:
                mbarrier.wait(call.ds_full, block % 2)
                ds = call.ds_ring.index(block % 2)
                k_half = call.k_tile.slice(0, D // 2, 1)
                dq = warpgroup_mma(ds.permute((1, 0)), k_half, zero_dq, use_acc=False, is_async=True)
                dq, dv = warpgroup_mma_wait(num_outstanding=0, deps=(dq, dv))
                mbarrier.arrive(call.empty.index(stage))
                add(call.dq_ptr + (head + m * BM).to(gl.int64) * D, dq)
            m += 1
            if m == high:
                m = low
                head += padded
        if not call.ADD_DQ:
            dv = warpgroup_mma_wait(num_outstanding=0, deps=(dv,))
        places, inside = places_of(call, n, kv_head, b, out_row, OUT)
        gl.store(call.dv_ptr + places, dv.to(call.dv_ptr.dtype.element_ty), mask=inside)
    else:
        places, inside = places_of(call, n, kv_head, b, out_row, OUT)
        gl.store(call.dv_ptr + places, dv.to(call.dv_ptr.dtype.element_ty), mask=inside)


@gluon.jit
def _make_dk(call):
    """Consumer 1."""
    D: gl.constexpr = call.D
    BM: gl.constexpr = call.BM
    BN: gl.constexpr = call.BN
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D // 2, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    OF_Q: gl.constexpr = gl.SliceLayout(0, SCORES)
    n, kv_head, b = call.coordinates()
    low, whole, part, high = call.extent(n)
    padded = gl.cdiv(call.SQ, BM) * BM
    zero = gl.zeros((BN, BM), gl.float32, layout=SCORES)
    zero_dq = gl.zeros((BM, D // 2), gl.float32, layout=DQ)
    dk = gl.zeros((BN, D), gl.float32, layout=OUT)
    out_row = gl.arange(0, BN, layout=gl.SliceLayout(1, OUT))
    shared_by = call.H // call.HKV
    blocks = shared_by * (high - low)
    head = (b * call.H + kv_head * shared_by) * padded
    m = low
    mbarrier.wait(call.kv_full, 0)
    if blocks > 0:
        for block in range(blocks):
            stage = block % call.STAGES
            parity = block // call.STAGES % 2
            q = call.q_ring.index(stage)
            do = call.do_ring.index(stage)
            mbarrier.wait(call.do_full.index(stage), parity)
            dp = warpgroup_mma(call.v_tile, do.permute((1, 0)), zero, use_acc=False, is_async=True)
            dp = warpgroup_mma_wait(num_outstanding=0, deps=(dp,))
            delta = call.delta_ring.index(stage).load(OF_Q)
            dp = pieces_of(dp - gl.expand_dims(delta, 0))
            place = block % call.P_PLACES
            mbarrier.wait(call.p_full.index(place), block // call.P_PLACES % 2)
            p = call.p_ring.index(place).load(dp.type.layout)
            mbarrier.arrive(call.p_empty.index(place))
            ds = block_of_pieces(p * dp, BN, BM, SCORES).to(q.dtype)
            weights = gl.convert_layout(ds, WEIGHTS)
            mbarrier.wait(call.q_full.index(stage), parity)
            if call.ADD_DQ:
                ds_place = call.ds_ring.index(block % 2)
                ds_place.store(ds)
                fence_async_shared()
                mbarrier.arrive(call.ds_full)
                k_half = call.k_tile.slice(D // 2, D // 2, 1)
                dq = warpgroup_mma(ds_place.permute((1, 0)), k_half, zero_dq, use_acc=False, is_async=True)
                dk = warpgroup_mma(weights, q, dk, is_async=True)
                dq = warpgroup_mma_wait(num_outstanding=1, deps=(dq,))
                add(call.dq_ptr + ((head + m * BM).to(gl.int64) * D + BM * D // 2), dq)
            else:
                dk = warpgroup_mma(weights, q, dk, is_async=True)
            dk = warpgroup_mma_wait(num_outstanding=0, deps=(dk,))
            mbarrier.arrive(call.empty.index(stage))
            m += 1
            if m == high:
                m = low
                head += padded
        places, inside = places_of(call, n, kv_head, b, out_row, OUT)
        gl.store(call.dk_ptr + places, (dk * call.scale).to(call.dk_ptr.dtype.element_ty), mask=inside)
    else:
        places, inside = places_of(call, n, kv_head, b, out_row, OUT)
        gl.store(call.dk_ptr + places, dk.to(call.dk_ptr.dtype.element_ty), mask=inside)


@gluon.jit
def differentiate_wide(index: gl.constexpr, call):
    """Consumer `index` of the program's tile."""
    if index == 0:
        _make_dv(call)
    else:
        _make_dk(call)
