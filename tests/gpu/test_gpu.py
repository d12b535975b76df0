"""What needs GPUs: the scripts beside this file on up to four of them; on one, what two ranks can do that share it."""

import shutil
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


SECTIONS = {
    "check_ag_gemm.py": [
        "shapes", "queued", "graphs", "streams", "together", "examples", "stated", "fetched", "bias", "copied", "absent",
        "memory",
    ],
    "check_gemm_rs.py": [
        "shapes", "operators", "ways", "large", "stages", "queued", "graphs", "streams", "repeated", "examples", "templates",
        "stated", "absent", "matrix", "mixed",
    ],
    "check_bundle.py": ["release", "bundles"],
    "check_fp8.py": ["operators", "odd", "queued", "pair"],
    "check_nccl.py": ["gathered", "made", "graphs", "absent"],
    "check_torch.py": [
        "without_python", "captured", "trees", "gradients", "functions", "streams", "graphs", "rows", "compiled", "override",
        "returned", "added", "two_shots", "differing", "attention",
    ],
    "check_moe.py": ["shapes", "tensor", "scaled", "bounds", "many", "graph", "gradients", "training"],
    "check_moe_products.py": ["own", "gluon", "scaled_tensor"],
    "check_moe_graphs.py": ["compiled", "captured", "unread"],
    "check_ragged.py": ["queued", "graph", "over"],
    "check_tune.py": ["searched", "fused", "links"],
    "check_attention.py": [
        "documents_compile_once", "tagged", "random", "function", "gluon", "gluon_again", "queued", "graphs",
    ],
}  # fmt: skip


ON_ONE = ("operators", "ways", "graphs")  # of check_gemm_rs.py


@pytest.mark.parametrize(("script", "section"), [(s, name) for s in SECTIONS for name in SECTIONS[s]])
def test_on_gpus(script, section):
    count = min(gpus(), 4)
    on_one = {"check_torch.py", "check_tune.py", "check_attention.py"}
    if count == 1 and (script in on_one or (script == "check_gemm_rs.py" and section in ON_ONE)):
        count = 2
    if count < 2:
        pytest.skip(f"{count} GPUs here, at least 2 are needed")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(count),
        str(Path(__file__).resolve().parent / script),
        section,
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    if f"{section}: skipped" in result.stdout:
        pytest.skip("ranks share a GPU")
    assert f"{section}: ok" in result.stdout


@pytest.mark.parametrize(
    "section", ["shapes", "options", "fp8", "split", "schedule", "rows", "late", "copied"]
)
def test_the_gluon_gemm_on_one_gpu(section):
    if gpus() < 1 or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper GPU here")
    command = [sys.executable, str(Path(__file__).resolve().parent / "check_gluon_matmul.py"), section]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    assert f"{section}: right" in result.stdout


@pytest.mark.parametrize(
    "section",
    ["d64", "d128", "d256", "masks64", "masks128", "documents", "ranges", "arrivals", "deadline"],
)
def test_the_gluon_attention_on_one_gpu(section):
    if gpus() < 1 or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper GPU here")
    command = [sys.executable, str(Path(__file__).resolve().parent / "check_gluon_attention.py"), section]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    assert f"{section}: right" in result.stdout


def test_the_backward_of_attention_on_one_gpu():
    if gpus() < 1 or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper GPU here")
    script = str(Path(__file__).resolve().parent / "check_attention_backward.py")
    for command in (
        [sys.executable, script, "kernel"],
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script, "ranks"],
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script, "unequal"],
    ):
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
        assert f"{command[-1]}: right" in result.stdout


@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
def test_the_gluon_gemm_touches_nothing_beyond_its_tensors(tool):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None or gpus() < 1 or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper GPU here, or no compute-sanitizer")
    script = Path(__file__).resolve().parent / "check_gluon_matmul.py"
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, str(script), "brief"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    assert "brief: right" in result.stdout


@pytest.mark.parametrize("section", ["statement", "alone", "gemm", "cuda"])
def test_stated_kernels_on_one_gpu(section):
    if gpus() < 1 or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper GPU here")
    command = [sys.executable, str(Path(__file__).resolve().parent / "check_stated.py"), section]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    assert f"{section}: ok" in result.stdout


def test_tile_synchronisation_on_one_gpu():
    program = Path(__file__).resolve().parents[2] / "build" / "bin" / "syncopate_check_sync"
    if gpus() < 1 or not program.exists():
        pytest.skip("no GPU here, or the target `tests` is not built")
    result = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "deadline: ok" in result.stdout


def test_a_chain_of_triton_kernels_gives_the_bits_of_stream_order_on_one_gpu():
    if gpus() < 1:
        pytest.skip("no GPU here")
    bench = Path(__file__).resolve().parents[2] / "bench" / "sync" / "chains.py"
    command = [sys.executable, str(bench), "--models=llama", "--sizes=128,1024", "--rounds=1", "--replays=1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("section", ["default", "graphs", "gluon0", "gluon1", "gluon2", "gluon3"])
def test_chains_of_triton_kernels_on_one_gpu(section):
    if gpus() < 1 or (section.startswith("gluon") and torch.cuda.get_device_capability()[0] != 9):
        pytest.skip("no GPU here, or not one that the Gluon products are for")
    command = [sys.executable, str(Path(__file__).resolve().parent / "check_chain.py"), section]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    assert f"{section}: ok" in result.stdout


#: Columns of X [256, 64] added up, by one program as rows arrive, or by a program for each 16 rows with atomics.
SUMS = """
import triton
import triton.language as tl


@triton.jit
def by_arrival(x_ptr, y_ptr, M, N: tl.constexpr, B: tl.constexpr):
    columns = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for m in range(0, M, B):  # @sy.any_order
        x = tl.load(x_ptr + (m + tl.arange(0, B))[:, None] * N + columns[None, :])
        total += tl.sum(tl.exp(x * 0.3), 0)
    tl.store(y_ptr + columns, total)


@triton.jit
def by_atomics(x_ptr, y_ptr, M, N: tl.constexpr, B: tl.constexpr):
    columns = tl.arange(0, N)
    x = tl.load(x_ptr + (tl.program_id(0) * B + tl.arange(0, B))[:, None] * N + columns[None, :])
    tl.atomic_add(y_ptr + columns, tl.sum(tl.exp(x * 0.3), 0))
"""


@pytest.mark.parametrize(("kernel", "grid"), [("by_arrival", "1"), ("by_atomics", "16")])
def test_run_judges_additions_in_another_order_by_higher_precision(kernel, grid, tmp_path):
    syncopate = Path(__file__).resolve().parents[2] / "build" / "bin" / "syncopate"
    if gpus() < 2 or not syncopate.exists():
        pytest.skip("fewer than 2 GPUs here, or the command is not built")
    (tmp_path / "sums.py").write_text(SUMS)
    for words in (
        "plan make all_gather --ranks 2 --tensor X:256x64:fp32 -o plan.json",
        f"fuse sums.py:{kernel} --plan plan.json --bind x_ptr=X --args M=256,N=64,B=16 --tensor y_ptr=64:fp32 --grid {grid} "
        "--device cuda -o fused",
        "run fused --device cuda --check --calls 20",
    ):
        done = subprocess.run(
            [syncopate, *words.split()], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
    same, within = (
        "identical to the unfused kernel",
        "within rounding of the unfused kernel in higher precision",
    )
    assert done.stdout.count(same) + done.stdout.count(within) == 2, done.stdout
