"""Mixtures of experts over several nodes of host ranks of a torch process group: exact, whatever the routing; run by test_moe.py.

    python -m torch.distributed.run … host_moe_nodes.py NODES

Exits 1 with the first thing that is wrong.
"""

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "python")]
NODES = int(sys.argv[1])
PLACES = int(os.environ["WORLD_SIZE"]) // NODES
os.environ["SYNCOPATE_HOST_ID"] = f"host{int(os.environ['RANK']) // PLACES}"

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_moe import TILING, F, H, K, Layer, T, numbers, routings  # noqa: E402
from host_moe_own import filled  # noqa: E402
from host_moe_scaled import Layer as ScaledLayer  # noqa: E402
from host_moe_scaled import close  # noqa: E402
from host_script import expect  # noqa: E402


def refused(call, *wanted):
    try:
        call()
    except (ValueError, RuntimeError) as error:
        expect(all(text in str(error) for text in wanted), f"expected {wanted}, it says: {error}")
        return
    raise AssertionError(f"no error, expected {wanted}")


def check_routings(rank, size):
    """All to one expert, none to a node's, tokens that there are not; ranks late by turns; by both dtypes of ids."""
    experts = 2 * size
    for call in range(2):
        layer = Layer(size, experts, 10 + call)
        x, weights, w1, w2 = layer.of(rank)
        for name, ids in routings(size, experts, call).items():
            time.sleep(0.01 * ((rank + call) % size))
            own = ids[rank].to(torch.int32 if call else torch.int64)
            right = layer.right(rank, ids)
            y = sy.ops.moe(x, own, weights, w1, w2, activation="relu")
            expect(torch.equal(y.double(), right), f"call {call}, routing {name!r} differs")
            by_op = torch.ops.syncopate.moe(x, own, weights, w1, w2, dist.group.WORLD.group_name, "relu")
            expect(torch.equal(by_op, y), f"torch's op, routing {name!r} differs")
            rows, handle = sy.ops.dispatch(x, own, experts)
            expect(torch.equal(handle.taken, own >= 0), f"routing {name!r}: taken")
            came = torch.bincount(ids[ids >= 0].flatten(), minlength=experts)
            mine = slice(2 * rank, 2 * rank + 2)
            expect(torch.equal(handle.counts.long(), came[mine]), f"routing {name!r}: rows of own experts")
            handle.check()
            back = sy.ops.combine(rows, weights, handle)
            right = (x[:, None] * (weights * (own >= 0))[..., None]).sum(1)
            expect(torch.equal(back, right), f"routing {name!r}: what comes back differs")


def check_bounds(rank, size):
    """What is over the bound on one node is told on all."""
    layer = Layer(size, 2 * size, 3)
    x, weights, w1, w2 = layer.of(rank)
    ids = torch.zeros(size, T, K, dtype=torch.int64)
    _, over = layer.taken(ids, 7)
    text = f"bound: as many as {over} rows more than 7 come to a rank: give bound={7 + over}"
    refused(lambda: sy.ops.moe(x, ids[rank], weights, w1, w2, activation="relu", bound=7), text)
    refused(lambda: sy.ops.dispatch(x, ids[rank], 2 * size, bound=7), text)
    y = sy.ops.moe(x, ids[rank], weights, w1, w2, activation="relu", bound=size * T * K)
    expect(torch.equal(y.double(), layer.right(rank, ids)), "with a bound that fits y differs")
    ids = routings(size, 2 * size, 5)["random"]
    ids[0, 0, 0] = 2 * size + 3
    named = f"topk_ids: 1 of all ranks' ids name no expert; there are experts 0 to {2 * size - 1}"
    refused(lambda: sy.ops.moe(x, ids[rank], weights, w1, w2, activation="relu"), named)


def check_refused(rank, size):
    x, weights, w1, w2 = Layer(size, 2 * size, 3).of(rank)
    ids = torch.zeros(T, K, dtype=torch.int64)
    one_node = "a program of it is of one node's ranks"
    group = sy.group.of_process_group(None, "host")
    refused(lambda: sy.ops.Moe(T, 2 * size, K, H, F, torch.float32, group, tiling=TILING), one_node)
    refused(lambda: sy.ops.dispatch(x, ids, 2 * size + 1), f"E={2 * size + 1} experts are no multiple")
    refused(lambda: sy.ops.moe(x, ids, weights[:, :1], w1, w2), "topk_weights: expected")
    no_graph = "over several nodes no graph holds it"
    refused(lambda: torch.compile(sy.ops.moe, backend="aot_eager")(x, ids, weights, w1, w2), no_graph)


def check_one_rank_alone(rank, size):
    """What is wrong on one rank: said there before anything is sent, or to all; where calls are not waited for, as on a GPU, no other
    node is left waiting, and gets NaNs."""
    from syncopate.ops import mixture_function, mixture_nodes

    x, weights, w1, w2 = Layer(size, 2 * size, 3).of(rank)
    ids = routings(size, 2 * size, 1)["random"][rank]
    if rank == 0:
        refused(lambda: sy.ops.moe(x, ids, weights, w1.double(), w2), "w1: expected", "got", "torch.float64")
    asking = w1.clone().requires_grad_(rank == size - 1)
    refused(
        lambda: sy.ops.moe(x, ids, weights, asking, w2, bound=9 * size), "the ranks' calls differ", "'w1'"
    )
    works, waits = mixture_function.cache.run, mixture_nodes._waits
    last = rank // PLACES == NODES - 1

    def fails(*_given):
        raise RuntimeError("this node fails")

    mixture_function.cache.run = fails if last else works
    try:
        refused(lambda: sy.ops.moe(x, ids, weights, w1, w2), "this node fails")
        mixture_nodes._waits = lambda _: False
        if last:
            refused(lambda: sy.ops.moe(x, ids, weights, w1, w2), "this node fails")
            refused(lambda: sy.ops.dispatch(x, ids, 2 * size), "this node fails")
        else:
            expect(sy.ops.moe(x, ids, weights, w1, w2).isnan().all(), "sums without a node's are numbers")
            refused(sy.ops.dispatch(x, ids, 2 * size)[1].check, "name no expert")
    finally:
        mixture_function.cache.run, mixture_nodes._waits = works, waits
    y = sy.ops.moe(x, ids, weights, w1, w2, activation="relu")
    layer = Layer(size, 2 * size, 3)
    expect(
        torch.equal(y.double(), layer.right(rank, routings(size, 2 * size, 1)["random"])), "then y differs"
    )


def check_tensor_parallel(rank, size):
    experts, inner = 3, 2 * size
    x = numbers((size, T, H), 4)
    w1, w2 = numbers((experts, H, 2, inner), 5), numbers((experts, inner, H), 6)
    ids = torch.randint(-1, experts, (size, T, K), generator=torch.Generator().manual_seed(7))
    own = slice(2 * rank, 2 * rank + 2)
    given = w1[:, :, :, own].reshape(experts, H, 4).contiguous(), w2[:, own].contiguous()
    y = sy.ops.moe(x[rank], ids[rank], torch.ones(T, K), *given, activation="relu", parallel="tensor")
    made = torch.einsum("th,tkhcf->tkcf", x[rank], w1[ids[rank].clamp(min=0)])
    made = torch.einsum("tkf,tkfh->tkh", made[:, :, 0].relu() * made[:, :, 1], w2[ids[rank].clamp(min=0)])
    expect(torch.equal(y, (made * (ids[rank] >= 0)[..., None]).sum(1)), "tensor parallel: y differs")
    named = f"{size} of all ranks' ids name no expert; there are experts 0 to {experts - 1}"
    wrong = torch.zeros(T, K, dtype=torch.int64)
    wrong[0, 0] = 2 * experts + 1
    refused(lambda: sy.ops.moe(x[rank], wrong, torch.ones(T, K), *given, parallel="tensor"), named)


def check_scaled_and_own(rank, size):
    """Experts of fp8, whose scales of x go with it, and products of the caller's; nobody speaks of gradients they lack."""
    for kind, parallel in (("row", "expert"), ("block", "expert"), ("row", "tensor")):
        inner = 128 * size  # of tensor parallel experts each rank has whole blocks
        layer = ScaledLayer(size, 2, kind, (T, K, 160, inner))
        given, scales = layer.of(rank) if parallel == "expert" else layer.columns_of(rank)
        y = sy.ops.moe(*given, scales=scales, parallel=parallel)
        close(y, layer.right(rank), f"fp8, {kind}, {parallel}", 0.02)
        by_op = torch.ops.syncopate.moe_scaled(
            *given, list(scales), dist.group.WORLD.group_name, parallel=parallel
        )
        expect(torch.equal(by_op, y), f"fp8, {kind}, {parallel}: torch's op differs")
    x, weights, w1, w2 = Layer(size, 2 * size, 7).of(rank)
    ids = routings(size, 2 * size, 1)["random"][rank]
    nothing = filled(0)
    y = sy.ops.moe(x, ids, weights, w1, w2, products=(nothing, nothing))
    expect(not y.any(), "products that are 0 make what is not")
    own = w1.clone().requires_grad_()
    refused(lambda: sy.ops.moe(x, ids, weights, own, w2, products=(nothing, nothing)), "a gradient")


def check_gradients(rank, size):
    """Of all four operands, against torch's of all ranks' tokens and experts."""
    experts = 2 * size
    generator = torch.Generator().manual_seed(8)
    x, w1, w2 = (torch.randn(*shape, generator=generator, dtype=torch.float64) / 4 for shape in (
        (size, T, H), (experts, H, 2 * F), (experts, F, H),
    ))  # fmt: skip
    weights = torch.rand(size, T, K, generator=generator, dtype=torch.float64)
    grad = torch.randn(size, T, H, generator=generator, dtype=torch.float64)
    ids = routings(size, experts, 9)["random"]
    whole = [one.clone().requires_grad_() for one in (x, weights, w1, w2)]
    inner = torch.einsum("sth,stkhf->stkf", whole[0], whole[2][ids])
    made = torch.nn.functional.silu(inner[..., :F]) * inner[..., F:]
    y = (torch.einsum("stkf,stkfh->stkh", made, whole[3][ids]) * whole[1][..., None]).sum(2)
    y.backward(grad)
    mine = slice(2 * rank, 2 * rank + 2)
    parts = (rank, rank, mine, mine)
    own = [one[part].detach().float().requires_grad_() for one, part in zip(whole, parts, strict=True)]
    got = sy.ops.moe(own[0], ids[rank], *own[1:])
    got.backward(grad[rank].float())
    names = ("x", "topk_weights", "w1", "w2")
    for name, one, of, part in zip(("y", *names), (got, *(one.grad for one in own)), (y, *(one.grad for one in whole)),
                                   (rank, *parts), strict=True):  # fmt: skip
        error = float((one.detach().double() - of[part].detach()).abs().max())
        expect(error < 1e-5, f"{'y' if name == 'y' else 'the gradient of ' + name} is {error} off")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    check_routings(rank, size)
    check_bounds(rank, size)
    check_refused(rank, size)
    check_one_rank_alone(rank, size)
    check_tensor_parallel(rank, size)
    check_scaled_and_own(rank, size)
    check_gradients(rank, size)
    rows = [row for row in str(sy.report()).splitlines() if "between nodes, moe T=" in row]
    expect(len(rows) >= 1 and f"rank {rank} sends" in rows[0], f"the report says: {sy.report()}")
    dist.barrier()
    if rank == 0:
        print(f"{NODES} nodes of {PLACES}: mixtures are exact")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
