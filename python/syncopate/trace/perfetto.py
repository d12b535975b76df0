"""Traces as Chrome trace events, which https://ui.perfetto.dev opens.

A process per rank; in it a thread "chunks", on which each chunk is marked when it was made, summed or had arrived, one
thread per program with its tiles, the ranges of their loops, and waits, and an asynchronous track of what the rank
sends, from when a chunk was ready to when its receiver had it. `otherData` says which clock the times are on and how
far each rank's may be wrong.

Perfetto writes the numbers of processes and threads behind their names, and takes a thread whose number is 0 or its
process's for the process's main thread, so that two would become one. Processes are numbered by rank; those of threads
follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .model import TileRun, Trace


def common_clock(traces: Sequence[Trace]) -> bool:
    """Whether the ranks' times can be compared."""
    return all(trace.clock_error is not None for trace in traces)


def origins(traces: Sequence[Trace]) -> dict[int, int]:
    """By rank, the moment that is shown as 0: the first rank's begin, or each one's own where clocks cannot be compared."""
    first = min((trace.begin for trace in traces), default=0)
    return {trace.rank: first if common_clock(traces) else trace.begin for trace in traces}


def to_perfetto(traces: Sequence[Trace]) -> dict[str, Any]:
    """One JSON object; times in microseconds from `origins`."""
    events: list[dict[str, Any]] = []
    zero = origins(traces)
    arrivals = {(trace.rank, chunk.op): chunk.time for trace in traces for chunk in trace.chunks}
    ranks = 1 + max((trace.rank for trace in traces), default=0)
    for trace in traces:
        _Rank(trace, zero[trace.rank], ranks, events).add_all(arrivals if common_clock(traces) else {})
    clock = "host CLOCK_MONOTONIC, from the first rank's begin"
    other = {
        "clock": clock if common_clock(traces) else "each rank's own, from its begin",
        "clock_error_us": [None if t.clock_error is None else t.clock_error / 1e3 for t in traces],
    }
    return {"displayTimeUnit": "ns", "otherData": other, "traceEvents": events}


class _Rank:
    """Adds one rank's events."""

    def __init__(self, trace: Trace, zero: int, ranks: int, events: list[dict[str, Any]]) -> None:
        self.trace = trace
        self.zero = zero
        self.chunks = ranks  # the number of ranks: the thread of chunks; those of programs follow
        self.events = events
        self.labels = {chunk.signal: chunk.label for chunk in (*trace.chunks, *trace.made)}

    def add_all(self, arrivals: dict[tuple[int, tuple[int, int]], int]) -> None:
        trace = self.trace
        error = trace.clock_error
        # Perfetto sorts processes that have as many spans by name: "rank 02" before "rank 10".
        rank = f"rank {trace.rank:0{len(str(self.chunks - 1))}}"
        clock = ", own clock" if error is None else f", ±{error / 1e3:.1f} µs" if error else ""
        self.add("M", "process_name", self.chunks, args={"name": f"{rank} ({trace.device}{clock})"})
        self.add("M", "process_sort_index", self.chunks, args={"sort_index": trace.rank})
        self.add("M", "thread_name", self.chunks, args={"name": "chunks"})
        for program, sm in sorted({t.program: t.multiprocessor for t in trace.tiles}.items()):
            name = f"program {program}" + (f" (SM {sm})" if trace.device == "cuda" else "")
            self.add("M", "thread_name", self.thread_of(program), args={"name": name})
        self.span("call", "call", self.chunks, trace.begin, trace.end)
        for chunk in trace.chunks:
            kind = "summed" if chunk.summed else "chunk"
            self.mark(chunk.label, kind, chunk.time, signal=chunk.signal, source=chunk.source)
        for made in trace.made:
            self.mark(made.label, "made", made.time, slots=made.slots)
        for send in trace.sends:
            over = arrivals.get((send.to, send.op))
            if over is not None:
                self.flight(send.label, send.op, send.ready, max(over, send.ready))
        for tile in trace.tiles:
            thread = self.thread_of(tile.program)
            self.wait(thread, tile.wait_begin, tile.start, tile.slot, tile.waits)
            where = {} if tile.read_at is None else {"read_at_rank": tile.read_at}
            self.span(
                f"tile {tile.tile}",
                "tile",
                thread,
                tile.start,
                tile.end,
                slot=tile.slot,
                tile=tile.tile,
                **where,
            )
            for begin, over, signals in tile.phases:
                if signals:
                    self.wait(thread, begin, over, tile.slot, signals)
            self.ranges(thread, tile)

    def add(self, phase: str, name: str, thread: int, **more: Any) -> None:
        self.events.append({"ph": phase, "name": name, "pid": self.trace.rank, "tid": thread, **more})

    def thread_of(self, program: int) -> int:
        return self.chunks + 1 + program

    def at(self, moment: int) -> float:
        return (moment - self.zero) / 1e3

    def span(self, name: str, category: str, thread: int, begin: int, end: int, **arguments: Any) -> None:
        if end > begin:
            length = (end - begin) / 1e3
            self.add("X", name, thread, cat=category, ts=self.at(begin), dur=length, args=arguments)

    def wait(self, thread: int, begin: int, over: int, slot: int, signals: Sequence[int]) -> None:
        names = [self.labels.get(signal, f"signal {signal}") for signal in signals]
        self.span("wait", "wait", thread, begin, over, slot=slot, signals=names)

    def ranges(self, thread: int, tile: TileRun) -> None:
        """What iterations the tile ran when, where it ran them range by range."""
        if len(tile.ranges) < 2:
            return
        for (first, last), (begin, end), (_, _, signals) in zip(
            tile.ranges, tile.runs, tile.phases, strict=True
        ):
            came = [self.labels.get(signal, f"signal {signal}") for signal in signals]
            self.span(f"iterations {first}:{last}", "range", thread, begin, end, slot=tile.slot, after=came)

    def mark(self, name: str, category: str, moment: int, **arguments: Any) -> None:
        self.add("i", name, self.chunks, cat=category, s="t", ts=self.at(moment), args=arguments)

    def flight(self, name: str, op: tuple[int, int], begin: int, end: int) -> None:
        """An asynchronous span: flights overlap, and spans of a thread must not."""
        number = {"local": f"rank {op[0]} op {op[1]}"}  # a global one would be outside of all processes
        for phase, moment in (("b", begin), ("e", end)):
            self.add(phase, name, self.chunks, cat="sent", id2=number, ts=self.at(moment))
