"""One picture of a call on all ranks: what waits for what.

a band per rank      above, the lane of its chunks: ▼ arrived   ◆ made   ■ summed
                     below, a row per program: tiles, and waits hatched
colours              a rank each. A chunk has that of its origin, a tile that of the rank whose chunk it last waited for
                     (or, if it makes what is sent, of the rank that gets it), a wait that of the rank waited for. A tile
                     that runs its loops range by range is drawn so: each range has the colour of what it waited for
lines                from where a chunk was ready on its sender to where it arrived
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .model import Arrival, TileRun, Trace
from .perfetto import common_clock, origins

COLOURS = ["#3b6fb6", "#d9822b", "#3f9b5f", "#b8437a", "#7a5bb5", "#8c6d46", "#2f9aa0", "#a8a23a"]
PLAIN = "#c3c9d1"  # a tile that waits for nothing and makes nothing that is sent
LANE = 0.34  # inches, of a band
PROGRAM = (0.012, 0.16)  # inches, least and most
BAND = 2.2  # inches of programs, at most
HATCHED = 0.04  # inches that a row must be high for its hatching to be seen
MARKS = {
    "chunk": ("v", 1.0, 0.68),
    "made": ("D", 0.7, 0.3),
    "summed": ("s", 0.8, 0.3),
}  # marker, size, place in the lane
MARGIN = (0.42, 0.55)  # inches above and below the bands


class PictureError(RuntimeError):
    """The machine lacks what draws."""

    exit_code = 3


def require_matplotlib() -> None:
    """Raises PictureError, saying what to do, where a picture cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PictureError(
            "a picture needs matplotlib, which this Python lacks: pip install 'syncopate[plot]', or give "
            "a name that ends in .json"
        ) from None


def colour_of(rank: int) -> str:
    return COLOURS[rank % len(COLOURS)]


def draw(traces: Sequence[Trace], path: Path) -> None:
    """Writes the picture as PNG. Raises PictureError without matplotlib."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bands = [_Band(trace) for trace in traces]
    height = sum(band.inches for band in bands) + 0.12 * (len(bands) - 1)
    whole = height + sum(MARGIN)
    figure = Figure(figsize=(13, whole), dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.075, MARGIN[1] / whole, 0.915, height / whole))
    zero = origins(traces)
    last = max(((t.end - zero[t.rank]) / 1e3 for t in traces), default=1.0)
    unit, scale = ("ms", 1e3) if last > 5e3 else ("µs", 1.0)

    def at(rank: int, moment: int) -> float:
        return (moment - zero[rank]) / 1e3 / scale

    top = 0.0
    for band in bands:
        band.place(top)
        top += band.inches + 0.12
    for band in bands:
        band.draw(axes, at)
    if common_clock(traces):
        _draw_flights(axes, bands, at)
    axes.set_xlim(-0.005 * last / scale, 1.005 * last / scale)
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    axes.set_xlabel(_clock_line(traces, unit), fontsize=9)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    _legend(figure, traces)
    figure.savefig(path, format="png")


class _Band:
    """One rank's part of the picture, in inches from the top."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.programs = sorted({tile.program for tile in trace.tiles})
        least, most = PROGRAM
        self.row = max(least, min(most, BAND / max(1, len(self.programs))))
        self.inches = LANE + self.row * len(self.programs)
        self.top = 0.0

    def place(self, top: float) -> None:
        self.top = top

    def lane(self, kind: str) -> float:
        """Where a mark of this kind stands."""
        return self.top + LANE * MARKS[kind][2]

    def draw(self, axes: Any, at: Any) -> None:
        trace = self.trace
        begin, end = at(trace.rank, trace.begin), at(trace.rank, trace.end)
        lane = [(begin, end - begin)]
        axes.broken_barh(
            lane, (self.top + 0.05, LANE - 0.1), color=colour_of(trace.rank), alpha=0.14, linewidth=0
        )
        transform = axes.get_yaxis_transform()
        style = {"transform": transform, "ha": "right", "va": "center"}
        axes.text(
            -0.006,
            self.top + LANE / 2,
            f"rank {trace.rank}",
            color=colour_of(trace.rank),
            fontsize=10,
            weight="bold",
            **style,
        )
        middle = self.top + LANE + self.row * len(self.programs) / 2
        count = f"{len(self.programs)} program{'s' * (len(self.programs) > 1)}"
        axes.text(-0.006, middle, count, color="#555555", fontsize=7.5, **style)
        self._draw_programs(axes, at)
        self._draw_marks(axes, at)

    def _draw_programs(self, axes: Any, at: Any) -> None:
        rank = self.trace.rank
        hatched = self.row >= HATCHED
        colours = tile_colours(self.trace)
        sources = {chunk.signal: chunk.source for chunk in self.trace.chunks}
        rows = {program: self.top + LANE + row * self.row for row, program in enumerate(self.programs)}
        high = self.row * (0.86 if hatched else 1.0)

        def box(tile: TileRun, begin: int, end: int) -> list[tuple[float, float]]:
            left, right, top = at(rank, begin), at(rank, end), rows[tile.program]
            return [(left, top), (right, top), (right, top + high), (left, top + high)]

        spans = [span for tile in self.trace.tiles for span in spans_of(self.trace, tile, colours[tile.slot])]
        tiles = [box(tile, begin, end) for tile, begin, end, _ in spans]
        faces = [colour for *_, colour in spans]
        _fill(axes, tiles, facecolors=faces, edgecolors="white", linewidths=0.5 if hatched else 0.1)
        waits: dict[str, list] = {}
        for tile in self.trace.tiles:
            for begin, over, signals in waits_of(tile):
                waited = [colour_of(sources[s]) for s in signals if s in sources]
                waits.setdefault(waited[-1] if waited else "#888888", []).append(box(tile, begin, over))
        for colour, boxes in waits.items():
            _fill(
                axes,
                boxes,
                facecolors="white",
                edgecolors=colour,
                hatch="//////" if hatched else None,
                linewidths=0.3,
            )
            if not hatched:
                _fill(axes, boxes, facecolors=colour, alpha=0.3, linewidths=0)

    def _draw_marks(self, axes: Any, at: Any) -> None:
        rank, bottom = self.trace.rank, self.top + self.inches
        for chunk in self.trace.chunks:
            kind = "summed" if chunk.summed else "chunk"
            colour = colour_of(chunk.source)
            self._mark(axes, at(rank, chunk.time), kind, colour)
            if not chunk.summed:
                ends = [self.lane(kind), bottom]
                axes.plot(
                    [at(rank, chunk.time)] * 2,
                    ends,
                    color=colour,
                    linewidth=0.8,
                    linestyle=(0, (2, 2)),
                    zorder=3,
                )
        for made in self.trace.made:
            self._mark(axes, at(rank, made.time), "made", colour_of(rank))

    def _mark(self, axes: Any, x: float, kind: str, colour: str) -> None:
        marker, size, _ = MARKS[kind]
        axes.plot(
            [x], [self.lane(kind)], marker=marker, markersize=8 * size, color=colour, markeredgecolor="white",
            markeredgewidth=0.6, zorder=5,
        )  # fmt: skip


def _fill(axes: Any, boxes: list, **style: Any) -> None:
    from matplotlib.collections import PolyCollection

    axes.add_collection(PolyCollection(boxes, **style), autolim=False)


def waits_of(tile: TileRun) -> list[tuple[int, int, list[int]]]:
    """(begin, over, signals) of each wait of a tile that waited for something."""
    first = [(tile.wait_begin, tile.start, tile.waits)] if tile.waits else []
    return first + [phase for phase in tile.phases if phase[2]]


def spans_of(trace: Trace, tile: TileRun, colour: str) -> list[tuple[TileRun, int, int, str]]:
    """(tile, begin, end, colour) of what is drawn of a tile: itself, or its ranges where some of them waited and what it makes
    stays here."""
    if len(tile.phases) < 2 or not any(signals for _, _, signals in tile.phases) or makes_sent(trace, tile):
        return [(tile, tile.start, tile.end, colour)]
    chunks = {chunk.signal: chunk for chunk in trace.chunks}

    def colour_after(signals: Sequence[int]) -> str:
        waited = [chunks[signal] for signal in signals if signal in chunks]
        return colour_of(max(waited, key=lambda chunk: chunk.time).source) if waited else PLAIN

    entered = colour_after(tile.waits)
    drawn = []
    for (begin, end), (_, _, signals) in zip(tile.runs, tile.phases, strict=True):
        drawn.append((tile, begin, end, colour_after(signals) if signals else entered))
    return drawn


def makes_sent(trace: Trace, tile: TileRun) -> bool:
    sent = [(send.tensor, send.region) for send in trace.sends]
    return any(tile.slot in made.slots and (made.tensor, made.region) in sent for made in trace.made)


def tile_colours(trace: Trace) -> dict[int, str]:
    """By slot: of the rank that gets what the tile makes, else of that where the tile reads what it fetches, else of that whose
    chunk its program last waited for."""
    receiver: dict[int, int] = {}
    for made in trace.made:
        to = {s.to for s in trace.sends if (s.tensor, s.region) == (made.tensor, made.region)}
        only = to.pop() if len(to) == 1 else trace.rank  # what several get is first summed here
        receiver.update((slot, only) for slot in made.slots)
    chunks: dict[int, Arrival] = {chunk.signal: chunk for chunk in trace.chunks}
    colours, last = {}, {}
    for tile in sorted(trace.tiles, key=lambda t: t.start):
        waited = [chunks[s] for _, _, signals in waits_of(tile) for s in signals if s in chunks]
        if waited:
            last[tile.program] = max(waited, key=lambda chunk: chunk.time).source
        rank = receiver.get(tile.slot, last.get(tile.program) if tile.read_at is None else tile.read_at)
        colours[tile.slot] = PLAIN if rank is None else colour_of(rank)
    return colours


def _draw_flights(axes: Any, bands: Sequence[_Band], at: Any) -> None:
    lanes = {band.trace.rank: band.lane("chunk") for band in bands}
    arrivals = {(b.trace.rank, chunk.op): chunk.time for b in bands for chunk in b.trace.chunks}
    for band in bands:
        rank = band.trace.rank
        for send in band.trace.sends:
            over = arrivals.get((send.to, send.op))
            if over is None:
                continue
            moments = [at(rank, send.ready), at(send.to, max(over, send.ready))]
            axes.plot(
                moments,
                [band.lane("made"), lanes[send.to]],
                color=colour_of(rank),
                linewidth=0.9,
                alpha=0.45,
                zorder=4,
            )


def _clock_line(traces: Sequence[Trace], unit: str) -> str:
    if not common_clock(traces):
        return f"{unit} from the begin of the call on each rank (clocks not aligned)"
    error = max((trace.clock_error or 0 for trace in traces), default=0)
    return f"{unit} from the first rank's begin" + (
        f"; clocks agree within {error / 1e3:.1f} µs" if error else ""
    )


def _legend(figure: Any, traces: Sequence[Trace]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ranks = [Patch(color=colour_of(trace.rank), label=f"rank {trace.rank}") for trace in traces]
    used = {"chunk": any(not c.summed for t in traces for c in t.chunks), "made": any(t.made for t in traces),
            "summed": any(c.summed for t in traces for c in t.chunks)}  # fmt: skip
    words = {"chunk": "chunk arrived", "made": "chunk made", "summed": "chunk summed"}
    marks = [
        Line2D([], [], marker=MARKS[kind][0], linestyle="", color="#555555", label=words[kind])
        for kind in MARKS
        if used[kind]
    ]
    others = [
        Patch(facecolor=PLAIN, label="needs none"),
        Patch(facecolor="white", edgecolor="#555555", hatch="//////", label="wait"),
        *marks,
    ]
    if common_clock(traces):
        others.append(Line2D([], [], color="#555555", linewidth=0.9, label="ready → arrived"))
    figure.legend(
        handles=[*ranks, *others], loc="upper left", bbox_to_anchor=(0.07, 0.995), ncols=len(ranks) + len(others),
        fontsize=8, frameon=False, handlelength=1.6, columnspacing=1.2,
    )  # fmt: skip
