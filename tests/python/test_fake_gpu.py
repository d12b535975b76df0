"""Calls on GPUs as far as no GPU is needed: their forms, arguments, descriptors and launches, on a stand-in for the driver."""

import sys

import pytest
from conftest import ROOT

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
DRIVER = ROOT / "build" / "fake_driver"


@pytest.mark.skipif(not DRIVER.exists(), reason="the target `tests` is not built")
def test_calls_of_operators_and_of_fused_kernels_reach_the_driver(run):
    script = ROOT / "tests" / "python" / "fake_gpu.py"
    outcome = run(sys.executable, script, 2, LD_LIBRARY_PATH=str(DRIVER), TRITON_INTERPRET="")
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: " in outcome.out
