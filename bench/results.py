"""The table of what has been measured: bench/results/measured.csv, one line a shape and run, in µs.

    python bench/results.py REPORT.json… [--run NAME] [--commit HASH]

adds what a bench has written with --json. `--run` names a run that differs from the default, such as `own block copied`:
bench/report.py takes only runs without a name. `--commit` is the code that was measured (default: HEAD).

syncopate.bench.table names the columns.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))  # PYTHONPATH comes first

from syncopate.bench.table import lines_of, write_csv  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
TABLE = RESULTS / "measured.csv"


def read(path: Path = TABLE) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(lines: Iterable[dict[str, str]], path: Path = TABLE) -> None:
    """Adds lines at the end; makes the file if there is none."""
    write_csv(lines, path, append=True)


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
        print(f"{path}: {len(lines)} lines added to {TABLE.name}")


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
