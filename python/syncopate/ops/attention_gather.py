"""Unfused: attention as the vendors' libraries move it. All of K and V come first, then the kernel runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..group import Group
from ..plans import Rows


class AllGather:
    """torch's all-gather of K and V of ranks that hold these rows, into the whole sequence's."""

    def __init__(self, group: Group, rows: Sequence[Rows], device: torch.device) -> None:
        self.group, self.ranks = group, len(rows)  # its process group is another one once it has recovered
        # Ranks may hold other numbers of rows: each sends as many as the one that holds the most.
        self._most = max(sum(end - begin for begin, end in own) for own in rows)
        held = [torch.cat([torch.arange(*run) for run in own] or [torch.arange(0)]) for own in rows]
        order = torch.empty(sum(map(len, held)), dtype=torch.int64)
        for rank, own_rows in enumerate(held):
            order[own_rows] = rank * self._most + torch.arange(len(own_rows))
        in_order = torch.equal(order, torch.arange(self.ranks * self._most))
        #: Of each row of the sequence the row of what is gathered; None: the same.
        self._order = None if in_order else order.to(device)

    def __call__(self, k: torch.Tensor, v: torch.Tensor, all_k: torch.Tensor, all_v: torch.Tensor) -> None:
        """k, v [B, HKV, rows, D] of this rank; all_k, all_v [B, HKV, S, D]."""
        batch, heads, held, columns = k.shape
        own = k.new_empty(self._most, 2, batch, heads, columns)
        own[:held, 0], own[:held, 1] = k.permute(2, 0, 1, 3), v.permute(2, 0, 1, 3)
        rows = own.new_empty(self.ranks * self._most, *own.shape[1:])
        dist.all_gather_into_tensor(rows, own, group=self.group.process_group)
        if self._order is not None:
            rows = rows.index_select(0, self._order)
        all_k.copy_(rows[:, 0].permute(1, 2, 0, 3))
        all_v.copy_(rows[:, 1].permute(1, 2, 0, 3))
