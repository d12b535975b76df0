"""All-gather + GEMM on real GPUs, one process each: torchrun --nproc-per-node 4 tests/gpu/check_ag_gemm.py [SECTION …]

Every call is judged exactly: the inputs are small integers tagged by call, row and slice of K, so that a stale, early
or misplaced chunk changes the result; outputs and buffers are poisoned with NaN before. See SECTIONS at the end.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))

import syncopate as sy  # noqa: E402
from sections import expect, judge_graph, ours, rank, run, size, straggle  # noqa: E402
from syncopate import ops  # noqa: E402
from syncopate.strategy import Chunking, Strategy, Tiling  # noqa: E402

SLICES = 8


class Tagged:
    """Inputs whose product is exact: x[row, k] = tag(call, row, slice of k), w ternary with few entries per column."""

    def __init__(self, m: int, n: int, k: int, dtype: torch.dtype) -> None:
        self.m, self.n, self.k, self.dtype = m, n, k, dtype
        generator = torch.Generator(device="cuda").manual_seed(7)
        w = torch.zeros(k, n, device="cuda")
        self.slice_of_k = torch.arange(k, device="cuda") * SLICES // k
        for s in range(SLICES):
            rows = (self.slice_of_k == s).nonzero().flatten()
            if rows.numel() == 0:
                continue
            for _ in range(2):
                pick = rows[torch.randint(rows.numel(), (n,), generator=generator, device="cuda")]
                sign = torch.randint(0, 2, (n,), generator=generator, device="cuda") * 2.0 - 1.0
                w[pick, torch.arange(n, device="cuda")] = sign
        self.w = w.to(dtype)
        sums = [w[self.slice_of_k == s].sum(0) for s in range(SLICES)]
        self.sums = torch.stack(sums)  # [SLICES, N], exact small integers
        self.counter = torch.zeros((), device="cuda", dtype=torch.int64)  # the call's number, on the device
        base, extra = divmod(m, size())
        self.first = rank() * base + min(rank(), extra)
        self.rows = base + (rank() < extra)
        self.bad = torch.zeros((), device="cuda", dtype=torch.int64)

    def tags(self, first: int, rows: int, back: int = 0) -> torch.Tensor:
        row = torch.arange(first, first + rows, device="cuda")[:, None]
        s = torch.arange(SLICES, device="cuda")[None, :]
        return ((row * 7 + s * 5 + (self.counter - back) * 3) % 29 - 14).float()

    def fill(self, shard: torch.Tensor) -> None:
        self.counter += 1
        shard.copy_(self.tags(self.first, self.rows)[:, self.slice_of_k])

    def judge(self, out: torch.Tensor, back: int = 0) -> None:
        """Counts what is wrong in the output of the last call, or of the one `back` calls before it."""
        self.bad += (out.float() != self.tags(0, self.m, back) @ self.sums).sum()

    def judge_gathered(self, copy: torch.Tensor) -> None:
        """The same of what the last call has gathered."""
        self.bad += (copy.float() != self.tags(0, self.m)[:, self.slice_of_k]).sum()


def shapes() -> None:
    """Tagged integers and random data against fp64, every dtype and odd shape, x in the heap and elsewhere."""
    p = size()
    cases = [
        (4091 * p, 5120, 1024),
        (p, 256, 512),
        (16 * p, 1792, 4096),
        (100 * p, 384, 640),
        (8 * p + 3, 520, 72),
    ]
    cases += [(m, n // 8, k) for k, n in ((4096, 14336), (8192, 28672)) for m in (1024, 4096)]
    for m, n, k in cases:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            if dtype == torch.float32 and m * n * k > 2**35:
                continue
            check_shape(m, n, k, dtype)


def large() -> None:
    """The same for the up-projections of four models at three M, with the local N of eight GPUs."""
    for k, n in ((4096, 14336), (8192, 28672), (12288, 49152), (16384, 53248)):
        for m in (1024, 4096, 8192):
            check_shape(m, n // 8, k, torch.bfloat16)


def check_shape(m: int, n: int, k: int, dtype: torch.dtype, **options: Any) -> None:
    p = size()
    tagged = Tagged(m, n, k, dtype)
    op = ours(ops.AllGatherMatmul, m, n, k, dtype, **options)
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    shard = op.shard()
    op.prepared.tensors["A"].fill_(float("nan"))
    torch.cuda.synchronize()
    dist.barrier()
    for call in range(4):
        out.fill_(float("nan"))
        if call % 2:
            elsewhere = torch.empty_like(shard)
            tagged.fill(elsewhere)
            op(elsewhere, tagged.w, out)
        else:
            tagged.fill(shard)
            op(shard, tagged.w, out)
        tagged.judge(out)
    op.check()
    expect(tagged.bad.item() == 0, f"tagged integers {m}x{n}x{k} {dtype}: {tagged.bad.item()} wrong")
    # random data: fp64 by relative norm, and bit for bit against the unmodified kernel
    torch.manual_seed(rank())
    x = torch.randn(shard.shape, device="cuda", dtype=dtype)
    torch.manual_seed(99)
    w = torch.randn(k, n, device="cuda", dtype=dtype)
    parts = [torch.empty((m // p + (r < m % p), k), device="cuda", dtype=dtype) for r in range(p)]
    gather_uneven(parts, x)
    whole = torch.cat(parts)
    out.fill_(float("nan"))
    op(x, w, out)
    alone = op.unfused(whole, w, torch.full_like(out, float("nan")))
    expect(torch.equal(out, alone), f"bit-identical to the unfused kernel {m}x{n}x{k} {dtype}")
    rows = min(m, 512)
    exact = whole[:rows].double() @ w.double()
    error = ((out[:rows].double() - exact).norm() / exact.norm()).item()
    limit = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 1e-5}[dtype]
    expect(error < limit, f"fp64 error {error:.2e} at {m}x{n}x{k} {dtype}")
    op.close()


#: All tiles wait for what arrives, and the grid has the engine's multiprocessors, too.
TOGETHER = [
    Strategy(kernel="gluon", backend="ldst_dedicated", engine_blocks=32, together=True),
    Strategy(kernel="gluon", backend="tma_dedicated", engine_blocks=16, together=True),
    Strategy(kernel="gluon", backend="copy_engine", chunking=Chunking(1, 2), together=True),
    Strategy(kernel="plain", backend="ldst_dedicated", engine_blocks=16, together=True),
]


def together() -> None:
    """The same where all tiles wait together: in one round and in several, also of a split K; queued, as graphs, on two streams."""
    p = size()
    split = Strategy(
        kernel="gluon",
        backend="ldst_dedicated",
        together=True,
        tilings=(Tiling(64, 128, 64, 8, -1, split_k=2),),
    )
    for m, n, k in ((64 * p, 1792, 4096), (128 * p + 1, 3584, 8192), (512 * p, 6144, 2048)):
        for strategy in (*TOGETHER, split):
            if strategy.chunking.slices == 2 and m % p:
                continue
            if strategy is split and m > 256:
                continue
            check_shape(m, n, k, torch.bfloat16, strategy=strategy)
    for strategy in TOGETHER[:3]:
        check_queued(256, 1792, 4096, strategy=strategy)
        check_graphs(256, 1792, 4096, strategy=strategy)
    two_streams(((256, 1792, 4096), (512, 3584, 2048)), strategy=TOGETHER[0])


def gather_uneven(parts: list[torch.Tensor], mine: torch.Tensor) -> None:
    for source, part in enumerate(parts):
        if source == rank():
            part.copy_(mine)
        dist.broadcast(part, source)


def queued() -> None:
    """1,000 calls queued back to back, fresh data and random stragglers; every call is judged."""
    for m, n, k, options in (
        (4096, 1792, 4096, {}),
        (1024, 1792, 4096, {}),
        (1024, 1792, 4096, {"strategy": Strategy(kernel="plain", chunking=Chunking(2))}),
        (1024, 1792, 4096, {"strategy": Strategy(kernel="plain", pull=True)}),
    ):
        check_queued(m, n, k, **options)


def check_queued(m: int, n: int, k: int, **options: Any) -> None:
    tagged = Tagged(m, n, k, torch.bfloat16)
    op = ours(ops.AllGatherMatmul, m, n, k, **options)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    shard = op.shard()
    op.prepared.tensors["A"].fill_(float("nan"))
    torch.cuda.synchronize()
    dist.barrier()
    rng = random.Random(rank() * 1000 + m)
    for _ in range(1000):
        straggle(rng, 0.03)
        out.fill_(float("nan"))
        tagged.fill(shard)
        op(shard, tagged.w, out)
        tagged.judge(out)
    op.check()
    expect(tagged.bad.item() == 0, f"1000 queued calls {m}x{n}x{k} {options}: {tagged.bad.item()} wrong")
    op.close()


def graphs() -> None:
    """One call captured as a CUDA graph, replayed 200 times with fresh data and stragglers, mixed with eager calls."""
    for options in (
        {},
        {"strategy": Strategy(kernel="plain", pull=True)},
        {"strategy": Strategy(kernel="plain", chunking=Chunking(1, 4))},
    ):
        check_graphs(2048, 1792, 4096, **options)


def check_graphs(m: int, n: int, k: int, **options: Any) -> None:
    tagged = Tagged(m, n, k, torch.bfloat16)
    op = ours(ops.AllGatherMatmul, m, n, k, **options)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    shard = op.shard()

    def call() -> None:
        out.fill_(float("nan"))
        tagged.fill(shard)
        op(shard, tagged.w, out)
        tagged.judge(out)

    judge_graph(op, tagged, call, f"{options}")
    op.close()


def streams() -> None:
    """Two different fused ops in flight on two streams, with stragglers on each, so that ranks meet them in any order.

    Outputs are judged once a batch has ended: a fused kernel that waits fills the multiprocessors, so that what else
    runs beside it must be small, and already loaded.
    """
    for kinds in (((2048, 1792, 4096), (1024, 3584, 2048)), ((4096, 1792, 4096), (2048, 1792, 4096))):
        two_streams(kinds)


def two_streams(kinds: tuple[tuple[int, int, int], ...], **options: Any) -> None:
    tagged = [Tagged(*kind, torch.bfloat16) for kind in kinds]
    fused = [ours(ops.AllGatherMatmul, *kind, **options) for kind in kinds]
    depth = 5
    outs = [
        [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(depth)] for m, n, _ in kinds
    ]
    shards = [op.shard() for op in fused]
    lanes = [torch.cuda.Stream() for _ in kinds]
    rng = random.Random(rank())
    for batch in range(21):
        for j in range(depth if batch else 1):  # the first batch loads every kernel while nothing waits
            for i in (0, 1):
                with torch.cuda.stream(lanes[i]):
                    straggle(rng, 0.1 if batch else 0)
                    outs[i][j].fill_(float("nan"))
                    tagged[i].fill(shards[i])
                    if not batch:
                        torch.cuda.synchronize()
                    fused[i](shards[i], tagged[i].w, outs[i][j])
                    if not batch:
                        torch.cuda.synchronize()
        torch.cuda.synchronize()
        for i in (0, 1):
            calls = depth if batch else 1
            for j in range(calls):
                tagged[i].judge(outs[i][j], back=calls - 1 - j)
        torch.cuda.synchronize()  # the next batch's calls, on other streams, overwrite what is judged
    for i, op in enumerate(fused):
        op.check()
        expect(tagged[i].bad.item() == 0, f"two streams, op {i}: {tagged[i].bad.item()} wrong")
    for op in fused:
        op.close()


def examples() -> None:
    """The three example kernels through sy.fuse, push and pull, splits 1 to 4."""
    from example_calls import CALLS

    m, n, k = 257 * size() + 1, 384, 256
    for name, call in CALLS.items():
        for pull in (False, True):
            for split in (1, 2, 3, 4):
                tagged = Tagged(m, n, k, torch.bfloat16)
                plan = sy.plans.all_gather(
                    sy.plans.mesh_of(size()), sy.Tensor("A", (m, k)), split=split, pull=pull
                )
                out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
                x = torch.empty(tagged.rows, k, device="cuda", dtype=torch.bfloat16)
                fused = call.fuse(plan)
                for _ in range(3):
                    out.fill_(float("nan"))
                    tagged.fill(x)
                    call.launch(fused, x, tagged.w, out, num_warps=8, num_stages=3)
                    tagged.judge(out)
                fused.check()
                expect(
                    tagged.bad.item() == 0,
                    f"example {name} pull={pull} split={split}: {tagged.bad.item()} wrong",
                )
                fused.close()


def stated() -> None:
    """A stated kernel in CUDA C++: rows that arrive, ranges of K that its loop awaits, its own rows where
    the caller has them, and rows that it loads at their rank."""
    from stated_matmul_cuda import BLOCKS, matmul

    m, n, k = 80 * size(), 48, 256
    for moved, strategy in (
        ({"split": 2}, None),
        ({"minor_axis": 1, "minor_split": 4}, None),
        ({"transient": True}, None),
        ({"pull": True, "transient": True}, Strategy(backend="ldst_inline")),
    ):
        tagged = Tagged(m, n, k, torch.float32)
        plan = sy.plans.all_gather(sy.plans.mesh_of(size()), sy.Tensor("A", (m, k), "fp32"), **moved)
        fused = sy.fuse(matmul, plan, bind={"a": "A"}, strategy=strategy)
        x, out = torch.empty(tagged.rows, k, device="cuda"), torch.empty(m, n, device="cuda")
        rng = random.Random(rank())
        for _ in range(50):
            straggle(rng, 0.1)
            out.fill_(float("nan"))
            tagged.fill(x)
            fused[(20,)](x, tagged.w, out, m, n, k, **BLOCKS)
            tagged.judge(out)
        fused.check()
        expect(tagged.bad.item() == 0, f"stated, {moved}: {tagged.bad.item()} wrong")
        fused.close()


def fetched() -> None:
    """Tiles that read their rows at the ranks that hold them: the three example kernels, and the operator in 1,000 queued
    calls and as a graph, with stragglers."""
    from example_calls import CALLS

    m, n, k = 256 * size(), 384, 256
    for name, call in CALLS.items():
        for split in (1, 2):
            tagged = Tagged(m, n, k, torch.bfloat16)
            plan = sy.plans.all_gather(
                sy.plans.mesh_of(size()), sy.Tensor("A", (m, k)), split=split, pull=True, transient=True
            )
            out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            x = torch.empty(tagged.rows, k, device="cuda", dtype=torch.bfloat16)
            fused = call.fuse(plan, strategy=Strategy(backend=call.inline))
            rng = random.Random(rank())
            for _ in range(50):
                straggle(rng, 0.1)
                out.fill_(float("nan"))
                tagged.fill(x)
                call.launch(fused, x, tagged.w, out, num_warps=8, num_stages=3)
                tagged.judge(out)
            fused.check()
            expect(tagged.bad.item() == 0, f"{name} fetches, split={split}: {tagged.bad.item()} wrong")
            (prepared,) = fused.prepared
            moved = [t for r in range(size()) for t in prepared.schedule.transfers(r)]
            expect(not moved, f"{name} split={split}: {len(moved)} transfers are left")
            fused.close()
    m, n, k = 1024, 1792, 4096
    tagged = Tagged(m, n, k, torch.bfloat16)
    op = ops.AllGatherMatmul(m, n, k, strategy=Strategy(kernel="plain", backend="tma_inline"))
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    shard = op.shard()
    op.prepared.tensors["A"].fill_(float("nan"))
    torch.cuda.synchronize()
    dist.barrier()
    rng = random.Random(rank())

    def one() -> None:
        out.fill_(float("nan"))
        tagged.fill(shard)
        op(shard, tagged.w, out)
        tagged.judge(out)

    for _ in range(1000):
        straggle(rng, 0.03)
        one()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()
    for _ in range(200):
        straggle(rng, 0.03)
        graph.replay()
    op.check()
    expect(tagged.bad.item() == 0, f"1200 calls that fetch: {tagged.bad.item()} wrong")
    expect(not op.prepared.schedule.transfers(0), "some transfers are left")
    del graph
    op.close()


def bias() -> None:
    """gelu(all_gather(x) @ w + bias): every kernel, K whole and in two, against fp32 and the unmodified kernel."""
    p = size()
    for m, n, k, options in (
        (128 * p, 1024, 512, {}),
        (2048 * p, 3584, 4096, {}),
        (2048 * p, 3584, 4096, {"strategy": Strategy((Tiling(128, 256, 64, 4, 10),))}),
        (
            1024 * p,
            1792,
            4096,
            {"strategy": Strategy((Tiling(128, 128, 64, 6, -1),), chunking=Chunking(1, 2))},
        ),
    ):
        op = ours(ops.AllGatherMatmul, m, n, k, bias=True, activation="gelu", **options)
        w = torch.randn(k, n, device="cuda").bfloat16() / 64
        for call in range(3):
            x, b = torch.randn(m // p, k, device="cuda").bfloat16(), torch.randn(n, device="cuda").bfloat16()
            whole = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)
            dist.all_gather_into_tensor(whole, x)
            y = op(x, w, None, b)
            expect(torch.equal(y, op.unfused(whole, w, torch.empty_like(y), b)), f"bias, {m}x{n}x{k}, {call}")
            exact = torch.nn.functional.gelu(whole.float() @ w.float() + b.float(), approximate="tanh")
            error = ((y.float() - exact).norm() / exact.norm()).item()
            expect(error < 5e-3, f"bias: error {error:.2e} at {m}x{n}x{k}, call {call}")
        op.check()
        op.close()


def copied() -> None:
    """What is gathered, stored in the caller's tensor by the tiles that load it: both kernels, by every way that rows come, in
    300 queued calls each, with stragglers, into two tensors in turn; every call is judged. Then as a graph, and of
    random bits."""
    p = size()
    few = Tiling(16, 64, 128, 10, -1, split_k=3)
    shared, wide = Tiling(64, 64, 128, 6, -1, split_k=2), Tiling(128, 192, 64, 4, -1)
    square = Tiling(192, 192, 64, 3, -1)  # no multiple of its rows is a chunk
    for m, n, k, dtype, chosen in (
        (4096, 1792, 4096, torch.bfloat16, Strategy(kernel="gluon")),
        (4096, 1792, 4096, torch.bfloat16, Strategy(kernel="plain")),
        (2048, 1792, 4096, torch.bfloat16, Strategy((Tiling(128, 256, 64, 4, 3),), kernel="plain")),
        (2048, 1792, 4096, torch.bfloat16, Strategy((Tiling(128, 256, 64, 4, 0),), kernel="plain")),
        (64 * p, 1792, 4096, torch.bfloat16, Strategy((few,), kernel="gluon")),
        (1024, 1792, 4096, torch.bfloat16, Strategy((shared,), kernel="gluon")),
        (1024, 1792, 4096, torch.bfloat16, Strategy((wide,), kernel="gluon", chunking=Chunking(1, 4))),
        (1024, 1792, 4096, torch.bfloat16, Strategy((square,), kernel="gluon", chunking=Chunking(2))),
        (1024, 1792, 4096, torch.bfloat16, Strategy(kernel="gluon", backend="tma_inline")),
        (1024, 1792, 4096, torch.bfloat16, Strategy(kernel="gluon", pull=True)),
        (100 * p + 1, 520, 712, torch.float16, Strategy(kernel="gluon")),
        (100 * p + 1, 520, 712, torch.float16, Strategy(kernel="plain")),
        (1024, 896, 2048, torch.float32, Strategy()),
    ):
        what = f"{m}x{n}x{k} {dtype} {chosen}"
        tagged = Tagged(m, n, k, dtype)
        op = ops.AllGatherMatmul(m, n, k, dtype, strategy=chosen, copied=True)
        x = torch.empty(tagged.rows, k, device="cuda", dtype=dtype)
        out = torch.empty(m, n, device="cuda", dtype=dtype)
        # What stands behind the copy stays as it is.
        rooms = [torch.full((m + 64, k), 99.0, device="cuda", dtype=dtype) for _ in range(2)]
        op.prepare()
        op.prepared.tensors["A"].fill_(float("nan"))
        torch.cuda.synchronize()
        dist.barrier()
        rng = random.Random(rank() * 1000 + m)

        def one(copy: torch.Tensor, op=op, x=x, out=out, tagged=tagged) -> None:
            out.fill_(float("nan"))
            copy.fill_(float("nan"))
            tagged.fill(x)
            op(x, tagged.w, out, copy=copy)
            tagged.judge(out)
            tagged.judge_gathered(copy)

        for turn in range(300):
            straggle(rng, 0.03)
            one(rooms[turn % 2][:m])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            one(rooms[0][:m])
        for _ in range(30):
            straggle(rng, 0.03)
            graph.replay()
        op.check()
        expect(tagged.bad.item() == 0, f"copied, {what}: {tagged.bad.item()} wrong in 330 calls")
        expect(all(bool((room[m:] == 99).all()) for room in rooms), f"copied, {what}: stored behind the copy")
        del graph
        parts = [torch.empty((m // p + (r < m % p), k), device="cuda", dtype=dtype) for r in range(p)]
        x.copy_(torch.randn(x.shape, device="cuda"))
        gather_uneven(parts, x)
        op(x, tagged.w, out, copy=rooms[1][:m])
        expect(torch.equal(rooms[1][:m], torch.cat(parts)), f"copied, {what}: random rows differ")
        op.close()


def absent() -> None:
    """A rank that never calls: the others fail within the deadline, naming rank and chunk; nothing hangs."""
    op = ours(ops.AllGatherMatmul, 512, 512, 512, deadline=2.0)
    shard = op.shard()
    w = torch.zeros(512, 512, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    dist.barrier()
    message = ""
    start = time.monotonic()
    if rank() != size() - 1:
        op(shard, w)
        try:
            op.check()
        except Exception as error:  # noqa: BLE001 - the message is what is judged
            message = str(error)
        took = time.monotonic() - start
        expect(f"rank {size() - 1}" in message and took < 8, f"absent rank: after {took:.1f} s: {message!r}")
        if rank() == 0:
            print("absent rank, as reported:", message, flush=True)
    dist.barrier()


def memory() -> None:
    """Too little memory on the last rank's GPU: every rank is told, by rank and bytes; with memory there it goes on."""
    dist.barrier()  # once, so that it needs no more memory
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    hog = None
    if rank() == size() - 1:
        free, _ = torch.cuda.mem_get_info()
        hog = torch.empty(free - (192 << 20), device="cuda", dtype=torch.uint8)
    dist.barrier()
    m, n, k = 4096 * size(), 256, 16384  # a heap of 128 MiB for each rank's shard
    message, start = "", time.monotonic()
    try:
        ours(ops.AllGatherMatmul, m, n, k, deadline=5.0).shard()
    except Exception as error:  # noqa: BLE001 - the message is what is judged
        message = str(error)
    took = time.monotonic() - start
    good = "too little memory for a heap of" in message and f"rank {size() - 1}" in message and took < 20
    expect(good, f"too little memory: after {took:.1f} s: {message!r}")
    if rank() == 0:
        print("too little memory, as reported:", message, flush=True)
    del hog
    torch.cuda.empty_cache()
    dist.barrier()
    op = ours(ops.AllGatherMatmul, 512, 512, 512)
    x = torch.ones(op.shard().shape, device="cuda", dtype=torch.bfloat16)
    y = op(x, torch.ones(512, 512, device="cuda", dtype=torch.bfloat16))
    op.check()
    expect(bool((y == 512).all()), "with memory there again")
    op.close()


SECTIONS = {
    f.__name__: f
    for f in (
        shapes,
        large,
        queued,
        graphs,
        streams,
        together,
        examples,
        stated,
        fetched,
        bias,
        copied,
        absent,
        memory,
    )
}


if __name__ == "__main__":
    sys.exit(run(SECTIONS))
