"""Kernels of one GPU that overlap tile by tile (sy.fuse without a plan)."""

import os
import subprocess
from pathlib import Path

import pytest
from conftest import SWEEP, warm_python

pytest.importorskip("triton")
pytest.importorskip("syncopate")
HERE = Path(__file__).resolve().parent

COMPILE = """
import sys
from pathlib import Path
import triton
from syncopate.device import jit
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
        [warm_python(), *map(str, command)],
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


def test_chains_read_nothing_before_it_is_made_however_early_their_programs_run(tmp_path):
    assert "eager: ok" in run(HERE / "host_eager.py", tmp_path, 120 if SWEEP else 8)


SCRIPT = """
import os

os.environ["TRITON_INTERPRET"] = "1"
import syncopate as sy
import torch
import triton
import triton.language as tl


@triton.jit
def add_one(x_ptr, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


twice = sy.fuse([add_one, add_one], bind=[{"x_ptr": "X"}, {"x_ptr": "X"}])


def main():
    x = torch.zeros(40)
    twice.run([twice.call(stage, (3,), x, 40, B=16) for stage in range(2)])
    print(x.sum().item())


"""


def test_a_file_that_runs_what_its_kernel_is_in_is_told_to_guard_it(tmp_path):
    file = tmp_path / "add.py"
    kept = {"SYNCOPATE_CACHE_DIR": str(tmp_path / "cache")}
    file.write_text(SCRIPT + 'if __name__ == "__main__":\n    main()\n')
    assert run(file, **kept) == "80.0\n"
    file.write_text(SCRIPT + "main()\n")
    with pytest.raises(AssertionError) as raised:
        run(file, **kept)
    assert f"{file} is imported for its fused kernel, and launches one itself then" in str(raised.value)
    assert 'put what it runs under `if __name__ == "__main__":`' in str(raised.value)


def test_several_kernels_have_one_mapping_each():
    import syncopate as sy

    with pytest.raises(ValueError, match="bind: give one mapping for each of the 2 kernels, got 1"):
        sy.fuse([len, len], bind=[{"x_ptr": "X"}])
    with pytest.raises(ValueError, match="values: give one mapping for each of the 2 kernels, got 3"):
        sy.fuse([len, len], bind=[{}, {}], values=[{}, {}, {}])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"deadline": "a"}, "deadline: expected seconds, from 0 on, got 'a'"),
        ({"deadline": -1}, "deadline: expected seconds, from 0 on, got -1"),
        ({"deadline": float("nan")}, "deadline: expected seconds"),
        ({"host_delay": -0.5}, "host_delay: expected seconds"),
        ({"seed": 1.5}, "seed: expected an integer, got 1.5"),
    ],
)
def test_times_are_seconds(given, said):
    import syncopate as sy

    with pytest.raises(ValueError, match=said):
        sy.fuse([len, len], bind=[{}, {}], **given)


def test_a_slice_has_an_extent():
    import syncopate as sy

    with pytest.raises(ValueError, match="slices: give a number, or the extent of each slice"):
        sy.strategy.Chunking(slices=())


def test_every_chain_of_the_benchmark_gives_what_its_kernels_and_pytorch_give():
    assert "sync work: ok" in run(HERE / "host_sync_work.py")


COMPILE_WORK = """
import kernels
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def compile(function, types, constants, warps, stages):
    kinds = {p.name: "constexpr" if p.name in constants else types.get(p.name, "i32") for p in function.params}
    source = ASTSource(fn=function, signature=kinds, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": stages})
    assert made.metadata.shared <= 232448, (function.__name__, made.metadata.shared)
    return made.asm["ptx"]


half, single = "*fp16", "fp32"
m, n, k = 128, 256, 64
blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
boxes = [f"tensordesc<fp16[{a},{b}]>" for a, b in ((m, k), (n, k), (m, n))]
abc = dict(zip(("a_desc", "b_desc", "c_desc"), boxes))
for pdl in (0, 1):
    ptx = compile(kernels.product, abc, blocks | {"ACTIVATION": "relu", "PDL": pdl}, 8, 3)
    assert ("griddepcontrol.wait" in ptx) == bool(pdl) and "wgmma" in ptx
compile(kernels.stream_k, abc | {"partial_ptr": "*fp32", "flag_ptr": "*i32"}, blocks | {"ACTIVATION": "relu"}, 8, 3)
compile(kernels.convolution, dict(zip(("x_desc", "w_desc", "y_desc"), boxes)), blocks | {"PDL": 1}, 8, 3)
box = "tensordesc<fp16[64,128]>"
compile(kernels.attention, {"qkv_desc": box, "o_desc": box, "SCALE": single}, {"BLOCK": 64, "D": 128, "PDL": 1}, 4, 3)
compile(kernels.gated, {"g_ptr": half, "h_ptr": half}, {"ROWS": 16, "BLOCK": 256, "PDL": 1}, 4, 3)
norm = {"x_ptr": half, "w_ptr": half, "y_ptr": half, "EPS": single}
compile(kernels.rms_norm, norm, {"BLOCK": 16384, "PDL": 1}, 8, 3)
"""


def test_the_kernels_of_the_benchmark_compile_for_hopper(tmp_path):
    bench = str(HERE.parents[1] / "bench" / "sync")
    path = os.pathsep.join([bench, os.environ.get("PYTHONPATH", "")])
    run("-c", COMPILE_WORK, TRITON_CACHE_DIR=str(tmp_path / "cache"), PYTHONPATH=path)
