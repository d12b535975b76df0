"""Attention over a sharded sequence on real GPUs, one process each:

    torchrun --nproc-per-node 2 tests/gpu/check_attention.py [SECTION …]

Two ranks may share one GPU. Tagged: Q is 0, so that each row is the mean of the rows of V that it sees, small integers that
differ from call to call; a range that is stale, early, missing or taken twice changes them. Sums of them are exact in any
order, so rows are compared with those of the unmodified kernel bit for bit (a GPU's division is not), and with the means
themselves to one bit of bf16. See SECTIONS at the end.
"""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import syncopate as sy  # noqa: E402
from sections import expect, judge_many, rank, run  # noqa: E402
from syncopate import ops  # noqa: E402
from syncopate.kernels.gluon_attention_call import tiling_of  # noqa: E402
from syncopate.ops.attention_rules import attention_tiling, padded_head  # noqa: E402


def attention(*shape, causal: bool = False, cu_seqlens=None, **options) -> ops.Attention:
    """The operator, whose rows are sharded so that ranks have alike much work unless `sharding` says how."""
    balanced = ("zigzag" if cu_seqlens is None else "documents") if causal else "contiguous"
    options = {"sharding": balanced} | options
    return ops.Attention(*shape, causal=causal, cu_seqlens=cu_seqlens, **options)


#: B, H, HKV, S, D and what the operator is asked for.
CASES = {
    "causal": (1, 8, 2, 2048, 128, {"causal": True}),
    "full": (2, 4, 4, 1024, 64, {"split": 2}),
    "wide": (1, 4, 4, 1024, 256, {"causal": True, "sharding": "contiguous"}),
    "ring": (1, 4, 2, 1024, 128, {"kind": "ring", "causal": True}),
    "ulysses": (1, 8, 2, 1024, 128, {"kind": "ulysses", "causal": True}),
    "window": (1, 4, 2, 2048, 64, {"causal": True, "window": 300}),
    "documents": (1, 4, 2, 2048, 128, {"causal": True, "cu_seqlens": [0, 137, 900, 2048]}),
    "ragged": (1, 2, 1, 1999, 128, {"causal": True}),
    # Heads of sizes that no tile has, and lists of documents that are filled up.
    "heads of 96": (1, 8, 2, 2048, 96, {"causal": True}),
    "heads of 80": (1, 4, 4, 1024, 80, {}),
    "heads of 48": (1, 4, 2, 1024, 48, {"kind": "ring", "causal": True}),
    "heads of 40": (1, 4, 2, 1024, 40, {"causal": True, "sharding": "contiguous"}),
    "documents filled up": (
        1,
        4,
        2,
        2048,
        128,
        {"causal": True, "cu_seqlens": [0, 137, 137, 2048, 2048, 2048]},
    ),
}


def tagged(shape: tuple[int, ...], call: int) -> torch.Tensor:
    number = torch.arange(torch.Size(shape).numel(), device="cuda") * 7919 + call * 104729
    return ((number ^ (number >> 7)) % 7).reshape(shape).to(torch.bfloat16)


def seen_by(op: ops.Attention) -> torch.Tensor:
    rows = torch.cat([torch.arange(begin, end, device="cuda") for begin, end in op.rows or [(0, 0)]])
    at = torch.arange(op.s, device="cuda")
    apart = rows[:, None] - at[None, :]
    seen = torch.ones_like(apart, dtype=torch.bool)
    if op.causal:
        seen &= apart >= 0
    if op.window:
        seen &= (apart < op.window) & (-apart < op.window)
    if op.documents:
        cuts = torch.tensor(op.documents[1:], device="cuda")
        number = [torch.bucketize(x, cuts, right=True) for x in (rows, at)]
        seen &= number[0][:, None] == number[1][None, :]
    return seen


def in_fp64(op: ops.Attention, q, k, v, seen):
    shared = op.h // op.hkv
    k, v = (t.double().repeat_interleave(shared, 1) for t in (k, v))
    scores = (q.double() @ k.transpose(-1, -2) * op.scale).masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def made(name: str, dtype: torch.dtype = torch.bfloat16, gluon: bool = False) -> ops.Attention:
    """By the plain kernel, or by the one for Hopper."""
    b, h, hkv, s, d, options = CASES[name]
    padded = padded_head(d, "cuda")
    tiling = tiling_of(padded) if gluon else attention_tiling(padded, "cuda")
    return attention(b, h, hkv, s, d, dtype, tiling=tiling, **options)


def data(op: ops.Attention, call: int) -> list[torch.Tensor]:
    torch.manual_seed(call)
    heads = (op.h, op.hkv, op.hkv)
    return [torch.randn(op.b, n, op.s, op.d, device="cuda").to(op.dtype) for n in heads]


def check_exact(op: ops.Attention, name: str, calls: int) -> None:
    seen = seen_by(op)
    counts = seen.sum(-1)
    for call in range(calls):
        v = tagged((op.b, op.hkv, op.s, op.d), call).to(op.dtype)
        q = torch.zeros(op.b, op.h, op.s, op.d, device="cuda", dtype=op.dtype)
        k = data(op, call)[1]
        o, _ = op(op.shard(q), op.shard(k), op.shard(v))
        torch.cuda.synchronize()
        alone = op.shard(op.unfused(q, k, v)[0])
        wrong = int((o != alone).any(-1).sum())
        expect(wrong == 0, f"{name}, call {call}: {wrong} tagged rows differ from the kernel's alone")
        sums = seen.double() @ v.double().repeat_interleave(op.h // op.hkv, 1)
        means = sums / counts[None, None, :, None]
        off = float(((o.double() - means).abs() / means.clamp_min(1)).max())
        expect(off < 2**-8, f"{name}, call {call}: tagged rows are {off} off")
    op.check()


def check_tagged() -> None:
    for name in CASES:
        op = made(name)
        check_exact(op, name, 3)
        op.close()


def check_random() -> None:
    for name in CASES:
        for dtype in (torch.bfloat16, torch.float16):
            op = made(name, dtype)
            q, k, v = data(op, 1)
            o, lse = op(op.shard(q), op.shard(k), op.shard(v))
            op.check()
            wanted, wanted_lse = in_fp64(op, op.shard(q), k, v, seen_by(op))
            alone = op.shard(op.unfused(q, k, v)[0]).double()
            off, alone_off = ((x - wanted).abs().max().item() for x in (o.double(), alone))
            expect(off < 2 * alone_off + 1e-3, f"{name} {dtype}: {off} off, the kernel alone {alone_off}")
            off = (lse.double() - wanted_lse).abs().max().item()
            expect(off < 1e-2, f"{name} {dtype}: lse is {off} off")
            op.close()


def check_default() -> None:
    """What the operator takes by itself: on Hopper its own kernel, for short sequences the plain one. And what is recorded."""
    hopper = torch.cuda.get_device_capability()[0] == 9
    cases = {
        "long": (1, 4, 2, 2048, 128, {"causal": True}),
        "full": (1, 2, 2, 2048, 64, {}),
        "short": (1, 4, 2, 64 * dist.get_world_size(), 128, {"causal": True, "sharding": "contiguous"}),
    }
    for name, (b, h, hkv, s, d, options) in cases.items():
        op = attention(b, h, hkv, s, d, **options)
        expect(op.is_gluon == (hopper and name != "short"), f"default {name}: gluon is {op.is_gluon}")
        expect(op.is_gluon == (not op.why_plain), f"default {name}: {op.why_plain!r}")
        check_exact(op, f"default {name}", 2)
        if name == "long":
            q, k, v = (op.shard(t) for t in data(op, 1))
            wanted = op(q, k, v)[0]
            for _ in range(2):
                recorded = op.record(q, k, v)
            expect(len(recorded.tiles) > 0, "nothing is recorded")
            expect(torch.equal(op(q, k, v)[0], wanted), "a call after a recorded one differs")
        op.close()


def check_function() -> None:
    """sy.ops.attention, of rows as sy.shard_rows gives them, by default in the order of the ranks; with gradients of o and lse."""
    size = dist.get_world_size()
    cases = (
        ({"causal": True}, 1024, 128),
        ({}, 1000, 64),
        ({"causal": True, "sharding": "zigzag"}, 384, 128),  # halves that are no whole tiles
        ({"causal": True, "sharding": "zigzag"}, 2048, 96),
        ({"causal": True, "cu_seqlens": [0, 300, 300, 512 * size, 512 * size]}, 512, 128),
    )
    for options, rows, d in cases:
        torch.manual_seed(rows + d)
        s, h = rows * size, 4
        whole = [
            torch.randn(1, n, s, d, device="cuda").bfloat16().double().requires_grad_() for n in (h, 2, 2)
        ]
        at = torch.arange(s, device="cuda")
        seen = at[:, None] >= at[None, :] if options.get("causal") else torch.ones(s, s, device="cuda") > 0
        for cut in options.get("cu_seqlens", []):
            seen = seen & ((at[:, None] >= cut) == (at[None, :] >= cut))
        scores = (whole[0] @ whole[1].repeat_interleave(2, 1).mT * d**-0.5).masked_fill(~seen, float("-inf"))
        o, lse = scores.softmax(-1) @ whole[2].repeat_interleave(2, 1), scores.logsumexp(-1)
        grads = torch.randn_like(o).bfloat16().double(), torch.randn_like(lse)
        torch.autograd.backward([o, lse], grads)

        def own(x: torch.Tensor, options=options) -> torch.Tensor:
            return sy.shard_rows(x.detach(), dim=2, sharding=options.get("sharding", "contiguous"))

        expect("sharding" in options or torch.equal(own(o), o.chunk(size, 2)[rank()]), "the ranks' order")
        for asked in (False, True):
            given = [own(x).bfloat16().requires_grad_(asked) for x in whole]
            made, made_lse = sy.ops.attention(*given, **options)
            off = float((made.double() - own(o)).norm() / own(o).norm())
            expect(off < 1e-2, f"{options}, {rows} rows: o is {off} off")
            expect(torch.allclose(made_lse.double(), own(lse), atol=1e-2), f"{options}: lse is off")
        torch.autograd.backward([made, made_lse], [own(grads[0]).bfloat16(), own(grads[1]).float()])
        for one, x in zip(given, whole, strict=True):
            off = float((one.grad.double() - own(x.grad)).norm() / own(x.grad).norm())
            expect(off < 2e-2, f"{options}, {rows} rows: a gradient is {off} off")
        again = sy.unshard_rows(own(o), dim=2, sharding=options.get("sharding", "contiguous"))
        expect(torch.equal(again, o), f"{options}: what is put together again differs")
    sy.close()


def check_gluon_documents() -> None:
    """Documents by the kernel for Hopper, causal and not."""
    for cuts in ([0, 137, 900, 2048], [0, 1024, 2048], [0, 2000, 2048]):
        for causal in (True, False):
            op = attention(1, 4, 2, 2048, 128, causal=causal, cu_seqlens=cuts, tiling=tiling_of(128))
            check_gluon_op(op, f"gluon documents {cuts} {causal}")
            op.close()


def check_passes(gluon: bool = True) -> None:
    """K and V of few rows at a time, and rows that are no whole tiles, by the kernel for Hopper; and by the plain one."""
    cases = {
        "bounded ring": (2048, {"causal": True, "kind": "ring", "bounded": 700}),
        "bounded full": (2048, {"bounded": 1024}),
        "bounded ragged": (1999, {"causal": True, "bounded": 640, "window": 300}),
        "bounded documents": (2048, {"causal": True, "bounded": 700, "cu_seqlens": [0, 137, 900, 2048]}),
        "even": (2002, {"causal": True, "even": True}),
        "short": (37, {"causal": True}),
        "one row": (1, {}),
    }
    for name, (s, options) in cases.items():
        for d in (128, 64, 256) if name == "bounded ring" else (128,):
            tiling = tiling_of(d) if gluon and s > 512 else attention_tiling(d, "cuda")
            op = attention(1, 4, 2, s, d, tiling=tiling, **options)
            expect(op.passes is not None, f"{name}: it is not done in passes")
            check_means(op, f"{name} {d} {op.passes.count} passes, gluon {op.is_gluon}")
            op.close()


def check_passes_plain() -> None:
    check_passes(gluon=False)


def check_means(op: ops.Attention, name: str) -> None:
    """Passes add in another order than the kernel alone, so tagged rows are compared with the means themselves."""
    seen = seen_by(op)
    counts = seen.sum(-1)
    for call in range(3):
        v = tagged((op.b, op.hkv, op.s, op.d), call)
        q = torch.zeros(op.b, op.h, op.s, op.d, device="cuda", dtype=op.dtype)
        o, _ = op(op.shard(q), op.shard(data(op, call)[1]), op.shard(v))
        op.check()
        sums = seen.double() @ v.double().repeat_interleave(op.h // op.hkv, 1)
        means = sums / counts[None, None, :, None]
        off = float(((o.double() - means).abs() / means.clamp_min(1)).max()) if op.num_rows else 0.0
        expect(off < 2**-8, f"{name}, call {call}: tagged rows are {off} off")
    q, k, v = data(op, 1)
    for _ in range(20):
        o, lse = op(op.shard(q), op.shard(k), op.shard(v))
    op.check()
    wanted, wanted_lse = in_fp64(op, op.shard(q), k, v, seen)
    alone = op.shard(op.unfused(q, k, v)[0]).double()
    if op.num_rows:
        off, alone_off = ((x - wanted).abs().max().item() for x in (o.double(), alone))
        expect(off < 2 * alone_off + 1e-3, f"{name}: {off} off, the kernel alone {alone_off}")
        off = (lse.double() - wanted_lse).abs().max().item()
        expect(off < 1e-3, f"{name}: lse is {off} off")


def check_documents_compile_once() -> None:
    """Other documents, by default the kernel for Hopper: no new compilation."""
    import triton

    compiled = []
    triton.knobs.runtime.jit_post_compile_hook = lambda **kwargs: compiled.append(kwargs) and None
    found = []
    for cut in (137, 900, 1500, 640):
        # Of fp16, as no other section's documents are: the first compiles.
        op = attention(1, 4, 2, 2048, 128, torch.float16, causal=True, cu_seqlens=[0, cut, 2048])
        expect(op.is_gluon, f"documents by default: {op.why_plain}")
        check_exact(op, f"documents {cut}", 1)
        found.append(len(compiled))
        op.close()
    triton.knobs.runtime.jit_post_compile_hook = None
    expect(found[0] > 0 and found[-1] == found[0], f"compilations after each: {found}")


def check_gluon_op(op: ops.Attention, name: str) -> None:
    check_exact(op, name, 3)
    q, k, v = data(op, 1)
    o, lse = op(op.shard(q), op.shard(k), op.shard(v))
    op.check()
    wanted, wanted_lse = in_fp64(op, op.shard(q), k, v, seen_by(op))
    alone = op.shard(op.unfused(q, k, v)[0]).double()
    off, alone_off = ((x - wanted).abs().max().item() for x in (o.double(), alone))
    expect(off < 2 * alone_off + 1e-3, f"{name}: {off} off, the kernel alone {alone_off}")
    off = (lse.double() - wanted_lse).abs().max().item()
    expect(off < 1e-3, f"{name}: lse is {off} off")


def check_places() -> None:
    """Operands of many strides and alignments, which the kernels read and store where they are."""

    def by_row(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    def odd(x: torch.Tensor) -> torch.Tensor:
        room = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:]
        return room.view(x.shape).copy_(x)

    def padded(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=x.device)[
            ..., : x.shape[-1]
        ].copy_(x)

    for gluon in (True, False):
        for name in ("causal", "ring", "ragged"):
            op = made(name, gluon=gluon)
            q, k, v = (op.shard(t) for t in data(op, 1))
            wanted, wanted_lse = op(q, k, v)
            op.check()
            for layout in (by_row, odd, padded, torch.clone):
                out = op.empty_outputs()
                out = (layout(out[0]), out[1])
                o, lse = op(layout(q), layout(k), layout(v), out)
                op.check()
                what = f"{name}, gluon {gluon}, {layout.__name__}"
                expect(torch.equal(o, wanted), f"{what}: o differs")
                expect(torch.equal(lse, wanted_lse), f"{what}: lse differs")
            op.close()


def check_gluon() -> None:
    """The kernel for Hopper, tagged and random."""
    for name in [name for name in CASES if not name.startswith("documents")]:
        op = made(name, gluon=True)
        check_gluon_op(op, f"gluon {name}")
        op.close()


def check_long() -> None:
    """16,384 rows on each rank, against fp64 at sampled rows."""
    from torch.distributed import get_world_size

    for causal, d in ((True, 128), (False, 64)):
        op = attention(1, 2, 1, 16384 * get_world_size(), d, causal=causal)
        q, k, v = data(op, 1)
        own = op.shard(q)
        o, lse = op(own, op.shard(k), op.shard(v))
        op.check()
        alone, _ = op.unfused(q, k, v)
        rows = torch.cat([torch.arange(begin, end, device="cuda") for begin, end in op.rows])
        at = torch.linspace(0, len(rows) - 1, 128, device="cuda").long()
        seen = torch.ones(len(at), op.s, dtype=torch.bool, device="cuda")
        if causal:
            seen = torch.arange(op.s, device="cuda")[None, :] <= rows[at][:, None]
        wanted, wanted_lse = in_fp64(op, own[:, :, at], k, v, seen)
        off = (o[:, :, at].double() - wanted).abs().max().item()
        alone_off = (alone[:, :, rows[at]].double() - wanted).abs().max().item()
        expect(off < 2 * alone_off + 1e-5, f"long {causal} {d}: {off} off, the kernel alone {alone_off}")
        off = (lse[:, :, at].double() - wanted_lse).abs().max().item()
        expect(off < 1e-3, f"long {causal} {d}: lse is {off} off")
        op.close()


def check_queued(gluon: bool = False) -> None:
    """1,000 calls one behind another, ranks late in turns; the last is looked at."""
    op = made("causal", gluon=gluon)
    q, k, v = (op.shard(t) for t in data(op, 1))
    wanted, _ = op(q, k, v)
    for call in range(1000):
        if call % 100 == rank():
            time.sleep(0.01)
        o, _ = op(q, k, v)
    op.check()
    expect(torch.equal(o, wanted), "the last of 1,000 calls differs from the first")
    check_exact(op, "after 1,000 calls", 2)
    op.close()


#: As CASES, and whether by the kernel for Hopper.
MANY_CASES = {
    "causal": (1, 4, 2, 1024, 128, {"causal": True}, True),
    "plain causal": (1, 4, 2, 1024, 128, {"causal": True}, False),
    "ring": (1, 4, 2, 1024, 128, {"kind": "ring", "causal": True}, True),
    "ulysses": (1, 8, 2, 1024, 128, {"kind": "ulysses", "causal": True}, True),
    "bounded": (1, 4, 2, 1024, 128, {"kind": "ring", "causal": True, "bounded": 400}, True),
}


def check_many(name: str) -> None:
    """MANY queued calls of a case, of four inputs in turn and with stragglers: all of an input have the same bits, which are
    right as far as fp64 tells."""
    b, h, hkv, s, d, options, gluon = MANY_CASES[name]
    tiling = tiling_of(d) if gluon else attention_tiling(d, "cuda")
    op = attention(b, h, hkv, s, d, tiling=tiling, **options)
    seen, out = seen_by(op), op.empty_outputs()
    calls, right = [], []
    for number in range(4):
        q, k, v = data(op, number)
        own = [op.shard(t).contiguous() for t in (q, k, v)]
        calls.append(lambda own=own: op(*own, out))
        right.append([made.clone() for made in calls[-1]()])
        op.check()
        o, lse = right[-1]
        wanted, wanted_lse = in_fp64(op, own[0], k, v, seen)
        alone = op.shard(op.unfused(q, k, v)[0]).double()
        off, alone_off = ((x - wanted).abs().max().item() for x in (o.double(), alone))
        expect(off < 2 * alone_off + 1e-3, f"many {name}: {off} off, the kernel alone {alone_off}")
        off = (lse.double() - wanted_lse).abs().max().item()
        expect(off < 1e-2, f"many {name}: lse is {off} off")
    judge_many(op, calls, right, f"attention, {name}")
    op.close()


def check_graphs(gluon: bool = False) -> None:
    op = made("causal", gluon=gluon)
    q, k, v = (op.shard(t) for t in data(op, 1))
    out = op.empty_outputs()
    for _ in range(3):
        op(q, k, v, out)
    torch.cuda.synchronize()
    wanted = out[0].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op(q, k, v, out)
    for call in range(10):
        out[0].fill_(float("nan"))
        graph.replay()
        if call % 3 == 0:
            op(q, k, v, out)
    op.check()
    expect(torch.equal(out[0], wanted), "a replayed call differs")
    op.close()


def check_gluon_again() -> None:
    """The kernel for Hopper, called 1,000 times and replayed."""
    check_queued(gluon=True)
    check_graphs(gluon=True)


SECTIONS = {
    "tagged": check_tagged,
    "random": check_random,
    "default": check_default,
    "function": check_function,
    "long": check_long,
    "gluon": check_gluon,
    "gluon_documents": check_gluon_documents,
    "gluon_again": check_gluon_again,
    "places": check_places,
    "documents_compile_once": check_documents_compile_once,
    "passes": check_passes,
    "passes_plain": check_passes_plain,
    "queued": check_queued,
    "graphs": check_graphs,
    **{f"many {name}": functools.partial(check_many, name) for name in MANY_CASES},
}

if __name__ == "__main__":
    sys.exit(run(SECTIONS))
