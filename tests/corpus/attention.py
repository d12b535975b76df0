"""Fused attention: forward in several styles, and the backward passes. Tensors are [batch, heads, length, head dim]."""

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .cases import Case, case, cdiv, normal, unset
from .helpers import LOG2E


@triton.jit
def inner(
    acc, l_i, m_i, q, k_ptr, v_ptr, start_m, scale, N_CTX, offs_m, offs_n,
    HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """The blocks of keys of one stage: 1 below the diagonal, 2 on it, 3 all."""
    if STAGE == 1:
        lo, hi = 0, start_m * BM
    elif STAGE == 2:
        lo, hi = start_m * BM, (start_m + 1) * BM
        lo = tl.multiple_of(lo, BM)
    else:
        lo, hi = 0, N_CTX
    offs_d = tl.arange(0, HEAD)
    for start_n in range(lo, hi, BN):
        start_n = tl.multiple_of(start_n, BN)
        cols = start_n + offs_n
        inside = cols < N_CTX
        k = tl.load(k_ptr + cols[None, :] * HEAD + offs_d[:, None], mask=inside[None, :], other=0.0)
        qk = tl.dot(q, k, input_precision="ieee") * scale
        if STAGE == 2:
            qk = tl.where((offs_m[:, None] >= cols[None, :]) & inside[None, :], qk, -1.0e6)
        else:
            qk = tl.where(inside[None, :], qk, -1.0e6)
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.math.exp2(qk - m_ij[:, None])
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(v_ptr + cols[:, None] * HEAD + offs_d[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m_i = m_ij
    return acc, l_i, m_i


@triton.jit
def forward(
    Q, K, V, Out, Lse, sm_scale, H, N_CTX,
    HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Pointers; the loop over keys is in a helper that is called once for each stage."""
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    off_z = off_hz // H
    off_h = off_hz % H
    base = (off_z * H + off_h).to(tl.int64) * N_CTX * HEAD
    offs_m = start_m * BM + tl.arange(0, BM)
    offs_n = tl.arange(0, BN)
    offs_d = tl.arange(0, HEAD)
    rows = offs_m < N_CTX
    q = tl.load(Q + base + offs_m[:, None] * HEAD + offs_d[None, :], mask=rows[:, None], other=0.0)
    m_i = tl.zeros([BM], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BM], dtype=tl.float32) + 1.0
    acc = tl.zeros([BM, HEAD], dtype=tl.float32)
    scale = sm_scale * LOG2E
    l_i = l_i - 1.0
    if CAUSAL:
        acc, l_i, m_i = inner(
            acc, l_i, m_i, q, K + base, V + base, start_m, scale, N_CTX, offs_m, offs_n, HEAD, BM, BN, 1
        )
        acc, l_i, m_i = inner(
            acc, l_i, m_i, q, K + base, V + base, start_m, scale, N_CTX, offs_m, offs_n, HEAD, BM, BN, 2
        )
    else:
        acc, l_i, m_i = inner(
            acc, l_i, m_i, q, K + base, V + base, start_m, scale, N_CTX, offs_m, offs_n, HEAD, BM, BN, 3
        )
    tl.store(Lse + off_hz * N_CTX + offs_m, m_i + tl.math.log2(l_i), mask=rows)
    tl.store(Out + base + offs_m[:, None] * HEAD + offs_d[None, :], acc / l_i[:, None], mask=rows[:, None])


def reference(q, k, v, causal, scale):
    """(softmax of the scaled scores, the scores' log-sum-exp in base 2)."""
    s = q @ k.transpose(-1, -2) * scale
    if causal:
        n = s.shape[-1]
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
    return s.softmax(-1), s.logsumexp(-1) / math.log(2)


def forward_case(seed, causal, n=40):
    z, h, d = 1, 2, 16
    q, k, v = (normal((z, h, n, d), seed + s) for s in (0, 40, 80))
    p, lse = reference(q, k, v, causal, 0.25)
    args = {
        "Q": q, "K": k, "V": v, "Out": unset((z, h, n, d)), "Lse": unset((z, h, n)), "sm_scale": 0.25, "H": h,
        "N_CTX": n, "HEAD": d, "BM": 16, "BN": 16, "CAUSAL": causal,
    }  # fmt: skip
    return Case(
        forward, (cdiv(n, 16), z * h), args, {"Out": p @ v, "Lse": lse}, tolerance=1e-5, scatter={"Out": 2},
        gather={"K": 2}, compile={"BM": 64, "BN": 32, "HEAD": 64},
    )  # fmt: skip


@case
def forward_of_all_keys(seed):
    made = forward_case(seed, causal=False)
    made.axes, made.reduction = (2, 3), "start_n"
    return made


@case
def forward_causal_in_two_stages(seed):
    return forward_case(seed, causal=True)


@triton.jit
def with_block_pointers(
    Q, K, V, Out, sm_scale, stride_z, stride_h, stride_m, N_CTX,
    HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Block pointers, K read as its transpose; the loop is in the kernel."""
    start_m = tl.program_id(0)
    off_h = tl.program_id(1)
    off_z = tl.program_id(2)
    offset = off_z * stride_z + off_h * stride_h
    q_block = tl.make_block_ptr(
        base=Q + offset, shape=(N_CTX, HEAD), strides=(stride_m, 1), offsets=(start_m * BM, 0),
        block_shape=(BM, HEAD), order=(1, 0),
    )  # fmt: skip
    k_block = tl.make_block_ptr(
        base=K + offset, shape=(HEAD, N_CTX), strides=(1, stride_m), offsets=(0, 0), block_shape=(HEAD, BN),
        order=(0, 1),
    )  # fmt: skip
    v_block = tl.make_block_ptr(
        base=V + offset, shape=(N_CTX, HEAD), strides=(stride_m, 1), offsets=(0, 0), block_shape=(BN, HEAD),
        order=(1, 0),
    )  # fmt: skip
    o_block = tl.make_block_ptr(
        base=Out + offset, shape=(N_CTX, HEAD), strides=(stride_m, 1), offsets=(start_m * BM, 0),
        block_shape=(BM, HEAD), order=(1, 0),
    )  # fmt: skip
    q = tl.load(q_block, boundary_check=(0,), padding_option="zero")
    m_i = tl.full([BM], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32)
    acc = tl.zeros([BM, HEAD], dtype=tl.float32)
    for step in range(tl.cdiv(N_CTX, BN)):
        k = tl.load(k_block, boundary_check=(1,), padding_option="zero")
        qk = tl.dot(q, k, input_precision="ieee") * (sm_scale * 1.44269504)
        qk += tl.where((step * BN + tl.arange(0, BN))[None, :] < N_CTX, 0, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(qk - m_new[:, None])
        v = tl.load(v_block, boundary_check=(0,), padding_option="zero")
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
        k_block = tl.advance(k_block, (0, BN))
        v_block = tl.advance(v_block, (BN, 0))
    tl.store(o_block, (acc / l_i[:, None]).to(Out.type.element_ty), boundary_check=(0,))


@case
def forward_by_block_pointers_on_three_axes(seed):
    z, h, n, d = 2, 2, 24, 16
    q, k, v = (normal((z, h, n, d), seed + s) for s in (0, 40, 80))
    p, _ = reference(q, k, v, False, 0.25)
    args = {
        "Q": q, "K": k, "V": v, "Out": unset((z, h, n, d)), "sm_scale": 0.25, "stride_z": h * n * d, "stride_h": n * d,
        "stride_m": d, "N_CTX": n, "HEAD": d, "BM": 16, "BN": 16,
    }  # fmt: skip
    return Case(
        with_block_pointers, (2, h, z), args, {"Out": p @ v}, tolerance=1e-5, axes=(2, 2, 2),
        reduction="step", gather={"V": 2}, scatter={"Out": 2}, compile={"BM": 64, "BN": 32, "HEAD": 64},
    )  # fmt: skip


@triton.jit
def with_descriptors(
    q_desc, k_desc, v_desc, o_desc, sm_scale, Z, H, N_CTX,
    HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Persistent, with host-made descriptors of [batch · heads · length, head dim]."""
    n_tile = tl.cdiv(N_CTX, BM)
    for tile in tl.range(tl.program_id(0), n_tile * Z * H, PROGRAMS):
        pid = tile % n_tile
        off_hz = tile // n_tile
        row = off_hz * N_CTX
        q = q_desc.load([row + pid * BM, 0])
        m_i = tl.full([BM], float("-inf"), dtype=tl.float32)
        l_i = tl.zeros([BM], dtype=tl.float32)
        acc = tl.zeros([BM, HEAD], dtype=tl.float32)
        for start_n in tl.range(0, N_CTX, BN):
            k = k_desc.load([row + start_n, 0]).T
            qk = tl.dot(q, k, input_precision="ieee") * (sm_scale * 1.44269504)
            m_new = tl.maximum(m_i, tl.max(qk, 1))
            alpha = tl.exp2(m_i - m_new)
            p = tl.exp2(qk - m_new[:, None])
            v = v_desc.load([row + start_n, 0])
            acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
            l_i = l_i * alpha + tl.sum(p, 1)
            m_i = m_new
        o_desc.store([row + pid * BM, 0], (acc / l_i[:, None]).to(o_desc.dtype))


@case
def persistent_forward_by_host_descriptors(seed):
    z, h, n, d = 1, 3, 32, 16
    q, k, v = (normal((z, h, n, d), seed + s) for s in (0, 40, 80))
    p, _ = reference(q, k, v, False, 0.25)
    out = unset((z * h * n, d))
    flat = {"q_desc": q, "k_desc": k, "v_desc": v}
    args = {name: TensorDescriptor.from_tensor(t.reshape(-1, d), [16, d]) for name, t in flat.items()}
    args |= {
        "o_desc": TensorDescriptor.from_tensor(out, [16, d]), "sm_scale": 0.25, "Z": z, "H": h, "N_CTX": n, "HEAD": d,
        "BM": 16, "BN": 16, "PROGRAMS": 4,
    }  # fmt: skip
    return Case(
        with_descriptors, (4,), args, {"o_desc": (p @ v).reshape(-1, d)}, tolerance=1e-5, axes={"M": 6},
        reduction="start_n", gather={"k_desc": 0}, scatter={"o_desc": 0}, compile={"PROGRAMS": 132},
    )  # fmt: skip


@triton.jit
def backward_delta(Out, DO, Delta, N_CTX, BM: tl.constexpr, HEAD: tl.constexpr):
    """The sum over a row of o · do."""
    off_m = tl.program_id(0) * BM + tl.arange(0, BM)
    off_hz = tl.program_id(1)
    off_d = tl.arange(0, HEAD)
    mask = (off_m < N_CTX)[:, None]
    at = off_hz * HEAD * N_CTX + off_m[:, None] * HEAD + off_d[None, :]
    o = tl.load(Out + at, mask=mask, other=0.0)
    do = tl.load(DO + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(Delta + off_hz * N_CTX + off_m, tl.sum(o * do, axis=1), mask=off_m < N_CTX)


@case
def backward_preprocess(seed):
    z, h, n, d = 1, 3, 24, 16
    o, do = normal((z, h, n, d), seed), normal((z, h, n, d), seed + 40)
    args = {"Out": o, "DO": do, "Delta": unset((z, h, n)), "N_CTX": n, "BM": 16, "HEAD": d}
    return Case(
        backward_delta, (2, z * h), args, {"Delta": (o * do).sum(-1)}, tolerance=1e-5, gather={"DO": 2},
        scatter={"Delta": 2}, compile={"BM": 64, "HEAD": 64},
    )  # fmt: skip


@triton.jit
def backward_dkdv(
    Q, K, V, DO, DK, DV, Lse, Delta, sm_scale, N_CTX,
    BM: tl.constexpr, BN: tl.constexpr, HEAD: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """A block of keys a program; the loop runs over blocks of queries, from the diagonal on."""
    start_n = tl.program_id(0) * BN
    base = tl.program_id(1) * N_CTX
    offs_n = start_n + tl.arange(0, BN)
    offs_d = tl.arange(0, HEAD)
    at_n = base * HEAD + offs_n[:, None] * HEAD + offs_d[None, :]
    in_n = (offs_n < N_CTX)[:, None]
    k = tl.load(K + at_n, mask=in_n, other=0.0)
    v = tl.load(V + at_n, mask=in_n, other=0.0)
    dv = tl.zeros([BN, HEAD], dtype=tl.float32)
    dk = tl.zeros([BN, HEAD], dtype=tl.float32)
    first = (start_n // BM) * BM if CAUSAL else 0
    for start_m in range(first, N_CTX, BM):
        offs_m = start_m + tl.arange(0, BM)
        in_m = offs_m < N_CTX
        q = tl.load(Q + base * HEAD + offs_m[:, None] * HEAD + offs_d[None, :], mask=in_m[:, None], other=0.0)
        m = tl.load(Lse + base + offs_m, mask=in_m, other=float("inf"))
        p = tl.math.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * (sm_scale * LOG2E) - m[:, None])
        if CAUSAL:
            p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)
        do = tl.load(
            DO + base * HEAD + offs_m[:, None] * HEAD + offs_d[None, :], mask=in_m[:, None], other=0.0
        )
        dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
        delta = tl.load(Delta + base + offs_m, mask=in_m, other=0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    tl.store(DV + at_n, dv, mask=in_n)
    tl.store(DK + at_n, dk * sm_scale, mask=in_n)


@triton.jit
def backward_dq(
    Q, K, V, DO, DQ, Lse, Delta, sm_scale, N_CTX,
    BM: tl.constexpr, BN: tl.constexpr, HEAD: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """A block of queries a program; the loop runs over blocks of keys, up to the diagonal."""
    start_m = tl.program_id(0) * BM
    base = tl.program_id(1) * N_CTX
    offs_m = start_m + tl.arange(0, BM)
    offs_d = tl.arange(0, HEAD)
    at_m = base * HEAD + offs_m[:, None] * HEAD + offs_d[None, :]
    in_m = offs_m < N_CTX
    q = tl.load(Q + at_m, mask=in_m[:, None], other=0.0)
    do = tl.load(DO + at_m, mask=in_m[:, None], other=0.0)
    m = tl.load(Lse + base + offs_m, mask=in_m, other=float("inf"))
    delta = tl.load(Delta + base + offs_m, mask=in_m, other=0.0)
    dq = tl.zeros([BM, HEAD], dtype=tl.float32)
    last = tl.minimum(start_m + BM, N_CTX) if CAUSAL else N_CTX
    for start_n in range(0, last, BN):
        offs_n = start_n + tl.arange(0, BN)
        at_n = base * HEAD + offs_n[:, None] * HEAD + offs_d[None, :]
        in_n = (offs_n < N_CTX)[:, None]
        k = tl.load(K + at_n, mask=in_n, other=0.0)
        v = tl.load(V + at_n, mask=in_n, other=0.0)
        p = tl.math.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * (sm_scale * LOG2E) - m[:, None])
        if CAUSAL:
            p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    tl.store(DQ + at_m, dq * sm_scale, mask=in_m[:, None])


def backward_case(seed, kernel, outputs, **more):
    z, h, n, d = 1, 2, 40, 16
    q, k, v, do = (normal((z, h, n, d), seed + s) for s in (0, 40, 80, 120))
    leaves = {
        "DQ": q.clone().requires_grad_(),
        "DK": k.clone().requires_grad_(),
        "DV": v.clone().requires_grad_(),
    }
    p, lse = reference(*leaves.values(), True, 0.25)
    o = p @ leaves["DV"]
    o.backward(do)
    args = {
        "Q": q, "K": k, "V": v, "DO": do, "Lse": lse.detach(), "Delta": (o * do).sum(-1).detach(), "sm_scale": 0.25,
        "N_CTX": n, "BM": 16, "BN": 16, "HEAD": d, "CAUSAL": True,
    }  # fmt: skip
    args |= {name: unset((z, h, n, d)) for name in outputs}
    return Case(
        kernel, (cdiv(n, 16), z * h), args, {name: leaves[name].grad for name in outputs}, tolerance=1e-4,
        compile={"BM": 32, "BN": 32, "HEAD": 64}, **more,
    )  # fmt: skip


@case
def backward_of_keys_and_values(seed):
    return backward_case(seed, backward_dkdv, ("DK", "DV"), gather={"DO": 2}, scatter={"DK": 2})


@case
def backward_of_queries(seed):
    return backward_case(seed, backward_dq, ("DQ",), gather={"K": 2}, scatter={"DQ": 2})
