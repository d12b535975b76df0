"""Collectives left direct, by NCCL, on real GPUs, one process each:

    torchrun --nproc-per-node 4 tests/gpu/check_nccl.py [SECTION …]

Inputs are small integers, new in every call, so that every sum is exact in any order; outputs are poisoned. Every wait has a
deadline of 20 s, and the whole script ends itself after LIMIT seconds. See SECTIONS at the end.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))

import syncopate as sy  # noqa: E402
from example_calls import CALLS  # noqa: E402
from sections import expect, rank, run, size  # noqa: E402
from syncopate import _syncopate  # noqa: E402

LIMIT = 240
DEADLINE = 20.0


def numbers(rows: int, columns: int, *seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(n * 7919**i for i, n in enumerate(seed)))
    return torch.randint(-2, 3, (rows, columns), generator=generator).float()


def straggle(rng: random.Random) -> None:
    if rng.random() < 0.3:
        torch.cuda._sleep(int(rng.random() * 2e6))


def direct(kind: str, tensor: sy.Tensor, **options) -> _syncopate.Plan:
    return getattr(sy.plans, kind)(sy.plans.mesh_of(size()), tensor, lower="direct", **options)


def exchange(m: int, n: int, name: str) -> _syncopate.Plan:
    """all_to_all of blocks of rows, from C to R."""
    whole, ranks = [[0, m], [0, n]], list(range(size()))
    block = [[[r * m // size(), (r + 1) * m // size()], [0, n]] for r in ranks]
    op = {"op": "collective", "kind": "all_to_all", "ranks": ranks, "src": {"tensor": "C", "region": whole},
          "dst": {"tensor": "R", "region": whole}}  # fmt: skip
    plan = {
        "schema": "syncopate.plan/1",
        "mesh": [["gpu", size()]],
        "tensors": {t: {"shape": [m, n], "dtype": name} for t in "CR"},
        "initial": [],
        "produced": [{"rank": r, "tensor": "C", "region": whole, "partial": True} for r in ranks],
        "final": [{"rank": r, "tensor": "R", "region": block[p], "of": [p]} for r in ranks for p in ranks],
        "ranks": [{"rank": r, "ops": [op]} for r in ranks],
    }
    return sy.plans.from_json(json.dumps(plan))


def gathered() -> None:
    """all_gather and broadcast, then the product: three kernels, fp16 and bf16, eager and as a graph."""
    m, n, k = 256 * size(), 384, 256
    for kind in ("all_gather", "broadcast"):
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            plan = direct(kind, sy.Tensor("A", (m, k), name))
            for example, call in CALLS.items():
                rng = random.Random(rank())
                fused = call.fuse(plan, deadline=DEADLINE)
                w = numbers(k, n, 7).to(dtype).cuda()
                out = torch.empty(m, n, device="cuda", dtype=dtype)
                mine = slice(rank() * m // size(), (rank() + 1) * m // size())
                holds = kind == "all_gather" or rank() == 0
                # A rank that holds nothing gives any tensor; a descriptor cannot have one without rows.
                rows = m // size() if kind == "all_gather" else m if holds else 1
                x = torch.empty(rows, k, device="cuda", dtype=dtype)
                wrong = torch.zeros((), device="cuda", dtype=torch.int64)
                for index in range(10):
                    whole = numbers(m, k, 3, index).to(dtype).cuda()
                    if holds:
                        x.copy_(whole[mine] if kind == "all_gather" else whole)
                    out.fill_(float("nan"))
                    straggle(rng)
                    call.launch(fused, x, w, out, num_warps=8, num_stages=3)
                    wrong += (out != (whole.float() @ w.float()).to(dtype)).sum()
                fused.check()
                expect(wrong.item() == 0, f"{kind} {name} {example}: {wrong.item()} wrong")
                fused.close()


def made() -> None:
    """The product, then reduce_scatter, all_reduce (sum and max) or all_to_all."""
    m, n, k = 256 * size(), 384, 256
    call = CALLS["matmul_pointers"]
    mine = slice(rank() * m // size(), (rank() + 1) * m // size())
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        plans = {
            "reduce_scatter": direct("reduce_scatter", sy.Tensor("C", (m, n), name), produced=True),
            "all_reduce": direct("all_reduce", sy.Tensor("C", (m, n), name), produced=True),
            "all_reduce max": direct("all_reduce", sy.Tensor("C", (m, n), name), produced=True, reduce="max"),
            "all_to_all": exchange(m, n, name),
        }
        for kind, plan in plans.items():
            rng = random.Random(rank())
            fused = sy.fuse(call.kernel, plan, bind={"c_ptr": "C"}, deadline=DEADLINE)
            out = torch.empty(m, n, device="cuda", dtype=dtype)
            wrong = torch.zeros((), device="cuda", dtype=torch.int64)
            for index in range(10):
                inputs = [numbers(m, k, 5, index, r).clamp(-1, 1) for r in range(size())]
                weights = [numbers(k, n, 6, r).clamp(-1, 1) for r in range(size())]
                weights = [
                    w * (torch.arange(k)[:, None] % 16 == 0) for w in weights
                ]  # sums that bf16 holds exactly
                x, w = inputs[rank()].to(dtype).cuda(), weights[rank()].to(dtype).cuda()
                parts = torch.stack([x @ w for x, w in zip(inputs, weights, strict=True)])
                out.fill_(float("nan"))
                straggle(rng)
                call.launch(fused, x, w, out, num_warps=8, num_stages=3)
                if kind == "all_to_all":
                    (prepared,) = fused.prepared
                    torch.cuda.synchronize()
                    got, wanted = prepared.tensors["R"].clone(), torch.cat([p[mine] for p in parts])
                else:
                    total = parts.amax(0) if kind.endswith("max") else parts.sum(0)
                    rows = mine if kind == "reduce_scatter" else slice(0, m)
                    got, wanted = out[rows], total[rows]
                wrong += (got != wanted.to(dtype).cuda()).sum()
            fused.check()
            expect(wrong.item() == 0, f"{kind} {name}: {wrong.item()} wrong")
            fused.close()


def graphs() -> None:
    """A captured call with a collective, replayed."""
    m, n, k = 256 * size(), 384, 256
    call = CALLS["matmul_pointers"]
    plan = direct("all_gather", sy.Tensor("A", (m, k), "bf16"))
    fused = call.fuse(plan, deadline=DEADLINE)
    w = numbers(k, n, 7).bfloat16().cuda()
    x = torch.zeros(m // size(), k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        call.launch(fused, x, w, out, num_warps=8, num_stages=3)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.launch(fused, x, w, out, num_warps=8, num_stages=3)
    for index in range(20):
        whole = numbers(m, k, 3, index).bfloat16().cuda()
        x.copy_(whole[rank() * m // size() : (rank() + 1) * m // size()])
        out.fill_(float("nan"))
        graph.replay()
        expect(bool((out == (whole.float() @ w.float()).bfloat16()).all()), f"replay {index}")
    fused.check()
    fused.close()


def absent() -> None:
    """A rank that never calls: check() of the others gives the collective up after twice the deadline."""
    m, n, k = 256 * size(), 384, 256
    call = CALLS["matmul_pointers"]
    fused = call.fuse(direct("all_gather", sy.Tensor("A", (m, k), "bf16")), deadline=2.0)
    w = numbers(k, n, 7).bfloat16().cuda()
    x = torch.zeros(m // size(), k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    call.launch(fused, x, w, out, num_warps=8, num_stages=3)
    fused.check()
    dist.barrier()
    start, message = time.monotonic(), ""
    if rank() != size() - 1:
        call.launch(fused, x, w, out, num_warps=8, num_stages=3)
        try:
            fused.check()
        except Exception as error:  # noqa: BLE001 - the message is what is judged
            message = str(error)
        took = time.monotonic() - start
        expect("has not ended" in message and took < 15, f"absent rank: after {took:.1f} s: {message!r}")
    dist.barrier()


SECTIONS = {f.__name__: f for f in (gathered, made, graphs, absent)}


if __name__ == "__main__":
    signal.alarm(LIMIT)  # ends the process, whatever hangs
    sys.exit(run(SECTIONS))
