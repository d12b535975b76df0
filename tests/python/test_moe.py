"""Mixture of experts: exact on host ranks whatever the routing, and kernels that compile for sm_90."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HUNG, ROOT, SWEEP

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    ("ranks", "calls"), [(1, 2), (2, 3), (3, 3), (4, 2), (5, 1), (8, 1)] if SWEEP else [(2, 1)]
)
def test_routings_bounds_and_parts_are_exact_on(ranks, calls, run):
    outcome = run(sys.executable, HERE / "host_moe.py", ranks, calls)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: exact" in outcome.out


@pytest.mark.parametrize("ranks", [1, 2, 4] if SWEEP else [2])
def test_gradients_are_those_of_the_layer_in_torch_eager_and_compiled_on(ranks, run):
    outcome = run(
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", HERE / "host_moe_torch.py"
    )  # fmt: skip
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.count("gradients agree") == 1


SHAPES = {
    "Qwen3-30B-A3B": (128, 8, 2048, 768),
    "Mixtral-8x7B": (8, 2, 4096, 14336),
    "DSV3/4": (64, 8, 7168, 2048),
}


@pytest.mark.parametrize("name", SHAPES if SWEEP else ["Qwen3-30B-A3B"])
def test_the_kernels_compile_for_sm_90_at_the_shape_of(name):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    environment.pop("TRITON_INTERPRET", None)
    for tokens in (64, 512, 4096) if SWEEP else (512,):
        outcome = subprocess.run(
            [sys.executable, HERE / "moe_compiled.py", *map(str, (tokens, *SHAPES[name], 2))],
            capture_output=True, text=True, timeout=HUNG, env=environment, check=False,
        )  # fmt: skip
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr
        assert "moe_down: " in outcome.stdout and "moe_return: " in outcome.stdout
