"""Who chooses: tune::choose, in C++. Here its answers become what the operators use, and back."""

from __future__ import annotations

import json
import warnings
from functools import lru_cache
from typing import Any

import torch

from .. import _syncopate
from ..call.arguments import DTYPE_NAMES
from .model import Chunking, Problem, Strategy
from .store_scope import scope
from .tiling import Tiling, device_name, exact_fp32

HOPPER = 9  # the compute capability's first figure

#: Tiles with which a small problem has several of them, for Triton's interpreter.
SMALL = Tiling(32, 32, 32, 2, -1, "ieee", 2)


def key_of(problem: Problem) -> str:
    """As C++ reads it (ops/problem.hpp). Raises ValueError for a dtype that it has no name of."""
    p = problem
    for one in (p.dtype, p.out_dtype):
        if not isinstance(one, torch.dtype):
            raise TypeError(f"dtype: expected a torch.dtype, such as torch.bfloat16, got {one!r}")
        if one not in DTYPE_NAMES:
            raise ValueError(f"expected dtype bf16, fp16, fp32 or fp8e4m3, got {one}")
    inner = f",F={p.f}" if p.f else ""
    dtype = DTYPE_NAMES[p.dtype]
    if p.out_dtype != p.dtype:
        dtype += f",out={DTYPE_NAMES[p.out_dtype]}"
    if p.scales:
        dtype += f",scales={p.scales}"
    return (
        f"{p.operator}:M={p.m},N={p.n},K={p.k}{inner},dtype={dtype},ranks={max(1, p.ranks)},sms={p.num_sms}"
    )


def require(problem: Problem) -> None:
    """Raises ValueError for a problem that no operator can do, saying why (ops/problem.hpp)."""
    if objection := _syncopate.tune.problem_objection(key_of(problem)):
        raise ValueError(objection)


def to_json(strategy: Strategy) -> str:
    """As C++ reads it (ops/strategy.hpp). What is open is left out."""
    return json.dumps(_members(strategy))


def _members(s: Strategy) -> dict[str, Any]:
    cut: dict[str, Any] = {"rows": s.chunking.rows, "peer_by_peer": s.chunking.peer_by_peer}
    cut["slices"] = s.chunking.slices if isinstance(s.chunking.slices, int) else list(s.chunking.slices)
    made: dict[str, Any] = {
        "placement": _placement(s),
        "chunking": cut,
        "pull": s.pull,
        "stored": s.stored,
        "pulled": s.pulled,
        "one_step": s.one_step,
        "kernel_sums": s.kernel_sums,
        "together": s.together,
        "backend": s.backend,
        "sum_parts": s.sum_parts,
        "tile_order": s.tile_order,
        "phases": s.phases,
    }
    open_ones = {name: getattr(s, name) for name in ("programs", "split", "split_axis", "engine_blocks")}
    if s.parts:
        made["parts"] = [_members(part) for part in s.parts]
    if s.kernel:
        made["kernel"] = s.kernel
    if s.tilings:
        made["tiles"] = [vars(tiling) for tiling in s.tilings]
    return made | {name: value for name, value in open_ones.items() if value is not None}


def _placement(s: Strategy) -> str:
    if s.apart or s.unfused:
        return "apart" if s.apart else "unfused"
    return "after" if s.plain_kernel else "fused"


def from_json(text: str) -> Strategy:
    """The inverse of to_json."""
    return _of_members(json.loads(text))


def _of_members(read: dict[str, Any]) -> Strategy:
    placement = read.pop("placement", "fused")
    cut = read.pop("chunking", {})
    slices = cut.get("slices", 1)
    chunking = Chunking(
        cut.get("rows", 1),
        slices if isinstance(slices, int) else tuple(slices),
        cut.get("peer_by_peer", False),
    )
    tilings = tuple(Tiling(**{"num_wide": -1} | tile) for tile in read.pop("tiles", []))
    return Strategy(
        tilings=tilings,
        chunking=chunking,
        plain_kernel=placement == "after",
        unfused=placement == "unfused",
        apart=placement == "apart",
        parts=tuple(_of_members(part) for part in read.pop("parts", [])),
        **read,
    )


@lru_cache
def runs_gluon(device: str) -> bool:
    """Whether the library's Gluon kernels run there: on Hopper."""
    return device == "cuda" and torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == HOPPER


@lru_cache
def _say_what_stands_in(device: str, ranks: int) -> None:
    message = _syncopate.tune.machine_message(device, ranks)
    if message:
        warnings.warn(f"syncopate: {message}", stacklevel=4)


def estimate(
    problem: Problem, *, unfused: bool = True, kept: bool = False, copied: bool = False
) -> tuple[str, float, bool]:
    """What this rank alone chooses, as choose() does: the strategy as JSON, its µs, and whether these were measured. On the
    host, and of what is not known, 0 µs."""
    found_with = scope(problem.device) if problem.device == "host" or device_name() else {}
    if problem.device == "cuda" and device_name():
        _say_what_stands_in(device_name(), max(1, problem.ranks))
    chosen, us, measured, _ = _syncopate.tune.choose(
        key_of(problem),
        device=device_name(),
        cuda=problem.device == "cuda",
        unfused=unfused,
        exact_fp32=exact_fp32(),
        kernel=found_with.get("kernel", ""),
        versions=found_with.get("versions", ""),
        kept=kept,
        copied=copied,
        gluon=runs_gluon(problem.device),
    )
    return chosen, us, measured


def untuned(problem: Problem, machine: str = "") -> Strategy:
    """What is taken of a problem on CUDA that tuning has never seen. `machine`: whose rates; "": this one's."""
    chosen, *_ = _syncopate.tune.choose(
        key_of(problem),
        machine=machine,
        device=device_name(),
        exact_fp32=exact_fp32(),
        gluon=runs_gluon(problem.device),
    )
    return from_json(chosen)


def ranked(problem: Problem, machine: str = "") -> list[dict[str, Any]]:
    """All strategies of a problem, best first by the estimate on `machine`, or on this one."""
    return _syncopate.tune.rank(key_of(problem), machine=machine, device=device_name())


def choose(
    problem: Problem,
    *,
    unfused: bool = True,
    kept: bool = False,
    copied: bool = False,
    rendezvous: Any = None,
) -> Strategy:
    """The fastest known, complete: what tuning has found, or the best by the estimate. On the host none is faster than
    another by the estimate. `unfused`: whether the vendors' pair can be run, which takes a process group of torch. `kept`:
    the caller reads what is gathered in the heap, so tiles do not fetch it themselves; `copied`: and wants it in a
    tensor of its own, where the Gluon kernel stores it; else it is copied from there.
    With the `rendezvous` of all ranks, rank 0 chooses for all, whose stores may differ. Collective then."""
    return choose_found(problem, unfused=unfused, kept=kept, copied=copied, rendezvous=rendezvous)[0]


def choose_found(
    problem: Problem,
    *,
    unfused: bool = True,
    kept: bool = False,
    copied: bool = False,
    rendezvous: Any = None,
) -> tuple[Strategy, bool]:
    """As choose(), and whether it is what tuning has found."""
    chosen, _, found = estimate(problem, unfused=unfused, kept=kept, copied=copied)
    if rendezvous is not None and _syncopate.tune.mode() != "off":
        chosen, found = json.loads(_syncopate.tune.share(rendezvous, json.dumps([chosen, found])))
    return from_json(chosen), found


def recorded(problem: Problem) -> Strategy | None:
    """For a call that is recorded (syncopate.trace): None, what is chosen, where its kernel notes the times of its
    tiles; else the default strategy, whose kernel does. On all ranks the same where their stores are."""
    chosen = choose(problem, unfused=False)
    tells = chosen.fused and not chosen.plain_kernel and chosen.kernel == "plain"
    return None if tells else Strategy(kernel="plain")


def complete(problem: Problem, given: Strategy) -> Strategy:
    """`given` with everything that it leaves open."""
    made = _syncopate.tune.complete(
        key_of(problem),
        to_json(given),
        device=device_name(),
        cuda=problem.device == "cuda",
        exact_fp32=exact_fp32(),
        gluon=runs_gluon(problem.device),
    )
    return from_json(made)
