"""Recording one call: a variant of the emitted kernel, and a watch beside it; then the times are put together."""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import _syncopate
from .._syncopate import layout
from ..call.prepared import call_on_host, compiler_of
from ..call.tuples import flat
from ..device import jit
from ..host import interpreter
from .model import Arrival, Made, Send, TileRun, Trace, on_clock

__all__ = ["Arrival", "Made", "Recorder", "Send", "TileRun", "Trace", "assemble", "record", "write"]

REGISTERS, WATCH_REGISTERS = (
    65536,
    2048,
)  # of a multiprocessor; of sy_watch, one warp with 64 a thread at most
ALIGN_CYCLES = 4_000_000  # of a GPU that sleeps: some 2 ms, longer than enqueueing two calls takes


def without_signals(table: Any, moved: int = 0) -> Any:
    """A copy of a schedule table (torch int32) by which no tile waits and nothing is posted; tiles still count. `moved`: bytes
    from the op's control block to the one that they count in; what programs sum is found by its distance from that."""
    words = table.tolist()
    words[layout.NUM_KERNEL_POSTS] = 0
    for slot in range(words[layout.NUM_SLOTS]):
        at = slot_record(slot)
        waits, makes = at + layout.SLOT_WAITS, at + layout.SLOT_MAKES
        words[waits + 1] = words[waits]
        for record in range(words[makes], words[makes + 1] & ~layout.AT_ONCE, layout.MADE_WORDS):
            words[record + layout.MADE_POSTS + 1] = words[record + layout.MADE_POSTS]
        for phase in phases_of(words, at):
            words[phase + layout.PHASE_WAITS + 1] = words[phase + layout.PHASE_WAITS]
    sum_at = words[layout.SUM]
    if sum_at:
        words[sum_at + layout.SUM_WAITS + 1] = words[sum_at + layout.SUM_WAITS]
        words[layout.OTHER] = 0  # calls of odd numbers, too, go by this one
    made = table.new_tensor(words)
    if sum_at:
        import torch

        places, words_each = sum_at + layout.SUM_PLACES, 2  # of 64 bits
        summands = words[sum_at + layout.SUM_SUMMANDS]
        distances = made[places : places + words_each * summands].view(torch.int64)
        distances -= moved
    return made


def phases_of(words: Sequence[int], record: int) -> range:
    """Where in a schedule table the phases of a slot begin, by its record."""
    first = words[record + layout.SLOT_PHASES]
    if first == 0:
        return range(0)
    number = max(words[first - layout.PAIR_WORDS * (loop + 1) + 1] for loop in range(words[layout.LOOPS]))
    return range(first, first + layout.PHASE_WORDS * number, layout.PHASE_WORDS)


def record(fused: Any, grid: Any, *args: Any, **kwargs: Any) -> Trace:
    """One call of a FusedKernel of one stage, as `fused[grid](*args, **kwargs)`, recorded. Collective: all ranks record alike.

    The first recorded call on a GPU also compiles the traced kernel: take the second one.
    """
    call = fused.call(0, grid, *args, **kwargs)
    prepared = fused.prepare_calls([call])
    items = flat(call.arguments)
    fused.place(prepared, [items])
    return recorder_of(prepared, call.options).call(prepared.arguments(0, items))


def recorder_of(prepared: Any, options: dict[str, Any] | None = None) -> Recorder:
    """The Recorder of a fused.Prepared. `options`: of launches. ValueError for a stated kernel, which writes no times."""
    if prepared.stages[0].stated is not None:
        name = prepared.stages[0].stated.__name__
        plain = "; strategy=Strategy(kernel='plain') takes the plain one" if name == "gluon_matmul" else ""
        raise ValueError(
            f"{name} is a stated kernel, which is not recorded: it makes no note of its times{plain}"
        )
    if prepared.recorder is None:
        prepared.recorder = Recorder(
            prepared.op, prepared.artifact, options=options, like=prepared.stages[0].kernel
        )
    return prepared.recorder


class Recorder:
    """Records calls of one op of one stage. `like`: the emitted kernel, whose package the traced one imports from. Where the
    same call twice leaves what it leaves once, the second of two is recorded on a GPU, which all ranks begin together.
    """

    def __init__(
        self,
        op: _syncopate.FusedOp,
        artifact: _syncopate.Artifact,
        *,
        options: dict[str, Any] | None = None,
        like: Any = None,
    ) -> None:
        schedule = artifact.schedule
        if schedule.num_stages > 1:
            raise ValueError("no trace: only programs of one stage can be recorded")
        (stage,) = artifact.stages
        self.op = op
        self._counted = schedule.counted(op.rank)
        self.repeatable = not stage.accumulates
        self.grid = artifact.grid_of(0, op.rank)
        self.options = dict(options or {})
        self.device = op.heap.device
        self.chunks = arrivals_of(schedule, op.rank)
        self.made = made_of(schedule, op.rank)
        self.sends = sends_of(schedule, op.rank)
        self.read_at = schedule.read_at(op.rank)
        self._signals = [c.signal for c in (*self.chunks, *(m for m in self.made if m.signal >= 0))]
        module = inspect.getmodule(getattr(like, "fn", like))
        package = module.__package__ if module else None
        traced = jit.load_module(traced_source(stage.source), stage.kernel + "_traced", package)
        self.kernel = jit.kernel_in(traced, stage.kernel)
        while hasattr(self.kernel, "fn") and not hasattr(self.kernel, "arg_names"):
            self.kernel = self.kernel.fn
        self._compiled: jit.Variants | None = None
        self._watch: jit.Compiled | None = None

    def call(self, arguments: dict[str, Any]) -> Trace:
        """One call with the emitted kernel's arguments, sy_schedule and sy_control among them. On a GPU it ends when
        the device is idle. Raises as an ordinary call does; a fault leaves no trace."""
        import torch

        table = self.op.table
        place = "cpu" if self.device == "host" else torch.device("cuda", self.op.heap.ordinal)
        times = torch.zeros(len(table) + table[layout.NUM_PROGRAMS], dtype=torch.int64, device=place)
        address = times.data_ptr()
        header = torch.tensor([_signed(address), _signed(address >> 32)], dtype=torch.int32, device=place)
        self.op.table_tensor[layout.TRACE : layout.TRACE + 2] = header
        self.op.table_tensor[layout.TRACE_ENDS] = len(table)
        try:
            run = self._call_host if self.device == "host" else self._call_cuda
            begin, end, arrived = run(arguments)
        finally:
            self.op.table_tensor[layout.TRACE : layout.TRACE + 2] = 0
            self.op.table_tensor[layout.TRACE_ENDS] = 0
        self.op.check()
        seen = dict(zip(self._signals, arrived, strict=True))
        recorded = assemble(
            self.op.rank,
            self.device,
            table,
            times.tolist(),
            self.chunks,
            [seen[chunk.signal] for chunk in self.chunks],
            begin,
            end,
            [replace(chunk, time=seen.get(chunk.signal, 0)) for chunk in self.made],
            self.sends,
            self.read_at,
        )
        if self.device == "host":
            return recorded
        from .clock import align

        clock = align(place)
        return replace(recorded, clock_error=None) if clock is None else on_clock(recorded, *clock)

    def _leaving_room(self) -> dict[str, Any]:
        """The launch options, with registers left for sy_watch: else it would keep one program from starting."""
        threads = 32 * int(self.options.get("num_warps", 4))
        most = min(255, (REGISTERS - WATCH_REGISTERS) // threads // 8 * 8)
        return {**self.options, "maxnreg": min(most, self.options.get("maxnreg") or most)}

    def _call_host(self, arguments: dict[str, Any]) -> tuple[int, int, list[int]]:
        watcher = _Watcher(self.op.control_address, [word_of(signal) for signal in self._signals])
        begin = watcher.start()
        try:
            with call_on_host(self.op):
                interpreter.launch(self.kernel, self.grid, arguments)
            end = time.monotonic_ns()
        finally:
            arrived = watcher.stop()
        return begin, end, arrived

    def _call_cuda(self, arguments: dict[str, Any]) -> tuple[int, int, list[int]]:
        import torch

        from ..device.traced import sy_watch

        device = torch.device("cuda", self.op.heap.ordinal)
        count = len(self._signals)
        words = torch.tensor([word_of(s) for s in self._signals] or [0], dtype=torch.int32, device=device)
        posts = torch.tensor(
            [self._counted.get(s, 1) for s in self._signals] or [1], dtype=torch.int32, device=device
        )
        arrived = torch.zeros(1 + count, dtype=torch.int64, device=device)
        watched = {
            "control": arguments["sy_control"],
            "words": words,
            "posts": posts,
            "times": arrived,
            "count": count,
            "epoch": 0,
            "BLOCK": 1 << max(5, (count - 1).bit_length()),
        }
        if self._compiled is None:
            self._compiled = jit.Variants(
                compiler_of(self.kernel, self.grid, self._leaving_room()), arguments
            )
            self._watch = jit.compile_kernel(sy_watch, watched, (1, 1, 1), {"num_warps": 1}, beside=True)
        kernel, packed = self._compiled.pack(arguments)
        stream, side = torch.cuda.current_stream(), torch.cuda.Stream(priority=-1)
        torch.cuda.synchronize()
        # The host starts the ranks apart; a call before, while the device sleeps until all is enqueued, aligns them.
        epoch = int(arguments["sy_control"][layout.EPOCH])
        if self.repeatable:
            torch.cuda._sleep(ALIGN_CYCLES)
            self.op.call(kernel, list(self.grid), stream.cuda_stream, packed)
            epoch += 1
        watched["epoch"] = _signed(epoch)
        packed_watch = self._watch.pack(watched)
        side.wait_stream(stream)
        self._watch.kernel.launch([1, 1, 1], side.cuda_stream, packed_watch)
        self.op.call(kernel, list(self.grid), stream.cuda_stream, packed)
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
        self._epoch = _signed(self._control[layout.EPOCH] + 1)
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
    plain, traced = "\nfrom syncopate.language import ", "\nfrom syncopate.device.traced import "
    if source.count(plain) != 1:
        raise ValueError("this is not an emitted kernel: it does not import syncopate.language once")
    return source.replace(plain, traced)


def word_of(signal: int) -> int:
    """The control block's word of a signal."""
    return layout.FIRST_SIGNAL + layout.SIGNAL_STRIDE * signal


def slot_record(slot: int) -> int:
    """The schedule table's word where the record of a slot begins."""
    return layout.FIRST_SLOT + layout.SLOT_WORDS * slot


def arrivals_of(schedule: _syncopate.Schedule, rank: int) -> list[Arrival]:
    """The chunks that come to `rank` in each call, their times not yet known."""
    signals = signals_of(schedule)
    transfers = {}
    for other in schedule.ranks:
        for transfer in schedule.transfers(other):
            if transfer.dst_rank == rank:
                transfers[transfer.op] = transfer
            for push, to in pushes_of(signals, transfer):
                if to == rank:
                    transfers.setdefault(push, transfer)
    chunks = []
    for signal, (kind, *op) in enumerate(signals[rank]):
        transfer = transfers.get(tuple(op))
        if kind == "arrived" and transfer is not None:
            tensor, region = transfer.dst
            summed = transfer.op == tuple(op) and transfer.reduce != "none" and transfer.src_rank == rank
            chunks.append(Arrival(signal, transfer.src_rank, tensor, region, 0, tuple(op), summed))
    return chunks


#: Of a rank, what each of its signals stands for: (kind, rank, op).
Signals = list[tuple[str, int, int]]


def signals_of(schedule: _syncopate.Schedule) -> dict[int, Signals]:
    """By rank; of several nodes those of this one, as nobody posts beyond."""
    return {rank: schedule.signals(rank) for rank in schedule.ranks}


def pushes_of(
    signals: Mapping[int, Signals], transfer: _syncopate.Transfer
) -> list[tuple[tuple[int, int], int]]:
    """(op, receiver) of each push that a sum carries out: it tells the receivers by the pushes' own signals."""
    told = [(signals[to][signal], to) for to, signal in transfer.posts if to in transfer.peers]
    return [
        ((rank, op), to) for (kind, rank, op), to in told if kind == "arrived" and (rank, op) != transfer.op
    ]


def made_of(schedule: _syncopate.Schedule, rank: int) -> list[Made]:
    """The chunks that `rank`'s kernel makes in each call, their times not yet known."""
    signals = enumerate(schedule.signals(rank))
    told = {index: signal for signal, (kind, of, index) in signals if kind == "made" and of == rank}
    return [
        Made(told.get(index, -1), *made.chunk, made.slots, 0)
        for index, made in enumerate(schedule.chunks(rank))
    ]


def sends_of(schedule: _syncopate.Schedule, rank: int) -> list[Send]:
    """The transfers that `rank` carries out to others, those that its sums carry out included."""
    signals = signals_of(schedule)
    sends = []
    for t in schedule.transfers(rank):
        waits = [signal for signal, lag in t.waits if lag == 0]
        if t.dst_rank != rank:
            sends.append(Send(t.op, t.dst_rank, *t.src, waits, 0))
        for op, to in pushes_of(signals, t):
            sends.append(Send(op, to, *t.dst, waits, 0))
    return sends


def tile_runs(table: Sequence[int], times: Sequence[int], read_at: Mapping[int, int]) -> list[TileRun]:
    """The tiles that ran, by slot; their ends are not known yet."""

    def signals(waits: int) -> list[int]:
        places = range(table[waits], table[waits + 1], layout.PAIR_WORDS)
        return [(table[at] - layout.FIRST_SIGNAL) // layout.SIGNAL_STRIDE for at in places]

    tiles = []
    for slot in range(table[layout.NUM_SLOTS]):
        at = slot_record(slot)
        if times[at + layout.TRACE_START] == 0:
            continue  # a grid that is smaller than the table never takes this slot
        phases, ranges = [], []
        for phase in phases_of(table, at):
            ranges.append((table[phase + layout.PHASE_BEGIN], table[phase + layout.PHASE_BEGIN + 1]))
            over = times[phase + layout.TRACE_WAIT], times[phase + layout.TRACE_START]
            phases.append((*over, signals(phase + layout.PHASE_WAITS)))
        place = times[at + layout.TRACE_PLACE]
        tiles.append(
            TileRun(
                slot,
                tile=table[at + layout.SLOT_TILE],
                program=place & 0xFFFFFFFF,
                multiprocessor=place >> 32,
                wait_begin=times[at + layout.TRACE_WAIT],
                start=times[at + layout.TRACE_START],
                end=0,
                waits=signals(at + layout.SLOT_WAITS),
                phases=phases,
                read_at=read_at.get(slot),
                ranges=ranges,
            )
        )
    return tiles


def set_ends(tiles: Sequence[TileRun], program_ends: Sequence[int]) -> None:
    """A tile ends when its program begins to wait for the next one, the last one with its program."""
    following: dict[int, int] = {}
    for tile in sorted(tiles, key=lambda t: t.start, reverse=True):
        tile.end = max(tile.start, following.get(tile.program, program_ends[tile.program]))
        following[tile.program] = tile.wait_begin


def proven_arrivals(
    tiles: Sequence[TileRun], chunks: Sequence[Arrival], arrived: Sequence[int]
) -> list[Arrival]:
    """The watcher looks now and then: a wait that is over proves that its chunk was there."""
    proof: dict[int, int] = {}
    for tile in tiles:
        for over, waits in [(tile.start, tile.waits), *((over, waits) for _, over, waits in tile.phases)]:
            for signal in waits:
                proof[signal] = min(proof.get(signal, over), over)
    seen = []
    for chunk, moment in zip(chunks, arrived, strict=True):
        moment = min(moment or proof.get(chunk.signal, 0), proof.get(chunk.signal, moment))
        seen.append(replace(chunk, time=moment))
    return seen


def proven_completions(tiles: Sequence[TileRun], made: Sequence[Made]) -> list[Made]:
    """So does a tile that has ended, of what it made."""
    ends = {tile.slot: tile.end for tile in tiles}
    complete = []
    for chunk in made:
        last = max((ends[slot] for slot in chunk.slots if slot in ends), default=chunk.time)
        complete.append(replace(chunk, time=min(chunk.time or last, last)))
    return complete


def assemble(
    rank: int,
    device: str,
    table: Sequence[int],
    times: Sequence[int],
    chunks: Sequence[Arrival],
    arrived: Sequence[int],
    begin: int,
    end: int,
    made: Sequence[Made] = (),
    sends: Sequence[Send] = (),
    read_at: Mapping[int, int] | None = None,
) -> Trace:
    """The trace of one call from its table, the times that the kernel left, and those that the watcher saw (0: none), of
    `chunks` in `arrived` and of `made` in their `time`. `read_at`: by slot, at which rank its tile reads what it fetches."""

    tiles = tile_runs(table, times, read_at or {})
    set_ends(tiles, times[len(table) :])
    seen, complete = proven_arrivals(tiles, chunks, arrived), proven_completions(tiles, made)
    begin = min([begin, *(t.wait_begin for t in tiles)])
    end = max([end, *(t.end for t in tiles), *(c.time for c in seen)])
    moments = {chunk.signal: chunk.time for chunk in (*seen, *complete)}
    ready = [replace(s, ready=max([begin, *(moments.get(signal, 0) for signal in s.waits)])) for s in sends]
    return Trace(
        rank,
        device,
        begin,
        end,
        tiles,
        sorted(seen, key=lambda c: c.time),
        sorted(complete, key=lambda c: c.time),
        ready,
    )


def write(traces: Sequence[Trace], path: str | os.PathLike[str]) -> None:
    """Writes the traces as JSON for Perfetto; to a name that ends in .png a picture, and the JSON beside it. Whole files
    or none. Raises PictureError where a picture is asked for and matplotlib is missing."""
    from .perfetto import to_perfetto

    path = Path(path)
    if path.suffix.lower() == ".png":
        from .picture import draw

        _write_whole(path, lambda scratch: draw(traces, scratch))
        path = path.with_suffix(".json")
    _write_whole(path, lambda scratch: scratch.write_text(to_perfetto(traces)))


def _write_whole(path: Path, fill: Callable[[Path], object]) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fill(scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _signed(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31
