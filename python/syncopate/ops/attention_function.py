"""Attention over a sequence that is sharded over ranks:

o, lse = sy.ops.attention(q, k, v, causal=True)      q [B, H, S / ranks, D], k, v [B, HKV, S / ranks, D]
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from ..group import Group
from .attention import Attention
from .attention_rules import documents_of
from .operator import members_of

MOST_MADE = 16  # shapes, or lists of documents, that are kept set up
_made: OrderedDict[Hashable, Attention] = OrderedDict()  # the last used last


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: Group | Any | None = None,
    *,
    causal: bool = False,
    kind: str = "auto",
    window: int = 0,
    cu_seqlens: Sequence[int] | torch.Tensor | None = None,
    scale: float | None = None,
    sharding: str = "auto",
    length: int | None = None,
    bounded: bool | int = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse of attention over a sequence of `length` rows (default: as many on each rank as here, also where these are no
    whole tiles), of which q [B, H, rows,
    D], k and v [B, HKV, rows, D] are this rank's, as `sharding` says (Attention.rows). Arguments: as of Attention.

    Collective over `group` (a torch process group; default: the world). The first call with a shape, or with other documents,
    sets it up: new tables and a heap, but the same compiled kernel. Of those the last MOST_MADE are kept.
    """
    members = members_of(group, "cuda" if q.is_cuda else "host")
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape:
        raise ValueError(
            f"expected q [B, H, rows, D] and k, v [B, HKV, rows, D], got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    b, h, rows, d = q.shape
    s = rows * members.size if length is None else length
    documents = tuple(documents_of(cu_seqlens, s))
    key = (
        b,
        h,
        k.shape[1],
        s,
        d,
        q.dtype,
        id(members),
        causal,
        kind,
        window,
        documents,
        scale,
        sharding,
        length is None,
        bounded,
    )
    made = _made.get(key)
    if made is None:
        while len(_made) >= MOST_MADE:
            _, oldest = _made.popitem(last=False)
            if q.is_cuda:
                torch.cuda.synchronize(q.device)  # its last call may still run
            oldest.close()
        made = _made[key] = Attention(
            b,
            h,
            k.shape[1],
            s,
            d,
            q.dtype,
            members,
            causal=causal,
            kind=kind,
            window=window,
            cu_seqlens=documents or None,
            scale=scale,
            sharding=sharding,
            even=length is None,
            bounded=bounded,
        )
    _made.move_to_end(key)
    return made(q, k, v)
