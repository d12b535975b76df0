"""Flash attention, forward, for one GPU: a plain Triton kernel, which knows nothing of ranks.

Q, O: [B, H, S, D], K, V: [B, HKV, S, D], L: [B, H, S] (fp32, natural log-sum-exp of the scaled scores).

Documents: where several lie in one sequence, or what rows see is not said by CAUSAL and WINDOW, DOCUMENTS has it looked up.

PLACED: Q and O have only some of the rows, [B, H, rows, D], tile by tile where a table says.

A tile is BM rows of one head. Its blocks of K and V are walked in two loops: those that are seen whole, and those of
which the mask leaves a part. Softmax takes them in any order, so each loop says so: fused with a plan, a tile runs the
blocks that have arrived and waits for the others. The maximum and the sum of each row are kept in fp32, and an empty
row, or block, changes nothing.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
_NEVER = tl.constexpr(float("-inf"))


@triton.jit
def _softmax_block(scores, v, acc, top, total):
    """One more block of scores (base 2) and of V: the new sums, the rows' maxima, and their sums of exponentials."""
    new = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new == _NEVER, 0.0, new)  # of a row that sees nothing yet
    p = tl.math.exp2(scores - base[:, None])
    faded = tl.math.exp2(top - base)
    total = total * faded + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * faded[:, None])
    return acc, new, total


@triton.jit
def attention(
    q_desc,  # [B, H, S, D], blocks of [1, 1, BM, D]
    k_desc,  # [B, HKV, S, D], blocks of [1, 1, BN, D]
    v_desc,
    o_desc,  # as q_desc
    l_ptr,  # [B, H, S]
    bounds_ptr,  # DOCUMENTS: int32 [tiles of S, 4], of each tile's rows low, whole, part and high, see below
    seen_ptr,  # DOCUMENTS: int32 [2, S], of each row the first column that it sees and past the last one
    place_ptr,  # PLACED: int32 [tiles of S], at which row of Q and O each tile's rows are
    scale,
    H,
    HKV,
    S,
    WINDOW,  # a row sees so many rows up to itself (CAUSAL), or to either side; 0: all
    CAUSAL: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    PLACED: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    tile = tl.program_id(0)
    tiles = tl.cdiv(S, BM)
    m = tile % tiles
    head = tile // tiles % H
    b = tile // tiles // H
    kv_head = head // (H // HKV)
    first = m * BM
    rows = first + tl.arange(0, BM)
    columns = tl.arange(0, BN)
    place = first
    if PLACED:
        place = tl.load(place_ptr + m)
    q = q_desc.load([b, head, place, 0]).reshape(BM, D)
    scale_log2 = scale * LOG2E

    # Blocks [low, high) hold all that some row sees, [whole, part) what all rows see.
    low = 0
    high = S
    whole = 0
    part = S // BN * BN
    if CAUSAL:
        high = tl.minimum(S, first + BM)
        part = tl.minimum(part, (first + 1) // BN * BN)
    if WINDOW > 0:
        low = tl.maximum(0, first - WINDOW + 1) // BN * BN
        whole = tl.cdiv(tl.maximum(0, first + BM - WINDOW), BN) * BN
        if not CAUSAL:
            high = tl.minimum(S, first + BM + WINDOW - 1)
            part = tl.minimum(part, tl.maximum(0, first + WINDOW) // BN * BN)
    whole = tl.minimum(whole, tl.cdiv(high, BN) * BN)
    part = tl.maximum(part, whole)
    if DOCUMENTS:
        low = tl.load(bounds_ptr + 4 * m)
        whole = tl.load(bounds_ptr + 4 * m + 1)
        part = tl.load(bounds_ptr + 4 * m + 2)
        high = tl.load(bounds_ptr + 4 * m + 3)
        seen_from = tl.load(seen_ptr + rows, mask=rows < S, other=0)
        seen_to = tl.load(seen_ptr + S + rows, mask=rows < S, other=0)

    top = tl.full([BM], _NEVER, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    # Left of the window's whole blocks.
    for n in tl.range(low, whole, BN):  # @sy.any_order
        k = k_desc.load([b, kv_head, n, 0]).reshape(BN, D)
        v = v_desc.load([b, kv_head, n, 0]).reshape(BN, D)
        scores = tl.dot(q, k.T) * scale_log2
        at = n + columns
        if DOCUMENTS:
            seen = (at[None, :] >= seen_from[:, None]) & (at[None, :] < seen_to[:, None])
        else:
            seen = (rows[:, None] - at[None, :] < WINDOW) & (at < S)[None, :]
            if CAUSAL:
                seen = seen & (rows[:, None] >= at[None, :])
            else:
                seen = seen & (at[None, :] - rows[:, None] < WINDOW)
        acc, top, total = _softmax_block(tl.where(seen, scores, _NEVER), v, acc, top, total)
    for n in tl.range(whole, part, BN):  # @sy.any_order
        k = k_desc.load([b, kv_head, n, 0]).reshape(BN, D)
        v = v_desc.load([b, kv_head, n, 0]).reshape(BN, D)
        acc, top, total = _softmax_block(tl.dot(q, k.T) * scale_log2, v, acc, top, total)
    # On the diagonal, right of the window's whole blocks, and what is left of the sequence.
    for n in tl.range(part, high, BN):  # @sy.any_order
        k = k_desc.load([b, kv_head, n, 0]).reshape(BN, D)
        v = v_desc.load([b, kv_head, n, 0]).reshape(BN, D)
        scores = tl.dot(q, k.T) * scale_log2
        at = n + columns
        if DOCUMENTS:
            seen = (at[None, :] >= seen_from[:, None]) & (at[None, :] < seen_to[:, None])
        else:
            seen = (rows[:, None] >= 0) & (at < S)[None, :]
            if CAUSAL:
                seen = seen & (rows[:, None] >= at[None, :])
            if WINDOW > 0:
                seen = seen & (rows[:, None] - at[None, :] < WINDOW) & (at[None, :] - rows[:, None] < WINDOW)
        acc, top, total = _softmax_block(tl.where(seen, scores, _NEVER), v, acc, top, total)

    empty = total == 0.0
    acc = acc / tl.where(empty, 1.0, total)[:, None]
    o_desc.store([b, head, place, 0], acc.to(o_desc.dtype).reshape(1, 1, BM, D))
    lse = tl.where(
        empty, _NEVER, (tl.where(empty, 0.0, top) + tl.math.log2(tl.where(empty, 1.0, total))) * LN2
    )
    tl.store(l_ptr + (b * H + head) * S + rows, lse, mask=rows < S)
