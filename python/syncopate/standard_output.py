"""How a command ends whose answer cannot be printed: the disk may be full, and whoever reads may have gone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Around what prints a command's answer, which has left when this ends. Where it cannot, the process ends, without a
    traceback: quietly with the code of SIGPIPE where nobody reads any more, else with a message and 1."""
    try:
        yield
        sys.stdout.flush()
        return
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
    except OSError as error:
        print(f"error: standard output could not be written: {error.strerror}", file=sys.stderr)
        code = 1
    # The interpreter writes at its end what is still in the buffer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def flush() -> None:
    """Before a fork, and before a process ends that does not answer. What cannot be written fails where the answer is
    printed."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed when Python started
        with contextlib.suppress(OSError):
            stream.flush()
