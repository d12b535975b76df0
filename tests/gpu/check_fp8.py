"""Operators of fp8 on real GPUs, one process each: torchrun --nproc-per-node 2 tests/gpu/check_fp8.py [SECTION …]

Inputs are random, scales differ from row to row and from call to call, and outputs hold NaN before, so that a scale or a chunk
that is stale or in another's place changes the result. See SECTIONS at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))

from sections import expect, ours, rank, run, size  # noqa: E402
from syncopate import ops  # noqa: E402
from syncopate.ops.scales import SCALED, SCALES, shapes_of  # noqa: E402
from syncopate.ops.shards import rows_of  # noqa: E402
from syncopate.strategy import Strategy, Tiling  # noqa: E402

FP8 = torch.float8_e4m3fn
GATHERING = (ops.AllGatherMatmul, ops.AllToAllMatmul)
KINDS = (*GATHERING, ops.MatmulReduceScatter, ops.MatmulAllReduce, ops.MatmulAllToAll)


class Call:
    """Of all ranks the inputs of one call, which all ranks make alike: x [M, K], w [N, K], and their scales."""

    def __init__(self, m: int, n: int, k: int, scales: str, seed: int) -> None:
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda", generator=generator)

        self.shape, self.kind = (m, n, k), scales
        self.x = [random(m, k).to(FP8) for _ in range(size())]
        self.w = [random(n, k).to(FP8) for _ in range(size())]
        shapes = shapes_of(scales, m, n, k)
        self.scales = [[random(*shape).abs() + 0.5 for shape in shapes.values()] for _ in range(size())]

    def given(self, kind: type) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        """x, w and the scales of this rank."""
        if kind is ops.AllGatherMatmul:  # of which all ranks hold a part of rank 0's x
            own = rows_of(self.shape[0], size(), rank())
            scale_x = [scale[own] for scale in self.scales[0][:1]]
            return self.x[0][own], self.w[rank()], (*scale_x, *self.scales[rank()][1:])
        return self.x[rank()], self.w[rank()], tuple(self.scales[rank()])

    def exact(self, x_of: int, w_of: int) -> torch.Tensor:
        """One rank's x by one rank's w, in fp64."""
        x, w = self.x[x_of].double(), self.w[w_of].double()
        if self.kind == "row":
            x, w = x * self.scales[x_of][0].double()[:, None], w * self.scales[w_of][1].double()[:, None]
        elif self.kind == "block":
            x = x * spread(self.scales[x_of][0], x.shape, 1)
            w = w * spread(self.scales[w_of][1], w.shape, SCALED)
        return x @ w.t()

    def right(self, kind: type) -> torch.Tensor:
        """What y of this rank is to be, in fp64."""
        m = self.shape[0]
        own, block = rows_of(m, size(), rank()), slice(rank() * (m // size()), (rank() + 1) * (m // size()))
        ranks = range(size())
        if kind is ops.AllGatherMatmul:
            return self.exact(0, rank())
        if kind is ops.AllToAllMatmul:
            return torch.cat([self.exact(r, rank())[block] for r in ranks])
        if kind is ops.MatmulAllToAll:
            return torch.cat([self.exact(r, r)[block] for r in ranks])
        total = sum(self.exact(r, r).to(torch.bfloat16).double() for r in ranks)
        return total[own] if kind is ops.MatmulReduceScatter else total


def spread(scale: torch.Tensor, shape: tuple[int, ...], rows: int) -> torch.Tensor:
    wide = scale.double().repeat_interleave(rows, 0)[: shape[0]]
    return wide.repeat_interleave(SCALED, 1)[:, : shape[1]]


#: By which the plain kernel is taken, too: with tiles open the Gluon one is.
PLAIN = Tiling(64, 64, 128, 4, -1)


def error(y: torch.Tensor, right: torch.Tensor) -> float:
    return ((y.double() - right).norm() / right.norm()).item()


def operators() -> None:
    """Every operator with every kind of scales, by both kernels and as it chooses, at few rows, many and odd ones; a gathered
    product is that of the unmodified kernel, bit for bit."""
    p = size()
    for m, n, k in ((8 * p, 512, 1024), (128 * p, 1280, 512), (512 * p, 1024, 4096), (56 * p, 272, 720)):
        for scales in SCALES:
            calls = [Call(m, n, k, scales, seed) for seed in range(3)]
            for kind in KINDS:
                for strategy in (None, Strategy(kernel="gluon"), Strategy((PLAIN,), kernel="plain")):
                    check(kind, calls, strategy)


def odd() -> None:
    """Ranks with a row more than others."""
    for m in (8 * size() + 1, 300 * size() + 1):
        for scales in SCALES:
            for kind in (ops.AllGatherMatmul, ops.MatmulReduceScatter, ops.MatmulAllReduce):
                check(kind, [Call(m, 528, 1040, scales, seed) for seed in range(3)], None)


def check(kind: type, calls: list[Call], strategy: Strategy | None) -> None:
    m, n, k = calls[0].shape
    options = {"scales": calls[0].kind, "w_transposed": True, "strategy": strategy}
    op = ours(kind, m, n, k, FP8, **options)
    what = f"{op.name} {m}x{n}x{k} scales {calls[0].kind!r} by {strategy and strategy.kernel}"
    for call in calls:
        x, w, given = call.given(kind)
        y = op(x, w, torch.full_like(op.empty(op.out_rows, n), float("nan")), scales=given)
        off = error(y, call.right(kind))
        expect(off < 5e-3, f"{what}: relative error {off:.1e}")
        if kind is ops.AllGatherMatmul and not op.strategy.unfused:
            whole = (*call.scales[0][:1], *given[1:])
            alone = op.unfused(call.x[0], w, torch.full_like(y, float("nan")), scales=whole)
            expect(torch.equal(y, alone), f"{what}: not the bits of the unmodified kernel")
    op.check()
    op.close()


def queued() -> None:
    """1,000 calls queued one behind the other, of four inputs in turn; the last of each is judged, and all have the
    same bits."""
    m, n, k = 256 * size(), 1024, 2048
    for kind in KINDS:
        calls = [Call(m, n, k, "row", seed) for seed in range(4)]
        op = ours(kind, m, n, k, FP8, scales="row", w_transposed=True)
        first = [op(*of(op, call, kind)).clone() for call in calls]
        bad = torch.zeros((), device="cuda", dtype=torch.int64)
        for turn in range(1000):
            if turn % 50 == rank():
                torch.cuda._sleep(5_000_000)
            y = op(*of(op, calls[turn % 4], kind))
            bad += (y != first[turn % 4]).sum()
        expect(bad.item() == 0, f"{op.name}: {bad.item()} elements of queued calls differ")
        for call, y in zip(calls, first, strict=True):
            off = error(y, call.right(kind))
            expect(off < 5e-3, f"{op.name}: relative error {off:.1e}")
        op.check()
        op.close()


def of(op: ops.Operator, call: Call, kind: type) -> tuple:
    x, w, scales = call.given(kind)
    return x, w, op.empty(op.out_rows, op.n).fill_(float("nan")), None, scales


def pair() -> None:
    """As the vendors' libraries do it."""
    m, n, k = 256 * size(), 1024, 2048
    for kind in KINDS:
        call = Call(m, n, k, "row", 1)
        op = ours(kind, m, n, k, FP8, scales="row", w_transposed=True, strategy=Strategy(unfused=True))
        off = error(op(*of(op, call, kind)), call.right(kind))
        expect(off < 5e-3, f"{op.name}, the pair: relative error {off:.1e}")
        op.close()


SECTIONS = {f.__name__: f for f in (operators, odd, queued, pair)}

if __name__ == "__main__":
    sys.exit(run(SECTIONS))
