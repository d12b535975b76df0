"""Operators that are kept between calls: one for each shape, group and stream, each with memory of its own, so that calls on
several streams may be in flight together. All ranks of a group make the same calls, so they keep and close the same operators
of it."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch

from .. import _syncopate
from ..device import jit
from ..group import Group, alive, known
from .prepared import leak_in_child

#: Bytes of symmetric heap that those of a group may hold on a rank. Beyond, those that were used least recently are closed.
limit_bytes = 16 << 30

#: Seconds that any wait of an operator that is made from now on may last.
deadline = 30.0


class Entry:
    """An operator, or why there is none. One that is not fused has a reason, too. `captured`: a CUDA graph may replay it, so it
    stays."""

    __slots__ = ("bytes", "captured", "group", "operator", "reason")

    def __init__(self, group: Group, operator: Any = None, reason: str = "") -> None:
        self.group, self.operator, self.reason = group, operator, reason
        self.bytes = operator.held_bytes() if operator else 0
        self.captured = False


entries: OrderedDict[tuple[Hashable, ...], Entry] = OrderedDict()  # by stream and call, the last used last


_replayed: list[Entry] = []  # of groups that have gone on without them


def _forget_in_child() -> None:
    """A forked child has none of the peers."""
    leak_in_child()
    entries.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def find(
    what: str, cuda: bool, call: tuple[Hashable, ...], make: Callable[[], Entry], most: int | None = None
) -> Entry:
    """The entry for `call`, a kind of operator and more, on the current stream; `make` makes it if it is new: collective then.
    `what`: the name of the call in messages. `most`: so many of the kind are kept."""
    key = (jit.current_stream() if cuda else 0, *call)
    capturing = cuda and torch.cuda.is_current_stream_capturing()
    entry = entries.get(key)
    if entry is not None:
        entries.move_to_end(key)
    elif capturing:
        entry = _warmed_up(what, call)
    else:
        drop_gone()
        entry = entries[key] = make()
        _make_room(key, most)
    entry.captured |= capturing
    return entry


def _warmed_up(what: str, call: tuple[Hashable, ...]) -> Entry:
    """The entry that was used last, of another stream: nothing can be set up while a stream is captured."""
    for key in reversed(entries):
        if key[1:] == call:
            return entries[key]
    raise RuntimeError(
        f"{what}: called for the first time while a CUDA graph is captured; call it once before, since its set-up allocates "
        "memory and is collective"
    )


def _make_room(added: tuple[Hashable, ...], most: int | None) -> None:
    """Closes others of the group of `added`, whose ranks do so alike, until these are within their limits."""
    of_group = [(key, entry) for key, entry in entries.items() if entry.group is entries[added].group]
    bytes_held = sum(entry.bytes for _, entry in of_group)
    alike = [key for key, _ in of_group if key[1] == added[1]]
    spare = alike[:-most] if most else []
    for key, entry in of_group:
        if key == added or entry.operator is None or entry.captured:
            continue
        if bytes_held > limit_bytes or key in spare:
            bytes_held -= entry.bytes
            del entries[key]
            entry.operator.close()


def drop_gone() -> None:
    """Forgets the operators of process groups that were destroyed. Their peers may be gone, so nothing is closed collectively."""
    there = {id(group) for group in alive()}
    for key, entry in list(entries.items()):
        if entry.group.torch_group is not None and id(entry.group) not in there:
            del entries[key]


def run(operator: Any, *arguments: Any, **named: Any) -> Any:
    """One call. A fault, of which all ranks learn, is final for the operator: the next call makes another one."""
    try:
        return operator(*arguments, **named)
    except _syncopate.MachineError:
        forget(operator)
        raise


def forget_retired(group: Group, renewed: bool) -> None:
    """After a recovery: what `group` has gone on without. What a graph may replay stays, so that its memory does."""
    for key, entry in list(entries.items()):
        if entry.group is group and (not renewed or getattr(entry.operator, "calls_differ", True)):
            del entries[key]
            if entry.captured:
                _replayed.append(entry)


def forget(operator: Any) -> None:
    for key, entry in list(entries.items()):
        if entry.operator is operator:
            del entries[key]


def close(group: Any = None) -> None:
    """Closes the operators of a process group, or of a syncopate Group; None: all of them. Collective over the group's ranks.
    Call it before the group is destroyed, or leave it: what is left is dropped when the next operator is made."""
    drop_gone()
    groups = [group] if group is None or isinstance(group, Group) else known(group)
    closed = {id(one) for one in groups if one is not None}
    for key, entry in list(entries.items()):
        if group is None or id(entry.group) in closed:
            del entries[key]
            if entry.operator is not None:
                entry.operator.close()


def held() -> tuple[int, int]:
    """How many operators there are, and their bytes of heap on this rank."""
    made = [entry for entry in entries.values() if entry.operator is not None]
    return len(made), sum(entry.bytes for entry in made)
