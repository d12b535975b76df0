"""Footprints held against what a kernel touches: its programs run in Triton's interpreter with recorded addresses.

    from syncopate import debug

    for access in debug.check_footprints(gather, (3,), x, index, y, B=8):
        print(access)  # gather.py:10: program 1 loads x_ptr[17] (5 elements in all), outside its footprint x_ptr[8:16]

Meant for kernels whose footprint a directive states (`# @sy.reads`, `# @sy.writes`): what a person wrote is checked with
real data. Needs TRITON_INTERPRET=1 before Triton is imported, and CPU tensors; the kernel runs in full and writes its
outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import _syncopate
from .call.arguments import (
    LAUNCH_OPTIONS,
    base_of,
    describe,
    elements_of,
    function_of,
    is_tensor,
    name_in_file,
    scalar,
)
from .call.tuples import flat
from .host import bounds, interpreter

__all__ = [
    "Outside",
    "Touch",
    "check_footprints",
    "footprints_by_program",
    "outside",
    "record",
]


@dataclass(frozen=True)
class Touch:
    """What one load, store or atomic of one program touched. `program`: linear, x fastest."""

    program: int
    write: bool
    addresses: np.ndarray  # unique byte addresses of elements, under the mask
    file: str
    line: int


@dataclass(frozen=True)
class Outside:
    """An access of one program to elements of `parameter` that its footprint lacks. No parameter: no tensor at all."""

    file: str
    line: int
    program: int
    write: bool
    parameter: str
    elements: tuple[tuple[int, ...], ...]
    footprint: tuple[tuple[tuple[int, int], ...], ...] = ()

    def __str__(self) -> str:
        verb = "stores to" if self.write else "loads"
        where = f"{self.file}:{self.line}: program {self.program} {verb}"
        if not self.parameter:
            return f"{where} {len(self.elements)} addresses outside every tensor argument"
        first = ", ".join(map(str, self.elements[0]))
        boxes = " ".join(
            "[" + ", ".join(f"{begin}:{end}" for begin, end in box) + "]" for box in self.footprint
        )
        more = f" ({len(self.elements)} elements in all)" if len(self.elements) > 1 else ""
        stated = f"its footprint {self.parameter}{boxes}" if boxes else "its footprint, which is empty"
        return f"{where} {self.parameter}[{first}]{more}, outside {stated}"


def record(kernel: Any, grid: Sequence[int], arguments: Mapping[str, Any]) -> list[Touch]:
    """Runs every program of `grid` in the interpreter; each load, store and atomic (which is both), in order."""
    touches: list[Touch] = []

    def note(builder: Any, verb: str, pointers: Any, mask: Any, _: Any) -> None:
        addresses = np.asarray(pointers.data)
        if mask is not None:
            addresses = addresses[np.broadcast_to(np.asarray(mask.data, dtype=bool), addresses.shape)]
        (x, y, z), (nx, ny, _) = builder.grid_idx, builder.grid_dim
        file, line = bounds.user_line(2, lambda file: "/triton/" not in file and file != bounds.__file__)
        for write in {"loads": (False,), "stores to": (True,), "updates": (False, True)}[verb]:
            touches.append(Touch(x + nx * (y + ny * z), write, np.unique(addresses), file, line))

    with bounds.watched(note):
        interpreter.launch(kernel, (tuple(grid) + (1, 1, 1))[:3], dict(arguments))
    return touches


class Places:
    """Addresses as elements of the tensor arguments. An address may belong to several, where they share memory."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.tensors = {}
        self._offsets = {}  # of each element, row-major
        for name, value in flat(arguments).items():
            if not is_tensor(value):
                continue
            shape, strides, _, _ = describe(value)
            offsets = np.zeros(shape, dtype=np.int64)
            for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
                along = np.arange(extent, dtype=np.int64) * stride
                offsets += along.reshape([-1 if a == axis else 1 for a in range(len(shape))])
            linear = offsets.reshape(-1)
            index = np.full(int(linear.max()) + 1 if linear.size else 0, -1, dtype=np.int64)
            index[linear] = np.arange(linear.size)  # from an offset in elements to the row-major index
            self.tensors[name] = (base_of(value).data_ptr(), base_of(value).element_size(), index, shape)
            self._offsets[name] = linear

    def elements(self, addresses: np.ndarray) -> dict[str, np.ndarray]:
        """By parameter, for each address the row-major index of its element, or -1."""
        found = {}
        for name, (base, size, index, _) in self.tensors.items():
            offsets = addresses.astype(np.int64) - base
            inside = (offsets >= 0) & (offsets < index.size * size)
            found[name] = np.full(addresses.shape, -1, dtype=np.int64)
            found[name][inside] = index[offsets[inside] // size]
        return found

    def mask(self, name: str, boxes: Sequence[Sequence[tuple[int, ...]]]) -> np.ndarray:
        """Which elements (row-major) of a tensor its boxes hold; a range is (begin, end) or (begin, end, step)."""
        mask = np.zeros(self.tensors[name][3], dtype=bool)
        for box in boxes:
            mask[tuple(slice(*bounds) for bounds in box)] = True
        return mask.reshape(-1)

    def mask_by_address(self, name: str, boxes: Sequence[Sequence[tuple[int, ...]]]) -> np.ndarray:
        """As `mask`, with the elements that lie where those do: an expanded tensor has several at one address."""
        offsets, index = self._offsets[name], self.tensors[name][2]
        held = np.zeros(index.size, dtype=bool)
        held[offsets[self.mask(name, boxes)]] = True
        return held[offsets]

    def coordinates(self, name: str, indices: np.ndarray) -> tuple[tuple[int, ...], ...]:
        axes = np.unravel_index(indices, self.tensors[name][3])
        return tuple(tuple(int(n) for n in place) for place in zip(*axes, strict=True))


def analyse(
    kernel: Any, grid: Sequence[int] | None, arguments: Mapping[str, Any], values: Sequence[str] = ()
) -> dict[str, Any]:
    """What the front end finds for these arguments; see `_syncopate.analyse`. No `grid`: it has to follow from the kernel.
    `values`: integer tensors among the arguments whose elements it may know."""
    function = function_of(kernel)
    file = inspect.getsourcefile(function) or "<unknown>"
    items = flat(arguments)
    return _syncopate.analyse(
        Path(file).read_text(),
        file,
        name_in_file(kernel),
        {name: scalar(value) for name, value in items.items() if not is_tensor(value)},
        {name: describe(value) for name, value in items.items() if is_tensor(value)},
        None if grid is None else (tuple(grid) + (1, 1, 1))[:3],
        values={name: elements_of(items[name]) for name in values},
    )


def footprints_by_program(analysis: Mapping[str, Any]) -> dict[tuple[int, bool], dict[str, list]]:
    """(program, write) → parameter → the boxes of all its tiles."""
    boxes: dict[tuple[int, bool], dict[str, list]] = {}
    for program, reads, writes, *_ in analysis["tiles"]:
        for write, found in ((False, reads), (True, writes)):
            for name, parts in found.items():
                boxes.setdefault((program, write), {}).setdefault(name, []).extend(parts)
    return boxes


def outside(touches: Sequence[Touch], places: Places, analysis: Mapping[str, Any]) -> list[Outside]:
    """Each access (by line and program) that leaves the footprints of the program that makes it."""
    boxes = footprints_by_program(analysis)
    held: dict[tuple[int, bool, str], np.ndarray] = {}
    found: dict[tuple, Outside] = {}
    for touch in touches:
        where = (touch.program, touch.write)
        left = np.ones(touch.addresses.shape, dtype=bool)
        owner = ""
        elements = places.elements(touch.addresses)
        for name, indices in elements.items():
            here = indices >= 0
            if not here.any():
                continue
            key = (*where, name)
            if key not in held:
                held[key] = places.mask_by_address(name, boxes.get(where, {}).get(name, []))
            owner = name
            left[here] &= ~held[key][indices[here]]
        if not left.any():
            continue
        key = (touch.file, touch.line, *where, owner)
        inside = left & (elements[owner] >= 0) if owner else left
        stated = tuple(tuple(map(tuple, box)) for box in boxes.get(where, {}).get(owner, []))
        if owner and inside.any():
            places_left = places.coordinates(owner, elements[owner][inside])
        else:
            owner, stated = "", ()
            places_left = tuple((int(a),) for a in touch.addresses[left])
        known = found.get(key)
        if known:
            places_left = tuple(sorted({*known.elements, *places_left}))
        found[key] = Outside(touch.file, touch.line, *where, owner, places_left, stated)
    return list(found.values())


def check_footprints(kernel: Any, grid: Any, *args: Any, **kwargs: Any) -> list[Outside]:
    """Runs `kernel[grid](*args, **kwargs)` in the interpreter and returns each access outside the footprint that the
    front end infers, or that directives state, for the program that makes it. Empty: the footprints held, for this data.

    Raises what the front end raises (InputError, with file:line:col) where it cannot tell the footprints.
    """
    signature = inspect.signature(function_of(kernel))
    named = {n: v for n, v in kwargs.items() if n not in LAUNCH_OPTIONS or n in signature.parameters}
    bound = signature.bind(*args, **named)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    if callable(grid):
        grid = grid({name: scalar(value) for name, value in arguments.items() if not is_tensor(value)})
    analysis = analyse(kernel, grid, arguments)
    return outside(record(kernel, grid, arguments), Places(arguments), analysis)
