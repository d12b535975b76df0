"""What was fused, what was left, and why: of compiled graphs a row for each collective next to a product, of calls a count
for each operator and reason."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field

FUSED = "fused"


@dataclass(frozen=True)
class Rewrite:
    """A collective of a compiled graph that stands next to a product.

    `graph`: "forward", "backward" or "inference". `made`: the custom op that took its place, "" if it was left, and then
    `reason` says why. `where`: the user's line, FILE:LINE, and `module` the user's module, as far as the graph knows them;
    of a backward graph those of the forward code.
    """

    graph: str
    collective: str
    product: str
    made: str
    reason: str
    where: str
    module: str

    def __str__(self) -> str:
        outcome = f"→ {self.made}" if self.made else f"left: {self.reason}"
        place = " ".join(filter(None, (self.where, self.module)))
        return f"{self.graph:9} {self.collective:15} {self.product:28} {outcome}" + (
            f"   ({place})" if place else ""
        )


@dataclass
class Report:
    """`rewrites`: in the order in which graphs were first compiled. `calls`: (operator, outcome) → how often since the start;
    the outcome is "fused", or why a kernel, or a collective and a product, were run instead."""

    rewrites: list[Rewrite] = field(default_factory=list)
    calls: dict[tuple[str, str], int] = field(default_factory=dict)
    crossing: dict[str, str] = field(
        default_factory=dict
    )  # by operator over several nodes: what goes between them
    cached: int = (
        0  # graphs from Inductor's cache; their rows come when they first run, if anything was fused
    )

    @property
    def fused(self) -> list[Rewrite]:
        """The rewrites that were made."""
        return [row for row in self.rewrites if row.made]

    @property
    def left(self) -> list[Rewrite]:
        """Those that were not, each with the reason."""
        return [row for row in self.rewrites if not row.made]

    def __str__(self) -> str:
        between = [f"between nodes, {name}: {what}" for name, what in self.crossing.items()]
        if not self.rewrites and not self.calls and not self.cached and between:
            return "\n".join(between)
        if not self.rewrites and not self.calls and not self.cached:
            return "nothing yet: neither a compiled graph nor torch.ops.syncopate has run in this process"
        lines = [f"{len(self.fused)} of {len(self.rewrites)} collectives next to products were fused"]
        lines += [str(row) for row in self.rewrites]
        if self.cached:
            lines.append(
                f"{self.cached} graphs came from Inductor's cache: without rows here where nothing was fused"
            )
        lines += [f"{count:8} calls of {name}: {outcome}" for (name, outcome), count in self.calls.items()]
        lines += between
        return "\n".join(lines)


_lock = threading.Lock()  # backward runs in threads of its own
_rewrites: dict[Rewrite, int] = {}  # and how often: a graph that is compiled again adds no row
_ran: set[str] = set()  # what ops of graphs have carried here
_calls: Counter[tuple[str, str]] = Counter()
_crossing: dict[str, str] = {}
_listener = threading.local()
#: Who counts beside this module, (operator, outcome, calls) of each, and how that is cleared.
counted: list[Callable[[], Iterable[tuple[str, str, int]]]] = []
cleared: list[Callable[[], None]] = []


def add(row: Rewrite) -> None:
    with _lock:
        _rewrites[row] = _rewrites.get(row, 0) + 1


def written(rows: Iterable[Rewrite]) -> str:
    """The rows of a graph as the first custom op in it carries them, into Inductor's cache and out of it."""
    return json.dumps([astuple(row) for row in rows])


def ran(rows: str) -> None:
    """A graph of these rows runs: this process may not have compiled it."""
    if rows in _ran:
        return
    with _lock:
        _ran.add(rows)
        for values in json.loads(rows):
            _rewrites.setdefault(Rewrite(*values), 1)


def crosses(name: str, what: str) -> None:
    """What goes between nodes in a call of an operator that was made."""
    with _lock:
        _crossing[name] = what


def count(name: str, outcome: str, times: int = 1) -> None:
    with _lock:
        _calls[name, outcome] += times
    getattr(_listener, "outcomes", []).append((name, outcome))


@contextmanager
def heard() -> Iterator[list[tuple[str, str]]]:
    """What this thread counts meanwhile."""
    _listener.outcomes = outcomes = []
    try:
        yield outcomes
    finally:
        del _listener.outcomes


def current() -> Report:
    """What the compiled graphs and the custom ops of this process did with each collective so far: fused, or why not."""
    with _lock:
        calls = Counter(_calls)
        for counts in counted:
            for name, outcome, made in counts():
                calls[name, outcome] += made
        return Report(list(_rewrites), dict(calls), dict(_crossing))


def clear() -> None:
    with _lock:
        _rewrites.clear()
        _ran.clear()
        _calls.clear()
        _crossing.clear()
        for clear_counts in cleared:
            clear_counts()
