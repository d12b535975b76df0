"""Of attention's backward: what a rank brings to each pass, and what its kernels look up there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..kernels.attention_backward_tables import backward_tables, seen_blocks
from ..plans import Rows
from .attention_passes import Slice


@dataclass(frozen=True)
class Tables:
    """The kernels' bounds_ptr, seen_ptr and blocks_ptr (kernels.attention_backward)."""

    bounds: torch.Tensor
    seen: torch.Tensor
    blocks: torch.Tensor


def cut_rows(
    passes: Any, all_rows: Sequence[Rows], rank: int
) -> tuple[int, list[list[Slice]], list[torch.Tensor]]:
    """Rows of K that are there at once, by pass this rank's slices, and where in the sequence each row of K stands, which rises.
    `passes`: of AttentionBackwardOutline; None: all at once, each row at its place."""
    if passes is None:
        rows, local = [], 0
        for begin, end in all_rows[rank]:
            rows.append(Slice(local, begin, end - begin))
            local += end - begin
        width = sum(map(count_rows, all_rows))
        return width, [rows], [torch.arange(width)]
    width, places, slices = passes
    made, positions = [], []
    for by_rank in slices:
        at, own, local = torch.empty(width, dtype=torch.int64), [], 0
        for other, (of_rank, given) in enumerate(zip(places, by_rank, strict=True)):
            for run, (place, _), ((begin, end), _) in zip(all_rows[other], of_rank, given, strict=True):
                at[place : place + end - begin] = torch.arange(begin, end)
                if other == rank:
                    own.append(Slice(local + begin - run[0], place, end - begin))
                    local += run[1] - run[0]
        made.append(own)
        positions.append(at)
    return width, made, positions


def tables_of(
    seen: torch.Tensor,
    sq: int,
    positions: torch.Tensor,
    blocks: tuple[int, int],
    q_rows: int,
    device: torch.device,
) -> Tables:
    """`seen`: of each row of Q the first row of the sequence that it sees, and past the last one; of `sq` rows those beyond see
    nothing. `positions`: where the rows of K stand. `blocks`: rows of a block of Q and of K; `q_rows`: of Q
    in dQ's own kernel."""
    places = torch.zeros(2, sq, dtype=torch.int64)
    places[:, : seen.shape[1]] = torch.searchsorted(positions, seen)
    bounds, looked_up = backward_tables(places, len(positions), *blocks)
    return Tables(bounds.to(device), looked_up.to(device), seen_blocks(places, q_rows, blocks[1]).to(device))


def joined(tables: Tables, bounds: Sequence[torch.Tensor]) -> Tables:
    """With the bounds of several: blocks of Q that some have to walk, and masks but where none needs one."""
    low, whole, part, high = torch.stack(list(bounds)).unbind(2)
    made = torch.stack([low.amin(0), whole.amax(0), part.amin(0), high.amax(0)], 1)
    return replace(tables, bounds=made.contiguous())


def count_rows(rows: Rows) -> int:
    return sum(end - begin for begin, end in rows)


def padded(rows: int, block: int) -> int:
    return -(-rows // block) * block
