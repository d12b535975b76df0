"""Scalars of the command line reach the kernels that `syncopate run` starts as they were given."""

import dataclasses
import json

import pytest
from conftest import BINARY

pytest.importorskip("triton")
if not BINARY.exists():
    pytest.skip("the command is not built", allow_module_level=True)

KERNEL = """import triton
import triton.language as tl


@triton.jit
def norm(x_ptr, y_ptr, eps, limit, shift, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + at)
    y = x / tl.sqrt(tl.sum(x * x) / N + eps)
    tl.store(y_ptr + at, tl.minimum(y, limit) + shift)
"""


def test_small_floats_infinities_and_negative_zeros_are_kept(syncopate, tmp_path):
    (tmp_path / "norm.py").write_text(KERNEL)
    made = syncopate(
        "plan", "make", "all_gather", "--ranks", "2", "--tensor", "X:6x16:fp32", "-o", tmp_path / "plan.json"
    )  # fmt: skip
    assert made.code == 0, made.err
    fused = syncopate(
        "fuse", f"{tmp_path / 'norm.py'}:norm", "--plan", tmp_path / "plan.json", "--bind", "x_ptr=X",
        "--args", "eps=1e-06,limit=inf,shift=-0.0,N=16", "--tensor", "y_ptr=6x16:fp32", "-o", tmp_path / "out",
    )  # fmt: skip
    assert fused.code == 0, fused.err
    assert fused.err == ""
    (stage,) = json.loads((tmp_path / "out" / "schedule.json").read_text())["stages"]
    assert stage["arguments"] == {"N": 16, "eps": 1e-06, "limit": {"float": "inf"}, "shift": -0.0}
    ran = syncopate("run", tmp_path / "out", "--device", "host", "--ranks", "2", "--check")
    assert ran.code == 0, ran.err
    assert ran.out.count("identical to the unfused kernel") == 2, ran.out


def test_an_error_that_is_no_number_is_null_where_results_are_printed_as_json():
    from syncopate.command.run import entry
    from syncopate.command.run_calls import Result

    fields = {field.name: 0 for field in dataclasses.fields(Result)}
    for error, printed in ((float("nan"), None), (float("inf"), None), (1e-06, 1e-06), (None, None)):
        line = json.dumps(entry(Result(**{**fields, "error": error})), allow_nan=False)
        assert json.loads(line)["error"] == printed
