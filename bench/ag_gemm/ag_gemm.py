"""All-gather + GEMM: ours against what people run today. Start with torchrun, one process a GPU:

    torchrun --nproc-per-node 4 bench/ag_gemm/ag_gemm.py [--local-ranks 8] [--json FILE] [--plot FILE] [--shapes 70B]

Each row of a shape computes y[M, N] = all_gather(x[M / ranks, K]) @ w[K, N], with N = F / local-ranks:

    mm          cuBLAS alone, on gathered input          ag          NCCL's all-gather alone
    triton      our unmodified kernel alone              nccl+mm     the two, one after the other
    local       our fused kernel, all chunks arrived     async-tp    torch's fused_all_gather_matmul
    ours        fused, eager, x in the heap              graph       the same as a CUDA graph
    ours-copy   fused, eager, x elsewhere (copied in)    [RxS]       other cuts of a shard (--chunkings), as graphs

hidden: the host's time is hidden behind a sleeping device; visible: it is not. Inputs rotate past the L2 cache.
`bound` is ours (graph) over max(mm, bytes received at the link rate of H200: 380 GB/s).
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import Candidate  # noqa: E402
from tensor_parallel import Bench, Setup, Strategy, main, sy  # noqa: E402

TOLERANCE = 5e-3


def rows(setup: Setup, options: argparse.Namespace) -> list[Candidate]:
    m, n, k = setup.shape.m, setup.shape.n, setup.shape.k
    shard, w, out = setup.random(m // setup.size, k), setup.random(k, n), setup.empty(m, n)
    gathered = setup.empty(m, k)

    def with_inputs(fused):
        for i, op in enumerate(fused):
            op.shard().copy_(shard[i])
        return fused

    fused = with_inputs(setup.operators(sy.ops.AllGatherMatmul))

    def mm(i):
        torch.mm(gathered(i), w(i), out=out(i))

    def ag(i):
        dist.all_gather_into_tensor(gathered(i), shard(i))

    def unfused(i):
        ag(i)
        mm(i)

    def ours(i):
        fused(i)(fused(i).shard(), w(i), out(i))

    def async_tp(i):
        torch.ops.symm_mem.fused_all_gather_matmul(shard(i), [w(i)], 0, dist.group.WORLD.group_name)

    for i in range(setup.count):
        unfused(i)
    setup.expect("ours", ours, out, [torch.mm(a, b) for a, b in zip(gathered, w, strict=True)], TOLERANCE)
    expected = [y.clone() for y in out]
    candidates = [
        Candidate("mm", mm),
        Candidate("triton", lambda i: fused(i).unfused(gathered(i), w(i), out(i))),
        *setup.optional("local", lambda i: fused(i).run_local(fused(i).shard(), w(i), out=out(i))),
        Candidate("ag", ag),
        Candidate("nccl+mm", unfused),
        *setup.optional("async-tp", async_tp),
        Candidate("ours", ours),
        Candidate("ours-x", lambda i: fused(i)(shard(i), w(i), out(i))),
        Candidate("graph", setup.graphs(ours)),
    ]
    for chosen in map(parse_chunking, filter(None, options.chunkings.split(","))):
        chosen = dataclasses.replace(chosen, tilings=fused[0].strategy.tilings)
        if name_of(chosen) == name_of(fused[0].strategy):
            continue
        other = with_inputs(setup.operators(sy.ops.AllGatherMatmul, strategy=chosen))
        replay = setup.graphs(lambda i, other=other: other(i)(other(i).shard(), w(i), out(i)))
        name = name_of(chosen)
        setup.expect(name, replay, out, expected, TOLERANCE)
        candidates.append(Candidate(name, replay, visible=False))
    return candidates


def parse_chunking(text: str) -> Strategy:
    cut, _, engine = text.partition(":e")
    rows, slices = map(int, cut.rstrip("p").split("x"))
    chunking = sy.Chunking(rows, slices, cut.endswith("p"))
    by_engine = {"backend": "tma_dedicated", "engine_blocks": int(engine)} if engine else {}
    return Strategy(chunking=chunking, **by_engine)


def name_of(chosen: Strategy) -> str:
    chunking = chosen.chunking
    peers = "p" if chunking.peer_by_peer else ""
    engine = f":e{chosen.engine_blocks}" if chosen.backend in sy.strategy.DEDICATED else ""
    return f"[{chunking.rows}x{chunking.slices}{peers}{engine}]"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chunkings",
        default="",
        help="also these cuts of a shard, with the same tiles: ROWSxSLICES[p][:eBLOCKS], such as 2x1,1x2p,1x4:e8",
    )


BENCH = Bench(
    title="all-gather + GEMM",
    rows=rows,
    sharded="N",
    sent=lambda shape, size: (shape.m - shape.m // size) * shape.k,
    unfused="nccl+mm",
    peers=("async-tp",),
    cost="wait_cost",
)

if __name__ == "__main__":
    main(__doc__, BENCH, add=add_options)
