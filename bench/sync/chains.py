"""Chains of dependent kernels on one GPU by several ways in one run, as CUDA graphs in turn:

    python bench/sync/chains.py [--work gpt3,llama,attention,norm,resnet,vgg] [--sizes 512,768,…] [--tilings 0,1] [--json FILE]

    library    cuBLAS, cuDNN and SDPA by PyTorch, and its pointwise kernels between them
    stream     the plain Triton kernels of kernels.py in stream order
    pdl        the same, launched programmatically, with griddepcontrol.wait
    stream_k   the products of two by Stream-K (mlp only)
    tiles      the same kernels as one program (sy.fuse without a plan): tiles wait for the tiles that they read

µs, median over rounds of the mean over replays. Each of the plain kernels' ways has its best tiling; `same` is the gain of
`tiles` over `stream` with the tiling that `stream` likes best, in %. Before anything is measured, every way is compared with
the library, and `tiles` with the bits of `stream`. `chosen` is what sy.fuse takes by itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from pathlib import Path

import syncopate as sy
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import kernels  # noqa: E402
import work  # noqa: E402

SLEEP_CYCLES = 400_000  # about 0.2 ms
TOKENS = [1, 16, 64, 128, 256, *range(512, 3073, 256)]
#: Constructor by size, and the sizes.
WORK = {
    "gpt3": (lambda m: work.mlp(m, 12288, 6144), TOKENS),
    "llama": (lambda m: work.swiglu(m, 8192, 2816), TOKENS),
    "attention": (lambda m: work.attention_block(m, 12288, 12), [512, 1024, 2048]),
    "norm": (lambda m: work.norm_product(m, 12288, 4608), [256, 512, 1024, 2048]),
    **{
        f"{net}{size}": (
            lambda batch, size=size, channels=channels, layers=layers: work.convolutions(
                batch, size, channels, layers
            ),
            [1, 4, 8],
        )
        for net, layers in (("resnet", 2), ("vgg", 4))
        for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512))
    },
}
GROUPS = {net: [name for name in WORK if name.startswith(net)] for net in ("resnet", "vgg")}


def tilings(name: str, size: int, programs: int) -> list[work.Tiling]:
    if name.startswith(("resnet", "vgg")):
        return [work.Tiling(128, 128, 64, 8, 4), work.Tiling(64, 64, 64, 4, 4)]
    if size <= 64:
        return [work.Tiling(64, 64, 128, 4, 4), work.Tiling(64, 128, 128, 4, 4)]
    if size <= 256:
        return [work.Tiling(64, 128, 128, 4, 4), work.Tiling(128, 128, 64, 8, 4)]
    return [
        work.Tiling(128, 256, 64, 8, 3),
        work.Tiling(128, 256, 64, 8, 3, programs),
        work.Tiling(128, 128, 64, 8, 4),
    ]


class StreamK:
    """The products of a chain of products by Stream-K; None of others."""

    def __init__(self, stages: list[work.Stage], programs: int):
        self.stages = []
        for stage in stages:
            a = stage.arguments
            sizes = (programs, a["BLOCK_M"], a["BLOCK_N"])
            self.stages.append(
                (
                    a,
                    torch.empty(sizes, device="cuda"),
                    torch.zeros(programs, dtype=torch.int32, device="cuda"),
                    programs,
                )
            )

    def __call__(self) -> None:
        for arguments, partial, flags, programs in self.stages:
            kernels.stream_k[(programs,)](**arguments, partial_ptr=partial, flag_ptr=flags)


class Ways:
    """One chain with one tiling."""

    def __init__(self, one: work.Work, tiling: work.Tiling):
        self.stages = one.stages(tiling)
        stages, binds = [s.kernel for s in self.stages], [s.bind for s in self.stages]
        self.fused = sy.fuse(stages, bind=binds, way="tiles", deadline=5)
        self.calls = [self.fused.call(i, s.grid, **s.arguments) for i, s in enumerate(self.stages)]

    def stream(self) -> None:
        for stage in self.stages:
            stage.kernel[stage.grid](**stage.arguments)

    def pdl(self) -> None:
        for stage in self.stages:
            stage.kernel[stage.grid](**stage.arguments, PDL=1, launch_pdl=True)

    def tiles(self) -> None:
        self.fused.run(self.calls)


def captured(run) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        run()
    return graph


def measure(graphs: dict, rounds: int, replays: int, idle: float = 0) -> dict:
    """µs of a replay, median over rounds. `idle`: milliseconds of rest before each group of replays, so that the power limit,
    which lowers the clock of what runs for long, does not come into it."""
    times: dict = {name: [] for name in graphs}
    for turn in range(rounds):
        for name in list(graphs) if turn % 2 == 0 else list(reversed(graphs)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if idle:
                torch.cuda.synchronize()
                time.sleep(idle / 1000)
                torch.cuda._sleep(SLEEP_CYCLES)  # the host enqueues everything meanwhile
            graphs[name].replay()
            begin.record()
            for _ in range(replays):
                graphs[name].replay()
            end.record()
            end.synchronize()
            times[name].append(1000 * begin.elapsed_time(end) / replays)
    return {name: statistics.median(taken) for name, taken in times.items()}


def checked(one: work.Work, way: str, graph: torch.cuda.CUDAGraph, plain: dict | None) -> dict:
    """Replays the graph on arrays that hold nothing; returns them."""
    for name in one.made:
        one.arrays[name].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    limit = 2e-2 * float(one.expected.abs().max())
    torch.testing.assert_close(one.out, one.expected, rtol=2e-2, atol=limit, msg=lambda m: f"{way}: {m}")
    left = {name: one.arrays[name].clone() for name in one.made}
    if plain is not None and way in ("tiles", "programmatic", "late", "each"):
        for name in one.made:
            if not torch.equal(left[name], plain[name]):
                raise SystemExit(f"{way}: {name} has not the bits of the plain kernels")
    return left


def row_of(name: str, size: int, given: argparse.Namespace) -> dict:
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    one = WORK[name][0](size)
    graphs: dict = {("library", 0): captured(one.library)}
    graphs["library", 0].replay()
    one.rest.get("finish", lambda: None)()
    all_ways, alive = [], []
    options = tilings(name, size, programs)
    for number in given.tilings or range(len(options)):
        if number >= len(options):
            continue
        ways, plain = Ways(one, options[number]), None
        all_ways.append(ways)
        for way in ("stream", "pdl", "tiles"):
            graphs[way, number] = captured(getattr(ways, way))
            left = checked(one, way, graphs[way, number], plain)
            plain = plain or left
        if name == "gpt3" and options[number].programs == 0:
            alive.append(StreamK(ways.stages, programs))  # a graph keeps no memory
            graphs["stream_k", number] = captured(alive[-1])
            checked(one, "stream_k", graphs["stream_k", number], None)
    times = measure(graphs, given.rounds, given.replays)
    best = {}
    for way, number in times:
        if way not in best or times[way, number] < times[way, best[way]]:
            best[way] = number
    row = {"work": name, "size": size} | {way: round(times[way, n], 1) for way, n in best.items()}
    row["same"] = round(100 * (times["stream", best["stream"]] / times["tiles", best["stream"]] - 1), 1)
    row["chosen"] = min(row["tiles"], row["stream"])
    row["tiling"] = best
    for ways in all_ways:
        ways.fused.check()
        ways.fused.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", default=",".join(WORK))
    parser.add_argument("--sizes", help="rows, or images of convolutions")
    parser.add_argument("--tilings", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--replays", type=int, default=5)
    parser.add_argument("--json")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    table = []
    for group in given.work.split(","):
        for name in GROUPS.get(group, [group]):
            for size in [int(n) for n in given.sizes.split(",")] if given.sizes else WORK[name][1]:
                row = row_of(name, size, given)
                table.append(row)
                shown = {k: v for k, v in row.items() if isinstance(v, float)}
                print(
                    f"{name:9} {size:5}", *(f"{k} {v}" for k, v in shown.items()), row["tiling"], flush=True
                )
                if given.json:
                    Path(given.json).write_text(json.dumps(table))


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
