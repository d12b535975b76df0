"""Every operator by every backend that host ranks have, split 1 to 4 (each, in a sweep), in Triton's interpreter; run
by test_host.py.

Inputs are small integers, new in every call, so that results are exact; the heap's tensors and the outputs are poisoned
with NaN before each call; transfers are delayed at random. Exits 1 with the first thing that is wrong.

    host_backends.py RANKS
"""

import itertools
import os
import random
import sys
import time
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import torch  # noqa: E402
from example_calls import numbers  # noqa: E402
from host_script import on_ranks  # noqa: E402
from syncopate import ops, ranks  # noqa: E402
from syncopate.group import of_folder  # noqa: E402

BLOCK, N, K, CALLS = 32, 32, 32, 2  # rows of a rank
TILINGS = (ops.Tiling(16, 32, 32, 2, -1, "ieee", 2),)
ALL = ("auto", "tma_dedicated", "ldst_dedicated", "tma_inline")
OPERATORS = (
    ops.AllGatherMatmul,
    ops.MatmulReduceScatter,
    ops.MatmulAllReduce,
    ops.MatmulAllToAll,
    ops.AllToAllMatmul,
)


def wanted(
    operator: type, inputs: list[torch.Tensor], weights: list[torch.Tensor], rank: int
) -> torch.Tensor:
    mine = slice(rank * BLOCK, rank * BLOCK + BLOCK)
    if operator is ops.AllGatherMatmul:
        return torch.cat([x[:BLOCK] for x in inputs]) @ weights[rank]
    if operator is ops.AllToAllMatmul:
        return torch.cat([x[mine] for x in inputs]) @ weights[rank]
    parts = [x @ w for x, w in zip(inputs, weights, strict=True)]
    if operator is ops.MatmulAllToAll:
        return torch.cat([part[mine] for part in parts])
    return sum(parts)[mine] if operator is ops.MatmulReduceScatter else sum(parts)


def check(place: ranks.Place, operator: type, backend: str, split: int, number: int) -> None:
    rank, size, m = place.rank, place.size, BLOCK * place.size
    what = f"{operator.__name__} by {backend}, split {split}"
    group = of_folder(place.folder, rank, size, f"{place.run_id}-{number}", "host")
    gathers = operator is ops.AllGatherMatmul
    chosen = ops.Strategy(TILINGS, chunking=ops.Chunking(split), split=split, backend=backend)
    op = operator(
        m, N, K, torch.float32, group, strategy=chosen, host_delay=5e-4, seed=number + rank, deadline=600
    )
    rng = random.Random(100 * number + rank)
    for call in range(CALLS):
        inputs = [numbers((m, K), 1000 * number + 10 * call + r, torch.float32) for r in range(size)]
        weights = [numbers((K, N), 5 + r, torch.float32) for r in range(size)]
        x, exact = inputs[rank], wanted(operator, inputs, weights, rank)
        out = torch.full(exact.shape, float("nan"))
        for buffer in op.prepare().tensors.values() if not gathers else ():
            buffer.fill_(float("nan"))
        group.barrier(f"poisoned-{number}-{call}")  # a peer that is ahead would store before the poison
        if rng.random() < 0.3:
            time.sleep(rng.random() * 2e-3)
        op(x[:BLOCK].contiguous() if gathers else x, weights[rank], out)
        if not torch.equal(out, exact):
            raise RuntimeError(f"{what}, call {call}: the result differs")
    schedule = op.prepare().schedule
    used = {transfer.backend for other in range(size) for transfer in schedule.transfers(other)}
    if size > 1 and backend in ("tma_dedicated", "ldst_dedicated") and backend not in used:
        raise RuntimeError(f"{what}: it went by {used}")
    reads = operator in (ops.AllGatherMatmul, ops.AllToAllMatmul)
    if size > 1 and backend == "tma_inline" and reads and used:
        raise RuntimeError(f"{what}: not all was fetched inline, but {used}")
    if size > 1 and backend == "tma_inline" and not reads and split <= 2 and schedule.stores is None:
        raise RuntimeError(f"{what}: nothing was stored inline")
    op.close()


def work(place: ranks.Place) -> int:
    torch.set_num_threads(1)
    number = 0
    for (at, operator), (by, backend) in itertools.product(enumerate(OPERATORS), enumerate(ALL)):
        for split in (1, 2, 3, 4) if os.environ.get("SYNCOPATE_SWEEP") else (1 + (at + by) % 4,):
            check(place, operator, backend, split, number)
            number += 1
    return number


if __name__ == "__main__":
    counts = on_ranks(work)
    print(f"{counts[0]} configurations, exact")
