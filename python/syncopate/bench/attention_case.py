"""Attention as the search measures it: a problem with its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..command.run_attention import options_of
from ..ops.attention import Attention
from ..strategy import Strategy
from .case import Made, Rotating, off, on_gpu

SEED = 1234


class AttentionCase(Made):
    """As bench.case.Case, for measure.search.Measurer. What is right is what the kernel alone makes of the whole sequence."""

    unfused_by_host = True  # torch's collectives, and a kernel
    tolerance = 2e-2  # of a relative error, in the 2-norm

    def __init__(self, spec: Any, group: Any) -> None:
        super().__init__()
        self.group = group
        self.extents = [spec.extents[name] for name in ("b", "h", "hkv", "s", "d")]
        self.dtype, self._options = spec.dtype, options_of(spec)
        # A call has other rows than the one before: those are in the L2 cache.
        self.count = 3 if on_gpu() else 1
        self._whole = [self._inputs(i) for i in range(self.count)]
        self._right: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _inputs(self, number: int) -> list[torch.Tensor]:
        b, h, hkv, s, d = self.extents
        generator = torch.Generator(self.device).manual_seed(SEED + number)  # the same on all ranks

        def whole(heads: int) -> torch.Tensor:
            return torch.randn(b, heads, s, d, device=self.device, generator=generator).to(self.dtype)

        return [whole(heads) for heads in (h, hkv, hkv)]

    def operators(self, strategy: Strategy, deadline: float) -> list[Attention]:
        op = Attention(
            *self.extents, self.dtype, self.group, strategy=strategy, deadline=deadline, **self._options
        )
        self._operators.append(op)
        return [op]

    def called(self, made: list[Attention]) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
        (op,) = made
        own = Rotating([op.shard(tensor) for tensor in whole] for whole in self._whole)
        return lambda i: op(*own(i))

    def error(self, call: Callable[[int], tuple[torch.Tensor, torch.Tensor]]) -> float:
        """Of the operator that was made last."""
        op = self._operators[-1]
        if not self._right:
            self._right = [op.unfused(*whole) for whole in self._whole]
        worst = 0.0
        for i, right in enumerate(self._right):
            made = call(i)
            op.check()
            for found, whole in zip(made, right, strict=True):
                worst = max(worst, off(found, op.shard(whole).double()))
        return worst
