"""What the scripts beside this file share: starting the ranks, running the sections that were asked for, and what they found.

One process a rank, with torchrun's variables. Where there are fewer GPUs than ranks these share them in turns, which is slow
and says nothing about speed, but the same signals, stores and copies pass from process to process: eight ranks can be
checked on one GPU. NCCL takes no two ranks on one, so torch's group is gloo's then.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from syncopate.ops.operator import Operator
from syncopate.strategy import Strategy

failures: list[str] = []

#: Calls of `judge_many`, and those of ranks that share a GPU in turns, of some ms each.
MANY, MANY_IN_TURNS = 100_000, 2_000


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def expect(condition: bool, what: str) -> None:
    if not condition:
        failures.append(what)
        print(f"rank {rank()}: FAILED {what}", flush=True)


def start() -> None:
    """Takes a GPU, and joins the other ranks."""
    gpus = torch.cuda.device_count()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
    if int(os.environ["LOCAL_WORLD_SIZE"]) > gpus:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))


def ours(kind: type[Operator], *extents: Any, **options: Any) -> Operator:
    """The operator as it is chosen, but by our kernels: the vendors' pair is not what these scripts are about."""
    op = kind(*extents, **options)
    if op.strategy.unfused and options.get("strategy") is None:
        op.close()
        op = kind(*extents, **{**options, "strategy": Strategy(kernel="plain")})
    return op


def straggle(rng: random.Random, chance: float) -> None:
    """The GPU stands still now and then, for up to 10 ms; later ranks' longer."""
    if rng.random() < chance:
        torch.cuda._sleep(int(rng.random() * 10e-3 * (rank() + 1) * 1.7e9))


def judge_graph(op: Any, tagged: Any, call: Callable[[], None], what: str) -> None:
    """`call` of `op`, which `tagged` fills and judges, captured as a CUDA graph and replayed 200 times with stragglers, mixed
    with eager calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # what the call counts and judges with was made there
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    rng = random.Random(rank())
    for i in range(200):
        straggle(rng, 0.05)
        graph.replay()
        if i % 50 == 49:
            call()
    op.check()
    expect(tagged.bad.item() == 0, f"graph replayed 200 times {what}: {tagged.bad.item()} wrong")
    expect(int(tagged.counter.item()) == 205, f"the graph ran {tagged.counter.item()} calls, not 205")
    del graph


def judge_many(
    op: Any,
    calls: Sequence[Callable[[], Sequence[torch.Tensor]]],
    right: Sequence[Sequence[torch.Tensor]],
    what: str,
) -> None:
    """Many queued calls of `op`, those given in turn, with stragglers. What each makes has the bits of `right`."""
    bad, rng = torch.zeros((), device="cuda", dtype=torch.int64), random.Random(rank())
    many = MANY if dist.get_backend() == "nccl" else MANY_IN_TURNS
    for turn in range(many):
        straggle(rng, 2e-4)
        at = turn % len(calls)
        for made, wanted in zip(calls[at](), right[at], strict=True):
            bad += (made != wanted).sum()
    op.check()
    expect(bad.item() == 0, f"{many} queued calls of {what}: {bad.item()} elements differ")


def over_ranks(count: int) -> int:
    """The sum of every rank's."""
    total = torch.tensor(count, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(total)
    return int(total.item())


def captures_collectives(section: Callable[[], None]) -> Callable[[], None]:
    """A section with collectives of torch in CUDA graphs, which gloo's cannot be: left out where ranks share a GPU."""

    @functools.wraps(section)
    def told() -> None:
        if dist.get_backend() == "nccl":
            section()
        elif rank() == 0:
            print(f"{section.__name__}: skipped, ranks share a GPU", flush=True)

    return told


def run(sections: Mapping[str, Callable[[], None]]) -> int:
    """Those named on the command line, or all. The exit status."""
    start()
    for name in sys.argv[1:] or sections:
        began, before = time.monotonic(), len(failures)
        sections[name]()
        torch.cuda.synchronize()
        count = over_ranks(len(failures) - before)
        if rank() == 0:
            verdict = "ok" if count == 0 else f"{count} FAILED"
            print(f"{name}: {verdict} ({time.monotonic() - began:.1f} s)", flush=True)
    total = over_ranks(len(failures))
    dist.destroy_process_group()
    return 1 if total else 0
