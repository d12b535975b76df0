"""The backward of attention over a sharded sequence, unfused: K and V are gathered, each rank differentiates its own rows
with what the forward left (o, lse), and the gradients of K and V are summed in fp32 at their owners. With
P = exp(q kᵀ · scale - lse), as in FlashAttention-2 (Dao, 2023, algorithm 2), and with the gradient of lse:

    dV = Pᵀ dO    dS = P ∘ (dO Vᵀ - rowsum(dO ∘ O) + dlse) · scale    dQ = dS K    dK = dSᵀ Q

On Hopper, kernels.gluon_attention_backward makes them in one pass, for 16-bit dtypes and heads up to 128. Otherwise they are
products of torch in fp32, a few rows of Q at a time; so they are in a deterministic mode (torch's, sy.deterministic), since
the kernel adds up dQ in no fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import pad

from ..call import cache
from . import buckets, unfused

ROWS = 256  # of Q at a time: their scores against all rows are held in fp32


#: Of each rank, the ranges of the sequence that it holds, in the order in which it holds them.
AllRows = tuple[tuple[tuple[int, int], ...], ...]


def backward(
    grad: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    group_name: str,
    rank: int,
    all_rows: AllRows,
    causal: bool,
    window: int,
    scale: float,
    documents: Sequence[int] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`grad_lse`: None: 0. Gradients of q, k and v: those of q [B, H, rows, D], k and v [B, HKV, rows, D] of this rank, as in the forward."""
    by_kernel = takes_kernel(q)
    dtype = k.dtype if by_kernel else torch.float32
    whole_k, whole_v = (_gathered(t, group_name, dtype) for t in (k, v))
    given = (grad, grad_lse, q, whole_k, whole_v, o, lse)
    if by_kernel:
        seen = _seen(all_rows, rank, causal, window, tuple(documents), q.device)
        made, *sums = _by_kernel(*given, seen, scale)
    else:
        made, *sums = _by_products(*given, rank, all_rows, causal, window, documents, scale)
    return made, *(_scattered(total, group_name).to(k.dtype) for total in sums)


def takes_kernel(q: torch.Tensor) -> bool:
    """Whether the Hopper kernel differentiates attention of such a q."""
    if not q.is_cuda or q.dtype not in (torch.bfloat16, torch.float16):
        return False
    if torch.are_deterministic_algorithms_enabled() or buckets.generation():
        return False  # it adds up dQ in no fixed order
    if torch.cuda.get_device_capability(q.device)[0] != 9:
        return False
    from ..kernels.gluon_attention_backward_call import HEAD_SIZES

    return q.shape[3] <= max(HEAD_SIZES)


def positions(ranges: tuple[tuple[int, int], ...]) -> torch.Tensor:
    """Where in the sequence a rank's rows are."""
    return torch.cat([torch.arange(begin, end) for begin, end in ranges])


@lru_cache(64)
def _seen(
    all_rows: AllRows, rank: int, causal: bool, window: int, documents: tuple[int, ...], device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor | None, dict[str, Any]]:
    """Where each row of the sequence is among those gathered, where each of those is in the sequence (None: they lie in order),
    and what the kernel is told of what this rank's rows see."""
    from ..kernels.gluon_attention_backward_call import backward_tables

    at, own = torch.cat([positions(ranges) for ranges in all_rows]), positions(all_rows[rank])
    length = len(at)
    in_order = bool((at == torch.arange(length)).all())
    order = (None, None) if in_order else _kept(device, torch.argsort(at), at)
    if len(all_rows[rank]) == 1 and not documents:
        return *order, {"causal": causal, "window": window, "offset": int(own[0])}
    cuts = torch.tensor(documents or (0, length))
    of_own = torch.bucketize(own, cuts[1:], right=True)
    begin, end = cuts[of_own], cuts[of_own + 1]
    if window:
        begin = torch.maximum(begin, own - window + 1)
    if causal:
        end = own + 1
    elif window:
        end = torch.minimum(end, own + window)
    tables = backward_tables(torch.stack([begin, end]), length)
    return *order, {"tables": _kept(device, *tables)}


def _kept(device: torch.device, *tables: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """On the device, for all calls."""

    def make() -> tuple[torch.Tensor, ...]:
        return tuple(table.to(device) for table in tables)

    return cache.beside_graphs(device.type == "cuda", make)


@lru_cache(64)
def _places(
    all_rows: AllRows, rank: int, documents: tuple[int, ...], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Where in the sequence the rows of all ranks are, and this rank's; and of which documents."""
    at, own = torch.cat([positions(ranges) for ranges in all_rows]), positions(all_rows[rank])
    ends = torch.tensor(list(documents)[1:], dtype=torch.int64)
    of_own, of_all = (torch.bucketize(t, ends, right=True) for t in (own, at))
    return _kept(device, at, own, of_own, of_all)


def _by_kernel(
    grad: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    whole_k: torch.Tensor,
    whole_v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    seen: tuple[torch.Tensor | None, torch.Tensor | None, dict[str, Any]],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from ..kernels.gluon_attention_backward_call import HEAD_SIZES, attend_backward

    d = q.shape[3]
    beyond = (0, min(size for size in HEAD_SIZES if size >= d) - d)  # columns of zeros add nothing
    if beyond[1]:
        grad, q, whole_k, whole_v, o = (pad(t, beyond) for t in (grad, q, whole_k, whole_v, o))
    order, at, given = seen
    if order is not None:
        whole_k, whole_v = whole_k.index_select(2, order), whole_v.index_select(2, order)
    dq, dk, dv = attend_backward(
        grad.contiguous(), q.contiguous(), whole_k, whole_v, o.contiguous(), lse.contiguous(), grad_lse=grad_lse,
        scale=scale, kv_dtype=torch.float32, **given,
    )  # fmt: skip
    if at is not None:
        dk, dv = dk.index_select(2, at), dv.index_select(2, at)
    return dq[..., :d], dk[..., :d], dv[..., :d]


def _by_products(
    grad: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    whole_k: torch.Tensor,
    whole_v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    rank: int,
    all_rows: AllRows,
    causal: bool,
    window: int,
    documents: Sequence[int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    b, h, _, d = q.shape
    kv = whole_k.shape[1]
    at, own, of_own, of_all = _places(all_rows, rank, tuple(documents), q.device)
    grouped = (b, kv, h // kv, -1)
    sums = torch.zeros_like(whole_k), torch.zeros_like(whole_v)
    parts = []
    for begin in range(0, q.shape[2], ROWS):
        rows = slice(begin, begin + ROWS)
        qs, gs, os = (t[:, :, rows].float().view(*grouped, d) for t in (q, grad, o))
        apart = own[rows, None] - at[None, :]
        seen = apart >= 0 if causal else torch.ones_like(apart, dtype=torch.bool)
        if window:
            seen = seen & (apart.abs() < window)
        if documents:
            seen = seen & (of_own[rows, None] == of_all[None, :])
        scores = torch.einsum("bhgrd,bhsd->bhgrs", qs, whole_k) * scale
        p = (scores - lse[:, :, rows].view(grouped)[..., None]).exp().masked_fill(~seen, 0.0)
        ds = torch.einsum("bhgrd,bhsd->bhgrs", gs, whole_v) - (gs * os).sum(-1, keepdim=True)
        if grad_lse is not None:
            ds = ds + grad_lse[:, :, rows].view(grouped)[..., None]
        ds = ds * p * scale
        sums[0].add_(torch.einsum("bhgrs,bhgrd->bhsd", ds, qs))
        sums[1].add_(torch.einsum("bhgrs,bhgrd->bhsd", p, gs))
        parts.append(torch.einsum("bhgrs,bhsd->bhgrd", ds, whole_k).reshape(b, h, -1, d))
    return torch.cat(parts, 2).to(q.dtype), *sums


def _gathered(t: torch.Tensor, group_name: str, dtype: torch.dtype) -> torch.Tensor:
    """[B, heads, rows, D] of all ranks along the rows, rank by rank, contiguous."""
    moved = t.movedim(2, 0)
    whole = unfused.gather(moved.flatten(1), group_name)
    return whole.view(-1, *moved.shape[1:]).movedim(0, 2).to(dtype).contiguous()


def _scattered(total: torch.Tensor, group_name: str) -> torch.Tensor:
    """The sum over ranks of this rank's rows."""
    moved = total.movedim(2, 0)
    own = unfused.scatter(moved.flatten(1), group_name)
    return own.view(-1, *moved.shape[1:]).movedim(0, 2).contiguous()
