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


def check_results(size: int) -> None:
    """Of every function, with tensors elsewhere, transposed, as parameters, into `out`, and not of the last call's values."""
    group, ops = dist.group.WORLD.group_name, sy.ops
    gather, scatter = unfused.gather, unfused.scatter
    exchange = unfused.exchange
    cases: list[tuple[list[tuple[int, ...]], Callable[..., Any], Callable[..., Any]]] = [
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
    for number, (shapes, call, exact) in enumerate(cases):
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
    expect(torch.equal(ops.all_gather_matmul(x, w), y), "the call after")


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
    for one in (check_results, check_messages, check_gradients, check_what_is_forgotten):
        one(place.size)
    cache.close()
    expect(_syncopate.call_known(("nothing",), (data(1, 1, seed=1),)) is None, "all are forgotten")
    dist.destroy_process_group()


if __name__ == "__main__":
    on_ranks(check)
