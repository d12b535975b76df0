"""Mixture of experts on real GPUs, one process each: torchrun --nproc-per-node 2 tests/gpu/check_moe.py [SECTION …]

Inputs are small integers, so that a row that is stale, early or in another's place changes the result. See SECTIONS at the end.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))

import syncopate as sy  # noqa: E402
from sections import expect, rank, run, size, straggle  # noqa: E402
from syncopate import ops  # noqa: E402
from syncopate.ops.mixture_scaled import shapes_of  # noqa: E402

#: T, experts a rank, topk, H, F.
SHAPES = [(5, 2, 2, 64, 64), (64, 16, 8, 512, 192), (300, 4, 2, 1024, 768), (512, 64, 8, 2048, 768)]


def numbers(shape: tuple[int, ...], low: int, high: int, seed: int) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(low, high + 1, shape, generator=generator, device="cuda")


class Layer:
    """Of all ranks. Few entries of the weights are not zero, so that all sums are exact in fp32, and products in bf16."""

    def __init__(self, tokens: int, own: int, topk: int, hidden: int, inner: int, dtype: torch.dtype) -> None:
        self.t, self.own, self.k, self.h, self.f, self.experts = (
            tokens,
            own,
            topk,
            hidden,
            inner,
            own * size(),
        )
        self.w1 = self._sparse(self.experts, hidden, 2 * inner, 1).to(dtype)
        self.w2 = self._sparse(self.experts, inner, hidden, 2).to(dtype)
        self.dtype, self.mine = dtype, slice(rank() * own, (rank() + 1) * own)
        self.own_w1, self.own_w2 = self.w1[self.mine].contiguous(), self.w2[self.mine].contiguous()
        self.weights = (numbers((size(), tokens, topk), 1, 3, 3).float() / 2).contiguous()

    def _sparse(self, experts: int, rows: int, columns: int, seed: int) -> torch.Tensor:
        """One row of each column is 1 or -1."""
        made = torch.zeros(experts, rows, columns, device="cuda")
        at = numbers((experts, 1, columns), 0, rows - 1, seed)
        sign = numbers((experts, 1, columns), 0, 1, seed + 7).float() * 2 - 1
        return made.scatter_(1, at, sign)

    def x(self, call: int) -> torch.Tensor:
        """Of all ranks [ranks, T, H]."""
        return numbers((size(), self.t, self.h), -2, 2, 100 + call).to(self.dtype)

    def ids(self, call: int, kind: str = "random") -> torch.Tensor:
        """Of all ranks [ranks, T, topk]."""
        if kind == "one":
            return torch.zeros(size(), self.t, self.k, dtype=torch.int64, device="cuda")
        generator = torch.Generator(device="cuda").manual_seed(call)
        scores = torch.rand(size(), self.t, self.experts, generator=generator, device="cuda")
        if kind == "skewed":
            scores[..., : self.experts // 2] += 1
        return scores.topk(min(self.k, self.experts)).indices

    def of_rank(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What this rank calls it with."""
        own = x[rank()].contiguous(), ids[rank()].contiguous(), self.weights[rank()]
        return *own, self.own_w1, self.own_w2

    def right(self, x: torch.Tensor, ids: torch.Tensor, taken: torch.Tensor | None = None) -> torch.Tensor:
        """Of this rank."""
        total = torch.zeros(self.t, self.h, device="cuda")
        for choice in range(self.k):
            of = ids[rank(), :, choice]
            for expert in of.unique().tolist():
                where = of == expert
                inner = x[rank(), where].float() @ self.w1[expert].float()
                inner = (inner[:, : self.f].relu() * inner[:, self.f :]).to(self.dtype).float()
                made = (inner @ self.w2[expert].float()).to(self.dtype).float()
                weight = self.weights[rank(), where, choice, None]
                if taken is not None:
                    weight = weight * taken[rank(), where, choice, None]
                total[where] += weight * made
        return total

    def taken(self, ids: torch.Tensor, bound: int) -> torch.Tensor:
        made = torch.zeros(ids.shape, dtype=torch.bool, device="cuda")
        flat = ids.flatten()
        for first in range(0, self.experts, self.own):
            here = ((flat >= first) & (flat < first + self.own)).nonzero().flatten()
            order = here[flat[here].argsort(stable=True)]
            made.view(-1)[order[:bound]] = True
        return made


def agrees(y: torch.Tensor, right: torch.Tensor, what: str) -> None:
    rounded = right.to(y.dtype)
    wrong = (y != rounded).sum().item()
    expect(
        wrong == 0,
        f"{what}: {wrong} of {y.numel()} elements differ, by up to {(y.float() - right).abs().max()}",
    )


def shapes() -> None:
    """Every shape and dtype, by routings of several kinds; twice the same routing gives the same bits."""
    for shape in SHAPES:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            layer = Layer(*shape, dtype)
            for call, kind in enumerate(("random", "skewed", "one", "random")):
                x, ids = layer.x(call), layer.ids(call, kind)
                given = layer.of_rank(x, ids)
                y = ops.moe(*given, activation="relu")
                agrees(y, layer.right(x, ids), f"{shape} {dtype} {kind}")
                expect(
                    torch.equal(ops.moe(*given, activation="relu"), y), f"{shape} {dtype} {kind}: other bits"
                )
            sy.close()


def columns_of(w1: torch.Tensor, w2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's columns of all experts, for tensor parallel ones."""
    inner = w2.shape[1]
    mine = torch.arange(rank() * inner // size(), (rank() + 1) * inner // size(), device=w1.device)
    return w1[..., torch.cat([mine, inner + mine])].contiguous(), w2[:, mine].contiguous()


def tensor() -> None:
    """Tensor parallel experts: as `shapes`; what ranks add up is exact too."""
    dtypes = torch.float32, torch.bfloat16, torch.float16, torch.bfloat16
    for shape, dtype in zip(SHAPES, dtypes, strict=True):
        layer = Layer(*shape, dtype)
        w1, w2 = columns_of(layer.w1, layer.w2)
        for call, kind in enumerate(("random", "skewed", "one", "random")):
            x, ids = layer.x(call), layer.ids(call, kind)
            given = (x[rank()], ids[rank()].contiguous(), layer.weights[rank()], w1, w2)
            y = ops.moe(*given, activation="relu", parallel="tensor")
            agrees(y, layer.right(x, ids), f"tensor parallel {shape} {dtype} {kind}")
        sy.close()


def scaled() -> None:
    """Experts of fp8, with scales of rows and of blocks, against torch in fp32, which rounds in between as the operator does."""
    for tokens, own, topk, hidden, inner in (
        (5, 2, 2, 144, 128),
        (64, 16, 8, 512, 384),
        (300, 4, 2, 1024, 768),
        (700, 2, 2, 1040, 256),
    ):
        for kind in ("row", "block"):
            layer = Scaled(tokens, own, topk, hidden, inner, kind)
            y = ops.moe(*layer.operands(), activation="silu", scales=layer.scales())
            off = ((y.float() - layer.right()).norm() / layer.right().norm()).item()
            expect(
                off < 0.02, f"fp8 {kind} {(tokens, own, topk, hidden, inner)} is off by {off:.2e} of its norm"
            )
            sy.close()


class Scaled:
    """Of all ranks, of fp8."""

    def __init__(self, tokens: int, own: int, topk: int, hidden: int, inner: int, kind: str) -> None:
        self.own, self.kind, experts = own, kind, own * size()
        generator = torch.Generator(device="cuda").manual_seed(hidden)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device="cuda")

        fp8 = torch.float8_e4m3fn
        self.x = random(size(), tokens, hidden).to(fp8)
        self.w1 = (random(experts, 2 * inner, hidden) / 4).to(fp8)
        self.w2 = (random(experts, hidden, inner) / 4).to(fp8)
        of = shapes_of(kind, tokens, experts, hidden, inner)
        self.sx = random(size(), *of["scale_x"]).abs() + 0.5
        self.s1, self.s2 = (random(*of[name]).abs() + 0.5 for name in ("scale_w1", "scale_w2"))
        scores = torch.rand(size(), tokens, experts, generator=generator, device="cuda")
        self.weights, self.ids = scores.softmax(-1).topk(topk)

    def operands(self) -> tuple[torch.Tensor, ...]:
        mine = slice(rank() * self.own, (rank() + 1) * self.own)
        w1, w2 = (w[mine].transpose(1, 2) for w in (self.w1, self.w2))
        return self.x[rank()], self.ids[rank()].contiguous(), self.weights[rank()].contiguous(), w1, w2

    def scales(self) -> tuple[torch.Tensor, ...]:
        mine = slice(rank() * self.own, (rank() + 1) * self.own)
        return self.sx[rank()], self.s1[mine], self.s2[mine]

    def _exact(self, values: torch.Tensor, scale: torch.Tensor, rows: int) -> torch.Tensor:
        if self.kind == "row":
            return values.float() * scale[..., None]
        scale = scale.repeat_interleave(128, -1)[..., : values.shape[-1]]
        return values.float() * (
            scale if rows == 1 else scale.repeat_interleave(128, -2)[:, : values.shape[1]]
        )

    def right(self) -> torch.Tensor:
        """Of this rank."""
        x = self._exact(self.x[rank()], self.sx[rank()], 1)
        w1, w2 = self._exact(self.w1, self.s1, 128), self._exact(self.w2, self.s2, 128)
        total = torch.zeros_like(x)
        for choice in range(self.ids.shape[-1]):
            for expert in self.ids[rank(), :, choice].unique().tolist():
                token = (self.ids[rank(), :, choice] == expert).nonzero().flatten()
                gate, up = (x[token] @ w1[expert].t()).chunk(2, -1)
                inner = (torch.nn.functional.silu(gate) * up).view(len(token), -1, 128)
                scale = inner.abs().amax(-1, keepdim=True) / 448
                inner = ((inner / scale).to(torch.float8_e4m3fn).float() * scale).view(len(token), -1)
                total[token] += self.weights[rank(), token, choice, None] * (inner @ w2[expert].t())
        return total


def bounds() -> None:
    """Rows over the bound add nothing; the handle of a dispatch tells of them, and an operator of those of all its calls, once."""
    layer = Layer(64, 4, 2, 256, 128, torch.bfloat16)
    for bound in (1, 33, 100, 64 * 2 * size()):
        for kind in ("random", "one"):
            x, ids = layer.x(bound), layer.ids(bound, kind)
            given = (x[rank()], ids[rank()].contiguous(), layer.weights[rank()], layer.own_w1, layer.own_w2)
            y = ops.moe(*given, activation="relu", bound=bound, over="drop")
            agrees(y, layer.right(x, ids, layer.taken(ids, bound)), f"bound {bound} {kind}")
    x, ids = layer.x(1), layer.ids(1, "one")
    _, handle = ops.dispatch(x[rank()], ids[rank()], layer.experts, bound=7)
    try:
        handle.check()
        expect(False, "more rows than the bound, and no error")
    except ValueError as error:
        expect("rows more than 7" in str(error), str(error))
    operator = ops.Moe(64, layer.experts, 2, 256, 128, layer.dtype, sy.group.of_process_group(None), bound=7)
    for call, kind in enumerate(("random", "one", "random")):
        x, ids = layer.x(call), layer.ids(call, kind)
        operator.run(x[rank()], ids[rank()].contiguous(), layer.weights[rank()], layer.own_w1, layer.own_w2)
    try:
        operator.check()
        expect(False, "more rows than the bound in earlier calls, and no error")
    except ValueError as error:
        expect("rows more than 7 come to a rank" in str(error), str(error))
    operator.check()
    operator.close()
    sy.close()


def many() -> None:
    """10,000 queued calls with routings that change each call, and stragglers."""
    layer = Layer(64, 4, 2, 256, 128, torch.bfloat16)
    calls = []
    for call in range(16):
        x, ids = layer.x(call), layer.ids(call, ("random", "skewed", "one")[call % 3])
        calls.append((layer.of_rank(x, ids), layer.right(x, ids).to(layer.dtype)))
    bad, rng = torch.zeros((), dtype=torch.int64, device="cuda"), random.Random(rank())
    for turn in range(10_000):
        given, right = calls[turn % len(calls)]
        straggle(rng, 1e-3)
        bad += (ops.moe(*given, activation="relu") != right).sum()
    expect(bad.item() == 0, f"10,000 queued calls: {bad.item()} elements differ")
    sy.close()


def graph() -> None:
    """One captured graph, replayed with 100 routings, and no synchronisation by the host in eager calls."""
    layer = Layer(64, 4, 2, 256, 128, torch.bfloat16)
    x, ids = layer.x(0)[rank()].clone(), layer.ids(0)[rank()].clone()
    out = torch.empty_like(x)

    def call() -> None:
        out.copy_(ops.moe(x, ids, layer.weights[rank()], layer.own_w1, layer.own_w2, activation="relu"))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=side):
        call()
    for routing in range(100):
        every, all_ids = layer.x(routing), layer.ids(routing, ("random", "skewed", "one")[routing % 3])
        x.copy_(every[rank()])
        ids.copy_(all_ids[rank()])
        captured.replay()
        torch.cuda.synchronize()
        agrees(out, layer.right(every, all_ids), f"replayed with routing {routing}")
    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(1000):
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    del captured
    sy.close()


def gradients() -> None:
    """Of x, the weights of the routes, w1 and w2, against torch in fp32."""
    tokens, own, topk, hidden, inner = 48, 4, 2, 128, 192
    experts, mine = own * size(), slice(rank() * own, (rank() + 1) * own)
    generator = torch.Generator(device="cuda").manual_seed(3)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda") / 4

    x, grad = values(size(), tokens, hidden), values(size(), tokens, hidden)
    w1, w2 = values(experts, hidden, 2 * inner), values(experts, inner, hidden)
    scores = torch.rand(size(), tokens, experts, generator=generator, device="cuda")
    weights, ids = scores.softmax(-1).topk(topk)
    whole = [one.clone().requires_grad_() for one in (x, weights, w1, w2)]
    for of in range(size()):
        h = torch.einsum("th,tkhf->tkf", whole[0][of], whole[2][ids[of]])
        made = torch.einsum(
            "tkf,tkfh->tkh", torch.nn.functional.silu(h[..., :inner]) * h[..., inner:], whole[3][ids[of]]
        )
        (made * whole[1][of][..., None]).sum(1).backward(grad[of])
    of_rank = {"expert": (w1[mine], w2[mine]), "tensor": columns_of(w1, w2)}
    grads = whole[2].grad, whole[3].grad
    grads_of_rank = {"expert": (grads[0][mine], grads[1][mine]), "tensor": columns_of(*grads)}
    for parallel, dtype, room in (
        ("expert", torch.float32, 1e-4), ("expert", torch.bfloat16, 0.05),
        ("tensor", torch.float32, 1e-4), ("tensor", torch.bfloat16, 0.05),
    ):  # fmt: skip
        wanted = [whole[0].grad[rank()], whole[1].grad[rank()], *grads_of_rank[parallel]]
        given = (x[rank()].to(dtype), weights[rank()].contiguous(), *(w.to(dtype) for w in of_rank[parallel]))
        leaves = [one.clone().requires_grad_() for one in given]
        name = dist.group.WORLD.group_name
        y = torch.ops.syncopate.moe(leaves[0], ids[rank()].contiguous(), *leaves[1:], name, parallel=parallel)
        y.backward(grad[rank()].to(dtype))
        for leaf, of, what in zip(leaves, wanted, ("x", "topk_weights", "w1", "w2"), strict=True):
            off = ((leaf.grad.float() - of).norm() / of.norm()).item()
            expect(off < room, f"{parallel}, {dtype}: the gradient of {what} is off by {off:.2e} of its norm")
    sy.close()


def training() -> None:
    """1,000 queued forwards and backwards with routings that change each call, and stragglers: the bits of each alone."""
    layer = Layer(64, 4, 2, 256, 128, torch.bfloat16)
    grad = numbers((64, 256), -2, 2, 50 + rank()).to(layer.dtype)
    leaves = [layer.weights[rank()].clone(), layer.own_w1.clone(), layer.own_w2.clone()]
    leaves = [leaf.requires_grad_() for leaf in leaves]

    def both(x: torch.Tensor, ids: torch.Tensor) -> list[torch.Tensor]:
        y = ops.moe(x, ids, *leaves, activation="relu")
        return [y.detach(), *torch.autograd.grad(y, [x, *leaves], grad)]

    calls = []
    for call in range(12):
        kind = ("random", "skewed", "one")[call % 3]
        x = layer.x(call)[rank()].clone().requires_grad_()
        ids = layer.ids(call, kind)[rank()].contiguous()
        alone = both(x, ids)
        torch.cuda.synchronize()
        dist.barrier()
        calls.append((x, ids, [one.clone() for one in alone]))
    bad, rng = torch.zeros((), dtype=torch.int64, device="cuda"), random.Random(rank())
    for turn in range(1000):
        x, ids, right = calls[turn % len(calls)]
        straggle(rng, 1e-3)
        for made, of in zip(both(x, ids), right, strict=True):
            bad += (made != of).sum()
    expect(bad.item() == 0, f"1,000 queued forwards and backwards: {bad.item()} elements differ")
    sy.close()


SECTIONS = {
    "shapes": shapes,
    "tensor": tensor,
    "scaled": scaled,
    "bounds": bounds,
    "many": many,
    "graph": graph,
    "gradients": gradients,
    "training": training,
}

if __name__ == "__main__":
    sys.exit(run(SECTIONS))
