"""What the scripts share that tests run on host ranks: SCRIPT RANKS […]."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from syncopate import ranks


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise RuntimeError(what)


def on_ranks(work: Callable[[ranks.Place], Any]) -> list[Any]:
    """Each rank's result; ends the script where one fails."""
    try:
        return ranks.run(int(sys.argv[1]), work, timeout=1800)
    except ranks.RankError as error:
        print(error)
        sys.exit(1)
