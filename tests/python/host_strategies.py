"""`strategy=` of sy.ops' functions, and the unfused ways of attention and of a mixture of experts. Run by test_functions.py.

host_strategies.py RANKS
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_script import expect, join, on_ranks  # noqa: E402
from syncopate import _syncopate, ranks  # noqa: E402
from syncopate.call import cache  # noqa: E402
from syncopate.ops import Attention, Moe  # noqa: E402

UNFUSED = sy.Strategy(unfused=True)
K, N = 32, 24


def data(*shape: int, seed: int, own: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * own * dist.get_rank())
    return torch.randint(-3, 4, shape, generator=generator).float()  # sums of which are exact


def refused(error_type: type[Exception], said: str, call, *given, **options) -> None:
    try:
        call(*given, **options)
    except error_type as error:
        expect(said in str(error), f"expected {said!r}, got {error}")
    else:
        expect(False, f"no error: {said}")


def made_last() -> object:
    return next(reversed(cache.entries.values())).operator


def check_functions(size: int) -> None:
    """Each takes a strategy, "auto" is the same as none, and another one is another operator with the same result."""
    ops, rows = sy.ops, 8 * size
    x, w, w1, w2 = data(8, K, seed=1), data(K, N, seed=2), data(K, 32, seed=3), data(32, N, seed=4)
    whole = data(rows, K, seed=5)
    cases = [
        (ops.all_gather_matmul, (x, w)),
        (ops.matmul_reduce_scatter, (whole, w)),
        (ops.matmul_all_reduce, (whole, w)),
        (ops.matmul_all_to_all, (whole, w)),
        (ops.all_to_all_matmul, (whole, w)),
        (ops.feed_forward, (x, w1, w2)),
    ]
    for function, given in cases:
        usual = function(*given)
        entries = cache.held()[0]
        for _ in range(2):
            expect(torch.equal(function(*given, strategy="auto"), usual), f"{function.__name__}: auto")
        expect(cache.held()[0] == entries, f"{function.__name__}: auto is another operator")
        for strategy in (UNFUSED, sy.Strategy(kernel="plain")):
            for _ in range(2):
                expect(
                    torch.equal(function(*given, strategy=strategy), usual),
                    f"{function.__name__}: {strategy}",
                )
            expect(
                made_last().strategy.unfused == strategy.unfused,
                f"{function.__name__}: {strategy} is not taken",
            )
        expect(cache.held()[0] == entries + 2, f"{function.__name__}: a strategy is no operator of its own")
        refused(
            ValueError, "expected a sy.Strategy or \"auto\", got 'fast'", function, *given, strategy="fast"
        )
        refused(TypeError, "got int", function, *given, strategy=7)
        asked = given[0].clone().requires_grad_()
        refused(
            RuntimeError, "a call with a strategy has none", function, asked, *given[1:], strategy=UNFUSED
        )
    refused(ValueError, "attention's", ops.all_gather_matmul, x, w, strategy=sy.Strategy(kind="ring"))  # fmt: skip


def check_attention(place: ranks.Place) -> None:
    """Unfused: K and V of all ranks are gathered, whatever rows these hold, and a call makes what a fused one does."""
    b, h, hkv, s, d = 2, 4, 2, 32 * place.size, 16
    for options in ({}, {"causal": True}, {"causal": True, "sharding": "zigzag"}, {"window": 24}):
        fused = Attention(b, h, hkv, s, d, torch.bfloat16, **options, kind="all_gather")
        op = Attention(b, h, hkv, s, d, torch.bfloat16, **options, strategy=UNFUSED)
        expect(
            op.strategy.unfused and op.kind == "all_gather" and '"op"' not in op.plan.to_json(),
            f"{options}: it moves",
        )
        for call in range(3):
            q, k, v = (
                data(b, n, s, d, seed=10 * call + i, own=False).bfloat16()
                for i, n in enumerate((h, hkv, hkv))
            )
            own = [op.shard(one) for one in (q, k, v)]
            expect(op.rows == fused.rows, "rows")
            for one, other in zip(op(*own), fused(*own), strict=True):
                near = torch.allclose(
                    one.float(), other.float(), atol=2e-2
                )  # that one takes rows as they come
                expect(near, f"{options}, call {call}: not what the fused one makes")
        op.check()
        op.close()
        fused.close()
    for options, said in (
        ({"strategy": UNFUSED, "kind": "ring"}, "unfused: it gathers K and V, and kind is 'ring'"),
        (
            {"strategy": sy.Strategy(kind="ring"), "kind": "ulysses"},
            "kind 'ulysses': the strategy says 'ring'",
        ),
        ({"strategy": UNFUSED, "bounded": True}, "unfused: it gathers all of K and V"),
        ({"strategy": sy.Strategy(kind="ulysses_ring")}, "needs inner"),
    ):
        refused(ValueError, said, Attention, b, h, hkv, s, d, **options)
    for strategy in (UNFUSED, sy.Strategy(kind="ring"), sy.Strategy(kind="ulysses", head_parts=1), "auto"):
        q, k, v = (data(1, n, 16, d, seed=50 + i).bfloat16() for i, n in enumerate((h, hkv, hkv)))
        o, lse = sy.ops.attention(q, k, v, causal=True, strategy=strategy)
        usual, usual_lse = sy.ops.attention(q, k, v, causal=True)
        expect(torch.allclose(o.float(), usual.float(), atol=2e-2), f"{strategy}: o")
        expect(torch.allclose(lse, usual_lse, atol=1e-3), f"{strategy}: lse")
    refused(ValueError, "'quick'", sy.ops.attention, q, k, v, strategy="quick")


def check_report(place: ranks.Place) -> None:
    """Of torch's op, which chooses by itself: that K and V are gathered, and why."""
    q, k, v = (data(1, n, 16, 16, seed=70 + i).bfloat16() for i, n in enumerate((4, 2, 2)))
    usual, _ = torch.ops.syncopate.attention(q, k, v, dist.group.WORLD.group_name)
    choose = _syncopate.choose_attention
    _syncopate.choose_attention = lambda *_, **__: (UNFUSED, 1.0, False, "by the estimate on a machine")
    try:
        o, _ = torch.ops.syncopate.attention(q, k, v, dist.group.WORLD.group_name, scale=0.25)
    finally:
        _syncopate.choose_attention = choose
    expect(torch.allclose(o.float(), usual.float(), atol=2e-2), "o")
    calls = sy.report().calls
    expect(
        calls["attention", "unfused, torch gathers K and V: by the estimate on a machine"] == 1, str(calls)
    )
    expect(calls["attention", "fused"] == 1, str(calls))


def check_mixture(size: int) -> None:
    """Unfused: with ids of none, and of no expert on some rank."""
    t, topk, h, f, experts = 5, 2, 24, 20, 2 * size
    x, w1, w2 = data(t, h, seed=1), data(2, h, 2 * f, seed=2), data(2, f, h, seed=3)
    weights = data(t, topk, seed=4)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed + 77 * dist.get_rank())
        ids = torch.randint(-1 if seed else 0, experts, (t, topk), generator=generator)
        if seed == 2:
            ids[:] = experts - 1
        for dtype in (torch.int64, torch.int32):
            given = (x, ids.to(dtype), weights, w1, w2)
            usual = sy.ops.moe(*given, activation="relu", strategy="auto")
            made = sy.ops.moe(*given, activation="relu", strategy=UNFUSED)
            expect(torch.equal(made, usual), f"routing {seed}: {(made - usual).abs().max()} off")
    expect(made_last().strategy.unfused and made_last().held_bytes() == 0, "it is not taken")
    ids = torch.zeros(t, topk, dtype=torch.int64)
    ids[0, 0] = experts if dist.get_rank() == 0 else 0
    refused(ValueError, f"topk_ids: 1 of all ranks' ids name no expert; there are experts 0 to {experts - 1}", sy.ops.moe, x, ids, weights, w1, w2, activation="relu", strategy=UNFUSED)  # fmt: skip
    for options, said in (
        ({"bound": 7}, "unfused: it keeps no bound"),
        ({"part": "dispatch"}, "unfused: of whole mixtures alone"),
    ):
        refused(ValueError, said, Moe, t, experts, topk, h, f, x.dtype, strategy=UNFUSED, **options)


def check(place: ranks.Place) -> None:
    join(place)
    check_functions(place.size)
    check_attention(place)
    check_report(place)
    check_mixture(place.size)
    cache.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    on_ranks(check)
    print("as asked for", flush=True)
