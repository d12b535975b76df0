"""Operators over 2 to 64 nodes of eight GPUs, as the player estimates them: no GPU is needed, nothing is measured.

    python bench/nodes/scale.py --csv bench/results/nodes.csv [--operators NAME …] [--nodes 2 4 …] [--rows 8192] [--jobs 2]
    python bench/nodes/scale.py --set-up bench/results/nodes_set_up.csv        what `fuse` takes for 8 to 1,024 ranks

Each GPU's product stays as large: with more nodes the weights are cut into more parts, as in tensor parallelism, or each rank
has rows of its own, of an all-to-all. `pair` is NCCL and cuBLAS, one after the other (src/tune/play/over_nodes.hpp). Up to 64
ranks all strategies are ranked; beyond, those that were the two best there. `limit`: the longest of what a call cannot go
below: its product, its bytes on a network card, its rounds, what comes into a rank within its node, and the start-ups of the
copies that a rank makes there, one for each node and each other rank.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

COMMAND = ROOT / "build" / "bin" / "syncopate"
SET_UP = ROOT / "build" / "bin" / "bench_nodes_set_up"
PLACES = 8
RANKED = 8  # nodes: beyond, each estimate takes seconds
HIDDEN, INNER = 8192, 3584  # of the 70B model's block on eight GPUs
OPERATORS = {
    "all_gather_matmul": "M={rows},N={inner},K={hidden}",
    "matmul_reduce_scatter": "M={rows},N={hidden},K={inner}",
    "matmul_all_reduce": "M={rows},N={hidden},K={inner}",
    "all_to_all_matmul": "M={rows},N={inner},K={hidden}",
    "matmul_all_to_all": "M={rows},N={hidden},K={inner}",
    "feed_forward": "M={rows},K={hidden},F={inner},N={hidden}",
}
COLUMNS = (
    "operator",
    "rows",
    "nodes",
    "strategy",
    "us",
    "compute",
    "communicate",
    "exposed",
    "pair_us",
    "limit",
)


@dataclass(frozen=True)
class Case:
    operator: str
    rows: int
    nodes: int
    machine: str

    @property
    def spec(self) -> str:
        extents = OPERATORS[self.operator].format(rows=self.rows, hidden=HIDDEN, inner=INNER)
        return f"{self.operator}:{extents},ranks={self.nodes * PLACES},nodes={self.nodes},sms=132"


def ranked(case: Case) -> list[dict]:
    """All strategies that are not pruned, best first."""
    command = [COMMAND, "tune", case.spec, "--explain", "--json", "--machine", case.machine]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    return [one for one in json.loads(made.stdout)["strategies"] if one["pruned"] is None]


def estimated(case: Case, strategies: list[dict]) -> list[dict]:
    """The same of some strategies, as they are completed for so many ranks."""
    from syncopate import _syncopate
    from syncopate.strategy import from_json

    made = []
    for one in strategies:
        kept = {key: value for key, value in one["strategy"].items() if key not in ("tiles", "programs")}
        strategy = from_json(json.dumps(kept))
        found = _syncopate.tune.estimate(case.spec, strategy, machine=case.machine)
        if not found["objection"]:
            made.append({**one, "us": found["us"], "parts": {name: found[name] for name in one["parts"]}})
    return sorted(made, key=lambda entry: entry["us"])


def limits(case: Case, compute: float, by_engine: bool) -> dict[str, float]:
    """µs that a call cannot go below, by what makes it so."""
    machine = json.loads((ROOT / "share" / "machines" / f"{case.machine}.json").read_text())
    network = machine["network"]
    whole = case.rows * HIDDEN * 2
    shared = case.operator not in ("all_to_all_matmul", "matmul_all_to_all")
    times = 2 if case.operator in ("matmul_all_reduce", "feed_forward") else 1
    far = whole * (case.nodes - 1) / case.nodes / (PLACES if shared else 1)
    inside = json.loads((ROOT / "share" / "topologies" / f"{machine['topology']}.json").read_text())
    start_up = inside["engines"]["sm" if by_engine else "copy_engine"]["push_us"]
    return {
        "product": compute,
        "card": times * far / network["gbps"]["value"] / 1e3,
        "rounds": times * (case.nodes - 1) * network["us"]["value"],
        "start-ups": times * case.nodes * (PLACES - 1) * start_up,
        "links": times * whole * (1 - 1 / (case.nodes * PLACES)) / inside["links"][0]["gbps"] / 1e3,
    }


def row_of(case: Case, strategies: list[dict]) -> dict[str, str]:
    pair = next(one for one in strategies if one["name"] == "unfused")
    ours = next(one for one in strategies if one["name"] != "unfused")
    parts = ours["parts"]
    bounds = limits(case, parts["compute"], "_dedicated" in ours["name"])
    return {
        "operator": case.operator,
        "rows": str(case.rows),
        "nodes": str(case.nodes),
        "strategy": ours["name"],
        "us": f"{ours['us']:.0f}",
        **{name: f"{parts[name]:.0f}" for name in ("compute", "communicate", "exposed")},
        "pair_us": f"{pair['us']:.0f}",
        "limit": max(bounds, key=lambda name: bounds[name]),
    }


def rows_of(operator: str, rows: int, nodes: list[int], machine: str) -> list[dict[str, str]]:
    """Of one operator on rising numbers of nodes."""
    made: list[dict[str, str]] = []
    best: list[dict] = []
    for count in sorted(nodes):
        case = Case(operator, rows, count, machine)
        if count <= RANKED:
            strategies = ranked(case)
            fused = [one for one in strategies if one["name"] != "unfused"]
            best = [one for one in fused if one["name"].find("apart") < 0][:2] + [
                one for one in strategies if one["name"] == "unfused"
            ]
        else:
            strategies = estimated(case, best)
        made.append(row_of(case, strategies))
        print(" ".join(made[-1].values()), file=sys.stderr, flush=True)
    return made


def set_up(case: Case) -> dict[str, str]:
    """By bench_nodes_set_up (set_up.cpp)."""
    made = subprocess.run([SET_UP, case.spec], check=True, capture_output=True, text=True)
    print(made.stdout.strip(), file=sys.stderr, flush=True)
    return dict(
        zip(
            ("operator", "ranks", "seconds", "gb", "plan_seconds"),
            made.stdout.strip().split(","),
            strict=True,
        )
    )


def write(path: str, rows: list[dict[str, str]], what: str) -> None:
    with open(path, "w", newline="") as file:
        file.write(f"# {what}\n")
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", default="")
    parser.add_argument("--set-up", default="")
    parser.add_argument("--machine", default="h200x8", help="one of share/machines, with a network")
    parser.add_argument("--operators", nargs="+", default=list(OPERATORS), choices=OPERATORS)
    parser.add_argument("--nodes", nargs="+", type=int, default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.csv:
        with ProcessPoolExecutor(options.jobs) as pool:
            made = pool.map(
                rows_of,
                options.operators,
                *(
                    [value] * len(options.operators)
                    for value in (options.rows, options.nodes, options.machine)
                ),
            )
            rows = [row for rows in made for row in rows]
        write(
            options.csv,
            rows,
            f"estimates on {options.machine}, nothing measured: bench/nodes/scale.py --csv FILE",
        )
    if options.set_up:
        cases = [
            Case(name, options.rows, nodes, options.machine)
            for name in options.operators
            for nodes in options.nodes
        ]
        write(
            options.set_up,
            [set_up(case) for case in cases],
            "CPU seconds, GB: bench/nodes/scale.py --set-up FILE",
        )
    return 0


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        code = main()
    sys.exit(code)
