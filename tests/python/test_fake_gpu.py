"""Calls on GPUs as far as no GPU is needed: their forms, arguments, descriptors and launches, on a stand-in for the driver."""

import os
import subprocess
import sys

import pytest
from conftest import HUNG, ROOT

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
DRIVER = ROOT / "build" / "fake_driver"


@pytest.mark.skipif(not DRIVER.exists(), reason="the target `tests` is not built")
def test_calls_of_operators_and_of_fused_kernels_reach_the_driver():
    script = ROOT / "tests" / "python" / "fake_gpu.py"
    # A Python of its own: the loader looks for the driver where it was told to when the process began.
    environment = {**os.environ, "LD_LIBRARY_PATH": str(DRIVER)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, script, "2"], env=environment, capture_output=True, text=True, timeout=HUNG
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok: " in done.stdout
