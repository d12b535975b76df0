"""Mixtures of experts compiled ahead (compile.py): the kernels of their stages with the arguments of a call, where tables and heap are
stand-ins. Which argument comes from where at a launch is C++'s to say (ops/parameters.hpp)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .. import _syncopate
from ..call.arguments import DTYPES
from ..call.prepared import unwrapped
from ..ops.mixture_function import kind_of
from ..strategy import Strategy

META = torch.device("meta")
#: Of a rank, so that no kernel is compiled for one: neither 1 nor a multiple of 16.
SOME_RANK = 3
#: Elements between two ranks' tensors: 64 bits, and a multiple of 16, as pages are.
FAR_APART = 1 << 40


class _Group:
    """As much of a group as arguments take."""

    def __init__(self, size: int) -> None:
        self.rank, self.size, self.device = SOME_RANK, size, "cuda"


class _Tables:
    """As much of a prepared program as arguments take."""

    def __init__(self) -> None:
        self.op = self
        self.words = torch.empty(64, dtype=torch.int32, device=META)

    def table_tensor_of(self, stage: int) -> torch.Tensor:
        return self.words


class _Ahead:
    """In front of a kind of mixture: one shape of it, which nobody calls."""

    part, weighted, products = "whole", True, None

    def __init__(
        self,
        read: Mapping[str, Any],
        key: str,
        tokens: int,
        strategy: Strategy,
        activation: str,
        ids: torch.dtype,
    ) -> None:
        of = read["extents"]
        ranks, experts = read["ranks"], of["E"]
        self.tokens, self.experts, self.topk, self.hidden = tokens, experts, of["topk"], of["H"]
        self.own_experts, self.inner = self._shares(experts, of["F"], ranks)
        self.dtype, self.out_dtype, self.activation = DTYPES[read["dtype"]], DTYPES[read["out"]], activation
        self.scales = read["scales"]
        self.group, self.device = _Group(ranks), META
        most = ranks * self.routes
        self.bound = min(of.get("bound") or most, most)
        self.strategy, self.programs = strategy, strategy.programs
        (self.tiling,) = strategy.tilings
        self.artifact = _syncopate.ops.artifact(key, strategy, "cuda")
        self.heap = {
            name: torch.empty(shape, dtype=DTYPES[dtype], device=META)
            for name, shape, dtype in self.artifact.plan.tensors
        }
        self._strides = dict.fromkeys(self.heap, FAR_APART)
        self.prepared = _Tables()
        self._names = self.stages[self.part]
        planned = [stage.kernel for stage in self.artifact.stages]
        if planned != self._names:
            raise ValueError(f"moe: its program has the stages {planned}, and its kernels are {self._names}")
        self._seen = self._numbers(4)
        self._ids = ids

    def _stand_ins(self) -> dict[str, torch.Tensor]:
        made = super()._stand_ins()
        return made | {"ids_ptr": made["ids_ptr"].to(self._ids)}

    def compile(self, compile_kernel: Callable[..., int], sources: dict[str, bytes]) -> list[int]:
        """The kernels of its stages; `compile_kernel`: Kernels.compile."""
        made = []
        words = {"sy_schedule": self.prepared.words, "sy_control": self.prepared.words}
        for index, (name, items) in enumerate(zip(self._names, self._items(self._stand_ins()), strict=True)):
            kernel = unwrapped(self._kernel(name))
            number = compile_kernel(
                kernel, items | words, self.artifact.grid_of(index, 0), self._options(name)
            )
            sources[f"source/{number}_{kernel.__name__}.py"] = kernel.src.encode()
            made.append(number)
        return made


def ahead(
    read: Mapping[str, Any], key: str, tokens: int, strategy: Strategy, activation: str, ids: torch.dtype
) -> Any:
    """Of the problem `read` (parse_spec) with `tokens` of a rank, an _Ahead of its kind."""
    kind = kind_of(read["words"].get("parallel", "expert"), bool(read["scales"]))
    return type(f"Ahead{kind.__name__}", (_Ahead, kind), {})(read, key, tokens, strategy, activation, ids)
