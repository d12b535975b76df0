"""What a search among strategies of a user's program measures with (tune/search/search.hpp)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from ..call.arguments import base_of, is_tensor
from ..call.stage_call import Call
from ..call.tuples import flat
from ..face.fused import FusedKernel
from ..strategy.failures import DEADLINE, SLEEP_CYCLES, reason_of

TOLERANCE = 1e-2  # of a result, relative to that of the default, in the 2-norm


class ProgramMeasurer:
    """Of one program (auto._Program), by each of `choices` (auto.Choice)."""

    def __init__(self, program: Any, choices: Sequence[Any]) -> None:
        self.program, self.choices = program, choices
        self.begin = time.monotonic()
        self.tensors = self._tensors()
        self.before = [tensor.clone() for tensor in self.tensors]
        self.right: list[torch.Tensor] | None = None  # what the first one made
        self.made: dict[int, tuple[FusedKernel, list[Call]]] = {}
        self.failed: set[int] = set()

    def _tensors(self) -> list[torch.Tensor]:
        found = {}
        for call in self.program.calls:
            for value in flat(call.arguments).values():
                if is_tensor(value):
                    found[base_of(value).data_ptr()] = base_of(value)
        return list(found.values())

    def restore(self) -> None:
        for tensor, before in zip(self.tensors, self.before, strict=True):
            tensor.copy_(before)
        self.synchronize()

    def synchronize(self) -> None:
        if self.program.cuda:
            torch.cuda.synchronize()

    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def progress(self, share: float, what: str) -> None:
        """Nothing is shown: a user's program has its own output."""

    def prepare(self, i: int) -> str:
        choice = self.choices[i]
        self.failed.discard(i)
        owner = self.program.kernel
        kernel = FusedKernel(
            owner.stages, owner.plan, owner.group, choice.strategy, **(owner._timing | {"deadline": DEADLINE})
        )
        calls = owner.configured(self.program.calls, choice.configuration)
        try:
            self.restore()
            kernel.run(calls)
            self.synchronize()
            kernel.check()
            made = [tensor.clone() for tensor in self.tensors]
            if self.right is None:
                self.right = made
            for tensor, right in zip(made, self.right, strict=True):
                if not _alike(tensor, right):
                    return "its result is not that of the default"
        except Exception as problem:  # noqa: BLE001 - Triton has errors of its own
            return reason_of(problem)
        self.made[i] = (kernel, calls)
        return ""

    def release(self, i: int) -> None:
        self.synchronize()
        if i in self.made:
            self.made.pop(i)[0].close()

    def measure(self, which: Sequence[int]) -> list[float]:
        return [self._time(i) for i in which]

    def _time(self, i: int) -> float:
        kernel, calls = self.made[i]
        self.synchronize()
        self.program.group.barrier("tune")
        if i in self.failed:
            return math.inf
        try:
            us = self._on_gpu(kernel, calls) if self.program.cuda else self._on_host(kernel, calls)
            kernel.check()
        except RuntimeError:
            self.failed.add(i)
            return math.inf
        return us

    @staticmethod
    def _on_gpu(kernel: FusedKernel, calls: Sequence[Call]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SLEEP_CYCLES)
        kernel.run(calls)  # what is timed finds its instructions there, whatever ran before
        start.record()
        kernel.run(calls)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3

    @staticmethod
    def _on_host(kernel: FusedKernel, calls: Sequence[Call]) -> float:
        begin = time.perf_counter()
        kernel.run(calls)
        return (time.perf_counter() - begin) * 1e6


def _alike(made: torch.Tensor, right: torch.Tensor) -> bool:
    if not made.dtype.is_floating_point:
        return bool(torch.equal(made, right))
    a, b = made.float().nan_to_num(), right.float().nan_to_num()
    return bool((a - b).norm() <= TOLERANCE * b.norm().clamp_min(1e-30))
