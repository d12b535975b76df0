"""`sy.ops.attention` on host ranks in Triton's interpreter; run by test_attention.py.

    host_attention.py RANKS CASE...          each case as in CASES, "queued", "other documents", "places" or "heap", or of the grid:
                                             "KIND SHARDING full|causal", "KIND SHARDING causal bounded"

Each case is called with fresh data, transfers late at random and in any order. Twice with tagged numbers: Q is 0, so that
each row is the mean of the rows of V that it sees, small integers that differ from call to call: a range of KV that is
stale, early, missing or taken twice changes the result, which is compared bit for bit. Then with random data, against
softmax in fp64. Exits 1 with the first thing that is wrong.
"""

import os
import sys
import time
from itertools import pairwise
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from host_script import expect, on_ranks  # noqa: E402
from syncopate import (  # noqa: E402
    ops,
    plans,
    ranks,  # noqa: E402
)
from syncopate.call import cache  # noqa: E402
from syncopate.face.rows import rows_of_ranks  # noqa: E402
from syncopate.group import of_folder  # noqa: E402
from syncopate.ops.attention_rules import SMALL  # noqa: E402

D = 16
#: B, H, HKV, S and what the operator is asked for; causal ones are sharded so that ranks have alike much work, unless they say
#: how. `d`: the head size.
CASES = {
    "all_gather causal": (1, 2, 1, 128, {"causal": True}),
    "all_gather full": (2, 2, 2, 64, {"split": 2}),
    "all_gather causal contiguous": (1, 2, 2, 96, {"causal": True, "sharding": "contiguous"}),
    "all_gather ragged": (1, 2, 1, 91, {"causal": True}),
    "all_gather ragged full": (1, 1, 1, 75, {}),
    "ring": (1, 2, 1, 96, {"kind": "ring"}),
    "ring causal": (1, 2, 1, 128, {"kind": "ring", "causal": True, "split": 2}),
    "double_ring": (1, 1, 1, 128, {"kind": "double_ring", "inner": 2}),
    "double_ring causal": (1, 2, 1, 128, {"kind": "double_ring", "inner": 2, "causal": True}),
    "ulysses": (2, 4, 2, 64, {"kind": "ulysses"}),
    "ulysses causal": (1, 8, 1, 96, {"kind": "ulysses", "causal": True}),
    "ulysses_ring": (1, 4, 2, 128, {"kind": "ulysses_ring", "inner": 2, "causal": True}),
    "parts": (1, 4, 4, 128, {"causal": True, "kind": "all_gather", "parts": 2}),
    "parts ring": (1, 4, 2, 96, {"kind": "ring", "parts": 2, "split": 2}),
    "parts double_ring": (1, 4, 2, 128, {"kind": "double_ring", "inner": 2, "causal": True, "parts": 2}),
    "parts ulysses": (1, 12, 12, 48, {"kind": "ulysses", "causal": True, "parts": 2}),
    "parts ulysses_ring": (1, 8, 4, 128, {"kind": "ulysses_ring", "inner": 2, "parts": 2}),
    "window": (1, 2, 1, 128, {"causal": True, "window": 24}),
    "documents": (1, 2, 1, 150, {"causal": True, "cu_seqlens": [0, 37, 41, 120, 150]}),
    "documents full": (1, 1, 1, 128, {"cu_seqlens": [0, 50, 128], "kind": "ring"}),
    "documents window": (1, 1, 1, 128, {"causal": True, "cu_seqlens": [0, 50, 128], "window": 20}),
    "window full": (1, 1, 1, 128, {"window": 20, "sharding": "contiguous"}),
    # Of a length that leaves ranks rows of different numbers.
    "zigzag by many": (1, 2, 1, 283, {"causal": True}),
    "contiguous by many": (1, 2, 2, 283, {"causal": True, "sharding": "contiguous", "split": 2}),
    "documents by many": (1, 2, 1, 299, {"causal": True, "cu_seqlens": [0, 37, 41, 200, 299]}),
    "window by many": (1, 2, 1, 283, {"causal": True, "window": 50}),
    "full by many": (1, 1, 1, 139, {}),
    "ring by many": (1, 2, 1, 283, {"kind": "ring", "causal": True}),
    "double_ring by many": (1, 1, 1, 269, {"kind": "double_ring", "causal": True}),
    "ulysses by eight": (1, 8, 4, 91, {"kind": "ulysses", "sharding": "contiguous"}),
    "ulysses by many": (1, 24, 4, 128, {"kind": "ulysses", "sharding": "contiguous"}),
    "ulysses by five": (1, 5, 5, 91, {"kind": "ulysses", "causal": True, "sharding": "contiguous"}),
    # K and V of few rows at a time.
    "bounded": (1, 2, 1, 96, {"kind": "ring", "bounded": 40}),
    "bounded causal": (1, 2, 1, 91, {"kind": "ring", "causal": True, "bounded": True}),
    "bounded window": (1, 2, 1, 91, {"causal": True, "window": 30, "bounded": 40, "kind": "all_gather"}),
    "bounded documents": (
        1,
        2,
        1,
        150,
        {"causal": True, "cu_seqlens": [0, 37, 41, 120, 150], "bounded": 80, "kind": "double_ring"},
    ),
    # Of fewer rows than ranks have tiles, or are.
    "short": (1, 2, 1, 13, {"causal": True}),
    "very short": (1, 2, 1, 2, {"causal": True}),
    "short ring": (1, 2, 2, 20, {"kind": "ring", "window": 7}),
    "short double_ring": (1, 2, 1, 21, {"kind": "double_ring", "causal": True}),
    "short ulysses": (1, 24, 12, 20, {"kind": "ulysses", "causal": True}),
    "short ulysses_ring": (1, 2, 1, 45, {"kind": "ulysses_ring", "inner": 2, "sharding": "contiguous"}),
    "even ulysses_ring": (
        1,
        2,
        1,
        144,
        {"kind": "ulysses_ring", "inner": 2, "sharding": "contiguous", "even": True},
    ),
    "short documents": (1, 2, 1, 19, {"causal": True, "cu_seqlens": [0, 5, 19]}),
    # Lists of documents that are filled up, and heads of sizes that no tile has.
    "documents filled up": (
        1,
        2,
        1,
        96,
        {"causal": True, "cu_seqlens": [0, 0, 37, 37, 80, 96, 96, 96], "d": 40},
    ),
    "heads of 24": (1, 2, 1, 64, {"causal": True, "d": 24, "kind": "ring"}),
    "heads of 5": (2, 2, 2, 48, {"d": 5}),
    "heads of 96": (1, 2, 1, 48, {"causal": True, "d": 96, "kind": "ulysses"}),
    "heads of 80 bounded": (1, 2, 1, 48, {"causal": True, "d": 80, "bounded": True}),
    "even": (1, 2, 1, 104, {"causal": True, "even": True}),
    "ulysses_ring by many": (1, 4, 2, 283, {"kind": "ulysses_ring", "inner": 2, "causal": True}),
}
DOCUMENTS = (0, 37, 41, 120)  # and the end of the sequence


def of_grid(name: str, ranks: int) -> tuple[int, int, int, int, dict]:
    """A case of the grid: lengths that leave ranks different numbers of rows."""
    kind, sharding, mask, *bounded = name.split()
    s = 40 * ranks + 91 if sharding == "documents" else 33 * ranks + 11
    options = {"kind": kind, "sharding": sharding, "causal": mask == "causal"}
    heads = ranks if kind == "ulysses" else 2
    if kind == "ulysses_ring":
        options["inner"] = heads = 2 if ranks % 2 == 0 else ranks
    if sharding == "documents":
        options["cu_seqlens"] = [*DOCUMENTS, s]
    if bounded:
        options["bounded"] = True
    return 1, heads, 1, s, options


QUEUED = 20  # calls one behind another, nobody waiting for anybody in between


def seen_by(rows: torch.Tensor, s: int, causal: bool, window: int, documents: list[int]) -> torch.Tensor:
    """Which of s rows each of these sees."""
    apart = rows[:, None] - torch.arange(s)[None, :]
    seen = torch.ones_like(apart, dtype=torch.bool)
    if causal:
        seen &= apart >= 0
    if window:
        seen &= (apart < window) & (-apart < window)
    for begin, end in pairwise(documents):
        inside = (torch.arange(s) >= begin) & (torch.arange(s) < end)
        own = (rows >= begin) & (rows < end)
        seen &= own[:, None] == inside[None, :]
    return seen


def in_fp64(q, k, v, scale, seen):
    """o and lse of rows q; `seen` [rows, s]."""
    k, v = (t.double().repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = (q.double() @ k.transpose(-1, -2) * scale).masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def tagged(shape, call: int) -> torch.Tensor:
    """Integers from 0 to 6, other ones in each call."""
    number = torch.arange(torch.Size(shape).numel(), dtype=torch.int64) * 7919 + call * 104729
    return ((number ^ (number >> 7)) % 7).reshape(shape).to(torch.bfloat16)


def random(shape, *seed: int) -> torch.Tensor:
    number = sum(n * 7919**i for i, n in enumerate(seed))
    return torch.randn(shape, generator=torch.Generator().manual_seed(number)).to(torch.bfloat16)


def check_case(name: str, place: ranks.Place, group) -> None:
    b, h, hkv, s, options = CASES[name] if name in CASES else of_grid(name, place.size)
    usual = "contiguous"
    if options.get("causal"):
        usual = "documents" if "cu_seqlens" in options else "zigzag"
    options = {"sharding": usual} | options
    d = options.pop("d", D)
    if options["sharding"] == "documents":  # several tiles a rank also of few rows
        rows = plans.shard_rows(s, place.size, "documents", SMALL, options.get("cu_seqlens", ()))
        options |= {"rows": rows} if all(rows) else {}
    op = ops.Attention(b, h, hkv, s, d, torch.bfloat16, group, host_delay=2e-3, seed=place.rank, **options)
    rows = torch.cat([torch.arange(begin, end) for begin, end in op.rows or [(0, 0)]])
    seen = seen_by(rows, s, op.causal, op.window, op.documents)
    for call in range(3):
        exact = call < 2
        q = torch.zeros(b, h, s, d, dtype=torch.bfloat16) if exact else random((b, h, s, d), call, 1)
        k = random((b, hkv, s, d), call, 2)
        v = tagged((b, hkv, s, d), call) if exact else random((b, hkv, s, d), call, 3)
        o, lse = op(op.shard(q), op.shard(k), op.shard(v))
        op.check()
        expected, expected_lse = in_fp64(op.shard(q), k, v, op.scale, seen)
        where = f"{name}, call {call}, rank {place.rank}"
        if exact:
            counts = seen.sum(-1)[None, None, :, None]
            sums = (expected * counts).round().float()
            expect(torch.equal(o, (sums / counts).to(o.dtype)), f"{where}: tagged rows differ")
        error = float((o.double() - expected).abs().max()) if len(rows) else 0.0
        expect(error < 2e-2, f"{where}: o is {error} off")
        error = float((lse.double() - expected_lse).abs().max()) if len(rows) else 0.0
        expect(error < 1e-3, f"{where}: lse is {error} off")
    op.close()


def check_places(group) -> None:
    """Operands of other strides and alignments, which tiles read and store where they are."""

    def by_row(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    def odd(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)

    b, h, hkv, s = 2, 2, 1, 24 * group.size + 11
    op = ops.Attention(b, h, hkv, s, D, torch.bfloat16, group, causal=True)
    expect(op.is_placed and "Q" not in op.prepare().tensors, "Q and O go through the heap")
    own = [op.shard(random((b, heads, s, D), heads, n)) for n, heads in enumerate((h, hkv, hkv))]
    wanted, wanted_lse = op(*own)
    for layout in (by_row, odd, torch.clone):
        o, lse = op.empty_outputs()
        o, lse = op(*map(layout, own), out=(layout(o), lse))
        expect(torch.equal(o, wanted) and torch.equal(lse, wanted_lse), f"{layout.__name__}: o or lse differ")
    op.check()
    op.close()


def check_queued(place: ranks.Place, group) -> None:
    """Calls one behind another, each rank late in turns, results looked at when all are made: each is of its own call's
    rows."""
    b, h, hkv, s = 1, 1, 1, 16 * place.size + 11
    late = {"host_delay": 2e-4, "seed": 97 * place.rank}
    op = ops.Attention(b, h, hkv, s, D, torch.bfloat16, group, causal=True, sharding="contiguous", **late)
    rows = torch.cat([torch.arange(begin, end) for begin, end in op.rows or [(0, 0)]])
    seen = seen_by(rows, s, True, 0, [])
    q, k = (op.shard(torch.zeros(b, heads, s, D, dtype=torch.bfloat16)) for heads in (h, hkv))
    values = [tagged((b, hkv, s, D), call) for call in range(QUEUED)]
    made = []
    for call, v in enumerate(values):
        if call % (2 * place.size) == place.rank:
            time.sleep(0.02)
        made.append(op(q, k, op.shard(v))[0])
    op.check()
    for call, (o, v) in enumerate(zip(made, values, strict=True)):
        sums = (seen.double() @ v.double()).round().float()
        wanted = (sums / seen.sum(-1)[:, None]).to(o.dtype)
        expect(torch.equal(o, wanted), f"queued call {call}, rank {place.rank}: tagged rows differ")
    op.close()


def check_other_documents(place: ranks.Place, group) -> None:
    """Other documents make other tables and no other kernel, and what was set up long ago is freed."""
    limit = cache.limit_bytes
    s, sources, alive = 64, set(), []
    for call, cut in enumerate((20, 37, 50, 20)):
        documents = [0, cut, s]
        q, k, v = (random((1, 1, s, D), call, n) for n in range(3))
        how = {"sharding": "documents", "cu_seqlens": documents}
        *own, rows = (sy.shard_rows(x, group, dim=-2, **how) for x in (q, k, v, torch.arange(s)[:, None]))
        o, _ = ops.attention(*own, group, causal=True, length=s, **how)
        seen = seen_by(rows[:, 0], s, True, 0, documents)
        error = float((o.double() - in_fp64(own[0], k, v, D**-0.5, seen)[0]).abs().max())
        expect(error < 2e-2, f"documents {documents}, rank {place.rank}: o is {error} off")
        made = next(reversed(cache.entries.values())).operator
        sources.add(made.prepare().source)
        alive.append(made)
        cache.limit_bytes = 2 * made.held_bytes()
        expect(cache.held()[0] <= 2, f"{cache.held()[0]} are kept")
    expect(len(sources) == 1, "other documents are another kernel")
    expect(alive[0].prepared is None and alive[3] is not alive[0], "the first one is still there")
    cache.close()
    cache.limit_bytes = limit


#: What the function is asked for, rows on each rank, and the size of a head. Where rows have to be cut, parts are no whole tiles.
CALLED = (
    ({}, 24, 16),
    ({"causal": True}, 24, 16),
    ({"causal": 1}, 7, 16),
    ({"causal": True, "window": 9, "kind": "ring"}, 16, 16),
    ({"causal": True, "sharding": "zigzag"}, 48, 16),
    ({"causal": True, "sharding": "zigzag"}, 24, 48),
    ({"causal": True, "sharding": "zigzag", "kind": "all_gather"}, 9, 16),
    ({"sharding": "zigzag", "window": 5}, 10, 16),
    ({"causal": True, "cu_seqlens": [0, 5, 5, 30]}, 15, 16),
    ({"causal": True, "cu_seqlens": [0, 8, 24, 32, 32], "sharding": "documents"}, 16, 16),
    ({"causal": True, "length": 33}, None, 16),
    ({"causal": True, "length": 35, "sharding": "zigzag"}, None, 16),
    ({"causal": True, "kind": "ulysses"}, 24, 16),
    ({"causal": True, "bounded": True}, 12, 16),
)


def check_function(place: ranks.Place, group) -> None:
    """sy.ops.attention means the rows that sy.shard_rows gives, by default those in the order of the ranks."""
    for number, (options, rows, d) in enumerate(CALLED):
        s = options.get("length", (rows or 0) * place.size)
        if options.get("cu_seqlens", [s])[-1] != s:
            continue  # of another number of ranks
        q, k, v = (random((1, place.size, s, d), number, n) for n in range(3))
        how = {name: options[name] for name in ("sharding", "cu_seqlens") if name in options}
        own = [sy.shard_rows(x, group, dim=2, **how) for x in (q, k, v)]
        mine = sy.shard_rows(torch.arange(s), group, dim=0, **how)
        if not how and rows:
            expect(mine.tolist() == list(range(place.rank * rows, (place.rank + 1) * rows)), f"{mine}")
        o, lse = ops.attention(*own, group, **options)
        seen = seen_by(
            mine, s, options.get("causal", False), options.get("window", 0), options.get("cu_seqlens", [])
        )
        expected, expected_lse = in_fp64(own[0], k, v, d**-0.5, seen)
        error = max(float((o.double() - expected).abs().max()), float((lse - expected_lse).abs().max()))
        expect(error < 2e-2, f"{options}, {rows} rows, rank {place.rank}: {error} off")
    cache.close()
    for length in (96, 91, 160, 283, 48 * place.size):  # of as many rows, an object means the same ones
        for sharding in ("contiguous", "zigzag", "documents"):
            op = ops.Attention(1, 1, 1, length, D, torch.bfloat16, group, sharding=sharding)
            usual = rows_of_ranks(length, place.size, sharding)
            counts = [[sum(end - begin for begin, end in rows) for rows in of] for of in (op.all_rows, usual)]
            expect(counts[0] != counts[1] or op.all_rows == usual, f"{length} {sharding}: {op.all_rows}")
            op.close()
    asked = own[0].clone().requires_grad_()
    op = ops.Attention(1, place.size, place.size, s, D, torch.bfloat16, group, even=True)
    for call, said in (
        (
            lambda: op(asked, *own[1:]),
            "q requires a gradient, and Attention makes none: call sy.ops.attention",
        ),
        (lambda: ops.attention(asked, *own[1:], group), "gradients take a torch process group"),
    ):
        try:
            call()
        except RuntimeError as error:
            expect(said in str(error), f"expected '{said}', got '{error}'")
        else:
            raise RuntimeError(f"no RuntimeError: {said}")
    with torch.no_grad():
        expect(op(asked, *own[1:])[0].isfinite().all(), "without gradients")
    op.close()


def check_heap(group) -> None:
    """What ranks map of each other's memory is K and V of the rows that are asked for, not the sequence's, and no Q and
    no O."""
    s, h, d, page = 512, 8, 256, 2 << 20
    row = 2 * h * d * 2  # bytes of K and V
    op = ops.Attention(1, h, h, s, d, torch.bfloat16, group)
    expect(row * s <= op.heap_bytes < 2 * row * s, f"{op.heap_bytes} bytes are not K and V of {s} rows")
    op.close()
    op = ops.Attention(1, h, h, s, d, torch.bfloat16, group, kind="ulysses")
    expect(op.heap_bytes >= 2 * row * s, f"{op.heap_bytes} bytes do not hold Q, K, V and O of {s} rows")
    op.close()
    for bounded in (True, 64):
        op = ops.Attention(1, h, h, s, d, torch.bfloat16, group, causal=True, kind="ring", bounded=bounded)
        most = 2 * s // group.size if bounded is True else bounded
        expect(op.passes.width <= most, f"{op.passes.width} rows at once, not {most}")
        expect(op.heap_bytes <= row * most + page, f"{op.heap_bytes} bytes for {most} rows")
        expect(op.passes.count == -(-s // most), f"{op.passes.count} passes")
        op.close()


def check_refusals(group) -> None:
    """What cannot be done is refused with the reason, and "auto" does not take it."""
    size = group.size
    wrong = [
        (
            f"{size + 1} heads cannot be shared out over {size} ranks; all_gather, ring, double_ring take any number of heads",
            (1, size + 1, 1, 64, D),
            {"kind": "ulysses"},
        ),
        (
            "ulysses_ring needs inner, a number of ranks",
            (1, 4, 1, 64, D),
            {"kind": "ulysses_ring", "inner": size},
        ),
        ("there is no kind 'rings': one of auto, all_gather, ring", (1, 4, 1, 64, D), {"kind": "rings"}),
        ("parts: of a kind that you name", (1, 4, 4, 64, D), {"parts": 2}),
        ("parts: expected a number of them, or 0, got -2", (1, 4, 4, 64, D), {"kind": "ring", "parts": -2}),
        ("there is no sharding 'stripes'", (1, 4, 1, 64, D), {"sharding": "stripes"}),
        (
            "there is no sharding 'auto': one of contiguous, zigzag, documents",
            (1, 4, 1, 64, D),
            {"sharding": "auto"},
        ),
        ("cu_seqlens: expected offsets that rise", (1, 4, 1, 64, D), {"cu_seqlens": [0, 40, 30, 64]}),
        ("cu_seqlens: expected offsets that rise", (1, 4, 1, 64, D), {"cu_seqlens": [1, 40, 64]}),
        ("from 0 to 64, got [0, 16.5, 64]", (1, 4, 1, 64, D), {"cu_seqlens": [0, 16.5, 64]}),
        ("from 0 to 64, got [[0, 64]]", (1, 4, 1, 64, D), {"cu_seqlens": torch.tensor([[0, 64]])}),
        ("from 0 to 64, got [0, inf, 64]", (1, 4, 1, 64, D), {"cu_seqlens": [0, float("inf"), 64]}),
        (
            "from 0 to 64, got [0, nan, 64]",
            (1, 4, 1, 64, D),
            {"cu_seqlens": [0, float("nan"), 64]},
        ),
        ("from 0 to 64, got [0, (16,), 64]", (1, 4, 1, 64, D), {"cu_seqlens": [0, (16,), 64]}),
        ("from 0 to 64, got [0, None, 64]", (1, 4, 1, 64, D), {"cu_seqlens": [0, None, 64]}),
        (
            "cu_seqlens: expected offsets that rise from 0 to 64, got 64",
            (1, 4, 1, 64, D),
            {"cu_seqlens": torch.tensor(64)},
        ),
        (
            "from 0 to 64, got tensor(..., device='meta'",
            (1, 4, 1, 64, D),
            {"cu_seqlens": torch.empty(2, device="meta")},
        ),
        ("device: the group's is host, not cuda", (1, 4, 1, 64, D), {"device": "cuda"}),
        ('device: expected "cuda" or "host", got \'gpu\'', (1, 4, 1, 64, D), {"device": "gpu"}),
        ("H must be a multiple of HKV, got 4 and 3", (1, 4, 3, 64, D), {}),
        ("D: expected at most 256, got 257", (1, 4, 2, 64, 257), {}),
        (
            "bounded: kind 'ulysses' exchanges rows for heads",
            (1, 4 * size, 2, 64, D),
            {"kind": "ulysses", "bounded": True},
        ),
        ("K and V of 1 rows at once are too few", (1, 4, 2, 64, D), {"bounded": 1}),
        ("bounded: expected a number of rows, or True, got -1", (1, 4, 2, 64, D), {"bounded": -1}),
        ("scale: expected a finite number, got nan", (1, 4, 2, 64, D), {"scale": float("nan")}),
        (
            "cu_seqlens: expected offsets that rise from 0 to 64, got [0, 80]",
            (1, 4, 2, 64, D),
            {"cu_seqlens": [0, 80]},
        ),
    ]
    for message, shape, options in wrong:
        try:
            ops.Attention(*shape, torch.bfloat16, group, **options)
        except ValueError as error:
            expect(message in str(error), f"expected '{message}', got '{error}'")
        else:
            raise RuntimeError(f"no ValueError: {message}")
    rows = torch.zeros(1, 4, 16, D, dtype=torch.bfloat16)
    for options in ({"window": 2.5}, {"causal": "no"}, {"length": "64"}, {"bounded": 16.0}):
        (name,) = options
        try:
            ops.attention(rows, rows, rows, group, **options)
        except TypeError as error:
            expect(str(error).startswith(f"{name}: expected a"), str(error))
        else:
            raise RuntimeError(f"no TypeError: {options}")
    try:
        ops.attention(rows, rows, rows, group, cu_seqlens=[0, 3 + 16 * size])
    except ValueError as error:
        expect("ranks that hold different numbers of rows say `length`" in str(error), str(error))
    else:
        raise RuntimeError("documents of another sequence are taken")
    said = [ops.Attention(1, 4, 2, 64, D, torch.bfloat16, group, scale=scale)._what for scale in (None, 0.5)]
    expect(said[0] != said[1], "ranks of other scales do not differ")
    op = ops.Attention(1, size + 1, 1, 32 * size, D, torch.bfloat16, group)
    expect(op.kind != "ulysses", "auto exchanges heads that cannot be shared out")
    q = torch.zeros(1, size + 1, 3, D, dtype=torch.bfloat16)
    try:
        op(q, q[:, :1], q[:, :1])
    except ValueError as error:
        expect(f"q: expected shape [1, {size + 1}, {op.num_rows}, {D}]" in str(error), str(error))
    else:
        raise RuntimeError("a shard of another length is taken")


def check(place: ranks.Place) -> None:
    torch.set_num_threads(1)
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    check_refusals(group)
    for name in sys.argv[2:]:
        if name == "queued":
            check_queued(place, group)
        elif name == "other documents":
            check_other_documents(place, group)
        elif name == "places":
            check_places(group)
        elif name == "heap":
            check_heap(group)
        elif name == "function":
            check_function(place, group)
        else:
            check_case(name, place, group)


if __name__ == "__main__":
    on_ranks(check)
    print(f"{sys.argv[1]} ranks: {len(sys.argv) - 2} cases, exact", flush=True)
