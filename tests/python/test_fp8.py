"""Operators of fp8: each scale comes to the rows that it belongs to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.sweep)])
def test_operators_of_fp8_scale_what_they_multiply_and_move(ranks):
    outcome = subprocess.run(
        [sys.executable, HERE / "host_fp8.py", str(ranks)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert outcome.returncode == 0, outcome.stderr[-3000:]
