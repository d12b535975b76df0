"""Which operator carries out a call of a custom op: one for each shape, group and stream, each with memory of its own, so
that calls on several streams may be in flight together. What an operator cannot do is left to the unfused pair, and counted
with the reason; that is decided alike on all ranks, from what they all know."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from .. import _syncopate, jit
from ..group import Group, alive, known, of_process_group, sums_in_two_shots
from ..strategy import Problem, Strategy, choose_found, estimate, from_json
from . import buckets, report
from .gloo import gather_through_host, over_gloo

DEVICES = {"cuda": "cuda", "cpu": "host"}

#: Bytes of symmetric heap that all operators here may hold on a rank. Beyond, those that were used least recently are closed.
limit_bytes = 16 << 30

#: Seconds that any wait of an operator that is made from now on may last.
deadline = 30.0

#: Milliseconds that ranks may be apart when an operator is set up: others may compile meanwhile.
SETUP_MS = 600_000


class _Entry:
    """An operator, or why there is none. One that is not fused has a reason, too. `captured`: a CUDA graph may replay it, so it
    stays."""

    __slots__ = ("bytes", "captured", "group", "operator", "reason")

    def __init__(self, group: Group, operator: Any = None, reason: str = "") -> None:
        self.group, self.operator, self.reason = group, operator, reason
        self.bytes = operator.held_bytes() if operator else 0
        self.captured = False


_entries: OrderedDict[tuple[Hashable, ...], _Entry] = OrderedDict()


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
        return None, reason
    group = group_of(group_name, x.device.type)
    cuda = device == "cuda"
    stream = jit.current_stream() if cuda else 0
    shared = (name, extents, x.dtype, id(group), buckets.generation(), *options.items())
    key = (stream, *shared)
    entry = _entries.get(key)
    if entry is None:
        if cuda and torch.cuda.is_current_stream_capturing():
            entry = _warmed_up(name, shared)
        else:
            entry = _entries[key] = _made(name, x, group_name, group, extents, options)
    else:
        _entries.move_to_end(key)
    if cuda and not entry.captured and torch.cuda.is_current_stream_capturing():
        entry.captured = True
    report.count(name, entry.reason or report.FUSED)
    return entry.operator, entry.reason


def group_of(group_name: str, device_type: str) -> Group:
    return of_process_group(c10d._resolve_process_group(group_name), DEVICES[device_type])


def _warmed_up(name: str, shared: tuple[Hashable, ...]) -> _Entry:
    """The entry that was used last, of another stream: nothing can be set up while a stream is captured."""
    for key in reversed(_entries):
        if key[1:] == shared:
            return _entries[key]
    raise RuntimeError(
        f"syncopate.{name}: called for the first time while a CUDA graph is captured; call it once before, since its "
        "set-up allocates memory and is collective"
    )


def _made(
    name: str,
    x: torch.Tensor,
    group_name: str,
    group: Group,
    extents: tuple[int, ...],
    options: dict[str, Any],
) -> _Entry:
    drop_gone()
    given = {key: value for key, value in options.items() if key != "w_transposed"}  # that is each rank's own
    require_same_call(name, group, f"{list(extents)} {x.dtype} {given}")
    reason = refusal(x.device.type, group_name)
    if reason and name != "attention":
        return _Entry(group, reason=reason)
    from ..ops import OPERATORS

    kind = OPERATORS[name]
    options = dict(options)
    copied = options.get("copied", False)
    kept = copied or options.get("keep", False)
    try:
        strategy, reason = None, ""
        if name != "attention":
            strategy, options["found"] = _chosen(name, extents, x.dtype, group, kept, copied)
            if strategy.unfused:
                reason = slower(problem_for(name, extents, x.dtype, group), kept, copied) or SLOWER
                if name != "matmul_all_reduce" or not sums_in_two_shots(group.process_group):
                    return _Entry(group, reason=reason)
                reason = f"by torch's two-shot: {reason}"
        if options.get("axis"):  # of columns only the default is known
            strategy, options["found"] = None, False
        operator = kind(*extents, x.dtype, group, strategy=strategy, deadline=deadline, **options)
        operator.prepare()
    except (ValueError, _syncopate.SyncopateError) as error:
        return _Entry(group, reason=str(error))
    entry = _Entry(group, operator, reason)
    _make_room(entry.bytes)
    return entry


def require_same_call(name: str, group: Group, call: str) -> None:
    """Raises ValueError on all ranks where their calls differ: neither the fused op nor the pair could run, and the pair would
    hang or crash. Collective."""
    if group.size == 1:
        return
    _, put, get = group.keep
    group.setups += 1
    put(f"call/{group.setups}/{group.rank}", f"{name} {call}".encode())
    calls = [get(f"call/{group.setups}/{rank}", SETUP_MS).decode() for rank in range(group.size)]
    if len(set(calls)) > 1:
        each = "; ".join(f"rank {rank}: {one}" for rank, one in enumerate(calls))
        raise ValueError(f"syncopate.{name}: the ranks' calls differ: {each}")


def refusal(device_type: str, group_name: str) -> str:
    """Why no fused op does on this device and group, whatever the shapes; "" if some may."""
    device = DEVICES.get(device_type)
    if device is None:
        return f"device {device_type} is neither cuda nor cpu"
    if device == "cuda" and over_gloo(group_name):
        gather_through_host()  # for what runs as the unfused pair
    group = group_of(group_name, device_type)
    if group.size == 1:
        return "one rank: there is nothing to overlap"
    if device == "host":
        if os.environ.get("TRITON_INTERPRET") != "1":
            return "on the CPU kernels run in Triton's interpreter: set TRITON_INTERPRET=1 before Triton is imported"
    elif torch.cuda.get_device_capability(group.ordinal)[0] < 9:
        return "the GPU has no TMA (compute capability 9.0)"
    return ""


def forget(operator: Any) -> None:
    """Of one that has failed: a fault is final for it. The next call makes another one, with the ranks that are left."""
    for key, entry in list(_entries.items()):
        if entry.operator is operator:
            del _entries[key]


def _chosen(
    name: str, extents: tuple[int, ...], dtype: torch.dtype, group: Group, kept: bool, copied: bool
) -> tuple[Strategy, bool]:
    """The strategy for the bucket of M, which rank 0 chooses for all, and whether tuning found it: collective. In the
    deterministic mode it is a fused one. `kept`, `copied`: of what is gathered, see strategy.choose."""
    problem = problem_for(name, extents, dtype, group)
    return choose_found(
        problem, unfused=not buckets.generation(), kept=kept, copied=copied, rendezvous=group.rendezvous
    )


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
    """By how much the pair is faster than the fused op, by the estimate or as it was measured; "" where it is not. What this
    rank knows; nothing is sent. In the deterministic mode the pair is not asked for."""
    return "" if buckets.generation() else _slower(problem, kept, copied, known_by())


@lru_cache(1024)
def _slower(problem: Problem, kept: bool, copied: bool, _: Hashable) -> str:
    chosen, pair_us, measured = estimate(problem, kept=kept, copied=copied)
    if not from_json(chosen).unfused:
        return ""
    if measured:
        return f"measured slower than the pair ({pair_us:.1f} µs)"
    _, us, _ = estimate(problem, unfused=False, kept=kept, copied=copied)
    return f"estimated slower ({us:.1f} vs {pair_us:.1f} µs)"


def known_by() -> Hashable:
    """Changes when the store of measured strategies, or the file of the measured machine, does."""
    made = []
    for path in (_syncopate.tune.store_path(), _syncopate.tune.measured_machine_path()):
        try:
            status = Path(path).stat()
            made.append((path, status.st_mtime_ns, status.st_size))
        except OSError:
            made.append((path, 0, 0))
    return _syncopate.tune.mode(), *made


def _make_room(needed: int) -> None:
    """Closes what was used least recently. All ranks made the same calls, so they close the same operators."""
    held = needed + sum(entry.bytes for entry in _entries.values())
    for key in list(_entries):
        if held <= limit_bytes:
            return
        entry = _entries[key]
        if entry.operator is not None and not entry.captured:
            held -= entry.bytes
            del _entries[key]
            entry.operator.close()


def drop_gone() -> None:
    """Forgets the operators of groups that were destroyed. Their peers may be gone, so nothing is closed collectively."""
    there = {id(group) for group in alive()}
    for key, entry in list(_entries.items()):
        if id(entry.group) not in there:
            del _entries[key]


def close(group: Any = None) -> None:
    """Closes the operators of a process group; None: all of them. Collective over the group's ranks. Call it before the
    group is destroyed, or leave it: what is left is dropped when the next operator is made."""
    drop_gone()
    closed = None if group is None else {id(one) for one in known(group)}
    for key, entry in list(_entries.items()):
        if closed is None or id(entry.group) in closed:
            del _entries[key]
            if entry.operator is not None:
                entry.operator.close()


def held() -> tuple[int, int]:
    """How many operators there are, and their bytes of heap on this rank."""
    made = [entry for entry in _entries.values() if entry.operator is not None]
    return len(made), sum(entry.bytes for entry in made)
