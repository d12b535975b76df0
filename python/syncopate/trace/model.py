"""A recorded call as values (syncopate.trace records them). Times are ns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass
class TileRun:
    """A tile: it waited in [wait_begin, start) and ran in [start, end)."""

    slot: int
    tile: int
    program: int
    multiprocessor: int  # 0 on the host
    wait_begin: int
    start: int
    end: int
    waits: list[int] = field(default_factory=list)  # signals that it was told to wait for before it started
    phases: list[tuple[int, int, list[int]]] = field(default_factory=list)  # wait began, wait over, signals
    read_at: int | None = None  # the rank where it read what it fetches itself; None: it fetches nothing
    ranges: list[tuple[int, int]] = field(default_factory=list)  # of each phase: iterations [begin, end)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """When each phase ran: [wait over, next phase's wait began or the tile's end)."""
        ends = [*(begin for begin, _, _ in self.phases[1:]), self.end]
        return [(over, max(over, end)) for (_, over, _), end in zip(self.phases, ends, strict=True)]


@dataclass
class Arrival:
    """A chunk that another rank sent, or that this rank fetched; or, from this rank itself, one that it summed."""

    signal: int
    source: int  # rank
    tensor: str
    region: list[tuple[int, int]]
    time: int
    op: tuple[int, int] = (-1, -1)  # of the plan: rank, index
    summed: bool = False

    @property
    def label(self) -> str:
        """What a person is shown: the region, and where it came from."""
        return name_of(self.tensor, self.region) + (" summed" if self.summed else f" from rank {self.source}")


@dataclass
class Made:
    """A chunk that this rank's tiles made, complete at `time`."""

    signal: int  # that says so on this rank; -1: only others are told
    tensor: str
    region: list[tuple[int, int]]
    slots: list[int]  # of the tiles that write into it
    time: int

    @property
    def label(self) -> str:
        """What a person is shown: the region."""
        return name_of(self.tensor, self.region) + " made"


@dataclass
class Send:
    """A transfer to another rank: it could leave at `ready`, when what it waits for here was there."""

    op: tuple[int, int]
    to: int  # rank
    tensor: str  # what is sent
    region: list[tuple[int, int]]
    waits: list[int]  # signals of this rank
    ready: int

    @property
    def label(self) -> str:
        """What a person is shown: the region, and where it goes."""
        return name_of(self.tensor, self.region) + f" to rank {self.to}"


@dataclass
class Trace:
    """One call on one rank."""

    rank: int
    device: str
    begin: int
    end: int
    tiles: list[TileRun]  # by slot
    chunks: list[Arrival]  # by time
    made: list[Made] = field(default_factory=list)  # by time
    sends: list[Send] = field(default_factory=list)
    clock_error: int | None = 0  # ns; None: the times are on a clock of this rank's own

    def finished_by(self, moment: int) -> int:
        """Tiles that had ended by then."""
        return sum(tile.end <= moment for tile in self.tiles)


def name_of(tensor: str, region: Sequence[tuple[int, int]]) -> str:
    return f"{tensor}[{', '.join(f'{begin}:{end}' for begin, end in region)}]"


def on_clock(trace: Trace, offset: int, error: int) -> Trace:
    """The trace on another clock, that is `offset` ns ahead of its own, give or take `error`."""

    def moved(item: Any, *names: str) -> Any:
        return replace(item, **{name: getattr(item, name) + offset for name in names})

    tiles = [
        replace(
            moved(tile, "wait_begin", "start", "end"),
            phases=[(begin + offset, over + offset, signals) for begin, over, signals in tile.phases],
        )
        for tile in trace.tiles
    ]
    return replace(
        moved(trace, "begin", "end"),
        tiles=tiles,
        chunks=[moved(chunk, "time") for chunk in trace.chunks],
        made=[moved(chunk, "time") for chunk in trace.made],
        sends=[moved(send, "ready") for send in trace.sends],
        clock_error=error,
    )
