"""The product on host ranks: emitted kernels in Triton's interpreter, chunks moved by another thread and late at random."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")


def run(*command: str, timeout: float = 500.0) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=timeout, env=environment
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return result.stdout


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_every_example_and_plan_gives_the_bits_of_the_unfused_kernel(ranks):
    assert "identical" in run(str(HERE / "host_matrix.py"), str(ranks))


def test_the_operators_are_exact_on_forked_ranks():
    run(str(HERE / "host_ops.py"), "3")


def test_the_operators_are_exact_in_a_torch_process_group():
    run("-m", "torch.distributed.run", "--nproc-per-node", "2", str(HERE / "host_ops.py"))
