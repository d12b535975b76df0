"""What the stages of a program over rows in groups (ops/ragged.hpp) are given beside the user's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

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
    told: dict[str, torch.Tensor]  # by form
    strides: dict[str, int]

    def forget(self) -> None:
        """What calls have seen: of one that failed, not all ranks have."""
        seen = self.scratch["seen_ptr"].zero_()
        if seen.is_cuda:  # calls of other streams add to it
            torch.cuda.synchronize(seen.device)


def made_for(prepared: Any, of: dict[str, Any], device: torch.device, place: tuple[str, int]) -> Made:
    """For a program of which `of` is said."""
    first = of["users"][0]

    def numbers(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.int32, device=device)

    with torch.inference_mode(False):  # calls in and out of it write to these
        scratch = {
            "sent_ptr": numbers(2, of["experts"]),
            "group_ptr": numbers(of["experts"]),
            "offsets_ptr": numbers(of["own"] + 1),
            "sizes_ptr": numbers(of["own"]),
            "experts_ptr": numbers(max(1, of["blocks"])),
            "places_ptr": numbers(max(1, of["blocks"] * of["block"])),
            "padded_ptr": numbers(1),
            "status_ptr": numbers(2),
            "seen_ptr": numbers(4),
            "from_ptr": numbers(of["experts"]),  # by group of this rank's experts
            "to_ptr": numbers(of["experts"]),
            "expert_ptr": torch.tensor(first["expert_of"] or [0], dtype=torch.int32, device=device),
            "row_ptr": torch.tensor(first["row_of"] or [0], dtype=torch.int32, device=device),
        }
        offsets = scratch["offsets_ptr"]
        told = {
            "offsets": offsets, "begins": offsets[:-1], "ends": offsets[1:], "sizes": scratch["sizes_ptr"],
            "experts": scratch["experts_ptr"], "rows": scratch["places_ptr"], "padded": scratch["padded_ptr"],
        }  # fmt: skip
    stride = prepared.op.heap.stride
    strides = {name: stride // tensor.element_size() for name, tensor in prepared.tensors.items()}
    return Made(of, place, scratch, told, strides)


def given_of(prepared: Prepared, made: Made, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The arguments of each stage. `items`: of the user's kernels, as their calls have them."""
    of, pow2, heap = made.of, triton.next_power_of_2, prepared.tensors
    table, users = prepared.op.table_tensor_of, of["users"]
    first, last = users[0], users[-1]
    rows, ranks = base_of(items[0][first["reads"]]), of["ranks"]
    order_rows, order_columns, order_apart, order_count = first["order"]
    behind = USERS + len(users)
    known = {
        **made.scratch,
        "counts_ptr": heap[of["counts"]], "x_ptr": heap[of["rows"]], "rows_ptr": table(2), "user_ptr": table(USERS),
        "back_ptr": table(behind) if of["back"] else made.scratch["status_ptr"], "BACK": of["back"] is not None,
        "rank": prepared.op.rank, "ROWS": rows.shape[0], "E": of["experts"], "R": ranks, "EXPERTS": of["own"],
        "BOUND": of["bound"], "TILE": of["tile"], "TILES": first["tiles"], "SLOTS": 32, "USERS": first["groups"],
        "BE": pow2(of["own"]), "BR": pow2(ranks), "BALL": pow2(of["experts"]),
        "ORDER_ROWS": order_rows, "ORDER_COLUMNS": order_columns, "ORDER_APART": order_apart, "ORDER_COUNT": order_count,
        "COUNTS": first["persistent"], "READS_ON": first["reads_on"], "TOLD": of["block"], "BLOCKS": of["blocks"],
    }  # fmt: skip

    # Of a row at once: senders leave registers to a neighbour.
    sent, copied = (max(16, size // of["tile"] // rows.element_size()) for size in (8192, 16384))

    def moved(columns: int, most: int) -> dict[str, int]:
        return {"H": columns, "COLUMNS": min(pow2(columns), most)}

    stride, kernels_of = made.strides, [*kernels.STAGES]
    of_stage: list[dict[str, Any]] = [
        {"given_ptr": items[0][first["told"][0][0]], "stride": stride[of["counts"]]},
        {},
        {
            "given_ptr": rows,
            "stride": stride[of["rows"]],
            "STARTS_NEXT": of["beside"],
            **moved(of["columns"], sent),
        },
    ]
    if of["back"]:
        width = of["columns_back"]
        kernels_of += kernels.BACK
        of_stage += [
            {"made_ptr": heap[of["made"]], "y_ptr": heap[of["back"]], "stride": stride[of["back"]],
             **moved(width, sent)},
            {"y_ptr": heap[of["back"]], "out_ptr": base_of(items[-1][last["makes"]]), "taken_ptr": heap[of["taken"]],
             "PROGRAMS": heap[of["taken"]].shape[1], **moved(width, copied)},
        ]  # fmt: skip
    given = [
        {name: (known | more)[name] for name in kernel.arg_names if not name.startswith("sy_")}
        for kernel, more in zip(kernels_of, of_stage, strict=True)
    ]
    given[USERS:USERS] = [
        {**one, **{name: made.told[form] for name, form in user["told"]}}
        for user, one in zip(users, items, strict=True)
    ]
    return given
