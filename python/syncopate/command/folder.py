"""Running what `syncopate fuse -o DIR` wrote, with fresh data for every call."""

from __future__ import annotations

import argparse
import math
import zlib
from pathlib import Path
from typing import Any

import torch

from .. import _syncopate
from ..call.arguments import DTYPES
from ..call.places import shard_box
from ..call.prepared import Prepared
from ..call.tuples import nested
from ..device import jit
from ..group import Group
from ..host import interpreter
from ..host.bounds import Bounds
from ..ranks import RankError
from ..trace.record import Trace, recorder_of
from . import higher_precision
from .folder_imports import package_of, recorded_files
from .higher_precision import Loosened


def bytes_of(artifact: _syncopate.Artifact) -> int:
    """What a rank's run needs: every tensor twice, the plan's in the heap and as made, the others for both kernels."""
    plan = [(shape, dtype) for _, shape, dtype in artifact.plan.tensors]
    local = [(shape, dtype) for stage in artifact.stages for shape, dtype, _ in stage.tensors.values()]
    return 2 * sum(DTYPES[dtype].itemsize * math.prod(shape) for shape, dtype in plan + local)


class FolderStage:
    """One kernel of a folder: fused and as the user wrote it, and what it is called with."""

    def __init__(self, stage: Any, folder: Path, files: list[str]) -> None:
        self.grid, self.bindings, self.tensors = stage.grid, stage.bindings, stage.tensors
        self.scalars, self.accumulates, self.values = stage.scalars, stage.accumulates, stage.values
        fused, original = (folder / file for file in stage.files)
        if "sy_schedule" in stage.parameters:
            raise RankError(
                f"{original}: {stage.kernel} is a stated kernel, which is launched from Python: fuse it with sy.fuse, and "
                "call the result"
            )
        origin, self._package = (stage.file, stage.original), package_of(folder, files)
        self.emitted = load_kernel(fused, self._package, stage.source, stage.kernel, stage.kernel, origin)
        self.text, self._name, self._file, self._origin = stage.original, stage.kernel, original, origin
        self.original = self.alone(self.text)

    def alone(self, text: str) -> Any:
        """The unfused kernel, of this text of its file."""
        return load_kernel(
            self._file, self._package, text, self._name, self._name + "_original", self._origin
        )

    @property
    def locals(self) -> list[str]:
        return [name for name in self.tensors if name not in self.bindings]

    def arguments(self, bound: dict[str, torch.Tensor], local: dict[str, torch.Tensor]) -> dict[str, Any]:
        arguments = {name: _element_type(value) for name, value in self.scalars.items()}
        for name, (_, _, block) in self.tensors.items():
            value: Any = bound[self.bindings[name]] if name in self.bindings else local[name]
            if block:
                from triton.tools.tensor_descriptor import TensorDescriptor

                value = TensorDescriptor(value, list(value.shape), list(value.stride()), list(block))
            arguments[name] = value
        return nested(arguments)


class FolderRun:
    """One rank's run of a folder: its op, its kernels and its data."""

    def __init__(self, artifact: _syncopate.Artifact, group: Group, options: argparse.Namespace) -> None:
        self.group, self.options, self.plan = group, options, artifact.plan
        self.device = torch.device("cpu") if group.device == "host" else torch.device("cuda", group.ordinal)
        files = recorded_files(artifact)
        self.stages = [FolderStage(stage, Path(options.spec), files) for stage in artifact.stages]
        self.prepared = Prepared(
            artifact,
            group,
            [stage.emitted for stage in self.stages],
            name=", ".join(stage.kernel for stage in artifact.stages),
            deadline=options.deadline,
            host_delay=options.delay_ms * 1e-3,
            seed=options.seed + group.rank,
        )
        self.buffers = self.prepared.tensors
        for buffer in self.buffers.values():
            poison(buffer)
        # Tensors that the kernel makes: what each rank holds of them at the end is an output, too.
        makes = set(self.plan.produced)
        self.produced = {
            t: p in stage.accumulates
            for stage in self.stages
            for p, t in stage.bindings.items()
            if t in makes
        }  # whether the kernel adds to it
        self.gathered = {name for rank in range(group.size) for name, _ in self.plan.initial(rank)}
        # What one stage hands to the next: neither held at the begin nor moved.
        self.handed_on = set(self.buffers) - makes - self.gathered if len(self.stages) > 1 else set()
        self.own_writes = artifact.own_writes(group.rank) if options.check else []
        self._compiled = False
        self._atomics = False  # the unfused kernel adds floats with atomics, as far as it has run
        if group.device == "cuda":
            jit.provide_scratch(self.device)  # for the unfused kernel
        _syncopate.barrier(group.rendezvous, "poisoned")

    def call(self, index: int, check: bool, times: list[float]):
        """One call; returns the outputs and, with `check`, those of the unfused kernel on the gathered input, and what tells
        why they may differ (Loosened)."""
        from ..measure.stopwatch import stopwatch

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
        self.prepared.op.check()
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
        wanted = self._wanted(index, gathered, before)
        return outputs, wanted, lambda: self._loosened(index, gathered, before)

    def _wanted(self, index: int, gathered: dict, before: dict, wide: bool = False) -> list[torch.Tensor]:
        """What the outputs of a call are to be, by the unfused kernel on all ranks' data. `wide`: in higher precision."""
        kept = self._kept()
        needed = range(self.group.size) if kept else [self.group.rank]
        made = {rank: self._unfused(rank, index, gathered, before, wide) for rank in needed}
        expected = self._of_own_tiles(made[self.group.rank][1], before)
        wanted = [expected[name] for name in sorted(expected)]
        for tensor, box, of in kept:
            if of:
                parts = [made[rank][0][tensor][box] for rank in of]
                total = reduced(parts, self.plan.reduction(tensor))
                wanted.append(total.to(parts[0].dtype))
            else:
                wanted.append(self._gathered_value(tensor, {r: m[0][tensor] for r, m in made.items()})[box])
        return wanted

    def _loosened(self, index: int, gathered: dict, before: dict) -> Loosened | None:
        """Why a call's bits may be others than the unfused kernel's, and its result in higher precision; None: they may not."""
        why = higher_precision.reason(self.prepared.schedule.reorders, self._atomics)
        if not why:
            return None
        wide = [
            {name: higher_precision.widened(value) for name, value in one.items()}
            for one in (gathered, before)
        ]
        return Loosened(
            why, higher_precision.in_higher_precision(lambda: self._wanted(index, *wide, wide=True))
        )

    def _kept(self) -> list[tuple[str, tuple[slice, ...], list[int]]]:
        """What this rank holds at the end of tensors that kernels make: tensor, place, and whose parts are reduced
        there, if it is no value that one rank makes."""
        return [
            (tensor, tuple(slice(begin, end) for begin, end in box), of)
            for tensor, box, of in self.plan.final(self.group.rank)
            if tensor in self.produced
        ]

    def _of_own_tiles(self, expected: dict, before: dict) -> dict:
        """`expected` where tiles write that this rank runs, and elsewhere what was there before."""
        wanted = dict(expected)
        for (stage, name), value in expected.items():
            boxes = self.own_writes[stage]
            if boxes is None:
                continue
            wanted[stage, name] = before[stage, name].clone()
            for box in boxes.get(name, []):
                place = tuple(slice(begin, end) for begin, end in box)
                wanted[stage, name][place] = value[place]
        return wanted

    def _gathered_value(self, tensor: str, made: dict[int, torch.Tensor]) -> torch.Tensor:
        """Of a tensor that is not reduced, each part as the rank has it whose kernel makes it: this one, where it does."""
        whole = made[self.group.rank].clone()
        for rank in [*(r for r in sorted(made) if r != self.group.rank), self.group.rank]:
            for name, box in self.plan.made(rank):
                if name == tensor:
                    place = tuple(slice(begin, end) for begin, end in box)
                    whole[place] = made[rank][place]
        return whole

    def _unfused(
        self, rank: int, index: int, gathered: dict, before: dict, wide: bool = False
    ) -> tuple[dict, dict]:
        """The unfused kernel on `rank`'s data: what it makes of the plan's tensors, and its other tensors."""
        own = rank == self.group.rank
        local = {k: v.clone() for k, v in before.items()} if own else self._locals(index, rank)
        if wide:
            local = {key: higher_precision.widened(value) for key, value in local.items()}
        bound = dict(gathered)
        for tensor in [*self.produced, *self.handed_on]:
            bound[tensor] = torch.zeros_like(gathered[tensor])
            if not self.produced.get(tensor, False):
                poison(bound[tensor])
        for number, stage in enumerate(self.stages):
            arguments = stage.arguments(bound, _of_stage(local, number))
            kernel = stage.original
            if wide:
                floats = [self.buffers[name] for name in stage.bindings.values()]
                kernel = stage.alone(higher_precision.wider_text(stage.text, floats))
            self._run_alone(kernel, stage.grid, arguments)
        return bound, local

    def _run_alone(self, kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        """An unfused kernel; notes whether it adds floats with atomics."""
        if self.group.device == "host":
            with higher_precision.noting_float_atomics() as seen:
                interpreter.launch(kernel, grid, arguments, Bounds(arguments))
            self._atomics |= bool(seen)
        else:
            self._atomics |= higher_precision.adds_floats_atomically(kernel[grid](**arguments))

    def record(self) -> Trace:
        """One more call, on what the last one left in the heap, recorded."""
        local = self._locals(0, self.group.rank)
        return recorder_of(self.prepared).call(self.prepared.arguments(0, self._arguments(local)[0]))

    def close(self) -> None:
        self.prepared.close()

    def _launch(self, local: dict[tuple[int, str], torch.Tensor]) -> None:
        given = self._arguments(local)
        if not self._compiled:
            self.prepared.compile(given, [{}] * len(given))
            self._compiled = True
        self.prepared.launch(tuple(value.data_ptr() for value in local.values()), lambda: given)

    def _arguments(self, local: dict[tuple[int, str], torch.Tensor]) -> list[dict[str, Any]]:
        return [
            stage.arguments(self.buffers, _of_stage(local, number))
            for number, stage in enumerate(self.stages)
        ]

    def _locals(self, index: int, rank: int) -> dict[tuple[int, str], torch.Tensor]:
        """The tensors that no plan moves, by stage and parameter."""
        return {
            (number, name): self._data(name, index, shared=False, rank=rank, stage=number)
            for number, stage in enumerate(self.stages)
            for name in stage.locals
        }

    def _data(self, name: str, index: int, shared: bool, rank: int = 0, stage: int = 0) -> torch.Tensor:
        """Small integers, exact in every dtype; the same on all ranks where `shared`, else `rank`'s. New for every call,
        but for tensors whose values the folder gives."""
        if shared:
            shape, dtype = next((s, d) for t, s, d in self.plan.tensors if t == name)
        else:
            shape, dtype, _ = self.stages[stage].tensors[name]
            if name in self.stages[stage].values:
                given = torch.tensor(self.stages[stage].values[name], dtype=DTYPES[dtype])
                return given.reshape(shape).to(self.device)
        seed = (
            zlib.crc32(name.encode())
            + 7919 * index
            + self.options.seed
            + (0 if shared else 31 * rank + 104729 * stage)
        )
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-3, 4, shape, generator=generator).to(DTYPES[dtype]).to(self.device)


def _element_type(value: Any) -> Any:
    """A scalar as the kernel takes it: what names an element type is that type. It is equal to its name, too, as kernels that
    are told a type by a string compare it."""
    import triton.language as tl

    types = {
        "fp16": tl.float16, "bf16": tl.bfloat16, "fp32": tl.float32, "fp64": tl.float64, "fp8e4m3": tl.float8e4nv,
        "fp8e5m2": tl.float8e5, "fp8e4m3fnuz": tl.float8e4b8, "fp8e5m2fnuz": tl.float8e5b16,
        "float8_e4m3fn": tl.float8e4nv, "float8_e5m2": tl.float8e5, "float8_e4m3fnuz": tl.float8e4b8,
        "float8_e5m2fnuz": tl.float8e5b16,
    }  # fmt: skip
    if isinstance(value, str) and value not in types and isinstance(getattr(tl, value, None), tl.dtype):
        types[value] = getattr(tl, value)
    if not isinstance(value, str) or value not in types:
        return value

    class NamedType(tl.dtype):
        def __eq__(self, other: Any) -> bool:
            return other == value if isinstance(other, str) else super().__eq__(other)

        def __ne__(self, other: Any) -> bool:
            return not self == other

        __hash__ = tl.dtype.__hash__

    return NamedType(types[value].name)


def _of_stage(local: dict[tuple[int, str], torch.Tensor], stage: int) -> dict[str, torch.Tensor]:
    return {name: value for (number, name), value in local.items() if number == stage}


def reduced(parts: list[torch.Tensor], reduce: str) -> torch.Tensor:
    """In rank order, as the runtime does it: floats of 16 bits as fp32."""
    narrow = parts[0].dtype.is_floating_point and parts[0].element_size() < 4
    wide = [part.float() if narrow else part for part in parts]
    total = wide[0]
    for part in wide[1:]:
        total = torch.maximum(total, part) if reduce == "max" else total + part
    return total


def load_kernel(file: Path, package: str, text: str, name: str, stem: str, origin: tuple[str, str]) -> Any:
    """`package`: the folder's, of what the kernel's file imports from its own folder."""
    try:
        return jit.kernel_in(jit.load_module(text, stem, package, origin=origin), name)
    except SyntaxError as error:
        raise RankError(f"{file}:{error.lineno}:{error.offset}: {error.msg}") from None
    except Exception as error:  # noqa: BLE001 - the user's module may raise anything
        raise RankError(f"{file}: its kernel {name} cannot be imported: {error}") from None


def poison(buffer: torch.Tensor) -> None:
    if buffer.dtype.is_floating_point:
        buffer.fill_(float("nan"))
