"""The fused backward of attention on host ranks in Triton's interpreter; run by test_attention_backward.py.

    host_attention_backward.py RANKS CASE...       each case as in CASES

Each case is called three times with fresh data, transfers late at random and in any order, against gradients in fp64.
Exits 1 with the first thing that is wrong.
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import torch  # noqa: E402
from host_attention import in_fp64, random, seen_by  # noqa: E402
from host_script import expect, on_ranks  # noqa: E402
from syncopate import ops, ranks  # noqa: E402
from syncopate.group import of_folder  # noqa: E402

D = 16
#: B, H, HKV, S and what the operator is asked for. `d`: the head size; `lse`: log-sum-exps have a gradient, too.
CASES = {
    "causal": (1, 2, 1, 96, {"causal": True}),
    "full": (2, 2, 2, 64, {"split": 2}),
    "ragged": (1, 2, 1, 90, {"causal": True, "lse": True}),
    "ragged full": (1, 3, 1, 60, {"d": 24}),
    "unequal split": (1, 2, 1, 125, {"causal": True, "split": 4}),  # as on GPUs
    "zigzag": (1, 4, 2, 96, {"causal": True, "sharding": "zigzag", "lse": True}),
    "ragged zigzag": (1, 2, 1, 120, {"causal": True, "sharding": "zigzag"}),
    "window": (1, 2, 1, 120, {"causal": True, "window": 24}),
    "window full": (1, 2, 2, 60, {"window": 9, "kind": "ring"}),
    "documents": (1, 2, 1, 120, {"causal": True, "cu_seqlens": [0, 37, 38, 90, 120]}),
    "documents full": (1, 2, 1, 120, {"cu_seqlens": [0, 37, 37, 90, 120, 120], "kind": "ring"}),
    "documents of one row": (1, 1, 1, 60, {"causal": True, "cu_seqlens": list(range(61))}),
    "documents zigzag": (
        1,
        2,
        1,
        120,
        {"causal": True, "cu_seqlens": [0, 37, 38, 90, 120], "sharding": "documents"},
    ),
    "deterministic": (1, 2, 1, 96, {"causal": True, "deterministic": True}),
    "deterministic zigzag": (1, 2, 1, 120, {"causal": True, "sharding": "zigzag", "deterministic": True}),
    "deterministic ring": (1, 2, 2, 60, {"kind": "ring", "split": 2, "deterministic": True}),
    "deterministic documents": (
        1,
        2,
        1,
        120,
        {"causal": True, "cu_seqlens": [0, 37, 38, 90, 120], "sharding": "documents", "deterministic": True},
    ),
    "deterministic heads of 256": (1, 2, 1, 41, {"causal": True, "d": 256, "deterministic": True}),
    "deterministic heads of 256, exchanged": (
        1,
        2,
        2,
        41,
        {"kind": "ulysses", "d": 256, "deterministic": True},
    ),
    "deterministic heads of 256 in passes": (1, 1, 1, 48, {"d": 256, "bounded": 24, "deterministic": True}),
    "unequal deterministic": (1, 2, 1, 33, {"causal": True, "deterministic": True}),
    "ring": (1, 2, 1, 120, {"kind": "ring", "causal": True}),
    "ring zigzag": (1, 2, 1, 120, {"kind": "ring", "causal": True, "sharding": "zigzag", "lse": True}),
    "parts": (2, 4, 4, 192, {"kind": "all_gather", "causal": True, "sharding": "zigzag", "parts": 2}),
    "parts kept": (1, 8, 4, 128, {"kind": "all_gather", "causal": True, "parts": 4, "kept": True}),
    "parts deterministic": (1, 4, 2, 64, {"kind": "all_gather", "parts": 2, "deterministic": True}),
    "parts ring": (1, 4, 2, 192, {"kind": "ring", "causal": True, "parts": 2, "split": 2, "lse": True}),
    "parts double_ring": (1, 4, 2, 128, {"kind": "double_ring", "inner": 2, "parts": 2}),
    "double_ring": (1, 2, 1, 128, {"kind": "double_ring", "inner": 2, "causal": True}),
    "double_ring zigzag": (1, 1, 1, 128, {"kind": "double_ring", "inner": 2, "sharding": "zigzag"}),
    "ulysses": (2, 12, 12, 60, {"kind": "ulysses", "causal": True}),
    "ulysses in parts": (1, 8, 8, 64, {"kind": "ulysses", "causal": True, "parts": 2, "lse": True}),
    "ulysses in parts deterministic": (
        1,
        16,
        8,
        63,
        {"kind": "ulysses", "sharding": "zigzag", "parts": 2, "deterministic": True},
    ),
    "ulysses_ring": (1, 4, 4, 128, {"kind": "ulysses_ring", "inner": 2, "causal": True}),
    "ulysses_ring zigzag": (
        1,
        8,
        4,
        128,
        {"kind": "ulysses_ring", "inner": 2, "causal": True, "sharding": "zigzag", "lse": True, "split": 2},
    ),
    "ulysses_ring full": (2, 4, 2, 128, {"kind": "ulysses_ring", "inner": 2, "window": 50}),
    "ulysses_ring deterministic": (
        1,
        4,
        2,
        128,
        {"kind": "ulysses_ring", "inner": 2, "causal": True, "deterministic": True},
    ),
    "ulysses_ring of one head": (1, 4, 1, 128, {"kind": "ulysses_ring", "inner": 2, "causal": True}),
    "ulysses by five": (1, 10, 5, 50, {"kind": "ulysses"}),
    "ulysses zigzag": (1, 12, 12, 72, {"kind": "ulysses", "causal": True, "sharding": "zigzag"}),
    "ulysses deterministic": (1, 4, 4, 64, {"kind": "ulysses", "deterministic": True, "lse": True}),
    "ulysses of one head": (1, 12, 1, 60, {"kind": "ulysses", "causal": True}),
    "heads of 40": (1, 2, 1, 60, {"causal": True, "d": 40}),
    "heads of 96": (1, 1, 1, 60, {"d": 96}),
    "unequal": (1, 2, 1, 63, {"causal": True, "lse": True}),
    "unequal zigzag": (1, 2, 1, 61, {"causal": True, "sharding": "zigzag"}),
    "unequal ring": (1, 2, 2, 35, {"kind": "ring", "deterministic": True}),
    "unequal documents": (
        1,
        2,
        1,
        53,
        {"causal": True, "cu_seqlens": [0, 7, 30, 53], "sharding": "documents"},
    ),
    "unequal ring split": (1, 2, 2, 127, {"kind": "ring", "split": 4}),
    "unequal ulysses": (1, 2, 2, 33, {"kind": "ulysses"}),
    "unequal ulysses deterministic": (
        1,
        4,
        4,
        63,
        {"kind": "ulysses", "causal": True, "deterministic": True},
    ),
    "unequal double_ring": (1, 2, 1, 62, {"kind": "double_ring", "inner": 2, "causal": True}),
    "unequal bounded": (1, 2, 1, 63, {"causal": True, "bounded": 32}),
    "unequal kept": (1, 2, 1, 63, {"causal": True, "kept": True}),
    "none on the last": (1, 2, 1, 3, {"causal": True}),
    "heads of 12": (1, 2, 2, 32, {"kind": "all_gather", "d": 12, "deterministic": True}),
    "few rows": (1, 2, 1, 10, {"causal": True, "lse": True}),
    "bounded": (1, 2, 1, 96, {"causal": True, "bounded": 32, "lse": True}),
    "bounded ring": (1, 2, 1, 96, {"kind": "ring", "causal": True, "sharding": "zigzag", "bounded": True}),
    "bounded deterministic": (1, 2, 1, 96, {"window": 20, "bounded": 48, "deterministic": True}),
    "kept": (1, 2, 1, 90, {"causal": True, "kept": True}),
    "kept ring": (1, 2, 2, 60, {"kind": "ring", "kept": True, "sharding": "zigzag", "causal": True}),
}


def right_gradients(q, k, v, grad, grad_lse, scale, seen):
    """Of whole tensors, in fp64."""
    q, k, v = (t.double().requires_grad_() for t in (q, k, v))
    o, lse = in_fp64(q, k, v, scale, seen)
    outputs, grads = (
        ((o,), (grad.double(),)) if grad_lse is None else ((o, lse), (grad.double(), grad_lse.double()))
    )
    return torch.autograd.grad(outputs, (q, k, v), grads)


def furthest_row(made: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far a row is off at most, by its norm; of small ones, differences of numbers that are rounded, by the usual norm."""
    norms = wanted.norm(dim=-1)
    usual = norms.pow(2).mean().sqrt()
    return float(((made.double() - wanted).norm(dim=-1) / norms.clamp_min(usual).clamp_min(1e-3)).max())


def summed(place: ranks.Place, group, op, contributions):
    """Of all ranks, in the order in which the kind adds them."""
    folder = Path(place.folder)
    torch.save(contributions, folder / f"contributions{place.rank}.pt")
    op.fused.group.together("written", lambda: None)
    by_rank = [torch.load(folder / f"contributions{rank}.pt") for rank in range(place.size)]
    op.fused.group.together("read", lambda: None)
    made = []
    for which in range(2):
        whole = torch.zeros_like(by_rank[0][which])
        for owner, runs in enumerate(op.all_rows):
            order = [(owner + 1 + step) % place.size for step in range(place.size)]
            order = sorted(order) if op.kind == "all_gather" else order
            for begin, end in runs:
                parts = [by_rank[rank][which][:, :, begin:end] for rank in order]
                total = parts[0].clone()
                for part in parts[1:]:
                    total += part
                whole[:, :, begin:end] = total
        made.append(whole)
    return made


def check_case(name: str, place: ranks.Place, group) -> None:
    b, h, hkv, s, options = CASES[name]
    options = dict(options)
    d, lse_too = options.pop("d", D), options.pop("lse", False)
    given = {
        key: options.pop(key)
        for key in ("deterministic", "kept", "split", "parts", "bounded")
        if key in options
    }
    forward = ops.Attention(b, h, hkv, s, d, torch.bfloat16, group, even=True, **options)
    late = {"host_delay": 2e-3, "seed": place.rank}
    op = ops.AttentionBackward(b, h, hkv, s, d, torch.bfloat16, group, even=True, **given, **late, **options)
    rows = torch.arange(s)
    seen = seen_by(rows, s, forward.causal, forward.window, forward.documents)
    for call in range(3):
        q, grad = (random((b, h, s, d), call, n) for n in (1, 4))
        k, v = (random((b, hkv, s, d), call, n) for n in (2, 3))
        grad_lse = random((b, h, s), call, 5).float() if lse_too else None
        own = [forward.shard(t) for t in (q, k, v)]
        o, lse = forward(*own)
        left = (forward.shard(grad), None if grad_lse is None else forward.shard(grad_lse))
        made = op(*left, own[0], *((k, v) if op.kept else own[1:]), o, lse)
        op.check()
        right = right_gradients(q, k, v, grad, grad_lse, forward.scale, seen)
        for what, one, whole in zip(("dq", "dk", "dv"), made, right, strict=True):
            wanted = forward.shard(whole)
            error = float(
                (one.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1e-3)
            )  # a row alone has none of q and k
            expect(error < 2e-2, f"{name}, call {call}, rank {place.rank}: {what} is {error} off")
            row = furthest_row(one, wanted)
            expect(row < 5e-2, f"{name}, call {call}, rank {place.rank}: a row of {what} is {row} off")
        if op.deterministic and not op.exchanges and op.count == 1:
            alone = op.unfused(*left, own[0], k, v, o, lse)
            expect(
                torch.equal(made[0], alone[0]), f"{name}, rank {place.rank}: dq has other bits than unfused"
            )
            for what, one, sums in zip(
                ("dk", "dv"), made[1:], summed(place, group, op, alone[1:]), strict=True
            ):
                same = torch.equal(one, forward.shard(sums).to(one.dtype))
                expect(same, f"{name}, rank {place.rank}: {what} has other bits than unfused")
    op.close()
    forward.close()


def check(place: ranks.Place) -> None:
    torch.set_num_threads(1)
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    for name in sys.argv[2:]:
        check_case(name, place, group)


if __name__ == "__main__":
    on_ranks(check)
    print(f"{sys.argv[1]} ranks: {len(sys.argv) - 2} cases", flush=True)
