"""torch.ops.syncopate.* on host ranks of a gloo process group; run by test_torch.py.

    host_torch.py RANKS

Exits 1 with the first thing that is wrong.
"""

import copy
import gc
import os
import sys
from collections import Counter
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch._dynamo.testing  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from syncopate import group as groups  # noqa: E402
from syncopate.call import cache  # noqa: E402
from syncopate.torch import gloo, report, unfused  # noqa: E402
from torch.distributed import _functional_collectives as functional  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import parallelize_module  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

ops = torch.ops.syncopate


def close(actual: torch.Tensor, exact: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(
        actual.float(), exact.float(), rtol=1e-4, atol=1e-4, msg=lambda text: f"{what}: {text}"
    )


def data(*shape: int, seed: int, own: bool = True) -> torch.Tensor:
    """Of this rank, or alike on all."""
    generator = torch.Generator().manual_seed(seed + (1000 * dist.get_rank() if own else 0))
    return torch.randn(*shape, generator=generator)


def whole_gradient(made: torch.Tensor) -> torch.Tensor:
    """Torch 2.11 wants what it sends back to be contiguous."""
    if made.requires_grad:
        made.register_hook(torch.Tensor.contiguous)
    return made


def gather(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    made = whole_gradient(functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD))
    return torch.cat(made.chunk(dist.get_world_size()), dim) if dim else made


def scatter(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    return whole_gradient(functional.reduce_scatter_tensor_autograd(x, "sum", dim, dist.group.WORLD))


def exchange(x: torch.Tensor) -> torch.Tensor:
    return whole_gradient(functional.all_to_all_single_autograd(x, None, None, dist.group.WORLD))


def activated(x: torch.Tensor, name: str) -> torch.Tensor:
    return unfused.activated(x, name)


def cases(group: str, size: int):
    """(name, shapes of the operands, fused, the same of torch's own differentiable collectives)."""
    m, k, n = 16 * size, 32, 24
    yield (
        "all_gather_matmul",
        [(16, k), (k, n)],
        lambda x, w: ops.all_gather_matmul(x, w, group),
        (lambda x, w: gather(x) @ w),
    )
    yield (
        "bias, gelu",
        [(16, k), (k, n), (n,)],
        (lambda x, w, b: ops.all_gather_matmul(x, w, group, b, activation="gelu")),
        lambda x, w, b: activated(gather(x) @ w + b, "gelu"),
    )
    yield (
        "whole bias",
        [(16, k), (k, n), (m, n)],
        (lambda x, w, b: ops.all_gather_matmul(x, w, group, b)),
        lambda x, w, b: gather(x) @ w + b,
    )
    for name, sent in (("matmul_reduce_scatter", scatter), ("matmul_all_to_all", exchange)):
        yield (
            f"{name}, whole bias",
            [(m, k), (k, n), (m, n)],
            lambda x, w, b, name=name: getattr(ops, name)(x, w, group, b),
            lambda x, w, b, sent=sent: sent(x @ w + b),
        )
    yield (
        "columns",
        [(16 * size, k), (k * size, n)],
        (lambda x, w: ops.all_gather_matmul(x, w, group, axis=1)),
        lambda x, w: gather(x, 1) @ w,
    )
    yield (
        "weight of a Linear",
        [(16, k), (n, k)],
        (lambda x, w: ops.all_gather_matmul(x, w.t(), group)),
        lambda x, w: gather(x) @ w.t(),
    )
    yield (
        "two products and x",
        [(16, k), (k, n), (k, 16)],
        (lambda x, v, w: torch.cat(ops.all_gather_matmuls(x, [v, w], group, return_gathered=True), 1)),
        lambda x, v, w: torch.cat([gather(x) @ v, gather(x) @ w, gather(x)], 1),
    )
    yield (
        "two products with biases, and x",
        [(16, k), (k, n), (k, 16), (n,), (16 * size, 16)],
        (
            lambda x, v, w, b, c: torch.cat(
                ops.all_gather_matmuls(x, [v, w], group, [b, c], return_gathered=True), 1
            )
        ),
        lambda x, v, w, b, c: torch.cat([gather(x) @ v + b, gather(x) @ w + c, gather(x)], 1),
    )
    yield (
        "two products of columns with biases",
        [(16, k), (k * size, n), (k * size, 16), (n,), (16,)],
        lambda x, v, w, b, c: torch.cat(ops.all_gather_matmuls(x, [v, w], group, [b, c], axis=1), 1),
        lambda x, v, w, b, c: torch.cat([gather(x, 1) @ v + b, gather(x, 1) @ w + c], 1),
    )
    yield (
        "two products of columns, and x",
        [(16, k), (k * size, n), (k * size, 16)],
        (
            lambda x, v, w: torch.cat(
                ops.all_gather_matmuls(x, [v, w], group, return_gathered=True, axis=1), 1
            )
        ),
        lambda x, v, w: torch.cat([gather(x, 1) @ v, gather(x, 1) @ w, gather(x, 1)], 1),
    )
    yield (
        "matmul_reduce_scatter",
        [(m, k), (k, n)],
        lambda x, w: ops.matmul_reduce_scatter(x, w, group),
        (lambda x, w: scatter(x @ w)),
    )
    yield (
        "matmul_all_to_all",
        [(m, k), (k, n)],
        lambda x, w: ops.matmul_all_to_all(x, w, group),
        (lambda x, w: exchange(x @ w)),
    )
    yield (
        "all_to_all_matmul",
        [(m, k), (k, n)],
        lambda x, w: ops.all_to_all_matmul(x, w, group),
        (lambda x, w: exchange(x) @ w),
    )
    yield (
        "two products and what is exchanged",
        [(m, k), (k, n), (k, 16)],
        (lambda x, v, w: torch.cat(ops.all_to_all_matmuls(x, [v, w], group, return_exchanged=True), 1)),
        lambda x, v, w: torch.cat([exchange(x) @ v, exchange(x) @ w, exchange(x)], 1),
    )
    yield (
        "two products with biases of what is exchanged",
        [(m, k), (k, n), (k, 16), (n,), (16,)],
        lambda x, v, w, b, c: torch.cat(ops.all_to_all_matmuls(x, [v, w], group, [b, c]), 1),
        lambda x, v, w, b, c: torch.cat([exchange(x) @ v + b, exchange(x) @ w + c], 1),
    )
    yield (
        "feed_forward",
        [(16, k), (k, 40), (40, n)],
        (lambda x, v, w: ops.feed_forward(x, v, w, group, activation="silu")),
        lambda x, v, w: scatter(activated(gather(x) @ v, "silu") @ w),
    )


def check_values_and_gradients(group: str, size: int) -> None:
    """Of all operators; and nothing of them ran unfused."""
    report.clear()
    for number, (name, shapes, fused, plain) in enumerate(cases(group, size)):
        given = [data(*shape, seed=10 * number + i).requires_grad_() for i, shape in enumerate(shapes)]
        again = [t.detach().clone().requires_grad_() for t in given]
        y, exact = fused(*given), plain(*again)
        close(y, exact, name)
        g = data(*y.shape, seed=500 + number)
        y.backward(g)
        exact.backward(g)
        for i, (one, other) in enumerate(zip(given, again, strict=True)):
            close(one.grad, other.grad, f"{name}, gradient {i}")
        for wanted in range(len(given)):  # and of each alone: the others are not made
            alone = [t.detach().requires_grad_(i == wanted) for i, t in enumerate(given)]
            fused(*alone).backward(g)
            close(alone[wanted].grad, again[wanted].grad, f"{name}, gradient {wanted} alone")
    left = [key for key in sy.report().calls if key[1] != "fused"]
    expect(not left, f"not fused: {left}")


def check_functions(group: str, size: int) -> None:
    """sy.ops.* differentiates what it is asked to, and says what it cannot: no result is without its gradient."""
    m, k, n = 8 * size, 16, 8
    by = sy.ops
    cases = [
        ([(8, k), (k, n)], by.all_gather_matmul, lambda x, w: gather(x) @ w),
        (
            [(8, k), (n, k), (n,)],
            lambda x, w, b: by.all_gather_matmul(x, w.t(), bias=b, activation="gelu"),
            lambda x, w, b: activated(gather(x) @ w.t() + b, "gelu"),
        ),
        (
            [(8, k), (k * size, n)],
            lambda x, w: by.all_gather_matmul(x, w, axis=1),
            lambda x, w: gather(x, 1) @ w,
        ),
        ([(m, k), (k, n)], by.matmul_reduce_scatter, lambda x, w: scatter(x @ w)),
        ([(m, k), (k, n)], by.matmul_all_reduce, lambda x, w: gather(scatter(x @ w))),
        ([(m, k), (k, n)], by.matmul_all_to_all, lambda x, w: exchange(x @ w)),
        ([(m, k), (k, n)], by.all_to_all_matmul, lambda x, w: exchange(x) @ w),
        (
            [(8, k), (k, 24), (24, n)],
            lambda x, v, w: by.feed_forward(x, v, w, activation="relu"),
            lambda x, v, w: scatter(activated(gather(x) @ v, "relu") @ w),
        ),
    ]
    for number, (shapes, call, plain) in enumerate(cases):
        given = [data(*shape, seed=10 * number + i).requires_grad_() for i, shape in enumerate(shapes)]
        again = [t.detach().clone().requires_grad_() for t in given]
        y, exact = call(*given), plain(*again)
        close(y, exact, f"function {number}")
        y.backward(torch.ones_like(y))
        exact.backward(torch.ones_like(exact))
        for one, other in zip(given, again, strict=True):
            close(one.grad, other.grad, f"a gradient of function {number}")
        expect(call(given[0].detach(), *given[1:]).requires_grad, "of the weights alone")
        with torch.no_grad():
            expect(not call(*given).requires_grad, "none is asked for")
        expect(not call(*(t.detach() for t in given)).requires_grad, "no operand asks for one")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expect(call(*given).dtype == torch.bfloat16, "of autocast's dtype, recorded or not")
    expect_no_gradients(size)


def expect_no_gradients(size: int) -> None:
    by, x, w = sy.ops, data(8 * size, 16, seed=1).requires_grad_(), data(16, 8, seed=2).requires_grad_()
    for name, kind in by.OPERATORS.items():  # all that are made without a word about a device
        shape = (
            (1, 2, 2, 16 * size, 16)
            if name == "attention"
            else (4 * size, *[16] * (3 if name == "feed_forward" else 2))
        )
        for device in (None, "cpu", torch.device("cpu"), "host"):
            made = kind(*shape, **({} if device is None else {"device": device}))
            expect(made.group.device == "host", f"{name} on {made.group.device}")
    op, block = (
        by.MatmulAllReduce(8 * size, 8, 16, torch.float32),
        by.FeedForward(8 * size, 16, 16, 8, "fp32"),
    )
    expect(op.group.device == "host", "the device of a group without a GPU")
    out, ones = torch.empty(8 * size, 8), (torch.ones(8 * size), torch.ones(8))
    calls = {
        "x, w require a gradient, and MatmulAllReduce makes none: call sy.ops.matmul_all_reduce, which does": lambda: (
            op(x, w)
        ),
        "out requires a gradient, and MatmulAllReduce": lambda: op(
            x.detach(), w.detach(), out.clone().requires_grad_()
        ),
        "w1 requires a gradient, and FeedForward makes none: call sy.ops.feed_forward": lambda: block(
            x.detach()[:8], torch.ones(16, 16, requires_grad=True), torch.ones(16, 8)
        ),
        "matmul_all_reduce: x, w require a gradient, and out= takes no call": lambda: by.matmul_all_reduce(
            x, w, out=out
        ),
        "feed_forward: w2 requires a gradient, and out= takes no call": lambda: by.feed_forward(
            x.detach()[:8], torch.ones(16, 16), w, out=out[:8]
        ),
        "all_gather_matmul: x requires a gradient, and a product with scales has none": lambda: (
            by.all_gather_matmul(x[:8], w.detach(), scales=ones)
        ),
        "its rows, 9, must be a multiple of the ranks then; else call it under torch.no_grad()": lambda: (
            by.matmul_reduce_scatter(x[:9], w)
        ),
    }
    for said, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            expect(said in str(error), f"expected {said!r}, got {error}")
        else:
            expect(False, f"no error: {said}")
    with torch.no_grad():
        total = op(x, w, out)
    expect(total is out and not total.requires_grad, "without gradients an object takes any operand")
    op.close()
    block.close()


def check_bias_of_sums(group: str, size: int) -> None:
    """A sum over ranks has each rank's bias: one that all give alike so many times, a Linear's once by the styles."""
    x, w, b = data(4 * size, 8, seed=1), data(8, 16, seed=2), data(16, seed=3, own=False)
    total = x @ w
    dist.all_reduce(total)
    rank = dist.get_rank()
    mine, zeros = slice(4 * rank, 4 * rank + 4), torch.zeros(16)
    object_of = {name: getattr(sy.ops, name)(4 * size, 16, 8, torch.float32, bias=1) for name in
                 ("MatmulAllReduce", "MatmulReduceScatter")}  # fmt: skip
    for given, times in ((b, size), (b if rank == 0 else zeros, 1), (b / size, 1)):
        exact = total + times * b
        close(ops.matmul_all_reduce(x, w, group, given), exact, f"all-reduce, {times} times")
        close(ops.matmul_reduce_scatter(x, w, group, given), exact[mine], f"reduce-scatter, {times} times")
        close(object_of["MatmulAllReduce"](x, w, None, given), exact, f"MatmulAllReduce, {times} times")
        close(object_of["MatmulReduceScatter"](x, w, None, given), exact[mine], "MatmulReduceScatter")
    for operator in object_of.values():
        operator.close()
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    for layout, rows in ((Replicate(), slice(None)), (Shard(0), mine)):
        torch.manual_seed(5)
        linear = torch.nn.Linear(8 * size, 16)
        whole, inner = copy.deepcopy(linear), data(4 * size, 8 * size, seed=6, own=False)
        style = sy.parallel.RowwiseParallel(output_layouts=layout)
        parallelize_module(linear, mesh, style)
        report.clear()
        y = linear(inner.chunk(size, 1)[rank])
        close(y, whole(inner)[rows], f"RowwiseParallel to {layout}")
        expect(any(said == "fused" for _, said in report.current().calls), "it is fused")


def check_sharded_rows(group: str, size: int) -> None:
    """What is sharded comes back in its order, along any axis, also where ranks have different numbers of rows, and so do
    gradients; tokens and integers, too."""
    rank = dist.get_rank()
    for number, (shape, dim, how) in enumerate(
        (
            ((2, 3, 8 * size, 4), 2, {}),
            ((2, 3, 8 * size, 4), -2, {"sharding": "zigzag"}),
            ((7, 3), 0, {}),
            ((7, 3), 0, {"sharding": "zigzag"}),
            ((2, 13), 1, {"sharding": "documents", "cu_seqlens": torch.tensor([0, 4, 4, 13])}),
            ((1,), 0, {}),
        )
    ):
        whole = data(*shape, seed=number, own=False).requires_grad_()
        shard = sy.shard_rows(whole, dim=dim, **how)
        again = sy.unshard_rows(shard, dim=dim, length=shape[dim], **how)
        expect(torch.equal(again, whole), f"{shape}, {how}: another order")
        (again * torch.arange(again.numel()).view(shape)).sum().backward()
        wanted = sy.shard_rows(torch.arange(again.numel()).view(shape), dim=dim, **how)
        expect(torch.equal(sy.shard_rows(whole.grad, dim=dim, **how), size * wanted), "its gradient")
        expect(
            torch.equal(whole.grad.count_nonzero(), shard.ne(0).sum() - (wanted == 0).sum()), "of own rows"
        )
        tokens = torch.arange(whole.numel()).view(shape)
        made = sy.unshard_rows(sy.shard_rows(tokens, dim=dim, **how), dim=dim, length=shape[dim], **how)
        expect(torch.equal(made, tokens), "of integers")
    long = sy.shard_rows(torch.arange(1024), dim=0, sharding="documents", cu_seqlens=[0, 500, 1024])
    cut = long[1:][long.diff() != 1]
    expect(bool((cut % 128 == 0).all()) and 0 < len(long) < 1024, f"documents are cut at {cut.tolist()}")
    zigzag = sy.shard_rows(torch.arange(4 * size), dim=0, sharding="zigzag").tolist()
    expect(zigzag == [2 * rank, 2 * rank + 1, 4 * size - 2 * rank - 2, 4 * size - 2 * rank - 1], f"{zigzag}")
    for said, call in (
        (
            "say the length of the whole",
            lambda: sy.unshard_rows(torch.ones(9), dim=0, length=2 * size + 1),  # too many on each
        ),
        ("there is no sharding 'auto'", lambda: sy.shard_rows(torch.ones(4), dim=0, sharding="auto")),
        ("has no axis 1", lambda: sy.shard_rows(torch.ones(4), dim=1)),
    ):
        try:
            call()
        except ValueError as error:
            expect(said in str(error), f"expected {said!r}, got {error}")
        else:
            expect(False, f"no error: {said}")
    expect(sy.unshard_rows(torch.full((2,), float(rank)), dim=0)[-1] == size - 1, "of as many on each rank")


def check_all_reduce(group: str, size: int) -> None:
    """Its gradient is the sum of all ranks' unless they have it already."""
    for rows, replicated in ((8 * size, False), (8 * size + 1, False), (16, True)):
        for wanted in ((True, True, True), (True, False, False), (False, True, False), (True, False, True)):
            shapes = (rows, 32), (32, 24), (24,)
            x, w, b = (data(*s, seed=i).requires_grad_(wanted[i]) for i, s in enumerate(shapes))
            report.clear()
            y = ops.matmul_all_reduce(x, w, group, b, replicated_grad=replicated)
            total = (x @ w + b).detach()
            dist.all_reduce(total)
            close(y, total, "matmul_all_reduce")
            g = data(rows, 24, seed=3, own=not replicated)
            y.backward(g)
            if not replicated:
                dist.all_reduce(g)
            for t, exact in ((x, g @ w.t()), (w, x.t() @ g), (b, g.sum(0))):
                if t.requires_grad:
                    close(t.grad, exact, f"a gradient of {rows} rows, {replicated=}, {wanted=}")
            said = sy.report().calls
            beside = wanted[0] and not replicated  # a product of the gathered gradients
            expect(said["matmul_all_reduce", "fused"] == 1, f"{said}")
            expect(
                (said.get(("all_gather_matmul", "fused")) == 1) == (beside and rows % size == 0), f"{said}"
            )
            odd = ("matmul_all_reduce_backward", f"{size} ranks cannot share its rows evenly")
            expect((odd in said) == (beside and rows % size > 0), f"{said}")


def check_other_layouts(group: str, size: int) -> None:
    """Operands whose rows are apart, not contiguous, or at odd addresses; gradients that are expanded."""
    x, w = data(16, 64, seed=4), data(64, 48, seed=5)
    whole = unfused.gather(x, group)
    odd = torch.cat([torch.zeros(1), x.flatten()])[1:].view(16, 64)
    for what, a in (
        ("rows apart", torch.cat([x, x], 1)[:, :64]),
        ("odd", odd),
        ("columns", x.t().clone().t()),
    ):
        close(ops.all_gather_matmul(a, w, group), whole @ w, what)
    wide = torch.cat([w, w], 1)
    close(ops.all_gather_matmul(x, wide[:, :48], group), whole @ w, "a slice of w")
    close(ops.all_gather_matmul(x, torch.stack([w, w], 2)[:, :, 0], group), whole @ w, "strided w")
    leaf = x.clone().requires_grad_()
    ops.all_gather_matmul(leaf, w, group).sum().backward()
    close(leaf.grad, unfused.scatter(torch.ones(16 * size, 48) @ w.t(), group), "an expanded gradient")


def check_what_is_left(group: str, size: int) -> None:
    """What no kernel takes is right, too, and said."""
    report.clear()
    for dtype, k, n, said in (
        (torch.float64, 32, 24, "expected dtype bf16, fp16, fp32 or fp8e4m3"),
        (torch.float32, 33, 24, "K must be a multiple of 4"),
        (torch.float32, 32, 23, "N must be a multiple of 4"),
    ):
        x, w = data(16, k, seed=6).to(dtype), data(k, n, seed=7).to(dtype)
        close(ops.all_gather_matmul(x, w, group), unfused.gather(x, group) @ w, said)
        y = ops.matmul_reduce_scatter(x.repeat(size, 1), w, group)
        close(y, unfused.scatter((x @ w).repeat(size, 1), group), said)
        found = [outcome for (name, outcome), _ in sy.report().calls.items() if said in outcome]
        expect(len(found) >= 1, f"{said!r} is not said in {sy.report().calls}")
    expect("fused" not in {outcome for _, outcome in sy.report().calls}, "nothing of this is fused")
    for wrong in ((data(16, 32, seed=1), data(31, 8, seed=1)), (data(3, 4, 4, seed=1), data(4, 8, seed=1))):
        try:
            ops.all_gather_matmul(*wrong, group)
        except ValueError as error:
            expect("expected x [rows, K] and w [K, N]" in str(error), str(error))
        else:
            expect(False, "operands that do not fit are not refused")


def check_buckets(group: str, size: int) -> None:
    """Rows of different batches, and rows owned by different ranks, have the same bits for a fixed strategy."""
    w = data(96, 24, seed=8, own=False)
    x = data(40 * size, 96, seed=9, own=False)
    rank = dist.get_rank()
    with sy.deterministic(rows=256):
        report.clear()
        results = {}

        def made(whole):
            """Of all ranks' rows: of a gather, of a scatter, and of an all-reduce."""
            rows = len(whole) // size
            y = ops.all_gather_matmul(whole[rank * rows : (rank + 1) * rows], w, group)
            total = ops.matmul_reduce_scatter(whole * (rank + 1), w, group)
            return y, unfused.gather(total, group), ops.matmul_all_reduce(whole * (rank + 1), w, group)

        for rows in (8, 12, 40):
            results[rows] = made(x[: rows * size])
        other = [y.roll(-40, 0) for y in made(x.roll(40, 0))]  # each row is the next rank's
        for rows, ys in (*results.items(), (40, other)):
            for y, exact, what in zip(ys, results[40], ("gather", "scatter", "all-reduce"), strict=True):
                expect(y.abs().max() > 0, f"{what}: there is something to compare")
                expect(torch.equal(y, exact[: rows * size]), f"{what}, {rows} rows: other bits than in 40")
        left = [key for key in sy.report().calls if key[1] != "fused"]
        expect(not left, f"not fused: {left}")
        used = {key[2]: e.operator.strategy.tilings for key, e in cache.entries.items() if key[5] == 256}
        expect(len(used) >= 3 and len(set(used.values())) <= 2, f"one tiling for every M: {used}")


def check_profiler_and_compile(group: str, size: int) -> None:
    """The profiler shows ops by name; torch.compile keeps one graph for every M, and gives the same gradients."""
    x, w = data(16, 32, seed=1), data(32, 24, seed=2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        leaf = x.clone().requires_grad_()
        h = ops.all_gather_matmul(leaf, w, group)
        ops.matmul_reduce_scatter(h, w.t(), group).sum().backward()
        ops.matmul_all_reduce(x, w, group)
    times = Counter(event.name for event in profile.events() if event.name.startswith("syncopate::"))
    # A scatter's gradient is a gather, and a gather's a scatter.
    for name, count in {
        "all_gather_matmul": 1,
        "matmul_reduce_scatter": 2,
        "sent_matmul_backward": 1,
        "matmul_all_reduce": 1,
    }.items():
        expect(times[f"syncopate::{name}"] == count, f"the profiler shows {times}, not {count} {name}")

    def block(x, v, w):
        h = torch.relu(ops.all_gather_matmul(x, v, group))
        return ops.matmul_reduce_scatter(h, w, group).square().mean()

    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=graphs)
    for rows in (16, 24, 32):
        a = data(rows, 32, seed=rows)
        given = [t.requires_grad_() for t in (a.clone(), data(32, 24, seed=2), data(24, 32, seed=3))]
        again = [t.detach().clone().requires_grad_() for t in given]
        loss, eager = compiled(*given), block(*again)
        close(loss, eager, "compiled")
        loss.backward()
        eager.backward()
        for one, other in zip(given, again, strict=True):
            close(one.grad, other.grad, "a gradient of the compiled block")
    expect(graphs.frame_count == 1, f"{graphs.frame_count} graphs for three sizes of M")

    class Gather(torch.nn.Module):
        def forward(self, x, w):
            return ops.all_gather_matmul(x, w, group)

    exported = torch.export.export(
        Gather(), (x, w), dynamic_shapes=({0: torch.export.Dim("rows", min=2)}, None)
    )
    other = data(24, 32, seed=11)
    close(exported.module()(other, w), ops.all_gather_matmul(other, w, group), "exported")


def held_by_process() -> tuple[int, int]:
    """Mappings of shared memory, and open files but sockets."""
    gc.collect()
    mapped = sum("syncopate" in line for line in Path("/proc/self/maps").read_text().splitlines())
    files = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            files += not os.readlink(entry).startswith("socket:")
        except OSError:
            continue  # the folder's own
    return mapped, files


def check_teardown(group: str, size: int) -> None:
    """New groups of the same ranks, closed or only destroyed, leave nothing behind."""
    cycles = int(os.environ.get("SYNCOPATE_CYCLES", "3"))
    x, w = data(8, 16, seed=1), data(16, 8, seed=2)
    exact = ops.all_gather_matmul(x, w, group)
    before, places = cache.held(), None
    for cycle in range(cycles):
        places = held_by_process() if cycle == 2 else places
        again = dist.new_group(list(range(size)))
        close(ops.all_gather_matmul(x, w, again.group_name), exact, f"group {cycle}")
        expect(cache.held()[0] == before[0] + 1, f"cycle {cycle}: {cache.held()} operators, {before} before")
        if cycle % 2:
            sy.close(again)
        dist.destroy_process_group(again)
        del again
        cache.drop_gone()
        expect(cache.held() == before, f"cycle {cycle}: {cache.held()} are left of {before}")
    after = held_by_process()
    expect(places is not None and after[0] <= places[0], f"{after[0]} shared mappings are left of {places}")
    expect(after[1] <= places[1] + 4, f"{after[1]} open files are left of {places[1]}")
    small = cache.limit_bytes
    cache.limit_bytes = 1
    ops.all_gather_matmul(data(12, 16, seed=1), w, group)
    expect(cache.held()[0] == 1, f"beyond the limit {cache.held()} are held")
    cache.limit_bytes = small
    close(ops.all_gather_matmul(x, w, group), exact, "after it was closed to make room")


def check_attention(group: str, size: int) -> None:
    """Over a sequence that is sharded, against torch's on the whole one, with gradients of o and of lse, by the custom op,
    compiled as well, and by sy.ops. Without a word about shards they are in the order of the ranks; heads have any size."""
    rank, rows = dist.get_rank(), 32
    cases = (
        ({}, 0, 16, [(rank * rows, (rank + 1) * rows)]),
        ({"sharding": "zigzag"}, 24, 24, None),
        ({"cu_seqlens": [0, 9, 9, 40, rows * size, rows * size]}, 0, 16, None),
    )
    for options, window, d, runs in cases:
        given = [
            data(1, heads, rows * size, d, seed=60 + i, own=False).half() for i, heads in enumerate((4, 2, 2))
        ]
        whole = [t.float().requires_grad_() for t in given]
        place = torch.arange(rows * size)
        apart = place[:, None] - place[None, :]
        seen = (apart >= 0) & ((apart < window) if window else True)
        for cut in options.get("cu_seqlens", []):
            seen &= (place[:, None] >= cut) == (place[None, :] >= cut)
        scores = (whole[0] @ whole[1].repeat_interleave(2, 1).transpose(-1, -2) * d**-0.5).masked_fill(
            ~seen, float("-inf")
        )
        exact = scores.softmax(-1) @ whole[2].repeat_interleave(2, 1)
        g, of_lse = data(*exact.shape, seed=70, own=False), data(*exact.shape[:3], seed=71, own=False)
        torch.autograd.backward([exact, scores.logsumexp(-1)], [g, of_lse])

        def own(t, options=options, runs=runs):
            made = sy.shard_rows(t, dim=2, sharding=options.get("sharding", "contiguous"))
            if runs:
                expect(torch.equal(made, torch.cat([t[:, :, a:b] for a, b in runs], 2)), "contiguous rows")
            return made

        def attend(q, k, v, window=window, options=options):
            return ops.attention(q, k, v, group, causal=True, window=window, **options)

        def by_ops(q, k, v, window=window, options=options):
            return sy.ops.attention(q, k, v, causal=True, window=window, **options)

        torch._dynamo.reset()
        for call in (attend, torch.compile(attend, backend="aot_eager", fullgraph=True), by_ops):
            shards = [own(t).clone().requires_grad_() for t in given]
            o, lse = call(*shards)
            torch.testing.assert_close(o.float(), own(exact), rtol=2e-2, atol=1e-2)
            expect(lse.shape == o.shape[:3] and lse.dtype == torch.float32, f"lse {lse.shape} {lse.dtype}")
            torch.autograd.backward([o, lse], [own(g).half(), own(of_lse)])
            for one, other in zip(shards, whole, strict=True):
                torch.testing.assert_close(one.grad.float(), own(other.grad), rtol=2e-2, atol=2e-2)
    try:
        ops.attention(*[own(t).double() for t in given], group)
    except ValueError as error:
        expect("attention:" in str(error), str(error))
    else:
        expect(False, "fp64 is not refused")


def check_paths(group: str, size: int) -> None:
    """The ops of eager styles get the paths of the user's modules, as seen from the module that was called."""
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    pair = torch.nn.Sequential(torch.nn.Linear(16, 8 * size), torch.nn.ReLU(), torch.nn.Linear(8 * size, 16))
    model = torch.nn.Sequential(pair)
    plan = {
        "0": sy.parallel.ColwiseParallel(input_layouts=Shard(0)),
        "2": sy.parallel.RowwiseParallel(output_layouts=Shard(0)),
    }
    parallelize_module(pair, mesh, plan)
    given = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op.namespace == "syncopate":
                given.append(kwargs["module"])
            return op(*args, **(kwargs or {}))

    with Seen():
        model(data(4, 16, seed=80)).sum().backward()
    expect(set(given) == {"0.0", "0.2"}, f"modules of the calls: {given}")


def check_absent(group: str, size: int) -> None:
    """A rank that stays away: the error names op, chunk and module, and the next call works again."""
    x, w = data(20, 16, seed=1), data(16, 8, seed=2)
    cache.deadline = 1.0
    exact = ops.all_gather_matmul(x, w, group)
    if dist.get_rank() == 0:
        try:
            ops.all_gather_matmul(x, w, group, module="layers.0.wq")
        except RuntimeError as error:
            expect("has not arrived within 1000 ms" in str(error), str(error))
            expect("in layers.0.wq" in error.__notes__, f"notes: {error.__notes__}")
        else:
            expect(False, "the absent rank is noticed")
    else:
        (operator,) = [e.operator for k, e in cache.entries.items() if k[2] == (20 * size, 8, 16)]
        cache.forget(operator)
    dist.barrier()
    cache.deadline = 30.0
    close(ops.all_gather_matmul(x, w, group), exact, "after a fault")
    usual, groups.setup_deadline = groups.setup_deadline, 1.0
    x = data(22, 16, seed=1)
    if dist.get_rank() == 0:
        try:
            ops.all_gather_matmul(x, w, group, module="layers.0.wk")
        except RuntimeError as error:
            others = f"ranks {', '.join(map(str, range(1, size)))}" if size > 2 else "rank 1"
            said = f"syncopate.all_gather_matmul on rank 0: rank 0: {others} of {size} did not come to 'all_gather_matmul ["
            expect(said in str(error), str(error))
            expect("in layers.0.wk" in error.__notes__, f"notes: {error.__notes__}")
        else:
            expect(False, "the absent rank is noticed where an op is set up")
    dist.barrier()
    groups.setup_deadline = usual
    close(ops.all_gather_matmul(x, w, group), unfused.gather(x, group) @ w, "after a rank was absent")


def check_gathers_over_gloo(group: str, size: int) -> None:
    """What takes the place of torch's functional gather where CUDA tensors go over gloo, here for the CPU's: the same values
    and gradients, for complex numbers, too, eager and compiled."""
    given = [data(4, 3, seed=90), torch.view_as_complex(data(4, 2, seed=92))]

    def gathered(x):
        return functional.all_gather_tensor(x, 0, dist.group.WORLD) * 2

    def gradient(x):
        x = x.clone().requires_grad_()
        gather(x).square().sum().backward()
        return x.grad

    exact = [gathered(x) for x in given], gradient(given[0])
    gloo.gather_through_host("CPU")
    expect(gloo.over_gloo(group), "a group of gloo's")
    torch._dynamo.reset()
    for call in (gathered, torch.compile(gathered, backend="aot_eager", fullgraph=True)):
        for x, y in zip(given, exact[0], strict=True):
            expect(torch.equal(call(x), y), f"a gather of {x.shape} {x.dtype}")
    expect(torch.equal(gradient(given[0]), exact[1]), "its gradient")


if __name__ == "__main__":
    run_checks(globals())
