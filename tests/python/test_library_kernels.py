"""The GEMM kernels behind sy.ops, fused for the shape that is measured most, compile for sm_90 on stock Triton with the
pipelining of the kernels they came from. No GPU is needed."""

import json
import os
import subprocess

import pytest
from conftest import HUNG, ROOT, SWEEP, warm_python

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")

SCRIPT = """
import dataclasses, importlib.util, json, re, subprocess, sys, tempfile
from pathlib import Path
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
import syncopate as sy
from syncopate import _syncopate
from syncopate.ops import product_kernel as gemm
from syncopate.kernels import matmul as library

name, slices, transposed, bias, own = sys.argv[1], int(sys.argv[2]), *(bool(int(flag)) for flag in sys.argv[3:6])
ranks, m, n, k = 8, 8192, 3584, 8192
tiling = sy.strategy.choose_tiling(m, n, k, torch.bfloat16, 132)
if name == "matmul_mixed":  # 12 columns of wide tiles, four of narrow ones
    tiling = dataclasses.replace(tiling, block_n=256, num_wide=12)
else:
    tiling = dataclasses.replace(tiling, block_n=256, num_wide=-1, stages=4)
t, mixed = tiling, name == "matmul_mixed"
blocks = {"a_desc": [t.block_m, t.block_k], "c_desc": [t.block_m, t.block_n // 2]}
for parameter, width in (("b_desc", t.block_n), ("b_narrow_desc", t.block_n // 2)):
    blocks[parameter] = [width, t.block_k] if transposed else [t.block_k, width]
b_shape = [n, k] if transposed else [k, n]
shapes = {"a_desc": [m, k], "b_desc": b_shape, "b_narrow_desc": b_shape, "c_desc": [m, n]}
constants = dict(BLOCK_M=t.block_m, BLOCK_N=t.block_n, BLOCK_K=t.block_k, GROUP_M=t.group_m, NUM_SMS=132,
                 B_TRANSPOSED=transposed, PRECISION="tf32", ACTIVATION="",
                 bias_ptr=None)
scalars = dict(M=m, N=n, K=k)
if mixed:
    scalars["num_wide"] = t.num_wide
else:
    constants |= dict(SPLIT_STORE=2, scale_a_ptr=None, scale_b_ptr=None, SCALES="", WHOLE_BIAS=False)
    del blocks["b_narrow_desc"], shapes["b_narrow_desc"]
if bias:
    del constants["bias_ptr"]
    blocks["bias_ptr"], shapes["bias_ptr"] = [], [n]

cut = {"minor_axis": 1, "minor_split": slices} if slices > 1 else {}
mesh = sy.plans.mesh_of(ranks)
plan = sy.plans.all_gather(mesh, sy.Tensor("A", (m, k), "bf16"), split=2, **cut)
if own:
    x = sy.Tensor("X", (m, k), "bf16")
    plan = sy.plans.push_exchange(mesh, x, "A", produced=False, for_kernel=True, **cut)
tensors = {p: (shapes[p], [], "bf16", blocks[p]) for p in blocks}
source = Path(library.__file__).read_text()
stage = (source, library.__file__, name, {"a_desc": "A"}, {**scalars, **constants}, tensors, (132, 1, 1))
artifact = _syncopate.fuse([stage], plan, "cuda", 132)


def measure(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = getattr(module, name)
    signature, attributes = {}, {}
    for index, parameter in enumerate(kernel.arg_names):
        if parameter in constants:
            signature[parameter] = "constexpr"
        elif blocks.get(parameter) or parameter == "sy_own":
            signature[parameter] = "tensordesc<bf16[%d,%d]>" % tuple(blocks.get(parameter, blocks["a_desc"]))
        elif parameter == "bias_ptr":
            signature[parameter] = "*bf16"
        else:
            signature[parameter] = "*i32" if parameter.startswith("sy_") else "i32"
            attributes[(index,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes),
                              target=GPUTarget("cuda", 90, 32), options=gemm.gemm_options(t))
    ttgir = compiled.asm["ttgir"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.ptx").write_text(compiled.asm["ptx"])
        ptxas = get_ptxas(90).path
        log = subprocess.run([ptxas, "-v", "--gpu-name=sm_90a", "k.ptx", "-o", "k.o"], cwd=folder, capture_output=True,
                             text=True).stderr
    return {
        # buffers of every pipelined loop, smallest first
        "stages": sorted(int(d) for d in re.findall(r"ttg.local_alloc\\b.*?memdesc<(\\d+)x\\d+x\\d+xbf16", ttgir)),
        "in_flight": sorted(int(p) for p in re.findall(r"warp_group_dot_wait.*?pendings = (\\d+)", ttgir)),
        "shared": compiled.metadata.shared,
        "registers": int(re.search(r"Used (\\d+) registers", log).group(1)),
        "spills": sum(int(s) for s in re.findall(r"(\\d+) bytes spill", log)),
        "serialized": "serialized" in log,
    }


with tempfile.TemporaryDirectory() as folder:
    fused = Path(folder) / "fused.py"
    fused.write_text(artifact.kernel_source)
    schedule = artifact.schedule
    print(json.dumps({"phased": schedule.phased, "own": schedule.loads is not None, "original": measure(Path(library.__file__)), "fused": measure(fused)}))
"""


FORMS = [(False, False, False), (True, False, False), (False, True, False), (False, False, True)]
NAMES = [("matmul", 1), ("matmul", 4), ("matmul_mixed", 1)]  # of a tile with two loops along K neither is cut
CASES = [(*name, *form) for name in NAMES for form in FORMS]


# Outside a sweep each name and each form once: compiling one takes seconds.
@pytest.mark.parametrize(
    ("name", "slices", "transposed", "bias", "own"), CASES if SWEEP else [CASES[i] for i in (0, 3, 6, 9)]
)
def test_a_fused_library_kernel_keeps_the_pipelining_of_its_original(
    name, slices, transposed, bias, own, tmp_path
):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    result = subprocess.run(
        [warm_python(), script, name, str(slices), *(str(int(flag)) for flag in (transposed, bias, own))],
        capture_output=True,
        text=True,
        timeout=HUNG,
        env={**environment, "PYTHONPATH": str(ROOT / "python")},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    answer = json.loads(result.stdout)
    print(answer)
    original, fused = answer["original"], answer["fused"]
    assert original["stages"] and original["stages"][0] > 1, "the unmodified kernel pipelines"
    assert len(fused["stages"]) == len(original["stages"])
    assert all(f >= o for f, o in zip(fused["stages"], original["stages"], strict=True))
    assert max(fused["in_flight"]) >= max(original["in_flight"])
    assert fused["shared"] <= original["shared"] + 1024
    assert fused["registers"] < 255 and fused["spills"] <= original["spills"]
    assert not fused["serialized"]
    assert answer["phased"] == (slices > 1) and answer["own"] == own


RELU = """
import re
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
import triton, triton.language as tl
from syncopate.kernels import matmul

@triton.jit
def activate(p, NAME: tl.constexpr):
    at = p + tl.arange(0, 128)
    tl.store(at, matmul._activate(tl.load(at), NAME))

source = ASTSource(activate, {"p": "*fp32", "NAME": "constexpr"}, {(1,): "relu"})
print(sorted(set(re.findall(r"max[.][.a-zA-Z0-9]+", triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]))))
"""


def test_relu_keeps_nan_as_torch_does(tmp_path):
    """The host's interpreter does so anyway; a GPU's max is the other operand."""
    file = tmp_path / "relu.py"  # Triton reads kernels from files
    file.write_text(RELU)
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    outcome = subprocess.run(
        [warm_python(), file], capture_output=True, text=True, timeout=HUNG, env=environment
    )
    assert outcome.stdout == "['max.NaN.f32']\n", outcome.stdout + outcome.stderr
