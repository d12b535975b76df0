"""`make demo`: what Syncopate does, seen on this machine in under two minutes.

On two or more Hopper GPUs: one rank per GPU, a matmul of a real model's size. Elsewhere: four host ranks, processes that
share memory, with the kernels in Triton's interpreter and chunks that are late at random.
"""

from __future__ import annotations

import argparse
import difflib
import os
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import trace
from ..ranks import Place, RankError
from .standard_output import answering

WIDTH = 100  # columns of text
BAR = 72  # columns of a timeline


@dataclass(frozen=True)
class Setting:
    """What is computed, and where."""

    device: str
    ranks: int
    m: int
    n: int
    k: int
    dtype: str
    tolerance: float  # of the relative error against fp64
    calls: int  # that are timed
    host_delay: float = 0.0  # seconds that a chunk may be late, at random, each of three times
    seed: int = 4


@dataclass
class Report:
    """What one rank found."""

    rank: int
    microseconds: float
    error: float  # relative norm, against fp64
    identical: bool  # to the unfused kernel, bit for bit
    traced_identical: bool
    recorded: trace.Trace
    matmul_microseconds: float | None  # torch.mm alone on gathered input; GPUs only
    plan: str
    plan_json: str
    kernel: str
    emitted: str
    original: str
    coordinates: list[tuple[int, int]]  # by tile: the first row and column of its output


HOST = Setting("host", 4, 256, 192, 256, "fp32", 1e-5, 3, host_delay=0.2)
GPUS = Setting("cuda", 0, 8192, 3584, 8192, "bf16", 5e-3, 20)


def work(place: Place, setting: Setting) -> Report:
    """One rank: the fused operator, its result against the references, and one recorded call."""
    import torch

    from .. import ops
    from ..call.arguments import DTYPES
    from ..group import of_folder
    from ..ops.operator import problem_of
    from ..ops.shards import rows_of
    from ..strategy import SMALL, Strategy, recorded

    m, n, k, dtype = setting.m, setting.n, setting.k, DTYPES[setting.dtype]
    cuda = setting.device == "cuda"
    if cuda:
        torch.cuda.set_device(place.rank)
    else:
        torch.set_num_threads(1)
    device = torch.device("cuda", place.rank) if cuda else torch.device("cpu")
    group = of_folder(place.folder, place.rank, place.size, place.run_id, setting.device, place.rank)
    # The interpreter runs programs one after another, so that only one can overlap with communication.
    chosen = Strategy(tilings=(SMALL,), programs=1)
    if cuda:
        chosen = recorded(problem_of("all_gather_matmul", m, n, k, dtype, group), group)
    op = ops.AllGatherMatmul(
        m, n, k, dtype, group, strategy=chosen, host_delay=setting.host_delay, seed=setting.seed
    )

    generator = torch.Generator().manual_seed(setting.seed)
    # All of A is here only to check the result: the operator is given this rank's rows.
    whole = torch.randn(m, k, generator=generator).to(dtype).to(device)
    w = torch.randn(k, n, generator=generator).to(dtype).to(device)
    x = op.shard()
    x.copy_(whole[rows_of(m, place.size, place.rank)])

    y = torch.empty(m, n, dtype=dtype, device=device)
    for _ in range(3 if cuda else 1):
        op(x, w, y)
    op.check()
    times = []
    for index in range(setting.calls):
        y.fill_(float("nan"))
        group.barrier(f"demo-{index}")
        times.append(microseconds(device, lambda: op(x, w, y)))
    op.check()

    traced = torch.full_like(y, float("nan"))
    for index in range(2 if cuda else 1):  # the first one on a GPU compiles
        group.barrier(f"demo-trace-{index}")
        recorded = op.record(x, w, out=traced)

    unfused = op.unfused(whole, w, torch.full_like(y, float("nan")))
    reference = whole.double() @ w.double()
    error = ((y.double() - reference).norm() / reference.norm()).item()
    matmul = None
    if cuda:
        torch.mm(whole, w)
        matmul = statistics.median(
            microseconds(device, lambda: torch.mm(whole, w)) for _ in range(setting.calls)
        )
    report = Report(
        rank=place.rank,
        microseconds=statistics.median(times),
        error=error,
        identical=bool(torch.equal(y, unfused)),
        traced_identical=bool(torch.equal(traced, y)),
        recorded=recorded,
        matmul_microseconds=matmul,
        plan=op.plan.table(),
        plan_json=op.plan.to_json(),
        kernel=op.kernel.__name__,
        emitted=op.prepared.source,
        original=op.fused.source,
        coordinates=tile_coordinates(op),
    )
    op.close()
    return report


def microseconds(device: Any, call: Callable[[], Any]) -> float:
    from ..measure.stopwatch import stopwatch

    if device.type == "cuda":
        import torch

        torch.cuda.synchronize()
    elapsed = stopwatch(device)
    call()
    return elapsed()


def tile_coordinates(op: Any) -> list[tuple[int, int]]:
    """By tile id, the first row and column of C, as the kernels in kernels/matmul.py number their tiles."""
    t = op.tiling
    rows = -(-op.m // t.block_m)

    def grouped(columns: int, first: int, width: int) -> Iterator[tuple[int, int]]:
        for tile in range(rows * columns):
            group, inside = divmod(tile, t.group_m * columns)
            height = min(rows - group * t.group_m, t.group_m)
            yield (group * t.group_m + tile % height) * t.block_m, first + (inside // height) * width

    wide = t.num_wide if t.num_wide >= 0 else -(-op.n // t.block_n)
    tiles = list(grouped(wide, 0, t.block_n))
    if (rest := op.n - wide * t.block_n) > 0:
        narrow = t.block_n // 2
        tiles += grouped(-(-rest // narrow), wide * t.block_n, narrow)
    return tiles


# ---------------------------------------------------------------------------------------------------------------------
# What is printed


def digit(rank: int) -> str:
    return "0123456789abcdefghijklmnopqrstuvwxyz"[rank] if rank < 36 else "+"


def heading(title: str) -> list[str]:
    return ["", title, "-" * len(title)]


def duration(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:,.1f} ms" if nanoseconds >= 1e6 else f"{nanoseconds / 1e3:,.0f} µs"


def introduction(setting: Setting) -> list[str]:
    n = setting.ranks
    part = {2: "half", 3: "a third", 4: "a quarter"}.get(n, f"one {n}th")
    if setting.device == "host":
        who, where = (
            "rank",
            f"{n} host ranks: processes that share memory; Triton's interpreter; chunks late at random",
        )
    else:
        who, where = "GPU", f"the {n} GPUs of this machine, one process each"
    about = (
        f"Each {who} holds {part} of the rows of A and needs all of C = A x W: an all-gather, then a matmul. Syncopate "
        "makes one kernel of a plain Triton matmul and an all-gather plan: a tile of C starts as soon as the rows of A "
        "that it reads have arrived, while the others are still under way."
    )
    return [
        "Syncopate: computing while communicating, tile by tile",
        "=" * 54,
        "",
        *textwrap.wrap(about, WIDTH),
        "",
        f"  where    {where}",
        f"  sizes    A {setting.m} x {setting.k}, W {setting.k} x {setting.n}, C {setting.m} x {setting.n}, {setting.dtype}",
    ]


def show_plan(report: Report, setting: Setting, most: int = 8) -> list[str]:
    blocks = report.plan.strip("\n").split("\n\n")
    mesh = blocks[0].splitlines()
    rank = next(block for block in blocks if block.startswith(f"rank {report.rank} ")).splitlines()
    lines = [*mesh, "", *rank[: 2 + most]]
    if len(rank) > 2 + most:
        lines.append(f"  … {len(rank) - 2 - most} more")
    lines.append(
        f"(the other {setting.ranks - 1} likewise; each starts with the rank after it, so no link is hot)"
    )
    return ["  " + line if line else "" for line in lines]


def show_kernel(report: Report) -> list[str]:
    """The lines of the emitted kernel that differ from the user's, each with what it is for."""
    lines = []
    for line in difflib.ndiff(report.original.splitlines(), report.emitted.splitlines()):
        if line.startswith("+ "):
            code, _, comment = line[2:].strip().partition("  # ")
            lines.append("  + " + (code if len(code) <= WIDTH - 4 else code[: WIDTH - 5] + "…"))
            if comment:
                lines.append(f"        {comment}")
    return lines


def owner_of(report: Report, setting: Setting, tile: int) -> int:
    """The rank whose rows of A the tile begins with."""
    from ..ops.shards import rows_of

    row = report.coordinates[tile][0]
    return next(r for r in range(setting.ranks) if row < rows_of(setting.m, setting.ranks, r).stop)


def show_order(report: Report, setting: Setting, most: int = 16) -> list[str]:
    """The tiles of C as a picture: rows and columns as in C, in each cell when this rank runs the tile."""
    runs = sorted(report.recorded.tiles, key=lambda run: run.slot)
    position = {run.tile: index for index, run in enumerate(runs)}
    rows: dict[int, list[int]] = {}
    for tile in sorted(range(len(report.coordinates)), key=lambda t: report.coordinates[t]):
        rows.setdefault(report.coordinates[tile][0], []).append(tile)
    starts = [*rows, setting.m]
    each = -(-len(rows) // most)
    small = each == 1 and max(map(len, rows.values())) <= 16
    if small:
        about = f"Each cell is a tile of C; the number says when rank {report.rank} runs it, 0 first."
    else:
        about = (
            f"A digit is {each} tile{'s' * (each > 1)} of C; it says when rank {report.rank} runs them: 0 in the first tenth "
            "of the call's tiles, 9 in the last."
        )
    lines = [*textwrap.wrap(about, WIDTH), ""]
    lines.append(f"  rows of C      A's rows from   columns of C, 0 to {setting.n - 1}")
    for first in range(0, len(rows), each):
        band = starts[first : first + each]
        sources = sorted({owner_of(report, setting, rows[start][0]) for start in band if start in rows})
        names = ", ".join("own" if source == report.rank else f"rank {source}" for source in sources)
        cells = []
        for column in range(len(rows[band[0]])):
            mean = statistics.mean(position.get(rows[start][column], 0) for start in band if start in rows)
            cells.append(f"{mean:4.0f}" if small else str(int(10 * mean / len(report.coordinates))))
        box = f"{band[0]}:{starts[min(first + each, len(rows))]}"
        lines.append(f"  {box:<13}  {names:<14} {' ' * (not small)}{''.join(cells)}")
    return lines


def show_timeline(reports: Sequence[Report], setting: Setting) -> list[str]:
    """Chunks and programs over time: of each rank where a rank has one program, else of the first one."""
    single = all(len({t.program for t in r.recorded.tiles}) == 1 for r in reports)
    shown = list(reports) if single else [reports[0]]
    begin, end = min(r.recorded.begin for r in shown), max(r.recorded.end for r in shown)
    column = max(end - begin, 1) / BAR
    about = (
        "A digit is the rank whose rows of A arrive (chunks) or are being multiplied (tiles); '.' is waiting."
    )
    if not single:
        about += (
            f" This is rank {shown[0].rank}, and a few of its programs (each runs on one multiprocessor)."
        )
    marks = f"{'':18}0"
    for quarter in range(1, 5):
        label = duration((end - begin) * quarter / 4)
        marks = marks.ljust(18 + quarter * BAR // 4 - len(label) // 2) + label
    ruler = ("|" + " " * (BAR // 4 - 1)) * 4 + "|"
    lines = [*textwrap.wrap(about, WIDTH), "", marks[:WIDTH].rstrip(), f"{'':18}{ruler}"]
    for report in shown:
        came = [" "] * (BAR + 1)
        for chunk in report.recorded.chunks:
            at = min(BAR, int((chunk.time - begin) / column))
            while at < BAR and came[at] != " ":
                at += 1
            came[at] = digit(chunk.source)
        lines += ["", f"{f'rank {report.rank}, chunks' if single else 'chunks':<18}{''.join(came)}".rstrip()]
        programs = sorted({t.program for t in report.recorded.tiles})
        for program in programs[:: -(-len(programs) // 8)]:
            runs = [run for run in report.recorded.tiles if run.program == program]
            moments = [begin + (at + 0.5) * column for at in range(BAR)]
            bar = "".join(seen_at(report, setting, runs, moment) for moment in moments)
            lines.append(f"{'        tiles' if single else f'program {program}':<18}{bar}".rstrip())
    return lines


def seen_at(report: Report, setting: Setting, runs: Sequence[trace.TileRun], moment: float) -> str:
    """What a program did then, of those tiles: a digit, "." while it waited, or nothing."""
    for run in runs:
        if run.wait_begin <= moment < run.end:
            waits = [(run.wait_begin, run.start), *(phase[:2] for phase in run.phases)]
            waited = any(begin <= moment < over for begin, over in waits)
            return "." if waited else digit(owner_of(report, setting, run.tile))
    return " "


def show_arrivals(report: Report, most: int = 8) -> list[str]:
    recorded = report.recorded
    total = len(recorded.tiles)
    lines = [f"  on rank {report.rank}: a chunk of A     arrived after   tiles finished by then"]
    step = max(1, -(-len(recorded.chunks) // most))
    for chunk in [*recorded.chunks[:-1:step], recorded.chunks[-1]]:
        box = f"rows {chunk.region[0][0]}:{chunk.region[0][1]} from rank {chunk.source}"
        done = recorded.finished_by(chunk.time)
        lines.append(f"  {box:<30}  {duration(chunk.time - recorded.begin):>13}   {done:>5} of {total}")
    last = recorded.chunks[-1].time
    started = sum(t.start < last for t in recorded.tiles)
    about = (
        f"Without overlap the first tile would have started with the last chunk, after "
        f"{duration(last - recorded.begin)}. By then {started} of {total} tiles ({100 * started // total}%) were running "
        "or done."
    )
    return [*lines, "", *textwrap.wrap(about, WIDTH)]


def show_result(reports: Sequence[Report], setting: Setting) -> list[str]:
    worst = max(reports, key=lambda r: r.error if r.error == r.error else float("inf"))
    slowest = max(r.microseconds for r in reports)

    def verdict(same: Sequence[bool]) -> str:
        bad = [r.rank for r, one in zip(reports, same, strict=True) if not one]
        return (
            "yes, bit for bit, on all ranks"
            if not bad
            else f"NO: different on rank {', '.join(map(str, bad))}"
        )

    rows = [
        (
            "largest error against fp64",
            f"{worst.error:.1e} (relative norm; {setting.tolerance:.0e} is allowed)",
        ),
        ("same as the unfused kernel", verdict([r.identical for r in reports])),
        ("same when recorded", verdict([r.traced_identical for r in reports])),
        ("time of a call", f"{duration(slowest * 1e3)} (median of {setting.calls}, slowest rank)"),
    ]
    if setting.device == "cuda":
        alone = max(r.matmul_microseconds or 0.0 for r in reports)
        rows.append(
            ("torch.mm alone", f"{duration(alone * 1e3)} (on A gathered beforehand: without communication)")
        )
    else:
        rows.append(("", "interpreted, with chunks late on purpose: it says nothing about a GPU"))
    return [f"  {name:<28}{value}" for name, value in rows]


def good(report: Report, setting: Setting) -> bool:
    return report.identical and report.traced_identical and report.error < setting.tolerance


def write_files(reports: Sequence[Report], folder: Path) -> list[tuple[Path, str]]:
    first = reports[0]
    (folder / "plan.json").write_text(first.plan_json)
    (folder / "kernel.py").write_text(first.emitted)
    trace.write([r.recorded for r in reports], folder / "trace.json")
    return [
        (folder / "plan.json", "the plan, for `syncopate plan show` and `plan check` (`make build`)"),
        (folder / "kernel.py", "the emitted kernel, to read: your lines and the added ones"),
        (folder / "trace.json", "the recorded call on all ranks: open it in https://ui.perfetto.dev"),
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Where it runs


def gpu_probe(_: Place) -> str:
    """In a process of its own, so that the parent never touches CUDA: why the GPUs here cannot run the demo; '' if they can."""
    import torch

    if not torch.cuda.is_available():
        return "this PyTorch cannot use them"
    for ordinal in range(torch.cuda.device_count()):
        if torch.cuda.get_device_capability(ordinal)[0] < 9:
            return (
                f"{torch.cuda.get_device_name(ordinal)} is older than Hopper, and the kernel loads with TMA"
            )
    return ""


def choose(options: argparse.Namespace) -> tuple[Setting, str]:
    """The setting for this machine, and a line that says why when it is not the obvious one."""
    from .. import ranks

    host = replace(HOST, ranks=options.ranks or HOST.ranks)
    if options.device == "host":
        return host, ""
    try:
        count = ranks.gpu_count()
    except RankError:  # no driver
        count = 0
    wanted = options.ranks or count
    if count < max(2, wanted):
        reason = f"found {count} GPU{'s' * (count != 1)}, {max(2, wanted)} are needed"
    else:
        reason = ranks.run(1, gpu_probe, timeout=120)[0]
    if not reason:
        return replace(GPUS, ranks=wanted), ""
    if options.device == "cuda":
        raise RankError(f"{reason}; use --device host", 3)
    return host, f"{reason}: running on the host instead" if count else ""


def demo(options: argparse.Namespace) -> int:
    from .. import ranks
    from ..host import interpreter

    setting, note = choose(options)
    options.out.mkdir(parents=True, exist_ok=True)
    if setting.device == "host":
        interpreter.enable()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with answering():
        print("\n".join(([f"note: {note}", ""] if note else []) + introduction(setting)))
    import torch  # noqa: F401 - once, before the ranks are forked
    import triton  # noqa: F401

    reports: list[Report] = ranks.run(
        setting.ranks, lambda place: work(place, setting), timeout=options.timeout
    )
    first = reports[0]
    files = write_files(reports, options.out)
    lines = heading("1. The plan: which chunk moves where")
    lines += show_plan(first, setting)
    lines += heading("2. The kernel: what Syncopate added to it")
    lines += show_kernel(first)
    lines += heading("3. The order of the tiles: own rows first, then as chunks are expected")
    middle = reports[min(1, len(reports) - 1)]
    lines += show_order(middle, setting)
    lines += heading("4. One call as it happened")
    lines += show_timeline(reports, setting)
    lines += ["", *show_arrivals(first)]
    lines += heading("5. The result")
    lines += show_result(reports, setting)
    lines += heading("6. Files")
    names = [
        os.path.relpath(path) if path.absolute().is_relative_to(Path.cwd()) else str(path)
        for path, _ in files
    ]
    width = max(map(len, names)) + 3
    lines += [f"  {name:<{width}}{about}" for name, (_, about) in zip(names, files, strict=True)]
    with answering():
        print("\n".join(lines))
    wrong = [report.rank for report in reports if not good(report, setting)]
    if wrong:
        print(f"error: the result is wrong on rank {', '.join(map(str, wrong))}", file=sys.stderr)
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m syncopate.command.demo", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", choices=("auto", "host", "cuda"), default="auto")
    parser.add_argument("--ranks", type=int, default=0, help="default: all GPUs, or 4 on the host")
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="folder for the files (default: out/demo)"
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds until the demo gives up")
    options = parser.parse_args(arguments)
    if options.ranks and not 2 <= options.ranks <= 16:
        parser.error("--ranks must be 2 to 16")
    try:
        return demo(options)
    except Exception as error:  # noqa: BLE001 - the command's outer face
        code = getattr(error, "exit_code", None)
        if code is None and not isinstance(error, OSError):
            raise
        print(f"error: {error}", file=sys.stderr)
        return int(code or 1)


if __name__ == "__main__":
    sys.exit(main())
