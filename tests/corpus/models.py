"""Kernels as trainers and servers of language models have them, in the habits of their authors."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, normal, numbers, unset


@triton.jit
def add_and_norm(x_ptr, residual_ptr, w_ptr, eps, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum goes back to where the residual was, the normalised sum to where x was."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * COLUMNS
    residual_ptr += row * COLUMNS
    columns = tl.arange(0, BLOCK)
    inside = columns < COLUMNS
    total = tl.load(x_ptr + columns, mask=inside, other=0.0) + tl.load(
        residual_ptr + columns, mask=inside, other=0.0
    )
    tl.store(residual_ptr + columns, total, mask=inside)
    scale = tl.rsqrt(tl.sum(total * total, axis=0) / COLUMNS + eps)
    w = tl.load(w_ptr + columns, mask=inside)
    tl.store(x_ptr + columns, total * scale * w, mask=inside)


@case
def residual_and_norm_in_place(seed):
    x, residual, w = normal((10, 20), seed), normal((10, 20), seed + 1), normal((20,), seed + 2)
    total = x + residual
    wanted = total * torch.rsqrt((total * total).mean(1, keepdim=True) + 1e-5) * w
    args = {"x_ptr": x, "residual_ptr": residual, "w_ptr": w, "eps": 1e-5, "COLUMNS": 20, "BLOCK": 32}
    return Case(add_and_norm, (10,), args, {"x_ptr": wanted, "residual_ptr": total}, tolerance=1e-5)


@triton.jit
def rope_by_groups(
    Q, stride, cos, sin, seqlen, head_dim: tl.constexpr, n_heads: tl.constexpr, GROUP: tl.constexpr
):
    """A program turns some heads of a row, one after another."""
    row, group = tl.program_id(0), tl.program_id(1)
    half: tl.constexpr = head_dim // 2
    columns = tl.arange(0, half)
    c = tl.load(cos + (row % seqlen) * half + columns)
    s = tl.load(sin + (row % seqlen) * half + columns)
    start = group * GROUP
    end = min(start + GROUP, n_heads)
    for k in range(start, end):
        first = row * stride + k * head_dim + columns
        second = first + half
        q1 = tl.load(Q + first)
        q2 = tl.load(Q + second)
        tl.store(Q + first, q1 * c - q2 * s)
        tl.store(Q + second, q2 * c + q1 * s)


@case
def heads_turned_in_groups(seed):
    q, cos, sin = numbers((6, 5 * 8), seed), numbers((3, 4), seed + 1), numbers((3, 4), seed + 2)
    h = q.view(6, 5, 2, 4)
    c, s = cos.repeat(2, 1)[:, None], sin.repeat(2, 1)[:, None]
    wanted = torch.stack([h[:, :, 0] * c - h[:, :, 1] * s, h[:, :, 1] * c + h[:, :, 0] * s], 2).reshape(6, 40)
    args = {
        "Q": q,
        "stride": 40,
        "cos": cos,
        "sin": sin,
        "seqlen": 3,
        "head_dim": 8,
        "n_heads": 5,
        "GROUP": 2,
    }
    return Case(rope_by_groups, (6, 3), args, {"Q": wanted})


@triton.jit
def states_of_chunks(
    k, v, h, T, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr
):
    """The state before each chunk is kept: block pointers are made anew in the loop."""
    i_k, i_v, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    NT = tl.cdiv(T, BT)
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    for i_t in range(NT):
        p_h = tl.make_block_ptr(
            h + (i_b * NT + i_t) * K * V, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0)
        )
        tl.store(p_h, b_h, boundary_check=(0, 1))
        p_k = tl.make_block_ptr(k + i_b * T * K, (K, T), (1, K), (i_k * BK, i_t * BT), (BK, BT), (0, 1))
        p_v = tl.make_block_ptr(v + i_b * T * V, (T, V), (V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_v = tl.load(p_v, boundary_check=(0, 1))
        b_h += tl.dot(b_k, b_v)


@case
def states_before_chunks(seed):
    k, v = numbers((4, 40, 32), seed), numbers((4, 40, 16), seed + 1)
    h = torch.zeros(4, 3, 32, 16)
    for chunk in range(1, 3):
        h[:, chunk] = k[:, : chunk * 16].transpose(1, 2) @ v[:, : chunk * 16]
    args = {
        "k": k,
        "v": v,
        "h": unset((4, 3, 32, 16)),
        "T": 40,
        "K": 32,
        "V": 16,
        "BT": 16,
        "BK": 16,
        "BV": 16,
    }
    return Case(states_of_chunks, (2, 1, 4), args, {"h": h}, gather={"k": 0})


@triton.jit
def pass_states(states, out, final, dA, nchunks, dim, BLOCK: tl.constexpr):
    """Pointers walk along the chunks."""
    pid_m, pid_b = tl.program_id(axis=0), tl.program_id(axis=1)
    states += pid_b * nchunks * dim
    out += pid_b * nchunks * dim
    dA += pid_b * nchunks
    offs = pid_m * BLOCK + tl.arange(0, BLOCK)
    states_ptrs = states + offs
    out_ptrs = out + offs
    s = tl.zeros((BLOCK,), dtype=tl.float32)
    tl.store(out_ptrs, s, mask=offs < dim)
    out_ptrs += dim
    for c in range(nchunks):
        new = tl.load(states_ptrs, mask=offs < dim, other=0.0).to(tl.float32)
        s = tl.load(dA).to(tl.float32) * s + new
        if c < nchunks - 1:
            tl.store(out_ptrs, s, mask=offs < dim)
        else:
            tl.store(final + pid_b * dim + offs, s, mask=offs < dim)
        states_ptrs += dim
        dA += 1
        out_ptrs += dim


@case
def states_passed_from_chunk_to_chunk(seed):
    states, dA = numbers((3, 4, 20), seed), numbers((3, 4), seed + 1)
    out, s = torch.zeros(3, 4, 20), torch.zeros(3, 20)
    for c in range(4):
        out[:, c] = s
        s = dA[:, c, None] * s + states[:, c]
    args = {
        "states": states,
        "out": unset((3, 4, 20)),
        "final": unset((3, 20)),
        "dA": dA,
        "nchunks": 4,
        "dim": 20,
    }
    return Case(pass_states, (3, 3), args | {"BLOCK": 8}, {"out": out, "final": s}, gather={"states": 0})


@triton.jit
def sum_of_partials(DW, FINAL_DW, M, N, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr):
    """The second stage of a layer norm's backward."""
    pid = tl.program_id(0)
    cols = pid * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    dw = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for i in range(0, M, BLOCK_SIZE_M):
        rows = i + tl.arange(0, BLOCK_SIZE_M)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        offs = rows[:, None] * N + cols[None, :]
        dw += tl.load(DW + offs, mask=mask, other=0.0)
    tl.store(FINAL_DW + cols, tl.sum(dw, axis=0), mask=cols < N)


@case
def partial_sums_of_weights(seed):
    dw = numbers((20, 30), seed)
    args = {"DW": dw, "FINAL_DW": unset((30,)), "M": 20, "N": 30, "BLOCK_SIZE_M": 8, "BLOCK_SIZE_N": 16}
    return Case(sum_of_partials, (2,), args, {"FINAL_DW": dw.sum(0)}, gather={"DW": 0})


@triton.jit
def square_of(X, Y, M, K, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """X Xᵀ: tiles above the diagonal are left to the programs below it, which store theirs twice."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    if pid_n > pid_m:
        return
    m = pid_m * BLOCK + tl.arange(0, BLOCK)
    n = pid_n * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        ks = k + tl.arange(0, BLOCK_K)
        a = tl.load(X + m[:, None] * K + ks[None, :], mask=(m[:, None] < M) & (ks[None, :] < K), other=0.0)
        b = tl.load(X + n[:, None] * K + ks[None, :], mask=(n[:, None] < M) & (ks[None, :] < K), other=0.0)
        acc += tl.dot(a, b.T)
    inside = (m[:, None] < M) & (n[None, :] < M)
    tl.store(Y + m[:, None] * M + n[None, :], acc, mask=inside)
    if pid_m != pid_n:
        tl.store(Y + n[:, None] * M + m[None, :], acc.T, mask=inside.T)


@case
def symmetric_product_with_mirrored_tiles(seed):
    x = numbers((40, 32), seed)
    args = {"X": x, "Y": unset((40, 40)), "M": 40, "K": 32, "BLOCK": 16, "BLOCK_K": 16}
    return Case(square_of, (3, 3), args, {"Y": x @ x.T}, gather={"X": 0})


@triton.jit
def blur(x_ptr, y_ptr, H, W, BH: tl.constexpr, BW: tl.constexpr, R: tl.constexpr):
    """Each pixel the sum of those around it; outside there is 0."""
    h = tl.program_id(0) * BH + tl.arange(0, BH)[:, None]
    w = tl.program_id(1) * BW + tl.arange(0, BW)[None, :]
    acc = tl.zeros((BH, BW), dtype=tl.float32)
    for dh in tl.static_range(-R, R + 1):
        for dw in tl.static_range(-R, R + 1):
            hh = h + dh
            ww = w + dw
            inside = (hh >= 0) & (hh < H) & (ww >= 0) & (ww < W)
            acc += tl.load(x_ptr + hh * W + ww, mask=inside, other=0.0)
    tl.store(y_ptr + h * W + w, acc, mask=(h < H) & (w < W))


@case
def sums_of_neighbours(seed):
    x = numbers((20, 24), seed)
    wanted = torch.nn.functional.avg_pool2d(x[None], 3, 1, 1, divisor_override=1)[0]
    args = {"x_ptr": x, "y_ptr": unset((20, 24)), "H": 20, "W": 24, "BH": 8, "BW": 8, "R": 1}
    return Case(blur, (3, 3), args, {"y_ptr": wanted}, gather={"x_ptr": 0})


@triton.jit
def divergence(P, stride_p, Q, stride_q, loss, V, eps, BLOCK_SIZE: tl.constexpr, REDUCE: tl.constexpr):
    """A row's sum over a vocabulary, in blocks; pointers are moved to the row first."""
    pid = tl.program_id(0).to(tl.int64)
    P += pid * stride_p
    Q += pid * stride_q
    offsets = tl.arange(0, BLOCK_SIZE)
    total = 0.0
    for i in range(0, V, BLOCK_SIZE):
        o = i + offsets
        mask = o < V
        q = tl.load(Q + o, mask=mask, other=float("-inf"))
        p = tl.load(P + o, mask=mask, other=0.0)
        part = p * (tl.log(tl.maximum(p, eps)) - q)
        if REDUCE == 0:
            tl.store(loss + pid * V + o, part, mask=mask)
        else:
            total += tl.sum(tl.where(mask, part, 0.0), axis=0)
    if REDUCE != 0:
        if REDUCE == 2:
            total /= V
        tl.store(loss + pid, total)


def divergence_case(seed, reduce):
    p, q = normal((6, 40), seed).softmax(1), normal((6, 40), seed + 1).log_softmax(1)
    wanted = p * (p.log() - q)
    wanted = wanted if reduce == 0 else wanted.sum(1)
    args = {"P": p, "stride_p": 40, "Q": q, "stride_q": 40, "loss": unset(tuple(wanted.shape)), "V": 40}
    args |= {"eps": 1e-10, "BLOCK_SIZE": 16, "REDUCE": reduce}
    return Case(divergence, (6,), args, {"loss": wanted}, gather={"P": 0}, tolerance=1e-5)


@case
def divergence_of_elements(seed):
    return divergence_case(seed, 0)


@case
def divergence_of_rows(seed):
    return divergence_case(seed, 1)


@triton.jit
def chunk_scan(
    cb, x, out, batch, nchunks, chunk, heads, hdim, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Batches and chunks share an axis of the grid, tiles of rows and columns another."""
    pid_bc = tl.program_id(axis=1)
    pid_c = pid_bc // batch
    pid_b = pid_bc - pid_c * batch
    pid_h = tl.program_id(axis=2)
    num_pid_n = tl.cdiv(hdim, BN)
    pid_m = tl.program_id(axis=0) // num_pid_n
    pid_n = tl.program_id(axis=0) % num_pid_n
    cb += (pid_b * nchunks + pid_c) * chunk * chunk
    x += ((pid_b * nchunks + pid_c) * chunk * heads + pid_h) * hdim
    out += ((pid_b * nchunks + pid_c) * chunk * heads + pid_h) * hdim
    m = pid_m * BM + tl.arange(0, BM)
    n = pid_n * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    cb_ptrs = cb + (m[:, None] * chunk + ks[None, :])
    x_ptrs = x + (ks[:, None] * heads * hdim + n[None, :])
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    K_MAX = min((pid_m + 1) * BM, chunk)
    for k in range(0, K_MAX, BK):
        a = tl.load(cb_ptrs, mask=(m[:, None] < chunk) & (ks[None, :] < chunk - k), other=0.0)
        a = tl.where(m[:, None] >= k + ks[None, :], a, 0.0)
        b = tl.load(x_ptrs, mask=(ks[:, None] < chunk - k) & (n[None, :] < hdim), other=0.0)
        acc += tl.dot(a, b)
        cb_ptrs += BK
        x_ptrs += BK * heads * hdim
    tl.store(
        out + m[:, None] * heads * hdim + n[None, :], acc, mask=(m[:, None] < chunk) & (n[None, :] < hdim)
    )


@case
def chunks_of_a_state_space_model(seed):
    b, c, t, h, d = 2, 3, 32, 2, 24
    cb, x = numbers((b, c, t, t), seed), numbers((b, c, t, h, d), seed + 1)
    wanted = torch.einsum("bcts,bcshd->bcthd", cb.tril(), x)
    args = {"cb": cb, "x": x, "out": unset((b, c, t, h, d)), "batch": b, "nchunks": c, "chunk": t, "heads": h}
    args |= {"hdim": d, "BM": 16, "BN": 16, "BK": 16}
    return Case(chunk_scan, (4, 6, 2), args, {"out": wanted}, gather={"x": 0})


@triton.jit
def nearest_of(code, x_ptr, q_ptr, scale_ptr, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """Each number becomes the place of the next smaller one in a table, found by halving."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    scale = tl.max(tl.abs(x), axis=0)
    tl.store(scale_ptr + block, scale)
    low = tl.zeros((BLOCK,), dtype=tl.int32)
    for step in tl.static_range(STEPS):
        middle = low + (1 << (STEPS - 1 - step))
        low = tl.where(x >= tl.load(code + middle) * scale, middle, low)
    tl.store(q_ptr + at, low.to(tl.uint8), mask=at < n)


@triton.jit
def nearest_of_stated(code, x_ptr, q_ptr, scale_ptr, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """The same; all of the table may be read."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    scale = tl.max(tl.abs(x), axis=0)
    tl.store(scale_ptr + block, scale)
    low = tl.zeros((BLOCK,), dtype=tl.int32)
    for step in tl.static_range(STEPS):
        middle = low + (1 << (STEPS - 1 - step))
        # @sy.reads code[0:16]
        low = tl.where(x >= tl.load(code + middle) * scale, middle, low)
    tl.store(q_ptr + at, low.to(tl.uint8), mask=at < n)


def table_case(seed, kernel, **expected):
    code = torch.arange(16, dtype=torch.float32) / 8 - 1
    x = normal((5, 32), seed)
    scale = x.abs().amax(1)
    wanted = (torch.searchsorted(code, x / scale[:, None], right=True) - 1).clamp(0).to(torch.uint8)
    args = {"code": code, "x_ptr": x.flatten(), "q_ptr": torch.zeros(160, dtype=torch.uint8)}
    args |= {"scale_ptr": unset((5,)), "n": 160, "BLOCK": 32, "STEPS": 4}
    return Case(kernel, (5,), args, {"scale_ptr": scale, "q_ptr": wanted.flatten()}, **expected)


@case
def numbers_found_in_a_table(seed):
    return table_case(
        seed,
        nearest_of,
        refused="the address `code + middle` cannot be known before the kernel runs: it depends on data loaded by "
        "`tl.load(x_ptr + at, mask=at < n, other=0.0)` (line 322); state what a tile touches with "
        "`# @sy.reads code[…]`",
    )


@case
def numbers_found_in_a_table_with_directives(seed):
    return table_case(
        seed, nearest_of_stated, gather={"x_ptr": 0}, inexact="not every number of the table is looked at"
    )


@triton.jit
def enlarged(x_ptr, y_ptr, H, W, S: tl.constexpr, BLOCK: tl.constexpr):
    """Nearest neighbour: indices of a flat output are taken apart and divided."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    width = W * S
    h = at // width
    w = at % width
    inside = at < H * S * width
    tl.store(y_ptr + at, tl.load(x_ptr + h // S * W + w // S, mask=inside), mask=inside)


@case
def pixels_made_larger(seed):
    x = numbers((6, 10), seed)
    wanted = x.repeat_interleave(2, 0).repeat_interleave(2, 1)
    args = {"x_ptr": x, "y_ptr": unset((12, 20)), "H": 6, "W": 10, "S": 2, "BLOCK": 16}
    return Case(enlarged, (15,), args, {"y_ptr": wanted}, gather={"x_ptr": 0})


@triton.jit
def hadamard(x_ptr, y_ptr, rows, N: tl.constexpr, LOG: tl.constexpr, BLOCK: tl.constexpr):
    """Sums and differences of halves, by reshaping."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at, mask=row[:, None] < rows, other=0.0)
    for _ in tl.static_range(LOG):
        a, b = tl.split(tl.reshape(x, (BLOCK, N // 2, 2)))
        x = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (BLOCK, N))
    tl.store(y_ptr + at, x, mask=row[:, None] < rows)


@case
def transform_of_rows(seed):
    x = numbers((10, 8), seed)
    one = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    args = {"x_ptr": x, "y_ptr": unset((10, 8)), "rows": 10, "N": 8, "LOG": 3, "BLOCK": 4}
    return Case(
        hadamard, (3,), args, {"y_ptr": x @ torch.kron(one, torch.kron(one, one))}, gather={"x_ptr": 0}
    )


@triton.jit
def dao_forward(
    Q, K, V, Out, Lse, scale, stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, nheads, seqlen_q,
    seqlen_k, seqlen_q_rounded, headdim, IS_CAUSAL: tl.constexpr, BLOCK_HEADDIM: tl.constexpr, EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0)
    off_hb = tl.program_id(1)
    off_b = off_hb // nheads
    off_h = off_hb % nheads
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_HEADDIM)
    q_ptrs = Q + off_b * stride_qb + off_h * stride_qh + (offs_m[:, None] * stride_qm + offs_d[None, :])
    k_ptrs = K + off_b * stride_kb + off_h * stride_kh + (offs_n[:, None] * stride_kn + offs_d[None, :])
    v_ptrs = V + off_b * stride_kb + off_h * stride_kh + (offs_n[:, None] * stride_kn + offs_d[None, :])
    lse_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    acc_o = tl.zeros([BLOCK_M, BLOCK_HEADDIM], dtype=tl.float32)
    if EVEN_M & EVEN_N:
        q = tl.load(q_ptrs)
    else:
        q = tl.load(q_ptrs, mask=offs_m[:, None] < seqlen_q, other=0.0)
    end_n = seqlen_k if not IS_CAUSAL else tl.minimum((start_m + 1) * BLOCK_M, seqlen_k)
    for start_n in range(0, end_n, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        if EVEN_N & EVEN_M:
            k = tl.load(k_ptrs + start_n * stride_kn)
        else:
            k = tl.load(k_ptrs + start_n * stride_kn, mask=(start_n + offs_n)[:, None] < seqlen_k, other=0.0)
        qk = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        qk += tl.dot(q, tl.trans(k))
        if not EVEN_N:
            qk += tl.where((start_n + offs_n)[None, :] < seqlen_k, 0, float("-inf"))
        if IS_CAUSAL:
            qk += tl.where(offs_m[:, None] >= (start_n + offs_n)[None, :], 0, float("-inf"))
        m_ij = tl.maximum(tl.max(qk, 1) * scale, lse_i)
        p = tl.exp(qk * scale - m_ij[:, None])
        l_ij = tl.sum(p, 1)
        acc_o = acc_o * tl.exp(m_i - m_ij)[:, None]
        if EVEN_N & EVEN_M:
            v = tl.load(v_ptrs + start_n * stride_kn)
        else:
            v = tl.load(v_ptrs + start_n * stride_kn, mask=(start_n + offs_n)[:, None] < seqlen_k, other=0.0)
        acc_o += tl.dot(p.to(v.dtype), v)
        m_i = m_ij
        lse_i = m_ij + tl.log(tl.exp(lse_i - m_ij) + l_ij)
    acc_o = acc_o * tl.exp(m_i - lse_i)[:, None]
    start_m = tl.program_id(0)
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    tl.store(Lse + off_hb * seqlen_q_rounded + offs_m, lse_i)
    out_ptrs = Out + off_b * stride_qb + off_h * stride_qh + (offs_m[:, None] * stride_qm + offs_d[None, :])
    if EVEN_M:
        tl.store(out_ptrs, acc_o)
    else:
        tl.store(out_ptrs, acc_o, mask=offs_m[:, None] < seqlen_q)


def dao_case(seed, causal, s):
    b, h, d = 2, 2, 16
    q, k, v = (normal((b, s, h, d), seed + i) for i in range(3))
    scores = torch.einsum("bmhd,bnhd->bhmn", q, k) * 0.25
    if causal:
        scores = scores.masked_fill(torch.ones(s, s).triu(1).bool(), float("-inf"))
    rounded = (s + 15) // 16 * 16
    args = {
        "Q": q,
        "K": k,
        "V": v,
        "Out": unset((b, s, h, d)),
        "Lse": torch.zeros(b * h, rounded),
        "scale": 0.25,
    }
    args |= {
        f"stride_{t}{a}": n
        for t in "qk"
        for a, n in (("b", s * h * d), ("h", d), ("m" if t == "q" else "n", h * d))
    }
    args |= {
        "nheads": h,
        "seqlen_q": s,
        "seqlen_k": s,
        "seqlen_q_rounded": rounded,
        "headdim": d,
        "IS_CAUSAL": causal,
    }
    args |= {"BLOCK_HEADDIM": d, "EVEN_M": s % 16 == 0, "EVEN_N": s % 16 == 0, "BLOCK_M": 16, "BLOCK_N": 16}
    wanted = torch.einsum("bhmn,bnhd->bmhd", scores.softmax(-1), v)
    return Case(dao_forward, (rounded // 16, b * h), args, {"Out": wanted}, gather={"K": 0}, tolerance=1e-4)


@case
def attention_of_rows_before_heads(seed):
    return dao_case(seed, False, 40)


@case
def causal_attention_of_rows_before_heads(seed):
    return dao_case(seed, True, 48)
