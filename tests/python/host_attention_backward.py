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
    "ring": (1, 2, 1, 96, {"kind": "ring", "causal": True}),
    "ring full": (1, 2, 2, 80, {"kind": "ring", "split": 2}),
    "double_ring": (1, 2, 1, 128, {"kind": "double_ring", "inner": 2, "causal": True, "sharding": "zigzag"}),
    "ulysses": (2, 4, 4, 64, {"kind": "ulysses", "causal": True}),
    "deterministic": (1, 2, 1, 96, {"causal": True, "deterministic": True}),
    "ulysses deterministic": (1, 4, 4, 96, {"kind": "ulysses", "deterministic": True, "lse": True}),
    "zigzag": (1, 4, 2, 96, {"causal": True, "sharding": "zigzag", "lse": True}),
    "ragged": (1, 2, 1, 94, {"causal": True}),
    "ragged zigzag": (1, 2, 1, 60, {"causal": True, "sharding": "zigzag"}),
    "window": (1, 2, 1, 128, {"causal": True, "window": 24}),
    "documents": (1, 2, 1, 120, {"causal": True, "cu_seqlens": [0, 37, 38, 90, 120], "sharding": "documents"}),
}


def right_gradients(q, k, v, grad, grad_lse, scale, seen):
    """Of whole tensors, in fp64."""
    q, k, v = (t.double().requires_grad_() for t in (q, k, v))
    o, lse = in_fp64(q, k, v, scale, seen)
    outputs, grads = ((o,), (grad.double(),)) if grad_lse is None else ((o, lse), (grad.double(), grad_lse.double()))
    return torch.autograd.grad(outputs, (q, k, v), grads)


def check_case(name: str, place: ranks.Place, group) -> None:
    b, h, hkv, s, options = CASES[name]
    options = dict(options)
    d, lse_too = options.pop("d", D), options.pop("lse", False)
    given = {key: options.pop(key) for key in ("deterministic", "kept", "split") if key in options}
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
        made = op(forward.shard(grad), None if grad_lse is None else forward.shard(grad_lse), *own, o, lse)
        op.check()
        right = right_gradients(q, k, v, grad, grad_lse, forward.scale, seen)
        for what, one, whole in zip(("dq", "dk", "dv"), made, right, strict=True):
            wanted = forward.shard(whole)
            error = float((one.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1e-9))
            expect(error < 2e-2, f"{name}, call {call}, rank {place.rank}: {what} is {error} off")
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
