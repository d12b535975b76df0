"""Calls within torch.compile and torch.export, which take an op of torch's as it is, and can look into nothing else of a call, nor into
the making of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch

from ..group import Group, the_process_group

Function = TypeVar("Function", bound=Callable[..., Any])


def name_of(group: Group | Any | None) -> str:
    """Of torch's process group, "" where there is none. Raises as an eager call does for what is no group."""
    of_torch = group.process_group if isinstance(group, Group) else the_process_group(group)
    return "" if of_torch is None else of_torch.group_name


def traced(
    name: str,
    operands: Sequence[torch.Tensor],
    group: Group | Any | None,
    refused: Mapping[str, bool],
    out: torch.Tensor | None = None,
    **options: Any,
) -> Any:
    """The call of torch.ops.syncopate.`name`, with `out` a copy behind it. RuntimeError, by which torch.compile leaves the call out of the
    graph where it may, for what that op does not take: `refused` says by reason whether that holds. So for an `out` that an eager call
    refuses, and then says why."""
    group_name = name_of(group)
    refused = {**refused, "a sy.Group made without torch": not group_name}
    if out is not None:
        given = [one for one in (*operands, options.get("bias"), out) if one is not None]
        recorded = torch.is_grad_enabled() and any(one.requires_grad for one in given)
        refused["out= of a call that is recorded"] = recorded
    _refuse(name, refused)
    y = getattr(torch.ops.syncopate, name)(*operands, group_name, **options)
    if out is None:
        return y
    wrong = out.shape != y.shape or out.dtype != y.dtype or out.device != y.device
    _refuse(name, {f"an out= that is not {list(y.shape)} {y.dtype} on {y.device}": wrong} if wrong else {})
    return out.copy_(y)


def _refuse(name: str, refused: Mapping[str, bool]) -> None:
    why = [reason for reason, holds in refused.items() if holds]
    if why:
        raise RuntimeError(_message(f"sy.ops.{name} with {why[0]}"))


def refuse_tracing(what: str) -> None:
    """RuntimeError, by which torch.compile leaves the call out of the graph where it may."""
    if torch.compiler.is_compiling():
        raise RuntimeError(_message(what))


def _message(what: str) -> str:
    return (
        f"{what}: no op that a graph can hold: call it outside of what is compiled or exported (torch.compiler.disable), or see "
        "torch.ops.syncopate"
    )


def runs_whole(function: Function) -> Function:
    """Of what others compile calls of, such as an object's method: where a call is no part of a graph, torch.compile looks into none of
    its frames, nor into those of what it calls, which set up and run what no graph can hold. Nor does it take a frame of it as a graph."""
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    names = "set_code_exec_strategy", "_FrameAction", "_FrameExecStrategy"
    if all(hasattr(frames, name) for name in names):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def joins_graphs(function: Function) -> Function:
    """Of a function that is an op of a graph: the same with a frame before it, which torch.compile takes by itself, too, as where
    it is given the function, or calls are behind a break. It is left to run whole where that frame cannot be compiled: torch.compile
    then marks the frame as one whose calls it looks into."""
    runs_whole(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # By a function's code torch.compile knows what it has compiled, and gives up.
    call.__code__ = call.__code__.replace(co_name=function.__name__)
    return call
