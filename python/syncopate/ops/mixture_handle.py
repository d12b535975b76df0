"""What a dispatch of a mixture of experts hands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .mixture import Moe


@dataclass
class Handle:
    """Where a dispatch has put the rows of this rank's experts, on the device: what combine, and a backward pass, need. `begins`
    and `counts` [experts / ranks]: of each expert its first row, and how many they are; rows between are undefined."""

    operator: Moe
    ids: torch.Tensor
    position: torch.Tensor  # [T, topk] of each route, how many of this rank before it go to the same expert
    all_counts: torch.Tensor  # [ranks, experts + 1]
    origin: torch.Tensor  # of each row, rank * T * topk + route
    own: torch.Tensor
    sent: torch.Tensor
    status: torch.Tensor

    @property
    def begins(self) -> torch.Tensor:
        return self.own[0]

    @property
    def counts(self) -> torch.Tensor:
        return self.own[1]

    @property
    def taken(self) -> torch.Tensor:
        """[T, topk]: of each route, whether its row has gone to its expert: not where that was over the bound."""
        experts = self.operator.experts
        known = (self.ids >= 0) & (self.ids < experts)
        return known & (self.position < self.sent[1][self.ids.clamp(0, experts - 1).long()])

    def check(self) -> None:
        """Raises ValueError, on all ranks, where an id named no expert, or more rows than the bound came to a rank and over is
        "error". Waits for the device."""
        self.operator.judge(self.status)
