"""The function inside a kernel's layers, which is what gets compiled: Triton's own classes, no GPU."""

import os
import subprocess
import textwrap

from conftest import warm_python

KERNEL = """
    import triton
    import triton.language as tl
    from syncopate.call.prepared import unwrapped

    @triton.jit
    def bare(x_ptr, N, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        tl.store(x_ptr + tl.program_id(0), 0.0)

    even = {"EVEN": lambda arguments: arguments["N"] % arguments["BLOCK"] == 0}
    configs = [triton.Config({"BLOCK": 64})]
    inner = triton.heuristics(even)(bare)
    outer = triton.autotune(configs, key=["N"])(inner)
    for kernel in (bare, inner, outer, triton.heuristics(even)(outer)):
        assert unwrapped(kernel) is bare, kernel
"""


def test_the_function_is_found_under_all_layers(tmp_path):
    # A process of its own each: TRITON_INTERPRET decides what triton.jit makes when triton is imported.
    path = tmp_path / "layers.py"  # triton.jit reads a function's source
    path.write_text(textwrap.dedent(KERNEL))
    for interpret in ("0", "1"):
        environment = dict(os.environ, TRITON_INTERPRET=interpret)
        done = subprocess.run(
            [warm_python(), path], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
