"""Functions of sy.ops that C++ calls alone once they have been called: results, messages and gradients as of the first call. Run by
test_functions.py.

host_functions.py RANKS
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_script import expect, on_ranks  # noqa: E402
from syncopate import _syncopate, ranks  # noqa: E402
from syncopate.call import cache, known  # noqa: E402
from syncopate.torch import unfused  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

N, K = 24, 32


def data(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * dist.get_rank())
    return torch.randint(-4, 5, shape, generator=generator).float()  # sums of which are exact


def by_cpp(call: Callable[[], Any]) -> bool:
    """Whether C++ makes it alone: nothing is learnt of it again."""
    learnt, before = [], known.learn
    known.learn = lambda *given: learnt.append(before(*given))
    try:
        call()
    finally:
        known.learn = before
    return not learnt


def refused(call: Callable[[], Any], kind: type[Exception], said: str) -> None:
    try:
        call()
    except kind as error:
        expect(said in str(error), f"expected {said!r}, got {error}")
    else:
        expect(False, f"no error: {said}")


Case = tuple[list[tuple[int, ...]], Callable[..., Any], Callable[..., Any]]


def functions(size: int) -> list[Case]:
    """Each with the shapes of its operands, and what it is to give."""
    group, ops = dist.group.WORLD.group_name, sy.ops
    gather, scatter = unfused.gather, unfused.scatter
    exchange = unfused.exchange
    return [
        ([(8, K), (K, N)], ops.all_gather_matmul, lambda x, w: gather(x, group) @ w),
        (
            [(8, K), (N, K), (N,)],
            lambda x, w, b, out=None: ops.all_gather_matmul(x, w.t(), out=out, bias=b, activation="relu"),
            lambda x, w, b: torch.relu(gather(x, group) @ w.t() + b),
        ),
        (
            [(8, K), (K * size, N)],
            lambda x, w, out=None: ops.all_gather_matmul(x, w, out=out, axis=1),
            lambda x, w: gather(x, group, 1) @ w,
        ),
        ([(8 * size, K), (K, N)], ops.matmul_reduce_scatter, lambda x, w: scatter(x @ w, group)),
        ([(8 * size, K), (K, N)], ops.matmul_all_reduce, lambda x, w: gather(scatter(x @ w, group), group)),
        ([(8 * size, K), (K, N)], ops.matmul_all_to_all, lambda x, w: exchange(x @ w, group)),
        ([(8 * size, K), (K, N)], ops.all_to_all_matmul, lambda x, w: exchange(x, group) @ w),
        (
            [(8, K), (K, 16), (16, N)],
            lambda x, v, w, out=None: ops.feed_forward(x, v, w, out=out, activation="relu"),
            lambda x, v, w: scatter(torch.relu(gather(x, group) @ v) @ w, group),
        ),
    ]


def check_results(size: int) -> None:
    """Of every function, with tensors elsewhere, transposed, as parameters, into `out`, and not of the last call's values."""
    for number, (shapes, call, exact) in enumerate(functions(size)):
        for turn in range(3):
            given = [data(*shape, seed=100 * number + 10 * turn + i) for i, shape in enumerate(shapes)]
            right = exact(*given)
            if turn == 2:
                given[1] = torch.nn.Parameter(given[1], requires_grad=False)
            made = []
            alone = by_cpp(lambda: made.append(call(*given)))  # noqa: B023
            expect(torch.equal(made[0], right), f"function {number}, call {turn}")
            expect(alone == (turn > 0), f"function {number}, call {turn}: by C++ {alone}")
        out = torch.full_like(right, float("nan"))
        expect(call(*given, out=out) is out and torch.equal(out, right), f"function {number} into out")


def laid_otherwise(made: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors of `made`'s shape that kernels cannot read where they lie."""
    if made.dim() == 1:
        return {"every other": made.repeat_interleave(2)[::2], "one number": made[:1].expand(len(made))}
    m, n = made.shape
    wide, tall = made.repeat(1, 2), made.repeat_interleave(2, 0)
    beyond = torch.zeros(m * n + 1)[1:].view(m, n)
    cut = torch.zeros(m, n + 1)[:, 1:]
    return {
        "begins 4 bytes beyond": beyond.copy_(made),
        "a part of longer rows": cut.copy_(made),
        "transposed": made.t().contiguous().t(),
        "transposed, with gaps": wide.t().contiguous().t()[:, :n],
        "every other column": made.repeat_interleave(2, 1)[:, ::2],
        "every other row": tall[::2],
        "one row": made[:1].expand(m, n),
        "one column": made[:, :1].expand(m, n),
        "one number": made[:1, :1].expand(m, n),
        "rows that overlap": wide.flatten().as_strided((m, n), (4, 1)),
        "diagonals": wide.flatten().as_strided((m, n), (1, 1)),
    }


def check_layouts(size: int) -> None:
    """Whatever way operands lie, and after calls of others: a function takes a copy; an object says what to do, of x also where
    its kernel would fail in the midst of the call, and goes on."""
    for number, (shapes, call, exact) in enumerate(functions(size)):
        plain = [data(*shape, seed=100 * number + i) for i, shape in enumerate(shapes)]
        for _ in range(2):
            call(*plain)
        for place, one in enumerate(plain):
            for name, other in laid_otherwise(one).items():
                given = [*plain[:place], other, *plain[place + 1 :]]
                for turn in range(2):
                    right = torch.equal(call(*given), exact(*given))
                    expect(right, f"function {number}, operand {place}, {name}, call {turn}")
        out = exact(*plain)
        for name in ("begins 4 bytes beyond", "a part of longer rows"):
            into = laid_otherwise(out)[name].fill_(float("nan"))
            try:
                expect(torch.equal(call(*plain, out=into), out), f"function {number} into {name}")
            except ValueError as error:
                expect("out: its rows must begin at multiples of 16 bytes" in str(error), str(error))
        expect(by_cpp(lambda: call(*plain)), f"function {number}: the call after")  # noqa: B023
    m, k, n = 8 * size, K, N
    for kind, rows in (
        (sy.ops.AllGatherMatmul, 8),
        (sy.ops.MatmulReduceScatter, m),
        (sy.ops.MatmulAllReduce, m),
        (sy.ops.MatmulAllToAll, m),
        (sy.ops.AllToAllMatmul, m),
    ):
        op, x, w = kind(m, n, k, torch.float32), data(rows, k, seed=1), data(k, n, seed=2)
        right = op(x, w)
        for place, one in enumerate((x, w)):
            for name, other in laid_otherwise(one).items():
                given = (other, w) if place == 0 else (x, other)
                try:
                    made = op(*given)
                except ValueError as error:
                    said = ("contiguous" in str(error), str(error).startswith("xw"[place]))
                    expect(all(said), f"{kind.name}, {name}: {error}")
                else:
                    expect(bool(made.isfinite().all()), f"{kind.name}, {name}")
                expect(torch.equal(op(x, w), right), f"{kind.name}: the call after {name}")
        op.close()


def check_messages(size: int) -> None:
    """What does not fit is named after calls that did."""
    ops, x, w = sy.ops, data(8, K, seed=1), data(K, N, seed=2)
    for _ in range(2):
        y = ops.all_gather_matmul(x, w)
    refused(lambda: ops.all_gather_matmul(x, w[:-1]), ValueError, "expected x [rows, K] and w [K, N]")
    refused(lambda: ops.all_gather_matmul(x, w.double()), (TypeError, ValueError), "w: expected")
    refused(lambda: ops.all_gather_matmul(x.numpy(), w), TypeError, "x")
    refused(lambda: ops.all_gather_matmul(x, None), TypeError, "w")
    refused(lambda: ops.all_gather_matmul(x, w, out=y[:-1]), ValueError, "out: expected")
    refused(lambda: ops.all_gather_matmul(x, w, out=y.double()), (TypeError, ValueError), "out: expected")
    refused(lambda: ops.all_gather_matmul(x, w, out=[y]), (TypeError, AttributeError), "")
    refused(lambda: ops.all_gather_matmul(x, w, activation="tan"), ValueError, "activation")
    refused(lambda: ops.all_gather_matmul(x, w, axis=2), ValueError, "axis: expected 0 (rows) or 1 (columns)")
    refused(lambda: ops.all_gather_matmul(x, w, axis=1 << 80), ValueError, "axis: expected 0 (rows) or 1")
    refused(lambda: ops.all_gather_matmul(x, w, scales=3), ValueError, "scales: expected two tensors")
    refused(lambda: ops.all_gather_matmul(x, w, scales=()), ValueError, "scales: expected two tensors")
    refused(lambda: ops.all_gather_matmul(x, w, bias=data(1, 1, N, seed=1)), ValueError, "bias: expected [N]")
    refused(lambda: ops.all_gather_matmul(x, w, bias=data(N + 1, seed=1)), ValueError, "bias")
    refused(
        lambda: ops.all_gather_matmul(torch._neg_view(x), w), ValueError, "x: it is another tensor's negation"
    )
    refused(lambda: ops.all_gather_matmul(x, w, out=torch._neg_view(y)), ValueError, "out: it is another")
    expect(torch.equal(ops.all_gather_matmul(x, w), y), "the call after")
    made = ops.AllGatherMatmul(8 * size, N, K, torch.float32)
    made(x, w)
    refused(lambda: made(x, torch._neg_view(w)), ValueError, "w: it is another tensor's negation")
    expect(torch.equal(made(x, w), y), "the object's call after")


def check_gradients(size: int) -> None:
    """A call that is to be recorded is, whatever calls without gradients have been."""
    x, w = data(8 * size, K, seed=1), data(K, N, seed=2)
    for _ in range(2):
        sy.ops.matmul_reduce_scatter(x, w)
    leaf = w.clone().requires_grad_()
    y = sy.ops.matmul_reduce_scatter(x, leaf)
    expect(y.requires_grad, "recorded")
    y.sum().backward()
    expect(torch.equal(leaf.grad, x.t() @ torch.ones(8 * size, N)), "its gradient")
    out = torch.empty(8, N, requires_grad=True)
    refused(lambda: sy.ops.matmul_reduce_scatter(x, w, out=out), RuntimeError, "out requires a gradient")
    with torch.no_grad():
        expect(by_cpp(lambda: sy.ops.matmul_reduce_scatter(x, leaf)), "without gradients")
        expect(sy.ops.matmul_reduce_scatter(x, w, out=out) is out, "into a leaf without gradients")
    with torch.inference_mode():
        expect(sy.ops.matmul_reduce_scatter(x, w).is_inference(), "an inference tensor")


def check_what_is_written(size: int) -> None:
    """A result goes into a place for each of its elements, and autograd knows of it; of functions and objects, before and after C++
    makes their calls alone."""
    x, w = data(8, K, seed=1), data(K, N, seed=2)
    made = sy.ops.AllGatherMatmul(8 * size, N, K, torch.float32)
    qkv = [data(1, 2, 16, 16, seed=seed).half() for seed in (3, 4, 5)]
    attention = sy.ops.Attention(1, 2, 2, 16 * size, 16, torch.float16)

    def attend(o: torch.Tensor) -> torch.Tensor:
        return attention(*qkv, (o, torch.empty(1, 2, 16)))[0]

    calls = {
        "a function": (lambda out: sy.ops.all_gather_matmul(x, w, out=out), (8 * size, N), torch.float32),
        "an object": (lambda out: made(x, w, out), (8 * size, N), torch.float32),
        "an object of attention": (attend, (1, 2, 16, 16), torch.float16),
    }
    for what, (call, shape, dtype) in calls.items():
        for turn in range(2):
            expanded = torch.empty(*shape[:-2], 1, shape[-1], dtype=dtype).expand(shape)
            near = torch.empty(4096, dtype=dtype).as_strided(shape, (*[1024, 512][: len(shape) - 2], 3, 1))
            for out in (expanded, near):
                name = "o" if what.endswith("attention") else "out"
                refused(lambda: call(out), ValueError, f"{name}: its elements overlap")  # noqa: B023
            held, leaf = torch.ones(shape, dtype=dtype), torch.ones(shape, dtype=dtype, requires_grad=True)
            product = (held * leaf).sum()
            with torch.no_grad():
                call(held)
            refused(product.backward, RuntimeError, "modified by an inplace operation")
            with torch.inference_mode():
                call(torch.empty(shape, dtype=dtype))
            expect(held._version > 0, f"{what}, turn {turn}")


def check_forward_mode(size: int) -> None:
    """A tangent that would be left out is an error, of functions, objects and ops, also of calls that C++ makes alone."""
    group = dist.group.WORLD.group_name
    x, w = data(8, K, seed=1), data(K, N, seed=2)
    tall = data(8 * size, K, seed=6)
    qkv = [data(1, 2, 16, 16, seed=seed).half() for seed in (3, 4, 5)]
    made, torch_ops = sy.ops.AllGatherMatmul(8 * size, N, K, torch.float32), torch.ops.syncopate
    routed = data(4, 16, seed=7), torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1)
    experts = data(1, 16, 16, seed=8), data(1, 8, 16, seed=9)
    for call, given in (
        (sy.ops.all_gather_matmul, (x, w)),
        (lambda x, w: made(x, w), (x, w)),
        (sy.ops.matmul_reduce_scatter, (tall, w)),
        (sy.ops.attention, qkv),
        (lambda x, w1, w2: sy.ops.moe(x, *routed[1:], w1, w2), (routed[0], *experts)),
        (lambda x, w: torch_ops.all_gather_matmul(x, w, group), (x, w)),
        (lambda x, w: torch_ops.all_gather_matmuls(x, [w, w], group)[0], (x, w)),
        (lambda x, w: torch_ops.matmul_all_reduce(x, w, group), (tall, w)),
        (lambda x, w: torch_ops.all_to_all_matmuls(x, [w], group)[0], (tall, w)),
        (lambda x, w1, w2: torch_ops.moe(x, *routed[1:], w1, w2, group), (routed[0], *experts)),
        (lambda q, k, v: torch_ops.attention(q, k, v, group), qkv),
    ):
        for _ in range(2):
            call(*given)
        for place in range(len(given)):
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(given[place], torch.ones_like(given[place]))
                operands = [*given[:place], dual, *given[place + 1 :]]
                refused(lambda: call(*operands), RuntimeError, "a derivative in forward mode")  # noqa: B023
        with forward_ad.dual_level():
            call(*given)  # what brings none


def check_autocast(size: int) -> None:
    """As of the ops: operands are cast, results are of autocast's dtype, gradients of the leaves'; also once C++ makes the call."""
    x, w, b = data(8, K, seed=1), data(K, N, seed=2), data(N, seed=3)
    tall, back = data(8 * size, K, seed=4), data(N, K, seed=5)
    qkv = [data(1, 2, 16, 16, seed=seed) for seed in (6, 7, 8)]
    routed = data(4, 16, seed=7), torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1)
    experts = data(1, 16, 16, seed=8), data(1, 8, 16, seed=9)
    ops = sy.ops
    for call, given in (
        (lambda x, w, b: ops.all_gather_matmul(x, w, bias=b), (x, w, b)),
        (ops.matmul_reduce_scatter, (tall, w)),
        (ops.all_to_all_matmul, (tall, w.bfloat16())),
        (ops.feed_forward, (x, w, back)),
        (lambda *qkv: ops.attention(*qkv, causal=True)[0], qkv),
        (lambda x, weights, w1, w2: ops.moe(x, routed[1], weights, w1, w2), (routed[0], routed[2], *experts)),
    ):
        right = call(*(one.bfloat16() if one is not routed[2] else one for one in given))
        leaves = [one.clone().requires_grad_() for one in given]
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                y = call(*given)
                recorded = call(*leaves)
            expect(y.dtype == torch.bfloat16 and torch.equal(y, right), f"under autocast: {y.dtype}")
            expect(torch.equal(recorded, y) and recorded.requires_grad, "recorded")
        recorded.float().sum().backward()
        expect(all(one.grad.dtype == one.dtype for one in leaves), "gradients of the leaves' dtype")
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            expect(ops.all_gather_matmul(x, w).dtype == torch.float32, "where it is not enabled")
        y = torch.empty(8 * size, N)
        expect(ops.all_gather_matmul(x, w, out=y) is y, "into out, as torch.mm")


def check_what_is_forgotten(size: int) -> None:
    """Operators that are closed, and groups that are destroyed: their calls are set up anew."""
    x, w = data(8, K, seed=1), data(K, N, seed=2)
    right = unfused.gather(x, dist.group.WORLD.group_name) @ w
    for _ in range(2):
        sy.ops.all_gather_matmul(x, w)
    cache.close()
    expect(not by_cpp(lambda: sy.ops.all_gather_matmul(x, w)), "after it was closed")
    for _ in range(2):  # groups of one name, whose objects may lie where the last one's did
        group = dist.new_group(list(range(size)))
        for turn in range(2):
            made = []
            alone = by_cpp(lambda: made.append(sy.ops.all_gather_matmul(x, w, group)))  # noqa: B023
            expect(torch.equal(made[0], right) and alone == (turn > 0), f"a group of its own, call {turn}")
        dist.destroy_process_group(group)
    expect(not by_cpp(lambda: sy.ops.all_gather_matmul(x, w)), "a group is gone: all is asked again")
    before = cache.limit_bytes
    cache.limit_bytes = 1  # each operator makes room for the next one
    sy.ops.all_gather_matmul(data(16, K, seed=3), w)
    expect(not by_cpp(lambda: sy.ops.all_gather_matmul(x, w)), "closed to make room")
    cache.limit_bytes = before


def check(place: ranks.Place) -> None:
    store = dist.FileStore(f"{place.folder}/store", place.size)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size)
    for one in (
        check_results,
        check_layouts,
        check_messages,
        check_gradients,
        check_what_is_written,
        check_forward_mode,
        check_autocast,
        check_what_is_forgotten,
    ):
        one(place.size)
    cache.close()
    expect(_syncopate.call_known(("nothing",), (data(1, 1, seed=1),)) is None, "all are forgotten")
    dist.destroy_process_group()


if __name__ == "__main__":
    on_ranks(check)
