"""What needs GPUs: check_ag_gemm.py on up to four of them. Skipped where there are fewer than two."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
ranks = pytest.importorskip("syncopate.ranks")


def gpus() -> int:
    try:
        return ranks.gpu_count()
    except ranks.RankError:
        return 0


@pytest.mark.parametrize("section", ["shapes", "queued", "graphs", "streams", "examples", "absent", "memory"])
def test_all_gather_gemm(section):
    count = min(gpus(), 4)
    if count < 2:
        pytest.skip(f"{count} GPUs here, at least 2 are needed")
    script = Path(__file__).resolve().parent / "check_ag_gemm.py"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(count),
        str(script),
        section,
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    assert f"{section}: ok" in result.stdout
