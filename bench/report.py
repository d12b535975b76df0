"""Markdown tables of what has been measured, from bench/results/measured.csv.

    python bench/report.py                       writes the tables of README.md, docs/performance.md and results/tables.md
    python bench/report.py --check               exit 1 where one of them is not what the data say
    python bench/report.py --table gemm_rs --gpus 4      prints one, with all rows, µs

A table stands between `<!-- table: NAME ARGUMENTS -->` and `<!-- end of table -->`. Each figure is that of the last run of
its shape that has no name (a name says that it differs from the default). GPUs are `2`, of H200s, or `2xH100`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import report_others  # noqa: E402
import results  # noqa: E402
from syncopate.bench.table import ROWS, TITLES, markdown_table, unpacked  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/performance.md", "docs/nodes.md", "bench/results/tables.md")
MODELS = ("8B", "70B", "GPT-3", "405B")  # of these the means are taken
PEERS = ("unfused", "async_tp", "two_shot", "one_shot")
BLOCK = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
LINK_GB_PER_S = 380  # copy engine of H200, one direction


class Shape:
    """The last default run of one shape."""

    def __init__(self, line: dict[str, str]) -> None:
        self.line = line
        self.operator, self.model = line["operator"], line["model"]
        self.m, self.n, self.k = (int(line[name]) for name in ("M", "N", "K"))
        gpu = line["gpu"].split()[0]
        self.gpus = line["gpus"] if gpu == "H200" else f"{line['gpus']}x{gpu}"

    def us(self, column: str) -> float | None:
        return float(self.line[column]) if self.line[column] else None

    @property
    def ours(self) -> float:
        return float(self.line["ours"])

    @property
    def best(self) -> float:
        """The fastest of what people run today."""
        return min(us for us in map(self.us, PEERS) if us is not None)

    @property
    def speed(self) -> float:
        """Over the best; more than 1: ours is faster."""
        return self.best / self.ours

    @property
    def bound(self) -> float:
        """Ours over the longer of the product alone and its bytes on the link."""
        sent = self.m - self.m // int(self.line["gpus"])
        sent *= self.k if self.operator in ("ag_gemm", "a2a_gemm") else self.n
        sent *= 2 if self.operator == "gemm_ar" else 1
        return self.ours / max(self.us("cublas") or 0.0, 2 * sent / (LINK_GB_PER_S * 1e3))


Shapes = dict[tuple[str, str, str, int], Shape]


def latest(lines: Sequence[dict[str, str]]) -> Shapes:
    """(operator, GPUs, model, M) → its last default run."""
    found: Shapes = {}
    for line in lines:
        if not line["run"] and line["gpus"] == line["ranks"] and line["ours"] and line["unfused"]:
            shape = Shape(line)
            key = (shape.operator, shape.gpus, shape.model, shape.m)
            found.pop(key, None)
            found[key] = shape
    return found


def mean(shapes: Sequence[Shape]) -> str:
    return f"{statistics.geometric_mean(shape.speed for shape in shapes):.2f}" if shapes else ""


def summary(shapes: Shapes, *gpus: str) -> str:
    """Geometric means over the best peer: a line for each operator and number of GPUs."""
    every_m = sorted({m for _, count, model, m in shapes if count in gpus and model in MODELS})
    rows = []
    for operator, title in TITLES.items():
        for count in gpus:
            cells = [
                mean([s for s in map(shapes.get, ((operator, count, name, m) for name in MODELS)) if s])
                for m in every_m
            ]
            if any(cells):
                rows.append([title, count, *cells])
    return markdown_table(["operator", "GPUs", *(f"M = {m}" for m in every_m)], rows)


def speeds(shapes: Shapes, operator: str, *gpus: str) -> str:
    """A line for each model; ours, and in brackets how many times as fast as the best peer, by GPUs and M."""
    columns = [
        (count, m)
        for count in gpus
        for m in sorted({m for name, of, _, m in shapes if (name, of) == (operator, count)})
    ]
    rows = []
    for model in dict.fromkeys((*MODELS, *(model for name, _, model, _ in shapes if name == operator))):
        found = [shapes.get((operator, count, model, m)) for count, m in columns]
        if any(found):
            rows.append([model, *(f"{s.ours:.0f} ({s.speed:.2f})" if s else "" for s in found)])
    head = [f"{count.replace('x', ' ')} GPUs: {m}" if i == 0 or columns[i - 1][0] != count else str(m)
            for i, (count, m) in enumerate(columns)]  # fmt: skip
    return markdown_table(["model", *head], rows)


def when(shapes: Shapes) -> str:
    """Which code was measured when."""
    rows = []
    for operator, title in TITLES.items():
        for count in sorted({count for name, count, _, _ in shapes if name == operator}):
            runs: dict[tuple[str, str], list[int]] = {}
            for shape in shapes.values():
                if (shape.operator, shape.gpus) == (operator, count):
                    runs.setdefault((shape.line["date"], shape.line["commit"]), []).append(shape.m)
            text = [
                f"{date} ({commit}): M = {', '.join(map(str, sorted(set(every_m))))}"
                for (date, commit), every_m in sorted(runs.items())
            ]
            rows.append([title, count, "; ".join(text)])
    return markdown_table(["operator", "GPUs", "date (commit): shapes"], rows)


def backends(shapes: Shapes, gpus: str) -> str:
    """The runs in which every transfer went by one backend; `NAME:n`: with n multiprocessors."""
    lines = [line for line in results.read() if line["run"] == "backends" and line["gpus"] == gpus]
    times = [unpacked(line["other"]) for line in lines]
    names = sorted(
        {name for row in times for name in row}, key=lambda name: (name.split(":")[0], len(name), name)
    )
    rows = []
    for line, row in zip(lines, times, strict=True):
        cells = [f"{row[name]:.0f}" if name in row else "" for name in names]
        rows.append(
            [TITLES[line["operator"]], line["model"], line["M"], f"{float(line['unfused']):.0f}", *cells]
        )
    return markdown_table(["operator", "model", "M", "unfused", *(f"`{name}`" for name in names)], rows)


def host_time(shapes: Shapes, gpus: str) -> str:
    """Of an eager call: the host's time."""
    machine = gpus if "x" in gpus else f"{gpus}xH200"
    report = json.loads((results.RESULTS / f"host_time_{machine}.json").read_text())
    rows = []
    for e in report["table"]:
        ours, torch = e["ours_us"], e["pair_us"]
        rows.append(
            [f"`{e['operator']}`", str(e["M"]), f"{torch:.0f}", f"{ours:.0f}", f"**{torch / ours:.2f}**"]
        )
    return markdown_table(["operator", "M", "torch", "ours", "×"], rows)


KINDS: dict[str, Callable[..., str]] = {
    "summary": summary,
    "speeds": speeds,
    "when": when,
    "backends": backends,
    "host_time": host_time,
    **report_others.KINDS,
}


def full(shapes: Shapes, operator: str, gpus: str) -> str:
    """All columns of one operator, µs."""
    chosen = [s for (name, count, _, _), s in shapes.items() if (name, count) == (operator, gpus)]
    names = [c for c in ROWS if any(s.us(c) is not None for s in chosen)]
    rows = []
    for shape in sorted(chosen, key=lambda s: (s.k * s.n, s.m)):
        times = [f"{us:.0f}" if us is not None else "" for us in map(shape.us, names)]
        rows.append([shape.model, str(shape.m), *times, f"{shape.speed:.2f}", f"{shape.bound:.2f}"])
    return markdown_table(["model", "M", *names, "×", "bound"], rows)


def rewritten(page: str, shapes: Shapes) -> str:
    def fill(match: re.Match[str]) -> str:
        kind, *arguments = match[2].split()
        return match[1] + KINDS[kind](shapes, *arguments) + match[3]

    return BLOCK.sub(fill, page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where a page is out of date"
    )
    parser.add_argument("--table", choices=TITLES, help="print this operator's table instead")
    parser.add_argument("--gpus", default="2")
    options = parser.parse_args()
    shapes = latest(results.read())
    if options.table:
        print(full(shapes, options.table, options.gpus), end="")
        return 0
    stale = []
    for name in PAGES:
        page = (ROOT / name).read_text()
        new = rewritten(page, shapes)
        if new != page:
            stale.append(name)
            if not options.check:
                (ROOT / name).write_text(new)
    for name in stale:
        print(
            f"{name}: {'differs from the data: run python bench/report.py' if options.check else 'written'}"
        )
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        code = main()
    sys.exit(code)
