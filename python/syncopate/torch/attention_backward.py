"""The backward of attention over a sharded sequence, unfused: K and V are gathered, each rank goes through its own rows
a few at a time with what the forward left (o, lse), and the gradients of K and V are summed at their owners. With
P = exp(q kᵀ · scale - lse), as in FlashAttention-2 (Dao, 2023, algorithm 2):

    dV = Pᵀ dO    dS = P ∘ (dO Vᵀ - rowsum(dO ∘ O)) · scale    dQ = dS K    dK = dSᵀ Q
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import unfused

ROWS = 256  # of Q at a time: their scores against all rows are held in fp32


def backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    group_name: str,
    rank: int,
    places: Sequence[torch.Tensor],
    causal: bool,
    window: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v. `places`: of each rank, where in the sequence its rows are."""
    b, h, _, d = q.shape
    kv = k.shape[1]
    whole_k, whole_v = (_gathered(t, group_name) for t in (k, v))
    at, own = torch.cat(list(places)), places[rank]
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
        scores = torch.einsum("bhgrd,bhsd->bhgrs", qs, whole_k) * scale
        p = (scores - lse[:, :, rows].view(grouped)[..., None]).exp().masked_fill(~seen, 0.0)
        ds = torch.einsum("bhgrd,bhsd->bhgrs", gs, whole_v) - (gs * os).sum(-1, keepdim=True)
        ds = ds * p * scale
        sums[0].add_(torch.einsum("bhgrs,bhgrd->bhsd", ds, qs))
        sums[1].add_(torch.einsum("bhgrs,bhgrd->bhsd", p, gs))
        parts.append(torch.einsum("bhgrs,bhsd->bhgrd", ds, whole_k).reshape(b, h, -1, d))
    made = torch.cat(parts, 2).to(q.dtype)
    return made, *(_scattered(total, group_name).to(k.dtype) for total in sums)


def _gathered(t: torch.Tensor, group_name: str) -> torch.Tensor:
    """[B, heads, rows, D] of all ranks along the rows, rank by rank, as fp32."""
    moved = t.movedim(2, 0)
    whole = unfused.gather(moved.flatten(1), group_name)
    return whole.view(-1, *moved.shape[1:]).movedim(0, 2).float().contiguous()


def _scattered(total: torch.Tensor, group_name: str) -> torch.Tensor:
    """The sum over ranks of this rank's rows."""
    moved = total.movedim(2, 0)
    own = unfused.scatter(moved.flatten(1), group_name)
    return own.view(-1, *moved.shape[1:]).movedim(0, 2).contiguous()
