"""What happened in one call of a fused kernel: when each chunk arrived, and when each tile waited and ran.

    recorded = trace.record(fused, grid, a, b, c, M, N, K, …)     # one call, as fused[grid](…); collective
    trace.write([…every rank's…], "trace.json")                   # opens in https://ui.perfetto.dev

Recording runs a variant of the emitted kernel (syncopate.language_traced) and watches the chunks' signals from beside
it: a thread on the host, one warp in a second stream on a GPU. A call that is not recorded pays nothing.

Times are nanoseconds: CLOCK_MONOTONIC on the host; %globaltimer on GPUs, which is each GPU's own (tens of microseconds
apart were seen within one machine), so that a written trace shows GPUs from the begin of the call on each. A tile's end is the moment when its
program asks for its next tile; where Triton pipelines across tiles that is a few iterations early.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _syncopate, interpreter, jit

FIRST_SIGNAL, SIGNAL_STRIDE = 32, 8  # of the control block; include/syncopate/emit/table.hpp
FIRST_SLOT, SLOT_WORDS = 16, 8  # of the schedule table
NUM_KERNEL_POSTS = 1
TRACE_WORDS = slice(4, 7)


def without_signals(table: Any) -> Any:
    """A copy of a schedule table (torch int32) by which no tile waits and nothing is posted; tiles still count."""
    words = table.tolist()
    words[NUM_KERNEL_POSTS] = 0
    for at in range(FIRST_SLOT, FIRST_SLOT + SLOT_WORDS * words[0], SLOT_WORDS):
        words[at + 2] = words[at + 1]
        for record in range(words[at + 4], words[at + 5], 4):
            words[record + 3] = words[record + 2]
        if phase := words[at + 3]:
            words[phase - 1] = words[at + 1]
            for n in range(words[phase - 4]):
                words[phase + 2 * n + 1] = words[at + 1]
    return table.new_tensor(words)


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


@dataclass
class Arrival:
    """A chunk that another rank sent, or that this rank fetched."""

    signal: int
    source: int  # rank
    tensor: str
    region: list[tuple[int, int]]
    time: int

    @property
    def label(self) -> str:
        box = ", ".join(f"{begin}:{end}" for begin, end in self.region)
        return f"{self.tensor}[{box}] from rank {self.source}"


@dataclass
class Trace:
    """One call on one rank."""

    rank: int
    device: str
    begin: int
    end: int
    tiles: list[TileRun]  # by slot
    chunks: list[Arrival]  # by time

    def finished_by(self, moment: int) -> int:
        """Tiles that had ended by then."""
        return sum(tile.end <= moment for tile in self.tiles)


def record(fused: Any, grid: Any, *args: Any, **kwargs: Any) -> Trace:
    """One call of a FusedKernel, as `fused[grid](*args, **kwargs)`, recorded. Collective: all ranks record alike.

    The first recorded call on a GPU also compiles the traced kernel: take the second one.
    """
    import inspect

    prepared, arguments, options = fused._find(grid, *args, **kwargs)
    module = inspect.getmodule(fused._function)
    recorder = Recorder(
        prepared.op,
        prepared.schedule,
        prepared.source,
        prepared.grid,
        options=options,
        package=module.__package__ if module else None,
    )
    fused._set_inputs(prepared, arguments)
    return recorder.call(fused._bind(prepared, arguments))


class Recorder:
    """Records calls of one op. `schedule`: of fuse (syncopate.schedule/1); `source`: the emitted kernel."""

    def __init__(
        self,
        op: _syncopate.FusedOp,
        schedule: dict[str, Any],
        source: str,
        grid: Sequence[int],
        *,
        options: dict[str, Any] | None = None,
        package: str | None = None,
    ) -> None:
        self.op = op
        self.grid = tuple(grid)
        self.options = dict(options or {})
        self.device = op.heap.device
        self.chunks = arrivals_of(schedule, op.rank)
        name = schedule["kernel"]
        kernel = getattr(jit.load_module(traced_source(source), name + "_traced", package), name)
        while hasattr(kernel, "fn") and not hasattr(kernel, "arg_names"):
            kernel = kernel.fn
        self.kernel = kernel
        self._compiled: jit.Compiled | None = None
        self._watch: jit.Compiled | None = None

    def call(self, arguments: dict[str, Any]) -> Trace:
        """One call with the emitted kernel's arguments, sy_schedule and sy_control among them. On a GPU it ends when
        the device is idle. Raises as an ordinary call does; a fault leaves no trace."""
        import torch

        table = self.op.table
        place = "cpu" if self.device == "host" else torch.device("cuda", self.op.heap.ordinal)
        times = torch.zeros(len(table) + table[3], dtype=torch.int64, device=place)
        address = times.data_ptr()
        header = [_signed(address), _signed(address >> 32), len(table)]
        self.op.table_tensor[TRACE_WORDS] = torch.tensor(header, dtype=torch.int32, device=place)
        try:
            run = self._call_host if self.device == "host" else self._call_cuda
            begin, end, arrived = run(arguments)
        finally:
            self.op.table_tensor[TRACE_WORDS] = 0
        self.op.check()
        return assemble(self.op.rank, self.device, table, times.tolist(), self.chunks, arrived, begin, end)

    def _call_host(self, arguments: dict[str, Any]) -> tuple[int, int, list[int]]:
        watcher = _Watcher(self.op.control_address, [word_of(chunk.signal) for chunk in self.chunks])
        begin = watcher.start()
        try:
            self.op.begin_call()
            try:
                interpreter.launch(self.kernel, self.grid, arguments)
            finally:
                self.op.end_call()
            end = time.monotonic_ns()
        finally:
            arrived = watcher.stop()
        return begin, end, arrived

    def _call_cuda(self, arguments: dict[str, Any]) -> tuple[int, int, list[int]]:
        import torch

        from .language_traced import sy_watch

        device = torch.device("cuda", self.op.heap.ordinal)
        count = len(self.chunks)
        words = torch.tensor(
            [word_of(chunk.signal) for chunk in self.chunks] or [0], dtype=torch.int32, device=device
        )
        arrived = torch.zeros(1 + count, dtype=torch.int64, device=device)
        watched = {
            "control": arguments["sy_control"],
            "words": words,
            "times": arrived,
            "count": count,
            "epoch": 0,
            "BLOCK": 1 << max(5, (count - 1).bit_length()),
        }
        if self._compiled is None:
            self._compiled = jit.compile_kernel(self.kernel, arguments, self.grid, self.options)
            self._watch = jit.compile_kernel(sy_watch, watched, (1, 1, 1), {"num_warps": 1})
        packed = self._compiled.pack(arguments)
        stream, side = torch.cuda.current_stream(), torch.cuda.Stream(priority=-1)
        torch.cuda.synchronize()
        watched["epoch"] = int(arguments["sy_control"][0])
        packed_watch = self._watch.pack(watched)
        side.wait_stream(stream)
        self._watch.kernel.launch([1, 1, 1], side.cuda_stream, packed_watch)
        self.op.call(self._compiled.kernel, list(self.grid), stream.cuda_stream, packed)
        stream.wait_stream(side)
        torch.cuda.synchronize()
        began, *moments = arrived.tolist()
        return began, 0, moments


class _Watcher:
    """Notes when words of a control block in this process's memory reach the next call's epoch."""

    def __init__(self, control: int, words: Sequence[int]) -> None:
        self._control = ctypes.cast(control, ctypes.POINTER(ctypes.c_int32))
        self._words = list(words)
        self._arrived = [0] * len(self._words)
        self._leave = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> int:
        self._epoch = _signed(self._control[0] + 1)
        self._switch = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)  # the interpreter holds Python's lock most of the time
        begin = time.monotonic_ns()
        self._thread.start()
        return begin

    def stop(self) -> list[int]:
        self._leave = True
        self._thread.join()
        sys.setswitchinterval(self._switch)
        return self._arrived

    def _run(self) -> None:
        while True:
            last = self._leave  # look once more after the call
            now = time.monotonic_ns()
            for index, word in enumerate(self._words):
                if not self._arrived[index] and _signed(self._control[word] - self._epoch) >= 0:
                    self._arrived[index] = now
            if last or all(self._arrived):
                return
            time.sleep(1e-4)


def traced_source(source: str) -> str:
    """The emitted kernel with the traced helpers in place of the plain ones."""
    plain, traced = "\nfrom syncopate.language import ", "\nfrom syncopate.language_traced import "
    if source.count(plain) != 1:
        raise ValueError("this is not an emitted kernel: it does not import syncopate.language once")
    return source.replace(plain, traced)


def word_of(signal: int) -> int:
    """The control block's word of a signal."""
    return FIRST_SIGNAL + SIGNAL_STRIDE * signal


def arrivals_of(schedule: dict[str, Any], rank: int) -> list[Arrival]:
    """The chunks that come to `rank` in each call, their times not yet known."""
    ranks = schedule["schedule"]["ranks"]
    transfers = {tuple(t["op"]): t for r in ranks for t in r["transfers"] if t["dst_rank"] == rank}
    chunks = []
    for signal, (kind, *op) in enumerate(ranks[rank]["signals"]):
        transfer = transfers.get(tuple(op))
        if kind == "arrived" and transfer is not None:
            destination = transfer["dst"]
            region = [(int(begin), int(end)) for begin, end in destination["region"]]
            chunks.append(Arrival(signal, transfer["src_rank"], destination["tensor"], region, 0))
    return chunks


def assemble(
    rank: int,
    device: str,
    table: Sequence[int],
    times: Sequence[int],
    chunks: Sequence[Arrival],
    arrived: Sequence[int],
    begin: int,
    end: int,
) -> Trace:
    """The trace of one call from its table, the times that the kernel left, and those that the watcher saw."""

    def signals(first: int, last: int) -> list[int]:
        return [(table[at] - FIRST_SIGNAL) // SIGNAL_STRIDE for at in range(first, last, 2)]

    tiles: list[TileRun] = []
    for slot in range(table[0]):
        at = FIRST_SLOT + SLOT_WORDS * slot
        tile, first, last, phase_begin = table[at : at + 4]
        if times[at + 1] == 0:
            continue  # a grid that is smaller than the table never takes this slot
        place = times[at + 3]
        phases = []
        if phase_begin:
            for pair in range(phase_begin, phase_begin + 2 * table[phase_begin - 4], 2):
                phases.append((times[pair], times[pair + 1], signals(table[pair - 1], table[pair + 1])))
        program, multiprocessor = place & 0xFFFFFFFF, place >> 32
        waits = signals(first, last)
        tiles.append(TileRun(slot, tile, program, multiprocessor, times[at], times[at + 1], 0, waits, phases))

    following: dict[int, int] = {}
    for tile in sorted(tiles, key=lambda t: t.start, reverse=True):
        tile.end = max(tile.start, following.get(tile.program, times[len(table) + tile.program]))
        following[tile.program] = tile.wait_begin

    # The watcher looks now and then: a wait that is over proves that its chunk was there.
    proof: dict[int, int] = {}
    for tile in tiles:
        for over, waits in [(tile.start, tile.waits), *((over, waits) for _, over, waits in tile.phases)]:
            for signal in waits:
                proof[signal] = min(proof.get(signal, over), over)
    seen = []
    for chunk, moment in zip(chunks, arrived, strict=True):
        moment = min(moment or proof.get(chunk.signal, 0), proof.get(chunk.signal, moment))
        seen.append(Arrival(chunk.signal, chunk.source, chunk.tensor, chunk.region, moment))
    begin = min([begin, *(t.wait_begin for t in tiles)])
    end = max([end, *(t.end for t in tiles), *(c.time for c in seen)])
    return Trace(rank, device, begin, end, tiles, sorted(seen, key=lambda c: c.time))


def to_perfetto(traces: Sequence[Trace]) -> dict[str, Any]:
    """Chrome trace events: a process per rank, in it a thread "chunks" and one per program. Microseconds from the
    first rank's begin; on GPUs from each rank's own, as their clocks differ."""
    first = min((trace.begin for trace in traces), default=0)
    origin = first
    events: list[dict[str, Any]] = []

    def add(phase: str, name: str, rank: int, thread: int, **more: Any) -> None:
        events.append({"ph": phase, "name": name, "pid": rank, "tid": thread, **more})

    def span(
        name: str, category: str, rank: int, thread: int, begin: int, end: int, **arguments: Any
    ) -> None:
        if end > begin:
            moment, length = (begin - origin) / 1e3, (end - begin) / 1e3
            add("X", name, rank, thread, cat=category, ts=moment, dur=length, args=arguments)

    for trace in traces:
        origin = trace.begin if trace.device == "cuda" else first
        labels = {chunk.signal: chunk.label for chunk in trace.chunks}
        add("M", "process_name", trace.rank, 0, args={"name": f"rank {trace.rank} ({trace.device})"})
        add("M", "thread_name", trace.rank, 0, args={"name": "chunks"})
        for program, sm in sorted({t.program: t.multiprocessor for t in trace.tiles}.items()):
            name = f"program {program}" + (f" (SM {sm})" if trace.device == "cuda" else "")
            add("M", "thread_name", trace.rank, 1 + program, args={"name": name})
        span("call", "call", trace.rank, 0, trace.begin, trace.end)
        for chunk in trace.chunks:
            add(
                "i", chunk.label, trace.rank, 0,
                cat="chunk", s="t", ts=(chunk.time - origin) / 1e3, args={"signal": chunk.signal, "source": chunk.source},
            )  # fmt: skip
        for tile in trace.tiles:
            thread = 1 + tile.program
            waits = [labels.get(signal, f"signal {signal}") for signal in tile.waits]
            span(
                "wait", "wait", trace.rank, thread, tile.wait_begin, tile.start, slot=tile.slot, signals=waits
            )
            span(
                f"tile {tile.tile}",
                "tile",
                trace.rank,
                thread,
                tile.start,
                tile.end,
                slot=tile.slot,
                tile=tile.tile,
            )
            for begin, over, signals in tile.phases:
                if signals:
                    waits = [labels.get(signal, f"signal {signal}") for signal in signals]
                    span("wait", "wait", trace.rank, thread, begin, over, slot=tile.slot, signals=waits)
    return {"displayTimeUnit": "ns", "traceEvents": events}


def write(traces: Sequence[Trace], path: str | os.PathLike[str]) -> None:
    """Writes to_perfetto(traces) as JSON: the whole file or none."""
    path = Path(path)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        scratch.write_text(json.dumps(to_perfetto(traces)))
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _signed(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31
