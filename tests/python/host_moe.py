"""Mixture of experts on host ranks: exact, whatever the routing; run by test_moe.py.

    host_moe.py RANKS [CALLS]

Exits 1 with the first thing that is wrong.
"""

import os
import sys
import time
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from host_script import expect, on_ranks  # noqa: E402
from syncopate import ops  # noqa: E402
from syncopate.group import of_folder  # noqa: E402
from syncopate.ops import Moe  # noqa: E402

T, K, H, F = 5, 2, 24, 20
TILING = sy.Tiling(16, 16, 16, 1, -1)


def numbers(shape, seed, dtype=torch.float32):
    """Small integers, whose products and sums are exact in any order."""
    made = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed))
    return made.to(dtype)


class Layer:
    """Of all ranks: what each knows of the others to say what is right."""

    def __init__(self, size, experts, seed, dtype=torch.float32, extents=(T, K, H, F)):
        self.size, self.experts, self.own, self.extents = size, experts, experts // size, extents
        tokens, topk, hidden, inner = extents
        self.x = numbers((size, tokens, hidden), seed, dtype)
        self.w1 = numbers((experts, hidden, 2 * inner), 1, dtype)
        self.w2 = numbers((experts, inner, hidden), 2, dtype)
        self.weights = (numbers((size, tokens, topk), seed + 3) + 3) / 2

    def of(self, rank):
        mine = slice(rank * self.own, (rank + 1) * self.own)
        return self.x[rank], self.weights[rank], self.w1[mine], self.w2[mine]

    def taken(self, ids, bound):
        """Which routes are not over the bound: experts one after another, of each the ranks' rows in order; and how many rows
        more come to the rank to which most do."""
        taken, most = torch.zeros(ids.shape, dtype=torch.bool), 0
        for first in range(0, self.experts, self.own):
            left, over = bound, 0
            for expert in range(first, first + self.own):
                for place in (ids == expert).nonzero().tolist():
                    taken[tuple(place)] = left > 0
                    over += left <= 0
                    left -= left > 0
            most = max(most, over)
        return taken, most

    def right(self, rank, ids, bound=1 << 30):
        taken, _ = self.taken(ids, bound)
        tokens, topk, hidden, inner_size = self.extents
        total = torch.zeros(tokens, hidden, dtype=torch.float64)
        for choice in range(topk):
            for token in range(tokens):
                if not taken[rank, token, choice]:
                    continue
                expert = int(ids[rank, token, choice])
                inner = self.x[rank, token].double() @ self.w1[expert].double()
                made = (inner[:inner_size].clamp(min=0) * inner[inner_size:]) @ self.w2[expert].double()
                total[token] += self.weights[rank, token, choice].double() * made
        return total


def routings(size, experts, seed):
    """Of all ranks, by name: [size, T, K]."""
    generator = torch.Generator().manual_seed(seed)

    def random():
        return torch.stack([torch.randperm(experts, generator=generator)[:K] for _ in range(size * T)]).view(
            size, T, K
        )

    one = torch.zeros(size, T, K, dtype=torch.int64)
    one[..., 1] = experts - 1
    last = torch.full((size, T, K), experts - 1)
    last[..., 0] = experts - 2
    far = (torch.arange(size) * (experts // size)).roll(1)[:, None, None].expand(size, T, K) + torch.arange(
        K
    ) % (experts // size)
    filled = random()  # up to T with tokens that there are not, and a route of one that there is
    filled[:, 2:] = -1
    filled[-1, 0, 0] = -1
    return {
        "random": random(),
        "filled up": filled,
        "two experts": one,
        "last experts": last,
        "none of the own": far,
        "again": random(),
    }


def check_routings(rank, size, group, calls):
    """Each call another routing, ranks late by turns; twice the same one gives the same bits."""
    experts = 2 * size
    op = Moe(T, experts, K, H, F, torch.float32, group, activation="relu", tiling=TILING)
    seen = {}
    for call in range(calls):
        layer = Layer(size, experts, 10 + call)
        x, weights, w1, w2 = layer.of(rank)
        for name, ids in routings(size, experts, call).items():
            time.sleep(0.02 * ((rank + call) % size))
            y, _, _ = op.run(x, ids[rank].to(torch.int32 if call % 2 else torch.int64), weights, w1, w2)
            expect(torch.equal(y.double(), layer.right(rank, ids)), f"call {call}, routing {name!r} differs")
            seen[name] = y
    again, _, _ = op.run(x, ids[rank], weights, w1, w2)
    expect(torch.equal(again, seen[name]), "the same routing gives other bits")
    table, at = op.prepared.op.table_tensor_of(2), sy._syncopate.layout
    slots = table[at.FIRST_SLOT : at.FIRST_SLOT + at.SLOT_WORDS * int(table[at.NUM_SLOTS])]
    experts_of = slots.view(-1, at.SLOT_WORDS)[:, at.SLOT_GROUP].unique_consecutive()
    turns = [
        (rank + 1 + step) % size * op.own_experts + own
        for own in range(op.own_experts)
        for step in range(size)
    ]
    expect(
        experts_of.tolist() == turns,
        f"dispatch sends to {experts_of.tolist()}: other ranks may send to the same one then, or an expert's rows come late",
    )
    op.close()


def check_bounds(rank, size, group):
    """Of too many rows the last ones add nothing, or all ranks say so; a bound that fits changes nothing."""
    experts = 2 * size
    layer = Layer(size, experts, 3)
    x, weights, w1, w2 = layer.of(rank)
    for bound in (1, 7):
        op = Moe(
            T,
            experts,
            K,
            H,
            F,
            torch.float32,
            group,
            activation="relu",
            tiling=TILING,
            bound=bound,
            over="drop",
        )
        every = routings(size, experts, bound)
        for name in ("random", "two experts"):
            ids = every[name]
            y, _, _ = op.run(x, ids[rank], weights, w1, w2)
            expect(
                torch.equal(y.double(), layer.right(rank, ids, bound)),
                f"bound {bound}, routing {name!r} differs",
            )
        op.close()
    op = Moe(T, experts, K, H, F, torch.float32, group, activation="relu", tiling=TILING, bound=7)
    ids = torch.zeros(size, T, K, dtype=torch.int64)
    _, over = layer.taken(ids, 7)
    try:
        op.run(x, ids[rank], weights, w1, w2)
        raise RuntimeError("more rows than the bound, and no error")
    except ValueError as error:
        expect(
            f"bound: as many as {over} rows more than 7 come to a rank: give bound={7 + over}" in str(error),
            str(error),
        )
    ids = routings(size, experts, 5)["random"] if size > 1 else torch.arange(K).expand(1, T, K)
    if layer.taken(ids, 7)[1] == 0:
        y, _, _ = op.run(x, ids[rank], weights, w1, w2)
        expect(torch.equal(y.double(), layer.right(rank, ids)), "a call after an error differs")
    op.close()


def check_repeated(rank, size, group):
    """A token that names an expert twice has two rows there: the default bound has place for all, and what an error says helps."""
    experts = max(size, K)
    layer = Layer(size, experts, 9)
    x, weights, w1, w2 = layer.of(rank)
    ids = torch.zeros(size, T, K, dtype=torch.int64)
    most = size * T * K
    shape = (T, experts, K, H, F, torch.float32)
    for bound in (None, most, 9 * most, most - 1):
        op = Moe(*shape, group, activation="relu", tiling=TILING, bound=bound)
        told = Moe.bytes_ahead(*shape, size, device="host", tiling=TILING, bound=bound)
        expect(op.held_bytes() == told, f"bound={bound}: {op.held_bytes()} bytes, told {told}")
        expect(op.bound == min(bound or most, most), f"bound={bound}: taken as {op.bound}")
        try:
            y, _, _ = op.run(x, ids[rank], weights, w1, w2)
            expect(bound != most - 1, f"bound={bound}: no error")
            expect(
                torch.equal(y.double(), layer.right(rank, ids)), f"bound={bound}: all to one expert differs"
            )
        except ValueError as error:
            wanted = f"as many as 1 rows more than {most - 1} come to a rank: give bound={most}"
            expect(bound == most - 1 and wanted in str(error), f"bound={bound}: {error}")
        op.close()


def check_shapes(rank, size, group):
    """With the tiles that are chosen: extents that are no multiples of them, one token, one choice, and all rows of all ranks to
    one expert, which then has several tiles of them."""
    for tokens, topk, experts, hidden, inner, to in (
        (1, 1, 1, 96, 200, 0),
        (1, 2, 3, 24, 20, None),
        (40, 1, 2, 40, 72, 1),
        (9, 3, 3, 33, 7, None),
    ):
        experts *= size
        layer = Layer(size, experts, 21, extents=(tokens, topk, hidden, inner))
        x, weights, w1, w2 = layer.of(rank)
        generator = torch.Generator().manual_seed(tokens)
        scores = torch.rand(size, tokens, experts, generator=generator)
        if to is not None:
            scores[..., (experts + to) // 2] = 2
        ids = scores.topk(topk).indices
        # The chosen tiles have as many rows as what sends them has at a time; others have more.
        for tiling in (None, sy.Tiling(32, 16, 16, 1, -1)):
            shape = (tokens, experts, topk, hidden, inner, torch.float32)
            op = Moe(*shape, group, activation="relu", tiling=tiling)
            y, _, _ = op.run(x, ids[rank], weights, w1, w2)
            what = f"T={tokens}, topk={topk}, F={inner}, tiles {tiling}"
            expect(torch.equal(y.double(), layer.right(rank, ids)), f"{what} differs")
            op.close()


def check_many(rank, size, group):
    """So many rows that few programs send them, and those of the first product take its tiles in turns."""
    tokens, topk, hidden, inner = 2100, 2, 2048, 16
    experts = 2 * size
    layer = Layer(size, experts, 41, extents=(tokens, topk, hidden, inner))
    x, weights, w1, w2 = layer.of(rank)
    op = Moe(
        tokens,
        experts,
        topk,
        hidden,
        inner,
        torch.float32,
        group,
        activation="relu",
        tiling=sy.Tiling(128, 64, 16, 1, -1),
    )
    expect(
        op._sending[2] and op.artifact.grid_of(2, rank)[0] < op.artifact.grid_of(3, rank)[0],
        "few programs send",
    )
    for seed in (1, 2)[: 3 - size]:  # again, where that is quick
        ids = (
            torch.rand(size, tokens, experts, generator=torch.Generator().manual_seed(seed))
            .topk(topk)
            .indices
        )
        y, _, _ = op.run(x, ids[rank], weights, w1, w2)
        some = torch.arange(0, tokens, 97)
        made = torch.zeros(len(some), hidden, dtype=torch.float64)
        for choice in range(topk):
            for place, token in enumerate(some.tolist()):
                expert = int(ids[rank, token, choice])
                gate, up = (x[token].double() @ layer.w1[expert].double()).chunk(2)
                made[place] += weights[token, choice].double() * (
                    (gate.clamp(min=0) * up) @ layer.w2[expert].double()
                )
        expect(torch.equal(y[some].double(), made), f"of many rows, routing {seed}, y differs")
    op.close()


class Streamed(Moe):
    """Whose products take descriptors, as on Hopper."""

    streams = True


def check_streamed(rank, size, group):
    """Rows behind a group's, columns behind a weight's and K behind its end are loaded, and change nothing."""
    for tokens, topk, hidden, inner, tile in ((7, 2, 40, 24, 16), (1, 1, 96, 200, 32), (21, 1, 16, 8, 16)):
        layer = Layer(size, 2 * size, 31, extents=(tokens, topk, hidden, inner))
        x, weights, w1, w2 = layer.of(rank)
        scores = torch.rand(size, tokens, 2 * size, generator=torch.Generator().manual_seed(tokens))
        ids = scores.topk(topk).indices
        tiling = sy.Tiling(tile, 32, 32, 1, -1)
        shape = (tokens, 2 * size, topk, hidden, inner, torch.float32)
        op = Streamed(*shape, group, activation="relu", tiling=tiling)
        op.heap["X"].fill_(float("nan"))  # what lies between two groups' rows
        op.heap["A"].fill_(float("nan"))
        y, _, _ = op.run(x, ids[rank], weights, w1, w2)
        expect(
            torch.equal(y.double(), layer.right(rank, ids)), f"by descriptors T={tokens}, F={inner} differs"
        )
        shifted = torch.empty(w1.numel() + 1)[1:].view(w1.shape).copy_(w1)  # no address that TMA could take
        y, _, _ = op.run(x, ids[rank], weights, shifted, w2)
        expect(torch.equal(y.double(), layer.right(rank, ids)), f"of a shifted weight T={tokens} differs")
        op.close()


def check_told_later(rank, size, group):
    """Of calls that are not waited for, as on a GPU, `check` says once what was wrong, and how much at most: more rows than the
    bound come to every rank, but not as many to each."""
    layer = Layer(size, 2 * size, 3)
    x, weights, w1, w2 = layer.of(rank)
    bound = 2
    every = [*routings(size, layer.experts, 5).values(), torch.zeros(size, T, K, dtype=torch.int64)]
    for over in ("error", "drop"):
        op = Moe(
            T,
            layer.experts,
            K,
            H,
            F,
            torch.float32,
            group,
            activation="relu",
            tiling=TILING,
            bound=bound,
            over=over,
        )
        op.check()
        op._done = lambda _: None
        most = 0
        for ids in every:
            op.run(x, ids[rank], weights, w1, w2)
            most = max(most, layer.taken(ids, bound)[1])
        expect(most > 0, "no routing has more rows than the bound")
        wanted = f"as many as {most} rows more than {bound} come to a rank" if over == "error" else ""
        heard = told_by(op.check)
        expect(wanted in heard and bool(heard) == bool(wanted), f"expected {wanted!r}, got {heard!r}")
        expect(not told_by(op.check), "check says it twice")
        ids = every[0].clone()
        ids[:, 0, 0] = layer.experts
        for _ in range(2):
            op.run(x, ids[rank], weights, w1, w2)
        expect(f"{2 * size} of all ranks' ids name no expert" in told_by(op.check), f"{over}: ids")
        op.close()


def check_bytes_ahead(rank, size, group):
    """What an operator takes is known before it is made, of every part, and grows with the bound alone."""
    shape = (T, 2 * size, K, H, F, torch.float32)
    for part in ("whole", "kept", "dispatch", "combine"):
        told = []
        for bound in (1, 8, None):
            options = {"bound": bound, "part": part, "tiling": TILING}
            told.append(Moe.bytes_ahead(*shape, size, device="host", **options))
            if bound != 1:
                op = Moe(*shape, group, **options)
                expect(op.held_bytes() == told[-1], f"{part}, bound={bound}: {op.held_bytes()}, told {told}")
                op.close()
        expect(told == sorted(told), f"{part}: {told}")
    wide = [Moe.bytes_ahead(512, 128, 8, 2048, 768, torch.bfloat16, 2, bound=bound) for bound in (4096, None)]
    expect(wide[0] < wide[1], f"{wide}")


def told_by(check):
    try:
        check()
    except ValueError as error:
        return str(error)
    return ""


def check_parts(rank, size, group):
    """dispatch puts an expert's rows together, those of rank 0 first; combine of them is the sum by weights."""
    experts = 2 * size
    layer = Layer(size, experts, 4)
    x, weights, _, _ = layer.of(rank)
    every = routings(size, experts, 8)
    for name in ("random", "last experts"):
        ids = every[name]
        rows, handle = ops.dispatch(x, ids[rank], experts, group)
        for own in range(layer.own):
            expert = rank * layer.own + own
            places = (ids == expert).nonzero()
            begin, count = int(handle.begins[own]), int(handle.counts[own])
            expect(count == len(places), f"{name!r}: expert {expert} has {count} rows of {len(places)}")
            right = layer.x[places[:, 0], places[:, 1]]
            expect(
                torch.equal(rows[begin : begin + count], right), f"{name!r}: rows of expert {expert} differ"
            )
        y = ops.combine(rows, weights, handle)
        right = (x[:, None] * weights[..., None]).sum(1)
        expect(torch.equal(y, right), f"{name!r}: combine differs")
        expect(
            torch.equal(ops.combine(rows, None, handle), x * K), f"{name!r}: combine without weights differs"
        )
    sy.close(group)


def check_refused(rank, size, group):
    """What does not fit is refused by name, and what only all counts show on all ranks alike."""
    experts = 2 * size
    layer = Layer(size, experts, 5)
    x, weights, w1, w2 = layer.of(rank)
    ids = routings(size, experts, 1)["random"][rank]
    y = ops.moe(x, ids, weights, w1, w2, group, "relu")
    wrong = ids.clone()
    if rank == size - 1:
        wrong[0, 0], wrong[1, 1] = -2, experts
    for given, message in (
        ((x, wrong, weights, w1, w2), "topk_ids: 2 of all ranks' ids name no expert"),
        ((x, ids.float(), weights, w1, w2), "topk_ids: expected dtype"),
        ((x, ids, weights[:, :1], w1, w2), "topk_weights: expected shape"),
        ((x, ids, weights.int(), w1, w2), "topk_weights: expected dtype"),
        ((x, ids, weights, w1.half(), w2), "w1: expected dtype"),
        ((x, ids, weights, w1[..., :-2], w2), "w1: expected shape"),
        (
            (x, ids, weights.bfloat16(), w1, w2),
            "topk_weights: expected dtype torch.float32, got torch.bfloat16",
        ),
        ((x[0], ids, weights, w1, w2), "expected x [T, H]"),
    ):
        try:
            ops.moe(*given, group, "relu")
            raise RuntimeError(f"not refused: {message}")
        except ValueError as error:
            expect(message in str(error), f"expected {message!r}, got {error}")
    for options, message in (
        ({"activation": "tanh"}, "activation: expected one of"),
        ({"bound": 0}, "bound: expected"),
        ({"over": "wrap"}, "over: expected"),
    ):
        try:
            ops.moe(x, ids, weights, w1, w2, group, **options)
            raise RuntimeError(f"not refused: {message}")
        except ValueError as error:
            expect(message in str(error), f"expected {message!r}, got {error}")
    if size > 1:
        try:
            Moe(T, 2 * size + 1, K, H, F, torch.float32, group)
            raise RuntimeError("not refused: experts that ranks cannot share")
        except (sy.UsageError, ValueError) as error:
            expect(f"E={2 * size + 1} experts are no multiple of {size} ranks" in str(error), str(error))
    expect(torch.equal(ops.moe(x, ids, weights, w1, w2, group, "relu"), y), "a call after errors differs")
    spread = [one.mT.contiguous().mT for one in (x, ids, weights, w1, w2)]
    expect(torch.equal(ops.moe(*spread, group, "relu"), y), "of what is not contiguous y differs")
    tile, shape = sy.Tiling(16, 16, 16, 1, -1), (T, experts, K, H, F, torch.float32, group)
    for options, message in (
        ({"strategy": sy.Strategy((tile,)), "tiling": TILING}, "leave out tiling and programs"),
        ({"strategy": sy.Strategy((tile,)), "programs": 2}, "leave out tiling and programs"),
        ({"strategy": sy.Strategy((tile, tile))}, "strategy: moe takes one tile"),
        ({"strategy": sy.Strategy((tile,), split=2)}, "nothing else: not"),
        ({"tiling": sy.Tiling(24, 16, 16, 1, -1)}, "tiling: its tiles have powers of two"),
        ({"programs": 0}, "programs: expected"),
    ):
        try:
            Moe(*shape, **options)
            raise RuntimeError(f"not refused: {message}")
        except ValueError as error:
            expect(message in str(error), f"expected {message!r}, got {error}")
    op = Moe(*shape, tiling=TILING)
    try:
        op.run(spread[0], ids, weights, w1, w2)
        raise RuntimeError("not refused: an operator's x that is not contiguous")
    except ValueError as error:
        expect("x: it must be contiguous" in str(error), str(error))
    op.close()
    sy.close(group)


def check_differ(rank, size, group):
    """Ranks that give different shapes are told so, all of them, and go on."""
    layer = Layer(size, 2 * size, 7)
    x, weights, w1, w2 = layer.of(rank)
    ids = routings(size, 2 * size, 1)["random"]
    fewer = T - 1 if rank == 0 else T
    try:
        ops.moe(x[:fewer], ids[rank][:fewer], weights[:fewer], w1, w2, group, "relu")
        raise RuntimeError("ranks that differ in T were not told")
    except (ValueError, sy.SyncopateError) as error:
        expect("T=" in str(error) or "moe" in str(error), str(error))
    y = ops.moe(x, ids[rank], weights, w1, w2, group, "relu")
    expect(torch.equal(y.double(), layer.right(rank, ids)), "a call after one that differed differs")
    sy.close(group)


def check_dtypes(rank, size, group):
    for dtype in (torch.bfloat16, torch.float16):
        layer = Layer(size, size, 6, dtype) if K <= size else Layer(size, 2 * size, 6, dtype)
        layer.x, layer.w1, layer.w2 = layer.x.clamp(0, 1), layer.w1.clamp(0, 1), layer.w2.clamp(-1, 0)
        x, weights, w1, w2 = layer.of(rank)
        ids = routings(size, layer.experts, 2)["random"]
        op = Moe(T, layer.experts, K, H, F, dtype, group, activation="relu", tiling=TILING)
        y, _, _ = op.run(x, ids[rank], weights, w1, w2)
        right = layer.right(rank, ids)
        expect(
            torch.allclose(y.double(), right, rtol=0.05, atol=0.5),
            f"{dtype} differs by {(y - right).abs().max()}",
        )
        op.close()


def work(place):
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    calls = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    check_routings(place.rank, place.size, group, calls)
    check_bounds(place.rank, place.size, group)
    check_repeated(place.rank, place.size, group)
    check_shapes(place.rank, place.size, group)
    check_streamed(place.rank, place.size, group)
    if place.size <= 2:
        check_many(place.rank, place.size, group)
    check_told_later(place.rank, place.size, group)
    check_bytes_ahead(place.rank, place.size, group)
    check_parts(place.rank, place.size, group)
    check_refused(place.rank, place.size, group)
    check_dtypes(place.rank, place.size, group)
    if place.size > 1:
        check_differ(place.rank, place.size, group)


if __name__ == "__main__":
    on_ranks(work)
    print(f"{sys.argv[1]} ranks: exact")
