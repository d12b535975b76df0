"""The plot of a bench: how many times as fast as the best peer, one panel a table. What is lost is red."""

from __future__ import annotations

import statistics
from typing import Any

from .table import Form

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


def draw(report: dict[str, Any], path: str, form: Form) -> None:
    """Writes the plot; the format follows from the name: .svg, .png or .pdf."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    judged = [entry for entry in report["table"] if "vs_best" in entry]
    titles = list(dict.fromkeys(map(form.title, judged)))
    series = list(dict.fromkeys(map(form.series, judged)))
    columns = min(3, max(1, len(titles)))
    lines = -(-max(1, len(titles)) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.6 * columns, 3.4 * lines), squeeze=False, sharey=True
    )
    speeds = [entry["vs_best"] for entry in judged]
    low, high = min([*speeds, 0.9]), max([*speeds, 1.1]) * 1.05
    low -= 0.12 * (high - low)  # for the labels of losses
    for place, panel in enumerate(axes.flat):
        if place < len(titles):
            entries = [entry for entry in judged if form.title(entry) == titles[place]]
            draw_panel(panel, form, entries, series, low, high)
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
    panel: Any, form: Form, entries: list[dict[str, Any]], series: list[str], low: float, high: float
) -> None:
    """`series`: of all panels, so that one has the same colour in each."""
    x = form.x
    every_x = sorted({entry[x] for entry in entries})
    panel.axhspan(low, 1, color=LOSS, alpha=0.07, linewidth=0)
    panel.axhline(1, color=INK, linewidth=0.8)
    for number, one in enumerate(series):
        points = sorted((e[x], e["vs_best"]) for e in entries if form.series(e) == one)
        if not points:
            continue
        colour = LINES[number % len(LINES)]
        panel.plot(*zip(*points, strict=True), "-o", color=colour, markersize=3.5, linewidth=1.2, label=one)
        lost = [(m, speed) for m, speed in points if speed < 1]
        if lost:
            panel.plot(*zip(*lost, strict=True), "o", color=LOSS, markersize=6, zorder=4)
    for m in every_x:  # labels of all losses would lie on each other
        worst = min(e["vs_best"] for e in entries if e[x] == m)
        if worst < 1:
            panel.annotate(f"{worst:.2f}", (m, worst), (0, -11), textcoords="offset points", ha="center",
                           fontsize=7, color=LOSS)  # fmt: skip
    means = [statistics.geometric_mean([e["vs_best"] for e in entries if e[x] == m]) for m in every_x]
    panel.plot(every_x, means, color=INK, linewidth=2.4, alpha=0.35, label="geometric mean")
    panel.set_xscale("log", base=2)
    panel.set_xticks(every_x, [str(m) for m in every_x], fontsize=8)
    panel.minorticks_off()
    panel.set_ylim(low, high)
    panel.set_title(form.title(entries[0]), fontsize=10, color=INK)
    panel.set_xlabel(form.x_label, fontsize=8)
    panel.grid(axis="y", linewidth=0.4, alpha=0.5)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
