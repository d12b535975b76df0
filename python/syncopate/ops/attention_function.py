"""Attention over a sequence that is sharded over ranks:

o, lse = sy.ops.attention(q, k, v, causal=True)      q [B, H, S / ranks, D], k, v [B, HKV, S / ranks, D], in the order of the ranks

q, k, v = (sy.shard_rows(t, sharding="zigzag", dim=2) for t in (q, k, v))         under a causal mask the faster way
o, lse = sy.ops.attention(q, k, v, causal=True, sharding="zigzag")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..call import cache
from ..call.arguments import require_whole
from ..call.autocast import cast_operands, is_any_enabled
from ..call.in_graphs import joins_graphs, traced
from ..call.places import require_tensors
from ..face.rows import documents_of, rows_of_ranks, unequal_rows
from ..group import Group
from ..plans import Rows
from ..strategy import Strategy, given
from .attention import Attention
from .attention_rules import require_options
from .differentiable import STRATEGY_REFUSED, recorded, wanted
from .no_elements import of_nothing
from .operator import members_of

#: Set-ups that are kept: packed sequences have other documents at each step.
MOST = 16


@joins_graphs
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
    sharding: str = "contiguous",
    length: int | None = None,
    bounded: bool | int = False,
    strategy: Strategy | str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse of attention over a sequence of `length` rows (default: as many on each rank as here), of which q
    [B, H, rows, D], k and v [B, HKV, rows, D] are this rank's, as sy.shard_rows gives them: by default ("contiguous") in
    the order of the ranks, or with "zigzag" or "documents" as they share work alike. Also where these are no whole tiles.
    Arguments: as of Attention.

    `strategy`: as of all_gather_matmul; without gradients then.

    Differentiable by q, k and v, where every rank holds rows: RuntimeError else. With `bounded` the backward asks for runs of rows that it can cut into equal slices:
    ValueError else.

    Collective over `group` (a torch process group; default: the world). The first call with a shape, or with other documents,
    sets it up: new tables and a heap, but the same compiled kernel. The last MOST of them are kept.
    """
    if torch.compiler.is_compiling():
        documents = None if cu_seqlens is None else [int(one) for one in cu_seqlens]
        rows = None if not bounded else 0 if bounded is True else int(bounded)
        refused = {"a strategy": bool(given(strategy))}
        return traced(
            "attention", (q, k, v), group, refused, causal=causal, kind=kind, window=window, scale=scale, sharding=sharding,
            cu_seqlens=documents, bounded=rows, length=length,
        )  # fmt: skip
    require_tensors(q=q, k=k, v=v)
    if is_any_enabled():
        q, k, v = cast_operands(q, k, v)
    require_options(causal, window, scale, bounded)
    causal = bool(causal)  # which 1 is, too
    how = given(strategy)
    if length is not None:
        require_whole("length", length)
    members = members_of(group, "cuda" if q.is_cuda else "host")
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape:
        raise ValueError(
            f"expected q [B, H, rows, D] and k, v [B, HKV, rows, D], got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    b, h, rows, d = q.shape
    if 0 in (b, h, rows) and length is None and k.shape[0] == b and k.shape[2] == rows and k.shape[3] == d:
        return of_no_rows(q, k, v, members)
    s = rows * members.size if length is None else length
    documents = tuple(documents_of(cu_seqlens, s, counted=length is None))

    def held() -> list[Rows]:
        return rows_of_ranks(s, members.size, sharding, documents or None)

    if names := wanted({"q": q, "k": k, "v": v}):
        counts = [sum(end - begin for begin, end in own) for own in held()]
        refused = {
            f"there is none where a rank holds no rows, as here of {s}": 0 in counts,
            STRATEGY_REFUSED: bool(how),
        }
        return recorded(
            "attention", members, (q, k, v), names, refused, causal=causal, kind=kind, window=window, scale=scale,
            sharding=sharding, cu_seqlens=list(documents) or None,
            bounded=None if not bounded else 0 if bounded is True else int(bounded), length=length,
        )  # fmt: skip

    def make() -> cache.Entry:
        made = Attention(
            b,
            h,
            k.shape[1],
            s,
            d,
            q.dtype,
            members,
            cu_seqlens=documents or None,
            rows=held(),
            deadline=cache.deadline,
            **options,
        )
        return cache.Entry(members, made)

    options = {
        "causal": causal,
        "kind": kind,
        "window": window,
        "scale": scale,
        "sharding": sharding,
        "bounded": bounded,
        **how,
    }
    shape = (b, h, k.shape[1], s, d, q.dtype, documents)
    call = (Attention, *shape, id(members), *options.items())
    with unequal_rows(length):
        made = cache.find("ops.attention", q.is_cuda, call, make, MOST)
        return cache.run(made.operator, q, k, v)


def of_no_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, members: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse without elements: there is no batch, no head, or on each rank no row."""
    operands, extents = {"q": q, "k": k, "v": v}, (*q.shape, k.shape[1])
    o = of_nothing("attention", members, extents, operands, q.shape)
    return o, of_nothing("attention", members, extents, operands, q.shape[:3], dtype=torch.float32)
