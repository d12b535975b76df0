"""The two products of a mixture of experts alone, as syncopate bench moe times them: the kernels that a call runs, on the rows that
its last one left in the heap, with tables that await and tell nobody. What comes back stays on this rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from .._syncopate import layout
from ..ops.mixture_function import extents_of, kept
from ..ops.operator import members_of

CONTROL_WORDS = 1024


def products_alone(case: Any) -> Callable[[], None]:
    """Of what `case.ours()` calls, which must have run."""
    group = members_of(None, "cuda")
    extents = extents_of(case.x, case.ids, case.w1, case.w2, case.size)
    op = kept(extents, case.x.dtype, group, "expert", activation="silu", bound=None, over="drop")
    given = op.scratch() | {
        "given_ptr": case.x, "ids_ptr": case.ids, "weights_ptr": case.weights, "w1": case.w1, "w2": case.w2,
        "out_ptr": torch.empty_like(case.x),
    }  # fmt: skip
    counts = op.heap["counts"][:, group.rank * case.own : (group.rank + 1) * case.own].sum(0).tolist()
    items = dict(zip(op.stages[op.part], op._items(given), strict=True))
    tiles = op.tiling
    launches = []
    for name, extent in (("moe_up", case.inner), ("moe_down", case.hidden)):
        grid = op.artifact.grid_of(op.stages[op.part].index(name), group.rank)
        table = _table(counts, tiles.block_m, triton.cdiv(extent, tiles.block_n), grid[0])
        control = torch.zeros(CONTROL_WORDS, dtype=torch.int32, device=case.device)
        control[0] = 1  # the first call
        alone = {"rank": 0, "stride": 0} if name == "moe_down" else {"TURNS": False}
        alone = {one: value for one, value in alone.items() if one in op._kernel(name).arg_names}
        launches.append((
            op._kernel(name)[grid],
            items[name] | alone | op._options(name) | {"sy_schedule": table.to(case.device), "sy_control": control},
        ))  # fmt: skip
    # Routes of other ranks have their place on this one, too.
    here = torch.remainder(op.heap["origin"], op.routes)
    launches[1][1]["origin_ptr"] = here

    def call() -> None:
        for launch, arguments in launches:
            launch(**arguments)

    return call


def _table(counts: list[int], rows: int, columns: int, programs: int) -> torch.Tensor:
    """A schedule's table (include/syncopate/emit/layout.hpp) with slots as kernels.moe's layout makes them."""
    slots = []
    begin = 0
    for expert, count in enumerate(counts):
        down = triton.cdiv(count, rows)
        for column in range(columns):
            for tile in range(down):
                slot = [0] * layout.SLOT_WORDS
                slot[layout.SLOT_TILE] = (begin + tile * rows) * columns + column
                slot[layout.SLOT_GROUP] = expert
                slot[layout.SLOT_ROWS] = min(count - tile * rows, rows)
                slots.append(slot)
        begin += down * rows
    head = [0] * layout.FIRST_SLOT
    head[layout.NUM_SLOTS] = len(slots)
    head[layout.NUM_PROGRAMS] = programs
    return torch.tensor([*head, *(word for slot in slots for word in slot)], dtype=torch.int32)
