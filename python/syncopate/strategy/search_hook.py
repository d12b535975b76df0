"""What SYNCOPATE_TUNE=auto does about a problem that tuning has never seen: a search. It runs operators, so they cannot import it;
syncopate/__init__.py hands it to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _syncopate

if TYPE_CHECKING:
    from ..group import Group

#: (problem, group), on all ranks of the group.
search: Callable[[Any, Any], None] | None = None
#: The same of attention, and of a mixture of experts: (SPEC, group).
search_spec: Callable[[str, Any], None] | None = None


def mode_of(group: Group) -> str:
    """What SYNCOPATE_TUNE says on rank 0, for all. Collective."""
    mode = _syncopate.tune.mode()
    if group.size == 1 or group.rendezvous is None:  # as of operators that are only made
        return mode
    return _syncopate.all_gather(group.rendezvous, "SYNCOPATE_TUNE", mode, group.meeting_seconds)[0]


def search_if_asked(spec: str, group: Group) -> str:
    """With SYNCOPATE_TUNE=auto on rank 0, where nothing is stored for it. What it says there. Collective."""
    mode = mode_of(group)
    if mode == "auto" and search_spec is not None:
        group.rendezvous.timeout = group.meeting_seconds
        search_spec(spec, group)
    return mode
