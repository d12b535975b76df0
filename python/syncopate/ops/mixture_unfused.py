"""Unfused: a mixture of experts as the vendors' libraries do it, all-to-alls by torch.distributed with counts that the host reads
around torch's products. One strategy among the others; as the host waits for counts, no CUDA graph can hold a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .operator import is_capturing

if TYPE_CHECKING:
    from .mixture import Moe

ACTIVATIONS = {"silu": torch.nn.functional.silu, "relu": torch.relu, "": lambda rows: rows}


def require(op: Moe) -> None:
    """Raises ValueError where torch's libraries cannot run it."""
    if op.group.part_of is not None:
        raise ValueError(
            "moe: unfused: over nodes a node's ranks have no process group of torch's: leave it out"
        )
    if op.group.process_group is None:
        raise ValueError("moe: unfused: it takes a torch.distributed process group")
    if op.products is not None:
        raise ValueError("moe: unfused: its products are torch's")


def run(op: Moe, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, w1: torch.Tensor,
        w2: torch.Tensor) -> torch.Tensor:  # fmt: skip
    """y [T, H]. Raises ValueError on all ranks alike for ids that name no expert."""
    if is_capturing(op.device):
        raise RuntimeError(
            "moe: unfused, the host reads how many rows each expert gets, which no CUDA graph holds: give a fused strategy"
        )
    process_group, size, own = op.group.process_group, op.group.size, op.own_experts
    flat = ids.flatten().long()
    named = (flat >= 0) & (flat < op.experts)
    counts = torch.bincount(flat[named], minlength=op.experts)
    wrong = ((flat != -1) & ~named).sum().reshape(1)
    told = x.new_empty(size, op.experts + 1, dtype=torch.int64)
    dist.all_gather_into_tensor(told, torch.cat([counts, wrong])[None], group=process_group)
    op.judge(torch.stack([told.new_zeros(()), told[:, -1].sum()]).to(torch.int32))
    # By expert, and so by rank; routes of none come last.
    order = torch.where(named, flat, op.experts).argsort(stable=True)[: int(counts.sum())]
    send = counts.view(size, own).sum(1).tolist()
    came = told[:, op.group.rank * own : (op.group.rank + 1) * own]
    receive = came.sum(1).tolist()
    rows = _exchanged(x[order // op.topk], receive, send, process_group)
    expert = torch.arange(own, device=x.device).repeat(size).repeat_interleave(came.flatten())
    by_expert = expert.argsort(stable=True)
    made = torch.empty_like(rows)
    made[by_expert] = _products(op, rows[by_expert], came.sum(0), w1, w2)
    back = _exchanged(made, send, receive, process_group)
    routes = x.new_zeros(op.tokens * op.topk, op.hidden, dtype=torch.float32)
    routes[order] = back.float()
    return (routes.view(op.tokens, op.topk, -1) * weights.float()[..., None]).sum(1).to(x.dtype)


def _exchanged(rows: torch.Tensor, receive: list[int], send: list[int], process_group: Any) -> torch.Tensor:
    made = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(made, rows.contiguous(), receive, send, group=process_group)
    return made


def _products(
    op: Moe, rows: torch.Tensor, counts: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor
) -> torch.Tensor:
    """Of rows expert by expert."""
    act = ACTIVATIONS[op.activation]
    if rows.is_cuda and rows.dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm"):
        ends = counts.cumsum(0).to(torch.int32)
        gate, up = torch._grouped_mm(rows, w1, offs=ends).chunk(2, -1)
        return torch._grouped_mm(act(gate) * up, w2, offs=ends)
    made = []
    for part, first, second in zip(rows.split(counts.tolist()), w1, w2, strict=True):
        gate, up = (part @ first).chunk(2, -1)
        made.append((act(gate) * up) @ second)
    return torch.cat(made)
