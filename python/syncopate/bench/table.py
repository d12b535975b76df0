"""Tables of what a bench has measured: one line a shape, as CSV and as Markdown. The columns are those of
bench/results/measured.csv.

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
    strategies            of `ours` and of what --vary has named, as JSON: NAME → what ops/strategy.hpp names, less what is
                          as in a strategy that leaves all open
    versions, command     of torch, NCCL and the driver; what was run
"""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _syncopate

KEYS = ["date", "commit", "run", "gpus", "gpu", "ranks", "operator", "model", "M", "N", "K"]
ROWS = [
    "cublas",
    "triton",
    "alone",
    "collective",
    "unfused",
    "unfused_eager",
    "async_tp",
    "two_shot",
    "one_shot",
    "ours",
    "ours_eager",
    "ours_elsewhere",
]
COLUMNS = [*KEYS, *ROWS, "other", "visible", "strategies", "versions", "command"]

#: Operator → its name in the table, and what people call it.
OPERATORS = {
    "all_gather_matmul": ("ag_gemm", "all-gather + GEMM"),
    "matmul_reduce_scatter": ("gemm_rs", "GEMM + reduce-scatter"),
    "matmul_all_reduce": ("gemm_ar", "GEMM + all-reduce"),
    "all_to_all_matmul": ("a2a_gemm", "all-to-all + GEMM"),
    "matmul_all_to_all": ("gemm_a2a", "GEMM + all-to-all"),
    "feed_forward": ("feed_forward", "feed-forward block"),
    "mlp_chain": ("mlp_chain", "two products on one GPU"),
}
SHORT = {operator: name for operator, (name, _) in OPERATORS.items()}
TITLES = dict(OPERATORS.values())


def packed(times: dict[str, float]) -> str:
    return " ".join(f"{name}={us:.1f}" for name, us in times.items())


def unpacked(text: str) -> dict[str, float]:
    """The inverse of packed. A name may hold "=", but no space."""
    return {name: float(us) for name, _, us in (item.rpartition("=") for item in text.split())}


def line_of(keys: dict[str, Any], hidden: dict[str, float], visible: dict[str, float]) -> dict[str, str]:
    """One line of the table; `hidden` and `visible` by the names of rows."""
    line = {name: str(value) for name, value in keys.items()}
    line |= {name: f"{us:.1f}" for name, us in hidden.items() if name in ROWS}
    other = {name: us for name, us in hidden.items() if name not in ROWS}
    return {**line, "other": packed(other), "visible": packed(visible)}


def machine_words(report: dict[str, Any]) -> dict[str, Any]:
    """When and where a report was measured, as tables name it."""
    gpus, _, gpu = report["machine"].partition(" x ")
    if not gpu:
        gpus, gpu = report["machine"].split()[0], "host"
    return {
        "date": report["date"],
        "gpus": gpus,
        "gpu": gpu.removeprefix("NVIDIA "),
        "ranks": report.get("ranks", gpus),
        "versions": f"torch {report['torch']}, NCCL {report.get('nccl', '-')}, driver {report.get('driver', '-')}",
    }


def measured(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in report["table"] if entry.get("rows")]


def lines_of(report: dict[str, Any], run: str = "", commit: str = "") -> list[dict[str, str]]:
    """A report as lines of the table; entries that failed are left out."""
    lines = []
    for entry in measured(report):
        rows = entry["rows"]
        keys = machine_words(report) | {
            "commit": commit,
            "run": run or report.get("dtype", ""),
            "operator": SHORT[entry["operator"]],
            **{name: entry[name] for name in ("model", "M", "N", "K")},
            "strategies": json.dumps(entry["strategies"]) if "strategies" in entry else "",
            "command": report.get("command", ""),
        }
        hidden = {name: times["hidden_us"] for name, times in rows.items() if "hidden_us" in times}
        visible = {name: times["visible_us"] for name, times in rows.items() if "visible_us" in times}
        lines.append(line_of(keys, hidden, visible))
    return lines


def write_csv(
    lines: Iterable[dict[str, Any]], path: Path, append: bool = False, columns: Sequence[str] = COLUMNS
) -> None:
    """Writes lines with a head; with `append` at the end of what is there."""
    begin = not (append and path.exists())
    with path.open("w" if begin else "a", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        if begin:
            writer.writeheader()
        writer.writerows(lines)


def us_of(row: dict[str, float]) -> float:
    """The time by which a row is compared: with the host's hidden, if it was measured so."""
    return row["hidden_us"] if "hidden_us" in row else row["visible_us"]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


@dataclass(frozen=True)
class Form:
    """How a bench's report is shown: a table, and a panel of the plot, for each `title`, in it a line for each shape."""

    title: Callable[[dict[str, Any]], str]
    keys: dict[str, str]  # head of a column → what of an entry names its shape
    x: str  # that of these over which speed is drawn
    x_label: str
    series: Callable[[dict[str, Any]], str]  # of entries that differ in x alone
    lines: Callable[[dict[str, Any]], list[dict[str, Any]]]  # of a CSV file, of these columns
    columns: Sequence[str]
    more: dict[str, Callable[[dict[str, Any]], str]] = field(default_factory=dict)  # columns behind the times


def ratio(name: str, text: str = "{:.2f}") -> Callable[[dict[str, Any]], str]:
    """Of an entry; "" where it has none."""
    return lambda entry: text.format(entry[name]) if name in entry else ""


OF_OPERATORS = Form(
    title=lambda entry: OPERATORS[entry["operator"]][1],
    keys={"model": "model", "M": "M"},
    x="M",
    x_label="M, tokens of all ranks",
    series=lambda entry: entry["model"],
    lines=lines_of,
    columns=COLUMNS,
    more={"÷ bound": ratio("bound")},
)


def to_markdown(report: dict[str, Any], form: Form = OF_OPERATORS) -> str:
    """All rows in µs, then ours over the best peer (losses in bold) and what the form has more, and the geometric means by x."""

    def shape_of(entry: dict[str, Any]) -> str:
        return ", ".join(f"{head} = {entry[name]}" for head, name in form.keys.items())

    parts, heads = [], {name: head for head, name in form.keys.items()}
    for title in dict.fromkeys(map(form.title, measured(report))):
        entries = [entry for entry in measured(report) if form.title(entry) == title]
        names = list(dict.fromkeys(name for entry in entries for name in entry["rows"]))
        names.sort(key=lambda name: ROWS.index(name) if name in ROWS else len(ROWS))
        rows = []
        for entry in entries:
            shape = [str(entry[name]) for name in form.keys.values()]
            times = [f"{us_of(entry['rows'][n]):.1f}" if n in entry["rows"] else "" for n in names]
            rows.append([*shape, *times, *verdict(entry), *(said(entry) for said in form.more.values())])
        parts.append(f"## {title}, µs, {report['machine']}\n\n")
        parts.append(markdown_table([*form.keys, *names, "best peer", "×", *form.more], rows))
        parts.append("\n" + means(entries, form.x, heads[form.x]) + "\n")
        parts += [
            f"- {shape_of(entry)}: without {name}: {why}\n"
            for entry in entries
            for name, why in entry.get("left_out", {}).items()
        ]
        parts.append("\n")
    failed = [entry for entry in report["table"] if "error" in entry]
    parts += [f"- {form.title(e)}, {shape_of(e)}: FAILED: {e['error']}\n" for e in failed]
    return "".join(parts)


def verdict(entry: dict[str, Any]) -> list[str]:
    if "vs_best" not in entry:
        return ["", ""]
    speed = f"{entry['vs_best']:.2f}"
    return [entry["best"], f"**{speed}**" if entry["vs_best"] < 1 else speed]


def means(entries: Sequence[dict[str, Any]], x: str = "M", head: str = "M") -> str:
    """Geometric means over the best peer, by `x`, which is called `head`, and how many shapes are lost."""
    judged = [entry for entry in entries if "vs_best" in entry]
    if not judged:
        return ""
    by_x = {at: [e["vs_best"] for e in judged if e[x] == at] for at in sorted({e[x] for e in judged})}
    cells = ", ".join(
        f"{head} = {at}: {statistics.geometric_mean(values):.2f}" for at, values in by_x.items()
    )
    lost = sum(entry["vs_best"] < 1 for entry in judged)
    every = statistics.geometric_mean(entry["vs_best"] for entry in judged)
    return f"Over the best peer, geometric means: {cells}; all: {every:.2f}. Lost: {lost} of {len(judged)}.\n"


def write_report(report: dict[str, Any], path: Path) -> None:
    """JSON with one line for each thing measured. Raises InputError, naming the file, where it cannot be written."""
    entries = next((name for name in ("table", "rows") if isinstance(report.get(name), list)), None)
    head = {name: value for name, value in report.items() if name != entries}
    text = json.dumps(_rounded(head), indent=1, ensure_ascii=False)
    if entries is not None:
        table = ",\n  ".join(json.dumps(_rounded(entry), ensure_ascii=False) for entry in report[entries])
        text = f'{text[:-2]},\n "{entries}": [\n  {table}\n ]\n}}'
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise _syncopate.InputError(f"{path}: cannot be written: {error.strerror}") from None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
