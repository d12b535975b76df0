"""Which operator carries out a call of a custom op (kept between calls: call/cache.py). What an operator cannot do is left to the
unfused pair, and counted with the reason; that is decided alike on all ranks, from what they all know."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import ref

import torch
from torch.distributed import distributed_c10d as c10d

from .. import _syncopate
from ..call import cache
from ..call.same_call import in_a_line, is_fake, require_same_call
from ..group import FailedTogether, Group, of_process_group, sums_in_two_shots
from ..strategy import Problem, Strategy, choose_found, estimate
from . import agreed, buckets, report
from .gloo import gather_through_host, over_gloo

DEVICES = {"cuda": "cuda", "cpu": "host"}

FAKE = "the group's backend is fake: its ranks do not exist"

#: Set-ups of attention that are kept: packed sequences have other documents at each step.
MOST_SEQUENCES = 16

#: Those that choose by themselves, and carry out their unfused way, too.
SEQUENCES = ("attention", "attention_backward")


class _Taken(threading.local):
    """What this thread has looked up last: its calls are then learnt (recipes.py)."""

    _entry: Callable[[], cache.Entry | None] = staticmethod(lambda: None)

    @property
    def entry(self) -> cache.Entry | None:
        return self._entry()

    @entry.setter
    def entry(self, entry: cache.Entry | None) -> None:
        self._entry = (lambda: None) if entry is None else ref(entry)  # it is the cache's


taken = _Taken()


def find(name: str, x: torch.Tensor, group_name: str, extents: tuple[int, ...], **options: Any) -> Any:
    """The operator `name` (of ops.OPERATORS) of these extents, prepared; None where the unfused pair is to run. Collective
    when it is new."""
    return look_up(name, x, group_name, extents, **options)[0]


def look_up(
    name: str, x: torch.Tensor, group_name: str, extents: tuple[int, ...], **options: Any
) -> tuple[Any, str]:
    """The same, and why there is none."""
    device = DEVICES.get(x.device.type)
    if device is None:
        reason = f"device {x.device.type} is neither cuda nor cpu"
        report.count(name, reason)
        taken.entry = None
        return None, reason
    group = group_of(group_name, x.device.type)
    call = (name, extents, x.dtype, id(group), buckets.generation(), *options.items())
    entry = cache.find(
        f"syncopate.{name}",
        device == "cuda",
        call,
        lambda: _made(name, x, group_name, group, extents, options),
        MOST_SEQUENCES if name in SEQUENCES else None,
    )
    report.count(name, entry.outcome)
    taken.entry = entry
    return entry.operator, entry.reason


def group_of(group_name: str, device_type: str) -> Group:
    return of_process_group(c10d._resolve_process_group(group_name), DEVICES[device_type])


def _made(
    name: str,
    x: torch.Tensor,
    group_name: str,
    group: Group,
    extents: tuple[int, ...],
    options: dict[str, Any],
) -> cache.Entry:
    if is_fake(group_name):
        return cache.Entry(group, reason=FAKE)
    require_same_call(name, group, extents, f"{x.dtype} {options}")
    reason = refusal(x.device.type, group_name)
    if reason and name not in SEQUENCES:
        return cache.Entry(group, reason=reason)
    from ..ops import OPERATORS, Attention, AttentionBackward

    kind = AttentionBackward if name == AttentionBackward.name else OPERATORS[name]
    options = dict(options)
    copied = options.get("copied", False)
    kept = copied or options.get("keep", False)
    try:
        strategy, reason = None, ""
        if name not in SEQUENCES:
            strategy, options["found"] = _chosen(name, extents, x.dtype, group, kept, copied)
            options["asked"] = False
            if strategy.unfused:
                reason = slower(problem_for(name, extents, x.dtype, group), kept, copied) or SLOWER
                if name != "matmul_all_reduce" or not sums_in_two_shots(group.process_group):
                    return cache.Entry(group, reason=reason)
                reason = f"by torch's two-shot: {reason}"
        if options.get("axis"):  # of columns only the default is known
            strategy, options["found"] = None, False
        operator = kind(*extents, x.dtype, group, strategy=strategy, deadline=cache.deadline, **options)
        operator.prepare()
    except (ValueError, _syncopate.SyncopateError, FailedTogether) as error:
        # Of several nodes each makes its own part, so that one alone may fail: there all take the pair.
        alike = not isinstance(error, FailedTogether) or group.nodes > 1
        if group.rendezvous.calls_differ or not alike:
            raise
        return cache.Entry(group, reason=in_a_line(str(error)))
    if name == AttentionBackward.name and operator.why_kind:
        reason = f"fused, as {operator.kind}: {operator.why_kind}"
    elif name == AttentionBackward.name and operator.is_alone:
        reason = "one rank: the kernel runs by itself"
    elif name == Attention.name and operator.strategy.unfused:
        reason = f"unfused, torch gathers K and V: {operator.why}"
    return cache.Entry(group, operator, reason)


def refusal(device_type: str, group_name: str) -> str:
    """Why no fused op does on this device and group, whatever the shapes; "" if some may."""
    device = DEVICES.get(device_type)
    if device is None:
        return f"device {device_type} is neither cuda nor cpu"
    if device == "cuda" and over_gloo(group_name):
        gather_through_host()  # for what runs as the unfused pair
    if is_fake(group_name):
        return FAKE
    group = group_of(group_name, device_type)
    if group.size == 1:
        return "one rank: there is nothing to overlap"
    if device == "host":
        if os.environ.get("TRITON_INTERPRET") != "1":
            return "on the CPU kernels run in Triton's interpreter: set TRITON_INTERPRET=1 before Triton is imported"
    elif torch.cuda.get_device_capability(group.ordinal)[0] < 9:
        return "the GPU has no TMA (compute capability 9.0)"
    return ""


def _chosen(
    name: str, extents: tuple[int, ...], dtype: torch.dtype, group: Group, kept: bool, copied: bool
) -> tuple[Strategy, bool]:
    """The strategy for the bucket of M, which rank 0 chooses for all, and whether tuning found it: collective. In the
    deterministic mode it is a fused one. `kept`, `copied`: of what is gathered, see strategy.choose."""
    problem = problem_for(name, extents, dtype, group)
    return choose_found(problem, unfused=not buckets.generation(), kept=kept, copied=copied, group=group)


def problem_for(name: str, extents: tuple[int, ...], dtype: torch.dtype, group: Group) -> Problem:
    """What a strategy is chosen for: the op with as many rows as the bucket of M has."""
    from ..ops.operator import problem_of

    m, *others = extents
    if name == "feed_forward":
        k, f, n = others
    else:
        (n, k), f = others, 0
    rows = buckets.bucket(m)
    rows = -(-rows // group.size) * group.size
    return problem_of(name, rows, n, k, dtype, group, f)


#: Rank 0 chose the pair by figures that this rank does not have.
SLOWER = "rank 0 knows the pair to be faster"


def slower(problem: Problem, kept: bool = False, copied: bool = False) -> str:
    """By how much the pair is faster than the fused op, by the estimate or as it was measured; "" where it is not. The same on
    all ranks (agreed.py). In the deterministic mode the pair is not asked for."""
    return "" if buckets.generation() else _slower(problem, kept, copied, agreed.snapshot())


@lru_cache(1024)
def _slower(problem: Problem, kept: bool, copied: bool, snapshot: agreed.Snapshot) -> str:
    chosen, pair_us, measured = estimate(problem, kept=kept, copied=copied, snapshot=snapshot)
    if not chosen.unfused:
        return ""
    if measured:
        return f"measured slower than the pair ({pair_us:.1f} µs)"
    if not pair_us:
        return f"not estimated: nothing is known of the network between {problem.nodes} nodes (syncopate tune --measure-machine)"
    _, us, _ = estimate(problem, unfused=False, kept=kept, copied=copied, snapshot=snapshot)
    return f"estimated slower ({us:.1f} vs {pair_us:.1f} µs)"
