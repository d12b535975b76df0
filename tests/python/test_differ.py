"""Ranks that call different things get an error that says so, in step: the next calls are right (host_differ.py); who calls
once more than ranks that have ended is told, too (host_ended.py)."""

import sys
from pathlib import Path

import pytest
from conftest import SWEEP

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent


def test_a_call_that_the_others_have_ended_without_says_so(run):
    outcome = run(sys.executable, HERE / "host_ended.py", 2)
    assert outcome.code == 0, outcome.out + outcome.err


@pytest.mark.parametrize("size", [2, 3] if SWEEP else [3])
def test_ranks_go_on_from_the_same_call_after_calls_that_differ(run, size):
    outcome = run(sys.executable, HERE / "host_differ.py", size)
    assert outcome.code == 0, outcome.out + outcome.err
