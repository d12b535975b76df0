"""The rows of one shape: ours, its peers, and strategies that are compared. All times are µs of a call.

cublas, collective, triton    parts: the product, the collective, our unmodified kernel, each alone
alone                         our fused kernel alone, with its waits and posts
unfused, async_tp, …          peers (peers/); NAME_eager: without a CUDA graph
ours, ours_eager              as a CUDA graph, and not, with x and y where the operator likes them best
ours_elsewhere                with x and y in tensors of the caller
KEY=VALUE, …                  ours by other strategies (--vary), as CUDA graphs

--back-to-back: graphs of eight calls in a row, ours of one operator with x and y of the caller, as in a model's layers.
--eager: 64 calls in a row from the host without gradients, whose time counts: ours by torch.ops.syncopate, which makes y; peers
have theirs.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .. import _syncopate
from ..strategy import Strategy
from .case import CASES, Case, on_gpu, synchronize
from .fp8 import of_fp8
from .measure import Candidate, measure
from .peers import Peer
from .shapes import Shape
from .table import us_of

IN_A_ROW = 8  # calls of a graph of --back-to-back
CALLS_FROM_HOST = 64  # of --eager: the ranks begin some 200 us apart, of which a call's time then has 3

REFUSALS = (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError)


def reason_of(error: Exception) -> str:
    """Why a row is left out, in a line: what this torch lacks is named as such."""
    if isinstance(error, AttributeError) and type(error.obj).__module__.startswith("torch"):
        return f"this torch has no {error.name}"
    return (str(error).splitlines() or [type(error).__name__])[0]


def optional(
    case: Case, name: str, make: Callable[[], Callable[[int], Any]], graph: bool, whole: bool = True
) -> list[Candidate]:
    """The row of what `make` gives, once it is found right; none, and the reason in the report, where the machine or the
    shape refuses it."""
    try:
        call = make()
        call(0)
        synchronize()
        if whole:
            case.expect(name, call)
        return [graph_of(case, name, call) if graph else Candidate(name, call)]
    except REFUSALS as error:
        case.left_out[name] = reason_of(error)
        return []


def graph_of(case: Case, name: str, call: Callable[[int], Any]) -> Candidate:
    return Candidate(name, case.graphs(call), visible=False, calls=case.in_a_row)


def require_backend(op: Any, backend: str) -> None:
    """Raises where the compiler takes another backend for some transfer between ranks."""
    schedule = op.prepare().schedule
    transfers = [t for rank in schedule.ranks for t in schedule.transfers(rank)]
    taken = {t.backend for t in transfers if t.src_rank != t.dst_rank} - {backend}
    if taken:
        raise RuntimeError(f"its transfers go by {', '.join(sorted(taken))} instead")


def eager(name: str, call: Callable[[int], Any]) -> Candidate:
    @torch.no_grad()  # as a server calls them; peers that write to a tensor of theirs have no gradients anyway
    def in_a_row(i: int) -> None:
        for at in range(CALLS_FROM_HOST):
            call(CALLS_FROM_HOST * i + at)

    return Candidate(name, in_a_row, hidden=False, calls=CALLS_FROM_HOST)


def eager_rows_of(case: Case, peers: Sequence[Peer]) -> list[Candidate]:
    op = getattr(torch.ops.syncopate, case.operator)
    group = dist.group.WORLD.group_name

    def ours(i: int) -> torch.Tensor:
        return op(case.x(i), *(w(i) for w in case.weights), group)

    case.expect("ours", ours)
    rows = [eager("ours", ours)]
    for peer in peers:
        if peer.whole and peer.does(case.operator):
            made = optional(case, peer.name, lambda peer=peer: peer.make(case), False)
            rows += [eager(one.name, one.call) for one in made]
    return rows


def rows_of(case: Case, peers: Sequence[Peer], options: argparse.Namespace) -> list[Candidate]:
    if options.eager:
        return eager_rows_of(case, peers)
    back_to_back = options.back_to_back
    case.in_a_row = IN_A_ROW if back_to_back else 1
    usual = case.operators(count=1 if back_to_back else 0)
    ours = case.ours(usual, elsewhere=back_to_back)
    case.strategies["ours"] = usual[0].strategy
    case.expect("ours", ours)
    rows = [graph_of(case, "ours", ours)]
    few = options.few or back_to_back
    if not few:
        rows.append(Candidate("ours_eager", ours))
        rows += optional(case, "ours_elsewhere", lambda: case.ours(usual, elsewhere=True), graph=True)
        rows += optional(case, "alone", lambda: alone(case, usual), graph=False, whole=False)
    for peer in peers:
        if not peer.does(case.operator) or (few and not peer.whole and peer.name != "cublas"):
            continue
        made = optional(case, peer.name, lambda peer=peer: peer.make(case), peer.graph, peer.whole)
        rows += made
        if made and peer.eager and not few:
            rows += optional(case, f"{peer.name}_eager", lambda peer=peer: peer.make(case), False)
    for name, values in _syncopate.tune.variations(options.vary):

        def other(name: str = name, values: Any = values) -> Callable[[int], Any]:
            strategy = _syncopate.tune.varied(usual[0].strategy, values)
            made = case.operators(len(usual), strategy=strategy)
            case.strategies[name] = made[0].strategy
            if backend := dict(values).get("backend"):
                require_backend(made[0], backend)
            return case.ours(made, elsewhere=back_to_back)

        rows += optional(case, name, other, graph=True)
    return rows


def alone(case: Case, made: Any) -> Callable[[int], None]:
    if not on_gpu():
        raise NotImplementedError("there is no compiled kernel on the host")
    if case.operator == "all_gather_matmul":
        return lambda i: made(i).run_local(made(i).shard(), case.w(i), *case.scales_of(i), out=case.out(i))
    return lambda i: made(i).run_local(case.x(i), *(w(i) for w in case.weights), *case.scales_of(i))


def bound_of(op: Any, product_us: float, topology: str) -> float:
    """What no schedule can go below: the product alone, or the transfers of the operator's plan on this machine's links."""
    if not topology or op.plan.num_ranks == 1:
        return product_us
    return max(product_us, _syncopate.simulate(op.plan, topology, posts=False).bound_us)


def topology_of(ranks: int) -> str:
    """The known machine of this device and so many ranks; "" where there is none."""
    if not on_gpu():
        return ""
    import torch

    device = re.sub(r"[^a-z0-9]", "", torch.cuda.get_device_name().lower().removeprefix("nvidia"))
    return next((name for name in _syncopate.topologies() if name == f"{device}x{ranks}"), "")


def run_shape(
    operator: str, shape: Shape, peers: Sequence[Peer], options: argparse.Namespace
) -> dict[str, Any]:
    """The report's entry for one shape."""
    kind = of_fp8(CASES[operator], options.scales) if options.dtype == "fp8e4m3" else CASES[operator]
    case = kind(shape)
    try:
        entry = measured(case, rows_of(case, peers, options), peers, options.rounds)
        times = entry["rows"]
        if "cublas" in times:
            op = case._operators[0]
            bound = bound_of(op, times["cublas"]["hidden_us"], topology_of(case.size))
            entry["bound_us"] = bound
            entry["bound"] = times["ours"]["hidden_us"] / bound
        entry["strategies"] = {name: said(case.strategies[name]) for name in times if name in case.strategies}
    finally:
        case.close()
    if case.left_out:
        entry["left_out"] = case.left_out
    return entry


def measured(case: Any, candidates: list[Candidate], peers: Sequence[Peer], rounds: int) -> dict[str, Any]:
    """The rows' times, and how many times as fast as each whole peer ours is, and as the best of them; more than 1: ours is
    faster. Lets go of the candidates."""
    times = measure(candidates, rounds)
    case.check()
    candidates.clear()
    ours = us_of(times["ours"])
    whole = {peer.name for peer in peers if peer.whole}
    speed = {name: us_of(row) / ours for name, row in times.items() if name in whole}
    if not speed:
        return {"rows": times}
    best = min(speed, key=speed.__getitem__)
    return {"rows": times, "speed": speed, "best": best, "vs_best": speed[best]}


def said(strategy: Strategy) -> dict[str, Any]:
    """Its members as JSON (ops/strategy.hpp), less those of a strategy by the plain kernel that leaves all else open."""
    usual = json.loads(Strategy(kernel="plain").to_json())
    return {name: value for name, value in json.loads(strategy.to_json()).items() if usual.get(name) != value}
