"""The backward of attention on Hopper GPUs against gradients in fp64.

python tests/gpu/check_attention_backward.py kernel                      one GPU: heads, masks, documents, ragged lengths
python tests/gpu/check_attention_backward.py plain                       one GPU: the plain kernels, of which dQ is deterministic
python tests/gpu/check_attention_backward.py alone                       one GPU: an operator of one rank, by Hopper's kernel
torchrun --nproc-per-node N tests/gpu/check_attention_backward.py ranks  over ranks, by torch.ops.syncopate.attention
torchrun … kinds        every kind, sharding, head size and mask; deterministic ones bit for bit as unfused; kept K and V
torchrun … unequal      ranks that hold different numbers of rows, by sy.ops.attention
torchrun … queued       1,000 forwards and backwards one behind another, each rank late in turns
torchrun … captured     forward and backward in a CUDA graph
torchrun … training     sy.context_parallel around a small model: losses over 50 steps, checkpointed, compiled
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

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
            options = {"tables": backward_tables(torch.stack([begin, end]), sk, d)}
        grad_lse = torch.randn(b, h, sq, device="cuda") if lse_too else None
        o, lse, right = reference(q, k, v, grad, mask, d**-0.5, grad_lse)
        options["grad_lse"] = grad_lse
        made = attend_backward(grad, q, k, v, o.to(dtype), lse.float().contiguous(), **options)
        name = f"{[b, h, hkv, sq, sk, d]}{' causal' * causal}{f' window {window}' * bool(window)}"
        judge(f"{name}{f' documents {cuts}' * bool(cuts)} {dtype}", made, right, BOUND[dtype])

    torch.manual_seed(0)
    for d in (64, 128, 256):
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
    for d in (128, 256):
        case(1, 2, 2, 3000, 3000, d, True)
    case(1, 4, 2, 300, 300, 64, True, lse_too=True)


def check_plain() -> None:
    """The kernels that other GPUs and other heads take, on a group of one rank."""
    from syncopate.ops import attention_backward

    with mock.patch.object(attention_backward, "HOPPER", 0):  # as on a GPU of no such kind
        judge_plain()


def judge_plain() -> None:
    from syncopate.ops import AttentionBackward

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(1)
    for d in (64, 128, 256):
        for deterministic in (False, True):
            for causal, s in ((True, 500), (False, 333)):
                given = {"causal": causal, "device": "cuda"}
                op = AttentionBackward(1, 4, 2, s, d, deterministic=deterministic, **given)
                q, grad = torch.randn(2, 1, 4, s, d, device="cuda").bfloat16()
                k, v = torch.randn(2, 1, 2, s, d, device="cuda").bfloat16()
                o, lse, right = reference(q, k, v, grad, mask_of(s, s, causal, 0, 0, ()), d**-0.5)
                made = op(grad, None, q, k, v, o.bfloat16(), lse.float().contiguous())
                judge(
                    f"plain d{d} causal={causal} deterministic={deterministic}",
                    made,
                    right,
                    BOUND[torch.bfloat16],
                )
                if deterministic:
                    again = op(grad, None, q, k, v, o.bfloat16(), lse.float().contiguous())
                    if not all(map(torch.equal, made, again)):
                        failures.append(f"plain d{d}: other bits in the second call")
                op.close()
    dist.destroy_process_group()


def check_alone() -> None:
    import syncopate as sy

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(1)
    for d, h, hkv, s, causal, window, cuts in (
        (128, 8, 1, 1024, True, 0, ()), (128, 8, 2, 700, False, 0, ()), (64, 4, 4, 500, True, 70, ()), (64, 8, 4, 333, False, 70, ()),
        (96, 4, 2, 640, True, 0, ()), (128, 4, 2, 900, True, 0, (0, 137, 900)), (64, 4, 1, 900, False, 0, (0, 1, 300, 900)),
    ):  # fmt: skip
        options = {"causal": causal, "window": window, "cu_seqlens": list(cuts) or None}
        op = sy.ops.AttentionBackward(1, h, hkv, s, d, device="cuda", **options)
        q, grad = torch.randn(2, 1, h, s, d, device="cuda").bfloat16()
        k, v = torch.randn(2, 1, hkv, s, d, device="cuda").bfloat16()
        grad_lse = torch.randn(1, h, s, device="cuda")
        o, lse, right = reference(q, k, v, grad, mask_of(s, s, causal, window, 0, cuts), d**-0.5, grad_lse)
        made = op(grad, grad_lse, q, k, v, o.bfloat16(), lse.float().contiguous())
        name = f"alone d{d} {h}/{hkv} {s} {options}"
        judge(name, made, right, BOUND[torch.bfloat16])
        if not op.is_alone or op.prepared:
            failures.append(f"{name}: it is a program")
        leaves = [one.clone().requires_grad_() for one in (q, k, v)]
        by_function = sy.ops.attention(*leaves, **options)
        made = torch.autograd.grad(by_function, leaves, (grad, grad_lse))
        judge(f"{name} by the function", made, right, BOUND[torch.bfloat16])
        op.close()
    sy.close()
    dist.destroy_process_group()


def joined() -> None:
    import os

    local = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(local)
    several = torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl" if several else "gloo")


def check_kinds() -> None:
    joined()
    import syncopate as sy

    size, rows = dist.get_world_size(), 384
    for kind, sharding, d, h, hkv, causal, cuts in (
        ("all_gather", "contiguous", 128, 4, 4, True, ()), ("all_gather", "zigzag", 128, 8, 1, True, ()),
        ("all_gather", "contiguous", 64, 4, 2, False, ()), ("all_gather", "documents", 128, 4, 2, True, (0, 1, 130, 700)),
        ("ring", "zigzag", 128, 4, 2, True, ()), ("ring", "contiguous", 64, 4, 4, False, ()),
        ("double_ring", "zigzag", 128, 4, 2, True, ()), ("ulysses", "contiguous", 128, 8, 8, True, ()),
        ("ulysses", "zigzag", 64, 8, 8, True, ()), ("all_gather", "zigzag", 256, 2, 2, True, ()),
        ("ring", "zigzag", 96, 4, 2, True, ()), ("ulysses in 2 parts", "zigzag", 128, 16, 8, True, ()),
        ("ulysses in 2 parts", "contiguous", 64, 8, 8, False, ()), ("ulysses_ring", "zigzag", 128, 8, 4, True, ()),
        ("ulysses_ring", "contiguous", 128, 4, 4, True, ()),
    ):  # fmt: skip
        if kind == "ulysses_ring" and size % 4:
            continue  # it needs groups
        s = rows * size
        kind, *parts = kind.split(" in ")
        documents = [*cuts, s] if cuts else None
        for deterministic in (False, True):
            torch.manual_seed(5)
            q, grad = torch.randn(2, 1, h, s, d, device="cuda").bfloat16()
            k, v = torch.randn(2, 1, hkv, s, d, device="cuda").bfloat16()
            mask = mask_of(s, s, causal, 0, 0, documents or ())
            o, lse, right = reference(q, k, v, grad, mask, d**-0.5)
            options = {
                "causal": causal,
                "kind": kind,
                "sharding": sharding,
                "cu_seqlens": documents,
                "even": True,
                "parts": 2 if parts else 0,
                "inner": 2 if kind == "ulysses_ring" else 0,
            }
            op = sy.ops.AttentionBackward(1, h, hkv, s, d, deterministic=deterministic, **options)
            own = torch.cat([torch.arange(*r, device="cuda") for r in op.rows])
            mine = [t[:, :, own].contiguous() for t in (grad, q, k, v, o.bfloat16(), lse.float())]
            given = (mine[0], None, *mine[1:])
            made = op(*given)
            op.check()
            name = f"{size} ranks {' in '.join((kind, *parts))} {sharding} d{d} {h}/{hkv} causal={causal} {documents} deterministic={deterministic}"
            judge(
                f"{name} {'gluon' if op.is_gluon else 'plain'}",
                made,
                [t[:, :, own] for t in right],
                BOUND[torch.bfloat16],
            )
            if deterministic and not all(map(torch.equal, made, op(*given))):
                failures.append(f"{name}: other bits in the second call")
            if (
                deterministic
                and not op.exchanges
                and not torch.equal(made[0], op.unfused(mine[0], None, mine[1], k, v, *mine[4:])[0])
            ):
                failures.append(f"{name}: dq has other bits than unfused")
            op.close()
            if op.exchanges:
                continue
            kept = sy.ops.AttentionBackward(
                1, h, hkv, s, d, deterministic=deterministic, kept=True, **options
            )
            made = kept(mine[0], None, mine[1], k, v, *mine[4:])
            judge(f"{name} kept", made, [t[:, :, own] for t in right], BOUND[torch.bfloat16])
            kept.close()
    dist.destroy_process_group()


def check_unequal() -> None:
    joined()
    import syncopate as sy

    size, h, hkv, d = dist.get_world_size(), 4, 2, 128
    for rows in (128, 300):
        for kind, sharding, causal in (("all_gather", "zigzag", True), ("ring", "contiguous", False)):
            s = rows * size - 1
            torch.manual_seed(9)
            q, grad = torch.randn(2, 1, h, s, d, device="cuda").bfloat16()
            k, v = torch.randn(2, 1, hkv, s, d, device="cuda").bfloat16()
            _, _, right = reference(q, k, v, grad, mask_of(s, s, causal, 0, 0, ()), d**-0.5)
            *given, of_o = (sy.shard_rows(t, dim=2, sharding=sharding) for t in (q, k, v, grad))
            leaves = [one.contiguous().requires_grad_() for one in given]
            o, _ = sy.ops.attention(*leaves, causal=causal, kind=kind, sharding=sharding, length=s)
            o.backward(of_o)
            wanted = [sy.shard_rows(one, dim=2, sharding=sharding) for one in right]
            made = [one.grad for one in leaves]
            judge(f"{size} ranks, {s} rows, {kind} {sharding}", made, wanted, BOUND[torch.bfloat16])
    sy.close()
    dist.destroy_process_group()


def check_queued() -> None:
    joined()
    import syncopate as sy

    size, rank, rows, h, d = dist.get_world_size(), dist.get_rank(), 256, 4, 128
    group = dist.group.WORLD.group_name
    s = rows * size
    torch.use_deterministic_algorithms(True)
    for kind in ("all_gather", "ring", "ulysses"):
        torch.manual_seed(3)
        q, k, v, grad = torch.randn(4, 1, h * size, s, d, device="cuda").bfloat16()
        own = [sy.shard_rows(t, dim=2, sharding="zigzag").contiguous() for t in (q, k, v, grad)]
        # Three sets of data in turns: what is stale, or early, is of another one.
        sets = [[t * factor for t in own] for factor in (1.0, 0.5, -1.0)]
        first: list = [None] * 3
        wrong = torch.zeros((), device="cuda", dtype=torch.int64)
        for call in range(1000):
            if call % (7 * size) == rank:
                torch.cuda._sleep(2_000_000)
            which = call % 3
            given = [t.detach().requires_grad_() for t in sets[which][:3]]
            o, _ = torch.ops.syncopate.attention(*given, group, causal=True, kind=kind, sharding="zigzag")
            made = [o, *torch.autograd.grad(o, given, sets[which][3])]
            if first[which] is None:
                first[which] = made
            else:
                wrong += sum((a != b).any().long() for a, b in zip(made, first[which], strict=True))
        if int(wrong):
            failures.append(f"{kind}: {int(wrong)} results differ from the first ones")
        print(f"{kind}: 1000 forwards and backwards, {int(wrong)} differ", flush=True)
    sy.close()
    dist.destroy_process_group()


def check_captured() -> None:
    joined()
    import syncopate as sy

    size, rows, h, d = dist.get_world_size(), 512, 8, 128
    group = dist.group.WORLD.group_name
    torch.use_deterministic_algorithms(True)
    shapes = [(1, h, rows, d)] * 4
    q, k, v, grad = (torch.randn(shape, device="cuda").bfloat16() for shape in shapes)
    given = [t.requires_grad_() for t in (q, k, v)]

    def call() -> list:
        o, _ = torch.ops.syncopate.attention(*given, group, causal=True, sharding="zigzag")
        return [o, *torch.autograd.grad(o, given, grad)]

    # Leaves know the stream of their first backward for as long as a graph of torch's holds them.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        right = [t.detach().clone() for t in call()]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        made = call()
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    if not all(map(torch.equal, made, right)):
        failures.append(f"{size} ranks: a replay differs")
    sy.close()
    dist.destroy_process_group()


def check_training() -> None:
    """Losses of sy.context_parallel are torch's on the whole sequence."""
    joined()
    torch.use_deterministic_algorithms(False)  # as another section may have left it
    import syncopate as sy

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
    from context_parallel_model import losses

    size = dist.get_world_size()
    for checkpointed, compiled in ((False, False), (True, False), (False, True)):
        whole, made = losses(50, 256, size, "cuda", checkpointed, compiled)
        each = [abs(a - b) for a, b in zip(whole, made, strict=True)]
        apart = max(*each[:20], sum(each) / len(each))  # as on host (host_training.py)
        print(
            f"checkpointed={checkpointed} compiled={compiled}: losses {whole[0]:.3f} … {whole[-1]:.3f}, {apart:.1e} apart"
        )
        if not apart < 2e-2:
            failures.append(f"checkpointed={checkpointed} compiled={compiled}: {apart} apart")
    print(sy.report())
    sy.close()
    dist.destroy_process_group()


def check_ranks() -> None:
    joined()
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
    SECTIONS = {
        "kernel": check_kernel,
        "plain": check_plain,
        "alone": check_alone,
        "ranks": check_ranks,
        "kinds": check_kinds,
        "unequal": check_unequal,
        "queued": check_queued,
        "captured": check_captured,
        "training": check_training,
    }
    for section in sys.argv[1:] or ["kernel"]:
        SECTIONS[section]()
        print(f"{section}: {'right' if not failures else f'WRONG: {failures}'}")
    sys.exit(bool(failures))
