"""Starts a bench on its ranks: one process a GPU, or two on the host, or those of torchrun."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any


def launch(
    options: argparse.Namespace,
    check: Callable[[argparse.Namespace], None],
    run_all: Callable[[argparse.Namespace], dict[str, Any]],
    finish: Callable[[dict[str, Any], argparse.Namespace], int],
) -> int:
    """`check` raises ValueError for what is wrong on the command line, before any rank starts; `run_all` makes the report on
    each rank; `finish` writes it once. Returns the exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from ..ranks import RankError, gpu_count, run
    from .session import start

    try:
        gpus = gpu_count()
    except RankError:
        gpus = 0
    if not gpus:
        from ..interpreter import enable

        enable()  # before the kernels are imported
    options.rounds = options.rounds or (15 if gpus else 1)
    try:
        check(options)
        if options.plot:
            from .picture import require_matplotlib

            require_matplotlib()
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            start(0, 0, "")
            report = run_all(options)
            return finish(report, options) if int(os.environ["RANK"]) == 0 else 0
        ranks = options.ranks or (gpus or 2)
        if gpus and ranks > gpus:
            raise RankError(f"{ranks} ranks need {ranks} GPUs, this machine has {gpus}", 3)

        def work(place: Any) -> dict[str, Any]:
            start(place.rank, place.size, f"file://{place.folder}/process-group")
            return run_all(options)

        return finish(run(ranks, work, timeout=options.budget + 1800)[0], options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        return int(code)
