"""`pip install .` in a fresh clone and an empty environment, by old and new pip; what is in the wheel; and what then works."""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import EXAMPLES, HUNG, ROOT
from environments import Environment, run

pytestmark = [pytest.mark.sweep, pytest.mark.xdist_group("pip")]

SIZES = (
    "M=32,N=16,K=16,stride_am=16,stride_ak=1,stride_bk=16,stride_bn=1,stride_cm=16,stride_cn=1"
    ",BLOCK_M=16,BLOCK_N=16,BLOCK_K=16,GROUP_M=2"
)


OLD_PIP = "22.3.1"  # the one that Python 3.11.0 came with


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """What is committed, as others get it. Skips where pip reaches no network."""
    folder = tmp_path_factory.mktemp("fresh")
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder / "asked", "nanobind>=2.6"],
        capture_output=True, text=True, timeout=HUNG,
    )  # fmt: skip
    if asked.returncode != 0 and "connection" in asked.stderr.lower():
        pytest.skip(f"no network: {asked.stderr.splitlines()[-1]}")
    run("git", "clone", "-q", ROOT, folder / "clone", cwd=folder)
    return folder / "clone"


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory) -> dict[str, str]:
    """Both pips build in it: the second one compiles what depends on its own environment."""
    return {"SKBUILD_BUILD_DIR": str(tmp_path_factory.mktemp("build"))}


@pytest.fixture(scope="module")
def wheel(clone, one_folder, tmp_path_factory) -> Path:
    """By an old pip."""
    folder = tmp_path_factory.mktemp("wheel")
    old = Environment.make(folder / "venv", OLD_PIP)
    old.python("-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, clone, **one_folder)
    (made,) = folder.glob("syncopate-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(clone, wheel, one_folder, tmp_path_factory) -> Environment:
    """By today's pip, from the same clone."""
    made = Environment.make(tmp_path_factory.mktemp("installed") / "venv")
    made.python("-m", "pip", "install", "-q", ".", cwd=clone, **one_folder)
    return made


def test_the_clone_had_no_sources_of_others_and_an_old_pip_made_a_wheel(clone, wheel):
    assert wheel.name.startswith("syncopate-0.1.0-cp3")
    assert (clone / ".deps" / ".stamp").read_text().endswith("index-only")
    assert run("git", "status", "--porcelain", cwd=clone) == ""  # what was fetched is not seen


def test_the_wheel_runs_on_older_distributions_and_needs_no_library_but_those_of_the_c_compiler(
    wheel, tmp_path
):
    said = run(sys.executable, "-m", "auditwheel", "show", wheel, cwd=tmp_path)
    tags = re.findall(r'"?manylinux_2_(\d+)_x86_64"?', said)
    assert tags and int(tags[0]) <= 34, said
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
    programs = [*tmp_path.rglob("*.so"), *tmp_path.rglob("scripts/syncopate")]
    assert {re.sub(r"\..*", "", program.name) for program in programs} == {
        "_syncopate", "libsyncopate_torch", "syncopate",
    }  # fmt: skip
    for program in programs:
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", program, cwd=tmp_path)))
        assert needed <= {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}, program


def test_the_wheel_holds_all_that_it_needs(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        extension = file.read(
            next(name for name in names if re.search(r"syncopate/_syncopate\.cp\w+.*\.so$", name))
        )
    assert b"SQLite format 3" in extension
    has_nvcc = "SYNCOPATE_NVCC:FILEPATH=/" in (ROOT / "build" / "CMakeCache.txt").read_text()
    assert (b"sy_reduce" in extension and b"sm_90" in extension) == has_nvcc
    assert {
        "syncopate/py.typed", "syncopate/_syncopate/__init__.pyi", "syncopate/_syncopate/tune.pyi",
        "syncopate/include/syncopate/emit/schedule_device.cuh",
    } <= set(names)  # fmt: skip
    licences = {name.rsplit("/", 1)[1] for name in names if "/licenses/" in name}
    assert {"LICENSE", "pugixml", "tree-sitter", "tree-sitter-python", "nlohmann-json", "CLI11"} <= licences
    strangers = [n for n in names if not n.startswith(("syncopate/", "syncopate-0.1.0."))]
    assert strangers == []
    assert [name for name in names if name.endswith((".a", ".cpp", ".o"))] == []


def test_the_sdist_has_the_sources_of_others_so_that_nothing_is_fetched_to_build_it(clone, wheel, tmp_path):
    code = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    run(sys.executable, "-c", code, tmp_path, cwd=clone)
    (sdist,) = tmp_path.glob("syncopate-0.1.0.tar.gz")
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path)
    unpacked = tmp_path / "syncopate-0.1.0"
    assert (unpacked / ".deps" / "sqlite" / "sqlite3.c").exists() and (unpacked / "LICENSE").exists()
    fetch = [unpacked / "scripts" / "fetch-deps", "--index-only", "--python", "/bin/false"]
    assert run(*fetch, cwd=tmp_path) == ""
    assert not list(unpacked.rglob("*.so")) and not list(unpacked.rglob("*.o"))


def test_what_pip_installed_is_what_python_finds(installed, tmp_path):
    said = installed.python(
        "-c", "import syncopate as sy; print(sy.__file__, sy.__version__)", cwd=tmp_path
    ).split()
    assert said[0].startswith(str(installed.folder)) and said[1] == "0.1.0"
    assert run(installed.bin / "syncopate", "--version", cwd=tmp_path) == "syncopate 0.1.0\n"
    assert "Version: 0.1.0\n" in installed.python("-m", "pip", "show", "syncopate")


def test_every_subcommand_starts_from_anywhere(installed, tmp_path):
    syncopate = installed.bin / "syncopate"
    listed = run(syncopate, "--help", cwd=tmp_path)
    commands = re.findall(r"^  ([a-z]\w*)  ", listed[listed.lower().index("subcommands:") :], re.M)
    assert {"bench", "fuse", "kernel", "plan", "run", "simulate", "sync", "tune"} - {"simulate"} <= set(
        commands
    )
    for command in commands:
        assert command in run(syncopate, command, "--help", cwd=tmp_path)


def test_a_kernel_is_fused_and_run_by_the_installed_command(installed, tmp_path):
    syncopate = installed.bin / "syncopate"
    make = ["plan", "make", "all_gather", "--ranks=2", "--tensor=A:32x16:fp32", "-o", "plan.json"]
    run(syncopate, *make, cwd=tmp_path)
    assert run(syncopate, "plan", "check", "plan.json", cwd=tmp_path).startswith("ok: plan.json: 2 ranks")
    tensors = ["--tensor=b_ptr=16x16:fp32", "--tensor=c_ptr=32x16:fp32"]
    kernel = f"{EXAMPLES / 'matmul_pointers.py'}:matmul_kernel"
    words = ["fuse", kernel, "--plan=plan.json", "--bind=a_ptr=A", "--args", SIZES, *tensors, "-o", "fused"]
    run(syncopate, *words, cwd=tmp_path)
    ran = run(syncopate, "run", "fused", "--check", cwd=tmp_path)
    assert ran.count("identical to the unfused kernel") == 2


def test_operators_run_tune_explains_and_bench_lists_from_anywhere(installed, tmp_path):
    syncopate = installed.bin / "syncopate"
    own = {"SYNCOPATE_CACHE_DIR": str(tmp_path / "cache")}
    spec = "all_gather_matmul:M=32,K=16,N=16,dtype=fp32"
    run(syncopate, "run", spec, "--ranks=2", "--device=host", "--check", cwd=tmp_path, **own)
    assert "exposed" in run(
        syncopate, "tune", spec.replace("32,", "4096,"), "--ranks=4", "--explain", cwd=tmp_path, **own
    )
    assert run(syncopate, "tune", "--list", cwd=tmp_path, **own).startswith("nothing is stored")


def test_the_command_finds_its_package_however_pip_put_it_there(wheel, installed, tmp_path):
    """With --target and --prefix no interpreter lies beside the command; through a link neither."""
    pip = ["-m", "pip", "install", "-q", "--no-deps", wheel]
    installed.python(*pip, "--target", tmp_path / "target", "--no-user")
    installed.python(*pip, "--prefix", tmp_path / "prefix", "--ignore-installed")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "syncopate").symlink_to(installed.bin / "syncopate")
    path = {"PATH": f"{installed.bin}:/usr/bin:/bin"}
    for bin in (tmp_path / "target" / "bin", tmp_path / "prefix" / "bin", tmp_path / "links"):
        spec = ["matmul_all_reduce:M=16,K=16,N=16,dtype=fp32", "--ranks=2", "--device=host"]
        run(bin / "syncopate", "run", *spec, cwd=tmp_path, **path)


def test_the_extra_plot_brings_matplotlib(wheel):
    with zipfile.ZipFile(wheel) as file:
        metadata = file.read(next(name for name in file.namelist() if name.endswith("METADATA"))).decode()
    assert "Provides-Extra: plot" in metadata
    assert re.search(r"^Requires-Dist: matplotlib; extra == ['\"]plot['\"]$", metadata, re.M)


@pytest.mark.parametrize("pip", [OLD_PIP, "23.0.1", ""])
def test_uninstalling_leaves_no_file(wheel, tmp_path, pip):
    made = Environment.make(tmp_path / "venv", pip)
    before = made.files()
    made.python("-m", "pip", "install", "-q", "--no-deps", wheel)
    run(made.bin / "syncopate", "plan", "show", "--help", cwd=tmp_path)
    made.python("-c", "import syncopate.ops, syncopate.torch.parallel")  # leaves compiled modules behind
    assert made.files() != before
    made.python("-m", "pip", "uninstall", "-q", "-y", "syncopate")
    assert made.files() == before
    assert not list(made.site.glob("*yncopate*"))


def mypy(environment: Environment, program: str, tmp_path) -> subprocess.CompletedProcess:
    (tmp_path / "user.py").write_text(program)
    words = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        environment.bin / "python",
        "user.py",
    ]
    return subprocess.run(
        [str(word) for word in words], cwd=tmp_path, capture_output=True, text=True, timeout=HUNG
    )


USER = (ROOT / "tests" / "install" / "user_program.py").read_text()


def test_mypy_takes_a_users_program(installed, tmp_path):
    done = mypy(installed, USER, tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_users_program_runs(installed, tmp_path):
    (tmp_path / "user.py").write_text(USER)
    assert json.loads(installed.python("user.py", cwd=tmp_path))["ranks"] == 4


def test_mypy_names_what_is_wrong_in_one(installed, tmp_path):
    wrong = """
import syncopate as sy
sy.plans.all_gather(sy.Mesh(gpu=4), "A")
plan = sy.plans.all_gather(sy.Mesh(gpu="4"), sy.Tensor("A", (64, 32)))
plan.num_rank
plan.tensors[0].name
sy.no_such_name
sy.Strategy(splits=2)
sy.Strategy(split="2")
sy.ops.MatmulAllReduce(1, 2)
sy.InputError().exit_code.upper()
sy.strategy.Problem("all_gather_matmul", 1, 2, 3)
"""
    done = mypy(installed, wrong, tmp_path)
    lines = [int(line) for line in re.findall(r"^user\.py:(\d+): error", done.stdout, re.M)]
    assert sorted(set(lines)) == list(range(3, 13)), done.stdout
