"""What the stages of a program over rows in groups (ops/ragged.hpp) are given: what C++ says of each kernel's parameters
(ops/parameters.hpp), in this process's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..call.arguments import base_of
from ..call.prepared import Prepared
from ..kernels import ragged as kernels

USERS = 3  # the first stage that is a kernel of the user's


@dataclass
class Made:
    """What stages tell each other, on the device."""

    of: dict[str, Any]  # what _syncopate.fuse_ragged says of the program
    place: tuple[str, int]  # the device, and which of them
    scratch: dict[str, torch.Tensor]
    strides: dict[str, int]

    def forget(self) -> None:
        """What calls have seen: of one that failed, not all ranks have."""
        seen = self.scratch["seen"].zero_()
        if seen.is_cuda:  # calls of other streams add to it
            torch.cuda.synchronize(seen.device)


def made_for(prepared: Any, of: dict[str, Any], device: torch.device, place: tuple[str, int]) -> Made:
    """For a program of which `of` is said."""
    scratch = {}
    with torch.inference_mode(False):  # calls in and out of it write to these
        for parameters in of["parameters"]:
            for kind, name, shape, *_ in parameters.values():
                if kind == "scratch" and name not in scratch:
                    scratch[name] = torch.zeros(shape, dtype=torch.int32, device=device)
        for name, values in of["known"].items():
            if values:
                scratch[name] = torch.tensor(values, dtype=torch.int32, device=device)
    stride = prepared.op.heap.stride
    strides = {name: stride // tensor.element_size() for name, tensor in prepared.tensors.items()}
    return Made(of, place, scratch, strides)


def given_of(
    prepared: Prepared, made: Made, items: Sequence[Mapping[str, Any]], *, ahead: bool = False
) -> list[dict[str, Any]]:
    """The arguments of each stage. `items`: of the user's kernels, as their calls have them. `ahead`: of calls that bring as many
    rows as the plan has; else of one that may bring fewer."""
    of, users = made.of, made.of["users"]
    moved = {
        tensor: base_of(one[parameter])
        for user, one in zip(users, items, strict=True)
        for parameter, tensor in user["reads"].items()
    }
    rows = moved[of["rows"]]
    moved[of["counts"]] = items[0][users[0]["told"][0]]
    if of["back"]:
        moved[of["back"]] = base_of(items[-1][users[-1]["makes"]])

    def value(parameter: tuple[Any, ...]) -> Any:
        kind, name, _, stage, number = parameter
        if kind == "scratch":
            return made.scratch[name]
        if kind == "table":
            return prepared.op.table_tensor_of(stage)
        known = {"operand": moved, "tensor": prepared.tensors, "stride": made.strides}
        if kind in known:
            return known[kind][name]
        return prepared.op.rank if kind == "rank" else number

    own = iter([*kernels.STAGES, *kernels.BACK])
    given = []
    for stage, parameters in enumerate(of["parameters"]):
        user = stage - USERS
        if 0 <= user < len(users):
            told = {name: value(one) for name, one in parameters.items() if one[0] == "scratch"}
            given.append({**items[user], **told})
            continue
        names = [name for name in next(own).arg_names if not name.startswith("sy_")]
        given.append({name: value(parameters[name]) for name in names})
        if "ROWS" in names and not ahead:
            given[-1]["ROWS"] = rows.shape[0]
    return given
