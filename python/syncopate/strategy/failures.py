"""Strategies under trial: what is tried in a search, and what tuning has found and may not run here."""

from __future__ import annotations

import warnings

DEADLINE = 20.0  # seconds that a wait of a strategy under trial may last
SLEEP_CYCLES = 2_000_000  # about a millisecond, in which the host enqueues two calls


def reason_of(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def warn_of_default(problem: str, strategy: str, error: Exception, *, stacklevel: int) -> None:
    """That the strategy which tuning found for a problem failed, so that the default is taken."""
    warnings.warn(
        f"syncopate: what tuning found for {problem}, {strategy}, does not run here: {error}; the default strategy is taken",
        stacklevel=stacklevel + 1,
    )
