"""A prepared program whose calls are one call of C++ (include/syncopate/runtime/executable/executable.hpp): which tensors a call
gives, and of the kernels' arguments which ones follow them. Python is entered again only for tensors of another layout, for
which the kernels may have to be compiled anew."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _syncopate
from ..device import jit
from ..device.fault import SyncopateFault
from .arguments import DTYPE_NAMES, base_of, is_descriptor, is_tensor
from .prepared import EmittedStage, Prepared
from .tuples import flat

_syncopate.set_tensor_types(torch.Tensor, torch.nn.Parameter)

ANY, ROWS, ALIGNED_ROWS, CONTIGUOUS, APART = range(5)  # Operand::Layout

#: What the plan moves of an operand: the plan's tensor, the region (None: all that the rank holds), and where it begins.
Part = tuple[str, "list[tuple[int, int]] | None", list[int]]


@dataclass
class Operand:
    """A tensor that every call gives."""

    name: str
    dtype: torch.dtype
    shape: Sequence[int]
    layout: int = ANY
    inputs: list[Part] = field(default_factory=list)
    outputs: list[Part] = field(default_factory=list)

    @property
    def described(self) -> tuple:
        return (
            self.name,
            DTYPE_NAMES[self.dtype],
            list(self.shape),
            self.layout,
            self.inputs,
            self.outputs,
        )


#: Parameters by which a kernel follows a schedule, and the memory that they name (Memory::Of).
SPECIAL = {"sy_schedule": "table", "sy_control": "control", "sy_sums": "sums", "sy_own": "own"}

#: The stages' arguments by parameter, for these tensors.
Given = Callable[[Sequence[torch.Tensor]], Sequence[Mapping[str, Any]]]


class Executable:
    """The calls of a prepared program. `given` says what its kernels are called with; what lies in the memory of an operand
    follows that one."""

    def __init__(self, prepared: Prepared, operands: Sequence[Operand], given: Given) -> None:
        self._prepared, self._operands = prepared, list(operands)
        # A method's object keeps this one, and goes, with its op, when it is last used.
        self._find_given = weakref.WeakMethod(given) if inspect.ismethod(given) else lambda: given
        self._kept: list[Any] = []  # tensors of ours that kernels are given
        on_host = None if prepared.is_on_gpu else _weakly(self)
        self.native = _syncopate.Executable(prepared.op, [one.described for one in operands], on_host)
        prepared.executables.add(self)

    def _given(self, tensors: Sequence[torch.Tensor]) -> Sequence[Mapping[str, Any]]:
        return self._find_given()(tensors)

    def end(self) -> None:
        """No call may follow; the op is Python's alone."""
        self.native = None

    def run(self, tensors: Sequence[torch.Tensor]) -> bool:
        """One call; False, and nothing has begun, where the tensors are not what the operands are."""
        if self.native.run(tensors):
            return True
        if not self._prepared.is_on_gpu or not self.native.takes(tensors):
            return False
        self.native.add(self._form(tensors))
        return self.native.run(tensors)

    def _on_host(self, arrays: Sequence[torch.Tensor]) -> bool:
        """The kernels in the interpreter; False where a wait of theirs has ended with a fault, of which the op knows more."""
        tensors = [one.view(of.dtype) for one, of in zip(arrays, self._operands, strict=True)]
        prepared = self._prepared
        try:
            prepared.interpret_kernels(
                [prepared.arguments(index, items) for index, items in enumerate(self._given(tensors))]
            )
        except SyncopateFault:
            return False
        except BaseException as error:
            error.ended_call = True  # see cache.is_final
            raise
        return True

    def _form(self, tensors: Sequence[torch.Tensor]) -> _syncopate.Form:
        """The compiled kernels for tensors like these, and what each of their arguments follows."""
        return _FormMaker(self._prepared, _told_apart(tensors), self._kept).make(self._given)


def _weakly(executable: Executable) -> Callable[[Sequence[torch.Tensor]], bool]:
    """Its kernels on host, for C++ to keep: no circle that only Python's collector could see."""
    known = weakref.ref(executable)

    def run(arrays: Sequence[torch.Tensor]) -> bool:
        found = known()
        if found is None:
            raise RuntimeError("the operator of this call is gone")
        return found._on_host(arrays)

    return run


def _told_apart(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same, but no two in the same memory: which one an argument follows is seen by where it lies."""
    seen: set[int] = set()
    made = []
    for one in tensors:
        storage = _storage_of(one)
        if storage in seen:
            one = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
        seen.add(_storage_of(one))
        made.append(one)
    return made


def _storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class _FormMaker:
    def __init__(self, prepared: Prepared, tensors: Sequence[torch.Tensor], kept: list[Any]) -> None:
        self._prepared, self._tensors, self._kept = prepared, tensors, kept
        self._operand_of = {_storage_of(one): index for index, one in enumerate(tensors)}
        self._number_of = {name: index for index, (name, *_) in enumerate(prepared.schedule.tensors)}
        self._strides: list[list[int]] = [[] for _ in tensors]
        self._alignment = [0] * len(tensors)
        self._form = _syncopate.Form()

    def make(self, given: Given) -> _syncopate.Form:
        for index, (stage, items) in enumerate(zip(self._prepared.stages, given(self._tensors), strict=True)):
            self._add_stage(stage, self._prepared.arguments(index, items))
        self._form.strides, self._form.alignment = self._strides, self._alignment
        return self._form

    def _add_stage(self, stage: EmittedStage, full: Mapping[str, Any]) -> None:
        launched = stage.launched(full)
        compiled = stage.compiled.for_arguments(launched)
        self._form.stage(compiled.kernel, [*stage.grid, 1, 1][:3])
        named, descriptors = flat(full), iter(compiled.descriptor_metadata or [])
        for place, name, kind, value in jit.items_of(compiled.signature, launched):
            if kind == "constexpr":
                continue
            of = self._memory_of(stage, name, named.get(name, value))
            if kind.startswith(jit.DESCRIPTOR):
                jit.pack_descriptor(self._form, value, next(descriptors, None), of)
            elif of is None:
                jit.pack_number(self._form, name, kind, value)
            elif of[0] == "distance":
                self._form.add_own_distance()
            else:
                self._form.add_pointer(*of)
            if of is not None and of[0] == "operand":
                aligned = kind.startswith(jit.DESCRIPTOR) or place in compiled.multiples
                self._follow(of[1], 16 if aligned else 0)

    def _follow(self, operand: int, alignment: int) -> None:
        self._strides[operand] = list(self._tensors[operand].stride())
        self._alignment[operand] = max(self._alignment[operand], alignment)

    def _memory_of(self, stage: EmittedStage, name: str, value: Any) -> tuple[str, int, int] | None:
        """(what it names, of which number, bytes behind it); None of a number."""
        if name in SPECIAL:
            op = self._prepared.op
            if name == "sy_own":
                if op.own_place() is None:
                    return None
                return ("own" if is_descriptor(value) else "distance"), 0, 0
            return None if name == "sy_sums" and op.sum_place() is None else (SPECIAL[name], 0, 0)
        if not is_tensor(value):
            return None
        tensor = stage.bind.get(name)
        if tensor is not None and not self._prepared.in_place:
            by_row = self._prepared.is_by_row(tensor)
            return ("heaps", 0, 0) if by_row else ("tensor", self._number_of[tensor], 0)
        base = base_of(value)
        operand = self._operand_of.get(_storage_of(base))
        if operand is None:
            self._kept.append(base)
            return "fixed", 0, base.data_ptr()
        return "operand", operand, base.data_ptr() - self._tensors[operand].data_ptr()
