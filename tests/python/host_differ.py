"""What ranks do that call different things: a ValueError on all of them; and all go on from the same call. Run by test_differ.py.

host_differ.py RANKS [CHECK …]
"""

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "python")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from example_calls import CALLS, Blocks, numbers  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from syncopate.torch import unfused  # noqa: E402

ROWS, N, K = 8, 24, 32
DIFFER = "the ranks' calls differ: "
torch_ops = torch.ops.syncopate
Call = Callable[[], Any]


def data(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * dist.get_rank())
    return torch.randint(-4, 5, shape, generator=generator).float()  # sums of which are exact


class Calls:
    """What the checks call: objects, functions, torch ops and a fused kernel, each with its right result."""

    def __init__(self, size: int) -> None:
        self.group = dist.group.WORLD.group_name
        self.x, self.w, self.bias = data(ROWS, K, seed=1), data(K, N, seed=2), data(N, seed=3)
        self.whole = unfused.gather(self.x, self.group)
        self.tall = data(ROWS * size, K, seed=4)
        self.summed = unfused.scatter(self.tall @ self.w, self.group)
        self.gather = sy.ops.AllGatherMatmul(ROWS * size, N, K, torch.float32)
        self.scatter = sy.ops.MatmulReduceScatter(ROWS * size, N, K, torch.float32)
        self.qkv = [data(1, 2, 16, 16, seed=seed).half() for seed in (5, 6, 7)]
        narrow = (1, 2, 2, 16 * size, 12, torch.float16)
        self.narrow = [one[..., :12] for one in self.qkv]
        self.attended = sy.ops.attention(*(one.contiguous() for one in self.narrow), kind="all_gather")
        self.backward = sy.ops.AttentionBackward(*narrow, kind="all_gather", deterministic=True)
        self.right_gradients = None
        mesh, tensor = sy.plans.mesh_of(size), sy.Tensor("A", (ROWS * size, 16), "fp32")
        self.example = CALLS["matmul_pointers"]
        self.fused = self.example.fuse(sy.plans.all_gather(mesh, tensor))
        self.routed = [data(4, 16, seed=9), torch.arange(4).view(4, 1) % size, torch.ones(4, 1)]
        self.experts = [data(1, 16, 16, seed=10), data(1, 8, 16, seed=11)]
        self.shard, self.square = self.x[:, :16].contiguous(), numbers((16, 16), 2, torch.float32)

    def object(self) -> None:
        expect(torch.equal(self.gather(self.x, self.w), self.whole @ self.w), "an object")

    def scattered(self) -> None:
        expect(torch.equal(self.scatter(self.tall, self.w), self.summed), "another object")

    def function(self) -> None:
        expect(torch.equal(sy.ops.all_gather_matmul(self.x, self.w), self.whole @ self.w), "a function")

    def op(self) -> None:
        y = torch_ops.all_gather_matmul(self.x, self.w, self.group)
        expect(torch.equal(y, self.whole @ self.w), "a torch op")

    def kernel(self, shard: torch.Tensor | None = None) -> None:
        given, out = self.shard if shard is None else shard, torch.zeros(len(self.whole), 16)
        self.example.launch(self.fused, given, self.square, out, Blocks(8, 16, 16, 2, 3))
        expect(torch.equal(out, self.whole[:, :16] @ self.square), "a fused kernel")

    def attention(self) -> None:
        sy.ops.attention(*self.qkv, causal=True)

    def attention_op(self) -> None:
        with torch.no_grad():
            torch_ops.attention(*self.qkv, self.group, causal=True, scale=0.5)

    def gradients(self) -> None:
        """Of heads that the kernel pads, by a call that is made before: no rank ends in the forward."""
        o, lse = self.attended
        made = self.backward(torch.ones_like(o), None, *self.narrow, o, lse)
        expect([one.shape for one in made] == [one.shape for one in self.narrow], "gradients")
        if self.right_gradients is not None:
            expect(all(map(torch.equal, made, self.right_gradients)), "gradients of attention")
        self.right_gradients = made

    def moe(self) -> None:
        y = sy.ops.moe(*self.routed, *self.experts, activation="relu")
        size = dist.get_world_size()
        ups, downs = (unfused.gather(one[0], self.group).chunk(size) for one in self.experts)
        made = [self.routed[0] @ up for up in ups]
        rows = [(up[:, :8].clamp(min=0) * up[:, 8:]) @ down for up, down in zip(made, downs, strict=True)]
        right = torch.stack([rows[int(expert)][row] for row, expert in enumerate(self.routed[1])])
        expect(torch.equal(y, right), "moe")

    def parts(self) -> None:
        x, ids, weights = self.routed
        rows, handle = sy.ops.dispatch(x, ids, dist.get_world_size())
        expect(torch.equal(sy.ops.combine(rows, weights, handle), x), "the parts of moe")

    def all(self) -> list[Call]:
        return [
            self.object,
            self.scattered,
            self.function,
            self.op,
            self.kernel,
            self.attention,
            self.attention_op,
            self.gradients,
            self.moe,
            self.parts,
        ]


def said_by(call: Call) -> str:
    try:
        call()
    except (ValueError, RuntimeError, TypeError) as error:
        return str(error)
    return ""


def differ(one: Call, others: Call, *said: str) -> None:
    """Rank 0 calls one thing and the others another: all are told, in this call."""
    heard = said_by(one if dist.get_rank() == 0 else others)
    missing = [text for text in (DIFFER, *said) if text not in heard]
    expect(not missing, f"rank {dist.get_rank()}: {missing} in {heard or 'no error'}")
    expect("strategy" not in heard, f"nobody has asked for one: {heard}")


def check_calls_that_differ(calls: Calls) -> None:
    """Every pair of known ones, told in the call that differs, and the next call of each is right, whoever was told by
    which."""
    known = calls.all()
    for first, second in zip(known, known[1:] + known[:1], strict=True):
        differ(first, second)
        second()
        first()


def check_parts_of_a_mixture_that_differ(calls: Calls) -> None:
    """Any of its parts against anything else, either way round, with rows that are dispatched and not yet combined."""
    x, ids, weights = calls.routed
    rows, handle = sy.ops.dispatch(x, ids, dist.get_world_size())

    def combined() -> None:
        expect(torch.equal(sy.ops.combine(rows, weights, handle), x), "combine")

    for one in (calls.moe, combined, lambda: sy.ops.dispatch(x, ids, dist.get_world_size())):
        for other in (calls.scattered, calls.attention):
            differ(one, other)
            one()
            differ(other, one)
            other()
            combined()
            calls.moe()


def check_set_up_against_a_call(calls: Calls) -> None:
    """The names are calls of the user's, also while one rank sets up."""
    more = data(2 * ROWS, K, seed=8)
    name = "rank 0: all_gather_matmul"
    differ(lambda: sy.ops.all_gather_matmul(more, calls.w), calls.object, name, "rank 1 calls all_gather")
    differ(lambda: sy.ops.AllGatherMatmul(24, 48, K, torch.float32).prepare(), calls.kernel, name)
    torch_ops.all_gather_matmul(more, calls.w, calls.group)
    by_function = functools.partial(sy.ops.all_gather_matmul, more, calls.w)
    by_op = functools.partial(torch_ops.all_gather_matmul, more, calls.w, calls.group)
    differ(by_function, by_op, name, "of one name, but ranks that set it up now do so by another function")
    by_op()
    calls.function()
    given = {"strategy": sy.Strategy(kernel="plain", pull=dist.get_rank() == 0)}
    made = sy.ops.AllGatherMatmul(ROWS * dist.get_world_size(), N, K, torch.float32, **given)
    heard = said_by(made.prepare)
    expect(DIFFER in heard and "pull" in heard, heard)
    calls.object()
    size, mine = dist.get_world_size(), 32 if dist.get_rank() == 0 else 64
    tiling = replace(sy.strategy.SMALL, block_m=mine)
    for name, given in {
        f'"block_m": {mine}': {"strategy": sy.Strategy((tiling,), programs=4)},
        f'"programs": {mine}': {"programs": mine},
    }.items():
        heard = said_by(functools.partial(sy.ops.Moe, 4, size, 1, 16, 8, torch.float32, **given))
        expect(DIFFER in heard and name in heard, f"{name}: {heard or 'no error'}")
        calls.moe()
    differ(functools.partial(sy.ops.Moe, 5, size, 1, 16, 8, torch.float32), calls.kernel, "rank 0: moe T=5")
    calls.kernel()


def check_gradients_on_one_rank(calls: Calls) -> None:
    """A weight of which rank 0 alone asks for the gradient: its backward pass is a call that others do not make."""
    w = calls.w.clone().requires_grad_(dist.get_rank() == 0)
    y = torch_ops.all_gather_matmul(calls.x, w, calls.group)
    differ(lambda: y.sum().backward(), calls.op, "rank 0: all_gather_matmul")
    calls.op()


def check_rows_that_differ(calls: Calls) -> None:
    """What ranks gather of unequal shards, or otherwise: torch's collective would end the process, or hang. `length` is spoken of
    where rows differ, and nowhere else."""

    def gathered(
        rows: int, columns: int = 2, dtype: torch.dtype = torch.float32, dim: int = 0, **how: Any
    ) -> Call:
        return lambda: sy.unshard_rows(torch.ones(rows, columns, dtype=dtype), dim=dim, **how)

    differ(gathered(4), gathered(6), "unshard_rows [4, 2]", "unshard_rows [6, 2]", "say `length`")
    differ(gathered(4), gathered(4, 3), "unshard_rows [4, 3]")
    differ(gathered(4), gathered(4, dtype=torch.float16), "torch.float16")
    differ(gathered(4, 4), gathered(4, 4, dim=1), "'dim': 1")
    differ(gathered(8), gathered(8, sharding="zigzag"), "'sharding': 'zigzag'")
    size = dist.get_world_size()
    differ(gathered(8, length=8 * size), gathered(9, length=9 * size), f"unshard_rows [{9 * size}, 2]")
    expect(len(gathered(5)()) == 5 * size, "the call after")
    q, *kv = calls.qkv
    options = ({"scale": 0.3}, {"causal": True}, {"causal": True, "window": 2}, {"sharding": "zigzag"})
    for one, other in zip(options, ({"scale": 0.4}, {}, {"causal": True, "window": 3}, {}), strict=True):
        first, second = (
            functools.partial(sy.ops.attention, q, *kv, kind="ring", **how) for how in (one, other)
        )
        differ(first, second)
        expect(
            "say `length`" not in said_by(first if dist.get_rank() == 0 else second),
            "of rows that do not differ",
        )
    short = [one[:, :, :8].contiguous() for one in calls.qkv]
    differ(lambda: sy.ops.attention(q, *kv), lambda: sy.ops.attention(*short), "say `length`")


def check_a_call_left_out(calls: Calls) -> None:
    """All calls behind it fit, and take the data of others: the last one finds nobody, and all are told of it."""
    rank = dist.get_rank()
    made = sy.ops.AllToAllMatmul(len(calls.tall), N, K, torch.float32)

    def some() -> None:
        for turn in range(3):
            if (rank, turn) != (1, 1):
                made(calls.tall, calls.w)
        made.close()

    heard = said_by(some)
    expect("that is call 3 of rank 0, and rank 1 has made 2" in heard, heard or "no error")
    dist.barrier()  # rank 1 waits a while for the others to close it, too
    calls.object()


def check_a_bias_on_one_rank(calls: Calls) -> None:
    """An object that takes none refuses it on that rank, which then goes on to something else; one that takes it is another op."""

    def given_one() -> None:
        refused = said_by(lambda: calls.scatter(calls.tall, calls.w, bias=calls.bias))
        expect("bias" in refused, refused)
        calls.object()

    differ(given_one, calls.scattered, "rank 0 calls all_gather_matmul", "rank 1 calls matmul_reduce_scatter")
    calls.scattered()
    made = functools.partial(sy.ops.MatmulReduceScatter, len(calls.tall), N, K, torch.float32, bias=1)
    differ(lambda: made().prepare(), calls.scattered, "rank 0: matmul_reduce_scatter", "'bias': 1")
    calls.scattered()


def calls_made(size: int) -> tuple[Calls]:
    sy.set_deadline(3000.0, setup=3000.0)  # who waited for it would be killed
    calls = Calls(size)
    for call in calls.all():
        call()
    return (calls,)


if __name__ == "__main__":
    run_checks(globals(), calls_made)
