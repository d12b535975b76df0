"""Operators over several nodes, on GPUs of one machine that stand for them: each rank says of which node it is, and NCCL goes
between them over sockets of the loop-back. NODES=2 torchrun --nproc-per-node 2 (or 4: two nodes of two):

    NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_MNNVL_ENABLE=0 NODES=2 \\
        torchrun --nproc-per-node 2 tests/gpu/check_nodes.py [SECTION …]

Every call is judged exactly: small integers, new in every call, whose products and sums bf16 holds; outputs are poisoned. Every
wait has a deadline of 20 s. See SECTIONS at the end.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

NODES = int(os.environ.get("NODES", "2"))
PLACES = int(os.environ["LOCAL_WORLD_SIZE"]) // NODES
# Before anything asks: NCCL takes ranks of equal ids for one host's.
os.environ["NCCL_HOSTID"] = os.environ["SYNCOPATE_HOST_ID"] = f"node{int(os.environ['RANK']) // PLACES}"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))

import syncopate as sy  # noqa: E402
from sections import expect, rank, run, size, straggle  # noqa: E402
from syncopate import ops  # noqa: E402
from syncopate.strategy import Strategy  # noqa: E402

DEADLINE = 20.0
PLAIN = Strategy(kernel="plain", programs=124)  # NCCL's kernels need multiprocessors of their own
KINDS = (
    ops.AllGatherMatmul,
    ops.MatmulReduceScatter,
    ops.MatmulAllReduce,
    ops.MatmulAllToAll,
    ops.AllToAllMatmul,
)


def numbers(rows: int, columns: int, *seed: int) -> torch.Tensor:
    """Small, and few in a row: sums of their products over all ranks are whole numbers that bf16 holds."""
    generator = torch.Generator().manual_seed(sum(n * 7919**i for i, n in enumerate(seed)))
    made = torch.randint(-1, 2, (rows, columns), generator=generator).float()
    return (made * (torch.rand(rows, columns, generator=generator) < 16 / columns)).bfloat16().cuda()


class Judged:
    """An operator with data of its own for each call."""

    def __init__(self, kind: type, m: int, n: int, k: int, **options) -> None:
        self.op = kind(m, n, k, dtype=torch.bfloat16, deadline=DEADLINE, **{"strategy": PLAIN, **options})
        self.weights = self.weights_of(rank())
        self.out = self.op.empty(self.op.out_rows, self.op.n)
        self.bad = torch.zeros((), device="cuda", dtype=torch.int64)
        self.cases = [(self.x_of(rank(), i), self.right(i)) for i in range(3)]

    def x_of(self, of: int, index: int) -> torch.Tensor:
        return numbers(*self.op.shapes(of)["x"], 3, index, of)

    def weights_of(self, of: int) -> tuple[torch.Tensor, ...]:
        shapes = list(self.op.shapes(of).items())[1:]
        return tuple(numbers(*shape, 5, number, of) for number, (_, shape) in enumerate(shapes))

    def right(self, index: int) -> torch.Tensor:
        return self.op.reference(lambda of: self.x_of(of, index), self.weights_of)

    def call(self, index: int) -> None:
        x, right = self.cases[index % len(self.cases)]
        self.out.fill_(float("nan"))
        self.op.run(x, self.weights, self.out)
        self.bad += (self.out != right).sum()

    def judge(self, what: str) -> None:
        torch.cuda.synchronize()
        self.op.check()
        expect(self.bad.item() == 0, f"{type(self.op).__name__}, {what}: {self.bad.item()} wrong")


def operators() -> None:
    """All of them, at three sizes, ten calls each; and what the report says."""
    for kind in KINDS:
        for m, n, k in ((256, 384, 256), (1024, 512, 512), (2048, 1024, 1024)):
            judged = Judged(kind, m, n, k)
            for index in range(10):
                judged.call(index)
            judged.judge(f"{m} x {n} x {k}")
            judged.op.close()
    expect("node" in str(sy.report()), "the report does not say what crosses nodes")


def queued() -> None:
    """A thousand queued calls of each, with stragglers, two operators in turn."""
    rng = random.Random(rank())
    judged = [Judged(kind, 512, 512, 512) for kind in KINDS]
    for index in range(1000):
        straggle(rng, 0.02)
        judged[index % len(judged)].call(index)
    for one in judged:
        one.judge("queued calls")
        one.op.close()


def graphs() -> None:
    """A captured call, replayed 200 times with stragglers, among eager ones."""
    rng = random.Random(rank())
    for kind in KINDS:
        judged = Judged(kind, 512, 512, 512)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            judged.call(0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            judged.call(1)
        for index in range(200):
            straggle(rng, 0.05)
            graph.replay()
            if index % 50 == 49:
                judged.call(index)
        judged.judge("a graph")
        del graph
        judged.op.close()


def mixtures() -> None:
    """Tokens to all nodes, each node's program, sums back: eager, with gradients, and captured, all routings exact."""
    tokens, topk, hidden, inner, experts = 96, 2, 256, 128, 4 * size()
    own = slice(4 * rank(), 4 * rank() + 4)
    w1 = torch.stack([numbers(hidden, 2 * inner, 1, e) for e in range(experts)])
    w2 = torch.stack([numbers(inner, hidden, 2, e) for e in range(experts)])
    x = numbers(tokens, hidden, 3, rank())
    generator = torch.Generator().manual_seed(rank())
    random_ids = torch.rand(tokens, experts, generator=generator).topk(topk).indices.int()
    weights = torch.ones(tokens, topk, device="cuda")

    def right(ids: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(tokens, hidden, device="cuda")
        for choice in range(topk):
            for expert in range(experts):
                at = (ids[:, choice] == expert).nonzero().flatten()
                gate, up = (x[at].float() @ w1[expert].float()).chunk(2, -1)
                total[at] += (gate.relu() * up).bfloat16().float() @ w2[expert].float()
        return total.bfloat16()

    def gradients(ids: torch.Tensor) -> list[torch.Tensor]:
        """Of the sum of all y: of this rank's x and weights, and of its experts', whose rows come from all ranks."""
        all_ids = [torch.empty_like(ids) for _ in range(size())]
        dist.all_gather(all_ids, ids)
        dx, dweights = torch.zeros_like(x, dtype=torch.float32), torch.zeros_like(weights)
        dw1, dw2 = torch.zeros_like(w1, dtype=torch.float32), torch.zeros_like(w2, dtype=torch.float32)
        for of, routed in enumerate(all_ids):
            rows = numbers(tokens, hidden, 3, of).float()
            for choice in range(topk):
                for expert in range(experts):
                    at = (routed[:, choice] == expert).nonzero().flatten()
                    first, second = w1[expert].float(), w2[expert].float()
                    gate, up = (rows[at] @ first).chunk(2, -1)
                    h = (gate.relu() * up).bfloat16().float()
                    dh = second.sum(1)
                    dpre = torch.cat([dh * up * (gate > 0), dh * gate.relu()], -1).bfloat16().float()
                    dw1[expert] += rows[at].T @ dpre
                    dw2[expert] += h.sum(0)[:, None]
                    if of == rank():
                        dx[at] += dpre @ first.T
                        dweights[at, choice] = (h @ second).sum(1)
        return [dx, dweights, dw1[own], dw2[own]]

    routings = {
        "random": random_ids,
        "one expert": torch.full_like(random_ids, experts - 1),
        "none": torch.full_like(random_ids, -1),
    }
    for name, ids in routings.items():
        ids = ids.cuda()
        wanted = right(ids)
        y = sy.ops.moe(x, ids, weights, w1[own], w2[own], activation="relu")
        expect(torch.equal(y, wanted), f"routing {name!r}: {(y != wanted).sum().item()} wrong")
        rows, handle = sy.ops.dispatch(x, ids, experts)
        back = sy.ops.combine(rows, None, handle)
        handle.check()
        expect(
            torch.equal(back, ((ids >= 0).sum(1)[:, None] * x.float()).bfloat16()), f"routing {name!r}: back"
        )
        given = [one.detach().clone().requires_grad_() for one in (x, weights, w1[own], w2[own])]
        made = sy.ops.moe(given[0], ids, *given[1:], activation="relu")
        made.sum().backward()
        expect(torch.equal(made, wanted), f"routing {name!r}: with gradients y differs")
        for what, one, exact in zip(("x", "topk_weights", "w1", "w2"), given, gradients(ids), strict=True):
            off = (one.grad.float() - exact).abs().max().item()
            most = exact.abs().max().item() / 64  # sums of bf16, rounded on each node
            expect(off <= most, f"routing {name!r}: the gradient of {what} is {off} off, of at most {most}")
    ids = random_ids.cuda()
    y = sy.ops.moe(x, ids, weights, w1[own], w2[own], activation="relu")
    graph, captured = torch.cuda.CUDAGraph(), []
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        sy.ops.moe(x, ids, weights, w1[own], w2[own], activation="relu")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        captured.append(sy.ops.moe(x, ids, weights, w1[own], w2[own], activation="relu"))
    for _ in range(20):
        captured[0].zero_()
        graph.replay()
    torch.cuda.synchronize()
    expect(torch.equal(captured[0], y), "a captured call differs")
    del graph


def times() -> None:
    """Ours against NCCL and cuBLAS one after the other, in this run: the ratio of medians. No verdict."""
    for m, n, k in ((2048, 32768, 4096), (4096, 32768, 4096), (8192, 32768, 4096)):
        rows = m // size()
        op = ops.AllGatherMatmul(m, n // size(), k, dtype=torch.bfloat16, strategy=PLAIN, deadline=DEADLINE)
        x, w = numbers(rows, k, 1, rank()), numbers(k, n // size(), 2, rank())
        out, whole = op.empty(m, n // size()), torch.empty(m, k, device="cuda", dtype=torch.bfloat16)

        def pair(x: torch.Tensor = x, w: torch.Tensor = w, whole: torch.Tensor = whole) -> None:
            dist.all_gather_into_tensor(whole, x)
            torch.mm(whole, w)

        def seconds(call) -> float:
            taken = []
            for _ in range(12):
                torch.cuda.synchronize()
                dist.barrier()
                began = time.perf_counter()
                call()
                torch.cuda.synchronize()
                taken.append(time.perf_counter() - began)
            return sorted(taken)[len(taken) // 2]

        ours, theirs = seconds(lambda op=op, x=x, w=w, out=out: op.run(x, (w,), out)), seconds(pair)
        if rank() == 0:
            print(
                f"all_gather_matmul {m} x {n} x {k}: {theirs / ours:.3f} x NCCL + cuBLAS ({1e6 * ours:.0f} us)"
            )
        op.close()


def killed() -> None:
    """The last section of a run: the last rank ends, and the others' next call names what has not come."""
    op = ops.AllGatherMatmul(512, 512, 512, dtype=torch.bfloat16, strategy=PLAIN, deadline=2.0)
    x, w = numbers(512 // size(), 512, 1, rank()), numbers(512, 512, 2)
    out = op.empty(512, 512)
    op.run(x, (w,), out)
    op.check()
    dist.barrier()
    if rank() == size() - 1:
        os._exit(0)
    try:
        op.run(x, (w,), out)
        torch.cuda.synchronize()
        op.check()
        print(f"rank {rank()}: FAILED nobody is missed", flush=True)
        os._exit(1)
    except sy.SyncopateError as error:
        print(f"rank {rank()}: {error}", flush=True)
    os._exit(0)


SECTIONS = {
    "operators": operators,
    "queued": queued,
    "graphs": graphs,
    "mixtures": mixtures,
    "times": times,
    "killed": killed,
}

if __name__ == "__main__":
    if "killed" not in sys.argv[1:]:  # it ends the ranks
        del SECTIONS["killed"]
    sys.exit(run(SECTIONS))
