"""Users' own grouped kernels, fused with rows that come in groups of which only the device knows how many they are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HUNG, ROOT, SWEEP

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5] if SWEEP else [3])
def test_a_users_grouped_product_follows_counts_that_only_the_device_knows_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_ragged.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: ragged" in outcome.out


@pytest.mark.parametrize("ranks", [1, 2, 3, 4] if SWEEP else [2])
def test_grouped_products_as_users_write_them_follow_such_counts_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_ragged_kinds.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: ragged" in outcome.out


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5] if SWEEP else [2])
def test_two_tensors_rows_that_are_kept_and_gradients_of_experts_are_right_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_ragged_trained.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err


def test_their_kernels_compile_for_sm_90():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    environment.pop("TRITON_INTERPRET", None)
    outcome = subprocess.run(
        [sys.executable, HERE / "ragged_compiled.py"],
        capture_output=True, text=True, timeout=HUNG, env=environment, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("by_offsets: ") == 2 and "ragged_take: " in outcome.stdout
    source = "".join((HERE / f"ragged_{of}.py").read_text() for of in ("kernels", "described"))
    helpers = ("product_of_tile", "expert_of_tile", "rows_of_blocks", "sums_of_blocks")
    names = [name for name in re.findall(r"def (\w+)\(", source) if name not in helpers]
    missing = [name for name in names if f"\n{name}: " not in outcome.stdout]
    assert len(names) > 10 and not missing, f"not compiled: {missing}"


@pytest.mark.parametrize("ranks", [1, 2, 3] if SWEEP else [2])
@pytest.mark.parametrize(("example", "said"), [("grouped_product", "a grouped product agrees with torch"),
                                               ("grouped_training", "gradients of experts agree with torch's in fp64")])  # fmt: skip
def test_the_example_agrees_with_torch_on(ranks, example, said, run):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "python")}
    outcome = run(*command, ROOT / "examples" / f"{example}.py", **environment)
    assert outcome.code == 0, outcome.out + outcome.err
    assert said in outcome.out
