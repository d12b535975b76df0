"""Fits the figures of a machine file to what was measured there: searches and the lines of bench/results. No GPU.

    python bench/tune/fit.py h200x4 [--figures sum_us,store_us] [--since 2026-11-26] [-o FILE]

By coordinate descent, each figure times a factor, on the mean of two errors of a time: its own, and its error beside those of the
problem's other strategies, which is what choosing depends on. Strategies that are far from their problem's fastest one count
less. A figure moves only where that gains more than PULL of its logarithm, so that what was measured by itself stays. Prints
what moved, error and regret before and after; -o writes the machine file, whose figures' sources then say so.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import estimate

MACHINES = Path(__file__).resolve().parents[2] / "share" / "machines"
#: What is not measured by itself, or not as it is in a call.
FIGURES = (
    "sm_tflops sm_load_gbps tile_us again_gbps fused_us kernel_us "
    "phase_us gluon_phase_us long_plain beside_sums sum_gbps sum_us store_gbps store_stall_gbps store_us crossing_gbps "
    "read_gbps copied_part_us engine_ldst pulled_slow_gbps engine_sum_gbps"
).split()
#: Of these, what is more than 1. One that is 1 stays.
FROM_ONE = ("long_plain", "beside_sums")
STEPS = (1.3, 1.12, 1.05, 1.03)
MOST = 3.0  # factor on a figure
PULL = 8e-4
NEAR = 5.0  # weight of a strategy: exp(-NEAR · (its time over the fastest one's - 1))

Json = dict[str, Any]
Factors = dict[str, float]


def scaled(machine: Json, factors: Factors) -> Json:
    """A machine file with factors on its figures and tables."""
    made = json.loads(json.dumps(machine))
    for name, factor in factors.items():
        if factor == 1:
            continue
        if name in made["tables"]:
            table = made["tables"][name]
            table["points"] = [[x, y * factor] for x, y in table["points"]]
        elif name in FROM_ONE:
            made["figures"][name]["value"] = 1 + (made["figures"][name]["value"] - 1) * factor
        else:
            made["figures"][name]["value"] *= factor
    return made


def descend(
    loss: Callable[[Factors], float], factors: Factors, steps: Sequence[float] = STEPS
) -> tuple[Factors, float]:
    """The factors with the least loss that changing one at a time finds, and that loss."""
    least = loss(factors)
    for step in steps:
        for name in factors:
            for factor in (step, 1 / step):
                changed = factors | {name: factors[name] * factor}
                if not 1 / MOST <= changed[name] <= MOST:
                    continue
                now = loss(changed)
                if now < least:
                    least, factors = now, changed
    return factors, least


def error_of(lines: Iterable[estimate.Line]) -> float:
    """The mean error that is fitted."""
    problems: dict[str, list[tuple[float, float]]] = defaultdict(list)  # (µs, logarithm of how far it is off)
    for line in lines:
        problems[line.problem] += [(us, math.log(us / guess)) for us, guess in line.times.values()]
    total = weight = 0.0
    for times in problems.values():
        fastest = min(us for us, _ in times)
        weights = [math.exp(-NEAR * (us / fastest - 1)) for us, _ in times]
        mean = sum(w * off for w, (_, off) in zip(weights, times, strict=True)) / sum(weights)
        total += sum(w * (abs(off) + abs(off - mean)) / 2 for w, (_, off) in zip(weights, times, strict=True))
        weight += sum(weights)
    return total / weight


def rounded(value: float) -> float:
    near = float(f"{value:.3g}")
    return int(near) if near == int(near) else near


def to_text(machine: Json) -> str:
    """As the files of share/machines are laid out: a line a figure."""

    parts = ("network", "figures", "tables")

    def part(name: str) -> str:
        lines = (
            f"  {json.dumps(key)}: {json.dumps(one, ensure_ascii=False)}"
            for key, one in machine[name].items()
        )
        return f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "}"

    heads = [
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in machine.items()
        if name not in parts
    ]
    return "{" + ",\n ".join([*heads, *(part(name) for name in parts if name in machine)]) + "}\n"


def write_fitted(machine: Json, factors: Factors, source: str) -> Json:
    """The machine file with the figures that moved, rounded."""
    fitted = scaled(machine, factors)
    for name, factor in factors.items():
        if factor == 1:
            continue
        if name in fitted["tables"]:
            table = fitted["tables"][name]
            table["points"], table["source"] = [[x, rounded(y)] for x, y in table["points"]], source
        elif (value := rounded(fitted["figures"][name]["value"])) != machine["figures"][name]["value"]:
            fitted["figures"][name] |= {"value": value, "source": source}
        else:
            fitted["figures"][name] = machine["figures"][name]
    return fitted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine", help="a name of share/machines")
    parser.add_argument("--figures", default=",".join(FIGURES))
    parser.add_argument("--since", default="", help="lines of that date and later; searches always")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    known = sorted(file.stem for file in MACHINES.glob("*.json"))
    if options.machine not in known:
        parser.error(f"{options.machine}: expected one of {', '.join(known)}")
    machine = json.loads((MACHINES / f"{options.machine}.json").read_text())
    names = options.figures.split(",")
    unknown = [name for name in names if name not in {**machine["figures"], **machine["tables"]}]
    if unknown:
        parser.error(f"{options.machine} has no figure {unknown[0]}")
    lines = [one for one in estimate.tabled() if one.row["date"] >= options.since] + estimate.searched()
    lines += estimate.compared()
    lines = [line for line in lines if line.machine == options.machine]
    if not lines:
        parser.error(f"nothing was measured on {options.machine} since {options.since or 'the beginning'}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "machine.json"

        def loss(factors: Factors) -> float:
            file.write_text(json.dumps(scaled(machine, factors)))
            for line in lines:
                line.again(str(file))
            return error_of(lines) + PULL * sum(abs(math.log(factor)) for factor in factors.values())

        print(estimate.summary("before", lines))
        factors, _ = descend(loss, dict.fromkeys(names, 1.0))
        loss(factors)
        print(estimate.summary("fitted", lines))
    calls = sum(len(line.times) for line in lines)
    fitted = write_fitted(
        machine, factors, f"fitted to {calls} calls, {max(line.row['date'] for line in lines)}"
    )
    for name, factor in factors.items():
        if factor != 1 and name in machine["figures"]:
            print(f"{name}: {machine['figures'][name]['value']} -> {fitted['figures'][name]['value']}")
        elif factor != 1:
            print(f"{name}: times {factor:.3f}")
    if options.output:
        options.output.write_text(to_text(fitted))
    return 0


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        code = main()
    sys.exit(code)
