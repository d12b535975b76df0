"""The feed-forward block, two stages around one plan, on host ranks in Triton's interpreter; run by test_stages.py.

Every call has fresh data; transfers are delayed at random and ranks are late at random. The result must be, bit for bit,
what the unmodified kernels give on the gathered input, added up as fp32 in rank order. Exits 1 with the first thing
that is wrong.

    host_stages.py RANKS [CALLS]
"""

import itertools
import os
import random
import sys
import time
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from example_calls import CALLS, Blocks, numbers  # noqa: E402
from syncopate import ops, ranks  # noqa: E402
from syncopate.group import of_folder  # noqa: E402

K, F, N = 16, 32, 24
SWEEP = bool(os.environ.get("SYNCOPATE_SWEEP"))
TILINGS = (ops.Tiling(16, 16, 16, 2, -1, "ieee", 2), ops.Tiling(16, 32, 16, 2, -1, "ieee", 2))


def data(rows: int, columns: int, *seed: int) -> torch.Tensor:
    number = sum(n * 7919**i for i, n in enumerate(seed))
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(number))


def alone(op: ops.FeedForward, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    """The unmodified kernels, one after the other."""
    h, c = torch.full((op.m, op.f), float("nan")), torch.full((op.m, op.n), float("nan"))
    return op.unfused(x, w1, w2, h, c)


def in_torch(op: ops.FeedForward, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    act = {"": lambda h: h, "relu": torch.relu, "silu": torch.nn.functional.silu,
           "gelu": lambda h: torch.nn.functional.gelu(h, approximate="tanh")}[op.activation]  # fmt: skip
    return act(x @ w1) @ w2


def check_own_kernels(place: ranks.Place) -> None:
    """A list of the user's own kernels through sy.fuse, in each of the three forms; what comes between stays in the heap."""
    rank, size = place.rank, place.size
    m, mine = 12 * size, slice(12 * rank, 12 * rank + 12)
    plan = sy.plans.join(
        [
            sy.plans.all_gather(sy.plans.mesh_of(size), sy.Tensor("X", (m, K), "fp32"), split=2),
            sy.plans.push_reduce(sy.plans.mesh_of(size), sy.Tensor("C", (m, N), "fp32")),
        ],
        [sy.Tensor("H", (m, F), "fp32")],
    )
    for number, (name, example) in enumerate(CALLS.items()):
        group = of_folder(place.folder, rank, size, f"{place.run_id}-own-{number}", "host")
        a, c = example.parameter, example.parameter.replace("a_", "c_")
        bind = [{a: "X", c: "H"}, {a: "H", c: "C"}]
        fused = sy.fuse([example.kernel] * 2, plan, bind=bind, group=group, host_delay=1e-3, seed=rank)
        for call in range(2):
            x = numbers((m, K), 10 * call, torch.float32)
            weights = [
                (numbers((K, F), 3 + r, torch.float32), numbers((F, N), 30 + r, torch.float32))
                for r in range(size)
            ]
            h, out, (w1, w2) = torch.empty(m, F), torch.full((m, N), float("nan")), weights[rank]
            blocks = Blocks(16, 16, 16, 2, 3)
            calls = example.stages(fused, (x[mine].contiguous(), w1, h), (h, w2, out), blocks=blocks)
            fused.run(calls)
            fused.check()
            exact = sum(x @ up @ down for up, down in weights)  # of small integers
            if not torch.equal(out[mine], exact[mine]):
                raise RuntimeError(f"{name} twice, call {call}: the result differs")
        if len(fused.prepared) != 1:
            raise RuntimeError(f"{name}: prepared {len(fused.prepared)} times")
        try:
            fused.run(calls[:1])
        except TypeError as error:
            if "2 stages: give a Call for each" not in str(error):
                raise
        else:
            raise RuntimeError("one call of two stages is taken")
        fused.close()


def check_what_is_apart(op: ops.FeedForward) -> None:
    """A block that is two operators has no kernel of its own to record, and hands out their places."""
    if op.strategy.fused:
        return
    assert op.prepare() is None and op.held_bytes() > 0
    assert op.shard().shape == (op.shard_rows, op.k) and op.result().shape == (op.shard_rows, op.n)
    for name in ("record", "run_local"):
        try:
            getattr(op, name)(op.shard(), *(op.operand(weight) for weight in ("w1", "w2")))
        except ValueError as error:
            assert "apart: the block is two operators" in str(error), error
        else:
            raise AssertionError(f"{name} of a block without a kernel")


def work(place: ranks.Place, calls: int) -> int:
    check_own_kernels(place)
    rng = random.Random(place.rank)
    count = 0
    m = 24 * place.size + (3 if place.size > 1 else 0)  # uneven shards, tiles that straddle them
    cases = [case for case in itertools.product((False, True), (1, 2), (1, 2)) if SWEEP or sum(case) % 2]
    strategies = [
        ops.Strategy(TILINGS, chunking=ops.Chunking(rows), split=split, pull=pull)
        for pull, rows, split in cases
    ]
    strategies.append(ops.Strategy(TILINGS, apart=True))
    for strategy, activation in zip(strategies, itertools.cycle(("gelu", "relu", "silu", "")), strict=False):
        group = of_folder(place.folder, place.rank, place.size, f"{place.run_id}-{count}", "host")
        op = ops.FeedForward(
            m, K, F, N, torch.float32, group, activation=activation, host_delay=2e-3, seed=100 * count + place.rank, deadline=600,
            strategy=strategy,
        )  # fmt: skip
        first = sum(m // place.size + (r < m % place.size) for r in range(place.rank))
        mine = slice(first, first + op.shard_rows)
        for call in range(calls):
            x = data(m, K, 1, count, call)
            weights = [(data(K, F, 2, count, r), data(F, N, 3, count, r)) for r in range(place.size)]
            out = torch.full((op.shard_rows, N), float("nan"))
            if rng.random() < 0.3:
                time.sleep(rng.random() * 5e-3 * (place.rank + 1))
            op(x[mine].contiguous(), *weights[place.rank], out)
            op.check()
            parts = [alone(op, x, *pair) for pair in weights]
            total = parts[0].float()
            for part in parts[1:]:
                total = total + part.float()
            what = f"rank {place.rank} case {count} call {call}"
            if not torch.equal(out, total[mine]):
                raise RuntimeError(f"{what}: not the bits of the unfused kernels")
            right = sum(in_torch(op, x, *pair) for pair in weights)[mine]
            if not torch.allclose(out, right, rtol=1e-4, atol=1e-4):
                raise RuntimeError(f"{what}: not what torch gives")
        for buffer in op.prepared.tensors.values() if strategy.fused else ():
            buffer.fill_(float("nan"))
        check_what_is_apart(op)
        op.close()
        count += 1
    return count


if __name__ == "__main__":
    size, calls = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    torch.set_num_threads(1)
    counts = ranks.run(size, lambda place: work(place, calls), timeout=1800)
    print(f"{size} ranks: {counts[0]} configurations, {counts[0] * calls} calls, identical")
