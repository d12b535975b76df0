"""Unfused is a strategy that every operator around one product can run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_operators_run_unfused_and_give_the_same(ranks):
    outcome = subprocess.run(
        [sys.executable, HERE / "host_unfused.py", str(ranks)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert outcome.returncode == 0, outcome.stderr[-3000:]
