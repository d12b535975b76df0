"""Running what `syncopate fuse -o DIR` wrote, with fresh data for every call."""

from __future__ import annotations

import argparse
import math
import zlib
from pathlib import Path
from typing import Any

import torch

from . import _syncopate, interpreter, jit, trace
from .fused import DTYPES, flat_rows, heap_bytes, own_arguments, run_on_host, shard_box, stored_by_row
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
        self.heap = _syncopate.SymmetricHeap(group.device, group.ordinal, group.rendezvous, heap_bytes(spec))
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
        # Tensors that the kernel makes: what each rank holds of them at the end is an output, too.
        self.produced = {t: p for p, t in spec["bindings"].items() if t in self.plan.produced}
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
        for tensor, parameter in self.produced.items():
            if parameter in self.spec.get("accumulates", []):
                self.buffers[tensor].zero_()
            else:
                poison(self.buffers[tensor])
        before = {name: value.clone() for name, value in local.items()}
        arguments = self._arguments(self._in_heap(), local)
        started = stopwatch(self.device)
        self._launch(arguments)
        times.append(started())
        self.op.check()
        outputs = [local[name] for name in sorted(local)]
        kept = self._kept()
        moved = sorted({tensor for tensor, _, _ in self.plan.final(self.group.rank)} - set(self.produced))
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
        local = {n: v.clone() if own else self._data(n, index, False, rank) for n, v in before.items()}
        bound = dict(gathered)
        for tensor, parameter in self.produced.items():
            bound[tensor] = torch.zeros_like(self.buffers[tensor])
            if parameter not in self.spec.get("accumulates", []):
                poison(bound[tensor])
        arguments = self._arguments(bound, local)
        if self.group.device == "host":
            interpreter.launch(self.original, self.grid, arguments)
        else:
            self.original[self.grid](**arguments)
        return bound, local

    def record(self) -> trace.Trace:
        """One more call, on what the last one left in the heap, recorded."""
        local = {
            n: self._data(n, 0, shared=False) for n in self.spec["tensors"] if n not in self.spec["bindings"]
        }
        arguments = self._arguments(self._in_heap(), local)
        full = arguments | own_arguments(self.op)
        if self._recorder is None:
            self._recorder = trace.Recorder(self.op, self.spec, self._source, self.grid)
        return self._recorder.call(full)

    def close(self) -> None:
        self.buffers.clear()
        self.op.destroy()

    def _launch(self, arguments: dict[str, Any]) -> None:
        full = arguments | own_arguments(self.op)
        if self.group.device == "host":
            run_on_host(self.op, self.emitted, self.grid, full)
            return
        if self.compiled is None:
            self.compiled = jit.compile_kernel(self.emitted, full, self.grid, {})
        stream = torch.cuda.current_stream().cuda_stream
        self.op.call(self.compiled.kernel, list(self.grid), stream, self.compiled.pack(full))

    def _in_heap(self) -> dict[str, torch.Tensor]:
        """What the fused kernel is given for the plan's tensors."""
        stored = stored_by_row(self.spec)
        return {t: flat_rows(self.op, t, b) if t == stored else b for t, b in self.buffers.items()}

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

    def _data(self, name: str, index: int, shared: bool, rank: int | None = None) -> torch.Tensor:
        """Small integers, exact in every dtype; the same on all ranks where `shared`, else `rank`'s (default: this one's).
        New for every call."""
        if shared:
            shape, dtype = next((s, d) for t, s, d in self.plan.tensors if t == name)
        else:
            shape, dtype = self.spec["tensors"][name]["shape"], self.spec["tensors"][name]["dtype"]
        seed = (
            zlib.crc32(name.encode())
            + 7919 * index
            + self.options.seed
            + (0 if shared else 31 * (self.group.rank if rank is None else rank))
        )
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-3, 4, shape, generator=generator).to(DTYPES[dtype]).to(self.device)


def reduced(parts: list[torch.Tensor], reduce: str) -> torch.Tensor:
    """In rank order, as the runtime does it: floats of 16 bits as fp32."""
    wide = [part.float() if part.dtype.is_floating_point else part for part in parts]
    total = wide[0]
    for part in wide[1:]:
        total = torch.maximum(total, part) if reduce == "max" else total + part
    return total


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
