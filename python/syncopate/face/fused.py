"""Kernels fused with a plan, called like the kernels they came from: of one stage, or of several that run
one after the other on one stream. Transfers of all stages run beside all of them, with one set of signals and one begin
and end of a call.

    fused = fuse(matmul, plan, bind={"a_ptr": "A"})
    fused[grid](a, b, c, M, N, K, …)

    block = fuse([up, down], plan, bind=[{"a_ptr": "X", "c_ptr": "H"}, {"a_ptr": "H", "c_ptr": "C"}])
    block.run([block.call(0, up_grid, x, w1, h, …), block.call(1, down_grid, h, w2, y, …)])
"""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .. import _syncopate
from ..call import places
from ..call.arguments import (
    LAUNCH_OPTIONS,
    base_of,
    bind_launch,
    function_of,
    is_descriptor,
    is_tensor,
    name_in_file,
    shape_and_strides,
)
from ..call.executable import Executable, Operand
from ..call.in_graphs import refuse_tracing, runs_whole
from ..call.places import OutputPlaces, box_view, check_output, check_shard, final_box, shard_view
from ..call.prepared import Prepared, timing
from ..call.stage_call import Call, Stage, TakenCall, launch_of, refuse_derivatives, require_values
from ..call.stated import StatedKernel, grid_of, require_one_cta, without_filled
from ..device import jit
from ..group import FailedTogether, Group, of_process_group
from ..strategy import Strategy, device_name


@dataclass
class _Text:
    """What the front end reads of a stage's kernel: Triton source, or a statement."""

    kernel: Any
    source: str
    file: str

    @property
    def name(self) -> str:
        return function_of(self.kernel).__name__

    @property
    def asked(self) -> str:
        return self.name if isinstance(self.kernel, StatedKernel) else name_in_file(self.kernel)

    @classmethod
    def of(cls, kernel: Any) -> _Text:
        if isinstance(kernel, StatedKernel):
            return cls(kernel, kernel.statement, kernel.file + ".kernel.json")
        function = function_of(kernel)
        file = inspect.getsourcefile(function) or "<unknown>"
        if "<locals>" in function.__qualname__:
            raise ValueError(
                f"{file}:{function.__code__.co_firstlineno}: {function.__name__} is defined inside a function: a kernel that "
                "is fused must be found in its file by name; define it at the top level"
            )
        return cls(kernel, Path(file).read_text(), file)

    def load(self, stage: Any) -> Any:
        """The emitted kernel, as if it stood in its user's module. A stated one is left as it is."""
        if isinstance(self.kernel, StatedKernel):
            return self.kernel
        function = function_of(self.kernel)
        module = inspect.getmodule(function)
        package = module.__package__ if module else None
        origin = (self.file, stage.original)
        try:
            loaded = jit.load_module(stage.source, stage.kernel, package, origin=origin)
            kernel = jit.kernel_in(loaded, function.__qualname__)
        except jit.CacheError:
            raise
        except Exception as error:
            raise RuntimeError(
                f"{self.file}: importing it for the fused {stage.kernel} failed: {error}. What the file runs belongs "
                'under `if __name__ == "__main__":`'
            ) from error
        if _earlier(stage.original, function) != _earlier(stage.source, function_of(kernel)):
            raise RuntimeError(
                f"{self.file}: importing it for the fused {stage.kernel} gives another function of that name than the one on "
                f"line {function.__code__.co_firstlineno}: give them different names"
            )
        return kernel


def _earlier(text: str, function: Any) -> int:
    """How many functions of its name a file has before it; 0 where it has no other, wherever that is by now."""
    define = re.compile(rf"\s*def {function.__name__}\b")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if define.match(line)]
    return sum(number < function.__code__.co_firstlineno for number in lines) if len(lines) > 1 else 0


class FusedKernel:
    """A program of one stage launches like its kernel: `fused[grid](a, b, c, M, …)`; one of several with `run`.

    A parameter bound to a plan tensor that the kernel reads takes this rank's shard: a tensor (or descriptor) that holds
    what the plan says the rank holds initially. If it is that very place in the heap (see `shard`), nothing is copied.
    One bound to a tensor that the kernel makes (`produced` in the plan) takes the output: what the plan says the rank
    holds at the end (`final`), in a tensor of that shape or in its place in one of the whole shape. Into what the kernel
    adds (tl.atomic_add), the whole tensor is to be given: it also says from what the sums start. For a tensor of the plan
    that one stage writes and another one reads, anything of its shape is taken: it stays in the heap.
    Strides among the scalar arguments are those of the whole tensor, row-major. All ranks make the same calls in the
    same order.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        plan: _syncopate.Plan,
        group: Group | Any | None = None,
        strategy: Strategy | None = None,
        *,
        deadline: float = 30.0,
        host_delay: float = 0.0,
        seed: int = 0,
        read_in_place: Sequence[str] = (),
        in_step: bool = False,
        in_heap: bool = False,
        what: str = "",
    ) -> None:
        """`read_in_place`: tensors of the plan of which kernels read this rank's own part by arguments that are not bound, so
        that the heap needs no copy of it. `in_step`: where a rank cannot fuse or compile, no rank goes on (Group.together).
        `in_heap`: it is given the heap's own tensors, which are whole, and not a user's. `what`: what is called, where the
        ranks' calls differ."""
        self.stages, self.plan, self.group = list(stages), plan, group
        self.strategy = strategy or Strategy()
        self._timing = timing(deadline, host_delay, seed)
        self._read_in_place = list(read_in_place)
        self._in_step, self._in_heap, self._what = in_step, in_heap, what
        self._signatures = [
            k.signature if isinstance(k, StatedKernel) else inspect.signature(function_of(k))
            for k in (stage.kernel for stage in self.stages)
        ]
        self._texts = {"cuda": [_Text.of(stage.kernel) for stage in self.stages]}
        self._held = {name for rank in range(plan.num_ranks) for name, _ in plan.initial(rank)}
        self._prepared: dict[tuple, Prepared] = {}
        self._ended: list[Prepared] = []
        self._executables: dict[Prepared, Executable] = {}

    @property
    def prepared(self) -> list[Prepared]:
        """What has been set up so far, by set of arguments."""
        return list(self._prepared.values())

    @property
    def source(self) -> str:
        """The file of the first stage's kernel, or its statement."""
        return self._texts["cuda"][0].source

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self.run([self.call(0, grid, *args, **kwargs)])

    @runs_whole
    def call(self, stage: int, grid: Any, /, *args: Any, **kwargs: Any) -> Call:
        """The arguments of a stage's kernel, and launch options, as `kernel[grid](…)` takes them."""
        refuse_tracing("a fused kernel")
        jit.refuse_launches_of_an_import()
        if not 0 <= stage < len(self.stages):
            raise ValueError(f"call: there is no stage {stage} of {len(self.stages)}")
        signature = self._signatures[stage]
        options = {name: kwargs[name] for name in LAUNCH_OPTIONS if name in kwargs}
        require_one_cta(self.stages[stage].kernel, options)
        for name in set(options) - set(signature.parameters):  # a kernel may ask for num_stages itself
            del kwargs[name]
        bound = bind_launch(self.stages[stage].kernel, signature, args, kwargs)
        return Call(grid, dict(bound.arguments), options)

    @runs_whole
    def run(self, calls: Sequence[Call]) -> None:
        """One call of the program, a Call for each stage."""
        refuse_tracing("a fused kernel")
        refuse_derivatives(calls)
        self._run(calls)

    def _run(self, calls: Sequence[Call]) -> None:
        """As each kind of program does it."""
        prepared = None
        try:
            prepared, items = self._find(calls)
            if not self._executable(prepared, items).run(_tensors_in(items)):
                for name, value in ((name, value) for given in items for name, value in given.items()):
                    if is_tensor(value):
                        places.require_memory(name, base_of(value))
                raise RuntimeError(
                    f"{self._texts['cuda'][0].name}: its compiled kernels do not take these tensors"
                )
        except (ValueError, TypeError, RuntimeError) as error:
            if prepared is not None and isinstance(error, ValueError) and self.drops(prepared):
                if not prepared.op.had_been_told:
                    raise
                self._run(calls)  # what ended it was no news to this rank
                return
            raise

    def drops(self, prepared: Prepared) -> bool:
        """After a ValueError of its call: whether the ranks' calls differ, so that the next call prepares it anew."""
        if not prepared.op.calls_differ:
            return False
        self._prepared = {key: one for key, one in self._prepared.items() if one is not prepared}
        self._executables.pop(prepared, None)
        if prepared.is_on_gpu:
            self._ended.append(prepared)  # graphs may replay it, which then end at once
        return True

    def _executable(self, prepared: Prepared, items: Sequence[Mapping[str, Any]]) -> Executable:
        """Its operands: the tensors of all stages, in the order of their parameters."""
        if prepared in self._executables:
            return self._executables[prepared]
        operands = [
            self._operand(prepared, stage, name, value)
            for stage, given in zip(prepared.stages, items, strict=True)
            for name, value in given.items()
            if is_tensor(value)
        ]
        known = _without_tensors(items)
        made = Executable(prepared, operands, lambda tensors: _with_tensors(known, tensors))
        self._executables[prepared] = made
        return made

    def _operand(self, prepared: Prepared, stage: Any, name: str, value: Any) -> Operand:
        """What the plan moves of it."""
        laid = _laid_out(value)
        operand, tensor = Operand(name, laid.dtype, laid.shape), stage.bind.get(name)
        if tensor is None:
            return operand
        if tensor not in self.plan.produced:
            operand.inputs = [(tensor, None, [])] if tensor in self._held else []
            return operand
        if name in stage.accumulates:
            operand.inputs = [(tensor, [(0, n) for n in laid.shape], [])]
        operand.outputs = OutputPlaces(self.plan, prepared.op.rank, tensor).parts(laid.shape)
        return operand

    def prepare(self, grid: Any, *args: Any, **kwargs: Any) -> Prepared:
        """Fuses, allocates and compiles for these arguments without running. Collective: all ranks call it alike."""
        return self._find([self.call(0, grid, *args, **kwargs)])[0]

    def prepare_calls(self, calls: Sequence[Call]) -> Prepared:
        """The same for a program of several stages."""
        return self._find(calls)[0]

    def shard(self, prepared: Prepared, tensor: str) -> torch.Tensor:
        """Where this rank's part of `tensor` lies in the heap: write the input there and no copy is made."""
        return shard_view(self.plan, prepared.op.rank, tensor, prepared.tensors[tensor])

    def result(self, prepared: Prepared, tensor: str) -> torch.Tensor:
        """Where what this rank holds of `tensor` at the end of a call lies in the heap, until its next call."""
        return box_view(final_box(self.plan, prepared.op.rank, tensor), prepared.tensors[tensor])

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired. Synchronises the device."""
        for prepared in self.prepared:
            if not prepared.op.is_told:
                prepared.op.check()

    @property
    def calls_differ(self) -> bool:
        """Whether the ranks called different programs in a call of one of these, which its next call prepares anew."""
        return any(prepared.op.calls_differ for prepared in self._prepared.values())

    def reset(self) -> None:
        """After a call that failed on all ranks since one was late: what is in flight is dropped, and calls go on. Collective.
        Raises MachineError where a rank does not come: then see syncopate.recover."""
        for prepared in self._prepared.values():
            prepared.op.reset()

    def close(self) -> None:
        """Frees heap memory and streams. Collective."""
        for prepared in self._prepared.values():
            if not prepared.op.calls_differ:  # such a one some ranks have dropped
                prepared.close()
        self._prepared.clear()
        self._ended.clear()
        self._executables.clear()

    def place(self, prepared: Prepared, items: Sequence[Mapping[str, Any]]) -> None:
        """Tells the op where its inputs and outputs are: in what the stages are given for the plan's tensors."""
        self._executable(prepared, items).native.place(_tensors_in(items))

    def _find(self, calls: Sequence[Call]) -> tuple[Prepared, list[dict[str, Any]]]:
        if len(calls) != len(self.stages):
            raise TypeError(
                f"the program has {len(self.stages)} stages: give a Call for each, got {len(calls)}"
            )
        taken = [launch_of(stage, call) for stage, call in zip(self.stages, calls, strict=True)]
        key = tuple(one.key for one in taken)
        prepared = self._prepared.get(key)
        if prepared is not None and prepared.op.retired:
            self.drops(prepared)
            prepared = None
        if prepared is None:
            for stage, call in zip(self.stages, calls, strict=True):
                self._check_statement(stage, call)
            prepared = self._prepared[key] = self._prepare(taken)
        return prepared, [one.items for one in taken]

    def _check_statement(self, stage: Stage, call: Call) -> None:
        """A stated kernel is held against the one that stands in for it on host, if there is one."""
        if not isinstance(stage.kernel, StatedKernel):
            return
        given = without_filled(call.arguments)
        shapes = {name: (shape, dtype) for name, shape, dtype in self.plan.tensors}
        whole = {p: shapes[t] for p, t in stage.bind.items() if t in shapes and is_tensor(given.get(p))}
        stage.kernel.require_host_alike(given, grid_of(call.grid, given), whole)

    @property
    def _called(self) -> str:
        """What all ranks know alike of what is called."""
        kernels = ", ".join(text.name for text in self._texts["cuda"])
        tensors = ", ".join(f"{name} {dtype}{list(shape)}" for name, shape, dtype in self.plan.tensors)
        return self._what or f"{kernels} with {tensors}"

    def _prepare(self, taken: Sequence[TakenCall]) -> Prepared:
        cuda = any(base_of(one.items[name]).is_cuda for one in taken for name in one.tensors)
        device = "cuda" if cuda else "host"
        group = self.group if isinstance(self.group, Group) else of_process_group(self.group, device)
        if group.size != self.plan.num_ranks:
            raise ValueError(f"the plan is for {self.plan.num_ranks} ranks, the group has {group.size}")
        for index, one in enumerate(taken):
            self._bind_to_plan(index, one, group, device)
            for name in one.values if cuda else ():  # on the host each call is held against them
                require_values(name, one)
        with group.calling(self._called):
            return self._set_up(taken, group, device)

    def _set_up(self, taken: Sequence[TakenCall], group: Group, device: str) -> Prepared:
        texts = self._texts_on(device)
        machine = group.machine if device == "cuda" else ""

        def fused() -> tuple[_syncopate.Artifact, list[Any]]:
            artifact = self._fuse(taken, texts, device, group.multiprocessors(), group.rank, machine)
            self._require_whole_sums(artifact, taken)
            return artifact, [text.load(stage) for text, stage in zip(texts, artifact.stages, strict=True)]

        artifact, kernels = self._together(group, "fused", fused)
        prepared = Prepared(
            artifact,
            group,
            kernels,
            read_in_place=self._read_in_place,
            what=self._what,
            **self._timing,
        )

        def compiled() -> None:
            prepared.compile([one.items for one in taken], [one.options for one in taken])

        try:
            self._together(group, "compiled", compiled)
        except Exception:
            if self._in_step or self.plan.num_nodes > 1:  # all ranks have failed
                prepared.close()
            raise
        return prepared

    def _together(self, group: Group, what: str, work: Callable[[], Any]) -> Any:
        """In step all ranks hear of it where one cannot. Of several nodes they do, too, as each makes its own part; a rank's own
        error stays what it is, where it is one that callers expect of a program that cannot be fused."""
        if self._in_step:
            return group.together(what, work)
        if self.plan.num_nodes == 1:
            return work()
        try:
            return group.together(what, work)
        except FailedTogether as failed:
            if isinstance(failed.__cause__, (ValueError, _syncopate.SyncopateError)):
                raise failed.__cause__ from None
            raise

    def _bind_to_plan(self, index: int, one: TakenCall, group: Group, device: str) -> None:
        """Checks what a stage is given for the plan's tensors, and describes it as these, which the kernel gets."""
        whole = {name: (list(shape), dtype) for name, shape, dtype in self.plan.tensors}
        for parameter, tensor in self.stages[index].bind.items():
            if parameter not in one.tensors:
                name = self._texts["cuda"][index].name
                raise ValueError(
                    f"bind: {parameter} is not a tensor parameter of {name}; it has {', '.join(one.tensors)}"
                )
            if tensor not in whole:
                raise ValueError(f"bind: the plan has no tensor {tensor}; it has {', '.join(whole)}")
            shape, dtype = whole[tensor]
            check = check_output if tensor in self.plan.produced else check_shard
            value = one.items[parameter]
            if not self._in_heap:
                check(self.plan, group.rank, tensor, parameter, value, shape, dtype, device, group.ordinal)
            one.tensors[parameter] = (shape, [], dtype, one.tensors[parameter][3])

    def _texts_on(self, device: str) -> list[_Text]:
        """On host a stated kernel's own one stands in."""
        if device not in self._texts:
            kernels = [stage.kernel for stage in self.stages]
            self._texts[device] = [_Text.of(k.host if isinstance(k, StatedKernel) else k) for k in kernels]
        return self._texts[device]

    def _fuse(
        self,
        taken: Sequence[TakenCall],
        texts: Sequence[_Text],
        device: str,
        num_sms: int,
        rank: int | None = None,
        machine: str = "",
    ) -> _syncopate.Artifact:
        stages = [
            (text.source, text.file, text.asked, dict(stage.bind), one.scalars, one.tensors, one.grid)
            for text, stage, one in zip(texts, self.stages, taken, strict=True)
        ]
        artifact = _syncopate.fuse(
            stages,
            self.plan,
            device,
            num_sms,
            self.strategy,
            values=[one.values for one in taken],
            device_name=device_name() if device == "cuda" else "",
            rank=rank,
            machine=machine,
        )
        for warning in artifact.warnings:
            warnings.warn(f"syncopate: {warning}", stacklevel=8)
        return artifact

    def _require_whole_sums(self, artifact: _syncopate.Artifact, taken: Sequence[TakenCall]) -> None:
        whole = {name: list(shape) for name, shape, _ in self.plan.tensors}
        for stage, one in zip(artifact.stages, taken, strict=True):
            for parameter in stage.accumulates:
                shape, given = whole[stage.bindings[parameter]], shape_and_strides(one.items[parameter])[0]
                if given != shape:
                    raise ValueError(
                        f"{parameter}: the kernel adds to it, or may leave elements as they are, so give it whole, {shape}, "
                        f"with what it starts from; got {given}"
                    )


def _tensors_in(items: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
    """Of all stages' arguments, in order."""
    return [_laid_out(value) for given in items for value in given.values() if is_tensor(value)]


def _laid_out(value: Any) -> torch.Tensor:
    """The tensor, or what a descriptor describes of one. One without axes has one here, as plans' tensors do."""
    base = base_of(value)
    if is_descriptor(value) and (tuple(value.shape) != base.shape or tuple(value.strides) != base.stride()):
        return base.as_strided(tuple(value.shape), tuple(value.strides))
    return base if base.dim() else base.view(1)


def _without_tensors(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What _with_tensors fills in again: calls come with other tensors, and the first ones are not to be kept."""

    def emptied(value: Any) -> Any:
        if is_descriptor(value):
            value = copy.copy(value)
            value.base = None
            return _Gap(value)
        return _Gap(None, value.dim()) if is_tensor(value) else value

    return [{name: emptied(value) for name, value in given.items()} for given in items]


@dataclass
class _Gap:
    """The place of a tensor: of a descriptor's base, or itself."""

    descriptor: Any
    axes: int = 0


def _with_tensors(
    items: Sequence[Mapping[str, Any]], tensors: Sequence[torch.Tensor]
) -> list[dict[str, Any]]:
    """The arguments, with these tensors in their places."""
    rest = iter(tensors)

    def filled(value: Any) -> Any:
        if not isinstance(value, _Gap):
            return value
        tensor = next(rest)
        if value.descriptor is not None:
            return replace(value.descriptor, base=tensor)
        return tensor if value.axes else tensor.view(())

    return [{name: filled(value) for name, value in given.items()} for given in items]
