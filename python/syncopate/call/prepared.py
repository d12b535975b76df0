"""A fused program in memory, ready to be launched."""

from __future__ import annotations

import atexit
import ctypes
import functools
import math
import os
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch

from .. import _syncopate
from ..device import jit
from ..device.fault import SyncopateFault
from ..group import ANY_TIME, Group
from ..host import interpreter
from ..host.bounds import Bounds
from .arguments import DTYPES, is_descriptor
from .stated import ADDRESSES, StatedKernel
from .tuples import flat, nested


@dataclass
class EmittedStage:
    """A stage's emitted kernel: a JITFunction, or interpreted, and on a GPU what it was compiled to."""

    kernel: Any
    grid: tuple[int, int, int]
    bind: dict[str, str]
    accumulates: list[str]  # parameters into which the kernel adds: they start as the user says
    compiled: jit.Variants | None = None
    stated: StatedKernel | None = None  # it is one, and follows the table by itself

    def launched(self, full: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as a launch takes them: a stated kernel gets addresses."""
        if self.stated is None:
            return dict(full)
        tensors = {n: v for n, v in full.items() if n in ADDRESSES and isinstance(v, torch.Tensor)}
        return dict(full) | {name: value.data_ptr() for name, value in tensors.items()}


MOST_PACKED = (
    4096  # sets of arguments that are kept: a program that allocates has other addresses at each call
)


class Prepared:
    """A fused program for one set of arguments: its op (memory, signals, transfers) and its compiled kernels.

    `tensors`: by name of a plan's tensor, this rank's whole buffer in the heap.
    """

    def __init__(
        self,
        artifact: _syncopate.Artifact,
        group: Group,
        kernels: Sequence[Any],
        *,
        deadline: float,
        host_delay: float = 0.0,
        seed: int = 0,
        in_place: bool = False,
        **options: Any,
    ) -> None:
        """`kernels`: of each stage. Collective: all ranks make the same. `options`: of the op (name, engine_blocks).
        `in_place`: bound parameters keep the user's arrays."""
        self.artifact, self.schedule, self.in_place = artifact, artifact.schedule, in_place
        group.rendezvous.timeout = group.meeting_seconds
        group.take_nodes(artifact.plan.num_nodes)
        heap = _syncopate.SymmetricHeap(group.device, group.ordinal, group.rendezvous, artifact.heap_bytes)
        self.op = _syncopate.FusedOp(
            heap,
            artifact,
            deadline_ms=math.ceil(deadline * 1000),
            max_delay_us=int(host_delay * 1e6),
            seed=seed,
            **options,
        )
        with torch.inference_mode(False):  # calls in and out of it may write to them
            self.tensors = {
                name: self.op.tensor(name).view(DTYPES[dtype]).view(shape)
                for name, shape, dtype in artifact.plan.tensors
            }
        self.stages = [
            EmittedStage(
                unwrapped(kernel),
                artifact.grid_of(index, group.rank),
                stage.bindings,
                stage.accumulates,
                stated=kernel if isinstance(kernel, StatedKernel) else None,
            )
            for index, (kernel, stage) in enumerate(zip(kernels, artifact.stages, strict=True))
        ]
        self._flags = [
            stage.stated.flags(self.schedule, index) if stage.stated else {}
            for index, stage in enumerate(self.stages)
        ]
        each = self.artifact.plan.num_ranks // self.artifact.plan.num_nodes
        self._mapped = (
            group.rank // each * each,
            each,
        )  # the ranks whose memory this one maps: the first, and how many
        if self.artifact.plan.num_nodes > 1:
            from ..torch import report

            report.crosses(group.rendezvous.caller or "a program", self._crossing(group))
        self.executables: weakref.WeakSet[Any] = weakref.WeakSet()  # that call its op
        self.recorder: Any = None  # trace.Recorder, once a call was recorded
        self._packed: dict[Hashable, list[tuple]] | None = {} if group.device == "cuda" else None
        self._alone: dict[Hashable, tuple] = {}
        self._by_row = set(self.schedule.tensors_by_row)
        self._sums = self.schedule.kernel_summands > 0
        _alive.add(self)

    def _crossing(self, group: Group) -> str:
        """What goes from this rank to other nodes, and comes from there, in a call."""
        own = [t for t in self.schedule.transfers(group.rank) if t.backend == "channel"]
        sent = [t for t in own if t.src_rank == group.rank]
        sizes = {name: DTYPES[dtype].itemsize for name, _, dtype in self.schedule.tensors}

        def mib(transfers: Sequence[Any]) -> float:
            elements = (math.prod(e - b for b, e in t.src[1]) * sizes[t.src[0]] for t in transfers)
            return sum(elements) / 2**20

        came = [t for t in own if t.src_rank != group.rank]
        peers = {t.dst_rank for t in sent} | {t.src_rank for t in came}
        way = _syncopate.channel_on_cuda() if group.device == "cuda" else "sockets"
        return (
            f"rank {group.rank} sends {mib(sent):.3g} MiB in {len(sent)} and receives {mib(came):.3g} MiB in {len(came)} "
            f"chunks a call, with {len(peers)} ranks of other nodes, by {way}"
        )

    @property
    def source(self) -> str:
        """Of the emitted kernel, the first one of several."""
        return self.artifact.kernel_source

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.stages[0].grid

    @property
    def is_on_gpu(self) -> bool:
        return self._packed is not None

    def is_by_row(self, tensor: str) -> bool:
        """Whether kernels are given all ranks' heaps as rows for it."""
        return tensor in self._by_row

    def arguments(self, index: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Of a stage's emitted kernel: bound parameters are replaced by their place in the heap, and what fuse has added
        is what it is now: where tiles read what the rank was given changes with set_input."""
        stage, full = self.stages[index], flat(given)
        for parameter, tensor in () if self.in_place else stage.bind.items():
            buffer, value = self.tensors[tensor], full[parameter]
            if tensor in self._by_row:
                buffer = flat_rows(self.op, buffer)
            full[parameter] = descriptor_like(value, buffer) if is_descriptor(value) else buffer
        own = {"sy_schedule": self.op.table_tensor_of(index), "sy_control": self.op.control_tensor}
        if stage.stated is not None:
            own |= self._flags[index]
            own |= stage.stated.nowhere()
            if (sums := self.op.sum_place()) is not None:
                own["sy_sums"] = sums
        if (place := self.op.own_place()) is not None:
            _, pitch, distance = place
            read = next(full[p] for p, tensor in stage.bind.items() if tensor == self.schedule.loads.tensor)
            own["sy_own"] = descriptor_of_own(self.op, read, pitch) if is_descriptor(read) else distance
        return nested(full) | own

    def compile(self, given: Sequence[Mapping[str, Any]], options: Sequence[Mapping[str, Any]]) -> None:
        """On a GPU, for arguments like these."""
        if self._packed is None:
            return
        for index, stage in enumerate(self.stages):
            full = stage.launched(self.arguments(index, given[index]))
            stage.compiled = jit.Variants(compiler_of(stage.kernel, stage.grid, options[index]), full)
            self.op.require_room(index, stage.compiled.first.kernel, list(stage.grid))

    def launch(self, key: Hashable, given: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """One call. `given`: the arguments of each stage; asked for only where there is none packed for `key`."""
        if self._packed is None:
            self.interpret([self.arguments(index, items) for index, items in enumerate(given())])
            return
        if self._sums:
            key = key, self.op.sum_place()  # an argument of the kernel, which set_output changes
        packed = self._packed.get(key)
        if packed is None:
            if len(self._packed) >= MOST_PACKED:
                self._packed.clear()
            packed = self._packed[key] = [
                self._pack(stage, self.arguments(index, items))
                for index, (stage, items) in enumerate(zip(self.stages, given(), strict=True))
            ]
        if len(packed) == 1:
            kernel, grid, arguments = packed[0]
            self.op.call(kernel, grid, jit.current_stream(), arguments)
        else:
            self.op.call_stages(packed, jit.current_stream())

    @staticmethod
    def _pack(stage: EmittedStage, arguments: Mapping[str, Any]) -> tuple:
        kernel, packed = stage.compiled.pack(stage.launched(arguments))
        return kernel, list(stage.grid), packed

    def launches(self) -> list[tuple]:
        """On a GPU, of each stage what the last new arguments were packed to: kernel, grid and arguments."""
        return next(reversed(self._packed.values()))

    def interpret(self, full: Sequence[Mapping[str, Any]]) -> None:
        """One call of the emitted kernels in the interpreter, with these arguments."""
        with call_on_host(self.op):
            self.interpret_kernels(full)

    def interpret_kernels(self, full: Sequence[Mapping[str, Any]]) -> None:
        """The same within a call that has begun."""
        for stage, arguments in zip(self.stages, full, strict=True):
            bounds = Bounds(arguments, self._reach())
            interpreter.launch(stage.kernel, stage.grid, dict(arguments), bounds)

    def _reach(self) -> list[tuple[str, int, int]]:
        """What the emitted kernels may touch beside their arguments: the heap's tensors on all ranks, where tiles store at
        peers or read there, and what this rank was given, where they read it in place."""
        reach = []
        first, count = self._mapped
        for rank in range(first, first + count):
            for name, *_ in self.schedule.tensors:
                buffer = self.op.tensor(name, rank)
                reach.append((name, buffer.data_ptr(), buffer.data_ptr() + buffer.numel()))
        if (place := self.op.own_place()) is not None:
            name = self.schedule.loads.tensor
            # Rows of the caller's tensor may lie further apart than those in the heap.
            address, pitch, _ = place
            rows = next(shape[0] for tensor, shape, _ in self.artifact.plan.tensors if tensor == name)
            size = max(self.op.tensor(name).numel(), pitch * rows)
            reach.append((name, address, address + size))
        return reach

    def launch_alone(self, key: Hashable, full: Callable[[], dict[str, Any]]) -> None:
        """The compiled kernel of one stage without its op, with the arguments that `full` gives once."""
        if self._packed is None:
            raise NotImplementedError("on the host there is no compiled kernel to launch")
        packed = self._alone.get(key)
        if packed is None:
            arguments = full()
            packed = self._alone[key] = (
                *self._pack(self.stages[0], arguments),
                arguments,
                full,
            )  # kept alive
        kernel, grid, numbers, *_ = packed
        kernel.launch(grid, jit.current_stream(), numbers)

    def require_there(self) -> None:
        """Raises UsageError where its group has gone on without it: its memory is gone."""
        if self.op.retired:
            self.op.check()

    def close(self) -> None:
        """Collective."""
        self.tensors.clear()
        self.recorder = None
        self.op.destroy()

    def end(self) -> None:
        """Ends the threads that move a host op's chunks. No call may follow."""
        if self._packed is None:
            for executable in list(self.executables):
                executable.end()
            self.tensors.clear()
            self.recorder = self.op = None


_alive: weakref.WeakSet[Prepared] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """A program may end without close(). The interpreter kills what still runs while it takes itself down, and a C++ thread
    that dies so, or is not joined, takes the process with it; so they end before."""
    for prepared in list(_alive):
        prepared.end()


def leak_in_child() -> None:
    """A forked child has the ops, but none of their threads: ending one there would wait for these for ever. So the child's
    are never destroyed, not at its end either."""
    for prepared in list(_alive):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(prepared.op))
    _alive.clear()


os.register_at_fork(after_in_child=leak_in_child)


def timing(deadline: float, host_delay: float, seed: int) -> dict[str, Any]:
    """How long an op's waits may last, in seconds (0: for ever), and by how many seconds, at random by `seed`, chunks are late on
    the host. ValueError for what is none of these."""
    for name, value in (("deadline", deadline), ("host_delay", host_delay)):
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= ANY_TIME:
            raise ValueError(f"{name}: expected seconds, from 0 on, got {value!r}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed: expected an integer, got {seed!r}")
    return {"deadline": float(deadline), "host_delay": float(host_delay), "seed": seed}


@contextmanager
def call_on_host(op: _syncopate.FusedOp) -> Iterator[None]:
    """One call, whose kernels the caller runs in the interpreter meanwhile. Where one fails, all ranks are told."""
    op.begin_call()
    try:
        yield
    except SyncopateFault:
        op.end_call(ran=False)  # says of which rank, op and chunk
        raise
    except BaseException as error:
        with suppress(_syncopate.SyncopateError):  # which says that this rank gave up
            op.end_call(ran=False)
        error.ended_call = True  # see cache.is_final
        raise
    op.end_call()


def unwrapped(kernel: Any) -> Any:
    """The JITFunction, or interpreted function, inside a kernel's layers (autotune, heuristics, a statement)."""
    while hasattr(kernel, "fn") and not (hasattr(kernel, "params") or hasattr(kernel, "rewrite")):
        kernel = kernel.fn
    return kernel


def compiler_of(
    kernel: Any, grid: Sequence[int], options: Mapping[str, Any]
) -> Callable[[dict[str, Any]], jit.Compiled]:
    """By which a kernel is compiled for arguments: Triton's JIT, or that of CUDA C++."""
    compile_for = getattr(kernel, "compile_for", None) or functools.partial(jit.compile_kernel, kernel)
    return lambda arguments: compile_for(arguments, tuple(grid), dict(options))


def descriptor_of_own(op: Any, given: Any, pitch: int) -> Any:
    """As the descriptor `given` of a tensor in the heap, of what this rank was given of it."""
    rows, columns = given.shape
    size = given.base.dtype.itemsize
    whole = op.own_rows((rows - 1) * pitch + columns * size).view(given.base.dtype)
    strides = [pitch // size, 1]
    return descriptor_like(given, whole.as_strided((rows, columns), strides))


def descriptor_like(given: Any, base: torch.Tensor) -> Any:
    """As the descriptor `given`, of another tensor; one of a single axis is of all its elements."""
    base = base.view(-1) if len(given.block_shape) == 1 else base
    return replace(given, base=base, shape=list(base.shape), strides=list(base.stride()))


def flat_rows(op: Any, own: torch.Tensor) -> torch.Tensor:
    """All ranks' heaps as rows like those of `own`: what a kernel is given that addresses them all."""
    flat, row = op.flat_heaps().view(own.dtype), math.prod(own.shape[1:])
    rows = flat.numel() // row
    return flat[: rows * row].view(rows, *own.shape[1:])
