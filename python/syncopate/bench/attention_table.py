"""What `syncopate bench attention` has measured, as CSV, Markdown and a plot: one line a shape, all times in µs.

date, gpus, gpu, ranks, mask, rows, H, HKV, D    `rows` of the sequence on each rank
kind, sharding, sdpa                             what ours chose, and the back end that torch took
best, vs_best                                    the best peer, and how many times as fast ours is
exposed                                          the part of `ours` in which its kernel does not run
times                                            each row, NAME=µs, with spaces between them
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any

from .picture import INK, LINES, LOSS, note_host, require_matplotlib
from .table import markdown_table, packed

KEYS = ("mask", "rows_a_rank", "H", "HKV", "D")
COLUMNS = [
    "date", "gpus", "gpu", "ranks", "mask", "rows", "H", "HKV", "D", "kind", "sharding", "sdpa", "best", "vs_best",
    "exposed", "times", "versions",
]  # fmt: skip


def measured(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in report["table"] if "rows" in entry]


def hidden(entry: dict[str, Any]) -> dict[str, float]:
    return {name: times["hidden_us"] for name, times in entry["rows"].items()}


def ratio(entry: dict[str, Any], name: str) -> str:
    return f"{entry[name]:.3f}" if name in entry else ""


def lines_of(report: dict[str, Any]) -> list[dict[str, str]]:
    gpus, _, gpu = report["machine"].partition(" x ")
    if not gpu:
        gpus, gpu = report["machine"].split()[0], "host"
    versions = f"torch {report['torch']}, NCCL {report.get('nccl', '-')}, driver {report.get('driver', '-')}"
    lines = []
    for entry in measured(report):
        line = {
            "date": report["date"],
            "gpus": gpus,
            "gpu": gpu.removeprefix("NVIDIA "),
            "ranks": report.get("ranks", gpus),
            "rows": entry["rows_a_rank"],
            **{name: entry[name] for name in ("mask", "H", "HKV", "D", "kind", "sharding", "sdpa")},
            "best": entry.get("best", ""),
            "vs_best": ratio(entry, "vs_best"),
            "exposed": ratio(entry, "exposed"),
            "times": packed(hidden(entry)),
            "versions": versions,
        }
        lines.append({name: str(value) for name, value in line.items()})
    return lines


def write_csv(report: dict[str, Any], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines_of(report))


def shape_of(entry: dict[str, Any]) -> str:
    return f"H = {entry['H']}, HKV = {entry['HKV']}, D = {entry['D']}"


def to_markdown(report: dict[str, Any]) -> str:
    """For each mask a table, a line a shape: all rows in µs, then ours over the best peer (losses in bold), and what is left
    out, with the reason."""
    parts = []
    for mask in dict.fromkeys(entry["mask"] for entry in measured(report)):
        entries = [entry for entry in measured(report) if entry["mask"] == mask]
        names = list(dict.fromkeys(name for entry in entries for name in entry["rows"]))
        rows = []
        for entry in entries:
            times = hidden(entry)
            cells = [f"{times[name]:.1f}" if name in times else "" for name in names]
            speed = f"{entry['vs_best']:.2f}" if "vs_best" in entry else ""
            if entry.get("vs_best", 1) < 1:
                speed = f"**{speed}**"
            head = [str(entry[name]) for name in KEYS[1:]]
            tail = [entry["kind"], entry["sdpa"], entry.get("best", ""), speed, ratio(entry, "exposed")]
            rows.append([*head, *cells, *tail])
        parts.append(f"## Attention, {mask}, µs, {report['machine']}\n\n")
        head = ["rows a rank", "H", "HKV", "D", *names, "kind", "SDPA by", "best peer", "×", "exposed"]
        parts.append(markdown_table(head, rows))
        judged = [entry["vs_best"] for entry in entries if "vs_best" in entry]
        if judged:
            lost = sum(speed < 1 for speed in judged)
            mean = statistics.geometric_mean(judged)
            parts.append(f"\nOver the best peer, geometric mean {mean:.2f}. Lost: {lost} of {len(judged)}.\n")
        left_out = dict.fromkeys(
            (name, why) for entry in entries for name, why in entry.get("left_out", {}).items()
        )
        parts += [f"- without {name}: {why}\n" for name, why in left_out]
        parts.append("\n")
    for entry in report["table"]:
        if "error" in entry:
            where = f"{entry['mask']}, {entry['rows_a_rank']} rows, {shape_of(entry)}"
            parts.append(f"- {where}: FAILED: {entry['error']}\n")
    return "".join(parts)


def draw(report: dict[str, Any], path: str) -> None:
    """Writes the plot, as its name ends: how many times as fast as the best peer, over rows a rank, one panel a mask."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    judged = [entry for entry in measured(report) if "vs_best" in entry]
    masks = list(dict.fromkeys(entry["mask"] for entry in judged)) or [""]
    shapes = list(dict.fromkeys(shape_of(entry) for entry in judged))
    figure, axes = plt.subplots(1, len(masks), figsize=(4.6 * len(masks), 3.6), squeeze=False, sharey=True)
    for panel, mask in zip(axes.flat, masks, strict=True):
        panel.axhline(1, color=LOSS, linewidth=0.8)
        for number, shape in enumerate(shapes):
            points = sorted(
                (entry["rows_a_rank"], entry["vs_best"])
                for entry in judged
                if entry["mask"] == mask and shape_of(entry) == shape
            )
            if points:
                colour = LINES[number % len(LINES)]
                panel.plot(*zip(*points, strict=True), "-o", color=colour, markersize=3.5, label=shape)
        panel.set_xscale("log", base=2)
        panel.set_title(mask, fontsize=10, color=INK)
        panel.set_xlabel("rows of the sequence a rank", fontsize=8)
        panel.grid(axis="y", linewidth=0.4, alpha=0.5)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=7, frameon=False)
    figure.suptitle(
        f"Attention: speed over the best peer, {report['machine']}, {report['date']}", color=INK, fontsize=10
    )
    figure.tight_layout()
    note_host(figure, report)
    figure.savefig(path, dpi=150)
    plt.close(figure)
