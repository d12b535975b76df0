"""A stage of a program, what its kernel is called with, and that call as the front end takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .arguments import base_of, describe, elements_of, is_tensor, launch_key, scalar
from .forward_mode import in_forward_mode, refuse_tangents
from .stated import StatedKernel, grid_of, on_gpu, without_filled
from .tuples import flat


@dataclass(frozen=True)
class Stage:
    """A kernel, which of its parameters are which tensors of the plan, and the elements of integer tensors that it is known
    to be called with."""

    kernel: Any
    bind: Mapping[str, str]
    values: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class Call:
    """What a stage's kernel is called with. `options`: num_warps, num_stages, …"""

    grid: Any
    arguments: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class TakenCall:
    """A stage's call as the front end takes it: a kernel's tensors, scalars and grid, by parameter."""

    grid: tuple[int, int, int]
    items: dict[str, Any]
    scalars: dict[str, Any]
    tensors: dict[str, tuple[list[int], list[int], str, list[int]]]
    options: dict[str, Any]
    values: dict[str, list[int]]

    @property
    def key(self) -> tuple:
        return (
            self.grid,
            tuple((name, tuple(elements)) for name, elements in self.values.items()),
            tuple((name, launch_key(value)) for name, value in self.scalars.items()),
            tuple(
                (name, *map(tuple, (s, t)), d, tuple(b), base_of(self.items[name]).device)
                for name, (s, t, d, b) in self.tensors.items()
            ),
            tuple(sorted(self.options.items())),
        )


def refuse_derivatives(calls: Sequence[Call]) -> None:
    """ValueError for a tensor that asks for a gradient, and RuntimeError for one with a tangent: a kernel has neither, so these would be
    missing without a word."""
    recorded = torch.is_grad_enabled()
    if not recorded and not in_forward_mode():
        return
    for call in calls:
        given = {name: base_of(value) for name, value in flat(call.arguments).items() if is_tensor(value)}
        asking = [name for name, value in given.items() if recorded and value.requires_grad]
        if asking:
            raise ValueError(
                f"{asking[0]} requires a gradient, and a fused kernel has none: call it within a torch.autograd.Function that "
                "says what it is, or under torch.no_grad()"
            )
        refuse_tangents(given)


def launch_of(stage: Stage, call: Call) -> TakenCall:
    """The stage's call. Raises ValueError where it does not pass the stage's `values`, on a GPU without looking at them."""
    return _launch_of(_standing_in(stage.kernel, call), stage.values)


def _standing_in(kernel: Any, call: Call) -> Call:
    """The call as it is launched: of a stated kernel on host, that of the kernel that stands in there."""
    if not isinstance(kernel, StatedKernel):
        return call
    arguments = without_filled(call.arguments)
    grid = grid_of(call.grid, arguments)
    if on_gpu(arguments):
        return Call(grid, arguments, call.options)
    return Call(*kernel.on_host(grid, arguments), call.options)


def _launch_of(call: Call, values: dict[str, list[int]]) -> TakenCall:
    items = flat(call.arguments)
    scalars = {name: scalar(value) for name, value in items.items() if not is_tensor(value)}
    grid = grid_of(call.grid, items)
    tensors = {name: describe(value) for name, value in items.items() if is_tensor(value)}
    for name in values:
        if name not in tensors:
            raise ValueError(f"values: {name} is no tensor of this launch")
    made = TakenCall(grid, items, scalars, tensors, call.options, {n: list(v) for n, v in values.items()})
    for name in values:
        if not base_of(items[name]).is_cuda:
            require_values(name, made)
    return made


def require_values(name: str, one: TakenCall) -> None:
    """Whether a launch passes the elements that the kernel was compiled for."""
    given, known = elements_of(one.items[name]), one.values[name]
    if given != known:
        at = next((i for i, (g, k) in enumerate(zip(given, known, strict=False)) if g != k), None)
        what = (
            f"element {at} is {given[at]}, not {known[at]}"
            if at is not None
            else f"has {len(given)} elements"
        )
        raise ValueError(
            f"{name}: the launch's tensor {what}: sy.fuse(values=) says {len(known)} elements; give it these, or set `stages[…].values` of what it returned"
        )
