"""Attention over a paged cache of keys and values: pages are found through a table, lengths are data."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, normal, unset


@triton.jit
def decode(
    q_ptr, k_ptr, v_ptr, table_ptr, length_ptr, out_ptr, scale, MAX_PAGES,
    HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """One query a sequence and head; caches are [pages, PAGE, heads, head dim]."""
    seq, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, HEAD)
    slot = tl.arange(0, PAGE)
    length = tl.load(length_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD + d)
    top, total = -float("inf"), 0.0
    acc = tl.zeros((HEAD,), tl.float32)
    for page in range(0, tl.cdiv(length, PAGE)):
        number = tl.load(table_ptr + seq * MAX_PAGES + page)
        at = ((number * PAGE + slot[:, None]) * HEADS + head) * HEAD + d[None, :]
        inside = page * PAGE + slot < length
        k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
        s = tl.where(inside, tl.sum(q[None, :] * k, 1) * scale, -float("inf"))
        new_top = tl.maximum(top, tl.max(s, 0))
        p = tl.exp(s - new_top)
        alpha = tl.exp(top - new_top)
        v = tl.load(v_ptr + at, mask=inside[:, None], other=0.0)
        acc = acc * alpha + tl.sum(p[:, None] * v, 0)
        total = total * alpha + tl.sum(p, 0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD + d, acc / total)


@triton.jit
def decode_stated(
    q_ptr, k_ptr, v_ptr, table_ptr, length_ptr, out_ptr, scale, MAX_PAGES,
    HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """As above: a sequence may have any page; the head is known."""
    # @sy.reads k_ptr[:, :, head:head + 1, :]
    # @sy.reads v_ptr[:, :, head:head + 1, :]
    # @sy.reads table_ptr[seq:seq + 1, :]
    seq, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, HEAD)
    slot = tl.arange(0, PAGE)
    length = tl.load(length_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD + d)
    top, total = -float("inf"), 0.0
    acc = tl.zeros((HEAD,), tl.float32)
    for page in range(0, tl.cdiv(length, PAGE)):
        number = tl.load(table_ptr + seq * MAX_PAGES + page)
        at = ((number * PAGE + slot[:, None]) * HEADS + head) * HEAD + d[None, :]
        inside = page * PAGE + slot < length
        k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
        s = tl.where(inside, tl.sum(q[None, :] * k, 1) * scale, -float("inf"))
        new_top = tl.maximum(top, tl.max(s, 0))
        p = tl.exp(s - new_top)
        alpha = tl.exp(top - new_top)
        v = tl.load(v_ptr + at, mask=inside[:, None], other=0.0)
        acc = acc * alpha + tl.sum(p[:, None] * v, 0)
        total = total * alpha + tl.sum(p, 0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD + d, acc / total)


@triton.jit
def decode_bounded(
    q_ptr, k_ptr, v_ptr, table_ptr, length_ptr, out_ptr, scale, MAX_PAGES: tl.constexpr,
    HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """As above, with a loop over all pages that there may be; masks do the rest."""
    # @sy.reads k_ptr[:, :, head:head + 1, :]
    # @sy.reads v_ptr[:, :, head:head + 1, :]
    seq, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, HEAD)
    slot = tl.arange(0, PAGE)
    length = tl.load(length_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD + d)
    top, total = -1.0e30, 0.0
    acc = tl.zeros((HEAD,), tl.float32)
    for page in range(MAX_PAGES):
        number = tl.load(table_ptr + seq * MAX_PAGES + page)
        at = ((number * PAGE + slot[:, None]) * HEADS + head) * HEAD + d[None, :]
        inside = page * PAGE + slot < length
        k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
        s = tl.where(inside, tl.sum(q[None, :] * k, 1) * scale, -float("inf"))
        new_top = tl.maximum(top, tl.max(s, 0))
        p = tl.exp(s - new_top)
        alpha = tl.exp(top - new_top)
        v = tl.load(v_ptr + at, mask=inside[:, None], other=0.0)
        acc = acc * alpha + tl.sum(p[:, None] * v, 0)
        total = total * alpha + tl.sum(p, 0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD + d, acc / total)


def paged_case(kernel, seed, **more):
    seqs, heads, d, page, pages = 3, 2, 8, 4, 9
    lengths = [5, 1, 12]
    table = torch.tensor([[7, 2, 0], [4, 0, 0], [1, 8, 3]], dtype=torch.int32)
    q = normal((seqs, heads, d), seed)
    k, v = normal((pages, page, heads, d), seed + 50), normal((pages, page, heads, d), seed + 90)
    wanted = torch.empty(seqs, heads, d)
    for s, length in enumerate(lengths):
        keys = k[table[s].long()].reshape(-1, heads, d)[:length]
        values = v[table[s].long()].reshape(-1, heads, d)[:length]
        p = (torch.einsum("hd,nhd->hn", q[s], keys) * 0.3).softmax(-1)
        wanted[s] = torch.einsum("hn,nhd->hd", p, values)
    args = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "table_ptr": table, "length_ptr": torch.tensor(lengths, dtype=torch.int32),
        "out_ptr": unset((seqs, heads, d)), "scale": 0.3, "MAX_PAGES": 3, "HEADS": heads, "HEAD": d, "PAGE": page,
    }  # fmt: skip
    return Case(kernel, (seqs, heads), args, {"out_ptr": wanted}, tolerance=1e-5, **more)


PAGES = "the directives say which head, not which pages"


@case
def decode_with_loaded_lengths(seed):
    return paged_case(
        decode, seed,
        refused="how often the loop over `range(0, tl.cdiv(length, PAGE))` runs depends on loaded data",
    )  # fmt: skip


@case
def decode_with_directives(seed):
    return paged_case(
        decode_stated, seed, inexact=PAGES, axes=(3, 2), gather={"q_ptr": 0}, scatter={"out_ptr": 0},
        compile={},
    )  # fmt: skip


@case
def decode_over_all_pages_with_directives(seed):
    return paged_case(
        decode_bounded, seed, inexact=PAGES, axes=(3, 2), reduction="page", gather={"k_ptr": 0},
        scatter={"out_ptr": 0}, compile={},
    )  # fmt: skip


@triton.jit
def write_cache(k_ptr, cache_ptr, slot_ptr, HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr):
    """A token's keys go where its slot says."""
    token = tl.program_id(0)
    slot = tl.load(slot_ptr + token)
    if slot >= 0:
        at = tl.arange(0, HEADS * HEAD)
        k = tl.load(k_ptr + token * HEADS * HEAD + at)
        tl.store(cache_ptr + (slot // PAGE * PAGE + slot % PAGE) * HEADS * HEAD + at, k)


@triton.jit
def write_cache_stated(
    k_ptr, cache_ptr, slot_ptr, HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr
):
    # @sy.writes cache_ptr[:, :, :, :]
    token = tl.program_id(0)
    slot = tl.load(slot_ptr + token)
    if slot >= 0:
        at = tl.arange(0, HEADS * HEAD)
        k = tl.load(k_ptr + token * HEADS * HEAD + at)
        tl.store(cache_ptr + (slot // PAGE * PAGE + slot % PAGE) * HEADS * HEAD + at, k)


def write_case(kernel, seed, **more):
    tokens, heads, d, page, pages = 5, 2, 8, 4, 4
    k, slots = normal((tokens, heads, d), seed), torch.tensor([9, -1, 0, 15, 6], dtype=torch.int32)
    cache = torch.zeros(pages, page, heads, d)
    wanted = cache.clone()
    for t in range(tokens):
        if slots[t] >= 0:
            wanted[slots[t] // page, slots[t] % page] = k[t]
    args = {"k_ptr": k, "cache_ptr": cache, "slot_ptr": slots, "HEADS": heads, "HEAD": d, "PAGE": page}
    return Case(kernel, (tokens,), args, {"cache_ptr": wanted}, **more)


@case
def writing_into_the_cache(seed):
    return write_case(
        write_cache, seed,
        refused="cannot be known before the kernel runs: it depends on data loaded by `tl.load(slot_ptr + token)`",
    )  # fmt: skip


@case
def writing_into_the_cache_with_directives(seed):
    return write_case(write_cache_stated, seed, inexact="any slot", gather={"k_ptr": 0})
