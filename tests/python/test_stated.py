"""Stated kernels: their statement is held against the kernel that stands in on host, they are fused like inferred ones, and
their host kernels run in their place. No GPU is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BINARY, HUNG, ROOT, SWEEP, warm_python

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("ranks", [1, 2, 4] if SWEEP else [3])
def test_a_stated_kernel_is_fused_and_runs_as_its_host_kernel_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_stated.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: identical" in outcome.out


def in_fresh_python(script: str) -> str:
    """What a script prints that imports stated_kernels. Gluon and the interpreter do not share a process with other tests."""
    folders = (ROOT / "python", HERE, ROOT / "tests", ROOT / "tests" / "gpu", ROOT / "examples")
    path = os.pathsep.join(map(str, folders))
    environment = os.environ | {"PYTHONPATH": path}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [warm_python(), "-c", script], capture_output=True, text=True, timeout=HUNG, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SCALE = """
import torch, syncopate as sy
from stated_kernels import BOX, stated
x, y = torch.empty(50, 40), torch.empty(50, 40)
arguments = dict(x_ptr=x, y_ptr=y, M=50, N=40, factor=2.0, BLOCK_M=16, BLOCK_N=16)
def refusal(**changed):
    try:
        stated(**changed).require_host_alike(arguments, (4, 1, 1))
    except sy._syncopate.InputError as error:
        return str(error).split(": ", 1)[1]
    return "alike"
"""


def test_a_statement_that_is_not_the_host_kernel_s_is_refused_with_parameter_and_tile():
    printed = in_fresh_python(
        SCALE
        + """
print(refusal())
print(refusal(reads={"x_ptr": ["m*BLOCK_M : (m+1)*BLOCK_M", "0 : (n+1)*BLOCK_N"]}))
print(refusal(writes={"y_ptr": ["m*BLOCK_M : (m+1)*BLOCK_M", "n*BLOCK_N : n*BLOCK_N + 15"]}))
print(refusal(tiles={"m": "2", "n": "cdiv(N, BLOCK_N)"}))
print(refusal(tiles={"m": "cdiv(M, BLOCK)", "n": "cdiv(N, BLOCK_N)"}).splitlines()[0])
"""
    ).splitlines()
    assert printed == [
        "alike",
        "statement of scale_rows: tile 1 (m = 0, n = 1) is stated to read [0:16, 0:32] of x_ptr, and scale_rows_plain "
        "reads [0:16, 16:32]",
        "statement of scale_rows: tile 0 (m = 0, n = 0) is stated to write [0:16, 0:15] of y_ptr, and no tile of "
        "scale_rows_plain does",
        "statement of scale_rows: it states 6 tiles, and scale_rows_plain has 12",
        'statement of scale_rows: the count of tile axis m, column 9: `BLOCK` has no value here; did you mean "BLOCK_M"?',
    ]


def test_what_is_filled_is_left_out_of_calls_and_follows_the_schedule():
    printed = in_fresh_python(
        SCALE
        + """
kernel = stated()
print(list(kernel.signature.parameters))
try:
    sy.kernel(kernel.fn, {"m": "1"}, {}, {"y_ptr": [":", ":"]}).on_host((1, 1, 1), arguments)
except ValueError as error:
    print(error)
"""
    ).splitlines()
    assert (
        printed[0]
        == "['x_ptr', 'y_ptr', 'M', 'N', 'factor', 'BLOCK_M', 'BLOCK_N', 'BEYOND', 'WAITS', 'POSTS']"
    )
    assert printed[1] == (
        "scale_rows has no interpreter: state `host=`, a Triton kernel of the same tiles, to run it there"
    )


GEMM = """
import torch
from syncopate import _syncopate
from syncopate.kernels.gluon_launch import GluonTiling, gluon_arguments
from syncopate.kernels.stated_matmul import stated_matmul
from syncopate.ops.scales import shapes_of
from syncopate.call.stated import without_filled
for transposed in (False, True):
    for m, n, k in ((300, 264, 200), (64, 1024, 512)):
        for tiling in (GluonTiling(128, 128, 64, 4), GluonTiling(64, 64, 128, 4, 2, 3)):
            a, c = torch.empty(m, k, dtype=torch.bfloat16), torch.empty(m, n, dtype=torch.bfloat16)
            w = torch.empty((n, k) if transposed else (k, n), dtype=torch.bfloat16)
            arguments = without_filled(gluon_arguments(a, w, c, (m, n, k), tiling, w_transposed=transposed))
            grid = (*tiling.grid(m, n, 10), 1, 1)
            stated_matmul(transposed).require_host_alike(arguments, grid)
            found = _syncopate.analyse(*stated_matmul(transposed).stage(arguments, grid)[:3], *
                                       stated_matmul(transposed).stage(arguments, grid)[4:])
            (variable, trips, divisible, slices), = found["loops"]
            assert (variable, divisible) == ("k", True) and len(slices) == 2, found["loops"]
            assert trips == -(-k // tiling.block_k)
m, n, k = 300, 400, 800
for scales in ("row", "block"):
    shapes = shapes_of(scales, m, n, k)
    given = tuple(torch.empty(shapes[name]) for name in ("scale_x", "scale_w"))
    a, w = (torch.empty(rows, k, dtype=torch.float8_e4m3fn) for rows in (m, n))
    c = torch.empty(m, n, dtype=torch.bfloat16)
    for tiling in (GluonTiling(128, 128, 128, 4), GluonTiling(64, 64, 128, 6, 2)):
        arguments = gluon_arguments(a, w, c, (m, n, k), tiling, w_transposed=True, scales=given)
        stated_matmul(True, scales=scales).require_host_alike(without_filled(arguments), (8, 1, 1))
square = GluonTiling(192, 192, 64, 3)
a, w, c = (torch.empty(*shape, dtype=torch.bfloat16) for shape in ((m, k), (k, n), (m, n)))
arguments = without_filled(gluon_arguments(a, w, c, (m, n, k), square))
stated_matmul().require_host_alike(arguments, (6, 1, 1))
try:
    stated_matmul().on_host((6, 1, 1), arguments)
except ValueError as error:
    assert str(error).startswith("gluon_matmul: on the host matmul stands in, which does not take blocks of"), error
    print("alike")
"""


def test_the_library_s_gemm_states_what_its_plain_kernel_touches():
    assert in_fresh_python(GEMM) == "alike\n"


PLANS = """
import torch, syncopate as sy
from syncopate import _syncopate
from syncopate.kernels.gluon_launch import GluonTiling, gluon_arguments
from syncopate.kernels.stated_matmul import stated_matmul
from syncopate.call.stated import without_filled
m, n, k, ranks = 2048, 1024, 512, 4
tiling = GluonTiling(128, 128, 64, 4)
a, c = torch.empty(m, k, dtype=torch.bfloat16), torch.empty(m, n, dtype=torch.bfloat16)
arguments = without_filled(gluon_arguments(a, torch.empty(k, n, dtype=torch.bfloat16), c, (m, n, k), tiling))
source, file, name, _, *rest = stated_matmul().stage(arguments, (*tiling.grid(m, n, 132), 1, 1))
mesh = sy.plans.mesh_of(ranks)
A, C = sy.Tensor("A", (m, k), "bf16"), sy.Tensor("C", (m, n), "bf16")
INLINE = sy.Strategy(backend="tma_inline")
def fused(plan, bind, **options):
    return _syncopate.fuse([(source, file, name, bind, *rest)], plan, "cuda", 132, **options)
gathered = fused(sy.plans.all_gather(mesh, A, minor_axis=1, minor_split=4), {"a_desc": "A"})
assert gathered.kernel_source == open(file.removesuffix(".kernel.json")).read()
print(gathered.schedule.loads, gathered.schedule.stores)
fetched = fused(sy.plans.all_gather(mesh, A, pull=True, transient=True), {"a_desc": "A"}, strategy=INLINE)
def flags_of(schedule):
    print({name: value for name, value in stated_matmul().flags(schedule).items() if value})
flags_of(fetched.schedule)
own = fused(sy.plans.all_gather(mesh, A, transient=True), {"a_desc": "A"})
flags_of(own.schedule)
pushed = fused(sy.plans.push_reduce(mesh, C), {"c_desc": "C"}, strategy=INLINE)
flags_of(pushed.schedule)
fp8, scales = torch.float8_e4m3fn, (torch.empty(m), torch.empty(n))
arguments = gluon_arguments(torch.empty(m, k, dtype=fp8), torch.empty(n, k, dtype=fp8), c, (m, n, k),
                            GluonTiling(128, 128, 128, 4), w_transposed=True, scales=scales)
scaled = stated_matmul(True, scales="row")
source, file, name, _, *rest = scaled.stage(without_filled(arguments), (132, 1, 1))
A = sy.Tensor("A", (m, k), "fp8e4m3")
plan = sy.plans.join([sy.plans.all_gather(mesh, sy.Tensor("A_scale", (m,), "fp32")),
                      sy.plans.all_gather(mesh, A, minor_axis=1, minor_split=2, transient=True)])
brought = fused(plan, {"a_desc": "A", "scale_a_ptr": "A_scale"})
print(brought.schedule.loads.tensor, scaled.flags(brought.schedule)["OWN"])
"""


def test_the_library_s_gemm_is_fused_for_gpus_with_the_flags_of_its_schedule():
    printed = in_fresh_python(PLANS).splitlines()
    assert printed == [
        "None None",
        "{'FUSED': True, 'FETCHED': True, 'TELLS': True, 'COUNTS_END': True}",
        "{'FUSED': True, 'OWN': True, 'TELLS': True, 'COUNTS_END': True}",
        "{'FUSED': True, 'COUNTS_END': True, 'PUSHED': True, 'COPIES': 1}",  # nobody overwrites what it reads
        "A True",  # the own rows where they are; their scales are few, and go through the heap
    ]


CUDA = """
import shutil
from stated_cuda import scale
from stated_matmul_cuda import BLOCKS, matmul
from syncopate import _syncopate
print(list(scale.signature.parameters))
if shutil.which("nvcc") is None:
    print("no toolkit")
else:
    print(len(scale.fn.cubin("sm_90a", {"BLOCK_M": 16, "BLOCK_N": 32})) > 1000)
    try:
        scale.fn.cubin("sm_90a", {"BLOCK_M": 16})
    except _syncopate.InputError as error:
        print("does not compile" in str(error), "BLOCK_N" in str(error))
    for arch in ("sm_80", "sm_90a"):
        print(len(matmul.fn.cubin(arch, BLOCKS | {"FETCHED": False, "OWN": True, "PUSHED": True})) > 1000)
"""


def test_a_kernel_in_cuda_is_compiled_with_its_constants(tmp_path, monkeypatch):
    monkeypatch.setenv("SYNCOPATE_CACHE_DIR", str(tmp_path))
    printed = in_fresh_python(CUDA).splitlines()
    assert printed[0] == "['x', 'y', 'M', 'N', 'factor', 'BLOCK_M', 'BLOCK_N']"
    if printed[1] == "no toolkit":
        pytest.skip("no CUDA toolkit, as where there is no GPU")
    assert printed[1:] == ["True", "True True", "True", "True"]


RECORDED = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch, syncopate as sy
from stated_kernels import stated
x, y = torch.randn(20, 40), torch.empty(20, 40)
print(sy.check_statement(stated(), x, y, 20, 40, 2.0, BLOCK_M=16, BLOCK_N=16))
try:
    sy.check_statement(stated(reads={"x_ptr": [":", "0"]}), x, y, 20, 40, 2.0, BLOCK_M=16, BLOCK_N=16)
except sy._syncopate.InputError as error:
    print("is stated to read [0:20, 0:1] of x_ptr" in str(error))
# The tables of single tiles that a GPU is given, read by what an emitted kernel on host calls.
from syncopate.host import language as sy_host
from syncopate._syncopate import layout
from syncopate.face.statement_check import _Table
number = lambda value: int(value.handle.data.item())
def of(table):
    words, control = (torch.tensor(values, dtype=torch.int32) for values in (table.words, table.control))
    for word in table.signals:
        control[word] = 1
    return words.data_ptr(), control.data_ptr(), words, control
schedule, control, words, block = of(_Table(5, waits=True))
print(number(sy_host.sy_acquire(schedule, control, 0)), words[layout.NUM_SLOTS].item())
sy_host.sy_post(schedule, control, 0)
sy_host.sy_finish(schedule, control)
print(_Table(5, waits=True).left_undone(block.tolist()))
schedule, control, words, block = of(_Table(7, phases=[3, 8]))
print(number(sy_host.sy_acquire(schedule, control, 0)), number(sy_host.sy_num_phases(schedule, 0)))
print([[number(at) for at in sy_host.sy_acquire_phase(schedule, control, 0, phase)] for phase in (0, 1)])
print(_Table(7).left_undone(block.tolist()))
"""


def test_a_statement_is_held_against_runs():
    printed = in_fresh_python(RECORDED).splitlines()
    assert printed == [
        "[]",
        "True",
        "5 1",
        "[]",
        "7 2",
        "[[0, 3], [3, 8]]",
        "['does not post what it has stored (sy_post)', 'ends its part of the call 0 times (sy_finish), not once']",
    ]


STATEMENT = """{"schema": "syncopate.kernel/1", "kernel": "copy", "file": "copy.cu",
 "parameters": ["x", "y", "n", "sy_schedule", "sy_control"],
 "tiles": {"i": "cdiv(n, 64)"}, "reads": {"x": ["64*i : 64*i + 64"]}, "writes": {"y": ["64*i : 64*i + 64"]}}
"""


def test_the_command_takes_a_statement_in_the_place_of_a_kernel(run, tmp_path):
    text = '// the user\'s\n\nextern "C" __global__ void copy(const float* x) {}\n'
    (tmp_path / "copy.cu").write_text(text)
    (tmp_path / "copy.kernel.json").write_text(STATEMENT)
    statement, plan, folder = (tmp_path / name for name in ("copy.kernel.json", "plan.json", "out"))
    tensors = ["--args", "n=100", "--tensor", "y=100:fp32"]
    shown = run(BINARY, "kernel", "show", statement, *tensors, "--tensor", "x=100:fp32")
    assert shown.code == 0, shown.err
    assert "copy (copy.cu:3)" in shown.out and "reads  x[64:100]" in shown.out
    assert (
        run(BINARY, "plan", "make", "all_gather", "--ranks", 2, "--tensor", "X:100:fp32", "-o", plan).code
        == 0
    )
    fused = run(BINARY, "fuse", statement, "--plan", plan, "--bind", "x=X", *tensors, "-o", folder)
    assert fused.code == 0, fused.err
    assert "out: copy on 2 ranks, 2 tiles each, 2 transfers, 3 waits" in fused.out
    assert (folder / "kernel.cu").read_text() == (folder / "original.cu").read_text() == text
    refused = run(BINARY, "run", folder, "--device", "host")
    assert refused.code == 1 and "copy is a stated kernel, which is launched from Python" in refused.err
    wrong = run(BINARY, "kernel", "show", statement, "--args", "m=100")
    assert wrong.code == 1 and "the count of tile axis i, column 6: `n` has no value here" in wrong.err


NONSENSE = """
import torch, syncopate as sy
from stated_kernels import BOX, stated
from producer_kernels import positive as other
def said(make):
    try:
        make()
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
said(lambda: stated(split=2))
said(lambda: stated(placed="y_ptr"))
said(lambda: stated(placed=["M"]))
said(lambda: stated(reads={"q_ptr": BOX}))
said(lambda: stated(early={"x_ptr": "EARLY"}))
said(lambda: stated(host=len))
said(lambda: stated(host=other))
types = {"x": "*fp32", "sy_schedule": "i64", "sy_control": "i64"}
said(lambda: sy.cuda_kernel("scale.cu", "scale", types | {"y": "*fp31"}, threads=128))
said(lambda: sy.cuda_kernel("scale.cu", "scale", types | {"n": "int"}, threads=128))
said(lambda: sy.kernel(sy.cuda_kernel("scale.cu", "scale", {"x": "*fp32"}, threads=128), {"m": "1"}, {"x": [":"]}, {}))
"""


def test_a_statement_that_is_not_one_of_its_kernel_is_refused():
    printed = in_fresh_python(NONSENSE).splitlines()
    assert printed == [
        "TypeError scale_rows: split: expected an expression as text, such as 'SPLIT_K', got 2",
        "TypeError placed: expected a list of names, got 'y_ptr': write ['y_ptr']",
        "ValueError scale_rows: placed: M is neither read nor written",
        "ValueError scale_rows: reads, writes: it has no parameter 'q_ptr'",
        "ValueError scale_rows: early of x_ptr: it has no constexpr 'EARLY'",
        "TypeError scale_rows: host: expected a @triton.jit kernel, got <built-in function len>",
        "ValueError scale_rows: host: positive has no parameter 'y_ptr'; give it the kernel's names, or say host_arguments=",
        "ValueError scale: y: unknown type '*fp31'; known are constexpr, i1, i8, u8, i16, u16, i32, u32, i64, u64, fp32, fp64, "
        "and pointers such as '*fp32'",
        "ValueError scale: n: unknown type 'int'; known are constexpr, i1, i8, u8, i16, u16, i32, u32, i64, u64, fp32, fp64, "
        "and pointers such as '*fp32'",
        "ValueError scale has no parameter sy_schedule, by which a kernel follows a schedule",
    ]
