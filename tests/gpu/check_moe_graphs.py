"""A mixture of experts in torch.compile's and CUDA's graphs, and what a call asks of the host: torchrun --nproc-per-node 2
tests/gpu/check_moe_graphs.py [SECTION …]. See SECTIONS at the end."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))

import syncopate as sy  # noqa: E402
from check_moe import Layer, numbers  # noqa: E402
from sections import expect, rank, run  # noqa: E402
from syncopate import ops  # noqa: E402

SHAPE = (64, 4, 2, 256, 128)
KINDS = ("random", "skewed", "one")


class Model(torch.nn.Module):
    """What surrounds a mixture is made by Inductor. The router's ids are given, so that results are exact."""

    def __init__(self, layer: Layer, way: str) -> None:
        super().__init__()
        self.w1, self.w2 = (torch.nn.Parameter(w.clone()) for w in (layer.own_w1, layer.own_w2))
        self.way = way

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if self.way == "op":
            name = dist.group.WORLD.group_name
            y = torch.ops.syncopate.moe(x, ids, weights, self.w1, self.w2, name, "relu")
        else:
            y = ops.moe(x, ids, weights, self.w1, self.w2, activation="relu")
        return y + x


def leaves_of(layer: Layer, call: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, ids = layer.x(call)[rank()], layer.ids(call, KINDS[call % 3])[rank()].contiguous()
    return x.clone().requires_grad_(), ids, layer.weights[rank()].clone().requires_grad_()


def gradients(model: Callable, of: torch.nn.Module, given: tuple, grad: torch.Tensor) -> list[torch.Tensor]:
    y = model(*given)
    return [y.detach(), *torch.autograd.grad(y, [given[0], given[2], of.w1, of.w2], grad)]


def compiled() -> None:
    """By Inductor, in one graph, forward and backward: the bits of the eager ones, with routings that change."""
    layer = Layer(*SHAPE, torch.bfloat16)
    grad = numbers((64, 256), -2, 2, 50 + rank()).to(layer.dtype)
    for way in ("op", "function"):
        model = Model(layer, way)
        made = torch.compile(model, fullgraph=True)
        for call in range(6):
            given = leaves_of(layer, call)
            right = gradients(model, model, given, grad)
            for one, of, what in zip(
                gradients(made, model, given, grad), right, ("y", "x", "weights", "w1", "w2"), strict=True
            ):
                expect(torch.equal(one, of), f"compiled, {way}, call {call}: {what} differs")
            with torch.no_grad():
                expect(
                    torch.equal(made(*given), right[0]),
                    f"compiled, {way}, call {call}, without gradients: y differs",
                )
        torch._dynamo.reset()
    sy.close()


def captured() -> None:
    """Forward and backward of the compiled and of the eager model as one CUDA graph, replayed with 100 routings."""
    layer = Layer(*SHAPE, torch.bfloat16)
    grad = numbers((64, 256), -2, 2, 50 + rank()).to(layer.dtype)
    model = Model(layer, "op")
    for what, called in (("eager", model), ("compiled", torch.compile(model, fullgraph=True))):
        given = leaves_of(layer, 0)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                gradients(called, model, given, grad)
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            made = gradients(called, model, given, grad)
        for routing in range(100):
            other = leaves_of(layer, routing)
            with torch.no_grad():
                for one, of in zip(given, other, strict=True):
                    one.copy_(of)
            graph.replay()
            torch.cuda.synchronize()
            right = gradients(model, model, other, grad)
            wrong = [
                at for at, (one, of) in enumerate(zip(made, right, strict=True)) if not torch.equal(one, of)
            ]
            expect(not wrong, f"{what}, captured, replayed with routing {routing}: {wrong} differ")
        del graph, made
    sy.close()


def unread() -> None:
    """1,000 calls, of which CUPTI sees all copies to the host and all waits of it, whoever asks the driver for them."""
    layer = Layer(*SHAPE, torch.bfloat16)
    calls = [layer.of_rank(layer.x(call), layer.ids(call, KINDS[call % 3])) for call in range(6)]
    ops.moe(*calls[0], activation="relu")
    torch.cuda.synchronize()
    dist.barrier()
    config = torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    with torch.profiler.profile(experimental_config=config) as profile:
        for turn in range(1000):
            ops.moe(*calls[turn % 6], activation="relu")
    counts = Counter(event.name for event in profile.events())
    kernels = sum(count for name, count in counts.items() if name.startswith("moe_"))
    copies = sum(count for name, count in counts.items() if "DtoH" in name)
    waits = {
        name: count
        for name, count in counts.items()
        if name.endswith(" Sync") or name.endswith("Synchronize")
    }
    expect(kernels >= 6000, f"CUPTI sees {kernels} kernels of 1,000 calls: {counts.most_common(5)}")
    expect(copies == 0, f"{copies} copies to the host in 1,000 calls")
    # Those of the profiler itself, when it ends.
    expect(sum(waits.values()) < 20, f"the host waits in 1,000 calls: {waits}")
    if rank() == 0:
        print(f"1,000 calls: {kernels} kernels, {copies} copies to the host, waits {waits}", flush=True)
    sy.close()


SECTIONS = {"compiled": compiled, "captured": captured, "unread": unread}

if __name__ == "__main__":
    sys.exit(run(SECTIONS))
