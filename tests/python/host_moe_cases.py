"""Mixtures of experts at their edges, on host ranks; run by test_moe.py. Each is exact, or refused with the tensor's name on all ranks.

host_moe_cases.py RANKS
"""

import sys
from functools import partial

import made_table
import torch
from host_moe import TILING, F, H, K, Layer, T, routings, told_by
from host_script import expect, on_ranks
from syncopate import _syncopate, ops
from syncopate.group import of_folder
from syncopate.ops import Moe


def called(rank, size, group, ids, extents=(T, K, H, F), own=2, layer=None, **options):
    """y of this rank, by an operator of its own; what is right."""
    layer = layer or Layer(size, own * size, 77, extents=extents)
    x, weights, w1, w2 = layer.of(rank)
    tokens, topk, hidden, inner = extents
    shape = (tokens, layer.experts, topk, hidden, inner, torch.float32)
    op = Moe(*shape, group, activation="relu", tiling=TILING, **options)
    y, _, _ = op.run(x, ids[rank], weights, w1, w2)
    op.close()
    return y.double(), layer


def check_routings(rank, size, group):
    """Repeated ids, none for a rank, all of a token's to one rank, more choices than a rank has experts, every expert."""
    experts = 2 * size
    every = torch.arange(experts)
    cases = {
        "an expert twice in each token": (torch.full((size, T, K), experts - 1), (T, K, H, F), 2),
        "nothing of the last rank's": (torch.arange(size * T * K).view(size, T, K) % max(experts - 2, 1), (T, K, H, F), 2),
        "more choices than a rank's experts": (torch.arange(size * T * size).view(size, T, size) % size, (T, size, H, F), 1),
        "all experts of a token": (every.expand(size, T, experts).flip(-1), (T, experts, H, F), 2),
        "one token, one expert": (torch.zeros(size, 1, 1, dtype=torch.int64), (1, 1, H, F), 1),
        "one column": (torch.arange(size * T * K).view(size, T, K) % experts, (T, K, 1, 1), 2),
    }  # fmt: skip
    for name, (ids, extents, own) in cases.items():
        for dtype in (torch.int32, torch.int64):
            y, layer = called(rank, size, group, ids.to(dtype).contiguous(), extents, own)
            expect(torch.equal(y, layer.right(rank, ids)), f"{name}, {dtype}: differs")


def check_drops(rank, size, group):
    """Rows beyond the bound add nothing, though their weights are no numbers; whoever sent them, and with repeated ids."""
    experts = 2 * size
    for name, ids in routings(size, experts, 4).items():
        for bound in (1, 3, size * T * K - 1):
            layer = Layer(size, experts, 78)
            taken, _ = layer.taken(ids, bound)
            layer.weights[~taken] = float("nan")
            y, _ = called(rank, size, group, ids, layer=layer, bound=bound, over="drop")
            layer.weights[~taken] = 0
            expect(torch.equal(y, layer.right(rank, ids, bound)), f"{name}, bound {bound}: differs")


def check_errors(rank, size, group):
    """The least bound that fits is taken, and one less is an error that says it."""
    experts = 2 * size
    for name, ids in routings(size, experts, 6).items():
        need = int(torch.bincount(ids[ids >= 0], minlength=experts).view(size, 2).sum(1).max())
        y, layer = called(rank, size, group, ids, bound=need)
        expect(torch.equal(y, layer.right(rank, ids)), f"{name}, bound {need}: differs")
        if need > 1:
            heard = told_by(lambda ids=ids, need=need: called(rank, size, group, ids, bound=need - 1))
            expect(f"as many as 1 rows more than {need - 1} come to a rank: give bound={need}" in heard, f"{name}: {heard!r}")  # fmt: skip


def check_ids(rank, size, group):
    """Ids of no expert, of either width: told on all ranks, wherever they are, and the others' rows are right."""
    experts = 2 * size
    layer = Layer(size, experts, 79)
    x, weights, w1, w2 = layer.of(rank)
    op = Moe(T, experts, K, H, F, torch.float32, group, activation="relu", tiling=TILING, over="drop")
    for dtype in (torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        for wrong in (-2, experts, limits.min, limits.max):
            ids = routings(size, experts, 3)["random"].to(dtype)
            ids[size - 1, T - 1, 0] = wrong
            heard = told_by(lambda ids=ids: op.run(x, ids[rank], weights, w1, w2))
            expect("topk_ids: 1 of all ranks' ids name no expert" in heard, f"{wrong}, {dtype}: {heard!r}")
    ids = routings(size, experts, 3)["random"]
    y, _, _ = op.run(x, ids[rank], weights, w1, w2)
    expect(torch.equal(y.double(), layer.right(rank, ids)), "a call after wrong ids differs")
    op.close()


def check_dtypes(rank, size, group):
    """Weights of fp32, and of x's dtype, beside rows of 16 bits."""
    experts = 2 * size
    ids = routings(size, experts, 2)["random"]
    for dtype in (torch.bfloat16, torch.float16):
        layer = Layer(size, experts, 80, dtype)
        layer.x, layer.w1, layer.w2 = layer.x.clamp(0, 1), layer.w1.clamp(0, 1), layer.w2.clamp(-1, 0)
        x, weights, w1, w2 = layer.of(rank)
        wide = ops.moe(x, ids[rank], weights, w1, w2, group, "relu")
        narrow = ops.moe(x, ids[rank], weights.to(dtype), w1, w2, group, "relu")
        expect(wide.dtype == dtype and torch.equal(wide, narrow), f"{dtype}: weights of its own differ")
        other = torch.float16 if dtype == torch.bfloat16 else torch.bfloat16
        heard = told_by(partial(ops.moe, x, ids[rank], weights.to(other), w1, w2, group, "relu"))
        expect("topk_weights: expected dtype" in heard, heard)


def check_parts(rank, size, group):
    """dispatch and combine take what is not contiguous, as moe does; two handles at once; rows beyond a bound."""
    experts = 2 * size
    layer = Layer(size, experts, 81)
    x, weights, _, _ = layer.of(rank)
    first, second = (routings(size, experts, seed)["random"] for seed in (11, 12))
    spread = [one.mT.contiguous().mT for one in (x, first[rank], weights)]
    rows, handle = ops.dispatch(spread[0], spread[1], experts, group)
    other_rows, other = ops.dispatch(x, second[rank], experts, group)
    right = (x[:, None] * weights[..., None]).sum(1)
    expect(
        torch.equal(ops.combine(rows.mT.contiguous().mT, spread[2], handle), right),
        "the first handle's rows differ",
    )
    expect(torch.equal(ops.combine(other_rows, weights, other), right), "the second handle's rows differ")
    rows, handle = ops.dispatch(x, first[rank], experts, group, bound=3, over="drop")
    taken, _ = layer.taken(first, 3)
    expect(torch.equal(handle.taken, taken[rank]), "of a bound other routes are taken")
    expect(torch.equal(ops.combine(rows, weights, handle), (x[:, None] * (weights * taken[rank])[..., None]).sum(1)), "of a bound y differs")  # fmt: skip
    heard = told_by(lambda: ops.combine(rows[:-1], weights, handle))
    expect("rows: expected shape" in heard, heard)
    heard = told_by(lambda: ops.dispatch(x, first[rank].to(torch.int16), experts, group))
    expect("topk_ids: expected dtype" in heard, heard)


def check_tables(rank, size, group):
    """The tables that each call makes on its device do every row of every column once, and no more; those that were changed by one
    are found."""
    own, at = 2, _syncopate.layout
    layer = Layer(size, own * size, 83)
    x, weights, w1, w2 = layer.of(rank)
    found = 0
    for bound in (None, 4):
        shape = (T, layer.experts, K, H, F, torch.float32)
        op = Moe(*shape, group, activation="relu", tiling=TILING, bound=bound, over="drop")
        stages = {name: index for index, name in enumerate(op._names)}
        for ids in routings(size, layer.experts, 9).values():
            op.run(x, ids[rank], weights, w1, w2)
            counts = op.heap["counts"].tolist()
            _syncopate.all_gather(
                group.rendezvous, "read", ""
            )  # the next call of another rank writes its own there
            sent, runs = [], []
            for peer in range(size):
                of_peer = [counts[s][e] for e in range(peer * own, peer * own + own) for s in range(size)]
                places = _syncopate.ops.lay_groups(of_peer, size, TILING.block_m, op.bound)
                sent += [places[e * size + rank] for e in range(own)]
                if peer == rank:
                    runs = [(places[e * size][0], places[e * size + size - 1][1]) for e in range(own)]
            begins = torch.tensor([0, *counts[rank][:-1]]).cumsum(0).tolist()
            going = [(b, b + end - begin) for b, (begin, end) in zip(begins, sent, strict=False)]
            tile = TILING.block_m
            for name, groups, first, high, columns in (
                ("moe_dispatch", going, 0, op._sending[0], 1),
                ("moe_up", runs, rank * own, tile, -(-F // 16)),
                ("moe_down", runs, rank * own, tile, -(-H // 16)),
            ):
                words = op.prepared.op.table_tensor_of(stages[name]).tolist()
                held = (groups, first, high, columns)
                why = made_table.objection(words, *held)
                expect(not why, f"{name}: {why}")
                slots = words[at.NUM_SLOTS]
                places = [at.NUM_SLOTS]
                # All words of some records; of each the first and the last.
                for slot in sorted({*range(0, slots, max(1, slots // 8)), slots - 1} if slots else ()):
                    record = at.FIRST_SLOT + at.SLOT_WORDS * slot
                    places += [
                        record + field
                        for field in (at.SLOT_TILE, at.SLOT_GROUP, at.SLOT_ROWS, at.SLOT_WAITS, at.SLOT_MAKES)
                    ]
                for place in places:
                    for change in (-1, 1):
                        wrong = list(words)
                        wrong[place] += change
                        if not made_table.objection(wrong, *held):
                            raise RuntimeError(f"{name}: word {place} changed by {change} is not found")
                        found += 1
                twice = list(words)
                begin, end = at.FIRST_SLOT, at.FIRST_SLOT + at.SLOT_WORDS
                if slots > 1:  # one slot's work is done twice, another one's not at all
                    twice[end : end + at.SLOT_WORDS] = words[begin:end]
                    expect(bool(made_table.objection(twice, *held)), f"{name}: a slot twice is not found")
        op.close()
    expect(found > 300, f"{found} tables were changed")


def check_empty(rank, size, group):
    """No tokens on any rank."""
    layer = Layer(size, 2 * size, 82)
    x, weights, w1, w2 = layer.of(rank)
    ids = routings(size, 2 * size, 1)["random"][rank]
    y = ops.moe(x[:0], ids[:0], weights[:0], w1, w2, group, "relu")
    expect(y.shape == x[:0].shape and y.dtype == x.dtype, f"{y}")
    heard = told_by(lambda: ops.dispatch(x[:0], ids[:0], 2 * size, group))
    expect("x: expected at least one token on each rank" in heard, heard)
    heard = told_by(lambda: ops.moe(x, ids[:, :0], weights[:, :0], w1, w2, group, "relu"))
    expect("topk" in heard, heard)


def work(place):
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    for check in (
        check_routings,
        check_drops,
        check_errors,
        check_ids,
        check_dtypes,
        check_parts,
        check_tables,
        check_empty,
    ):
        check(place.rank, place.size, group)


if __name__ == "__main__":
    on_ranks(work)
    print(f"{sys.argv[1]} ranks: exact at the edges")
