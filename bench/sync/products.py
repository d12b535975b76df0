"""GPT-3's and LLaMA's feed-forward by the library's Gluon products, against cuBLAS and Stream-K, as CUDA graphs in turn
in one run:

    python bench/sync/products.py [--work gpt3,llama] [--sizes 1,16,…] [--rounds 7] [--replays 3] [--idle MS] [--wide]
                                   [--json FILE]

    cublas     two products of cuBLAS and the activation, the faster of two ways: PyTorch's, and the activation in the product
               (gpt3) or as one Triton kernel (llama)
    stream_k   plain Triton products by Stream-K
    stream     the library's products in stream order
    pdl        the same, launched programmatically by Triton, with griddepcontrol.wait behind the first blocks of operand B
    programmatic   the same as one program of ours
    tiles      the same as one program: the loader awaits tiles; the best with and without (`late`) loading
               operand B before the wait, by persistent programs and with a tile a program (`each`)
    chosen     what sy.fuse takes by itself, with the tiles of the fastest of these three ways, measured once more, in turn with
               stream order alone (`beside`)
    ours       the same way in the first measurement, which `gain` compares with the fastest rival

µs, median over rounds of the mean over replays, each way with its best of a few tilings. Every graph is compared with
PyTorch's result first, and `tiles` with the bits of `stream`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import syncopate as sy
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import chains  # noqa: E402
import kernels  # noqa: E402
import library  # noqa: E402
import work  # noqa: E402
from syncopate.kernels.gluon_launch import GluonTiling  # noqa: E402
from syncopate.kernels.gluon_tiles import ranked  # noqa: E402

WORK = {"gpt3": (12288, 6144, False), "llama": (8192, 2816, True)}
PLAIN = work.Tiling(128, 256, 64, 8, 3)
FEW = work.Tiling(64, 128, 128, 4, 4)


def is_halved(tile: GluonTiling) -> bool:
    """Whether the kernel has tiles of half as many columns."""
    return tile.block_n in ((128, 192, 256) if 64 <= tile.block_m <= 128 else (64,))


def quick(product: library.Product, programs: int) -> list[GluonTiling]:
    """The three quickest tilings of a product by the estimate."""
    m, n, k = product.shape
    tiles = [tile for tile, _ in ranked(m, n * (1 + product.gated), k, programs)]
    if product.gated:  # two blocks of w that are half as wide
        tiles = [replace(t, block_n=t.block_n // 2, stages=t.stages + 1) for t in tiles if is_halved(t)]
    return [library.fitting(tile, product.gated) for tile in tiles[:3]]


def tilings(one: library.LibraryWork, programs: int, only_wide: bool) -> list[tuple[GluonTiling, ...]]:
    """The quickest and the second of each product, the third of all, and two wide ones; or the first of these alone."""
    wide = tuple(GluonTiling(128, 128 if p.gated else 256, 64, 4 if p.gated else 3) for p in one.products)
    if only_wide:
        return [wide]
    ranks = [quick(product, programs) for product in one.products]
    found = list(itertools.product(*(tiles[:2] for tiles in ranks)))
    found.append(tuple(tiles[-1] for tiles in ranks))
    if one.products[0].shape[0] > 256:
        found.append(wide)
        found.append((wide[0], GluonTiling(128, 128, 64, 5)))
    return list(dict.fromkeys(found))


def in_place_of_library(one: library.LibraryWork, gated: bool) -> Any:
    """The activation in cuBLAS's product, or as one kernel."""
    x, w1, w2 = (one.rest[name] for name in ("x", "w1", "w2"))
    mid = torch.empty(x.shape[0], w1.shape[0], device="cuda", dtype=x.dtype)
    if not gated:
        bias = torch.zeros(w1.shape[0], device="cuda", dtype=x.dtype)

        def run() -> None:
            h = torch._addmm_activation(bias, x, w1.t(), use_gelu=False)
            torch.mm(h, w2.t(), out=one.expected)

        return run
    stage = one.work.stages(FEW)[1]
    half = one.arrays["H"]

    def run_gated() -> None:
        torch.mm(x, w1.t(), out=mid)
        stage.kernel[stage.grid](**stage.arguments | {"g_ptr": mid, "h_ptr": half})
        torch.mm(half, w2.t(), out=one.expected)

    return run_gated


class StreamK:
    def __init__(self, one: library.LibraryWork, programs: int):
        self.stages = one.work.stages(PLAIN if one.products[0].shape[0] > 128 else FEW)
        self.products = {
            i: chains.StreamK([stage], programs)
            for i, stage in enumerate(self.stages)
            if stage.kernel is kernels.product
        }

    def __call__(self) -> None:
        for i, stage in enumerate(self.stages):
            if i in self.products:
                self.products[i]()
            else:
                stage.kernel[stage.grid](**stage.arguments)


def fused(stages: list[work.Stage], way: str | None) -> tuple[Any, Any]:
    chain = sy.fuse([s.kernel for s in stages], bind=[s.bind for s in stages], way=way, deadline=5)
    calls = [chain.call(i, s.grid, **s.arguments) for i, s in enumerate(stages)]
    return chain, lambda: chain.run(calls)


def programmatic(stages: list[work.Stage]) -> Any:
    calls = [(s.kernel.fn[s.grid], s.arguments | s.kernel.filled(s.grid, s.arguments)) for s in stages]

    def run() -> None:
        for launch, arguments in calls:
            launch(**arguments, launch_pdl=True)

    return run


def row_of(name: str, m: int, given: argparse.Namespace) -> dict[str, Any]:
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    one = library.feed_forward(m, *WORK[name])
    one.library()
    torch.cuda.synchronize()
    wanted, keep, graphs = one.expected.clone(), [], {}
    for number, run in enumerate((one.library, in_place_of_library(one, WORK[name][2]))):
        graphs["cublas", number] = chains.captured(run)
        keep.append(run)
    torch.testing.assert_close(one.expected, wanted, rtol=2e-2, atol=2e-2 * float(wanted.abs().max()))
    options, made = tilings(one, programs, given.wide), []
    for number, tiles in enumerate(options):
        every = max(t.tiles(*p.shape[:2]) * t.split_k for t, p in zip(tiles, one.products, strict=True))
        sorts = {
            "stream": fused(one.stages(tiles, programs=programs), "stream"),
            "programmatic": fused(one.stages(tiles, programs=programs), "programmatic"),
            "tiles": fused(one.stages(tiles, programs=programs), "tiles"),
            "late": fused(one.stages(tiles, programs=programs, early=False), "tiles"),
        }
        if every > programs and all(t.split_k == 1 for t in tiles):  # a tile a program
            sorts["each"] = fused(one.stages(tiles, programs=every), "tiles")
        made += [chain for chain, _ in sorts.values()]
        keep += [run for _, run in sorts.values()]  # the graphs read and write what they are given
        plain = None
        for way, (_, run) in sorts.items():
            graphs[way, number] = chains.captured(run)
            left = chains.checked(one, way, graphs[way, number], plain)
            plain = plain or left
        keep.append(programmatic(one.stages(tiles, programs=programs, pdl=True)))
        graphs["pdl", number] = chains.captured(keep[-1])
        chains.checked(one, "pdl", graphs["pdl", number], None)
    keep.append(StreamK(one, programs))
    graphs["stream_k", 0] = chains.captured(keep[-1])
    chains.checked(one, "stream_k", graphs["stream_k", 0], None)
    times = chains.measure(graphs, given.rounds, given.replays, given.idle)
    best = {}
    for way, number in times:
        kind = "tiles" if way in ("late", "each") else way
        if kind not in best or times[way, number] < times[best[kind]]:
            best[kind] = (way, number)
    row: dict[str, Any] = {"work": name, "M": m} | {kind: round(times[at], 1) for kind, at in best.items()}
    way, number = min((best[kind] for kind in ("stream", "programmatic", "tiles")), key=lambda at: times[at])
    every = max(t.tiles(*p.shape[:2]) for t, p in zip(options[number], one.products, strict=True))
    stages = one.stages(options[number], programs=every if way == "each" else programs, early=way != "late")
    chain, run = fused(stages, None)
    plain_chain, plain_run = fused(stages, "stream")
    again = chains.measure(
        {"chosen": chains.captured(run), "stream": chains.captured(plain_run)},
        given.rounds,
        given.replays,
        given.idle,
    )
    row |= {"chosen": round(again["chosen"], 1), "way": chain.ways[0], "beside": round(again["stream"], 1)}
    row["rival"] = min(row["cublas"], row["pdl"], row["stream_k"])
    # Rivals were measured beside many more graphs, which the power limit slows: from that measurement is what was chosen, too.
    tiled = way if way in ("tiles", "late", "each") else "tiles"
    taken = tiled if chain.ways[0] == "tiles" else chain.ways[0]
    row["ours"], row["tiles_as"] = round(times[taken, number], 1), " ".join(map(str, best["tiles"]))
    row["gain"] = round(row["rival"] / row["ours"], 3)
    row["tiling"] = [vars(t) for t in options[number]]
    for each in (*made, chain, plain_chain):
        each.check()
        each.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", default=",".join(WORK))
    parser.add_argument("--sizes", default=",".join(map(str, chains.TOKENS)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--replays", type=int, default=3)
    parser.add_argument(
        "--idle", type=float, default=0, help="milliseconds of rest before each group of replays"
    )
    parser.add_argument(
        "--wide", action="store_true", help="both products in tiles of 128 x 256, or gated 128 x 128"
    )
    parser.add_argument("--json")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    table = []
    for size in map(int, given.sizes.split(",")):
        for name in given.work.split(","):
            row = row_of(name, size, given)
            table.append(row)
            print(*(f"{k} {v}" for k, v in row.items() if k != "tiling"), flush=True)
            if given.json:
                Path(given.json).write_text(json.dumps(table, indent=1))
    for name, few, most in (("M <= 256", 0, 256), ("M >= 512", 512, 1 << 30)):
        gains = [row["gain"] for row in table if few <= row["M"] <= most]
        if gains:
            mean = math.exp(sum(map(math.log, gains)) / len(gains))
            print(f"{name}: rival / ours: geometric mean {mean:.3f}, least {min(gains):.3f}")


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
