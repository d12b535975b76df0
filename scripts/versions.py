"""Tries this checkout with other versions of PyTorch and Triton than the one that it is set up with.

    .venv/bin/python scripts/versions.py             all of them, row by row; writes docs/versions.md
    .venv/bin/python scripts/versions.py --resume    those that the last run did not come to, or that failed
    .venv/bin/python scripts/versions.py ROW …       these alone: triton-3.9.0, torch-2.15.0
    .venv/bin/python scripts/versions.py --ends      the oldest and the newest, with a part of the tests

Exit 1 if something fails. Each row gets a virtual environment in .versions/, with all else of .venv behind it: pip fetches PyTorch and
Triton alone, without what they depend on (CUDA's libraries are stood in for: scripts/cuda_stubs.py), and they go again after
it, but for --keep. What cannot be had, as without a network, is said and left out: it is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".versions"
PAGE = ROOT / "docs" / "versions.md"
ROWS = FOLDER / "rows.json"  # what came of each: see Row
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
    # A machine's own constraints are for other uses.
    environment = os.environ | {"PIP_CONFIG_FILE": os.devnull}
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
    """Exit code and output. It has none of this process's settings that say how kernels run, or how much is tried."""
    ours = ("PYTHONPATH", "TRITON_INTERPRET", "SYNCOPATE_SWEEP")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    # 3.9 asks whether products and sums are fused, as they always were.
    environment = kept | {
        "SYNCOPATE_NO_SKIPS": "1",
        "TRITON_DEFAULT_FP_FUSION": "1",
        "PYTHONPATH": str(ROOT / "python"),
    }
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


@dataclass
class Row:
    """Of one version: what its cells say, whether all is well, and when that was."""

    cells: list[str]
    well: bool = True
    day: str = field(default_factory=lambda: str(date.today()))


def tried(torch: str, triton: str, *what: Callable[[Path], Tried]) -> Row:
    """What each of `what`, called with the Python of these versions, has to say."""
    print(f"PyTorch {torch}, Triton {triton} …", flush=True)
    try:
        python = python_with(torch, triton)
    except OSError as error:
        print(
            f"not tried, as it cannot be had here: PyTorch {torch} with Triton {triton}: {error}", flush=True
        )
        return Row([f"not to be had: {error}"] + [""] * (len(what) - 1))
    row = Row([])
    for one in what:
        came = one(python)
        row.cells.append(came.text)
        row.well = row.well and not came.failed
        if came.failed:
            print("\n".join(came.failed.splitlines()[-60:]))
    print(f"PyTorch {torch}, Triton {triton}: {'; '.join(row.cells)}", flush=True)
    return row


def forget() -> None:
    """What was fetched: gigabytes."""
    for folder in FOLDER.glob("*-*"):
        shutil.rmtree(folder)


def host(python: Path) -> Tried:
    # What compiles for sm_90 is the other column's.
    return tests(python, HOST, "-k", "not compiles and not pipelining")


def of_torch(which: str) -> Callable[[Path], Tried]:
    return lambda python: tests(python, ["test_torch"], "-k", which)


def of_name(name: str) -> Row:
    package, version = name.split("-")
    if package == "triton":
        return tried(metadata.version("torch").split("+")[0], version, compiled, host)
    return tried(version, TORCH[version], of_torch(OPS), of_torch(PASS))


def write_page(rows: dict[str, Row]) -> None:
    here = metadata.version("torch").split("+")[0]

    def lines(package: str, versions: Iterable[str], named: Callable[[str], str]) -> Iterator[str]:
        for version in versions:
            row = rows.get(f"{package}-{version}", Row(["", ""], day="not tried"))
            yield f"| {named(version)} | {' | '.join(row.cells)} | {row.day} |"

    page = [
        "# Versions of PyTorch and Triton",
        "",
        f"`make versions` writes this, with Python {sys.version.split()[0]}, without a GPU. The kernels are those of",
        "`tests/python/gluon_resources.py`, compiled for sm_90. The host suite runs interpreted kernels on ranks of the host. Ops and",
        "the pass of Inductor run there, too, each with the Triton that PyTorch names.",
        "",
        "Triton 3.9 warns where `TRITON_DEFAULT_FP_FUSION` is not set: here it is 1, as it always was. It assembles for sm_90 with ptxas",
        "13.4, which puts loops around the addresses of most GEMMs' loads, and gives attention a stack. Where that costs time, name the",
        "older one that comes with it: `TRITON_PTXAS_BLACKWELL_PATH=…/triton/backends/nvidia/bin/ptxas` (12.9).",
        "",
        f"| Triton (PyTorch {here}) | Gluon kernels that compile | host suite | tried on |",
        "|---|---|---|---|",
        *lines("triton", TRITON, str),
        "",
        "| PyTorch (Triton) | ops | compiled models | tried on |",
        "|---|---|---|---|",
        *lines("torch", TORCH, lambda version: f"{version} ({TORCH[version]})"),
    ]
    PAGE.write_text("\n".join(page) + "\n")


def try_rows(names: list[str], resume: bool, keep: bool) -> bool:
    """Row by row, each written when it is known."""
    every = [f"triton-{version}" for version in TRITON] + [f"torch-{version}" for version in TORCH]
    known = {}
    if (names or resume) and ROWS.exists():
        known = {name: Row(**row) for name, row in json.loads(ROWS.read_text()).items()}
    names = names or [name for name in every if not (name in known and known[name].well)]
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        known[name] = of_name(name)
        ROWS.write_text(json.dumps({name: asdict(row) for name, row in known.items()}, indent=1))
        write_page(known)
        if not keep:
            forget()
    return all(known[name].well for name in names)


def try_ends(keep: bool) -> bool:
    """What make test has not tried: it runs with what .venv has."""
    (first, old), *_, (last, new) = TORCH.items()
    short = "custom_ops or compiled_models"
    rows = [tried(first, old, of_torch(short))]
    if not keep:
        forget()
    kernels = ["test_library_kernels", "test_debug", "test_torch"]
    rows += [
        tried(
            last, new,
            lambda python: compiled(python, every=5),
            lambda python: tests(python, kernels, "-k", f"not test_torch or {short}"),
        )
    ]  # fmt: skip
    if not keep:
        forget()
    return all(row.well for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="triton-VERSION or torch-VERSION")
    parser.add_argument("--resume", action="store_true", help="leave what the last run found to be well")
    parser.add_argument(
        "--ends", action="store_true", help="the oldest and the newest, with a part of the tests"
    )
    parser.add_argument("--keep", action="store_true", help="leave what is fetched in .versions/")
    asked = parser.parse_args()
    unknown = [
        name
        for name in asked.rows
        if name not in {f"triton-{v}" for v in TRITON} | {f"torch-{v}" for v in TORCH}
    ]
    if unknown:
        parser.error(
            f"no row {unknown[0]}: there are triton-{', triton-'.join(TRITON)}, torch-{', torch-'.join(TORCH)}"
        )
    good = try_ends(asked.keep) if asked.ends else try_rows(asked.rows, asked.resume, asked.keep)
    sys.exit(not good)
