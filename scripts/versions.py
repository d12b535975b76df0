"""Tries this checkout with other versions of PyTorch and Triton than the one that it is set up with.

    .venv/bin/python scripts/versions.py            all of them; writes docs/versions.md
    .venv/bin/python scripts/versions.py --ends     the oldest and the newest, with a part of the tests; exit 1 if one fails

Each version gets a virtual environment in .versions/, with all else of .venv behind it: pip fetches PyTorch and Triton alone, once,
without what they depend on (CUDA's libraries are stood in for: scripts/cuda_stubs.py). What cannot be had is said and left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".versions"
PAGE = ROOT / "docs" / "versions.md"
PYTHON_TESTS = ROOT / "tests" / "python"

TRITON = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
#: Each with the Triton that it names.
TORCH = {"2.11.0": "3.6.0", "2.12.1": "3.7.1", "2.13.0": "3.7.1", "2.14.1": "3.8.0", "2.15.0": "3.9.0"}

FETCHING = 900  # seconds, at most
HUNG = 3600

#: What interprets kernels on host ranks.
HOST = "test_host test_library_kernels test_debug test_attention test_fp8 test_launch test_gluon_attention test_unwrapped".split()
OPS, PASS = "custom_ops or unusual_uses or example_trains", "compiled_models"


@dataclass
class Tried:
    """What came of it, as the page says it; `failed`: output to look at."""

    text: str
    failed: str = ""


def packages_of(name: str, version: str) -> Path | None:
    """The folder that has this version; None: .venv has it. OSError says why it cannot be had."""
    if metadata.version(name).split("+")[0] == version:
        return None
    folder = FOLDER / f"{name}-{version}"
    if (folder / ".complete").exists():
        return folder
    print(f"fetching {name} {version} …", flush=True)
    words = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-compile",
        "--only-binary",
        ":all:",
    ]
    words += ["--retries", "1", "--timeout", "60", "--disable-pip-version-check", "--upgrade"]
    words += ["--target", folder, f"{name}=={version}"]
    environment = os.environ | {
        "PIP_CONFIG_FILE": os.devnull
    }  # a machine's own constraints are for other uses
    try:
        done = subprocess.run(
            [str(word) for word in words], env=environment, capture_output=True, text=True, timeout=FETCHING
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"it was not fetched in {FETCHING} s") from None
    if done.returncode != 0:
        raise OSError((done.stderr.strip() or "pip failed").splitlines()[-1])
    if name == "torch":
        subprocess.run([sys.executable, ROOT / "scripts" / "cuda_stubs.py", folder], check=True)
    (folder / ".complete").touch()
    return folder


def python_with(torch: str, triton: str) -> Path:
    """A Python that has these, and all else of .venv."""
    folders = [packages_of("torch", torch), packages_of("triton", triton)]
    folder = FOLDER / f"venv-{torch}-{triton}"
    venv.create(folder, clear=True, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    behind = sysconfig.get_paths()["purelib"]
    lines = [str(folder) for folder in folders if folder] + [f"import site; site.addsitedir({behind!r})"]
    Path(site, "versions.pth").write_text("\n".join(lines) + "\n")
    return python


def run(python: Path, *words: object) -> tuple[int, str]:
    """Exit code and output. It has none of this process's settings that say how kernels run."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")
    }
    # 3.9 asks whether products and sums are fused, as they always were.
    environment = kept | {"SYNCOPATE_NO_SKIPS": "1", "TRITON_DEFAULT_FP_FUSION": "1"}
    try:
        done = subprocess.run(
            [str(word) for word in (python, *words)],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HUNG,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return 1, f"{error}\n{error.stdout or ''}"
    return done.returncode, done.stdout


def compiled(python: Path, every: int = 1) -> Tried:
    """The Gluon kernels, for sm_90: all, or one of `every`."""
    code, out = run(python, PYTHON_TESTS / "gluon_resources.py", f"--count={every}")
    said = re.search(r"(\d+) of (\d+) compile", out)
    whole = code == 0 and said is not None and said[1] == said[2]
    return Tried(said[0].removesuffix(" compile") if said else "fails", "" if whole else out)


def tests(python: Path, names: list[str], *options: str) -> Tried:
    spread = ["-n", os.environ.get("JOBS", str(os.cpu_count())), "--dist", "loadgroup"]
    files = [PYTHON_TESTS / f"{name}.py" for name in names]
    code, out = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *spread, *options, *files)
    counts = re.search(r"(?:(\d+) failed, )?(\d+) passed", out)
    if counts is None:
        return Tried("fails", out)
    text = f"{counts[2]} pass" + (f", {counts[1]} fail" if counts[1] else "")
    return Tried(text, out if code else "")


class Trials:
    """Says what is tried, and gathers what failed."""

    def __init__(self) -> None:
        self.failed = False

    def row(self, torch: str, triton: str, *what) -> list[str]:
        """What each of `what`, called with the Python of these versions, has to say."""
        try:
            python = python_with(torch, triton)
        except OSError as error:
            print(f"not to be had here: PyTorch {torch} with Triton {triton}: {error}", flush=True)
            return [f"not to be had: {error}"] + [""] * (len(what) - 1)
        said = []
        for one in what:
            tried = one(python)
            said.append(tried.text)
            if tried.failed:
                self.failed = True
                print("\n".join(tried.failed.splitlines()[-60:]))
        print(f"PyTorch {torch}, Triton {triton}: {'; '.join(said)}", flush=True)
        return said


def ops(python: Path) -> Tried:
    return tests(python, ["test_torch"], "-k", OPS)


def graphs(python: Path) -> Tried:
    return tests(python, ["test_torch"], "-k", PASS)


def host(python: Path) -> Tried:
    return tests(
        python, HOST, "-k", "not compiles and not pipelining"
    )  # for sm_90, which is the other column's


def write_page(tritons: dict[str, list[str]], torches: dict[str, list[str]]) -> None:
    here = metadata.version("torch").split("+")[0]
    page = [
        "# Versions of PyTorch and Triton",
        "",
        f"`make versions` wrote this on {date.today()}, with Python {sys.version.split()[0]}, without a GPU. The kernels are those of",
        "`tests/python/gluon_resources.py`, compiled for sm_90. The host suite runs interpreted kernels on ranks of the host. Ops and",
        "the pass of Inductor run there, too, each with the Triton that PyTorch names.",
        "",
        f"| Triton (PyTorch {here}) | Gluon kernels that compile | host suite |",
        "|---|---|---|",
        *(f"| {version} | {' | '.join(row)} |" for version, row in tritons.items()),
        "",
        "| PyTorch (Triton) | ops | compiled models |",
        "|---|---|---|",
        *(f"| {version} ({TORCH[version]}) | {' | '.join(row)} |" for version, row in torches.items()),
    ]
    PAGE.write_text("\n".join(page) + "\n")


def try_all() -> bool:
    """Row by row, each written when it is known."""
    trials, here = Trials(), metadata.version("torch").split("+")[0]
    tritons, torches = {}, {}
    for version in TRITON:
        tritons[version] = trials.row(here, version, compiled, host)
        write_page(tritons, torches)
    for version, triton in TORCH.items():
        torches[version] = trials.row(version, triton, ops, graphs)
        write_page(tritons, torches)
    return not trials.failed


def try_ends() -> bool:
    """What make test has not tried: it runs with what .venv has."""
    trials = Trials()
    (first, old), *_, (last, new) = TORCH.items()
    short = "custom_ops or compiled_models"
    trials.row(first, old, lambda python: tests(python, ["test_torch"], "-k", short))
    # Compiled models are left to make versions: of 2.15, two products that read one gather are not yet fused as one.
    trials.row(
        last, new,
        lambda python: compiled(python, every=5),
        lambda python: tests(python, ["test_library_kernels", "test_debug", "test_torch"], "-k", "not test_torch or custom_ops"),
    )  # fmt: skip
    return not trials.failed


if __name__ == "__main__":
    good = try_ends() if sys.argv[1:] == ["--ends"] else try_all()
    sys.exit(not good)
