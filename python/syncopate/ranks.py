"""Running a function on N ranks of this machine: forked processes that share what is imported, and none left behind."""

from __future__ import annotations

import ctypes
import math
import multiprocessing.connection
import os
import pickle
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .command.standard_output import Unanswered, flush
from .host.bounds import KernelError

__all__ = [
    "LateError",
    "Place",
    "RankError",
    "gpu_count",
    "run",
]


class RankError(RuntimeError):
    """What went wrong on which rank. `exit_code` as the command's."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RankTraceback(Exception):
    """Where a rank's error was raised, as text: the cause of a RankError."""


class LateError(RankError):
    """No rank failed, and some did not end in time."""


@dataclass
class Place:
    """Where a rank runs and how it finds the others (syncopate.group.of_folder)."""

    rank: int
    size: int
    folder: str
    run_id: str


def _die_with_parent(parent: int) -> None:
    """Asks the kernel to end this process when its parent ends, so that an interrupted run leaves none behind."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _child(place: Place, function: Callable[[Place], Any], pipe: int) -> None:
    # Ctrl-C reaches every process of the terminal. The parent hears it and ends the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    try:
        outcome: tuple[str, Any, int, str] = ("value", function(place), 0, "")
    except Unanswered as end:
        outcome = ("unanswered", None, int(end.code or 0), "")
    except BaseException as error:  # noqa: BLE001 - whatever happened goes to the parent
        code = int(getattr(error, "exit_code", 1) or 1)
        text = str(error) or type(error).__name__
        if (
            isinstance(error, MemoryError)
            or "OutOfMemory" in type(error).__name__
            or "can't allocate memory" in text
        ):
            text, code = f"too little memory: {text}", 3
        if not hasattr(error, "exit_code") and not isinstance(
            error, (ValueError, RuntimeError, TypeError, MemoryError)
        ):
            text = "".join(traceback.format_exception(error))
        where = f"rank {place.rank}:\n" + "".join(traceback.format_exception(error))
        outcome = ("kernel" if isinstance(error, KernelError) else "error", text, code, where)
    with os.fdopen(pipe, "wb") as stream:
        try:
            pickle.dump(outcome, stream)
        except Exception as error:  # noqa: BLE001
            pickle.dump(("error", f"the result cannot be sent: {error}", 1, ""), stream)
    flush()
    os._exit(0)


def run(
    size: int, function: Callable[[Place], Any], timeout: float | None = 600.0, grace: float = 5.0
) -> list[Any]:
    """`function(place)` on `size` forked ranks; their results by rank.

    Raises RankError naming every rank that failed or did not end in time (seconds; None: any), caused by the first one's traceback; LateError if none failed. After the first failure the others
    have `grace` seconds to report theirs, and are ended. Where a rank cannot print, all end at once (Unanswered). The
    caller must not have initialised CUDA or started threads that hold locks.
    """
    folder = tempfile.mkdtemp(prefix="syncopate-")
    run_id = f"{os.getpid()}-{time.time_ns()}"
    parent = os.getpid()
    children: dict[int, tuple[int, int]] = {}  # pipe → (rank, pid)
    flush()
    # A child must not hear of Ctrl-C before it ignores it.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        for rank in range(size):
            read_end, write_end = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(read_end)
                for other in children:
                    os.close(other)
                _die_with_parent(parent)
                _child(Place(rank, size, folder, run_id), function, write_end)
            os.close(write_end)
            children[read_end] = (rank, pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        return _collect(size, children, timeout, grace)
    finally:
        for pipe, (_, pid) in children.items():
            _end(pid)
            os.close(pipe)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        shutil.rmtree(folder, ignore_errors=True)


def gpu_count() -> int:
    """GPUs of this machine. Asked in a process of its own: a CUDA driver that was started here would not work in forked
    ranks. Raises RankError (exit code 3) when there is no driver."""

    def count(_: Place) -> int:
        from . import _syncopate

        return _syncopate.cuda_device_count()

    try:
        return run(1, count, timeout=60.0)[0]
    except RankError as error:
        why = str(error).removeprefix("all ranks: ")
        raise RankError(f"{why}; use --device host", error.exit_code) from None


def _collect(
    size: int, children: dict[int, tuple[int, int]], timeout: float | None, grace: float
) -> list[Any]:
    results: list[Any] = [None] * size
    errors: dict[int, tuple[str, int]] = {}
    traces: dict[int, str] = {}
    received: dict[int, bytes] = {pipe: b"" for pipe in children}
    by_kernel: set[int] = set()  # ranks whose kernel went wrong: what the others say follows from that
    waiting = set(children)
    end = math.inf if timeout is None else time.monotonic() + timeout
    while waiting:
        left = end - time.monotonic()
        ready = multiprocessing.connection.wait(
            list(waiting), timeout=None if math.isinf(left) else max(0.0, left)
        )
        if not ready:
            break
        for pipe in ready:
            data = os.read(pipe, 1 << 20)
            if data:
                received[pipe] += data
                continue
            waiting.discard(pipe)
            rank, pid = children[pipe]
            if not received[pipe]:
                errors[rank] = (f"the process ended without a result ({_how_it_ended(pid)})", 1)
            else:
                kind, value, code, traces[rank] = pickle.loads(received[pipe])
                if kind == "unanswered":
                    raise Unanswered(code)
                if kind == "value":
                    results[rank] = value
                else:
                    errors[rank] = (value, code)
                if kind == "kernel":
                    by_kernel.add(rank)
            if errors:
                end = min(end, time.monotonic() + grace)
    kind_of_error = RankError if errors else LateError
    for pipe in waiting:
        rank, _ = children[pipe]
        errors[rank] = ("did not end in time" if not errors else "was still waiting and was ended", 1)
    if by_kernel:
        errors = {rank: errors[rank] for rank in by_kernel}
    if errors:
        first = {text for text, _ in errors.values()}
        lines = [f"rank {rank}: {text}" for rank, (text, _) in sorted(errors.items())]
        if len(first) == 1 and len(errors) == size:
            lines = [f"all ranks: {first.pop()}"]
        traced = next((traces[rank] for rank in sorted(errors) if traces.get(rank)), None)
        cause = RankTraceback(traced) if traced else None
        raise kind_of_error("\n".join(lines), max(code for _, code in errors.values())) from cause
    return results


def _how_it_ended(pid: int) -> str:
    """Of a child whose pipe is closed, which it reaps: its signal by name, or its exit code."""
    end = time.monotonic() + 5  # its pipe closes a moment before it can be reaped
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return f"by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        time.sleep(0.01)
    return "it closed what its result goes through"


def _end(pid: int) -> None:
    """Ends a child that is still there, and reaps it."""
    try:
        done, _ = os.waitpid(pid, os.WNOHANG)
        if done == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    except (ChildProcessError, ProcessLookupError):
        pass
