"""The command from end to end, on host ranks: plan, fuse, run --check. Bad input: test_errors.py."""

import json
import os
import py_compile
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HUNG, warm_python

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("SYNCOPATE_BIN", ROOT / "build" / "bin" / "syncopate"))

if not COMMAND.exists():
    pytest.skip("the command is not built", allow_module_level=True)
pytest.importorskip("triton")

M, N, K, RANKS = 52, 40, 48, 3
BLOCKS = "BLOCK_M=16,BLOCK_N=16,BLOCK_K=16,GROUP_M=2"
SIZES = f"M={M},N={N},K={K}"

EXAMPLES = {
    "matmul_pointers": [
        f"--args={SIZES},stride_am={K},stride_ak=1,stride_bk={N},stride_bn=1,stride_cm={N},stride_cn=1,{BLOCKS}",
        f"--tensor=b_ptr={K}x{N}:fp32",
        f"--tensor=c_ptr={M}x{N}:fp32",
        "--bind=a_ptr=A",
    ],
    "matmul_persistent_device_tma": [
        f"--args={SIZES},{BLOCKS},NUM_SMS=3",
        f"--tensor=b_ptr={N}x{K}:fp32",
        f"--tensor=c_ptr={M}x{N}:fp32",
        "--bind=a_ptr=A",
    ],
    "matmul_persistent_host_tma": [
        f"--args={SIZES},{BLOCKS},NUM_SMS=3",
        f"--tensor=a_desc={M}x{K}:fp32@16x16",
        f"--tensor=b_desc={N}x{K}:fp32@16x16",
        f"--tensor=c_desc={M}x{N}:fp32@16x16",
        "--bind=a_desc=A",
    ],
}


def syncopate(*arguments, expect: int = 0, timeout: float = HUNG, **variables) -> subprocess.CompletedProcess:
    result = subprocess.run(
        [str(COMMAND), *map(str, arguments)], capture_output=True, text=True, timeout=timeout, cwd=ROOT,
        env={**os.environ, "SYNCOPATE_PYTHON": warm_python(), **variables},
    )  # fmt: skip
    assert result.returncode == expect, f"exit {result.returncode}: {result.stdout}{result.stderr}"
    return result


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.json"
    syncopate(
        "plan",
        "make",
        "all_gather",
        "--ranks",
        RANKS,
        "--tensor",
        f"A:{M}x{K}:fp32",
        "--split",
        2,
        "-o",
        path,
    )
    assert "ok" in syncopate("plan", "check", path).stdout.lower()
    return path


def fuse(plan, folder, example="matmul_pointers", *more, expect=0, source=None):
    file = source or ROOT / "examples" / f"{example}.py"
    return syncopate(
        "fuse",
        f"{file}:matmul_kernel",
        "--plan",
        plan,
        *EXAMPLES[example],
        *more,
        "-o",
        folder,
        expect=expect,
    )


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_fuse_writes_runs_and_gives_the_bits_of_the_unfused_kernel(example, plan, tmp_path):
    fuse(plan, tmp_path / "out", example)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"kernel.py", "original.py", "schedule.json"}
    result = syncopate(
        "run", tmp_path / "out", "--device", "host", "--ranks", RANKS, "--check", "--calls", 2, "--json"
    )
    answer = json.loads(result.stdout)
    assert answer["ok"] and [r["identical"] for r in answer["ranks"]] == [True] * RANKS


def test_an_operator_runs_by_its_name():
    spec = "all_gather_matmul:M=50,N=48,K=64,dtype=bf16"
    answer = json.loads(syncopate("run", spec, "--ranks", 3, "--check", "--json").stdout)
    assert answer["ok"] and len(answer["ranks"]) == 3


def test_a_mixture_of_experts_runs_by_its_name_and_what_it_cannot_do_is_refused():
    spec = "moe:T=5,E=4,topk=2,H=24,F=20,dtype=fp32"
    answer = json.loads(syncopate("run", spec, "--ranks", 2, "--check", "--calls", 2, "--json").stdout)
    assert answer["ok"] and all(0 < rank["error"] < 1e-5 for rank in answer["ranks"])
    answer = json.loads(syncopate("run", f"{spec},parallel=tensor", "--ranks", 2, "--check", "--json").stdout)
    assert answer["ok"] and all(0 < rank["error"] < 1e-5 for rank in answer["ranks"])
    of_fp8 = "moe:T=5,E=4,topk=2,H=144,F=128,dtype=fp8e4m3"
    for more in ("scales=row", "scales=block", "scales=row,parallel=tensor"):
        answer = syncopate("run", f"{of_fp8},{more}", "--ranks", 2, "--check", "--json")
        assert all(0 < rank["error"] < 0.04 for rank in json.loads(answer.stdout)["ranks"])
    told = syncopate("run", of_fp8, "--ranks", 2, expect=2).stderr
    assert "products of fp8e4m3 take scales=row or scales=block" in told
    told = syncopate("run", f"{spec},bound=1", "--ranks", 2, expect=1).stderr
    assert "rows more than 1 come to a rank: give bound=" in told
    told = syncopate("run", f"{spec},part=dispatch", "--ranks", 2, expect=2).stderr
    assert "it is run as a whole: leave out part=" in told
    told = syncopate("tune", f"{spec},part=combine", "--device", "host", "--ranks", 2, expect=2).stderr
    assert "its parts follow from the whole: leave out part=" in told


def run_into(stdout, *words: str) -> subprocess.Popen:
    spec = "all_gather_matmul:M=50,N=48,K=64,dtype=bf16"
    return subprocess.Popen(
        [str(COMMAND), "run", spec, "--ranks", "2", *words], stdout=stdout, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "SYNCOPATE_PYTHON": warm_python()},
    )  # fmt: skip


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_an_answer_that_does_not_fit_on_the_disk_is_an_error(words):
    with open("/dev/full", "w") as full:
        process = run_into(full, *words)
    said = process.communicate(timeout=HUNG)[1]
    assert said == "error: standard output could not be written: No space left on device\n"
    assert process.returncode == 1


def test_an_answer_that_nobody_reads_ends_the_command_quietly():
    process = run_into(subprocess.PIPE)
    process.stdout.close()
    said = process.stderr.read()
    assert (process.wait(HUNG), said) == (128 + signal.SIGPIPE, "")


def test_a_closed_standard_output_is_an_error_before_the_run():
    done = subprocess.run(
        ["sh", "-c", '"$0" run "$1" >&-', COMMAND, "no_operator"],
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    assert (done.returncode, done.stderr) == (1, "error: standard output is closed\n")


def test_a_chain_of_two_products_runs_on_one_rank_and_gives_the_bits_of_stream_order():
    spec = "mlp_chain:M=64,H=64,F=40,dtype=fp32"
    outcome = syncopate("run", spec, "--check", "--calls", 2, "--json")
    (rank,) = json.loads(outcome.stdout)["ranks"]
    assert (rank["calls"], rank["identical"]) == (2, True)
    assert "a chain is one GPU's" in syncopate("run", spec, "--ranks", 2, expect=2).stderr
    assert "mlp_chain needs H" in syncopate("run", "mlp_chain:M=64,F=40", expect=2).stderr
    assert "a chain is not tuned" in syncopate("tune", spec, expect=2).stderr


@pytest.mark.parametrize("scales", ["row", "block"])
def test_a_product_of_fp8_is_tuned_beside_the_pair_where_there_is_one(scales, tmp_path):
    spec = f"all_gather_matmul:M=64,N=64,K=128,dtype=fp8e4m3,scales={scales}"
    place = {"SYNCOPATE_CACHE_DIR": str(tmp_path)}
    arguments = ("tune", spec, "--ranks", 2, "--budget", 3, "--json")
    found = json.loads(syncopate(*arguments, **place).stdout)
    tried = {trial["name"]: trial for trial in found["trials"]}
    assert tried["default"]["us"] > 0
    refused = tried["unfused"]["refused"]
    assert ("no scales of blocks" in refused) if scales == "block" else not refused, tried["unfused"]
    listed = syncopate("tune", "--list", **place).stdout
    assert f"out=bf16,scales={scales}" in listed


def test_a_rank_that_dies_does_not_leave_the_others_waiting():
    code = """
import os
from syncopate import ranks
def work(place):
    if place.rank == 1:
        os._exit(7)
    import time
    time.sleep(1800)
try:
    ranks.run(3, work, grace=1.0)
except ranks.RankError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    result = subprocess.run(
        [warm_python(), "-c", code], capture_output=True, text=True, timeout=HUNG, env=environment
    )
    assert "rank 1: the process ended without a result" in result.stdout, result.stdout + result.stderr


def test_ranks_that_print_to_a_full_disk_end_with_their_results():
    code = """
import sys
from syncopate import ranks
sys.stdout.reconfigure(write_through=False)  # as where PYTHONUNBUFFERED is not set
def work(place):
    print("lost")
    return place.rank
print(ranks.run(3, work), file=sys.stderr)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [warm_python(), "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=HUNG, env=environment
        )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "[0, 1, 2]\n")


def test_an_interrupt_of_all_processes_is_the_parents_to_handle():
    code = """
import os, signal
from syncopate import ranks
def work(place):
    os.kill(os.getpid(), signal.SIGINT)  # a terminal's Ctrl-C goes to the ranks, too
    return "goes on"
print(ranks.run(2, work))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    result = subprocess.run(
        [warm_python(), "-c", code], capture_output=True, text=True, timeout=HUNG, env=environment
    )
    assert result.stdout == "['goes on', 'goes on']\n", result.stdout + result.stderr


HLO = f"""HloModule step, replica_count=3
ENTRY main {{
  p0 = f32[{M // 3},{K}]{{1,0}} parameter(0)
  p1 = f32[{K},{N}]{{1,0}} parameter(1)
  A = f32[{M // 3 * 3},{K}]{{1,0}} all-gather(p0), replica_groups={{{{0,1,2}}}}, dimensions={{0}}
  ROOT dot = f32[{M // 3 * 3},{N}]{{1,0}} dot(A, p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""


@pytest.mark.parametrize("way", [["template"], ["synth", "--topology", "switch:3"]])
def test_a_collective_of_an_hlo_file_is_imported_lowered_fused_and_run(way, tmp_path):
    rows = M // 3 * 3
    (tmp_path / "step.hlo").write_text(HLO)
    plan = tmp_path / "plan.json"
    tensor = f"A:{rows}x{K}:fp32"
    file = tmp_path / "step.hlo"
    syncopate("plan", "import", file, "--pick", 0, "--tensor", tensor, "--lower", *way, "-o", plan)
    arguments = [
        word.replace(f"M={M}", f"M={rows}").replace(f"={M}x", f"={rows}x")
        for word in EXAMPLES["matmul_pointers"]
    ]
    kernel = f"{ROOT / 'examples' / 'matmul_pointers.py'}:matmul_kernel"
    syncopate("fuse", kernel, "--plan", plan, *arguments, "-o", tmp_path / "out")
    answer = json.loads(syncopate("run", tmp_path / "out", "--ranks", 3, "--check", "--json").stdout)
    assert answer["ok"] and all(rank["identical"] for rank in answer["ranks"])


def test_options_of_lowering_that_an_import_cannot_use_are_refused(tmp_path):
    (tmp_path / "step.hlo").write_text(HLO)

    def refused(*options):
        return syncopate(
            "plan", "import", tmp_path / "step.hlo", *options, "-o", tmp_path / "o", expect=2
        ).stderr

    assert "belong to --lower synth" in refused("--topology", "ring:3")
    assert "synth needs a topology" in refused("--lower", "synth")
    assert "has been checked" in refused("--lower", "template", "--no-check")
    assert not (tmp_path / "o").exists()


PACKAGE = {
    "__init__.py": "",
    "helpers.py": "import triton\nimport triton.language as tl\n\nfrom .sub.more import twice\n\n\n@triton.jit\ndef doubled(x):\n    return twice(x)\n",
    "sub/__init__.py": "BY = 2\n",
    "sub/more.py": "import triton\nimport triton.language as tl\n\nfrom ..sub import BY  # noqa: F401\n\n\n@triton.jit\ndef twice(x):\n    return x + x\n",
    "k.py": """import triton
import triton.language as tl

from .helpers import doubled


@triton.jit
def k(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.arange(0, BN)
    m = (r < M)[:, None] & (c < N)[None, :]
    at = r[:, None] * N + c[None, :]
    tl.store(y_ptr + at, doubled(tl.load(x_ptr + at, mask=m)), mask=m)
""",
}


def fuse_of_a_package(tmp_path, line: str, expect: int = 0) -> subprocess.CompletedProcess:
    """Fuses a kernel of a package that imports its helper by `line`."""
    for name, text in PACKAGE.items():
        place = tmp_path / "project" / "pkg" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.replace("from .helpers import doubled", line))
    syncopate(
        "plan", "make", "all_gather", "--ranks", "3", "--tensor", "A:30x8:fp32", "-o", tmp_path / "plan.json"
    )
    return syncopate(
        "fuse", f"{tmp_path}/project/pkg/k.py:k", "--plan", tmp_path / "plan.json", "--bind", "x_ptr=A",
        "--args", "M=30,N=8,BM=4,BN=8", "--tensor", "y_ptr=30x8:fp32", "-o", tmp_path / "op", expect=expect,
    )  # fmt: skip


def test_what_the_kernel_imports_from_its_folder_is_taken_along(tmp_path):
    fuse_of_a_package(tmp_path, "from .helpers import doubled")
    written = {str(p.relative_to(tmp_path / "op")) for p in (tmp_path / "op").rglob("*.py")}
    assert written == {"kernel.py", "original.py", "helpers.py", "sub/__init__.py", "sub/more.py"}
    run = syncopate("run", tmp_path / "op", "--device", "host", "--ranks", "3", "--check")
    assert run.stdout.count("identical to the unfused kernel") == 3
    imported = subprocess.run(
        [warm_python(), "-c", "import op.kernel; print(op.kernel.doubled.__name__)"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )  # fmt: skip
    assert imported.stdout.strip() == "doubled", imported.stderr


def test_what_lies_beside_the_files_that_fuse_wrote_is_not_run(tmp_path):
    fuse_of_a_package(tmp_path, "from .helpers import doubled")
    op, ran = tmp_path / "op", tmp_path / "ran"
    text = f"open({str(ran)!r}, 'a').write(__name__)\ndoubled = None\n"
    for package in ("helpers", "sub/more", "kernel", "torch", "triton"):
        (op / package).mkdir()
        (op / package / "__init__.py").write_text(text)
    (op / "__init__.py").write_text(text)
    (op / "helpers.abi3.so").write_bytes(b"no library")
    compiled = op / "__pycache__" / f"helpers.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(
        op / "__init__.py", compiled, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    run = syncopate("run", op, "--device", "host", "--ranks", "3", "--check")
    assert run.stdout.count("identical to the unfused kernel") == 3
    assert not ran.exists(), ran.read_text()


def test_an_import_from_above_the_folder_is_refused_with_what_to_write(tmp_path):
    said = fuse_of_a_package(tmp_path, "from ..pkg.helpers import doubled", expect=1).stderr
    assert "k.py:4:1: `from ..pkg.helpers import doubled` leads above the folder of the kernel" in said
    assert "as in `from project.pkg.helpers import …`" in said
    assert not (tmp_path / "op").exists()


def test_an_import_of_nothing_is_refused(tmp_path):
    said = fuse_of_a_package(tmp_path, "from .absent import doubled", expect=1).stderr
    assert "k.py:4:1: " in said
    assert not (tmp_path / "op").exists()


def test_an_item_of_a_tuple_can_be_bound(tmp_path):
    (tmp_path / "k.py").write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        "def k(x_ptrs, y_ptr, N, WEIGHTS: tl.constexpr, B: tl.constexpr):\n"
        "    at = tl.program_id(0) * B + tl.arange(0, B)\n"
        "    total = tl.zeros((B,), tl.float32)\n"
        "    for i in tl.static_range(len(WEIGHTS)):\n"
        "        total += WEIGHTS[i] * tl.load(x_ptrs[i] + at, mask=at < N, other=0.0)\n"
        "    tl.store(y_ptr + at, total, mask=at < N)\n"
    )
    syncopate(
        "plan", "make", "all_gather", "--ranks", "3", "--tensor", "A:30:fp32", "-o", tmp_path / "plan.json"
    )
    syncopate(
        "fuse", f"{tmp_path}/k.py:k", "--plan", tmp_path / "plan.json", "--bind", "x_ptrs[1]=A",
        "--args", "N=30,B=8,WEIGHTS[0]=2.0,WEIGHTS[1]=3.0", "--tensor", "x_ptrs[0]=30:fp32", "--tensor", "y_ptr=30:fp32",
        "-o", tmp_path / "op",
    )  # fmt: skip
    run = syncopate("run", tmp_path / "op", "--device", "host", "--ranks", "3", "--check")
    assert run.stdout.count("identical to the unfused kernel") == 3
