"""What can be installed today for a mixture of experts, beside syncopate bench moe's own: `case` is its Case."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


class _Exchange(torch.autograd.Function):
    """Rows to their ranks; of their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, receive: list[int], send: list[int]) -> torch.Tensor:
        ctx.sizes = send, receive
        made = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(made, rows.contiguous(), receive, send)
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return _Exchange.apply(grad, *ctx.sizes), None, None


class _Ordered(torch.autograd.Function):
    """Rows in another order, each once. torch's own gradient adds, as if a row could be several times."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        ctx.orders = back, order
        return rows[order]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return _Ordered.apply(grad, *ctx.orders), None, None


class _Routes(torch.autograd.Function):
    """A row of each of the topk routes of a token."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, order: torch.Tensor, back: torch.Tensor, topk: int
    ) -> torch.Tensor:
        ctx.back, ctx.topk = back, topk
        return x[order // topk]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return grad[ctx.back].view(-1, ctx.topk, grad.shape[1]).sum(1), None, None, None


def _inverse(order: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(order)
    made[order] = torch.arange(len(order), device=order.device)
    return made


def exchanged(
    case: Any, rows: torch.Tensor, counts: torch.Tensor, layer: Callable[[Any, Any], torch.Tensor]
) -> torch.Tensor:
    """What `layer` makes, at their experts, of rows that lie expert by expert, `counts` for each: by all-to-alls whose sizes the host
    knows. It is called with the rows that came, expert by expert, and how many each has."""
    there = torch.empty_like(counts)
    dist.all_to_all_single(there, counts)
    by_rank = there.view(case.size, case.own)
    send, receive = (one.view(case.size, case.own).sum(1).tolist() for one in (counts, there))
    came = _Exchange.apply(rows, receive, send)
    expert = torch.arange(case.own, device=case.device).repeat(case.size).repeat_interleave(there)
    by_expert = expert.argsort(stable=True)
    back = _inverse(by_expert)
    made = layer(_Ordered.apply(came, by_expert, back), by_rank.sum(0))
    return _Exchange.apply(_Ordered.apply(made, back, by_expert), send, receive)


def nccl(case: Any) -> Callable[[], torch.Tensor]:
    """All-to-alls with counts on the host around torch's grouped product."""

    def call() -> torch.Tensor:
        order = case.ids.flatten().argsort(stable=True)
        back = _inverse(order)
        rows = _Routes.apply(case.x, order, back, case.topk)
        came = exchanged(case, rows, case.counts(), case.by_torch)
        routes = _Ordered.apply(came, back, order).view(case.tokens, case.topk, -1)
        return (routes.float() * case.weights[..., None]).sum(1).to(case.x.dtype)

    return call


def minimal_async_ep(case: Any) -> Callable[[], torch.Tensor]:
    """torchtitan's MinimalAsyncEP, whose files lie in $PEER."""
    if not os.environ.get("PEER") or not case.gpu:
        raise RuntimeError(
            "PEER names no folder with torchtitan's distributed/minimal_async_ep, or there is no GPU"
        )
    if os.environ["PEER"] not in sys.path:
        sys.path.insert(0, os.environ["PEER"])
    import torchtitan.distributed.minimal_async_ep.api as ep

    ep._buffer_key = ep._buffer_state = None
    ep.init_buffer(dist.group.WORLD, case.hidden, case.tokens, case.own, case.topk, case.x.dtype, case.device)
    room = case.tokens * case.size * min(case.topk, case.own)

    def call() -> torch.Tensor:
        ones = torch.ones_like(case.ids.flatten())
        counts = torch.zeros(case.experts, device=case.device, dtype=torch.int64)
        d = ep.dispatch_op(
            case.x, case.ids, counts.scatter_add_(0, case.ids.flatten(), ones), room, case.size
        )
        # They lie in a buffer that the backward pass fills with gradients.
        rows = d[0].clone() if d[0].requires_grad else d[0]
        y = case.by_torch(rows, d[8])
        flat = case.weights.flatten()
        return ep.combine_op(y, d[1], d[2], d[3], d[4], d[5], d[7], d[6], flat, case.tokens, case.topk)[0]

    return call


def all_to_all_vdev_2d(case: Any) -> Callable[[], torch.Tensor]:
    """torch's all-to-all whose sizes lie on the device: to the experts, rows expert by expert, and back by their places there."""
    import torch.distributed._symmetric_memory as symm

    if not case.gpu or not symm.is_nvshmem_available():
        raise RuntimeError("torch has no NVSHMEM here")
    if symm.get_backend(case.device) != "NVSHMEM":
        symm.set_backend("NVSHMEM")
    group = dist.group.WORLD.group_name
    routes, most = case.tokens * case.topk, case.tokens * case.topk * case.size
    align = 16

    def shared(*shape: int, dtype: torch.dtype = case.x.dtype) -> torch.Tensor:
        made = symm.empty(*shape, dtype=dtype, device=case.device)
        symm.rendezvous(made, group)
        return made.zero_()

    sent, came = shared(routes, case.hidden), shared(most + align * case.own, case.hidden)
    made, back = shared(most + align * case.own, case.hidden), shared(routes, case.hidden)
    splits = shared(case.experts, dtype=torch.int64)
    places, back_places = (
        shared(2, case.experts, dtype=torch.int64),
        shared(2, case.experts, dtype=torch.int64),
    )
    op = torch.ops.symm_mem

    def call() -> torch.Tensor:
        order = case.ids.flatten().argsort(stable=True)
        torch.index_select(case.x, 0, order // case.topk, out=sent)
        splits.copy_(case.counts_on_device())
        op.all_to_all_vdev_2d(sent, came, splits, places, group, align)
        # By expert, then by rank: an expert's rows end where the next one's begin.
        sizes = places[0].view(case.own, case.size).sum(1)
        ends = ((sizes + align - 1) // align * align).cumsum(0).to(torch.int32)
        made.copy_(case.by_torch_to(came, ends))
        op.all_to_all_vdev_2d_offset(made, back, places, back_places, group)
        by_route = torch.empty_like(back)
        by_route[order] = back
        routes = by_route.view(case.tokens, case.topk, -1)
        return (routes.float() * case.weights[..., None]).sum(1).to(case.x.dtype)

    return call
