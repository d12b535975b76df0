"""How a chain runs: overlapped tile by tile, or as its plain kernels one after another, in stream order
or launched programmatically, whichever a measurement finds fastest.

A chain never loses more than what the measurement cannot see: another way than stream order has to be the faster one in most
rounds (C++, sync/way.hpp), each of which replays graphs of all in turn. A call of a chain that overwrites its own input cannot be made
twice, so there nothing is measured, and the kernels run in stream order unless the caller says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..call.prepared import MOST_PACKED, compiler_of, unwrapped
from ..call.stated import StatedKernel
from ..call.tuples import flat, nested
from ..device import jit

WAYS = ("tiles", "programmatic", "stream")
AWAITS = "AFTER_KERNEL"  # the constexpr by which a stated kernel is told to
ROUNDS, CALLS = 9, 10  # of a measurement; calls in a graph


def awaits_kernel(kernel: Any) -> bool:
    """Whether it can await the kernel before it by itself (griddepcontrol.wait), and lets the next one start early."""
    return isinstance(kernel, StatedKernel) and AWAITS in kernel.parameters


class StreamOrder:
    """The user's own kernels, compiled for one set of arguments, in stream order. `programmatic`: those that await the kernel
    before them by themselves start beside it, but for the first one. A kernel lets the next one start before it has itself waited:
    if the first one started beside an earlier call, the second could read early what that call still writes."""

    def __init__(
        self,
        kernels: Sequence[Any],
        grids: Sequence[tuple[int, ...]],
        given: Sequence[Mapping[str, Any]],
        options: Sequence[Mapping[str, Any]],
        programmatic: bool = False,
    ) -> None:
        self._kernels, self._grids = list(kernels), [tuple(grid) for grid in grids]
        self._awaits = [programmatic and awaits_kernel(kernel) for kernel in kernels]
        # A stated kernel that always follows a table is given one that counts its calls, of each stream its own.
        self._by_stream = any(
            isinstance(kernel, StatedKernel) and "FUSED" not in kernel.parameters for kernel in kernels
        )
        self._compiled = [
            jit.Variants(compiler_of(unwrapped(kernel), grid, chosen), full)
            for kernel, grid, full, chosen in zip(
                kernels, self._grids, self._arguments(given), options, strict=True
            )
        ]
        self._packed: dict[Any, list[Any]] = {}

    def _arguments(self, given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        full = [nested(flat(items)) for items in given]
        for items, kernel, grid, awaits in zip(full, self._kernels, self._grids, self._awaits, strict=True):
            if isinstance(kernel, StatedKernel):
                items |= kernel.filled(grid, items)
            if awaits:
                items[AWAITS] = True
        return full

    def launch(self, key: Any, given: Sequence[Mapping[str, Any]]) -> None:
        stream = jit.current_stream()
        if self._by_stream:
            key = (stream, key)
        packed = self._packed.get(key)
        if packed is None:
            if len(self._packed) >= MOST_PACKED:
                self._packed.clear()
            packed = self._packed[key] = [
                compiled.pack(full)
                for compiled, full in zip(self._compiled, self._arguments(given), strict=True)
            ]
        for place, ((kernel, arguments), grid) in enumerate(zip(packed, self._grids, strict=True)):
            kernel.launch(list(grid), stream, arguments, place > 0 and self._awaits[place])


def measure(ways: Mapping[str, Callable[[], None]]) -> dict[str, list[float]]:
    """µs of a call of each way, round by round: replays of graphs, in turn, so that all meet the same clocks."""
    import torch

    graphs = {name: _captured(run) for name, run in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS):
        names = list(graphs) if turn % 2 == 0 else list(reversed(graphs))
        for name in names:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graphs[name].replay()
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            times[name].append(1000 * begin.elapsed_time(end) / CALLS)
    return times


def _captured(run: Callable[[], None]) -> Any:
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
        run()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(CALLS):
                run()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    return graph
