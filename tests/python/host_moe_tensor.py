"""Tensor parallel experts on host ranks: exact, whatever the routing; run by test_moe.py.

    host_moe_tensor.py RANKS [CALLS]

Exits 1 with the first thing that is wrong.
"""

import os
import sys
import time

os.environ["TRITON_INTERPRET"] = "1"

from host_moe import TILING, Layer, expect, of_folder, on_ranks, routings, sy, torch
from syncopate import ops
from syncopate.ops import TensorMoe

T, K, H, F = 5, 2, 24, 10


def layer_of(size, experts, seed, dtype=torch.float32, extents=(T, K, H, F)):
    """F is of a rank."""
    tokens, topk, hidden, inner = extents
    made = Layer(size, experts, seed, dtype, (tokens, topk, hidden, inner * size))
    made.own = experts
    return made


def of(layer, rank):
    """Of rank `rank` x, the weights of the routes, and its columns of all experts."""
    inner = layer.extents[3]
    share = inner // layer.size
    mine = torch.arange(rank * share, (rank + 1) * share)
    w1 = layer.w1[..., torch.cat([mine, inner + mine])].contiguous()
    return layer.x[rank], layer.weights[rank], w1, layer.w2[:, mine].contiguous()


def check_routings(rank, size, group, calls):
    """Each call another routing, ranks late by turns; twice the same one gives the same bits. Experts need not be a multiple of
    the ranks."""
    experts = 2 * size + 1
    op = TensorMoe(T, experts, K, H, F * size, torch.float32, group, activation="relu", tiling=TILING)
    seen = {}
    for call in range(calls):
        layer = layer_of(size, experts, 10 + call)
        x, weights, w1, w2 = of(layer, rank)
        for name, ids in routings(size, experts, call).items():
            time.sleep(0.02 * ((rank + call) % size))
            y, _, _ = op.run(x, ids[rank].to(torch.int32 if call % 2 else torch.int64), weights, w1, w2)
            expect(torch.equal(y.double(), layer.right(rank, ids)), f"call {call}, routing {name!r} differs")
            seen[name] = y
    again, _, _ = op.run(x, ids[rank], weights, w1, w2)
    expect(torch.equal(again, seen[name]), "the same routing gives other bits")
    shape = (T, experts, K, H, F * size, torch.float32)
    told = TensorMoe.bytes_ahead(*shape, size, device="host", tiling=TILING)
    expect(op.held_bytes() == told, f"{op.held_bytes()} bytes, told {told}")
    op.close()


def check_shapes(rank, size, group):
    """With the tiles that are chosen: one token, one choice, extents that are no multiples, all rows to one expert."""
    for tokens, topk, experts, hidden, inner, to in (
        (1, 1, 1, 96, 40, None),
        (37, 1, 3, 40, 36, 1),
        (9, 3, 5, 33, 7, None),
    ):
        layer = layer_of(size, experts, 21, extents=(tokens, topk, hidden, inner))
        scores = torch.rand(size, tokens, experts, generator=torch.Generator().manual_seed(tokens))
        if to is not None:
            scores[..., to] = 2
        ids = scores.topk(topk).indices
        op = TensorMoe(tokens, experts, topk, hidden, inner * size, torch.float32, group, activation="relu")
        x, weights, w1, w2 = of(layer, rank)
        y, _, _ = op.run(x, ids[rank], weights, w1, w2)
        expect(torch.equal(y.double(), layer.right(rank, ids)), f"T={tokens}, topk={topk}, F={inner} differs")
        op.close()


def check_refused(rank, size, group):
    """What does not fit is refused by name, ids that name no expert on all ranks alike, and calls go on."""
    experts = size + 2
    layer = layer_of(size, experts, 5)
    x, weights, w1, w2 = of(layer, rank)
    ids = routings(size, experts, 1)["random"]

    def call(ids=ids[rank], w1=w1, parallel="tensor", **options):
        return ops.moe(x, ids, weights, w1, w2, group, "relu", parallel=parallel, **options)

    y = call()
    expect(torch.equal(y.double(), layer.right(rank, ids)), "by the function it differs")
    wrong = ids[rank].clone()
    if rank == size - 1:
        wrong[0, 0], wrong[1, 1] = -2, experts
    for options, message in (
        ({"ids": wrong}, "topk_ids: 2 of all ranks' ids name no expert"),
        ({"bound": 8}, "bound=8: to tensor parallel experts all rows come on every rank"),
        ({"parallel": "data"}, "parallel: expected 'expert' or 'tensor', got 'data'"),
        ({"w1": w1[..., :-2]}, "w1: expected shape"),
        ({"w1": w1[0]}, "w1 [E, H, 2 F / ranks] and w2 [E, F / ranks, H]"),
    ):
        try:
            call(**options)
            raise RuntimeError(f"not refused: {message}")
        except (ValueError, sy.UsageError) as error:
            expect(message in str(error), f"expected {message!r}, got {error}")
    if size > 1:
        try:
            TensorMoe(T, experts, K, H, F * size + 1, torch.float32, group)
            raise RuntimeError("not refused: columns that ranks cannot share")
        except (sy.UsageError, ValueError) as error:
            expect("are no multiple of" in str(error), str(error))
    expect(torch.equal(call(), y), "a call after errors differs")
    sy.close(group)


def check_large_ids(rank, size, group):
    """An id whose low half names an expert names none: no rank is told of a row that nobody has counted."""
    experts = size + 2
    layer = layer_of(size, experts, 5)
    x, weights, w1, w2 = of(layer, rank)
    op = TensorMoe(T, experts, K, H, F * size, torch.float32, group, activation="relu", tiling=TILING)
    for wrong in (1 << 32, (1 << 32) + 1, -(1 << 32), (1 << 40) + 2):
        ids = torch.arange(T * K).view(T, K) % experts
        ids[1, 0] = wrong
        try:
            op.run(x, ids, weights, w1, w2)
            raise RuntimeError(f"not refused: {wrong}")
        except ValueError as error:
            expect(f"{size} of all ranks' ids name no expert" in str(error), str(error))
        told = op.heap["routes"].view(size, T, K, 3)[..., 0]
        expect(
            bool((told[:, 1, 0] == -1).all()) and bool((told[:, 0] == ids[0]).all()),
            f"{wrong}: {told[:, :2]}",
        )
    op.close()


def work(place):
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    calls = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    check_routings(place.rank, place.size, group, calls)
    check_shapes(place.rank, place.size, group)
    check_refused(place.rank, place.size, group)
    check_large_ids(place.rank, place.size, group)


if __name__ == "__main__":
    on_ranks(work)
    print(f"{sys.argv[1]} ranks: exact")
