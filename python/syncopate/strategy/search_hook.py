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


def search_if_asked(spec: str, group: Group) -> None:
    """With SYNCOPATE_TUNE=auto, where nothing is stored for it. Collective."""
    if _syncopate.tune.mode() == "auto" and search_spec is not None:
        group.rendezvous.timeout = group.meeting_seconds
        search_spec(spec, group)
