"""Runs the checks of the named cases in Triton's interpreter, on all cores; one line of JSON for each check.

    worker.py FOLDER CASE…     CASE: family/name, or family; none: all

Sources of fused kernels that are to be compiled for a GPU go into FOLDER, with jobs.json, for compile.py.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
os.environ["OMP_NUM_THREADS"] = "1"
HERE = Path(__file__).resolve().parent
SECONDS_A_CASE = 1200  # then it counts as hung
SWEEP = bool(os.environ.get("SYNCOPATE_SWEEP"))
FUSED_IN_SWEEPS = {"grids", "masks", "typed", "ragged", "serving"}  # families whose cases are fused only then


def families() -> list[str]:
    """Every file that states cases."""
    return sorted(p.stem for p in HERE.glob("*.py") if "\n@case\n" in p.read_text())


def run_case(name: str, folder: Path) -> list[dict]:
    import torch

    from corpus import cases, checks

    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, too_long)
    make = cases.REGISTRY[name]
    made = make(0)
    fuses = SWEEP or name.split("/")[0] not in FUSED_IN_SWEEPS
    wanted = {
        "result": (checks.check_result, bool(made.expected)),
        "footprint": (checks.check_footprint, True),
        "space": (checks.check_space, not made.refused and made.axes is not None),
        "grid": (checks.check_grid, not made.refused),
        "gather": (checks.check_gather, bool(made.gather) and fuses),
        "scatter": (checks.check_scatter, bool(made.scatter) and fuses),
    }
    outcomes = []
    for check, (function, applies) in wanted.items():
        if applies:
            outcomes.append(attempt(name, check, made, lambda function=function: function(make)))
    if made.compile is not None:
        jobs: list[dict] = []
        where = folder / name.replace("/", "_")
        where.mkdir(parents=True, exist_ok=True)
        outcome = attempt(name, "compile", made, lambda: jobs.extend(checks.emit(make, where)))
        outcome["jobs"] = jobs
        outcomes.append(outcome)
    return outcomes


def too_long(*_: object) -> None:
    raise TimeoutError(f"takes more than {SECONDS_A_CASE} s")


def attempt(name: str, check: str, made, function) -> dict:
    started = time.monotonic()
    error = ""
    signal.alarm(SECONDS_A_CASE)
    try:
        function()
    except Exception as failure:  # noqa: BLE001 - the test that asked shows it
        known = isinstance(failure, (AssertionError, RuntimeError, TypeError, ValueError, TimeoutError))
        error = (str(failure) if known else "") or "".join(traceback.format_exception(failure))
    finally:
        signal.alarm(0)
    seconds = round(time.monotonic() - started, 2)
    return {
        "case": name, "check": check, "error": error, "seconds": seconds, "xfail": made.xfail.get(check, ""),
    }  # fmt: skip


def main() -> None:
    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "python")]
    folder, wanted = Path(sys.argv[1]), sys.argv[2:]
    for family in families():
        importlib.import_module(f"corpus.{family}")
    from corpus import cases

    names = [n for n in cases.REGISTRY if not wanted or n in wanted or n.split("/")[0] in wanted]
    jobs = []
    gc.freeze()  # or each process would copy what is imported when it looks for garbage
    with multiprocessing.get_context("fork").Pool(int(os.environ.get("JOBS", os.cpu_count() or 1))) as pool:
        runs = [pool.apply_async(run_case, (name, folder)) for name in names]
        for run in runs:
            for outcome in run.get():
                jobs += [{"case": outcome["case"], **job} for job in outcome.pop("jobs", [])]
                print(json.dumps(outcome), flush=True)
    (folder / "jobs.json").write_text(json.dumps(jobs))


if __name__ == "__main__":
    main()
