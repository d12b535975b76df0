"""Flash attention, backward, for one GPU: plain Triton kernels, which know nothing of ranks. With P = exp2(S - lse), as in
FlashAttention-2 (arXiv 2307.08691, algorithm 2):

    dV = Pᵀ dO    dS = P ∘ (dO Vᵀ - delta)    dQ = dS K    dK = dSᵀ Q

`attention_backward`: a tile is a block of K and V. It walks the rows of Q that see some of it, of all heads that share the
head of K, so that its dK and dV are complete when it ends. With ADD_DQ it also adds to dQ, at its place in memory, in no fixed
order. `attention_backward_q` makes dQ by itself, a block of Q a tile, in a fixed order: two products more for each block.

`prepare_rows` makes lse (base 2) and delta of what the forward left, with rows up to a multiple of BM: such a row has
weights of 0, and it can set dQ's sums to 0. `finish_rows` makes dQ of them, also of those that gluon_attention_backward makes,
and `add_parts` what several tiles of it have made of a block's dK and dV. `take_sums` gives a rank its rows of sums over ranks.

Q, dO: [B, H, SQ, D], K, V, dK, dV: [B, HKV, SK, D]; lse, delta: fp32 [B, H, blocks of SQ * BM]. What a row of Q sees is
looked up: rows [seen_from, seen_to) of K. Rows beyond a tensor's last one are read as zeros.
"""

import triton
import triton.language as tl

from .attention import LOG2E


def rows_of_program(block: int, d: int) -> int:
    """Rows of a program of prepare_rows, where a block has so many: what its registers hold."""
    return min(block, 8192 // d)


@triton.jit
def prepare_rows(
    o_ptr, do_ptr, lse_ptr, dlse_ptr, lse2_ptr, delta_ptr, sum_ptr, H, S, padded, sb, sh, ss, gb, gh, gs,
    DLSE: tl.constexpr, ZERO: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Of each row the sum of dO * O, less the gradient of its log-sum-exp (DLSE), and the forward's log-sum-exp in base 2: +inf where
    a row sees nothing, so that its weights are 0. A tile is ROWS rows of a head. ZERO: and zeros for its sum of dQ, fp32 [B, H, padded, D]: a launch less, and the
    loads hide it. Rows from S on are made up: zeros, and weights of 0."""
    tile = tl.program_id(0)
    row = tile % (padded // ROWS) * ROWS + tl.arange(0, ROWS)
    head = tile // (padded // ROWS)
    b = (head // H).to(tl.int64)
    h = (head % H).to(tl.int64)
    column = tl.arange(0, D)
    there = row < S
    at = row.to(tl.int64)[:, None]
    o = tl.load(o_ptr + b * sb + h * sh + at * ss + column[None, :], mask=there[:, None], other=0.0)
    do = tl.load(do_ptr + b * gb + h * gh + at * gs + column[None, :], mask=there[:, None], other=0.0)
    lse = tl.load(lse_ptr + head.to(tl.int64) * S + row, mask=there, other=float("-inf"))
    to = head.to(tl.int64) * padded + row
    if ZERO:
        tl.store(sum_ptr + to[:, None] * D + column[None, :], tl.zeros([ROWS, D], tl.float32))
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    if DLSE:
        delta -= tl.load(dlse_ptr + head.to(tl.int64) * S + row, mask=there, other=0.0)
    tl.store(delta_ptr + to, delta)
    tl.store(lse2_ptr + to, tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634))


@triton.jit
def finish_rows(
    sum_ptr, dq_ptr, S, padded, scale, D: tl.constexpr, ROWS: tl.constexpr, PIECES: tl.constexpr = False
):
    """dQ of its sum in fp32, a block of rows a tile: [heads, padded, D] to [1, heads, S, D], both contiguous. PIECES: a block's
    numbers lie as gluon_attention_backward adds them: half of its rows or, of 64 rows, of its columns, and then the other half."""
    tile = tl.program_id(0)
    blocks = tl.cdiv(S, ROWS)
    row = tile % blocks * ROWS + tl.arange(0, ROWS)
    head = (tile // blocks).to(tl.int64)
    column = tl.arange(0, D)
    if PIECES:
        first = head * padded + tile % blocks * ROWS
        total = tl.load(sum_ptr + first * D + tl.arange(0, ROWS * D))
        DOWN: tl.constexpr = ROWS // 64  # halves one below another, or else side by side
        total = total.reshape(DOWN, 2 // DOWN, 4, D * DOWN // 16, 8, 4, 2, 2)
        total = total.permute(0, 2, 6, 4, 1, 3, 5, 7).reshape(ROWS, D)
    else:
        total = tl.load(sum_ptr + (head * padded + row[:, None]) * D + column[None, :])
    made = (total * scale).to(dq_ptr.dtype.element_ty)
    tl.store(dq_ptr + (head * S + row[:, None]) * D + column[None, :], made, mask=(row < S)[:, None])


@triton.jit
def add_parts(parts_ptr, dk_ptr, dv_ptr, length, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of fp32 [2, heads, PARTS, length], in order: dK and dV, [heads, length] each. Grid: blocks of a head times heads, 2."""
    blocks = tl.cdiv(length, BLOCK)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    first = (tl.program_id(1) * (tl.num_programs(0) // blocks) + head) * PARTS
    total = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts_ptr + (first + part) * length + at, mask=at < length, other=0.0)
    sum_ptr = dk_ptr if tl.program_id(1) == 0 else dv_ptr
    tl.store(sum_ptr + head * length + at, total.to(sum_ptr.dtype.element_ty), mask=at < length)


@triton.jit
def take_sums(
    dk_sum_ptr, dv_sum_ptr, dk_ptr, dv_ptr, place, width, first, rows, length, D: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Rows [place, place + length) of sums, fp32 [heads, width, D], to rows from `first` on of dK and dV, [heads, rows, D]. Grid: blocks
    of a head times heads, 2."""
    blocks = tl.cdiv(length * D, BLOCK)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    sum_ptr = dk_sum_ptr if tl.program_id(1) == 0 else dv_sum_ptr
    to_ptr = dk_ptr if tl.program_id(1) == 0 else dv_ptr
    there = at < length * D
    total = tl.load(sum_ptr + (head * width + place) * D + at, mask=there)
    tl.store(to_ptr + (head * rows + first) * D + at, total.to(to_ptr.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["H", "HKV", "SQ", "SK"])
def attention_backward(
    q_desc,  # [B, H, SQ, D], blocks of [1, 1, BM, D]
    do_desc,  # as q_desc
    k_desc,  # [B, HKV, SK, D], blocks of [1, 1, BN, D]
    v_desc,  # as k_desc
    lse_ptr,  # fp32 [B, H, blocks of SQ * BM], base 2; +inf of a row that sees nothing
    delta_ptr,  # as lse_ptr: the sum of dO * O of each row; 0 beyond SQ
    dq_ptr,  # ADD_DQ: fp32 [B, H, blocks of SQ * BM, D], of zeros: dQ without the scale is added
    dk_ptr,  # [B, HKV, SK, D]
    dv_ptr,  # as dk_ptr
    bounds_ptr,  # int32 [blocks of SK, 4]: of each block of K, in blocks of Q: low, whole, part, high (backward_tables)
    seen_ptr,  # int32 [2, blocks of SQ * BM], of each row of Q the first row of K that it sees and past the last one
    scale,
    H,
    HKV,
    SQ,
    SK,
    ADD_DQ: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    tile = tl.program_id(0)
    blocks = tl.cdiv(SK, BN)
    n = tile % blocks
    kv_head = tile // blocks % HKV
    b = tile // blocks // HKV
    k = k_desc.load([b, kv_head, n * BN, 0]).reshape(BN, D)
    v = v_desc.load([b, kv_head, n * BN, 0]).reshape(BN, D)
    row = n * BN + tl.arange(0, BN)
    column = tl.arange(0, D)
    scale_log2 = scale * LOG2E
    padded = tl.cdiv(SQ, BM) * BM
    shared_by = H // HKV
    low = tl.load(bounds_ptr + 4 * n)
    high = tl.load(bounds_ptr + 4 * n + 3)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    for head in tl.range(kv_head * shared_by, kv_head * shared_by + shared_by):
        for m in tl.range(low, high):
            q = q_desc.load([b, head, m * BM, 0]).reshape(BM, D)
            do = do_desc.load([b, head, m * BM, 0]).reshape(BM, D)
            at = m * BM + tl.arange(0, BM)
            place = (b * H + head) * padded + at
            lse = tl.load(lse_ptr + place, mask=at < SQ, other=float("inf"))
            delta = tl.load(delta_ptr + place, mask=at < SQ, other=0.0)
            seen_from = tl.load(seen_ptr + at)
            seen_to = tl.load(seen_ptr + padded + at)
            seen = (row[:, None] >= seen_from[None, :]) & (row[:, None] < seen_to[None, :])
            scores = tl.dot(k, q.T) * scale_log2
            p = tl.where(seen, tl.math.exp2(scores - lse[None, :]), 0.0)
            dv = tl.dot(p.to(do.dtype), do, dv)
            dp = tl.dot(v, do.T)
            ds = (p * (dp - delta[None, :])).to(q.dtype)
            dk = tl.dot(ds, q, dk)
            if ADD_DQ:
                dq = tl.dot(ds.T, k)
                to = place.to(tl.int64)[:, None] * D + column[None, :]
                tl.atomic_add(dq_ptr + to, dq, sem="relaxed")
    places = ((b * HKV + kv_head).to(tl.int64) * SK + row[:, None]) * D + column[None, :]
    inside = (row < SK)[:, None]
    tl.store(dv_ptr + places, dv.to(dv_ptr.dtype.element_ty), mask=inside)
    tl.store(dk_ptr + places, (dk * scale).to(dk_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["padded", "H", "HKV", "SQ", "SK"])
def attention_backward_q(
    q_desc,  # as of attention_backward
    do_desc,
    k_desc,
    v_desc,
    lse_ptr,  # fp32 [B, H, padded]
    delta_ptr,
    dq_ptr,  # [B, H, SQ, D]
    sum_ptr,  # fp32 [B, H, padded, D]: where more rows of K come in other calls, what is carried from one to the next
    blocks_ptr,  # int32 [blocks of SQ, 2]: the blocks of K that some of its rows see, the first one and past the last
    seen_ptr,
    padded,  # rows of a head in lse_ptr, delta_ptr, sum_ptr and seen_ptr: a multiple of BM
    scale,
    H,
    HKV,
    SQ,
    SK,
    FIRST: tl.constexpr,  # no rows of K came before
    LAST: tl.constexpr,  # none come after
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
    q = q_desc.load([b, head, m * BM, 0]).reshape(BM, D)
    do = do_desc.load([b, head, m * BM, 0]).reshape(BM, D)
    at = m * BM + tl.arange(0, BM)
    place = (b * H + head) * padded + at
    lse = tl.load(lse_ptr + place, mask=at < SQ, other=float("inf"))
    delta = tl.load(delta_ptr + place, mask=at < SQ, other=0.0)
    seen_from = tl.load(seen_ptr + at)
    seen_to = tl.load(seen_ptr + padded + at)
    scale_log2 = scale * LOG2E
    column = tl.arange(0, D)
    carried = place.to(tl.int64)[:, None] * D + column[None, :]
    dq = tl.zeros([BM, D], tl.float32)
    if not FIRST:
        dq = tl.load(sum_ptr + carried)
    low = tl.load(blocks_ptr + 2 * m)
    high = tl.load(blocks_ptr + 2 * m + 1)
    for n in tl.range(low, high):
        k = k_desc.load([b, kv_head, n * BN, 0]).reshape(BN, D)
        v = v_desc.load([b, kv_head, n * BN, 0]).reshape(BN, D)
        row = n * BN + tl.arange(0, BN)
        seen = (row[None, :] >= seen_from[:, None]) & (row[None, :] < seen_to[:, None])
        if tl.max(seen.to(tl.int32)) == 0:  # nobody may have sent it: what lies there may be no number
            k = tl.zeros([BN, D], k_desc.dtype)
            v = tl.zeros([BN, D], v_desc.dtype)
        scores = tl.dot(q, k.T) * scale_log2
        p = tl.where(seen, tl.math.exp2(scores - lse[:, None]), 0.0)
        ds = p * (tl.dot(do, v.T) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    if LAST:
        places = ((b * H + head).to(tl.int64) * SQ + at[:, None]) * D + column[None, :]
        tl.store(dq_ptr + places, (dq * scale).to(dq_ptr.dtype.element_ty), mask=(at < SQ)[:, None])
    else:
        tl.store(sum_ptr + carried, dq)
