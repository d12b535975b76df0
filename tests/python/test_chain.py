"""Kernels of one GPU that overlap tile by tile (sy.fuse without a plan)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("syncopate")
HERE = Path(__file__).resolve().parent

COMPILE = """
import sys
from pathlib import Path
import triton
from syncopate import jit
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

kernel = jit.load_module(Path(sys.argv[1]).read_text(), "matmul_kernel", None).matmul_kernel
constants = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "PRECISION": "ieee"}
constants = {p.name: constants[p.name] for p in kernel.params if p.name in constants}
kinds = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16", "sy_schedule": "*i32", "sy_control": "*i32"}
signature = {p.name: "constexpr" if p.name in constants else kinds.get(p.name, "i32") for p in kernel.params}
compiled = triton.compile(
    ASTSource(fn=kernel, signature=signature, constexprs=constants), target=GPUTarget("cuda", 90, 32)
)
ptx = compiled.asm["ptx"]
starts, waits = ptx.index("griddepcontrol.launch_dependents"), ptx.index("griddepcontrol.wait")
assert starts < ptx.index("mma") < waits, "the next kernel may start before the product, and it ends after the one before it"
"""


def run(*command, **environment):
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_chains_of_plain_kernels_give_what_the_kernels_give_one_after_another(tmp_path):
    emitted = tmp_path / "emitted.py"
    assert "chains: ok" in run(HERE / "host_chain.py", emitted)
    run("-c", COMPILE, emitted, TRITON_CACHE_DIR=str(tmp_path / "cache"))
