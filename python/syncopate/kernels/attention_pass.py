"""One pass of flash attention, forward, for one GPU: a plain Triton kernel. It takes what is there of K and V, in any order,
and goes on with what the passes before have made of its rows.

Q, O: [B, H, SQ, D], this rank's rows, K, V: [B, HKV, SK, D], those of the pass, L: [B, H, SQ] (fp32, natural log-sum-exp of
the scaled scores). What is carried from pass to pass, in fp32, is what the loop over K has at its end: the sums [B, H,
SQ, D] of weighted rows of V, and each row's maximum and sum of exponentials [2, B, H, SQ]. Each row of Q sees rows
[seen_from, seen_to) of the sequence, and each row of K says where in it it stands. After every pass O and L are right
for all rows of K so far.

Which blocks a tile sees is known on the device alone, so that all passes have one schedule: a tile walks them all.
"""

import triton
import triton.language as tl

from .attention import LN2, LOG2E, _softmax_block

_NEVER = tl.constexpr(float("-inf"))


@triton.jit(do_not_specialize=["FIRST", "LAST"])  # one compiled kernel does all passes
def attention_pass(
    q_desc,  # [B, H, SQ, D], blocks of [1, 1, BM, D]
    k_desc,  # [B, HKV, SK, D], blocks of [1, 1, BN, D]
    v_desc,
    o_desc,  # as q_desc
    l_ptr,  # [B, H, SQ]
    carry_ptr,  # fp32 [B, H, SQ, D]
    tops_ptr,  # fp32 [2, B, H, SQ]
    seen_ptr,  # int32 [2, SQ], of each row of Q the first row of the sequence that it sees and past the last one
    position_ptr,  # int32 [SK], of each row of K where it stands in the sequence; -1: nobody sees it
    scale,
    B,
    H,
    HKV,
    SQ,
    SK,
    FIRST,  # whether no pass came before this one
    LAST,  # whether none comes after it: nothing is carried on
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    tile = tl.program_id(0)
    tiles = tl.cdiv(SQ, BM)
    m = tile % tiles
    head = tile // tiles % H
    b = tile // tiles // H
    kv_head = head // (H // HKV)
    first = m * BM
    rows = first + tl.arange(0, BM)
    columns = tl.arange(0, BN)
    q = q_desc.load([b, head, first, 0]).reshape(BM, D)
    scale_log2 = scale * LOG2E
    seen_from = tl.load(seen_ptr + rows, mask=rows < SQ, other=0)
    seen_to = tl.load(seen_ptr + SQ + rows, mask=rows < SQ, other=0)

    top = tl.full([BM], _NEVER, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for n in tl.range(0, SK, BN):  # @sy.any_order
        k = k_desc.load([b, kv_head, n, 0]).reshape(BN, D)
        v = v_desc.load([b, kv_head, n, 0]).reshape(BN, D)
        scores = tl.dot(q, k.T) * scale_log2
        at = tl.load(position_ptr + n + columns, mask=n + columns < SK, other=-1)
        seen = (at[None, :] >= seen_from[:, None]) & (at[None, :] < seen_to[:, None])
        acc, top, total = _softmax_block(tl.where(seen, scores, _NEVER), v, acc, top, total)

    # Joined with the passes before as one block of scores is with the blocks before it.
    row = (b * H + head) * SQ + rows
    at = row.to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    known = (rows < SQ) & (FIRST == 0)
    kept = (rows < SQ) & (LAST == 0)
    top_before = tl.load(tops_ptr + row, mask=known, other=_NEVER)
    total_before = tl.load(tops_ptr + B * H * SQ + row, mask=known, other=0.0)
    carried = tl.load(carry_ptr + at, mask=known[:, None], other=0.0)
    joined = tl.maximum(top, top_before)
    base = tl.where(joined == _NEVER, 0.0, joined)
    faded = tl.math.exp2(top - base)
    faded_before = tl.math.exp2(top_before - base)
    total = total * faded + total_before * faded_before
    acc = acc * faded[:, None] + carried * faded_before[:, None]
    tl.store(tops_ptr + row, joined, mask=kept)
    tl.store(tops_ptr + B * H * SQ + row, total, mask=kept)
    tl.store(carry_ptr + at, acc, mask=kept[:, None])

    empty = total == 0.0
    acc = acc / tl.where(empty, 1.0, total)[:, None]
    o_desc.store([b, head, first, 0], acc.to(o_desc.dtype).reshape(1, 1, BM, D))
    lse = tl.where(empty, _NEVER, (base + tl.math.log2(tl.where(empty, 1.0, total))) * LN2)
    tl.store(l_ptr + row, lse, mask=rows < SQ)
