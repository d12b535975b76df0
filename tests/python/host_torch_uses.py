"""What users of torch do with the custom ops beside the plain call, on host ranks; run by test_torch.py.

    host_torch_uses.py RANKS [CHECK …]

Exits 1 with the first thing that is wrong.
"""

import copy
import functools
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from types import MethodType, SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from syncopate import _syncopate  # noqa: E402
from syncopate import group as groups  # noqa: E402
from syncopate.call import cache  # noqa: E402
from syncopate.host import language  # noqa: E402
from syncopate.torch import buckets, calls, report, unfused  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.distributed import _functional_collectives as functional  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor import parallel as torchs  # noqa: E402
from torch.distributed.tensor.parallel import parallelize_module  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

ops = torch.ops.syncopate


def close(actual: torch.Tensor, exact: torch.Tensor, what: str, within: float = 1e-4) -> None:
    torch.testing.assert_close(
        actual.float(), exact.float(), rtol=within, atol=within, msg=lambda text: f"{what}: {text}"
    )


def data(*shape: int, seed: int, own: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + (1000 * dist.get_rank() if own else 0))
    return torch.randn(*shape, generator=generator)


def refused(call, said: str) -> None:
    try:
        call()
    except ValueError as error:
        expect(said in str(error), f"expected {said!r}, got {error}")
    else:
        expect(False, f"not refused: {said}")


def all_fused() -> None:
    left = [key for key in sy.report().calls if key[1] != "fused"]
    expect(bool(sy.report().calls) and not left, f"not fused: {left} of {sy.report().calls}")


def check_broadcast_rows(group: str, size: int) -> None:
    """Operands whose rows are one row, or overlap."""
    w, row, line = data(32, 24, seed=1), data(1, 32, seed=2), data(96, seed=3)
    for x in (row.expand(16, 32), line.as_strided((16, 32), (4, 1))):
        close(ops.all_gather_matmul(x, w, group), unfused.gather(x, group) @ w, f"strides {x.stride()}")
    x, wide = data(16, 32, seed=4), data(1, 24, seed=5).expand(32, 24)
    close(ops.all_gather_matmul(x, wide, group), unfused.gather(x, group) @ wide, "an expanded weight")
    tall = data(32, 1, seed=6).expand(32, 24)
    close(ops.all_gather_matmul(x, tall, group), unfused.gather(x, group) @ tall, "the other way")


def check_no_rows(group: str, size: int) -> None:
    """A batch without rows gives one, and gradients of zeros."""
    x, w = torch.empty(0, 32, requires_grad=True), data(32, 24, seed=1).requires_grad_()
    for name in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce", "matmul_all_to_all"):
        y = getattr(ops, name)(x, w, group)
        expect(y.shape == (0, 24), f"{name}: {y.shape}")
        y.sum().backward()
        expect(x.grad.shape == (0, 32) and not w.grad.any(), f"{name}: gradients")
    for shape in ((0, 2, 8, 16), (1, 2, 0, 16)):
        q = torch.empty(shape, dtype=torch.bfloat16, requires_grad=True)
        o, lse = ops.attention(q, q, q, group, causal=True)
        expect(o.shape == shape and lse.shape == shape[:3], f"attention: {o.shape}, {lse.shape}")
        (o.sum() + lse.sum()).backward()
        expect(q.grad.shape == shape, "attention: gradients")


def check_rows_that_cannot_be_shared(group: str, size: int) -> None:
    x, w = data(8 * size + 1, 32, seed=1), data(32, 24, seed=2)
    for name in ("matmul_reduce_scatter", "matmul_all_to_all", "all_to_all_matmul"):
        refused(lambda name=name: getattr(ops, name)(x, w, group), f"rows that {size} ranks can share")
    close(ops.all_gather_matmul(x, w, group), unfused.gather(x, group) @ w, "an odd number of rows")


def check_wrong_operands(group: str, size: int) -> None:
    """They are refused before anything is sent, eager and compiled: nothing is guessed."""
    x, w, b = data(8, 32, seed=1), data(32, 24, seed=2), data(24, seed=3)
    gather, reduce = ops.all_gather_matmul, ops.matmul_all_reduce
    for call, said in (
        (lambda: gather(x, w.half(), group), "operands of one dtype"),
        (lambda: gather(x, w, group, b.half()), "operands of one dtype"),
        (lambda: reduce(x, w, group, b[:1]), "a bias [N]"),
        (lambda: reduce(x, w, group, b.expand(7, 24)), "a bias [N] or [8, N]"),
        (lambda: gather(x, w, group, b.expand(8, 24)), f"a bias [N] or [{8 * size}, N]"),
        (lambda: gather(x, w, group, activation="tanh"), "activation"),
        (lambda: gather(x, w, group, axis=-1), "axis: expected 0 (rows) or 1 (columns), got -1"),
        (lambda: ops.all_gather_matmuls(x, [], group), "at least one w"),
        (
            lambda: ops.all_gather_matmuls(x, [w, w], group, [b]),
            "expected one for each of 2 w, or None",
        ),
        (lambda: ops.all_gather_matmuls(x, [w, w], group, []), "or None, got 0"),
        (lambda: ops.all_to_all_matmuls(x, [w, w], group, []), "or None, got 0"),
        (lambda: ops.feed_forward(x, w, w.t(), group, activation="tanh"), "activation"),
        (lambda: gather(x[None], w, group), "x [rows, K] and w [K, N]"),
    ):
        refused(call, said)
        torch._dynamo.reset()
        try:
            torch.compile(call, backend="aot_eager", fullgraph=True)()
        except RuntimeError as error:
            expect("got ValueError(" in str(error) and said in str(error), f"compiled: {error}")
        else:
            expect(False, f"compiled: not refused: {said}")


def check_shapes_alone(group: str, size: int) -> None:
    """Operands that a call refuses are refused where it is traced, too, and where one of them lies on the device meta, of which no
    result is one."""
    x, ids, weights = data(4, 16, seed=1), torch.zeros(4, 2, dtype=torch.int64), torch.ones(4, 2)
    w1, w2 = data(1, 16, 32, seed=2), data(1, 16, 16, seed=3)
    asking = x.clone().requires_grad_()
    q, k, wide = (data(1, h, 8, d, seed=4).bfloat16() for h, d in ((4, 16), (2, 16), (2, 8)))
    # fmt: off
    for op, given, options, said in (
        (ops.moe, (x, ids, weights, w1.to("meta"), w2), {}, "w1: expected it on cpu"),
        (ops.moe, (asking, ids, weights, w1, w2.to("meta")), {}, "w2: expected it on cpu"),
        (ops.moe, (x, ids, weights, w1[:, :8], w2), {}, "w1: expected shape [1, 16, 32]"),
        (ops.moe, (asking, ids, weights, w1, w2[:, :, 1:]), {}, "w2: expected shape [1, 16, 16]"),
        (ops.moe, (x, ids, weights[:3], w1, w2), {}, "topk_weights: expected shape [4, 2]"),
        (ops.moe, (x, ids.float(), weights, w1, w2), {}, "topk_ids: expected dtype"),
        (ops.moe, (x, ids, weights, w1.half(), w2), {}, "w1: expected dtype torch.float32"),
        (ops.moe, (x, ids, weights, w1, w2), {"activation": "tanh"}, "activation: expected one of"),
        (ops.moe, (x, ids, weights, w1, w2), {"over": "none"}, "over: expected"),
        (ops.moe, (x, ids, weights, w1, w2), {"bound": -1}, "bound: expected"),
        (ops.attention, (q, k.to("meta"), k), {}, "k: expected a tensor on cpu"),
        (ops.attention, (q, wide, wide), {}, "k: expected shape [1, 2, 8, 16], got [1, 2, 8, 8]"),
        (ops.attention, (q, k.half(), k), {}, "k: expected dtype torch.bfloat16"),
        (ops.attention, (q[:, :3], k, k), {}, "H must be a multiple of HKV"),
        (ops.attention, (q.float(), k.float(), k.float()), {}, "expected dtype bf16 or fp16"),
    ):
        # fmt: on
        refused(lambda op=op, given=given, options=options: op(*given, group, **options), said)
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(one) for one in given]
            refused(lambda op=op, fakes=fakes, options=options: op(*fakes, group, **options), f"{said}")


def check_ranks_that_differ(group: str, size: int) -> None:
    """Other rows, dtypes or ops on some ranks: an error on all of them, and the next call works."""
    rank = dist.get_rank()
    x, w = data(8 + 4 * rank, 32, seed=1), data(32, 24, seed=2)
    for name in ("all_gather_matmul", "matmul_all_reduce"):
        refused(lambda name=name: getattr(ops, name)(x, w, group), "the ranks' calls differ: rank 0: ")
    kind = torch.float64 if rank else torch.float32
    refused(
        lambda: ops.all_gather_matmul(x[:4].to(kind), w.to(kind), group),
        f"rank {size - 1}: all_gather_matmul",
    )
    op = ops.matmul_all_reduce if rank else ops.matmul_reduce_scatter
    refused(lambda: op(data(4 * size, 32, seed=3), w, group), "rank 1: matmul_all_reduce")
    x = data(20, 32, seed=4)
    turned = w.t().contiguous().t()
    for call in (
        lambda w: ops.all_gather_matmul(x, w, group),
        lambda w: sy.ops.all_gather_matmul(x, w, strategy=sy.Strategy(kernel="plain")),
    ):
        refused(lambda call=call: call(turned if rank else w), "'w_transposed': True")
        for given in (w, turned):
            close(call(given), unfused.gather(x, group) @ w, "the next call")


def check_ranks_that_differ_in_what_is_known(group: str, size: int) -> None:
    """The same where some ranks have set up what they call, or all have: named at once, with each rank's call, and the next
    call works. The other ranks wait for longer than a test may last."""
    rank, usual = dist.get_rank(), cache.deadline
    cache.deadline = 3600.0
    x, w, b = data(9, 32, seed=1), data(32, 24, seed=2), data(24, seed=3)
    exact = unfused.gather(x, group) @ w
    gather, small = ops.all_gather_matmul, data(3 * size, 32, seed=4)
    known = f"all_gather_matmul [{9 * size}, 24, 32] torch.float32"

    def differ(call, *said: str) -> None:
        try:
            call()
        except ValueError as error:
            missing = [text for text in ("the ranks' calls differ: ", *said) if text not in str(error)]
            expect(not missing, f"{missing} in {error}")
        else:
            expect(False, "no error")
        dist.barrier()  # the others may not have seen it yet
        close(gather(x, w, group), exact, "the next call")

    close(gather(x, w, group), exact, "known")
    new = f"rank 0: all_gather_matmul [{22 * size}, 24, 32]"
    differ(lambda: gather(data(22, 32, seed=1) if rank == 0 else x, w, group), new, f"rank 1 calls {known}")
    differ(
        lambda: gather(x, w, group, None if rank else b), "rank 0: all_gather_matmul", f"rank 1 calls {known}"
    )
    gather(x, w, group, b)
    differ(
        lambda: gather(x, w, group, None if rank else b),
        f"rank 0 calls {known} {{'bias': 1",
        f"rank 1 calls {known}",
    )
    gather(x, w, group, activation="relu")
    differ(lambda: gather(x, w, group, activation="relu" if rank else ""), "'activation': 'relu'")
    differ(
        lambda: ops.matmul_all_reduce(small, w, group) if rank else gather(x, w, group),
        "rank 1: matmul_all_reduce",
    )
    ops.matmul_all_reduce(small, w, group)
    differ(
        lambda: ops.matmul_all_reduce(small, w, group) if rank else gather(x, w, group),
        "rank 1 calls matmul_all_reduce",
    )
    cache.deadline = usual


def check_without_gradients(group: str, size: int) -> None:
    x, w = data(8, 32, seed=1).requires_grad_(), data(32, 24, seed=2)
    exact = unfused.gather(x.detach(), group) @ w
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            y = ops.all_gather_matmul(x, w, group)
        expect(not y.requires_grad, f"{mode.__name__}: it requires gradients")
        close(y, exact, mode.__name__)


def check_autocast(group: str, size: int) -> None:
    """As torch.mm: operands of mixed dtypes are cast, results are of autocast's dtype, gradients of the leaves'."""
    report.clear()
    for compiled in (False, True):
        torch._dynamo.reset()
        x, w = data(8, 32, seed=1).requires_grad_(), data(32, 24, seed=2).requires_grad_()
        b = data(24, seed=3).requires_grad_()

        def call(x, w, b):
            h = ops.all_gather_matmul(x, w, group, b)
            return h, ops.matmul_reduce_scatter(h, w.t(), group), ops.all_gather_matmuls(x, [w, w], group)[1]

        function = torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call
        with torch.autocast("cpu", torch.bfloat16):
            made = function(x, w, b)
        expect(all(y.dtype == torch.bfloat16 for y in made), f"{[y.dtype for y in made]}")
        close(made[0], unfused.gather(x.detach(), group) @ w.detach() + b.detach(), "autocast", 0.2)
        sum(y.float().sum() for y in made).backward()
        expect({t.grad.dtype for t in (x, w, b)} == {torch.float32}, "gradients of the leaves' dtype")
        with torch.autocast("cpu", enabled=False):
            expect(ops.all_gather_matmul(x, w, group).dtype == torch.float32, "where it is not enabled")
    all_fused()
    x, experts = data(8, 16, seed=4), [data(1, 16, 32, seed=5), data(1, 16, 16, seed=6)]
    ids, weights = torch.arange(8).reshape(8, 1) % size, torch.full((8, 1), 0.3)
    right = ops.moe(x, ids, weights, *experts, group)
    with torch.autocast("cpu", torch.bfloat16):
        for given in (x, x.bfloat16()):
            y = ops.moe(given, ids, weights, *experts, group)
            expect(y.dtype == torch.bfloat16, f"a mixture under autocast: {y.dtype}")
            close(y.float(), right, "a mixture under autocast", 0.1)


def check_export_and_load(group: str, size: int) -> None:
    """What is exported, saved and loaded runs for any number of rows."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(data(32, 24, seed=1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ops.matmul_reduce_scatter(
                ops.all_gather_matmul(x, self.w, group).relu(), self.w.t(), group
            )

    model, file = Model(), io.BytesIO()
    dynamic = ({0: torch.export.Dim("rows", min=2, max=64)},)
    torch.export.save(torch.export.export(model, (data(8, 32, seed=2),), dynamic_shapes=dynamic), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for rows in (8, 12):
        close(loaded(data(rows, 32, seed=3)), model(data(rows, 32, seed=3)), f"{rows} rows")


def check_moved_after_compiling(group: str, size: int) -> None:
    """A model of another dtype, and other weights, after it was compiled."""
    model = nn.Linear(32, 24)
    compiled = torch.compile(
        lambda x: ops.all_gather_matmul(x, model.weight.t(), group, model.bias),
        backend="aot_eager",
        fullgraph=True,
    )
    x = data(8, 32, seed=1)
    for change in (
        lambda: None,
        lambda: model.weight.data.mul_(2),
        lambda: model.bfloat16(),
        lambda: model.double(),
    ):
        change()
        given = x.to(model.weight.dtype)
        exact = nn.functional.linear(unfused.gather(given, group), model.weight, model.bias)
        close(
            compiled(given), exact, f"{model.weight.dtype}", 5e-2 if given.dtype == torch.bfloat16 else 1e-4
        )


def check_one_rank(group: str, size: int) -> None:
    """A group of one: the product alone, and it is said."""
    alone = [dist.new_group([rank]) for rank in range(size)][dist.get_rank()]
    name = alone.group_name
    report.clear()
    x, w = data(8, 32, seed=1).requires_grad_(), data(32, 24, seed=2)
    for op in (
        ops.all_gather_matmul,
        ops.matmul_reduce_scatter,
        ops.matmul_all_reduce,
        ops.matmul_all_to_all,
    ):
        y = op(x, w, name)
        close(y, x @ w, f"{op}")
        y.sum().backward()
    said = {outcome for _, outcome in sy.report().calls}
    expect(said == {"one rank: there is nothing to overlap"}, f"{said}")
    with sy.symm_mem.override() as ours:
        (y,) = torch.ops.symm_mem.fused_all_gather_matmul(x.detach(), [w], 0, name, return_A=False)[1]
        close(y, x.detach() @ w, "in torch's slot")
    expect(ours.passed_on.total() == 1, f"{ours}")
    dist.barrier()
    dist.destroy_process_group(alone)


def check_recomputation(group: str, size: int) -> None:
    """Activations that are made again in backward, and gradients that are summed over several calls."""
    x, w = data(8, 32, seed=1).requires_grad_(), data(32, 32, seed=2).requires_grad_()

    def block(x):
        h = ops.all_gather_matmul(x, w, group, activation="silu")
        return ops.matmul_reduce_scatter(h, w.t(), group)

    def several(x):
        one, two, whole = ops.all_gather_matmuls(x, [w, w], group, return_gathered=True)
        return ops.all_to_all_matmuls(one * two + whole, [w, w], group)[1][:8]

    for forward in (block, several):
        grads = []
        for call in (forward, functools.partial(checkpoint, forward, use_reentrant=False)):
            x.grad = w.grad = None
            for _ in range(2):
                call(call(x)).square().sum().backward()
            grads.append((x.grad, w.grad))
        for one, other in zip(*grads, strict=True):
            expect(torch.equal(one, other), "recomputed activations give other gradients")


def check_second_derivatives(group: str, size: int) -> None:
    """Those of all_gather_matmul are right; the other ops say that they have none."""
    torch.manual_seed(1)
    w = data(16, 24, seed=2, own=False)
    whole = data(8 * size, 16, seed=3, own=False)
    plain, gw = whole.clone().requires_grad_(), w.clone().requires_grad_()
    own = plain.chunk(size)[dist.get_rank()].detach().clone().requires_grad_()
    ow = w.clone().requires_grad_()
    for x, v, y in (
        (plain, gw, lambda: size * (plain @ gw).pow(3).sum()),  # every rank has the same loss
        (own, ow, lambda: ops.all_gather_matmul(own, ow, group).pow(3).sum()),
    ):
        (gradient,) = torch.autograd.grad(y(), x, create_graph=True)
        gradient.square().sum().backward()
        expect(v.grad is not None, "the gradient of the gradient")
    close(own.grad, plain.grad.chunk(size)[dist.get_rank()], "of x", 1e-2)
    plain = ("matmul_reduce_scatter", "matmul_all_reduce", "matmul_all_to_all", "all_to_all_matmul")
    calls = {name: lambda x, v, name=name: getattr(ops, name)(x, v, group) for name in plain}
    calls["all_gather_matmuls"] = lambda x, v: torch.cat(ops.all_gather_matmuls(x, [v, v], group), 1)
    calls["feed_forward"] = lambda x, v: ops.feed_forward(x, v, w.t(), group, activation="silu")
    for name, call in calls.items():
        for loss in (
            lambda y: y.square().sum(),
            torch.sum,
        ):  # of a sum, the gradient that comes is a constant
            x, v = data(8 * size, 16, seed=4).requires_grad_(), w.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(call(x, v)), x, create_graph=True)
            try:
                (gradient.square().sum() + v.sum()).backward()
            except RuntimeError as error:
                expect(f"syncopate.{name} has no second derivatives" in str(error), str(error))
            else:
                expect(False, f"{name}: its second derivative is silently wrong")


def check_copies_of_a_model(group: str, size: int) -> None:
    """A copy of a model of our styles, such as an average of weights, uses its own weights."""
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8 * size), nn.ReLU(), nn.Linear(8 * size, 16))
    plan = {
        "0": sy.parallel.ColwiseParallel(input_layouts=Shard(0)),
        "2": sy.parallel.RowwiseParallel(output_layouts=Shard(0)),
    }
    parallelize_module(model, mesh, plan)
    x = data(4, 16, seed=1)
    exact = model(x)
    other = copy.deepcopy(model)
    close(other(x), exact, "the copy")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    expect(not other(x).any(), "the copy reads the weights of the original")
    close(model(x), exact, "the original")


def check_linears_with_a_forward_of_their_own(group: str, size: int) -> None:
    """A subclass of Linear, or a forward that was set, is called as torch's styles call it."""
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")

    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    def made(kind: type) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(kind(16, 8 * size), kind(8 * size, 16))

    def given(layout: str) -> dict:
        columns, rows = {"input_layouts": Shard(0)}, {"output_layouts": Shard(0)}
        styles = torchs if layout == "torch" else sy.parallel
        return {"0": styles.ColwiseParallel(**columns), "1": styles.RowwiseParallel(**rows)}

    x = data(4, 16, seed=1)
    for own in (False, True):
        results = []
        for layout in ("torch", "ours"):
            model = made(nn.Linear if own else Doubled)
            if own:
                for linear in model:
                    linear.forward = MethodType(lambda self, x: 3 * nn.Linear.forward(self, x), linear)
            results.append(parallelize_module(model, mesh, given(layout))(x))
        close(results[1], results[0], f"a forward of its own, {'set' if own else 'of a subclass'}")


def check_infinite_bias(group: str, size: int) -> None:
    """Ranks add shares of a bias; an infinite one stays what it is, and its gradient is that of the whole."""
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    linear = nn.Linear(8 * size, 16)
    with torch.no_grad():
        linear.bias[3] = float("-inf")
    exact, count = linear.bias.detach().clone(), 4 * size
    style = sy.parallel.RowwiseParallel(output_layouts=Shard(0))
    y = parallelize_module(linear, mesh, style)(torch.zeros(count, 8))
    expect(torch.equal(y, exact.expand(4, 16)), f"of a bias with -inf came {y[0].tolist()}")
    y.sum().backward()
    gradient = linear.bias.grad
    gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    expect(bool((gradient == count).all()), f"the bias has the gradient {gradient.tolist()}, not {count}")


def check_interrupted(group: str, size: int) -> None:
    """One rank leaves a call on an interrupt: the others learn of it, and all set the next call up anew."""

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    x, w = data(8, 32, seed=1), data(32, 24, seed=2, own=False)
    last = dist.get_rank() == size - 1
    for call in (lambda: ops.all_gather_matmul(x, w, group), lambda: sy.ops.all_gather_matmul(x, w)):
        right = call()
        dist.barrier()
        sleep = language.time.sleep
        try:
            if last:
                language.time = SimpleNamespace(sleep=interrupted)
            else:
                sleep(0.5)
            call()
            expect(False, "it was not interrupted")
        except (KeyboardInterrupt, _syncopate.MachineError) as error:
            expect(isinstance(error, KeyboardInterrupt) == last, repr(error))
        finally:
            language.time = time
        dist.barrier()
        close(call(), right, "after the interrupt")


def check_two_threads(group: str, size: int) -> None:
    """The first calls of two threads, each with a group of its own: a kernel that one imports is not taken half imported."""
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    x, w, wrong = data(4, 16, seed=1), data(16, 24, seed=2, own=False), []
    exact = functional.all_gather_tensor(x, 0, dist.group.WORLD) @ w

    def call(one) -> None:
        try:
            for _ in range(3):
                close(ops.all_gather_matmul(x, w, one.group_name), exact, "in a thread")
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    threads = [Thread(target=call, args=(one,)) for one in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(not wrong, "; ".join(wrong))


def check_three_axes(group: str, size: int) -> None:
    """Activations [batch, rows, columns], not contiguous, through the styles."""
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    torch.manual_seed(0)
    linear = nn.Linear(16, 8 * size)
    weight = linear.weight.detach().chunk(size)[dist.get_rank()]
    bias = linear.bias.detach().chunk(size)[dist.get_rank()]
    parallelize_module(linear, mesh, sy.parallel.ColwiseParallel(input_layouts=Shard(1)))
    report.clear()
    x = data(3, 16, 4, seed=1).transpose(1, 2)  # rows of no unit stride
    whole = torch.cat(unfused.gather(x.contiguous(), group).chunk(size), 1)
    close(linear(x), nn.functional.linear(whole, weight, bias), "three axes")
    all_fused()


def check_ops_behind_a_graph_break(group: str, size: int) -> None:
    """Dynamo does not compile what an op runs by itself."""
    x, w = data(8 * size, 16, seed=1), data(16, 8, seed=2)

    def broken(x):
        try:
            torch._dynamo.graph_break()
            return ops.matmul_reduce_scatter(x, w, group)
        finally:
            pass

    torch._dynamo.reset()
    close(
        torch.compile(broken, backend="aot_eager")(x), unfused.scatter(x @ w, group), "behind a graph break"
    )


def check_deterministic_and_compiled(group: str, size: int) -> None:
    """The mode holds around a compiled function; within one it would only while that is traced, and is refused."""
    x, w = data(8 * size, 16, seed=1), data(16, 8, seed=2)
    modes, look_up = [], calls.look_up

    def looked_up(*args, **options):
        modes.append(buckets.generation())
        return look_up(*args, **options)

    def plain(x):
        return ops.matmul_reduce_scatter(x, w, group)

    def within(x):
        with sy.deterministic(rows=64):
            return ops.matmul_reduce_scatter(x, w, group)

    calls.look_up = looked_up
    sy._syncopate.bypass_recipes(1)  # so that each call looks it up in Python
    torch._dynamo.reset()
    with sy.deterministic(rows=64):
        torch.compile(plain, backend="aot_eager", fullgraph=True)(x)
    torch.compile(within, backend="aot_eager")(x)  # runs as it is
    torch._dynamo.reset()
    try:
        torch.compile(within, backend="aot_eager", fullgraph=True)(x)
    except torch._dynamo.exc.Unsupported as error:
        expect("sy.deterministic within a compiled function" in str(error), str(error))
    else:
        expect(False, "it is not refused")
    finally:
        calls.look_up = look_up
        sy._syncopate.bypass_recipes(-1)
    expect(modes == [64, 64] and buckets.generation() == 0, f"modes of the calls: {modes}")


def check_groups_of_the_same_ranks(group: str, size: int) -> None:
    """Which of two groups a rank uses first is its own affair."""
    usual, groups.setup_deadline = groups.setup_deadline, 10.0
    pair = [dist.new_group(list(range(size))) for _ in range(2)]
    x, w = data(8, 16, seed=1), data(16, 8, seed=2)
    exact = unfused.gather(x, group) @ w
    for one in pair if dist.get_rank() == 0 else reversed(pair):
        calls.group_of(one.group_name, "cpu")
    for one in pair:
        close(ops.all_gather_matmul(x, w, one.group_name), exact, one.group_name)
        sy.close(one)
    for one in pair:
        dist.destroy_process_group(one)
    groups.setup_deadline = usual


def check_complex_numbers(group: str, size: int) -> None:
    x, w = (torch.view_as_complex(data(*shape, 2, seed=1)) for shape in ((8, 16), (16, 8)))
    report.clear()
    y, exact = ops.all_gather_matmul(x, w, group), unfused.gather(x, group) @ w
    expect(torch.allclose(y, exact), "complex numbers")
    (reason,) = (outcome for _, outcome in sy.report().calls)
    expect(reason == "expected dtype bf16, fp16, fp32 or fp8e4m3, got torch.complex64", reason)


def check_reasons_are_one_line(group: str, size: int) -> None:
    """Also where the store fails, whose error comes through C++ with its traceback."""
    x, w = data(26, 16, seed=1), data(16, 8, seed=2)
    own = calls.group_of(group, "cpu")

    def absent(*_):
        raise RuntimeError("nobody\nis there")

    rendezvous = _syncopate.CallbackRendezvous(own.rank, size, lambda *_: None, absent)
    usual, own.rendezvous = own.rendezvous, rendezvous
    reason = ""
    try:
        ops.all_gather_matmul(x, w, group)
    except RuntimeError as error:
        reason = str(error)
    finally:
        own.rendezvous = usual
    expect("RuntimeError: nobody" in reason and "\n" not in reason and "Traceback" not in reason, reason)


def check_uneven_shards_of_rows(group: str, size: int) -> None:
    """Rows that the ranks cannot share evenly go torch's own way."""
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    made = []
    for styles in (torchs, sy.parallel):
        torch.manual_seed(0)
        pair = nn.Sequential(nn.Linear(16, 4 * size), nn.Linear(4 * size, 16))
        plan = {"0": styles.ColwiseParallel(), "1": styles.RowwiseParallel(output_layouts=Shard(1))}
        made.append(parallelize_module(pair, mesh, plan)(data(2, 2 * size + 1, 16, seed=1, own=False)))
    close(made[1], made[0], "an odd number of rows")
    rows = distribute_tensor(data(2 * size + 1, 16, seed=1, own=False), mesh, [Shard(0)])
    made = []
    for styles in (torchs, sy.parallel):  # columns, and rows that come, of other sizes on other ranks
        torch.manual_seed(0)
        pair = nn.Sequential(nn.Linear(16, 4 * size + 1), nn.Linear(4 * size + 1, 16))
        columns = styles.ColwiseParallel(input_layouts=Shard(0), use_local_output=False)
        parallelize_module(pair, mesh, {"0": columns, "1": styles.RowwiseParallel()})
        made.append((pair(rows), pair(data(8, 16, seed=1))))
    for one, other in zip(*made, strict=True):
        close(one, other, "columns and rows of other sizes")
    pair = nn.Sequential(nn.Linear(16, 4 * size), nn.Linear(4 * size, 16))
    styles = sy.parallel
    plan = {
        "0": styles.ColwiseParallel(input_layouts=Shard(1)),
        "1": styles.RowwiseParallel(output_layouts=Shard(1)),
    }
    y = parallelize_module(pair, mesh, plan)(torch.zeros(0, 4, 16))
    expect(y.shape == (0, 4, 16), f"no rows are {list(y.shape)}")


def check_shared_input(group: str, size: int) -> None:
    """Products that wait for their Linear are made anew where x, a weight or the mode of gradients has changed."""
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(16, 8 * size) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.q(x) + self.k(x) * self.v(x)

    plain, heads = Heads(), Heads()
    heads.load_state_dict(plain.state_dict())
    columns = dict.fromkeys("qkv", sy.parallel.ColwiseParallel(input_layouts=Shard(0)))
    for model in (plain, heads):
        torch.manual_seed(0)
        parallelize_module(model, mesh, columns)
    parallelize_module(heads, mesh, sy.parallel.SharedInput("q", "k", "v"))
    x = data(8, 16, seed=1)
    exact = plain(x)
    close(heads(x), exact, "one gather for three")
    close(heads.q(input=x), plain.q(x), "x by its name")
    torch._dynamo.reset()
    close(torch.compile(heads, backend="aot_eager", fullgraph=True)(x), exact, "compiled")
    with torch.inference_mode():
        close(heads(x.clone()), exact, "in inference mode")
    heads.q(x)
    with torch.autocast("cpu", torch.bfloat16):
        kinds = {linear(x).dtype for linear in (heads.k, heads.v)}
    expect(kinds == {torch.bfloat16}, f"under autocast {kinds}")
    heads.q(x)
    with torch.no_grad():
        for model in (plain, heads):
            model.k.weight.mul_(2)
            model.v.bias.to_local().mul_(3)
    close(heads.k(x), plain.k(x), "another weight")
    heads.q(x)
    with torch.no_grad():
        x.mul_(2)
    close(heads.v(x), plain.v(x), "another x")
    with torch.no_grad():
        heads.q(x)
    expect(heads.k(x).requires_grad, "the product was made without gradients")
    heads.q(x)
    close(copy.deepcopy(heads)(x), plain(x), "a copy while products wait")
    for model in (plain, heads):
        torch.manual_seed(1)
        model.k = parallelize_module(nn.Linear(16, 8 * size, bias=False), mesh, columns["k"])
    parallelize_module(heads, mesh, sy.parallel.SharedInput("q", "k", "v"))
    close(heads(x), plain(x), "one of three without a bias")
    unstyled = nn.ModuleDict({"a": nn.Linear(16, 8 * size), "b": nn.Linear(16, 8 * size)})
    parallelize_module(unstyled, mesh, {"a": sy.parallel.ColwiseParallel(input_layouts=Shard(0))})
    parallelize_module(unstyled, mesh, sy.parallel.SharedInput("a", "b"))
    refused(lambda: unstyled["a"](x), "has no ColwiseParallel style")


def check_groups_of_dry_runs(group: str, size: int) -> None:
    """Ops and graphs on torch's fake backend, whose other ranks do not exist, are the unfused pair."""
    code = (
        "import torch, torch.distributed as dist, syncopate as sy\n"
        "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        "dist.init_process_group('fake', store=FakeStore(), rank=0, world_size=4)\n"
        "name, x, w = dist.group.WORLD.group_name, torch.randn(8, 16), torch.randn(16, 24)\n"
        "print(torch.ops.syncopate.all_gather_matmul(x, w, name).shape[0])\n"
        "from torch.distributed import _functional_collectives as f\n"
        "sy.inductor.enable()\n"
        "print(torch.compile(lambda x: f.all_gather_tensor(x, 0, dist.group.WORLD) @ w)(x).shape[0])\n"
        "print(sy.inductor.report())\n"
    )
    if dist.get_rank() == 0:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        )
        out = done.stdout
        expect(done.returncode == 0, done.stderr[-2000:])
        expect(out.startswith("32\n32\n") and "the group's backend is fake" in out, out)


if __name__ == "__main__":
    run_checks(globals(), go_on=True)  # what is wrong is wrong on all ranks
