"""Operators that are kept between calls: one for each shape, group and stream, each with memory of its own, so that calls on
several streams may be in flight together. All ranks of a group make the same calls, so they keep and close the same operators
of it."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch

from .. import _syncopate
from ..device import jit
from ..group import Group, alive, and_parts, known
from .prepared import leak_in_child

#: Bytes of symmetric heap that those of a group may hold on a rank. Beyond, those that were used least recently are closed.
limit_bytes = 16 << 30

#: Seconds that any wait of an operator that is made from now on may last.
deadline = 30.0


class Entry:
    """An operator, or why there is none. One that is not fused has a reason, too. `captured`: a CUDA graph may replay it, so it
    stays."""

    __slots__ = ("__weakref__", "_captured", "bytes", "group", "operator", "reason", "token", "used")

    def __init__(self, group: Group, operator: Any = None, reason: str = "") -> None:
        self.group, self.operator, self.reason = group, operator, reason
        self.bytes = operator.held_bytes() if operator else 0
        self._captured, self.token, self.used = False, next(_tokens), 0

    @property
    def outcome(self) -> str:
        """In the report."""
        return self.reason or "fused"

    @property
    def captured(self) -> bool:
        executables = (getattr(part, "_executable", None) for part in parts_of(self.operator))
        return self._captured or any(one.native.captured for one in executables if one is not None)

    @captured.setter
    def captured(self, captured: bool) -> None:
        self._captured = captured

    @property
    def last_use(self) -> int:
        """By whichever way, of a clock of calls."""
        return max([self.used, _syncopate.last_known_use(self.token), *(last(self) for last in last_uses)])


#: What is to be told that an entry is gone: of its calls, too, that others have learnt to make.
on_removal: list[Callable[[Entry], None]] = []

#: When such others made a call of an entry last.
last_uses: list[Callable[[Entry], int]] = []

_tokens = itertools.count(1)

entries: OrderedDict[tuple[Hashable, ...], Entry] = OrderedDict()  # by stream and call, the last used last


_replayed: list[Entry] = []  # of groups that have gone on without them


def _forget_in_child() -> None:
    """A forked child has none of the peers."""
    leak_in_child()
    _syncopate.forget_all_calls()
    entries.clear()


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_syncopate.forget_all_calls)  # before the interpreter ends: they hold Python's objects


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
        entry = entries[key] = beside_graphs(cuda, make)
        entry.used = clock()  # the last one
        _make_room(key, most)
    entry.captured |= capturing
    entry.used = clock()
    return entry


def beside_graphs(cuda: bool, make: Callable[[], Any]) -> Any:
    """What `make` makes, to be kept from call to call: none of it in the memory of Inductor's graphs."""
    return _aside(make) if cuda and _in_graph_trees() else make()


def _in_graph_trees() -> bool:
    """Whether Inductor keeps CUDA graphs on this GPU: what a warm-up for one allocates is in their memory, and may not outlive
    it."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return False
    try:
        return trees.get_manager(torch.cuda.current_device(), create_if_none_exists=False) is not None
    except AssertionError:  # a thread that knows none
        return False


def _aside(make: Callable[[], Any]) -> Any:
    """Made in a thread of its own: torch's memory for graphs is a thread's. So are stream, grad mode and inference mode."""
    made: list[Any] = []
    device = torch.cuda.current_device()

    def run() -> None:
        try:
            torch.cuda.set_device(device)
            made.append(make())
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            made.append(error)

    thread = threading.Thread(target=run, name="syncopate-set-up")
    thread.start()
    thread.join()
    if isinstance(made[0], BaseException):
        raise made[0]
    return made[0]


def clock() -> int:
    """Moves on with each call."""
    return _syncopate.tick()


def remove(key: tuple[Hashable, ...]) -> Entry:
    entry = entries.pop(key)
    _syncopate.forget_calls(entry.token)
    for told in on_removal:
        told(entry)
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


def parts_of(operator: Any) -> list[Any]:
    """The operators whose executables a call of it runs."""
    apart = getattr(operator, "_instead", None)  # ops.block.Apart has two; others' have none
    return [apart._gather, apart._scatter] if hasattr(apart, "_gather") else [operator]


def _make_room(added: tuple[Hashable, ...], most: int | None) -> None:
    """Closes others of the group of `added`, whose ranks do so alike, until these are within their limits."""
    root = entries[added].group.root
    of_group = [(key, entry) for key, entry in entries.items() if entry.group.root is root]
    of_group.sort(key=lambda one: one[1].last_use)
    bytes_held = sum(entry.bytes for _, entry in of_group)
    alike = [key for key, _ in of_group if key[1] == added[1]]
    spare = alike[:-most] if most else []
    for key, entry in of_group:
        if key == added or entry.captured:
            continue
        if key in spare or (bytes_held > limit_bytes and entry.operator is not None):
            bytes_held -= entry.bytes
            remove(key)
            if entry.operator is not None:
                entry.operator.close()


def drop_gone() -> None:
    """Forgets the operators of process groups that were destroyed. Their peers may be gone, so nothing is closed collectively."""
    there = {id(group) for group in alive()}
    for key, entry in list(entries.items()):
        of_torch = entry.group.torch_group is not None or entry.group.part_of is not None
        if of_torch and id(entry.group) not in there:
            remove(key)


def run(operator: Any, *arguments: Any, **named: Any) -> Any:
    """One call, of an operator or of a method of one. A fault, of which all ranks learn, is final for the operator: the next call
    makes another one."""
    try:
        return operator(*arguments, **named)
    except BaseException as error:
        if is_final(error):
            forget(getattr(operator, "__self__", operator))
        raise


def is_final(error: BaseException) -> bool:
    """Whether all ranks learn of this error of a call, and none may call the operator again: a fault, or what ended this rank's part
    in the middle, as an interrupt does."""
    return isinstance(error, _syncopate.MachineError) or getattr(error, "ended_call", False)


def forget_retired(group: Group, renewed: bool) -> None:
    """After a recovery: what `group` has gone on without. What a graph may replay stays, so that its memory does."""
    _syncopate.forget_all_calls()
    for key, entry in list(entries.items()):
        if entry.group is group and (not renewed or getattr(entry.operator, "calls_differ", True)):
            remove(key)
            if entry.captured:
                _replayed.append(entry)


def of_token(token: int) -> Entry | None:
    return next((entry for entry in entries.values() if entry.token == token), None)


def unlearn(operator: Any) -> None:
    """Its next call by a function is made by Python, as the first one was."""
    for entry in entries.values():
        if entry.operator is operator:
            _syncopate.forget_calls(entry.token)


def forget(operator: Any) -> None:
    for key, entry in list(entries.items()):
        if entry.operator is operator:
            remove(key)


def close(group: Any = None) -> None:
    """Closes the operators of a process group, or of a syncopate Group; None: all of them. Collective over the group's ranks.
    Call it before the group is destroyed, or leave it: what is left is dropped when the next operator is made."""
    drop_gone()
    groups = [group] if group is None or isinstance(group, Group) else known(group)
    closed = {id(one) for whole in groups if whole is not None for one in and_parts(whole)}
    for key, entry in sorted(entries.items(), key=lambda one: one[1].token):  # as all ranks made them
        if group is None or id(entry.group) in closed:
            remove(key)
            if entry.operator is not None:
                entry.operator.close()


def held() -> tuple[int, int]:
    """How many operators there are, and their bytes of heap on this rank."""
    made = [entry for entry in entries.values() if entry.operator is not None]
    return len(made), sum(entry.bytes for entry in made)
