"""How good the estimate is for shapes that its figures have not seen: each family of shapes (one model's hidden size
and F) in turn is held out, the figures are fitted anew to the other families alone, and the held-out lines are
predicted. No GPU.

    python bench/tune/holdout.py                     all families: about ten minutes on one core
    python bench/tune/holdout.py --families 8B,70B
    python bench/tune/holdout.py --folds 3           in three groups of families, each held out in turn: quicker, and harder

What is fitted: FITTED, each one factor on the figures of all machine files, from a random start within 0.7 to 1.4 of what these
say, by coordinate descent on the mean error of a time; and the collectives' times, whose curves are drawn through the other
families' lines only. Links, copy engines and the model's own terms are as shipped: the terms were chosen with all lines
in sight, so this holds out shapes, not the idea of the model.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import estimate
import fit
import results

ROOT = Path(__file__).resolve().parents[2]
FITTED = (
    "sm_tflops",
    "sm_load_gbps",
    "tile_us",
    "fused_us",
    "copied_part_us",
    "store_stall_gbps",
    "beside_sums",
    "sum_us",
    "read_gbps",
    "crossing_gbps",
)
TABLES = ("tile_store_gbps", "engine_gbps", "engine_sum_gbps")
CURVES = {
    "ag_gemm": "library_gather_us",
    "gemm_rs": "library_scatter_us",
    "gemm_ar": "library_reduce_us",
    "a2a_gemm": "library_exchange_us",
}
STEPS = (1.3, 1.3, 1.12, 1.05)
MOST_LINES = 80  # of those that figures are fitted to
RANKS = (2, 4, 8)


class Machines:
    """The machine files with factors on their figures, written where the estimate reads them."""

    def __init__(self, folder: Path, rows: Sequence[dict[str, str]]) -> None:
        self.folder = folder
        self.files = {
            ranks: json.loads((ROOT / "share" / "machines" / f"h200x{ranks}.json").read_text())
            for ranks in RANKS
        }
        for ranks, machine in self.files.items():
            for operator, table in CURVES.items():
                points = curve(rows, operator, ranks)
                if len(points) > 1:
                    machine["tables"][table]["points"] = points

    def write(self, factors: fit.Factors) -> None:
        for ranks, machine in self.files.items():
            self.path(ranks).write_text(json.dumps(fit.scaled(machine, factors)))

    def path(self, ranks: int) -> Path:
        return self.folder / f"h{ranks}.json"

    def of(self, ranks: int) -> str:
        return str(self.path(min((n for n in RANKS if n >= ranks), default=8)))


def curve(rows: Sequence[dict[str, str]], operator: str, ranks: int) -> list[list[float]]:
    """(MiB into a rank in a step, µs) of the library's collective: medians of the lines of one size."""
    by_size: dict[float, list[float]] = defaultdict(list)
    for row in rows:
        if row["operator"] != operator or int(row["ranks"]) != ranks or not row["collective"]:
            continue
        columns = int(row["K"] if operator in ("ag_gemm", "a2a_gemm") else row["N"])
        mib = int(row["M"]) * columns * 2 * (ranks - 1) / ranks / 2**20
        by_size[round(mib, 3)].append(float(row["collective"]))
    return [[mib, statistics.median(times)] for mib, times in sorted(by_size.items())]


def loss(lines: Sequence[estimate.Line], machines: Machines, factors: fit.Factors) -> float:
    machines.write(factors)
    errors = []
    for line in lines:
        line.again(machines.of(int(line.row["ranks"])))
        errors += [abs(math.log(guess / us)) for us, guess in line.times.values()]
    return statistics.mean(errors)


def fitted(lines: Sequence[estimate.Line], machines: Machines, seed: int) -> tuple[fit.Factors, float, float]:
    """Factors, and the loss before and after."""
    chance = random.Random(seed)
    start = {name: chance.uniform(0.7, 1.4) for name in (*FITTED, *TABLES)}
    some = chance.sample(list(lines), min(MOST_LINES, len(lines)))
    begin = loss(some, machines, start)
    factors, end = fit.descend(lambda factors: loss(some, machines, factors), start, STEPS)
    return factors, begin, end


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", default="")
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = [row for row in results.read() if row["gpu"] == "H200"]
    lines = [line for line in estimate.tabled() if line.row["gpu"] == "H200"]
    families = sorted({line.row["model"] for line in lines})
    chosen = options.families.split(",") if options.families else families
    folds = [chosen[at :: options.folds] for at in range(options.folds)] or [[family] for family in chosen]
    predicted: list[estimate.Line] = []
    with tempfile.TemporaryDirectory() as folder:
        for fold in folds:
            others = [line for line in lines if line.row["model"] not in fold]
            machines = Machines(Path(folder), [row for row in rows if row["model"] not in fold])
            factors, begin, end = fitted(others, machines, options.seed)
            machines.write(factors)
            held = [line for line in lines if line.row["model"] in fold]
            for line in held:
                line.again(machines.of(int(line.row["ranks"])))
            predicted += [copy.copy(line) for line in held]  # as one of the others it is estimated again
            families_of = ",".join(fold)
            print(
                f"# {families_of}: error {begin:.3f} -> {end:.3f} on the others", file=sys.stderr, flush=True
            )
            print(estimate.summary(f"{families_of[:24]} held out", held), flush=True)
    print(f"{'':34} lines, problems, strategies; regret: mean, worst; correlation; error (median)")
    print(estimate.summary("all, each held out", predicted))
    for operator in estimate.OPERATORS:
        some = [line for line in predicted if line.row["operator"] == operator]
        if some:
            print(estimate.summary(operator, some))
    return 0


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        code = main()
    sys.exit(code)
