"""A mixture of experts as the search measures it: a problem with its inputs, each set of which has another routing."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch

from ..command.run_moe import Data, in_torch
from ..ops.mixture_function import kind_of
from ..strategy import Strategy
from .case import Rotating, on_gpu
from .measure import capture

SEED = 1234


class MoeCase:
    """Routings are random ones. As bench.case.Case, for measure.search.Measurer."""

    tolerance = 2e-2  # of a relative error, in the 2-norm
    count = 3

    def __init__(self, spec: Any, group: Any) -> None:
        self.group, self.spec = group, spec
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu() else torch.device("cpu")
        sizes = spec.extents
        self.extents = tuple(sizes[name] for name in ("t", "e", "topk", "h", "f"))
        self.kind = kind_of(spec.words.get("parallel", "expert"), bool(spec.scales))
        tokens, experts, topk, hidden, inner = self.extents
        data = Data(argparse.Namespace(
            out_dtype=spec.dtype, tokens=tokens, experts=experts, topk=topk, hidden=hidden, inner=inner
        ), SEED, self.device)  # fmt: skip
        self.w1 = data.random(2, experts, hidden, 2 * inner)
        self.w2 = data.random(3, experts, inner, hidden)
        self.inputs = Rotating(data.call(i, group.rank) for i in range(self.count))
        self.right = [in_torch(*given, self.w1, self.w2) for given in self.inputs]
        self._made: list[Any] = []

    def operators(self, strategy: Strategy, deadline: float) -> list[Any]:
        op = self.kind(
            *self.extents, self.spec.dtype, self.group, bound=self.spec.extents["bound"] or None,
            strategy=strategy, deadline=deadline,
        )  # fmt: skip
        self._made.append(op)
        return [op]

    def ours(self, made: list[Any]) -> Callable[[int], torch.Tensor]:
        (op,) = made
        w1, w2 = op.own(self.w1, self.w2)
        return lambda i: op.run(*self.inputs(i), w1, w2)[0]

    def graphs(self, call: Callable[[int], object]) -> Callable[[int], object]:
        """They keep `call`, and with it the memory that the graphs use."""
        captured = Rotating((capture(lambda i=i: call(i)), call) for i in range(self.count))
        return lambda i: captured(i)[0].replay()

    def error(self, call: Callable[[int], torch.Tensor]) -> float:
        """Of the operator that was made last. Raises ValueError where more rows than a bound came."""
        worst = 0.0
        for i, wanted in enumerate(self.right):
            y = call(i)
            self._made[-1].check()
            error = ((y.float() - wanted).norm() / wanted.norm().clamp_min(1e-30)).item()
            worst = max(worst, math.inf if math.isnan(error) else error)
        return worst

    def forget(self, operator: Any) -> None:
        self._made.remove(operator)

    def close(self) -> None:
        for operator in self._made:
            operator.close()
        self._made.clear()
