"""The backward pass of a mixture of experts. dispatch and combine are each other's adjoints: gradients of the output go to the
experts' ranks by dispatch, times the weights of their routes, and gradients of the rows come back by combine, as they are."""

from __future__ import annotations

import torch
import triton

from ..call import cache
from ..group import Group
from ..host import interpreter
from ..kernels import moe_backward as kernels
from .mixture import Moe
from .mixture_function import extents_of, kept


def backward(
    grad: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    rows: torch.Tensor,
    back: torch.Tensor,
    own: torch.Tensor,
    taken: torch.Tensor,
    group: Group,
    activation: str,
    bound: int,
) -> tuple[torch.Tensor, ...]:
    """Gradients of x, the weights of the routes, w1 and w2; `rows` to `taken` are what the forward kept. Collective."""
    extents = extents_of(grad, ids, w1, w2, group.size)
    tokens, _, topk, hidden, _ = extents
    options = {"bound": bound or None, "over": "drop"}
    sender = kept(extents, grad.dtype, group, part="dispatch", weighted=True, **options)
    dy, handle = cache.run(sender.dispatch, grad.contiguous(), ids, weights)
    dx, dw1, dw2 = _products(sender, rows, dy, w1, w2, own, activation)
    returner = kept(
        extents, grad.dtype, group, part="combine", weighted=False, tiling=sender.tiling, **options
    )
    back_at = (handle.position, handle.all_counts, handle.origin)
    made = cache.run(returner.combine, dx, ids, None, *back_at)
    dot = (grad.float()[:, None] * back.view(tokens, topk, hidden).float()).sum(-1)
    return made, torch.where(taken, dot, torch.zeros_like(dot)).to(weights.dtype), dw1, dw2


def tensor_backward(
    grad: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    rows: torch.Tensor,
    back: torch.Tensor,
    own: torch.Tensor,
    taken: torch.Tensor,
    group: Group,
    activation: str,
    bound: int,
) -> tuple[torch.Tensor, ...]:
    """The same of tensor parallel experts: every rank has a part of each gradient of x and of the weights of the routes."""
    extents = extents_of(grad, ids, w1, w2, group.size, "tensor")
    tokens, _, topk, hidden, _ = extents
    sender = kept(extents, grad.dtype, group, "tensor", part="dispatch", weighted=True)
    dy, handle = cache.run(sender.dispatch, grad.contiguous(), ids, weights)
    dx, dw1, dw2 = _products(sender, rows, dy, w1, w2, own, activation)
    partial = torch.empty(group.size, tokens, topk, dtype=torch.float32, device=grad.device)
    for rank, made in enumerate(partial):  # one after another, as they are large in fp32
        torch.sum(
            handle.tokens[rank].float()[:, None] * back[rank].view(tokens, topk, hidden).float(), -1, out=made
        )
    returner = kept(
        extents, grad.dtype, group, "tensor", part="combine", weighted=False, tiling=sender.tiling
    )
    made, dot = cache.run(returner.combine_parts, dx, partial, handle)
    return made, torch.where(taken, dot, torch.zeros_like(dot)).to(weights.dtype), dw1, dw2


BACKWARDS = {"expert": backward, "tensor": tensor_backward}


def _products(of: Moe, rows, dy, w1, w2, own, activation) -> tuple[torch.Tensor, ...]:
    """Gradients of the rows, of w1 and of w2."""
    experts, hidden, inner = len(w1), w1.shape[1], w2.shape[1]
    a, dh, dx = (rows.new_empty(len(rows), n) for n in (inner, 2 * inner, hidden))
    dw1, dw2 = torch.empty_like(w1), torch.empty_like(w2)
    tiles, cdiv = of.tiling, triton.cdiv
    blocks = {"BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n, "BLOCK_K": tiles.block_k}
    known = {"EXPERTS": experts, "PRECISION": "ieee" if rows.dtype == torch.float32 else "tf32", **blocks}
    wide = {"H": hidden, "F": inner, "BE": triton.next_power_of_2(experts)}
    down = cdiv(len(rows), tiles.block_m)
    _launch(
        kernels.moe_backward_inner, (down, cdiv(inner, tiles.block_n), 1), x_ptr=rows, dy_ptr=dy, w1_ptr=w1, w2_ptr=w2,
        own_ptr=own, a_ptr=a, dh_ptr=dh, ACTIVATION=activation, **known, **wide,
    )  # fmt: skip
    _launch(
        kernels.moe_backward_rows, (down, cdiv(hidden, tiles.block_n), 1), dh_ptr=dh, w1_ptr=w1, own_ptr=own, dx_ptr=dx,
        **known, **wide,
    )  # fmt: skip
    for left, right, dw in ((rows, dh, dw1), (a, dy, dw2)):
        k, n = left.shape[1], right.shape[1]
        # Its tiles are of a weight: few rows make none of them narrow.
        down = max(tiles.block_m, tiles.block_n)
        grid = (experts, cdiv(k, down), cdiv(n, tiles.block_n))
        _launch(
            kernels.moe_backward_weights, grid, left_ptr=left, right_ptr=right, own_ptr=own, dw_ptr=dw, K=k, N=n,
            **known | {"BLOCK_M": down},
        )  # fmt: skip
    return dx, dw1, dw2


def _launch(kernel, grid, **arguments) -> None:
    if arguments["own_ptr"].is_cuda:
        kernel[grid](**arguments, num_warps=8, num_stages=2)
    else:
        interpreter.launch(kernel, grid, arguments)
