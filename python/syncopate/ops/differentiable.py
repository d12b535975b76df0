"""Gradients of the operators' functions: the custom ops (torch.ops.syncopate.*) know them, so a call that is to be recorded goes by
these. An operator object makes none, and says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..call.forward_mode import refuse_tangents
from ..group import Group


def wanted(operands: Mapping[str, Any]) -> list[str]:
    """The names of the operands for which autograd is to record a call. RuntimeError where derivatives are asked for that there are
    not."""
    refuse_tangents(operands)
    if not torch.is_grad_enabled():
        return []
    return [name for name, one in operands.items() if isinstance(one, torch.Tensor) and one.requires_grad]


def refuse_gradients(kind: str, instead: str, names: Iterable[str], operands: Sequence[torch.Tensor]) -> None:
    """Of an operator object: RuntimeError where a gradient is asked for, which it would leave out without a word."""
    refuse_tangents(dict(zip(names, operands, strict=False)))
    if not torch.is_grad_enabled() or not any(one.requires_grad for one in operands):
        return
    asking = wanted(dict(zip(names, operands, strict=False)))
    raise RuntimeError(
        f"{_require(asking)} a gradient, and {kind} makes none: call {instead}, which does, or {kind} under torch.no_grad()"
    )


#: Of a call with a strategy: torch's ops take none.
STRATEGY_REFUSED = "a call with a strategy has none"


def recorded(
    name: str,
    group: Group,
    operands: Sequence[torch.Tensor],
    names: Sequence[str],
    refused: Mapping[str, bool],
    **options: Any,
) -> Any:
    """torch.ops.syncopate.`name` of these operands, of which those of these names require gradients, in `group`. RuntimeError
    where it cannot do the call: `refused` says by reason whether that holds."""
    why = [reason for reason, holds in refused.items() if holds]
    if group.process_group is None:
        why.append("gradients take a torch process group as `group`")
    if why:
        raise RuntimeError(
            f"{name}: {_require(names)} a gradient, and {why[0]}; else call it under torch.no_grad()"
        )
    kind = operands[0].device.type
    with torch.autocast(kind, enabled=False):  # the function has cast what is to be cast
        return getattr(torch.ops.syncopate, name)(*operands, group.process_group.group_name, **options)


def _require(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'requires' if len(names) == 1 else 'require'}"
