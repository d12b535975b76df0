"""Installed as people do: with pip into a fresh environment, and with CMake for a project of a few lines."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import EXAMPLES, HUNG, ROOT

pytestmark = pytest.mark.sweep
PROJECT = Path(__file__).resolve().parent / "project"


def run(*words: object, cwd: Path) -> str:
    """What a command prints, with none of the checkout in its environment."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SYNCOPATE_PYTHON")
    }
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=HUNG
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A fresh virtual environment with this checkout installed by pip. PyTorch and Triton, gigabytes, are lent by the one
    that runs the tests; what building needs pip fetches."""
    folder = tmp_path_factory.mktemp("pip")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=folder).strip()
    (Path(site) / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    asked = subprocess.run(
        [python, "-m", "pip", "download", "-q", "--no-deps", "-d", folder / "asked", "nanobind>=2.4"],
        capture_output=True, text=True, timeout=HUNG,
    )  # fmt: skip
    if asked.returncode != 0 and "connection" in asked.stderr.lower():
        pytest.skip(f"no network: {asked.stderr.splitlines()[-1]}")
    run(python, "-m", "pip", "install", "-q", ROOT, cwd=folder)
    return folder / "venv" / "bin"


def test_pip_installs_the_package_and_the_command(environment, tmp_path):
    where = run(environment / "python", "-c", "import syncopate; print(syncopate.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent)
    syncopate = environment / "syncopate"
    make = ["plan", "make", "all_gather", "--ranks=2", "--tensor=A:32x16:fp32", "-o", "plan.json"]
    run(syncopate, *make, cwd=tmp_path)
    assert run(syncopate, "plan", "check", "plan.json", cwd=tmp_path).startswith("ok: plan.json: 2 ranks")
    sizes = "M=32,N=16,K=16,stride_am=16,stride_ak=1,stride_bk=16,stride_bn=1,stride_cm=16,stride_cn=1"
    sizes += ",BLOCK_M=16,BLOCK_N=16,BLOCK_K=16,GROUP_M=2"
    tensors = ["--tensor=b_ptr=16x16:fp32", "--tensor=c_ptr=32x16:fp32"]
    kernel = f"{EXAMPLES / 'matmul_pointers.py'}:matmul_kernel"
    words = ["fuse", kernel, "--plan=plan.json", "--bind=a_ptr=A", "--args", sizes, *tensors, "-o", "fused"]
    run(syncopate, *words, cwd=tmp_path)
    ran = run(syncopate, "run", "fused", "--check", cwd=tmp_path)
    assert ran.count("identical to the unfused kernel") == 2


def test_a_project_of_a_few_lines_finds_the_installed_library(tmp_path):
    run("cmake", "--install", ROOT / "build", "--prefix", tmp_path / "prefix", cwd=tmp_path)
    assert "plan" in run(tmp_path / "prefix" / "bin" / "syncopate", "--help", cwd=tmp_path)
    run("cmake", "-S", PROJECT, "-B", "made", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}", cwd=tmp_path)
    run("cmake", "--build", "made", cwd=tmp_path)
    assert run(tmp_path / "made" / "user", cwd=tmp_path) == "4 ranks\n"
