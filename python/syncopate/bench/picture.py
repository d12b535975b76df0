"""The plot of a bench: how many times as fast as the best peer, over M, one panel an operator. What is lost is red."""

from __future__ import annotations

import statistics
from typing import Any

from .table import OPERATORS

LINES = ("#2b6cb0", "#2f855a", "#805ad5", "#b7791f", "#2c7a7b", "#97266d")
LOSS = "#c53030"
INK = "#2d3748"


#: What a machine without a GPU is called in reports: so many of them.
HOST_RANKS = "host ranks"
HOST_NOTE = "host ranks, kernels in an interpreter: these times mean nothing"


class PictureError(RuntimeError):
    exit_code = 3


def require_matplotlib() -> None:
    """Raises PictureError, saying what to do, where a plot cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PictureError(
            "--plot needs matplotlib, which this Python lacks: pip install 'syncopate[plot]'"
        ) from None


def note_host(figure: Any, report: dict[str, Any]) -> None:
    """Says across the whole picture where its times are those of an interpreter."""
    if report["machine"].endswith(HOST_RANKS):
        figure.text(
            0.5, 0.5, HOST_NOTE, color=LOSS, fontsize=13, ha="center", va="center", rotation=15, alpha=0.8,
            bbox={"facecolor": "white", "edgecolor": LOSS, "alpha": 0.8},
        )  # fmt: skip


def draw(report: dict[str, Any], path: str) -> None:
    """Writes the plot; the format follows from the name: .svg, .png or .pdf."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    judged = [entry for entry in report["table"] if "vs_best" in entry]
    operators = list(dict.fromkeys(entry["operator"] for entry in judged))
    models = list(dict.fromkeys(entry["model"] for entry in judged))
    columns = min(3, max(1, len(operators)))
    lines = -(-max(1, len(operators)) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.6 * columns, 3.4 * lines), squeeze=False, sharey=True
    )
    speeds = [entry["vs_best"] for entry in judged]
    low, high = min([*speeds, 0.9]), max([*speeds, 1.1]) * 1.05
    low -= 0.12 * (high - low)  # for the labels of losses
    for place, panel in enumerate(axes.flat):
        if place < len(operators):
            entries = [entry for entry in judged if entry["operator"] == operators[place]]
            draw_panel(panel, OPERATORS[operators[place]][1], entries, models, low, high)
        else:
            panel.set_axis_off()
    figure.suptitle(
        f"Speed over the best peer, {report['machine']}, {report['date']}", color=INK, fontsize=11
    )
    named = {
        label: handle
        for panel in axes.flat
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        named.values(), named.keys(), loc="lower center", ncols=len(named) or 1, frameon=False, fontsize=8
    )
    figure.tight_layout(rect=(0, 0.07 / lines, 1, 1))
    note_host(figure, report)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_panel(
    panel: Any, title: str, entries: list[dict[str, Any]], models: list[str], low: float, high: float
) -> None:
    """`models`: of all panels, so that one has the same colour in each."""
    every_m = sorted({entry["M"] for entry in entries})
    panel.axhspan(low, 1, color=LOSS, alpha=0.07, linewidth=0)
    panel.axhline(1, color=INK, linewidth=0.8)
    for number, model in enumerate(models):
        points = sorted((e["M"], e["vs_best"]) for e in entries if e["model"] == model)
        if not points:
            continue
        colour = LINES[number % len(LINES)]
        panel.plot(*zip(*points, strict=True), "-o", color=colour, markersize=3.5, linewidth=1.2, label=model)
        lost = [(m, speed) for m, speed in points if speed < 1]
        if lost:
            panel.plot(*zip(*lost, strict=True), "o", color=LOSS, markersize=6, zorder=4)
    for m in every_m:  # labels of all losses would lie on each other
        worst = min(e["vs_best"] for e in entries if e["M"] == m)
        if worst < 1:
            panel.annotate(f"{worst:.2f}", (m, worst), (0, -11), textcoords="offset points", ha="center",
                           fontsize=7, color=LOSS)  # fmt: skip
    means = [statistics.geometric_mean([e["vs_best"] for e in entries if e["M"] == m]) for m in every_m]
    panel.plot(every_m, means, color=INK, linewidth=2.4, alpha=0.35, label="geometric mean")
    panel.set_xscale("log", base=2)
    panel.set_xticks(every_m, [str(m) for m in every_m], fontsize=8)
    panel.minorticks_off()
    panel.set_ylim(low, high)
    panel.set_title(title, fontsize=10, color=INK)
    panel.set_xlabel("M, tokens of all ranks", fontsize=8)
    panel.grid(axis="y", linewidth=0.4, alpha=0.5)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
