"""Ranks that stay away, die or are interrupted: the others end within their deadline and say who was missing."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from conftest import BINARY, HUNG, ROOT, SWEEP, processes_marked

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")

CHUNK = r"chunk A\[32:48, 0:\d+\] from rank 2 \(push, op \d+ of rank 2\) has not arrived"

# Three ranks, rank 2 misbehaves in its second call; what the others say is printed, as ranks.run puts it together.
SCRIPT = """
import os, sys, time
os.environ["TRITON_INTERPRET"] = "1"
import torch
import syncopate as sy
from syncopate import ops
from syncopate import ranks
from syncopate.group import of_folder

def work(place):
    torch.set_num_threads(1)
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    chosen = ops.Strategy((ops.Tiling(16, 16, 16, 2, -1, "ieee", 2),), pull={pull})
    op = ops.AllGatherMatmul(48, 32, 32, torch.float32, group, strategy=chosen, deadline={deadline})
    x, w = torch.ones(16, 32), torch.ones(32, 32)
    op(x, w)
    if place.rank == 2:
        {misbehave}
    op(x, w)

try:
    ranks.run(3, work, timeout={hung}, grace={grace})
except ranks.RankError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def misbehaving(run, what: str, pull: bool = False, deadline: float = 4.0, grace: float = 60.0):
    code = SCRIPT.format(pull=pull, misbehave=what, deadline=deadline, grace=grace, hung=HUNG / 2)
    outcome = run(sys.executable, "-c", code, PYTHONPATH=str(ROOT / "python"))
    assert outcome.code != 0, outcome.out
    return outcome, dict(line.split(": ", 1) for line in outcome.out.splitlines() if line.startswith("rank "))


def judged_by_waiting_ranks(said: dict[str, str], wanted: str) -> None:
    """Rank 0 or 1 names what it missed; the other one too, unless its own deadline was still to come."""
    own = [rank for rank in ("rank 0", "rank 1") if re.search(wanted + r".* within 4000 ms", said[rank])]
    assert own, said
    for rank in {"rank 0", "rank 1"} - set(own):
        assert re.search(r"given up because rank [01] reported a fault", said[rank]), said


@pytest.mark.parametrize("pull", [False, True] if SWEEP else [False])
def test_a_rank_that_never_calls_is_named_with_its_chunk_within_the_deadline(pull, run):
    # Were it not for the deadline, the others would wait for as long as rank 2 sleeps.
    outcome, said = misbehaving(run, f"time.sleep({HUNG})", pull, grace=10.0)
    assert set(said) == {"rank 0", "rank 1", "rank 2"}, outcome.out + outcome.err
    # pushed: the chunk did not come; pulled: its owner has not begun
    judged_by_waiting_ranks(said, r"rank 2 has not begun the call" if pull else CHUNK)
    assert said["rank 2"] == "was still waiting and was ended"
    assert outcome.code == 3


def test_a_rank_that_dies_in_a_call_is_named(run):
    # It dies while it interprets its tiles, when its chunks have left or not, as it happens.
    dies = "from syncopate.host import interpreter; interpreter.launch = lambda *_: os._exit(7)"
    outcome, said = misbehaving(run, dies)
    assert said["rank 2"] == "the process ended without a result (exit code 7)", outcome.out


def test_a_rank_that_dies_before_the_call_does_not_leave_the_others_waiting(run):
    outcome, said = misbehaving(run, "os.kill(os.getpid(), 9)", deadline=HUNG)
    assert said["rank 2"] == "the process ended without a result (by SIGKILL)", outcome.out
    for rank in ("rank 0", "rank 1"):
        assert re.search(
            r"all_gather_matmul \[.*: given up, as the process of rank 2 has ended", said[rank]
        ), said


def test_a_rank_that_raises_ends_the_others_after_a_moment(run):
    outcome, said = misbehaving(run, "raise ValueError('no data today')", deadline=HUNG, grace=0.2)
    assert said["rank 2"] == "no data today"
    assert {said["rank 0"], said["rank 1"]} == {"was still waiting and was ended"}


@pytest.mark.skipif(not BINARY.exists(), reason="the command is not built")
@pytest.mark.parametrize(
    "words",
    [
        ["run", "all_gather_matmul:M=2048,N=512,K=512", "--ranks=2", "--calls=1000"],
        ["tune", "all_gather_matmul:M=2048,N=512,K=512", "--ranks=2"],
        ["bench", "all_gather_matmul"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("seconds", [0.0, 0.2, 1.0, 4.0] if SWEEP else [0.2])
def test_a_command_is_interrupted_quietly_while_it_imports_and_later(words, seconds, tmp_path):
    process = subprocess.Popen(
        [BINARY, *words],
        env={**os.environ, "TMPDIR": str(tmp_path), "SYNCOPATE_PYTHON": sys.executable},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end = time.monotonic() + HUNG
    while b"runpy" not in Path(f"/proc/{process.pid}/cmdline").read_bytes() and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=HUNG)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and "KeyboardInterrupt" not in errors, errors
    assert not list(tmp_path.glob("syncopate-*"))


def heed_signals() -> None:
    """A shell without job control starts what runs in the background with SIGINT ignored, and nohup with SIGHUP."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.skipif(not BINARY.exists(), reason="the command is not built")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_rank_behind(number, tmp_path):
    mark = f"interrupted-{os.getpid()}-{number}"
    words = ["run", "all_gather_matmul:M=2048,N=512,K=512", "--ranks", "3", "--calls", "1000"]
    environment = {**os.environ, "SYNCOPATE_TEST": mark, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [BINARY, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_signals,
    )
    try:
        end = time.monotonic() + HUNG
        while len(processes_marked(mark)) < 4 and time.monotonic() < end:  # itself and three ranks
            time.sleep(0.1)
        time.sleep(1)
        process.send_signal(number)
        _, errors = process.communicate(timeout=HUNG)
    finally:
        process.kill()
    end = time.monotonic() + HUNG
    while processes_marked(mark) and time.monotonic() < end:
        time.sleep(0.1)
    assert not processes_marked(mark)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert b"Traceback" not in errors, textwrap.indent(errors.decode(), "  ")
        assert not list(tmp_path.glob("syncopate-*"))
