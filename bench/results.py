"""The table of what has been measured: bench/results/measured.csv, one line a shape and run, in µs.

    python bench/results.py REPORT.json… [--run NAME] [--commit HASH]

adds what a bench has written with --json, and keeps the report itself as the latest of its operators and number of GPUs
(bench/results/ag_gemm_2xH200.json). `--run` names a run that differs from the default, such as `own block copied`:
bench/report.py takes only runs without a name. `--commit` is the code that was measured (default: HEAD).

    date, commit, run     when, of what code, and the name of a run that differs from the default
    gpus, gpu, ranks      `ranks` is more than `gpus` where two GPUs stand for one of so many ranks
    operator, model, M, N, K
    cublas, triton        the product alone; our unmodified kernel alone
    alone                 our fused kernel alone
    collective            NCCL's collective alone
    unfused, unfused_eager    collective and product one after the other; eager, where `unfused` is a CUDA graph
    async_tp, two_shot, one_shot    torch's operators
    ours, ours_eager      as a CUDA graph, and not
    ours_elsewhere        with x (or y) in a tensor of the caller, where `ours` has it in the heap
    other                 more rows, NAME=µs, with spaces between them
    visible               rows with the host's time visible, likewise
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
TABLE = RESULTS / "measured.csv"

KEYS = ["date", "commit", "run", "gpus", "gpu", "ranks", "operator", "model", "M", "N", "K"]
ROWS = {  # row of a bench → column
    "mm": "cublas",
    "triton": "triton",
    "local": "alone",
    "ag": "collective",
    "rs": "collective",
    "ar": "collective",
    "a2a": "collective",
    "nccl+mm": "unfused",
    "mm+nccl": "unfused",
    "nccl": "unfused",
    "unfused": "unfused",
    "mm+nccl-e": "unfused_eager",
    "nccl-e": "unfused_eager",
    "async-tp": "async_tp",
    "mm+2shot": "two_shot",
    "mm+1shot": "one_shot",
    "graph": "ours",
    "ours": "ours_eager",
    "ours-x": "ours_elsewhere",
    "copied": "ours_elsewhere",
}
COLUMNS = [*KEYS, *dict.fromkeys(ROWS.values()), "other", "visible", "versions"]

OPERATORS = {  # title of a bench → name in files and on the command line of bench/report.py
    "all-gather + GEMM": "ag_gemm",
    "GEMM + reduce-scatter": "gemm_rs",
    "GEMM + all-reduce": "gemm_ar",
    "all-to-all + GEMM": "a2a_gemm",
    "GEMM + all-to-all": "gemm_a2a",
}


def read(path: Path = TABLE) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(lines: Iterable[dict[str, str]], path: Path = TABLE) -> None:
    """Adds lines at the end; makes the file if there is none."""
    begin = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if begin:
            writer.writeheader()
        writer.writerows(lines)


def packed(times: dict[str, float]) -> str:
    return " ".join(f"{name}={us:.1f}" for name, us in times.items())


def unpacked(text: str) -> dict[str, float]:
    """The inverse of packed. A name may hold "=", but no space."""
    return {name: float(us) for name, _, us in (item.rpartition("=") for item in text.split())}


def line_of(keys: dict[str, Any], hidden: dict[str, float], visible: dict[str, float]) -> dict[str, str]:
    """One line of the table; `hidden` and `visible` by the names that the bench gives its rows."""
    line = {name: str(value) for name, value in keys.items()}
    other = {}
    for name, us in hidden.items():
        if name in ROWS and ROWS[name] not in line:
            line[ROWS[name]] = f"{us:.1f}"
        else:
            other[name] = us
    return {**line, "other": packed(other), "visible": packed(visible)}


def lines_of(report: dict[str, Any], run: str = "", commit: str = "") -> list[dict[str, str]]:
    """What a report of ag_gemm, gemm_rs, emulated, gemm_ar or a2a_gemm measured."""
    gpus, _, gpu = report["machine"].partition(" x ")
    versions = f"torch {report['torch']}, NCCL {report.get('nccl', '?')}, driver {report.get('driver', '?')}"
    lines = []
    for entry in report["table"]:
        rows = entry.get("rows")
        if not rows:
            continue
        keys = {
            "date": report["date"],
            "commit": commit,
            "run": run,
            "gpus": gpus,
            "gpu": gpu.removeprefix("NVIDIA "),
            "ranks": report.get("ranks", gpus),
            "operator": OPERATORS[entry.get("operator", "GEMM + reduce-scatter")],
            **{name: entry[name] for name in ("model", "M", "N", "K")},
            "versions": versions,
        }
        hidden = {name: times["hidden_us"] for name, times in rows.items()}
        visible = {name: times["visible_us"] for name, times in rows.items() if "visible_us" in times}
        lines.append(line_of(keys, hidden, visible))
    return lines


def write_report(report: dict[str, Any], path: Path) -> None:
    """JSON with one line for each thing measured."""
    entries = next((name for name in ("table", "rows") if isinstance(report.get(name), list)), None)
    head = {name: value for name, value in report.items() if name != entries}
    text = json.dumps(_rounded(head), indent=1, ensure_ascii=False)
    if entries is not None:
        table = ",\n  ".join(json.dumps(_rounded(entry), ensure_ascii=False) for entry in report[entries])
        text = f'{text[:-2]},\n "{entries}": [\n  {table}\n ]\n}}'
    path.write_text(text + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def latest_name(report: dict[str, Any]) -> str:
    """a2a_gemm and gemm_a2a are one bench and one report."""
    gpus, _, gpu = report["machine"].partition(" x ")
    name = OPERATORS[report["table"][0].get("operator", "GEMM + reduce-scatter")]
    emulated = f"_{report['ranks']}_emulated" if "ranks" in report else ""
    return f"{name}{emulated}_{gpus}x{gpu.removeprefix('NVIDIA ')}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--run", default="", help="the name of a run that differs from the default")
    parser.add_argument("--commit", default="", help="of the code that was measured (default: HEAD)")
    options = parser.parse_args()
    head = ["git", "rev-parse", "--short=7", "HEAD"]
    commit = options.commit or subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    for path in options.reports:
        report = json.loads(path.read_text())
        if " x " not in report["machine"]:
            raise SystemExit(f"{path}: measured on {report['machine']}: such times are not kept")
        lines = lines_of(report, options.run, commit)
        append(lines)
        if not options.run:
            write_report(report, RESULTS / latest_name(report))
        print(f"{path}: {len(lines)} lines added to {TABLE.name}")


if __name__ == "__main__":
    main()
