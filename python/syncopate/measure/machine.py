"""`syncopate tune --measure-machine`: what choices need to know of this machine, measured into a machine file.

One GPU gives the rates of products, by the library's Gluon kernel in many tiles and by the vendor's library
(products.py), of attention (attention.py) and of its memory, and what launches and waits cost.
Where there are several GPUs, a rank on each measures what goes between them (links.py): copies by size and direction, the
chunk engine by number of blocks, and signals; and whole calls (calls.py): torch's collectives, and operators by strategies
whose fixed costs nothing else shows. Ranks of several nodes measure what is between these (network.py). What is not measured is kept from the nearest known machine. Each
figure's source says which of the two it is. The file is written by C++ (tune/machine/machine.hpp), which checks it.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import _syncopate
from ..command.standard_output import answering, interruptible
from ..strategy.failures import reason_of

ROUNDS = 9
SECONDS = 115  # at most; what is not measured by then keeps its figure
SECONDS_BETWEEN = 80  # of them, for what ranks measure together
SECONDS_OF_CALLS = 40  # of these: then no further one begins
SECONDS_OF_ATTENTION = 30  # which comes last
STEPS_OF_LINKS = 15
MIB = 1 << 20


class Progress:
    """A bar on the error output, and the time that is left."""

    def __init__(self, steps: int, seconds: float = SECONDS) -> None:
        self.steps, self.done, self.end = steps, 0, time.monotonic() + seconds
        self.kept = 0.0  # seconds that are for what comes later

    @property
    def in_time(self) -> bool:
        return time.monotonic() < self.end - self.kept

    def step(self, what: str) -> None:
        self.done += 1
        width = 30
        filled = width * self.done // max(1, self.steps)
        bar = "#" * filled + "." * (width - filled)
        end = "\n" if self.done == self.steps else ""
        print(f"\r[{bar}] {self.done}/{self.steps} {what:40}", end=end, file=sys.stderr, flush=True)


def microseconds(call: Callable[[], Any], torch: Any, before: Callable[[], Any] | None = None) -> float:
    """Of one replay of `call`, captured as a CUDA graph, each after `before`: median between two events."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if before:
            before()
        torch.cuda._sleep(200_000)  # so that the host's time does not count
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times)


def product_times(torch: Any, progress: Progress) -> dict[tuple[int, int, int, int, int], float]:
    """(M, N, K, block_m, block_n) → µs of the library's plain kernel on one round of tiles and on two."""
    from ..ops.product_kernel import Product
    from ..strategy import Tiling

    sms = torch.cuda.get_device_properties(0).multi_processor_count
    times = {}
    for block_m, block_n, stages in ((128, 256, 4), (128, 128, 6)):
        for k in (2048, 8192):
            m, n = block_m * 11, block_n * (sms // 11)
            tiling = Tiling(block_m, block_n, 64, stages, -1)
            product = Product(m, n, k, tiling, sms)
            x, w, y = (
                torch.empty(*shape, dtype=torch.bfloat16, device="cuda") for shape in ((m, k), (k, n), (m, n))
            )
            x.normal_()
            w.normal_()
            if progress.in_time:
                times[m, n, k, block_m, block_n] = microseconds(
                    lambda p=product, x=x, w=w, y=y: p.run(x, w, y), torch
                )
            progress.step(f"product {m} x {n} x {k}, tiles {block_m} x {block_n}")
    return times


def local_figures(torch: Any, progress: Progress) -> dict[str, tuple[float, str]]:
    """Figures of one GPU: name → (value, how it was measured)."""
    figures: dict[str, tuple[float, str]] = {}
    small = torch.zeros(1, device="cuda")
    figures["call_us"] = (microseconds(lambda: small.add_(1), torch), "one small kernel as a CUDA graph")
    progress.step("a call of one kernel")
    both = microseconds(lambda: (small.add_(1), small.add_(1)), torch)
    figures["kernel_us"] = (
        max(0.5, both - figures["call_us"][0]),
        "two small kernels as a CUDA graph, less one",
    )
    progress.step("a second kernel")
    figures |= call_figures(torch, progress)
    large = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    into = torch.empty_like(large)
    copied = microseconds(lambda: into.copy_(large), torch)
    figures["sum_gbps"] = (
        2 * large.numel() / copied / 1e3 * 0.9,
        "0.9 of a local copy of 512 MiB, read and written",
    )
    progress.step("a local copy")
    words = large.view(torch.int32)
    read = microseconds(lambda: words.max(), torch)
    figures["memory_gbps"] = (large.numel() / read / 1e3, "the largest of 512 MiB of integers")
    progress.step("reading memory")
    times = product_times(torch, progress)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    figures |= product_figures(times, sms)
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    figures["cache_mib"] = (cache / MIB, "the device's attribute")
    return figures


def times_of(
    runs: Sequence[Any], make: Callable[[Any], list[Callable[[], Any]]], us: Callable, progress: Progress
) -> dict:
    """µs of a call of each run, as long as there is time: by `us` of the calls in a row that `make` gives. Without those that fail,
    which is said: the rest of the machine counts, too."""
    times = {}
    for run in runs:
        if progress.in_time:
            try:
                calls = make(run)
                times[run] = us(lambda calls=calls: [call() for call in calls]) / len(calls)
            except Exception as error:  # noqa: BLE001 - Triton has errors of its own
                print(f"\n{run.name}: {reason_of(error)}", file=sys.stderr)
        progress.step(run.name)
    return times


def call_figures(torch: Any, progress: Progress) -> dict[str, tuple[float, str]]:
    """What a fused call takes more than its plain kernel."""
    from ..group import alone
    from ..ops import AllGatherMatmul
    from ..ops.product_kernel import Product
    from ..strategy import Strategy, Tiling

    tiling = Tiling(64, 64, 64, 4, -1)
    x, w, y = (torch.zeros(64, 64, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    op = AllGatherMatmul(64, 64, 64, group=alone("cuda"), strategy=Strategy(tilings=(tiling,)))
    fused = microseconds(lambda: op(x, w, y), torch)
    op.close()
    plain = Product(64, 64, 64, tiling, 1)
    more = fused - microseconds(lambda: plain.run(x, w, y), torch)
    progress.step("a fused call")
    return {
        "fused_us": (
            max(0.5, more),
            "an operator on one rank as a CUDA graph, less its plain kernel; nobody is told of anything",
        ),
    }


def product_figures(
    times: dict[tuple[int, int, int, int, int], float], sms: int
) -> dict[str, tuple[float, str]]:
    """Rates of one multiprocessor from products of one round of tiles, of two depths: their difference has no fixed costs."""
    by_tile: dict[tuple[int, int], dict[int, float]] = {}
    for (_, _, k, block_m, block_n), us in times.items():
        by_tile.setdefault((block_m, block_n), {})[k] = us
    figures: dict[str, tuple[float, str]] = {}
    for (block_m, block_n), of in by_tile.items():
        if len(of) < 2:
            continue
        (short, short_us), (long, long_us) = sorted(of.items())
        if long_us <= short_us:
            continue
        a_k = (long_us - short_us) / (long - short)  # µs of one step of K
        source = f"plain kernel, one round of tiles {block_m} x {block_n} on {sms} multiprocessors, K = {long} less {short}"
        if block_n > block_m:
            figures["sm_tflops"] = (2 * block_m * block_n / a_k / 1e6, source)
        else:
            figures["sm_load_gbps"] = ((block_m + block_n) * 2 / a_k / 1e3, source)
    return figures


def between_gpus(count: int, seconds: float) -> dict[str, Any]:
    """By a rank on each GPU of this machine, before this process uses CUDA."""
    from ..ops.operator import members_of
    from ..ranks import Place, run
    from ..strategy.choose import runs_gluon
    from .links import Ranks, between_ranks

    def work(place: Place) -> dict[str, Any]:
        import torch
        import torch.distributed as dist

        from .calls import CALLS, COLLECTIVES, calls_timed, library_tables

        torch.cuda.set_device(place.rank)
        dist.init_process_group(
            "nccl", init_method=f"file://{place.folder}/torch", rank=place.rank, world_size=place.size
        )
        ranks = Ranks(members_of(None, "cuda"))
        progress = Progress(STEPS_OF_LINKS + len(COLLECTIVES) + len(CALLS), seconds)
        say = progress.step if place.rank == 0 else lambda _: None
        found = between_ranks(ranks, say)
        found["tables"] |= library_tables(ranks, say)
        found["calls"] = calls_timed(ranks, say, runs_gluon("cuda"), SECONDS_OF_CALLS)
        return found

    return run(count, work, timeout=seconds)[0]


@interruptible
def main() -> int:
    parser = argparse.ArgumentParser(
        prog="syncopate tune --measure-machine", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    import torch

    from ..group import alone
    from ..ops.attention_rules import HEAD_DIMS
    from ..ranks import RankError, gpu_count
    from ..strategy.choose import runs_gluon
    from . import network
    from .attention import call_of
    from .attention import runs as attention_runs
    from .attention import tables as attention_tables
    from .products import gluon_calls, gluon_runs

    try:
        count = gpu_count()
    except RankError:
        count = 0
    if count == 0:
        print("error: --measure-machine needs a GPU, and there is none", file=sys.stderr)
        return 3
    path = options.output or _syncopate.tune.measured_machine_path()
    if not path:
        print(
            "error: there is no cache folder: set SYNCOPATE_CACHE_DIR, or name a file with -o",
            file=sys.stderr,
        )
        return 2
    if network.is_over_nodes():
        return network.main(path)
    between: dict[str, Any] = {}
    begin = time.monotonic()
    if count > 1:
        try:
            between = between_gpus(count, SECONDS_BETWEEN)
        except RankError as error:
            print(f"between GPUs nothing was measured: {error}", file=sys.stderr)
    gluon = runs_gluon("cuda")
    attention = attention_runs(gluon, HEAD_DIMS)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    products = gluon_runs(sms) if gluon else []
    steps = 4 + 1 + 4 + len(products) + len(attention)
    progress = Progress(steps, SECONDS - (time.monotonic() - begin))
    figures = local_figures(torch, progress) | between.get("figures", {})
    progress.kept = SECONDS_OF_ATTENTION
    us = functools.partial(microseconds, torch=torch)
    timed = times_of(products, lambda run: gluon_calls(run, sms), us, progress)
    progress.kept = 0
    group = alone("cuda")  # attention last: it takes longest
    times = times_of(attention, lambda run: [call_of(run, group)], us, progress)
    tables = attention_tables(times, gluon, HEAD_DIMS, sms)
    properties = torch.cuda.get_device_properties(0)
    measured = {
        "figures": {name: {"value": value, "source": source} for name, (value, source) in figures.items()},
        "tables": between.get("tables", {}) | tables,
        "links": {name: us for name, us in between.get("links", {}).items() if us},
        "calls": between.get("calls", []),
        "products": [run.timed(us) for run, us in timed.items()],
    }
    text, message = _syncopate.tune.measured_machine(
        properties.name, count, properties.multi_processor_count, json.dumps(measured), path
    )
    with answering():
        print(text, file=sys.stderr if path == "-" else sys.stdout)
    if message:
        print(message, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
