"""GEMM + reduce-scatter: ours against what people run today. Start with torchrun, one process a GPU:

    torchrun --nproc-per-node 4 bench/gemm_rs/gemm_rs.py [--local-ranks 8] [--json FILE] [--plot FILE] [--shapes 70B]

Each row of a shape computes y[M / ranks, N] = reduce_scatter(x[M, K] @ w[K, N]), with K = F / local-ranks, N = hidden:

    mm          cuBLAS alone, all of x @ w               rs          NCCL's reduce-scatter alone
    triton      our unmodified kernel alone              mm+nccl     the two, one after the other
    local       our fused kernel alone, with its posts   async-tp    torch's fused_matmul_reduce_scatter
    ours        fused, eager                             graph       the same as a CUDA graph
    [S]         other splits of a shard (--splits), as graphs
    partsS      the sum in so many parts, which run beside the kernel (--sum-parts), as graphs
    beside:16:4 other ways (--ways, syncopate.strategy), as graphs

hidden: the host's time is hidden behind a sleeping device; visible: it is not. Inputs rotate past the L2 cache.
`bound` is ours (graph) over max(mm, bytes sent at the link rate of H200: 380 GB/s). Ours sums as fp32 in rank order.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import Candidate  # noqa: E402
from tensor_parallel import Bench, Setup, Strategy, Way, main, sy  # noqa: E402

TOLERANCE = 1e-2


def rows(setup: Setup, options: argparse.Namespace) -> list[Candidate]:
    m, n, k = setup.shape.m, setup.shape.n, setup.shape.k
    x, w, out = setup.random(m, k), setup.random(k, n), setup.empty(m // setup.size, n)
    partial = setup.empty(m, n)
    fused = setup.operators(sy.ops.MatmulReduceScatter)

    def mm(i):
        torch.mm(x(i), w(i), out=partial(i))

    def rs(i):
        dist.reduce_scatter_tensor(out(i), partial(i))

    def unfused(i):
        mm(i)
        rs(i)

    def ours(i):
        fused(i)(x(i), w(i), out(i))

    def async_tp(i):
        group = dist.group.WORLD.group_name
        torch.ops.symm_mem.fused_matmul_reduce_scatter(x(i), w(i), "sum", 0, group)

    reference = [torch.empty_like(y, dtype=torch.float32) for y in out]
    for i in range(setup.count):
        dist.reduce_scatter_tensor(reference[i], torch.mm(x[i], w[i]).float())
    setup.expect("ours", ours, out, reference, TOLERANCE)
    expected = [y.clone() for y in out]
    candidates = [
        Candidate("mm", mm),
        Candidate("triton", lambda i: fused(i).unfused(x(i), w(i), partial(i))),
        *setup.optional("local", lambda i: fused(i).run_local(x(i), w(i))),
        Candidate("rs", rs),
        Candidate("mm+nccl", unfused),
        *([] if options.no_async_tp else setup.optional("async-tp", async_tp)),
        Candidate("ours", ours),
        Candidate("graph", setup.graphs(ours)),
    ]
    for split in map(int, filter(None, options.splits.split(","))):
        if split == fused[0].strategy.split:
            continue
        other = setup.operators(sy.ops.MatmulReduceScatter, strategy=Strategy(split=split))
        replay = setup.graphs(lambda i, other=other: other(i)(x(i), w(i), out(i)))
        setup.expect(f"[{split}]", replay, out, expected, 0.0)  # the same bits
        candidates.append(Candidate(f"[{split}]", replay, visible=False))
    for parts in map(int, filter(None, options.sum_parts.split(","))):
        other = setup.operators(sy.ops.MatmulReduceScatter, strategy=Strategy(sum_parts=parts))
        replay = setup.graphs(lambda i, other=other: other(i)(x(i), w(i), out(i)))
        setup.expect(f"parts{parts}", replay, out, expected, 0.0)  # the same bits
        candidates.append(Candidate(f"parts{parts}", replay, visible=False))
    for name in filter(None, options.ways.split(",")):
        other = setup.operators(sy.ops.MatmulReduceScatter, strategy=Way.named(name).strategy)
        replay = setup.graphs(lambda i, other=other: other(i)(x(i), w(i), out(i)))
        setup.expect(name, replay, out, reference, TOLERANCE)
        candidates.append(Candidate(name, replay, visible=False))
    return candidates


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--splits", default="", help="also these splits of a shard, comma-separated: 1,2,4")
    parser.add_argument("--sum-parts", default="", help="also sums in so many parts, comma-separated: 1,2,4")
    parser.add_argument(
        "--ways",
        default="",
        help="also these: after:32,beside:16:4,pulled:2,pulled_last:1,inline,mixed:1,narrow:2,fused:2",
    )
    parser.add_argument("--no-async-tp", action="store_true", help="leave torch's fused operator out")


BENCH = Bench(
    title="GEMM + reduce-scatter",
    rows=rows,
    sharded="K",
    sent=lambda shape, size: (shape.m - shape.m // size) * shape.n,
    unfused="mm+nccl",
    peers=("async-tp",),
)

if __name__ == "__main__":
    main(__doc__, BENCH, add=add_options)
