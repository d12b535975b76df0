"""The calls of `syncopate run` on one rank: made, timed and judged, whatever they run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ranks import Place
from .spec import rank_count


@dataclass
class Result:
    """What one rank found."""

    rank: int
    calls: int
    microseconds: float  # median time of a call
    identical: bool | None = None  # to the unfused kernel, bit for bit; None: not checked, or not bit for bit
    error: float | None = None  # relative norm against the unfused kernel
    within: str = ""  # what it is within rounding of, and why bits may differ, where they do
    failure: str = ""
    trace: Any = None  # syncopate.trace.Trace of one more call, with --trace


def record_last(group: Any, record: Callable[[], Any]) -> Any:
    """The trace of a recorded call in which all ranks begin together; on a GPU of the second one, the first compiles."""
    for index in range(2 if group.device == "cuda" else 1):
        group.barrier(f"trace-{index}")
        recorded = record()
    return recorded


def judge(rank: int, options: argparse.Namespace, call: Callable[[int], tuple], times: list[float]) -> Result:
    """Runs the calls and compares their outputs: `call` returns these, those that are expected, and what tells whether they may
    differ by rounding (higher_precision.Loosened). A call that fails ends the run with its error."""
    identical, error = (True, 0.0) if options.check else (None, None)
    within = ""
    for index in range(options.calls):
        outputs, expected, *loosened = call(index)
        found = [compared(*pair) for pair in zip(outputs, expected or [], strict=False)]
        for _, off in found:
            error = math.nan if math.isnan(off) or math.isnan(error) else max(error, off)
        if all(same for same, _ in found):
            continue
        loose = loosened[0]() if loosened else None
        if loose is not None and loose.explains(outputs, expected):
            within = loose.against
        else:
            identical = False
    if within and identical:
        identical = None
    return Result(rank, options.calls, sorted(times)[len(times) // 2], identical, error, within)


def compared(output: Any, wanted: Any) -> tuple[bool, float]:
    """Whether two tensors are equal bit for bit, a NaN being equal to a NaN, and the norm of their difference relative to that
    of `wanted`, places where they are equal left out."""
    got, due = output.double(), wanted.double()
    equal = (got == due) | (got.isnan() & due.isnan()) if output.is_floating_point() else output == wanted
    if bool(equal.all()):
        return True, 0.0
    norm = due.where(due.isfinite(), 0.0).norm().item()
    difference = (got - due).where(~equal, 0.0).norm().item()
    return False, difference / norm if norm else difference


def make_group(place: Place, options: argparse.Namespace):
    from ..group import of_folder

    torch_device(place, options)
    return of_folder(
        place.folder,
        place.rank,
        place.size,
        place.run_id,
        options.device,
        place.rank,
        deadline=options.setup_deadline,
    )


def torch_device(place: Place, options: argparse.Namespace):
    import torch

    if options.device == "host":
        torch.set_num_threads(1)
        return torch.device("cpu")
    torch.cuda.set_device(place.rank)
    return torch.device("cuda", place.rank)


def start(options: argparse.Namespace, ranks: int, work: Callable[[Place], Result]) -> list[Result]:
    from ..ranks import run

    options.ranks = ranks
    rank_count(options)
    import torch  # noqa: F401 - imported once, before the ranks are forked
    import triton  # noqa: F401

    return run(ranks, work, timeout=None)  # each wait has its deadline
