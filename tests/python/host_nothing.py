"""Calls with an extent of 0, and with what is no tensor of this rank's, on host ranks; run by test_nothing.py.

    host_nothing.py RANKS [CHECK…]

Exits 1 with the first thing that is wrong.
"""

import os
import sys
from functools import partial
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402

PRODUCTS = (
    "all_gather_matmul",
    "matmul_reduce_scatter",
    "matmul_all_reduce",
    "matmul_all_to_all",
    "all_to_all_matmul",
)


def zeros(y: torch.Tensor, shape: tuple[int, ...], what: str, dtype: torch.dtype = torch.float32) -> None:
    expect(tuple(y.shape) == shape and y.dtype == dtype and not y.any(), f"{what}: {y.dtype} {list(y.shape)}")


def check_rows_of_nothing(*_: object) -> None:
    shard = sy.shard_rows(torch.randn(0, 4), dim=0)
    expect(sy.unshard_rows(shard, dim=0).shape == (0, 4), "no rows, put together")


def check_products(_name: str, size: int) -> None:
    """Results are torch's, and so are gradients; no two calls wait for each other."""
    for name in PRODUCTS:
        function = getattr(sy.ops, name)
        rows = {"all_gather_matmul": 8 * size, "matmul_reduce_scatter": 8 // size}.get(name, 8)
        for m, n, k in ((0, 48, 32), (8, 0, 32), (8, 48, 0), (0, 0, 0)):
            shape = (rows if m else 0, n)
            for w in (torch.ones(k, n), torch.ones(n, k).t()):
                for _ in range(2):
                    zeros(function(torch.ones(m, k), w), shape, f"{name} {m, n, k}")
            out = torch.ones(shape)
            expect(function(torch.ones(m, k), torch.ones(k, n), out=out) is out, f"{name}: out")
            zeros(out, shape, f"{name} {m, n, k}, out")
            zeros(function(torch.ones(m, k).half(), torch.ones(k, n).half()), shape, name, torch.float16)
        w = torch.ones(32, 48, requires_grad=True)
        function(torch.ones(0, 32), w).sum().backward()
        zeros(w.grad, (32, 48), f"{name}, gradient")
        right = function(torch.ones(8, 32), torch.ones(32, 48))  # others go on
        expect(right.shape == (rows, 48) and bool(right.any()), name)
        for given, said in (
            ((torch.ones(0, 32), torch.ones(32, 48).half()), "w: expected torch.float32"),
            ((torch.ones(0, 32), torch.ones(16, 48)), "expected x [rows, K] and w [K, N]"),
        ):
            refused(name, partial(function, *given), ValueError, said)
        refused(
            name,
            partial(function, torch.ones(0, 32), torch.ones(32, 48), out=torch.ones(1, 48)),
            ValueError,
            "out: expected shape",
        )
    y = sy.ops.all_gather_matmul(torch.ones(2, 0), torch.ones(0, 4), bias=-torch.ones(4), activation="relu")
    zeros(y, (2 * size, 4), "relu of a bias")
    y = sy.ops.all_gather_matmul(torch.ones(2, 0), torch.ones(0, 4), bias=torch.ones(4))
    expect(torch.equal(y, torch.ones(2 * size, 4)), "the bias alone")
    zeros(sy.ops.all_gather_matmul(torch.ones(0, 16), torch.ones(16 * size, 4), axis=1), (0, 4), "columns")


def check_others(_name: str, size: int) -> None:
    zeros(
        sy.ops.feed_forward(torch.ones(0, 32), torch.ones(32, 48), torch.ones(48, 16)),
        (0, 16),
        "feed_forward",
    )
    zeros(
        sy.ops.feed_forward(torch.ones(4, 32), torch.ones(32, 0), torch.ones(0, 16)), (4, 16), "feed_forward"
    )
    q = torch.ones(1, 2, 8, 16, dtype=torch.bfloat16)
    for given in (q[:, :, :0], q[:0], q[:, :0]):
        o, lse = sy.ops.attention(given, given, given, causal=True)
        zeros(o, tuple(given.shape), "attention", torch.bfloat16)
        zeros(lse, tuple(given.shape[:3]), "lse")
    leaf = q[:, :, :0].clone().requires_grad_()
    sy.ops.attention(leaf, leaf, leaf)[0].sum().backward()
    expect(leaf.grad.shape == leaf.shape, "attention, gradient")
    w1, w2 = torch.ones(1, 32, 64, requires_grad=True), torch.ones(1, 32, 32)
    y = sy.ops.moe(torch.ones(0, 32), torch.zeros(0, 2, dtype=torch.int32), torch.ones(0, 2), w1, w2)
    zeros(y.detach(), (0, 32), "moe")
    y.sum().backward()
    zeros(w1.grad, (1, 32, 64), "moe, gradient")


def check_mixtures(name: str, size: int) -> None:
    """Of no tokens, also where the router's weights alone ask for a gradient, by torch's op, and in a graph."""
    x, ids = torch.ones(0, 32), torch.zeros(0, 2, dtype=torch.int32)
    w1, w2 = torch.ones(1, 32, 64), torch.ones(1, 32, 32)
    by_op = lambda *given: torch.ops.syncopate.moe(*given, name)  # noqa: E731
    by_function = lambda *given: sy.ops.moe(*given)  # noqa: E731
    kept = lambda *given: torch.ops.syncopate.moe_kept(*given, name)[0]  # noqa: E731 - as graphs call it
    for what, call in {
        "a function": by_function,
        "an op": by_op,
        "an op of graphs": kept,
        "in a graph": torch.compile(by_function, backend="aot_eager", fullgraph=True),
        "an op in a graph": torch.compile(by_op, backend="aot_eager", fullgraph=True),
    }.items():
        for which in range(4):
            given = [x.clone(), torch.ones(0, 2), w1.clone(), w2.clone()]
            leaf = given[which].requires_grad_()
            y = call(given[0], ids, *given[1:])
            zeros(y.detach(), (0, 32), what)
            y.sum().backward()
            zeros(leaf.grad, tuple(leaf.shape), f"{what}, gradient {which}")
        with torch.no_grad():
            zeros(call(x, ids, torch.ones(0, 2), w1, w2), (0, 32), what)
        half = [one.bfloat16() for one in (x, w1, w2)]  # and the router's weights as they are
        zeros(call(half[0], ids, torch.ones(0, 2), *half[1:]), (0, 32), what, torch.bfloat16)
    for call in (by_function, by_op):
        refused(
            "moe",
            partial(call, x, ids, torch.ones(0, 2).half(), w1, w2),
            ValueError,
            "topk_weights: expected torch.float32",
        )


def check_fp8(name: str, size: int) -> None:
    """Of no rows, with a bias in the output's dtype, and a mixture of no tokens."""
    fp8 = torch.float8_e4m3fn
    x, w = torch.ones(0, 32).to(fp8), torch.ones(48, 32).to(fp8).t()
    scales = torch.ones(0), torch.ones(48)
    for dtype in (torch.bfloat16, torch.float16):
        y = sy.ops.all_gather_matmul(x, w, bias=torch.ones(48, dtype=dtype), scales=scales, out_dtype=dtype)
        zeros(y, (0, 48), f"fp8, {dtype}", dtype)
    refused(
        "bias",
        lambda: sy.ops.all_gather_matmul(x, w, bias=torch.ones(48), scales=scales),
        ValueError,
        "bias: expected torch.bfloat16",
    )
    w1, w2 = torch.ones(1, 64, 32).to(fp8).transpose(1, 2), torch.ones(1, 32, 32).to(fp8).transpose(1, 2)
    routed = x, torch.zeros(0, 2, dtype=torch.int32), torch.ones(0, 2), w1, w2
    scales = [torch.ones(0), torch.ones(1, 64), torch.ones(1, 32)]
    zeros(sy.ops.moe(*routed, scales=scales), (0, 32), "moe of fp8", torch.bfloat16)
    zeros(torch.ops.syncopate.moe_scaled(*routed, scales, name), (0, 32), "its op", torch.bfloat16)


def refused(what: str, call, kind: type[Exception], said: str) -> None:
    try:
        call()
    except kind as error:
        expect(said in str(error), f"{what}: {error}")
    else:
        expect(False, f"{what}: not refused")


def check_operands(name: str, size: int) -> None:
    """None, texts and DTensors are named, whichever way they come, also once the same call has been made of tensors."""
    mesh = init_device_mesh("cpu", (size,))
    x, w = torch.ones(8, 32), torch.ones(32, 48)
    of_all = DTensor.from_local(x, mesh, [Replicate()])
    own = {"x": DTensor.from_local(x, mesh, [Shard(0)]), "w": DTensor.from_local(w, mesh, [Replicate()])}
    for function in (getattr(sy.ops, one) for one in PRODUCTS):
        for _ in range(2):
            for given, said in (((None, w), "x: expected a torch.Tensor, got None"), ((x, "w"), "w: expected a torch.Tensor, got str"),
                                ((own["x"], w), "x: a DTensor"), ((x, own["w"]), "w: a DTensor")):  # fmt: skip
                refused(function.__name__, partial(function, *given), TypeError, said)
            for out in ("y", 1):
                refused(
                    function.__name__,
                    partial(function, x, w, out=out),
                    TypeError,
                    "out: expected a torch.Tensor",
                )
            refused(
                function.__name__,
                partial(function, x, w, mesh),
                TypeError,
                "got DeviceMesh: give its get_group()",
            )
            function(x, w)
    refused(
        "bias",
        lambda: sy.ops.all_gather_matmul(x, w, bias="b"),
        TypeError,
        "bias: expected a torch.Tensor, got str",
    )
    op = sy.ops.MatmulAllReduce(8, 48, 32, torch.float32)
    for _ in range(2):
        refused("object", lambda: op(None, w), TypeError, "x: expected a torch.Tensor, got None")
        refused("object", lambda: op(x, own["w"]), TypeError, "w: a DTensor")
        refused("object", lambda: op(x, w, "y"), TypeError, "out: expected a torch.Tensor, got str")
        op(x, w)
    op.close()
    ops, q = torch.ops.syncopate, torch.ones(1, 2, 8, 16, dtype=torch.bfloat16)
    ids, weights, w1 = torch.zeros(8, 2, dtype=torch.int32), torch.ones(8, 2), torch.ones(1, 32, 64)
    for call, said in (
        (
            lambda: ops.all_gather_matmul(None, w, name),
            "all_gather_matmul: x: expected a torch.Tensor, got None",
        ),
        (
            lambda: ops.matmul_all_reduce(x, None, name),
            "matmul_all_reduce: w: expected a torch.Tensor, got None",
        ),
        (lambda: ops.feed_forward(x, w, None, name), "feed_forward: w2: expected a torch.Tensor, got None"),
        (lambda: ops.attention(q, q, None, name), "attention: v: expected a torch.Tensor, got None"),
        (lambda: ops.moe(x, ids, weights, w1, None, name), "moe: w2: expected a torch.Tensor, got None"),
        (lambda: ops.moe(x, None, weights, w1, w1, name), "moe: topk_ids: expected a torch.Tensor, got None"),
    ):
        refused("op", call, Exception, said)
        with torch.no_grad():
            refused("op", call, Exception, said)
    for rows in (sy.shard_rows, sy.unshard_rows):
        refused(rows.__name__, partial(rows, of_all, dim=0), TypeError, "a DTensor says itself")
    with sy.context_parallel():
        attend = torch.nn.functional.scaled_dot_product_attention
        refused("context", lambda: attend(q, None, q), TypeError, "key must be a torch.Tensor, not NoneType")
        attend(q, q, q)
    expect(dist.is_initialized(), "")


if __name__ == "__main__":
    run_checks(globals())
