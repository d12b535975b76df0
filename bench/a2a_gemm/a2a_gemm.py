"""All-to-all + GEMM and GEMM + all-to-all: ours against NCCL and cuBLAS. Start with torchrun, one process a GPU:

    torchrun --nproc-per-node 4 bench/a2a_gemm/a2a_gemm.py [--local-ranks 8] [--json FILE] [--plot FILE] [--shapes 70B]

Two tables of rows, with N = F / local-ranks, K = hidden before the GEMM, and K = F / local-ranks, N = hidden after it:

    a2a-gemm    y[M, N] = all_to_all(x[M, K]) @ w[K, N]       blocks of M / ranks rows change places
    gemm-a2a    y[M, N] = all_to_all(x[M, K] @ w[K, N])

    mm          cuBLAS alone                             a2a         NCCL's all_to_all_single alone
    triton      our unmodified kernel alone              nccl        the two, one after the other, as a CUDA graph
    local       our fused kernel alone                   nccl-e      the same, eager
    ours        fused, eager; gemm-a2a: y in the heap    graph       the same as a CUDA graph
    copied      gemm-a2a, y elsewhere (copied there), as a CUDA graph
    [S]         other splits of a block (--splits), as graphs

Speed is graph against graph. hidden: the host's time is hidden behind a sleeping device; visible: it is not. Inputs
rotate past the L2 cache. `bound` is ours (graph) over max(mm, bytes sent at the link rate of H200: 380 GB/s).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import Candidate  # noqa: E402
from tensor_parallel import Bench, Rotating, Setup, Strategy, main, sy  # noqa: E402

TOLERANCE = 5e-3


def rows(setup: Setup, options: argparse.Namespace, before: bool) -> list[Candidate]:
    """`before`: the all-to-all comes before the product."""
    m, n, k = setup.shape.m, setup.shape.n, setup.shape.k
    operator = sy.ops.AllToAllMatmul if before else sy.ops.MatmulAllToAll
    x, w, out = setup.random(m, k), setup.random(k, n), setup.empty(m, n)
    between = setup.empty(m, k) if before else setup.empty(m, n)
    fused = setup.operators(operator)
    results = out if before else Rotating(one.result() for one in fused)

    def mm(i):
        if before:
            torch.mm(between(i), w(i), out=out(i))
        else:
            torch.mm(x(i), w(i), out=between(i))

    def a2a(i):
        if before:
            dist.all_to_all_single(between(i), x(i))
        else:
            dist.all_to_all_single(out(i), between(i))

    def unfused(i):
        for step in (a2a, mm) if before else (mm, a2a):
            step(i)

    def ours(i):
        fused(i)(x(i), w(i), results(i))

    def copied(i):
        fused(i)(x(i), w(i), out(i))

    def local(i):
        fused(i).run_local(x(i), w(i))

    for i in range(setup.count):
        unfused(i)
    expected = [y.clone() for y in out]
    setup.expect("ours", ours, results, expected, TOLERANCE)
    expected = [y.clone() for y in results]
    alone = (between, w, out) if before else (x, w, between)
    candidates = [
        Candidate("mm", mm),
        Candidate("triton", lambda i: fused(i).unfused(*(tensor(i) for tensor in alone))),
        *setup.optional("local", local),
        Candidate("a2a", a2a),
        Candidate("nccl-e", unfused),
        Candidate("nccl", setup.graphs(unfused)),
        Candidate("ours", ours),
        Candidate("graph", setup.graphs(ours)),
        *([] if before else setup.optional("copied", copied, graph=True)),
    ]
    for split in map(int, filter(None, options.splits.split(","))):
        chosen = Strategy(chunking=sy.Chunking(split), split=split)
        usual = fused[0].strategy
        if split == (usual.chunking.rows if before else usual.split):
            continue
        other = setup.operators(operator, strategy=chosen)
        replay = setup.graphs(lambda i, other=other: other(i)(x(i), w(i), out(i)))
        setup.expect(f"[{split}]", replay, out, expected, 0.0)  # the same bits
        candidates.append(Candidate(f"[{split}]", replay, visible=False))
    return candidates


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--splits", default="", help="also these splits of a block, comma-separated: 1,2,4")


BENCHES = (
    Bench(
        title="all-to-all + GEMM",
        rows=lambda setup, options: rows(setup, options, before=True),
        sharded="N",
        sent=lambda shape, size: (shape.m - shape.m // size) * shape.k,
        unfused="nccl",
        unfused_eager="nccl-e",
        cost="wait_cost",
    ),
    Bench(
        title="GEMM + all-to-all",
        rows=lambda setup, options: rows(setup, options, before=False),
        sharded="K",
        sent=lambda shape, size: (shape.m - shape.m // size) * shape.n,
        unfused="nccl",
        unfused_eager="nccl-e",
    ),
)

if __name__ == "__main__":
    main(__doc__, *BENCHES, add=add_options)
