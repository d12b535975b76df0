"""Going on after a fault: without a rank that died, or with one that was started again in its place."""

from __future__ import annotations

from typing import Any

from .. import _syncopate
from ..call import cache
from ..call.prepared import timing
from ..group import Group, known, of_process_group, takes_place, the_process_group


def recover(
    group: Group | Any | None = None, *, to: Group | Any | None = None, deadline: float | None = None
) -> Group:
    """After a MachineError of a call: the ranks of `group` that call this, too, go on as a group, which is the same object with
    their ranks and size. Call it on all ranks that are there, from the thread that makes the calls; a rank that was started
    again calls it first of all (`of_folder(…, again=True)`). What was in flight is lost (docs/protocol.md, P37).

    group: a Group, or a process group of torch.distributed (None: the default one). Ranks that have not come within
    `deadline` seconds (None: the deadline of calls that set_deadline names) are left out, and fail where they come later.
    to: a new Group or process group of those that go on, maybe with others; needed where the store of the old one died with
    the rank that served it, and of a process group that has lost a rank. Who was in none before calls `recover(to)`.

    Where all ranks go on, fused kernels and operators do, too, and CUDA graphs that were captured replay, unless they hold
    collectives of NCCL. Else sy.ops, torch ops and fused kernels are made anew by their next call, and operator objects and
    graphs are to be: a call of an old one says so. Compiled code is kept.

    Returns the Group. Raises MachineError where the others have gone on without this rank, or the store fails."""
    seconds = cache.deadline if deadline is None else timing(deadline, 0.0, 0)["deadline"]
    if isinstance(group, Group):
        return _go_on(group, to, seconds)
    if group is None and to is None:
        group = the_process_group(group)
    groups = sorted(known(group), key=lambda one: one.device) if group is not None else []
    if not groups:
        target = group if to is None else to
        return _go_on(target if isinstance(target, Group) else of_process_group(target), None, seconds)
    return [_go_on(one, to, seconds) for one in groups][0]


def _go_on(group: Group, to: Group | Any | None, seconds: float) -> Group:
    new = to if to is None or isinstance(to, Group) else of_process_group(to, group.device)
    before = group.size, group.process_group
    rendezvous, ranks, renewed = _syncopate.recover(
        group.rendezvous, None if new is None else new.rendezvous, seconds
    )
    group.goes_on(rendezvous, ranks, new)
    if new is not None:
        takes_place(group, new.process_group, new)
    elif before[1] is not None and group.size != before[0]:
        takes_place(group, None, None)
    cache.forget_retired(group, renewed)
    if group.hosts is not None:
        _parts_go_on(group, new is None and group.size == before[0], seconds)
    return group


def _parts_go_on(group: Group, whole: bool, seconds: float) -> None:
    """Those that all have where the group is `whole`; others are made anew."""
    mine = f"{group.times_gone_on} {' '.join(sorted(group.parts))}"
    theirs = _syncopate.all_gather(group.rendezvous, "parts of a group", mine, seconds)
    group.times_gone_on = 1 + max(int(one.split()[0]) for one in theirs)
    alike = len({tuple(one.split()[1:]) for one in theirs}) == 1
    for name, part in sorted(group.parts.items()):
        if whole and alike:
            _go_on(part, None, seconds)
        else:
            cache.forget_retired(part, False)
            del group.parts[name]
