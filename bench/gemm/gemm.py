"""One GPU: the library's GEMM kernels against cuBLAS, and what following a schedule costs.

    python bench/gemm/gemm.py [--shapes NxK …] [--rows 16 64 …] [--chosen] [--plain] [--transposed] [--csv FILE]
    python bench/gemm/gemm.py --tilings [NAME …] [--shapes NxK …] [--rows 16 64 …]      every tile shape by itself
    python bench/gemm/gemm.py --schedules [--shapes NxK …] [--rows 16 64 …]       what a schedule costs

A NAME is of a tile shape, as 64x64x128/6: of it the best split of K is shown. --chosen: only the tiles that the operators
would take, which compiles a kernel a row and not twenty.

Every row's candidates take turns as graph replays, so that clocks and power limits are the same for all. A time is the
median over rounds; inputs rotate through copies larger than the L2 cache.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from by_hand import by_hand, unfused_order
from syncopate.kernels.gluon_launch import GluonTiling, gluon_arguments, make_workspace
from syncopate.kernels.gluon_matmul import gluon_matmul
from syncopate.kernels.gluon_tiles import quickest
from syncopate.measure.products import repeats

#: N, K: two products of each of four models, and shapes in between.
SHAPES = [
    (2304, 7168),
    (7168, 2304),
    (3584, 8192),
    (8192, 3584),
    (1792, 4096),
    (4096, 1792),
    (6144, 12288),
    (12288, 6144),
]
ROWS = [16, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
TILINGS = [
    GluonTiling(16, 32, 128, 16),
    GluonTiling(16, 64, 128, 10),
    GluonTiling(32, 32, 128, 12),
    GluonTiling(32, 64, 128, 8),
    GluonTiling(64, 64, 128, 6),
    GluonTiling(64, 96, 64, 10),
    GluonTiling(64, 128, 64, 8),
    GluonTiling(64, 192, 64, 6),
    GluonTiling(64, 256, 64, 4),
    GluonTiling(128, 64, 64, 7),
    GluonTiling(128, 96, 64, 7),
    GluonTiling(128, 128, 64, 5),
    GluonTiling(128, 192, 64, 4),
    GluonTiling(128, 256, 64, 3),
    GluonTiling(192, 192, 64, 3),
]
SPLITS = [1, 2, 3, 4, 5, 6, 7, 8]
FEW_TILES = 4  # rows of tiles, of 16 or 32 rows each
PLAIN = [(128, 256, 64, 3), (128, 128, 64, 4), (64, 256, 64, 4)]


def candidates(m: int, n: int, sms: int) -> list[GluonTiling]:
    """The tilings that may be best: not more columns of waste than a half, and K split only where programs are left."""
    found = []
    for tiling in TILINGS:
        if tiling.block_m >= 128 and m <= 64 or tiling.block_m < 64 and m > FEW_TILES * tiling.block_m:
            continue
        tiles = tiling.tiles(m, n)
        for split in SPLITS:
            if split > 1 and tiles * split > sms * 1.05:
                continue
            if tiles * split < sms / 3 and split != SPLITS[-1]:
                continue
            found.append(replace(tiling, split_k=split))
    return found


def shape_name(t: GluonTiling) -> str:
    return f"{t.block_m}x{t.block_n}x{t.block_k}/{t.stages}"


def name_of(t: GluonTiling) -> str:
    return shape_name(t) + (f" split {t.split_k}" if t.split_k > 1 else "")


def gluon_call(
    a: Any, w: Any, c: Any, shape: tuple[int, int, int], tiling: GluonTiling, **options: Any
) -> Callable[[], None]:
    m, n, _ = shape
    if not w.is_contiguous():
        w, options["w_transposed"] = w.t(), True
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    gated = options.get("gated", False)
    workspace = make_workspace(tiling, m, n, a.device, gated)
    arguments = gluon_arguments(a, w, c, shape, tiling, workspace=workspace, **options)
    grid = tiling.grid(m, n, sms)
    return lambda: gluon_matmul[grid](**arguments, **tiling.options())


def plain_call(a: Any, w: Any, c: Any, tiling: tuple[int, int, int, int]) -> Callable[[], None]:
    from syncopate.ops.product_kernel import Product
    from syncopate.strategy import Tiling

    sms = torch.cuda.get_device_properties(0).multi_processor_count
    block_m, block_n, block_k, stages = tiling
    product = Product(a.shape[0], w.shape[1], a.shape[1], Tiling(block_m, block_n, block_k, stages, -1), sms)
    return lambda: product.run(a, w, c)


def replays(calls: list[Callable[[], None]]) -> torch.cuda.CUDAGraph:
    """A graph of the calls in order."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def measure(graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]], rounds: int = 7) -> dict[str, float]:
    """Median µs of a call, of graphs of so many calls each."""
    times: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        for name, (graph, count) in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn:
                times.setdefault(name, []).append(start.elapsed_time(end) * 1e3 / count)
    return {name: statistics.median(values) for name, values in times.items()}


def operands(
    m: int, n: int, k: int, copies: int, transposed: bool = False
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """a, b and c; `transposed`: b [K, N] of a tensor [N, K]."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def weights() -> torch.Tensor:
        return (random(n, k).t() if transposed else random(k, n)) / math.sqrt(k)

    return [(random(m, k), weights(), random(m, n)) for _ in range(copies)]


def row(
    m: int,
    n: int,
    k: int,
    with_plain: bool,
    only: list[str] | None = None,
    transposed: bool = False,
    chosen: bool = False,
) -> dict[str, float]:
    """µs by candidate, of the tile shapes named in `only`, or of the tiles that are chosen alone."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    copies, count = repeats(m, n, k)
    data = operands(m, n, k, copies, transposed)
    sets = [data[i % copies] for i in range(count)]
    kept = []  # what graphs read must live as long as they
    graphs = {"cublas": (replays([lambda s=s: torch.mm(s[0], s[1], out=s[2]) for s in sets]), count)}
    if with_plain:
        for tiling in PLAIN:
            if tiling[0] == 128 and m <= 64:
                continue
            made = [plain_call(*s, tiling) for s in data]
            kept.append(made)
            graphs["plain " + "x".join(map(str, tiling))] = (
                replays([made[i % copies] for i in range(count)]),
                count,
            )
    for tiling in [quickest(m, n, k, sms)] if chosen else candidates(m, n, sms):
        if only and shape_name(tiling) not in only:
            continue
        made = [gluon_call(*s, (m, n, k), tiling) for s in data]
        kept.append(made)
        graphs[name_of(tiling)] = (replays([made[i % copies] for i in range(count)]), count)
    return measure(graphs)


def tilings(options: argparse.Namespace) -> None:
    """Prints cuBLAS's time, and of each tile shape the best split's: µs, cuBLAS's ÷ it, and the split."""
    for shape in options.shapes:
        n, k = map(int, shape.split("x"))
        for m in options.rows:
            times = row(m, n, k, False, options.tilings, options.transposed)
            cublas = times.pop("cublas")
            best: dict[str, tuple[float, str]] = {}
            for name, us in times.items():
                of, _, split = name.partition(" split ")
                best[of] = min(best.get(of, (math.inf, "")), (us, split))
            print(f"{m:5} {n:6} {k:6}  cublas {cublas:6.1f}", flush=True)
            for of, (us, split) in sorted(best.items(), key=lambda item: item[1]):
                print(f"{'':30}{of:20} {us:7.2f}  {cublas / us:.3f}" + (f"  split {split}" if split else ""))
            save(options.csv, (m, n, k), {"cublas": cublas, **times})


def save(path: str | None, shape: tuple[int, int, int], times: dict[str, float]) -> None:
    if path:
        with open(path, "a", newline="") as file:
            csv.writer(file).writerows((*shape, name, round(us, 2)) for name, us in times.items())


#: What a schedule has, of by_hand's options.
SCHEDULES = {
    "table": {"waits": False, "posts": False},
    "waits": {"waits": True, "posts": False},
    "phases": {"waits": True, "phases": 4, "posts": False},
    "posts": {"waits": False, "posts": True},
    "both": {"waits": True, "posts": True},
}


def schedule_row(m: int, n: int, k: int) -> dict[str, float]:
    """µs of the quickest tiles alone ("alone") and by schedules whose waits are over, in the same order."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    tiling = quickest(m, n, k, sms)
    copies, count = repeats(m, n, k)
    data = operands(m, n, k, copies)
    calls = {"alone": [gluon_call(*s, (m, n, k), tiling, B_EARLY=True) for s in data]}
    kept = []
    for name, options in SCHEDULES.items():
        programs = tiling.grid(m, n, sms)[0] // tiling.split_k
        made = by_hand((m, n, k), tiling, programs, order=unfused_order(m, n, tiling), **options)
        kept.append(made)
        calls[name] = [
            gluon_call(
                *s, (m, n, k), tiling, B_EARLY=True, FUSED=True, TELLS=True, COUNTS_END=True, **made.places
            )
            for s in data
        ]
    graphs = {
        name: (replays([each[i % copies] for i in range(count)]), count) for name, each in calls.items()
    }
    return measure(graphs, rounds=15)


def schedules(options: argparse.Namespace) -> None:
    """Prints the table, and by how much the worst rows are over the bars (2 % or 1 µs, 3 % or 1.5 µs)."""
    print("    M      N      K   alone   " + "  ".join(f"{name:>12}" for name in SCHEDULES))
    over = dict.fromkeys(SCHEDULES, 0)
    for shape in options.shapes:
        n, k = map(int, shape.split("x"))
        for m in options.rows:
            times = schedule_row(m, n, k)
            alone = times.pop("alone")
            for name, us in times.items():
                share, extra = (0.03, 1.5) if SCHEDULES[name]["posts"] else (0.02, 1.0)
                over[name] += us - alone > max(share * alone, extra)
            more = "  ".join(f"{us - alone:+6.2f} {us / alone - 1:+.1%}" for us in times.values())
            print(f"{m:5} {n:6} {k:6}  {alone:6.1f}   {more}", flush=True)
    print("rows over the bar: " + ", ".join(f"{name} {count}" for name, count in over.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="*", default=[f"{n}x{k}" for n, k in SHAPES], help="NxK")
    parser.add_argument("--rows", nargs="*", type=int, default=ROWS)
    parser.add_argument("--chosen", action="store_true", help="only the tiles that operators would take")
    parser.add_argument("--plain", action="store_true", help="also the plain Triton kernel")
    parser.add_argument("--transposed", action="store_true", help="weights [N, K]")
    parser.add_argument("--tilings", nargs="*", help="tile shapes one by one; none named: all")
    parser.add_argument("--schedules", action="store_true", help="what waits that are over and posts cost")
    parser.add_argument("--csv", help="append each candidate's time")
    options = parser.parse_args()
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}")
    if options.schedules:
        schedules(options)
        return
    if options.tilings is not None:
        tilings(options)
        return
    ratios: list[float] = []
    for shape in options.shapes:
        n, k = map(int, shape.split("x"))
        for m in options.rows:
            times = row(m, n, k, options.plain, transposed=options.transposed, chosen=options.chosen)
            cublas = times["cublas"]
            ours = {name: us for name, us in times.items() if "/" in name}
            best = min(ours, key=ours.get)
            plain = min((us for name, us in times.items() if name.startswith("plain")), default=math.nan)
            ratios.append(cublas / ours[best])
            print(
                f"{m:5} {n:6} {k:6}  cublas {cublas:7.1f}  plain {plain:7.1f}  gluon {ours[best]:7.1f}  {ratios[-1]:.2f}  {best}",
                flush=True,
            )
            save(options.csv, (m, n, k), times)
    print(f"geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
