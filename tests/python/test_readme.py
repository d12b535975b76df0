"""What the README tells people to type does what it says."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import warm_python

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate")


def block(language: str, word: str) -> str:
    """The one fenced block with this word."""
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if word in text]
    return found


def run(*command, cwd, **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)


def test_the_program_in_python_runs_on_two_host_ranks(tmp_path):
    (tmp_path / "gemm.py").write_text(block("python", "sy.fuse("))
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
    torchrun = [warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run(
        *torchrun, "gemm.py", cwd=tmp_path, PYTHONPATH=path, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES=""
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # The two ranks print side by side, so a line may follow another one without its end.
    errors = re.findall(r"rank [01]: relative errors ([0-9.e+-]+), ([0-9.e+-]+)", done.stdout)
    assert len(errors) == 2
    assert all(float(error) < 1e-6 for pair in errors for error in pair)


def test_the_commands_print_what_the_readme_shows(tmp_path):
    pytest.importorskip("matplotlib")
    shown = block("console", "syncopate fuse").replace("\\\n", " ").splitlines()
    commands = [line[2:].replace("$PWD/", f"{ROOT}/").replace(" examples/", f" {ROOT}/examples/")
                for line in shown if line.startswith("$ ")]  # fmt: skip
    script = "\n".join(["set -e", *commands])
    done = run("bash", "-c", script, cwd=tmp_path, SYNCOPATE_PYTHON=warm_python())
    assert done.returncode == 0, done.stderr[-4000:]
    for line in (line for line in shown if not line.startswith("$ ") and not line.startswith("rank ")):
        assert line == "…" or line in done.stdout
    assert done.stdout.count("identical to the unfused kernel, relative error 0.0e+00") == 4
    assert (tmp_path / "trace.png").exists()
