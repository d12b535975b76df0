"""`syncopate compile` and `syncopate bundle`, the programs in C and C++ that run what they write, and memory that is given back."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BINARY, HUNG, free_port

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GATHER = "all_gather_matmul:N=96,K=64,dtype=fp32"
SCATTER = "matmul_reduce_scatter:N=64,K=96,dtype=fp32"


@pytest.mark.parametrize(
    "spec",
    [GATHER, SCATTER, "matmul_all_reduce:N=40,K=24,dtype=bf16", "all_to_all_matmul:N=48,K=32,dtype=fp16",
     "matmul_all_to_all:N=48,K=32,dtype=fp32", "feed_forward:K=32,F=48,N=64"],
)  # fmt: skip
def test_each_operator_runs_from_a_bundle_and_is_right(spec, bundle_of, syncopate):
    for ranks, words in ((2, []), (4, ["--w-transposed"])):
        file = bundle_of(spec, *words, ranks=ranks)
        assert syncopate("bundle", "check", file).code == 0
        outcome = syncopate("bundle", "run", file, "--check")
        assert outcome.code == 0, outcome.err
        assert outcome.out.count("right") == 3, outcome.out  # of each bucket, and of rows that none has


def test_an_activation_is_a_part_of_the_bundle(bundle_of, syncopate):
    file = bundle_of("feed_forward:K=32,F=48,N=64,dtype=fp32", "--activation", "gelu")
    assert syncopate("bundle", "run", file, "--check").code == 0
    assert json.loads(syncopate("bundle", "show", file, "--json").out)["operator"]["activation"] == "gelu"


MIXTURE = "moe:E=8,topk=2,H=24,F=20"
FP8 = "dtype=fp8e4m3"


def test_what_is_no_whole_bundle_of_this_version_is_refused_with_its_section(bundle_of, syncopate, tmp_path):
    whole = bundle_of(GATHER).read_bytes()
    cases = {
        "cut": (whole[:-20], "section manifest.json is cut off"),
        "short": (whole[:20], "the head is cut off after 20 bytes"),
        "empty": (b"", "the head is cut off after 0 bytes"),
        "changed": (
            whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:],
            "section manifest.json has another digest",
        ),
        "newer": (whole[:8] + b"\x09" + whole[9:], "this bundle is of version 9"),
        "foreign": ((ROOT / "README.md").read_bytes(), "this is no bundle"),
        "longer": (whole + b"\0" * 16, "the end has bytes that belong to no section"),
    }
    for name, (content, message) in cases.items():
        file = tmp_path / name
        file.write_bytes(content)
        for verb in ("show", "check", "run"):
            outcome = syncopate("bundle", verb, file)
            assert outcome.code == 1, (name, verb)
            assert outcome.err.startswith(f"error: {file}: ") and message in outcome.err, outcome.err
    assert syncopate("bundle", "show", tmp_path / "absent").code == 1


def test_what_cannot_be_compiled_is_said_and_writes_nothing(syncopate, tmp_path):
    file = tmp_path / "op.sybundle"
    for words, code, message in (
        (["matmul:N=1,K=1"], 2, "matmul"),
        ([GATHER, "--rows", "0"], 2, "--rows"),
        ([GATHER], 2, "M"),
        ([GATHER, "--rows", "16", "--arch", "tpu"], 2, "expected host, or a GPU's such as sm_90"),
        (
            ["attention:S=512,D=64,H=4", "--arch", "host"],
            2,
            "bundles do not hold this operator; bundles hold all_gather_matmul",
        ),
        ([MIXTURE], 2, "give --rows 16,64,1024, or T in the SPEC"),
        ([f"{MIXTURE},T=4,parallel=tensor,bound=9"], 2, "to tensor parallel experts all rows come"),
        (["moe:E=8,topk=2,H=24,F=21,T=4,parallel=tensor"], 2, "are no multiple of 2 ranks"),
        ([f"{MIXTURE},T=4,{FP8}"], 2, "take scales=row or scales=block"),
        ([f"{MIXTURE},T=4,{FP8},scales=block"], 2, "F=20 is no multiple of 128"),
        ([f"{MIXTURE},T=4,{FP8},scales=row,part=dispatch"], 2, "part=dispatch is of bf16"),
        ([f"{MIXTURE},T=4,part=dispatch"], 2, "calls of part=dispatch are made from Python alone"),
        (["moe:E=7,topk=2,H=24,F=20", "--rows", "4"], 2, "E=7 experts are no multiple of 2 ranks"),
        ([MIXTURE, "--rows", "4", "--w-transposed"], 2, "--w-transposed: not of moe"),
        ([MIXTURE, "--rows", "4", "--activation", "gelu"], 2, "--activation gelu: not of moe"),
        (
            [GATHER, "--rows", "16", "--arch", "host", "--int32-ids"],
            2,
            "--int32-ids: not of all_gather_matmul",
        ),
        ([GATHER, "--rows", "16", "--arch", "host", "--drop"], 2, "--drop: not of all_gather_matmul"),
        ([GATHER, "--rows", "16", "--arch", "host", "--strategy", "{"], 1, "--strategy"),
    ):
        outcome = syncopate("compile", *words, "--ranks", "2", "-o", file)
        assert outcome.code == code and message in outcome.err, (words, outcome.code, outcome.err)
        assert not file.exists()


def test_rows_beyond_the_last_bucket_are_refused(bundle_of, syncopate):
    outcome = syncopate("bundle", "run", bundle_of(GATHER), "--rows", "65")
    assert outcome.code == 2 and "65 rows are not in this bundle, which has 1 to 64" in outcome.err


def test_a_bundle_for_a_gpu_is_compiled_without_one(syncopate, tmp_path):
    file = tmp_path / "op.sybundle"
    made = syncopate("compile", "all_gather_matmul:N=256,K=128", "--rows", "64", "--ranks", "2", "-o", file)
    assert made.code == 0, made.err
    checked = syncopate("bundle", "check", file)
    assert checked.code == 0, checked.err
    manifest = json.loads(syncopate("bundle", "show", file, "--json").out)
    assert manifest["arch"] == "sm_90" and manifest["kernels"]
    for kernel in manifest["kernels"]:
        names = [parameter["name"] for parameter in kernel["parameters"]]
        assert {"a_desc", "b_desc", "c_desc", "M", "sy_schedule", "sy_control"} <= set(names)
        assert not {"M", "sy_schedule"} & set(kernel.get("multiples_of_16", [])) - {"sy_schedule"}


def sums(outcome):
    assert outcome.code == 0, outcome.err
    return sorted(outcome.out.splitlines())


def fused(syncopate, folder, ranks=2):
    """A user's program: examples/matmul_pointers.py on a gathered A."""
    plan = folder / "plan.json"
    made = syncopate("plan", "make", "all_gather", "--ranks", ranks, "--tensor", "A:64x32:fp32", "-o", plan)
    assert made.code == 0, made.err
    sizes = "M=64,N=48,K=32,stride_am=32,stride_ak=1,stride_bk=48,stride_bn=1,stride_cm=48,stride_cn=1"
    outcome = syncopate(
        "fuse", f"{ROOT / 'examples' / 'matmul_pointers.py'}:matmul_kernel", "--plan", plan, "--bind", "a_ptr=A",
        "--args", f"{sizes},BLOCK_M=16,BLOCK_N=16,BLOCK_K=16,GROUP_M=2", "--tensor", "b_ptr=32x48:fp32",
        "--tensor", "c_ptr=64x48:fp32", "-o", folder / "user",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    file = folder / "user.sybundle"
    made = syncopate("compile", folder / "user", "--arch", "host", "-o", file)
    assert made.code == 0, made.err
    return file


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_c_program_runs_bundles_as_processes_and_as_threads_alike(
    ranks, bundle_of, syncopate, run, tmp_path
):
    program = BINARY.parent / "example_c_run_bundle"
    for file, rows in ((bundle_of(GATHER, ranks=ranks), 50), (bundle_of(SCATTER, ranks=ranks), 50),
                       (fused(syncopate, tmp_path, ranks), 0)):  # fmt: skip
        processes, threads = (sums(run(program, file, rows, how)) for how in ("processes", "threads"))
        assert processes == threads and len(threads) == ranks


def test_a_users_program_in_a_bundle_is_that_of_its_folder(syncopate, tmp_path):
    outcome = syncopate("bundle", "run", fused(syncopate, tmp_path), "--check")
    assert outcome.code == 0 and outcome.out.count("identical to the unfused kernel") == 2, (
        outcome.out + outcome.err
    )
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob(f"syncopate-bundle-{os.getpid()}*"))


def test_a_cpp_program_runs_two_operators_and_sleeps_with_no_python_in_it(bundle_of, run):
    program = BINARY.parent / "example_run_bundle"
    up, down = bundle_of(GATHER), bundle_of(SCATTER)
    outcome = run(program, up, down, 50)  # it looks itself whether some libpython has been loaded
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("the largest element is") == 2
    needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert "python" not in needed and "torch" not in needed


def test_the_c_header_is_plain_c_and_its_tensor_is_dlpacks(tmp_path):
    import torch

    dlpack = Path(torch.__file__).parent / "include" / "ATen" / "dlpack.h"
    asserts = "".join(
        f"_Static_assert(offsetof(DLTensor, {theirs}) == offsetof(sy_tensor, {ours}), \"{ours}\");\n"
        for theirs, ours in (("data", "data"), ("device", "device"), ("ndim", "ndim"), ("dtype", "dtype"), ("shape", "shape"),
                             ("strides", "strides"), ("byte_offset", "byte_offset"))
    )  # fmt: skip
    both = '#include "syncopate/c.h"\n' + (f'#include "{dlpack}"\n{asserts}' if dlpack.exists() else "")
    last = f'#include "{dlpack}"\n#include "syncopate/c.h"\nsy_tensor* same(DLTensor* given) {{ return given; }}\n'
    for name, text in (("both", both), ("last", last if dlpack.exists() else both)):
        source = tmp_path / f"{name}.c"
        source.write_text(text + "int main(void) { return sy_version() != SY_VERSION; }\n")
        words = [
            "cc",
            "-std=c11",
            "-pedantic",
            "-Wall",
            "-Werror",
            f"-I{ROOT / 'include'}",
            "-fsyntax-only",
            source,
        ]
        outcome = subprocess.run(words, capture_output=True, text=True)
        assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_group_gives_its_memory_back_and_goes_on_at_the_same_addresses(ranks, run):
    outcome = run(sys.executable, HERE / "host_release.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err


WHOLE = ROOT / "build" / "libsyncopate.so"
TORCH_OPS = ROOT / "python" / "syncopate" / "libsyncopate_torch.so"


def serve(bundle_of, folder, *words):
    """Two ranks of torch_served.py; what they print."""
    files = [
        bundle_of("all_gather_matmul:N=24,K=32,dtype=fp32"),
        bundle_of("matmul_reduce_scatter:N=32,K=24,dtype=fp32"),
    ]
    usual = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, HERE / "torch_served.py", WHOLE, TORCH_OPS, *files, *words],
            env={**os.environ, **usual, "RANK": str(rank), "PYTHONPATH": "", "TMPDIR": str(folder)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        return [(rank.communicate(timeout=HUNG)[0], rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.skipif(not WHOLE.exists(), reason="the target `tests` is not built")
@pytest.mark.parametrize("spec", ["all_gather_matmul:N=256,K=256", "matmul_all_reduce:N=256,K=128"])
def test_a_bundle_takes_all_rows_of_its_buckets(spec, syncopate, tmp_path):
    file = tmp_path / "op.sybundle"
    words = ["--rows", "16,64", "--ranks", "4", "--arch", "sm_90", "--w-transposed"]
    outcome = syncopate("compile", spec, *words, "-o", file)
    assert outcome.code == 0, outcome.err
    library, bundle = ctypes.CDLL(str(WHOLE)), ctypes.c_void_p()
    library.sy_last_error.restype = ctypes.c_char_p
    assert library.sy_bundle_open(os.fsencode(file), ctypes.byref(bundle)) == 0, library.sy_last_error()
    try:
        for rows in range(1, 65):
            need = (ctypes.c_uint64 * 4)(32)  # sy_workspace: its size, and three numbers of bytes
            assert library.sy_workspace_size(bundle, ctypes.c_int64(rows), need) == 0, library.sy_last_error()
    finally:
        library.sy_bundle_close(bundle)


def test_torchs_ops_are_made_by_bundles_in_a_process_without_syncopates_python(bundle_of, tmp_path):
    for printed, code in serve(bundle_of, tmp_path):
        assert code == 0 and "ok: rank" in printed, printed


@pytest.mark.sweep  # it compiles C++
@pytest.mark.skipif(not WHOLE.exists(), reason="the target `tests` is not built")
def test_a_program_compiled_ahead_by_aotinductor_runs_without_syncopates_python(bundle_of, run, tmp_path):
    package = tmp_path / "layer.pt2"
    outcome = run(sys.executable, HERE / "torch_package.py", package)
    assert outcome.code == 0, outcome.out + outcome.err
    for printed, code in serve(bundle_of, tmp_path, package):
        assert code == 0 and "ok: rank" in printed, printed


@pytest.mark.skipif(not WHOLE.exists(), reason="the target `tests` is not built")
def test_a_tile_kernel_that_calls_the_c_api_is_refused_by_name(syncopate, run, tmp_path):
    user = fused(syncopate, tmp_path, 1)  # ranks that meet by the environment keep a folder of theirs
    outcome = run(sys.executable, HERE / "c_inside.py", WHOLE, user, TMPDIR=str(tmp_path))
    assert outcome.code == 0, outcome.out + outcome.err
