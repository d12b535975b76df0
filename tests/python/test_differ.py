"""Ranks that call different things get an error that says so, in step: the next calls are right (host_differ.py)."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_go_on_from_the_same_call_after_calls_that_differ(run, size):
    outcome = run(sys.executable, HERE / "host_differ.py", size)
    assert outcome.code == 0, outcome.out + outcome.err
