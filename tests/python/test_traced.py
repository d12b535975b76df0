"""Functions and objects of sy.ops, and fused kernels, within torch.compile and torch.export."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
SCRIPT = Path(__file__).resolve().parent / "host_traced.py"


@pytest.mark.parametrize("what", ["functions", "exported", "by_itself", "wrong", "refused", "derivatives"])
def test_calls_are_ops_of_a_graph_or_refused_by_name(what, run):
    outcome = run(sys.executable, SCRIPT, 2, f"check_{what}")
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: 1 checks" in outcome.out


def test_a_call_without_torch_distributed_says_so(run):
    text = (
        "import syncopate as sy, torch; x = torch.ones(16, 16); "
        "torch.compile(lambda x: sy.ops.matmul_all_reduce(x, x), backend='eager')(x)"
    )
    outcome = run(sys.executable, "-c", text)
    assert outcome.code
    assert "RuntimeError: torch.distributed is not initialised" in outcome.err
