"""What is chosen by the estimate for the problems of bench/results/measured.csv, and what a change of the estimate changes.

    python bench/tune/changed.py --gpu H200 --ranks 2 -o before.json           in the code of before
    python bench/tune/changed.py --gpu H200 --ranks 2 --before before.json -o changed.json

Writes {SPEC: strategy}; with --before, a list of [SPEC, strategy of before, strategy] of those that differ, for compare.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import estimate

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from syncopate import _syncopate  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="of the problems, one of so many")
    parser.add_argument("--before", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    specs = sorted(
        {
            f"{estimate.OPERATORS[row['operator']]}:M={row['M']},N={row['N']},K={row['K']},dtype=bf16"
            for row in estimate.results.read()
            if row["operator"] in estimate.OPERATORS
            and row["gpu"].split()[0] == options.gpu
            and int(row["ranks"]) == options.ranks
        }
    )[:: options.every]
    machine = estimate.machine_of(options.gpu, options.ranks)
    chosen = {}
    for spec in specs:
        made = _syncopate.tune.choose(f"{spec},ranks={options.ranks},sms=132", machine)
        chosen[spec] = json.loads(made[0].to_json())
    if not options.before:
        options.output.write_text(json.dumps(chosen, indent=0))
        return
    before = json.loads(options.before.read_text())
    changed = [
        [spec, before[spec], new] for spec, new in chosen.items() if spec in before and before[spec] != new
    ]
    print(f"{len(changed)} of {len(chosen)} differ")
    options.output.write_text(json.dumps(changed, indent=0))


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
