"""The backward pass of a mixture of experts. dispatch and combine are each other's adjoints: gradients of the output go to the
experts' ranks by dispatch, times the weights of their routes, and gradients of the rows come back by combine, as they are."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..call import cache
from ..group import Group
from .mixture_function import extents_of, kept
from .mixture_kept import dots, products


def backward(
    parallel: str,
    grad: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    rows: torch.Tensor,
    h: torch.Tensor,
    back: torch.Tensor,
    own: torch.Tensor,
    taken: torch.Tensor,
    group: Group,
    activation: str,
    bound: int,
) -> tuple[torch.Tensor, ...]:
    """Gradients of x, the weights of the routes, w1 and w2; `rows` to `taken` are what the forward kept. Of tensor parallel experts
    every rank has a part of each gradient of x and of the weights of the routes. Collective."""
    extents = extents_of(grad, ids, w1, w2, group.size, parallel)
    grad = grad.contiguous()
    options = {"bound": bound or None, "over": "drop"} if parallel == "expert" else {}
    sender = kept(extents, grad.dtype, group, parallel, part="dispatch", weighted=True, **options)
    dy, handle = cache.run(sender.dispatch, grad, ids, weights, until_next=True)
    dx, dw1, dw2 = products(sender, rows, h, dy, w1, w2, own, activation)

    def returner() -> Any:
        how = {"weighted": False, "tiling": sender.tiling, **options}
        return kept(extents, grad.dtype, group, parallel, part="combine", **how)

    if parallel == "expert":
        back_at = (handle.position, handle.all_counts, handle.origin)
        made = cache.run(returner().combine, dx, ids, None, *back_at)
        return made, dots(grad, back, taken, torch.empty_like(weights)), dw1, dw2
    of_rank = torch.empty(group.size, *ids.shape, dtype=torch.float32, device=grad.device)
    dots(handle.tokens, back, None, of_rank)
    made, dot = cache.run(returner().combine_parts, dx, of_rank, handle)
    return made, torch.where(taken, dot, torch.zeros_like(dot)).to(weights.dtype), dw1, dw2


BACKWARDS = {parallel: partial(backward, parallel) for parallel in ("expert", "tensor")}
