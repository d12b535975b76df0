"""Host time of a call by the route that a user takes, without a GPU: on the driver stand-in of the tests, which only counts. So it is
what Python, torch and the library cost, whatever a driver costs on top.

    scripts/build fake_cuda && LD_LIBRARY_PATH=build/fake_driver .venv/bin/python bench/host_route.py [ROUNDS [ROWS]]

Least us of the calling thread on rank 0 of two, driver calls of a call, and functions of Python that a call enters; `×`: over the custom op's.
`other tensors`: those of eight layers in turn. Figures of one run compare; a busy machine moves all.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

import fake_gpu  # noqa: E402
import syncopate as sy  # noqa: E402
from syncopate import ranks  # noqa: E402

CALLS, LAYERS = 200, 8
M, N, K = int(sys.argv[2]) if sys.argv[2:] else 64, 256, 256
PRODUCTS = ("matmul_reduce_scatter", "matmul_all_reduce", "all_gather_matmul")


def only_count(on: bool) -> None:
    ctypes.CDLL("libcuda.so.1")["_ZN9fake_cuda10only_countEb"](on)


def us_of(call: Callable[[], Any], rounds: int) -> float:
    for _ in range(5 * LAYERS):
        call()
    times = []
    only_count(True)
    for _ in range(rounds):
        begin = thread_time()
        for _ in range(CALLS):
            call()
        times.append((thread_time() - begin) / CALLS * 1e6)
    only_count(False)
    return min(times)


def entered(call: Callable[[], Any]) -> int:
    """Functions of Python that one call enters."""
    count = 0

    def see(_frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(see)
    call()
    sys.setprofile(None)
    return count - 1  # `call` itself


def driver_calls(call: Callable[[], Any]) -> int:
    count = ctypes.CDLL("libcuda.so.1")["_ZN9fake_cuda9num_callsEv"]
    count.restype = ctypes.c_size_t
    before = count()
    call()
    return count() - before


def routes(name: str, group: Any) -> dict[str, Callable[[], Any]]:
    size = dist.get_world_size()
    rows = M // size if name.startswith("all_gather") else M
    x, w = fake_gpu.zeros(rows, K), fake_gpu.zeros(K, N)
    layers = itertools.cycle([(fake_gpu.zeros(rows, K), fake_gpu.zeros(K, N)) for _ in range(LAYERS)])
    leaf = w.clone().as_subclass(fake_gpu.GpuTensor).requires_grad_()
    kind = "".join(part.capitalize() for part in name.split("_"))
    object_ = getattr(sy.ops, kind)(M, N, K, torch.bfloat16, group, strategy=fake_gpu.usual_strategy(name))
    function, op = getattr(sy.ops, name), getattr(torch.ops.syncopate, name)
    y, group_name = object_(x, w), dist.group.WORLD.group_name

    def without(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return call()

        return run

    return {
        "custom op, no grad": without(lambda: op(x, w, group_name)),
        "custom op, other tensors": without(lambda: op(*next(layers), group_name)),
        "custom op, grad mode": lambda: op(x, w, group_name),
        "custom op, recorded": lambda: op(x, leaf, group_name),
        "function": lambda: function(x, w, group),
        "function, out=": lambda: function(x, w, group, y),
        "object": lambda: object_(x, w),
        "executable": lambda: object_._executable.native.run((x, w, y)),
    }


def attention_routes(group: Any) -> dict[str, Callable[[], Any]]:
    rows, d, causal = 128, 64, {"causal": True}
    q, k, v = (fake_gpu.zeros(1, heads, rows, d) for heads in (4, 2, 2))
    leaf = q.clone().as_subclass(fake_gpu.GpuTensor).requires_grad_()
    object_ = sy.ops.Attention(1, 4, 2, rows * group.size, d, torch.bfloat16, group, even=True, **causal)
    op, name = torch.ops.syncopate.attention, dist.group.WORLD.group_name
    outputs = object_(q, k, v)

    def without() -> Any:
        with torch.no_grad():
            return op(q, k, v, name, **causal)

    return {
        "custom op, no grad": without,
        "custom op, grad mode": lambda: op(q, k, v, name, **causal),
        "custom op, recorded": lambda: op(leaf, k, v, name, **causal),
        "function": lambda: sy.ops.attention(q, k, v, group, **causal),
        "object": lambda: object_(q, k, v),
        "object, out=": lambda: object_(q, k, v, outputs),
    }


def on_rank(place: ranks.Place) -> None:
    fake_gpu.ordinal[0] = place.rank
    store = dist.FileStore(f"{place.folder}/store", place.size)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size)
    fake_gpu.with_custom_ops()
    group = sy.group.of_process_group(dist.group.WORLD, "cuda")
    rounds = int(sys.argv[1]) if sys.argv[1:] else 15
    for name in [*PRODUCTS, "attention"]:
        base = None
        for title, call in (routes(name, group) if name in PRODUCTS else attention_routes(group)).items():
            for _ in range(3):
                call()
            dist.barrier()
            us, driver, python = us_of(call, rounds), driver_calls(call), entered(call)
            base = base or us
            if place.rank == 0:
                print(f"{name:22} {title:24} {us:7.1f} us  × {us / base:4.2f}  {driver:3} driver calls {python:3} of Python", flush=True)  # fmt: skip
    dist.barrier()


if __name__ == "__main__":
    ranks.run(2, on_rank, timeout=600)
