"""How a command ends whose answer cannot be printed, or is not waited for: the disk may be full, whoever reads may have gone,
and there is Ctrl-C."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator


class Unanswered(SystemExit):
    """The answer cannot be printed, and all that is to be said of it has been said."""


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Around what prints a command's answer, or a part of it, which has left when this ends. Where it cannot, the process
    ends by Unanswered, without a traceback: quietly with the code of SIGPIPE where nobody reads any more, else with a message
    and 1. On a forked rank that ends all of them (ranks.run)."""
    try:
        yield
        if sys.stdout is not None:  # closed when Python started
            sys.stdout.flush()
        return
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
    except OSError as error:
        print(f"error: standard output could not be written: {error.strerror}", file=sys.stderr)
        code = 1
    # The interpreter writes at its end what is still in the buffer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise Unanswered(code)


def flush() -> None:
    """Before a fork, and before a process ends that does not answer. What cannot be written fails where the answer is
    printed."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed when Python started
        with contextlib.suppress(OSError):
            stream.flush()


def interruptible(main: Callable[..., int]) -> Callable[..., int]:
    """Around a command's main: Ctrl-C tidies up behind it and returns 130, and before and after it does what it did."""

    @functools.wraps(main)
    def wrapped(*arguments: list[str] | None) -> int:
        outside = signal.getsignal(signal.SIGINT)
        try:
            if outside != signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            return main(*arguments)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            signal.signal(signal.SIGINT, outside)

    return wrapped
