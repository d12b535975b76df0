"""`syncopate fuse` and `run --check` where the kernel makes what is sent; the operators by their names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HUNG, warm_python
from fused_folder import rewrite

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("SYNCOPATE_BIN", ROOT / "build" / "bin" / "syncopate"))

if not COMMAND.exists():
    pytest.skip("the command is not built", allow_module_level=True)
pytest.importorskip("triton")
sys.path.insert(0, str(ROOT / "python"))

M, N, K, RANKS = 52, 40, 48, 3
BLOCKS = "BLOCK_M=16,BLOCK_N=16,BLOCK_K=16,GROUP_M=2"
SIZES = f"M={M},N={N},K={K}"
EXAMPLES = {
    "matmul_pointers": [
        f"--args={SIZES},stride_am={K},stride_ak=1,stride_bk={N},stride_bn=1,stride_cm={N},stride_cn=1,{BLOCKS}",
        f"--tensor=a_ptr={M}x{K}:fp32",
        f"--tensor=b_ptr={K}x{N}:fp32",
        "--bind=c_ptr=C",
    ],
    "matmul_persistent_device_tma": [
        f"--args={SIZES},{BLOCKS},NUM_SMS=3",
        f"--tensor=a_ptr={M}x{K}:fp32",
        f"--tensor=b_ptr={N}x{K}:fp32",
        "--bind=c_ptr=C",
    ],
    "matmul_persistent_host_tma": [
        f"--args={SIZES},{BLOCKS},NUM_SMS=3",
        f"--tensor=a_desc={M}x{K}:fp32@16x16",
        f"--tensor=b_desc={N}x{K}:fp32@16x16",
        f"--tensor=c_desc={M}x{N}:fp32@16x16",
        "--bind=c_desc=C",
    ],
}


def syncopate(*arguments, expect: int = 0) -> subprocess.CompletedProcess:
    result = subprocess.run(
        [str(COMMAND), *map(str, arguments)], capture_output=True, text=True, timeout=HUNG, cwd=ROOT,
        env={**os.environ, "SYNCOPATE_PYTHON": warm_python()},
    )  # fmt: skip
    assert result.returncode == expect, f"exit {result.returncode}: {result.stdout}{result.stderr}"
    return result


def plan(folder: Path, **options) -> Path:
    import syncopate as sy

    made = sy.plans.push_reduce(sy.plans.mesh_of(RANKS), sy.Tensor("C", (M, N), "fp32"), **options)
    file = folder / "plan.json"
    file.write_text(made.to_json())
    return file


@pytest.mark.parametrize("example", sorted(EXAMPLES))
def test_a_folder_whose_kernel_makes_what_is_reduced_runs_and_is_checked(example, tmp_path):
    folder = tmp_path / "fused"
    file = plan(tmp_path, split=2, all=example == "matmul_pointers")
    assert "no findings" in syncopate("plan", "check", file).stdout
    source = ROOT / "examples" / f"{example}.py"
    syncopate("fuse", f"{source}:matmul_kernel", "--plan", file, *EXAMPLES[example], "-o", folder)
    spec = json.loads((folder / "schedule.json").read_text())
    assert spec["schedule"]["tensors"]["C.staging"]["shape"][0] == RANKS - 1
    out = syncopate("run", folder, "--check", "--calls", 2).stdout
    assert out.count("identical to the unfused kernel") == RANKS


def test_a_folder_with_a_wrong_sum_is_found_out(tmp_path):
    folder = tmp_path / "fused"
    source = ROOT / "examples" / "matmul_pointers.py"
    file = plan(tmp_path)
    syncopate("fuse", f"{source}:matmul_kernel", "--plan", file, *EXAMPLES["matmul_pointers"], "-o", folder)
    spec = json.loads((folder / "schedule.json").read_text())
    for rank in spec["schedule"]["ranks"]:
        for transfer in rank["transfers"]:
            if "sum" in transfer:
                transfer["sum"]["own"] = -1  # as if the destination held nothing
    (folder / "schedule.json").write_text(json.dumps(spec))
    assert "DIFFERENT" in syncopate("run", folder, "--check", expect=1).stdout


def test_what_the_kernel_writes_must_be_listed_as_produced(tmp_path):
    file = plan(tmp_path)
    spec = json.loads(file.read_text())
    spec["initial"] = spec.pop("produced")
    file.write_text(json.dumps(spec))
    source = ROOT / "examples" / "matmul_pointers.py"
    result = syncopate(
        "fuse", f"{source}:matmul_kernel", "--plan", file, *EXAMPLES["matmul_pointers"], "-o", tmp_path / "f",
        expect=1,
    )  # fmt: skip
    assert 'list it in "produced"' in result.stderr
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("operator", "m"),
    [
        ("matmul_reduce_scatter", 50),
        ("matmul_all_reduce", 50),
        ("matmul_all_to_all", 48),
        ("all_to_all_matmul", 48),
    ],
)
def test_operators_run_by_name_and_are_checked(operator, m, tmp_path):
    spec = f"{operator}:M={m},N=32,K=40,dtype=bf16,split=2"
    out = syncopate("run", spec, "--ranks", 3, "--check", "--json", "--trace", tmp_path / "trace.json").stdout
    result = json.loads(out)
    assert result["ok"] and all(rank["identical"] for rank in result["ranks"])
    assert json.loads((tmp_path / "trace.json").read_text())


def test_operators_refuse_what_they_cannot_do():
    for spec, message in (
        ("matmul_all_to_all:M=50,N=32,K=40", "50 rows are no multiple of 3 ranks"),
        ("matmul_reduce_scatter:M=50,N=32,K=40,pull=1", 'matmul_reduce_scatter has no "pull"'),
        (
            "matmul_reduce_scatter:M=50,N=32,K=40,backend=warp",
            'backend is "warp", not a known backend',
        ),
        ("matmul_reduce_scatter:M=50,N=33,K=40", "N must be a multiple of 8"),
        ("matmul_reduce_scatter:M=50,N=32", "matmul_reduce_scatter needs K"),
        ("matmul_reduce:M=50", 'there is no operator "matmul_reduce"'),
    ):
        result = syncopate("run", spec, "--ranks", 3, expect=2)
        assert message in result.stderr, result.stderr


SUMS_BESIDE = """
import triton
import triton.language as tl


@triton.jit
def scaled(x_ptr, y_ptr, s_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + columns[None, :])
    tl.store(y_ptr + rows[:, None] * N + columns[None, :], x * 2)
    tl.store(s_ptr + rows, tl.sum(x, 1))
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_what_is_not_moved_is_judged_where_a_rank_runs_tiles(wrong, tmp_path):
    """Each rank makes half of y, so it leaves half of the sums alone, which the unfused kernel fills."""
    (tmp_path / "sums.py").write_text(SUMS_BESIDE)
    made, fused = tmp_path / "plan.json", tmp_path / "fused"
    syncopate("plan", "make", "all_to_all", "--ranks", 2, "--tensor", "T:16x8:fp32", "--axis", 0, "--produced",
              "--to-axis", 1, "-o", made)  # fmt: skip
    syncopate("fuse", f"{tmp_path}/sums.py:scaled", "--plan", made, "--bind", "y_ptr=T", "--args", "N=8,BLOCK=4",
              "--tensor", "x_ptr=16x8:fp32", "--tensor", "s_ptr=16:fp32", "--grid", "4", "-o", fused)  # fmt: skip
    if wrong:
        kernel = fused / "kernel.py"
        text = kernel.read_text()
        assert text.count("tl.sum(x, 1)") == 1
        rewrite(kernel, text.replace("tl.sum(x, 1)", "tl.sum(x, 1) + 1"))
    out = syncopate("run", fused, "--check", expect=1 if wrong else 0)
    assert out.stdout.count("DIFFERENT" if wrong else "identical to the unfused kernel") == 2, out.stdout
