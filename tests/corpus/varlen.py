"""Kernels whose ranges an integer tensor holds that the host knows: sequences of different lengths packed one after
another, groups of rows, pages, rows in any order. With its values, footprints are exact, and no directive is needed."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, normal, unset
from .moe import experts, experts_case, grouped, grouped_case
from .paged import decode, paged_case, write_cache, write_case


@triton.jit
def packed_attention(
    q_ptr, k_ptr, v_ptr, o_ptr, starts_ptr, scale, HEADS: tl.constexpr, HEAD: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Sequences packed along the rows of [tokens, heads, head dim]; sequence s has the rows [starts[s], starts[s + 1])."""
    block, head, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts_ptr + seq).to(tl.int64)
    length = (tl.load(starts_ptr + seq + 1) - begin).to(tl.int32)
    if block * BM >= length:
        return
    rows, d = block * BM + tl.arange(0, BM), tl.arange(0, HEAD)
    q_at = (begin + rows[:, None]) * HEADS * HEAD + head * HEAD + d[None, :]
    q = tl.load(q_ptr + q_at, mask=rows[:, None] < length, other=0.0)
    top = tl.full((BM,), -1.0e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, HEAD), tl.float32)
    last = tl.minimum((block + 1) * BM, length) if CAUSAL else length
    for start in range(0, last, BN):
        cols = start + tl.arange(0, BN)
        at = (begin + cols[:, None]) * HEADS * HEAD + head * HEAD + d[None, :]
        k = tl.load(k_ptr + at, mask=cols[:, None] < length, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        keep = cols[None, :] < length
        if CAUSAL:
            keep = keep & (cols[None, :] <= rows[:, None])
        s = tl.where(keep, s, -1.0e30)
        new_top = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new_top[:, None])
        alpha = tl.exp(top - new_top)
        v = tl.load(v_ptr + at, mask=cols[:, None] < length, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p, v, input_precision="ieee")
        total = total * alpha + tl.sum(p, 1)
        top = new_top
    tl.store(o_ptr + q_at, acc / total[:, None], mask=rows[:, None] < length)


def packed_case(seed, causal, **more):
    heads, d, starts = 2, 16, [0, 13, 50, 53]
    q, k, v = (normal((starts[-1], heads, d), seed + 30 * i) for i in range(3))
    wanted = torch.empty(starts[-1], heads, d)
    for begin, end in zip(starts, starts[1:], strict=False):
        s = torch.einsum("mhd,nhd->hmn", q[begin:end], k[begin:end]) * 0.25
        if causal:
            s += torch.full(s.shape[1:], float("-inf")).triu(1)
        wanted[begin:end] = torch.einsum("hmn,nhd->mhd", s.softmax(-1), v[begin:end])
    args = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": unset(wanted.shape), "starts_ptr": torch.tensor(starts),
        "scale": 0.25, "HEADS": heads, "HEAD": d, "BM": 16, "BN": 16, "CAUSAL": causal,
    }  # fmt: skip
    return Case(
        packed_attention,
        (3, heads, 3),
        args,
        {"o_ptr": wanted},
        values=("starts_ptr",),
        tolerance=1e-5,
        **more,
    )


@case
def attention_of_packed_sequences(seed):
    return packed_case(seed, False, gather={"k_ptr": 0}, compile={"BM": 64, "BN": 64, "HEAD": 64})


@case
def causal_attention_of_packed_sequences(seed):
    return packed_case(seed, True, gather={"v_ptr": 0}, scatter={"o_ptr": 0})


@case
def decode_with_a_known_page_table(seed):
    return paged_case(
        decode, seed, values=("table_ptr", "length_ptr"), axes=(3, 2), reduction="page", gather={"v_ptr": 0}
    )


@case
def writing_into_known_slots_of_the_cache(seed):
    return write_case(write_cache, seed, values=("slot_ptr",), gather={"k_ptr": 0})


@case
def experts_of_known_tokens(seed):
    return experts_case(
        experts, seed, values=("sorted_ptr", "expert_ptr"), gather={"a_ptr": 0}, compile={"BM": 64, "BN": 64, "BK": 32}
    )  # fmt: skip


@case
def grouped_by_known_offsets(seed):
    return grouped_case(grouped, seed, values=("start_ptr",), gather={"a_ptr": 0}, scatter={"c_ptr": 0})
