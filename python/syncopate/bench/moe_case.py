"""A mixture of experts as the search measures it: a problem with its inputs, each set of which has another routing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from ..command.run_moe import Data, ScaledData, in_torch
from ..ops.mixture_function import kind_of
from ..strategy import Strategy
from .case import Made, Rotating, off

SEED = 1234


class MoeCase(Made):
    """Routings are random ones. As bench.case.Case, for measure.search.Measurer."""

    count = 3

    def __init__(self, spec: Any, group: Any) -> None:
        super().__init__()
        self.group, self.spec = group, spec
        sizes = spec.extents
        self.extents = tuple(sizes[name] for name in ("t", "e", "topk", "h", "f"))
        self.kind = kind_of(spec.words.get("parallel", "expert"), bool(spec.scales))
        tokens, experts, topk, hidden, inner = self.extents
        #: Of a relative error, in the 2-norm: between the products, fp8 ones round what they make to fp8.
        self.tolerance = 6e-2 if spec.scales else 2e-2
        self._of_fp8 = {"scales": spec.scales, "out_dtype": spec.out} if spec.scales else {}
        data = (ScaledData if spec.scales else Data)(argparse.Namespace(
            out_dtype=spec.out, tokens=tokens, experts=experts, topk=topk, hidden=hidden, inner=inner,
            scales=spec.scales, group=group, parallel=self.kind.parallel,
        ), SEED, self.device)  # fmt: skip
        whole = data.random(2, experts, hidden, 2 * inner), data.random(3, experts, inner, hidden)
        self._whole = whole if not spec.scales else None
        self._own = data.own(*whole) if spec.scales else None
        calls, self.right = [], []
        for i in range(self.count):
            given = data.call(i, group.rank)
            calls.append((given, data.scales_of_a_call()))
            self.right.append(in_torch(*data.exact(given), *whole))
        self.inputs = Rotating(calls)

    def operators(self, strategy: Strategy, deadline: float) -> list[Any]:
        op = self.kind(
            *self.extents, self.spec.dtype, self.group, bound=self.spec.extents["bound"] or None,
            strategy=strategy, deadline=deadline, **self._of_fp8,
        )  # fmt: skip
        self._operators.append(op)
        return [op]

    def called(self, made: list[Any]) -> Callable[[int], torch.Tensor]:
        (op,) = made
        w1, w2 = self._own or op.own(*self._whole)

        def call(i: int) -> torch.Tensor:
            given, scales = self.inputs(i)
            return op.run(*given, w1, w2, *scales)[0]

        return call

    def error(self, call: Callable[[int], torch.Tensor]) -> float:
        """Of the operator that was made last. Raises ValueError where more rows than a bound came."""
        worst = 0.0
        for i, wanted in enumerate(self.right):
            y = call(i)
            self._operators[-1].check()
            worst = max(worst, off(y, wanted))
        return worst
