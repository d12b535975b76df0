"""GEMM + reduce-scatter (and all-reduce, all-to-all) on real GPUs, one process each:

    torchrun --nproc-per-node 4 tests/gpu/check_gemm_rs.py [SECTION …]

Every call is judged exactly: the inputs are small integers tagged by call, rank, row and slice of K, so that a stale,
early, missing or doubled contribution changes the result; outputs and buffers are poisoned with NaN before. See SECTIONS
at the end.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "bench"))

import syncopate as sy  # noqa: E402
from sections import expect, judge_graph, judge_many, ours, rank, run, size, straggle  # noqa: E402
from syncopate import ops  # noqa: E402
from syncopate.strategy import Chunking, Strategy, Tiling  # noqa: E402
from ways import strategy_of  # noqa: E402

SLICES = 8

#: The product's programs sum what all ranks make, and what tiles make for one rank each.
ONE_STEP = Strategy(kernel="gluon", one_step=True, kernel_sums=True)
OWNED = Strategy(kernel="gluon", kernel_sums=True)

EXCHANGES = (ops.MatmulAllToAll, ops.AllToAllMatmul)


def poison(op: ops.MatmulReduceScatter) -> None:
    for buffer in op.prepare().tensors.values():
        buffer.fill_(float("nan"))
    torch.cuda.synchronize()
    dist.barrier()


class Tagged:
    """Inputs whose products are exact: on rank r, x[row, k] = tag(call, r, row, slice of k); w is ternary with few entries
    per column, the same on all ranks. Each product fits bf16 exactly; their sum is exact in fp32 and rounded once."""

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
        self.sums = torch.stack([w[self.slice_of_k == s].sum(0) for s in range(SLICES)])
        self.counter = torch.zeros((), device="cuda", dtype=torch.int64)  # the call's number, on the device
        self.bad = torch.zeros((), device="cuda", dtype=torch.int64)
        base, extra = divmod(m, size())
        self.first = rank() * base + min(rank(), extra)
        self.rows = base + (rank() < extra)

    def tags(self, of: int, first: int, rows: int, back: int = 0) -> torch.Tensor:
        row = torch.arange(first, first + rows, device="cuda")[:, None]
        s = torch.arange(SLICES, device="cuda")[None, :]
        return ((row * 7 + s * 5 + (self.counter - back) * 3 + of * 11) % 29 - 14).float()

    def fill(self, x: torch.Tensor) -> None:
        self.counter += 1
        x.copy_(self.tags(rank(), 0, self.m)[:, self.slice_of_k])

    def judge(self, out: torch.Tensor, first: int | None = None, back: int = 0) -> None:
        """Counts what is wrong in rows [first, …) of the sum (default: this rank's)."""
        first = self.first if first is None else first
        tags = sum(self.tags(r, first, out.shape[0], back) for r in range(size()))
        self.bad += (out.float() != (tags @ self.sums).to(self.dtype).float()).sum()

    def judge_result(self, operator: type, out: torch.Tensor) -> None:
        """Counts what is wrong in what a call of the operator gives."""
        if operator in EXCHANGES:
            block = out.shape[0] // size()
            tags = torch.cat([self.tags(r, rank() * block, block) for r in range(size())])
            self.bad += (out.float() != (tags @ self.sums).to(self.dtype).float()).sum()
        else:
            self.judge(out, None if operator is ops.MatmulReduceScatter else 0)


def summed(op: ops.Operator, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What the sum must be, bit for bit: the unmodified kernel on every rank, added up as fp32 in rank order."""
    alone = op.unfused(x, w, torch.full((op.m, op.n), float("nan"), device="cuda", dtype=op.dtype))
    parts = [torch.empty_like(alone) for _ in range(size())]
    dist.all_gather(parts, alone)
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(op.dtype)


def shapes() -> None:
    """Tagged integers and random data, every dtype and odd shape, the output given, new and in place."""
    p = size()
    cases = [
        (1024 * p + 1, 1280, 512),
        (p, 256, 512),
        (16 * p, 1792, 1024),
        (100 * p, 384, 640),
        (8 * p + 3, 520, 72),
        (2048, 4096, 1792),
        (8192, 4096, 1792),
    ]
    for m, n, k in cases:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            if dtype == torch.float32 and m * n * k > 2**34:
                continue
            tagged = Tagged(m, n, k, dtype)
            op = ours(ops.MatmulReduceScatter, m, n, k, dtype)
            x = torch.empty(m, k, device="cuda", dtype=dtype)
            poison(op)
            for call in range(4):
                tagged.fill(x)
                if call == 0:
                    out = op(x, tagged.w)
                elif call == 1:
                    out = op(x, tagged.w, op.result())
                else:  # a view whose rows are apart
                    wide = torch.full((tagged.rows, n + 8), float("nan"), device="cuda", dtype=dtype)
                    out = op(x, tagged.w, wide[:, :n])
                tagged.judge(out)
            op.check()
            expect(tagged.bad.item() == 0, f"tagged integers {m}x{n}x{k} {dtype}: {tagged.bad.item()} wrong")
            torch.manual_seed(rank())
            x = torch.randn(m, k, device="cuda", dtype=dtype)
            w = torch.randn(k, n, device="cuda", dtype=dtype)
            out = op(x, w)
            expected = summed(op, x, w)
            mine = expected[tagged.first : tagged.first + tagged.rows]
            expect(torch.equal(out, mine), f"random data {m}x{n}x{k} {dtype}: not the sum in rank order")
            op.close()


def operators() -> None:
    """The other operators on random data, against sums and blocks put together by NCCL."""
    p = size()
    for m, n, k in ((64 * p, 384, 256), (1024 * p, 1280, 512), (128 * p, 256, 1024)):
        for dtype in (torch.bfloat16, torch.float32):
            torch.manual_seed(100 + rank())
            x = torch.randn(m, k, device="cuda", dtype=dtype)
            w = torch.randn(k, n, device="cuda", dtype=dtype)
            op = ours(ops.MatmulAllReduce, m, n, k, dtype)
            poison(op)
            for call in range(3):
                out = op(x, w, op.result() if call == 1 else None)
                expect(torch.equal(out, summed(op, x, w)), f"all-reduce {m}x{n}x{k} {dtype} call {call}")
            op.check()
            op.close()
            for operator in (ops.MatmulAllToAll, ops.AllToAllMatmul):
                op = ours(operator, m, n, k, dtype)
                poison(op)
                for call in range(3):
                    y = op(x, w)
                    source = x if operator is ops.AllToAllMatmul else torch.empty_like(y)
                    if operator is ops.MatmulAllToAll:
                        op.unfused(x, w, source)
                    exchanged = torch.empty_like(source)
                    dist.all_to_all_single(exchanged, source)
                    expected = exchanged
                    if operator is ops.AllToAllMatmul:
                        expected = op.unfused(exchanged, w, torch.empty_like(y))
                    expect(torch.equal(y, expected), f"{operator.__name__} {m}x{n}x{k} {dtype} call {call}")
                op.check()
                op.close()


def ways() -> None:
    """Each way that a reduction may take (syncopate.strategy), asked for: twenty queued calls with stragglers."""
    p = size()
    for operator in (ops.MatmulReduceScatter, ops.MatmulAllReduce):
        for name in (
            "beside:4:1",
            "beside:8:2",
            "beside:16:4",
            "inline",
            "inline:2",
            "pulled",
            "pulled:2",
            "pulled:4",
            "fused",
            "fused:2",
            "mixed:1",
            f"mixed:{p - 1}",
            "narrow:1",
            f"narrow:{max(p - 2, 1)}",
            "one_step",
            "one_step:2",
        ):
            for m, n, k in ((512 * p, 2048, 512), (100 * p + 3, 1024, 256)):
                if name.startswith(("mixed", "narrow")) and m % (128 * p):
                    continue  # a tile cannot be copied and stored elsewhere
                tagged = Tagged(m, n, k, torch.bfloat16)
                strategy = replace(strategy_of(name), kernel="plain")
                op = operator(m, n, k, torch.bfloat16, strategy=strategy)
                x = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)
                poison(op)
                rng = random.Random(rank())
                for _ in range(20):
                    straggle(rng, 0.2)
                    tagged.fill(x)
                    tagged.judge(op(x, tagged.w), None if operator is ops.MatmulReduceScatter else 0)
                op.check()
                what = f"{operator.__name__} {m}x{n}x{k} {name}"
                expect(tagged.bad.item() == 0, f"{what}: {tagged.bad.item()} wrong")
                op.close()


def large() -> None:
    """Sums that go in bulk (contributions of 4 MiB and more), in every type, of rows that end within a piece, at every place
    that contributions come from and sums go to: ten queued calls with stragglers."""
    p = size()
    for operator in (ops.MatmulReduceScatter, ops.MatmulAllReduce):
        for m, n, dtype in (
            (2048 * p, 2056, torch.bfloat16),
            (1030 * p + 3, 5128, torch.float16),
            (1024 * p, 8192, torch.float32),
        ):
            for name in ("fused", "fused:2", "inline", "pulled"):
                strategy = strategy_of(name)
                for kernel in ("plain", "gluon"):
                    if kernel == "gluon" and (dtype == torch.float32 or not name.startswith("fused")):
                        continue
                    tagged = Tagged(m, n, 256, dtype)
                    op = ours(operator, m, n, 256, dtype, strategy=replace(strategy, kernel=kernel))
                    x = torch.empty(m, 256, device="cuda", dtype=dtype)
                    poison(op)
                    rng = random.Random(rank())
                    for call in range(10):
                        straggle(rng, 0.2)
                        tagged.fill(x)
                        out = op(x, tagged.w, op.result() if call % 2 else None)
                        tagged.judge_result(operator, out)
                    op.check()
                    what = f"{operator.__name__} {m}x{n} {dtype} {name} {kernel}"
                    expect(tagged.bad.item() == 0, f"{what}: {tagged.bad.item()} wrong")
                    op.close()


def kernel_sums() -> None:
    """Sums by the product's own programs: a row for each rank and more, tiles that end elsewhere than the tensor and the ranks'
    rows, split K and several rounds, both dtypes; the output given, new, and with rows apart."""
    p = size()
    cases = [(m, 1024, 640) for m in (p, p + 1, 16, 33, 64, 100, 250)]
    cases += [(16, 2304, 7168), (64, 520, 72), (48, 8192, 512), (300, 4096, 256), (512, 1024, 2048)]
    for operator in (ops.MatmulReduceScatter, ops.MatmulAllReduce):
        for m, n, k in cases:
            for dtype in (torch.bfloat16, torch.float16):
                check_kernel_sums(operator, m, n, k, dtype, ONE_STEP)
    for m, n, k in ((128 * p, 1024, 640), (256 * p, 4096, 256), (64 * p, 2304, 7168), (384 * p, 2304, 640)):
        for tiling in (Tiling(64, 64, 64, 4, -1), Tiling(128, 64, 64, 4, -1), Tiling(192, 192, 64, 3, -1)):
            if m % (tiling.block_m * p):
                continue  # a tile would be for several ranks
            check_kernel_sums(
                ops.MatmulReduceScatter, m, n, k, torch.bfloat16, replace(OWNED, tilings=(tiling,))
            )


def check_kernel_sums(operator: type, m: int, n: int, k: int, dtype: torch.dtype, strategy: Strategy) -> None:
    what = f"{operator.__name__} {m}x{n}x{k} {dtype} {'one step' if strategy.one_step else 'owned'}"
    tagged = Tagged(m, n, k, dtype)
    op = operator(m, n, k, dtype, strategy=strategy)
    x = torch.empty(m, k, device="cuda", dtype=dtype)
    poison(op)
    expect(op.prepare().schedule.kernel_summands == size(), f"{what}: who sums")
    for call in range(6):
        tagged.fill(x)
        wide = torch.full((op.out_rows, n + 8), float("nan"), device="cuda", dtype=dtype)
        given = torch.full((op.out_rows, n), float("nan"), device="cuda", dtype=dtype)
        out = op(x, tagged.w, (None, given, wide[:, :n])[call % 3])
        tagged.judge_result(operator, out)
    op.check()
    expect(tagged.bad.item() == 0, f"{what}: {tagged.bad.item()} wrong")
    torch.manual_seed(rank())
    x = torch.randn(m, k, device="cuda", dtype=dtype)
    w = torch.randn(k, n, device="cuda", dtype=dtype)
    total = summed(op, x, w)
    mine = total if operator is ops.MatmulAllReduce else total[tagged.first : tagged.first + tagged.rows]
    expect(torch.equal(op(x, w), mine), f"{what}: other bits than the unmodified kernel's, summed")
    out = torch.full((op.out_rows, n), float("nan"), device="cuda", dtype=dtype)
    for _ in range(2):  # nobody waits: what the second one sums all ranks have sent in the first
        op.run_local(x, w, out=out)
        torch.cuda.synchronize()
        dist.barrier()
    expect(torch.equal(out, mine), f"{what}: other bits without the waits")
    op.close()


def stages() -> None:
    """A feed-forward block, two kernels in one call, against the unmodified kernels with NCCL between; eager and as a graph."""
    for m, k, f, n, options in (
        (1024 * size(), 1024, 1792, 1024, {"activation": "gelu"}),
        (512 * size(), 512, 640, 384, {"strategy": Strategy(kernel="plain", chunking=Chunking(2), split=3)}),
        (130 * size() + 1, 256, 384, 256, {"activation": "relu"}),
        (128 * size(), 512, 640, 384, {"strategy": Strategy(apart=True), "activation": "silu"}),
        (8 * size(), 1024, 640, 1024, {"strategy": Strategy(apart=True)}),
    ):
        op = ours(ops.FeedForward, m, k, f, n, **options)
        x = torch.empty(op.shard_rows, k, device="cuda", dtype=torch.bfloat16)
        w1, w2 = (torch.randn(s, device="cuda", dtype=torch.bfloat16) / 16 for s in ((k, f), (f, n)))
        out = torch.empty(op.shard_rows, n, device="cuda", dtype=torch.bfloat16)
        rng = random.Random(rank())
        first = rank() * (m // size()) + min(rank(), m % size())

        def expected(op=op, x=x, w1=w1, w2=w2, m=m, k=k, f=f, n=n, first=first) -> torch.Tensor:
            rows = max(m // size() + (r < m % size()) for r in range(size()))
            padded = torch.zeros(rows, k, device="cuda", dtype=x.dtype)
            padded[: len(x)] = x
            shards = [torch.empty_like(padded) for _ in range(size())]
            dist.all_gather(shards, padded)
            whole = torch.cat([s[: m // size() + (r < m % size())] for r, s in enumerate(shards)])
            alone = op.unfused(whole, w1, w2, whole.new_empty(m, f), whole.new_empty(m, n))
            parts = [torch.empty_like(alone) for _ in range(size())]
            dist.all_gather(parts, alone)
            total = parts[0].float()
            for part in parts[1:]:
                total = total + part.float()
            return total[first : first + len(x)].to(x.dtype)

        graph = None
        for call in range(12):
            x.copy_(torch.randn(x.shape, device="cuda"))
            out.fill_(float("nan"))
            straggle(rng, 0.2)
            if call < 6:
                op(x, w1, w2, out)
            elif graph is None:
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    op(x, w1, w2, out)
            if graph is not None:
                graph.replay()
            wanted = expected()
            expect(torch.equal(out, wanted), f"feed-forward {m}x{k}x{f}x{n} {options} call {call}")
        op.check()
        del graph
        op.close()


def queued() -> None:
    """1,000 calls queued back to back, fresh data and random stragglers; every call is judged."""
    for operator, m, n, k, options in (
        (ops.MatmulReduceScatter, 4096, 2048, 1792, {}),
        (ops.MatmulReduceScatter, 1024, 2048, 1792, {}),
        (ops.MatmulReduceScatter, 1024, 2048, 1792, {"strategy": Strategy(kernel="plain", split=3)}),
        (ops.MatmulAllReduce, 1024, 2048, 896, {"strategy": Strategy(kernel="plain", split=2)}),
        (ops.MatmulAllToAll, 2048, 2048, 896, {}),
        # One wave of tiles: the chunk engine sends, in slices of K.
        (ops.AllToAllMatmul, 1024, 1792, 4096, {}),
        (ops.AllToAllMatmul, 4096, 1792, 4096, {}),
        (ops.AllToAllMatmul, 2048, 3584, 1024, {"strategy": Strategy(kernel="plain", chunking=Chunking(2))}),
        (ops.MatmulReduceScatter, 50, 2048, 896, {"strategy": ONE_STEP}),
        (ops.MatmulAllReduce, 17, 2048, 896, {"strategy": ONE_STEP}),
        (ops.MatmulReduceScatter, 512, 2048, 896, {"strategy": OWNED}),
    ):
        tagged = Tagged(m, n, k, torch.bfloat16)
        op = ours(operator, m, n, k, **options)
        out = torch.empty(op.out_rows, n, device="cuda", dtype=torch.bfloat16)
        x = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)
        poison(op)
        rng = random.Random(rank() * 1000 + m)
        for _ in range(1000):
            straggle(rng, 0.03)
            out.fill_(float("nan"))
            tagged.fill(x)
            op(x, tagged.w, out)
            tagged.judge_result(operator, out)
        op.check()
        expect(
            tagged.bad.item() == 0,
            f"1000 queued calls {operator.__name__} {m}x{n}x{k} {options}: {tagged.bad.item()} wrong",
        )
        op.close()


def many() -> None:
    """MANY queued calls of each operator, of four inputs in turn and with stragglers: all of an input have the same bits,
    which are right."""
    m, n, k = 256 * size(), 1024, 512
    for operator in (ops.AllGatherMatmul, ops.MatmulReduceScatter, ops.MatmulAllReduce, *EXCHANGES):
        many_of(ours(operator, m, n, k))
    many_of(ops.MatmulReduceScatter(50, n, k, strategy=ONE_STEP), " by the product's programs")
    many_of(ops.MatmulAllReduce(17, n, k, strategy=ONE_STEP), " by the product's programs")


def many_blocks() -> None:
    """The same of the feed-forward block: as it is by default, in chunks, and with a sum that tiles store at its owners."""
    for options in (
        {"activation": "gelu"},
        {"strategy": Strategy(kernel="plain", chunking=Chunking(2), split=3)},
        {"strategy": Strategy(kernel="plain", backend="tma_inline")},
        {"strategy": Strategy(apart=True)},
    ):
        many_of(ours(ops.FeedForward, 256 * size(), 512, 1024, 512, **options), f" {options}")


def many_of(op: ops.Operator, how: str = "") -> None:
    generator = torch.Generator(device="cuda").manual_seed(1 + rank())
    x_shape, *shapes = op.shapes(rank()).values()

    def random_(shape: tuple[int, ...], scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, device="cuda", generator=generator) * scale).to(torch.bfloat16)

    xs, out = [random_(x_shape) for _ in range(4)], op.empty(op.out_rows, op.n)
    weights = [random_(shape, shape[0] ** -0.5) for shape in shapes]
    every = [of_all(w) for w in weights]
    right = [(op.reference(of_all(x).__getitem__, lambda r: [w[r] for w in every]),) for x in xs]
    judge_many(op, [lambda x=x: (op(x, *weights, out),) for x in xs], right, f"{op.name}{how}")
    op.close()


def of_all(mine: torch.Tensor) -> list[torch.Tensor]:
    """What each rank has in the place of `mine`."""
    parts = [torch.empty_like(mine) for _ in range(size())]
    dist.all_gather(parts, mine)
    return parts


def graphs() -> None:
    """One call captured as a CUDA graph, replayed 200 times with fresh data and stragglers, mixed with eager calls."""
    n, k = 2048, 1792
    for operator, options in (
        (ops.MatmulReduceScatter, {"strategy": ONE_STEP}),
        (ops.MatmulAllReduce, {"strategy": ONE_STEP}),
        (ops.MatmulReduceScatter, {}),
        (ops.MatmulReduceScatter, {"strategy": Strategy(kernel="plain", split=3)}),
        (ops.MatmulAllReduce, {}),
        (ops.MatmulAllReduce, {"strategy": Strategy(kernel="plain", split=4)}),
        *((operator, {}) for operator in EXCHANGES),
    ):
        m = 50 if options.get("strategy") is ONE_STEP else 2048
        tagged = Tagged(m, n, k, torch.bfloat16)
        op = ours(operator, m, n, k, **options)
        out = torch.empty(op.out_rows, n, device="cuda", dtype=torch.bfloat16)
        x = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)

        def call(op=op, x=x, tagged=tagged, out=out, operator=operator) -> None:
            out.fill_(float("nan"))
            tagged.fill(x)
            op(x, tagged.w, out)
            tagged.judge_result(operator, out)

        judge_graph(op, tagged, call, f"{operator.__name__} {options}")
        op.close()


def streams() -> None:
    """Two ops in flight on two streams, with stragglers on each, so that ranks meet them in any order."""
    two_streams([(2048, 2048, 1792), (1024, 3584, 1024)], {})
    two_streams([(64, 8192, 1792), (50, 8192, 1024)], {"strategy": ONE_STEP})


def two_streams(kinds: list[tuple[int, int, int]], options: dict) -> None:
    tagged = [Tagged(*kind, torch.bfloat16) for kind in kinds]
    fused = [ours(ops.MatmulReduceScatter, *kind, **options) for kind in kinds]
    depth = 5
    outs = [
        [torch.empty(t.rows, t.n, device="cuda", dtype=torch.bfloat16) for _ in range(depth)] for t in tagged
    ]
    inputs = [torch.empty(m, k, device="cuda", dtype=torch.bfloat16) for m, _, k in kinds]
    for op in fused:
        op.prepare()
    lanes = [torch.cuda.Stream() for _ in kinds]
    rng = random.Random(rank())
    for batch in range(41):
        calls = depth if batch else 1  # the first batch loads every kernel while nothing waits
        for j in range(calls):
            for i in (0, 1):
                with torch.cuda.stream(lanes[i]):
                    straggle(rng, 0.1 if batch else 0)
                    outs[i][j].fill_(float("nan"))
                    tagged[i].fill(inputs[i])
                    fused[i](inputs[i], tagged[i].w, outs[i][j])
                    if not batch:
                        torch.cuda.synchronize()
        torch.cuda.synchronize()
        for i in (0, 1):
            for j in range(calls):
                tagged[i].judge(outs[i][j], back=calls - 1 - j)
        torch.cuda.synchronize()  # the next batch's calls, on other streams, overwrite what is judged
    for i, op in enumerate(fused):
        op.check()
        expect(tagged[i].bad.item() == 0, f"two streams, op {i}: {tagged[i].bad.item()} wrong")
    for op in fused:
        op.close()


def repeated() -> None:
    """The same random input 100 times, with stragglers: the same bits each time."""
    for operator, dtype in ((ops.MatmulReduceScatter, torch.bfloat16), (ops.MatmulAllReduce, torch.float16)):
        op = operator(2048, 2048, 1792, dtype, strategy=Strategy(kernel="plain", split=2))
        torch.manual_seed(rank())
        x = torch.randn(2048, 1792, device="cuda", dtype=dtype)
        w = torch.randn(1792, 2048, device="cuda", dtype=dtype)
        first = op(x, w)
        rng = random.Random(rank())
        different = torch.zeros((), device="cuda", dtype=torch.int64)
        for _ in range(100):
            straggle(rng, 0.1)
            different += (op(x, w) != first).sum()
        op.check()
        expect(different.item() == 0, f"{operator.__name__} {dtype}: {different.item()} elements vary")
        op.close()


def examples() -> None:
    """The three example kernels as producers through sy.fuse, splits 1 to 4, no directive; a ragged M, and one of whole
    tiles that are stored at their destination."""
    from example_calls import CALLS

    n, k = 384, 256
    for name, call in CALLS.items():
        ways = [(257 * size() + 1, split, "auto") for split in (1, 2, 3, 4)]
        for m, split, backend in [*ways, (256 * size(), 1, call.inline), (256 * size(), 2, call.inline)]:
            for everywhere in (False, True):
                tagged = Tagged(m, n, k, torch.bfloat16)
                plan = sy.plans.push_reduce(
                    sy.plans.mesh_of(size()), sy.Tensor("C", (m, n)), split=split, all=everywhere
                )
                out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
                x = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)
                bind = {call.parameter.replace("a_", "c_"): "C"}
                fused = sy.fuse(call.kernel, plan, bind=bind, strategy=Strategy(backend=backend))
                for _ in range(3):
                    out.fill_(float("nan"))
                    tagged.fill(x)
                    call.launch(fused, x, tagged.w, out, num_warps=8, num_stages=3)
                    if everywhere:
                        tagged.judge(out, 0)
                    else:
                        tagged.judge(out[tagged.first : tagged.first + tagged.rows])
                fused.check()
                what = f"example {name} split={split} all={everywhere} {backend}"
                (prepared,) = fused.prepared
                expect(
                    (prepared.schedule.stores is not None) == (backend != "auto"),
                    f"{what}: where it is stored",
                )
                expect(tagged.bad.item() == 0, f"{what}: {tagged.bad.item()} wrong")
                fused.close()


def templates() -> None:
    """The algorithms of `plan make`, which may sum in several rounds, into the caller's tensor."""
    from example_calls import CALLS

    m, n, k = 256 * size(), 384, 256
    call, mesh, of = CALLS["matmul_pointers"], sy.plans.mesh_of(size()), sy.Tensor("C", (m, n), "fp32")
    made = [(sy.plans.reduce_scatter, "direct", {}), (sy.plans.reduce_scatter, "direct", {"pull": True})]
    made += [(sy.plans.reduce_scatter, "direct", {"split": 2}), (sy.plans.reduce_scatter, "ring", {})]
    made += [(sy.plans.all_reduce, algorithm, {}) for algorithm in ("two_shot", "one_shot", "ring")]
    for (template, algorithm, more), backend in itertools.product(made, ("auto", "tma_dedicated")):
        tagged = Tagged(m, n, k, torch.float32)
        plan = template(mesh, of, algorithm=algorithm, produced=True, **more)
        fused = sy.fuse(call.kernel, plan, bind={"c_ptr": "C"}, strategy=Strategy(backend=backend))
        out = torch.empty(m, n, device="cuda")
        x = torch.empty(m, k, device="cuda")
        everywhere = template is sy.plans.all_reduce
        for _ in range(5):
            out.fill_(float("nan"))
            tagged.fill(x)
            call.launch(fused, x, tagged.w, out, num_warps=8, num_stages=3)
            tagged.judge(*((out, 0) if everywhere else (out[tagged.first : tagged.first + tagged.rows],)))
        fused.check()
        what = f"{template.__name__} {algorithm} {more} {backend}"
        expect(tagged.bad.item() == 0, f"{what}: {tagged.bad.item()} wrong")
        fused.close()


def stated() -> None:
    """A stated kernel in CUDA C++ whose tiles are copied to their owners, and stored there."""
    from stated_matmul_cuda import BLOCKS, matmul

    m, n, k = 80 * size(), 48, 256
    for backend in ("copy_engine", "ldst_inline"):
        tagged = Tagged(m, n, k, torch.float32)
        plan = sy.plans.push_reduce(sy.plans.mesh_of(size()), sy.Tensor("C", (m, n), "fp32"))
        fused = sy.fuse(matmul, plan, bind={"c": "C"}, strategy=Strategy(backend=backend))
        x, out = torch.empty(m, k, device="cuda"), torch.empty(m, n, device="cuda")
        rng = random.Random(rank())
        for _ in range(50):
            straggle(rng, 0.1)
            out.fill_(float("nan"))
            tagged.fill(x)
            fused[(20,)](x, tagged.w, out, m, n, k, **BLOCKS)
            tagged.judge(out[tagged.first : tagged.first + tagged.rows])
        fused.check()
        expect(tagged.bad.item() == 0, f"stated by {backend}: {tagged.bad.item()} wrong")
        fused.close()


def absent() -> None:
    """A rank that never calls: the others fail within the deadline, naming rank and chunk, and the call's end itself tells
    the host; nothing hangs. With tiles stored at their owners, with copies, and with sums by the product's programs."""
    x = torch.zeros(512, 512, device="cuda", dtype=torch.bfloat16)
    w = torch.zeros(512, 512, device="cuda", dtype=torch.bfloat16)
    for backend in ("tma_inline", "copy_engine", "kernel_sums"):
        strategy = ONE_STEP if backend == "kernel_sums" else Strategy(kernel="plain", backend=backend)
        op = ops.MatmulReduceScatter(512, 512, 512, deadline=2.0, strategy=strategy)
        op.prepare(w)
        torch.cuda.synchronize()
        dist.barrier()
        start = time.monotonic()
        if rank() != size() - 1:
            op(x, w)
            torch.cuda.synchronize()
            told, message = failure(op.prepare().op.poll), failure(op.check)
            took = time.monotonic() - start
            expect(bool(told), f"{backend}, absent rank: the host was not told")
            expect(
                f"rank {size() - 1}" in message and took < 8,
                f"{backend}, absent rank: after {took:.1f} s: {message!r}",
            )
            if rank() == 0:
                print("absent rank, as reported:", message, flush=True)
        dist.barrier()


def failure(call: Callable[[], None]) -> str:
    """What the call says when it fails; "" when it does not."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the message is what is judged
        return str(error)
    return ""


def small(rows: int, columns: int, *seed: int) -> torch.Tensor:
    """Integers from -1 to 1, mostly 0: products of them are exact in bf16, and sums over ranks, too."""
    generator = torch.Generator(device="cuda").manual_seed(sum(n * 7919**i for i, n in enumerate(seed)))
    values = torch.randint(-1, 2, (rows, columns), generator=generator, device="cuda").float()
    return values * (torch.rand(rows, columns, generator=generator, device="cuda") < 0.25)


def exact(operator: type, inputs: list[torch.Tensor], weights: list[torch.Tensor], rows: int) -> torch.Tensor:
    mine = slice(rank() * rows, (rank() + 1) * rows)
    if operator is ops.AllGatherMatmul:
        return torch.cat([x[:rows] for x in inputs]) @ weights[rank()]
    if operator is ops.AllToAllMatmul:
        return torch.cat([x[mine] for x in inputs]) @ weights[rank()]
    parts = [x @ w for x, w in zip(inputs, weights, strict=True)]
    if operator is ops.MatmulAllToAll:
        return torch.cat([part[mine] for part in parts])
    return sum(parts)[mine] if operator is ops.MatmulReduceScatter else sum(parts)


def matrix() -> None:
    """Every operator by every backend that it may have, split 1 to 4, with stragglers; ends early after 200 s, and says so.
    The same table as on host ranks (tests/python/host_backends.py)."""
    backends = ("copy_engine", "tma_dedicated", "ldst_dedicated", "tma_inline")
    operators = (
        ops.AllGatherMatmul,
        ops.MatmulReduceScatter,
        ops.MatmulAllReduce,
        ops.MatmulAllToAll,
        ops.AllToAllMatmul,
    )
    rows, n, k, start = 512, 512, 128, time.monotonic()
    rng = random.Random(rank())
    done = 0
    for split in (1, 2, 3, 4):  # all of one split before the next: the first ones tell most
        for operator in operators:
            for backend in backends:
                late = torch.tensor(time.monotonic() - start > 200, device="cuda", dtype=torch.int32)
                dist.all_reduce(late, dist.ReduceOp.MAX)
                if late.item():
                    if rank() == 0:
                        print(f"matrix: stopped after {done} of 80 configurations", flush=True)
                    return
                gathers = operator is ops.AllGatherMatmul
                chosen = Strategy(kernel="plain", chunking=Chunking(split), split=split, backend=backend)
                op = operator(rows * size(), n, k, torch.bfloat16, strategy=chosen, deadline=20.0)
                wrong = torch.zeros((), device="cuda", dtype=torch.int64)
                for call in range(5):
                    inputs = [small(rows * size(), k, 3, call, r) for r in range(size())]
                    weights = [small(k, n, 5, r) for r in range(size())]
                    wanted = exact(operator, inputs, weights, rows)
                    x, w = (v[rank()].bfloat16() for v in (inputs, weights))
                    out = torch.full_like(wanted, float("nan"), dtype=torch.bfloat16)
                    straggle(rng, 0.2)
                    op(x[:rows].contiguous() if gathers else x, w, out)
                    wrong += (out.float() != wanted).sum()
                what = f"{operator.__name__} by {backend}, split {split}"
                try:
                    op.check()
                except Exception as error:  # noqa: BLE001 - the others of the table are still worth a try
                    expect(False, f"{what}: {error}")
                    return
                expect(wrong.item() == 0, f"{what}: {wrong.item()} wrong")
                op.close()
                done += 1


def mixed() -> None:
    """Plans whose ops go by backends drawn at random, each by its own, among them copies that follow the chunk engine's ops
    and other ranks' (relays); three kinds of plan, ten mixtures each, twenty calls with stragglers."""
    import json

    from example_calls import CALLS, Blocks

    m, n, k = 256 * size(), 384, 256
    mesh = sy.plans.mesh_of(size())
    call = CALLS["matmul_persistent_host_tma"]
    blocks = Blocks(programs=120)  # the chunk engine's multiprocessors stay free
    kinds = {
        "reduce-scatter": sy.plans.push_reduce(mesh, sy.Tensor("C", (m, n)), split=2),
        "all-reduce": sy.plans.push_reduce(mesh, sy.Tensor("C", (m, n)), split=2, all=True),
        "ring": sy.plans.all_gather(mesh, sy.Tensor("A", (m, k)), algorithm="ring"),
    }
    for kind, plan in kinds.items():
        reads = kind == "ring"
        for number in range(10):
            draw = random.Random(number)  # the same on all ranks
            text = json.loads(plan.to_json())
            for of_rank in text["ranks"]:
                for op in of_rank["ops"]:
                    op["backend"] = draw.choice(("copy_engine", "tma_dedicated", "ldst_dedicated"))
            bind = {call.parameter if reads else call.parameter.replace("a_", "c_"): "A" if reads else "C"}
            fused = sy.fuse(call.kernel, sy.plans.from_json(json.dumps(text)), bind=bind, deadline=20.0)
            wrong = torch.zeros((), device="cuda", dtype=torch.int64)
            rng = random.Random(rank())
            mine = slice(rank() * 256, (rank() + 1) * 256)
            for index in range(20):
                inputs = [small(m, k, 3, index, 0 if reads else r) for r in range(1 if reads else size())]
                weights = [small(k, n, 5, r) for r in range(size())]
                w = weights[rank()].bfloat16()
                x = inputs[0][mine].bfloat16() if reads else inputs[rank()].bfloat16()
                out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
                straggle(rng, 0.2)
                call.launch(fused, x, w, out, blocks, num_warps=8, num_stages=3)
                parts = [inputs[0] @ weights[rank()]] if reads else [
                    x @ v for x, v in zip(inputs, weights, strict=True)
                ]  # fmt: skip
                rows = mine if kind == "reduce-scatter" else slice(0, m)
                wrong += (out[rows].float() != sum(parts)[rows]).sum()
            try:
                fused.check()
            except Exception as error:  # noqa: BLE001
                expect(False, f"{kind}, mixture {number}: {error}")
                return
            expect(wrong.item() == 0, f"{kind}, mixture {number}: {wrong.item()} wrong")
            fused.close()


SECTIONS = {
    f.__name__: f
    for f in (
        shapes,
        operators,
        ways,
        large,
        kernel_sums,
        stages,
        examples,
        templates,
        stated,
        queued,
        many,
        many_blocks,
        graphs,
        streams,
        repeated,
        matrix,
        mixed,
        absent,
    )
}


if __name__ == "__main__":
    sys.exit(run(SECTIONS))
