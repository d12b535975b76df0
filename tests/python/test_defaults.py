"""What is chosen for a GPU is what the compiler takes."""

import subprocess
from pathlib import Path

import pytest
from conftest import HUNG, warm_python

pytest.importorskip("triton")
pytest.importorskip("syncopate")
SCRIPT = Path(__file__).resolve().parent / "defaults_fuse.py"


def test_the_defaults_of_all_operators_fuse():
    result = subprocess.run([warm_python(), str(SCRIPT)], capture_output=True, text=True, timeout=HUNG)
    assert result.returncode == 0, result.stdout + result.stderr
    fused, _, refused, _ = result.stdout.splitlines()[-1].split()
    assert int(fused) > 250 and refused == "0"
