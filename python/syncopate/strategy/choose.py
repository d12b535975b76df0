"""Who chooses: tune::choose, in C++."""

from __future__ import annotations

import json
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from .. import _syncopate
from .._syncopate import Problem, Strategy, Tiling
from .store_scope import scope
from .tiling import device_name, exact_fp32

if TYPE_CHECKING:
    from ..group import Group

Beside = TypeVar("Beside", bool, list[Any])

HOPPER = 9  # the compute capability's first figure

#: Tiles with which a small problem has several of them, for Triton's interpreter.
SMALL: Tiling = _syncopate.tune.SMALL


def require(problem: Problem) -> None:
    """Raises ValueError for a problem that no operator can do, saying why (ops/problem.hpp)."""
    if objection := _syncopate.tune.problem_objection(problem):
        raise ValueError(objection)


@lru_cache
def runs_gluon(device: str) -> bool:
    """Whether the library's Gluon kernels run there: on Hopper."""
    return device == "cuda" and torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == HOPPER


def here(device: str) -> dict[str, Any]:
    """What this process can run, as tune/ is told."""
    return {
        "device": device_name(),
        "cuda": device == "cuda",
        "exact_fp32": exact_fp32(),
        "gluon": runs_gluon(device),
    }


@lru_cache
def _say_what_stands_in(device: str, ranks: int) -> None:
    message = _syncopate.tune.machine_message(device, ranks)
    if message:
        warnings.warn(f"syncopate: {message}", stacklevel=4)


def estimate(
    problem: Problem,
    *,
    unfused: bool = True,
    kept: bool = False,
    copied: bool = False,
    machine: str = "",
    snapshot: tuple[str, str, str, str] | None = None,
) -> tuple[Strategy, float, bool]:
    """What this rank alone chooses, as choose() does: the strategy, its µs, and whether these were measured. On the
    host, and of what is not known, 0 µs. `machine`: as of Group. `snapshot`: by what a rank knows (_syncopate.tune.snapshot)."""
    found_with = scope(problem.device) if problem.device == "host" or device_name() else {}
    if problem.device == "cuda" and device_name():
        _say_what_stands_in(device_name(), max(1, problem.ranks // problem.nodes))
    chosen, us, measured, _ = _syncopate.tune.choose(
        problem,
        unfused=unfused,
        kernel=found_with.get("kernel", ""),
        versions=found_with.get("versions", ""),
        kept=kept,
        copied=copied,
        machine=machine,
        snapshot=snapshot,
        **here(problem.device),
    )
    return chosen, us, measured


def choose(
    problem: Problem,
    *,
    unfused: bool = True,
    kept: bool = False,
    copied: bool = False,
    group: Group | None = None,
) -> Strategy:
    """The fastest known, complete: what tuning has found, or the best by the estimate. On the host none is faster than
    another by the estimate. `unfused`: whether the vendors' pair can be run, which takes a process group of torch. `kept`:
    the caller reads what is gathered in the heap, so tiles do not fetch it themselves; `copied`: and wants it in a
    tensor of its own, where the Gluon kernel stores it; else it is copied from there.
    With the `group` of all ranks, rank 0 chooses for all, whose stores and machine files may differ. Collective then."""
    return choose_found(problem, unfused=unfused, kept=kept, copied=copied, group=group)[0]


def choose_found(
    problem: Problem,
    *,
    unfused: bool = True,
    kept: bool = False,
    copied: bool = False,
    group: Group | None = None,
) -> tuple[Strategy, bool]:
    """As choose(), and whether it is what tuning has found."""
    machine = "" if group is None else group.machine
    chosen, _, found = estimate(problem, unfused=unfused, kept=kept, copied=copied, machine=machine)
    return (chosen, found) if group is None else shared(chosen, found, group)


def shared(strategy: Strategy, found: Beside, group: Group) -> tuple[Strategy, Beside]:
    """What rank 0 has given, and beside it what JSON can hold. Collective."""
    rendezvous = group.rendezvous
    if group.size == 1 or rendezvous is None:  # as of operators that are only made
        return strategy, found
    rendezvous.timeout = group.meeting_seconds
    text, found = json.loads(_syncopate.tune.share(rendezvous, json.dumps([strategy.to_json(), found])))
    return Strategy.from_json(text), found


def given(strategy: Any) -> dict[str, Strategy]:
    """What a function's `strategy` adds to its operator's options: "auto" and None, the fastest known, nothing."""
    if strategy is None or (isinstance(strategy, str) and strategy == "auto"):
        return {}
    if not isinstance(strategy, Strategy):
        what = f"got {strategy!r}" if isinstance(strategy, str) else f"got {type(strategy).__name__}"
        error = ValueError if isinstance(strategy, str) else TypeError
        raise error(f'strategy: expected a sy.Strategy or "auto", {what}')
    return {"strategy": strategy}


def recorded(problem: Problem, group: Group | None = None) -> Strategy | None:
    """For a call that is recorded (syncopate.trace): None, what is chosen, where its kernel notes the times of its
    tiles; else the default strategy, whose kernel does. `group`: as of choose()."""
    chosen = choose(problem, unfused=False, group=group)
    tells = chosen.fused and chosen.kernel == "plain"
    return None if tells else Strategy(kernel="plain")


def complete(problem: Problem, given: Strategy, group: Group | None = None) -> Strategy:
    """`given` with everything that it leaves open, by the machine of the `group`'s ranks; over nodes rank 0 does it for all. Ranks that
    are given other strategies are told so by their first call."""
    machine = "" if group is None else group.machine
    made = _syncopate.tune.complete(problem, given, machine=machine, **here(problem.device))
    return made if group is None or problem.nodes == 1 else shared(made, False, group)[0]
