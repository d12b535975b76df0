"""syncopate.debug: footprints held against what a kernel touches in the interpreter, by lines of the user's file."""

import os
import subprocess
from pathlib import Path

import pytest
from conftest import HUNG, warm_python

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("triton")
if not list((ROOT / "python" / "syncopate").glob("_syncopate*.so")):
    pytest.skip("the extension is not built", allow_module_level=True)

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def pick(x_ptr, i_ptr, B: tl.constexpr):
    return tl.load(x_ptr + i_ptr)

@triton.jit
def {name}(x_ptr, i_ptr, y_ptr, B: tl.constexpr):
    {directive}
    pid = tl.program_id(0)
    r = pid * B + tl.arange(0, B)
    i = tl.load(i_ptr + r)
    tl.store(y_ptr + r, pick(x_ptr, i, B))
"""

FORMS = {
    "unstated": "pass",
    "right": "# @sy.reads x_ptr[:]",
    "wrong": "# @sy.reads x_ptr[pid * B:(pid + 1) * B]",
}

PROGRAM = """
import importlib, sys
sys.path[:0] = [{python!r}, {folder!r}]
import torch
from syncopate import debug

def check(name, index, y_length=12):
    kernel = getattr(importlib.import_module(name), name)
    x, y = torch.arange(12.0), torch.zeros(y_length)
    found = debug.check_footprints(kernel, lambda meta: (12 // meta["B"],), x, torch.tensor(index), y, B=4)
    return x, y, found

forward, shifted = list(range(12)), [0, 1, 2, 3, 4, 9, 6, 7, 1, 0, 10, 11]

x, y, found = check("right", shifted)
assert not found and torch.equal(y, x[shifted]), found

assert not check("wrong", forward)[2], "held, for this data"

found = check("wrong", shifted)[2]
assert [str(f) for f in found] == [
    "{folder}/wrong.py:7: program 1 loads x_ptr[9], outside its footprint x_ptr[4:8]",
    "{folder}/wrong.py:7: program 2 loads x_ptr[0] (2 elements in all), outside its footprint x_ptr[8:12]",
], [str(f) for f in found]
assert found[1].elements == ((0,), (1,)) and found[1].program == 2 and not found[1].write

y = torch.zeros(24)
kernel = importlib.import_module("right").right
found = debug.check_footprints(kernel, (3,), torch.arange(12.0), torch.arange(12), y[:10], B=4)
assert [str(f) for f in found] == [
    "{folder}/right.py:15: program 2 stores to 2 addresses outside every tensor argument"
], [str(f) for f in found]

try:
    check("unstated", forward)
except debug._syncopate.SyncopateError as error:
    assert "unstated.py:7" in str(error) and "state what a tile touches" in str(error), str(error)
else:
    raise AssertionError("no diagnostic")
"""


def test_accesses_outside_a_footprint_are_named_by_their_line(tmp_path):
    for name, directive in FORMS.items():
        (tmp_path / f"{name}.py").write_text(KERNELS.format(name=name, directive=directive))
    result = subprocess.run(
        [warm_python(), "-c", PROGRAM.format(python=str(ROOT / "python"), folder=str(tmp_path))],
        capture_output=True,
        text=True,
        timeout=HUNG,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert result.returncode == 0, result.stderr[-3000:]


def test_without_the_interpreter_it_says_what_to_set(tmp_path):
    (tmp_path / "right.py").write_text(KERNELS.format(name="right", directive=FORMS["right"]))
    program = f"""
import sys
sys.path[:0] = [{str(ROOT / "python")!r}, {str(tmp_path)!r}]
import torch, right
from syncopate import debug
debug.check_footprints(right.right, (1,), torch.zeros(4), torch.zeros(4, dtype=torch.int32), torch.zeros(4), B=4)
"""
    result = subprocess.run(
        [warm_python(), "-c", program], capture_output=True, text=True, timeout=HUNG,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )  # fmt: skip
    assert result.returncode == 1 and "set TRITON_INTERPRET=1" in result.stderr, result.stderr[-2000:]


def test_elements_of_one_address_are_in_a_footprint_together():
    import numpy as np
    import torch
    from syncopate.debug import Places, Touch, outside

    x = torch.arange(8.0).expand(3, 8)
    analysis = {"tiles": [(0, {"x": [((0, 1), (0, 4))]}, {}, [], [])]}
    touched = Touch(0, False, x.data_ptr() + 4 * np.arange(6), "kernel.py", 7)
    (found,) = outside([touched], Places({"x": x}), analysis)
    assert [column for _, column in found.elements] == [4, 5]
