"""How long ranks wait for each other."""

from __future__ import annotations

from .. import group
from ..call import cache
from ..call.prepared import timing


def set_deadline(seconds: float, *, setup: float | None = None) -> None:
    """How long waits may last, 0: for ever. `seconds`: those of calls of torch.ops.syncopate, and of closing such an op, of
    ops that are set up from now on (30 at first); what has a deadline argument is told by that. `setup`: how far apart ranks
    may be where they set up, compile, meet and close, in all groups that have no deadline of their own (600 at first); None:
    it stays. Raises ValueError for what is no number of seconds."""
    chosen = timing(seconds, 0.0, 0)["deadline"]
    if setup is not None:
        group.setup_deadline = timing(setup, 0.0, 0)["deadline"]
    cache.deadline = chosen
