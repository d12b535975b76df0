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
GAP, MARGIN = 0.12, (0.42, 0.55)  # inches between the bands; above and below them

#: (tile, begin, end, colour) of a bar.
Span = tuple[TileRun, int, int, str]


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

    bands: list[_Band] = []
    for trace in traces:
        bands.append(_Band(trace, bands[-1].bottom + GAP if bands else 0.0))
    height = bands[-1].bottom if bands else LANE
    whole = height + sum(MARGIN)
    figure = Figure(figsize=(13, whole), dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.075, MARGIN[1] / whole, 0.915, height / whole))
    zero = origins(traces)
    last = max((t.end - zero[t.rank] for t in traces), default=1)
    unit, scale = ("ms", 1e6) if last > 5e6 else ("µs", 1e3)

    def at(rank: int, moment: int) -> float:
        return (moment - zero[rank]) / scale

    for band in bands:
        band.draw(axes, at)
    if common_clock(traces):
        _draw_flights(axes, bands, at)
    axes.set_xlim(-0.005 * last / scale, 1.005 * last / scale)
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    axes.set_xlabel(_clock_line(traces, unit), fontsize=9)
    axes.spines[["left", "right", "top"]].set_visible(False)
    _legend(figure, traces)
    figure.savefig(path, format="png")


class _Band:
    """One rank's part of the picture, in inches from the top."""

    def __init__(self, trace: Trace, top: float) -> None:
        self.trace, self.top = trace, top
        self.programs = sorted({tile.program for tile in trace.tiles})
        self.row = min(PROGRAM[1], max(PROGRAM[0], BAND / max(1, len(self.programs))))
        self.bottom = top + LANE + self.row * len(self.programs)

    def lane(self, kind: str) -> float:
        """Where a mark of this kind stands."""
        return self.top + LANE * MARKS[kind][2]

    def draw(self, axes: Any, at: Any) -> None:
        trace, own = self.trace, colour_of(self.trace.rank)
        begin, end = at(trace.rank, trace.begin), at(trace.rank, trace.end)
        axes.barh(self.top + LANE / 2, end - begin, LANE - 0.1, begin, color=own, alpha=0.14)
        style = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
        name, count = f"rank {trace.rank}", f"{len(self.programs)} program{'s' * (len(self.programs) > 1)}"
        axes.text(-0.006, self.top + LANE / 2, name, color=own, fontsize=10, weight="bold", **style)
        middle = (self.top + LANE + self.bottom) / 2
        axes.text(-0.006, middle, count, color="#555555", fontsize=7.5, **style)
        self._draw_programs(axes, at)
        for chunk in trace.chunks:
            moment, colour = at(trace.rank, chunk.time), colour_of(chunk.source)
            self._mark(axes, moment, "summed" if chunk.summed else "chunk", colour)
            if not chunk.summed:
                axes.vlines(moment, self.lane("chunk"), self.bottom, colour, (0, (2, 2)), linewidth=0.8)
        for made in trace.made:
            self._mark(axes, at(trace.rank, made.time), "made", own)

    def _draw_programs(self, axes: Any, at: Any) -> None:
        of_tiles = tile_colours(self.trace)
        sources = {chunk.signal: chunk.source for chunk in self.trace.chunks}
        spans, waits = [], []
        for tile in self.trace.tiles:
            spans += spans_of(self.trace, tile, of_tiles[tile.slot])
            for begin, over, signals in waits_of(tile):
                waited = [colour_of(sources[s]) for s in signals if s in sources]
                waits.append((tile, begin, over, waited[-1] if waited else "#888888"))
        wide = self.row >= HATCHED
        colours = [colour for *_, colour in spans]
        self._bars(axes, at, spans, color=colours, edgecolor="white", linewidth=0.5 if wide else 0.1)
        colours = [colour for *_, colour in waits]
        look = {"color": "white", "edgecolor": colours, "hatch": "//////"} if wide else {"color": colours}
        self._bars(axes, at, waits, linewidth=0.3, alpha=1.0 if wide else 0.3, **look)

    def _bars(self, axes: Any, at: Any, spans: Sequence[Span], **style: Any) -> None:
        rank, first = self.trace.rank, self.top + LANE + self.row / 2
        places = [first + self.row * self.programs.index(tile.program) for tile, *_ in spans]
        begins = [at(rank, begin) for _, begin, _, _ in spans]
        lengths = [at(rank, end) - begin for (_, _, end, _), begin in zip(spans, begins, strict=True)]
        axes.barh(places, lengths, 0.9 * self.row, begins, **style)

    def _mark(self, axes: Any, x: float, kind: str, colour: str) -> None:
        marker, size, _ = MARKS[kind]
        axes.plot(
            [x], [self.lane(kind)], marker=marker, markersize=8 * size, color=colour, markeredgecolor="white",
            markeredgewidth=0.6, zorder=5,
        )  # fmt: skip


def waits_of(tile: TileRun) -> list[tuple[int, int, list[int]]]:
    """(begin, over, signals) of each wait of a tile that waited for something."""
    first = [(tile.wait_begin, tile.start, tile.waits)] if tile.waits else []
    return first + [phase for phase in tile.phases if phase[2]]


def spans_of(trace: Trace, tile: TileRun, colour: str) -> list[Span]:
    """What is drawn of a tile: itself, or its ranges where some of them waited and what it makes stays here."""
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
                moments, [band.lane("made"), lanes[send.to]], color=colour_of(rank), linewidth=0.9, alpha=0.45
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
