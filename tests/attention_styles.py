"""Attention kernels for one GPU in the styles that are found in public, none of which knows of ranks. Tensors are [B, H, S, D]
(K and V may have fewer heads), contiguous. A style: the kernel, its grid and arguments for given tensors, and how its
parameters are called."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from syncopate.device.versions import triton_before
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def by_block_pointers(
    Q, K, V, Out, sm_scale, stride_z, stride_h, stride_m, Z, H, N_CTX,
    HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Block pointers that are advanced round by round; all keys."""
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    offset = (off_hz // H).to(tl.int64) * stride_z + (off_hz % H).to(tl.int64) * stride_h
    q_block = tl.make_block_ptr(
        Q + offset, (N_CTX, HEAD), (stride_m, 1), (start_m * BM, 0), (BM, HEAD), (1, 0)
    )
    o_block = tl.make_block_ptr(
        Out + offset, (N_CTX, HEAD), (stride_m, 1), (start_m * BM, 0), (BM, HEAD), (1, 0)
    )
    k_block = tl.make_block_ptr(K + offset, (HEAD, N_CTX), (1, stride_m), (0, 0), (HEAD, BN), (0, 1))
    v_block = tl.make_block_ptr(V + offset, (N_CTX, HEAD), (stride_m, 1), (0, 0), (BN, HEAD), (1, 0))
    q = tl.load(q_block)
    m_i = tl.full([BM], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32)
    acc = tl.zeros([BM, HEAD], dtype=tl.float32)
    for start_n in range(0, N_CTX, BN):
        start_n = tl.multiple_of(start_n, BN)
        k = tl.load(k_block)
        qk = tl.dot(q, k) * sm_scale
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        v = tl.load(v_block)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
        k_block = tl.advance(k_block, (0, BN))
        v_block = tl.advance(v_block, (BN, 0))
    tl.store(o_block, (acc / l_i[:, None]).to(Out.type.element_ty))


@triton.jit
def by_pointers(
    Q, K, V, Out, sm_scale, H, N_CTX, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Pointers and masks; causal, one loop that ends at the diagonal."""
    start_m = tl.program_id(0)
    base = tl.program_id(1) * N_CTX * HEAD
    offs_m = start_m * BM + tl.arange(0, BM)
    offs_d = tl.arange(0, HEAD)
    q = tl.load(Q + base + offs_m[:, None] * HEAD + offs_d[None, :], mask=offs_m[:, None] < N_CTX, other=0.0)
    m_i = tl.full([BM], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32)
    acc = tl.zeros([BM, HEAD], dtype=tl.float32)
    last = tl.minimum((start_m + 1) * BM, N_CTX)
    for start_n in range(0, last, BN):
        cols = start_n + tl.arange(0, BN)
        at = base + cols[:, None] * HEAD + offs_d[None, :]
        k = tl.load(K + at, mask=cols[:, None] < N_CTX, other=0.0)
        qk = tl.dot(q, tl.trans(k)) * sm_scale
        qk = tl.where(offs_m[:, None] >= cols[None, :], qk, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        v = tl.load(V + at, mask=cols[:, None] < N_CTX, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    out = (acc / l_i[:, None]).to(Out.type.element_ty)
    tl.store(Out + base + offs_m[:, None] * HEAD + offs_d[None, :], out, mask=offs_m[:, None] < N_CTX)


@triton.jit
def persistent_by_host_descriptors(
    q_desc, k_desc, v_desc, o_desc, sm_scale, Z, H, N_CTX,
    HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Persistent, with descriptors of [B, H, S, D] that the host makes; causal."""
    n_tile = tl.cdiv(N_CTX, BM)
    for tile in range(tl.program_id(0), n_tile * Z * H, PROGRAMS):
        start_m = tile % n_tile
        z = tile // n_tile // H
        h = tile // n_tile % H
        q = q_desc.load([z, h, start_m * BM, 0]).reshape(BM, HEAD)
        offs_m = start_m * BM + tl.arange(0, BM)
        m_i = tl.full([BM], float("-inf"), dtype=tl.float32)
        l_i = tl.zeros([BM], dtype=tl.float32)
        acc = tl.zeros([BM, HEAD], dtype=tl.float32)
        for start_n in tl.range(0, (start_m + 1) * BM, BN):
            k = k_desc.load([z, h, start_n, 0]).reshape(BN, HEAD)
            qk = tl.dot(q, k.T) * sm_scale
            qk = tl.where(offs_m[:, None] >= (start_n + tl.arange(0, BN))[None, :], qk, float("-inf"))
            m_new = tl.maximum(m_i, tl.max(qk, 1))
            p = tl.exp(qk - m_new[:, None])
            alpha = tl.exp(m_i - m_new)
            v = v_desc.load([z, h, start_n, 0]).reshape(BN, HEAD)
            acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
            l_i = l_i * alpha + tl.sum(p, 1)
            m_i = m_new
        o_desc.store([z, h, start_m * BM, 0], (acc / l_i[:, None]).to(o_desc.dtype).reshape(1, 1, BM, HEAD))


@triton.jit
def by_device_descriptors(
    Q, K, V, Out, sm_scale, Z, H, N_CTX, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Descriptors of [B · H · S, D] that the kernel makes; all keys, in any order."""
    rows = Z * H * N_CTX
    q_desc = tl.make_tensor_descriptor(Q, [rows, HEAD], [HEAD, 1], [BM, HEAD])
    k_desc = tl.make_tensor_descriptor(K, [rows, HEAD], [HEAD, 1], [BN, HEAD])
    v_desc = tl.make_tensor_descriptor(V, [rows, HEAD], [HEAD, 1], [BN, HEAD])
    o_desc = tl.make_tensor_descriptor(Out, [rows, HEAD], [HEAD, 1], [BM, HEAD])
    row = tl.program_id(1) * N_CTX
    first = row + tl.program_id(0) * BM
    q = q_desc.load([first, 0])
    m_i = tl.full([BM], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32)
    acc = tl.zeros([BM, HEAD], dtype=tl.float32)
    for step in range(tl.cdiv(N_CTX, BN)):  # @sy.any_order
        k = k_desc.load([row + step * BN, 0])
        qk = tl.dot(q, k.T) * sm_scale
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        v = v_desc.load([row + step * BN, 0])
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    o_desc.store([first, 0], (acc / l_i[:, None]).to(Out.type.element_ty))


@triton.jit
def inner(
    acc, l_i, m_i, q, K, V, start_m, sm_scale, N_CTX, offs_m, offs_n,
    HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """The blocks of keys of one stage: 1 below the diagonal, 2 on it."""
    if STAGE == 1:
        lo, hi = 0, start_m * BM
    else:
        lo, hi = start_m * BM, (start_m + 1) * BM
        lo = tl.multiple_of(lo, BM)
    offs_d = tl.arange(0, HEAD)
    for start_n in tl.range(lo, hi, BN):
        start_n = tl.multiple_of(start_n, BN)
        at = (start_n + offs_n)[:, None] * HEAD + offs_d[None, :]
        k = tl.load(K + at)
        qk = tl.dot(q, tl.trans(k)) * sm_scale
        if STAGE == 2:
            qk = tl.where(offs_m[:, None] >= (start_n + offs_n)[None, :], qk, float("-inf"))
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp(qk - m_ij[:, None])
        alpha = tl.exp(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(V + at)
        acc = tl.dot(p.to(v.dtype), v, acc)
        m_i = m_ij
    return acc, l_i, m_i


@triton.jit
def in_two_stages(
    Q, K, V, Out, Lse, sm_scale, H, N_CTX, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Causal: a helper for the blocks below the diagonal, and once more for those on it; with the log-sum-exp."""
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    base = off_hz * N_CTX * HEAD
    offs_m = start_m * BM + tl.arange(0, BM)
    offs_n = tl.arange(0, BN)
    offs_d = tl.arange(0, HEAD)
    q = tl.load(Q + base + offs_m[:, None] * HEAD + offs_d[None, :])
    m_i = tl.zeros([BM], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BM], dtype=tl.float32)
    acc = tl.zeros([BM, HEAD], dtype=tl.float32)
    acc, l_i, m_i = inner(
        acc, l_i, m_i, q, K + base, V + base, start_m, sm_scale, N_CTX, offs_m, offs_n, HEAD, BM, BN, 1
    )
    acc, l_i, m_i = inner(
        acc, l_i, m_i, q, K + base, V + base, start_m, sm_scale, N_CTX, offs_m, offs_n, HEAD, BM, BN, 2
    )
    tl.store(Lse + off_hz * N_CTX + offs_m, m_i + tl.log(l_i))
    tl.store(
        Out + base + offs_m[:, None] * HEAD + offs_d[None, :], (acc / l_i[:, None]).to(Out.type.element_ty)
    )


@triton.jit
def grouped(
    Q, K, V, Out, sm_scale, H, HKV, N_CTX,
    stride_qz, stride_qh, stride_kz, stride_kh, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Several heads of Q share one of K and V, found by division; a grid of three axes; causal, full and diagonal blocks in a
    loop each, in any order."""
    start_m = tl.program_id(2)
    head = tl.program_id(1)
    z = tl.program_id(0)
    q_base = z * stride_qz + head * stride_qh
    kv_base = z * stride_kz + head // (H // HKV) * stride_kh
    offs_m = start_m * BM + tl.arange(0, BM)
    offs_d = tl.arange(0, HEAD)
    q = tl.load(Q + q_base + offs_m[:, None] * HEAD + offs_d[None, :])
    m_i = tl.full([BM], -1.0e30, dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32)
    acc = tl.zeros([BM, HEAD], dtype=tl.float32)
    # @sy.any_order
    for start_n in range(0, start_m * BM // BN * BN, BN):
        at = kv_base + (start_n + tl.arange(0, BN))[:, None] * HEAD + offs_d[None, :]
        k = tl.load(K + at)
        qk = tl.dot(q, tl.trans(k)) * sm_scale
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        v = tl.load(V + at)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    # @sy.any_order
    for start_n in range(start_m * BM // BN * BN, (start_m + 1) * BM, BN):
        cols = start_n + tl.arange(0, BN)
        at = kv_base + cols[:, None] * HEAD + offs_d[None, :]
        k = tl.load(K + at)
        qk = tl.dot(q, tl.trans(k)) * sm_scale
        qk = tl.where(offs_m[:, None] >= cols[None, :], qk, -1.0e30)
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.where(offs_m[:, None] >= cols[None, :], tl.exp(qk - m_new[:, None]), 0.0)
        alpha = tl.exp(m_i - m_new)
        v = tl.load(V + at)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    tl.store(
        Out + q_base + offs_m[:, None] * HEAD + offs_d[None, :], (acc / l_i[:, None]).to(Out.type.element_ty)
    )


@dataclass(frozen=True)
class Style:
    """A kernel and how it is launched. `launch(q, k, v, out, lse)`: its grid and arguments, for whole tensors or shards
    (s: rows of the whole sequence)."""

    kernel: Any
    launch: Callable[..., tuple[tuple[int, ...], dict[str, Any]]]
    causal: bool
    bind: dict[str, str] = field(default_factory=lambda: {"Q": "Q", "K": "K", "V": "V", "Out": "O"})
    kv_heads: int = 2
    any_order: bool = False


BM, BN = 16, 16


def _common(q: torch.Tensor, s: int) -> dict[str, Any]:
    return {
        "sm_scale": q.shape[-1] ** -0.5,
        "H": q.shape[1],
        "N_CTX": s,
        "HEAD": q.shape[-1],
        "BM": BM,
        "BN": BN,
    }


def _pointers(q, k, v, out, lse, s):
    grid = (math.ceil(s / BM), q.shape[0] * q.shape[1])
    return grid, {"Q": q, "K": k, "V": v, "Out": out, **_common(q, s)}


def _block_pointers(q, k, v, out, lse, s):
    grid, arguments = _pointers(q, k, v, out, lse, s)
    h, d = q.shape[1], q.shape[-1]
    return grid, arguments | {"stride_z": h * s * d, "stride_h": s * d, "stride_m": d, "Z": q.shape[0]}


def _device_descriptors(q, k, v, out, lse, s):
    grid, arguments = _pointers(q, k, v, out, lse, s)
    return grid, arguments | {"Z": q.shape[0]}


def _host_descriptors(q, k, v, out, lse, s):
    d = q.shape[-1]
    tensors = {"q_desc": (q, BM), "k_desc": (k, BN), "v_desc": (v, BN), "o_desc": (out, BM)}
    arguments = {n: TensorDescriptor.from_tensor(t, [1, 1, block, d]) for n, (t, block) in tensors.items()}
    return (3,), arguments | _common(q, s) | {"Z": q.shape[0], "PROGRAMS": 3}


def _two_stages(q, k, v, out, lse, s):
    grid, arguments = _pointers(q, k, v, out, lse, s)
    return grid, arguments | {"Lse": lse}


def _grouped(q, k, v, out, lse, s):
    z, h, _, d = q.shape
    hkv = k.shape[1]
    strides = {"stride_qz": h * s * d, "stride_qh": s * d, "stride_kz": hkv * s * d, "stride_kh": s * d}
    arguments = {"Q": q, "K": k, "V": v, "Out": out, **_common(q, s), "HKV": hkv, **strides}
    return (z, h, math.ceil(s / BM)), arguments


STYLES = {
    "block pointers": Style(by_block_pointers, _block_pointers, False),
    "pointers": Style(by_pointers, _pointers, True),
    "host descriptors, persistent": Style(
        persistent_by_host_descriptors, _host_descriptors, True,
        {"q_desc": "Q", "k_desc": "K", "v_desc": "V", "o_desc": "O"},
    ),
    "device descriptors": Style(by_device_descriptors, _device_descriptors, False, any_order=True),
    "two stages in a helper": Style(
        in_two_stages, _two_stages, True, {"Q": "Q", "K": "K", "V": "V", "Out": "O", "Lse": "L"}
    ),
    "heads by division": Style(grouped, _grouped, True, kv_heads=1, any_order=True),
}  # fmt: skip
if not triton_before(3, 9):
    del STYLES["block pointers"]  # which Triton has no more
