"""Running what `syncopate fuse -o DIR` wrote, with fresh data for every call."""

from __future__ import annotations

import argparse
import math
import zlib
from pathlib import Path
from typing import Any

import torch

from . import _syncopate, interpreter, jit, trace
from .fused import DTYPES, shard_box
from .group import Group
from .ranks import RankError


class FolderRun:
    """One rank's run of a folder: its heap, its op, its compiled kernel and its data."""

    def __init__(
        self,
        spec: dict[str, Any],
        text: str,
        emitted: str,
        original: str,
        group: Group,
        options: argparse.Namespace,
    ) -> None:
        self.spec, self.group, self.options = spec, group, options
        self.device = torch.device("cpu") if group.device == "host" else torch.device("cuda", group.ordinal)
        self.grid = tuple(spec["grid"])
        name = spec["kernel"]
        folder = Path(options.spec)
        self.emitted = load_kernel(folder / "kernel.py", emitted, name, name)
        self.original = load_kernel(folder / "original.py", original, name, name + "_original")
        self.plan = _syncopate.plan_from_json(_json(spec["plan"]), "plan")
        whole = {tensor: (shape, dtype) for tensor, shape, dtype in self.plan.tensors}
        capacity = (4 << 20) + sum(math.prod(s) * DTYPES[d].itemsize + 4096 for s, d in whole.values())
        self.heap = _syncopate.SymmetricHeap(group.device, group.ordinal, group.rendezvous, capacity)
        self.op = _syncopate.FusedOp(
            self.heap,
            text,
            name=name,
            deadline_ms=int(options.deadline * 1000),
            max_delay_us=int(options.delay_ms * 1000),
            seed=options.seed + group.rank,
            num_programs=math.prod(self.grid),
        )
        self.buffers = {t: self.op.tensor(t).view(DTYPES[d]).view(s) for t, (s, d) in whole.items()}
        for buffer in self.buffers.values():
            poison(buffer)
        self.compiled: jit.Compiled | None = None
        self._source = emitted
        self._recorder: trace.Recorder | None = None
        _syncopate.barrier(group.rendezvous, "poisoned")

    def call(self, index: int, check: bool, times: list[float]):
        """One call; returns the outputs and, with `check`, those of the unfused kernel on the gathered input."""
        from .stopwatch import stopwatch

        gathered = {t: self._data(t, index, shared=True) for t in self.buffers}
        local = {
            name: self._data(name, index, shared=False)
            for name in self.spec["tensors"]
            if name not in self.spec["bindings"]
        }
        for tensor, buffer in self.buffers.items():
            box = shard_box(self.plan, self.group.rank, tensor)
            if box is not None:
                place = tuple(slice(begin, end) for begin, end in box)
                buffer[place] = gathered[tensor][place]
        before = {name: value.clone() for name, value in local.items()}
        arguments = self._arguments(self.buffers, local)
        started = stopwatch(self.device)
        self._launch(arguments)
        times.append(started())
        self.op.check()
        outputs = [local[name] for name in sorted(local)]
        if not check:
            return outputs, None
        expected = before
        unfused = self._arguments(gathered, expected)
        if self.group.device == "host":
            interpreter.launch(self.original, self.grid, unfused)
        else:
            self.original[self.grid](**unfused)
        return outputs, [expected[name] for name in sorted(expected)]

    def record(self) -> trace.Trace:
        """One more call, on what the last one left in the heap, recorded."""
        local = {
            n: self._data(n, 0, shared=False) for n in self.spec["tensors"] if n not in self.spec["bindings"]
        }
        arguments = self._arguments(self.buffers, local)
        full = {**arguments, "sy_schedule": self.op.table_tensor, "sy_control": self.op.control_tensor}
        if self._recorder is None:
            self._recorder = trace.Recorder(self.op, self.spec, self._source, self.grid)
        return self._recorder.call(full)

    def close(self) -> None:
        self.buffers.clear()
        self.op.destroy()

    def _launch(self, arguments: dict[str, Any]) -> None:
        full = {**arguments, "sy_schedule": self.op.table_tensor, "sy_control": self.op.control_tensor}
        if self.group.device == "host":
            self.op.begin_call()
            try:
                interpreter.launch(self.emitted, self.grid, full)
            finally:
                self.op.end_call()
            return
        if self.compiled is None:
            self.compiled = jit.compile_kernel(self.emitted, full, self.grid, {})
        stream = torch.cuda.current_stream().cuda_stream
        self.op.call(self.compiled.kernel, list(self.grid), stream, self.compiled.pack(full))

    def _arguments(self, bound: dict[str, torch.Tensor], local: dict[str, torch.Tensor]) -> dict[str, Any]:
        arguments: dict[str, Any] = dict(self.spec["arguments"])
        for name, tensor in self.spec["tensors"].items():
            value: Any = bound[self.spec["bindings"][name]] if name in self.spec["bindings"] else local[name]
            if tensor.get("block"):
                from triton.tools.tensor_descriptor import TensorDescriptor

                value = TensorDescriptor(
                    value, list(value.shape), list(value.stride()), list(tensor["block"])
                )
            arguments[name] = value
        return arguments

    def _data(self, name: str, index: int, shared: bool) -> torch.Tensor:
        """Small integers, exact in every dtype; the same on all ranks where `shared`. New for every call."""
        if shared:
            shape, dtype = next((s, d) for t, s, d in self.plan.tensors if t == name)
        else:
            shape, dtype = self.spec["tensors"][name]["shape"], self.spec["tensors"][name]["dtype"]
        seed = (
            zlib.crc32(name.encode())
            + 7919 * index
            + self.options.seed
            + (0 if shared else 31 * self.group.rank)
        )
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-3, 4, shape, generator=generator).to(DTYPES[dtype]).to(self.device)


def load_kernel(file: Path, text: str, name: str, stem: str) -> Any:
    try:
        return getattr(jit.load_module(text, stem), name)
    except SyntaxError as error:
        raise RankError(f"{file}:{error.lineno}:{error.offset}: {error.msg}") from None
    except Exception as error:  # noqa: BLE001 - the user's module may raise anything
        raise RankError(f"{file}: its kernel {name} cannot be imported: {error}") from None


def poison(buffer: torch.Tensor) -> None:
    if buffer.dtype.is_floating_point:
        buffer.fill_(float("nan"))


def _json(value: Any) -> str:
    import json

    return json.dumps(value)
