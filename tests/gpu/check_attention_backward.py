"""The backward of attention on Hopper GPUs against gradients in fp64.

python tests/gpu/check_attention_backward.py kernel                      one GPU: heads, masks, documents, ragged lengths
torchrun --nproc-per-node N tests/gpu/check_attention_backward.py ranks  over ranks, by torch.ops.syncopate.attention
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
BOUND = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
failures: list[str] = []


def judge(name: str, made: Sequence[torch.Tensor], right: Sequence[torch.Tensor], bound: float) -> None:
    """Errors relative to the norm. Where a row sees one row, gradients of q and k are 0: they count by the others' norms."""
    least = 1e-3 * max(float(r.double().norm()) for r in right)
    errors = [
        float((m.double() - r.double()).norm() / r.double().norm().clamp_min(least))
        for m, r in zip(made, right, strict=True)
    ]
    print(f"{name}: {', '.join(f'{error:.1e}' for error in errors)}", flush=True)
    if not all(error < bound for error in errors):
        failures.append(name)


def reference(q, k, v, grad, mask, scale, grad_lse=None):
    """o and lse, and the gradients of q, k and v, in fp64. A row that sees nothing has zeros and minus infinity."""
    q, k, v = (t.double().requires_grad_() for t in (q, k, v))
    shared_by = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(shared_by, 1).transpose(-1, -2) * scale
    scores = scores.masked_fill(~mask, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    p = torch.where(mask, torch.exp(scores - lse.nan_to_num(neginf=0.0)[..., None]), 0.0)
    o = p @ v.repeat_interleave(shared_by, 1)
    outputs, grads = (
        ((o,), (grad.double(),)) if grad_lse is None else ((o, lse), (grad.double(), grad_lse.double()))
    )
    return o.detach(), lse.detach(), torch.autograd.grad(outputs, (q, k, v), grads)


def mask_of(sq, sk, causal, window, offset, cuts):
    at = torch.arange(sq, device="cuda")[:, None] + offset
    column = torch.arange(sk, device="cuda")[None]
    mask = torch.ones(sq, sk, device="cuda", dtype=torch.bool)
    if causal:
        mask &= column <= at
    if window:
        mask &= (at - column).abs() < window
    if cuts:
        inner = torch.tensor(cuts[1:-1], device="cuda")
        mask &= torch.bucketize(at, inner, right=True) == torch.bucketize(column, inner, right=True)
    return mask


def check_kernel() -> None:
    from syncopate.kernels.gluon_attention_backward_call import attend_backward, backward_tables

    def case(
        b,
        h,
        hkv,
        sq,
        sk,
        d,
        causal=False,
        window=0,
        cuts=(),
        dtype=torch.bfloat16,
        offset=None,
        lse_too=False,
    ):
        q, grad = torch.randn(2, b, h, sq, d, device="cuda").to(dtype)
        k, v = torch.randn(2, b, hkv, sk, d, device="cuda").to(dtype)
        mask = mask_of(sq, sk, causal, window, sk - sq if offset is None else offset, cuts)
        options = {"causal": causal, "window": window, "offset": offset}
        if cuts:
            some = mask.any(1)
            begin = torch.where(some, mask.int().argmax(1), 0)
            end = torch.where(some, sk - mask.flip(1).int().argmax(1), 0)
            options = {"tables": backward_tables(torch.stack([begin, end]), sk)}
        grad_lse = torch.randn(b, h, sq, device="cuda") if lse_too else None
        o, lse, right = reference(q, k, v, grad, mask, d**-0.5, grad_lse)
        options["grad_lse"] = grad_lse
        made = attend_backward(grad, q, k, v, o.to(dtype), lse.float().contiguous(), **options)
        name = f"{[b, h, hkv, sq, sk, d]}{' causal' * causal}{f' window {window}' * bool(window)}"
        judge(f"{name}{f' documents {cuts}' * bool(cuts)} {dtype}", made, right, BOUND[dtype])

    torch.manual_seed(0)
    for d in (64, 128):
        for causal in (False, True):
            for shape in (
                (1, 2, 2, 256, 256),
                (2, 4, 2, 200, 333),
                (1, 4, 1, 130, 130),
                (1, 2, 2, 1, 1),
                (1, 8, 1, 65, 1000),
            ):
                case(*shape, d, causal)
            case(1, 2, 1, 777, 333, d, causal)  # causal: rows that see nothing
            for window in (1, 70, 300):
                case(1, 2, 1, 500, 500, d, causal, window)
            for cuts in ((0, 137, 500), (0, 1, 2, 130, 300, 500), (0, 64, 64, 500)):
                case(1, 2, 1, 500, 500, d, causal, 0, cuts)
        case(1, 2, 2, 300, 900, d, True, 0, (), torch.float16, 250)
    case(1, 2, 2, 3000, 3000, 128, True)
    case(1, 4, 2, 300, 300, 64, True, lse_too=True)


def check_ranks() -> None:
    import os

    local = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(local)
    several = torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl" if several else "gloo")
    import syncopate as sy

    size = dist.get_world_size()
    group = dist.group.WORLD.group_name
    for d, h, hkv, causal, window, sharding in (
        (128, 4, 4, True, 0, "contiguous"), (128, 4, 4, True, 0, "zigzag"), (128, 4, 2, False, 0, "contiguous"),
        (64, 4, 1, True, 0, "zigzag"), (128, 4, 2, True, 200, "contiguous"), (64, 4, 2, False, 200, "contiguous"),
        (96, 4, 2, True, 0, "zigzag"), (256, 2, 2, True, 0, "contiguous"),
    ):  # fmt: skip
        rows = 512
        s = rows * size
        torch.manual_seed(5)
        q, grad = torch.randn(2, 1, h, s, d, device="cuda").to(torch.bfloat16)
        k, v = torch.randn(2, 1, hkv, s, d, device="cuda").to(torch.bfloat16)
        mask = mask_of(s, s, causal, window, 0, ())
        o, _, right = reference(q, k, v, grad, mask, d**-0.5)
        options = {"causal": causal, "window": window, "sharding": sharding}
        op = sy.ops.Attention(1, h, hkv, s, d, torch.bfloat16, **options)
        own = torch.cat([torch.arange(*r, device="cuda") for r in op.rows])
        mine = [t[:, :, own].contiguous().requires_grad_() for t in (q, k, v)]
        made, _ = torch.ops.syncopate.attention(*mine, group, **options)
        grads = torch.autograd.grad(made, mine, grad[:, :, own].contiguous())
        name = f"{size} ranks d{d} {h}/{hkv} {options}"
        judge(name, [made, *grads], [t[:, :, own] for t in (o, *right)], BOUND[torch.bfloat16])
    dist.destroy_process_group()


if __name__ == "__main__":
    SECTIONS = {"kernel": check_kernel, "ranks": check_ranks}
    for section in sys.argv[1:] or ["kernel"]:
        SECTIONS[section]()
        print(f"{section}: {'right' if not failures else f'WRONG: {failures}'}")
    sys.exit(bool(failures))
