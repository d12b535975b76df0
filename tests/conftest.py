"""What all tests share: which of them run, running a process to its end, and looking for what it left behind.

A test marked `sweep` (every size, many ranks, many cases) runs where SYNCOPATE_SWEEP is set, as by `make test-all`; one of
tests/install also where SYNCOPATE_INSTALL is. With SYNCOPATE_SWEEP_FROM, a number, tests come in an order of that number's,
and none begins at SYNCOPATE_SWEEP_UNTIL, seconds since 1970, or later. Where
SYNCOPATE_NO_SKIPS is set, as by `make test`, nothing may be skipped but for want of a GPU or a network, or where a GPU
is there.
"""

import atexit
import functools
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BINARY = Path(os.environ.get("SYNCOPATE_BIN", ROOT / "build" / "bin" / "syncopate"))
EXAMPLES = ROOT / "examples"

# Seconds after which a process counts as hung. No test is about them: a busy machine takes its time.
HUNG = 1800
os.environ.setdefault("SYNCOPATE_TUNE", "off")  # what somebody has tuned on this machine is no part of a test
# What interprets a product is NumPy's OpenBLAS. By its kernels for AVX2 a row's bits depend on where it stands. It reads
# this once, where NumPy is imported: for most tests in the server that forks them.
os.environ["OPENBLAS_CORETYPE"] = "Sandybridge"
os.environ.setdefault(
    "TRITON_DEFAULT_FP_FUSION", "1"
)  # Triton 3.9 warns where it is not said; older ones do so anyway
SWEEP = bool(os.environ.get("SYNCOPATE_SWEEP"))
UNTIL = float(os.environ.get("SYNCOPATE_SWEEP_UNTIL", "inf"))
SOME = 101  # tests between the first ones of two numbers, more than some minutes take: a prime, so that each comes to be the first


def pytest_collection_modifyitems(config, items) -> None:
    if SWEEP:
        first = int(os.environ.get("SYNCOPATE_SWEEP_FROM", 0)) * SOME % max(len(items), 1)
        items[:] = items[first:] + items[:first]
        return
    installing = ROOT / "tests" / "install" if os.environ.get("SYNCOPATE_INSTALL") else None
    left_out = [
        item for item in items if item.get_closest_marker("sweep") and installing not in item.path.parents
    ]
    gone = set(map(id, left_out))
    items[:] = [item for item in items if id(item) not in gone]
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem) -> bool | None:
    """Where time is up, nothing: such a test is not reported."""
    return time.time() >= UNTIL or None


def may_be_skipped(reason: str) -> bool:
    return not os.environ.get("SYNCOPATE_NO_SKIPS") or "gpu" in reason.lower() or "no network" in reason


def fail_if_skipped(report) -> None:
    """What `make test` skips has to be there: it has set up all that the tests need."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not may_be_skipped(reason):
            report.outcome = "failed"
            report.longrepr = f"this is not skipped where SYNCOPATE_NO_SKIPS is set: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    fail_if_skipped(report)
    return report


# Where warm_python.py finds its server, which the first to ask for it starts, or the process that spreads tests over others,
# for all of them.
IS_ONE_OF_SEVERAL = "PYTEST_XDIST_WORKER" in os.environ
if not IS_ONE_OF_SEVERAL:
    WARM = tempfile.TemporaryDirectory(prefix="warm-")
    os.environ["SYNCOPATE_WARM"] = f"{WARM.name}/socket"
WARM_PYTHON = Path(__file__).resolve().parent / "warm_python.py"


def pytest_configure(config) -> None:
    if getattr(config.option, "numprocesses", None) and not IS_ONE_OF_SEVERAL:
        warm_server()


@functools.cache
def warm_server() -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, WARM_PYTHON, "--serve", os.environ["SYNCOPATE_WARM"]]
    server = subprocess.Popen(words, env={**environment, "OMP_NUM_THREADS": "1"}, cwd="/")
    atexit.register(lambda: (server.terminate(), server.wait()))
    return server


@functools.cache
def warm_python() -> str:
    """What tests start Python with where they do not test how it starts: see warm_python.py."""
    server = None if IS_ONE_OF_SEVERAL else warm_server()
    end = time.monotonic() + HUNG
    while not os.path.exists(os.environ["SYNCOPATE_WARM"]):
        gone = server.poll() is not None if server else time.monotonic() > end
        assert not gone, "the warm Python has ended"
        time.sleep(0.05)
    return str(WARM_PYTHON)


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


@dataclass
class Outcome:
    code: int
    out: str
    err: str


def processes_marked(mark: str) -> list[int]:
    """Processes, zombies aside, that inherited the environment variable SYNCOPATE_TEST=mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"SYNCOPATE_TEST={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # gone, or another user's
    return found


def shared_memory() -> set[str]:
    return {entry.name for entry in Path("/dev/shm").glob("*syncopate*")}


class Runner:
    """Runs commands, each checked to leave no process, no shared memory and no temporary folder behind. Python is the warm
    one."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        scratch.mkdir()

    def __call__(
        self, *words: object, timeout: float = HUNG, stdin: str | None = None, **environment: str
    ) -> Outcome:
        mark = uuid.uuid4().hex
        before = shared_memory()
        settings = {"TMPDIR": str(self.scratch), "SYNCOPATE_TEST": mark, "OMP_NUM_THREADS": "1"}
        settings["SYNCOPATE_PYTHON"] = warm_python()
        done = subprocess.run(
            [warm_python() if word == sys.executable else str(word) for word in words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **settings, **environment},
        )
        self.check_tidy(mark, before)
        return Outcome(done.returncode, done.stdout, done.stderr)

    def check_tidy(self, mark: str, before: set[str]) -> None:
        end = time.monotonic() + 60  # a process that was killed takes a moment to go
        while (left := processes_marked(mark)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left, f"left processes behind: {left}"
        assert shared_memory() <= before, f"left shared memory behind: {shared_memory() - before}"
        folders = [entry.name for entry in self.scratch.glob("syncopate-*")]
        assert not folders, f"left temporary folders behind: {folders}"


@pytest.fixture
def run(tmp_path_factory) -> Runner:
    return Runner(tmp_path_factory.mktemp("run") / "tmp")


@pytest.fixture
def syncopate(run):
    """The command: syncopate("plan", "check", …) → Outcome."""
    assert BINARY.exists(), f"no {BINARY}: run make build"
    return lambda *words, **options: run(BINARY, *words, **options)


SIZES = {"M": 50, "N": 40, "K": 48, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP_M": 2}


def fuse_words(
    example: str, plan: object, output: object, dtype: str = "fp32", **changed: object
) -> list[str]:
    """The `syncopate fuse` command line for an example, with its A [50, 48] bound to the plan's A."""
    sizes = {**SIZES, **changed}
    m, n, k = sizes["M"], sizes["N"], sizes["K"]
    pointers = example == "matmul_pointers"
    if pointers:
        sizes |= {
            "stride_am": k,
            "stride_ak": 1,
            "stride_bk": n,
            "stride_bn": 1,
            "stride_cm": n,
            "stride_cn": 1,
        }
    else:
        sizes["NUM_SMS"] = 3
    suffix = "_desc" if "host" in example else "_ptr"
    block = "@16x16" if "host" in example else ""
    b = f"{k}x{n}" if pointers else f"{n}x{k}"
    tensors = {"a": f"{m}x{k}", "b": b, "c": f"{m}x{n}"}
    words = ["fuse", f"{EXAMPLES / example}.py:matmul_kernel", "--plan", str(plan), "--bind", f"a{suffix}=A"]
    words += ["--args", ",".join(f"{key}={value}" for key, value in sizes.items())]
    for name, shape in tensors.items():
        words += ["--tensor", f"{name}{suffix}={shape}:{dtype}{block}"]
    return [*words, "-o", str(output)]


@pytest.fixture(scope="session")
def plan_3(tmp_path_factory) -> Path:
    """A plan for three ranks: A [50, 48] fp32, split in two."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = [
        "plan",
        "make",
        "all_gather",
        "--ranks",
        "3",
        "--tensor",
        "A:50x48:fp32",
        "--split",
        "2",
        "-o",
        str(path),
    ]
    subprocess.run([BINARY, *words], check=True, timeout=HUNG)
    return path


@pytest.fixture(scope="session")
def fused_3(plan_3, tmp_path_factory) -> Path:
    """matmul_pointers fused with it, for host. Tests must not change it."""
    folder = tmp_path_factory.mktemp("fused") / "pointers"
    subprocess.run([BINARY, *fuse_words("matmul_pointers", plan_3, folder)], check=True, timeout=HUNG)
    return folder


@pytest.fixture
def bundle_of(syncopate, tmp_path):
    """bundle_of(SPEC, …) → the file, for host and two ranks, of 16 and 64 rows."""

    def compile(spec, *words, rows="16,64", ranks=2):
        file = tmp_path / f"{spec.partition(':')[0]}{ranks}.sybundle"
        outcome = syncopate(
            "compile", spec, "--rows", rows, "--ranks", ranks, "--arch", "host", "-o", file, *words
        )
        assert outcome.code == 0, outcome.err
        return file

    return compile
