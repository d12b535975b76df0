"""Traces as Chrome trace events, which https://ui.perfetto.dev opens.

A process per rank; in it a thread "chunks", on which each chunk is marked when it was made, summed or had arrived, one
thread per program with its tiles, the ranges of their loops, and waits, and an asynchronous track of what the rank
sends, from when a chunk was ready to when its receiver had it. `otherData` says which clock the times are on and how
far each rank's may be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .. import _syncopate
from .model import TileRun, Trace


def common_clock(traces: Sequence[Trace]) -> bool:
    """Whether the ranks' times can be compared."""
    return all(trace.clock_error is not None for trace in traces)


def origins(traces: Sequence[Trace]) -> dict[int, int]:
    """By rank, the moment that is shown as 0: the first rank's begin, or each one's own where clocks cannot be compared."""
    first = min((trace.begin for trace in traces), default=0)
    return {trace.rank: first if common_clock(traces) else trace.begin for trace in traces}


def to_perfetto(traces: Sequence[Trace]) -> str:
    """A file of JSON; times in microseconds from `origins`."""
    zero = origins(traces)
    arrivals = {(trace.rank, chunk.op): chunk.time for trace in traces for chunk in trace.chunks}
    clock = "host CLOCK_MONOTONIC, from the first rank's begin"
    other = {
        "clock": clock if common_clock(traces) else "each rank's own, from its begin",
        "clock_error_us": [None if t.clock_error is None else t.clock_error / 1e3 for t in traces],
    }
    ranks = 1 + max((trace.rank for trace in traces), default=0)
    events = _syncopate.TraceEvents(ranks, json.dumps(other, allow_nan=False))
    for trace in traces:
        _Rank(trace, zero[trace.rank], events).add_all(arrivals if common_clock(traces) else {})
    return events.text()


CHUNKS = 0  # the track of chunks; those of programs follow


class _Rank:
    """Adds one rank's events."""

    def __init__(self, trace: Trace, zero: int, events: _syncopate.TraceEvents) -> None:
        self.trace, self.zero, self.events = trace, zero, events
        self.labels = {chunk.signal: chunk.label for chunk in (*trace.chunks, *trace.made)}

    def add_all(self, arrivals: dict[tuple[int, tuple[int, int]], int]) -> None:
        trace = self.trace
        error = trace.clock_error
        clock = ", own clock" if error is None else f", ±{error / 1e3:.1f} µs" if error else ""
        self.events.process(trace.rank, f" ({trace.device}{clock})")
        self.events.thread(trace.rank, CHUNKS, "chunks")
        for program, sm in sorted({t.program: t.multiprocessor for t in trace.tiles}.items()):
            name = f"program {program}" + (f" (SM {sm})" if trace.device == "cuda" else "")
            self.events.thread(trace.rank, track_of(program), name)
        self.span("call", "call", CHUNKS, trace.begin, trace.end)
        for chunk in trace.chunks:
            kind = "summed" if chunk.summed else "chunk"
            self.mark(chunk.label, kind, chunk.time, signal=chunk.signal, source=chunk.source)
        for made in trace.made:
            self.mark(made.label, "made", made.time, slots=made.slots)
        for send in trace.sends:
            over = arrivals.get((send.to, send.op))
            if over is not None:
                times = send.ready - self.zero, max(over, send.ready) - self.zero
                self.events.flight(
                    trace.rank, CHUNKS, "sent", send.label, f"rank {send.op[0]} op {send.op[1]}", *times
                )
        for tile in trace.tiles:
            self.tile(tile)

    def tile(self, tile: TileRun) -> None:
        track = track_of(tile.program)
        self.wait(track, tile.wait_begin, tile.start, tile.slot, tile.waits)
        where = {} if tile.read_at is None else {"read_at_rank": tile.read_at}
        self.span(
            f"tile {tile.tile}", "tile", track, tile.start, tile.end, slot=tile.slot, tile=tile.tile, **where
        )
        for begin, over, signals in tile.phases:
            if signals:
                self.wait(track, begin, over, tile.slot, signals)
        if len(tile.ranges) < 2:
            return
        # What iterations it ran when, where it ran them range by range.
        for (first, last), (begin, end), (_, _, signals) in zip(
            tile.ranges, tile.runs, tile.phases, strict=True
        ):
            came = [self.labels.get(signal, f"signal {signal}") for signal in signals]
            self.span(f"iterations {first}:{last}", "range", track, begin, end, slot=tile.slot, after=came)

    def span(self, name: str, category: str, track: int, begin: int, end: int, **arguments: Any) -> None:
        if end > begin:
            times = begin - self.zero, end - self.zero
            self.events.slice(self.trace.rank, track, category, name, *times, json.dumps(arguments))

    def wait(self, track: int, begin: int, over: int, slot: int, signals: Sequence[int]) -> None:
        names = [self.labels.get(signal, f"signal {signal}") for signal in signals]
        self.span("wait", "wait", track, begin, over, slot=slot, signals=names)

    def mark(self, name: str, category: str, moment: int, **arguments: Any) -> None:
        where = self.trace.rank, CHUNKS
        self.events.mark(*where, category, name, moment - self.zero, json.dumps(arguments))


def track_of(program: int) -> int:
    return CHUNKS + 1 + program
