"""torch's SDPA for rows of a longer sequence, as the peers of attention call it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F


def attend(q: Any, k: Any, v: Any, first: int, causal: bool) -> Any:
    """Attention of rows [first, first + n) of a sequence, q [B, H, n, D], to all of it, k and v [B, HKV, S, D]."""
    shared = q.shape[1] != k.shape[1]
    if not causal:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=shared)
    end = first + q.shape[2]
    k, v = k[:, :, :end], v[:, :, :end]
    if first == 0:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
    if not q.is_cuda:
        seen = torch.arange(end)[None, :] <= torch.arange(first, end)[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=shared)
    from torch.nn.attention.bias import causal_lower_right

    mask = causal_lower_right(q.shape[2], end)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=shared)


def attend_within(case: Any, q: Any, k: Any, v: Any, first: int) -> Any:
    """As `attend`, with the case's mask: document by document, where there are several."""
    if not case.cuts:
        return attend(q, k, v, first, case.shape.causal)
    parts = []
    for begin, end in pairwise(case.cuts):
        low, high = max(begin, first), min(end, first + q.shape[2])
        if low < high:
            own = q[:, :, low - first : high - first]
            parts.append(attend(own, k[:, :, begin:end], v[:, :, begin:end], low - begin, case.shape.causal))
    return torch.cat(parts, 2)


def attend_by_cudnn(q: Any, k: Any, v: Any, first: int) -> Any:
    """The same under a causal mask by cuDNN, which knows no mask at the lower right: the keys before `first`, then the square
    on the diagonal, joined by their log-sum-exps."""
    shared = q.shape[1] // k.shape[1]
    if shared > 1:
        k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    end = first + q.shape[2]
    by_cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
    o, lse = by_cudnn(q, k[:, :, first:end], v[:, :, first:end], None, True, 0.0, True)[:2]
    if first == 0:
        return o
    below, below_lse = by_cudnn(q, k[:, :, :first], v[:, :, :first], None, True, 0.0, False)[:2]
    lse, below_lse = (x.reshape(*q.shape[:3], 1) for x in (lse, below_lse))
    return torch.lerp(below, o, torch.sigmoid(lse - below_lse).to(o.dtype))


def backend_of(case: Any) -> str:
    """The one that torch takes by itself for the case's rows; under a causal mask, for those that begin a sequence."""
    if not case.on_gpu:
        return "math on the host"
    q, k, v = case.whole
    rows = q[:, :, : case.shape.rows]
    if case.shape.causal:
        k, v = (x[:, :, : case.shape.rows] for x in (k, v))
    choice = torch._fused_sdp_choice(
        rows,
        k,
        v,
        is_causal=case.shape.causal,
        enable_gqa=case.shape.heads != case.shape.kv_heads,
    )
    return torch.nn.attention.SDPBackend(choice).name
