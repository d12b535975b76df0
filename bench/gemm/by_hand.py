"""A schedule of one GPU by hand, for kernels.gluon_matmul: what checks and measurements of waits and posts run by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from syncopate._syncopate import layout
from syncopate.kernels.gluon_launch import GluonTiling

FAR = 1 << 20  # an epoch that no run reaches: a signal of this value is never waited for


@dataclass
class ByHand:
    """Table and control block on the GPU. `made`: the control block's first word of a chunk's signal; the next chunk's is
    layout.SIGNAL_STRIDE words behind."""

    table: torch.Tensor
    control: torch.Tensor
    made: int

    @property
    def places(self) -> dict[str, int]:
        """As arguments of the kernel."""
        return {"sy_schedule": self.table.data_ptr(), "sy_control": self.control.data_ptr()}


def unfused_order(m: int, n: int, tiling: GluonTiling) -> list[int]:
    """The tiles as an unfused call takes them."""
    num_m, num_n = -(-m // tiling.block_m), -(-n // tiling.block_n)
    order = []
    for first in range(0, num_m, tiling.group_m):
        rows = range(first, min(first + tiling.group_m, num_m))
        order += [row * num_n + column for column in range(num_n) for row in rows]
    return order


def by_hand(
    shape: tuple[int, int, int],
    tiling: GluonTiling,
    programs: int,
    *,
    order: list[int] | None = None,
    waits: bool = True,
    phases: int = 0,
    posts: bool = True,
    copies: tuple[int, ...] = (),
) -> ByHand:
    """`order`: the tiles of the slots (default: the last tile first). With `waits` each slot is after one signal
    (control[layout.FIRST_SIGNAL], which has come), and each of its `phases` after it again. With `posts` each row of tiles is
    a chunk, whose signal its last tile sets. `copies`: rows that are added where a tile is stored, for COPIES of as many."""
    m, n, k = shape
    num_m, num_n = -(-m // tiling.block_m), -(-n // tiling.block_n)
    tiles, blocks = num_m * num_n, -(-k // tiling.block_k)
    words = [0] * (layout.FIRST_SLOT + layout.SLOT_WORDS * tiles)
    words[layout.NUM_SLOTS] = tiles
    words[layout.NUM_PROGRAMS] = programs
    signal = layout.FIRST_SIGNAL
    counters = signal + layout.SIGNAL_STRIDE * (1 + num_m)
    awaited = len(words)
    words += [signal, 0]
    more = len(words)
    words += [signal, 0] * phases
    words += [0] * (-(len(words) + layout.PAIR_WORDS) % 4) + [0, phases]
    first_phase = len(words)
    words[layout.LOOPS] = 1
    for phase in range(phases):
        words += [blocks * phase // phases, blocks * (phase + 1) // phases]
        words += [more + layout.PAIR_WORDS * phase, more + layout.PAIR_WORDS * (phase + 1)]
    records = len(words)
    chunk_posts = records + layout.MADE_WORDS * num_m
    for row in range(num_m):
        words += [counters + 8 * row, num_n, chunk_posts + 2 * row, chunk_posts + 2 * row + 2, 0, 0, 1, 0]
    for row in range(num_m):
        words += [4 * (signal + layout.SIGNAL_STRIDE * (1 + row)), 0]
    for slot, tile in enumerate(order or reversed(range(tiles))):
        record = records + layout.MADE_WORDS * (tile // num_n)
        at = layout.FIRST_SLOT + layout.SLOT_WORDS * slot
        words[at : at + 8] = [
            tile,
            awaited,
            awaited + (2 if waits else 0),
            first_phase if phases else 0,
            record,
            record + (layout.MADE_WORDS if posts else 0),
            0,
            0,
        ]
    for slot in range(tiles if copies else 0):
        words[layout.FIRST_SLOT + layout.SLOT_WORDS * slot + layout.SLOT_STORE] = len(words)
    for rows in copies:
        words += [rows, 0]
    control = torch.zeros(counters + 8 * num_m, dtype=torch.int32)
    control[layout.EPOCH] = 1
    control[layout.DEADLINE_MS] = 2000
    control[signal] = FAR
    table = torch.tensor(words, dtype=torch.int32)
    return ByHand(table.cuda(), control.cuda(), signal + layout.SIGNAL_STRIDE)
