"""Calls within torch.compile and torch.export, which take an op of torch's as it is, and can look into nothing else of a call, nor into
the making of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..group import Group

Function = TypeVar("Function", bound=Callable[..., Any])


def name_of(group: Group | Any | None) -> str:
    """Of torch's process group, "" where there is none."""
    of_torch = (
        group.process_group if isinstance(group, Group) else dist.group.WORLD if group is None else group
    )
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
    graph where it may, for what that op does not take: `refused` says by reason whether that holds."""
    group_name = name_of(group)
    why = [
        reason
        for reason, holds in {**refused, "a sy.Group made without torch": not group_name}.items()
        if holds
    ]
    if why:
        raise RuntimeError(_message(f"sy.ops.{name} with {why[0]}"))
    y = getattr(torch.ops.syncopate, name)(*operands, group_name, **options)
    return y if out is None else out.copy_(y)


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
    """Of a function that others compile calls of: where a call is no part of a graph, torch.compile looks into none of its frames, nor
    into those of what it calls, which set up and run what no graph can hold."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function
