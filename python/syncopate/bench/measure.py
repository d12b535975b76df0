"""Timing on several GPUs: one process a GPU, CUDA events, median over rounds of the maximum over ranks.

A measurement of one call, on every rank alike:

    hidden    sleep on the device (the host enqueues everything meanwhile) | call | barrier | start | call | end
    visible   call, synchronise, barrier on the device                                      | start | call | end

A candidate of several calls in a row is one graph of them (--back-to-back) or comes from the host (--eager), and its time is that of
one: what a call waits for of the one before it counts.

Candidates of one shape take turns within a round, in every other one from the last to the first: clocks and temperature drift for
all of them alike. What is timed follows a call of the same candidate: behind another kernel it would first have to fetch its own
instructions, 1 to 3 µs that a candidate does not pay which follows its like. Every call has the next set of inputs: with those of
the call before it, it would find in the L2 cache what it has to read from memory. Without a GPU the host's clock takes the events'
place, and hidden is visible: enough to run a bench's logic.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

SLEEP_CYCLES = 8_000_000  # about 4 ms: longer than two of the slowest host enqueues that are to be hidden


@dataclass
class Candidate:
    """One row of a table. `call(i)` enqueues the i-th call on the current stream; inputs rotate with i."""

    name: str
    call: Callable[[int], object]
    visible: bool = True  # also measure with the host's time visible
    hidden: bool = True  # … and with it hidden
    after: Callable[[], None] | None = None  # runs when the shape is done
    calls: int = 1  # that `call` enqueues, one behind the other; times are those of one

    @property
    def modes(self) -> list[str]:
        return [mode for mode in ("hidden", "visible") if getattr(self, mode)]


def device_barrier(token: torch.Tensor) -> None:
    dist.all_reduce(token)


def measure(candidates: list[Candidate], rounds: int = 15, warmup: int = 3) -> dict[str, dict[str, float]]:
    """Returns {name: {"hidden_us": t, "visible_us": t}}, or one of them: medians over `rounds` of the maximum over ranks."""
    if not torch.cuda.is_available():
        return _measure_on_host(candidates, rounds)
    token = torch.zeros(1, device="cuda")
    for candidate in candidates:
        _warm_up(candidate, warmup)
    dist.barrier()
    events: dict[tuple[str, str], list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {}
    calls = {candidate.name: candidate.calls for candidate in candidates}
    inputs = itertools.count()
    for turn in range(rounds):
        for candidate in candidates if turn % 2 == 0 else reversed(candidates):
            for mode in candidate.modes:
                start = torch.cuda.Event(enable_timing=True)
                end = torch.cuda.Event(enable_timing=True)
                torch.cuda.synchronize()
                if mode == "hidden":
                    torch.cuda._sleep(SLEEP_CYCLES)
                candidate.call(next(inputs))
                device_barrier(token)
                if mode == "visible":
                    torch.cuda.synchronize()
                start.record()
                candidate.call(next(inputs))
                end.record()
                events.setdefault((candidate.name, mode), []).append((start, end))
    torch.cuda.synchronize()
    result: dict[str, dict[str, float]] = {}
    for (name, mode), pairs in events.items():
        times = torch.tensor([s.elapsed_time(e) * 1e3 / calls[name] for s, e in pairs], device="cuda")
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        result.setdefault(name, {})[f"{mode}_us"] = statistics.median(times.tolist())
    return result


def _warm_up(candidate: Candidate, calls: int) -> None:
    """An error names the candidate: after a fault of the device every later call fails, whosever it is."""
    try:
        for i in range(calls):
            candidate.call(i)
        torch.cuda.synchronize()
    except Exception as error:
        raise RuntimeError(f"{candidate.name}: {type(error).__name__}: {error}") from error


def _measure_on_host(candidates: list[Candidate], rounds: int) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {}
    for turn in range(rounds):
        for candidate in candidates:
            dist.barrier()
            begin = time.perf_counter()
            candidate.call(turn)
            taken = torch.tensor([(time.perf_counter() - begin) * 1e6 / candidate.calls], dtype=torch.float64)
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            times.setdefault(candidate.name, []).append(taken.item())
    mode = {candidate.name: candidate.modes[0] for candidate in candidates}
    return {name: {f"{mode[name]}_us": statistics.median(values)} for name, values in times.items()}


class _Again:
    """What stands for a graph on the host."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.replay = call


def capture(call: Callable[[], object]) -> torch.cuda.CUDAGraph | _Again:
    """A CUDA graph of one call, warmed up on a side stream as capture demands. It keeps `call`, whose tensors its replays read."""
    if not torch.cuda.is_available():
        return _Again(call)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # thread_local: NCCL's watchdog thread may query its events meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    graph.call = call  # without it the allocator would hand that memory on
    return graph
