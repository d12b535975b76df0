"""GEMM + all-reduce: ours against what people run today. Start with torchrun, one process a GPU:

    torchrun --nproc-per-node 4 bench/gemm_ar/gemm_ar.py [--local-ranks 8] [--json FILE] [--plot FILE] [--shapes 70B]

Each row of a shape computes y[M, N] = all_reduce(x[M, K] @ w[K, N]), with K = F / local-ranks, N = hidden:

    mm          cuBLAS alone                             ar          NCCL's all-reduce alone
    triton      our unmodified kernel alone              mm+nccl     the two, one after the other, as a CUDA graph
    local       our fused kernel alone, with its posts   mm+nccl-e   the same, eager
    ours        fused, eager                             mm+2shot    cuBLAS into symmetric memory, then torch's two-shot
    graph       the same as a CUDA graph                 mm+1shot    the same with its one-shot; both as CUDA graphs
    copied      the same with y elsewhere (copied there), as a CUDA graph; ours and graph leave it in the heap
    [S]         other splits of a shard (--splits), as graphs
    beside:16:8 other ways (--ways, syncopate.strategy), as graphs

Speed is graph against graph. hidden: the host's time is hidden behind a sleeping device; visible: it is not. Inputs
rotate past the L2 cache. `bound` is ours (graph) over max(mm, bytes of a two-shot all-reduce at the link rate of H200:
380 GB/s). NVLink multicast (torch's multimem operators, NCCL's NVLS) is no part of the comparison of kernels here: set
NCCL_NVLS_ENABLE=0 where NCCL would use it.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import Candidate  # noqa: E402
from tensor_parallel import Bench, Rotating, Setup, Strategy, Way, main, sy  # noqa: E402

TOLERANCE = 1e-2
ONE_SHOT_BYTES = (
    64 << 20
)  # each rank reads all of every other's: beyond this it only takes time to show that it is slow


def rows(setup: Setup, options: argparse.Namespace) -> list[Candidate]:
    m, n, k = setup.shape.m, setup.shape.n, setup.shape.k
    x, w, out = setup.random(m, k), setup.random(k, n), setup.empty(m, n)
    fused = setup.operators(sy.ops.MatmulAllReduce)
    group = dist.group.WORLD.group_name

    def mm(i):
        torch.mm(x(i), w(i), out=out(i))

    def ar(i):
        dist.all_reduce(out(i))

    def unfused(i):
        mm(i)
        ar(i)

    results = Rotating(one.result() for one in fused)

    def ours(i):
        fused(i)(x(i), w(i), results(i))

    def copied(i):
        fused(i)(x(i), w(i), out(i))

    @functools.cache
    def symmetric():
        import torch.distributed._symmetric_memory as symmetric_memory

        buffers = Rotating()
        for _ in range(setup.count):
            buffers.append(symmetric_memory.empty(m, n, dtype=setup.dtype, device=setup.device))
            symmetric_memory.rendezvous(buffers[-1], group)
        return buffers

    def two_shot(i):
        product = symmetric()(i)
        torch.mm(x(i), w(i), out=product)
        return torch.ops.symm_mem.two_shot_all_reduce_(product, "sum", group)

    def one_shot(i):
        if m * n * setup.dtype.itemsize > ONE_SHOT_BYTES:
            raise ValueError(
                f"more than {ONE_SHOT_BYTES >> 20} MiB: every rank would read all of them of each other"
            )
        product = symmetric()(i)
        torch.mm(x(i), w(i), out=product)
        return torch.ops.symm_mem.one_shot_all_reduce(product, "sum", group)

    reference = [torch.mm(a, b).float() for a, b in zip(x, w, strict=True)]
    for total in reference:
        dist.all_reduce(total)
    setup.expect("ours", ours, results, reference, TOLERANCE)
    expected = [y.clone() for y in results]

    def torch_peer(name, call):
        def judge():
            setup.expect(name, lambda i: out(i).copy_(call(i)), out, reference, TOLERANCE)

        return setup.optional(name, call, graph=True, judge=judge)

    candidates = [
        Candidate("mm", mm),
        Candidate("triton", lambda i: fused(i).unfused(x(i), w(i), out(i))),
        *setup.optional("local", lambda i: fused(i).run_local(x(i), w(i))),
        Candidate("ar", ar),
        Candidate("mm+nccl-e", unfused),
        Candidate("mm+nccl", setup.graphs(unfused)),
        *([] if options.no_torch else torch_peer("mm+2shot", two_shot) + torch_peer("mm+1shot", one_shot)),
        Candidate("ours", ours),
        Candidate("graph", setup.graphs(ours)),
        *setup.optional("copied", copied, graph=True),
    ]

    for split in map(int, filter(None, options.splits.split(","))):
        if split == fused[0].strategy.split:
            continue
        other = setup.operators(sy.ops.MatmulAllReduce, strategy=Strategy(split=split))
        into = Rotating(one.result() for one in other)
        replay = setup.graphs(lambda i, other=other, into=into: other(i)(x(i), w(i), into(i)))
        setup.expect(f"[{split}]", replay, into, expected, 0.0)  # the same bits
        candidates.append(Candidate(f"[{split}]", replay, visible=False))
    for name in filter(None, options.ways.split(",")):
        other = setup.operators(sy.ops.MatmulAllReduce, strategy=Way.named(name).strategy)
        into = Rotating(one.result() for one in other)
        replay = setup.graphs(lambda i, other=other, into=into: other(i)(x(i), w(i), into(i)))
        setup.expect(name, replay, into, reference, TOLERANCE)
        candidates.append(Candidate(name, replay, visible=False))
    return candidates


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--splits", default="", help="also these splits of a shard, comma-separated: 1,2,4")
    parser.add_argument("--no-torch", action="store_true", help="leave torch's two all-reduces out")
    parser.add_argument(
        "--ways", default="", help="also these: after:32,beside:16:8,pulled:2,inline:4,mixed:1,fused:2"
    )


BENCH = Bench(
    title="GEMM + all-reduce",
    rows=rows,
    sharded="K",
    sent=lambda shape, size: 2 * (shape.m - shape.m // size) * shape.n,
    unfused="mm+nccl",
    unfused_eager="mm+nccl-e",
    peers=("mm+2shot", "mm+1shot"),
    m=(128, 512, 1024, 4096, 8192),
)

if __name__ == "__main__":
    main(__doc__, BENCH, add=add_options)
