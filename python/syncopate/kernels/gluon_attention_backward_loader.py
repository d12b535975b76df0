"""The loader of kernels.gluon_attention_backward: it awaits the tile's rows of K and V, and fills the places of blocks by TMA."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from ..gluon import sy_await, sy_finish, sy_post
from .gluon_versions import load_block


@gluon.jit
def load_tile(call):
    """The loader of the program's tile, if it has one."""
    if call.FUSED:
        if call.has_tile():
            sy_await(call.sy_schedule, call.sy_control, gl.program_id(0))
            _load(call)
            mbarrier.wait(call.stored, 0)
            sy_post(call.sy_schedule, call.sy_control, gl.program_id(0))
        sy_finish(call.sy_schedule, call.sy_control)
    else:
        _load(call)


@gluon.jit
def _load(call):
    BYTES: gl.constexpr = call.BM * call.D * 2 + call.BM * 4
    n, head, b = call.coordinates()
    kv_head = head // call.PARTS
    low, _, _, high = call.extent(n)
    mbarrier.expect(call.kv_full, 2 * call.BN * call.D * 2)
    load_block(call.k_desc, [b, kv_head, n * call.BN, 0], call.kv_full, call.k_tile)
    load_block(call.v_desc, [b, kv_head, n * call.BN, 0], call.kv_full, call.v_tile)
    heads = call.H // call.HKV
    blocks = heads * (high - low)
    padded = gl.cdiv(call.SQ, call.BM) * call.BM
    head *= heads
    m = low
    for block in range(blocks):
        stage = block % call.STAGES
        parity = block // call.STAGES % 2 ^ 1  # a place that was never filled is empty
        rows = (b * call.H + head) * padded + m * call.BM
        q_full = call.q_full.index(stage)
        mbarrier.wait(call.empty.index(stage), parity)
        mbarrier.expect(q_full, BYTES)
        load_block(call.q_desc, [b, head, m * call.BM, 0], q_full, call.q_ring.index(stage))
        load_block(call.lse_desc, [rows], q_full, call.lse_ring.index(stage))
        do_full = call.do_full.index(stage)
        mbarrier.expect(do_full, BYTES)
        load_block(call.do_desc, [b, head, m * call.BM, 0], do_full, call.do_ring.index(stage))
        load_block(call.delta_desc, [rows], do_full, call.delta_ring.index(stage))
        m += 1
        if m == high:
            m = low
            head += 1
