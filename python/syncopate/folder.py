"""Running what `syncopate fuse -o DIR` wrote, with fresh data for every call."""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import _syncopate, interpreter, jit, trace
from .fused import DTYPES, flat_rows, heap_bytes, own_arguments, shard_box, tensors_by_row
from .group import Group
from .items import flat, nested
from .ranks import RankError


def stages_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """What is said of each kernel; of a program of one stage the file itself says it."""
    return spec.get("stages") or [spec]


def file_of(stem: str, stage: int, spec: dict[str, Any]) -> str:
    return f"{stem}_{stage}.py" if "stages" in spec else f"{stem}.py"


class FolderStage:
    """One kernel of a folder: fused and as the user wrote it, and what it is called with."""

    def __init__(
        self, spec: dict[str, Any], folder: Path, files: tuple[str, str], texts: tuple[str, str]
    ) -> None:
        self.grid, self.bindings, self.tensors = tuple(spec["grid"]), spec["bindings"], spec["tensors"]
        self.scalars, self.accumulates = spec["arguments"], spec.get("accumulates", [])
        name = spec["kernel"]
        self.emitted = load_kernel(folder / files[0], texts[0], name, name)
        self.original = load_kernel(folder / files[1], texts[1], name, name + "_original")
        self.compiled: jit.Compiled | None = None

    @property
    def locals(self) -> list[str]:
        return [name for name in self.tensors if name not in self.bindings]

    def bound(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What `arguments` gives for the plan's tensors."""
        items = flat(arguments)
        return {tensor: items[name] for name, tensor in self.bindings.items()}

    def arguments(self, bound: dict[str, torch.Tensor], local: dict[str, torch.Tensor]) -> dict[str, Any]:
        arguments: dict[str, Any] = dict(self.scalars)
        for name, tensor in self.tensors.items():
            value: Any = bound[self.bindings[name]] if name in self.bindings else local[name]
            if tensor.get("block"):
                from triton.tools.tensor_descriptor import TensorDescriptor

                value = TensorDescriptor(
                    value, list(value.shape), list(value.stride()), list(tensor["block"])
                )
            arguments[name] = value
        return nested(arguments)


class FolderRun:
    """One rank's run of a folder: its heap, its op, its compiled kernels and its data. `texts`: each stage's kernel.py and
    original.py."""

    def __init__(
        self,
        spec: dict[str, Any],
        text: str,
        texts: list[tuple[str, str]],
        group: Group,
        options: argparse.Namespace,
    ) -> None:
        self.spec, self.group, self.options = spec, group, options
        self.device = torch.device("cpu") if group.device == "host" else torch.device("cuda", group.ordinal)
        self.stages = [
            FolderStage(
                stage,
                Path(options.spec),
                (file_of("kernel", n, spec), file_of("original", n, spec)),
                texts[n],
            )
            for n, stage in enumerate(stages_of(spec))
        ]
        self.grid = self.stages[0].grid
        name = ", ".join(stage["kernel"] for stage in stages_of(spec))
        self.plan = _syncopate.plan_from_json(_json(spec["plan"]), "plan")
        whole = {tensor: (shape, dtype) for tensor, shape, dtype in self.plan.tensors}
        self.heap = _syncopate.SymmetricHeap(group.device, group.ordinal, group.rendezvous, heap_bytes(spec))
        self.op = _syncopate.FusedOp(
            self.heap,
            text,
            name=name,
            deadline_ms=int(options.deadline * 1000),
            max_delay_us=int(options.delay_ms * 1000),
            seed=options.seed + group.rank,
            num_programs=sum(math.prod(stage.grid) for stage in self.stages),
        )
        self.buffers = {t: self.op.tensor(t).view(DTYPES[d]).view(s) for t, (s, d) in whole.items()}
        for buffer in self.buffers.values():
            poison(buffer)
        # Tensors that the kernel makes: what each rank holds of them at the end is an output, too.
        self.produced = {
            t: p in stage.accumulates
            for stage in self.stages
            for p, t in stage.bindings.items()
            if t in self.plan.produced
        }  # whether the kernel adds to it
        # What one stage hands to the next: neither held at the begin nor moved.
        held = {entry["tensor"] for key in ("initial", "produced") for entry in spec["plan"].get(key, [])}
        self.handed_on = set(whole) - held if len(self.stages) > 1 else set()
        self.gathered = {entry["tensor"] for entry in spec["plan"].get("initial", [])}
        self._source = texts[0][0]
        self._recorder: trace.Recorder | None = None
        _syncopate.barrier(group.rendezvous, "poisoned")

    def call(self, index: int, check: bool, times: list[float]):
        """One call; returns the outputs and, with `check`, those of the unfused kernel on the gathered input."""
        from .stopwatch import stopwatch

        gathered = {t: self._data(t, index, shared=True) for t in self.buffers}
        local = self._locals(index, self.group.rank)
        for tensor, buffer in self.buffers.items():
            box = shard_box(self.plan, self.group.rank, tensor)
            if box is not None:
                place = tuple(slice(begin, end) for begin, end in box)
                buffer[place] = gathered[tensor][place]
        for tensor, adds in self.produced.items():
            if adds:
                self.buffers[tensor].zero_()
            else:
                poison(self.buffers[tensor])
        for tensor in self.handed_on:
            poison(self.buffers[tensor])
        before = {key: value.clone() for key, value in local.items()}
        started = stopwatch(self.device)
        self._launch(local)
        times.append(started())
        self.op.check()
        outputs = [local[name] for name in sorted(local)]
        kept = self._kept()
        # What is only gathered is judged by what the kernel makes of it.
        final = {tensor for tensor, _, _ in self.plan.final(self.group.rank)}
        moved = sorted(final - set(self.produced) - self.gathered)
        if check and self.produced and moved:
            raise RuntimeError(
                f"run --check compares what the kernel makes where it makes it; {', '.join(moved)} is filled by transfers only"
            )
        outputs += [self.buffers[tensor][box].clone() for tensor, box, _ in kept]
        if not check:
            return outputs, None
        needed = range(self.group.size) if kept else [self.group.rank]
        made = {rank: self._unfused(rank, index, gathered, before) for rank in needed}
        expected = made[self.group.rank][1]
        wanted = [expected[name] for name in sorted(expected)]
        for tensor, box, of in kept:
            total = reduced([made[rank][0][tensor][box] for rank in of], self._reduction(tensor))
            wanted.append(total.to(self.buffers[tensor].dtype))
        return outputs, wanted

    def _kept(self) -> list[tuple[str, tuple[slice, ...], list[int]]]:
        """What this rank holds at the end of tensors that kernels make: tensor, place, and whose parts it is made of."""
        return [
            (tensor, tuple(slice(begin, end) for begin, end in box), of or [self.group.rank])
            for tensor, box, of in self.plan.final(self.group.rank)
            if tensor in self.produced
        ]

    def _reduction(self, tensor: str) -> str:
        ops = (op for rank in self.spec["plan"]["ranks"] for op in rank["ops"])
        return next((op["reduce"] for op in ops if "reduce" in op and op["dst"]["tensor"] == tensor), "sum")

    def _unfused(self, rank: int, index: int, gathered: dict, before: dict) -> tuple[dict, dict]:
        """The unfused kernel on `rank`'s data: what it makes of the plan's tensors, and its other tensors."""
        own = rank == self.group.rank
        local = {k: v.clone() for k, v in before.items()} if own else self._locals(index, rank)
        bound = dict(gathered)
        for tensor in [*self.produced, *self.handed_on]:
            bound[tensor] = torch.zeros_like(self.buffers[tensor])
            if not self.produced.get(tensor, False):
                poison(bound[tensor])
        for number, stage in enumerate(self.stages):
            arguments = stage.arguments(bound, _of_stage(local, number))
            if self.group.device == "host":
                interpreter.launch(stage.original, stage.grid, arguments)
            else:
                stage.original[stage.grid](**arguments)
        return bound, local

    def record(self) -> trace.Trace:
        """One more call, on what the last one left in the heap, recorded."""
        local = _of_stage(self._locals(0, self.group.rank), 0)
        full = self.stages[0].arguments(self._in_heap(), local)
        full |= own_arguments(self.op, self.spec, self.stages[0].bound(full))
        if self._recorder is None:
            self._recorder = trace.Recorder(self.op, self.spec, self._source, self.grid)
        return self._recorder.call(full)

    def close(self) -> None:
        self.buffers.clear()
        self.op.destroy()

    def _launch(self, local: dict[tuple[int, str], torch.Tensor]) -> None:
        heap = self._in_heap()
        full = [stage.arguments(heap, _of_stage(local, number)) for number, stage in enumerate(self.stages)]
        # sy_own only where a program has one stage
        if own := own_arguments(self.op, self.spec, self.stages[0].bound(full[0])):
            for number, arguments in enumerate(full):
                arguments |= own | {"sy_schedule": self.op.table_tensor_of(number)}
        if self.group.device == "host":
            self.op.begin_call()
            try:
                for stage, arguments in zip(self.stages, full, strict=True):
                    interpreter.launch(stage.emitted, stage.grid, arguments)
            except BaseException:
                self.op.end_call(ran=False)
                raise
            self.op.end_call()
            return
        for stage, arguments in zip(self.stages, full, strict=True):
            if stage.compiled is None:
                stage.compiled = jit.compile_kernel(stage.emitted, arguments, stage.grid, {})
        packed = [
            (stage.compiled.kernel, list(stage.grid), stage.compiled.pack(arguments))
            for stage, arguments in zip(self.stages, full, strict=True)
        ]
        self.op.call_stages(packed, jit.current_stream())

    def _in_heap(self) -> dict[str, torch.Tensor]:
        """What the fused kernel is given for the plan's tensors."""
        by_row = tensors_by_row(self.spec)
        return {t: flat_rows(self.op, b) if t in by_row else b for t, b in self.buffers.items()}

    def _locals(self, index: int, rank: int) -> dict[tuple[int, str], torch.Tensor]:
        """The tensors that no plan moves, by stage and parameter."""
        return {
            (number, name): self._data(name, index, shared=False, rank=rank, stage=number)
            for number, stage in enumerate(self.stages)
            for name in stage.locals
        }

    def _data(self, name: str, index: int, shared: bool, rank: int = 0, stage: int = 0) -> torch.Tensor:
        """Small integers, exact in every dtype; the same on all ranks where `shared`, else `rank`'s. New for every call."""
        if shared:
            shape, dtype = next((s, d) for t, s, d in self.plan.tensors if t == name)
        else:
            shape, dtype = (self.stages[stage].tensors[name][key] for key in ("shape", "dtype"))
        seed = (
            zlib.crc32(name.encode())
            + 7919 * index
            + self.options.seed
            + (0 if shared else 31 * rank + 104729 * stage)
        )
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-3, 4, shape, generator=generator).to(DTYPES[dtype]).to(self.device)


def _of_stage(local: dict[tuple[int, str], torch.Tensor], stage: int) -> dict[str, torch.Tensor]:
    return {name: value for (number, name), value in local.items() if number == stage}


def reduced(parts: list[torch.Tensor], reduce: str) -> torch.Tensor:
    """In rank order, as the runtime does it: floats of 16 bits as fp32."""
    wide = [part.float() if part.dtype.is_floating_point else part for part in parts]
    total = wide[0]
    for part in wide[1:]:
        total = torch.maximum(total, part) if reduce == "max" else total + part
    return total


def load_kernel(file: Path, text: str, name: str, stem: str) -> Any:
    """The folder is a package to it, and on the path: it holds what the kernel's file imports from its own folder."""
    folder = str(file.parent.resolve())
    package = f"_sy_folder_{hashlib.sha256(folder.encode()).hexdigest()[:16]}"
    if package not in sys.modules:
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [folder]
        sys.path.append(folder)
    try:
        return getattr(jit.load_module(text, stem, package), name)
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
