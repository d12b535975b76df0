"""Unfused is a strategy that every operator around one product can run."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_operators_run_unfused_and_give_the_same(ranks, run):
    path = str(HERE.parents[1] / "python")
    outcome = run(sys.executable, HERE / "host_unfused.py", ranks, TRITON_INTERPRET="1", PYTHONPATH=path)
    assert outcome.code == 0, outcome.err[-3000:]
