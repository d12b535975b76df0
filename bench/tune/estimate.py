"""How good the estimate is: against all strategies that bench/results holds, in measured.csv and in what searches have
measured (tuning_*.json, as `syncopate tune --export` writes them), and pairs that compare.py has (compared_*.json), with no GPU.

    python bench/tune/estimate.py                    rank correlation and regret of problems not used for the figures
    python bench/tune/estimate.py --all              of all problems
    python bench/tune/estimate.py --lines            also each problem: what the estimate chose, and what was best

A problem here is one line of the table, or one search: strategies measured in one run, one after another. Its *regret* is the
time of the strategy that the estimate puts first over the fastest one's, of three or more strategies; its *correlation* is
Spearman's, of the estimated and measured times of four or more. The figures of share/machines were set by lines of the models
8B and 405B (FITTED), by all searches, and by lines that name their strategy (fit.py); the other lines are the test.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import results  # noqa: E402
from syncopate import _syncopate  # noqa: E402
from syncopate.bench.table import SHORT, unpacked  # noqa: E402
from syncopate.strategy import Strategy  # noqa: E402

FITTED = ("8B", "405B")
#: Operators around one product, by their names in the table.
OPERATORS = {
    SHORT[name]: name
    for name in (
        "all_gather_matmul",
        "matmul_reduce_scatter",
        "matmul_all_reduce",
        "all_to_all_matmul",
        "matmul_all_to_all",
    )
}
WIDE = {"block_m": 128, "block_n": 256, "block_k": 64, "stages": 4}
NARROW = {"block_m": 128, "block_n": 128, "block_k": 64, "stages": 6}
TURNS = "2026-11-26"  # since when chunks that tiles store take turns
FEWEST = 3  # strategies of a line, for a regret: more than ours and the pair
LEAST = 4  # likewise, for a correlation

Json = dict[str, Any]


def cut_of(name: str) -> Json | None:
    """ "graph[2x1]": chunks of a shard, in slices along K, by copies."""
    for begin in ("graph[", "["):
        if name.startswith(begin) and name.endswith("]"):
            numbers = name.removeprefix(begin).removesuffix("]").split("x")
            if len(numbers) == 2 and all(n.isdecimal() for n in numbers):
                rows, slices = map(int, numbers)
                made: Json = {"backend": "copy_engine", "chunking": {"rows": rows, "slices": slices}}
                return made | ({"tiles": [WIDE]} if slices > 1 else {})
    return None


def backend_of(name: str) -> Json | None:
    """ "tma_dedicated:8": every transfer by it."""
    backend, _, blocks = name.partition(":")
    if backend not in ("copy_engine", "tma_dedicated", "ldst_dedicated", "tma_inline"):
        return None
    return {"backend": backend} | ({"engine_blocks": int(blocks)} if blocks else {})


def way_of(name: str, operator: str) -> Json | None:
    """ "beside:16:4": how a reduction is made."""
    if name.startswith("col="):  # its name while it was a prototype
        name = "beside:" + name.removeprefix("col=").replace(".", ":")
    if name.startswith(("B=tma_inline", "part=tma_inline")):
        split = name.rpartition(".")[2]
        name = f"rows:{split}" if split.isdecimal() and split != "1" else "inline"
    kind, *rest = name.split(":")
    if not all(number.isdecimal() for number in rest):
        return None
    numbers = [int(number) for number in rest]
    first = numbers[0] if numbers else 1
    parts: Json = {"split": first, "split_axis": 1} if first > 1 else {"split": 1}
    copied = {"backend": "copy_engine"} if operator == "gemm_rs" else {}
    if kind == "beside" and len(numbers) == 2:
        return {
            "pull": True,
            "backend": "ldst_dedicated",
            "engine_blocks": numbers[0],
            "split": numbers[1],
            "split_axis": 1,
        }
    if kind == "inline":
        return {"backend": "tma_inline"} | parts
    if kind == "rows":
        return {"backend": "tma_inline", "split": first}
    if kind == "mixed":
        return {"stored": first, "split": 1}
    if kind == "narrow":
        return {"stored": first, "tiles": [NARROW], "split": 1}
    if kind == "fused":
        if operator == "gemm_ar" and not numbers:
            return {}  # in as many parts as are chosen
        return copied | parts
    if kind == "pulled":
        return {"pull": True, "backend": "ldst_inline"} | parts
    return None


def strategy_of(name: str, operator: str) -> Json | None:
    """What a row of the table measured that has only a name: all of these are older than the Gluon kernel. None: what is no
    strategy of today."""
    made = named_strategy(name, operator)
    return made if made is None else made | {"kernel": "plain"}


def named_strategy(name: str, operator: str) -> Json | None:
    if operator in ("gemm_rs", "gemm_ar"):
        way = way_of(name, operator)
        if way is not None:
            return way
    if operator == "ag_gemm":
        cut = cut_of(name)
        if cut is not None:
            return cut
    made = backend_of(name)
    if made is not None and operator in ("ag_gemm", "a2a_gemm"):
        made["chunking"] = {}
    return made


class Line:
    """Strategies of one problem, measured in one run: name → (measured, estimated) µs. Of `row` the columns of measured.csv that
    say which. `elsewhere`: of calls that leave the result in a tensor of the caller's; the bench takes it where it is made."""

    def __init__(
        self, row: dict[str, str], measured: Iterable[tuple[str, float, Json]], elsewhere: bool = False
    ) -> None:
        self.row, self.elsewhere = row, elsewhere
        spec = f"{OPERATORS[row['operator']]}:M={row['M']},N={row['N']},K={row['K']},dtype=bf16"
        self.problem = f"{spec},ranks={row['ranks']},sms=132"
        self.machine = machine_of(row["gpu"], int(row["ranks"]))
        self.strategies: dict[str, Strategy] = {}
        self.times: dict[str, tuple[float, float]] = {}
        for name, us, strategy in measured:
            try:
                given = Strategy.from_json(json.dumps(strategy))
            except ValueError:  # of before, by what was taken out
                continue
            made = _syncopate.tune.estimate(self.problem, given, self.machine)
            if not made["objection"]:
                self.strategies[name] = given
                self.times[name] = (us, self.us_of(made))

    def us_of(self, made: Json) -> float:
        return made["us"] - (0 if self.elsewhere else made["copied"])

    def again(self, machine: str) -> None:
        """Estimates all on another machine."""
        self.times = {
            name: (us, self.us_of(_syncopate.tune.estimate(self.problem, self.strategies[name], machine)))
            for name, (us, _) in self.times.items()
        }

    @property
    def chosen(self) -> str:
        return min(self.times, key=lambda name: self.times[name][1])

    @property
    def best(self) -> str:
        return min(self.times, key=lambda name: self.times[name][0])

    @property
    def regret(self) -> float:
        return self.times[self.chosen][0] / self.times[self.best][0]

    @property
    def correlation(self) -> float | None:
        if len(self.times) < LEAST:
            return None
        return spearman(*zip(*self.times.values(), strict=True))

    def __str__(self) -> str:
        r = self.row
        where = (
            f"{r['operator']:8} {r['model']:9} M={r['M']:>5} {self.machine} {r['date']} {r['run'][:24]:24}"
        )
        (us, guess), (best, best_guess) = self.times[self.chosen], self.times[self.best]
        return (
            f"{where} {len(self.times):2}  {self.regret:5.3f}  chose {self.chosen} {us:.0f} (estimated {guess:.0f}), "
            f"best {self.best} {best:.0f} ({best_guess:.0f})"
        )


def of_other_order(row: dict[str, str], strategy: Json) -> bool:
    """Whether a line is older than today's order of its tiles: those that store all that leaves a rank take turns
    (fuse/passes/order.hpp)."""
    stores = strategy.get("backend") == "tma_inline" and strategy.get("split", 1) == 1
    return stores and row["date"] < TURNS and row["operator"] in ("gemm_rs", "gemm_ar", "gemm_a2a")


def measured_in(row: dict[str, str]) -> Iterator[tuple[str, float, Json]]:
    """(name, µs, strategy) of each row of a line of measured.csv that is a strategy of today."""
    reduces = row["operator"] == "gemm_ar"  # today's pair takes torch's two-shot, which old lines lack
    if row["unfused"] and (row["two_shot"] or not reduces):
        pair = min(float(row[name]) for name in ("unfused", "two_shot") if row[name])
        yield "unfused", pair, {"placement": "unfused"}
    named = json.loads(row["strategies"] or "{}")
    if "ours" in named:
        yield "ours", float(row["ours"]), named["ours"]
    for name, us in unpacked(row["other"]).items():
        if name in named:
            yield name, us, named[name]
        elif (strategy := strategy_of(name, row["operator"])) is not None and not of_other_order(
            row, strategy
        ):
            yield name, us, strategy


def sets_figures(row: dict[str, str]) -> bool:
    """Whether figures were set by a line: fit.py takes all that name their strategy."""
    return row["model"] in FITTED or bool(row["strategies"])


def tabled() -> list[Line]:
    """The lines of measured.csv in which two strategies or more can be compared."""
    rows = [
        row for row in results.read() if row["operator"] in OPERATORS and not row["run"].startswith("fp8")
    ]
    lines = [Line(row, measured_in(row)) for row in rows]
    return [line for line in lines if len(line.times) > 1]


def searched() -> list[Line]:
    """What searches have measured, a line each."""
    lines = []
    for file in sorted(results.RESULTS.glob("tuning_*.json")):
        for result in json.loads(file.read_text())["results"]:
            operator, _, family = result["family"].partition(":")
            row = dict(part.split("=") for part in family.split(","))
            row |= {
                "M": str(result["rows"]),
                "ranks": str(result["ranks"]),
                "model": f"{row['N']}x{row['K']}",
            }
            row["operator"] = SHORT[operator]
            row |= {"gpu": result["device"].removeprefix("NVIDIA "), "date": "", "run": "search"}
            trials = [one for one in result["trials"] if one["rounds"] > 0 and not one["refused"]]
            lines.append(Line(row, [(one["name"], one["us"], one["strategy"]) for one in trials]))
    return lines


def compared() -> list[Line]:
    """What compare.py has measured, a line each: strategies that took turns."""
    lines = []
    for file in sorted(results.RESULTS.glob("compared_*.json")):
        of = json.loads(file.read_text())
        for spec, times in of["compared"]:
            name, _, rest = spec.partition(":")
            row = {key: value for key, value in (part.split("=") for part in rest.split(","))}
            row |= {"operator": SHORT[name], "gpu": of["gpu"], "ranks": str(of["ranks"]), "date": of["date"]}
            row |= {"model": f"{row['N']}x{row['K']}", "run": "compared"}
            named = [(str(at), us, strategy) for at, (strategy, us) in enumerate(times)]
            lines.append(Line(row, named, elsewhere=True))
    return [line for line in lines if len(line.times) > 1]


def machine_of(gpu: str, ranks: int) -> str:
    """The machine file of so many ranks; "H100 80GB HBM3"."""
    kind = gpu.split()[0].lower()
    known = (2, 4) if kind == "h100" else (2, 4, 8)
    return f"{kind}x{min((n for n in known if n >= ranks), default=known[-1])}"


def ranks_of(values: Sequence[float]) -> list[float]:
    """Places in rising order; equal values share theirs."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    x, y = ranks_of(a), ranks_of(b)
    if len(set(x)) < 2 or len(set(y)) < 2:
        return 0.0
    return statistics.correlation(x, y)


def summary(title: str, lines: Sequence[Line]) -> str:
    compared = [line for line in lines if len(line.times) >= FEWEST]
    problems = {(line.machine, line.problem) for line in lines}
    errors = [abs(guess / us - 1) for line in lines for us, guess in line.times.values()]
    regret, worst, correlation = "-", "-", "-"
    if compared:
        regrets = [line.regret for line in compared]
        regret, worst = f"{statistics.mean(regrets):.3f}", f"{max(regrets):.2f}"
    if correlations := [line.correlation for line in lines if line.correlation is not None]:
        correlation = f"{statistics.mean(correlations):.2f}"
    error = f"{100 * statistics.median(errors):.0f} %" if errors else "-"
    return f"{title:34} {len(lines):4} {len(problems):4} {len(errors):5}  {regret:>5}  {worst:>4}   {correlation:>5}   {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="also lines that the figures were set by")
    parser.add_argument("--lines", action="store_true", help="print each line")
    parser.add_argument("--fitted", action="store_true", help="only lines that the figures were set by")
    parser.add_argument("--rows", default="", help="print all strategies of lines whose text holds this")
    options = parser.parse_args()
    lines = [one for one in tabled() if options.all or sets_figures(one.row) == options.fitted]
    searches = searched() + compared() if options.all or options.fitted else []
    lines += searches
    if options.lines:
        for line in sorted(lines, key=lambda one: -one.regret):
            print(line)
    for line in lines:
        if options.rows and options.rows in f"{line} ":
            print(line)
            for name, (us, guess) in sorted(line.times.items(), key=lambda item: item[1][0]):
                print(f"      {name:16} {us:7.1f} {guess:7.1f}")
    print(f"{'':34} lines, problems, strategies; regret: mean, worst; correlation; error (median)")
    print(summary("all", lines))
    if searches:
        print(summary("searches", searches))
    for operator in OPERATORS:
        for ranks in ("2", "4", "8"):
            some = [one for one in lines if one.row["operator"] == operator and one.row["ranks"] == ranks]
            if some:
                print(summary(f"{operator}, {ranks} ranks", some))
    return 0


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        code = main()
    sys.exit(code)
