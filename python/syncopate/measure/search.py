"""The search for the fastest strategy of a problem: the calls that it measures, by each strategy and by the unfused pair. What is
tried, and in which order, comes from the estimate; what wins, from the search (tune/search/search.hpp)."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .. import _syncopate
from ..bench.case import CASES, on_gpu, synchronize
from ..bench.fp8 import of_fp8
from ..bench.shapes import Shape
from ..group import FailedTogether
from ..strategy import PROGRAMS_ON_HOST, Strategy
from ..strategy.choose import here
from ..strategy.failures import DEADLINE, SLEEP_CYCLES, reason_of
from ..strategy.store_scope import scope

EAGER_CALLS = 16  # in a measurement of what the host takes


class Contender(NamedTuple):
    """A strategy that takes part."""

    name: str
    json: str
    estimate_us: float
    baseline: bool


def contenders_of(problem: Any, device: str, vary: Sequence[str] = (), machine: str = "") -> list[Contender]:
    """What is tried, and in which order (C++: tune/search/contenders.hpp)."""
    found = _syncopate.tune.contenders(problem, list(vary), machine, **here(device))
    return [Contender(*entry) for entry in found]


class Measurer:
    """Makes contenders ready on this rank and times their calls. What fails here is told to the search, which hears of all
    ranks; so nothing here waits for another rank but calls themselves, whose waits have a deadline."""

    def __init__(self, case: Any, contenders: Sequence[Contender], say: Callable[[str], None] | None) -> None:
        self.case, self.contenders, self.say = case, contenders, say
        self.calls: dict[int, Callable[[int], Any]] = {}
        self.by_host: dict[int, Callable[[int], Any]] = {}  # the same, but for CUDA graphs
        self.made: dict[int, Any] = {}
        self.failed: set[int] = set()
        self.inputs = itertools.count()  # a call has others than the one before: those are in the L2 cache
        self.begin = time.monotonic()
        self.token = torch.zeros(1, device=case.device)

    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def progress(self, share: float, what: str) -> None:
        if self.say is not None:
            self.say(_line(share, what))

    def prepare(self, i: int) -> str:
        """Compiles and runs a contender once for each set of inputs, and compares. "" or what is wrong."""
        case, contender = self.case, self.contenders[i]
        self.failed.discard(i)
        try:
            self.made[i] = case.operators(strategy=Strategy.from_json(contender.json), deadline=DEADLINE)
            call = case.called(self.made[i])
            error = case.error(call)
            if not error <= case.tolerance:
                return f"it is wrong: relative error {error:.3g}"
            self.calls[i] = case.graphs(call) if on_gpu() else call
            self.by_host[i] = call
        except Exception as problem:  # noqa: BLE001 - Triton has errors of its own
            return reason_of(problem)
        return ""

    def release(self, i: int) -> None:
        synchronize()
        self.calls.pop(i, None)
        self.by_host.pop(i, None)
        for operator in self.made.pop(i, ()):
            operator.close()
            self.case.forget(operator)

    def measure(self, which: Sequence[int]) -> list[float]:
        """µs of one call of each, the host's time hidden; infinity for what failed."""
        return self._unless_failed(which, self._on_gpu(which) if self.token.is_cuda else self._on_host(which))

    @property
    def asks_eager(self) -> bool:
        """Whether calls that are no CUDA graphs are measured, too: where the unfused way takes the host longer than the fused ones."""
        return bool(self.token.is_cuda and getattr(self.case, "unfused_by_host", False))

    def eager(self, which: Sequence[int]) -> list[float]:
        """As measure, of calls one behind another by the host, with the time that it takes."""
        times = []
        for i in which:
            synchronize()
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(EAGER_CALLS):
                self._call(i, self.by_host)
            synchronize()
            times.append((time.perf_counter() - begin) / EAGER_CALLS * 1e6)
        return self._unless_failed(which, times)

    def _unless_failed(self, which: Sequence[int], times: Sequence[float]) -> list[float]:
        for i in which:
            for operator in self.made.get(i, ()):
                try:
                    operator.check()
                except (RuntimeError, ValueError):  # as of more rows than a bound
                    self.failed.add(i)
        return [math.inf if i in self.failed else us for i, us in zip(which, times, strict=True)]

    def _call(self, i: int, calls: dict[int, Callable[[int], Any]] | None = None) -> None:
        inputs = next(self.inputs)  # on all ranks alike, whatever has failed here
        if i in self.failed:
            return
        try:
            (calls or self.calls)[i](inputs)
        except (RuntimeError, ValueError):
            self.failed.add(i)

    def _on_host(self, which: Sequence[int]) -> list[float]:
        times = []
        for i in which:
            dist.barrier()
            begin = time.perf_counter()
            self._call(i)
            times.append((time.perf_counter() - begin) * 1e6)
        return times

    def _on_gpu(self, which: Sequence[int]) -> list[float]:
        events = []
        for i in which:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(SLEEP_CYCLES)
            self._call(i)  # what is timed finds its instructions there, whatever ran before
            dist.all_reduce(self.token)  # a barrier on the device
            start.record()
            self._call(i)
            end.record()
            events.append((start, end))
            torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in events]


def _line(share: float, what: str) -> str:
    return _syncopate.tune.progress_line(share, what, shutil.get_terminal_size((100, 24)).columns - 1)


def search(
    problem: Any,
    group: Any,
    *,
    budget: float = 60.0,
    again: bool = False,
    vary: Sequence[str] = (),
    machine: str = "",
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Finds and stores the fastest strategy of a problem. Collective over the default process group of torch, which
    `group` (a syncopate Group) must be. `budget`: seconds. Raises ValueError for a problem that cannot be measured."""
    if problem.operator not in CASES:
        raise ValueError(f"{problem.operator} cannot be tuned; there are {', '.join(CASES)}")
    if problem.m % problem.ranks:
        raise ValueError(
            f"M = {problem.m} is no multiple of {problem.ranks} ranks: such shapes are not tuned"
        )
    shape = Shape("", problem.m, problem.n, problem.k, problem.f)
    if problem.is_fp8:
        case = of_fp8(CASES[problem.operator], problem.scales)(shape, out=problem.out_dtype)
    else:
        case = CASES[problem.operator](shape, dtype=problem.dtype)
    return search_case(problem, problem.device, case, group, budget, again, vary, machine, say)


def search_spec(spec: Any, group: Any, *, budget: float = 60.0, again: bool = False, vary: Sequence[str] = (),
                machine: str = "", say: Callable[[str], None] | None = None) -> dict[str, Any]:  # fmt: skip
    """The same of a command's Spec: attention, or a mixture of experts, with random routings."""
    if spec.is_mixture:
        from ..bench.moe_case import MoeCase as Case
    else:
        from ..bench.attention_case import AttentionCase as Case  # type: ignore[assignment]
    # As operators have it.
    problem = _syncopate.ops.problem_key(spec.text, group.size, group.multiprocessors(PROGRAMS_ON_HOST))
    case = Case(spec, group)
    return search_case(problem, group.device, case, group, budget, again, vary, machine, say)


def search_case(problem: Any, device: str, case: Any, group: Any, budget: float, again: bool, vary: Sequence[str],
                machine: str, say: Callable[[str], None] | None) -> dict[str, Any]:  # fmt: skip
    """Closes the case."""
    contenders = contenders_of(problem, device, vary, machine or group.machine)
    measurer = Measurer(case, contenders, say)
    try:
        return _syncopate.tune.search(
            problem,
            contenders=contenders,
            unfused=1,
            budget=budget,
            again=again,
            measurer=measurer,
            rendezvous=group.rendezvous,
            **scope(device),
        )
    finally:
        case.close()


def _is_whole(group: Any) -> bool:
    """Whether it is all ranks of torch.distributed, which a search meets in."""
    return dist.is_initialized() and group.process_group is not None and dist.get_world_size() == group.size


def _is_wanted(problem: Any, device: str, group: Any) -> bool:
    """Whether nothing is stored for it, and it can be estimated, as rank 0 knows it. Collective."""
    why = ""
    if group.rank == 0:
        why = _syncopate.tune.estimate_objection(problem) or _syncopate.tune.stored(problem, **scope(device))
    return not _syncopate.tune.share(group.rendezvous, why)


def _budget() -> float:
    return float(os.environ.get("SYNCOPATE_TUNE_BUDGET") or 60)


def tune_once(problem: Any, group: Any) -> None:
    """Searches, for 60 s or SYNCOPATE_TUNE_BUDGET, unless the store has a winner of just this problem. Collective. What
    cannot be tuned here is left as it is: problems that are no benchmark's or are not estimated, groups that are not all ranks
    of torch.distributed."""
    if not _is_whole(group) or problem.operator not in CASES or problem.m % problem.ranks:
        return
    if _is_wanted(problem, problem.device, group):
        search(problem, group, budget=_budget())


def tune_spec_once(spec: str, group: Any) -> None:
    """The same of attention and of a mixture of experts. One with a bound is not searched: random routings may go over it. Nor is
    one of which a rank has no room for what the search makes: all experts' weights, or whole sequences. Where it fails on any rank, all go on without."""
    from ..command.spec import Spec

    asked = Spec(spec, group.size)
    if not _is_whole(group) or asked.extents.get("bound") or not _is_wanted(spec, group.device, group):
        return
    try:
        group.together("has room", lambda: _require_room(asked, group))
        group.together("searched", lambda: search_spec(asked, group, budget=_budget()))
    except FailedTogether as error:
        warnings.warn(f"syncopate: {spec} is not searched: {error}", stacklevel=2)


def _require_room(spec: Any, group: Any) -> None:
    """Raises MemoryError where this machine has no room for what is measured, which every rank makes: of attention the whole
    sequence, three times, and what is right; of a mixture the weights. In fp32 first."""
    sizes = spec.extents
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if spec.is_mixture:
        elements = 3 * sizes["e"] * sizes["h"] * sizes["f"]
        what, needed, needed_there = (
            "weights",
            8 * elements,
            6 * elements,
        )  # w1 is copied where it gets its dtype
    else:
        elements = sizes["b"] * sizes["s"] * sizes["d"]
        whole = (8 * sizes["h"] + 9 * sizes["hkv"]) * elements * 2 + 4 * sizes["h"] * elements
        what, needed, needed_there = "tensors", 0 if group.device == "cuda" else whole, whole
    if needed * group.size > free:
        raise MemoryError(f"{group.size} ranks' {what} of {needed:,} bytes, and {free:,} are free")
    if group.device == "cuda" and needed_there > (free := torch.cuda.mem_get_info(group.ordinal)[0]):
        raise MemoryError(f"{what} of {needed_there:,} bytes, and {free:,} are free on the GPU")
