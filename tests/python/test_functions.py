"""sy.ops' functions after their first call (host_functions.py)."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent


def test_functions_called_by_cpp_alone_mean_what_the_first_call_meant(run):
    outcome = run(sys.executable, HERE / "host_functions.py", 2)
    assert outcome.code == 0, outcome.out + outcome.err


def test_functions_take_a_strategy_and_operators_their_unfused_way(run):
    outcome = run(sys.executable, HERE / "host_strategies.py", 2)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "as asked for" in outcome.out
