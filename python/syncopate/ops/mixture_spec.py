"""The problem of a mixture of experts as C++ reads it, and the strategy that it is given."""

from __future__ import annotations

from typing import Any

import torch

from .. import _syncopate
from ..call.arguments import DTYPE_NAMES
from ..group import Group
from ..strategy import PROGRAMS_ON_HOST, Strategy, Tiling, shared
from ..strategy.choose import here
from ..strategy.search_hook import search_if_asked
from ..strategy.store_scope import scope
from ..strategy.tiling import device_name


def require_bound(bound: Any) -> None:
    """Raises ValueError for what is no `bound`."""
    if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int) or bound < 1):
        raise ValueError(f"bound: expected a number of rows, from 1 on, got {bound!r}")


def tuned(spec: str, group: Group) -> Strategy | None:
    """What `syncopate tune` has found for it here (with SYNCOPATE_TUNE=auto searched first where nothing is stored), on all ranks what rank 0 has; None: what is chosen without it, which is
    fused: calls may be captured, and the vendors' libraries need counts on the host. Rank 0's SYNCOPATE_TUNE is that of all. Collective."""
    if search_if_asked(spec, group) == "off":
        return None
    known = scope(group.device)
    found, _, measured, _ = _syncopate.tune.choose(
        spec, unfused=group.device == "host" and group.process_group is not None, kernel=known["kernel"],
        versions=known["versions"], machine=group.machine, **here(group.device) | {"exact_fp32": False},
    )  # fmt: skip
    found, measured = shared(found, measured, group)
    return found if measured else None


def asked_for(
    spec: str,
    group: Group,
    strategy: Strategy | None,
    tiling: Tiling | None,
    programs: int | None,
    what: str,
) -> Strategy:
    """The strategy of an operator, complete, by what is asked for in the call `what`. Raises ValueError for what is no mixture's, and
    where the ranks' calls ask for different ones. Collective."""
    if strategy is not None and (tiling is not None or programs is not None):
        raise ValueError("strategy: it says tiles and programs itself: leave out tiling and programs")
    if programs is not None and programs < 1:
        raise ValueError(f"programs: expected a number from 1 on, got {programs}")
    tilings = () if tiling is None else (tiling,)
    given = strategy or Strategy(tilings, programs=programs or group.multiprocessors(PROGRAMS_ON_HOST))
    # What rank 0 fills in comes with what it was given: ranks that were given something else are not to take that unheard.
    asked = (strategy or Strategy(tilings, programs=programs)).to_json()
    with group.calling(what if asked == Strategy().to_json() else f"{what},strategy={asked}"):
        made = completed(spec, group, given)
    if objection := _syncopate.tune.strategy_objection(spec, made):
        raise ValueError(f"moe: {'tiling' if strategy is None else 'strategy'}: {objection}")
    return made


def strategy_of(
    spec: str,
    device: str,
    tiling: Tiling | None = None,
    programs: int | None = None,
    machine: str = "",
) -> Strategy:
    """Complete: where no tiles are given, with those that C++ chooses for the problem. `machine`: as of Group."""
    return _completed(spec, device, Strategy(() if tiling is None else (tiling,), programs=programs), machine)


def completed(spec: str, group: Group, given: Strategy) -> Strategy:
    """With what rank 0 chooses where it leaves something open. Collective."""
    return shared(_completed(spec, group.device, given, group.machine), False, group)[0]


def _completed(spec: str, device: str, given: Strategy, machine: str = "") -> Strategy:
    return _syncopate.tune.complete(spec, given, machine=machine, device=device_name(), cuda=device == "cuda")


def spec_of(
    tokens: int,
    experts: int,
    topk: int,
    hidden: int,
    inner: int,
    dtype: torch.dtype,
    ranks: int,
    bound: int | None,
    part: str,
    parallel: str = "expert",
    scales: str = "",
    out: torch.dtype | None = None,
    nodes: int = 1,
) -> str:
    """SPEC of the program (C++: ops/moe.cpp, ops/moe_tensor.cpp)."""
    limit = "" if bound is None else f",bound={bound}"
    of_part = "" if part == "whole" else f",part={part}"
    how = "" if parallel == "expert" else f",parallel={parallel}"
    extents = f"T={tokens},E={experts},topk={topk},H={hidden},F={inner}{limit}"
    fp8 = f",scales={scales},out={DTYPE_NAMES[out]}" if scales else ""
    over = "" if nodes == 1 else f",nodes={nodes}"
    return f"moe:{extents}{of_part}{how},dtype={DTYPE_NAMES[dtype]}{fp8},ranks={ranks}{over}"
