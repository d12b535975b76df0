"""Calls of the custom ops that C++ carries out: what they make, count and raise is what Python's set-up makes. As
`host_calls.py RANKS`."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import syncopate as sy
import torch
import torch.distributed as dist
from host_script import expect, run_checks
from syncopate import _syncopate
from syncopate.call import cache
from syncopate.torch import report, unfused

ops = torch.ops.syncopate


def data(*shape: int, seed: int, own: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + (1000 * dist.get_rank() if own else 0))
    return torch.randn(*shape, generator=generator)


def by_cpp() -> int:
    return sum(count for *_, count in _syncopate.recipe_counts())


def operands(size: int, rows: int, k: int, n: int, seed: int) -> dict[str, tuple]:
    """Arguments of each op, its group's name left out."""
    m = rows * size
    x, whole, w = data(rows, k, seed=seed), data(m, k, seed=seed + 1), data(k, n, seed=seed + 2)
    bias, second = data(n, seed=seed + 3), data(k, n - 4, seed=seed + 4)
    inner = data(n, k, seed=seed + 5)
    return {
        "all_gather_matmul": ((x, w), (bias,), {}),
        "matmul_reduce_scatter": ((whole, w), (bias,), {}),
        "matmul_all_reduce": ((whole, w), (bias,), {}),
        "matmul_all_to_all": ((whole, w), (bias,), {}),
        "all_to_all_matmul": ((whole, w), (bias,), {}),
        "feed_forward": ((x, w, inner), (), {"activation": "relu"}),
        "all_gather_matmuls": ((x, [w, second]), ([bias, bias[:-4]],), {"return_gathered": True}),
        "all_to_all_matmuls": ((whole, [second, w]), (), {"return_exchanged": True}),
    }


def as_list(made: torch.Tensor | list[torch.Tensor]) -> list[torch.Tensor]:
    return list(made) if isinstance(made, (list, tuple)) else [made]


def check_values(group: str, size: int) -> None:
    """Fused, and as the pair (fp64, which no kernel takes): new tensors each time, with and without gradients."""
    for kind in (torch.float32, torch.float64):
        report.clear()
        calls = 0
        for turn in range(3):
            for name, (given, biases, options) in operands(size, 8, 16, 12, seed=100 * turn).items():
                cast = [
                    [one.to(kind) for one in t] if isinstance(t, list) else t.to(kind)
                    for t in (*given, *biases)
                ]
                first, rest = cast[: len(given)], cast[len(given) :]
                exact = as_list(getattr(unfused, name)(*_positional(name, first, rest, group, options)))
                for grad in (False, True):
                    with torch.set_grad_enabled(grad):
                        made = as_list(getattr(ops, name)(*first, group, *rest, **options))
                    calls += 1
                    for one, right in zip(made, exact, strict=True):
                        expect(
                            torch.allclose(one, right, rtol=1e-4, atol=1e-4), f"{name}, {kind}, turn {turn}"
                        )
        counted = sum(sy.report().calls.values())
        expect(counted == calls, f"{counted} of {calls} calls are counted: {sy.report().calls}")
        expect(by_cpp() >= calls - 2 * 8, f"{by_cpp()} of {calls} calls of {kind} by C++")


def _positional(name: str, first: list, rest: list, group: str, options: dict) -> tuple:
    """As unfused.py's functions take them."""
    biases = rest[0] if rest else None
    if name == "feed_forward":
        return (*first, group, options["activation"])
    if name == "all_gather_matmuls":
        return (*first, group, True, 0, biases)
    if name == "all_to_all_matmuls":
        return (*first, group, True, biases)
    return (*first, group, biases)


def check_layouts(group: str, size: int) -> None:
    """Tensors that lie otherwise: transposed, with rows apart, at odd addresses, of no element stride."""
    rows, k, n = 8, 16, 12
    x, w = data(rows, k, seed=7), data(k, n, seed=8)
    exact = unfused.all_gather_matmul(x, w, group)
    layouts = {
        "as they are": (x, w),
        "a transposed w": (x, w.t().contiguous().t()),
        "a transposed x": (x.t().contiguous().t(), w),
        "rows apart": (torch.zeros(rows, k + 8)[:, :k].copy_(x), torch.zeros(k, n + 4)[:, :n].copy_(w)),
        "rows at odd places": (torch.zeros(rows, k + 1)[:, :k].copy_(x), w),
        "an odd address": (torch.zeros(rows * k + 1)[1:].view(rows, k).copy_(x), w),
        "every other column": (torch.zeros(rows, 2 * k)[:, ::2].copy_(x), w),
    }
    with torch.no_grad():
        for what, (a, b) in layouts.items():
            for turn in range(3):
                y = ops.all_gather_matmul(a, b, group)
                expect(torch.allclose(y, exact, atol=1e-4), f"{what}, call {turn}")
        same = x[:1].expand(rows, k)
        for turn in range(2):
            y = ops.all_gather_matmul(same, w, group)
            expect(
                torch.allclose(y, unfused.gather(same, group) @ w, atol=1e-4), f"one row for all, call {turn}"
            )
        square = data(16, 16, seed=9)
        for turn in range(2):  # one tensor for two operands
            y = ops.matmul_all_reduce(square, square, group)
            expect(
                torch.allclose(y, unfused.reduce(square @ square, group), atol=1e-3), f"a square, call {turn}"
            )


def check_attention(group: str, size: int) -> None:
    """Python is entered for the first call of a kind, also where options differ that are no tensors, or one is none and one 0; and
    always where it takes several calls of a kernel, or heads that are padded."""
    rows, zigzag = 32, {"sharding": "zigzag", "causal": True}
    kinds = [
        ({}, 16), ({"causal": True}, 16), ({"causal": True, "window": 24}, 16), ({"scale": 0.0}, 16), ({"scale": 0.5}, 16),
        (zigzag, 16), ({"kind": "ring"}, 16), ({"kind": "ulysses"}, 16), ({"cu_seqlens": [0, rows * size]}, 16),
        ({"cu_seqlens": [0, rows, rows, rows * size]}, 16), ({"module": "layers.3"}, 32), ({"causal": True}, 24),
        ({"bounded": 0}, 16), ({"length": rows * size}, 16),
    ]  # fmt: skip
    apart = {"layout": "rows and heads the other way round"}
    with torch.no_grad():
        for given, d in [*kinds, (apart, 16)]:
            options = {} if given is apart else given
            exact = None
            for turn in range(3):
                q, k, v = (
                    data(1, heads, rows, d, seed=80 + heads + number).half()
                    for number, heads in enumerate((2 * size, size, size))
                )
                if given is apart:
                    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
                before = by_cpp()
                made = ops.attention(q, k, v, group, **options)
                alone = by_cpp() - before
                exact = made if exact is None else exact
                expect(all(map(torch.equal, made, exact)), f"{given}, head of {d}, call {turn}")
                expect(made[0].is_contiguous(), f"{given}: {made[0].stride()}")
                several = d == 24 or "bounded" in given
                wanted = turn > 0 and not several
                expect(alone == wanted, f"{given}, head of {d}, call {turn}: {alone} by C++ alone")
    q, k, v = (data(1, heads, rows, 16, seed=90 + heads).half() for heads in (4, 2, 2))
    asked = q.clone().requires_grad_()
    for _ in range(2):
        o, lse = ops.attention(asked, k, v, group, causal=True)
        expect(o.requires_grad and lse.requires_grad, "gradients are recorded")
    for turn in range(2):
        try:
            ops.attention(q, k, v[:, :, :8], group, module="layers.9")
        except ValueError as error:
            expect("expected q [B, H, rows, D] and k, v" in str(error), f"call {turn}: {error}")
        else:
            expect(False, "k and v that differ are refused")


def check_errors(group: str, size: int) -> None:
    """What is wrong is told with its own type, by the first call and by those after it, and later ones work."""
    x, w = data(8, 16, seed=1), data(16, 12, seed=2)
    for turn in range(2):
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                for wrong, kind, said in (
                    (
                        lambda: ops.all_gather_matmul(x, w[:-1], group),
                        ValueError,
                        "expected x [rows, K] and w [K, N]",
                    ),
                    (
                        lambda: ops.all_gather_matmul(x, w.double(), group),
                        ValueError,
                        "expected operands of one dtype",
                    ),
                    (lambda: ops.all_gather_matmul(x, w, "nobody"), Exception, "nobody"),
                    (lambda: ops.all_gather_matmul(x, w, group, activation="tan"), ValueError, "activation"),
                ):
                    try:
                        wrong()
                    except kind as error:
                        expect(said in str(error), f"turn {turn}, gradients {grad}: {error}")
                    else:
                        expect(False, f"{said} is not said")
                y = ops.all_gather_matmul(x, w, group)
                expect(torch.allclose(y, unfused.gather(x, group) @ w, atol=1e-4), "after errors")
    try:
        ops.all_gather_matmul(x, w[:-1], group, module="layers.3")
    except ValueError as error:
        expect("in layers.3" in error.__notes__, str(error.__notes__))


def check_groups(group: str, size: int) -> None:
    """A group that takes another one's name is another group; what was closed is set up again."""
    x, w = data(8, 16, seed=3), data(16, 12, seed=4)
    exact = unfused.all_gather_matmul(x, w, group)
    with torch.no_grad():
        for _ in range(3):
            again = dist.new_group(list(range(size)))
            for _ in range(3):
                y = ops.all_gather_matmul(x, w, again.group_name)
                expect(torch.allclose(y, exact, atol=1e-4), "a new group")
            dist.destroy_process_group(again)
        for _ in range(3):
            y = ops.all_gather_matmul(x, w, group)
            sy.close()
            expect(torch.allclose(y, exact, atol=1e-4), "closed and set up again")
    gc.collect()


def check_room(group: str, size: int) -> None:
    """Operators that C++ calls count as used: it is others that are closed."""
    limit, w = cache.limit_bytes, data(16, 12, seed=5)
    sy.close()
    with torch.no_grad():
        for rows in (8, 12, 16):
            for _ in range(2):
                ops.all_gather_matmul(data(rows, 16, seed=6), w, group)
        for _ in range(3):
            ops.all_gather_matmul(data(8, 16, seed=6), w, group)  # by C++: now the last one used
        kept = {key[2]: entry for key, entry in cache.entries.items() if entry.operator is not None}
        cache.limit_bytes = sum(entry.bytes for entry in kept.values())
        ops.all_gather_matmul(data(20, 16, seed=6), w, group)
        cache.limit_bytes = limit
    left = {key[2][0] // size for key, entry in cache.entries.items() if entry.operator is not None}
    expect(8 in left and 12 not in left and 20 in left, f"of {sorted(left)} rows are left")


def check_modes(group: str, size: int) -> None:
    """Traced, the op is one of its inner names; in the deterministic mode it is another operator; under autocast it casts."""
    x, w = data(8, 16, seed=1), data(16, 12, seed=2)
    from torch.fx.experimental.proxy_tensor import make_fx

    for grad, suffix in ((False, "raw"), (True, "recorded")):
        with torch.set_grad_enabled(grad):
            for mode in ("fake", "real"):
                graph = make_fx(lambda a, b: ops.matmul_all_reduce(a, b, group), tracing_mode=mode)(
                    x, w
                ).graph
                names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
                expect(names == [f"syncopate.matmul_all_reduce_{suffix}.default"], f"{mode}: {names}")
    exact = unfused.all_gather_matmul(x, w, group)
    with torch.no_grad():
        before = len(cache.entries)
        with sy.deterministic(rows=64):
            for _ in range(2):
                expect(torch.allclose(ops.all_gather_matmul(x, w, group), exact, atol=1e-4), "deterministic")
        expect(len(cache.entries) > before, "the mode has an operator of its own")
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                y = ops.all_gather_matmul(x, w, group)
            expect(y.dtype == torch.bfloat16, f"under autocast {y.dtype}")


if __name__ == "__main__":
    run_checks(globals())
