"""Several kernels around one plan, called as one: each begins when the one before it has ended, on one stream; transfers
of all of them run beside all of them, with one set of signals and one begin and end of a call.

    program = FusedStages([Stage(up_kernel, {"a": "X", "c": "H"}), Stage(down_kernel, {"a": "H", "c": "C"})], plan, group)
    program.prepare([up_call, down_call])          # a Call each: grid, arguments, options
    program([up_call, down_call])

A parameter bound to a tensor of the plan takes that tensor's place in the heap, whatever is passed for it: a tensor that
one stage writes and another one reads (H) needs no other memory. Inputs and outputs are told to `op`.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import _syncopate, interpreter, jit
from .fused import DTYPES, describe, heap_bytes, is_descriptor, scalar
from .group import Group
from .items import flat, nested


@dataclass(frozen=True)
class Stage:
    """A kernel, and which of its parameters are which tensors of the plan."""

    kernel: Any
    bind: Mapping[str, str]


@dataclass
class Call:
    """What a stage's kernel is called with. `options`: num_warps, num_stages, …"""

    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)


class FusedStages:
    """Collective: all ranks construct, prepare and call it alike."""

    def __init__(
        self,
        stages: Sequence[Stage],
        plan: _syncopate.Plan,
        group: Group,
        deadline: float = 30.0,
        phases: bool = True,
        backend: str = "auto",
        engine_blocks: int = 8,
        host_delay: float = 0.0,
        seed: int = 0,
    ) -> None:
        if group.size != plan.num_ranks:
            raise ValueError(f"the plan is for {plan.num_ranks} ranks, the group has {group.size}")
        self.stages, self.plan, self.group = list(stages), plan, group
        self._phases, self._backend = phases, backend
        self._options = {
            "deadline_ms": int(deadline * 1000),
            "max_delay_us": int(host_delay * 1e6),
            "seed": seed,
            "engine_blocks": engine_blocks,
        }
        self.op: _syncopate.FusedOp | None = None
        self.tensors: dict[str, torch.Tensor] = {}  # of the plan: this rank's whole buffers in the heap
        self.schedule: dict[str, Any] = {}
        self._kernels: list[Any] = []
        self._compiled: list[jit.Compiled] = []

    def prepare(self, calls: Sequence[Call]) -> None:
        """Fuses, allocates and compiles for these shapes; later calls must have the same."""
        if self.op is not None:
            return
        whole = {name: (list(shape), dtype) for name, shape, dtype in self.plan.tensors}
        texts = [self._text(stage, call, whole) for stage, call in zip(self.stages, calls, strict=True)]
        cuda = self.group.device == "cuda"
        artifact = _syncopate.fuse_stages(
            texts, self.plan, self.group.device, self.group.multiprocessors(132), self._phases, self._backend
        )
        self.schedule = json.loads(artifact.schedule_json)
        heap = _syncopate.SymmetricHeap(
            self.group.device, self.group.ordinal, self.group.rendezvous, heap_bytes(self.schedule)
        )
        programs = sum(math.prod(call.grid) for call in calls)
        self.op = _syncopate.FusedOp(heap, artifact.schedule_json, num_programs=programs, **self._options)
        self.tensors = {n: self.op.tensor(n).view(DTYPES[d]).view(s) for n, (s, d) in whole.items()}
        for stage, text in zip(self.stages, artifact.sources, strict=True):
            function = _function_of(stage.kernel)
            module = inspect.getmodule(function)
            emitted = jit.load_module(text, function.__name__, module.__package__ if module else None)
            kernel = getattr(emitted, function.__name__)
            while hasattr(kernel, "fn") and not hasattr(kernel, "arg_names"):
                kernel = kernel.fn
            self._kernels.append(kernel)
        if cuda:
            for index, (kernel, call) in enumerate(zip(self._kernels, calls, strict=True)):
                full = self.bound(index, call.arguments)
                self._compiled.append(jit.compile_kernel(kernel, full, call.grid, call.options))

    def _text(self, stage: Stage, call: Call, whole: dict[str, tuple[list[int], str]]) -> tuple:
        function = _function_of(stage.kernel)
        file = inspect.getsourcefile(function) or "<unknown>"
        items = flat(call.arguments)
        tensors = {n: describe(v) for n, v in items.items() if _is_tensor(v)}
        for parameter, tensor in stage.bind.items():
            if parameter not in tensors:
                raise ValueError(f"bind: {parameter} is not a tensor parameter of {function.__name__}")
            if tensor not in whole:
                raise ValueError(f"bind: the plan has no tensor {tensor}")
            shape, dtype = whole[tensor]
            tensors[parameter] = (shape, [], dtype, tensors[parameter][3])
        scalars = {n: scalar(v) for n, v in items.items() if not _is_tensor(v)}
        grid = (tuple(int(n) for n in call.grid) + (1, 1, 1))[:3]
        return (Path(file).read_text(), file, function.__name__, dict(stage.bind), scalars, tensors, grid)

    def bound(self, index: int, arguments: dict[str, Any]) -> dict[str, Any]:
        """The emitted kernel's arguments: what is bound is replaced by its place in the heap."""
        full = flat(arguments)
        for parameter, tensor in self.stages[index].bind.items():
            buffer, value = self.tensors[tensor], full[parameter]
            if is_descriptor(value):
                block = list(value.block_shape)
                buffer = type(value)(buffer, list(buffer.shape), list(buffer.stride()), block)
            full[parameter] = buffer
        own = {"sy_schedule": self.op.table_tensor_of(index), "sy_control": self.op.control_tensor}
        return nested(full) | own

    def pack(self, calls: Sequence[Call]) -> list[tuple]:
        """For launch, on a GPU: kernel, grid and packed arguments of each stage."""
        return [
            (compiled.kernel, list(call.grid), compiled.pack(self.bound(index, call.arguments)))
            for index, (compiled, call) in enumerate(zip(self._compiled, calls, strict=True))
        ]

    def launch(self, packed: Sequence[tuple]) -> None:
        self.op.call_stages(list(packed), jit.current_stream())

    def __call__(self, calls: Sequence[Call]) -> None:
        self.prepare(calls)
        if self.group.device == "cuda":
            self.launch(self.pack(calls))
            return
        self.op.begin_call()
        try:
            for index, call in enumerate(calls):
                grid = (tuple(call.grid) + (1, 1, 1))[:3]
                interpreter.launch(self._kernels[index], grid, self.bound(index, call.arguments))
        except BaseException:
            self.op.end_call(ran=False)
            raise
        self.op.end_call()

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired. Synchronises the device."""
        if self.op is not None:
            self.op.check()

    def close(self) -> None:
        """Frees the heap. Collective."""
        self.tensors.clear()
        if self.op is not None:
            self.op.destroy()
            self.op = None


def _function_of(kernel: Any) -> Any:
    function = inspect.unwrap(getattr(kernel, "fn", kernel))
    while hasattr(function, "fn"):
        function = function.fn
    return function


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or is_descriptor(value)
