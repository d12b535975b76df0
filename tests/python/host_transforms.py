"""Transforms of torch.func over the custom ops, on host ranks; run by test_torch.py.

    host_transforms.py RANKS [CHECK …]

Exits 1 with the first thing that is wrong.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python")]

import syncopate  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from torch import func  # noqa: E402

ops = torch.ops.syncopate
K, N = 32, 24


def data(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * dist.get_rank())
    return torch.randn(*shape, generator=generator)


def products(group: str) -> dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """Of x [rows, K] and w [K, N], by op."""
    names = (
        "all_gather_matmul",
        "matmul_reduce_scatter",
        "matmul_all_reduce",
        "matmul_all_to_all",
        "all_to_all_matmul",
    )
    made = {name: lambda x, w, name=name: getattr(ops, name)(x, w, group) for name in names}
    return made | {"feed_forward": lambda x, w: ops.feed_forward(x, w, w.t(), group)}


def check_vmap(group: str, size: int) -> None:
    """One call for each of a batch, with gradients of x and w, whichever is batched."""
    x, w = data(3, 8 * size, K, seed=1), data(2, K, N, seed=2)
    for name, product in products(group).items():
        for in_dims, given in (((0, None), (x, w[0])), ((None, 0), (x[0], w)), ((0, 0), (x[:2], w))):
            made, right = ([one.clone().requires_grad_() for one in given] for _ in range(2))
            y = torch.vmap(product, in_dims)(*made)
            each = [
                [one[i] if dim == 0 else one for one, dim in zip(right, in_dims, strict=True)]
                for i in range(len(y))
            ]
            exact = torch.stack([product(*one) for one in each])
            y.square().sum().backward()
            exact.square().sum().backward()
            pairs = ((y, exact), *((a.grad, b.grad) for a, b in zip(made, right, strict=True)))
            for one, other in pairs:
                off = float((one - other).detach().norm() / other.detach().norm())
                expect(off < 1e-5, f"{name}, vmap {in_dims}: {off} off")


def check_derivatives(group: str, size: int) -> None:
    """Those that torch.func takes are refused, with what to do; the next call is right."""
    x, w, q = data(8 * size, K, seed=1), data(K, N, seed=2), data(1, 1, 16, 16, seed=3).bfloat16()
    ids, weights = torch.zeros(8 * size, 1, dtype=torch.long), torch.ones(8 * size, 1)
    experts = data(1, K, 32, seed=4), data(1, 16, K, seed=5)
    calls = {name: lambda x, product=product: product(x, w) for name, product in products(group).items()} | {
        "all_gather_matmuls": lambda x: ops.all_gather_matmuls(x, [w, w], group)[1],
        "all_to_all_matmuls": lambda x: ops.all_to_all_matmuls(x, [w, w], group)[1],
        "attention": lambda x: ops.attention(x[None, None, :16, :16].bfloat16(), q, q, group)[0],
        "moe": lambda x: ops.moe(x, ids, weights, *experts, group),
    }
    for name, call in calls.items():
        right = call(x)

        def loss(x: torch.Tensor, call: Callable = call) -> torch.Tensor:
            return call(x).float().sum()

        for transform in (
            lambda: func.grad(loss)(x),  # noqa: B023
            lambda: func.grad_and_value(loss)(x),  # noqa: B023
            lambda: func.vjp(loss, x),  # noqa: B023
            lambda: func.jacrev(loss)(x),  # noqa: B023
        ):
            try:
                transform()
            except RuntimeError as error:
                said = f"syncopate.{name} has no derivatives within torch.func"
                expect(said in str(error), f"{name}: {error}")
            else:
                expect(False, f"{name}: not refused")
        expect(torch.equal(call(x), right), f"{name}: the call after")
        leaf = x.clone().requires_grad_()
        (given,) = torch.autograd.grad(loss(leaf), leaf)
        expect(bool(given.abs().sum() > 0), f"{name}: no gradient by torch.autograd")


def check_further_derivatives_of_rows(group: str, size: int) -> None:
    """Those of unshard_rows of second and third order are of all ranks' values, as its first are."""
    for shape, dim in (((4,), 0), ((2, 3), 1), ((3, 2, 2), -2)):
        for sharding in ("contiguous", "zigzag") if shape[dim] % 2 == 0 else ("contiguous",):
            x = data(*shape, seed=1).double().requires_grad_()
            made = syncopate.unshard_rows(x, dim=dim, sharding=sharding).pow(4).sum()
            for order, right in ((1, 4 * x**3), (2, 12 * x**2), (3, 24 * x)):
                (made,) = torch.autograd.grad(made.sum(), x, create_graph=True)
                close = torch.allclose(made, size * right, rtol=1e-9)
                expect(close, f"{shape}, {dim}, {sharding}: order {order}")


if __name__ == "__main__":
    run_checks(globals())
