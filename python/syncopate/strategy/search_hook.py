"""What SYNCOPATE_TUNE=auto does about a problem that tuning has never seen: a search. It runs operators, so they cannot import it;
syncopate/__init__.py hands it to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: (problem, group), on all ranks of the group.
search: Callable[[Any, Any], None] | None = None
#: The same of a mixture of experts: (SPEC, group).
search_mixture: Callable[[str, Any], None] | None = None
